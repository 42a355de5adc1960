"""Training objectives of Bernoulli PCA as pure functions, in nats a datum (floor 3).

All are maximized and comparable with the mean log p(x). A leading axis B holds models trained side
by side; the grid and the data are shared by them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.quadrature import Grid
from mpt_lml.shapes import require_boolean_rows


def log_marginal(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    x: Float[Tensor, "N D"],
    grid: Grid,
) -> Float[Tensor, " B"]:
    """Mean log p(x) of the mixture on the grid, shape (B,); cost O(N K G + G D) a model."""
    seen = torch.ones_like(x[0])
    values = [
        _log_weights(w, b, x, seen, grid).logsumexp(dim=-1).mean()
        for w, b in zip(loadings, offset, strict=True)
    ]
    return torch.stack(values)


def masked(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    x: Float[Tensor, "N D"],
    mask: Bool[Tensor, "B P D"],
    grid: Grid,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log p(x_j | x_R), shape (B,); unbiased for Σ_M π(M) D S(x; M).

    The data are cut into P parts of (nearly) equal size and part p is scored with mask p: P masks for
    the price of one. P = 1 is one mask for all data, the paper's way.
    """
    return _by_parts(_scores, loadings, offset, x, mask, grid)


def block(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    x: Float[Tensor, "N D"],
    mask: Bool[Tensor, "B P D"],
    grid: Grid,
) -> Float[Tensor, " B"]:
    """(D/M) log p(x_A), the marginal of the masked block, mean over the data, shape (B,).

    It forgets what was observed. The authors' published script trains this where the paper writes
    log p(x_A | x_R). Data are cut into P parts as in :func:`masked`.
    """
    return _by_parts(_block_scores, loadings, offset, x, mask, grid)


def elbo(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    encoder: Float[Tensor, "B K D"],
    encoder_offset: Float[Tensor, "B K"],
    encoder_log_variance: Float[Tensor, "B K"],
    x: Float[Tensor, "N D"],
    noise: Float[Tensor, "B N K"],
) -> Float[Tensor, " B"]:
    """ELBO with q(z|x) = N(V x + c, diag(v)), one reparameterized z a datum, shape (B,).

    The linear encoder of Lucas et al. 2019; the Kullback–Leibler term is in closed form.

    Raises
    ------
    ValueError
        For an encoder whose dimensions are not those of the decoder and the data.
    """
    batch, num_features, latent_dim = loadings.shape
    if encoder.shape != (batch, latent_dim, num_features) or x.shape[1] != num_features:
        raise ValueError(
            f"the encoder must have shape ({batch}, {latent_dim}, {num_features}) to go with "
            f"loadings {tuple(loadings.shape)} and data (N, {num_features}), got encoder "
            f"{tuple(encoder.shape)} and data {tuple(x.shape)}."
        )
    mean = x @ encoder.mT + encoder_offset[:, None]
    variance = encoder_log_variance.exp()[:, None]
    z = mean + variance.sqrt() * noise
    logits = z @ loadings.mT + offset[:, None]
    # Σ_d x_d ℓ_d through K numbers a datum, as on a grid: the only (N, D) array is the softplus.
    fit = ((x @ loadings) * z).sum(dim=-1) + offset @ x.T - F.softplus(logits).sum(dim=-1)
    divergence = 0.5 * (mean.square() + variance - variance.log() - 1.0).sum(dim=-1)
    return (fit - divergence).mean(dim=-1)


def _by_parts(
    score: Callable[[Tensor, Tensor, Tensor, Tensor, Grid], Float[Tensor, " N"]],
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    x: Float[Tensor, "N D"],
    mask: Bool[Tensor, "B P D"],
    grid: Grid,
) -> Float[Tensor, " B"]:
    """D times the mean of ``score``, part p of the data with mask p of their model."""
    values = []
    for w, b, rows in zip(loadings, offset, mask, strict=True):
        require_boolean_rows("mask", rows, x.shape[1])
        parts = zip(x.tensor_split(len(rows)), rows, strict=True)
        scores = [score(w, b, part, hidden, grid).sum() for part, hidden in parts]
        values.append(torch.stack(scores).sum() * x.shape[1] / len(x))
    return torch.stack(values)


def _block_scores(
    loadings: Float[Tensor, "D K"],
    offset: Float[Tensor, " D"],
    x: Float[Tensor, "N D"],
    mask: Bool[Tensor, " D"],
    grid: Grid,
) -> Float[Tensor, " N"]:
    """(1/M) log p(x_A) of every datum."""
    return _log_weights(loadings, offset, x, mask.to(x), grid).logsumexp(dim=-1) / mask.sum()


def _log_weights(
    loadings: Float[Tensor, "D K"],
    offset: Float[Tensor, " D"],
    x: Float[Tensor, "N D"],
    keep: Float[Tensor, " D"],
    grid: Grid,
) -> Float[Tensor, "N G"]:
    """log w_g + log p(x_R | z_g) with R the coordinates that are kept."""
    kept = keep.nonzero().flatten()
    w, b, seen = loadings[kept], offset[kept], x[:, kept]
    price = F.softplus(grid.nodes @ w.T + b).sum(dim=-1)
    # One pass over (N, G): the offset's share travels as one more coordinate of z, always 1.
    short = seen @ torch.cat([w, b[:, None]], dim=1)
    nodes = torch.cat([grid.nodes, torch.ones_like(grid.nodes[:, :1])], dim=1)
    return torch.addmm(grid.log_weights - price, short, nodes.T)


def _scores(
    loadings: Float[Tensor, "D K"],
    offset: Float[Tensor, " D"],
    x: Float[Tensor, "N D"],
    mask: Bool[Tensor, " D"],
    grid: Grid,
) -> Float[Tensor, " N"]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R) of every datum; only masked columns are mixed."""
    hidden = mask.nonzero().flatten()
    weights = _log_weights(loadings, offset, x, (~mask).to(x), grid).softmax(dim=-1)
    logits = grid.nodes @ loadings[hidden].T + offset[hidden]
    target = x[:, hidden]
    both = torch.cat([logits.sigmoid(), (-logits).sigmoid()], dim=1)
    one, zero = (weights @ both).chunk(2, dim=1)
    tiny = torch.finfo(x.dtype).tiny
    return (target * one + (1 - target) * zero).clamp(min=tiny).log().mean(dim=-1)
