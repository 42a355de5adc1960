"""Bad input at the door of loading: one line each, and a hub that hangs is given up."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from hub import local_hub
from huggingface_hub import errors
from safetensors.torch import load_file
from transformers import BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel

import mpt_score
from mpt_lml import data
from mpt_score import MaskedLM, networks
from mpt_score.networks import hub

pytestmark = pytest.mark.bad_input
NAME, COMMIT = "someone/some-bert", "1" * 40


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["BERT"].save(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "bert"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the hub may be asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    return tmp_path / "hub"


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does when it is set before the import."""
    constants = "huggingface_hub.constants."
    monkeypatch.setattr(f"{constants}ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(f"{constants}HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # it keeps its own


def refused(call: Any, error: type[Exception] = hub.CheckpointError) -> str:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and "Pin the revision" not in message
    return message


class TestFolders:
    def test_no_tokenizer(self, folder: Path) -> None:
        """transformers would make an empty one of five pieces and read every word as unknown."""
        for path in folder.glob("*token*"):
            path.unlink()
        message = refused(lambda: networks.load_tokenizer(folder))
        assert f"{folder} has no tokenizer" in message
        assert "it holds config.json, model.safetensors" in message

    def test_a_tokenizer_that_cannot_be_read(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{")
        assert f"{folder} could not be loaded" in refused(lambda: networks.load_tokenizer(folder))

    def test_a_tokenizer_with_more_ids_than_the_network(self, folder: Path) -> None:
        tokenizer = networks.load_tokenizer(folder)
        tokenizer.add_tokens(["zebra"])  # one too many
        network = networks.load_network(folder)
        message = refused(lambda: MaskedLM.of(network, tokenizer), ValueError)
        assert "tokenizer has ids up to 20, the network 20 tokens" in message
        model = MaskedLM.of(network, networks.load_tokenizer(folder))
        rows = torch.tensor([[2, 20, 3]])
        message = refused(lambda: model.log_tokens(rows, rows == 20), ValueError)
        assert "ids must be 0..19, but ids[0, 1] is 20" in message
        message = refused(lambda: model.log_tokens(-rows, rows == 20), ValueError)
        assert "ids must be 0..19, but ids[0, 0] is -2" in message

    def test_a_causal_model(self, tmp_path: Path) -> None:
        config = GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=1, n_positions=8)
        GPT2LMHeadModel(config).save_pretrained(tmp_path)
        message = refused(lambda: networks.load_network(tmp_path), ValueError)
        assert "is a 'gpt2' model, which has no masked-LM head" in message
        message = refused(lambda: MaskedLM(GPT2LMHeadModel(config), 4), TypeError)
        assert "got GPT2LMHeadModel" in message and "both sides" in message

    def test_a_bert_that_sees_one_side_only(self, folder: Path) -> None:
        said = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(said | {"is_decoder": True}))
        network = networks.load_network(folder)
        assert "config.is_decoder" in refused(lambda: MaskedLM(network, 4), TypeError)

    def test_an_encoder_without_head(self, tmp_path: Path) -> None:
        BertModel(FAMILIES["BERT"].config()).save_pretrained(tmp_path)
        message = refused(lambda: networks.load_network(tmp_path))
        assert "lacks" in message and "an encoder alone" in message

    @pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/nothing", "a/b/c", "a b"])
    @pytest.mark.parametrize("load", [networks.load_network, networks.load_tokenizer])
    def test_a_missing_folder(self, name: str, load: Any) -> None:
        for source in (name, Path(name)):
            message = refused(lambda source=source: load(source))
            assert "is not a folder" in message and "revision" not in message

    def test_a_missing_folder_that_could_be_a_name(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        for load in (networks.load_network, networks.load_tokenizer):
            message = refused(lambda load=load: load("results/my-bert"))
            assert "results/my-bert (revision main) could not be loaded" in message
            assert "No folder is called that" in message

    def test_what_is_no_name_has_no_revision(self, folder: Path, monkeypatch, caplog) -> None:
        tokenizer = networks.load_tokenizer(folder)
        (folder / "outside_of_revisions.py").write_text("def f(ids, mask): return ids\n")
        monkeypatch.chdir(folder)
        scorer = mpt_score.load(folder, device="cpu")
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("a\n")
        calls = {
            f"the folder {folder}": lambda: mpt_score.load(folder, revision=COMMIT),
            f"the folder {networks.small_bert_folder()}": lambda: mpt_score.load(
                networks.small_bert_folder(), revision="main"
            ),
            "outside_of_revisions:f": lambda: mpt_score.load(
                "outside_of_revisions:f", tokenizer, revision=COMMIT
            ),
            "a loaded BertForMaskedLM": lambda: mpt_score.load(
                scorer.network, tokenizer, revision=COMMIT
            ),
            "a loaded function": lambda: mpt_score.load(lambda ids, mask: ids, revision=COMMIT),
            "a Scorer": lambda: mpt_score.load(scorer, revision=COMMIT),
            f"the file {vocabulary}": lambda: networks.load_tokenizer(vocabulary, revision=COMMIT),
        }
        for what, call in calls.items():
            message = refused(call, ValueError)
            assert message.startswith(f"{what} has no revision '")
            assert "leave --revision, revision=... out" in message

    def test_pickled_weights(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
        message = refused(lambda: networks.load_network(folder))
        assert "has no *.safetensors" in message and "pickled weights can run code" in message


class TestHub:
    def test_any_name_with_a_revision(self, saved: Path, cache: Path, monkeypatch) -> None:
        with local_hub(NAME, COMMIT, saved) as (address, asked):
            point_to(address, monkeypatch)
            network = networks.load_network(NAME, revision=COMMIT)
            tokenizer = networks.load_tokenizer(NAME, revision=COMMIT)
        assert any("model.safetensors" in each for each in asked)
        assert tokenizer("a b")["input_ids"] == [2, 5, 6, 3]
        own = networks.load_network(saved).state_dict()
        assert all(torch.equal(value, own[key]) for key, value in network.state_dict().items())
        assert hub.resolved_revision(NAME, COMMIT) == COMMIT

    def test_the_commit_of_a_bare_name_is_said_and_kept(
        self, saved, cache, monkeypatch, caplog
    ) -> None:
        with local_hub(NAME, COMMIT, saved) as (address, _):
            point_to(address, monkeypatch)
            scorer = mpt_score.load(NAME, device="cpu")
            assert f"{NAME} is at commit {COMMIT}" in caplog.text
            caplog.clear()
            pinned = mpt_score.load(NAME, revision=COMMIT, device="cpu")
            mpt_score.load(NAME, NAME, revision=COMMIT, device="cpu")  # of the tokenizer as well
            assert caplog.text == ""
        assert scorer.name == pinned.name == f"{NAME}@{COMMIT}"
        assert scorer.commit == COMMIT and scorer.identity["weights"]
        assert scorer.identity == mpt_score.load(saved, device="cpu").identity

    def test_the_commit_of_a_tokenizer_of_its_own_is_said(
        self, saved, cache, monkeypatch, caplog
    ) -> None:
        with local_hub(NAME, COMMIT, saved) as (address, _):
            point_to(address, monkeypatch)
            mpt_score.load(saved, NAME, device="cpu")
        assert caplog.text.count(f"{NAME} is at commit {COMMIT}") == 1

    def test_the_names_that_the_book_pins_are_the_newest_for_others(
        self, saved, cache, monkeypatch, caplog
    ) -> None:
        name = hub.BERT_BASE
        with local_hub(name, COMMIT, saved) as (address, _):
            point_to(address, monkeypatch)
            scorer = mpt_score.load(name, device="cpu")
        assert scorer.commit == COMMIT
        assert caplog.text.count(f"{name} is at commit {COMMIT}") == 1

    def test_a_function_with_a_tokenizer_of_that_commit(self, saved, cache, monkeypatch) -> None:
        with local_hub(NAME, COMMIT, saved) as (address, asked):
            point_to(address, monkeypatch)
            scorer = mpt_score.load(lambda ids, mask: ids, NAME, revision=COMMIT)
        assert scorer.tokenizer.mask_token_id == 4
        assert any(f"/resolve/{COMMIT}/" in each for each in asked)

    def test_weights_are_those_of_the_configuration(self, saved, cache, monkeypatch) -> None:
        """A branch that moves while it is fetched would mix two commits."""
        with local_hub(NAME, COMMIT, saved) as (address, asked):
            point_to(address, monkeypatch)
            networks.load_network(NAME)
        weights = [each for each in asked if "model.safetensors" in each]
        assert weights and all(f"/resolve/{COMMIT}/" in each for each in weights)

    @pytest.mark.parametrize(
        ("name", "revision"), [(NAME, "2" * 40), (NAME, "no-branch"), ("someone/else", COMMIT)]
    )
    def test_a_bad_revision_or_name(self, saved, cache, monkeypatch, name, revision) -> None:
        with local_hub(NAME, COMMIT, saved) as (address, _):
            point_to(address, monkeypatch)
            for load in (networks.load_network, networks.load_tokenizer):
                message = refused(lambda load=load: load(name, revision=revision))
                assert f"{name} (revision {revision}) could not be loaded" in message
                assert "such a name, such a revision (--revision, revision=)" in message

    def test_pickles_only(self, folder: Path, cache: Path, monkeypatch) -> None:
        torch.save({}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        with local_hub(NAME, COMMIT, folder) as (address, asked):
            point_to(address, monkeypatch)
            message = refused(lambda: networks.load_network(NAME, revision=COMMIT))
        assert "the hub has no model.safetensors or model.safetensors.index.json or" in message
        assert "safetensors (pickles are refused)" in message
        assert not any("GET" in each and "pytorch_model.bin" in each for each in asked)

    def test_code_of_its_own(self, folder: Path, cache: Path, monkeypatch) -> None:
        monkeypatch.setattr("builtins.input", lambda *_: "y")
        said = json.loads((folder / "config.json").read_text())
        said |= {"model_type": "mine", "auto_map": {"AutoConfig": "own.Config"}}
        (folder / "config.json").write_text(json.dumps(said))
        (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
        with local_hub(NAME, COMMIT, folder) as (address, asked):
            point_to(address, monkeypatch)
            message = refused(lambda: networks.load_network(NAME, revision=COMMIT))
        assert "code of its own, which is refused" in message
        assert not (folder / "ran").exists() and not any("own.py" in each for each in asked)

    def test_files_in_folders_stay_there(self, folder: Path, cache: Path, monkeypatch) -> None:
        """An export for another program is often as large as the weights."""
        (folder / "onnx").mkdir()
        (folder / "onnx" / "config.json").write_text("{}")
        with local_hub(NAME, COMMIT, folder) as (address, asked):
            point_to(address, monkeypatch)
            networks.load_tokenizer(NAME, revision=COMMIT)
        assert any("/config.json" in each for each in asked)
        assert not any("onnx" in each for each in asked)

    @pytest.mark.skipif(
        not hasattr(errors, "IncompleteSnapshotError"), reason="this hub's client keeps no list"
    )
    def test_a_tokenizer_that_was_fetched_in_part(self, saved, cache, monkeypatch) -> None:
        """Without its configuration it would cut texts in another way, and nothing would tell."""
        with local_hub(NAME, COMMIT, saved) as (address, _):
            point_to(address, monkeypatch)
            networks.load_tokenizer(NAME)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert networks.load_tokenizer(NAME).mask_token_id == 4
        next(cache.rglob("tokenizer_config.json")).unlink()
        message = refused(lambda: networks.load_tokenizer(NAME))
        assert f"{NAME} (revision main) could not be loaded" in message

    def test_nobody_there(self, cache: Path, monkeypatch) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{closed.getsockname()[1]}"
            point_to(address, monkeypatch)
            pauses: list[float] = []
            monkeypatch.setattr(time, "sleep", pauses.append)
            for load in (networks.load_network, networks.load_tokenizer):
                message = refused(lambda load=load: load(NAME, revision=COMMIT))
                assert "Are there a network" in message
        # The client's own seven attempts have pauses of 1 s and more, 23 s in all.
        assert max(pauses, default=0.0) < 1.0


class DeafHub:
    """It takes every call and says nothing. Who calls is through as soon as the system hears it."""

    def __init__(self, server: socket.socket) -> None:
        self.server = server
        self.held: list[socket.socket] = []
        server.setblocking(False)

    @property
    def num_calls(self) -> int:
        """All until now. No thread takes them: how busy the machine is makes no difference."""
        while True:
            try:
                self.held.append(self.server.accept()[0])
            except BlockingIOError:
                return len(self.held)

    def close(self) -> None:
        for each in self.held:
            each.close()


@pytest.fixture
def deaf(cache: Path, monkeypatch) -> Iterator[DeafHub]:
    """A hub that answers nobody, and a client that is soon out of patience."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        point_to(address, monkeypatch)
        monkeypatch.setenv("HF_ENDPOINT", address)
        silent = DeafHub(server)
        yield silent
        silent.close()


class TestPages:
    """What a page loads unasked."""

    def test_a_folder_on_any_device(self, folder: Path, monkeypatch) -> None:
        monkeypatch.setattr(hub, "gpu", lambda: None)
        networks.require_available(folder)
        networks.require_available(str(folder))

    def test_no_gpu_and_nothing_is_asked(self, deaf: DeafHub, monkeypatch) -> None:
        monkeypatch.setattr(hub, "gpu", lambda: None)
        assert refused(lambda: networks.require_available(NAME)) == "no GPU"
        assert deaf.num_calls == 0

    def test_no_network(self, deaf: DeafHub, monkeypatch) -> None:
        """Nobody answers; and the hub may not be asked."""
        monkeypatch.setattr(hub, "gpu", lambda: torch.device("cpu"))
        assert refused(lambda: networks.require_available(NAME)) == "no network"
        assert deaf.num_calls == 1
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert refused(lambda: networks.require_available(NAME)) == "no network"
        assert deaf.num_calls == 1

    def test_a_copy_in_the_cache(
        self, deaf: DeafHub, saved: Path, cache: Path, monkeypatch
    ) -> None:
        monkeypatch.setattr(hub, "gpu", lambda: torch.device("cpu"))
        home = cache / f"models--{NAME.replace('/', '--')}"
        shutil.copytree(saved, home / "snapshots" / COMMIT)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(COMMIT)
        networks.require_available(NAME)
        assert deaf.num_calls == 0

    def test_a_network_and_a_hub_that_has_it(self, saved: Path, cache: Path, monkeypatch) -> None:
        monkeypatch.setattr(hub, "gpu", lambda: torch.device("cpu"))
        with local_hub(NAME, COMMIT, saved) as (address, asked):
            point_to(address, monkeypatch)
            networks.require_available(NAME)
            networks.require_available(NAME, COMMIT)
            with pytest.raises(hub.CheckpointError, match="no network"):
                networks.require_available(f"{NAME}-of-nobody")
        assert asked[:2] == [f"GET /api/models/{NAME}/revision/{each}" for each in ("main", COMMIT)]


class TestADeafHub:
    def test_it_is_asked_once(self, deaf: DeafHub) -> None:
        """The client repeats a question that gets no answer: 400 s, whatever its settings."""
        for load in (networks.load_network, networks.load_tokenizer):
            calls_before = deaf.num_calls
            message = refused(lambda load=load: load(NAME, revision=COMMIT))
            assert "Are there a network" in message
            assert deaf.num_calls == calls_before + 1

    def test_what_is_in_the_cache_is_loaded(self, deaf: DeafHub, saved: Path, cache: Path) -> None:
        home = cache / f"models--{NAME.replace('/', '--')}"
        shutil.copytree(saved, home / "snapshots" / COMMIT)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(COMMIT)
        for revision in (COMMIT, "main"):
            network = networks.load_network(NAME, revision=revision)
            assert isinstance(network, BertForMaskedLM)
            assert networks.load_tokenizer(NAME, revision=revision).mask_token_id == 4
        # Once for a network, twice for a tokenizer, which has a configuration.
        assert deaf.num_calls <= 6

    def test_data_are_asked_for_once_too(self, deaf: DeafHub, tmp_path: Path, monkeypatch) -> None:
        """Seven times ten seconds and more, as `datasets` asks."""
        pytest.importorskip("datasets")
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
        for name in ("MPT_LML_DATA", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(data.DataNotFoundError, match="mnist is not on this machine"):
            data.images("mnist", "test")
        assert deaf.num_calls == 1
