"""PPCA and its Gaussian parts beside whole numbers and 100 digits: right, or refused beyond the floors.

The floors: σ²/‖W‖² from 1e-6 to 1e8, data up to 10 standard deviations of the model out, along W, in the
noise or both, in units a million times larger or smaller. Errors may grow with ‖W‖²/σ² where that is
larger, and with the square of the distance where data are further out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mpmath
import numpy as np
import torch
from models import generator
from oracles import TOLERANCE, Point
from torch import Tensor

from mpt_lml import PPCA, curves, gaussian, masks, objectives

WIDE, SINGLE = torch.float64, torch.float32
LEAST = -6  # σ²/‖W‖² of the floors, a power of ten
NATS = 1e-7  # a coordinate, for data up to 10 standard deviations out
DIGITS = 100  # 60 are left where a hundred thousand are lost twice
Numbers = list[mpmath.mpf]
# Standard deviations along W and in the noise.
PLACEMENTS = {
    "drawn": (1.0, 1.0),
    "10 sd": (10.0, 10.0),
    "10 sd along W": (10.0, 1.0),
    "10 sd of noise": (1.0, 10.0),
    "1e3 sd": (1e3, 1e3),
    "1e3 sd along W": (1e3, 1.0),
}


class IntegerTensor:
    """A tensor as integers times 2^exponent: sums of their products are exact."""

    def __init__(self, values: Tensor) -> None:
        mantissa, power = np.frexp(values.detach().to(WIDE).numpy())
        self.exponent = int(power.min(initial=0, where=mantissa != 0)) - 53
        to_integer = np.frompyfunc(
            lambda p, e: int(p * 2**53) << max(int(e) - 53 - self.exponent, 0), 2, 1
        )
        self.numbers = np.asarray(to_integer(mantissa, power), dtype=object)

    def product(self, other: IntegerTensor, sums: np.ndarray) -> mpmath.mpf | np.ndarray:
        """``sums``, sums of products of numbers of both, as mpf."""
        exponent = self.exponent + other.exponent
        return np.frompyfunc(lambda v: mpmath.ldexp(mpmath.mpf(int(v)), exponent), 1, 1)(sums)

    def real(self) -> np.ndarray:
        return np.frompyfunc(lambda v: mpmath.ldexp(mpmath.mpf(int(v)), self.exponent), 1, 1)(
            self.numbers
        )


class ExactPPCA:
    """N(0, W Wᵀ + σ² I) and centered data x (N, D), or their second moment C (D, D), in digits."""

    def __init__(
        self, loadings: Tensor, noise: Tensor, x: Tensor, mean: Tensor | None = None
    ) -> None:
        self.w = IntegerTensor(loadings)
        self.dim, self.noise = loadings.shape[1], mpmath.mpf(noise.item())
        data_and_mean = IntegerTensor(x if mean is None else torch.cat([x, mean.to(x)[None]]))
        self.x = data_and_mean
        if mean is not None:
            self.x.numbers = data_and_mean.numbers[:-1] - data_and_mean.numbers[-1:]
        self.real = self.w.real()

    def given(self, observed: Tensor) -> tuple[np.ndarray, mpmath.matrix]:
        """The rows of R and the Cholesky factor of W_Rᵀ W_R + σ² I."""
        rows = observed.nonzero().flatten().numpy()
        w = self.w.numbers[rows]
        gram = self.w.product(self.w, w.T @ w) if self.dim else np.zeros((0, 0))
        matrix = mpmath.matrix(self.dim, self.dim)
        for a in range(self.dim):
            for b in range(self.dim):
                matrix[a, b] = mpmath.mpf(gram[a, b]) + (self.noise if a == b else 0)
        return rows, mpmath.cholesky(matrix) if self.dim else matrix

    def log_constant(self, size: int, factor: mpmath.matrix) -> mpmath.mpf:
        """log N(0; 0, W_R W_Rᵀ + σ² I)."""
        log_det = 2 * mpmath.fsum(mpmath.log(factor[k, k]) for k in range(self.dim))
        log_det += (size - self.dim) * mpmath.log(self.noise)
        return -(size * mpmath.log(2 * mpmath.pi) + log_det) / 2

    def quadratic(self, rows: np.ndarray, factor: mpmath.matrix) -> Numbers:
        """x_Rᵀ (W_R W_Rᵀ + σ² I)⁻¹ x_R of every datum."""
        x, w = self.x.numbers[:, rows], self.w.numbers[rows]
        squares = (
            self.x.product(self.x, (x * x).sum(axis=1)) if len(rows) else [mpmath.mpf(0)] * len(x)
        )
        values = []
        for square, projection in zip(squares, self.w.product(self.x, x @ w), strict=True):
            white = forward(factor, projection)
            values.append((mpmath.mpf(square) - mpmath.fsum(v**2 for v in white)) / self.noise)
        return values

    def marginal(self, observed: Tensor) -> Numbers:
        """log p(x_R) of every datum."""
        rows, factor = self.given(observed)
        log_constant = self.log_constant(len(rows), factor)
        return [log_constant - square / 2 for square in self.quadratic(rows, factor)]

    def predictions(
        self, observed: Tensor, chosen: Sequence[int]
    ) -> Iterator[tuple[mpmath.mpf, Numbers]]:
        """Variance and, of every datum, residual of each chosen coordinate given x_R."""
        rows, factor = self.given(observed)
        projection = self.w.product(self.x, self.x.numbers[:, rows] @ self.w.numbers[rows])
        latents = [backward(factor, forward(factor, values)) for values in projection]
        data = self.x.product(self.w, self.x.numbers[:, chosen] << -self.w.exponent)
        for at, j in enumerate(chosen):
            white = forward(factor, self.real[j])
            variance = self.noise * (1 + mpmath.fsum(v**2 for v in white))
            means = [mpmath.fdot(zip(self.real[j], z, strict=True)) for z in latents]
            yield variance, [data[n, at] - mean for n, mean in enumerate(means)]

    def conditional(self, observed: Tensor, chosen: Sequence[int]) -> list[Numbers]:
        """log p(x_j | x_R): for each datum of each chosen j."""
        return [
            [log_normal(left**2, variance) for left in residual]
            for variance, residual in self.predictions(observed, chosen)
        ]


def forward(factor: mpmath.matrix, right: Sequence[mpmath.mpf]) -> Numbers:
    """L⁻¹ b."""
    solution: Numbers = []
    for k, value in enumerate(right):
        earlier = mpmath.fdot((factor[k, i], solution[i]) for i in range(k))
        solution.append((mpmath.mpf(value) - earlier) / factor[k, k])
    return solution


def backward(factor: mpmath.matrix, right: Sequence[mpmath.mpf]) -> Numbers:
    """L⁻ᵀ b."""
    size = len(right)
    solution: Numbers = [mpmath.mpf(0)] * size
    for k in reversed(range(size)):
        later = mpmath.fdot((factor[i, k], solution[i]) for i in range(k + 1, size))
        solution[k] = (right[k] - later) / factor[k, k]
    return solution


def log_normal(square: mpmath.mpf, variance: mpmath.mpf) -> mpmath.mpf:
    return -(mpmath.log(2 * mpmath.pi * variance) + square / variance) / 2


def average(values: Numbers) -> mpmath.mpf:
    return mpmath.fsum(values) / len(values)


def growth(w: Tensor, noise: float) -> float:
    """How many times as much rounding may take as at the floors, because the noise is smaller."""
    return max(1.0, 10.0**LEAST * w.square().sum().item() / noise)


def nats_at(w: Tensor, noise: float, placement: str) -> float:
    """What rounding may take at this noise and distance, nats a coordinate."""
    return NATS * growth(w, noise) * max(1.0, max(PLACEMENTS[placement]) / 10.0) ** 2


def matrix_of(values: Tensor) -> mpmath.matrix:
    return mpmath.matrix([[mpmath.mpf(v) for v in row] for row in values.tolist()])


def dense(covariance: mpmath.matrix, x: Tensor, observed: Sequence[int]) -> Numbers:
    """log N(x_R; 0, Σ_RR) by the definition, of every datum: no Woodbury, no determinant lemma."""
    if not observed:
        return [mpmath.mpf(0)] * len(x)
    factor = mpmath.cholesky(
        mpmath.matrix([[covariance[i, j] for j in observed] for i in observed])
    )
    log_det = 2 * mpmath.fsum(mpmath.log(factor[i, i]) for i in range(len(observed)))
    log_constant = -(len(observed) * mpmath.log(2 * mpmath.pi) + log_det) / 2
    data = [[mpmath.mpf(v) for v in row] for row in x[:, list(observed)].tolist()]
    return [log_constant - mpmath.fsum(v**2 for v in forward(factor, row)) / 2 for row in data]


def covariance_of(loadings: Tensor, noise: Tensor) -> mpmath.matrix:
    sigma = mpmath.mpf(noise.item()) * mpmath.eye(len(loadings))
    if loadings.shape[1]:
        w = matrix_of(loadings)
        sigma += w * w.T
    return sigma


# What users run.


def kinds(size: int, dim: int) -> dict[str, Tensor]:
    """Loadings that lose digits in different ways, ‖W‖ = 1."""
    w = torch.randn(size, dim, generator=generator(1), dtype=WIDE)
    half = (dim + 1) // 2
    loadings = {
        "generic": w,
        "two rows alike": torch.cat([w[:2], w[: size - 2]]),
        "two columns alike": torch.cat([w[:, :half], w[:, : dim - half]], dim=1),
        "of rank one": w[:, :1] @ w[:1],
        "columns scaled": w * torch.logspace(0, 6, dim, dtype=WIDE),
        "rows scaled": w * torch.logspace(-3, 3, size, dtype=WIDE)[:, None],
        "half of the rows none": w * (torch.arange(size) % 2 == 0)[:, None],
    }
    return {name: values / values.norm() for name, values in loadings.items()}


def data(loadings: Tensor, noise: Tensor, placement: str) -> Tensor:
    """Three data, drawn or so many standard deviations out."""
    g, (size, dim) = generator(2), loadings.shape
    z, e = (torch.randn(3, n, generator=g, dtype=WIDE) for n in (dim, size))
    along, beside = PLACEMENTS[placement]
    x = along * z @ loadings.to(WIDE).T + beside * noise.to(WIDE).sqrt() * e
    return x.to(loadings.dtype)


def observed_sets(size: int, dim: int) -> Tensor:
    """Few coordinates, about K (it is worst there), half of them, all but one."""
    counts = sorted({0, 1, dim - 1, dim, dim + 2, size // 2, size - 1} & set(range(size)))
    ranks = masks.sample_ranks(len(counts), size, generator=generator(3))
    return ranks < torch.tensor(counts)[:, None]


def spread_out(hidden: Tensor, count: int = 4) -> list[int]:
    """At most so many hidden coordinates, first and last among them."""
    rows = hidden.nonzero().flatten()
    return rows[torch.linspace(0, len(rows) - 1, min(count, len(rows))).long()].tolist()


def point(
    w: Tensor,
    noise: float,
    placement: str,
    name: str,
    dtype: torch.dtype,
    beyond: bool,
    shift: float,
) -> Point:
    """Every method of a PPCA at a few sets of observed coordinates."""
    loadings = w.to(dtype)
    size, dim = loadings.shape
    variance = torch.tensor(noise, dtype=dtype)
    x = data(loadings, variance, placement)
    mean = (shift * torch.randn(size, generator=generator(5), dtype=WIDE)).to(dtype)
    x = x + mean
    observed = observed_sets(size, dim)
    mask, counts = ~observed, observed.sum(dim=1).tolist()
    chosen = [spread_out(row) for row in mask]
    pair = [p % len(x) for p in range(len(mask))]
    parts = observed[1:]

    def measured() -> dict[str, Tensor]:
        model = PPCA(loadings, variance, mean)
        every = model.log_conditional(x, mask)
        each = model.log_each(x[pair], mask)
        means = model.mean_log_conditional(x, mask)
        given = gaussian.LowRankPosterior.of(loadings, variance, observed)
        spread = given.variance().to(WIDE) / variance.to(WIDE)
        return {
            "log_marginal": model.log_marginal(x),
            "log_subset_marginal": model.log_subset_marginal(x, parts),
            "mean_log_subset_marginal": model.mean_log_subset_marginal(x, parts),
            "log_conditional": torch.cat(
                [every[p, :, j].T.flatten() for p, j in enumerate(chosen)]
            ),
            "log_each": torch.cat([each[p, j] for p, j in enumerate(chosen)]),
            "mean_log_conditional": torch.cat([means[p, j] for p, j in enumerate(chosen)]),
            "variance": 0.5 * torch.cat([spread[p, j] for p, j in enumerate(chosen)]).log(),
        }

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            oracle = ExactPPCA(loadings, variance, x, mean)
            log_marginal = oracle.marginal(torch.ones(size, dtype=torch.bool))
            subsets = [oracle.marginal(row) for row in parts]
            every = [oracle.conditional(*pairs) for pairs in zip(observed, chosen, strict=True)]
            spread = [
                [mpmath.log(v / oracle.noise) / 2 for v, _ in oracle.predictions(*pairs)]
                for pairs in zip(observed, chosen, strict=True)
            ]
            return {
                "log_marginal": log_marginal,
                "log_subset_marginal": [v for row in subsets for v in row],
                "mean_log_subset_marginal": [average(row) for row in subsets],
                "log_conditional": [v for rows in every for row in rows for v in row],
                "log_each": [row[pair[p]] for p, rows in enumerate(every) for row in rows],
                "mean_log_conditional": [average(row) for rows in every for row in rows],
                "variance": [v for row in spread for v in row],
            }

    sizes = {
        "log_marginal": size,
        "log_subset_marginal": [count for count in counts[1:] for _ in x],
        "mean_log_subset_marginal": counts[1:],
    }
    return Point(
        "PPCA",
        f"K = {dim}, {name}, {placement}",
        dtype,
        size,
        measured,
        exact,
        sizes,
        may_refuse=beyond,
        nats=nats_at(w, noise, placement),
    )


def small(
    w: Tensor, noise: float, placement: str, name: str, dtype: torch.dtype, beyond: bool
) -> Point:
    """All 2^D sets of few coordinates, the curve, the objectives: from Gaussians in full, D × D."""
    loadings, variance = w.to(dtype), torch.tensor(noise, dtype=dtype)
    size = len(loadings)
    x = data(loadings, variance, placement)
    observed = masks.subsets(size)
    mask = ~observed[:-1]
    # Differences of marginals that were rounded to single precision know no more digits than these.
    differs = dtype == WIDE or not placement.startswith("1e3")

    def measured() -> dict[str, Tensor]:
        model = PPCA(loadings, variance)
        values = model.log_conditional(x, mask)
        means = model.mean_log_conditional(x, mask)
        curve = curves.exact_curve(model, x)
        differences = {"subset_curve": curves.subset_curve(model, x).score} if differs else {}
        return differences | {
            "log_subset_marginal": model.log_subset_marginal(x, observed[1:]),
            "log_conditional": values.transpose(1, 2)[mask],
            "mean_log_conditional": means[mask],
            "exact_curve": curve.score,
            "area": torch.tensor([curve.area()], dtype=WIDE),
        }

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            subset, each, curve = definition(covariance_of(loadings, variance), x)
            differences = {"subset_curve": curve} if differs else {}
            return differences | {
                "log_subset_marginal": [v for row in subset[1:] for v in row],
                "log_conditional": [v for row in each for v in row],
                "mean_log_conditional": [average(row) for row in each],
                "exact_curve": curve,
                "area": [average(subset[-1])],
            }

    def definition(sigma: mpmath.matrix, x: Tensor) -> tuple[list[Numbers], list[Numbers], Numbers]:
        """log p(x_R), log p(x_j | x_R) in the order of ``mask``, S(x; M) averaged over data."""
        subset = [dense(sigma, x, row.nonzero().flatten().tolist()) for row in observed]
        each, scores = [], [[mpmath.mpf(0)] for _ in range(size)]
        for p, row in enumerate(mask):
            of_mask = []
            for j in row.nonzero().flatten().tolist():
                of_mask.append([a - b for a, b in zip(subset[p + 2**j], subset[p], strict=True)])
            each += of_mask
            scores[len(of_mask) - 1].append(average([average(values) for values in of_mask]))
        return subset, each, [average(values[1:]) for values in scores]

    counts = observed[1:].sum(dim=1).tolist()
    # The second curve is made of differences of numbers that speak of up to D coordinates.
    sizes = {"log_subset_marginal": [c for c in counts for _ in x]}
    sizes |= {"area": size, "subset_curve": size}
    return Point(
        "PPCA",
        f"K = {w.shape[1]}, {name}, {placement}, all sets",
        dtype,
        size,
        measured,
        exact,
        sizes,
        may_refuse=beyond,
        nats=nats_at(w, noise, placement),
    )


def trained(
    w: Tensor, noise: float, placement: str, name: str, dtype: torch.dtype, beyond: bool
) -> Point:
    """The objectives of a second moment, which is taken as it is given, and their slopes."""
    loadings, variance = w.to(dtype), torch.tensor(noise, dtype=dtype)
    size, dim = loadings.shape
    moment = objectives.second_moment(data(loadings, variance, placement))
    tiny = size <= 6
    mask = masks.subsets(size)[1:] if tiny else ~observed_sets(size, dim)
    law = masks.UniformSize()

    def measured() -> dict[str, Tensor]:
        at = [loadings.clone().requires_grad_(), variance.clone().requires_grad_()]
        values = {
            "objectives.log_marginal": objectives.log_marginal(*at, moment),
            "objectives.sampled": objectives.sampled(*at, moment, mask),
        }
        if tiny:
            values["objectives.exact"] = objectives.exact(*at, moment, law)
            values["objectives.curve"] = objectives.curve(*at, moment)
        slopes = torch.autograd.grad(sum(value.sum() for value in values.values()), at)
        values["slopes that are numbers"] = torch.tensor(
            [float(slope.isfinite().all()) for slope in slopes]
        )
        return values

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            oracle = ExactMoments(loadings, variance, moment)
            score = [oracle.score(~row) for row in mask]
            values = {
                "objectives.log_marginal": [oracle.marginal(torch.ones(size, dtype=torch.bool))],
                "objectives.sampled": [size * average(score)],
            }
            if tiny:
                rows = [[] for _ in range(size)]
                for row, value in zip(mask, score, strict=True):
                    rows[int(row.sum()) - 1].append(value)
                curve = [average(row) for row in rows]
                values["objectives.exact"] = [mpmath.fsum(curve)]
                values["objectives.curve"] = curve
            values["slopes that are numbers"] = [mpmath.mpf(1)] * 2
            return values

    sizes = {f"objectives.{name}": size for name in ("log_marginal", "sampled", "exact")}
    name = f"K = {dim}, {name}, moment of data {placement}"
    return Point(
        "PPCA",
        name,
        dtype,
        size,
        measured,
        exact,
        sizes,
        may_refuse=beyond,
        nats=nats_at(w, noise, placement),
    )


class ExactMoments(ExactPPCA):
    """Means over all data of second moment C."""

    def __init__(self, loadings: Tensor, noise: Tensor, moment: Tensor) -> None:
        super().__init__(loadings, noise, moment)

    def parts(self, observed: Tensor) -> tuple:
        rows, factor = self.given(observed)
        c, w = self.x.numbers, self.w.numbers[rows]
        cross = w.T @ c[rows]  # (K, D)
        power = self.x.exponent + self.w.exponent
        inner = np.frompyfunc(
            lambda v: mpmath.ldexp(mpmath.mpf(int(v)), power + self.w.exponent), 1, 1
        )(cross[:, rows] @ w)
        cross = np.frompyfunc(lambda v: mpmath.ldexp(mpmath.mpf(int(v)), power), 1, 1)(cross)
        square = [mpmath.ldexp(mpmath.mpf(int(v)), self.x.exponent) for v in c.diagonal()]
        return rows, factor, square, cross, inner

    def marginal(self, observed: Tensor) -> mpmath.mpf:  # type: ignore[override]
        rows, factor, square, _, inner = self.parts(observed)
        solved = [backward(factor, forward(factor, column)) for column in inner.T]
        explained = mpmath.fsum(solved[k][k] for k in range(self.dim))
        left = mpmath.fsum(square[j] for j in rows) - explained
        return self.log_constant(len(rows), factor) - left / self.noise / 2

    def score(self, observed: Tensor) -> mpmath.mpf:
        """(1/M) Σ_j E log p(x_j | x_R)."""
        _, factor, square, cross, inner = self.parts(observed)
        values = []
        for j in (~observed).nonzero().flatten().tolist():
            white = forward(factor, self.real[j])
            gain = backward(factor, white)
            variance = self.noise * (1 + mpmath.fsum(v**2 for v in white))
            cross_term = mpmath.fdot(zip(gain, cross[:, j], strict=True))
            square_term = mpmath.fsum(
                gain[a] * inner[a, b] * gain[b] for a in range(self.dim) for b in range(self.dim)
            )
            values.append(log_normal(square[j] - 2 * cross_term + square_term, variance))
        return average(values)


def draws(w: Tensor, noise: float, name: str, dtype: torch.dtype) -> Point:
    """Σ and draws, each in its own unit."""
    loadings, variance = w.to(dtype), torch.tensor(noise, dtype=dtype)
    size, dim = loadings.shape
    sigma_largest = float((loadings.to(WIDE) @ loadings.to(WIDE).T).diagonal().max() + noise)
    unit = sigma_largest**0.5

    def measured() -> dict[str, Tensor]:
        model = PPCA(loadings, variance)
        return {
            "covariance": model.covariance.to(WIDE) / sigma_largest,
            "sample": model.sample(9, generator=generator(3)).to(WIDE) / unit,
        }

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            sigma, w = covariance_of(loadings, variance), matrix_of(loadings)
            again = generator(3)
            z, e = (torch.randn(9, n, generator=again, dtype=dtype) for n in (dim, size))
            draw = matrix_of(z) * w.T + mpmath.sqrt(mpmath.mpf(variance.item())) * matrix_of(e)
            return {
                "covariance": [v / sigma_largest for v in sigma],
                "sample": [v / unit for v in draw],
            }

    return Point(
        "PPCA",
        f"K = {dim}, {name}, draws",
        dtype,
        size,
        measured,
        exact,
        nats=TOLERANCE[dtype] * growth(w, noise),
    )


def fitted(w: Tensor, noise: float, name: str, dtype: torch.dtype) -> Point:
    """Maximum likelihood in closed form: log σ², and Σ beside its largest entry."""
    loadings, variance = w.to(dtype), torch.tensor(noise, dtype=dtype)
    size, dim = loadings.shape
    x = PPCA(loadings, variance).sample(12, generator=generator(2))
    unit = x.to(WIDE).square().mean().item()

    def measured() -> dict[str, Tensor]:
        model = PPCA.fit_closed_form(x, dim)
        return {
            "fit_closed_form: noise": model.noise_variance.to(WIDE).log()[None],
            "fit_closed_form: covariance": model.covariance.to(WIDE) / unit,
        }

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            rows = matrix_of(x)
            center = mpmath.matrix([[mpmath.fsum(rows[:, j]) / len(x)] for j in range(size)])
            rows -= mpmath.ones(len(x), 1) * center.T
            values, vectors = mpmath.eigsy(rows.T * rows / len(x))
            noise_variance = mpmath.fsum(values[i] for i in range(size - dim)) / (size - dim)
            wanted = noise_variance * mpmath.eye(size)
            for i in range(size - dim, size):
                wanted += (values[i] - noise_variance) * vectors[:, i] * vectors[:, i].T
            return {
                "fit_closed_form: noise": [mpmath.log(noise_variance)],
                "fit_closed_form: covariance": [v / unit for v in wanted],
            }

    return Point("PPCA", f"K = {dim}, {name}, fit", dtype, size, measured, exact)


def in_full(size: int, smallest: float, dtype: torch.dtype, beyond: bool) -> Point:
    """A dense covariance with eigenvalues from ``smallest`` to 1: densities, conditionals, KL."""
    root = torch.randn(size, size, generator=generator(1), dtype=WIDE)
    basis = torch.linalg.qr(root).Q
    spectrum = torch.logspace(0, float(np.log10(smallest)), size, dtype=WIDE)
    covariance = (basis * spectrum) @ basis.T
    covariance = (0.5 * (covariance + covariance.T)).to(dtype)
    other = torch.diag(covariance.diagonal())
    x = (torch.randn(3, size, generator=generator(2), dtype=WIDE) * spectrum.sqrt() @ basis.T).to(
        dtype
    )
    mean = torch.zeros(size, dtype=dtype)
    mask = torch.arange(size) % 3 == 0

    def measured() -> dict[str, Tensor]:
        center, schur = gaussian.condition_dense(x, mean, covariance, mask)
        return {
            "log_density": gaussian.log_density(x, mean, covariance),
            "condition_dense: mean": center.to(WIDE) / spread,
            "condition_dense: covariance": schur.to(WIDE) / (spread[:, None] * spread),
            "divergence": gaussian.divergence(covariance, other)[None],
            "divergence back": gaussian.divergence(other, covariance)[None],
        }

    def parts() -> tuple[mpmath.matrix, mpmath.matrix]:
        """Mean, data in columns, and covariance of the hidden coordinates given the others."""
        sigma, points = matrix_of(covariance), matrix_of(x)
        a, r = mask.nonzero().flatten().tolist(), (~mask).nonzero().flatten().tolist()
        block = lambda p, q: mpmath.matrix([[sigma[i, j] for j in q] for i in p])  # noqa: E731
        gain = block(a, r) * block(r, r) ** -1
        data = mpmath.matrix([[points[n, j] for j in r] for n in range(len(x))])
        return (gain * data.T).T, block(a, a) - gain * block(r, a)

    with mpmath.workdps(DIGITS):
        spread = torch.tensor([float(v) for v in parts()[1]], dtype=WIDE)
    spread = spread.view(int(mask.sum()), -1).diagonal().sqrt()

    def exact() -> dict[str, Numbers]:
        with mpmath.workdps(DIGITS):
            center, schur = parts()
            unit = [mpmath.mpf(v) for v in spread.tolist()]
            sigma, diagonal = matrix_of(covariance), matrix_of(other)
            every = list(range(size))

            def divergence(p: mpmath.matrix, q: mpmath.matrix) -> mpmath.mpf:
                inner = q**-1 * p
                trace = mpmath.fsum(inner[i, i] for i in every)
                return (trace - size - mpmath.log(mpmath.det(p) / mpmath.det(q))) / 2

            columns = range(len(unit))
            return {
                "log_density": dense(sigma, x, every),
                "condition_dense: mean": [
                    center[n, a] / unit[a] for n in range(3) for a in columns
                ],
                "condition_dense: covariance": [
                    schur[a, b] / unit[a] / unit[b] for a in columns for b in columns
                ],
                "divergence": [divergence(sigma, diagonal)],
                "divergence back": [divergence(diagonal, sigma)],
            }

    sizes = dict.fromkeys(("log_density", "divergence", "divergence back"), size)
    name = f"dense, eigenvalues from {smallest:.0e}"
    return Point("Gaussian", name, dtype, size, measured, exact, sizes, may_refuse=beyond)


# The grids.


def points(full_grid: bool) -> Iterator[Point]:
    """A sample of every kind of point, or the whole grid."""
    for dtype in (WIDE, SINGLE):
        yield from _dense(dtype, full_grid)
        yield from _small(dtype, full_grid)
        yield from _large(dtype, full_grid)


def _dense(dtype: torch.dtype, full_grid: bool) -> Iterator[Point]:
    for size in (3, 12, 40) if full_grid else (12,):
        for exponent in (0, -2, -4, -5, -8, -12, -14) if full_grid else (-4, -12):
            yield in_full(size, 10.0**exponent, dtype, exponent < -4)


def _small(dtype: torch.dtype, full_grid: bool) -> Iterator[Point]:
    """D = 5, K = 3, all sets of coordinates."""
    placements = tuple(PLACEMENTS)
    ratios = (-12, -10, LEAST, -4, 0, 8) if full_grid else (-10, LEAST, 0)
    for name, w in kinds(5, 3).items():
        if not full_grid and name not in ("generic", "two columns alike", "rows scaled"):
            continue
        for exponent in ratios:
            beyond = exponent < LEAST
            # The edges of the floors with data everywhere, what lies between with some.
            edge = full_grid and exponent in (-10, LEAST, 0)
            for placement in placements if edge else ("drawn", "10 sd"):
                out = beyond or placement.startswith("1e3")
                label = f"{name}, 1e{exponent}"
                yield small(w, 10.0**exponent, placement, label, dtype, out)
                yield trained(w, 10.0**exponent, placement, label, dtype, out)
            yield draws(w, 10.0**exponent, f"{name}, 1e{exponent}", dtype)
            if exponent >= LEAST:
                yield fitted(w, 10.0**exponent, f"{name}, 1e{exponent}", dtype)


def _large(dtype: torch.dtype, full_grid: bool) -> Iterator[Point]:
    """D to 2,000 and K to 50, in the units that users have."""
    placements = tuple(PLACEMENTS)
    if not full_grid:
        yield from _scaled("two columns alike", (60, 4), LEAST, ("10 sd",), (-6, 0, 6), dtype)
        yield from _scaled("generic", (60, 4), LEAST - 2, placements, (0,), dtype)
        for exponent in (LEAST, 0, 8):
            yield from _scaled("generic", (60, 4), exponent, placements[:3], (0,), dtype)
        return
    for name in ("generic", "columns scaled"):
        yield from _scaled(name, (2000, 50), LEAST, placements[:3], (0,), dtype)
        for exponent in (LEAST, -3):
            yield from _scaled(name, (784, 10), exponent, placements[:3], (0,), dtype)
    for name in ("generic", "two columns alike", "of rank one", "columns scaled"):
        for exponent in (LEAST - 2, LEAST, 0):
            yield from _scaled(name, (200, 5), exponent, placements, (-6, 0, 6), dtype)
    for name in kinds(50, 2):
        for exponent in (LEAST - 2, LEAST, -3, 0, 8):
            yield from _scaled(name, (50, 2), exponent, placements, (-10, -6, 0, 6, 10), dtype)


def _scaled(
    name: str,
    shape: tuple[int, int],
    exponent: int,
    placements: Sequence[str],
    units: Sequence[int],
    dtype: torch.dtype,
) -> Iterator[Point]:
    """One kind of loadings and noise with data everywhere, and in other units 10 sd out.

    With a mean where there are no other units: there data and mean round differently.
    """
    w = kinds(*shape)[name]
    beyond = exponent < LEAST
    for placement in placements:
        out = beyond or placement.startswith("1e3")
        for unit in units if placement == "10 sd" else (0,):
            label = f"{name}, 1e{exponent}, units 1e{unit}"
            noise = 10.0 ** (exponent + 2 * unit)
            shift = 0.0 if unit else 10.0
            scaled = 10.0**unit * w
            yield point(scaled, noise, placement, label, dtype, out or abs(unit) > 6, shift)
    if shape[0] < 1000:
        yield trained(w, 10.0**exponent, "drawn", f"{name}, 1e{exponent}", dtype, beyond)
