"""A language whose likelihood is known: what a trained BERT still lacks, by law of the mask size."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, seeded, setting
from mpt_lml import fit, masks, scores
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.hmm import HMM
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks.symbol_bert import SymbolBERT


class Stratified(masks.UniformSize):
    """Uniform sizes, spread evenly over each batch."""

    sample = masks.SizeLaw.stratified


LAWS: dict[str, masks.SizeLaw] = {
    "fixed-15": masks.FixedRate(0.15),
    "fixed-50": masks.FixedRate(0.5),
    "fixed-80": masks.FixedRate(0.8),
    "uniform": masks.UniformSize(),
    "stratified": Stratified(),
}


class Problem:
    """Fresh sequences of a source, random orders for each, and what the source says about them."""

    def __init__(
        self, source: HMM, num_data: int, num_orders: int, *, generator: torch.Generator
    ) -> None:
        features = source.num_features
        self.x = source.sample(num_data, generator=generator)
        ranks = masks.sample_ranks(num_data * num_orders, features, generator=generator)
        self.order = ranks.argsort(dim=1).view(num_data, num_orders, features)
        self.mask = masks.nested_masks(self.order).flatten(0, 2)
        self.rows = self.x.repeat_interleave(num_orders * features, dim=0)
        self.values = source.log_each(self.rows, self.mask)

    def by_size(self, values: Float[Tensor, "P D"]) -> Float[Tensor, "N O D"]:
        """Score of every mask, by sequence, order and size."""
        return scores.mask_score(values, self.mask).view(self.order.shape)

    def compare(self, model: ConditionalModel) -> dict[str, Tensor]:
        """The source minus ``model`` at the same sequences and masks, with standard errors, nats.

        ``area`` and ``chain`` (N, O): every masked token scored, and log p(x) − log p_σ(x).
        """
        difference = self.values - model.log_each(self.rows, self.mask)
        by_size = self.by_size(difference)
        own = difference.view(*self.order.shape, -1).gather(3, self.order[..., None])
        area, chain = by_size.sum(dim=2), own.sum(dim=(2, 3))
        spread = chain.var(dim=1).mean().sqrt()  # over orders of the same sequence
        found = {"area": area, "chain": chain, "spread": spread}
        for name, each in (("gap", area), ("size_gap", by_size)):
            found[name], found[f"{name}_error"] = mean_and_error(each.mean(dim=1))
        return found

    def designs(self, area: Float[Tensor, "N O"]) -> dict[str, Tensor]:
        """Standard error of one gap, one order a sequence, by what source and network share."""
        source = self.by_size(self.values).sum(dim=2)
        network = source - area
        separate = (source[:, 0].var() + network[:, 0].var()) / len(source)
        return {
            "error/same masks, all tokens": mean_and_error(area[:, 0])[1],
            "error/same sequences, other masks": mean_and_error(source[:, 0] - network[:, 1])[1],
            "error/other sequences": separate.sqrt(),
        }


def masked_scores(model: SymbolBERT, x: Tensor, mask: Tensor, half_precision: bool) -> Tensor:
    """(1/M) Σ_{j∈A} log q(x_j | x_R) for sequence n under its own mask A_n, (N,), differentiable."""
    network, inputs = model.network, {"input_ids": x.masked_fill(mask, model.mask_token)}
    kind = torch.bfloat16 if half_precision else torch.float32
    weights = {name: value.to(kind) for name, value in network.named_parameters()}
    logits = torch.func.functional_call(network, weights, kwargs=inputs).logits.float()
    loss = functional.cross_entropy(logits.transpose(1, 2), x, reduction="none")
    return scores.mask_score(-loss, mask)


class KnownLanguage(
    Experiment, name="known-language", cost="about 25 min", resumable=True, gpu=False
):
    """A BERT on a language of known likelihood: laws of the size, and what closes the gap.

    Five laws of the mask size with several seeds each, and shorter, longer and wider runs. A variant
    is (width, steps, learning rate), trained with uniform sizes and the first seed.

    Arrays, for law in ``LAWS``, nats: ``gap/LAW``, ``gap_error/LAW`` (over sequences),
    ``excess_error/LAW`` (of the gap minus that of uniform sizes with the same seed, over sequences)
    and ``spread/LAW`` (log p_σ over orders σ), all (seeds,); ``size_gap/LAW`` (seeds, D).
    ``variant/WIDTH-STEPS-RATE`` (4,): parameters, gap, its error, spread. ``error/*`` (): standard
    error of one gap, one order a sequence, by what source and network share.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444), quick=(4, 44))
    num_steps: int = setting(3000, quick=10)
    batch_size: int = setting(128, quick=32)
    learning_rate: float = 3e-3
    half_precision: bool = True  # products in bfloat16; the weights and AdamW stay float32
    width: int = setting(64, quick=16)
    variants: tuple[tuple[int, int, float], ...] = setting(
        ((64, 1000, 3e-3), (128, 3000, 3e-3), (64, 12_000, 3e-3)), quick=((32, 5, 3e-3),)
    )
    num_test: int = setting(2000, quick=20)
    num_orders: int = setting(4, quick=2)

    def measure(self, context: RunContext) -> Outcome:
        source = HMM.cyclic()
        problem = Problem(source, self.num_test, self.num_orders, generator=seeded(10))
        data = context.checksum([problem.x])

        def result(of: KnownLanguage, law: str, seed: int) -> dict[str, Tensor]:
            def work() -> dict[str, Tensor]:
                model = SymbolBERT(source.num_values, source.num_features, of.width, seed=seed)
                of.train(model, source, law, seed=seed, progress=context.progress)
                weights = dict(model.network.named_parameters())
                size = torch.tensor(sum(each.numel() for each in weights.values()))
                return problem.compare(model) | {"num_parameters": size} | weights

            name = f"{law}-{of.width}-{of.num_steps}-{of.learning_rate:g}-{seed}"
            return context.computed_once(name, work, data=data)

        runs = {law: context.stack(partial(result, self, law), self.seeds, law) for law in LAWS}
        uniform, shown = runs["uniform"]["area"], ("gap", "gap_error", "spread", "size_gap")
        arrays = problem.designs(uniform[0])
        for law, found in runs.items():
            arrays |= {f"{name}/{law}": found[name] for name in shown}
            excess = (found["area"] - uniform).mean(dim=2)
            arrays[f"excess_error/{law}"] = mean_and_error(excess, dim=1)[1]
        for width, num_steps, rate in self.variants:
            other = replace(self, width=width, num_steps=num_steps, learning_rate=rate)
            variant = result(other, "uniform", self.seeds[0])
            summary = [variant[name] for name in ("num_parameters", "gap", "gap_error", "spread")]
            arrays[f"variant/{width}-{num_steps}-{rate:g}"] = torch.stack(summary)
        # How much larger the smallest gap of a fixed rate is than that of uniform sizes.
        fixed = torch.stack([arrays[f"gap/{law}"] for law in LAWS if law.startswith("fixed")])
        excess = fixed - arrays["gap/uniform"]
        least = Finding.over(excess[excess.mean(dim=1).argmin()])
        return Outcome({"known-language-uniform-size": least}, arrays, data)

    def train(
        self, model: SymbolBERT, source: HMM, law: str, *, seed: int, **options: Any
    ) -> list[Tensor]:
        """Maximize the score of one random mask a sequence, on sequences never seen twice.

        ``options`` are those of :func:`mpt_lml.fit.descend`; returned is what ``watch`` has seen.
        """
        generator = seeded(seed)
        optimizer = AdamW(model.network.parameters(), lr=self.learning_rate, fused=True)
        cycle = OneCycleLR(optimizer, self.learning_rate, total_steps=self.num_steps)

        def loss(step: int) -> Tensor:
            x = source.sample(self.batch_size, generator=generator)
            mask = masks.sample_masks(len(x), x.shape[1], LAWS[law], generator=generator)
            return -masked_scores(model, x, mask, self.half_precision).mean()

        options |= {"num_steps": self.num_steps, "label": f"{law}, step"}
        return fit.descend(model.network, loss, [cycle], generators=[generator], **options)[1]
