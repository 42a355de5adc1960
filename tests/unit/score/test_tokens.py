"""Texts as rows of tokens: what is special, padding or unknown, and vocabularies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from families import FAMILIES
from models import generator
from other_device import OtherDevice
from tiny_bert import CLS, tiny, tokenizer
from transformers import BertTokenizer

import mpt_score
from mpt_score import tokens
from mpt_score.errors import TextError


def test_padding_is_the_tokenizers_and_an_empty_text_is_numbered() -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "sun", "[PAD]"]
    tokenizer = BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)})
    ids = tokens.encode(tokenizer, ["sun sun", "sun"]).ids
    assert ids.tolist() == [[1, 4, 4, 2], [1, 4, 2, 5]]
    with pytest.raises(ValueError, match="text 1 has no word pieces"):
        tokens.encode(tokenizer, ["sun", "moon", "sun"])


def test_a_tokenizer_without_padding_is_enough() -> None:
    plain = tokenizer()
    plain.pad_token = None
    assert plain.pad_token_id is None
    texts = ["the cat sat on a dog", "a cat"]
    found = tokens.encode(plain, texts)
    wanted = tokens.encode(tokenizer(), texts)
    assert torch.equal(found.lengths, wanted.lengths)
    assert torch.equal(found.maskable, wanted.maskable)
    assert torch.equal(found.ids[found.maskable], wanted.ids[wanted.maskable])
    scores = [mpt_score.sentences(tiny(), texts, tokenizer=each) for each in (plain, tokenizer())]
    assert torch.equal(scores[0].log_score, scores[1].log_score)


def test_tokens_of_pairs_and_their_masks() -> None:
    found = tokens.encode(tokenizer(), ["the cat sat.", "a dog"], ["the dogs", "the cat sat"])
    assert found.ids[0, : found.lengths[0]].tolist() == [2, 5, 6, 7, 9, 3, 5, 11, 8, 3]
    assert found.types[0, : found.lengths[0]].tolist() == [0] * 6 + [1] * 4
    assert found.num_features.tolist() == [7, 5]
    assert found.lengths.tolist() == [10, 8]
    ranks = found.sample_ranks(generator=generator())
    for size in range(1, 8):
        mask = ranks < torch.minimum(torch.tensor(size), found.num_features)[:, None]
        assert mask.sum(dim=1).tolist() == [size, min(size, 5)]
        assert not (mask & ~found.maskable).any()
    assert found.rows(torch.tensor([1])).ids.shape == (1, 8)


def test_tokens_are_on_the_cpu() -> None:
    """Where text is tokenized: whoever brings ids from elsewhere gets the same scores."""
    wanted = tokens.encode(tokenizer(), ["the cat sat", "a dog sat the"])
    expected = mpt_score.sentences(tiny(), wanted, tokenizer=tokenizer()).log_score
    with OtherDevice() as other:
        there = [
            getattr(wanted, name).to(other.device)
            for name in ("ids", "types", "maskable", "lengths")
        ]
        rows = [row[:length] for row, length in zip(there[0], wanted.lengths.tolist(), strict=True)]
        for found in (
            tokens.Tokens(*there),
            tokens.Tokens(there[0], wanted.types, there[2], wanted.lengths),
            mpt_score.load(tiny(), tokenizer()).encode(rows),
        ):
            assert found.ids.device == found.maskable.device == torch.device("cpu")
            assert torch.equal(found.ids, wanted.ids)
            assert torch.equal(found.maskable, wanted.maskable)
            last = found.rows(torch.tensor([1]).to(other.device))
            assert torch.equal(last.ids, wanted.ids[1:])
            scores = mpt_score.sentences(tiny(), found, tokenizer=tokenizer())
            assert torch.equal(scores.log_score, expected)


def test_unknown_tokens_are_shown_and_not_scored() -> None:
    found = tokens.encode(tokenizer(), ["the zebra sat"])
    assert found.ids[0].tolist() == [CLS, 5, 1, 7, 3]
    assert found.maskable[0].tolist() == [False, True, False, True, False]
    with pytest.raises(ValueError, match="text 0 has no word pieces: 'zebra'"):
        tokens.encode(tokenizer(), ["zebra"])


@pytest.mark.bad_input
@pytest.mark.parametrize("sentence", ["", "  \n"])
def test_empty_text(sentence: str) -> None:
    with pytest.raises(ValueError, match="text 1 is empty"):
        tokens.encode(tokenizer(), ["a", sentence])
    with pytest.raises(ValueError, match="at least one text"):
        tokens.encode(tokenizer(), [])


@pytest.mark.bad_input
def test_halves_of_other_number() -> None:
    with pytest.raises(ValueError, match="2 first texts came with 1 second"):
        tokens.encode(tokenizer(), ["a", "a"], ["a"])


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "MPNet", "ESM-2"])
def test_special_tokens_in_a_text_are_refused(tmp_path: Path, name: str) -> None:
    """Fast tokenizers, and ESM's slow one, mark only those that they have put around the text."""
    family = FAMILIES[name]
    words = family.tokenizer(tmp_path)
    for special in family.special:
        if special == words.unk_token:
            continue  # a word that is not known
        with pytest.raises(TextError, match="text 1 holds") as refused:
            tokens.encode(words, ["a b", f"a {special} b"])
        assert refused.value.number == 1 and refused.value.reason.startswith(f"holds {special}")


@pytest.mark.parametrize(
    ("text", "scored"),
    [
        ("the zebra sat", "the sat"),
        ("zebra the", " the"),
        ("the   zebra  ", "the"),
        ("the cat  ", "the cat  "),
        ("北京 the cats. 😀😀", " the cats."),
    ],
)
def test_what_is_unknown_has_no_size(text: str, scored: str) -> None:
    assert tokens.bytes_without_unknown(tokenizer(), text) == len(scored.encode())


def test_a_slow_tokenizer_does_not_say_where_its_tokens_stand(tmp_path: Path) -> None:
    words = FAMILIES["ESM-2"].tokenizer(tmp_path)
    assert not words.is_fast
    assert tokens.bytes_without_unknown(words, "a ? b") == 0


def some_rows_of_a_table(values: list[str]) -> pd.Series:
    """A column of which the first row was taken away: it counts from 1."""
    return pd.Series(["", *values])[1:]


COLUMNS = [np.array, pd.Series, some_rows_of_a_table, lambda v: np.array(v, dtype=object)]


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_of_pandas_and_numpy_are_texts(column) -> None:
    first, second = ["the cat sat", "a dog"], ["the dog sat", "a cat"]
    scorer = mpt_score.load(tiny(), tokenizer())
    few = {"num_masks": 4}
    found = mpt_score.sentences(scorer, column(first), **few)
    assert torch.equal(found.log_score, mpt_score.sentences(scorer, first, **few).log_score)
    assert found.num_bytes.tolist() == [11, 5]
    price = mpt_score.passes(scorer, column(first), **few)
    assert torch.equal(price, mpt_score.passes(scorer, first, **few))
    terms = mpt_score.surprisals(scorer, column(first)).terms
    assert torch.equal(terms, mpt_score.surprisals(scorer, first).terms)
    ratio = mpt_score.pairs(scorer, column(first), column(second)).log_ratio
    assert torch.equal(ratio, mpt_score.pairs(scorer, first, second).log_ratio)
    options = [[" sat", " dog"], [" sat", " cat"]]
    score = mpt_score.answers(scorer, column(first), [column(each) for each in options]).log_score
    assert torch.equal(score, mpt_score.answers(scorer, first, options).log_score)
    curve = mpt_score.curve(scorer, column(first), mpt_score.Design((0.5,)))
    assert torch.equal(curve.raw, mpt_score.curve(scorer, first, mpt_score.Design((0.5,))).raw)
    with pytest.raises(TypeError, match="each of texts must be of type str, got nan"):
        mpt_score.sentences(scorer, pd.Series(["the cat", float("nan")], dtype=object))
