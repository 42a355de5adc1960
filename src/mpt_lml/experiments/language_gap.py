"""How far a network is from the source of its language, at the same sequences and masks (floor 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.experiments.language_network import paired_log_conditional
from mpt_lml.models.hmm import HMM

if TYPE_CHECKING:
    from transformers import BertForMaskedLM


@dataclass(frozen=True)
class Comparison:
    """A network against the source on the same sequences, orders and masks.

    ``by_size[n, o, M − 1]`` is s_p(A) − s_q(A) for sequence n and the mask A of size M that order o
    masks first; ``chain[n, o]`` is log p(x) − log p_σ(x) for that order σ. Both in nats.
    """

    by_size: Float[Tensor, "N O D"]
    chain: Float[Tensor, "N O"]
    source_by_size: Float[Tensor, "N O D"]

    @property
    def curve(self) -> Float[Tensor, " D"]:
        """The network's S(M), mean over sequences and orders."""
        return (self.source_by_size - self.by_size).mean(dim=(0, 1))

    @property
    def area(self) -> Float[Tensor, "N O"]:
        """Σ_M of the difference along every order, with every masked token scored."""
        return self.by_size.sum(dim=2)

    @property
    def spread(self) -> float:
        """Standard deviation of log p_σ(x) over orders σ of the same x, root mean square over x."""
        return self.chain.var(dim=1).mean().sqrt().item()


class Problem:
    """Fresh sequences of a source, random orders for each, and what the source says about them."""

    def __init__(
        self, source: HMM, num_data: int, num_orders: int, *, generator: torch.Generator
    ) -> None:
        features = source.num_features
        self.source = source
        self.x = source.sample(num_data, generator=generator)
        ranks = masks.sample_ranks(num_data * num_orders, features, generator=generator)
        self.shape = (num_data, num_orders, features)
        sizes = torch.arange(1, features + 1)
        self.mask = (ranks[:, None, :] < sizes[:, None]).flatten(0, 1)
        self.last = (ranks[:, None, :] == sizes[:, None] - 1).flatten(0, 1)
        self.rows = self.x.repeat_interleave(num_orders * features, dim=0)
        self.log_marginal = source.log_marginal(self.x)
        self.values = source.log_each(self.rows, self.mask)

    def compare(self, network: BertForMaskedLM) -> Comparison:
        """The network's conditionals at the same masks, float32, without gradients."""
        values = torch.cat(
            [
                paired_log_conditional(network, x, mask)
                for x, mask in zip(self.rows.split(1024), self.mask.split(1024), strict=True)
            ]
        )
        difference = self.values - values
        chain = (difference * self.last).sum(dim=1).view(self.shape).sum(dim=2)
        return Comparison(self.by_size(difference), chain, self.by_size(self.values))

    def by_size(self, values: Float[Tensor, "P D"]) -> Float[Tensor, "N O D"]:
        """Mean of ``values`` over the masked positions of every mask."""
        return (values.sum(dim=1) / self.mask.sum(dim=1)).view(self.shape)
