"""The calls for those who come from minicons, as the page writes them, against what minicons documents.

minicons hides each token of a text alone ("original", Salazar et al. 2020), or with the later tokens of
its word ("within_word_l2r", Kauf and Ivanova 2023), and sums or averages. Of an option behind its prompt,
and a space between, only the option's tokens are scored. The sums are written out here, by the network
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_bert import MASK, tiny, tokenizer

import mpt_score

PAGE = Path(__file__).parents[3] / "book" / "scoring-guide.md"
TEXTS = ["the cats sat.", "a dog", "the dogs sat the cats"]
PROMPTS = ["the cat", "a dog sat", "the dogs"]
OPTIONS = ["sats. a dogs", "a cats", "sat the cats."]
WITHIN_WORD = 'PLL_metric="within_word_l2r"'
Scores = list[float]


@torch.no_grad()
def log_q(ids: Sequence[int], place: int, hidden: set[int]) -> float:
    """log q of one token while some are hidden."""
    shown = [MASK if j in hidden else token for j, token in enumerate(ids)]
    logits = tiny()(torch.tensor([shown])).logits[0, place]
    return logits.log_softmax(dim=-1)[ids[place]].item()


def terms(text: str, *, start: int = 1, within_word: bool = False) -> Scores:
    """Of each token from ``start`` on its term; pieces with ## belong to the word before."""
    ids = tokenizer()(text)["input_ids"]
    pieces = tokenizer().convert_ids_to_tokens(ids)
    end = len(ids) - 1  # of [SEP]
    values = []
    for place in range(start, end):
        hidden = {place}
        while within_word and max(hidden) + 1 < end and pieces[max(hidden) + 1].startswith("##"):
            hidden.add(max(hidden) + 1)
        values.append(log_q(ids, place, hidden))
    return values


def of_texts(*, within_word: bool = False) -> Scores:
    """What ``token_score`` gives, text after text."""
    return [value for text in TEXTS for value in terms(text, within_word=within_word)]


def of_options(*, within_word: bool = False) -> Scores:
    """What ``conditional_score`` gives, summed."""
    sums = []
    for prompt, option in zip(PROMPTS, OPTIONS, strict=True):
        start = len(tokenizer()(prompt)["input_ids"]) - 1
        sums.append(sum(terms(f"{prompt} {option}", start=start, within_word=within_word)))
    return sums


class Row(NamedTuple):
    """Of the page's table."""

    minicons: str
    ours: str
    literal: Callable[[], Scores]


SPACED = '[[" " + option] for option in options]'
ROWS = (
    Row(
        "scorer.sequence_score(texts, reduction=total)",
        "mpt_score.sentences(model, texts, pseudo=True).pseudo_log_likelihood",
        lambda: [sum(terms(text)) for text in TEXTS],
    ),
    Row(
        "scorer.token_score(texts)",
        "mpt_score.surprisals(model, texts, num_orders=0, pseudo=True).pseudo_log_likelihood",
        of_texts,
    ),
    Row(
        f"scorer.token_score(texts, {WITHIN_WORD})",
        "mpt_score.surprisals(model, texts, num_orders=0, within_word=True).within_word",
        lambda: of_texts(within_word=True),
    ),
    Row(
        "scorer.conditional_score(prompts, options, reduction=total)",
        f"mpt_score.answers(model, prompts, {SPACED}, pseudo=True).pseudo_log_likelihood",
        of_options,
    ),
    Row(
        WITHIN_WORD,
        f"mpt_score.answers(model, prompts, {SPACED}, within_word=True).within_word",
        lambda: of_options(within_word=True),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.ours.partition("(")[0] + row.minicons)
def test_the_call_of_the_page_is_the_literal_sum(row: Row) -> None:
    names: dict[str, Any] = {
        "mpt_score": mpt_score,
        "model": mpt_score.load(tiny(), tokenizer()),
        "texts": TEXTS,
        "prompts": PROMPTS,
        "options": OPTIONS,
    }
    found = eval(row.ours, names)
    assert found.flatten().tolist() == pytest.approx(row.literal(), abs=1e-9)


def test_the_two_forms_differ_in_words_of_several_pieces() -> None:
    for scores in (of_texts, of_options):
        both = zip(scores(), scores(within_word=True), strict=True)
        assert max(abs(alone - with_word) for alone, with_word in both) > 0.01


def test_the_page_has_these_calls_side_by_side() -> None:
    page = PAGE.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    for row in ROWS:
        together = [line for line in lines if f"`{row.minicons}` | `{row.ours}`" in line]
        assert len(together) == 1, row
