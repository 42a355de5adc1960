"""The records of a run, in a file whose state lets the same command go on.

``FILE`` has the records, as they come. ``FILE.state`` says of which run they are and how far it has come;
it is replaced, whole, each time that the records of a part are there. So whatever ``FILE`` has behind
the size in its state was written by a run that was stopped, and is cut off. ``FILE.passes`` has what the
model answered about the part that is being scored (:class:`~mpt_score.batch_store.BatchStore`).
"""

import csv
import dataclasses
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if sys.platform != "win32":  # where there is none
    import fcntl

_DIGEST_OF_NOTHING = hashlib.sha256().hexdigest()
_BLOCK_BYTES = 2**20
"""Bytes of the file that are read at a time."""
_DIGEST = re.compile("[0-9a-f]{64}")
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class State:
    """How far a run has come."""

    run: Mapping[str, Any]  # the fingerprint: what decides the numbers, by its name
    last_line: int = 0  # of the input, whose record is written or which was skipped
    lines_digest: str = _DIGEST_OF_NOTHING  # of the input up to that line
    num_records: int = 0
    num_faults: int = 0  # lines that were skipped
    num_bytes: int = 0  # of the records, with their header
    records_digest: str = _DIGEST_OF_NOTHING  # of these bytes
    is_whole: bool = False


class RecordFile:
    """A .csv or .jsonl file with its state, which is locked as long as this object is open."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = columns
        self.state = State({})
        self._digest = hashlib.sha256()  # of the records
        self._state_path = path.with_name(f"{path.name}.state")
        self._new_state_path = path.with_name(f"{path.name}.state.new")
        self.passes_path = path.with_name(f"{path.name}.passes")
        with self._naming_the_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer nothing is left to be written later.
            self._stream = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        try:
            self._lock()
            self._read_state()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file. It is removed where it has no record, and no pass is kept."""
        self._new_state_path.unlink(missing_ok=True)
        if self.state.num_records == 0 and not self.has_passes:
            self.path.unlink(missing_ok=True)
            self._state_path.unlink(missing_ok=True)
        self._stream.close()

    @property
    def has_passes(self) -> bool:
        """Whether a run that was stopped within a part has left answers of the model."""
        return self.passes_path.exists() and self._state_path.exists()

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, another run may have ended and removed it.
            is_same = os.path.samestat(os.fstat(self._stream.fileno()), self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_same = False
        if not is_same:
            message = f"--out {self.path} is being written by another run: name another file."
            raise ValueError(message)

    def _read_state(self) -> None:
        size = self.path.stat().st_size
        if size == 0 and not self.has_passes:
            self.passes_path.unlink(missing_ok=True)
            return  # nothing is lost
        if not self._state_path.exists():
            raise ValueError(
                f"--out {self.path} is there already, without the {self._state_path.name} of a run "
                "that could go on: remove it, or name another file."
            )
        try:
            state = State(**json.loads(self._state_path.read_bytes()))
            for name, default in vars(State({})).items():
                if type(getattr(state, name)) is not type(default):
                    raise TypeError(name)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._state_path} is damaged. {self._remedy}") from error
        if size == 0 and state.num_records:
            self.passes_path.unlink(missing_ok=True)  # of a part behind records that were removed
            return
        self.state = state

    @property
    def can_go_on(self) -> bool:
        """Whether it can be known later that a model is the one of this run."""
        return "identity" not in self.state.run

    @property
    def _remedy(self) -> str:
        return f"Name another file, or remove {self.path.name} and {self._state_path.name}."

    def begin(self, run: Mapping[str, Any]) -> None:
        """Make ready for the records of a run: for its first ones, or for those behind the ones it has.

        Args:
            run: The fingerprint of the run.

        Raises:
            ValueError: For records of another run, and for ones that were changed.
        """
        wanted = json.loads(json.dumps(run, default=str))
        if self.state.num_records or self.has_passes:
            self._require_same(wanted)
            self._require_unchanged()
        else:
            self.state = State(wanted)
        with self._naming_the_file():
            self._write_state(self.state)
            self._stream.truncate(self.state.num_bytes)

    def _require_same(self, wanted: Mapping[str, Any]) -> None:
        """Refuse the first difference."""
        if "identity" in wanted:  # of a model that does not say which one it is
            raise ValueError(
                f"--out {self.path} has records already, and {wanted['model']} names no identity, so "
                "that they cannot be known to be of the same model. A string in its module, as "
                f"identity = 'weights of 3 May', lets a run go on. {self._remedy}"
            )
        stored = self.state.run
        for name in {**wanted, **stored}:
            have = stored.get(name)
            want = wanted.get(name)
            if have == want:
                continue
            change = f"is {have} there, {want} here"
            if _DIGEST.search(str(want)):
                change = "has changed since"
            raise ValueError(
                f"--out {self.path} has records of another run: {name} {change}. {self._remedy}"
            )

    def _require_unchanged(self) -> None:
        """Refuse records that are not those that were written."""
        with self.path.open("rb") as stream:
            left = self.state.num_bytes
            while block := stream.read(min(left, _BLOCK_BYTES)):
                self._digest.update(block)
                left -= len(block)
            # What is behind the last record was left by a run that was stopped.
            has_more = self.state.is_whole and stream.read(1) != b""
        if has_more or self._digest.hexdigest() != self.state.records_digest:
            raise ValueError(f"--out {self.path} was changed after it was written. {self._remedy}")

    def written(self, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The records that are written, with the numbers as they were; ``texts`` are columns of none."""
        with self.path.open(encoding="utf-8", newline="") as stream:
            if self.path.suffix == ".jsonl":
                yield from map(json.loads, stream)
                return
            for cells in csv.DictReader(stream):
                yield {
                    name: cells[name] if name in texts else _value(cells[name]) for name in cells
                }

    def write(
        self, records: Sequence[Record], *, last_line: int, lines_digest: str, num_faults: int
    ) -> None:
        """Add the records of lines up to one: all or, on a full disk or when stopped, none."""
        before = self.state
        content = self._as_bytes(records, with_header=before.num_bytes == 0)
        self._digest.update(content)
        after = State(
            run=before.run,
            last_line=last_line,
            lines_digest=lines_digest,
            num_records=before.num_records + len(records),
            num_faults=before.num_faults + num_faults,
            num_bytes=before.num_bytes + len(content),
            records_digest=self._digest.hexdigest(),
        )
        with self._naming_the_file():
            try:
                _write_all(self._stream, before.num_bytes, content)
                self._write_state(after)
            except BaseException:
                self._stream.truncate(self.state.num_bytes)
                raise

    def _as_bytes(self, records: Sequence[Record], *, with_header: bool) -> bytes:
        """Bytes, so that no system changes the ends of lines."""
        text = io.StringIO(newline="")
        if self.path.suffix == ".csv":
            table = csv.DictWriter(text, self.columns, lineterminator="\n")
            if with_header:
                table.writeheader()
            for record in records:
                table.writerow({name: _cell(value) for name, value in record.items()})
        else:
            for record in records:
                text.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        return text.getvalue().encode()

    def finish(self) -> None:
        """Mark the file as whole."""
        with self._naming_the_file():
            self._write_state(dataclasses.replace(self.state, is_whole=True))

    def _write_state(self, state: State) -> None:
        content = json.dumps(dataclasses.asdict(state)).encode()
        with self._new_state_path.open("wb", buffering=0) as stream:
            _write_all(stream, 0, content)
        # Stopped here, it has records behind the size in its state: never fewer than that.
        self.state = state
        self._new_state_path.replace(self._state_path)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """Name the file in errors of the disk."""
        try:
            yield
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {error.strerror}.") from error


def _write_all(stream: io.FileIO, start: int, content: bytes) -> None:
    """Write from a place on, and wait until it is on the disk."""
    stream.seek(start)
    while content:
        num_written = stream.write(content)
        content = content[num_written:]
    os.fsync(stream.fileno())


def _cell(value: Any) -> Any:
    """The cell of a table for a value: for an object or a list, its JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _value(cell: str) -> Any:
    """The value of a table's cell: a number, true or false, nothing, or a text."""
    words = {"": None, "True": True, "False": False}
    if cell in words:
        return words[cell]
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
