"""Networks and tokenizers as they are loaded, and their linear layers on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import generator
from tiny_bert import CLS, MASK, PIECES, SEP, tiny, tokenizer

from mpt_lml import masks
from mpt_score import MaskedLM, networks
from mpt_score.networks.masked_lm import masked_logits


def model(network: torch.nn.Module, num_features: int = 3) -> MaskedLM:
    return MaskedLM(
        network,
        MASK,
        num_features,
        prefix=(CLS,),
        suffix=(SEP,),
        special_token_ids=(0, 1, CLS, SEP),
    )


X = torch.tensor([[5, 6, 7], [10, 11, 7]])


@pytest.mark.parametrize("kind", ["classic", "modern"])
def test_fast_linear_layers_give_the_same_float32_values(kind: str) -> None:
    network = tiny(kind).float().eval()
    ids = torch.randint(5, 12, (4, 6), generator=generator(1))
    where = torch.rand(4, 6, generator=generator(2)) < 0.4
    with torch.no_grad():
        plain = masked_logits(network, ids, where)
        with networks.fast_linear(network):
            fast = masked_logits(network, ids, where)
            # No hidden place at all: oneDNN knows no empty product.
            assert masked_logits(network, ids, where & False).shape == (0, len(PIECES))
    # Logits of order 10 after a few sums of 64 terms in float32.
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-4)
    assert all("forward" not in vars(each) for each in network.modules())


def test_fast_linear_is_used_for_plain_float32_layers_without_gradients_only(monkeypatch) -> None:
    plain: list[object] = []

    def counted(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        plain.append(None)
        return real(x, *weights)

    real = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", counted)

    def used(layer: torch.nn.Module, dtype: torch.dtype = torch.float32) -> bool:
        plain.clear()
        with networks.fast_linear(layer):
            layer(torch.ones(1, 3, dtype=dtype))
        return not plain

    class Other(torch.nn.Linear):
        pass

    available = torch.backends.mkldnn.is_available()
    layer = torch.nn.Linear(3, 2)
    assert not used(layer)
    with torch.no_grad():
        assert used(layer) == available
        assert not used(torch.nn.Linear(3, 2).double(), torch.float64)
        assert not used(Other(3, 2))
        with torch.autocast("cpu", torch.bfloat16):
            assert not used(layer)
        wrapped = torch.nn.Linear(3, 2)
        wrapped.forward = lambda x: -x
        with networks.fast_linear(wrapped):
            assert torch.equal(wrapped(torch.ones(3)), torch.full((3,), -1.0))
        assert "forward" in vars(wrapped)
    with pytest.raises(RuntimeError), torch.no_grad(), networks.fast_linear(layer):
        layer(torch.ones(5))
    assert "forward" not in vars(layer)


def test_a_saved_bert_comes_back_the_same(tmp_path: Path) -> None:
    network = tiny().float()
    network.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    again = networks.load_network(tmp_path)
    reader = networks.load_tokenizer(tmp_path)
    assert MaskedLM.of(again, reader).mask_token_id == MASK
    mask = masks.all_masks(3, 2)
    # The stored network may choose another attention kernel: float32 sums in another order.
    torch.testing.assert_close(
        model(again).log_conditional(X, mask),
        model(network).log_conditional(X, mask),
        rtol=1e-5,
        atol=1e-5,
    )


def test_vocabulary_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    assert networks.load_tokenizer(path)("The dogs")["input_ids"] == [2, 5, 11, 8, 3]
