"""A small BERT for the symbols of a hidden Markov source: built, trained, stored (floor 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mpt_lml import masks
from mpt_lml.experiments.registry import Progress, silent
from mpt_lml.files import replacing
from mpt_lml.models.base import FromFunction
from mpt_lml.models.hmm import HMM

if TYPE_CHECKING:
    from transformers import BertForMaskedLM

LAWS: dict[str, masks.SizeLaw] = {
    "fixed-15": masks.FixedRate(0.15),
    "fixed-50": masks.FixedRate(0.5),
    "fixed-80": masks.FixedRate(0.8),
    "uniform": masks.UniformSize(),
    "stratified": masks.UniformSize(),  # the same law, its sizes spread evenly over each batch
}


@dataclass(frozen=True)
class Recipe:
    """How one network is trained."""

    num_steps: int = 3000
    batch_size: int = 128
    learning_rate: float = 3e-3
    half_precision: bool = True  # products in bfloat16; the weights and AdamW stay float32


def build_network(source: HMM, width: int = 64, *, seed: int) -> BertForMaskedLM:
    """A two-layer BERT for the symbols of ``source`` and one more, the mask token.

    ``transformers``' own classes, no dropout. Weights are drawn with standard deviation
    1/√width, so that positions and symbols enter the first sum at the same scale as the layers
    expect (BERT's 0.02 is made for a width of 768).
    """
    from transformers import BertConfig
    from transformers import BertForMaskedLM as Network

    config = BertConfig(
        vocab_size=source.num_symbols + 1,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=source.num_features,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=1.0 / math.sqrt(width),
        pad_token_id=None,
    )
    config._attn_implementation = "eager"  # for 16 tokens faster than the fused kernel
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
        torch.manual_seed(seed)
        return Network(config)


def training_masks(
    law: str, num_masks: int, num_features: int, *, generator: torch.Generator
) -> Bool[Tensor, "P D"]:
    """One mask for each sequence of a batch, (P, D)."""
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}.")
    if law != "stratified":
        return masks.sample_masks(num_masks, num_features, LAWS[law], generator=generator)
    ranks = masks.sample_ranks(num_masks, num_features, generator=generator)
    sizes = LAWS[law].stratified(num_masks, num_features, generator=generator)
    return ranks < sizes[:, None]


@torch.no_grad()
def log_values(
    network: BertForMaskedLM, x: Int[Tensor, "N D"], mask: Bool[Tensor, "N D"]
) -> Float[Tensor, "N D V"]:
    """log q(x_j = v | x_R) for sequence n under its own mask and every token v, float64."""
    token = network.config.vocab_size - 1
    logits: Tensor = network(input_ids=x.masked_fill(mask, token)).logits
    return logits.double().log_softmax(dim=2)


def paired_log_conditional(
    network: BertForMaskedLM, x: Int[Tensor, "N D"], mask: Bool[Tensor, "N D"]
) -> Float[Tensor, "N D"]:
    """log q(x_j | x_R) for sequence n under its own mask, (N, D) float64; 0 where not masked."""
    values = log_values(network, x, mask).gather(2, x[..., None]).squeeze(2)
    return values.masked_fill(~mask, 0.0)


def conditionals(network: BertForMaskedLM) -> FromFunction:
    """The network as a model of conditionals, for curves and estimators."""
    return FromFunction(
        partial(log_values, network), network.config.max_position_embeddings, rows=1024
    )


def masked_scores(
    network: BertForMaskedLM,
    x: Int[Tensor, "N D"],
    mask: Bool[Tensor, "N D"],
    *,
    half_precision: bool = False,
) -> Float[Tensor, " N"]:
    """(1/M) Σ_{j∈A} log q(x_j | x_R) for sequence n under its own mask A_n, (N,), differentiable."""
    token = network.config.vocab_size - 1
    inputs = {"input_ids": x.masked_fill(mask, token)}
    if half_precision:
        weights = {name: value.bfloat16() for name, value in network.named_parameters()}
        output = torch.func.functional_call(network, weights, kwargs=inputs)
    else:
        output = network(**inputs)
    logits = output.logits.float() if half_precision else output.logits
    loss = functional.cross_entropy(logits.transpose(1, 2), x, reduction="none")
    return -(loss * mask).sum(dim=1) / mask.sum(dim=1)


def train(
    network: BertForMaskedLM,
    source: HMM,
    law: str,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    watch: Callable[[int], None] | None = None,
    progress: Progress = silent,
) -> None:
    """Maximize the score of one random mask a sequence, on sequences that are never seen twice.

    AdamW with one cycle of the learning rate. ``watch`` is called with 0, 1, ..., ``num_steps``
    before the first step and after each.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=recipe.learning_rate, total_steps=recipe.num_steps
    )
    features = source.num_features
    for step in progress(range(recipe.num_steps), f"{law}, step"):
        if watch is not None:
            watch(step)
        x = source.sample(recipe.batch_size, generator=generator)
        mask = training_masks(law, recipe.batch_size, features, generator=generator)
        score = masked_scores(network, x, mask, half_precision=recipe.half_precision).mean()
        optimizer.zero_grad()
        (-score).backward()
        optimizer.step()
        schedule.step()
    if watch is not None:
        watch(recipe.num_steps)


def save_network(network: BertForMaskedLM, path: Path) -> None:
    """Weights as float32 safetensors; its metadata name the sizes :func:`load_network` needs."""
    from safetensors.torch import save_file

    settings = network.config
    sizes = {
        "width": settings.hidden_size,
        "num_symbols": settings.vocab_size - 1,
        "num_features": settings.max_position_embeddings,
    }
    weights = {name: value.detach().contiguous() for name, value in network.named_parameters()}
    with replacing(path) as target:
        save_file(weights, target, {name: str(size) for name, size in sizes.items()})


def load_network(path: Path, source: HMM) -> BertForMaskedLM:
    """The network that :func:`save_network` wrote, for a source of the same symbols and length."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as stored:
        sizes = {name: int(size) for name, size in stored.metadata().items()}
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if (sizes["num_symbols"], sizes["num_features"]) != (source.num_symbols, source.num_features):
        raise ValueError(
            f"{path} is for sequences of {sizes['num_features']} out of {sizes['num_symbols']} "
            f"symbols, the source has {source.num_features} out of {source.num_symbols}."
        )
    network = build_network(source, sizes["width"], seed=0)
    network.load_state_dict(weights, strict=False)  # the tied output matrix is stored once
    return network
