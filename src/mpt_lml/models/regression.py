"""Bayesian linear regression with unknown noise as a model of its observations y_1, ..., y_n.

Masking them is cross-validation (Fong & Holmes 2020). Known noise: ``PPCA(tau * inputs, variance)``.
"""

import math
from typing import Annotated, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.checks import Interval, Positive, checked
from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.models.base import TractableModel
from mpt_lml.numerics import LOG_2PI, double, draw_normal, standard_gamma

__all__ = ["ConjugateRegression"]

# A difference of log Γ of numbers up to 1e6 is right to 1e-8.
_Shape = Annotated[
    float,
    Interval("(0,1e6]", "Such a noise is all but known: use PPCA(prior_scale * inputs, variance)."),
]


@final
class ConjugateRegression(TractableModel):
    """y = Φ w + ε with ε ~ N(0, s² I), w | s² ~ N(0, τ² s² I) and s² ~ InverseGamma(a, b), unknown.

    Any subset of observations has a multivariate Student-t distribution with 2a degrees of freedom,
    y_R ~ t_{2a}(0, (b/a) (I + τ² Φ_R Φ_Rᵀ)).

    Args:
        inputs: Φ, (D, K), one row for each observation.
        prior_scale: τ > 0, in units of the noise.
        shape: a, between 0 and 1e6.
        rate: b > 0, in squared units of y. The noise variance has prior mean b / (a − 1) where a > 1.

    Raises:
        TypeError: for inputs that are not floating point.
        ValueError: for entries that are not finite, or a number outside its interval; when it is used,
            for ‖``inputs``‖ times ``prior_scale`` above 1.4e5, where conditional variances lose too many
            digits, and for data whose squares overflow.

    >>> model = ConjugateRegression(torch.ones(3, 1))  # three repeated measurements
    >>> model.log_conditional(torch.zeros(1, 3), torch.eye(3).bool()).shape  # nats
    torch.Size([3, 1, 3])
    """

    @checked
    def __init__(
        self,
        inputs: Float[Tensor, "D k"],  # a small k: K may be 0
        *,
        prior_scale: Positive = 1.0,
        shape: _Shape = 2.0,
        rate: Positive = 1.0,
    ) -> None:
        self.inputs = inputs
        self.num_features = len(inputs)
        self.prior_scale = float(prior_scale)
        self.shape = float(shape)
        self.rate = float(rate)

    @property
    def data_device(self) -> torch.device | None:
        return self.inputs.device

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        inputs = self.inputs
        weights = draw_normal((n, inputs.shape[1]), generator=generator, like=inputs)
        noise = draw_normal((n, self.num_features), generator=generator, like=inputs)
        shape = torch.full((n, 1), self.shape, dtype=inputs.dtype)
        precision = standard_gamma(shape, generator=generator).to(inputs) / self.rate
        location = self.prior_scale * weights @ inputs.T
        return (location + noise) / precision.sqrt()

    def _posterior(self, observed: Bool[Tensor, "P D"]) -> LowRankPosterior:
        """The Gaussian of y in units of the noise."""
        scaled = self.prior_scale * double(self.inputs)
        try:
            return LowRankPosterior.of(scaled, scaled.new_tensor(1.0), observed)
        except ValueError as reason:
            raise ValueError(
                f"inputs times prior_scale are up to {scaled.detach().abs().max().item():.3g}, so large "
                "beside a noise of 1 that conditional variances would lose too many digits. Use smaller "
                "inputs, or a smaller prior_scale."
            ) from reason

    def _scaled(self, x: Tensor) -> Tensor:
        """y in units of √b: what follows is the same in all units."""
        scaled = double(x) / math.sqrt(self.rate)
        if scaled.detach().square().sum().isinf():
            raise ValueError(
                f"x is up to {x.detach().abs().max().item():.3g}: its squares overflow torch.float64. "
                "Use another unit, of which rate is the square."
            )
        return scaled

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        posterior = self._posterior(observed)
        half_size = 0.5 * observed.sum(dim=1)[:, None].double()
        constant = torch.lgamma(self.shape + half_size) - math.lgamma(self.shape)
        constant = constant - half_size * math.log(self.rate)
        square = 0.5 * posterior.quadratic(self._scaled(x))
        log_constant = constant + posterior.log_constant()[:, None]
        return (log_constant - (self.shape + half_size) * square.log1p()).to(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        posterior = self._posterior(~mask)
        y = self._scaled(x)
        # The update of InverseGamma(a, b) by y_R; b and variances are in units of the b before it.
        a = self.shape + 0.5 * (~mask).sum(dim=1)[:, None, None].double()
        b = 1.0 + 0.5 * posterior.quadratic(y)[:, :, None]
        variance = b * posterior.variance()[:, None, :]
        square = 0.5 * posterior.squared_residual(y) / variance
        constant = torch.lgamma(a + 0.5) - torch.lgamma(a) - 0.5 * (LOG_2PI + math.log(self.rate))
        return (constant - 0.5 * variance.log() - (a + 0.5) * square.log1p()).to(x)
