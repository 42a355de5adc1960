"""Equations 1 to 7, Proposition 1 and Appendix A as numbers, nats (the proofs are in the chapters).

What the paper prints correctly is tried on random models; what is misprinted, on small tables.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Experiment, RunContext, seeded, setting
from experiments.records import finding_over
from mpt_lml import curves, estimators, gaussian, masks
from mpt_lml.models.base import TractableModel
from mpt_lml.models.ppca import PPCA
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.models.tables import JointTable
from mpt_lml.numerics import log_normal
from mpt_lml.recorded import Finding, Outcome

f64 = torch.float64


class Identity(Experiment, name="identity", gpu=False):
    """Equations 1-7, Proposition 1 and Appendix A, each as printed."""

    max_features: int = setting(12, quick=6)
    text: tuple[int, int] = setting((512, 76), quick=(64, 10))  # the paper's example of Eq. 1
    seeds: tuple[int, ...] = setting((1, 2, 3, 4, 5), quick=(1, 2))

    def measure(self, context: RunContext) -> Outcome:
        worst: dict[str, float] = {}
        for seed in context.progress(self.seeds, "seed"):
            generator = seeded(seed)
            models = _random_models(self.max_features, seed)
            of_models = [_errors(model, generator) for model in models]
            for errors in [*of_models, _assumption_errors(generator)]:
                for name, error in errors.items():
                    worst[name] = max(worst.get(name, 0.0), error)
        measured = worst | _misprints() | self._bias_at_a_fixed_rate()
        generator = seeded(self.seeds[0])
        loss = sign_loss(_random_ppca(5, 2, generator), 1000, generator)
        # Appendix B's S_MRᵀ S_RR⁻¹ S_MR: |M| columns of the first meet 10 − |M| rows of the second.
        bad = sum(size != 10 - size for size in range(1, 10))
        num_features, num_masked = self.text
        findings = {name: Finding(value) for name, value in measured.items()}
        findings["eq-7"] = finding_over(loss)
        findings["eq-b"] = Finding(float(bad))
        findings["eq-1"] = finding_over(self._gap_of_equation_one(num_masked))
        findings["gap-all-masked"] = finding_over(self._gap_of_equation_one(num_features))
        return Outcome(findings)

    def _gap_of_equation_one(self, num_masked: int) -> Float[Tensor, " seeds"]:
        """E log p(x_A | x_R) minus the sum of the separate conditionals, in nats per datum.

        PPCA with K = 2 and normal loadings, one random mask of ``num_masked`` tokens under each seed.
        The expectation is over data from the model; the gap is a total correlation given x_R.
        """
        gaps = []
        for generator in map(seeded, self.seeds):
            num_features, _ = self.text
            model = PPCA(torch.randn(num_features, 2, generator=generator, dtype=f64), 0.2)
            mask = masks.sample_masks(1, num_features, num_masked, generator=generator)[0]
            nothing = torch.zeros(1, num_features, dtype=f64)
            _, covariance = gaussian.condition_dense(nothing, model.mean, model.covariance, mask)
            separate = covariance.diagonal().log().sum()
            gaps.append(0.5 * (separate - torch.logdet(covariance)))
        return torch.stack(gaps)

    def _bias_at_a_fixed_rate(self) -> dict[str, float]:
        """Appendix C.1 at the settings of Figure 2, which it cites: D = 10, K = 2, two tokens masked.

        The sentence leaves its sign open: the nearer of plus and minus counts, at the nearest seed.
        """
        scaled_sum = []
        truncated = []
        for generator in map(seeded, self.seeds):
            model = PPCA(torch.randn(10, 2, generator=generator, dtype=f64), 0.2)
            x = model.sample(100, generator=generator)
            curve = curves.exact_curve(model, x)
            log_p = model.log_marginal(x).mean().item()
            visible = model.log_subset_marginal(x, ~masks.all_masks(10, 2)).mean().item()
            scaled = 10 * curve.score[1].item() - log_p
            scaled_sum.append(min(abs(scaled - visible), abs(scaled + visible)))
            truncated.append(abs(curve.score[:2].sum().item() - log_p + visible))
        return {"claim-bias-unmasked": min(scaled_sum), "bias-truncated-sum": max(truncated)}


def _random_ppca(num_features: int, latent_dim: int, generator: torch.Generator) -> PPCA:
    """Normal loadings, a mean that is not zero and a noise variance between 0.1 and 1.1."""
    draws = torch.randn(num_features, latent_dim + 1, generator=generator, dtype=f64)
    noise = 0.1 + torch.rand((), generator=generator, dtype=f64)
    return PPCA(draws[:, 1:], noise, draws[:, 0])


def _random_models(max_features: int, seed: int) -> list[TractableModel]:
    """PPCA with D = 1..``max_features`` and K = 0..D, and joint tables of two and three values."""
    generator = seeded(seed)
    models: list[TractableModel] = []
    for num_features in range(1, max_features + 1):
        for latent_dim in {0, 1, num_features // 2, num_features}:
            models.append(_random_ppca(num_features, latent_dim, generator))
    for sizes in ((2,), (2, 3), (2, 2, 2), (3, 2, 2, 3), (2,) * 6, (2,) * 9):
        models.append(JointTable.random(sizes, generator=generator))
    return [model for model in models if model.num_features <= max_features]


def _errors(model: TractableModel, generator: torch.Generator) -> dict[str, float]:
    x = model.sample(5, generator=generator)
    size = model.num_features
    truth = float(estimators.exact(model, x))
    curve = curves.exact_curve(model, x)
    as_written = _order_terms(model, x, torch.arange(size)[None])
    errors = {"eq-2": abs(as_written.sum().item() - truth), "prop-1": abs(curve.area() - truth)}
    if size <= 5:
        every = _order_terms(model, x, torch.tensor(list(itertools.permutations(range(size)))))
        errors["eq-3"] = abs(every.sum().item() - truth)
        errors["eq-4-set"] = (every - curve.score).abs().max().item()
    if isinstance(model, PPCA):
        errors["eq-6"] = _dense_error(model, x, generator)
    return errors


def _order_terms(model: TractableModel, x: Tensor, orders: Tensor) -> Float[Tensor, " D"]:
    """Mean over the orders and the data of log p(x_π(t) | x_π(t+1..D)), t = 1..D.

    The orders are as the paper writes them: the first of each is revealed last.
    """
    mask = masks.nested_masks(orders.flip(1)).flatten(0, 1)
    values = model.mean_log_conditional(x, mask).view(len(orders), *[orders.shape[1]] * 2)
    return values.gather(2, orders[:, :, None]).mean(dim=0)[:, 0]


def _dense_error(model: PPCA, x: Tensor, generator: torch.Generator) -> float:
    """Largest difference of low-rank and dense conditionals, and of the two log-densities."""
    mask = masks.sample_masks(5, model.num_features, masks.UniformSize(), generator=generator)
    dense = gaussian.log_density(x, model.mean, model.covariance)
    errors = [(model.log_marginal(x) - dense).abs().max().item()]
    for row, values in zip(mask, model.log_conditional(x, mask), strict=True):
        mean, covariance = gaussian.condition_dense(x, model.mean, model.covariance, row)
        dense = log_normal(x[:, row] - mean, covariance.diagonal())
        errors.append((dense - values[:, row]).abs().max().item())
    return max(errors)


def _assumption_errors(generator: torch.Generator) -> dict[str, float]:
    """Proposition 1 without its assumptions, and row by row what Fong and Holmes sum."""
    table = JointTable.random((2, 3, 2, 2), generator=generator)  # no latent variable anywhere
    probabilities, x = table.log_table.exp(), (1, 2, 0, 1)
    area = sum(Cell(probabilities, x).score(size) for size in range(1, 5))
    inputs = torch.randn(7, 2, generator=generator, dtype=f64)
    dependent = ConjugateRegression(inputs)  # rows that share unknown weights and noise
    y = dependent.sample(1, generator=generator)
    of_rows = curves.exact_curve(dependent, y).area() - dependent.log_marginal(y).item()
    columns = curves.exact_curve(PPCA(1.5 * inputs, 0.4), y).score  # observations as coordinates
    rows = _leave_out(1.5 * inputs, y[0], 0.4)
    return {
        "claim-latent-variable": max(abs(area - math.log(probabilities[x])), abs(of_rows)),
        "claim-transpose": (columns - rows).abs().max().item(),
    }


def _leave_out(inputs: Tensor, y: Tensor, noise: float) -> Float[Tensor, " n"]:
    """Leave-p-out, p = 1..n: mean log posterior predictive of y_j over held-out sets and members.

    Regression of y on the inputs with weights N(0, I) and a known noise variance.
    """
    scores = []
    for p in range(1, len(y) + 1):
        values = []
        for out in masks.all_masks(len(y), p):
            seen = inputs[~out]
            rows = inputs[out]
            precision = torch.eye(inputs.shape[1], dtype=y.dtype) + seen.T @ seen / noise
            weights = torch.linalg.solve(precision, seen.T @ y[~out] / noise)
            variance = noise + (rows * torch.linalg.solve(precision, rows.T).T).sum(dim=1)
            values.append(log_normal(y[out] - rows @ weights, variance).mean())
        scores.append(torch.stack(values).mean())
    return torch.stack(scores)


def _misprints() -> dict[str, float]:
    # The table of chapters 1 to 3, read at a cloudy day with rain, a wet street and no umbrella.
    clouds = torch.tensor([0.55, 0.45], dtype=f64)
    rain = torch.tensor([[0.97, 0.03], [0.45, 0.55]], dtype=f64)
    street = torch.tensor([[0.90, 0.10], [0.04, 0.96]], dtype=f64)
    umbrella = torch.tensor([[[0.95, 0.05], [0.25, 0.75]], [[0.70, 0.30], [0.10, 0.90]]], dtype=f64)
    weather = torch.einsum("c,cr,rs,cru->crsu", clouds, rain, street, umbrella)
    pair = weather.sum(dim=(2, 3))  # clouds by rain
    separate = pair.sum(dim=1, keepdim=True) * pair.sum(dim=0)
    sizes = [(size, t) for size in range(1, 13) for t in range(1, size + 1)]
    rain_from_clouds = Cell(pair, (1, 1))
    return {
        "count-512-76": float(math.comb(512, 76)),
        "eq-1-v1": (pair * (pair / separate).log()).sum().item(),  # with everything masked
        "eq-4": rain_from_clouds.equation_four(1),
        "eq-4-reason": float(min(math.factorial(d) - math.comb(d, t - 1) for d, t in sizes)),
        "eq-a3-line": rain_from_clouds.line_before_a3(1),
        "eq-a3": Cell(weather, (1, 1, 1, 0)).mislabeled_size(1),
        "prop-1-middle": rain_from_clouds.middle_expression(),
    }


@dataclass(frozen=True)
class Cell:
    """One cell ``x`` of a table of probabilities, and formulas exactly as printed, slips included.

    Entries are added up and orders visited one by one: no identity of this package is used, so that
    a formula which fails here fails by itself. ``t`` is a position from 1 to D.
    """

    table: Tensor
    x: tuple[int, ...]

    def given(self, j: int, observed: tuple[int, ...]) -> float:
        """log p(x_j | x_observed) by adding up entries; 0 where j is itself observed."""

        def weight(fixed: tuple[int, ...]) -> float:
            cell = [self.x[i] if i in fixed else slice(None) for i in range(self.table.ndim)]
            return self.table[tuple(cell)].sum().item()

        return math.log(weight((*observed, j)) / weight(observed))

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """All D! orders of the coordinates."""
        return list(itertools.permutations(range(self.table.ndim)))

    def visible_sets(self, size: int) -> list[list[float]]:
        """log p(x_j | x_R) of every j outside R, for every set R of ``size`` coordinates."""
        every = range(self.table.ndim)
        sets = itertools.combinations(every, size)
        return [[self.given(j, rest) for j in every if j not in rest] for rest in sets]

    def score(self, num_masked: int) -> float:
        """S(x; M) by its definition."""
        sets = self.visible_sets(self.table.ndim - num_masked)
        return sum(sum(values) for values in sets) / (len(sets) * num_masked)

    def over_orders(self, t: int) -> float:
        """The left sides of Eq. 4 and of the line before A.3 at t."""
        return sum(self.given(o[t - 1], o[t:]) for o in self.orders)

    def equation_four(self, t: int) -> float:
        """Eq. 4 at t, left side minus right side: the counts C(D, t−1) and D − t + 1 as printed."""
        return self.over_orders(t) - sum(sum(values) for values in self.visible_sets(t - 1))

    def line_before_a3(self, t: int) -> float:
        """The line before A.3 at t: the least |left − right| over all choices of C_t orders.

        Its right side has x_M(t+1:D) behind the bar and j up to D − t + 1, so that for t < (D + 1)/2
        a token is also predicted from itself (log 1 = 0).
        """
        size = self.table.ndim
        left = self.over_orders(t)
        inner = [sum(self.given(o[j], o[t:]) for j in range(size - t + 1)) for o in self.orders]
        chosen = itertools.combinations(inner, math.comb(size, t - 1))
        return min(abs(left - sum(values)) for values in chosen)

    def mislabeled_size(self, t: int) -> float:
        """A.3's term t: with the t − 1 visible tokens of M = D − t + 1, minus with R(1:D−t)."""
        return self.score(self.table.ndim - t + 1) - self.score(t)

    def middle_expression(self) -> float:
        """Σ_M of Prop. 1's middle expression minus log p(x); R(1:D−j) is what follows token j."""
        orders = self.orders
        total = 0.0
        for size in range(1, self.table.ndim + 1):
            for o in orders:
                terms = sum(self.given(o[j], o[j + 1 :]) for j in range(size))
                total += terms / (size * len(orders))
        return total - math.log(self.table[self.x])


def sign_loss(model: PPCA, num_draws: int, generator: torch.Generator) -> Float[Tensor, " N"]:
    """log p(x_j | x_R) with the minus of the textbook in Eq. 7, less that with the printed plus.

    One value per datum drawn from the model, the mean over the two coordinates of one mask.
    """
    x = model.sample(num_draws, generator=generator)
    mask = masks.sample_masks(1, model.num_features, 2, generator=generator)[0]
    mean, covariance = gaussian.condition_dense(x, model.mean, model.covariance, mask)
    variance = covariance.diagonal()
    residual = x[:, mask] - mean
    printed = 2.0 * model.covariance[mask][:, mask].diagonal() - variance
    return (log_normal(residual, variance) - log_normal(residual, printed)).mean(dim=1)
