"""Every family of masked language models, from a saved folder to the longest row it admits."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from any_model import PAGE
from families import FAMILIES, LETTERS
from models import generator

from mpt_score import MaskedLM, networks, tokens

ESMS = [name for name in FAMILIES if name.startswith("ESM")]


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: each.save(tmp_path_factory.mktemp(name)) for name, each in FAMILIES.items()}


def loaded(folder: Path, **options: Any) -> tuple[MaskedLM, Any]:
    network, tokenizer = networks.load_network(folder), networks.load_tokenizer(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this ESM multiplies", UserWarning)
        return MaskedLM.of(network, tokenizer, **options), tokenizer


def text(length: int, seed: int = 0) -> str:
    """A sentence that is a row of ``length`` tokens, two of them special."""
    draws = torch.randint(len(LETTERS), (length - 2,), generator=generator(seed))
    return " ".join(LETTERS[each] for each in draws.tolist())


def literal(network: Any, tokenizer: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One pass for each mask and the softmax of everything, as one would write it down."""
    found = torch.zeros(ids.shape, dtype=torch.float64)
    for row, (x, hidden) in enumerate(zip(ids, mask, strict=True)):
        shown = [tokenizer.mask_token_id if h else int(v) for v, h in zip(x, hidden, strict=True)]
        with torch.no_grad():
            scores = network(input_ids=torch.tensor([shown])).logits[0].double().log_softmax(dim=1)
        found[row] = scores[range(len(x)), x] * hidden
    return found


def test_longest_row_is_scored_and_a_longer_one_refused(name: str, folders) -> None:
    longest = FAMILIES[name].longest
    model, tokenizer = loaded(folders[name])
    assert model.max_length == longest
    rows = tokens.encode(tokenizer, [text(longest)])
    assert rows.ids.shape == (1, longest) and int(rows.num_features) == longest - 2
    mask = rows.maskable & (torch.rand(5, longest, generator=generator(1)) < 0.5)
    mask[0] = rows.maskable  # everything
    ids = rows.ids.expand(5, -1)
    found = model.log_tokens(ids, mask, types=rows.types.expand(5, -1))
    # Log-probabilities of order 1 to 30 after some float32 sums of 24 terms.
    torch.testing.assert_close(
        found, literal(model.network, tokenizer, ids, mask), rtol=1e-5, atol=1e-5
    )
    assert found[mask].unique().numel() > longest / 2
    longer = torch.full((1, longest + 1), 7)
    with pytest.raises(ValueError, match=f"rows of {longest + 1} tokens are longer"):
        model.log_tokens(longer, longer == 7)


def test_hidden_tokens_do_not_matter_and_rows_stand_alone(name: str, folders) -> None:
    model, tokenizer = loaded(folders[name], batch_tokens=20)
    rows = tokens.encode(tokenizer, [text(8, seed) for seed in range(3)])
    mask = rows.maskable & (torch.rand(3, 8, generator=generator(2)) < 0.5)
    mask[:, 1], mask[:, 2] = True, False
    found = model.log_tokens(rows.ids, mask)
    alone = torch.cat(
        [model.log_tokens(x[None], m[None]) for x, m in zip(rows.ids, mask, strict=True)]
    )
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
    where = mask.clone()
    where[:, 1] = False
    other = rows.ids.where(~where, 5 + (rows.ids - 4) % len(LETTERS))  # the next letter
    changed = model.log_tokens(other, mask)
    torch.testing.assert_close(found[:, 1], changed[:, 1], rtol=1e-5, atol=1e-5)
    shown = rows.ids.clone()
    shown[:, 2] = 5 + (rows.ids[:, 2] - 4) % len(LETTERS)
    assert (model.log_tokens(shown, mask)[:, 1] - found[:, 1]).abs().min() > 1e-3


def test_the_frame_is_the_tokenizers(name: str, folders) -> None:
    model, tokenizer = loaded(folders[name], num_features=5)
    rows = tokens.encode(tokenizer, [text(7)])
    mask = torch.tensor([[False, True, False, True, True]])
    whole = torch.nn.functional.pad(mask, (1, 1))
    found = model.log_each(rows.ids[:, 1:-1], mask)
    torch.testing.assert_close(found, model.log_tokens(rows.ids, whole)[:, 1:-1])


def test_pairs_of_sentences(name: str, folders) -> None:
    """A network that takes no types, or knows one only, gets none."""
    model, tokenizer = loaded(folders[name])
    rows = tokens.encode(tokenizer, ["a b"], ["c d"])
    takes = "token_type_ids" in inspect.signature(model.network.forward).parameters
    kinds = getattr(model.network.config, "type_vocab_size", 0) if takes else 0
    seen = []
    model.network.register_forward_pre_hook(
        lambda _, __, inputs: seen.append("token_type_ids" in inputs), with_kwargs=True
    )
    encoder = getattr(model.network, model.network.base_model_prefix)
    encoder.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(inputs.get("token_type_ids") is not None),
        with_kwargs=True,
    )
    found = model.log_tokens(rows.ids, rows.maskable, types=rows.types)
    assert any(seen) == (kinds > 1)
    without = model.log_tokens(rows.ids, rows.maskable)
    assert torch.equal(found, without) == (kinds < 2 or not rows.types.any())


@pytest.mark.parametrize("name", ESMS)
class TestTheScaleOfEsm:
    def scales(self, network: Any, ids: torch.Tensor) -> torch.Tensor:
        """Each place's embedding over that of the word alone; 0 where it is hidden."""
        inner = network.esm.embeddings
        inner.position_embedding_type, inner.layer_norm = "none", None
        with torch.no_grad():
            return (inner(ids) / inner.word_embeddings.weight[ids]).mean(dim=-1)

    def shown(self, count: int) -> torch.Tensor:
        """Ten tokens, so many of them the mask token."""
        return torch.arange(5, 15).where(torch.arange(10) >= count, 4)[None]

    def test_it_grows_with_the_mask_and_is_said(self, name: str, folders) -> None:
        network = networks.load_network(folders[name])
        with pytest.warns(UserWarning, match="0.88 / .1 - hidden share.*constant_scale"):
            MaskedLM.of(network, networks.load_tokenizer(folders[name]))
        for count in (1, 5, 9):
            found = self.scales(network, self.shown(count))[0]
            assert found[:count].abs().max() == 0
            wanted = torch.full((10 - count,), 0.88 / (1 - count / 10))
            torch.testing.assert_close(found[count:], wanted, rtol=1e-5, atol=1e-5)

    def test_it_is_taken_out(self, name: str, folders) -> None:
        network = PAGE["constant_scale"](networks.load_network(folders[name]))
        MaskedLM.of(network, networks.load_tokenizer(folders[name]))  # without a warning
        for count in (1, 5, 9):
            found = self.scales(network, self.shown(count))[0]
            torch.testing.assert_close(found, (torch.arange(10) >= count).float())

    def test_scores_differ_by_that_and_by_nothing_else(self, name: str, folders) -> None:
        published, _ = loaded(folders[name])
        network = PAGE["constant_scale"](networks.load_network(folders[name]))
        constant = MaskedLM.of(network, networks.load_tokenizer(folders[name]))
        ids = torch.tensor([[0, 5, 6, 7, 8, 9, 10, 2]])
        mask = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 0]]).bool()
        first, second = (model.log_tokens(ids, mask) for model in (published, constant))
        assert (first - second).abs().max() > 0.01
        # The published network whose visible embeddings are divided by its factor.
        factor = 0.88 / (1 - 5 / 8)
        published.network.esm.embeddings.word_embeddings.register_forward_hook(
            lambda _, __, found: found / factor
        )
        undone = published.log_tokens(ids, mask)
        torch.testing.assert_close(undone, second, rtol=1e-5, atol=1e-5)


def test_precision_of_the_products(folders) -> None:
    error = {}
    for precision in ("float32", "float16", "bfloat16"):
        model, tokenizer = loaded(folders["RoBERTa"], precision=precision)
        rows = tokens.encode(tokenizer, [text(10, seed) for seed in range(8)])
        exact = literal(model.network, tokenizer, rows.ids, rows.maskable)
        error[precision] = float((model.log_tokens(rows.ids, rows.maskable) - exact).abs().mean())
    # 24, 11 and 8 bits: errors grow by about 2^13 and 2^3.
    assert error["float32"] < 1e-5 < error["float16"] < error["bfloat16"] / 3 < 0.2
