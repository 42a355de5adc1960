"""Training objectives as functions of parameters, nats a datum, (..., B): PPCA, mixtures, VAEs.

All are *maximized* and comparable with the mean log p(x): D Σ_M π(M) S(x; M) for a law π of mask sizes,
the LML itself for the uniform law (Proposition 1).
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids, masks, scores
from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.models.vae import Parameters, dense
from mpt_lml.numerics import full_precision, log_likelihood, softplus
from mpt_lml.spec import require, require_binary, require_mask, require_second_moment

__all__ = ["curve", "exact", "linear_elbo", "log_marginal", "mixture", "sampled", "second_moment"]

_W = Float[Tensor, "*B D K"]
_Noise = Float[Tensor, "..."]
_Moment = Float[Tensor, "*#B D D"]
_Masks = Bool[Tensor, "*#B P D"]
_Data = Float[Tensor, "N D"]
_EachData = Float[Tensor, "#B N D"] | _Data
_SPEC = "loadings ... D k, noise_variance ..., moment ... D D"


def _require(loadings: Tensor, noise_variance: Tensor, moment: Tensor) -> None:
    """Check the arguments that objectives of PPCA share.

    Parameters that are not finite are passed on: training stops there and says where. Data that are
    not are refused.
    """
    require(locals(), _SPEC, finite=False)
    require_second_moment("moment", moment)


@full_precision()
def second_moment(x: Float[Tensor, "N D"]) -> Float[Tensor, "D D"]:
    """XᵀX/N (about zero), (D, D): all that a Gaussian's mean log-density needs of the data.

    >>> second_moment(torch.tensor([[1.0, 1.0], [1.0, -1.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    require(locals(), "x N D")
    moment = x.mT @ x / len(x)
    if not moment.isfinite().all():
        largest = f"{x.detach().abs().max().item():.3g}"
        raise ValueError(f"x of up to {largest} has squares beyond {x.dtype}. Use another unit.")
    return moment


@full_precision()
def log_marginal(loadings: _W, noise_variance: _Noise, moment: _Moment) -> Float[Tensor, "*B"]:
    """The exact mean log p(x) of PPCA, nats; ``moment`` is that of the data about the model's mean.

    Raises ``ValueError`` for a moment that is not symmetric or has a negative eigenvalue.

    >>> log_marginal(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2))
    tensor(-2.8379)
    """
    _require(loadings, noise_variance, moment)
    everything = torch.ones(1, loadings.shape[-2], dtype=torch.bool, device=loadings.device)
    posterior = LowRankPosterior.of(loadings, noise_variance, everything)
    return posterior.mean_log_marginal(moment)[..., 0]


def mask_scores(
    loadings: _W, noise_variance: _Noise, moment: _Moment, mask: _Masks
) -> Float[Tensor, "*B P"]:
    """The score of every mask under PPCA, mean over the data, nats a coordinate, (..., P)."""
    values = LowRankPosterior.of(loadings, noise_variance, ~mask).mean_log_conditional(moment)
    return scores.mask_score(values, mask.expand_as(values))


@full_precision()
def sampled(
    loadings: _W, noise_variance: _Noise, moment: _Moment, mask: _Masks
) -> Float[Tensor, "*B"]:
    """D times the mean score of the given masks: unbiased for the law that their sizes follow.

    >>> sampled(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2), torch.ones(1, 2).bool())
    tensor(-2.8379)
    """
    require(locals(), f"{_SPEC}, bool mask ... P D", finite=False)
    _require(loadings, noise_variance, moment)
    require_mask(mask)
    return loadings.shape[-2] * mask_scores(loadings, noise_variance, moment, mask).mean(dim=-1)


@full_precision()
def exact(
    loadings: _W, noise_variance: _Noise, moment: _Moment, law: masks.SizeLaw
) -> Float[Tensor, "*B"]:
    """D Σ_M π(M) S(x; M) of PPCA over every mask that the law can draw.

    Raises ``ValueError`` where 2^D masks are too many; use :func:`sampled` there.

    >>> exact(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2), masks.UniformSize())
    tensor(-2.8379)
    """
    require(locals(), f"{_SPEC}, law SizeLaw", finite=False)
    _require(loadings, noise_variance, moment)
    num_features = loadings.shape[-2]
    mask = masks.subsets(num_features, instead="objectives.sampled")[1:]
    sizes = mask.sum(dim=1)
    weights = (law.probabilities(num_features) / torch.bincount(sizes)[1:])[sizes - 1]
    mask, weights = (rows[weights > 0].to(loadings.device) for rows in (mask, weights))
    each = mask_scores(loadings, noise_variance, moment, mask)
    return num_features * (each * weights.to(loadings)).sum(dim=-1)


@full_precision()
def curve(loadings: _W, noise_variance: _Noise, moment: _Moment) -> Float[Tensor, "*B D"]:
    """The exact S(x; M), M = 1..D, of every PPCA of the batch, nats a coordinate, (..., D).

    >>> curve(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2))
    tensor([-1.4189, -1.4189])
    """
    _require(loadings, noise_variance, moment)
    mask = masks.subsets(loadings.shape[-2], instead="objectives.sampled")[1:].to(loadings.device)
    each = mask_scores(loadings, noise_variance, moment, mask).movedim(-1, 0)
    return scores.mean_by_size(each, mask.sum(dim=1), mask.shape[1])[1:].movedim(0, -1)


@full_precision()
def mixture(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    x: _Data,
    mask: Bool[Tensor, "B P D"] | None,
    grid: grids.Grid,
    *,
    block: bool = False,
) -> Float[Tensor, " B"]:
    """D times the mean score of Bernoulli PCA on a grid, (B,); unbiased for the law of the sizes.

    The data are cut into P parts and part p is scored with mask p; P = 1 is the paper's way. Without
    a mask: mean log p(x). ``block``: (D/M) log p(x_A) instead, which forgets what was observed; the
    authors' published script trains it where the paper writes log p(x_A | x_R). Raises
    ``ValueError`` for x that is not 0 or 1.

    >>> grid, x = grids.gauss_hermite(1, 3), torch.ones(1, 2).double()
    >>> mixture(0 * x[..., None], 0 * x, x, torch.tensor([[[True, False]]]), grid).exp()
    tensor([0.2500], dtype=torch.float64)
    """
    spec = "loadings B D K, offset B D, x N D, bool mask? B P D, block bool, grid Grid"
    require(locals(), spec, finite=False)
    require({"loadings": loadings, "grid": grid.nodes}, "loadings B D K, grid G K", finite=False)
    require_binary(x)
    models = list(zip(loadings, offset, strict=True))
    if mask is None:
        seen = torch.ones_like(x[0], dtype=torch.bool)
        every = (grids.log_weights(grid, *each, x, seen) for each in models)
        return torch.stack([grids.log_total(each).mean() for each in every]).to(x)
    values = []
    for (w, b), rows in zip(models, mask, strict=True):
        require_mask(rows)
        parts = zip(x.tensor_split(len(rows)), rows, strict=True)
        each = [_mixture_score(grid, w, b, part, hidden, block).sum() for part, hidden in parts]
        values.append(torch.stack(each).sum() * x.shape[1] / len(x))
    return torch.stack(values)


def _mixture_score(
    grid: grids.Grid, w: Tensor, b: Tensor, x: Tensor, mask: Tensor, block: bool
) -> Float[Tensor, " N"]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R) of every datum, or (1/M) log p(x_A) of the ``block``."""
    if block:
        return grids.log_total(grids.log_weights(grid, w, b, x, mask)).to(x) / mask.sum()
    hidden = mask.nonzero().flatten()  # only masked columns are mixed
    logits = grid.nodes @ w[hidden].T + b[hidden]
    weights = grids.log_weights(grid, w, b, x, ~mask)
    return grids.log_mixture(weights, logits, x[:, hidden]).mean(dim=-1)


@full_precision()
def linear_elbo(
    loadings: Float[Tensor, "B D K"],
    offset: Float[Tensor, "B D"],
    encoder: Float[Tensor, "B K D"],
    encoder_offset: Float[Tensor, "B K"],
    encoder_log_variance: Float[Tensor, "B K"],
    x: _Data,
    noise: Float[Tensor, "B N K"],
) -> Float[Tensor, " B"]:
    """Mean ELBO of Bernoulli PCA with q(z|x) = N(V x + c, diag(v)), one z a datum, (B,).

    The linear encoder of Lucas et al. 2019. Raises ``ValueError`` for an encoder whose dimensions
    are not those of the decoder and the data, and for x that is not 0 or 1.

    >>> w, b, c, x = torch.zeros(1, 2, 1), torch.zeros(1, 2), torch.zeros(1, 1), torch.ones(3, 2)
    >>> linear_elbo(w, b, w.mT, c, c, x, torch.zeros(1, 3, 1)).exp()
    tensor([0.2500])
    """
    spec = "loadings B D K, offset B D, encoder B K D, encoder_offset B K, x N D, noise B N K"
    require(locals(), f"{spec}, encoder_log_variance B K", finite=False)
    require_binary(x)
    mean = x @ encoder.mT + encoder_offset[:, None]
    variance = encoder_log_variance.exp()[:, None]
    z = mean + variance.sqrt() * noise
    logits = z @ loadings.mT + offset[:, None]
    # Σ_d x_d ℓ_d through K numbers a datum, as on a grid: the only (N, D) array is the softplus.
    fit = ((x @ loadings) * z).sum(dim=-1) + offset @ x.T - softplus(logits).sum(dim=-1)
    return _bound(fit, mean, variance)


def elbo(
    parameters: Parameters,
    x: _EachData,
    noise: Float[Tensor, "B N K"],
    noise_variance: float | None,
) -> Float[Tensor, " B"]:
    """Mean ELBO of VAEs with ``vae.dense_parameters``, one z a datum, (B,); Bernoulli without σ²."""
    _require_likelihood(x, noise_variance)
    z, mean, log_variance = _encode(parameters, x.expand(len(noise), *x.shape[-2:]), noise)
    fit = log_likelihood(x, dense(parameters, "decoder", z), noise_variance).sum(dim=-1)
    return _bound(fit, mean, log_variance.exp())


def recursive(
    parameters: Parameters,
    x: _EachData,
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "R B N K"],
    noise_variance: float | None,
    *,
    samples: int = 1,
    from_decoder: bool = False,
    pixel_noise: Float[Tensor, "r B N D"] | None = None,
    gradient: Literal["last", "all", "decoder"] = "last",
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log (1/S) Σ_s p(x_j | z_s), after rounds of refilling, (B,).

    The paper's masked training of a deep VAE (Rezende et al. 2014, Appendix F): hidden coordinates
    start at 0, or at the decoder's output at z = 0 with ``from_decoder``; z ~ q(z | filled x); they are
    replaced by the decoder's mean, or draws with ``pixel_noise`` (rounds − 1, B, N, D), and so on. In
    the last round ``samples`` draws z_s are scored, ``noise`` is (rounds − 1 + samples, B, N, K). The
    ``gradient`` goes through the last round, all of them, or the last decoding alone.
    """
    _require_likelihood(x, noise_variance)
    if not 1 <= samples <= len(noise):
        raise ValueError(f"{samples} draws of z are asked for and noise holds {len(noise)}.")
    before = len(noise) - samples
    if pixel_noise is not None and (noise_variance is None or len(pixel_noise) != before):
        given = f"{before} rounds, got {noise_variance} and {len(pixel_noise)}"
        raise ValueError(f"refilling needs a noise_variance and pixel_noise for {given}.")

    def filled_with(output: Tensor) -> Tensor:
        return torch.where(mask, output.sigmoid() if noise_variance is None else output, x)

    with torch.set_grad_enabled(torch.is_grad_enabled() and gradient == "all"):
        filled = torch.where(mask, 0.0, x)
        if from_decoder:
            zero = noise.new_zeros(len(mask), 1, noise.shape[-1])
            filled = filled_with(dense(parameters, "decoder", zero))
        for number in range(before):
            output = dense(parameters, "decoder", _encode(parameters, filled, noise[number])[0])
            if pixel_noise is not None and noise_variance is not None:
                output = output + math.sqrt(noise_variance) * pixel_noise[number]
            filled = filled_with(output)
    z, _, _ = _encode(parameters, filled, noise[before:])
    output = _decode(parameters, z.detach() if gradient == "decoder" else z)
    factors = log_likelihood(x, output, noise_variance)
    return _score(factors.logsumexp(dim=0) - math.log(samples), mask)


def partial(
    parameters: Parameters,
    x: _EachData,
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "S B N K"],
    noise_variance: float | None,
    *,
    weighted: bool = True,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log Σ_s w̄_s p(x_j | z_s), z_s ~ q(z | x_R), (B,).

    The encoder sees x_R with zeros in the holes (MIWAE, Mattei & Frellsen 2019) and the mask (VAEAC,
    Ivanov et al. 2019). Weights are w̄_s ∝ p(x_R, z_s)/q(z_s | x_R); the decoder follows the score, the
    encoder the ELBO of x_R. Without ``weighted`` all w̄_s are 1/S and both follow the score.
    """
    _require_likelihood(x, noise_variance)
    seen = torch.where(mask, 0.0, x)
    z, mean, log_variance = _encode(parameters, torch.cat([seen, mask.to(seen)], dim=-1), noise)
    fixed = z.detach() if weighted else z
    factors = log_likelihood(x, _decode(parameters, fixed), noise_variance)
    if not weighted:
        return _score(factors.logsumexp(dim=0) - math.log(len(noise)), mask)
    log_q = -0.5 * (noise.square() + log_variance.detach()).sum(dim=-1)
    joint = factors.where(~mask, 0.0).sum(dim=-1) - 0.5 * fixed.square().sum(dim=-1)
    weight = (joint - log_q).log_softmax(dim=0)
    score = _score((weight[..., None] + factors).logsumexp(dim=0), mask)
    held = {name: value.detach() for name, value in parameters.items()}
    fit = log_likelihood(x, dense(held, "decoder", z[0]), noise_variance).where(~mask, 0.0)
    own = _bound(fit.sum(dim=-1), mean, log_variance.exp())
    return score + own - own.detach()


def _require_likelihood(x: Tensor, noise_variance: float | None) -> None:
    """Check that a Bernoulli likelihood, the one without a variance, is asked for zeros and ones."""
    require(locals(), "x ... N D, noise_variance? (0,inf)", finite=False)
    if noise_variance is None:
        require_binary(x)


def _bound(fit: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """``fit`` less KL(N(mean, diag variance) ‖ N(0, I)) (Kingma & Welling 2014, Appendix B)."""
    divergence = 0.5 * (mean.square() + variance - variance.log() - 1.0).sum(dim=-1)
    return (fit - divergence).mean(dim=-1)


def _score(values: Tensor, mask: Tensor) -> Tensor:
    return mask.shape[-1] * scores.mask_score(values, mask).mean(dim=-1)


def _encode(parameters: Parameters, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, log_variance = dense(parameters, "encoder", x).chunk(2, dim=-1)
    if noise.shape[-1] != mean.shape[-1]:
        latent_dim = mean.shape[-1]
        raise ValueError(f"noise must have K = {latent_dim} numbers, got {tuple(noise.shape)}.")
    return mean + (0.5 * log_variance).exp() * noise, mean, log_variance


def _decode(parameters: Parameters, z: Float[Tensor, "S B N K"]) -> Float[Tensor, "S B N D"]:
    flat = dense(parameters, "decoder", z.transpose(0, 1).flatten(1, 2))
    return flat.unflatten(1, (z.shape[0], z.shape[2])).transpose(0, 1)
