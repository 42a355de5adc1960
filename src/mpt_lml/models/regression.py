"""Bayesian linear regression with unknown noise as a model of its observations y_1, ..., y_n.

Masking them is cross-validation (Fong & Holmes 2020). Known noise: ``PPCA(tau * inputs, variance)``.
"""

import math
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.models.base import TractableModel
from mpt_lml.numerics import LOG_2PI
from mpt_lml.spec import require


@final
class ConjugateRegression(TractableModel):
    """y = Φ w + ε with ε ~ N(0, s² I), w | s² ~ N(0, τ² s² I) and s² ~ InverseGamma(a, b), unknown.

    Any subset of observations has a multivariate Student-t distribution with 2a degrees of freedom,
    y_R ~ t_{2a}(0, (b/a) (I + τ² Φ_R Φ_Rᵀ)).

    ``inputs`` (D, K) are Φ, one row a datum; ``prior_scale`` is τ > 0, in units of the noise;
    ``shape`` a > 0 and ``rate`` b > 0: the noise variance has prior mean b / (a − 1) where a > 1.
    Raises ``ValueError`` for entries that are not finite, or a number that is not positive.

    >>> model = ConjugateRegression(torch.ones(3, 1))  # three repeated measurements
    >>> model.log_conditional(torch.zeros(1, 3), torch.eye(3).bool()).shape  # nats
    torch.Size([3, 1, 3])
    """

    def __init__(
        self,
        inputs: Float[Tensor, "D K"],
        *,
        prior_scale: float = 1.0,
        shape: float = 2.0,
        rate: float = 1.0,
    ) -> None:
        require(locals(), "inputs D k, prior_scale (0,inf), shape (0,inf), rate (0,inf)")
        self.inputs, self.num_features = inputs, len(inputs)
        self.prior_scale, self.shape, self.rate = prior_scale, shape, rate

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        dtype = self.inputs.dtype
        weights = torch.randn(n, self.inputs.shape[1], generator=generator, dtype=dtype)
        noise = torch.randn(n, self.num_features, generator=generator, dtype=dtype)
        shape = torch.full((n, 1), self.shape, dtype=dtype)
        precision = torch._standard_gamma(shape, generator=generator) / self.rate
        return (self.prior_scale * weights @ self.inputs.T + noise) / precision.sqrt()

    def _posterior(self, observed: Bool[Tensor, "P D"]) -> LowRankPosterior:
        scaled, one = self.prior_scale * self.inputs, self.inputs.new_ones(())
        return LowRankPosterior.of(scaled, one, observed)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        square, base = _quadratic(self._posterior(observed), x)
        a = self.shape + 0.5 * observed.sum(dim=1).to(x)[:, None]
        start = torch.tensor(self.shape).to(x)
        constant = torch.lgamma(a) - torch.lgamma(start) + self.shape * math.log(self.rate)
        return base + constant - a * (self.rate + 0.5 * square).log()

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        given = self._posterior(~mask)
        square, _ = _quadratic(given, x)
        a = self.shape + 0.5 * (~mask).sum(dim=1).to(x)[:, None, None]
        b = self.rate + 0.5 * square[:, :, None]
        variance = given.variance()[:, None, :]  # with the noise set to 1
        constant = torch.lgamma(a + 0.5) - torch.lgamma(a) - 0.5 * (LOG_2PI + b.log())
        tail = torch.log1p(0.5 * given.explain(x)[1].square() / (variance * b))
        return constant - 0.5 * variance.log() - (a + 0.5) * tail


def _quadratic(given: LowRankPosterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """y_Rᵀ (I + τ² Φ_R Φ_Rᵀ)⁻¹ y_R, (P, N), and log N(0; 0, I + τ² Φ_R Φ_Rᵀ), (P, 1)."""
    at_zero = given.log_marginal(torch.zeros_like(x[:1]))
    return 2.0 * (at_zero - given.log_marginal(x)), at_zero
