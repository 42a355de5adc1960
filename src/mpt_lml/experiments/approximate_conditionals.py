"""Approximate conditionals of a deep VAE, and what becomes of Proposition 1, against a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import estimators, grids, masks, scores
from mpt_lml.masks import FixedRate
from mpt_lml.models import vae
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.mixture import GridConditional


def conditional_models(
    model: vae.VAE, num_draws: int, *, seed: int = 0
) -> dict[str, ConditionalModel]:
    """The approximate conditionals by name, with ``num_draws`` weights or kept steps per mask.

    Both chains start at the decoder's output at z = 0, refill with draws, and run ten at a time.
    """

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def gibbs(corrected: bool) -> ConditionalModel:
        return estimators.GibbsConditional(
            model, num_draws // 5, generator=generator(), corrected=corrected, num_chains=10
        )

    return {
        "pseudo-Gibbs": gibbs(corrected=False),
        "Metropolis-within-Gibbs": gibbs(corrected=True),
        "importance, mode": estimators.ImportanceConditional(
            model, num_draws, generator=generator()
        ),
    }


def compare_conditionals(
    model: vae.VAE,
    x: Float[Tensor, "N D"],
    *,
    num_draws: int = 200,
    nodes_per_axis: int = 41,
    rate: float = 0.33,
) -> dict[str, Float[Tensor, "names three"]]:
    """Every approximate conditional against the grid, at a fixed rate and with everything hidden.

    "fixed" and "all", each a table (methods, 3): root-mean-square error of log p(x_j | x_R) in nats,
    bias of the score D·S in nats, and its standard error over data. Methods as in
    :func:`conditional_models`.
    """
    exact = _exact(model, nodes_per_axis)
    tables = {}
    for name, share, count in (("fixed", rate, 2), ("all", 1.0, 1)):
        generator = torch.Generator().manual_seed(1)
        mask = masks.sample_masks(count, x.shape[1], FixedRate(share), generator=generator)
        truth, rows = exact.log_conditional(x, mask), []
        for method in conditional_models(model, num_draws).values():
            error = method.log_conditional(x, mask) - truth
            score = x.shape[1] * scores.mask_score(error, mask).mean(dim=0)
            rms = error[mask[:, None, :].expand_as(error)].square().mean().sqrt()
            rows.append(torch.stack([rms, score.mean(), score.std() / math.sqrt(len(x))]))
        tables[name] = torch.stack(rows)
    return tables


def score_errors(
    model: vae.VAE,
    method: ConditionalModel,
    x: Float[Tensor, "N D"],
    sizes: Sequence[int],
    *,
    nodes_per_axis: int = 41,
    masks_per_size: int = 2,
) -> Float[Tensor, "sizes N"]:
    """Approximate minus exact S(x; M), nats per coordinate, at some mask sizes."""
    exact, generator = _exact(model, nodes_per_axis), torch.Generator().manual_seed(2)
    errors = []
    for size in sizes:
        hidden = masks.sample_masks(masks_per_size, x.shape[1], size, generator=generator)
        off = method.log_conditional(x, hidden) - exact.log_conditional(x, hidden)
        errors.append(scores.mask_score(off, hidden).mean(dim=0))
    return torch.stack(errors)


def area_error(errors: Float[Tensor, "sizes N"], sizes: Sequence[int]) -> Float[Tensor, " N"]:
    """Sum of ``errors`` over all sizes 1..D, linear between the given ones (first 1, last D).

    What Σ_M S(x; M) through approximate conditionals misses of log p(x), nats.
    """
    area = torch.trapezoid(errors, torch.tensor(sizes, dtype=errors.dtype), dim=0)
    return area + 0.5 * (errors[0] + errors[-1])


def codes(
    model: vae.VAE, x: Float[Tensor, "N D"], *, nodes_per_axis: int = 41
) -> Mapping[str, float]:
    """Mean standard deviations of encoder and posterior, and the mean square length of the codes."""
    grid = grids.trapezoid(model.latent_dim, nodes_per_axis)
    table = model.log_table(x, grid.nodes.to(x)).sum(dim=-1)
    omega = (grid.log_weights[:, None].to(x) + table).softmax(dim=0)[..., None]
    nodes = grid.nodes[:, None, :].to(x)
    first, second = (omega * nodes).sum(dim=0), (omega * nodes.square()).sum(dim=0)
    with torch.no_grad():
        spread = model.encode(x)[1].sqrt().mean().item()
    return {
        "encoder": spread,
        "posterior": (second - first.square()).clamp(min=0).sqrt().mean().item(),
        "square": second.sum(dim=-1).mean().item(),
    }


def _exact(model: vae.VAE, nodes_per_axis: int) -> GridConditional:
    return GridConditional(model, grids.trapezoid(model.latent_dim, nodes_per_axis))
