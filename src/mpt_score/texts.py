"""Sentences: what is always there, what a local folder has, what a hub has."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpt_lml.data.sources import (
    PUBLISHED,
    CorruptDataError,
    Split,
    from_hub,
    local_path,
    not_found,
    verified,
)
from mpt_lml.spec import require

__all__ = ["sentences"]

_BOOKS, _WIKITEXT, _GLUE = (PUBLISHED[name] for name in ("books", "wikitext-2", "glue"))
_UNKNOWN = re.compile(r"\[UNK\]")  # stands in a text for a word that its publisher took out
NAMES = ("written", *(name for name in _GLUE if " " not in name), "books", "wikitext-2")
_WRITTEN = tuple(PUBLISHED["written"])
_DEFAULT = "texts.sentences('written')"


class Sentences(NamedTuple):
    """Texts in the order of their file; ``second`` is the other half of each pair."""

    first: tuple[str, ...]
    second: tuple[str, ...] | None = None


def sentences(name: str = "written", split: Split = "test") -> Sentences:
    """Sentences by name: ``written`` (always there), or from the local folder or the hub.

    Those are ``glue/ax``, ``cola``, ``mrpc``, ``qnli`` and ``sst-2``, with one split that is not
    labeled, ``books``, of which the last two are held out, and ``wikitext-2``; or ``name`` is a
    UTF-8 file with one a line. Raises as ``data.images``, and ``CorruptDataError`` for a row with
    too few columns and a file without a line.

    >>> sentences("written").first[2]
    'It was late in the evening when the ship came into the harbor.'
    """
    require(locals(), "name str, split train|test")
    if name not in NAMES and os.path.isfile(name):  # False, too, for what is too long for a path
        lines = tuple(filter(str.strip, _text(Path(name)).splitlines()))
        if not lines:
            raise CorruptDataError(f"{name} is empty: it has no line of text.")
        return Sentences(lines)
    if name not in NAMES:
        said = f"unknown sentences {name!r:.80}; there are {', '.join(NAMES)}, or name a file of lines."
        raise ValueError(said)
    if name == "written":
        return Sentences(_WRITTEN)
    if name in _GLUE:
        return _glue(name)
    known = (
        each
        for each in _split_sentences((_books if name == "books" else _wikitext)(split))
        if re.search(r"\w", _UNKNOWN.sub("", each))
    )
    return Sentences(tuple(known))


def labeled(name: str, split: Split = "test") -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Sentences and their classes, 0 or 1, with the errors of :func:`sentences`.

    ``glue/cola``: is it English? ``glue/sst-2``, one split: does the critic praise? ``written``:
    any four words in a row of those sentences, and whether "the" is one of them.

    >>> texts, classes = labeled("written")
    >>> texts[0], classes[0]
    ('The lamp was lit,', 1)
    """
    require(locals(), "split train|test, name str")
    if name == "written":
        words = [each.split() for each in _WRITTEN]
        fours = [each[k : k + 4] for each in words for k in range(len(each) - 3)]
        classes = (int("the" in map(str.lower, each)) for each in fours)
        return tuple(map(" ".join, fours)), tuple(classes)
    if f"{name} {split}" not in _GLUE:
        known = ", ".join(["written", *(each for each in _GLUE if " " in each)])
        raise ValueError(f"no classes of {name!r}, {split}; there are {known}.")
    found = _glue(f"{name} {split}")
    return found.first, tuple(map(int, found.second or ()))


def bert_vocabulary() -> Path:
    """The 30,522 word pieces of bert-base-uncased, a ``vocab.txt`` in the local folder.

    Raises ``DataNotFoundError`` when it is not there, ``CorruptDataError`` for another one.
    """
    return _found("BERT's vocabulary", PUBLISHED["vocabulary"])


def _split_sentences(passage: str) -> Iterator[str]:
    """Sentences of running text: cut after . ! ? (and quotes) before a capital or a quote."""
    for paragraph in re.split(r"\n\s*\n", passage.replace("\r\n", "\n")):
        line = " ".join(re.sub(r"[_*#]", "", paragraph).split())
        for sentence in re.split(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’]))\s+(?=[\"'“‘(A-Z])", line):
            if sentence:
                yield sentence


def _books(split: Split) -> str:
    content = _text(_found("books", _BOOKS))
    start = content.index(_BOOKS["first_held_out"])
    return content[start:] if split == "test" else content[:start]


def _wikitext(split: Split) -> str:
    """The published tokenization is undone: ``@-@``, spaced punctuation, ``<unk>`` for rare words."""
    lines = _text(_found("wikitext-2", _WIKITEXT[split])).splitlines()
    kept = [line for line in lines if line.strip() and not line.strip().startswith("=")]
    joined = re.sub(r" @(.)@ ", r"\1", "\n\n".join(kept)).replace("<unk>", "[UNK]")
    return re.sub(r" ([,.;:!?)])", r"\1", joined.replace("( ", "("))


def _glue(name: str) -> Sentences:
    table, hub = _GLUE[name], "nyu-mll/glue"
    path = None if local_path("glue") is None else _found(name, table | {"hub": hub})
    if path is None:
        subset, split, *names = table["rows"].split()
        rows = from_hub(not_found(name, table["file"], hub, _DEFAULT), hub, subset, split=split)
        columns = [tuple(map(str, rows[each])) for each in names]
    else:
        start, count = int(table["has_header"]), table["num_columns"]
        cells = [line.split("\t") for line in _text(path).splitlines()[start:] if line]
        for number, row in enumerate(cells, start=1 + start):
            if len(row) < count:
                said = f"{table['file']}, row {number}: {len(row)} columns, expected {count}."
                raise CorruptDataError(f"{said} It needs the form in which GLUE publishes it.")
        columns = [tuple(row[each].strip() for row in cells) for each in table["columns"]]
    if len(columns[0]) != table["num_rows"]:
        said = f"{path or hub} has {len(columns[0])} rows of {name}, expected {table['num_rows']}."
        raise CorruptDataError(f"{said} It may be truncated; fetch it again.")
    if path is not None:
        content = "\n".join(map("\t".join, zip(*columns, strict=True))).encode()
        verified(path, table["columns_sha256"], content=content)
    return Sentences(*columns)


def _found(name: str, about: dict[str, str]) -> Path:
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
