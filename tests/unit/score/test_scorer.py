"""The door of ``score``: what it lets in, what it refuses, and batches within a bound."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from any_model import PAGE
from families import FAMILIES
from models import generator
from other_device import OtherDevice
from tiny_bert import CLS, SEP, tiny, tokenizer
from torch import Tensor, nn
from transformers import BertForSequenceClassification

import mpt_score
from mpt_lml import HMM
from mpt_score import MaskedLM, networks, tokens
from mpt_score import scorer as scorer_module
from mpt_score.errors import TextError
from mpt_score.networks.hub import CheckpointError
from mpt_score.networks.vit_mae import ViTMAE
from mpt_score.tokens import encode

IDS = torch.tensor([[CLS, 5, 6, 7, SEP], [CLS, 10, 11, 7, SEP]])
HIDDEN = torch.tensor([[False, True, True, False, False], [False, False, True, True, False]])


def network() -> torch.nn.Module:
    """In float32, as networks are loaded."""
    return tiny().float()


def chain() -> HMM:
    return HMM.cyclic(num_features=4)


def test_a_loaded_network_is_scored_as_a_masked_lm() -> None:
    found = mpt_score.load(tiny(), tokenizer()).log_tokens(IDS, HIDDEN)
    wanted = MaskedLM.of(tiny(), tokenizer()).log_tokens(IDS, HIDDEN)
    # The same products in float64, in other batches.
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert (found[~HIDDEN] == 0).all()


def test_a_folder_and_its_network_are_the_same(tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    one, other = mpt_score.load(tmp_path), mpt_score.load(network(), tokenizer())
    found, wanted = one.log_tokens(IDS, HIDDEN), other.log_tokens(IDS, HIDDEN)
    # In float32, the loaded one with another kernel of attention: seven digits of up to 10.
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    assert one.identity == mpt_score.load(tmp_path).identity
    assert one.max_length == 16 and mpt_score.load(tmp_path, max_length=9).max_length == 9
    texts = ["the cat sat", "a dog"]
    assert torch.equal(one.encode(texts).ids, encode(tokenizer(), texts).ids)


def test_what_has_no_source_is_called_by_its_class() -> None:
    assert mpt_score.load(network(), tokenizer()).name == "BertForMaskedLM"
    function = mpt_score.load(uniform_over_nine)
    assert function.name == "TokenFunction"
    assert dataclasses.replace(function, function_name="coin").name == "coin"


def test_other_special_tokens_are_another_tokenizer() -> None:
    plain, other = tokenizer(), tokenizer()
    other.sep_token = "."
    assert plain.get_vocab() == other.get_vocab()
    one, two = (mpt_score.load(network(), words).identity for words in (plain, other))
    assert one["weights"] == two["weights"] and one["tokenizer"] != two["tokenizer"]


def test_a_pipeline_is_its_network_with_its_tokenizer() -> None:
    pipeline = transformers.pipeline("fill-mask", model=network(), tokenizer=tokenizer())
    texts = ["the cat sat", "a dog"]
    found = mpt_score.sentences(pipeline, texts).log_score
    assert torch.equal(
        found, mpt_score.sentences(network(), texts, tokenizer=tokenizer()).log_score
    )
    other = tokenizer()
    assert mpt_score.load(pipeline, other).tokenizer is other


@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_of_a_compiled_network_the_one_inside_is_taken() -> None:
    """Nothing is compiled: a graph would be made for each shape."""
    texts = ["the cat sat", "a dog"]
    plain = network()
    compiled = torch.compile(plain)
    found = mpt_score.load(compiled, tokenizer())
    assert found.network is plain
    wanted = mpt_score.sentences(plain, texts, tokenizer=tokenizer())
    assert torch.equal(mpt_score.sentences(found, texts).log_score, wanted.log_score)


def test_a_pipeline_of_another_kind_is_refused() -> None:
    classifier = BertForSequenceClassification(tiny().config)
    other = transformers.pipeline("text-classification", model=classifier, tokenizer=tokenizer())
    with pytest.raises(TypeError, match="masked-LM head.*got BertForSequenceClassification"):
        mpt_score.load(other)


def test_a_masked_lm_and_a_scorer_are_taken_as_they_are() -> None:
    model = MaskedLM.of(tiny(), tokenizer(), max_tokens=5)
    scorer = mpt_score.load(model)
    assert torch.equal(scorer.log_tokens(IDS, HIDDEN), model.log_tokens(IDS, HIDDEN))
    assert mpt_score.load(scorer) is scorer


def test_a_function_answers_as_the_model_behind_it() -> None:
    model = chain()
    x = model.sample(6, generator=generator(1))
    mask = torch.rand(6, 4, generator=generator(2)) < 0.6
    mask[:, 0] = True
    assert torch.equal(
        mpt_score.load(model.log_values).log_tokens(x, mask), model.log_each(x, mask)
    )


def test_token_ids_have_no_special_tokens_unless_the_tokenizer_says_so() -> None:
    free = mpt_score.load(chain().log_values).encode([[1, 2, 0], [3]])
    assert free.maskable.tolist() == [[True, True, True], [True, False, False]]
    assert free.lengths.tolist() == [3, 1]
    rows = mpt_score.load(tiny(), tokenizer()).encode(IDS)
    assert rows.maskable[0].tolist() == [False, True, True, True, False]
    assert mpt_score.load(lambda i, m: i, tokenizer()).encode(IDS).num_features.tolist() == [3, 3]


@pytest.mark.bad_input
def test_a_function_that_reads_what_it_scores_is_refused() -> None:
    def leak(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.one_hot(ids, 12) * 0.01).log_softmax(dim=-1)

    with pytest.raises(ValueError, match="it reads what it scores"):
        mpt_score.load(leak).log_tokens(IDS, HIDDEN)
    # With a mask token in their place, there is nothing to read.
    found = mpt_score.load(leak, tokenizer()).log_tokens(IDS, HIDDEN)
    assert math.isclose(found[0, 1], -math.log(11 + math.exp(0.01)), abs_tol=1e-7)


def test_a_function_may_write_into_what_it_is_given() -> None:
    """It hides with an id of its own, in place, and answers of that id as well: V + 1 values."""
    table = torch.randn(13, 13, generator=generator(3), dtype=torch.float64)

    def in_place(ids: Tensor, mask: Tensor) -> Tensor:
        ids[mask] = 12
        mask[:] = False
        return table[ids].cumsum(dim=1).log_softmax(dim=-1)

    def on_a_copy(ids: Tensor, mask: Tensor) -> Tensor:
        return table[ids.masked_fill(mask, 12)].cumsum(dim=1).log_softmax(dim=-1)

    texts = [[3, 1, 4, 1, 5], [9, 2, 6]]
    found = mpt_score.sentences(in_place, texts)
    assert torch.equal(found.log_score, mpt_score.sentences(on_a_copy, texts).log_score)


def uniform_over_nine(ids: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(*ids.shape, 9).log_softmax(-1)


@pytest.mark.bad_input
def test_sums_are_checked_where_few_are_hidden() -> None:
    def divided_by_rate(ids: Tensor, mask: Tensor) -> Tensor:
        """Right where the trial looks: where all is hidden, and where two or one of four are."""
        rate = mask.double().mean(dim=1)[:, None, None]
        rate[rate <= 0.5] = 1.0
        return uniform_over_nine(ids, mask) - rate.log()

    model = mpt_score.load(divided_by_rate)
    with pytest.raises(ValueError, match=r"hides 3 of 4 places they add up to 1\.333, not to 1"):
        mpt_score.sentences(model, [[1, 2, 3, 4]])
    three = torch.tensor([[True, True, True, False], [False] * 4])
    whole = torch.ones(2, 4, dtype=torch.bool)
    ids = torch.zeros(2, 4, dtype=torch.int64)
    assert torch.isfinite(model.log_tokens(ids, whole)).all()
    with pytest.raises(ValueError, match=r"they add up to 1\.333, not to 1"):
        model.log_tokens(ids, three)


@pytest.mark.bad_input
def test_of_longer_rows_the_one_that_hides_most_is_tried() -> None:
    def peeks(ids: Tensor, mask: Tensor) -> Tensor:
        """In rows of more than four tokens, where three or more of them are hidden."""
        does_so = (mask.sum(dim=1) >= 3) & (ids.shape[1] > 4)
        logits = torch.nn.functional.one_hot(ids, 9).double()
        return (logits * does_so[:, None, None]).log_softmax(dim=-1)

    scorer = mpt_score.load(peeks)
    scorer.log_tokens(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))
    one_and_all = torch.tensor([[True, *[False] * 4], [True] * 5])
    with pytest.raises(ValueError, match="it reads what it scores"):
        scorer.log_tokens(torch.tensor([[1, 2, 3, 4, 5]] * 2), one_and_all)


@pytest.mark.bad_input
def test_a_function_that_peeks_where_few_are_hidden_is_refused() -> None:
    def peeks(ids: Tensor, mask: Tensor) -> Tensor:
        shows_all = mask.double().mean(dim=1) <= 0.5
        logits = torch.nn.functional.one_hot(ids, 12).double()
        return (logits * shows_all[:, None, None]).log_softmax(dim=-1)

    with pytest.raises(ValueError, match="it reads what it scores"):
        mpt_score.sentences(peeks, [[1, 2, 3, 4, 5]])


@pytest.mark.bad_input
def test_an_id_of_probability_zero_is_asked_about() -> None:
    def never_says_eight(ids: Tensor, mask: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, 9)
        logits[..., 8] = -math.inf
        return logits.log_softmax(-1)

    with pytest.raises(ValueError, match="gives the id 8 probability 0. Is that a mask token"):
        mpt_score.sentences(never_says_eight, [[1, 2], [1, 8]])


@pytest.mark.bad_input
def test_the_mask_token_among_ids_is_refused() -> None:
    mask_id = tokenizer().mask_token_id
    with pytest.raises(
        TextError, match=f"text 1 holds the id {mask_id} of the mask token"
    ) as error:
        mpt_score.load(uniform_over_nine, tokenizer()).encode([[5, 6], [5, mask_id]])
    assert error.value.number == 1


def test_a_function_that_fails_says_what_it_was_given() -> None:
    places = torch.zeros(4, 9)

    def of_four_places(ids: Tensor, mask: Tensor) -> Tensor:
        return places[torch.arange(ids.shape[1])].expand(len(ids), -1, -1).log_softmax(-1)

    assert mpt_score.sentences(of_four_places, [[0] * 4]).log_score[0] == pytest.approx(
        -4 * math.log(9)
    )
    with pytest.raises(IndexError) as error:
        mpt_score.sentences(of_four_places, [[0] * 5])
    assert "mask (1, 5), bool" in error.value.__notes__[0]
    assert "rows of 5 tokens" in error.value.__notes__[0]
    # With its length said, a longer text is cut into windows.
    model = mpt_score.load(of_four_places, max_length=4)
    assert mpt_score.sentences(model, [[0] * 5]).num_windows[0] == 2


@pytest.mark.bad_input
def test_refusals(tmp_path: Path) -> None:
    def logits(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ones(*ids.shape, 12)

    with pytest.raises(ValueError, match=r"add up to 32\.62, not to 1"):
        mpt_score.load(logits).log_tokens(IDS, HIDDEN)
    with pytest.raises(ValueError, match=r"log-probabilities \(B, L, V\).*got \(1, 5\)"):
        mpt_score.load(lambda ids, _: ids).log_tokens(IDS, HIDDEN)
    with pytest.raises(ValueError, match="needs its tokenizer"):
        mpt_score.load(tiny())
    with pytest.raises(TypeError, match="got int"):
        mpt_score.load(3)
    with pytest.raises(ValueError, match="precision must be .float32. or .*got .half"):
        mpt_score.load(tiny(), tokenizer(), precision="half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_length 17 is more than the network's 16"):
        mpt_score.load(tiny(), tokenizer(), max_length=17)
    with pytest.raises(CheckpointError, match="not a folder"):
        mpt_score.load(tmp_path / "absent")
    with pytest.raises(TypeError, match="model must be a folder or a name on the hub, got ''"):
        mpt_score.load("")
    with pytest.raises(TypeError, match="tokenizer must be a folder or a name on the hub, got ''"):
        mpt_score.load(tiny(), "")
    scorer = mpt_score.load(chain().log_values)
    with pytest.raises(ValueError, match="give a tokenizer"):
        scorer.encode(["words"])
    with pytest.raises(ValueError, match="at least one text, got 'words'"):
        scorer.encode("words")
    with pytest.raises(ValueError, match="text 1 has nothing to mask"):
        scorer.encode([[1], []])


@pytest.mark.bad_input
def test_an_answer_that_is_no_number_names_its_text() -> None:
    broken = network()
    broken.bert.embeddings.word_embeddings.register_forward_hook(
        lambda _, ids, out: out.masked_fill(ids[0][..., None] == 10, math.nan)
    )
    scorer = mpt_score.load(broken, tokenizer())
    with pytest.raises(ValueError, match="text 1: the model says nan of token 2: no"):
        scorer.log_tokens(IDS, HIDDEN)
    # Who asks himself is told without the number of a text.
    answers = scorer.ask(IDS, torch.tensor([1]), HIDDEN[1:])()
    assert answers[0, 2].isnan()
    assert scorer.fault(10, 2, answers[0, 2].item()).startswith("the model says nan of token 2: no")


@pytest.mark.parametrize("bound", [5, 14, 10_000])
def test_batches_keep_within_the_bound(bound: int) -> None:
    rows, mask = IDS.repeat(9, 1), HIDDEN.repeat(9, 1)
    seen: list[int] = []
    one = tiny()
    one.register_forward_pre_hook(
        lambda _, __, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    found = mpt_score.load(one, tokenizer(), max_tokens=bound).log_tokens(rows, mask)
    assert sum(seen) == 90 and max(seen) <= max(bound, 5)
    torch.testing.assert_close(found, mpt_score.load(tiny(), tokenizer()).log_tokens(rows, mask))


def a_function(ids: Tensor, mask: Tensor) -> Tensor:
    """Of 12 values; every place depends on what is shown."""
    logits = torch.linspace(0, 1, 12, dtype=torch.float64) * (1 + ids.masked_fill(mask, 0)).sum(
        dim=1
    ).view(-1, 1, 1)
    return logits.expand(-1, ids.shape[1], -1).log_softmax(dim=-1)


@pytest.mark.parametrize("kind", ["function", "model", "network"])
@pytest.mark.parametrize("mask_is_there", [False, True])
@pytest.mark.parametrize("ids_are_there", [False, True])
def test_ids_come_from_anywhere(ids_are_there: bool, mask_is_there: bool, kind: str) -> None:
    """A function is asked on the CPU, answers where it likes, and gets its answers to where ids are."""
    weights = torch.randn(12, 12, generator=generator(1), dtype=torch.float64)
    with OtherDevice() as other:

        def log_probabilities(ids: Tensor, mask: Tensor) -> Tensor:
            assert ids.device == mask.device == torch.device("cpu")
            shown = nn.functional.one_hot(ids.masked_fill(mask, 0), 12).double().to(other.device)
            return (
                (shown.mean(dim=1, keepdim=True) @ weights.to(other.device))
                .log_softmax(dim=-1)
                .expand(*ids.shape, 12)
            )

        class Model:
            def log_tokens(
                self, ids: Tensor, mask: Tensor, types: Tensor | None, **_: Any
            ) -> Tensor:
                assert types is None or types.device.type == "cpu"
                values = log_probabilities(ids, mask).cpu()
                chosen = values.gather(2, ids[..., None])[..., 0]
                return chosen.masked_fill(~mask, 0.0).to(other.device)

        net = tiny().to(other.device)
        scorer = {
            "function": mpt_score.load(log_probabilities),
            "model": scorer_module.Scorer(Model()),
            "network": mpt_score.load(net, tokenizer()),
        }[kind]
        wanted = scorer.log_tokens(IDS, HIDDEN)
        assert (wanted[HIDDEN] < 0).all()
        ids = IDS.to(other.device) if ids_are_there else IDS
        mask = HIDDEN.to(other.device) if mask_is_there else HIDDEN
        found = scorer.log_tokens(ids, mask, 0 * mask.long())
        assert found.device == ids.device
        torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=1e-12)
        fetch = scorer.ask(ids, torch.tensor([0, 1]).to(mask.device), mask, wanted=mask.clone())
        assert fetch().device.type == "cpu"
        assert torch.equal(scorer.is_frame(ids).cpu(), scorer.is_frame(IDS))


class Recorder:
    """A model that has ``log_tokens`` alone, and the sizes of what it was asked."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sizes: list[int] = []

    def log_tokens(self, ids: Tensor, mask: Tensor, **options: Any) -> Tensor:
        self.sizes.append(len(ids))
        return self.model.log_tokens(ids, mask, **options)


ROW_OF_MASK = torch.tensor([1, 0, 0, 1, 1, 0, 1])


def seven_masks() -> Tensor:
    """Seven masks of two rows, one of which hides nothing."""
    mask = torch.rand(7, 5, generator=generator(5)) < 0.5
    mask[:, 0] = mask[:, -1] = False
    mask[:, 2] = True
    mask[4] = False
    return mask


@pytest.mark.parametrize("kind", ["network", "function", "anything"])
def test_masked_rows_are_answered_as_whole_rows_are(kind: str) -> None:
    model: Any = {
        "network": lambda: mpt_score.load(tiny(), tokenizer(), max_tokens=15),
        "function": lambda: mpt_score.load(a_function, tokenizer(), max_tokens=15),
        "anything": lambda: mpt_score.Scorer(
            Recorder(MaskedLM.of(tiny(), tokenizer())), max_tokens=15
        ),
    }[kind]()
    mask = seven_masks()
    fetch = model.ask(IDS, ROW_OF_MASK, mask)
    rows = IDS[ROW_OF_MASK]
    alone = [
        model.log_tokens(row[None], hidden[None]) for row, hidden in zip(rows, mask, strict=True)
    ]
    # The same sums in float64, in other batches.
    torch.testing.assert_close(fetch(), torch.cat(alone), rtol=0, atol=1e-12)
    assert fetch()[~mask].abs().max() == 0 and fetch()[mask].max() < 0
    assert torch.equal(fetch(), fetch())


@pytest.mark.parametrize("kind", ["network", "anything"])
def test_types_follow_the_rows_that_are_asked_about(kind: str) -> None:
    network = FAMILIES["BERT"].network().double()  # which knows two types
    model = MaskedLM(network, tokenizer().mask_token_id)
    types = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    mask = seven_masks()
    scorer = mpt_score.Scorer(model if kind == "network" else Recorder(model), max_tokens=15)
    found = scorer.ask(IDS, ROW_OF_MASK, mask, types)()
    rows, types_of_rows = IDS[ROW_OF_MASK], types[ROW_OF_MASK]
    wanted = model.log_tokens(rows, mask, types=types_of_rows)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    without = scorer.ask(IDS, ROW_OF_MASK, mask)()
    assert (found - without)[mask].abs().max() > 1e-3


@pytest.mark.bad_input
def test_of_a_function_only_what_is_wanted_is_answered() -> None:
    scorer = mpt_score.load(uniform_over_nine)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    wanted = torch.tensor([[True, False, False], [False, False, True]])
    found = scorer.ask(torch.tensor([[1, 2, 3]]), torch.tensor([0, 0]), mask, wanted=wanted)()
    torch.testing.assert_close(found, -math.log(9) * wanted.double(), rtol=0, atol=1e-6)


def test_a_row_that_is_not_there_cannot_be_asked_about() -> None:
    scorer = mpt_score.load(tiny(), tokenizer())
    with pytest.raises(ValueError, match=r"row must be 0\.\.1, but row\[0\] is 2"):
        scorer.ask(IDS, torch.tensor([2]), HIDDEN[:1])


def test_a_function_answers_as_many_rows_as_its_memory_holds(monkeypatch) -> None:
    sizes: list[int] = []

    def function(ids: Tensor, mask: Tensor) -> Tensor:
        sizes.append(len(ids))
        return a_function(ids, mask)

    rows, mask = IDS.repeat(7, 1), HIDDEN.repeat(7, 1)
    scorer = mpt_score.load(function, max_tokens=20)
    scorer.log_tokens(IDS, HIDDEN)  # which tries it
    for most_bytes, wanted in (
        (2**29, [4, 4, 4, 2]),
        (3 * 16 * 5 * 12, [3, 3, 3, 3, 2]),
        (1, [1] * 14),
    ):
        monkeypatch.setattr(scorer_module, "FUNCTION_BYTES", most_bytes)
        sizes.clear()
        scorer.log_tokens(rows, mask)
        assert sizes == wanted


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_near(precision: str) -> None:
    exact = mpt_score.load(network(), tokenizer()).log_tokens(IDS, HIDDEN)
    scorer = mpt_score.load(network(), tokenizer(), precision=precision)
    # Three digits of logits of about 10, through three layers.
    assert 0 < (scorer.log_tokens(IDS, HIDDEN) - exact).abs().max() < 0.5
    assert scorer.identity != mpt_score.load(network(), tokenizer()).identity


def test_the_books_network_is_found_by_its_folder() -> None:
    scorer = mpt_score.load(networks.small_bert_folder())
    rows = scorer.encode(["She was alone in the house."])
    found = scorer.log_tokens(rows.ids, rows.maskable, rows.types)
    assert found.sum() < -20


def coin(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*ids.shape, 2).log_softmax(dim=-1)


def uneven() -> torch.Tensor:
    mae = ViTMAE(networks.small_mae(4, 1, 2, width=8, seed=4), 1.0)
    return mae.loss(torch.zeros(2, 1, 4, 4), torch.ones(2, 4).tril(2) > 0)


ONE = torch.ones(1, 2).long()
WRONG = {
    "an area of no kind": (
        lambda: mpt_score.curve(coin, [[0, 1]], mpt_score.Design(strata=2)).area("sentences"),
        "per must be 'token' or 'sentence' or 'paper', got 'sentences'",
    ),
    "bits of windows": (
        lambda: mpt_score.sentences(coin, [[0, 1]]).bits_per("window"),
        "unit must be 'token' or 'byte', got 'window'",
    ),
    "images with unequal masks": (uneven, "mask must hide equally many patches"),
    "tokens below 0": (
        lambda: mpt_score.sentences(coin, [[0, -1]]),
        "texts must be >= 0, got -1",
    ),
    "halves of tokens": (lambda: mpt_score.pairs(coin, [[0, 0.5]], [[0, 1]]), "integer.*got 0.5"),
    "tokens that the function has not": (
        lambda: mpt_score.sentences(coin, [[0, 1, 2]]),
        r"ids must be 0\.\.1, but ids\[\d, 0\] is 2",
    ),
    "ids that are none": (
        lambda: mpt_score.load(coin).is_frame(torch.tensor([0.5])),
        "ids must be a torch.int64 tensor",
    ),
    "no token at a time": (
        lambda: mpt_score.load(coin, max_tokens=0),
        "max_tokens must be >= 1",
    ),
    "a device that is none": (
        lambda: mpt_score.load(coin, device="tpu"),
        "device 'tpu' cannot be used",
    ),
    "a device that is not here": (
        lambda: mpt_score.load(
            coin, device="mps" if not torch.backends.mps.is_available() else "xpu"
        ),
        "device .(mps|xpu). cannot be used here",
    ),
    "a vocabulary that is none": (
        lambda: networks.load_tokenizer(__file__),
        r"test_scorer\.py is no vocabulary of BERT: no line is \[CLS\]",
    ),
    "rows longer than they are": (
        lambda: tokens.Tokens(ONE, ONE, ONE > 0, torch.tensor([3])),
        "lengths from 1 to L",
    ),
    "a token to mask behind the end": (
        lambda: tokens.Tokens(ONE, ONE, ONE > -1, torch.tensor([1])),
        r"maskable\[0\] is True behind the 1 tokens of its row",
    ),
    "no token to mask": (
        lambda: tokens.Tokens(ONE, ONE, ONE < 0, torch.tensor([2])),
        r"maskable\[0\] is False everywhere",
    ),
    "a row that is not there": (
        lambda: tokens.Tokens(ONE, ONE, ONE > 0, torch.tensor([2])).rows(torch.tensor([-1])),
        r"chosen must be 0\.\.0, but chosen\[0\] is -1",
    ),
    "rates in a list": (
        lambda: mpt_score.Design(rates=[0.1, 0.5, 0.9]),
        "rates must be of type tuple",
    ),
    "masks of two rows": (
        lambda: mpt_score.Design().masks(encode(tokenizer(), ["a dog", "a cat"]), 0),
        "row must be one text, got 2",
    ),
    "types that the network has not": (
        lambda: MaskedLM.of(tiny(), tokenizer(), prefix=(12,)),
        r"each of prefix must be in 0\.\.11, got 12",
    ),
    "answers of two kinds": (
        lambda: mpt_score.answers(coin, [[0]], [["a"]]),
        "a list of options of the same kind",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_named(call, message: str) -> None:
    with pytest.raises((TypeError, ValueError, CheckpointError), match=message):
        call()


@pytest.mark.parametrize(
    "change", [torch.Tensor.to_sparse, lambda v: v.to("meta"), torch.Tensor.cfloat]
)
def test_a_function_that_answers_no_plain_numbers_is_named(change) -> None:
    model = mpt_score.load(lambda ids, mask: change(torch.zeros(*ids.shape, 9).log_softmax(-1)))
    with pytest.raises(TypeError, match="must return a dense floating-point tensor"):
        model.log_tokens(IDS, HIDDEN)


@pytest.mark.bad_input
def test_a_function_that_answers_in_numpy_is_named() -> None:
    model = mpt_score.load(lambda ids, mask: torch.zeros(*ids.shape, 9).log_softmax(-1).numpy())
    with pytest.raises(TypeError, match="as a torch tensor .B, L, V., got numpy.ndarray"):
        model.log_tokens(IDS, HIDDEN)


ROWS = [[0, 1, 2], [2, 1, 0, 1, 2]]
FORMS = {
    "tuples": tuple(map(tuple, ROWS)),
    "tensors": [torch.tensor(row) for row in ROWS],
    "arrays": [np.array(row) for row in ROWS],
    "small integers": [np.array(row, dtype=np.int32) for row in ROWS],
    "NumPy's integers": [list(np.array(row)) for row in ROWS],
    "a column": pd.Series(ROWS, index=[3, 7]),
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS)
def test_rows_of_ids_come_in_any_usual_form(rows: Any) -> None:
    """Scored by a function alone, without a tokenizer: every id is a token of the text."""
    language = HMM.cyclic(num_features=3)

    def log_q(ids: Tensor, mask: Tensor) -> Tensor:
        width = ids.shape[1]
        return HMM.cyclic(num_features=width).log_values(ids, mask)

    model = mpt_score.load(log_q)
    found = mpt_score.sentences(model, rows).log_score
    assert found[0] == pytest.approx(language.log_marginal(torch.tensor(ROWS[:1])).item())
    assert torch.equal(found, mpt_score.sentences(model, ROWS).log_score)
    assert torch.equal(mpt_score.surprisals(model, rows).text.bincount(), torch.tensor([3, 5]))
    swapped = mpt_score.pairs(model, rows, [[0, 2, 2], [2, 1, 0, 2, 2]]).log_ratio
    assert torch.equal(
        swapped, mpt_score.pairs(model, ROWS, [[0, 2, 2], [2, 1, 0, 2, 2]]).log_ratio
    )
    options = [[row, [0] * len(row)] for row in rows]
    answers = mpt_score.answers(model, rows, options).log_score
    assert torch.equal(
        answers,
        mpt_score.answers(model, ROWS, [[row, [0] * len(row)] for row in ROWS]).log_score,
    )


@pytest.mark.bad_input
def test_one_row_alone_is_named() -> None:
    with pytest.raises(TypeError, match=r"got the id 1: one row alone is passed as \[row\]"):
        mpt_score.sentences(chain().log_values, [1, 5, 7])


def test_an_unknown_option_of_a_masked_lm_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        MaskedLM.of(tiny(), tokenizer(), foo=3)
    with pytest.raises(TypeError, match="multiple values for argument 'mask_token_id'"):
        MaskedLM.of(tiny(), tokenizer(), mask_token_id=4)
    with pytest.raises(ValueError, match="max_tokens must be >= 1, got 0"):
        MaskedLM.of(tiny(), tokenizer(), max_tokens=0)


def test_a_variance_of_pixels_has_an_inverse() -> None:
    mae = networks.small_mae(8, 1, 2, width=16, seed=4)
    with pytest.raises(ValueError, match="variance must be > 0 and within"):
        ViTMAE(mae, 1e-60)
    with pytest.raises(ValueError, match="pixel_scale must be > 0 and within"):
        ViTMAE(mae, 1.0, pixel_scale=1e-60)


V, MASK, BOS, EOS = 13, 12, 0, 2


TEXTS = [[5, 6, 7, 8], [3, 9, 9], [4, 11, 5, 6, 7, 3, 8]]


class Mixer(nn.Module):
    """Logits (B, L, V) in which every place depends on all of them and on where they are."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draws = generator(seed)
        self.words = nn.Parameter(torch.randn(V, 16, generator=draws))
        self.places = nn.Parameter(torch.randn(32, 16, generator=draws))
        self.head = nn.Parameter(torch.randn(16, V, generator=draws))

    def forward(self, ids: Tensor) -> Tensor:
        each = self.words[ids] + self.places[: ids.shape[1]]
        return (
            each + (each * self.places[: ids.shape[1]]).mean(dim=1, keepdim=True).tanh()
        ) @ self.head


class LLaDA(Mixer):
    """``model(ids).logits``; the id of the mask token is known from outside."""

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=super().forward(ids))


class MDLM(Mixer):
    """``forward(x, sigma)``: log-probabilities, none for the mask token, visible ones copied."""

    mask_index, neg_infinity = MASK, -1000000.0

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        assert sigma.shape == (len(x),)  # no time conditioning: only its shape is looked at
        logits = super().forward(x)
        logits[..., self.mask_index] += self.neg_infinity
        logits = logits - logits.logsumexp(dim=-1, keepdim=True)
        copied = torch.full_like(logits, self.neg_infinity).scatter(-1, x[..., None], 0.0)
        return torch.where((x == self.mask_index)[..., None], logits, copied)


class ESM(Mixer):
    """``model(tokens)["logits"]`` of rows that begin with BOS and end with EOS."""

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        assert (tokens[:, 0] == BOS).all() and (tokens[:, -1] == EOS).all()
        return {"logits": super().forward(tokens)}


NETS = {"llada": LLaDA(1), "dream": LLaDA(2), "mdlm": MDLM(3), "esm": ESM(4)}


ALPHABET = SimpleNamespace(mask_idx=MASK, cls_idx=BOS, eos_idx=EOS)


ADAPTED = {
    "llada": PAGE["llada"](NETS["llada"], mask_id=MASK),
    "dream": PAGE["dream"](NETS["dream"], bos=BOS, mask_id=MASK),
    "mdlm": PAGE["mdlm"](NETS["mdlm"]),
    "esm": PAGE["esm"](NETS["esm"], ALPHABET),
}


def published(name: str, x: Tensor, hidden: Tensor) -> Tensor:
    """The same numbers for one row as the published code reads them off its network."""
    noisy = torch.where(hidden, MASK, x)[None]
    if name == "llada":
        scores = NETS[name](noisy).logits.log_softmax(dim=-1)
    elif name == "dream":  # its harness: BOS before the text, then a shift of all logits
        logits = NETS[name](torch.cat([torch.tensor([[BOS]]), noisy], dim=1)).logits
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        scores = logits.log_softmax(dim=-1)[:, 1:]
    elif name == "mdlm":
        scores = NETS[name](noisy, torch.ones(1))
    else:
        tokens = torch.tensor([[BOS, *noisy[0].tolist(), EOS]])
        scores = NETS[name](tokens)["logits"].log_softmax(dim=-1)[:, 1:-1]
    return scores[0].gather(1, x[:, None])[:, 0].detach() * hidden


@pytest.mark.parametrize("name", ADAPTED)
def test_a_function_scores_what_the_published_code_reads_off(name: str) -> None:
    scorer = mpt_score.load(ADAPTED[name])
    for text in TEXTS:
        ids = torch.tensor([text])
        for draw in range(4):
            mask = torch.rand(ids.shape, generator=generator(draw)) < 0.6
            mask[0, -1] = True
            found = scorer.log_tokens(ids, mask)
            wanted = published(name, ids[0], mask[0])
            torch.testing.assert_close(found[0].float(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ADAPTED)
def test_probabilities_add_up_and_hidden_ids_do_not_matter(name: str) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    mask = torch.tensor([[True, False, True, True, False]])
    with torch.no_grad():
        found = ADAPTED[name](ids, mask)
        other = ADAPTED[name](torch.where(mask, 3, ids), mask)
    torch.testing.assert_close(found[mask].exp().sum(dim=-1), torch.ones(3))
    assert torch.equal(found[mask], other[mask])
    if name == "mdlm":
        assert (found[mask][:, MASK] < -1e5).all()  # nothing is left for the mask token


@pytest.mark.parametrize("name", ADAPTED)
def test_a_curve_of_it(name: str) -> None:
    found = mpt_score.curve(ADAPTED[name], TEXTS, mpt_score.Design((0.25, 0.5, 0.75)))
    assert found.score.shape == (3,) and (found.score < 0).all()


def test_a_place_too_far_is_another_model() -> None:
    """Without the shift Dream's stand-in is scored at the wrong place, and nothing complains."""
    ids, mask = torch.tensor([[5, 6, 7]]), torch.tensor([[False, True, False]])
    right = mpt_score.load(ADAPTED["dream"]).log_tokens(ids, mask)
    wrong = mpt_score.load(PAGE["llada"](NETS["dream"], mask_id=MASK)).log_tokens(ids, mask)
    assert (right - wrong).abs().max() > 0.01


@pytest.mark.parametrize(
    ("unknown", "frame"), [(1, [True, False, True, False]), (None, [True, True, True, False])]
)
def test_an_unknown_word_is_no_frame(unknown: int | None, frame: list[bool]) -> None:
    own = SimpleNamespace(all_special_ids=[0, 1, 2], unk_token_id=unknown)
    source = SimpleNamespace(log_tokens=torch.zeros_like)
    scorer = mpt_score.Scorer(source, tokenizer=own)
    assert scorer.is_frame(torch.tensor([0, 1, 2, 3])).tolist() == frame


def test_a_module_without_a_configuration_is_a_function() -> None:
    class Coin(torch.nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return torch.full((*ids.shape, 2), -math.log(2.0))

    assert mpt_score.sentences(Coin(), [[0, 1, 1]]).log_score.item() == pytest.approx(
        -3 * math.log(2)
    )
