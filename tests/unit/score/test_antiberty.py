"""AntiBERTy from its package: where it is looked for, what is read of it, and which texts it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import stand_in_antiberty as stand_in
import torch
from chapter_cells import run_cells

import mpt_lml
import mpt_score
from experiments import experiment
from experiments.antibodies import few
from experiments.experiment import weights_of
from mpt_score import Design, networks
from mpt_score.command import main
from mpt_score.errors import TextError
from mpt_score.networks import antiberty
from mpt_score.networks.hub import CheckpointError, resolved_revision
from mpt_score.networks.residues import RESIDUES, VOCABULARY, ResidueTokenizer

CHAINS = ("EVQLVESGG", "DIQMTQSPSSL", "EVQLW")
COMMAND = r"pip install --no-deps antiberty==0\.1\.3"


def has_the_real_one() -> bool:
    try:
        antiberty._root()
    except (CheckpointError, OSError):
        return False
    return True


real = pytest.mark.skipif(
    not has_the_real_one(),
    reason="needs antiberty 0.1.3: pip install --no-deps, or its wheel in the folder MPT_LML_DATA",
)


@pytest.fixture
def files(monkeypatch) -> dict[str, bytes]:
    """A stand-in's files, whose checksums are taken for the published ones."""
    monkeypatch.setattr(antiberty.metadata, "version", not_installed)
    return as_published(stand_in.content(), monkeypatch)


def not_installed(name: str) -> str:
    raise antiberty.metadata.PackageNotFoundError(name)


def as_published(files: dict[str, bytes], monkeypatch) -> dict[str, bytes]:
    monkeypatch.setattr(antiberty, "CHECKSUMS", stand_in.checksums(files))
    return files


@pytest.fixture
def wheel(files, tmp_path, monkeypatch) -> Path:
    """The stand-in as a wheel among the local data."""
    monkeypatch.setenv("MPT_LML_DATA", str(tmp_path))
    return stand_in.write_wheel(tmp_path, files)


# -- where it is --------------------------------------------------------------------------------------


def test_the_wheel_its_folder_and_the_installed_package_are_one_network(
    wheel, files, tmp_path, monkeypatch
) -> None:
    from_wheel = mpt_score.load("antiberty")
    wheel.unlink()
    stand_in.unpack(tmp_path, files)
    from_folder = mpt_score.load("antiberty")
    monkeypatch.undo()  # of what says that it is not installed, and of the folder
    as_published(files, monkeypatch)
    monkeypatch.delenv("MPT_LML_DATA", raising=False)
    stand_in.install(tmp_path / "site", files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    installed = mpt_score.load("antiberty")
    identity = from_wheel.identity
    assert identity == from_folder.identity == installed.identity
    for part in ("antiberty 0.1.3", "MIT", "Ruffolo, Gray & Sulam 2021"):
        assert part in identity["source"]
    assert weights_of("antiberty", installed.network)["revision"] == "0.1.3"
    assert resolved_revision("antiberty") == "0.1.3"


def test_loading_draws_nothing_and_leaves_the_network_ready(wheel) -> None:
    before = torch.get_rng_state()
    network = networks.load_network("antiberty")
    assert torch.equal(torch.get_rng_state(), before)
    assert not network.training
    state = stand_in.weights()
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.bad_input
def test_without_it_one_sentence_has_the_command(files, monkeypatch, tmp_path) -> None:
    for folder in (None, tmp_path):
        if folder is None:
            monkeypatch.delenv("MPT_LML_DATA", raising=False)
        else:
            monkeypatch.setenv("MPT_LML_DATA", str(folder))
        for load in (networks.load_network, networks.load_tokenizer, mpt_score.load):
            with pytest.raises(CheckpointError, match=f"antiberty is not installed: {COMMAND}"):
                load("antiberty")


@pytest.mark.bad_input
def test_another_version_is_named(files, monkeypatch) -> None:
    monkeypatch.delenv("MPT_LML_DATA", raising=False)
    monkeypatch.setattr(antiberty.metadata, "version", lambda name: "0.2.0")
    wanted = f"0.1.3 is needed, and 0.2.0 is installed, which may not .* weights: {COMMAND}"
    with pytest.raises(CheckpointError, match=wanted):
        mpt_score.load("antiberty")


def test_a_wheel_helps_where_another_version_is_installed(wheel, monkeypatch) -> None:
    monkeypatch.setattr(antiberty.metadata, "version", lambda name: "0.2.0")
    assert mpt_score.load("antiberty").max_length == 40


@pytest.mark.bad_input
def test_a_revision_is_refused(wheel) -> None:
    for load in (networks.load_network, networks.load_tokenizer, mpt_score.load):
        with pytest.raises(ValueError, match="has no revision 'main', only a name on the hub"):
            load("antiberty", revision="main")


def test_its_version_is_no_other_revision_and_is_said(wheel) -> None:
    assert mpt_score.load("antiberty", revision="0.1.3").max_length == 40
    assert mpt_score.load("antiberty").commit == "0.1.3"


def test_the_chapter_computes_its_chain_where_the_package_is(wheel, monkeypatch) -> None:
    """Otherwise it takes the recorded one."""
    long_enough = as_published(stand_in.content(max_length=160), monkeypatch)
    stand_in.write_wheel(wheel.parent, long_enough)
    areas = []
    for chain in (experiment.run("antibody-chain").arrays, mpt_lml.load("antibody-chain").arrays):
        areas.append((chain["score"].mean() * len(chain["residue"])).item())
    computed = run_cells("note-f-antibodies", 'load("antibody-chain")')
    wheel.unlink()
    recorded = run_cells("note-f-antibodies", 'load("antibody-chain")')
    assert "agrees with the recorded curve" in recorded and "agrees" not in computed
    printed = [float(text.split()[-2]) for text in (computed, recorded)]
    assert printed == pytest.approx(areas, abs=0.1)  # "area -76.1 nats"


def test_a_folder_of_that_name_is_a_folder(wheel, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("antiberty").mkdir(exist_ok=True)
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        networks.load_network("./antiberty")
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        networks.load_network(Path("antiberty"))
    assert networks.load_network("antiberty").config.hidden_size == 32


# -- what is read of it -------------------------------------------------------------------------------


@pytest.mark.bad_input
@pytest.mark.parametrize("name", [antiberty.CONFIG_FILE, antiberty.WEIGHTS_FILE])
def test_a_changed_file_is_refused_before_it_is_read(name, wheel, files) -> None:
    stand_in.write_wheel(wheel.parent, files | {name: files[name] + b" "})
    with pytest.raises(
        CheckpointError, match=r"is not the published file: its SHA-256 is .* again"
    ):
        networks.load_network("antiberty")


@pytest.mark.bad_input
def test_damaged_wheels(wheel, files) -> None:
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"cannot be read .*zip.* Get the package again: pip"):
        networks.load_network("antiberty")
    del files[antiberty.WEIGHTS_FILE]
    stand_in.write_wheel(wheel.parent, files)
    with pytest.raises(
        CheckpointError, match=r"pytorch_model.bin cannot be read .*Get the package"
    ):
        networks.load_network("antiberty")


def test_the_heads_for_species_chain_and_grafting_change_nothing(
    wheel, files, monkeypatch, tmp_path
) -> None:
    ids = torch.tensor([[2, 4, 9, 4, 3]])
    with torch.no_grad():
        logits = networks.load_network("antiberty")(input_ids=ids).logits
    state = stand_in.weights()
    for name in state:
        if name.startswith(antiberty.NOT_NEEDED):
            state[name] = state[name] + 1
    stand_in.write_wheel(tmp_path, as_published(stand_in.content(state), monkeypatch))
    with torch.no_grad():
        assert torch.equal(networks.load_network("antiberty")(input_ids=ids).logits, logits)


# -- which texts it takes -----------------------------------------------------------------------------


def test_one_residue_is_one_token_with_spaces_or_without() -> None:
    tokenizer = ResidueTokenizer()
    assert tokenizer(RESIDUES)["input_ids"] == [2, *range(5, 25), 3]
    assert (
        tokenizer("E V Q L")["input_ids"] == tokenizer("EVQL")["input_ids"] == [2, 8, 22, 18, 14, 3]
    )
    assert tokenizer(" EVQL\n")["input_ids"] == [2, 8, 22, 18, 14, 3]
    assert tokenizer.mask_token_id == 4


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("EVqL", "has 'q' as residue 3, in lower case. Write residues in capitals"),
        ("EV-QL", "has '-' as residue 3, a gap of an alignment. Take the gaps out"),
        ("EV.QL", "has '.' as residue 3, a gap of an alignment. Take the gaps out"),
        ("EVQL,DIQM", "has ',' as residue 5, which separates chains. Two chains are two texts"),
        ("EVQL/DIQM", "has '/' as residue 5, which separates chains. Two chains are two texts"),
        ("EVQL DIQM", "is cut by spaces into 2 pieces. Two chains are two texts: score each alone"),
        (">trastuzumab", "as the name line of a FASTA file does. Give the sequence alone"),
        ("EVQL*", "has '\\*' as residue 5, the end of a translation. Take it out"),
        *(
            (
                f"EV{letter}L",
                f"has '{letter}' as residue 3, none of the twenty residues .* or leave",
            )
            for letter in "OU1_é"
        ),
        *(
            (f"EV{letter}L", f"has '{letter}' as residue 3, which stands for .* or leave")
            for letter in "BJXZ"
        ),
        ("EV[MASK]L", "has '\\[' as residue 3, none of the twenty residues"),
    ],
)
def test_what_is_no_chain_is_refused_with_what_to_do(text: str, said: str, wheel) -> None:
    scorer = mpt_score.load("antiberty")
    with pytest.raises(TextError, match=f"^chain 1 .*{said}") as error:
        scorer.encode(["EVQL", text])
    assert error.value.number == 1
    with pytest.raises(TextError, match=said):
        mpt_score.sentences(scorer, ["EVQL", text])


@pytest.mark.bad_input
def test_an_empty_chain_and_one_that_is_too_long(wheel) -> None:
    scorer = mpt_score.load("antiberty")
    with pytest.raises(TextError, match="text 1 is empty"):
        scorer.encode(["EVQL", " "])
    with pytest.raises(TextError, match="text 0 has 42 tokens, the model takes 40"):
        mpt_score.curve(scorer, ["E" * 40], Design((0.5,)))


def test_the_command_takes_the_name_and_names_a_bad_line(wheel, tmp_path, capsys) -> None:
    path = tmp_path / "chains.txt"
    path.write_text("EVQLVE\n\nDIQ-M\nDIQM\n")
    arguments = ["sentences", str(path), "--model", "antiberty"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"{path}, line 3: " in said and "has '-' as residue 4" in said and "--skip" in said
    assert main([*arguments, "--skip"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = mpt_score.sentences("antiberty", ["EVQLVE", "DIQM"])
    assert [row["line"] for row in rows] == [1, 4]
    assert [row["log_score"] for row in rows] == expected.log_score.tolist()


def test_pairs_and_curves_at_the_command_line_are_those_of_python(wheel, tmp_path, capsys) -> None:
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("EVQLVE\tEVQLVK\nDIQM\tDIQL\n")
    assert main(["pairs", str(pairs), "--model", "antiberty"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = mpt_score.pairs("antiberty", ["EVQLVE", "DIQM"], ["EVQLVK", "DIQL"])
    assert [row["log_ratio"] for row in rows] == expected.log_ratio.tolist()
    chains = tmp_path / "chains.txt"
    chains.write_text("EVQLVE\nDIQM\n")
    assert main(["curve", str(chains), "--model", "antiberty", "--rates", "15,50"]) == 0
    found = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    curve = mpt_score.curve("antiberty", ["EVQLVE", "DIQM"], Design((0.15, 0.5), seed=0))
    assert found == pytest.approx(curve.score.tolist())


def test_masks_hide_residues_and_never_what_frames_them(wheel) -> None:
    scorer = mpt_score.load("antiberty")
    tokens = scorer.encode(CHAINS)
    assert tokens.num_features.tolist() == [9, 11, 5]
    assert not (tokens.maskable & (tokens.ids < 5)).any()
    for number in range(len(CHAINS)):
        masks = Design(strata=8, num_masks=20).masks(tokens.row(number), number)
        assert not masks[:, 0].any() and not masks[:, -1].any()
    with pytest.raises(ValueError, match="token 2 is special and may not be masked"):
        scorer.model.log_tokens(tokens.row(0).ids, torch.ones(1, 11).bool())


def test_pseudo_log_likelihood_is_a_loop_over_positions(wheel) -> None:
    scorer = mpt_score.load("antiberty")
    ids = scorer.tokenizer(CHAINS[0])["input_ids"]
    literal = 0.0
    for place in range(1, len(ids) - 1):
        shown = torch.tensor([ids])
        shown[0, place] = 4
        with torch.no_grad():
            logits = scorer.network(input_ids=shown).logits[0, place]
        literal += logits.double().log_softmax(dim=0)[ids[place]].item()
    found = mpt_score.sentences(scorer, CHAINS[:1], pseudo=True).pseudo_log_likelihood.item()
    assert found == pytest.approx(literal, abs=1e-5)  # float32 logits of order 10


def test_a_folder_that_it_was_saved_to_reads_chains_the_same_way(wheel, tmp_path) -> None:
    scorer = mpt_score.load("antiberty")
    scorer.network.save_pretrained(tmp_path / "saved")
    scorer.tokenizer.save_pretrained(tmp_path / "saved")
    again = mpt_score.load(tmp_path / "saved")
    assert torch.equal(again.encode(CHAINS).ids, scorer.encode(CHAINS).ids)
    torch.testing.assert_close(
        mpt_score.sentences(again, CHAINS).log_score, mpt_score.sentences(scorer, CHAINS).log_score
    )


# -- the real one -------------------------------------------------------------------------------------


@real
def test_the_published_vocabulary_is_the_one_in_the_code() -> None:
    vocabulary = networks.load_tokenizer("antiberty").get_vocab()
    assert sorted(vocabulary, key=vocabulary.get) == list(VOCABULARY)


@real
def test_the_published_network_says_what_its_own_code_says() -> None:
    """Its ``AntiBERTyRunner.pseudo_log_likelihood`` of this chain, with residues only in the softmax."""
    scorer = mpt_score.load("antiberty")
    assert scorer.max_length == 512
    light = few()[2].light  # of adalimumab
    scores = mpt_score.sentences(scorer, [light], num_masks=1, pseudo=True)
    per_residue = scores.pseudo_log_likelihood.item() / len(light)
    assert per_residue == pytest.approx(-0.2516651, abs=1e-5)
