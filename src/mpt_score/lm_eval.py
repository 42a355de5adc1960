"""Masked models in lm-evaluation-harness; needs ``pip install mpt-lml[eval]``.

    python -m mpt_score.lm_eval run --model mpt-lml --model_args pretrained=FOLDER --tasks NAME

is its command line with this model registered; a program imports this module first. Log-likelihoods
are means over orders, all options of a question along the same ones. A masked model is told the
number of tokens: accuracies among options of different numbers compare what cannot be compared.
"""

import logging
from collections.abc import Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

import mpt_score

_log = logging.getLogger(__name__)


@register_model("mpt-lml")
class MaskedHarness(LM):
    """``--model_args``: pretrained (a folder or name), revision, precision, and what is spent:
    ``num_orders`` of each answer, ``num_masks`` of each whole text, at a ``seed``.

    ``batch_size`` is not used: ``max_tokens`` bounds what goes through the model at a time.
    """

    def __init__(
        self,
        pretrained: Any,
        tokenizer: Any = None,
        revision: str | None = None,
        device: str | None = None,
        precision: Any = "float32",
        max_tokens: int = 8192,
        num_orders: int = 8,
        num_masks: int = 32,
        seed: int = 0,
        batch_size: int | str | None = None,
    ) -> None:
        super().__init__()
        self.num_orders, self.num_masks, self.seed = num_orders, num_masks, seed
        where = {"revision": revision, "device": device or "auto", "precision": precision}
        self.scorer = mpt_score.load(pretrained, tokenizer, max_tokens=max_tokens, **where)

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-scores of continuations given their contexts, nats, and False.

        A masked model has no greedy decoding to compare a continuation with; what counts it, such
        as the accuracy of tasks without options, is 0 and means nothing.
        """
        questions: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            of = (request.task_name, request.doc_id, request.args[0])
            questions.setdefault(of, []).append(number)
        prompts = [context for *_, context in questions]
        options = [[requests[number].args[1] for number in each] for each in questions.values()]
        if any(len(each) == 1 for each in options):
            _log.warning("'is_greedy' is False for all: accuracies without options mean nothing.")
        spent: Any = {"num_orders": self.num_orders, "seed": self.seed}
        found = mpt_score.answers(self.scorer, prompts, options, **spent)
        if not found.comparable.all():
            count = int((~found.comparable).sum())
            _log.warning("%d of %d have options of different lengths.", count, len(prompts))
        values = [(0.0, False)] * len(requests)
        for row, numbers in zip(found.log_score.tolist(), questions.values(), strict=True):
            for value, number in zip(row, numbers, strict=False):
                values[number] = (value, False)
        return values

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-scores of whole texts, nats; one that is too long is cut into windows of its own."""
        texts = [request.args[0] for request in requests]
        spent: Any = {"num_masks": self.num_masks, "num_orders": 0, "seed": self.seed}
        return mpt_score.sentences(self.scorer, texts, pseudo=False, **spent).log_score.tolist()

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        raise NotImplementedError(
            "mpt-lml scores texts and generates none. Choose tasks with options or perplexities."
        )


if __name__ == "__main__":
    cli_evaluate()
