"""The blocks of a MyST text, found with the parser that the HTML build uses.

The text is not rendered again: plain Markdown passes through as its author wrote it, and only what
MyST adds is taken apart.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from book_layout import BookError
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

EXTENSIONS = {"amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"}
PARSER = create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)


@dataclass
class Block:
    """Some lines: `kind` is text, verbatim, target, heading, math, or a directive's name."""

    kind: str
    body: str
    label: str = ""
    argument: str = ""
    classes: tuple[str, ...] = ()


def directive(name: str, argument: str, content: str) -> Block:
    options = re.match(r"(:[\w-]+:.*\n?)*", content)[0]
    label_option = re.search(r"^:(?:label|name): *(\S+)", options, re.M)
    label = label_option[1] if label_option else ""
    class_option = re.search(r"^:class: *(.+)", options, re.M)
    classes = tuple(class_option[1].split()) if class_option else ()
    body = content.removeprefix(options).strip("\n")
    return Block(name.removeprefix("prf:"), body, label, argument.strip(), classes)


def special(token: Token, source: str) -> Block | None:
    """The block of a token that is more than text."""
    if token.type in ("fence", "colon_fence"):
        match = re.match(r"\{([^}]+)\}(.*)$", token.info.strip())
        if match is None:
            return Block("verbatim", source)
        name, argument = match.groups()
        return directive(name, argument, token.content)
    if token.type == "math_block":
        return Block("math", token.content.strip())
    if token.type == "math_block_label":
        return Block("math", token.content.strip(), token.info)
    if token.type == "amsmath":
        raise BookError("write $$ … $$ (eq-name) instead of a bare \\begin, which numbers itself")
    if token.type == "myst_target":
        return Block("target", "", token.content)
    if token.type == "heading_open":
        return Block("heading", source.lstrip("#").strip(), argument=token.tag[1:])
    if token.type in ("code_block", "html_block"):
        return Block("verbatim", source)
    return None


def split_blocks(text: str) -> Iterator[Block]:
    """All of `text`, in order."""
    lines = text.split("\n")
    text_start = 0  # the first line that belongs to no block yet
    for token in PARSER.parse(text):
        if token.level or token.map is None:  # inside another block, or its end
            continue
        first, last = token.map
        block = special(token, "\n".join(lines[first:last]))
        if block is not None:
            yield Block("text", "\n".join(lines[text_start:first]))
            yield block
            text_start = last
    yield Block("text", "\n".join(lines[text_start:]))


ROLE = r"\{(?P<role>[a-zA-Z][\w:.-]*)\}(?P<tick>`+)(?P<content>(?:.|\n)+?)(?<!`)(?P=tick)(?!`)"
CODE = r"(?P<ticks>`+)(?!`)(?:.|\n)+?(?<!`)(?P=ticks)(?!`)"
MATH = r"(?P<math>\$\$(?:.|\n)+?\$\$|\$(?:\\.|[^\\$])+?\$)"
INLINE = re.compile(rf"\\.|{ROLE}|{CODE}|{MATH}")


def replace_roles(text: str, role: Callable[[str, str, str], str]) -> str:
    """`role(name, title, target)` for each of running text, never inside code or mathematics."""

    def replaced(match: re.Match[str]) -> str:
        if match["math"]:  # a formula broken over two lines is none in some viewers
            return match[0].replace("\n", " ")
        if match["role"] is None:
            return match[0]
        content = " ".join(match["content"].split())
        with_title = re.match(r"(.*\S)\s*<([^<>]+)>$", content)
        title, target = with_title.groups() if with_title else ("", content)
        return role(match["role"], title, target)

    return INLINE.sub(replaced, text)
