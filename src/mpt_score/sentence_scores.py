"""Scores of whole texts: the mean of log p_σ over orders, what it costs and how far it is off."""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.results import Estimate, as_rows
from mpt_lml.spec import require
from mpt_score.estimate import FIELDS, Plan, one_row, windows
from mpt_score.keep import Part, Run, afresh, named, parts_of
from mpt_score.scorer import Scorer, Texts, load
from mpt_score.tokens import Tokens, require_texts

PART_PASSES = 2**19
"""Tokens times passes of a part: some seconds of a small network."""
_NATS_TO_BITS = -1.0 / math.log(2.0)
Unit = Literal["sentence", "token", "character", "byte"]


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of N texts in nats, every field (N,): float64, or counts.

    ``log_score`` is the mean of log p_σ over orders, ``standard_error`` its error over masks or
    orders (0 where every mask was visited) with its ``degrees`` of freedom. ``inconsistency`` is the
    standard deviation of log p_σ over orders: 0 for a joint distribution, no error of ``log_score``,
    silent about the truth; nan for fewer than two orders drawn. ``pseudo_log_likelihood`` is
    Σ_j log q(x_j | all others) (Salazar et al. 2020); nan where it was not asked for.

    ``num_tokens`` are those scored, D, no special and no unknown ones. A text longer than the model
    takes is cut into ``num_windows``, each scored as if it stood alone. Texts that came as token ids
    have no characters and bytes. Texts of one of the ``documents`` are not independent.

    >>> scores = sentences(
    ...     load(lambda i, m: torch.zeros(i.shape + (2,)).log_softmax(-1)), [[0, 1, 1]]
    ... )
    >>> scores.bits_per("token"), scores.standard_error
    (tensor([1.0000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """

    num_tokens: Int[Tensor, " N"]
    num_characters: Int[Tensor, " N"]
    num_bytes: Int[Tensor, " N"]
    num_windows: Int[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    log_score: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    degrees: Float[Tensor, " N"]
    inconsistency: Float[Tensor, " N"]
    pseudo_log_likelihood: Float[Tensor, " N"]
    documents: Int[Tensor, " N"]

    def interval(self, level: float = 0.95) -> Float[Tensor, "N two"]:
        """Where ``log_score`` would be with every mask: Student's interval over masks, nats."""
        require(locals(), "level (0,1)")
        from scipy import stats

        reach = torch.tensor(stats.t.ppf(0.5 * (1 + level), self.degrees.numpy()))
        reach = reach * self.standard_error
        return torch.stack([self.log_score - reach, self.log_score + reach], dim=1)

    def bits_per(self, unit: Literal["token", "character", "byte"]) -> Float[Tensor, " N"]:
        """−``log_score`` in bits by what is scored. Raises ``ValueError`` for bytes of token ids."""
        require(locals(), "unit token|character|byte")
        return _NATS_TO_BITS * self.log_score / self._size(unit)

    def mean(self, per: Unit = "sentence") -> Estimate:
        """Mean log-score in nats a sentence, or all bits by all tokens, characters or bytes.

        The error is over documents, G of them (every text one of its own unless they were named):
        √(G/(G − 1) Σ_g (Σ_{i∈g} r_i)²) / Σ_i u_i with the residuals r_i = y_i − mean · u_i. It
        contains the error over masks.
        """
        require(locals(), "per sentence|token|character|byte")
        value = self.log_score if per == "sentence" else _NATS_TO_BITS * self.log_score
        size = torch.ones_like(value) if per == "sentence" else self._size(per).double()
        mean = value.sum() / size.sum()
        group = self.documents.unique(return_inverse=True)[1]
        count = int(group.max()) + 1
        total = torch.zeros(count).double().index_add(0, group, value - mean * size)
        error = (total.square().sum() * count / (count - 1)).sqrt() if count > 1 else math.nan
        unit = "nats" if per == "sentence" else f"bits a {per}"
        return Estimate(mean.item(), float(error / size.sum()), count, unit)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a text, for a table; what was not asked for or is not known is left out."""
        columns = {name: value for name, value in vars(self).items() if not value.isnan().all()}
        if self.num_bytes.any():
            columns |= {f"bits_per_{unit}": self.bits_per(unit) for unit in ("character", "byte")}
        return as_rows(columns | {"bits_per_token": self.bits_per("token")})

    def _size(self, unit: str) -> Tensor:
        size: Tensor = getattr(self, f"num_{unit}s")
        if not size.all():
            raise ValueError(
                f"texts that came as token ids have no {unit}s: score them as strings."
            )
        return size


def sentences(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    documents: Sequence[Hashable] | None = None,
    num_masks: int = 32,
    num_orders: int = 2,
    pseudo: bool = True,
    error: float | None = None,
    seed: int = 0,
    run: Run = afresh,
) -> SentenceScores:
    """Log-score of every text: E_σ log p_σ(x), the area under its mask-rate curve, nats.

    ``model``, ``tokenizer`` and ``texts`` are those of :func:`load` and :meth:`Scorer.encode`;
    ``documents`` names the document of each text. ``num_masks`` masks, or all 2^D − 1 where that is
    not more, and ``num_orders`` whole orders of D masks for the inconsistency; where four orders fit
    both together, these and no others, and the score is their mean. If ``pseudo``, D masks of one
    token. ``error``: more masks, up to 64 times as many, until the standard error is at most that
    many nats a token; see it in the result, which is slightly optimistic after such a stop. A
    text's masks follow from ``seed`` and its tokens, not from its neighbors. Parts of about equal
    work go by length through ``run``, as in :func:`curve`.

    Raises ``ValueError`` as :meth:`Scorer.encode` and where an answer of the model is not finite.

    >>> from mpt_score.networks import small_bert_folder
    >>> found = sentences(small_bert_folder(), ["She was alone.", "He had come back."])
    >>> found.num_tokens, found.num_passes
    (tensor([4, 5]), tensor([15, 31]))
    """
    require(locals(), "num_masks 2.., num_orders 0.., pseudo bool, error? (0,inf), seed 0..")
    require(locals(), "documents? Sequence, documents?* Hashable, run Callable")
    scorer = load(model, tokenizer)
    if not isinstance(texts, Tokens):
        require_texts(texts)
    labels = list(range(len(texts))) if documents is None else list(documents)
    if len(labels) != len(texts):
        raise ValueError(f"{len(texts)} texts came with {len(labels)} documents.")
    plan = Plan(num_masks, num_orders, pseudo, error, seed)
    parts = list(_parts(scorer, texts, plan))
    works = (partial(_part, scorer, *part, plan) for part in parts)
    work = named("part", plan, [tokens for _, tokens in parts], works)
    found = parts_of(run, "texts", work, "scores")
    order = torch.tensor([number for numbers, _ in parts for number in numbers])
    total = torch.cat([each["scores"] for each in found])[order.argsort()]
    field = dict(zip(FIELDS, total.T, strict=True))
    every = [None] * len(texts) if isinstance(texts, Tokens) else texts
    strings = [each if isinstance(each, str) else "" for each in every]
    first = {label: number for number, label in reversed(list(enumerate(labels)))}
    return SentenceScores(
        num_tokens=field["tokens"].long(),
        num_characters=torch.tensor([len(each) for each in strings]),
        num_bytes=torch.tensor([len(each.encode()) for each in strings]),
        num_windows=field["windows"].long(),
        num_passes=field["passes"].long(),
        log_score=field["score"],
        standard_error=field["variance"].sqrt(),
        degrees=(field["variance"].square() / field["fourth"]).nan_to_num(math.inf),
        inconsistency=field["orders"].sqrt(),
        pseudo_log_likelihood=field["pseudo"],
        documents=torch.tensor([first[label] for label in labels]),
    )


def _parts(scorer: Scorer, texts: Texts, plan: Plan) -> Iterator[tuple[list[int], Tokens]]:
    """Numbers and tokens of texts of like length, cut where they are work enough."""
    for numbers, tokens in _encoded(scorer, texts):
        passes = plan.num_masks + (plan.num_orders + plan.pseudo) * tokens.lengths
        work = (tokens.lengths * passes / PART_PASSES).double()
        cut = (work.cumsum(0) - work / 2).floor().unique_consecutive(return_counts=True)[1]
        for rows in torch.arange(len(numbers)).split(cut.tolist()):
            yield [numbers[row] for row in rows.tolist()], tokens.rows(rows)


def _encoded(scorer: Scorer, texts: Any, size: int = 512) -> Iterator[tuple[list[int], Tokens]]:
    """Some texts at a time, by length, so that a long one pads none but its like."""
    if isinstance(texts, Tokens):
        order = texts.lengths.argsort(stable=True)
        yield from ((rows.tolist(), texts.rows(rows)) for rows in order.split(size))
        return
    numbers = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    for some in (numbers[start : start + size] for start in range(0, len(numbers), size)):
        try:
            yield some, scorer.encode([texts[n] for n in some])
        except ValueError:
            scorer.encode(texts)  # the message has to name a text by its own number
            raise


def _part(scorer: Scorer, numbers: list[int], tokens: Tokens, plan: Plan) -> Part:
    """``FIELDS`` of each text, summed over its windows; windows of one length go together."""
    rows: list[Tokens] = []
    owner: list[int] = []
    for place in range(len(tokens)):
        row = tokens.rows(torch.tensor([place]))
        cut = windows(row, scorer.max_length, scorer.is_frame(row.ids[0]))
        rows, owner = rows + cut, owner + [place] * len(cut)
    found = torch.zeros(len(rows), len(FIELDS), dtype=torch.float64)
    lengths = torch.tensor([row.ids.shape[1] for row in rows])
    for length in lengths.unique():
        asking = {
            n: one_row(rows[n], plan) for n in (lengths == length).nonzero().flatten().tolist()
        }
        asked = {n: next(each) for n, each in asking.items()}
        while asked:
            places = [n for n, mask in asked.items() for _ in mask]
            ids, types = (
                torch.cat([getattr(rows[n], k) for n in places]) for k in ("ids", "types")
            )
            number = torch.tensor([numbers[owner[n]] for n in places])
            values = scorer.log_tokens(ids, torch.cat(list(asked.values())), types, numbers=number)
            answers = values.split([len(mask) for mask in asked.values()])
            for n, answer in zip(list(asked), answers, strict=True):
                try:
                    asked[n] = asking[n].send(answer)
                except StopIteration as done:
                    found[n] = torch.tensor(done.value, dtype=torch.float64)
                    del asked[n]
    total = torch.zeros(len(tokens), len(FIELDS), dtype=torch.float64)
    return {"scores": total.index_add(0, torch.tensor(owner), found)}
