"""The lines of a file, or the entries of a table, one after the other, as texts to score."""

import csv
import io
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

MOST_LINES = 512
"""The most lines of a part, which are scored together, and whose records are written together."""
MOST_WORK = 2**21
"""The most work of a part, in characters squared: the passes and the tokens of a text grow with it."""
TIMES_ON_GPU = 8
"""How much larger a part is on a GPU, which needs many texts of one length for its batches."""
USUAL_CHARACTERS = 64
"""The length that stands for the number of passes, where a text's passes do not grow with it."""
LONGEST_LINE = 10**6
"""The most characters of a line. To parse a longer one costs minutes and gigabytes."""
CHARACTERS_OF_A_TOKEN = 4  # about, of one that came as a number
TABLES = (".csv", ".jsonl", ".ndjson")
NUM_COLUMNS = {"sentences": 1, "curve": 1, "pairs": 2}  # with texts, of a table
LARGEST_ID = 2**63 - 1  # of a tensor of 64-bit integers
QUESTION = '{"prompt": "...", "options": ["...", ...]}'


class Line(NamedTuple):
    """A line as texts to score."""

    number: int  # in the file, from 1
    texts: list[Any]  # one, the two of a pair, or the options of a prompt; strings or token ids
    prompt: Any = ""
    copied: Mapping[str, Any] = {}  # cells of other columns, for the records of the output

    @property
    def has_ids(self) -> bool:
        """Whether its texts are token ids."""
        return not isinstance(self.texts[0], str)

    @property
    def sizes(self) -> list[int]:
        """Characters of each text, with its prompt."""
        unit = CHARACTERS_OF_A_TOKEN if self.has_ids else 1
        return [unit * (len(self.prompt) + len(text)) for text in self.texts]


class _KeyTwiceError(ValueError):
    """An object in JSON has a key twice."""


class Fault(NamedTuple):
    """A line that cannot be scored, and why."""

    number: int
    reason: str


def copied_columns(options: Namespace) -> tuple[str, ...]:
    """The columns of the input that the output has as well: the items, and those to keep."""
    items = (options.items,) if options.items else ()
    return tuple(dict.fromkeys(items + options.keep))


def require_form(options: Namespace) -> None:
    """Refuse a table without the names of its columns, and names where there is no table."""
    path, kind, columns = options.file, options.kind, options.column
    if kind == "answers":
        return  # its columns have names already
    suffix = Path(path).suffix.lower()
    is_table = suffix in TABLES
    if suffix == ".tsv" and kind != "pairs":
        raise ValueError(f"{path}: a table must be .csv or .jsonl.")
    if columns and len(columns) != NUM_COLUMNS[kind]:
        got = f"{len(columns)}: {','.join(columns)}"
        raise ValueError(f"--column must be {NUM_COLUMNS[kind]} for {kind}, got {got}.")
    if len(set(columns)) < len(columns):
        raise ValueError(f"--column must be two columns, got {columns[0]!r} twice.")
    if columns and not is_table and path != "-":
        raise ValueError(f"--column is for .csv and .jsonl files, got {path}: each line is a text.")
    if is_table and not columns:
        names = "FIRST,SECOND" if kind == "pairs" else "NAME"
        raise ValueError(f"{path} is a table: name where its texts are, --column {names}.")
    if copied_columns(options) and not columns:
        raise ValueError(
            "--keep and --items are for tables: name where texts are, too, by --column."
        )


def read(options: Namespace) -> Iterator[Line | Fault]:
    """The lines that are not empty, with a fault in place of one that cannot be scored."""
    is_csv = bool(options.column) and Path(options.file).suffix.lower() == ".csv"
    is_empty = True
    first: Line | None = None
    with _opened(options.file) as stream:
        entries = _lines_of_table(stream, options) if is_csv else _lines_of(stream)
        for number, content in entries:
            if is_empty and NUM_COLUMNS.get(options.kind) == 1 and not options.column:
                _require_no_fasta(options.file, str(content))
            is_empty = False
            try:
                line = _parsed(number, content, options)
                first = first or line
                is_like_first = line.has_ids == first.has_ids
                _require(is_like_first, "a file has strings or token ids, not both", content)
            except ValueError as error:
                yield Fault(number, str(error))
            else:
                yield line
    if is_empty:
        raise ValueError(f"{options.file} has no text: one a line is needed.")


def parts(
    lines: Iterable[Line | Fault], *, whole_orders: bool, on_gpu: bool
) -> Iterator[list[Line | Fault]]:
    """Cut lines into parts that are scored together.

    Args:
        lines: The lines, with those that cannot be scored.
        whole_orders: Whether a text costs the square of its length.
        on_gpu: Whether the network is on a GPU.
    """
    most_work = MOST_WORK * (TIMES_ON_GPU if on_gpu else 1)
    part: list[Line | Fault] = []
    work = 0
    for line in lines:
        part.append(line)
        if isinstance(line, Line):
            work += sum(size * (size if whole_orders else USUAL_CHARACTERS) for size in line.sizes)
        if len(part) == MOST_LINES or work >= most_work:
            yield part
            part = []
            work = 0
    if part:
        yield part


@contextmanager
def _opened(path: str) -> Iterator[io.TextIOWrapper]:
    try:
        binary: Any = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115
        # What is not UTF-8 becomes surrogates, so that the line it stands in can be named.
        stream = io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape")
        try:
            yield stream
        finally:
            stream.detach()
            if path != "-":
                binary.close()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}.") from error


def _lines_of(stream: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(stream, start=1):
        if text.strip():
            yield number, text.removesuffix("\n")


def _require_no_fasta(path: str, first_line: str) -> None:
    """Refuse a file of sequences with names, of which each line would be a text."""
    if first_line.startswith(">"):
        raise ValueError(
            f"{path} begins with {first_line!r:.30}, as a FASTA file does, in which a name stands above "
            'each sequence. Make each sequence a line: awk \'/^>/ {if (n++) print ""; next} '
            f'{{printf "%s", $1}} END {{print ""}}\' {path} > chains.txt. A text that begins with \'>\' '
            "can stand in a table (--column)."
        )


def _lines_of_table(
    stream: io.TextIOWrapper, options: Namespace
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The cells of each line of a table by column; what is missing or too much stands there with None."""
    csv.field_size_limit(2**31 - 1)
    # Not strict, an open quote would take in all that follows as one cell.
    reader = csv.reader(stream, strict=True)
    number = 1
    try:
        header = next(reader, [])
        for name in (*options.column, *copied_columns(options)):
            if name not in header:
                has = ", ".join(header)
                hint = ""
                if ";" in has or "\t" in has:
                    hint = " Its columns are to be separated by commas."
                raise ValueError(f"{options.file} has no column {name!r}; it has {has}.{hint}")
            if header.count(name) > 1:
                raise ValueError(
                    f"{options.file}, line 1: {header.count(name)} columns are called {name!r}. "
                    "Rename all but one."
                )
        number = reader.line_num + 1
        for cells in reader:
            if cells:
                yield number, dict(zip_longest(header, cells))
            number = reader.line_num + 1  # one may go over several lines
    except csv.Error as error:
        raise ValueError(
            f"{options.file}, line {number}: a cell that begins with a quote must end with one, and a "
            'quote inside is doubled, as "she said ""no""".'
        ) from error


def _parsed(number: int, content: str | Mapping[str, str], options: Namespace) -> Line:
    """Parse a line, of a table or not.

    Raises:
        ValueError: With the reason why it cannot be scored.
    """
    is_question = options.kind == "answers"
    columns = ("prompt", "options") if is_question else options.column
    copied: dict[str, Any] = {}
    prompt: Any = ""
    texts: Any
    _require_readable(content)
    if columns:
        cells = _cells_of(content, (*columns, *copied_columns(options)))
        copied = {name: cells[name] for name in copied_columns(options)}
        texts = [cells[name] for name in columns]
    elif options.kind == "pairs":
        texts = str(content).split("\t")
        _require(len(texts) == 2, "two texts with one tab between are needed", content)
    else:
        texts = [content]
    if is_question:
        prompt, texts = texts
        _require(isinstance(texts, list), f"must be {QUESTION}", content)
        _require(len(texts) > 0, "at least one option is needed", content)
    for text in (prompt, *texts):
        _require(isinstance(text, str | list), "a text is needed", text)
        if isinstance(text, list):
            _require(len(text) > 0 or is_question, "a token id is needed", text)
            for token_id in text:
                is_id = type(token_id) is int and 0 <= token_id <= LARGEST_ID
                _require(is_id, "token ids are whole numbers from 0 on", token_id)
    kinds = {type(text) for text in ((prompt, *texts) if is_question else texts)}
    _require(len(kinds) == 1, "a line has strings or token ids, not both", content)
    return Line(number, texts, prompt, copied)


def _require_readable(content: str | Mapping[str, str]) -> None:
    whole = content if isinstance(content, str) else "\n".join(map(str, content.values()))
    if len(whole) > LONGEST_LINE:
        raise ValueError(
            f"has more than {LONGEST_LINE:,} characters: split it, or close its quotes."
        )
    try:
        whole.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"is no Unicode text (character {error.start + 1}): save it as UTF-8."
        ) from error


def _cells_of(content: str | Mapping[str, str], columns: Iterable[str]) -> dict[str, Any]:
    """Some cells of an object in JSON, or of a line of a table."""
    if not isinstance(content, str):
        if None in (*content, *content.values()):
            raise ValueError(
                "has more or fewer cells than the header: one with a comma needs quotes."
            )
        return {name: content[name] for name in columns}
    try:
        # Python reads the words NaN and Infinity, which JSON has not and could not be written again.
        whole = json.loads(
            content, parse_constant=lambda word: None, object_pairs_hook=_with_each_key_once
        )
        cells = {name: whole[name] for name in columns}
    except _KeyTwiceError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        form = "{" + ", ".join(f'"{name}": ...' for name in columns) + "}"
        raise ValueError(f"must be {form}, got {content!r:.60}.") from error
    _require_readable(json.dumps(cells, ensure_ascii=False))
    return cells


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in JSON, of which Python would keep the last value of a key."""
    cells: dict[str, Any] = {}
    for key, value in pairs:
        if key in cells:
            raise _KeyTwiceError(f"has the key {key!r} twice. Leave one of them out.")
        cells[key] = value
    return cells


def _require(condition: bool, sentence: str, got: Any) -> None:
    if not condition:
        raise ValueError(f"{sentence}, got {got!r:.60}.")
