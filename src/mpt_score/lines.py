"""The lines of a file, or the rows of a table, one after the other, as texts to score."""

import codecs
import csv
import io
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MOST_LINES = 512
"""Of a part: lines that are scored together, whose rows are written together."""
MOST_CHARACTERS = 2**18
"""Of a part: of long texts it has fewer lines."""
MOST_WORK = 2**24
"""Of a part, in characters squared: whole orders of a text cost passes and tokens by its length."""
LONGEST_LINE = 10**6
"""In characters. To take apart a longer one costs minutes and gigabytes."""
CHARACTERS_OF_A_TOKEN = 4  # about, of one that came as a number
SHOWN_CHARACTERS = 60  # of a wrong line, in a message
TABLES = {".csv": ",", ".tsv": "\t"}  # by suffix, what is between the cells of a row
JSON_LINES = (".jsonl", ".ndjson")
NUM_COLUMNS = {"sentences": 1, "curve": 1, "pairs": 2, "answers": 0}  # with texts, of a table
LARGEST_ID = 2**63 - 1  # of a tensor of 64-bit integers
QUESTION = '{"prompt": "...", "options": ["...", ...]}'

Text = Any
"""A string, or token ids as a list; the texts of a line, and of a file, are of one kind."""


class Line(NamedTuple):
    """A line as texts to score."""

    number: int  # in the file, from 1
    texts: list[Text]  # one, the two of a pair, or the options of a prompt
    prompt: Text = ""
    copied: Mapping[str, Any] = {}  # cells of other columns, for the rows of the output

    @property
    def has_ids(self) -> bool:
        """Whether its texts are token ids."""
        return not isinstance(self.texts[0], str)

    @property
    def sizes(self) -> list[int]:
        """Characters of each text, with its prompt."""
        unit = CHARACTERS_OF_A_TOKEN if self.has_ids else 1
        return [unit * (len(self.prompt) + len(text)) for text in self.texts]


class Fault(NamedTuple):
    """A line that cannot be scored, and why."""

    number: int
    reason: str


class _Cells(NamedTuple):
    """A line, or a row of a table, before it is taken apart."""

    number: int
    texts: Any  # the line, or the cells with texts
    copied: Mapping[str, Any] = {}


def copied_columns(options: Namespace) -> tuple[str, ...]:
    """The columns of the input that rows of the output have as well: the items, and those to keep."""
    items = (options.items,) if options.items else ()
    return tuple(dict.fromkeys(items + options.keep))


def require_form(options: Namespace) -> None:
    """Refuse a table without the names of its columns, and names where there is no table.

    Args:
        options: Of the command line. Its ``file`` is "-" for standard input, which has JSON lines where
            columns are named.

    Raises:
        ValueError: With what was expected.
    """
    path, kind, columns = options.file, options.kind, options.column
    suffix = Path(path).suffix.lower()
    is_table = suffix in TABLES or suffix in JSON_LINES
    if kind == "answers":
        if suffix in TABLES:
            raise ValueError(f"options are lists: answers need JSON lines, as {QUESTION}.")
        return
    if columns and len(columns) != NUM_COLUMNS[kind]:
        got = f"{len(columns)}: {','.join(columns)}"
        raise ValueError(f"--column must be {NUM_COLUMNS[kind]} for {kind}, got {got}.")
    if columns and path != "-" and not is_table:
        raise ValueError(
            f"--column is for files that end in .csv, .tsv or .jsonl, got {path}, of which each line is "
            "a text."
        )
    if not columns and copied_columns(options):
        raise ValueError(
            "--keep and --items are for the columns of a table: name those with texts, too, by "
            "--column."
        )
    if not columns and is_table and not (kind == "pairs" and suffix == ".tsv"):
        names = "FIRST,SECOND" if kind == "pairs" else "NAME"
        raise ValueError(f"{path} is a table: name where its texts are, --column {names}.")


def read(options: Namespace) -> Iterator[Line | Fault]:
    """The lines that are not empty, and why some are none.

    Raises:
        ValueError: For a file without text, and a table without a column of that name.
        OSError: For a file that cannot be read.
    """
    first: Line | Fault | None = None
    separator = TABLES.get(Path(options.file).suffix.lower()) if options.column else None
    with _opened(options.file) as stream:
        entries = _rows_of_table(stream, options, separator) if separator else _lines_of(stream)
        for entry in entries:
            line = _parsed(entry, options) if isinstance(entry, _Cells) else entry
            if isinstance(line, Line) and isinstance(first, Line) and line.has_ids != first.has_ids:
                kinds = {True: "token ids", False: "strings"}
                line = Fault(
                    line.number,
                    f"has {kinds[line.has_ids]}, and line {first.number} has {kinds[first.has_ids]}: a "
                    "file has texts of one kind.",
                )
            if not isinstance(first, Line):
                first = line
            yield line
    if first is None:
        raise ValueError(f"{options.file} has no text: one a line is needed.")


def parts(lines: Iterable[Line | Fault], *, whole_orders: bool) -> Iterator[list[Line | Fault]]:
    """Lines that are scored together, the same whenever they are read.

    Args:
        lines: Of the whole input.
        whole_orders: Whether what a text costs grows with the square of its length.
    """
    part: list[Line | Fault] = []
    num_characters = 0
    work = 0
    for line in lines:
        part.append(line)
        if isinstance(line, Line):
            num_characters += sum(line.sizes)
            work += sum(size**2 for size in line.sizes)
        is_work_enough = whole_orders and work >= MOST_WORK
        if len(part) == MOST_LINES or num_characters >= MOST_CHARACTERS or is_work_enough:
            yield part
            part = []
            num_characters = 0
            work = 0
    if part:
        yield part


@contextmanager
def _opened(path: str) -> Iterator[io.TextIOWrapper]:
    try:
        binary: Any = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}.") from error
    # What is not UTF-8 becomes surrogates, so that the line it stands in can be named.
    stream = io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape")
    try:
        if binary.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{path} is UTF-16: save it as UTF-8.")
        yield stream
    finally:
        stream.detach()
        if path != "-":
            binary.close()


def _lines_of(stream: io.TextIOWrapper) -> Iterator[_Cells | Fault]:
    number = 0
    while text := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(text) > LONGEST_LINE and not text.endswith("\n"):
            # What is left of it is never kept.
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith("\n"):
                pass
            yield Fault(number, f"has more than {LONGEST_LINE:,} characters: split it.")
        elif text.strip():
            text = text.removesuffix("\n")
            yield _not_utf8(number, text) or _Cells(number, text)


def _rows_of_table(
    stream: io.TextIOWrapper, options: Namespace, separator: str
) -> Iterator[_Cells | Fault]:
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(stream, delimiter=separator)
    header = next(reader, [])
    for name in (*options.column, *copied_columns(options)):
        _require_column(name, header, options.file, separator)
    while True:
        number = reader.line_num + 1  # a row may go over several lines
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield Fault(
                number, f"has a cell of more than {LONGEST_LINE:,} characters: close its quotes."
            )
            continue
        if row and len(row) != len(header):
            yield Fault(
                number,
                f"has {len(row)} cells, the header {len(header)}: a cell that holds the separator "
                "needs quotes around it.",
            )
        elif row:
            cells = dict(zip(header, row, strict=True))
            copied = {name: cells[name] for name in copied_columns(options)}
            texts = [cells[name] for name in options.column]
            yield _not_utf8(number, "\n".join(row)) or _Cells(number, texts, copied)


def _require_column(name: str, header: Sequence[str], path: str, separator: str) -> None:
    if name in header:
        return
    has = f"{path} has no column {name!r}; it has {', '.join(header)}."
    others = [other for other in (",", ";", "\t") if other != separator]
    if len(header) == 1 and any(other in header[0] for other in others):
        has += f" Its cells must be separated by {separator!r}."
    raise ValueError(has)


def _not_utf8(number: int, text: str) -> Fault | None:
    raw = text.encode("utf-8", "surrogateescape")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{raw[error.start]:02x} at {error.start + 1}"
        return Fault(number, f"is not UTF-8 ({byte}): convert it.")
    return None


def _parsed(cells: _Cells, options: Namespace) -> Line | Fault:
    """A line taken apart, or why it is not what its kind needs."""
    number, texts, copied = cells
    prompt: Any = ""
    is_question = options.kind == "answers"
    try:
        if isinstance(texts, str) and (options.column or is_question):
            columns = ("prompt", "options") if is_question else options.column
            row = _object_of(texts, (*columns, *copied_columns(options)))
            copied = {name: row[name] for name in copied_columns(options)}
            texts = [row[name] for name in columns]
        if is_question:
            prompt, texts = texts
            _require(isinstance(texts, list), f"must be {QUESTION}", cells.texts)
            _require(len(texts) > 0, "at least one option is needed", cells.texts)
        elif options.kind == "pairs" and isinstance(texts, str):
            texts = texts.split("\t")
            _require(len(texts) == 2, "two texts with one tab between are needed", cells.texts)
        elif isinstance(texts, str):
            texts = [texts]
        for text in (prompt, *texts):
            _require(isinstance(text, str | list), "a text is needed", text)
            if isinstance(text, list):
                _require(len(text) > 0 or is_question, "a token id is needed", text)
                for token_id in text:
                    is_id = type(token_id) is int and 0 <= token_id <= LARGEST_ID
                    _require(is_id, "token ids are whole numbers from 0 on", token_id)
        kinds = {type(text) for text in (texts if prompt == "" else (prompt, *texts))}
        _require(len(kinds) == 1, "its texts must all be strings, or all be token ids", cells.texts)
    except ValueError as error:
        return Fault(number, str(error))
    return Line(number, texts, prompt, copied)


def _object_of(text: str, columns: Sequence[str]) -> dict[str, Any]:
    """Some cells of an object in JSON."""
    try:
        # Python reads the words NaN and Infinity, which JSON has not and could not be written again.
        row = json.loads(text, parse_constant=lambda word: None)
        cells = {name: row[name] for name in columns}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        form = (
            QUESTION if columns[0] == "prompt" else ", ".join(f'"{name}": ...' for name in columns)
        )
        raise ValueError(f"must be {{{form.strip('{}')}}}, got {_shown(text)}.") from error
    try:
        json.dumps(cells, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ValueError(f"has half a character, {half}, which is no text.") from error
    return cells


def _require(condition: bool, sentence: str, got: Any) -> None:
    if not condition:
        raise ValueError(f"{sentence}, got {_shown(got)}.")


def _shown(content: Any) -> str:
    if isinstance(content, str):
        return repr(content[:SHOWN_CHARACTERS])
    return repr(content)[:SHOWN_CHARACTERS]
