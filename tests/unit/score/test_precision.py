"""Weights in half precision: which networks have them, how far they are off, and what stays."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, MORE_FAMILIES
from models import generator
from tiny_bert import CLS, MASK, SEP, tiny, tokenizer

import mpt_score
from mpt_score import MaskedLM
from mpt_score.networks import precision
from mpt_score.networks.esm import constant_scale
from mpt_score.networks.masked_lm import masked_logits

KNOWN = {name: family for name, family in (FAMILIES | MORE_FAMILIES).items() if family.is_known}
IN_FLOAT32 = ("FNet", "MRA")
DIGITS = {"bfloat16": 8, "float16": 11}
IDS = torch.tensor([[CLS, 5, 6, 7, SEP], [CLS, 10, 11, 7, SEP]])
HIDDEN = torch.tensor([[False, True, True, False, False], [False, False, True, True, False]])


@pytest.mark.parametrize("kind", DIGITS)
@pytest.mark.parametrize("name", KNOWN)
def test_every_family_is_near_in_half_precision(name: str, kind: precision.Precision) -> None:
    family = KNOWN[name]
    network = constant_scale(family.network().eval())
    mask_token_id = family.special.index(family.mask)
    ids = torch.randint(5, 15, (8, 8), generator=generator(1))
    mask = torch.rand(8, 8, generator=generator(2)) < 0.5
    exact = MaskedLM(network, mask_token_id, precision="float32").log_tokens(ids, mask)[mask]
    half = MaskedLM(network, mask_token_id, precision=kind).log_tokens(ids, mask)[mask]
    if name in IN_FLOAT32:
        assert torch.equal(half, exact)
        return
    # A state is rounded some 20 times on its way, each time by 2^-b/√12 of itself at most, in all by
    # 1.3 · 2^-b if these add up as independent errors. Residual sums of unequal size, and softmaxes,
    # make ten times of it; but a position or a scale that is wrong is off by its own size.
    error = (half - exact).square().mean().sqrt() / exact.std()
    unit = 2.0 ** -DIGITS[kind]
    assert 0.1 * unit < error < 32 * unit


@pytest.mark.parametrize("kind", DIGITS)
def test_logits_are_rounded_and_their_softmax_is_not(kind: precision.Precision) -> None:
    """In half precision a log-probability of -3 would be off by up to 2^-DIGITS of it."""
    model = MaskedLM(tiny(), MASK, precision=kind)
    found = model.log_tokens(IDS, HIDDEN)[HIDDEN]
    with torch.no_grad():
        logits = masked_logits(model.network, IDS.masked_fill(HIDDEN, MASK), HIDDEN)
    assert logits.dtype == getattr(torch, kind)
    expected = logits.double().log_softmax(dim=1).gather(1, IDS[HIDDEN][:, None])[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_network_that_was_given_stays_as_it_is() -> None:
    network = tiny().float()
    before = copy.deepcopy(network.state_dict())
    model = MaskedLM(network, MASK, precision="bfloat16")
    assert {each.dtype for each in model.network.parameters()} == {torch.bfloat16}
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert MaskedLM(network, MASK).network is network


def test_a_folder_is_cast_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny().float().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)

    def no_copy(_: object) -> None:
        raise AssertionError("a copy takes twice the memory")

    monkeypatch.setattr(precision, "copy", SimpleNamespace(deepcopy=no_copy))
    scorer = mpt_score.load(tmp_path, precision="float16")
    assert scorer.network.dtype == torch.float16 and scorer.model.precision == "float16"


def test_constants_keep_their_digits() -> None:
    """In bfloat16 position 257 is 256, and so are its angles."""
    network = FAMILIES["ESM-2"].network()
    frequencies = {name: value.clone() for name, value in network.named_buffers()}
    assert any("inv_freq" in name for name in frequencies)
    for name, value in precision.cast(network, "bfloat16").named_buffers():
        assert value.dtype == frequencies[name].dtype
        assert torch.equal(value, frequencies[name])


def test_weights_that_are_tied_stay_tied() -> None:
    network = precision.in_precision(tiny().float(), "bfloat16")
    embeddings = network.get_input_embeddings().weight
    assert network.get_output_embeddings().weight is embeddings
    assert embeddings.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("capability", "wanted"), [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")]
)
def test_what_a_card_computes_fast(capability, wanted: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert precision.fast_precision(torch.device("cuda")) == wanted
    for device in ("cpu", "mps"):
        assert precision.fast_precision(torch.device(device)) == "float32"


@pytest.mark.parametrize(
    ("dtype", "asked", "computed_in", "precision_name"),
    [
        (torch.float32, None, torch.float16, "float16"),
        (torch.float32, "float32", torch.float32, "float32"),
        (torch.float64, None, torch.float64, "float32"),
        (torch.float64, "float32", torch.float64, "float32"),
        (torch.bfloat16, None, torch.bfloat16, "bfloat16"),
        (torch.bfloat16, "float32", torch.float32, "float32"),
        (torch.float16, "bfloat16", torch.bfloat16, "bfloat16"),
    ],
)
def test_weights_keep_the_precision_they_came_in_unless_one_is_named(
    dtype: torch.dtype,
    asked: precision.Precision | None,
    computed_in: torch.dtype,
    precision_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "fast_precision", lambda _: "float16")  # as on a T4
    model = MaskedLM(tiny().to(dtype), MASK, precision=asked)
    assert model.network.dtype == computed_in and model.precision == precision_name
    assert model.log_tokens(IDS, HIDDEN).dtype == torch.float64


def test_it_is_said_where_a_network_has_no_half_precision(caplog) -> None:
    network = MORE_FAMILIES["FNet"].network()
    assert precision.precision_of(network, "bfloat16") == "float32"
    assert "FNetForMaskedLM computes in float32" in caplog.text
