"""Full joint tables, by brute sums over their cells in 60 digits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import mpmath
import torch
from models import generator
from oracles import DiscreteOracle, Oracle, Point, tractable
from torch import Tensor

from mpt_lml import JointTable, masks

SIZES = ((2,), (5,), (2, 3), (3, 2, 4), (2,) * 5, (2, 3, 2, 3, 2), (2,) * 10, (6,) * 6)
SAMPLE_SIZES = ((2,), (3, 2, 4), (2, 3, 2, 3, 2))


class Cells(Oracle):
    """Σ of the cells that agree with what is observed, one after the other."""

    def __init__(self, probabilities: Tensor, x: Tensor) -> None:
        values = (range(size) for size in probabilities.shape)
        numbers = probabilities.flatten().tolist()
        self.cells = list(zip(itertools.product(*values), map(mpmath.mpf, numbers), strict=True))
        self.sizes = probabilities.shape
        self.x = x.tolist()

    def agreeing(self, row: int, observed: Sequence[bool]) -> list[tuple]:
        observed_values = [(j, value) for j, value in enumerate(self.x[row]) if observed[j]]
        return [
            cell for cell in self.cells if all(cell[0][j] == value for j, value in observed_values)
        ]

    def log_subset_marginal(self, row: int, observed: Sequence[bool]) -> mpmath.mpf:
        if not any(observed):
            return mpmath.mpf(0)
        return mpmath.log(mpmath.fsum(p for _, p in self.agreeing(row, observed)))

    def log_conditional(self, row: int, mask: Sequence[bool]) -> list[mpmath.mpf]:
        cells = self.agreeing(row, [not hidden for hidden in mask])
        total = self.total(cells, mask)
        values = [mpmath.mpf(0)] * len(mask)
        for j, hidden in enumerate(mask):
            if hidden:
                joint = mpmath.fsum(p for place, p in cells if place[j] == self.x[row][j])
                values[j] = mpmath.log(joint / total)
        return values

    def total(self, cells: list[tuple], mask: Sequence[bool]) -> mpmath.mpf:
        """p(x_R); 1 where nothing is observed, also where rounded entries sum to nearly 1."""
        if all(mask):
            return mpmath.mpf(1)
        return mpmath.fsum(probability for _, probability in cells)


class CellsOfEqualSizes(Cells, DiscreteOracle):
    """The same where every coordinate takes the values 0..V−1."""

    def log_values(self, row: int, mask: Sequence[bool]) -> list[list[mpmath.mpf] | None]:
        cells = self.agreeing(row, [not hidden for hidden in mask])
        total = self.total(cells, mask)
        values: list[list[mpmath.mpf] | None] = [None] * len(mask)
        for j, hidden in enumerate(mask):
            if hidden:
                values[j] = [
                    mpmath.log(mpmath.fsum(p for place, p in cells if place[j] == v) / total)
                    for v in range(self.sizes[j])
                ]
        return values


def tables(sizes: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Even, lopsided and nearly deterministic tables, each divided by its sum in its precision."""
    weights = torch.empty(sizes, dtype=torch.float64).exponential_(generator=generator(1))
    decades = torch.rand(sizes, generator=generator(2), dtype=torch.float64)
    smallest = 1e-300 if dtype == torch.float64 else 1e-38
    one_cell = torch.full(sizes, smallest, dtype=torch.float64)
    one_cell.view(-1)[0] = 1.0
    kinds = {
        "drawn evenly": weights,
        "over 20 decades": 10.0 ** (-20 * decades),
        "over 300 decades": 10.0 ** (-300 * decades) if dtype == torch.float64 else weights**8,
        "one cell has nearly all": one_cell,
        "all cells alike": torch.ones(sizes, dtype=torch.float64),
    }
    for name, values in kinds.items():
        narrow = values.to(dtype)
        yield name, narrow / narrow.sum()


def points(full_grid: bool) -> Iterator[Point]:
    for dtype in (torch.float64, torch.float32):
        for sizes in SIZES if full_grid else SAMPLE_SIZES:
            for name, probabilities in tables(sizes, dtype):
                size = len(sizes)
                x = torch.stack(
                    [torch.randint(v, (4,), generator=generator(v)) for v in sizes], dim=1
                )
                x[0] = 0
                mask = masks.subsets(size)[1:]
                if len(mask) > 15:
                    mask = masks.sample_masks(8, size, masks.UniformSize(), generator=generator(3))
                    mask[0] = True
                cells = CellsOfEqualSizes if len(set(sizes)) == 1 else Cells
                oracle = partial(cells, probabilities, x)
                named = f"{name}, {'×'.join(map(str, sizes))}"
                yield tractable(
                    partial(JointTable, probabilities),
                    x,
                    mask,
                    oracle,
                    family="JointTable",
                    name=named,
                    dtype=dtype,
                )
