"""The lines of a file as texts that a model can score, or why it cannot."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpt_score.scorer import Scorer

BATCH_LINES = 256
"""Lines that are tokenized together."""
SHOWN_CHARACTERS = 60
"""Of a wrong line, in a message."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SourceLine(NamedTuple):
    """A line as it stands in the file."""

    number: int  # from 1
    text: str
    document: int  # how many empty lines came before


class Line(NamedTuple):
    """A line as texts to score."""

    number: int  # in the file, from 1
    texts: tuple[str, ...]  # what is encoded; of a question, prompt + option for each option
    document: int  # how many empty lines came before
    prompt: str = ""


def readable(path: str, kind: str, scorer: Scorer, *, skip: bool) -> tuple[list[Line], list[str]]:
    """The lines that can be scored, and why others cannot.

    Args:
        path: A file in UTF-8; ``-`` is standard input.
        kind: What is done with the lines: "sentences", "pairs", "answers" or "curve".
        scorer: Whose tokenizer has to know the texts.
        skip: Whether to go on after a line that cannot be scored.

    Raises:
        ValueError: For the first such line without ``skip``, and where no line can be scored.
        OSError: For a file that cannot be read.
    """
    lines: list[Line] = []
    faults: list[str] = []
    source = _read(path)
    for start in range(0, len(source), BATCH_LINES):
        batch = source[start : start + BATCH_LINES]
        try:
            lines += _scorable(batch, kind, scorer)
        except ValueError:
            # Somewhere in it is a fault: line by line, which costs more, says where.
            for line in batch:
                try:
                    lines += _scorable([line], kind, scorer)
                except ValueError as error:
                    fault = f"{path}, line {line.number}: {error}"
                    if not skip:
                        remedy = "Mend it, or leave such lines out: --skip."
                        raise ValueError(f"{fault} {remedy}") from None
                    faults.append(fault)
    if not lines:
        raise ValueError(f"no line of {path} can be scored: {faults[0]}")
    return lines, faults


def _read(path: str) -> list[SourceLine]:
    """The lines that are not empty."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}.") from error
    lines = []
    document = 0
    for number, raw in enumerate(content.removeprefix(BYTE_ORDER_MARK).splitlines(), 1):
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            byte = f"byte 0x{raw[error.start]:02x} at {error.start + 1}"
            raise ValueError(f"{path}, line {number} is not UTF-8 ({byte}): convert it.") from None
        if not text.strip():
            document += 1  # an empty line ends a document
            continue
        lines.append(SourceLine(number, text, document))
    if not lines:
        raise ValueError(f"{path} has no text: one a line is needed.")
    return lines


def _scorable(source: Sequence[SourceLine], kind: str, scorer: Scorer) -> list[Line]:
    """Lines taken apart. Raises ``ValueError`` where one of them cannot be scored."""
    lines = [_parse(line, kind) for line in source]
    tokens = scorer.encode([text for line in lines for text in line.texts])
    if kind == "sentences":
        return lines  # long texts are read through windows
    longest = int(tokens.lengths.max())
    if scorer.max_length is not None and longest > scorer.max_length:
        raise ValueError(f"{longest} tokens are more than the model's {scorer.max_length}.")
    return lines


def _parse(line: SourceLine, kind: str) -> Line:
    """A line taken apart. Raises ``ValueError`` where it is not what ``kind`` needs."""
    if kind == "pairs":
        return _parse_pair(line)
    if kind == "answers":
        return _parse_question(line)
    return Line(line.number, (line.text,), line.document)


def _parse_pair(line: SourceLine) -> Line:
    texts = tuple(line.text.split("\t"))
    if len(texts) != 2:
        shown = line.text[:SHOWN_CHARACTERS]
        raise ValueError(f"two texts with one tab between are needed, got {shown!r}.")
    return Line(line.number, texts, line.document)


def _parse_question(line: SourceLine) -> Line:
    try:
        question = json.loads(line.text)
        prompt = question["prompt"]
        texts = tuple(prompt + option for option in question["options"])
    except (ValueError, TypeError, KeyError) as error:
        form = '{"prompt": "...", "options": ["...", ...]}'
        shown = line.text[:SHOWN_CHARACTERS]
        raise ValueError(f"must be {form}, got {shown!r}.") from error
    if not texts:
        raise ValueError("at least one option is needed.")
    return Line(line.number, texts, line.document, prompt)
