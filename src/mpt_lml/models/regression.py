"""Bayesian linear regression with unknown noise as a model of its observations y_1, ..., y_n.

Masking them is cross-validation (Fong & Holmes 2020). Known noise: ``PPCA(tau * inputs, variance)``.
"""

import math
import sys
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.checks import Positive, checked
from mpt_lml.gaussian import Centered, LowRankPosterior
from mpt_lml.models.base import TractableModel
from mpt_lml.numerics import LOG_2PI, double, draw_normal, log_gamma_ratio, standard_gamma

__all__ = ["ConjugateRegression"]


@final
class ConjugateRegression(TractableModel):
    """y = Φ w + ε with ε ~ N(0, s² I), w | s² ~ N(0, τ² s² I) and s² ~ InverseGamma(a, b), unknown.

    Any subset of observations has a multivariate Student-t distribution with 2a degrees of freedom,
    y_R ~ t_{2a}(0, (b/a) (I + τ² Φ_R Φ_Rᵀ)).

    Args:
        inputs: Φ, (D, K), one row for each observation.
        prior_scale: τ > 0, in units of the noise.
        shape: a > 0.
        rate: b > 0, in squared units of y. The noise variance has prior mean b / (a − 1) where a > 1.

    Raises:
        TypeError: for inputs that are not floating point.
        ValueError: for entries that are not finite, or a number that is not positive; when it is used,
            for inputs so large beside the noise, or data so large, that rounding would be seen.

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
        shape: Positive = 2.0,
        rate: Positive = 1.0,
    ) -> None:
        self.inputs = inputs
        self.num_features = len(inputs)
        self.prior_scale = float(prior_scale)
        self.shape = float(shape)
        self.rate = float(rate)
        if not sys.float_info.min <= self.shape / self.rate <= sys.float_info.max:
            raise ValueError(
                f"shape / rate must be within the range of a float, got shape = {self.shape} and "
                f"rate = {self.rate}. Measure y in another unit: rate is in its square."
            )
        # Inputs are multiplied by τ' next to τ, and y by d next to √(a/b), powers of two: to multiply by
        # those rounds nothing, however many digits cancel in what follows. With τ'Φ for loadings, a
        # noise variance of (τ'/τ)² and d y for data, squares of y come out times d² (τ/τ')².
        self._input_scale = _power_of_two(self.prior_scale)
        self._data_scale = _power_of_two(math.sqrt(self.shape / self.rate))
        self._noise_variance = (self._input_scale / self.prior_scale) ** 2
        self._twice_rate = 2.0 * self.rate * self._data_scale**2 / self._noise_variance

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
        """The Gaussian of y in units of the noise, times τ' / τ."""
        scaled = self._input_scale * double(self.inputs)
        try:
            noise_variance = scaled.new_tensor(self._noise_variance)
            # Carefully, whatever the data: residuals and variances are asked for one after the other,
            # and far out a density moves by thousands of times what its variance is off by.
            return LowRankPosterior._of(scaled, noise_variance, observed, careful=True)
        except ValueError as reason:
            largest = self.prior_scale * double(self.inputs).detach().abs().max().item()
            raise ValueError(
                f"inputs times prior_scale are up to {largest:.3g}: beside a noise of 1 that is so large "
                "that rounding would be seen. Use smaller inputs, or a smaller prior_scale."
            ) from reason

    def _scaled(self, x: Tensor) -> Centered:
        """y in units near that of the prior noise: what follows is the same in all units."""
        x = double(x)
        # The largest variance that y can give to anything.
        scaled = self._input_scale * double(self.inputs).detach()
        spread = 1.0 + scaled.square().sum() / self._noise_variance
        largest = x.detach().square().sum(dim=1).max() / self.rate * spread
        if largest.isinf():
            farthest = x.detach().abs().max().item()
            raise ValueError(
                f"x is up to {farthest:.3g}: its squares overflow torch.float64. Use another unit, of "
                "which rate is the square."
            )
        return Centered.exactly(self._data_scale * x)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        given = self._posterior(observed)
        size = observed.sum(dim=1)[:, None].double()
        log_det = -2.0 * given.log_constant()[:, None] - size * math.log(self._noise_variance)
        prior_shape = torch.full_like(size, self.shape)
        constant = log_gamma_ratio(prior_shape, 0.5 * size) - 0.5 * log_det
        square = given.quadratic(self._scaled(x)) / self._twice_rate
        values = constant - 0.5 * size * math.log(self.rate)
        return (values - (self.shape + 0.5 * size) * square.log1p()).to(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        given = self._posterior(~mask)
        y = self._scaled(x)
        # The update of InverseGamma(a, b) by y_R; b and variances are in units of the b before it.
        a = self.shape + 0.5 * (~mask).sum(dim=1)[:, None, None].double()
        b = 1.0 + given.quadratic(y)[:, :, None] / self._twice_rate
        variance = b * given.variance()[:, None, :]
        # However far out y_R is, a Student-t expects y_j there, too. So residuals are asked for in units
        # of √b, rounded down to a power of two.
        root = b.detach().sqrt()
        unit = 0.5 * root / torch.frexp(root).mantissa
        _, residual = given.mean_and_residual(Centered.exactly(y.rounded / unit))
        square = residual.square() / (self._twice_rate * (variance / unit.square()))
        constant = log_gamma_ratio(a, 0.5) - 0.5 * (LOG_2PI + math.log(self.rate))
        log_variance = variance.log() - math.log(self._noise_variance)
        return (constant - 0.5 * log_variance - (a + 0.5) * square.log1p()).to(x)


def _power_of_two(value: float) -> float:
    """The largest that is not above ``value`` > 0."""
    _, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1)
