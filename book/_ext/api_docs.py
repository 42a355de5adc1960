"""Docstrings of the package are written for a terminal; this makes them safe to read as reST.

``|A|``, ``x_`` and a single back-quoted name are ordinary text in a docstring and markup in reST.
The hook escapes them, leaves double-quoted literals and roles alone, sets the indented formulas of
a module's docstring as they stand, and joins a formula that goes on in an indented line.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

PROTECTED = re.compile(r"(``[^`]+``|:[a-zA-Z:]+:`[^`]+`)")
SINGLE_QUOTED = re.compile(r"`([^`]+)`")
SECTION = re.compile(r"(Args|Attributes|Parameters|Raises|Returns|Notes?|Yields):$")
UNDERLINE = re.compile(r"-{3,}$")
TRAILING_UNDERSCORE = re.compile(r"(?<=\w)_(?=\W|$)")


def plain(text: str) -> str:
    """``text`` with what reST would take for markup escaped, outside literals and roles."""
    pieces = PROTECTED.split(SINGLE_QUOTED.sub(_quoted, text) if "``" not in text else text)
    return "".join(piece if n % 2 else _escape(piece) for n, piece in enumerate(pieces))


def _quoted(match: re.Match[str]) -> str:
    before, after = match.string[: match.start()], match.string[match.end() :]
    if before.endswith(":"):
        return match[0]
    # reST wants a separator between a literal and an opening parenthesis or a letter.
    glue = r"\ " if after[:1].isalnum() or after[:1] == "(" else ""
    return f"``{match[1]}``{glue}"


def _escape(text: str) -> str:
    return TRAILING_UNDERSCORE.sub(r"\\_", text.replace("|", r"\|"))


def joined(lines: list[str]) -> list[str]:
    """A formula's continuation line, indented for the eye, brought back to its paragraph."""
    done: list[str] = []
    for n, line in enumerate(lines):
        if SECTION.match(line) or UNDERLINE.match("".join(lines[n + 1 : n + 2])):
            return done + lines[n:]
        continues = line.startswith(" ") and done and done[-1].strip() and done[-1][0] != " "
        done.append(line.lstrip() if continues else line)
    return done


def literal_blocks(lines: list[str]) -> list[str]:
    """``::`` put before every indented block that follows a blank line."""
    done: list[str] = []
    inside = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not inside and (not done or not done[-1].strip()):
            done += ["::", ""]
            inside = True
        elif line.strip() and not indented:
            inside = False
        done.append(line)
    return done


def process(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    if what == "module":
        lines[:] = literal_blocks(lines)
        lines[:] = [line if line.startswith("    ") else plain(line) for line in lines]
    else:
        lines[:] = [plain(line) for line in joined(lines)]


def setup(app: Sphinx) -> dict[str, Any]:
    # Before napoleon (500), which turns sections into fields.
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
