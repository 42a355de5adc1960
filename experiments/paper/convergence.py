"""Table 1 and Figure 1: how fast the accumulated score finds log p(x), and one size does not."""

import itertools
import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.experiment import Experiment, RunContext, seeded, setting
from experiments.ledger import cut_digits
from experiments.records import finding_over
from mpt_lml import curves, data, estimators, masks
from mpt_lml.checks import Count, require_count
from mpt_lml.models.ppca import PPCA
from mpt_lml.recorded import Finding, Outcome

NOISE_VARIANCE = 0.2  # the paper's 1/sigma^2 = 5
NOISE = torch.tensor(NOISE_VARIANCE, dtype=torch.float64)


def paper_problem(
    sizes: tuple[int, int, int], generator: torch.Generator, device: torch.device | None = None
) -> tuple[PPCA, Float[Tensor, "N D"]]:
    """The paper's model and its draw of data, N × D with K causes, both on ``device``."""
    num_data, num_features, latent_dim = sizes
    drawn = data.paper_gaussian(num_data, num_features, latent_dim, generator=generator)
    return PPCA(drawn.loadings.to(device), NOISE_VARIANCE), drawn.x.to(device)


def paper_masks(
    num_masks: int, num_features: int, *, generator: torch.Generator
) -> Bool[Tensor, "D P D"]:
    """The masks of the paper's stream: sizes 1..D in order, ``num_masks`` permutations for each.

    The first M entries of a permutation are masked. Drawing with ``torch.randperm`` one by one is
    slower than :func:`mpt_lml.masks.sample_ranks` and used because it reproduces printed digits.
    """
    draws = num_features * num_masks
    orders = torch.stack([torch.randperm(num_features, generator=generator) for _ in range(draws)])
    steps = torch.arange(num_features)
    ranks = torch.empty_like(orders).scatter_(1, orders, steps.expand_as(orders))
    return masks.from_ranks(ranks.view(num_features, num_masks, -1), steps[:, None] + 1)


def of_spread(value: float, degrees: int | float) -> Finding:
    """A standard deviation from so many normal deviations, with its error by normal theory."""
    return Finding(value, value / math.sqrt(2 * degrees))


class Table1(Experiment, name="table-1"):
    """Table 1: LML and its estimate from P = 1, 10, 100 masks per size.

    Mean and sample standard deviation over the mask seeds, the exact value, and the spread. The text
    suggests K = 2; the printed values come from K = 5, D = 200. ``spread_masks``, which the table
    does not use, say how far one is off at P = 1. Array: ``estimates`` (columns, seeds) in nats per
    datum.
    """

    num_data: int = setting(1000, quick=50)
    num_features: int = setting(200, quick=20)
    latent_dim: int = 5
    num_masks: tuple[Count, ...] = setting((1, 10, 100), quick=(1, 10))
    spread_masks: Count = setting(240, quick=20)

    def measure(self, context: RunContext) -> Outcome:
        require_count("seeds, which spread,", len(self.seeds), 2)
        sizes = (self.num_data, self.num_features, self.latent_dim)
        # Data and masks of these seeds give the printed digits.
        model, x = paper_problem(sizes, seeded(1991), context.device)
        cells = list(itertools.product(self.num_masks, self.seeds))
        values = []
        for num_masks, seed in context.progress(cells, "masks per size, seed"):
            mask = paper_masks(num_masks, self.num_features, generator=seeded(seed))
            score = curves.size_scores(model, x, mask).mean(dim=1)
            values.append(score.sum().item())
        estimates = torch.tensor(values, dtype=torch.float64).view(-1, len(self.seeds))
        table = {"table-1/true": Finding(float(estimators.exact(model, x)))}
        for num_masks, row in zip(self.num_masks, estimates, strict=True):
            table[f"table-1/p{num_masks}-mean"] = finding_over(row)
            table[f"table-1/p{num_masks}-sd"] = of_spread(row.std().item(), len(row) - 1)
        # Var of the estimate at P = 1 is the sum of the variances of the sizes. From four blocks of
        # masks there are four such standard deviations, which give their mean an error.
        of_mask = curves.sampled_curve(model, x, self.spread_masks, generator=seeded(56)).each
        blocks = of_mask.view(self.num_features, 4, -1).var(dim=2).sum(dim=0).sqrt()
        findings = {
            **table,
            "table-1-cut-digits": Finding(float(cut_digits(table))),
            "claim-fast": finding_over(blocks / self.num_features),  # nats per dimension
        }
        return Outcome(findings, {"estimates": estimates}, context.checksum([x, model.loadings]))


class Figure1(Experiment):
    """Left (D = 5) and center (D = 50): every seed has its own W, Z, noise.

    The authors' scripts run P = 0, ..., 199, of which P = 0 is 0/0: 199 is the last. Arrays, in nats
    per datum: ``difference`` (seeds, P), LML − Σ_M Ŝ(M) after 1..P masks per size,
    ``standard_error`` (seeds,) at the last P, ``truth`` (seeds,).
    """

    num_features: int = 50
    latent_dim: int = 2
    num_masks: int = setting(199, quick=20)

    def problem(self, seed: int, context: RunContext) -> tuple[PPCA, Tensor, torch.Generator]:
        """Model and data for one seed, and the generator that goes on to draw the masks."""
        generator = seeded(seed)
        sizes = (100, self.num_features, self.latent_dim)
        model, x = paper_problem(sizes, generator, context.device)
        return model, x, generator

    def converge(self, context: RunContext) -> tuple[dict[str, Tensor], str]:
        """The arrays, and the checksum of the data."""
        used = []

        def of_seed(seed: int) -> dict[str, Tensor]:
            model, x, generator = self.problem(seed, context)
            used.extend([x, model.loadings])
            values = curves.sampled_curve(model, x, self.num_masks, generator=generator).each
            truth = torch.tensor(estimators.exact(model, x), dtype=torch.float64)
            error = (values.var(dim=1).sum() / self.num_masks).sqrt()
            difference = truth - curves.running_area(values)
            return {"difference": difference, "standard_error": error, "truth": truth}

        return context.stack(of_seed, self.seeds, "seed"), context.checksum(used)


def mean_of_last(arrays: dict[str, Tensor]) -> Finding:
    """Mean over seeds of ``difference`` at the last P; its error from ``standard_error``."""
    last = arrays["difference"][:, -1]
    error = arrays["standard_error"]
    return Finding(last.mean().item(), error.square().sum().sqrt().item() / len(error))


class Figure1Left(Figure1, name="figure-1-left"):
    """Figure 1, left: convergence at D = 5."""

    num_features: int = 5

    def measure(self, context: RunContext) -> Outcome:
        arrays, checksum = self.converge(context)
        model, x, _ = self.problem(self.seeds[0], context)
        # Every choice of one mask a size.
        estimates = x.new_zeros(1)
        for size in range(1, self.num_features + 1):
            scores = curves.size_scores(model, x, masks.all_masks(self.num_features, size)[None])
            estimates = (estimates[:, None] + scores[0]).flatten()
        bias = Finding(abs(estimates.mean().item() - estimators.exact(model, x)))
        findings = {"fig-1-left": mean_of_last(arrays), "claim-subset-biased": bias}
        return Outcome(findings, arrays, checksum)


class Figure1Center(Figure1, name="figure-1-center"):
    """Figure 1, center: convergence at D = 50, and its rate."""

    rate_replicates: int = setting(200, quick=20)
    rate_masks: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32, 64), quick=(1, 4, 16))

    def measure(self, context: RunContext) -> Outcome:
        arrays, checksum = self.converge(context)
        model, x, generator = self.problem(self.seeds[0], RunContext())
        truth = estimators.exact(model, x)
        errors = []
        for num_masks in context.progress(self.rate_masks, "masks per size"):
            total = num_masks * self.rate_replicates
            values = curves.sampled_curve(model, x, total, generator=generator).each.sum(dim=0)
            areas = values.view(self.rate_replicates, num_masks).mean(dim=1)
            errors.append((areas - truth).square().mean().sqrt())
        error = torch.stack(errors)
        # Root mean squares over the seeds in nats per dimension, which no unit of x changes.
        error_per_dimension = arrays["difference"] / self.num_features
        typical = error_per_dimension.square().mean(dim=0).sqrt()
        # Least squares; a root mean square of R normal errors has relative standard error 1/√(2R).
        log_masks = torch.tensor(self.rate_masks).double().log()
        slope, _ = np.polyfit(log_masks, error.log(), 1)
        squares = (log_masks - log_masks.mean()).square().sum().item()
        slope_error = (2.0 * self.rate_replicates * squares) ** -0.5
        findings = {
            "fig-1-center": mean_of_last(arrays),
            "claim-very-well": of_spread(typical[-1].item(), len(self.seeds)),
            "one-mask-per-size": of_spread(typical[0].item(), len(self.seeds)),
            "convergence-rate": Finding(float(slope), slope_error),
        }
        return Outcome(findings, arrays, checksum)


class Figure1Right(Experiment, name="figure-1-right"):
    """Figure 1, right: one fixed size, 76 of 512, from 512·P masks and from P.

    LML − D · Ŝ(M) after 1..P steps of the one size, for every seed, on one draw of data; nats. The
    authors' script draws the size M in each of the D terms of the sum: D fresh masks a step.
    ``difference`` (seeds, P) and ``standard_error`` (seeds,) at the last P are of these;
    ``difference_single`` is of one mask a step, ``spread`` (2,) the standard deviations at P = 1.
    """

    num_features: int = setting(512, quick=128)
    num_masked: int = setting(76, quick=19)
    num_masks: int = setting(199, quick=20)

    def measure(self, context: RunContext) -> Outcome:
        require_count("seeds, which spread,", len(self.seeds), 2)
        size = self.num_features
        model, x = paper_problem((100, size, 2), seeded(111), context.device)
        truth = estimators.exact(model, x)

        def estimates(count: int, generator: torch.Generator) -> Float[Tensor, " P"]:
            mask = masks.sample_masks(count, size, self.num_masked, generator=generator)
            return size * curves.size_scores(model, x, mask[None])[0].cpu()

        one_mask_a_step = []
        one_mask_a_term = []
        for seed in context.progress(self.seeds, "seed"):
            generator = seeded(seed)
            one_mask_a_step.append(estimates(self.num_masks, generator))
            steps = [estimates(size, generator).mean() for _ in range(self.num_masks)]
            one_mask_a_term.append(torch.stack(steps))
        single = torch.stack(one_mask_a_step)
        terms = torch.stack(one_mask_a_term)
        counts = torch.arange(1, self.num_masks + 1)
        arrays = {
            "difference": truth - terms.cumsum(dim=1) / counts,
            "standard_error": terms.std(dim=1) / math.sqrt(self.num_masks),
            "difference_single": truth - single.cumsum(dim=1) / counts,
            "spread": torch.stack([terms.std(), single.std()]),
        }
        settled = mean_of_last(arrays)
        findings = {
            "fig-1-right": Finding(abs(settled.measured), settled.standard_error),
            "fig-1-right-limit": of_spread(
                arrays["difference"][:, -1].std().item(), len(single) - 1
            ),
            # Two standard deviations, each with the relative standard error of so many masks.
            "fig-1-right-masks": of_spread((single.std() / terms.std()).item(), single.numel() / 2),
        }
        return Outcome(findings, arrays, context.checksum([x, model.loadings]))


class Unbiased(Experiment, name="unbiased", gpu=False):
    """Bias at D = 50 of one mask per size and of one mask of a random size.

    Mean of estimate minus log p(x), for the paper's estimator at P = 1 and for D · s(A). The problems
    (W and data) are those of Figure 1, center.
    """

    one_per_size: int = setting(2000, quick=20)
    random_size: int = setting(100_000, quick=200)

    def measure(self, context: RunContext) -> Outcome:
        law = masks.UniformSize()
        bias = []
        spread = []
        used = []
        for seed in context.progress(self.seeds, "seed"):
            model, x = paper_problem((100, 50, 2), seeded(seed))
            used += [x, model.loadings]
            generator = seeded(seed + 1)  # other masks than those of the figure
            values = curves.sampled_curve(model, x, self.one_per_size, generator=generator).each
            mask = masks.sample_masks(self.random_size, 50, law, generator=generator)
            truth = estimators.exact(model, x)
            errors = (
                values.sum(dim=0) - truth,
                50 * curves.size_scores(model, x, mask[None])[0] - truth,
            )
            bias.append(torch.stack([error.mean() for error in errors]))
            spread.append(torch.stack([error.std() for error in errors]))
        counts = torch.tensor([self.one_per_size, self.random_size])
        error = (torch.stack(spread).square().sum(dim=0) / counts).sqrt() / len(self.seeds)
        mean = torch.stack(bias).mean(dim=0)
        findings = {
            "claim-unbiased": Finding(mean[0].item(), error[0].item()),
            "claim-uniform-size-unbiased": Finding(mean[1].item(), error[1].item()),
        }
        return Outcome(findings, data_sha256=context.checksum(used))
