"""The referee's numbers of antibodies by AntiBERTy, where nobody knows the truth."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_experiments.experiment import (
    Arrays,
    Finding,
    Outcome,
    RunContext,
    seeded,
    setting,
    weights_of,
)
from mpt_experiments.findings.antibodies import AntibodyCurves, AskingAntiBERTy, Table, therapeutic
from mpt_experiments.findings.referee import Questions, numbers
from mpt_lml.models.base import FromFunction
from mpt_score import Scorer

ROWS_AT_ONCE = 32
"""Chains in a pass: the states of 26 million weights on so many stay small."""


class AntibodyOrders(
    AskingAntiBERTy, name="antibody-orders", cost="about 20 min", resumable=True, gpu=False
):
    """Area, mixture, orders that look, and pseudo-log-likelihood of antibodies by AntiBERTy.

    The antibodies are the first of each group of ``antibody-curves``: two human ones, one of a mouse,
    one other. In single precision. Arrays, nats a chain, first all heavy, then all light ones (C,):
    ``number/NUMBER``, with the numbers of ``referee`` that so many orders give; ``num_residues``;
    ``antibody`` (C/2,), places in the table.
    """

    table: Table = setting("published", quick="few")
    num_human: int = setting(2, quick=1)
    num_mouse: int = setting(1, quick=1)
    num_other: int = setting(1, quick=0)
    num_orders: int = 4

    def measure(self, context: RunContext) -> Outcome:
        available = therapeutic(self.table)
        sample = AntibodyCurves(
            num_human=self.num_human, num_mouse=self.num_mouse, num_other=self.num_other
        )
        chosen = sample.sample(available)
        antibodies = [available[place] for place in chosen]
        chains = [one.heavy for one in antibodies] + [one.light for one in antibodies]
        scorer = self.scorer(context, "float32")
        tokens = scorer.encode(chains)

        def of_chain(number: int) -> Arrays:
            ids = tokens.ids[number, : int(tokens.num_features[number]) + 2]
            return context.computed_once(
                f"chain-{number}",
                lambda: self.of_chain(scorer, ids),
                data=context.checksum([ids]),
            )

        found = context.stack(of_chain, range(len(chains)), "chain")
        arrays = {f"number/{name}": values for name, values in found.items()}
        arrays["num_residues"] = tokens.num_features
        arrays["antibody"] = torch.tensor(chosen)
        findings = {}
        for name in ("mixture-4", "confidence", "left-to-right"):
            gain = found[name] - found["area"]
            findings[f"antibody-orders/{name}"] = Finding.over(gain)
        weights = weights_of(self.model, scorer.network)
        return Outcome(findings, arrays, context.checksum([tokens.ids]), weights)

    def of_chain(self, scorer: Scorer, ids: Int[Tensor, " L"]) -> Arrays:
        """Every number of one chain, ()."""
        questions = Questions(ids[None, 1:-1], self.num_orders, generator=seeded(self.seeds[0]))
        model = residues_between_marks(scorer, ids)
        return {name: value[0] for name, value in numbers(questions.answers(model)).items()}


def residues_between_marks(scorer: Scorer, ids: Int[Tensor, " L"]) -> FromFunction:
    """log q of every token at the places of ``ids`` between its first and last, which stay in sight."""
    mask_token = scorer.tokenizer.mask_token_id

    @torch.no_grad()
    def log_values(x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]) -> Float[Tensor, "B D V"]:
        rows = ids.repeat(len(x), 1)
        rows[:, 1:-1] = x.masked_fill(mask, mask_token)
        everything_counts = torch.ones_like(rows)
        logits = scorer.network(input_ids=rows, attention_mask=everything_counts).logits
        answer: Tensor = logits[:, 1:-1].double().log_softmax(dim=2)
        return answer

    return FromFunction(log_values, len(ids) - 2, rows=ROWS_AT_ONCE)
