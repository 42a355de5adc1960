"""Six sentences under the small BERT while it learns: what each hidden piece costs."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from experiments.experiment import Arrays, Experiment, RunContext, setting
from experiments.trainings.small_bert import (
    SmallBertSettings,
    TrainingText,
    held_out_rows,
    new_network,
    train,
)
from mpt_lml import exact_curve, masks
from mpt_lml.recorded import Outcome
from mpt_score import MaskedLM, networks, texts, tokens

SENTENCES = (
    "I beg your pardon.",
    "She shook her head and made no answer.",
    "The two men were silent.",
    "The men who came into the room were silent.",
    "Mary said that she had lost her book.",
    "My sister said that she was very happy.",
)
RIVALS = (
    "I beg your hand.",
    "She shook his head and made no answer.",
    "The two men was silent.",
    "The men who came into the room was silent.",
    "Mary said that he had lost her book.",
    "My sister said that he was very happy.",
)
"""Each differs from its sentence in one piece."""
STEPS = (0, 10, 25, 50, 75, *range(100, 500, 50), *range(500, 1501, 100))


class SixSentences(Experiment, name="six-sentences"):
    """Six sentences under the small BERT while it learns, and under the one that the book carries.

    The first steps of the training of ``small-bert`` once more, with the vocabulary that the book
    carries. It stops after the last of ``steps``, whose looks are L − 1 networks. The last look is at
    the carried network, which was trained for 6,000 steps. No weights are kept. Arrays: ``step`` (L,);
    for each sentence, by its number from 0, in nats: ``alone/N`` (L, D), log q of each piece when it
    alone is hidden; ``rival/N`` (L,), log q of the piece in which the rival differs, in the place of
    the sentence's; ``curve/N`` (L, D), S(x; M) for M = 1..D from all masks. ``answers`` (2^D − 1, D)
    has log q of every hidden piece of the first sentence under the carried network, NaN where it is
    in sight: row m shows piece j if m has the digit 2^j. ``watched`` (W, 4) is that of
    ``small-bert``, as far as it goes.
    """

    seeds: tuple[int, ...] = (4,)
    steps: tuple[int, ...] = setting(STEPS, quick=(0, 1, 2))
    sentences: tuple[str, ...] = SENTENCES
    rivals: tuple[str, ...] = RIVALS
    source: str = setting("books", quick="written")
    width: int = setting(160, quick=32)
    num_layers: int = setting(6, quick=2)
    batch_tokens: int = setting(4096, quick=256)
    num_held_out: int = setting(256, quick=8)

    @property
    def training(self) -> SmallBertSettings:
        """The settings of the whole training, of which this one takes the first steps."""
        return SmallBertSettings(
            source=self.source,
            seed=self.seeds[0],
            width=self.width,
            num_layers=self.num_layers,
            batch_tokens=self.batch_tokens,
            num_held_out=self.num_held_out,
        )

    def measure(self, context: RunContext) -> Outcome:
        carried, tokenizer = networks.load_small_bert()
        text = TrainingText(
            texts.sentences(self.source, "train").first, tokenizer, self.batch_tokens
        )
        text.held_out = held_out_rows(self.training, tokenizer)
        network = new_network(text, self.training)
        looks: list[Arrays] = []

        def look(seen: Any, step: int) -> None:
            looks.append({"step": torch.tensor(step), **self.prices(seen.eval(), tokenizer)})

        def looking(steps: Iterable[int], label: str) -> Iterator[int]:
            """The steps that are taken, with a look before some, and one after the last."""
            for step in context.progress(islice(steps, last), label):
                if step in self.steps:
                    look(network, step)
                yield step
            look(network, last)

        last = max(self.steps)
        watched = train(network, text, self.training, device=context.device, progress=looking)
        carried = carried.to(context.device)
        look(carried, SmallBertSettings().num_steps)
        arrays = {name: torch.stack([each[name] for each in looks]) for name in looks[0]}
        arrays |= {
            "watched": watched,
            "answers": all_answers(carried, tokenizer, self.sentences[0]),
        }
        return Outcome({}, arrays, context.checksum([text.stream, text.held_out]))

    def prices(self, network: Any, tokenizer: Any) -> Arrays:
        """``alone``, ``rival`` and ``curve`` of every sentence under one network."""
        found: Arrays = {}
        for number, pair in enumerate(zip(self.sentences, self.rivals, strict=True)):
            sentence, rival = (pieces_of(text, tokenizer) for text in pair)
            D = sentence.shape[1]
            model = MaskedLM.of(network, tokenizer, D)
            each_alone = torch.eye(D, dtype=torch.bool)
            of_rival = model.log_conditional(rival, each_alone)[:, 0].diagonal()
            found[f"alone/{number}"] = model.log_conditional(sentence, each_alone)[:, 0].diagonal()
            found[f"rival/{number}"] = of_rival[(sentence != rival)[0]].squeeze(0)
            found[f"curve/{number}"] = exact_curve(model, sentence).score
        return {name: value.cpu().float() for name, value in found.items()}


def pieces_of(text: str, tokenizer: Any) -> Tensor:
    """Ids of a sentence between its ends, (1, D)."""
    return tokens.encode(tokenizer, [text]).ids[:, 1:-1]


def all_answers(network: Any, tokenizer: Any, sentence: str) -> Tensor:
    """log q of each hidden piece for every set of pieces in sight but the whole, (2^D − 1, D)."""
    ids = pieces_of(sentence, tokenizer)
    D = ids.shape[1]
    hidden = ~masks.subsets(D)[:-1]
    answers = MaskedLM.of(network, tokenizer, D).log_conditional(ids, hidden)[:, 0]
    return answers.masked_fill(~hidden.to(answers.device), torch.nan).cpu().float()
