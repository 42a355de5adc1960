"""Bernoulli mixtures on their grids, and what trains them, by sums over the nodes in 60 digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mpmath
import torch
from models import generator
from oracles import Oracle, Point, digits, tractable
from torch import Tensor

from mpt_lml import VAE, BernoulliPCA, GridConditional, grids, masks, objectives
from mpt_lml.grids import Grid

SIZES = (2000, 784, 100, 16, 4, 2, 1)
SAMPLE_SIZES = (3, 100)
LONG_IN_THE_SAMPLE = (
    "certain by far",
    "rare ones",
    "certain in either way",
    "certain and never ones",
    "nearly always ones",
)
NAMES = ("masked", "block", "marginal")


class Nodes(Oracle):
    """Products over coordinates and sums over nodes, of probabilities that are never logarithms."""

    def __init__(self, log_weights: Tensor, logits: list[list[mpmath.mpf]], x: Tensor) -> None:
        self.weights = [mpmath.exp(each) for each in digits(log_weights)]
        self.x = x.long().tolist()
        self.probabilities = [[of_zero_and_one(logit) for logit in row] for row in logits]

    def joint(self, row: int, observed: Sequence[bool]) -> list[mpmath.mpf]:
        """p(x_R, z_g) of every node."""
        observed_values = [(d, value) for d, value in enumerate(self.x[row]) if observed[d]]
        values = []
        for weight, of_node in zip(self.weights, self.probabilities, strict=True):
            for d, value in observed_values:
                weight *= of_node[d][value]
            values.append(weight)
        return values

    def log_subset_marginal(self, row: int, observed: Sequence[bool]) -> mpmath.mpf:
        if not any(observed):
            return mpmath.mpf(0)
        return mpmath.log(mpmath.fsum(self.joint(row, observed)))

    def log_conditional(self, row: int, mask: Sequence[bool]) -> list[mpmath.mpf]:
        joint = self.joint(row, [not hidden for hidden in mask])
        total = mpmath.fsum(joint)
        values = [mpmath.mpf(0)] * len(mask)
        for d, hidden in enumerate(mask):
            if hidden:
                column = [of_node[d][self.x[row][d]] for of_node in self.probabilities]
                values[d] = mpmath.log(mpmath.fdot(joint, column) / total)
        return values


def of_zero_and_one(logit: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    """p(x_d = 0 | z_g) and p(x_d = 1 | z_g)."""
    odds = mpmath.exp(logit)
    return 1 / (1 + odds), odds / (1 + odds)


def exact_logits(grid: Grid, loadings: Tensor, offset: Tensor) -> list[list[mpmath.mpf]]:
    """w_d·z_g + b_d of every node and coordinate."""
    rows = list(zip(digits(loadings), digits(offset), strict=True))
    return [[mpmath.fdot(w, z) + b for w, b in rows] for z in digits(grid.nodes)]


def parameters(num_features: int) -> Iterator[tuple[str, Grid, Tensor, Tensor]]:
    """Name, grid, loadings and offset of models from nearly even to nearly certain."""

    def normal(*shape: int, seed: int) -> Tensor:
        return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)

    line = grids.trapezoid(1, 20)
    steps = torch.linspace(-1.0, 1.0, num_features, dtype=torch.float64)
    one = normal(num_features, 1, seed=1)
    few = torch.tensor([-20.0, -50.0, -90.0, -150.0], dtype=torch.float64)
    yield "never ones", line, one, 5 * few.repeat(num_features)[:num_features]
    # The last numbers before zero in single and in double precision, of which few digits are left.
    edge = torch.tensor([-100.0, -740.0], dtype=torch.float64)
    yield "nearly underflowing", line, 1e-3 * one, edge.repeat(num_features)[:num_features]
    yield "rare ones", line, one, few.repeat(num_features)[:num_features]
    yield "certain in either way", line, 30 * one.sign(), 50 * steps
    signs = 1.0 - 2.0 * (torch.arange(num_features) % 2)[:, None].double()
    yield "certain and never ones", line, 30 * signs, 0 * steps - 250
    yield "logits to 200", line, 40 * one.tanh(), 0 * steps
    yield "nearly always ones", line, one, 0 * steps + 21
    yield "nearly even", line, 1e-8 * one, 1e-8 * steps
    yield "generic", line, one, normal(num_features, seed=2)
    yield "nodes of no weight", grids.trapezoid(1, 41, extent=30.0), one, steps
    plane = grids.trapezoid(2, 8)
    yield "two dimensions", plane, normal(num_features, 2, seed=3), normal(num_features, seed=4) - 1
    decades = torch.logspace(-18, 2, num_features, dtype=torch.float64)[:, None]
    # Of 2,000 coordinates they add up to nearly all that is answered.
    yield "certain by far", line, 90 * signs, steps
    # At the nodes of the diagonal large products leave a number that decides.
    opposite = 40 * torch.cat([signs, -signs], dim=1)
    yield "logits that cancel", plane, opposite + normal(num_features, 2, seed=6), 3 * steps
    yield "over 20 decades", grids.trapezoid(1, 12), decades, 0 * steps


def data(num_features: int, dtype: torch.dtype) -> Tensor:
    """Ones, zeros, half of each, alternating and at random, (5, D)."""
    steps = torch.arange(num_features)
    rows = [steps >= 0, steps < 0, 2 * steps < num_features, steps % 2 == 0]
    rows.append(torch.rand(num_features, generator=generator(5)) < 0.5)
    return torch.stack(rows).to(dtype)


def masks_of(num_features: int) -> Tensor:
    """Hidden: about half, everything, one, all but one, (P, D)."""
    sizes = {(num_features + 1) // 2, num_features, 1, max(num_features - 1, 1)}
    rows = [
        masks.sample_masks(1, num_features, size, generator=generator(size))
        for size in sorted(sizes)
    ]
    return torch.cat(rows)


def points(full_grid: bool) -> Iterator[Point]:
    for dtype in (torch.float64, torch.float32):
        for num_features in SIZES if full_grid else SAMPLE_SIZES:
            for name, grid, loadings, offset in parameters(num_features):
                narrow = grid.to(loadings.to(dtype))
                parts = name, narrow, loadings.to(dtype), offset.to(dtype)
                x = data(num_features, dtype)
                mask = masks_of(num_features)
                if num_features > 16:
                    x = x[2:4]
                if num_features > 16 and not full_grid and name not in LONG_IN_THE_SAMPLE:
                    continue
                yield bernoulli(*parts, x, mask)
                yield decoder(*parts, x, mask)
                if num_features <= 100:
                    yield posterior(*parts, x, mask)
                if num_features <= 4:
                    yield trained(*parts, x[-3:], mask)


def bernoulli(
    name: str, grid: Grid, loadings: Tensor, offset: Tensor, x: Tensor, mask: Tensor
) -> Point:
    return tractable(
        lambda: BernoulliPCA(loadings, offset, grid=grid),
        x,
        mask,
        lambda: Nodes(grid.log_weights, exact_logits(grid, loadings, offset), x),
        family="BernoulliPCA",
        name=name,
        dtype=x.dtype,
    )


def decoder(
    name: str, grid: Grid, loadings: Tensor, offset: Tensor, x: Tensor, mask: Tensor
) -> Point:
    """A network that bends its latent. What it answers is the model, to the last bit."""

    def decode(z: Tensor) -> Tensor:
        return (1.5 * z).sin() @ (5 * loadings.mT) + offset

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("a grid asks no encoder")

    def model() -> GridConditional:
        dimensions = {"num_features": len(loadings), "latent_dim": loadings.shape[1]}
        return GridConditional(VAE(encode, decode, **dimensions), grid)

    return tractable(
        model,
        x,
        mask,
        lambda: Nodes(grid.log_weights, digits(decode(grid.nodes)), x),
        family="GridConditional",
        name=name,
        dtype=x.dtype,
    )


def posterior(
    name: str, grid: Grid, loadings: Tensor, offset: Tensor, x: Tensor, mask: Tensor
) -> Point:
    """The probability of every node, compared as it is: it is in no logarithm."""

    def measured() -> dict[str, Tensor]:
        model = BernoulliPCA(loadings, offset, grid=grid)
        return {"posterior_weights": model.posterior_weights(x, ~mask)}

    def exact() -> dict[str, list[mpmath.mpf]]:
        oracle = Nodes(grid.log_weights, exact_logits(grid, loadings, offset), x)
        values = []
        for observed in (~mask).tolist():
            for row in range(len(x)):
                joint = oracle.joint(row, observed)
                total = mpmath.fsum(joint)
                values += [each / total for each in joint]
        return {"posterior_weights": values}

    return Point("posterior_weights", name, x.dtype, len(loadings), measured, exact)


def trained(
    name: str, grid: Grid, loadings: Tensor, offset: Tensor, x: Tensor, mask: Tensor
) -> Point:
    """The three objectives of a mixture, and their slopes in W and b."""
    parts = x.tensor_split(len(mask))
    num_data, num_features = x.shape

    def measured() -> dict[str, Tensor]:
        w = loadings[None].clone().requires_grad_()
        b = offset[None].clone().requires_grad_()
        values = {
            "masked": objectives.mixture(w, b, x, mask[None], grid),
            "block": objectives.mixture(w, b, x, mask[None], grid, block=True),
            "marginal": objectives.mixture(w, b, x, None, grid),
        }
        slopes = {}
        for key, value in values.items():
            gradients = torch.autograd.grad(value.sum(), (w, b))
            slopes[f"slope of {key}"] = torch.cat([each.flatten() for each in gradients])
        return values | slopes

    def objective(w: list[list[mpmath.mpf]], b: list[mpmath.mpf]) -> list[mpmath.mpf]:
        """The three values of parameters in 60 digits."""
        rows = list(zip(w, b, strict=True))
        logits = [[mpmath.fdot(row, z) + c for row, c in rows] for z in digits(grid.nodes)]
        oracle = Nodes(grid.log_weights, logits, x)
        totals = dict.fromkeys(NAMES, mpmath.mpf(0))
        data = iter(range(num_data))
        for part, hidden in zip(parts, mask.tolist(), strict=True):
            for _ in part:
                row = next(data)
                size = sum(hidden)
                totals["masked"] += mpmath.fsum(oracle.log_conditional(row, hidden)) / size
                totals["block"] += oracle.log_subset_marginal(row, hidden) / size
                everything = [True] * num_features
                totals["marginal"] += oracle.log_subset_marginal(row, everything) / num_features
        return [totals[key] * num_features / num_data for key in NAMES]

    def exact() -> dict[str, list[mpmath.mpf]]:
        w = digits(loadings)
        b = digits(offset)
        values = objective(w, b)
        slopes = []
        # A central difference: with 60 digits its own error is 1e-40.
        step = mpmath.mpf(10) ** -20
        for entries in [*w, b]:
            for k, number in enumerate(entries):
                entries[k] = number + step
                above = objective(w, b)
                entries[k] = number - step
                below = objective(w, b)
                entries[k] = number
                slopes.append(
                    [(up - down) / (2 * step) for up, down in zip(above, below, strict=True)]
                )
        answers = {key: [value] for key, value in zip(NAMES, values, strict=True)}
        for number, key in enumerate(NAMES):
            answers[f"slope of {key}"] = [slope[number] for slope in slopes]
        return answers

    counts = dict.fromkeys([*NAMES, *(f"slope of {key}" for key in NAMES)], num_features)
    return Point("objectives.mixture", name, x.dtype, num_features, measured, exact, counts)
