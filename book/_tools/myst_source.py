"""Split MyST text into blocks with the parser that the HTML build uses.

The text is not re-rendered: each block remembers the lines it came from, so that plain Markdown
passes through untouched and only what MyST adds has to be converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml
from book_layout import BookError
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

EXTENSIONS = {"amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"}


@dataclass
class Block:
    """Lines of a text: `kind` is text, heading, target, math, directive or verbatim."""

    kind: str
    lines: list[str]
    line: int  # of the first line, from 0
    prefix: str = ""  # what stands before it on that line, inside a list item
    name: str = ""  # directive, or label of a target
    argument: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    body: str = ""  # content of a directive or of an equation
    label: str = ""
    level: int = 0  # of a heading

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@lru_cache(1)
def parser() -> MarkdownIt:
    return create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)


def split_options(content: str) -> tuple[dict[str, Any], str]:
    """The `:key: value` lines, or the YAML between `---` lines, that open a directive."""
    lines = content.split("\n")
    if lines and lines[0].strip() == "---":
        end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
        if end:
            return yaml.safe_load("\n".join(lines[1:end])) or {}, "\n".join(lines[end + 1 :])
    options: dict[str, Any] = {}
    while lines and (match := re.match(r":([\w-]+):\s*(.*)$", lines[0])):
        options[match[1]] = match[2].strip()
        lines.pop(0)
    return options, "\n".join(lines).strip("\n")


def special_block(token: Token, lines: list[str]) -> Block | None:
    """The block of a token that is more than text, or None."""
    assert token.map is not None
    first, last = token.map
    while last > first + 1 and not lines[last - 1].strip():
        last -= 1
    block = Block("verbatim", lines[first:last], first)
    if token.type in ("fence", "colon_fence"):
        match = re.match(r"\{([^}]+)\}\s*(.*)$", token.info.strip(), re.DOTALL)
        opening = re.search(r"`{3,}|~{3,}|:{3,}", lines[first])
        block.prefix = lines[first][: opening.start()] if opening else ""
        if match:
            block.kind, block.name, block.argument = "directive", match[1], match[2].strip()
            block.options, block.body = split_options(token.content.rstrip("\n"))
            label = block.options.get("label", block.options.get("name", ""))
            block.label = str(label)
    elif token.type in ("math_block", "math_block_label"):
        block.kind, block.body = "math", token.content.strip("\n")
        block.label = token.info if token.type == "math_block_label" else ""
        block.prefix = lines[first][: lines[first].index("$$")]
    elif token.type == "amsmath":
        if token.meta.get("numbered") != "*":
            raise BookError(
                f"line {first + 1}: write $$ … $$ (eq-name) instead of a bare "
                f"\\begin{{{token.meta.get('environment')}}}, which numbers itself"
            )
    elif token.type == "myst_target":
        block.kind, block.name = "target", token.content
    elif token.type == "heading_open" and token.level == 0:
        block.kind, block.level = "heading", int(token.tag[1:])
        block.body = lines[first].lstrip("#").strip()
    elif token.type not in ("code_block", "html_block"):
        return None
    return block


def split_blocks(text: str) -> list[Block]:
    """All lines of `text`, in order, as blocks."""
    lines = text.split("\n")
    blocks: list[Block] = []
    done = 0
    for token in parser().parse(text):
        if token.map is None or token.map[0] < done:
            continue
        block = special_block(token, lines)
        if block is None:
            continue
        if ">" in block.prefix and block.kind != "verbatim":
            raise BookError(f"line {block.line + 1}: no {block.kind} inside a block quote, please")
        if block.line > done:
            blocks.append(Block("text", lines[done : block.line], done))
        blocks.append(block)
        done = block.line + len(block.lines)
    if done < len(lines):
        blocks.append(Block("text", lines[done:], done))
    return blocks


ROLE = r"\{(?P<role>[a-zA-Z][\w:.-]*)\}(?P<tick>`+)(?P<content>(?:.|\n)+?)(?<!`)(?P=tick)(?!`)"
CODE = r"(?P<code>(?P<ticks>`+)(?!`)(?:.|\n)+?(?<!`)(?P=ticks)(?!`))"
MATH = r"(?P<math>\$\$(?:.|\n)+?\$\$|\$(?:\\.|[^\\$])+?\$)"
LINK = r"\]\((?P<link>[^()\s]+)\)"
INLINE = re.compile(rf"(?P<escape>\\.)|{ROLE}|{CODE}|{MATH}|{LINK}")


def replace_inline(
    text: str, role: Callable[[str, str], str], link: Callable[[str], str] = str
) -> str:
    """Replace the roles and link targets of running text, never inside code or mathematics."""

    def replaced(match: re.Match[str]) -> str:
        if match["role"]:
            return role(match["role"], " ".join(match["content"].split()))
        if match["math"]:
            return match["math"].replace("\n", " ")
        if match["link"]:
            return f"]({link(match['link'])})"
        return match[0]

    return INLINE.sub(replaced, text)


def roles_in(text: str) -> Iterator[tuple[str, str]]:
    for match in INLINE.finditer(text):
        if match["role"]:
            yield match["role"], " ".join(match["content"].split())


def with_title(content: str) -> tuple[str, str]:
    """`text <target>` as (text, target); a bare target has no text."""
    match = re.match(r"(.*\S)\s*<([^<>]+)>$", content, re.DOTALL)
    return (match[1], match[2].strip()) if match else ("", content.strip())
