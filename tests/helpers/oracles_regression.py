"""Regression with unknown noise beside 100 digits: any shape, rate, unit, and data far out.

The floors: shapes to 1e6, rates to 1e8, τ‖Φ‖ to 1e3, data up to 10 standard deviations out, in units of
any size. Errors may grow with τ²‖Φ‖² where that is larger, and with the square of the distance where data
are further out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import mpmath
import torch
from models import generator
from oracles import Point
from oracles_ppca import (
    DIGITS,
    LEAST,
    NATS,
    SINGLE,
    WIDE,
    ExactPPCA,
    Numbers,
    average,
    growth,
    kinds,
    observed_sets,
    spread_out,
)
from torch import Tensor

from mpt_lml import curves, masks
from mpt_lml.models.regression import ConjugateRegression

HALF = mpmath.mpf(1) / 2


class ExactRegression:
    """Student's t of any subset: the Gaussian of y/s, and s² integrated out."""

    def __init__(self, inputs: Tensor, y: Tensor, prior: dict[str, float]) -> None:
        self.tau, self.a, self.b = (
            mpmath.mpf(prior[name]) for name in ("prior_scale", "shape", "rate")
        )
        # τ² Φ Φᵀ + I = τ² (Φ Φᵀ + I/τ²): whole numbers know no τ.
        noise = torch.tensor(1.0, dtype=WIDE)
        self.gaussian = ExactPPCA(inputs, noise, y)
        self.gaussian.noise = 1 / self.tau**2

    def marginal(self, observed: Tensor) -> Numbers:
        rows, factor = self.gaussian.given(observed)
        size = len(rows)
        log_constant = self.gaussian.log_constant(size, factor) - size * mpmath.log(self.tau)
        log_constant += mpmath.loggamma(self.a + size * HALF) - mpmath.loggamma(self.a)
        log_constant += self.a * mpmath.log(self.b)
        squares = [square / self.tau**2 for square in self.gaussian.quadratic(rows, factor)]
        return [log_constant - (self.a + size * HALF) * mpmath.log(self.b + q / 2) for q in squares]

    def conditional(self, observed: Tensor, chosen: list[int]) -> list[Numbers]:
        """log p(y_j | y_R), Student's t of 2a + |R| degrees, for each datum of each chosen j."""
        rows, factor = self.gaussian.given(observed)
        a = self.a + len(rows) * HALF
        left = [self.b + q / self.tau**2 / 2 for q in self.gaussian.quadratic(rows, factor)]
        log_constant = (
            mpmath.loggamma(a + HALF) - mpmath.loggamma(a) - mpmath.log(2 * mpmath.pi) / 2
        )
        values = []
        for variance, residual in self.gaussian.predictions(observed, chosen):
            v = variance * self.tau**2
            pairs = zip(left, residual, strict=True)
            values.append(
                [
                    log_constant
                    - mpmath.log(v * b) / 2
                    - (a + HALF) * mpmath.log(1 + r**2 / (2 * v * b))
                    for b, r in pairs
                ]
            )
        return values


def point(
    inputs: Tensor, prior: dict[str, float], far: float, name: str, dtype: torch.dtype, beyond: bool
) -> Point:
    """Every method at a few sets of observed data, or at all where they are few."""
    phi = inputs.to(dtype)
    size, dim = phi.shape
    noise = (prior["rate"] / prior["shape"]) ** 0.5
    z, e = (torch.randn(3, n, generator=generator(2), dtype=WIDE) for n in (dim, size))
    y = (far * noise * (prior["prior_scale"] * z @ phi.to(WIDE).T + e)).to(dtype)
    tiny = size <= 5
    observed = masks.subsets(size)[:-1] if tiny else observed_sets(size, dim)
    mask, counts = ~observed, observed.sum(dim=1).tolist()
    chosen = [spread_out(row, 3) for row in mask]
    pair = [p % len(y) for p in range(len(mask))]

    def measured() -> dict[str, Tensor]:
        model = ConjugateRegression(phi, **prior)
        every, each = model.log_conditional(y, mask), model.log_each(y[pair], mask)
        means = model.mean_log_conditional(y, mask)
        values = {
            "log_marginal": model.log_marginal(y),
            "log_subset_marginal": model.log_subset_marginal(y, observed[1:]),
            "mean_log_subset_marginal": model.mean_log_subset_marginal(y, observed[1:]),
            "log_conditional": torch.cat(
                [every[p, :, j].T.flatten() for p, j in enumerate(chosen)]
            ),
            "log_each": torch.cat([each[p, j] for p, j in enumerate(chosen)]),
            "mean_log_conditional": torch.cat([means[p, j] for p, j in enumerate(chosen)]),
        }
        if tiny:
            areas = [curves.exact_curve(model, y).area(), curves.subset_curve(model, y).area()]
            values["areas"] = torch.tensor(areas, dtype=WIDE)
        return values

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            oracle = ExactRegression(phi, y, prior)
            log_marginal = oracle.marginal(torch.ones(size, dtype=torch.bool))
            subsets = [oracle.marginal(row) for row in observed[1:]]
            every = [oracle.conditional(*both) for both in zip(observed, chosen, strict=True)]
            values = {
                "log_marginal": log_marginal,
                "log_subset_marginal": [v for row in subsets for v in row],
                "mean_log_subset_marginal": [average(row) for row in subsets],
                "log_conditional": [v for rows in every for row in rows for v in row],
                "log_each": [row[pair[p]] for p, rows in enumerate(every) for row in rows],
                "mean_log_conditional": [average(row) for rows in every for row in rows],
            }
            if tiny:
                values["areas"] = [average(log_marginal)] * 2
            return values

    sizes = {
        "log_marginal": size,
        "log_subset_marginal": [count for count in counts[1:] for _ in y],
        "mean_log_subset_marginal": counts[1:],
        "areas": size,
    }
    name = f"K = {dim}, {name}"
    nats = NATS * growth(phi, prior["prior_scale"] ** -2) * max(1.0, far / 10.0) ** 2
    return Point("regression", name, dtype, size, measured, exact, sizes, beyond, nats)


def points(full_grid: bool) -> Iterator[Point]:
    """A sample of every kind of point, or the whole grid."""
    shapes = (0.01, 0.5, 2.0, 100.1, 12345.678, 1e6)
    few = (0.5, 100.1, 1e6)
    for dtype in (WIDE, SINGLE):
        if not full_grid:
            for size, dim in ((5, 3), (40, 4)):
                for shape in few:
                    rates = sorted({1e-14, shape})
                    yield from _priors(
                        "generic", (size, dim), shape, rates, (LEAST, 0), (10.0,), dtype
                    )
            # Where one rounding of y or of τΦ is 1e-7 standard deviations of the noise.
            yield from _priors("two columns alike", (5, 3), 1e6, [1e6], (LEAST - 2,), (1e3,), dtype)
            continue
        for shape in (100.1, 1e6):
            rates = (1.0, shape)
            yield from _priors("generic", (2000, 50), shape, rates, (LEAST, 0), (10.0,), dtype)
        exponents = (LEAST - 2, LEAST, -4, 0, 8)
        for name in ("generic", "columns scaled"):
            for shape in few:
                rates = (1e-14, shape)
                yield from _priors(name, (200, 5), shape, rates, exponents, (10.0, 1e3), dtype)
        for name in ("generic", "two columns alike", "columns scaled"):
            for shape in shapes if name == "generic" else few:
                rates = sorted({1e-14, 1.0, shape, 1e14})
                yield from _priors(name, (5, 3), shape, rates, exponents, (1.0, 10.0, 1e3), dtype)


def _priors(
    name: str,
    size: tuple[int, int],
    shape: float,
    rates: Sequence[float],
    exponents: Sequence[int],
    fars: Sequence[float],
    dtype: torch.dtype,
) -> Iterator[Point]:
    """Inputs of one kind with one shape: every rate, 1/τ² and distance of the data."""
    inputs = kinds(*size)[name]
    for rate, exponent, far in itertools.product(rates, exponents, fars):
        tau = 10.0 ** (-exponent / 2)
        prior = {"prior_scale": tau, "shape": shape, "rate": rate}
        beyond = exponent < LEAST or far > 10.0
        label = f"{name}, a = {shape:g}, b = {rate:g}, tau = {tau:.0e}, {far:g} sd"
        yield point(inputs, prior, far, label, dtype, beyond)
