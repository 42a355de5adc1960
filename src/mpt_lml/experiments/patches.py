"""PPCA with patches as coordinates: Proposition 1 for them, and curves beside those of Figure 6."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import data, masks, scores
from mpt_lml.experiments.base import Bench, Experiment, Finding, Outcome
from mpt_lml.models.base import Grouped
from mpt_lml.models.ppca import PPCA
from mpt_lml.numerics import log_normal
from mpt_lml.results import trapezoid_weights


class Patches(Experiment, name="patches", cost="seconds", gpu=False):
    """Proposition 1 with patches as coordinates, by enumeration.

    The sum of all scores S(x; M) of held-out digits, over every mask of four patches. Patches are
    scored by their joint density, which gives log p(x), and pixel by pixel. Nothing is random.
    """

    def run(self, bench: Bench) -> Outcome:
        x, test = (data.images("digits", split).pixels for split in ("train", "test"))
        model, group = PPCA.fit_closed_form(x, 20), Grouped.patches(8, 8, 4)
        every = [masks.all_masks(4, size) for size in range(1, 5)]

        def area(jointly: bool) -> Float[Tensor, " N"]:
            of = Grouped(model, group, jointly=jointly)
            found = [scores.mask_score(of.log_conditional(test, m), m).mean(dim=0) for m in every]
            return torch.stack(found).sum(dim=0)

        off = (area(True) - model.log_marginal(test)).abs().max()
        findings = {
            "claim-patches": Finding.over(area(True) - area(False)),
            "patches-jointly": Finding(off.item()),
        }
        return Outcome(findings, data_sha256=bench.checksum([x, test]))


def linear_curves(
    x: Float[Tensor, "N C H H"],
    test: Float[Tensor, "Q C H H"],
    patch: int,
    sizes: Sequence[int],
    dims: Sequence[int],
    num_masks: int,
) -> dict[str, Tensor]:
    """Curves and areas of PPCA fitted to ``x``, on ``test``, a patch scored pixel by pixel; nats.

    ``linear`` (K, L), ``linear-area`` (K,). The same masks for every K, each shared by
    Q / ``num_masks`` images.
    """
    channels, side = x.shape[1:3]
    group = Grouped.patches(side, side, patch).repeat(channels)
    rows, grid, count = test.flatten(1).double(), torch.tensor(sizes), int(group.max()) + 1
    zero, curves, areas = torch.zeros(len(grid), dtype=rows.dtype), [], []
    weights = trapezoid_weights(grid, count).to(zero)
    for model in fit_ppca(x.flatten(1).double(), dims):
        g, score = torch.Generator().manual_seed(3), []
        for size in sizes:
            drawn = masks.sample_masks(num_masks, count, size, generator=g)[:, group]
            parts = zip(rows.chunk(num_masks), drawn, strict=True)
            each = [log_conditional(model, *part).sum(dim=1) for part in parts]
            score.append(torch.cat(each) / size)
        curve = torch.stack(score)
        curves.append(curve.mean(dim=1))
        areas.append((weights @ curve).mean())
    return {"linear": torch.stack(curves), "linear-area": torch.stack(areas)}


def fit_ppca(x: Float[Tensor, "N d"], dims: Sequence[int]) -> list[PPCA]:
    """Maximum likelihood for every K in ``dims``, as :meth:`PPCA.fit_closed_form`, d being large.

    Only the largest eigenvalues are computed, by subspace iteration in float32; the sum of the
    others, which is all that the noise variance needs, follows from the total variance.
    """
    center = x.mean(dim=0)
    centered = x - center
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rank = min(max(dims) + 20, *x.shape)
        _, singular, axes = torch.svd_lowrank(centered.float(), q=rank, niter=6)
    top, axes = singular.double().square() / len(x), axes.double()
    total, models = centered.double().square().mean(dim=0).sum(), []
    for K in dims:
        noise = (total - top[:K].sum()) / (x.shape[1] - K)
        loadings = axes[:, :K] * (top[:K] - noise).clamp(min=0).sqrt()
        models.append(PPCA(loadings, noise, center))
    return models


def log_conditional(
    model: PPCA, x: Float[Tensor, "N d"], mask: Bool[Tensor, " d"]
) -> Float[Tensor, "N m"]:
    """log p(x_j | x_R) of the masked j only, one mask: d K² operations and no table of d K² numbers."""
    seen, hidden, centered = model.loadings[~mask], model.loadings[mask], x - model.mean
    noise = model.noise_variance
    inverse = torch.linalg.inv(torch.eye(model.latent_dim).to(seen) + seen.T @ seen / noise)
    mean = centered[:, ~mask] @ seen @ inverse @ hidden.T / noise
    variance = noise + (hidden @ inverse * hidden).sum(dim=1)
    return log_normal(centered[:, mask] - mean, variance)
