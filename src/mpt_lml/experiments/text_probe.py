"""The title, tested on text: does a larger area mean better features? Linear probes of small BERTs."""

from dataclasses import replace
from functools import cache, partial
from itertools import chain, repeat
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mpt_lml import masks, networks, probes
from mpt_lml.data import encode, texts
from mpt_lml.data.tokens import SPECIAL_TOKENS
from mpt_lml.experiments.base import Bench, Experiment, Outcome, setting
from mpt_lml.experiments.probe import Arrays, findings, kept
from mpt_lml.experiments.small_bert import FIXED, LENGTH, Training, mean_score
from mpt_lml.probes import Labeled
from mpt_lml.verdicts import mean_and_error


def features(network: Any, ids: Int[Tensor, "N L"]) -> Float[Tensor, "N w"]:
    """Mean of the last layer over a sentence's known pieces, nothing hidden; rows end in padding."""
    ids = ids[:, : int((ids != 0).sum(dim=1).max())]
    layer = network.base_model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
    pieces = (ids >= len(SPECIAL_TOKENS)).float()
    return torch.einsum("nl,nlw->nw", functional.normalize(pieces, p=1.0, dim=1), layer)


def labeled(name: str, tokenizer: Any) -> list[Labeled]:
    """Rows by their length; tested on the test split, or in turn on every fourth row without one."""
    splits = ("train", "test") if f"{name} train" in texts._GLUE else ("test",)
    found = [texts.labeled(name, split) for split in splits]  # type: ignore[arg-type]
    ids = encode(tokenizer, [each for text, _ in found for each in text]).ids[:, :LENGTH]
    order = (ids != 0).sum(dim=1).argsort(stable=True)
    y, rows = torch.tensor([each for _, own in found for each in own]), torch.arange(len(ids))
    tests = [rows % 4 == k for k in range(4)] if len(found) == 1 else [order >= len(found[0][0])]
    return [Labeled(ids[order], y[order], test) for test in tests]


def accuracy(x: Tensor, folds: list[Labeled]) -> float:
    """Of a linear probe of ``x``, the mean over the folds."""
    return sum(probes.probe(x, of) for of in folds) / len(folds)


@torch.no_grad()
def areas(network: Any, rows: Int[Tensor, "N L"], token: int) -> Float[Tensor, " 5"]:
    """Mean score with uniform sizes, its error over 8 parts, scores at the shares, nats a token."""
    g, count, found = torch.Generator().manual_seed(0), rows.shape[1] - 2, []
    sizes = masks.UniformSize().stratified(len(rows), count, generator=g)
    ranks = masks.sample_ranks(len(rows), count, generator=g)
    shares: list[Any] = [round(share * count) for share in FIXED.values()]
    for size in [sizes, *shares]:
        mask, parts = masks.from_ranks(ranks, size), [slice(k, None, 8) for k in range(8)]
        found.append([mean_score(network, rows[part], mask[part], token) for part in parts])
    area, *each = torch.tensor(found, dtype=torch.float64)
    return torch.stack([*mean_and_error(area), *(score.mean() for score in each)])


class TextProbes(Training, name="text-probes", cost="about 55 min", resumable=True, gpu=False):
    """Area against linear probes of small BERTs' frozen features, by law of the mask size.

    Four laws of the mask size; the same network, text and steps; areas on held-out windows. ``sets``:
    CoLA (``written`` in its place: quick), tested on dev; SST-2, whose dev sentences are
    cross-validated in four parts. The rule, from before the run, is that of ``probes``.

    Arrays: ``found/SET`` (laws, seeds, steps, 6): area and its standard error, scores at 15, 50 and
    75 %, nats a token, accuracy; ``supervised/SET`` (seeds,), accuracy of the same network trained on
    the labels; ``pieces/SET`` (), of counts of the word pieces themselves.
    """

    seeds: tuple[int, ...] = setting(Experiment.seeds, quick=(4, 44))
    vocab_size: int = setting(2000, quick=200)
    width: int = setting(64, quick=32)
    num_layers: int = 2
    num_steps: int = setting(400, quick=4)
    batch_tokens: int = setting(2048, quick=256)
    num_held_out: int = setting(128, quick=8)
    every: int = setting(200, quick=2)
    sets: tuple[str, ...] = setting(("glue/cola", "glue/sst-2"), quick=("written",))
    label_steps: int = setting(100, quick=2)

    def run(self, bench: Bench) -> Outcome:
        tokenizer, batches, rows = self.read()
        short = {name: name.removeprefix("glue/") for name in self.sets} | {"written": "cola"}
        sets = {short[name]: labeled(name, tokenizer) for name in self.sets}
        data = bench.checksum(chain([batches.stream, rows], *chain(*sets.values())))
        size: Any = {"width": self.width, "num_layers": self.num_layers}
        new = partial(networks.small_masked_lm, len(tokenizer), **size)

        @torch.no_grad()
        def look(network: Any) -> Tensor:
            area, found = areas(network.eval(), rows, batches.mask_token), []
            for folds in sets.values():
                x = torch.cat([features(network, part) for part in folds[0].x.split(128)])
                found.append(accuracy(x, folds))
            return torch.cat([area, area.new_tensor(found)])

        start = cache(lambda seed: look(new(seed=seed)))  # the same for every law

        def trained(law: str, seed: int) -> Tensor:
            network, alone = new(seed=seed), replace(bench, folder=None)  # kept when it is finished
            looks = chain([partial(start, seed)], repeat(partial(look, network)))
            how = law, seed, lambda: next(looks)()
            return self.train(alone, law, network, batches, rows, *how)

        def taught(name: str, seed: int) -> Tensor:
            how = self.label_steps, seed, features
            return torch.tensor([probes.supervised(new(seed=seed), of, *how) for of in sets[name]])

        def counted(name: str) -> Tensor:
            rows = [row.bincount(minlength=len(tokenizer)) for row in sets[name][0].x]
            counts = torch.stack(rows)[:, len(SPECIAL_TOKENS) :].float()
            return torch.tensor(accuracy(counts, sets[name]))

        every = partial(kept, bench, items=self.seeds, data=data)
        laws = (*FIXED, "uniform")
        found = torch.stack([every(law, partial(trained, law)) for law in laws])
        arrays: Arrays = {}
        for k, name in enumerate(sets):
            arrays |= {
                f"found/{name}": found[..., [*range(1, 6), 6 + k]],
                f"supervised/{name}": every(f"{name}-labels", partial(taught, name)).mean(dim=1),
                f"pieces/{name}": counted(name),
            }
        return Outcome(findings(arrays), arrays, data)
