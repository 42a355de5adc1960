"""The BERT of the known language: a softmax of its network, which sees no masked symbol."""

from __future__ import annotations

import pytest
import torch
from models import generator, random_hmm
from other_device import OtherDevice
from safetensors.torch import load_file, save_file

from mpt_lml import masks
from mpt_lml.files import book_file
from mpt_score.networks.hub import CheckpointError
from mpt_score.networks.symbol_bert import SymbolBERT


def test_the_books_bert_is_its_networks_softmax() -> None:
    net = SymbolBERT(3, 4, 16, seed=1)
    x, mask = torch.tensor([[0, 2, 1, 1]]), torch.tensor([[True, False, True, False]])
    with torch.no_grad():
        said = net.network(input_ids=torch.tensor([[3, 2, 3, 1]])).logits[0].double().exp()
    wanted = [said[0, 0] / said[0].sum(), 1.0, said[2, 1] / said[2].sum(), 1.0]
    assert net.log_each(x, mask)[0].exp().tolist() == pytest.approx([float(p) for p in wanted])


SOURCE = random_hmm(2, 3, 4, seed=8)


def small(seed: int = 1) -> SymbolBERT:
    return SymbolBERT(3, 4, 16, seed=seed)


def log_q(net, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """From the network's probabilities over all symbols, one position after the other."""
    values = torch.zeros(x.shape, dtype=torch.float64)
    for n, row in enumerate(mask):
        seen = x[n].clone()
        seen[row] = 3
        with torch.no_grad():
            probabilities = net.network(input_ids=seen[None]).logits[0].double().softmax(dim=1)
        for j in row.nonzero().flatten().tolist():
            values[n, j] = probabilities[j, x[n, j]].log()
    return values


def test_conditionals_are_the_networks_own() -> None:
    net, x = small(), SOURCE.sample(7, generator=generator(1))
    mask = masks.sample_masks(7, 4, masks.UniformSize(), generator=generator(2))
    values, expected = net.log_each(x, mask), log_q(net, x, mask)
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=0)  # float32 logits
    every = net.log_conditional(x, mask)
    torch.testing.assert_close(every.diagonal().T, expected, atol=1e-5, rtol=0)


def test_a_masked_symbol_is_not_seen() -> None:
    net, x = small(), SOURCE.sample(5, generator=generator(3))
    mask = torch.tensor([[True, False, True, False]]).expand(5, 4)
    other = x.clone()
    other[:, 2] = (x[:, 2] + 1) % 3
    before = net.log_each(x, mask)
    after = net.log_each(other, mask)
    assert torch.equal(before[:, 0], after[:, 0])
    assert (before[:, 2] != after[:, 2]).all()
    other[:, 1] = (x[:, 1] + 1) % 3
    assert (net.log_each(other, mask)[:, 0] != after[:, 0]).all()


@pytest.mark.parametrize("mask_is_there", [False, True])
@pytest.mark.parametrize("data_are_there", [False, True])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_answers_are_where_the_data_are(
    kind: str, data_are_there: bool, mask_is_there: bool
) -> None:
    """In double precision, but for data on Apple's GPUs, which have none."""
    net, x = small(), SOURCE.sample(5, generator=generator(3))
    mask = masks.sample_masks(5, 4, masks.UniformSize(), generator=generator(2))
    calls = (net.log_each, net.log_values, net.log_conditional, net.mean_log_conditional)
    wanted = [call(x, mask).detach() for call in calls]
    with OtherDevice(torch.device(kind, 0)) as other:
        net.network.to(other.device)
        x = x.to(other.device) if data_are_there else x
        mask = mask.to(other.device) if mask_is_there else mask
        for call, expected in zip(calls, wanted, strict=True):
            found = call(x, mask).detach()
            assert found.device == x.device
            in_single = kind == "mps" and data_are_there
            assert found.dtype == (torch.float32 if in_single else torch.float64)
            # Logits of single precision are the same; a softmax rounds once more.
            torch.testing.assert_close(found.cpu().double(), expected, rtol=0, atol=1e-5)


def test_a_card_is_asked_for_many_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 1024 rows on the CPU, of 16,384 on a card, and 1024 again back on the CPU."""
    net = small()
    x = SOURCE.sample(3000, generator=generator(3))
    mask = masks.sample_masks(3000, 4, masks.UniformSize(), generator=generator(2))
    forward = net.network.forward
    rows: list[int] = []

    def counted(input_ids: torch.Tensor) -> object:
        rows.append(len(input_ids))
        return forward(input_ids=input_ids)

    monkeypatch.setattr(net.network, "forward", counted)
    here = net.log_each(x, mask)
    with OtherDevice() as other:
        assert net.to(other.device) is net and net.device == other.device
        there = net.log_each(x, mask)
        net.to("cpu").log_each(x[:1025], mask[:1025])
    assert rows == [1024, 1024, 952, 3000, 1024, 1]
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)


@pytest.mark.bad_input
def test_weights_are_loaded_from_a_file_only(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "nothing.safetensors"):
        with pytest.raises(FileNotFoundError, match="path must be a file of safetensors, got"):
            SymbolBERT.load(path)


def test_weights_that_are_not_whole_are_refused(tmp_path) -> None:
    """Whatever the file lacks would stay as it was drawn."""
    whole, path = book_file("results/known_language.safetensors"), tmp_path / "net.safetensors"
    weights = load_file(whole)
    path.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        SymbolBERT.load(path)
    for name in list(weights)[::7]:
        save_file({key: value for key, value in weights.items() if key != name}, path)
        with pytest.raises(CheckpointError, match=f"{path} is .*of another network"):
            SymbolBERT.load(path)
    save_file(
        {k: value[:1].clone() if "encoder" in k else value for k, value in weights.items()}, path
    )
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        SymbolBERT.load(path)


@pytest.mark.bad_input
def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^device 'abc' cannot be used here: it names none"):
        SymbolBERT(12, 16, 8, seed=4).to("abc")
