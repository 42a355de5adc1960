"""Sentences: what is always there, what a local folder has, what a hub has (wing).

==================  ====================  ============================================  ===========
name                always there          folder named by ``MPT_LML_DATA``              hub
==================  ====================  ============================================  ===========
``written``         with the package      --                                            --
``glue/ax``         --                    ``glue/AX/diagnostic-full.tsv``, pairs        nyu-mll/glue
``glue/cola``       --                    ``glue/CoLA/dev.tsv``                         the same
``glue/mrpc``       --                    ``glue/MRPC/msr_paraphrase_test.txt``, pairs  the same
``glue/qnli``       --                    ``glue/QNLI/dev.tsv``, pairs                  the same
``glue/sst-2``      --                    ``glue/SST-2/dev.tsv``                        the same
``books``           --                    ``text/classic_books/corpus.txt``             --
``wikitext-2``      --                    ``text/wikitext-2/{valid,test}.txt``          --
==================  ====================  ============================================  ===========

Of the 23 classic books the last two, both by Stevenson, are held out (``split="test"``). The model
card of the small BERT lists them and says how they make one file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mpt_lml.data import DATA_VARIABLE, CorruptDataError, DataNotFoundError

Split = Literal["train", "test"]
HUB_NAME = "nyu-mll/glue"


@dataclass(frozen=True)
class _Table:
    """A GLUE file: where it lies, its text columns by number, and the same for the hub."""

    path: str
    columns: tuple[int, ...]
    num_columns: int
    header: bool
    hub: tuple[str, str, tuple[str, ...]]  # subset, split, columns


TABLES = {
    "glue/ax": _Table(
        "AX/diagnostic-full.tsv", (5, 6), 8, True, ("ax", "test", ("premise", "hypothesis"))
    ),
    "glue/cola": _Table("CoLA/dev.tsv", (3,), 4, False, ("cola", "validation", ("sentence",))),
    "glue/mrpc": _Table(
        "MRPC/msr_paraphrase_test.txt",
        (3, 4),
        5,
        True,
        ("mrpc", "test", ("sentence1", "sentence2")),
    ),
    "glue/qnli": _Table(
        "QNLI/dev.tsv", (1, 2), 4, True, ("qnli", "validation", ("question", "sentence"))
    ),
    "glue/sst-2": _Table("SST-2/dev.tsv", (0,), 2, True, ("sst2", "validation", ("sentence",))),
}
NAMES = ("written", *TABLES, "books", "wikitext-2")

# Written for this book; nobody else's words.
WRITTEN = (
    "The lamp was lit, and the old man sat down by the fire to wait for his son.",
    "She opened the letter with a trembling hand and read it twice before she spoke.",
    "It was late in the evening when the ship came into the harbor.",
    "I had never seen the house before, but I knew every window of it.",
    "The captain looked at the sky, and then at his men, and said nothing.",
    "There is no man in the village who would not have done the same.",
    "When the rain had stopped, the children ran out into the garden.",
    "He had a great deal of money, and very little time to spend it.",
    "My dear friend, you must not think that I have forgotten you.",
    "The door was closed, but a light was burning in the room above.",
    "In the morning they found that the horse and the boat were both gone.",
    "What she wanted most in the world was to be left alone for an hour.",
)


@dataclass(frozen=True)
class Sentences:
    """Texts, or pairs of texts, in the order of their file.

    Attributes
    ----------
    first : tuple of str
    second : tuple of str or None
        The other half of each pair.
    name, source : str
        Which sentences, and where they were found ("package", "local folder", "hub").
    """

    first: tuple[str, ...]
    second: tuple[str, ...] | None
    name: str
    source: str

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: slice) -> Sentences:
        """Some of the sentences: ``sentences[:64]``."""
        second = None if self.second is None else self.second[rows]
        return Sentences(self.first[rows], second, self.name, self.source)


def sentences(name: str = "written", split: Split = "test") -> Sentences:
    """Sentences by name, see the module's table; GLUE has one split here, which is not labeled.

    Raises
    ------
    ValueError
        For an unknown name or split.
    DataNotFoundError
        When the sentences are in none of the places; the message lists the three ways to get them.
    CorruptDataError
        When a local file has a row with too few columns, or is not UTF-8.
    """
    if name not in NAMES:
        raise ValueError(f"unknown sentences {name!r}; there are {', '.join(NAMES)}.")
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}.")
    if name == "written":
        return Sentences(WRITTEN, None, name, "package")
    if name in TABLES:
        return _glue(name)
    read = _books if name == "books" else _wikitext
    known = (
        each for each in split_sentences(read(split)) if re.search(r"\w", UNKNOWN.sub("", each))
    )
    return Sentences(tuple(known), None, name, "local folder")


UNKNOWN = re.compile(r"\[UNK\]")
"""How a word stands in a text whose publisher took it out."""


def split_sentences(passage: str) -> Iterator[str]:
    """Sentences of running text: cut after . ! ? (and quotes) before a capital or a quote."""
    for paragraph in re.split(r"\n\s*\n", passage.replace("\r\n", "\n")):
        line = " ".join(re.sub(r"[_*#]", "", paragraph).split())
        for sentence in re.split(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’]))\s+(?=[\"'“‘(A-Z])", line):
            if sentence:
                yield sentence


FIRST_HELD_OUT = "I will begin the story of my adventures"
"""Opens *Kidnapped*, the first of the two held-out books: the corpus has no titles between books."""


BOOKS_SHA256 = "a8108a0c43f20253bae5d6ad21462dccfeab855d480f807966f107830bb61844"


def _books(split: str) -> str:
    content = _read("books", "text/classic_books/corpus.txt", BOOKS_SHA256)
    start = content.index(FIRST_HELD_OUT)
    return content[start:] if split == "test" else content[:start]


def _wikitext(split: str) -> str:
    """The published tokenization is undone: ``@-@``, spaced punctuation, ``<unk>`` for rare words."""
    file = "test.txt" if split == "test" else "valid.txt"
    lines = _read("wikitext-2", f"text/wikitext-2/{file}").splitlines()
    kept = [line for line in lines if line.strip() and not line.strip().startswith("=")]
    joined = re.sub(r" @(.)@ ", r"\1", "\n\n".join(kept)).replace("<unk>", "[UNK]")
    return re.sub(r" ([,.;:!?)])", r"\1", joined.replace("( ", "("))


def _glue(name: str) -> Sentences:
    table = TABLES[name]
    folder = _local_folder()
    if folder is None or not (folder / "glue").is_dir():
        return _from_hub(name)
    lines = _read(name, f"glue/{table.path}").splitlines()[1 if table.header else 0 :]
    rows = [line.split("\t") for line in lines if line]
    for number, row in enumerate(rows, start=2 if table.header else 1):
        if len(row) < table.num_columns:
            raise CorruptDataError(
                f"glue/{table.path}, row {number}: {len(row)} columns, expected "
                f"{table.num_columns}. The file needs the form in which GLUE publishes it."
            )
    columns = [tuple(row[each].strip() for row in rows) for each in table.columns]
    return Sentences(columns[0], columns[1] if columns[1:] else None, name, "local folder")


def _from_hub(name: str) -> Sentences:
    subset, split, names = TABLES[name].hub
    try:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise ConnectionError("HF_HUB_OFFLINE is set")
        from datasets import load_dataset

        rows = load_dataset(HUB_NAME, subset, split=split)
    except (ImportError, OSError) as error:
        raise DataNotFoundError(_three_ways(name)) from error
    columns = [tuple(rows[each]) for each in names]
    return Sentences(columns[0], columns[1] if columns[1:] else None, name, "hub")


def _local_folder() -> Path | None:
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        return None
    if not Path(root).is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} names {root!r}, which is not a folder. Correct it or unset it."
        )
    return Path(root)


BERT_VOCABULARY = "bert_vocab/bert-base-uncased-vocab.txt"


def bert_vocabulary() -> Path:
    """The 30,522 word pieces of bert-base-uncased, a ``vocab.txt`` in the local folder."""
    folder = _local_folder()
    if folder is None or not (folder / BERT_VOCABULARY).is_file():
        raise DataNotFoundError(
            f"BERT's vocabulary is not on this machine. Put vocab.txt of bert-base-uncased at "
            f"{BERT_VOCABULARY} in a folder and name the folder: export {DATA_VARIABLE}=/path/to/folder; "
            "or use the book's small BERT, which brings its own."
        )
    return folder / BERT_VOCABULARY


def _read(name: str, file: str, sha256: str | None = None) -> str:
    folder = _local_folder()
    if folder is None or not (folder / file).is_file():
        raise DataNotFoundError(_three_ways(name))
    found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    if sha256 not in (None, found):
        raise CorruptDataError(
            f"{folder / file} is not the text that the book uses: its SHA-256 is {found}, expected "
            f"{sha256}. It may be truncated; the model card of the small BERT says how it is made."
        )
    try:
        return (folder / file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{folder / file} is not UTF-8 text: {error}.") from error


def _three_ways(name: str) -> str:
    if name in TABLES:
        file = f"glue/{TABLES[name].path}"
        hub = f"pip install 'mpt-lml[hub]', which loads {HUB_NAME}"
    else:
        file = {"books": "text/classic_books/corpus.txt"}.get(name, "text/wikitext-2/test.txt")
        hub = "fetch it from where it is published"
        if name == "books":
            hub = "make it as the model card says (book/results/small_bert/README.md)"
        hub += "; no hub is asked for it"
    return (
        f"{name} is not on this machine. Three ways to go on:\n"
        f"  1. put the published file at {file} in a folder and name the folder: "
        f"export {DATA_VARIABLE}=/path/to/folder;\n"
        f"  2. with a network: {hub} (and unset HF_HUB_OFFLINE);\n"
        "  3. use the default that is always there: text.sentences('written')."
    )
