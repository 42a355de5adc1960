"""The book's own masked language model: vocabulary and training."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from experiments.experiment import Arrays, Experiment, RunContext, seeded, setting
from mpt_lml import fit, masks
from mpt_lml.recorded import Finding, Outcome
from mpt_score import networks
from mpt_score.networks.masked_lm import masked_logits
from mpt_score.texts import sentences

LENGTH = 64
"""Tokens of a full row, [CLS] and [SEP] counted."""
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class SmallBert(Experiment, name="small-bert", resumable=True):
    """The book's own BERT on classic books.

    Train it; masks and rows are drawn on the CPU. With a folder the trained network is left in its
    folder ``model``. Arrays: ``watched/full`` (W, 4), the step and the scores of held-out rows at 15,
    50 and 98 %, nats per token; ``unigram`` (), the mean log frequency of held-out tokens (counts of
    the training text plus one), what a network that ignores its input can reach.
    """

    seeds: tuple[int, ...] = (4,)
    vocab_size: int = setting(6000, quick=200)
    width: int = setting(160, quick=32)
    num_layers: int = setting(6, quick=2)
    num_steps: int = setting(6000, quick=4)
    batch_tokens: int = setting(4096, quick=256)
    num_held_out: int = setting(256, quick=8)
    every: int = setting(250, quick=2)
    source: str = setting("books", quick="written")

    def read(self) -> "Batches":
        """The training text in word pieces of its own, and held-out rows."""
        text = sentences(self.source, "train").first
        batches = Batches(text, train_tokenizer(text, self.vocab_size), self.batch_tokens)
        batches.held_out = self.held_out(batches.tokenizer)
        return batches

    def held_out(self, tokenizer: Any) -> Int[Tensor, "N L"]:
        """Windows of the held-out text, the same ones every time."""
        text = sentences(self.source, "test").first
        batches = Batches(text, tokenizer, self.num_held_out * LENGTH)
        return batches.rows(batches.starts, LENGTH - 2, seeded(0))

    def train(self, context: RunContext, network: Any, text: "Batches", seed: int) -> Tensor:
        """Maximize the mean score of one mask a row, products in bfloat16; what was watched (W, 4).

        A training that is finished is kept, with the weights that it leaves in ``network``.
        """
        steps = self.num_steps
        generator = seeded(seed)
        optimizer = AdamW(network.to(context.device).parameters(), lr=3e-3, weight_decay=0.01)
        schedule = OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1)

        def loss(step: int) -> Tensor:
            batch = text.draw(step, generator=generator)
            mask = training_masks(len(batch), batch.shape[1] - 2, generator=generator)
            network.train()
            with torch.autocast(network.device.type, torch.bfloat16):
                return -mean_score(network, batch, mask, text.mask_token)

        watched = sorted({*range(0, steps, self.every), steps})

        def compute() -> Arrays:
            _, scores = fit.descend(
                network,
                loss,
                [schedule],
                num_steps=steps,
                max_norm=1.0,
                watch=lambda: watch(network, text.held_out, text.mask_token),
                watched=watched,
                progress=context.progress,
                label="step",
            )
            rows = torch.cat([torch.tensor(watched)[:, None], torch.stack(scores)], dim=1)
            return {"watched": rows, **network.state_dict(prefix="network/")}

        data = context.checksum([text.stream, text.held_out])
        kept = context.computed_once("full", compute, data=data)
        rows = kept.pop("watched").cpu()
        network.load_state_dict({key.removeprefix("network/"): kept[key] for key in kept})
        return rows

    def measure(self, context: RunContext) -> Outcome:
        text = self.read()
        seed = self.seeds[0]
        pieces = text.held_out[:, 1:-1]
        counts = text.stream.bincount(minlength=int(pieces.max()) + 1).double() + 1.0
        network = networks.small_masked_lm(
            len(text.tokenizer), seed=seed, width=self.width, num_layers=self.num_layers
        )
        watched = self.train(context, network, text, seed)
        if context.folder is not None:
            network.half().save_pretrained(context.folder / "model")
            text.tokenizer.save_pretrained(context.folder / "model")
        unigram = (counts[pieces].log() - counts.sum().log()).mean()
        arrays = {"unigram": unigram, "watched/full": watched}
        gain = Finding((watched[-1, 1:] - watched[0, 1:]).min().item())  # the smallest of the rates
        data = context.checksum([text.stream, text.held_out])
        return Outcome({"small-bert-gain": gain}, arrays, data)


class Batches:
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
    ranks = masks.sample_ranks(len(rows), features, generator=seeded(0))
    hidden = [masks.from_ranks(ranks, round(rate * features)) for rate in (0.15, 0.5, 0.98)]
    return torch.stack([mean_score(network, rows, mask, mask_token) for mask in hidden]).cpu()


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
