"""Scores of tokens and words: literal loops under four kinds of tokenizers, words, places, units."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_bert import LINES, tiny, tokenizer
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from transformers import PreTrainedTokenizerFast

import mpt_score
from mpt_lml import masks
from mpt_score import networks
from mpt_score.rows.requests import stream
from mpt_score.rows.words import _found_in_order

CORPUS = ("the strange cat sat down", "stranger cats, so strange!", "a cat’s café sat there") * 4
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class Case:
    """A network, its tokenizer, and a text with what its tokens and words are."""

    network: Any
    tokenizer: Any
    text: str
    parts: list[str]  # of the text, one a token
    words: list[int]


def fast(inner: Tokenizer) -> Any:
    ids = [(name, inner.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    inner.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    roles = dict(zip(names, SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=inner, **roles)


def network_of(size: int) -> Any:
    network = networks.small_masked_lm(
        size, "classic", width=32, num_layers=2, max_length=16, seed=3
    )
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in network.parameters():
            each.add_(0.3 * torch.randn(each.shape, generator=draws))
    return network.double()


def word_piece(_: Path) -> Case:
    parts = ["the", "cat", "s", "sat", ".", "a", "dog", "s"]
    return Case(tiny(), tokenizer(), "the cats sat. a dogs", parts, [0, 1, 1, 2, 3, 4, 5, 5])


def byte_pairs(_: Path) -> Case:
    inner = Tokenizer(BPE())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=290, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    inner.train_from_iterator(CORPUS, trainer)
    words = fast(inner)
    # The curly apostrophe is three bytes, which may be three tokens in one place.
    return Case(network_of(len(words)), words, "the cat’s café", [], [])


def unigram(_: Path) -> Case:
    inner = Tokenizer(Unigram())
    inner.pre_tokenizer = Metaspace()
    trainer = UnigramTrainer(vocab_size=60, special_tokens=list(SPECIAL), unk_token="[UNK]")
    inner.train_from_iterator(CORPUS, trainer)
    words = fast(inner)
    return Case(network_of(len(words)), words, "so strange cat sat!", [], [])


def residues(folder: Path) -> Case:
    pieces = ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>", *"ACDEFGHIKLMNPQRSTVWY")
    (folder / "pieces.txt").write_text("\n".join(pieces), encoding="utf-8")
    words = transformers.EsmTokenizer(str(folder / "pieces.txt"))
    network = network_of(len(pieces))
    return Case(network, words, "MKVLAAGI", list("MKVLAAGI"), list(range(8)))


KINDS = {"WordPiece": word_piece, "byte BPE": byte_pairs, "unigram": unigram, "ESM": residues}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made: Case = request.param(tmp_path)
    return made


@torch.no_grad()
def log_q(case: Case, hidden: set[int]) -> dict[int, float]:
    """log q of the hidden tokens of the text, by the network alone; tokens count behind [CLS]."""
    ids = torch.tensor([case.tokenizer(case.text)["input_ids"]])
    shown = ids.clone()
    for place in hidden:
        shown[0, place + 1] = case.tokenizer.mask_token_id
    logits = case.network(shown).logits[0].double().log_softmax(dim=-1)
    return {place: logits[place + 1, ids[0, place + 1]].item() for place in hidden}


def test_terms_are_those_of_literal_loops(case: Case) -> None:
    scores = mpt_score.surprisals(
        case.network, [case.text], tokenizer=case.tokenizer, pseudo=True, within_word=True, seed=5
    )
    count = len(scores.pieces)
    assert 5 <= count <= 14
    word = scores.word.tolist()
    for place in range(count):
        rest = {other for other in range(place, count) if word[other] == word[place]}
        alone = log_q(case, {place})[place]
        assert scores.pseudo_log_likelihood[place] == pytest.approx(alone, abs=1e-9)
        assert scores.within_word[place] == pytest.approx(log_q(case, rest)[place], abs=1e-9)
    row = mpt_score.load(case.network, case.tokenizer).encode([case.text])
    source = stream(f"5 {row.ids[0].tolist()}")  # recorded scores rest on it
    ranks = masks.sample_ranks(4, count, generator=source)
    for order, rank in enumerate(ranks.tolist()):  # the token of the highest rank is shown first
        for place in range(count):
            still_hidden = {other for other in range(count) if rank[other] <= rank[place]}
            along_order = log_q(case, still_hidden)[place]
            assert scores.terms[place, order] == pytest.approx(along_order, abs=1e-9)
    whole = mpt_score.sentences(case.network, [case.text], tokenizer=case.tokenizer, seed=5)
    assert scores.log_score.sum().item() == pytest.approx(whole.log_score.item(), abs=1e-9)
    spread = scores.terms.sum(dim=0).std().item()
    assert spread == pytest.approx(whole.inconsistency.item(), abs=1e-9)
    if case.words:
        assert word == case.words
        parts = [case.text[a:b] for a, b in zip(scores.start, scores.end, strict=True)]
        assert parts == case.parts
        assert (scores.start.diff() > 0).all()  # of two equal residues, too


@pytest.mark.parametrize("kind", [word_piece, byte_pairs, unigram])
def test_terms_within_words_are_those_of_minicons(kind: Any, tmp_path: Path) -> None:
    scorer = pytest.importorskip(
        "minicons.scorer", reason="needs minicons: pip install -e '.[peers]'"
    )
    case = kind(tmp_path)
    case.network.float().save_pretrained(tmp_path)
    case.tokenizer.save_pretrained(tmp_path)
    theirs = scorer.MaskedLMScorer(str(tmp_path), "cpu", PLL_metric="within_word_l2r")
    texts = [case.text, " ".join(reversed(case.text.split()))]
    masked = theirs.get_masked_tensors(case.tokenizer(texts, padding=True))
    wanted = [value for of_text in theirs.compute_stats(masked) for value in of_text]
    scores = mpt_score.surprisals(str(tmp_path), texts, num_orders=0, pseudo=True, within_word=True)
    # Logits of size 10 in float32.
    assert scores.within_word.tolist() == pytest.approx(wanted, abs=1e-5)
    assert (scores.within_word - scores.pseudo_log_likelihood).abs().max() > 0.1


def test_words_and_places_of_byte_pairs(tmp_path: Path) -> None:
    case = byte_pairs(tmp_path)
    options: dict[str, Any] = {"tokenizer": case.tokenizer, "num_orders": 0, "pseudo": True}
    scores = mpt_score.surprisals(case.network, [case.text], **options)
    spaced = mpt_score.surprisals(case.network, [case.text], words="space", **options)
    assert spaced.by_word().pieces == ("the", "cat’s", "café")
    names = scores.by_word().pieces
    assert names[0] == "the" and names[-1] == "café" and len(names) > 3
    starts = torch.stack([scores.start, scores.end])
    assert (starts.diff(dim=1) >= 0).all() and scores.end.max() == len(case.text)


def test_words_of_unigrams_are_between_spaces(tmp_path: Path) -> None:
    case = unigram(tmp_path)
    options: dict[str, Any] = {"tokenizer": case.tokenizer, "num_orders": 0, "pseudo": True}
    for words in ("tokenizer", "space"):
        scores = mpt_score.surprisals(case.network, [case.text], words=words, **options)
        assert scores.by_word().pieces == ("so", "strange", "cat", "sat!")


def test_shares_over_all_orders() -> None:
    """Four tokens: the mean over 24 orders, written out."""
    case = Case(tiny(), tokenizer(), "the cats sat", [], [])
    scores = mpt_score.surprisals(case.network, [case.text], tokenizer=case.tokenizer)
    total = [0.0] * 4
    for order in itertools.permutations(range(4)):
        hidden = set(range(4))
        for place in order:
            total[place] += log_q(case, hidden)[place] / math.factorial(4)
            hidden.remove(place)
    assert scores.log_score.tolist() == pytest.approx(total, abs=1e-9)
    assert scores.standard_error.max() < 1e-12


def test_sums_over_words_have_errors_of_their_own() -> None:
    scores = mpt_score.surprisals(tiny(), ["the cats sat the dogs ."], tokenizer=tokenizer())
    words = scores.by_word()
    assert words.pieces == ("the", "cats", "sat", "the", "dogs", ".")
    assert words.terms[1].tolist() == pytest.approx((scores.terms[1] + scores.terms[2]).tolist())
    # In float64, over four orders.
    by_hand = (scores.terms[1] + scores.terms[2]).std().item() / 2
    assert words.standard_error[1] == pytest.approx(by_hand)


def test_one_order_has_no_error_and_none_neither() -> None:
    single = mpt_score.surprisals(tiny(), ["the cats sat ."], tokenizer=tokenizer(), num_orders=1)
    assert single.standard_error.isnan().all() and not single.log_score.isnan().any()
    alone = mpt_score.surprisals(
        tiny(), ["the cats sat ."], tokenizer=tokenizer(), num_orders=0, pseudo=True
    )
    assert alone.standard_error.isnan().all() and len(alone.rows()) == 5


def test_texts_come_back_in_their_order_and_in_windows() -> None:
    lines = [*LINES, "the cat sat . a dog sat . the cats sat ."]
    scorer = mpt_score.load(tiny(), tokenizer(), max_length=8)
    scores = mpt_score.surprisals(scorer, lines, pseudo=True, within_word=True)
    whole = mpt_score.sentences(scorer, lines, pseudo=True)
    total = torch.zeros(len(lines), dtype=torch.float64)
    shares = total.index_add(0, scores.text, scores.log_score)
    pseudo = total.index_add(0, scores.text, scores.pseudo_log_likelihood)
    torch.testing.assert_close(shares, whole.log_score, rtol=0, atol=1e-9)
    torch.testing.assert_close(pseudo, whole.pseudo_log_likelihood, rtol=0, atol=1e-9)
    assert whole.num_windows.tolist() == [1] * len(LINES) + [3]
    assert scores.strings == tuple(lines)
    last = [word for text, word in zip(scores.text, scores.word, strict=True) if text == len(LINES)]
    assert max(last) == 11  # words are counted through the windows


def test_an_unknown_token_has_a_row_and_no_number() -> None:
    scores = mpt_score.surprisals(tiny(), ["the zebra sat"], tokenizer=tokenizer(), pseudo=True)
    assert scores.pieces == ("the", "[UNK]", "sat")
    assert scores.log_score.isnan().tolist() == [False, True, False]
    rows = scores.rows()
    assert rows[1]["surprisal"] is None and rows[1]["start"] == 4 and rows[1]["end"] == 9
    assert scores.by_word().pseudo_log_likelihood.isnan().tolist() == [False, True, False]


def test_rows_say_their_unit() -> None:
    text = "the cats sat the dogs ."
    scores = mpt_score.surprisals(tiny(), [text], tokenizer=tokenizer(), within_word=True)
    bits = scores.rows()[1]
    error = scores.standard_error[1].item()
    assert bits["unit"] == "bits" and "pseudo_surprisal" not in bits
    assert bits["surprisal"] == pytest.approx(-scores.log_score[1].item() / math.log(2))
    assert bits["standard_error"] == pytest.approx(error / math.log(2)) != 0
    assert bits["within_word_surprisal"] == pytest.approx(-scores.within_word[1] / math.log(2))
    assert bits["token"] == "cat" and bits["text"] == 0 and bits["word"] == 1
    ids = mpt_score.surprisals(tiny(), [[2, 5, 6, 3]], tokenizer=tokenizer(), pseudo=True)
    assert ids.start.tolist() == [-1, -1] and ids.word.tolist() == [0, 1]
    assert ids.by_word().pieces == ("the", "cat")


def test_words_of_two_texts_are_two() -> None:
    scores = mpt_score.surprisals(tiny(), ["the", "cats", "dog"], tokenizer=tokenizer())
    words = scores.by_word()
    assert words.pieces == ("the", "cats", "dog") and words.text.tolist() == [0, 1, 2]
    assert words.log_score[2] == scores.log_score[3]


def test_rows_name_their_item() -> None:
    """The second of three texts is skipped, and its item is that of no row."""
    texts = ["the cat", "zebra", "a dog sat"]
    scores = mpt_score.surprisals(
        tiny(), texts, tokenizer=tokenizer(), items=["x", "y", "z"], skip=True
    )
    assert [row["item"] for row in scores.rows()] == ["x"] * 2 + ["z"] * 3
    assert [row["text"] for row in scores.rows()] == [0] * 2 + [2] * 3


def test_tokens_that_are_encoded_already_are_words() -> None:
    scorer = mpt_score.load(tiny(), tokenizer())
    texts = ["the cats sat", "a dog"]
    scores = mpt_score.surprisals(scorer, scorer.encode(texts))
    torch.testing.assert_close(scores.terms, mpt_score.surprisals(scorer, texts).terms)
    assert scores.by_word().pieces == ("the", "cat", "##s", "sat", "a", "dog")
    assert scores.start.tolist() == [-1] * 6


@pytest.mark.bad_input
def test_nothing_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        mpt_score.surprisals(tiny(), ["the cat"], tokenizer=tokenizer(), num_orders=0)


def test_an_error_is_known_as_well_as_in_the_worst_window_of_its_text() -> None:
    """Of nine tokens in windows of five: five have four of their orders, the other four all of them."""

    def conditionals(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shown = ids.masked_fill(mask, 2)
        places = torch.arange(1.0, 1 + ids.shape[1], dtype=torch.float64)
        angles = (shown * places).sum(dim=1)[:, None, None] * places[:, None] + torch.arange(2)
        return angles.sin().log_softmax(dim=-1)

    scorer = mpt_score.load(conditionals, max_length=5)
    found = mpt_score.surprisals(scorer, [[0, 1, 1, 0, 1, 0, 0, 1, 0]])
    assert found.degrees.tolist() == [3.0] * 9
    assert (found.standard_error[:5] > 0).all() and not found.standard_error[5:].any()


def test_the_worst_window_may_be_any() -> None:
    """Of two windows of six tokens the first has three that are known: all of their orders."""
    scorer = mpt_score.load(tiny(), tokenizer(), max_length=8)
    text = "the zebra cat zebra sat zebra . a dog sat the cat"
    found = mpt_score.surprisals(scorer, [text])
    assert found.degrees.tolist() == [3.0] * 12
    is_exact = [True, False, True, False, True, False, *[False] * 6]
    assert (found.standard_error < 1e-12).tolist() == is_exact


def test_a_piece_is_looked_for_behind_the_whole_one_before() -> None:
    """Where a tokenizer does not say where its tokens stand."""
    assert _found_in_order("aaab", ["aa", "a", "c", "b"], [1, 2, 3, 4], 6) == [
        (-1, -1),
        (0, 2),
        (2, 3),
        (-1, -1),
        (3, 4),
        (-1, -1),
    ]
