"""Sentences: what is always there, what a local folder has, what a hub has."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mpt_lml.checks import Count, checked
from mpt_lml.data.sources import (
    PUBLISHED,
    CorruptDataError,
    Split,
    from_hub,
    local_path,
    not_found,
    verified,
)
from mpt_score.classic_books import brought_file, fetch_books
from mpt_score.networks.kinds import Tokenizer
from mpt_score.tokens import Tokens, encode

__all__ = ["fetch_books", "sentences", "some_tokens"]

_BOOKS = PUBLISHED["books"]
_WIKITEXT = PUBLISHED["wikitext-2"]
_GLUE = PUBLISHED["glue"]
_GLUE_ON_HUB = "nyu-mll/glue"
_WRITTEN = tuple(PUBLISHED["written"])
_UNKNOWN = re.compile(r"\[UNK\]")  # stands in a text for a word that its publisher took out
NAMES = ("written", *_GLUE, "books", "wikitext-2")
_DEFAULT = "texts.sentences('written')"


class Sentences(NamedTuple):
    """Texts in the order of their file; ``second`` is the other half of each pair."""

    first: tuple[str, ...]
    second: tuple[str, ...] | None = None


@checked
def sentences(name: str = "written", split: Split = "test") -> Sentences:
    """Sentences by name: always there, from the local folder, or from the hub.

    Args:
        name: ``written``, which is always there; ``glue/ax``, ``glue/cola``, ``glue/mrpc``,
            ``glue/qnli`` or ``glue/sst-2``; ``books``, which :func:`fetch_books` can bring, the last
            two held out; ``wikitext-2``; or a UTF-8 file with a sentence a line.
        split: "train" or "test". A set of GLUE has one split.

    Returns:
        The sentences, or pairs of them.

    Raises:
        ValueError: for another name.
        DataNotFoundError: as ``data.images``.
        CorruptDataError: for a file that is not the published one, for a line with too few columns,
            and for a file without a line.

    >>> sentences("written").first[2]
    'It was late in the evening when the ship came into the harbor.'
    """
    # isfile is False, too, for what is too long for a path.
    if name not in NAMES and os.path.isfile(name):
        return _lines_of(name)
    if name not in NAMES:
        raise ValueError(
            f"unknown sentences {name!r:.80}; there are {', '.join(NAMES)}, or name a file of lines."
        )
    if name == "written":
        return Sentences(_WRITTEN)
    if name in _GLUE:
        return _glue(name)
    passage = _books(split) if name == "books" else _wikitext(split)
    with_words = []
    for sentence in _split_sentences(passage):
        if re.search(r"\w", _UNKNOWN.sub("", sentence)):
            with_words.append(sentence)
    return Sentences(tuple(with_words))


@checked
def some_tokens(
    name: str, tokenizer: Tokenizer, count: Count, longest: Count | None = None
) -> Tokens:
    """Some sentences of a set as rows of tokens, the same ones every time.

    Args:
        name: of the set, as of :func:`sentences`; its held-out half, where it has one.
        tokenizer: of ``transformers``.
        count: how many are drawn; all where there are fewer.
        longest: most tokens of a row that may be drawn, special ones counted; None without limit.

    Returns:
        Rows of two or more tokens to score, none of them cut.

    Raises:
        ValueError: where no sentence is short enough, and as :func:`sentences`.

    >>> from mpt_score.networks import load_small_bert
    >>> _, tokenizer = load_small_bert()
    >>> len(some_tokens("written", tokenizer, 4, longest=64))
    4
    """
    texts = sentences(name)
    tokens = encode(tokenizer, texts.first, texts.second)
    fits = (tokens.lengths <= (longest or tokens.lengths.max())) & (tokens.num_features >= 2)
    if not fits.any():
        raise ValueError(f"all {len(tokens)} sentences of {name} are longer than {longest} tokens.")
    order = torch.randperm(int(fits.sum()), generator=torch.Generator().manual_seed(0))
    return tokens.rows(fits.nonzero().flatten()[order[:count]])


def _lines_of(file: str) -> Sentences:
    lines = tuple(line for line in _text(Path(file)).splitlines() if line.strip())
    if not lines:
        raise CorruptDataError(f"{file} is empty: it has no line of text.")
    return Sentences(lines)


def bert_vocabulary() -> Path:
    """The 30,522 word pieces of bert-base-uncased, a ``vocab.txt`` in the local folder.

    Raises:
        DataNotFoundError: when it is not there.
        CorruptDataError: for another one.
    """
    return _published_file("BERT's vocabulary", PUBLISHED["vocabulary"])


def _split_sentences(passage: str) -> Iterator[str]:
    """Sentences of running text: cut after . ! ? (and quotes) before a capital or a quote."""
    for paragraph in re.split(r"\n\s*\n", passage.replace("\r\n", "\n")):
        line = " ".join(re.sub(r"[_*#]", "", paragraph).split())
        for sentence in re.split(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’]))\s+(?=[\"'“‘(A-Z])", line):
            if sentence:
                yield sentence


def _books(split: Split) -> str:
    if local_path(_BOOKS["file"]) is None and brought_file().exists():
        path = brought_file()
        verified(path, _BOOKS["sha256"], "delete it and call fetch_books() again")
    else:
        path = _published_file("books", _BOOKS)
    content = _text(path)
    start = content.index(_BOOKS["first_held_out"])
    return content[start:] if split == "test" else content[:start]


def _wikitext(split: Split) -> str:
    """The published tokenization is undone: ``@-@``, spaced punctuation, ``<unk>`` for rare words."""
    lines = _text(_published_file("wikitext-2", _WIKITEXT[split])).splitlines()
    paragraphs = []
    for line in lines:
        is_title = line.strip().startswith("=")
        if line.strip() and not is_title:
            paragraphs.append(line)
    joined = re.sub(r" @(.)@ ", r"\1", "\n\n".join(paragraphs)).replace("<unk>", "[UNK]")
    return re.sub(r" ([,.;:!?)])", r"\1", joined.replace("( ", "("))


def _glue(name: str) -> Sentences:
    """A table of GLUE, from the local folder if there is one, else from the hub."""
    table = _GLUE[name]
    if local_path("glue") is None:
        columns = _glue_from_hub(name, table)
        _require_lines(name, columns, table, _GLUE_ON_HUB)
        return Sentences(*columns)
    path = _published_file(name, table | {"hub": _GLUE_ON_HUB})
    columns = _glue_from_file(path, table)
    _require_lines(name, columns, table, path)
    content = "\n".join("\t".join(cells) for cells in zip(*columns, strict=True)).encode()
    verified(path, table["columns_sha256"], content=content)
    return Sentences(*columns)


def _glue_from_hub(name: str, table: dict[str, Any]) -> list[tuple[str, ...]]:
    subset, split, *names = table["rows"].split()
    missing = not_found(name, table["file"], _GLUE_ON_HUB, _DEFAULT)
    columns = from_hub(missing, _GLUE_ON_HUB, subset, split=split)
    return [tuple(str(cell) for cell in columns[name]) for name in names]


def _glue_from_file(path: Path, table: dict[str, Any]) -> list[tuple[str, ...]]:
    start = int(table["has_header"])
    lines = [line.split("\t") for line in _text(path).splitlines()[start:] if line]
    for number, cells in enumerate(lines, start=1 + start):
        if len(cells) < table["num_columns"]:
            raise CorruptDataError(
                f"{table['file']}, line {number}: {len(cells)} columns, expected "
                f"{table['num_columns']}. It needs the form in which GLUE publishes it."
            )
    return [tuple(cells[column].strip() for cells in lines) for column in table["columns"]]


def _require_lines(
    name: str, columns: list[tuple[str, ...]], table: dict[str, Any], place: str | Path
) -> None:
    if len(columns[0]) != table["num_rows"]:
        raise CorruptDataError(
            f"{place} has {len(columns[0])} lines of {name}, expected {table['num_rows']}. "
            "It may be truncated; fetch it again."
        )


def _published_file(name: str, about: dict[str, Any]) -> Path:
    """The local file, the published one where its checksum is known."""
    path = local_path(about["file"])
    if path is None:
        raise not_found(name, about["file"], about["hub"], about.get("default", _DEFAULT))
    if "sha256" in about:
        verified(path, about["sha256"], about.get("again", "fetch it again"))
    return path


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not UTF-8 text: {error}.") from error
