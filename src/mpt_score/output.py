"""The rows of a run: in a file whose journal lets the same command go on, or on standard output.

``FILE`` has the rows, as they come. ``FILE.state`` is its journal, of JSON lines. The first says what
decides the numbers; then each part that is whole has a line (:class:`Part`); the last one says that
the run is. Rows are written before their part is, so whatever ``FILE`` has behind the last part of the
journal was written by a run that was stopped, and is cut off.
"""

import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.platform != "win32":  # where there is none
    import fcntl

SUFFIXES = (".csv", ".jsonl")
IDENTITY = "identity"
"""The name, in what decides the numbers, that is None where a model does not say which one it is."""
END = {"whole": True}
"""The last line of a journal."""
_DIGEST = re.compile("[0-9a-f]{64}")
Row = Mapping[str, Any]


class Part(NamedTuple):
    """Consecutive lines of the input whose rows are all written; a line of the journal."""

    number: int  # from 0
    last_line: int  # of the input
    lines_digest: str  # of all of the input up to that line
    num_rows: int
    num_faults: int  # lines that were skipped
    first_fault: str  # in words; "" where there is none
    rows_digest: str = ""
    num_bytes: int = 0  # of the rows


def require_suffix(path: str) -> None:
    """Refuse a file of a form that is not written here.

    Raises:
        ValueError: With those that are.
    """
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"--out {path} must end in one of {', '.join(SUFFIXES)}.")


def as_bytes(
    rows: Sequence[Row], columns: Sequence[str], suffix: str, *, with_header: bool
) -> bytes:
    """Rows as a file has them; bytes, so that no system changes the ends of lines."""
    text = io.StringIO(newline="")
    if suffix == ".csv":
        table = csv.DictWriter(text, columns, lineterminator="\n")
        if with_header:
            table.writeheader()
        table.writerows(rows)
    else:
        for row in rows:
            text.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    return text.getvalue().encode()


def print_rows(rows: Sequence[Row]) -> None:
    """JSON lines. A terminal or a pipe need not know UTF-8, and JSON can say all of it in ASCII."""
    for row in rows:
        print(json.dumps(row, allow_nan=False))
    sys.stdout.flush()


class StandardOutput:
    """Rows that are printed as they come."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_whole = False

    def __enter__(self) -> "StandardOutput":
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to let go of."""

    def write(self, rows: Sequence[Row], part: Part) -> None:
        """Print the rows of a part."""
        try:
            print_rows(rows)
        except BrokenPipeError:
            raise  # whoever read the rows has had enough
        except OSError as error:
            reason = f"standard output cannot be written: {error.strerror}."
            raise OSError(f"{reason} {self.left}".strip()) from error
        self.parts.append(part)

    @property
    def left(self) -> str:
        """What there is of a run that was stopped; "" where nothing."""
        num_rows = sum(part.num_rows for part in self.parts)
        return f"{num_rows} rows were written." if num_rows else ""


class RowFile:
    """A file of rows with its journal, which is locked as long as this object is open.

    Args:
        path: The file, a .csv or .jsonl. One that is there must have its journal beside it.
        columns: The names of its columns.

    Raises:
        ValueError: For a file without a journal, and for one that another run is writing.
        OSError: For a file that cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = columns
        self.parts: list[Part] = []
        self.is_whole = False
        self._journal_path = path.with_name(f"{path.name}.state")
        self._header = as_bytes([], columns, path.suffix, with_header=True)
        self._run: dict[str, Any] | None = None  # that the journal is of
        self._stream: io.FileIO | None = None
        self._end_of_rows = len(self._header)
        self._end_of_journal = 0
        self._require_journal()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = _opened(self._journal_path)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock()
            self._require_journal()
            self._read_journal()
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_journal(self) -> None:
        has_journal = self._journal_path.exists() and self._journal_path.stat().st_size > 0
        if self.path.exists() and not has_journal:
            raise ValueError(
                f"--out {self.path} is there already, without the {self._journal_path.name} of a run "
                "that could go on: remove it, or name another file."
            )

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, another run may have ended and removed it.
            there = self._journal_path.stat()
            is_same = os.fstat(self._journal.fileno()).st_ino == there.st_ino
        except (BlockingIOError, FileNotFoundError):
            is_same = False
        if not is_same:
            message = f"--out {self.path} is being written by another run: name another file."
            raise ValueError(message)

    def _read_journal(self) -> None:
        """Take the lines that are whole, as far as their rows are in the file."""
        size = self.path.stat().st_size if self.path.exists() else 0
        for line in self._journal_path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return  # the run was stopped while it wrote this line
            try:
                entry = json.loads(line)
                if self._run is None:
                    self._run = dict(entry)
                elif entry == END:
                    self.is_whole = True
                else:
                    part = Part(**entry)
                    if self._end_of_rows + part.num_bytes > size:
                        return  # the disk has lost them
                    self._end_of_rows += part.num_bytes
                    self.parts.append(part)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{self._journal_path} is damaged. {self._remedy}") from error
            self._end_of_journal += len(line)

    @property
    def _remedy(self) -> str:
        return f"Name another file, or remove {self.path.name} and {self._journal_path.name}."

    def begin(self, run: Mapping[str, Any]) -> None:
        """Make ready for rows: of a run that begins, or behind the last whole part of this one.

        Args:
            run: What decides the numbers, by its name, as JSON can say it.

        Raises:
            ValueError: For the rows of another run, and for rows that were changed.
            OSError: For a file that cannot be written.
        """
        wanted = json.loads(json.dumps(run, default=str))
        try:
            if self.parts:
                self._require_same(wanted)
                self._stream = _opened(self.path)
                self._require_unchanged()
                self._journal.truncate(self._end_of_journal)
                self._stream.truncate(self._end_of_rows)
            else:  # nothing is lost
                self._journal.truncate(0)
                self._end_of_journal = 0
                self._add_to_journal(wanted)
                self._stream = _opened(self.path)
                self._stream.truncate(0)
                _append(self._stream, 0, self._header)
        except OSError as error:
            raise self._unwritable(error) from error

    def _require_same(self, wanted: Mapping[str, Any]) -> None:
        """Refuse the first difference, one that a reader understands before a digest."""
        stored = self._run or {}
        if IDENTITY in wanted:
            raise ValueError(
                f"--out {self.path} has rows already, and {wanted['model']} names no identity, so that "
                "they cannot be known to be of the same model. A string in its module, as identity = "
                f"'weights of 3 May', lets a run go on. {self._remedy}"
            )

        def is_digest(name: str) -> bool:
            return _DIGEST.search(str(wanted.get(name))) is not None

        for name in sorted({*stored, *wanted}, key=lambda name: (is_digest(name), name)):
            have = stored.get(name)
            want = wanted.get(name)
            if have != want:
                change = f"is {have} there, {want} here"
                if is_digest(name):
                    change = "has changed since"
                raise ValueError(
                    f"--out {self.path} has rows of another run: {name} {change}. {self._remedy}"
                )

    def _require_unchanged(self) -> None:
        changed = f"--out {self.path} was changed after it was written"
        for part, content in self.contents():
            if hashlib.sha256(content).hexdigest() != part.rows_digest:
                where = f"in the rows of the lines up to {part.last_line}"
                raise ValueError(f"{changed}, {where}. {self._remedy}")
        # What is behind the last part was left by a run that was stopped, but for one that is whole.
        if self.is_whole and self.path.stat().st_size > self._end_of_rows:
            raise ValueError(f"{changed}, behind its last row. {self._remedy}")

    def contents(self) -> Iterator[tuple[Part, bytes]]:
        """Each part with its rows as they are in the file."""
        with self.path.open("rb") as stream:
            stream.seek(len(self._header))
            for part in self.parts:
                yield part, stream.read(part.num_bytes)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the whole parts, with the numbers as they were."""
        for _, content in self.contents():
            text = content.decode()
            if self.path.suffix == ".csv":
                for cells in csv.DictReader(io.StringIO(text, newline=""), self.columns):
                    yield {name: _value(cell) for name, cell in cells.items()}
            else:
                for line in text.split("\n")[:-1]:
                    yield json.loads(line)

    @property
    def left(self) -> str:
        """What there is of a run that was stopped; "" where nothing."""
        num_rows = sum(part.num_rows for part in self.parts)
        if num_rows == 0:
            return ""
        return f"{num_rows} rows are in {self.path}, the same command goes on from there."

    def write(self, rows: Sequence[Row], part: Part) -> None:
        """Add the rows of a part: all of them or, on a full disk or when stopped, none."""
        content = as_bytes(rows, self.columns, self.path.suffix, with_header=False)
        digest = hashlib.sha256(content).hexdigest()
        self.copy(part._replace(rows_digest=digest, num_bytes=len(content)), content)

    def copy(self, part: Part, content: bytes) -> None:
        """As :meth:`write`, of rows that were written before."""
        assert self._stream is not None
        end_of_journal = self._end_of_journal
        try:
            _append(self._stream, self._end_of_rows, content)
            os.fsync(self._stream.fileno())
            self._add_to_journal(part._asdict())
        except BaseException as error:
            self._end_of_journal = end_of_journal
            self._stream.truncate(self._end_of_rows)
            self._journal.truncate(end_of_journal)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        self._end_of_rows += len(content)
        self.parts.append(part)

    def finish(self) -> None:
        """All parts are there."""
        if self.is_whole:
            return
        try:
            self._add_to_journal(END)
        except OSError as error:
            raise self._unwritable(error) from error
        self.is_whole = True

    def _add_to_journal(self, entry: Mapping[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        _append(self._journal, self._end_of_journal, line)
        self._end_of_journal += len(line)

    def _unwritable(self, error: OSError) -> OSError:
        reason = f"{self.path} cannot be written: {error.strerror}."
        return OSError(f"{reason} {self.left}".strip())

    def close(self) -> None:
        """Let go of the file. Without a row there is nothing to keep."""
        if self._journal.closed:
            return
        if self._stream is not None:
            self._stream.close()
        if not any(part.num_rows for part in self.parts):
            if self._stream is not None:
                self.path.unlink(missing_ok=True)
            self._journal_path.unlink(missing_ok=True)
        self._journal.close()


def _opened(path: Path) -> io.FileIO:
    """To read and write, made if need be. Without a buffer nothing is left to be written later."""
    return io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")


def _append(stream: io.FileIO, end: int, content: bytes) -> None:
    stream.seek(end)
    while content:
        num_written = stream.write(content)
        content = content[num_written:]


def _value(cell: str) -> Any:
    """A cell of a table as what it was: a number, true or false, nothing, or a text."""
    words = {"": None, "True": True, "False": False}
    if cell in words:
        return words[cell]
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
