"""The book's own masked language model: its training as a recorded run."""

from typing import Any

from torch import Tensor

from experiments.experiment import Arrays, Experiment, RunContext, setting
from experiments.trainings.small_bert import (
    SmallBertSettings,
    TrainingText,
    new_network,
    train,
)
from mpt_lml.recorded import Finding, Outcome


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

    @property
    def training(self) -> SmallBertSettings:
        """The settings of the training alone."""
        return SmallBertSettings(
            source=self.source,
            seed=self.seeds[0],
            vocab_size=self.vocab_size,
            width=self.width,
            num_layers=self.num_layers,
            num_steps=self.num_steps,
            batch_tokens=self.batch_tokens,
            num_held_out=self.num_held_out,
            watch_every=self.every,
        )

    def train(self, context: RunContext, network: Any, text: TrainingText) -> Tensor:
        """Train ``network``, with products in bfloat16, and return its history (W, 4).

        A finished training is stored, with the weights that it leaves in ``network``.
        """

        def compute() -> Arrays:
            watched = train(
                network, text, self.training, device=context.device, progress=context.progress
            )
            return {"watched": watched, **network.state_dict(prefix="network/")}

        data = context.checksum([text.stream, text.held_out])
        stored = context.computed_once("full", compute, data=data)
        rows = stored.pop("watched").cpu()
        network.load_state_dict({key.removeprefix("network/"): stored[key] for key in stored})
        return rows

    def measure(self, context: RunContext) -> Outcome:
        text = TrainingText.read(self.training)
        pieces = text.held_out[:, 1:-1]
        counts = text.stream.bincount(minlength=int(pieces.max()) + 1).double() + 1.0
        network = new_network(text, self.training)
        watched = self.train(context, network, text)
        if context.folder is not None:
            network.half().save_pretrained(context.folder / "model")
            text.tokenizer.save_pretrained(context.folder / "model")
        unigram = (counts[pieces].log() - counts.sum().log()).mean()
        arrays = {"unigram": unigram, "watched/full": watched}
        gain = Finding((watched[-1, 1:] - watched[0, 1:]).min().item())  # the smallest of the rates
        data = context.checksum([text.stream, text.held_out])
        return Outcome({"small-bert-gain": gain}, arrays, data)
