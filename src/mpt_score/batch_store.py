"""The answers of a model about a part of a run, kept so that no stop costs them again."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SECONDS_BETWEEN_SAVES = 60.0
"""A run that is stopped loses at most the passes of this time."""


class BatchStore:
    """Answers of a model, batch by batch, in memory and now and then on the disk.

    An answer is known by the batch that was asked about. So a run that goes on gets the very numbers of
    the run that was stopped, although rounding depends on what is asked together.

    Args:
        path: The file of the answers, which need not be there.
        clock: The time in seconds, which only increases.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.clock = clock
        self.saved = _read(path)
        self._new: dict[str, Tensor] = {}  # not on the disk yet; on a GPU they are not waited for
        self._last_save = clock()

    def answer(self, batch: str, compute: Callable[[], Tensor]) -> Tensor:
        """The saved answer about a batch, or a new one.

        Args:
            batch: The digest of what is asked, as of :func:`digest_of`.
            compute: Asks the model.
        """
        if batch in self.saved:
            return self.saved[batch]
        answer = compute()
        self._new[batch] = answer
        if self.clock() - self._last_save >= SECONDS_BETWEEN_SAVES:
            self.save()
        return answer

    def save(self) -> None:
        """Append the new answers to the file, and wait until they are on the disk."""
        try:
            with self.path.open("ab") as stream:
                for batch, answer in self._new.items():
                    values = answer.detach().cpu().numpy()
                    header = {"batch": batch, "type": str(values.dtype), "shape": values.shape}
                    stream.write(json.dumps(header).encode() + b"\n" + values.tobytes())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {error.strerror}.") from error
        self._new.clear()
        self._last_save = self.clock()

    def forget(self) -> None:
        """Remove the answers of a part whose scores are written."""
        self.saved = {}
        self._new.clear()
        self.path.unlink(missing_ok=True)


def digest_of(*tensors: Tensor | None) -> str:
    """The SHA-256 of some tensors on the CPU, with their shapes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        shape = None if tensor is None else tuple(tensor.shape)
        digest.update(f"{shape} ".encode())
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor]:
    """The answers in a file, but for a last one that was not written to its end."""
    answers: dict[str, Tensor] = {}
    if not path.exists():
        return answers
    with path.open("rb") as stream:
        num_whole_bytes = 0
        while line := stream.readline():
            try:
                header = json.loads(line)
            except ValueError:
                break
            dtype = np.dtype(header["type"])
            shape = header["shape"]
            content = stream.read(int(np.prod(shape)) * dtype.itemsize)
            if len(content) < np.prod(shape) * dtype.itemsize:
                break
            values = np.frombuffer(content, dtype).reshape(shape).copy()
            answers[header["batch"]] = torch.from_numpy(values)
            num_whole_bytes = stream.tell()
    os.truncate(path, num_whole_bytes)
    return answers
