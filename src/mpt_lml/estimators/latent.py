"""log p(x) of models that are an integral over z, by importance weights, and where to look for z."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids
from mpt_lml.models.vae import VAE, LatentVariableModel
from mpt_lml.numerics import LOG_2PI, chunks, differentiable, without_inference
from mpt_lml.results import Estimate
from mpt_lml.spec import require, require_entries, require_finite
from mpt_lml.verdicts import mean_and_error


@dataclass(frozen=True, eq=False)
class GaussianProposal:
    """N(mean, factor factorᵀ) of z for every datum, (N, K) and (N, K, K): where to look for p(z | x).

    ``prior_share`` of the draws come from the prior instead (a defensive mixture, Hesterberg 1995):
    with a share a > 0 no weight exceeds p(x | z)/a, and their variance is finite.
    """

    mean: Float[Tensor, "N K"]
    factor: Float[Tensor, "N K K"]
    prior_share: float = 0.0

    def __post_init__(self) -> None:
        require(vars(self), "mean N K, factor N K K, prior_share [0,1)", finite=False)

    def require_finite(self) -> None:
        """Raise ``ValueError`` for a mean or a factor that is not finite."""
        require_finite("the proposal's mean", self.mean.detach())
        require_finite("the proposal's factor", self.factor.detach())

    def sample(self, num_samples: int, *, generator: torch.Generator) -> Float[Tensor, "S N K"]:
        require(locals(), "num_samples 1.., generator")
        shape = (num_samples, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype)
        z = self.mean + (self.factor @ noise[..., None])[..., 0]
        if not self.prior_share:
            return z
        choice = torch.rand(shape[:2], generator=generator, dtype=self.mean.dtype)
        return torch.where((choice < self.prior_share)[..., None], noise, z)

    def log_density(self, z: Float[Tensor, "S N K"]) -> Float[Tensor, "S N"]:
        require(vars(self) | {"z": z}, "mean N K, z ... N K", finite=False)
        white = torch.linalg.solve(self.factor, (z - self.mean)[..., None])[..., 0]
        log_volume = torch.linalg.slogdet(self.factor).logabsdet
        constant = 0.5 * z.shape[-1] * LOG_2PI
        own = -0.5 * white.square().sum(dim=-1) - constant - log_volume
        if not self.prior_share:
            return own
        prior = -0.5 * z.square().sum(dim=-1) - constant
        share = math.log1p(-self.prior_share), math.log(self.prior_share)
        return torch.logaddexp(own + share[0], prior + share[1])


def require_decoded(what: str, value: Tensor) -> None:
    """Refuse NaN in ``what`` a model says at finite z: its decoder's, as data are checked before."""
    lost = int(value.isnan().sum())
    if lost:
        raise ValueError(
            f"{what} is NaN in {lost} of {value.numel()} places: the model's decoder overflows, or its "
            "weights are NaN. Look at what it returns."
        )


def require_encoded(mean: Tensor, variance: Tensor) -> None:
    """Refuse what is no normal distribution of z: an encoder's mean and variance."""
    remedy = "Look at its weights, or use estimators.at_mode, which needs no encoder."
    mean, variance = mean.detach(), variance.detach()
    require_entries("the encoder's mean", mean, ~mean.isfinite(), "finite", remedy)
    bad = (variance == 0) | ~variance.isfinite()
    legal = "finite and > 0 (the encoder returns its logarithm)"
    require_entries("the encoder's variance", variance, bad, legal, remedy)


_Data = Float[Tensor, "N D"]
_Observed = Bool[Tensor, "#N D"] | None
ProposalRule = Callable[[LatentVariableModel, _Data, _Observed], GaussianProposal]
_SPEC = "model LatentVariableModel, x data, x ... D, bool observed? ... D"


def from_prior(model: LatentVariableModel, x: _Data, observed: _Observed) -> GaussianProposal:
    """The prior N(0, I): knows nothing of x (N, D), and its weights have the largest variance.

    >>> from_prior(BernoulliPCA(torch.ones(3, 2)), torch.ones(1, 3), None).mean
    tensor([[0., 0.]])
    """
    require(locals(), _SPEC)
    identity = torch.eye(model.latent_dim, dtype=x.dtype, device=x.device)
    return GaussianProposal(x.new_zeros(len(x), model.latent_dim), identity.expand(len(x), -1, -1))


def from_encoder(model: LatentVariableModel, x: _Data, observed: _Observed) -> GaussianProposal:
    """q(z | x) of a ``VAE``; hidden coordinates are filled with the decoder's mean at z = 0.

    An encoder has never seen holes: what it says of a filled-in datum may be far from p(z | x_R) and
    too narrow for weights of finite variance. Raises ``TypeError`` for a model without an encoder.

    >>> model = VAE(lambda x: (x, 0 * x), lambda z: z, num_features=2, latent_dim=2)
    >>> from_encoder(model, torch.ones(1, 2), None).mean
    tensor([[1., 1.]])
    """
    require(locals(), _SPEC)
    if not isinstance(model, VAE):
        raise TypeError(f"{type(model).__name__} has no encoder; use at_mode or from_prior.")
    if observed is not None:
        fill = model.decode(x.new_zeros(1, model.latent_dim)).detach()
        require_decoded("the decoder's output at z = 0", fill)
        x = torch.where(observed, x, fill)
    mean, variance = model.encode(x)
    require_encoded(mean, variance)
    return GaussianProposal(mean, torch.diag_embed(variance.sqrt()))


@differentiable()
def at_mode(model: LatentVariableModel, x: _Data, observed: _Observed) -> GaussianProposal:
    """The normal at the mode of p(z | x_R) with its curvature, 1.2 times as wide.

    Wider than the Laplace approximation, because posteriors have heavier tails, and with a tenth of
    the draws from the prior, which see other modes. The search starts at z = 0 or, where that is more
    probable, at the encoder's mean.

    >>> at_mode(BernoulliPCA(torch.zeros(3, 2)), torch.ones(1, 3), None).mean
    tensor([[0., 0.]])
    """
    require(locals(), _SPEC)
    x = without_inference(x)
    observed = None if observed is None else without_inference(observed)
    start = x.new_zeros(len(x), model.latent_dim)
    with torch.no_grad():
        log_joint_at_start = model.log_joint(x, start, observed)
        require_decoded("log p(x, z) at z = 0", log_joint_at_start)
        if isinstance(model, VAE):
            mean = from_encoder(model, x, observed).mean
            better = model.log_joint(x, mean, observed) > log_joint_at_start
            start = torch.where(better[:, None], mean, start)
    joint = partial(model.log_joint, x, observed=observed)
    mode, precision = grids.find_modes(joint, start, tolerance=1e-4, accepted=0.1)
    factor = torch.linalg.inv(torch.linalg.cholesky(precision)).mT
    return GaussianProposal(mode, 1.2 * factor, prior_share=0.1)


def log_weights(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    proposal: GaussianProposal,
    num_samples: int,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "S N"]:
    """log p(x, z_s) − log q(z_s) for z_s ~ q, nats, (S, N), in bounded memory.

    Raises ``ValueError`` for a ``proposal`` that is not finite and for a decoder that answers NaN.

    >>> model, x = BernoulliPCA(torch.zeros(3, 2)), torch.ones(1, 3)
    >>> log_weights(model, x, from_prior(model, x, None), 2, generator=torch.Generator()).exp()
    tensor([[0.1250],
            [0.1250]])
    """
    require(locals(), "model LatentVariableModel, x data, num_samples 1.., generator")
    require(locals(), "proposal GaussianProposal")
    proposal.require_finite()
    parts = []
    for rows in chunks(num_samples, x.element_size() * x.numel() * 6):
        z = proposal.sample(rows.stop - rows.start, generator=generator)
        log_joint = model.log_joint(x, z)
        require_decoded("log p(x, z) at draws from the proposal", log_joint)
        parts.append(log_joint - proposal.log_density(z))
    return torch.cat(parts)


def log_mean_weight(log_weight: Float[Tensor, "S B"]) -> tuple[Tensor, Tensor]:
    """Logarithm of the mean of S weights, and its standard error by the delta method."""
    value = log_weight.logsumexp(dim=0) - math.log(len(log_weight))
    return value, mean_and_error((log_weight - value).exp())[1]


def mean_over_data(log_weight: Float[Tensor, "S N"]) -> Estimate:
    """Mean of log mean_s w_s; its error adds up those of the data, which are independent."""
    value, error = log_mean_weight(log_weight)
    if (value == -math.inf).any():
        row = int((value == -math.inf).long().argmax())
        raise ValueError(
            f"all weights of row {row} of x are 0 in {value.dtype}: log p(x, z) overflows at every draw. "
            "Use float64, data nearer to the model, or another proposal."
        )
    total = error.square().sum().sqrt().item() / len(error)
    return Estimate(value.mean().item(), total, len(log_weight))


def iwae(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    num_samples: int,
    *,
    generator: torch.Generator,
    proposal: ProposalRule = at_mode,
) -> Estimate:
    """log (1/S) Σ_s p(x, z_s)/q(z_s), z_s ~ q(z | x), mean over the data, nats.

    Burda et al. 2016, Eq. 8. In expectation a lower bound of log p(x) that rises with S; for weights
    of finite variance the bias is −Var(w)/(2 S E[w]²) + O(1/S²) a datum. The standard error, over z, is
    that of the weights' mean by the delta method and says nothing about a bias. ``proposal`` is
    :func:`at_mode`, :func:`from_encoder` (what Burda et al. use) or :func:`from_prior`. Raises
    ``ValueError`` for an encoder or a ``proposal`` that is not finite and a decoder that answers NaN.

    >>> model, g = BernoulliPCA(torch.zeros(3, 2)), torch.Generator().manual_seed(0)
    >>> iwae(model, torch.ones(1, 3), 50, generator=g, proposal=from_prior)
    -2.0794 ± 0.0000 nats
    """
    require(locals(), "model LatentVariableModel, x data, num_samples 2.., generator")
    require(locals(), "proposal Callable")
    with torch.no_grad():
        q = proposal(model, x, None)
        require({"proposal()": q}, "proposal() GaussianProposal")
        return mean_over_data(log_weights(model, x, q, num_samples, generator=generator))
