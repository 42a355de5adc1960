"""The book's own masked language model, from nothing: vocabulary, batches and training."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import masks
from mpt_lml.checks import Count, Index, checked
from mpt_lml.fit import Progress, silent
from mpt_score.networks.build import WIDTH_OF_A_HEAD, small_masked_lm
from mpt_score.networks.masked_lm import masked_logits
from mpt_score.networks.precision import fast_precision
from mpt_score.texts import sentences

LENGTH = 64
"""Tokens of a full row, [CLS] and [SEP] counted."""
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WATCHED_RATES = (0.15, 0.5, 0.98)

_LEARNING_RATE = 3e-3
_WEIGHT_DECAY = 0.01
_LARGEST_NORM = 1.0  # of the gradient


@checked
@dataclass(frozen=True)
class SmallBertSettings:
    """Settings of the training of a small BERT.

    Args:
        source: the text, a name of :func:`mpt_score.texts.sentences`.
        seed: of the first weights, and of rows and masks.
        vocab_size: most word pieces, special tokens counted.
        width: units of a layer, a multiple of 32.
        num_layers: of the encoder.
        num_steps: of AdamW.
        batch_tokens: tokens of a step.
        num_held_out: rows of the held-out text on which the training is watched.
        watch_every: steps from one look to the next.
        half_precision: products in bfloat16, or in float16 on a GPU that has no bfloat16 of its own;
            the weights stay in float32.
    """

    source: str = "books"
    seed: Index = 4
    vocab_size: Count = 6000
    width: Count = 160
    num_layers: Count = 6
    num_steps: Count = 6000
    batch_tokens: Count = 4096
    num_held_out: Count = 256
    watch_every: Count = 250
    half_precision: bool = True

    def __post_init__(self) -> None:
        if self.width % WIDTH_OF_A_HEAD:
            raise ValueError(f"width must be a multiple of {WIDTH_OF_A_HEAD}, got {self.width}.")


# -- text -----------------------------------------------------------------------------------------


class TrainingText:
    """Rows of token ids without padding: in turn full windows, and whole sentences of one length.

    A window starts where a sentence starts and is cut after 62 word pieces; a batch of whole
    sentences takes sentences with equally many pieces, lengths in proportion to their tokens.
    """

    held_out: Int[Tensor, "N L"]

    def __init__(self, text: Sequence[str], tokenizer: Any, size: int) -> None:
        pieces = tokenizer(list(text), add_special_tokens=False, verbose=False)["input_ids"]
        self.tokenizer = tokenizer
        self.size = size  # tokens a batch
        self.mask_token = int(tokenizer.mask_token_id)
        self.ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        self.lengths = torch.tensor([len(sentence) for sentence in pieces])
        self.stream = torch.tensor([piece for sentence in pieces for piece in sentence])
        starts = self.lengths.cumsum(0) - self.lengths
        fits = (self.lengths >= 4) & (self.lengths <= LENGTH - 2)
        self.by_length: dict[int, Tensor] = {}
        for length in self.lengths[fits].unique():
            self.by_length[int(length)] = starts[fits & (self.lengths == length)]
        num_tokens = [float(length * len(rows)) for length, rows in self.by_length.items()]
        self.shares = torch.tensor(num_tokens)
        self.starts = starts[starts <= len(self.stream) - (LENGTH - 2)]

    @classmethod
    def read(cls, settings: SmallBertSettings) -> "TrainingText":
        """The training text in word pieces of its own, and held-out rows."""
        text = sentences(settings.source, "train").first
        tokenizer = train_tokenizer(text, settings.vocab_size)
        batches = cls(text, tokenizer, settings.batch_tokens)
        batches.held_out = held_out_rows(settings, tokenizer)
        return batches

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


def held_out_rows(settings: SmallBertSettings, tokenizer: Any) -> Int[Tensor, "N L"]:
    """Windows of the held-out text, the same ones every time."""
    text = sentences(settings.source, "test").first
    batches = TrainingText(text, tokenizer, settings.num_held_out * LENGTH)
    return batches.rows(batches.starts, LENGTH - 2, torch.Generator().manual_seed(0))


def train_tokenizer(sentences: Sequence[str], vocab_size: int) -> Any:
    """An uncased WordPiece vocabulary, as BERT's tokenizer.

    The trainer of ``tokenizers`` numbers continuing characters (##a) in another order each time and
    breaks ties by number. Here they are numbered beforehand, so that a text has one vocabulary.

    Args:
        sentences: the text.
        vocab_size: most pieces, special tokens counted.

    Returns:
        A ``BertTokenizer``.
    """
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizer

    trainer = BertWordPieceTokenizer(lowercase=True)
    normalize = trainer.normalizer.normalize_str
    characters = {character for text in sentences for character in normalize(text)} - {" "}
    numbered_first = [*SPECIAL_TOKENS, *(f"##{character}" for character in sorted(characters))]
    trainer.train_from_iterator(
        sentences, vocab_size=vocab_size, special_tokens=numbered_first, show_progress=False
    )
    pieces = [*SPECIAL_TOKENS, *sorted(set(trainer.get_vocab()) - set(SPECIAL_TOKENS))]
    return BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, do_lower_case=True)


def training_masks(
    num_rows: int, num_features: int, *, generator: torch.Generator
) -> Bool[Tensor, "N D"]:
    """One mask a row: half of the rows have sizes up to 30 % of D, the others up to D, spread evenly."""
    uniform = masks.UniformSize()
    num_low = num_rows // 2
    parts = []
    if num_low:
        largest_low = max(1, round(0.3 * num_features))
        parts.append(uniform.stratified(num_low, largest_low, generator=generator))
    parts.append(uniform.stratified(num_rows - num_low, num_features, generator=generator))
    ranks = masks.sample_ranks(num_rows, num_features, generator=generator)
    return masks.from_ranks(ranks, torch.cat(parts))


# -- score ----------------------------------------------------------------------------------------


def mean_score(network: Any, rows: Tensor, mask: Tensor, mask_token: int) -> Tensor:
    """Mean over rows of (1/M) Σ_{j∈A} log p(x_j | x_R), nats per token; ends are never masked."""
    rows, mask = rows.to(network.device), mask.to(network.device)
    hidden = functional.pad(mask, (1, 1))
    logits = masked_logits(network, rows.masked_fill(hidden, mask_token), hidden)
    loss = functional.cross_entropy(logits.float(), rows[hidden], reduction="none")
    weight = mask.float() / mask.sum(dim=1, keepdim=True)
    return -(loss * weight[mask]).sum() / len(rows)  # in this order: training magnifies rounding


@torch.no_grad()
def watch(network: Any, rows: Tensor, mask_token: int) -> Tensor:
    """Score of held-out rows at 15, 50 and 98 %, the same masks every time, (3,)."""
    network.eval()
    features = rows.shape[1] - 2
    ranks = masks.sample_ranks(len(rows), features, generator=torch.Generator().manual_seed(0))
    hidden = [masks.from_ranks(ranks, round(rate * features)) for rate in WATCHED_RATES]
    return torch.stack([mean_score(network, rows, mask, mask_token) for mask in hidden]).cpu()


# -- training -------------------------------------------------------------------------------------


def new_network(text: TrainingText, settings: SmallBertSettings) -> Any:
    """A network of random weights for the word pieces of a text."""
    return small_masked_lm(
        len(text.tokenizer),
        seed=settings.seed,
        width=settings.width,
        num_layers=settings.num_layers,
    )


def train(
    network: Any,
    text: TrainingText,
    settings: SmallBertSettings,
    *,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Float[Tensor, "W 4"]:
    """Maximize the mean score of one mask a row, in place.

    Rows and masks are drawn on the CPU, so that they are the same on every device, and moved there in
    blocks.

    Args:
        network: is moved to ``device`` and trained.
        text: the training's rows, and those that are held out.
        settings: of the steps.
        device: where it computes.
        progress: shows the steps as they pass.

    Returns:
        A row for each look at held-out text: the number of steps, and the mean score of a hidden piece
        at 15, 50 and 98 %, in nats.

    Raises:
        FloatingPointError: where the score is not finite any more.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    generator = torch.Generator().manual_seed(settings.seed)
    weights = list(network.to(device).parameters())
    optimizer = AdamW(
        weights, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True if on_gpu else None
    )
    schedule = OneCycleLR(
        optimizer, max_lr=_LEARNING_RATE, total_steps=settings.num_steps, pct_start=0.1
    )
    dtype = _half_precision(device) if settings.half_precision else None
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    if on_gpu:
        network.set_attn_implementation("sdpa")

    looks: list[list[float]] = []

    def look(step: int) -> None:
        scores = watch(network, text.held_out, text.mask_token)
        if not scores.isfinite().all():
            raise FloatingPointError(f"the score is {scores.tolist()} after {step} steps.")
        looks.append([float(step), *scores.tolist()])

    look(0)
    block: list[tuple[Tensor, Tensor]] = []
    with sdpa_kernel(_ATTENTION) if on_gpu else nullcontext():
        for step in progress(range(settings.num_steps), "step"):
            if not block:
                last = min(step + settings.watch_every, settings.num_steps)
                block = _draw(text, range(step, last), generator, device)
            network.train()
            optimizer.zero_grad()
            rows, mask = block.pop(0)
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                loss = -mean_score(network, rows, mask, text.mask_token)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(weights, _LARGEST_NORM)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if not block:
                look(step + 1)
    return torch.tensor(looks)


_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention without that of cuDNN, which plans for each shape anew."""


def _half_precision(device: torch.device) -> torch.dtype | None:
    """The half precision that a device multiplies fast: a T4 has no bfloat16 of its own.

    A CPU rounds as in the record.
    """
    if device.type == "cpu":
        return torch.bfloat16
    name = fast_precision(device)
    return None if name == "float32" else getattr(torch, name)


def _draw(
    text: TrainingText, steps: range, generator: torch.Generator, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Rows and masks of some steps, drawn on the CPU and moved together."""
    all_rows = []
    all_masks = []
    for step in steps:
        rows = text.draw(step, generator=generator)
        all_rows.append(rows)
        all_masks.append(training_masks(len(rows), rows.shape[1] - 2, generator=generator))
    moved = []
    for drawn in (all_rows, all_masks):
        together = torch.cat([each.flatten() for each in drawn]).to(device)
        parts = together.split([each.numel() for each in drawn])
        moved.append([part.view(each.shape) for part, each in zip(parts, drawn, strict=True)])
    return list(zip(*moved, strict=True))
