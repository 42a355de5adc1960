"""Sentences: what is always there, what a local folder has, what a hub has."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mpt_lml.data.places import CorruptDataError, checked, from_hub, local, not_found
from mpt_lml.spec import require

Split = Literal["train", "test"]
_CARD = "make it as the model card says (book/results/small_bert/README.md)"
_BOOKS = "text/classic_books/corpus.txt"
_VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_WIKITEXT = {
    "train": ("valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    "test": ("test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
}
_BOOKS_SHA256 = "a8108a0c43f20253bae5d6ad21462dccfeab855d480f807966f107830bb61844"
# Opens *Kidnapped*, the first of the two held-out books: the corpus has no titles between books.
_FIRST_HELD_OUT = "I will begin the story of my adventures"
# How a word stands in a text whose publisher took it out.
_UNKNOWN = re.compile(r"\[UNK\]")


class _Table(NamedTuple):
    """A file of GLUE as published, and where the hub has it: subset, split and text columns."""

    file: str
    columns: tuple[int, ...]
    num_columns: int
    has_header: bool
    num_rows: int
    hub: str


_TABLES = {
    "glue/ax": _Table(
        "AX/diagnostic-full.tsv", (5, 6), 8, True, 1104, "ax test premise hypothesis"
    ),
    "glue/cola": _Table("CoLA/dev.tsv", (3,), 4, False, 1043, "cola validation sentence"),
    "glue/mrpc": _Table(
        "MRPC/msr_paraphrase_test.txt", (3, 4), 5, True, 1725, "mrpc test sentence1 sentence2"
    ),
    "glue/qnli": _Table("QNLI/dev.tsv", (1, 2), 4, True, 5463, "qnli validation question sentence"),
    "glue/sst-2": _Table("SST-2/dev.tsv", (0,), 2, True, 872, "sst2 validation sentence"),
}
# With their classes; what GLUE calls dev is the test here, whose own classes are not published.
_LABELED = {
    "glue/cola train": _Table(
        "CoLA/train.tsv", (3, 1), 4, False, 8551, "cola train sentence label"
    ),
    "glue/cola test": _Table(
        "CoLA/dev.tsv", (3, 1), 4, False, 1043, "cola validation sentence label"
    ),
    "glue/sst-2 test": _Table(
        "SST-2/dev.tsv", (0, 1), 2, True, 872, "sst2 validation sentence label"
    ),
}
# SHA-256 of these columns: copies differ in line ends and in a mark at the start.
_GLUE = {
    "glue/ax": "0a6bf3b389121525f8d41aa146cfc2d5909e274937e5427fc881988769404dfe",
    "glue/cola train": "1ec08356723d5c0974c10e4ad49fa255c60a0abdc9827fff853777d422cd6b65",
    "glue/cola test": "2953a138e429d295469973c4b6c979dd729a6c5e63a43f15d2af4effbf0eacc3",
    "glue/sst-2 test": "928f85561721d3d496463886462108768e3b7c4c4cb0ceaa5aa983423489d8f9",
    "glue/cola": "e39bcba32376e546455e8f004e52505f367433d08af045007b36b80a36f3bfeb",
    "glue/mrpc": "49e6159cbefc64c5aaf7af9ae3e28381d27fe6bcd8afc613fec9da1661d82a73",
    "glue/qnli": "17a3a961e58ea119274a7452bee558beb44c622cb1d5f7ce5c576f65b8adcc5c",
    "glue/sst-2": "bcefbc09a4bb54f76c5d8b59ce7ca7170b36e343ac9e6efeacef467f79216475",
}
NAMES = ("written", *_TABLES, "books", "wikitext-2")

# Written for this book; nobody else's words.
_WRITTEN = (
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
    if name not in NAMES and Path(name).is_file():
        lines = tuple(filter(str.strip, _text(Path(name)).splitlines()))
        if not lines:
            raise CorruptDataError(f"{name} is empty: it has no line of text.")
        return Sentences(lines)
    if name not in NAMES:
        raise ValueError(
            f"unknown sentences {name!r}; there are {', '.join(NAMES)}, or name a file of lines."
        )
    if name == "written":
        return Sentences(_WRITTEN)
    if name in _TABLES:
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
    if f"{name} {split}" not in _LABELED:
        known = ", ".join(["written", *_LABELED])
        raise ValueError(f"no classes of {name!r}, {split}; there are {known}.")
    found = _glue(f"{name} {split}")
    return found.first, tuple(map(int, found.second or ()))


def bert_vocabulary() -> Path:
    """The 30,522 word pieces of bert-base-uncased, a ``vocab.txt`` in the local folder.

    Raises ``DataNotFoundError`` when it is not there, ``CorruptDataError`` for another one.
    """
    name = "BERT's vocabulary"
    file = "bert_vocab/bert-base-uncased-vocab.txt"
    own = "the small BERT of the book, which brings its own"
    path = _found(name, file, "fetch vocab.txt of bert-base-uncased and put it there", own)
    checked(path, _VOCABULARY_SHA256)
    return path


def _split_sentences(passage: str) -> Iterator[str]:
    """Sentences of running text: cut after . ! ? (and quotes) before a capital or a quote."""
    for paragraph in re.split(r"\n\s*\n", passage.replace("\r\n", "\n")):
        line = " ".join(re.sub(r"[_*#]", "", paragraph).split())
        for sentence in re.split(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’]))\s+(?=[\"'“‘(A-Z])", line):
            if sentence:
                yield sentence


def _books(split: Split) -> str:
    path = _found("books", _BOOKS, f"{_CARD}; no hub is asked for it")
    content = _text(path, checked(path, _BOOKS_SHA256, _CARD))
    start = content.index(_FIRST_HELD_OUT)
    return content[start:] if split == "test" else content[:start]


def _wikitext(split: Split) -> str:
    """The published tokenization is undone: ``@-@``, spaced punctuation, ``<unk>`` for rare words."""
    file, expected = _WIKITEXT[split]
    remedy = "fetch it from where it is published; no hub is asked for it"
    path = _found("wikitext-2", f"text/wikitext-2/{file}", remedy)
    lines = _text(path, checked(path, expected)).splitlines()
    kept = [line for line in lines if line.strip() and not line.strip().startswith("=")]
    joined = re.sub(r" @(.)@ ", r"\1", "\n\n".join(kept)).replace("<unk>", "[UNK]")
    return re.sub(r" ([,.;:!?)])", r"\1", joined.replace("( ", "("))


def _glue(name: str) -> Sentences:
    table = (_TABLES | _LABELED)[name]
    file, hub = f"glue/{table.file}", "nyu-mll/glue"
    path = None if local("glue") is None else _found(name, file, hub)
    if path is None:
        subset, split, *names = table.hub.split()
        rows = from_hub(not_found(name, file, hub, _DEFAULT), hub, subset, split=split)
        columns = [tuple(map(str, rows[each])) for each in names]
    else:
        start = int(table.has_header)
        lines = _text(path).splitlines()[start:]
        cells = [line.split("\t") for line in lines if line]
        for number, row in enumerate(cells, start=1 + start):
            if len(row) < table.num_columns:
                raise CorruptDataError(
                    f"{file}, row {number}: {len(row)} columns, expected {table.num_columns}. "
                    "The file needs the form in which GLUE publishes it."
                )
        columns = [tuple(row[each].strip() for row in cells) for each in table.columns]
    if len(columns[0]) != table.num_rows:
        raise CorruptDataError(
            f"{path or hub} has {len(columns[0])} rows of {name}, expected {table.num_rows}. It may "
            "be truncated; fetch it again."
        )
    if path is not None:
        content = "\n".join(map("\t".join, zip(*columns, strict=True))).encode()
        checked(path, _GLUE[name], content=content)
    return Sentences(*columns)


_DEFAULT = "data.sentences('written')"


def _found(name: str, file: str, hub: str, default: str = _DEFAULT) -> Path:
    path = local(file)
    if path is None:
        raise not_found(name, file, hub, default)
    return path


def _text(path: Path, content: bytes | None = None) -> str:
    try:
        return (path.read_bytes() if content is None else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not UTF-8 text: {error}.") from error
