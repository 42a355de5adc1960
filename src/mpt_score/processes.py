"""Several processes that score together: each does its share, all then read the rest."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed
from tqdm.auto import tqdm

from mpt_lml.files import require_writable
from mpt_score.keep import Part, Parts, Run


@dataclass
class Team:
    """The processes that share the work: each keeps every world-th part, all then read the rest."""

    folder: Path | None
    rank: int
    size: int

    @classmethod
    def here(cls, folder: str | None) -> "Team":
        """As ``accelerate launch`` and ``torchrun`` say it to each of their processes."""
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if size > 1 and folder is None:
            raise ValueError(f"{size} processes meet in a folder: name one with --checkpoints DIR.")
        if size > 1:
            own = os.dup(1)
            os.dup2(2, 1)  # torch 2.9's Gloo greets on standard output, where rows of JSON go
            distributed.init_process_group("gloo")
            os.dup2(own, 1)
            os.close(own)
        return cls(require_writable(folder) if folder else None, rank, size)

    def device(self, asked: str) -> str:
        """``asked``, or the GPU of this process where each has one."""
        there = torch.cuda.is_available()
        if asked == "cuda" and not there:
            raise ValueError("device 'cuda' was asked for, but torch sees no GPU: 'auto' or 'cpu'.")
        own = there and asked != "cpu" and self.size > 1
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if own else asked

    def together(self, run: Run) -> Run:
        """``run`` of the own share, with a bar; parts of others are read when all are done."""

        def shared(label: str, parts: Parts) -> list[Part]:
            own = list(parts.items())[self.rank :: self.size]
            bar = tqdm(own, desc=label, disable=None if self.rank == 0 else True, leave=False)
            found = [part for name, work in bar for part in run(label, {name: work})]
            if self.size == 1:
                return found
            distributed.barrier()
            return run(label, parts)

        return shared
