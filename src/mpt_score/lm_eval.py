"""Masked models in lm-evaluation-harness; needs ``pip install mpt-lml[eval]``.

    python -m mpt_score.lm_eval run --model mpt-lml --model_args pretrained=FOLDER --tasks NAME

is its command line with this model registered; a program imports this module first. Log-likelihoods
are means over orders, all options of a question along the same ones. A masked model is told the
number of tokens: accuracies among options of different numbers compare what cannot be compared.

What was cut, what could not be scored and what was charged for unknown tokens is counted, said, and
kept beside the results. One thing stops a run, before it has cost anything: a question without an
option that can be scored, as the harness would count its first option as chosen.
"""

import inspect
import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import mpt_score
from mpt_score.quantities.answer_scores import num_shared
from mpt_score.quantities.means import ratio_estimate
from mpt_score.quantities.sentence_scores import NATS_TO_BITS
from mpt_score.rows.reading import num_leading
from mpt_score.scorer import Scorer

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise ImportError(
        "this needs lm-evaluation-harness, which is not installed: pip install 'mpt-lml[eval]'."
    ) from error

_log = logging.getLogger(__name__)

DEVICE_OF_HARNESS = "cuda:0"
"""What the harness asks for where nobody has named a device."""
NO_TEMPLATE = (
    "a masked language model has no chat template: run the task without --apply_chat_template."
)


class Question(NamedTuple):
    """A context as token ids, with those of its continuations that can be scored."""

    prompt: list[int]  # with the tokens that the tokenizer puts in front of a text
    options: list[list[int]]  # with those that it puts behind
    places: list[int]  # of the options among the requests
    num_cut: int  # tokens taken from the context's left
    document: Any  # whose question it is, as of _document


@register_model("mpt-lml")
class MaskedHarness(LM):
    """A masked language model for lm-evaluation-harness.

    Args:
        pretrained: a folder, a name on the hub, ``module:function``, or what else
            :func:`~mpt_score.loading.load` takes.
        tokenizer, revision, precision, max_tokens, max_length: as of ``load``.
        device: likewise; without a GPU ``cuda:0`` becomes "auto", as the harness asks for it where
            nobody has named a device.
        num_orders: most random orders of each answer.
        num_masks: passes for each whole text, or window of one.
        seed: of orders and masks.
        block_length: whole texts are scored block by block, as of
            :func:`~mpt_score.quantities.sentence_scores.sentences`, with ``num_masks`` passes for each
            block. Answers are not: the whole answer is one block.
        later: "hidden" or "absent", as of :func:`~mpt_score.quantities.sentence_scores.sentences`.
        allow_unscorable: whether questions without an option that can be scored go to the harness,
            which counts the first option as chosen.
        batch_size, max_batch_size: what the harness passes to every model; not used, as ``max_tokens``
            bounds what is in the network together.
        unknown: keys of ``--model_args`` that are none of these.

    Raises:
        ValueError: for unknown keys; without ``pretrained``; and for a function without a tokenizer,
            as the harness asks for texts.
    """

    def __init__(
        self,
        pretrained: Any = None,
        tokenizer: Any = None,
        revision: str | None = None,
        device: str | None = None,
        precision: Any = None,
        max_tokens: int | None = None,
        max_length: int | None = None,
        num_orders: int = 8,
        num_masks: int = 33,
        seed: int = 0,
        block_length: int | None = None,
        later: Any = "hidden",
        allow_unscorable: bool = False,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            known = list(inspect.signature(MaskedHarness).parameters)[:-1]
            message = f"--model_args has no {', '.join(unknown)}: it takes {', '.join(known)}."
            if "trust_remote_code" in unknown:
                message += (
                    " Code of a network's own is not run: write a module:function that loads it."
                )
            raise ValueError(message)
        if pretrained is None:
            raise ValueError(
                "give pretrained= in --model_args: a folder, a name on the hub or module:function."
            )
        self.num_orders = num_orders
        self.num_masks = num_masks
        self.seed = seed
        self.block_length = block_length
        self.later = later
        self.allow_unscorable = allow_unscorable
        self.said: dict[str, dict[str, Any]] = {}  # of each kind of requests, its last ones
        self.scorer = mpt_score.load(
            pretrained,
            tokenizer,
            revision=revision,
            device=_device_here(device),
            precision=precision,
            max_tokens=max_tokens,
            max_length=max_length,
        )
        if self.scorer.tokenizer is None:
            raise ValueError("the harness asks for texts: give a tokenizer= in --model_args.")

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-scores of continuations given their contexts.

        A row that is too long loses tokens of its context from the left, as in the harness's own
        models; all continuations of a context lose the same ones, so that they stay comparable. A
        continuation that cannot be scored (no token, an unknown or a special one, or more than fit)
        has −∞: the harness wants a number for each and takes the largest, so another one is chosen.
        Where there is no other one it takes the first, whatever the numbers are.

        A masked model has no greedy decoding to compare a continuation with; what counts it, such
        as the accuracy of tasks without options, is 0 and means nothing.

        Args:
            requests: each of a context and its continuation.
            disable_tqdm: not used.

        Returns:
            Of each request the log-score, nats, and False.

        Raises:
            ValueError: for a question without an option that can be scored, unless these are allowed.
        """
        questions = _questions(self.scorer, requests)
        num_requested = Counter(_document(request) for request in requests)
        num_scorable: Counter[Any] = Counter()
        for question in questions:
            num_scorable[question.document] += len(question.options)
        # The harness chooses among all options of a document, in one context or in several.
        choices = [document for document, number in num_requested.items() if number > 1]
        unscorable = [document for document in choices if num_scorable[document] == 0]
        if unscorable and not self.allow_unscorable:
            first = next(each for each in requests if _document(each) == unscorable[0])
            raise ValueError(_why_not_asked(first, len(unscorable), len(choices)))
        values = [-math.inf] * len(requests)
        scorable = [question for question in questions if question.options]
        num_incomparable = 0
        if scorable:
            scores = mpt_score.answers(
                self.scorer,
                [question.prompt for question in scorable],
                [question.options for question in scorable],
                num_orders=self.num_orders,
                seed=self.seed,
            )
            num_incomparable = int((~scores.comparable).sum())
            for log_scores, question in zip(scores.log_score.tolist(), scorable, strict=True):
                # They are as many as the longest list of options has.
                for value, place in zip(log_scores, question.places, strict=False):
                    values[place] = value
        notices = _counted(
            {
                "questions have options of different lengths": (num_incomparable, len(questions)),
                f"contexts are cut from the left, so that rows have {self.scorer.max_length} tokens": (
                    sum(question.num_cut > 0 for question in questions),
                    len(questions),
                ),
                "continuations cannot be scored (no token, an unknown or a special one, or more than "
                "fit): they get -inf, and another option is chosen where there is one": (
                    values.count(-math.inf),
                    len(requests),
                ),
                "questions have one option that can be scored: it is chosen, whatever it is": (
                    sum(num_scorable[document] == 1 for document in choices),
                    len(choices),
                ),
                "questions have no option that can be scored: the harness counts the first as chosen, "
                "which is a hit where that is the right one. Leave them out": (
                    len(unscorable),
                    len(choices),
                ),
            }
        )
        if self.block_length is not None:
            notices.append("block_length is of whole texts: each answer is scored as one block.")
        if len(choices) < len(num_requested):
            notices.append("'is_greedy' is False for all: accuracies without options mean nothing.")
        self._say("loglikelihood", len(requests), notices)
        return [(value, False) for value in values]

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-scores of whole texts, nats; one that is too long is cut into windows of its own.

        The harness divides by the bytes or words of all that it asked for. So that not knowing a
        token is no gain, an unknown one is charged what the other tokens of its text cost on average.
        A text without a token to score is charged by the byte what the other texts cost.

        Args:
            requests: each of a text.
            disable_tqdm: not used.

        Raises:
            ValueError: where no text has a token to score.
        """
        texts = [request.args[0] for request in requests]
        rows = [torch.tensor(ids) for ids in _encode(self.scorer, texts)]
        scorable = [
            place for place, ids in enumerate(rows) if not _is_unscorable(self.scorer, ids).all()
        ]
        if not scorable:
            raise ValueError("none of the texts has a token that can be scored.")
        scores = mpt_score.sentences(
            self.scorer,
            [texts[place] for place in scorable],
            num_masks=self.num_masks,
            seed=self.seed,
            block_length=self.block_length,
            later=self.later,
        )
        rate = 1 + scores.num_unknown / scores.num_tokens
        charged = rate * scores.log_score
        num_bytes = torch.tensor([len(text.encode()) for text in texts], dtype=torch.float64)
        values = num_bytes * charged.sum() / num_bytes[scorable].sum()
        values[scorable] = charged
        mask_variance = torch.zeros_like(values)
        mask_variance[scorable] = (rate * scores.standard_error).square()
        num_passes = torch.zeros(len(texts), dtype=torch.int64)
        num_passes[scorable] = scores.num_passes
        places_by_task: dict[str | None, list[int]] = {}
        for place, request in enumerate(requests):
            places_by_task.setdefault(request.task_name, []).append(place)
        notices = _counted(
            {
                f"texts have more than {self.scorer.max_length} tokens: they are cut into windows, each "
                "scored as if it stood alone": (int((scores.num_windows > 1).sum()), len(texts)),
                "texts have unknown tokens, each charged what its text's other tokens cost": (
                    int((scores.num_unknown > 0).sum()),
                    len(texts),
                ),
                "texts have no token to score: charged by the byte what the others cost": (
                    len(texts) - len(scorable),
                    len(texts),
                ),
            }
        )
        for task, places in places_by_task.items():
            if not num_bytes[places].any():
                continue  # nothing to divide by
            columns = (values, mask_variance, num_bytes, num_passes)
            notices.append(_bits_a_byte(task, *(column[places] for column in columns)))
        self._say("loglikelihood_rolling", len(requests), notices)
        return values.tolist()

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Refuse tasks that generate."""
        raise NotImplementedError(
            "mpt-lml scores texts and generates none. Choose tasks with options or perplexities."
        )

    def get_model_info(self) -> dict[str, Any]:
        """What the harness keeps beside the results: the settings, and what was counted and said.

        With ``--use_cache`` only new requests come to the model: ``num_requests`` tells how many.
        """
        settings: dict[str, Any] = {
            "num_orders": self.num_orders,
            "num_masks": self.num_masks,
            "seed": self.seed,
            "block_length": self.block_length,
            "later": self.later,
            "max_length": self.scorer.max_length,
        }
        return {"mpt_score": settings | self.said}

    @property
    def tokenizer_name(self) -> str:
        """Refuse chats: the harness asks for it where a program wants their template."""
        raise NotImplementedError(NO_TEMPLATE)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Refuse chats: the harness asks for their form before the first request."""
        if chat_template:
            raise NotImplementedError(NO_TEMPLATE)
        return ""

    def _say(self, kind: str, num_requests: int, notices: list[str]) -> None:
        self.said[kind] = {"num_requests": num_requests, "notices": notices}
        for notice in notices:
            _log.warning(notice)


def _device_here(device: str | None) -> str:
    """The device that is asked for; "auto" for the harness's own choice where it is not here."""
    if device is None:
        return "auto"
    if device == DEVICE_OF_HARNESS and not torch.cuda.is_available():
        _log.warning(
            "device %s, which the harness asks for by default, is not here: torch sees no GPU. Device "
            "auto is taken.",
            device,
        )
        return "auto"
    return device


def _why_not_asked(request: Instance, number: int, total: int) -> str:
    """The sentence for the first of the questions of which no option can be scored."""
    context, continuation = request.args
    return (
        f"{number} of {total} questions have no option that can be scored, the first of them document "
        f"{request.doc_id} of task {request.task_name}, whose options are like "
        f"{continuation!r} after {context[-80:]!r}: each has no token, an unknown or a special one, or "
        "more than fit. The harness would count the first option as chosen, a hit wherever that is the "
        "right one. Leave such questions out (--samples lists those to keep), or accept that with "
        "allow_unscorable=True in --model_args; their number is said."
    )


def _counted(counts: dict[str, tuple[int, int]]) -> list[str]:
    """Sentences on how many of how many are so, but for those where none is."""
    return [f"{number} of {total} {what}." for what, (number, total) in counts.items() if number]


def _bits_a_byte(
    task: str | None,
    log_score: Float[Tensor, " N"],
    mask_variance: Float[Tensor, " N"],
    num_bytes: Float[Tensor, " N"],
    num_passes: Int[Tensor, " N"],
) -> str:
    """A task's bits a byte with their standard errors over texts and masks, which the harness lacks."""
    mean = ratio_estimate(NATS_TO_BITS * log_score, num_bytes)
    mask_error = mask_variance.sum().sqrt() * abs(NATS_TO_BITS) / num_bytes.sum()
    errors = [f"± {mask_error:.2g} from the masks that were drawn"]
    if mean.num_samples > 1:
        errors.insert(0, f"± {mean.standard_error:.2g} from one text to another, in which is")
    return (
        f"task {task}: {mean:.5g} bits a byte over {mean.num_samples} texts, {' '.join(errors)}; "
        f"{int(num_passes.sum())} passes."
    )


def _encode(scorer: Scorer, texts: Sequence[str]) -> list[list[int]]:
    ids: list[list[int]] = scorer.tokenizer(list(texts), verbose=False)["input_ids"]
    return ids


def _questions(scorer: Scorer, requests: Sequence[Instance]) -> list[Question]:
    """What requests ask together, in the order in which it first appears."""
    # Options of one question are scored along the same orders.
    places_by_key: dict[Any, list[int]] = {}
    for place, request in enumerate(requests):
        key = (request.task_name, request.doc_id, request.args[0])
        places_by_key.setdefault(key, []).append(place)
    prompts = _encode(scorer, [context for *_, context in places_by_key])
    rows = _encode(scorer, ["".join(request.args) for request in requests])
    questions = []
    for prompt, places in zip(prompts, places_by_key.values(), strict=True):
        rows_of_question = [rows[place] for place in places]
        document = _document(requests[places[0]])
        question = _question(scorer, prompt, rows_of_question, places, document)
        questions.append(question)
    return questions


def _document(request: Instance) -> Any:
    """What tells documents apart: the context, where the harness did not number them."""
    if request.doc_id is None:
        return request.args[0]
    return (request.task_name, request.doc_id)


def _question(
    scorer: Scorer, prompt: list[int], rows: list[list[int]], places: list[int], document: Any
) -> Question:
    """Rows that fit, without the continuations that cannot be scored."""
    start = num_shared(prompt, rows)
    is_frame = scorer.is_frame(torch.tensor(prompt[:start], dtype=torch.int64))
    num_front = num_leading(is_frame)
    longest = scorer.max_length or max(len(row) for row in rows)
    options = []
    places_of_options = []
    for row, place in zip(rows, places, strict=True):
        option = row[start:]
        if len(option) <= longest - num_front and _can_be_scored(scorer, option):
            options.append(option)
            places_of_options.append(place)
    num_too_many = max((start + len(option) - longest for option in options), default=0)
    num_cut = max(0, num_too_many)
    return Question(
        prompt=prompt[:num_front] + prompt[num_front + num_cut : start],
        options=options,
        places=places_of_options,
        num_cut=num_cut,
        document=document,
    )


def _can_be_scored(scorer: Scorer, option: list[int]) -> bool:
    """Whether there are tokens before those that the tokenizer puts behind a text, all of them known."""
    ids = torch.tensor(option, dtype=torch.int64)
    content = ids[: len(ids) - num_leading(scorer.is_frame(ids).flip(0))]
    return len(content) > 0 and not _is_unscorable(scorer, content).any()


def _is_unscorable(scorer: Scorer, ids: Int[Tensor, " L"]) -> Bool[Tensor, " L"]:
    """Special and unknown tokens."""
    is_special = torch.isin(ids, scorer.special_ids)
    if scorer.unknown_id is None:
        return is_special
    return is_special | (ids == scorer.unknown_id)


if __name__ == "__main__":
    cli_evaluate()
