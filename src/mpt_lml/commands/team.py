"""Several processes that score together: each does its share, all then read the rest."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from tqdm.auto import tqdm

from mpt_lml.files import require_writable
from mpt_lml.score.door import Progress


@dataclass
class Team:
    """The processes that share the work: each keeps every world-th part, all then read the rest."""

    folder: Path | None
    rank: int
    size: int

    @classmethod
    def here(cls, folder: str | None) -> "Team":
        """As ``accelerate launch`` and ``torchrun`` say it to each of their processes."""
        rank, size = (int(os.environ.get(name, d)) for name, d in (("RANK", 0), ("WORLD_SIZE", 1)))
        if size > 1 and folder is None:
            raise ValueError(f"{size} processes meet in a folder: name one with --checkpoints DIR.")
        if size > 1:
            distributed.init_process_group("gloo")
        return cls(require_writable(folder) if folder else None, rank, size)

    def device(self, asked: str) -> str:
        """``asked``, or the GPU of this process where each has one."""
        there = torch.cuda.is_available()
        if asked == "cuda" and not there:
            raise ValueError("device 'cuda' was asked for, but torch sees no GPU: 'auto' or 'cpu'.")
        local = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        return local if there and asked != "cpu" and self.size > 1 else asked

    def together(self, work: Callable[[Progress], Any]) -> Any:
        """``work`` with its loops shared: one loop more at every turn is there for all to read."""
        whole = 0 if self.size > 1 else None
        while True:
            try:
                return work(self.progress(whole))
            except _Shared:
                distributed.barrier()
                whole = (whole or 0) + 1

    def progress(self, whole: int | None = None) -> Progress:
        """Of every loop its items with a bar; of the first that is not ``whole``, the own share."""
        seen = 0

        def progress(items: Iterable[Any], name: str) -> Iterator[Any]:
            nonlocal seen
            seen += 1
            shared = whole is not None and seen > whole
            own = list(items)[self.rank :: self.size] if shared else items
            yield from tqdm(own, desc=name, disable=None if self.rank == 0 else True, leave=False)
            if shared:
                raise _Shared

        return progress


class _Shared(Exception):
    """The own share of a loop is done."""
