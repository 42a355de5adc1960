"""Where rows go: as they come, into a file that has its name only when it is whole, or a pipe."""

import csv
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

if sys.platform != "win32":  # where there is none
    import fcntl

SUFFIXES = (".jsonl", ".csv", ".tsv", ".json")
Row = Mapping[str, Any]


@runtime_checkable
class RowOutput(Protocol):
    """What takes rows."""

    count: int
    """Rows that it has taken."""

    def write(self, rows: Sequence[Row]) -> None:
        """Take some more rows."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """All rows are there; ``record`` says what they belong to."""

    @property
    def left(self) -> str:
        """Where the rows are that were written before a run was stopped; "" where nowhere."""


@contextmanager
def opened(path: str | None, *, resumes: bool) -> Iterator[RowOutput]:
    """A new file for rows, or standard output.

    Rows of a file are in PATH.partial until they are finished. Where the block ends before, they stay
    there.

    Args:
        path: A .jsonl, .csv, .tsv or .json file; None is standard output.
        resumes: Whether what an earlier run left in PATH.partial will be computed again.

    Raises:
        ValueError: For a name of another form, a file that is there, and one that another run writes.
        OSError: For a file that cannot be written.
    """
    if path is None:
        yield _StandardOutput()
        return
    output = _File(Path(path), resumes=resumes)
    try:
        yield output
    finally:
        output.close()


class _StandardOutput:
    """JSON lines. A terminal or a pipe need not know UTF-8, and JSON can say all of it in ASCII."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def left(self) -> str:
        return f"{self.count} rows were written" if self.count else ""

    def write(self, rows: Sequence[Row]) -> None:
        try:
            for row in rows:
                print(json.dumps(row, allow_nan=False))
            sys.stdout.flush()
        except BrokenPipeError:
            raise  # whoever read the rows has had enough
        except OSError as error:
            raise OSError(
                f"standard output cannot be written: {error.strerror}. {self.count} rows were."
            ) from error
        self.count += len(rows)

    def finish(self, record: Mapping[str, Any]) -> None:
        pass


class _File:
    """A file that is locked while it is written, so that no second run writes it, too."""

    def __init__(self, path: Path, *, resumes: bool) -> None:
        if path.suffix not in SUFFIXES:
            raise ValueError(f"--out {path} must end in one of {', '.join(SUFFIXES)}.")
        self.path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self.count = 0
        self._form = _form_of(path)
        self._require_new()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer nothing is left behind that would be written later, when it is closed.
            self._stream = self.partial.open("ab", buffering=0)
        except OSError as error:
            raise OSError(f"--out {path} cannot be written: {error.strerror}.") from error
        try:
            self._lock()
            self._require_new()
            self._require_no_rest(resumes)
        except BaseException:
            self._stream.close()
            raise
        self._stream.truncate(0)
        self._size = 0

    def _require_new(self) -> None:
        if self.path.exists():
            raise ValueError(
                f"--out {self.path} is there already: remove it, or name another file."
            )

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, the other run may have ended and given it its own name.
            is_same = os.fstat(self._stream.fileno()).st_ino == self.partial.stat().st_ino
        except OSError:
            is_same = False
        if not is_same:
            raise ValueError(
                f"--out {self.path} is being written by another run: name another file."
            )

    def _require_no_rest(self, resumes: bool) -> None:
        size = os.fstat(self._stream.fileno()).st_size
        if size and not resumes:
            raise ValueError(
                f"{self.partial} has rows of a run that was stopped: rename or remove it. (With "
                "--checkpoints DIR a run goes on where it was stopped.)"
            )

    @property
    def left(self) -> str:
        return f"{self.count} rows are in {self.partial}" if self.count else ""

    def write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self._append(self._form.rows(rows, is_first=self.count == 0))
        self.count += len(rows)

    def finish(self, record: Mapping[str, Any]) -> None:
        self._append(self._form.end(record))
        self._require_new()
        os.fsync(self._stream.fileno())
        self.partial.replace(self.path)
        self._stream.close()

    def _append(self, text: str) -> None:
        """All of ``text`` or, where the disk is full, nothing of it."""
        unwritten = text.encode()  # bytes: no system may change the ends of lines
        size = self._size + len(unwritten)
        try:
            while unwritten:
                num_written = self._stream.write(unwritten)
                unwritten = unwritten[num_written:]
        except OSError as error:
            self._stream.truncate(self._size)  # to the rows that were whole
            left = f" {self.left}." if self.left else ""
            raise OSError(f"{self.partial} cannot be written: {error.strerror}.{left}") from error
        self._size = size

    def close(self) -> None:
        """Let go of the file. Unfinished, it stays if it has rows."""
        if self._stream.closed:
            return
        if self.count == 0:
            self.partial.unlink(missing_ok=True)
        self._stream.close()


@runtime_checkable
class _Form(Protocol):
    def rows(self, rows: Sequence[Row], *, is_first: bool) -> str:
        """Some rows as text; the first ones with what comes before."""

    def end(self, record: Mapping[str, Any]) -> str:
        """What comes after all rows."""


def _form_of(path: Path) -> _Form:
    match path.suffix:
        case ".csv":
            return _Table(",")
        case ".tsv":
            return _Table("\t")
        case ".json":
            return _OneJSON()
        case _:
            return _JSONLines()


class _JSONLines:
    def rows(self, rows: Sequence[Row], *, is_first: bool) -> str:
        return "".join(_as_json(row) + "\n" for row in rows)

    def end(self, record: Mapping[str, Any]) -> str:
        return ""


class _OneJSON:
    """One object: the rows, and what they belong to."""

    def rows(self, rows: Sequence[Row], *, is_first: bool) -> str:
        before = '{"rows": [\n' if is_first else ",\n"
        return before + ",\n".join(_as_json(row) for row in rows)

    def end(self, record: Mapping[str, Any]) -> str:
        return "\n],\n" + _as_json(record).removeprefix("{") + "\n"


class _Table:
    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter

    def rows(self, rows: Sequence[Row], *, is_first: bool) -> str:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(rows[0]), delimiter=self._delimiter, lineterminator="\n")
        if is_first:
            table.writeheader()
        table.writerows(rows)
        return text.getvalue()

    def end(self, record: Mapping[str, Any]) -> str:
        return ""


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
