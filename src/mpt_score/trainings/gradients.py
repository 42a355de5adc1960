"""Loss and gradients of a batch: operation by operation, or as one launch on a GPU.

A step of a small network is launches, not arithmetic. Recorded as a CUDA graph, it is one.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

# Adds the gradients of a batch to those of the weights; returns its loss. Besides rows and mask it may
# take what changes the operations, such as the number that is hidden.
Add = Callable[..., Tensor]

_WARM_UPS = 2  # passes before a recording: libraries make room for themselves in the first

_log = logging.getLogger(__name__)


class Plain:
    """The gradients of a batch, operation by operation."""

    def __init__(self, weights: Sequence[Tensor], add: Add) -> None:
        self.weights = weights
        self.add = add

    def __call__(self, rows: Tensor, mask: Tensor, *options: Hashable) -> Tensor:
        for weight in self.weights:
            weight.grad = None
        return self.add(rows, mask, *options)


class Recorded:
    """The same as one launch: a CUDA graph for each shape and its options, recorded when it first comes.

    Gradients stay in one place, which all graphs write. Where the card cannot record, the steps are
    taken one by one.
    """

    def __init__(self, weights: Sequence[Tensor], add: Add) -> None:
        self.gradients: list[Tensor] = []
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
            self.gradients.append(weight.grad)
        self.add = add
        self.graphs: dict[Hashable, tuple[Any, Tensor, Tensor, Tensor]] = {}
        self.pool: Any = None
        self.can_record = True

    def __call__(self, rows: Tensor, mask: Tensor, *options: Hashable) -> Tensor:
        kind = (rows.shape, *options)
        if self.can_record and kind not in self.graphs:
            try:
                self.graphs[kind] = self.record(rows, mask, *options)
            except RuntimeError as error:
                self.can_record = False
                self.graphs.clear()
                reason = (str(error).splitlines() or [""])[0]
                _log.warning("steps are taken one by one: no CUDA graph (%s).", reason)
        if not self.can_record:
            return self.anew(rows, mask, *options)
        graph, shown_rows, shown_mask, loss = self.graphs[kind]
        shown_rows.copy_(rows)
        shown_mask.copy_(mask)
        graph.replay()
        return loss

    def anew(self, rows: Tensor, mask: Tensor, *options: Hashable) -> Tensor:
        torch._foreach_zero_(self.gradients)
        return self.add(rows, mask, *options)

    def record(
        self, rows: Tensor, mask: Tensor, *options: Hashable
    ) -> tuple[Any, Tensor, Tensor, Tensor]:
        """A graph, where it reads, and where it writes its loss."""
        shown_rows = rows.clone()
        shown_mask = mask.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self.anew(shown_rows, shown_mask, *options)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self.anew(shown_rows, shown_mask, *options)
        self.pool = graph.pool()
        return graph, shown_rows, shown_mask, loss
