"""Objectives of Bernoulli PCA: on a grid, and the ELBO with a linear encoder."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids
from mpt_lml.checks import check, checked
from mpt_lml.grids import BernoulliMixture
from mpt_lml.masks import each_masks_something
from mpt_lml.models.vae import require_binary
from mpt_lml.numerics import softplus
from mpt_lml.objectives.bounds import mean_elbo


@checked(finite=False)
def mixture(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    x: Float[Tensor, "N D"],
    mask: Annotated[Bool[Tensor, "B P D"], each_masks_something] | None,
    grid: grids.Grid,
    *,
    block: bool = False,
) -> Float[Tensor, " B"]:
    """D times the mean score of Bernoulli PCA on a grid; unbiased for the law of the masks' sizes.

    Args:
        loadings: W of every run, (B, D, K).
        offset: b of every run, (B, D).
        x: zeros and ones, (N, D).
        mask: (B, P, D), True means masked. The data are cut into P parts, and part p is scored with
            mask p; the paper has P = 1. None: the mean log p(x) instead of a score.
        grid: where z lives.
        block: (D/M) log p(x_A) instead, which forgets what was observed: the authors' published
            script trains it where the paper writes log p(x_A | x_R).

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for x that is not 0 or 1, for a mask that hides nothing, and for a grid of
            another dimension, and for parameters whose logits are too large.

    >>> grid, x = grids.trapezoid(1, 9), torch.ones(1, 2).double()
    >>> mixture(0 * x[..., None], 0 * x, x, torch.tensor([[[True, False]]]), grid).exp()
    tensor([0.2500], dtype=torch.float64)
    """
    check(
        ("loadings", loadings, Float[Tensor, "B D K"]),
        ("grid", grid.nodes, Float[Tensor, "G K"]),
        finite=False,
    )
    require_binary(x)
    runs = zip(loadings, offset, strict=True)
    if mask is None:
        return torch.stack(
            [_mean_log_marginal(BernoulliMixture(grid, w, b), x) for w, b in runs]
        ).to(x)
    values = []
    for (w, b), masks_of_run in zip(runs, mask, strict=True):
        model = BernoulliMixture(grid, w, b)
        parts = zip(x.tensor_split(len(masks_of_run)), masks_of_run, strict=True)
        totals = [_mixture_score(model, part, hidden, block).sum() for part, hidden in parts]
        values.append(torch.stack(totals).sum() * x.shape[1] / len(x))
    return torch.stack(values)


def _mean_log_marginal(model: BernoulliMixture, x: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
    everything = torch.ones_like(x[0], dtype=torch.bool)
    return grids.log_total(model.log_weights(x, everything)).mean()


def _mixture_score(
    model: BernoulliMixture, x: Float[Tensor, "n D"], mask: Bool[Tensor, " D"], block: bool
) -> Float[Tensor, " n"]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R) of every datum, or (1/M) log p(x_A) of the ``block``."""
    if block:
        return grids.log_total(model.log_weights(x, mask)).to(x) / mask.sum()
    hidden = mask.nonzero().flatten()  # only masked columns are mixed
    return model.log_conditional(model.log_weights(x, ~mask), x, hidden).mean(dim=-1)


@checked(finite=False)
def linear_elbo(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    encoder: Float[Tensor, "B K D"],
    encoder_offset: Float[Tensor, "B K"],
    encoder_log_variance: Float[Tensor, "B K"],
    x: Float[Tensor, "N D"],
    noise: Float[Tensor, "B N K"],
) -> Float[Tensor, " B"]:
    """Mean ELBO of Bernoulli PCA with q(z|x) = N(V x + c, diag(v)), one z a datum.

    The linear encoder of Lucas et al. 2019.

    Args:
        loadings: W of every run, (B, D, K).
        offset: b of every run, (B, D).
        encoder: V of every run, (B, K, D).
        encoder_offset: c of every run, (B, K).
        encoder_log_variance: log v of every run, (B, K).
        x: zeros and ones, (N, D).
        noise: standard normal numbers, (B, N, K), that make z.

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for an encoder whose dimensions are not those of the decoder and the data, and
            for x that is not 0 or 1.

    >>> w, b, c, x = torch.zeros(1, 2, 1), torch.zeros(1, 2), torch.zeros(1, 1), torch.ones(3, 2)
    >>> linear_elbo(w, b, w.mT, c, c, x, torch.zeros(1, 3, 1)).exp()
    tensor([0.2500])
    """
    require_binary(x)
    mean = x @ encoder.mT + encoder_offset[:, None]
    variance = encoder_log_variance.exp()[:, None]
    z = mean + variance.sqrt() * noise
    logits = z @ loadings.mT + offset[:, None]
    # Σ_d x_d ℓ_d through K numbers a datum, as on a grid: the only (N, D) array is the softplus.
    x_by_loadings = ((x @ loadings) * z).sum(dim=-1)
    likelihood = x_by_loadings + offset @ x.T - softplus(logits).sum(dim=-1)
    return mean_elbo(likelihood, mean, variance)
