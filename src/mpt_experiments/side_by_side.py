"""Small networks of one kind trained side by side: their weights are stacked along a first axis."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap


class SideBySide(nn.Module):
    """Networks of one kind as one module, whose weights have a first axis with one entry a network.

    A step of a small network is mostly overhead, and five of them in one step share it. An optimizer
    that works entry by entry, such as AdamW, trains each network as if it were alone, if the loss is
    the sum of their losses and gradients are not cut to a norm.

    Args:
        networks: of one kind, whose answers have ``logits``. Their weights are copied.

    >>> from mpt_score.networks.symbol_bert import SymbolBERT
    >>> both = SideBySide([SymbolBERT(12, 16, 8, seed=seed).network for seed in (4, 44)])
    >>> both(torch.zeros(2, 5, 16, dtype=torch.int64)).shape  # networks, rows, places, symbols
    torch.Size([2, 5, 16, 13])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        weights, self._constants = stack_module_state(list(networks))
        self._names = tuple(weights)
        self._one = (networks[0],)  # in a tuple, so that its weights are not this module's
        self.weights = nn.ParameterList([weight.detach().clone() for weight in weights.values()])

    def forward(self, input_ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The logits of each network for its own rows, computed in ``dtype``, given in float32.

        Args:
            input_ids: (networks, rows, places).
            dtype: of the products.

        Returns:
            (networks, rows, places, symbols).
        """
        weights = [weight.to(dtype) for weight in self.weights]
        named = dict(zip(self._names, weights, strict=True))
        logits: Tensor = vmap(self._logits)(named, self._constants, input_ids)
        return logits.float()

    def _logits(
        self, weights: dict[str, Tensor], constants: dict[str, Tensor], ids: Tensor
    ) -> Tensor:
        answer = functional_call(self._one[0], (weights, constants), kwargs={"input_ids": ids})
        logits: Tensor = answer.logits
        return logits

    @torch.no_grad()
    def vectors(self) -> Float[Tensor, "networks weights"]:
        """A copy of the weights, one row a network, as ``vector_to_parameters`` takes them."""
        return torch.cat([weight.flatten(1) for weight in self.weights], dim=1)
