"""The book's own masked language model: vocabulary, training, and what it was compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from mpt_lml import data, masks
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.files import replacing
from mpt_lml.models.masked_lm import masked_logits
from mpt_lml.models.networks import (
    Architecture,
    load_tokenizer,
    small_masked_lm,
    train_tokenizer,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class SmallBert(Config):
    """One network trained in full, and shorter runs of the same data for comparison.

    A comparison is (architecture, law of the mask size, steps, steps of the cycle of the learning
    rate): its first tenth is the way up, and a run may stop before the cycle ends.
    """

    seeds: tuple[int, ...] = (4,)
    vocab_size: int = 6000
    width: int = 160
    num_layers: int = 6
    num_steps: int = 6000
    batch_tokens: int = 4096
    learning_rate: float = 3e-3
    num_held_out: int = 256
    every: int = 250
    comparisons: tuple[tuple[Architecture, str, int, int], ...] = (
        ("modern", "mixture", 500, 500),
        ("modern", "uniform", 500, 500),
        ("modern", "low", 500, 500),
        ("classic", "mixture", 500, 500),
        ("classic", "mixture", 1000, 6000),
    )
    source: str = "books"

    @classmethod
    def paper(cls) -> SmallBert:
        """The book's run (the paper has no such network)."""
        return cls()

    @classmethod
    def quick(cls) -> SmallBert:
        """A few steps on sentences that are always there."""
        return cls(
            vocab_size=200,
            width=32,
            num_layers=2,
            num_steps=4,
            batch_tokens=256,
            num_held_out=8,
            every=2,
            comparisons=(("classic", "uniform", 2, 4),),
            source="written",
        )


LENGTH = 64
"""Tokens of a full row, [CLS] and [SEP] counted."""
LAWS = ("mixture", "uniform", "low")


class Batches:
    """Rows of token ids without padding: in turn full windows, and whole sentences of one length.

    A window starts where a sentence starts and is cut after 62 word pieces; a batch of whole
    sentences takes sentences with equally many pieces, lengths in proportion to their tokens.
    """

    def __init__(self, pieces: Sequence[Sequence[int]], ends: tuple[int, int], size: int) -> None:
        self.size = size
        self.ends = ends
        lengths = torch.tensor([len(each) for each in pieces])
        self.stream = torch.tensor([piece for each in pieces for piece in each])
        self.starts = lengths.cumsum(0) - lengths
        fits = (lengths >= 4) & (lengths <= LENGTH - 2)
        self.by_length = {
            int(length): self.starts[fits & (lengths == length)]
            for length in lengths[fits].unique()
        }
        self.shares = torch.tensor([float(k * len(v)) for k, v in self.by_length.items()])
        self.starts = self.starts[self.starts <= len(self.stream) - (LENGTH - 2)]

    def draw(self, step: int, *, generator: torch.Generator) -> Int[Tensor, "N L"]:
        """The rows of one step."""
        if step % 2 == 0:
            return self.rows(self.starts, LENGTH - 2, generator)
        bucket = int(torch.multinomial(self.shares, 1, generator=generator))
        length = list(self.by_length)[bucket]
        return self.rows(self.by_length[length], length, generator)

    def rows(self, starts: Tensor, length: int, generator: torch.Generator) -> Int[Tensor, "N L"]:
        """Rows of ``length`` pieces from random ``starts``, as many as fill a batch."""
        count = min(len(starts), max(1, self.size // (length + 2)))
        chosen = starts[torch.randperm(len(starts), generator=generator)[:count]]
        body = self.stream[chosen[:, None] + torch.arange(length)]
        first, last = (torch.full((count, 1), end) for end in self.ends)
        return torch.cat([first, body, last], dim=1)


def training_masks(
    law: str, num_rows: int, num_features: int, *, generator: torch.Generator
) -> Bool[Tensor, "N D"]:
    """One mask a row, sizes spread evenly over the batch.

    ``uniform``: sizes 1..D. ``low``: sizes up to 30 % of D. ``mixture``: half of the rows each.
    """
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}.")
    uniform = masks.UniformSize()
    low = {"mixture": num_rows // 2, "uniform": 0, "low": num_rows}[law]
    limit = max(1, round(0.3 * num_features))
    parts = []
    for count, largest in ((low, limit), (num_rows - low, num_features)):
        if count:
            parts.append(uniform.stratified(count, largest, generator=generator))
    ranks = masks.sample_ranks(num_rows, num_features, generator=generator)
    return ranks < torch.cat(parts)[:, None]


def mean_score(network: PreTrainedModel, rows: Tensor, mask: Tensor, mask_token: int) -> Tensor:
    """Mean over rows of (1/M) Σ_{j∈A} log p(x_j | x_R), nats per token; ends are never masked."""
    rows, mask = rows.to(network.device), mask.to(network.device)
    hidden = functional.pad(mask, (1, 1))
    logits = masked_logits(network, rows.masked_fill(hidden, mask_token), hidden)
    loss = functional.cross_entropy(logits.float(), rows[hidden], reduction="none")
    weight = mask.float() / mask.sum(dim=1, keepdim=True)
    return -(loss * weight[mask]).sum() / len(rows)


class Training:
    """The state of one run; :meth:`steps` goes on from where it was saved."""

    def __init__(
        self,
        config: SmallBert,
        architecture: Architecture,
        law: str,
        num_steps: int,
        cycle: int,
        vocab: int,
        device: torch.device = torch.device("cpu"),
    ) -> None:
        seed = config.seeds[0]
        size = {"width": config.width, "num_layers": config.num_layers}
        self.network: Any = small_masked_lm(
            vocab, architecture, **size, max_length=LENGTH, seed=seed
        ).to(device)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=config.learning_rate, weight_decay=0.01
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=config.learning_rate, total_steps=cycle, pct_start=0.1
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.law = law
        self.num_steps = num_steps
        self.step = 0
        self.watched: list[list[float]] = []

    def advance(self, batches: Batches, mask_token: int) -> None:
        """One update: maximize the mean score of one random mask a row, products in bfloat16."""
        rows = batches.draw(self.step, generator=self.generator)
        mask = training_masks(self.law, len(rows), rows.shape[1] - 2, generator=self.generator)
        self.network.train()
        with torch.autocast(self.network.device.type, torch.bfloat16):
            score = mean_score(self.network, rows, mask, mask_token)
        self.optimizer.zero_grad()
        (-score).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1

    def save(self, path: Path) -> None:
        """Everything the next step depends on."""
        with replacing(path) as partial:
            torch.save(
                {
                    "network": self.network.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "schedule": self.schedule.state_dict(),
                    "generator": self.generator.get_state(),
                    "step": self.step,
                    "watched": self.watched,
                },
                partial,
            )

    def load(self, path: Path) -> None:
        """What :meth:`save` wrote."""
        state = torch.load(path, weights_only=True, map_location="cpu")
        for name in ("network", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"])
        self.step, self.watched = state["step"], state["watched"]


WATCHED_RATES = (0.15, 0.5, 0.98)


@torch.no_grad()
def watch(network: PreTrainedModel, rows: Tensor, mask_token: int) -> list[float]:
    """Score of held-out rows at 15, 50 and 98 %, the same masks every time."""
    network.eval()
    generator = torch.Generator().manual_seed(0)
    features = rows.shape[1] - 2
    ranks = masks.sample_ranks(len(rows), features, generator=generator)
    sizes = [round(rate * features) for rate in WATCHED_RATES]
    return [mean_score(network, rows, ranks < size, mask_token).item() for size in sizes]


def train(
    training: Training,
    batches: Batches,
    held_out: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    *,
    every: int,
    path: Path | None,
    progress: Progress,
) -> Tensor:
    """Run to the end; the scores of held-out rows every ``every`` steps, (W, 1 + 3)."""
    mask_token = int(tokenizer.mask_token_id)
    if path is not None and path.exists():
        training.load(path)

    def look() -> None:
        if not training.watched or training.watched[-1][0] != training.step:  # else it goes on
            scores = watch(training.network, held_out, mask_token)
            training.watched.append([float(training.step), *scores])
            if path is not None:
                training.save(path)

    kind = training.network.config.model_type
    for _ in progress(range(training.step, training.num_steps), f"{kind}, {training.law}, step"):
        if training.step % every == 0:
            look()
        training.advance(batches, mask_token)
    look()
    return torch.tensor(training.watched)


def _prepare(config: SmallBert, checkpoints: Path | None) -> tuple[Any, Batches, Tensor]:
    """Vocabulary and batches from the training books, rows from the held-out ones.

    A run that goes on keeps the vocabulary it began with, in ``vocabulary`` of its folder.
    """
    sentences = data.sentences(config.source, "train").first
    folder = None if checkpoints is None else checkpoints / "vocabulary"
    if folder is not None and folder.exists():
        tokenizer = load_tokenizer(folder)
    else:
        tokenizer = train_tokenizer(sentences, config.vocab_size)
        if folder is not None:
            tokenizer.save_pretrained(folder)
    batches = batches_of(sentences, tokenizer, config.batch_tokens)
    held = data.sentences(config.source, "test").first
    other = batches_of(held, tokenizer, config.num_held_out * LENGTH)
    generator = torch.Generator().manual_seed(0)
    return tokenizer, batches, other.rows(other.starts, LENGTH - 2, generator)


def batches_of(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, size: int) -> Batches:
    """Batches of about ``size`` tokens from ``sentences``."""
    pieces = tokenizer(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
    return Batches(pieces, (tokenizer.cls_token_id, tokenizer.sep_token_id), size)


def _runs(config: SmallBert) -> Iterator[tuple[str, Architecture, str, int, int]]:
    yield "full", "modern", "mixture", config.num_steps, config.num_steps
    for architecture, law, steps, cycle in config.comparisons:
        name = f"{architecture}/{law}" + ("" if steps == cycle else f"/{cycle}")
        yield name, architecture, law, steps, cycle


@experiment(
    "small-bert",
    title="The book's own BERT on classic books, and how other choices would have begun",
    cost="about 1 h",
    config=SmallBert,
    resumable=True,
)
def small_bert(
    config: SmallBert,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Train the network of ``config`` and its comparisons; masks and rows are drawn on the CPU.

    With ``checkpoints`` the trained network is left in its folder ``model``. Arrays, for each run
    (``full``, ARCHITECTURE/LAW, or ARCHITECTURE/LAW/CYCLE where it stops early): ``watched/RUN``
    (W, 4), the step and the scores of held-out rows at 15, 50 and 98 %, nats per token;
    ``parameters/RUN`` (); ``unigram`` (), the mean log frequency of held-out tokens, what a network
    that ignores its input can reach.
    """
    tokenizer, batches, held_out = _prepare(config, checkpoints)
    arrays: dict[str, Tensor] = {"unigram": unigram_score(batches.stream, held_out[:, 1:-1])}
    for name, architecture, law, steps, cycle in _runs(config):
        training = Training(config, architecture, law, steps, cycle, len(tokenizer), device)
        path = checkpoints / f"{name.replace('/', '-')}.pt" if checkpoints else None
        arrays[f"watched/{name}"] = train(
            training, batches, held_out, tokenizer, every=config.every, path=path, progress=progress
        )
        size = sum(each.numel() for each in training.network.parameters())
        arrays[f"parameters/{name}"] = torch.tensor(float(size))
        if checkpoints is not None and name == "full":
            training.network.half().save_pretrained(checkpoints / "model")
            tokenizer.save_pretrained(checkpoints / "model")
    # The smallest gain over the watched rates, nats per token.
    gain = (arrays["watched/full"][-1] - arrays["watched/full"][0])[1:].min().item()
    data = checksum([batches.stream, held_out])
    return Outcome({"small-bert-gain": Finding(gain)}, arrays, data)


def unigram_score(training: Int[Tensor, " T"], held_out: Int[Tensor, "N D"]) -> Tensor:
    """Mean log frequency of held-out tokens, counts of the training text plus one, nats per token."""
    counts = training.bincount(minlength=int(held_out.max()) + 1).double() + 1.0
    return (counts[held_out].log() - math.log(counts.sum().item())).mean()
