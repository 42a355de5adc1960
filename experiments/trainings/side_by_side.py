"""Small networks of one kind trained side by side: their weights are stacked along a first axis."""

import logging
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.nn.utils import vector_to_parameters
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import masks
from mpt_lml.checks import Count, Positive, checked
from mpt_lml.fit import Progress, silent
from mpt_lml.models.base import TractableModel
from mpt_score.networks.symbol_bert import SymbolBERT

STEPS_AT_ONCE = 100
"""Steps whose sequences and masks are drawn, and brought to the device, in one go."""

_log = logging.getLogger(__name__)


class SideBySide(nn.Module):
    """Networks of one kind as one module, whose weights have a first axis with one entry a network.

    A step of a small network is mostly overhead, and five of them in one step share it. An optimizer
    that works entry by entry, such as AdamW, trains each network as if it were alone, if the loss is
    the sum of their losses and gradients are not cut to a norm. ``.to(device)`` moves all of them.

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
    laws: Sequence[masks.SizeLaw],
    *,
    generators: Sequence[torch.Generator],
    num_steps: Count,
    batch_size: Count,
    learning_rate: Positive,
    half_precision: bool = False,
    progress: Progress = silent,
) -> Float[Tensor, "T networks"]:
    """Maximize each network's score of one random mask a sequence, on sequences never seen twice.

    With uniform sizes the loss of a network is, up to a constant and the factor D, its gap to the
    source: the mean over orders σ of KL(p ‖ q_σ). Draws are made on the CPU and moved to where the
    networks are, so that they are the same on every device.

    The program does not wait for a card within :data:`STEPS_AT_ONCE` steps, and draws the next of them
    while the card computes.

    Args:
        models: networks of one kind and on one device, which are trained in place.
        source: what the sequences are drawn from, of D symbols each.
        laws: one a network, of the size of its masks.
        generators: one a network; its sequences and masks are drawn from it.
        num_steps: of AdamW.
        batch_size: sequences a step and network.
        learning_rate: the largest of one cycle.
        half_precision: products in bfloat16, but for a CUDA card that only imitates it; the weights
            and AdamW stay float32.
        progress: shows the steps as they pass.

    Returns:
        The losses of every step and network, nats, where the networks are.

    Raises:
        ValueError: where there is not one law and one generator a network, and for networks on several
            devices.
        FloatingPointError: where a loss is not finite any more; the networks are what they were.

    >>> from mpt_lml import HMM
    >>> bert = SymbolBERT(12, 16, 8, seed=4)
    >>> draws = [torch.Generator().manual_seed(4)]
    >>> few = {"num_steps": 2, "batch_size": 4, "learning_rate": 3e-3}
    >>> train_side_by_side(
    ...     [bert], HMM.cyclic(), [masks.UniformSize()], generators=draws, **few
    ... ).shape
    torch.Size([2, 1])
    """
    for name, given in (("laws", laws), ("generators", generators)):
        if len(given) != len(models) or not models:
            raise ValueError(
                f"{name} must be one for each network, got {len(given)} for {len(models)}."
            )
    together = SideBySide([model.network for model in models])
    device = together.weights[0].device
    dtype = _dtype_of_products(half_precision, device)
    optimizer = AdamW(together.parameters(), lr=learning_rate, fused=True)
    schedule = OneCycleLR(optimizer, learning_rate, total_steps=num_steps)
    mask_token = models[0].mask_token

    def losses_with_gradient(x: Tensor, mask: Tensor) -> Tensor:
        """The loss of each network; the weights get its gradient."""
        losses = _losses(together, x, mask, mask_token, dtype)
        weights = list(together.weights)
        # A sum over networks: each has the gradient that it would have alone.
        gradients = torch.autograd.grad(losses.sum(), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            # In the order of the weight's numbers, which a fused AdamW takes for granted: the gradient
            # of a product may come transposed.
            weight.grad = gradient.contiguous()
        return losses.detach()

    losses = torch.full((num_steps, len(models)), torch.nan, device=device)
    for step in progress(range(num_steps), "step"):
        place = step % STEPS_AT_ONCE
        if place == 0:
            num_drawn = min(STEPS_AT_ONCE, num_steps - step)
            x, mask = _draw(source, laws, num_drawn, batch_size, generators, device)
            if step > 0:
                # This waits for the card, which had work to do while we drew.
                _require_finite(losses[:step])
        losses[step] = losses_with_gradient(x[place], mask[place])
        optimizer.step()
        schedule.step()
    _require_finite(losses)
    together.copy_to([model.network for model in models])
    return losses


def _dtype_of_products(half_precision: bool, device: torch.device) -> torch.dtype:
    """bfloat16 where it is wanted, and not imitated. (float16 would need its losses scaled.)"""
    if not half_precision:
        return torch.float32
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float32
    return torch.bfloat16


def _draw(
    source: TractableModel,
    laws: Sequence[masks.SizeLaw],
    num_steps: int,
    batch_size: int,
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Sequences and masks of the next steps, (steps, networks, batch, D) each, on ``device``."""
    shape = (num_steps, len(generators), batch_size, source.num_features)
    on_card = device.type == "cuda"
    x = torch.empty(shape, dtype=torch.int64)
    mask = torch.empty(shape, dtype=torch.bool)
    for step in range(num_steps):
        # Networks of one seed see the same sequences as long as their generators are in one state.
        drawn: dict[bytes, tuple[Tensor, Tensor]] = {}
        for number, (law, generator) in enumerate(zip(laws, generators, strict=True)):
            state = generator.get_state().numpy().tobytes()
            if state in drawn:
                sequences, state_after = drawn[state]
                generator.set_state(state_after)
            else:
                sequences = source.sample(batch_size, generator=generator)
                drawn[state] = (sequences, generator.get_state())
            x[step, number] = sequences
            mask[step, number] = masks.sample_masks(
                batch_size, source.num_features, law, generator=generator
            )
    if on_card:
        x, mask = x.pin_memory(), mask.pin_memory()  # so that the program need not wait for a copy
    return x.to(device, non_blocking=on_card), mask.to(device, non_blocking=on_card)


def _losses(
    together: SideBySide, x: Tensor, mask: Tensor, mask_token: int, dtype: torch.dtype
) -> Tensor:
    """Minus the mean score of each network's batch, (networks,), of ``x`` (networks, batch, D)."""
    logits = together(x.masked_fill(mask, mask_token), dtype)
    # Of every symbol; the score takes those that are hidden.
    losses = functional.cross_entropy(logits.flatten(0, 2), x.flatten(), reduction="none")
    # scores.mask_score without its checks, for which a program would wait at each step.
    hidden = mask.flatten(0, 1)
    score = (-losses).view(hidden.shape).where(hidden, 0.0).sum(dim=1) / hidden.sum(dim=1)
    return -score.view(x.shape[:2]).mean(dim=1)


def _require_finite(losses: Tensor) -> None:
    failed = (~losses.isfinite()).nonzero()
    if len(failed):
        step, network = failed[0].tolist()
        raise FloatingPointError(
            f"the loss of network {network} is {losses[step, network].item()} at step {step}; the "
            "networks were left as they were. A smaller learning rate may help."
        )
