"""Texts as rows of tokens: what is special, padding or unknown, and vocabularies."""

from __future__ import annotations

import pytest
import torch
from models import generator
from tiny_bert import CLS, MASK, tokenizer
from transformers import BertTokenizer

from mpt_score import texts, tokens


def test_padding_is_the_tokenizers_and_an_empty_sentence_is_numbered() -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "sun", "[PAD]"]
    tokenizer = BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)})
    ids = tokens.encode(tokenizer, ["sun sun", "sun"]).ids
    assert ids.tolist() == [[1, 4, 4, 2], [1, 4, 2, 5]]
    with pytest.raises(ValueError, match="sentence 1 has no word pieces"):
        tokens.encode(tokenizer, ["sun", "moon", "sun"])


def test_a_vocabulary_has_no_capitals() -> None:
    tokenizer = tokens.train_tokenizer(["Sun SUN sun", "A sun"], 40)
    pieces = set(tokenizer.get_vocab()) - set(tokens.SPECIAL_TOKENS)
    assert "sun" in pieces and pieces == {each.lower() for each in pieces}


def test_six_pieces_are_a_vocabulary() -> None:
    assert "a" in tokens.train_tokenizer(["a a"], 6).get_vocab()


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


def test_unknown_tokens_are_shown_and_not_scored() -> None:
    found = tokens.encode(tokenizer(), ["the zebra sat"])
    assert found.ids[0].tolist() == [CLS, 5, 1, 7, 3]
    assert found.maskable[0].tolist() == [False, True, False, True, False]
    with pytest.raises(ValueError, match="sentence 0 has no word pieces: 'zebra'"):
        tokens.encode(tokenizer(), ["zebra"])


def test_trained_vocabulary_covers_its_text() -> None:
    sentences = list(texts.sentences().first)
    found = tokens.train_tokenizer(sentences, 120)
    assert 100 < len(found) <= 120
    assert found.convert_tokens_to_ids("[MASK]") == MASK
    assert all(found.unk_token_id not in row for row in found(sentences)["input_ids"])


@pytest.mark.bad_input
@pytest.mark.parametrize("sentence", ["", "  \n"])
def test_empty_text(sentence: str) -> None:
    with pytest.raises(ValueError, match="sentence 1 is empty"):
        tokens.encode(tokenizer(), ["a", sentence])
    with pytest.raises(ValueError, match="at least one text"):
        tokens.encode(tokenizer(), [])


@pytest.mark.bad_input
def test_halves_of_other_number() -> None:
    with pytest.raises(ValueError, match="2 first sentences came with 1 second"):
        tokens.encode(tokenizer(), ["a", "a"], ["a"])
