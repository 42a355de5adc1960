"""The lines of a file as texts that a model can score, or why it cannot."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpt_score.scorer import Scorer


class Line(NamedTuple):
    number: int  # in the file, from 1
    texts: tuple[str, ...]  # what is encoded; answers: prompt + option
    document: int  # how many empty lines came before
    prompt: str = ""


def _lines(path: str) -> list[tuple[int, str, int]]:
    """Number, text and document of each line that is not empty, in UTF-8."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}.") from error
    found, document = [], 0
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            byte = f"byte 0x{raw[error.start]:02x} at {error.start + 1}"
            raise ValueError(f"{path}, line {number} is not UTF-8 ({byte}): convert it.") from None
        document += not text.strip()
        found += [(number, text, document)] * bool(text.strip())
    if not found:
        raise ValueError(f"{path} has no text: one a line is needed.")
    return found


def _line(kind: str, number: int, text: str, document: int) -> Line:
    """A line taken apart. Raises ``ValueError`` where it is not what ``kind`` needs."""
    if kind == "pairs":
        parts = tuple(text.split("\t"))
        if len(parts) != 2:
            raise ValueError(f"two texts with one tab between are needed, got {text[:60]!r}.")
        return Line(number, parts, document)
    if kind == "answers":
        try:
            asked = json.loads(text)
            prompt, options = asked["prompt"], [asked["prompt"] + each for each in asked["options"]]
        except (ValueError, TypeError, KeyError) as error:
            wanted = '{"prompt": "...", "options": ["...", ...]}'
            raise ValueError(f"must be {wanted}, got {text[:60]!r}.") from error
        if not options:
            raise ValueError("at least one option is needed.")
        return Line(number, tuple(options), document, prompt)
    return Line(number, (text,), document)


def readable(path: str, kind: str, scorer: Scorer, *, skip: bool) -> tuple[list[Line], list[str]]:
    """The lines that can be scored, and why others cannot; without ``skip`` the first of these raises.

    ``kind`` is what will be done with them: "sentences", "pairs", "answers" or "curve".
    """
    whole = kind != "sentences"  # long texts are read through windows there

    def good(some: Sequence[tuple[int, str, int]]) -> list[Line]:
        """Together; one by one only where that fails."""
        try:
            parsed = [_line(kind, *each) for each in some]
            rows = scorer.encode([text for line in parsed for text in line.texts])
            most = int(rows.lengths.max())
            if whole and scorer.max_length is not None and most > scorer.max_length:
                raise ValueError(f"{most} tokens are more than the model's {scorer.max_length}.")
            return parsed
        except ValueError as error:
            if len(some) > 1:
                return [line for each in some for line in good([each])]
            faults.append(f"{path}, line {some[0][0]}: {error}")
            if not skip:
                raise ValueError(f"{faults[0]} Mend it, or leave such lines out: --skip.") from None
            return []

    lines, faults = _lines(path), list[str]()
    parts = [lines[start : start + 256] for start in range(0, len(lines), 256)]
    found = [line for part in parts for line in good(part)]
    if not found:
        raise ValueError(f"no line of {path} can be scored: {faults[0]}")
    return found, faults
