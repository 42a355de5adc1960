"""Small networks of one kind trained side by side: their weights are stacked along a first axis."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.nn.utils import vector_to_parameters
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import fit, masks, scores
from mpt_lml.checks import Count, Positive, checked
from mpt_lml.fit import Progress, silent
from mpt_lml.models.base import TractableModel
from mpt_score.networks.symbol_bert import SymbolBERT


class SideBySide(nn.Module):
    """Networks of one kind as one module, whose weights have a first axis with one entry a network.

    A step of a small network is mostly overhead, and five of them in one step share it. An optimizer
    that works entry by entry, such as AdamW, trains each network as if it were alone, if the loss is
    the sum of their losses and gradients are not cut to a norm.

    Args:
        networks: of one kind and on one device, whose answers have ``logits``. Their weights are
            copied.

    Raises:
        ValueError: for networks on several devices.

    >>> both = SideBySide([SymbolBERT(12, 16, 8, seed=seed).network for seed in (4, 44)])
    >>> both(torch.zeros(2, 5, 16, dtype=torch.int64)).shape  # networks, rows, places, symbols
    torch.Size([2, 5, 16, 13])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        devices = {_device_of(network) for network in networks}
        if len(devices) > 1:
            raise ValueError(
                f"networks must be on one device, and are on {' and '.join(sorted(map(str, devices)))}. "
                "Move them with .to(device)."
            )
        # By name, in the order of ``parameters()``; constants are buffers, such as position ids.
        # A weight that stands in two places, such as BERT's embedding, which is its decoder too, is
        # there once: functional_call puts it into both.
        weights, constants = stack_module_state(list(networks))
        self._names = tuple(weights)
        # Their own names have dots in them, which those of buffers must not.
        self._buffer_names = {name: f"constant_{n}" for n, name in enumerate(constants)}
        for name, value in constants.items():
            self.register_buffer(self._buffer_names[name], value, persistent=False)
        self._one = (networks[0],)  # in a tuple, so that its weights are not this module's
        self.weights = nn.ParameterList([weight.detach().clone() for weight in weights.values()])

    def forward(self, input_ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The logits of each network for its own rows, computed in ``dtype``, given in float32.

        Args:
            input_ids: (networks, rows, places).
            dtype: of the products.

        Returns:
            (networks, rows, places, symbols), where ``input_ids`` are.
        """
        ids = input_ids.to(self.weights[0].device)
        weights = [weight.to(dtype) for weight in self.weights]
        named = dict(zip(self._names, weights, strict=True))
        constants = {name: getattr(self, buffer) for name, buffer in self._buffer_names.items()}
        logits: Tensor = vmap(self._logits)(named, constants, ids)
        return logits.float().to(input_ids.device)

    def _logits(
        self, weights: dict[str, Tensor], constants: dict[str, Tensor], ids: Tensor
    ) -> Tensor:
        answer = functional_call(self._one[0], (weights, constants), kwargs={"input_ids": ids})
        logits: Tensor = answer.logits
        return logits

    @torch.no_grad()
    def copy_to(self, networks: Sequence[nn.Module]) -> None:
        """Give each network its weights, where it is."""
        # One row a network, its weights in the order of ``parameters()``, in which they were stacked.
        vectors = torch.cat([weight.flatten(1) for weight in self.weights], dim=1)
        for network, vector in zip(networks, vectors, strict=True):
            vector_to_parameters(vector.to(_device_of(network)), network.parameters())


def _device_of(network: nn.Module) -> torch.device:
    return next(network.parameters()).device


@checked
def train_side_by_side(
    models: Sequence[SymbolBERT],
    source: TractableModel,
    law: masks.SizeLaw,
    *,
    generators: Sequence[torch.Generator],
    num_steps: Count,
    batch_size: Count,
    learning_rate: Positive,
    half_precision: bool = False,
    progress: Progress = silent,
) -> None:
    """Maximize each network's score of one random mask a sequence, on sequences never seen twice.

    With uniform sizes the loss of a network is, up to a constant and the factor D, its gap to the
    source: the mean over orders σ of KL(p ‖ q_σ). Draws are made on the CPU and moved to where the
    networks are, so that they are the same on every device.

    Args:
        models: networks of one kind and on one device, which are trained in place.
        source: what the sequences are drawn from, of D symbols each.
        law: of the size of the mask.
        generators: one a network; its sequences and masks are drawn from it.
        num_steps: of AdamW.
        batch_size: sequences a step and network.
        learning_rate: the largest of one cycle.
        half_precision: products in bfloat16; the weights and AdamW stay float32.
        progress: shows the steps as they pass.

    Raises:
        ValueError: where there is not one generator a network, and for networks on several devices.

    >>> from mpt_lml import HMM
    >>> bert = SymbolBERT(12, 16, 8, seed=4)
    >>> draws = [torch.Generator().manual_seed(4)]
    >>> few = {"num_steps": 2, "batch_size": 4, "learning_rate": 3e-3}
    >>> train_side_by_side([bert], HMM.cyclic(), masks.UniformSize(), generators=draws, **few)
    """
    if len(generators) != len(models) or not models:
        raise ValueError(
            f"generators must be one for each network, got {len(generators)} for {len(models)}."
        )
    together = SideBySide([model.network for model in models])
    device = together.weights[0].device
    dtype = torch.bfloat16 if half_precision else torch.float32
    optimizer = AdamW(together.parameters(), lr=learning_rate, fused=True)
    schedule = OneCycleLR(optimizer, learning_rate, total_steps=num_steps)
    num_features = models[0].num_features
    mask_token = models[0].mask_token

    def loss(step: int) -> Tensor:
        sequences = []
        hidden = []
        for generator in generators:
            sequences.append(source.sample(batch_size, generator=generator))
            hidden.append(masks.sample_masks(batch_size, num_features, law, generator=generator))
        x = torch.stack(sequences).to(device)
        mask = torch.stack(hidden).to(device)
        logits = together(x.masked_fill(mask, mask_token), dtype)
        # Of every symbol; the score takes those that are hidden.
        losses = functional.cross_entropy(logits.flatten(0, 2), x.flatten(), reduction="none")
        score = scores.mask_score(-losses.view(-1, num_features), mask.flatten(0, 1))
        # A mean over the batch, a sum over networks: each has the gradient that it would have alone.
        return -score.view(len(models), batch_size).mean(dim=1).sum()

    # Without ``max_norm``: a norm of all gradients would tie the networks to each other.
    fit.descend(together, loss, [schedule], num_steps=num_steps, progress=progress)
    together.copy_to([model.network for model in models])
