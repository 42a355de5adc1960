"""Figure 1, right: one fixed mask size, which is biased; and one mask of a random size, which is not."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import curves, estimators, masks
from mpt_lml.experiments.base import Bench, Experiment, Finding, Outcome, checksum, experiment
from mpt_lml.experiments.convergence import mean_of_last, of_spread, paper_problem, seeded
from mpt_lml.spec import require_count


@experiment(
    "figure-1-right",
    title="Figure 1, right: one fixed size, 76 of 512, from 512·P masks and from P",
    cost="about 2 min",
    quick={"num_features": 128, "num_masked": 19, "num_masks": 20},
)
class Figure1Right(Experiment):
    """LML − D · Ŝ(M) after 1..P steps of the one size, for every seed, on one draw of data; nats.

    The authors' script draws the size M in each of the D terms of the sum: D fresh masks a step.
    ``difference`` (seeds, P) and ``standard_error`` (seeds,) at the last P are of these;
    ``difference_single`` is of one mask a step, ``spread`` (2,) the standard deviations at P = 1.
    """

    num_features: int = 512
    num_masked: int = 76
    num_masks: int = 199

    def run(self, bench: Bench) -> Outcome:
        require_count("seeds, which spread,", len(self.seeds), 2)
        size, steps = self.num_features, range(self.num_masks)
        model, x = paper_problem((100, size, 2), seeded(111), bench.device)
        truth = estimators.exact(model, x)

        def estimates(count: int, generator: torch.Generator) -> Float[Tensor, " P"]:
            mask = masks.sample_masks(count, size, self.num_masked, generator=generator)
            return size * curves.size_scores(model, x, mask.to(x.device)[None])[0].cpu()

        single, step = [], []
        for seed in bench.progress(self.seeds, "seed"):
            generator = seeded(seed)
            single.append(estimates(self.num_masks, generator))
            step.append(torch.stack([estimates(size, generator).mean() for _ in steps]))
        one, terms = torch.stack(single), torch.stack(step)
        counts = torch.arange(1, self.num_masks + 1)
        arrays = {
            "difference": truth - terms.cumsum(dim=1) / counts,
            "standard_error": terms.std(dim=1) / math.sqrt(self.num_masks),
            "difference_single": truth - one.cumsum(dim=1) / counts,
            "spread": torch.stack([terms.std(), one.std()]),
        }
        settled = mean_of_last(arrays)
        findings = {
            "fig-1-right": Finding(abs(settled.measured), settled.standard_error),
            "fig-1-right-limit": of_spread(arrays["difference"][:, -1].std().item(), len(one) - 1),
            # Two standard deviations, each with the relative standard error of so many masks.
            "fig-1-right-masks": of_spread((one.std() / terms.std()).item(), one.numel() / 2),
        }
        return Outcome(findings, arrays, checksum([x, model.loadings]))


@experiment(
    "unbiased",
    title="Bias at D = 50 of one mask per size and of one mask of a random size",
    cost="about 15 s",
    quick={"seeds": (4, 44), "one_per_size": 20, "random_size": 200},
    gpu=False,
)
class Unbiased(Experiment):
    """Mean of estimate minus log p(x), for the paper's estimator at P = 1 and for D · s(A).

    The problems (W and data) are those of Figure 1, center.
    """

    one_per_size: int = 2000
    random_size: int = 100_000

    def run(self, bench: Bench) -> Outcome:
        names = ("claim-unbiased", "claim-uniform-size-unbiased")
        bias, spread, used, law = [], [], [], masks.UniformSize()
        for seed in bench.progress(self.seeds, "seed"):
            model, x = paper_problem((100, 50, 2), seeded(seed))
            used += [x, model.loadings]
            generator = seeded(seed + 1)  # other masks than those of the figure
            values = curves.sampled_scores(model, x, self.one_per_size, generator=generator)
            mask = masks.sample_masks(self.random_size, 50, law, generator=generator)
            estimates = values.sum(dim=0), 50 * curves.size_scores(model, x, mask[None])[0]
            truth = estimators.exact(model, x)
            bias.append(torch.stack([(each - truth).mean() for each in estimates]))
            spread.append(torch.stack([(each - truth).std() for each in estimates]))
        counts = torch.tensor([self.one_per_size, self.random_size])
        error = (torch.stack(spread).square().sum(dim=0) / counts).sqrt() / len(self.seeds)
        found = zip(torch.stack(bias).mean(dim=0).tolist(), error.tolist(), strict=True)
        findings = dict(zip(names, (Finding(*each) for each in found), strict=True))
        return Outcome(findings, data_sha256=checksum(used))
