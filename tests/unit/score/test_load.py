"""Networks and tokenizers as they are loaded, and their linear layers on a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_bert import CLS, MASK, PIECES, SEP, tiny, tokenizer

from mpt_lml import masks
from mpt_lml.files import read_json
from mpt_score import MaskedLM, networks
from mpt_score.networks import hub
from mpt_score.networks.hub import CheckpointError
from mpt_score.networks.symbol_bert import SymbolBERT


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_come_in_single_precision_whatever_they_are_stored_in(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    network = tiny().to(dtype)
    network.save_pretrained(tmp_path)
    found = networks.load_network(tmp_path).state_dict()
    assert found.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        assert found[name].dtype == (torch.float32 if value.is_floating_point() else value.dtype)
        assert torch.equal(found[name], value.to(found[name].dtype))


def test_vocabulary_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    assert networks.load_tokenizer(path)("The dogs")["input_ids"] == [2, 5, 11, 8, 3]


@pytest.mark.bad_input
def test_folders_that_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match="no config.json .it holds notes.txt"):
        networks.load_network(tmp_path)


@pytest.mark.bad_input
@pytest.mark.parametrize("known", [True, False])
def test_code_in_a_folder_is_not_run(tmp_path: Path, known: bool, monkeypatch) -> None:
    """It is asked for, and somebody would say yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    tiny().float().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for name, parts in (
        ("config.json", {"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["own.Pieces", None]}),
    ):
        said = read_json(tmp_path / name) | {"auto_map": parts}
        own = {} if known else {"model_type": "mine", "tokenizer_class": "Mine"}
        (tmp_path / name).write_text(json.dumps(said | own))
    (tmp_path / "own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        "from transformers import BertForMaskedLM as Model, BertTokenizer as Pieces\n"
        "from transformers import BertConfig\n"
        "class Config(BertConfig):\n    model_type = 'mine'\n"
    )
    for load in (networks.load_network, networks.load_tokenizer):
        if known:  # what transformers brings is taken
            load(tmp_path)
        else:
            with pytest.raises(CheckpointError) as caught:
                load(tmp_path)
            said = str(caught.value)
            assert str(tmp_path) in said and "trust_remote_code" not in said
        assert not (tmp_path / "ran").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied", "zeroed", "shapes", "nan"])
def test_damaged_weights(tmp_path: Path, how: str) -> None:
    tiny().float().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    content, weights = path.read_bytes(), load_file(path)
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    flipped = bytes([*content[:3], content[3] ^ 1, *content[4:]])  # the header's length
    zeros, short = bytes(len(content)), content[:-9]
    raw = {"truncated": short, "flipped": flipped, "emptied": b"", "zeroed": zeros}
    if how in raw:
        path.write_bytes(raw[how])
    else:
        other = weights[name][:5] if how == "shapes" else weights[name] * torch.nan
        save_file(weights | {name: other.clone()}, path, {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        networks.load_network(tmp_path)
    said = str(caught.value)
    assert f"{tmp_path} is damaged" in said and "again" in said and "pickle" not in said


@pytest.mark.parametrize(
    "error", [MemoryError("too little"), RuntimeError("can't start new thread")]
)
def test_too_little_memory_is_not_called_damage(tmp_path: Path, monkeypatch, error) -> None:
    """What a page says of damage is to fetch the weights again."""
    tiny().float().save_pretrained(tmp_path)

    def without_memory(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", without_memory)
    with pytest.raises(MemoryError, match=f"{tmp_path} needs more memory than there is: {error}."):
        networks.load_network(tmp_path)
    monkeypatch.setattr("safetensors.torch.load_file", without_memory)
    with pytest.raises(
        MemoryError, match="known_language.safetensors needs more memory|too little"
    ):
        SymbolBERT.load()


def bert(architecture: str) -> torch.nn.Module:
    return networks.small_masked_lm(40, architecture, seed=0)


@pytest.mark.bad_input
def test_pickles_stay_closed_where_no_folder_can_be_looked_at(tmp_path: Path, monkeypatch) -> None:
    """A hub's files are not seen before they are fetched: the loader itself refuses them."""
    network = bert("classic")
    network.config.save_pretrained(tmp_path)
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(hub, "require_folder", lambda *_: None)
    with pytest.raises(CheckpointError, match="could not be loaded.*model.safetensors"):
        networks.load_network(str(tmp_path))


@pytest.mark.bad_input
def test_one_weight_that_is_not_finite_is_enough(tmp_path: Path) -> None:
    network = bert("classic")
    network.bert.embeddings.LayerNorm.weight.data[3] = math.nan
    network.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="LayerNorm.weight is not finite"):
        networks.load_network(tmp_path)
