"""Tables of antibodies, which of them are drawn, and what is read off their scores."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models import generator
from sklearn.metrics import roc_auc_score
from torch import Tensor

import mpt_score
from experiments import antibodies, experiment
from experiments.antibodies import (
    Antibody,
    AntibodyChain,
    AntibodyCurves,
    bootstrap_auc,
    few,
    frequency_score,
    group_of,
    is_heavy,
    position_score,
)
from experiments.experiment import RunContext
from experiments.paper.bert import design_at
from mpt_lml.data import CorruptDataError, DataNotFoundError
from mpt_score import SentenceCurves
from mpt_score.antibodies import chain_scores
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.networks.residues import RESIDUES, ResidueTokenizer, require_chains

HEAVY = "EVQLVESGFDYWGQGTLVTVSS"
OTHER_HEAVY = "QVQLQQSGFDVWGPGVLVTVSS"
LIGHT = "DIQMTQSPYPWTFGAGTKLELK"
ROWS = (
    ("a", "Human", f"{LIGHT},{HEAVY}"),
    ("b", "Mouse", f"{OTHER_HEAVY},{LIGHT}"),
    ("a conjugate", "Human", f"{HEAVY},{LIGHT}"),
    ("heavy only", "Human", HEAVY),
    ("two heavy", "Human", f"{HEAVY},{OTHER_HEAVY}"),
    ("three", "Human", f"{HEAVY},{OTHER_HEAVY},{LIGHT}"),
    ("x", "Chimeric", f"S{OTHER_HEAVY},{LIGHT}"),
    ("the same", "Humanized", f"S{OTHER_HEAVY},{LIGHT}"),
)


@pytest.fixture
def table(tmp_path, monkeypatch) -> Path:
    """Eight rows in the form of the published table."""
    path = tmp_path / antibodies.THERAPEUTIC
    path.parent.mkdir()
    header = "\t".join(("Antibody", "Species", "Seqs (comma-separated)"))
    lines = ["\t".join(row) for row in ROWS]
    path.write_text("\n".join([header, *lines]) + "\n")
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(antibodies, "SHA_256", checksum)
    monkeypatch.setenv("MPT_LML_DATA", str(tmp_path))
    return path


# -- tables -------------------------------------------------------------------------------------------


def test_each_pair_of_chains_of_one_origin_is_taken_once(table) -> None:
    found = antibodies.therapeutic()
    assert [one.name for one in found] == ["a", "b"]
    assert (found[0].heavy, found[0].light) == (HEAVY, LIGHT)


@pytest.mark.bad_input
def test_tables_that_are_not_there_or_others(table, tmp_path, monkeypatch) -> None:
    table.write_text(table.read_text() + "\n")
    with pytest.raises(CorruptDataError, match="is not the published file"):
        antibodies.therapeutic()
    monkeypatch.delenv("MPT_LML_DATA")
    with pytest.raises(DataNotFoundError, match=r"(?s)therapeutic_antib.*BioPhi.*few\(\)"):
        experiment.run("antibody-curves", "quick", table="published")


def test_heavy_chains_are_known_by_their_end() -> None:
    assert is_heavy(HEAVY) and is_heavy(OTHER_HEAVY) and not is_heavy(LIGHT)
    assert all(is_heavy(one.heavy) and not is_heavy(one.light) for one in few())


def test_the_few_are_of_all_groups_and_can_be_scored() -> None:
    groups = [group_of(one) for one in few()]
    assert groups == ["mouse", "mouse", "human", "human", "other", "other"]
    require_chains([chain for one in few() for chain in (one.heavy, one.light)])


@pytest.mark.data
def test_the_published_table() -> None:
    found = antibodies.therapeutic()
    number = {"human": 177, "mouse": 61, "other": 235}
    for group in antibodies.GROUPS:
        assert sum(group_of(one) == group for one in found) == number[group]
    # Listed as humanized and, under another name, as chimeric.
    assert "trastuzumab" not in {one.name for one in found}


# -- what is drawn ------------------------------------------------------------------------------------


def made_up(number: int, species: str, heavy: str = "", light: str = "") -> Antibody:
    letters = "ACDEFGHIKL"
    own = "".join(letters[int(digit)] for digit in f"{number:03d}")
    return Antibody(f"{number}", species, heavy or f"V{own}", light or f"S{own}")


def test_no_chain_is_drawn_twice_and_groups_have_their_numbers() -> None:
    kinds = ("Human", "Mouse", "Chimeric", "Humanized", "Caninized")
    available = [made_up(n, kinds[n % 5], light="SAME" if n < 30 else "") for n in range(60)]
    experiment = AntibodyCurves.preset("paper", num_human=4, num_mouse=7, num_other=5)
    chosen = experiment.sample(available)
    sample = [available[place] for place in chosen]
    groups = [group_of(one) for one in sample]
    assert groups == ["human"] * 4 + ["mouse"] * 7 + ["other"] * 5
    chains = [chain for one in sample for chain in (one.heavy, one.light)]
    assert len(set(chains)) == 2 * len(sample)
    assert {one.species for one in sample if group_of(one) == "mouse"} == {"Mouse", "Chimeric"}
    assert experiment.sample(available) == chosen
    assert chosen != sorted(chosen)
    with pytest.raises(ValueError, match="25 mouse antibodies were asked for, there are 1"):
        AntibodyCurves().sample([made_up(n, "Mouse" if n == 7 else "Human") for n in range(40)])


# -- what is read off ---------------------------------------------------------------------------------


def test_frequencies_are_those_of_the_other_chains() -> None:
    # In the others of "AAC": A 1 of 3, D 2 of 3; with one more of each of twenty, (2, 1, 3)/23.
    expected = [(2 * math.log(2 / 23) + math.log(1 / 23)) / 3, None]
    found = frequency_score(["AAC", "ADD"])
    assert found[0].item() == pytest.approx(expected[0])
    assert found[1].item() == pytest.approx((math.log(3 / 23) + 2 * math.log(1 / 23)) / 3)


def test_places_are_those_of_the_other_chains() -> None:
    found = position_score(["AC", "AC", "D"])
    # For "D": A at its place twice; anywhere in the others A twice, C twice: D has 1 of 24.
    assert found[2].item() == pytest.approx(math.log((1 / 24) / 3))
    # For "AC": A and D at the first place, C at the second; anywhere A, C and D once: 2 of 23.
    first, second = (1 + 2 / 23) / 3, (1 + 2 / 23) / 2
    assert found[0].item() == pytest.approx((math.log(first) + math.log(second)) / 2)


def test_what_is_lost_is_what_lies_below_the_last_column() -> None:
    curve = torch.tensor([-1.0, -2.0, -5.0, -7.0, -3.0])
    assert antibodies._shortfall(curve).item() == pytest.approx((2 + 4) / 4)


def test_a_straight_line_and_a_cliff() -> None:
    percents = torch.arange(1, 100, 2)
    line = -percents.double()
    low = int((percents == 85).nonzero())
    assert antibodies._tail(line, low).item() == pytest.approx(14 / 98)
    both = torch.tensor([0.0, 3.0, 1.0, 0.0, 0.0])  # its mean height, 0.8, is passed twice
    rates = torch.tensor([10.0, 30, 50, 70, 90]).double()
    assert antibodies._last_crossing(both.double(), rates).item() == pytest.approx(54)
    cliff = torch.where(percents > 85, -2.0, -1.0)
    assert antibodies._tail(cliff, low).item() == 1.0
    assert antibodies._share(torch.ones(50), percents > 25).item() == pytest.approx(37 / 50)


def test_auc_is_the_libraries_and_its_error_the_binomials_where_ranks_are_free() -> None:
    draws = generator(1)
    is_human = torch.arange(150) < 90
    scores = torch.randn(150, 3, generator=draws, dtype=torch.float64)
    scores[:90, 1] += 1.0
    scores[:, 2] = scores[:, 1].round()  # with ties
    found = bootstrap_auc(scores, is_human, 2000, generator(2))
    for column in range(3):
        expected = roc_auc_score(is_human.numpy(), scores[:, column].numpy())
        assert found.value[column].item() == pytest.approx(expected)
    error = found.values_and_errors()[0, 1].item()
    # Hanley and McNeil (1982), at an area of one half: (n + m + 1) / (12 n m).
    assert error == pytest.approx(math.sqrt(151 / (12 * 90 * 60)), rel=0.15)
    assert found.draws.mean(dim=0).sub(found.value).abs().max() < 4 * error / 2000**0.5
    difference = found.differences()
    assert difference[1, 0, 0].item() == pytest.approx((found.value[1] - found.value[0]).item())
    assert (difference.diagonal().T == 0).all()
    # Rounded scores go with their own: the difference is better known than either.
    assert difference[1, 2, 1] < 0.5 * found.values_and_errors()[1, 1]


def test_what_is_read_off_the_curves_of_one_kind() -> None:
    """Two chains, of 10 and 30 residues, with their curves written down at 5, 15, ..., 95 %."""
    experiment = AntibodyCurves.preset("quick")
    short = [-1.0, -1.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -3.0, -4.0]
    long = [-1.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -5.0, -8.0]
    arrays = {
        "num_residues": torch.tensor([10, 30]),
        "curves": torch.tensor([short, long]).double(),
        "hidden": torch.tensor([-4.0, -8.0]).double(),
        "positions": torch.tensor([-3.0, -7.0]).double(),
        "pseudo": torch.tensor([-2.0, -6.0]).double(),
        "log_p": torch.tensor([[-20.0, -22.0], [-80.0, -86.0]]).double(),
    }
    raw = arrays["curves"][:, None]
    of_network = (arrays["hidden"], arrays["num_residues"])
    curves = SentenceCurves(design_at(experiment.rates, 4), raw, 0 * raw, *of_network)
    found = experiment.summary("heavy", torch.tensor([0, 1]), curves, arrays)
    mean = [-1.0, -1.5, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -4.0, -6.0]
    assert found["curve/heavy"].tolist() == pytest.approx(mean)
    assert found["error/heavy"].tolist() == pytest.approx([0, 0.5, 0, 0, 0, 0, 0, 0, 1, 2])
    height = sum(mean) / 10
    for name, expected in (
        ("tail", (-4 + 6) / (-1 + 6)),
        ("tail_from_one", (-4 + 6) / (-0.2 + 6)),  # the pseudo-log-likelihood is 0.2 a residue
        ("mean_rate", 75 + 10 * (-2 - height) / 2),
        ("last_rate", 75 + 10 * (-2 - height) / 2),
        ("beyond", (sum(mean) + 1 + 1.5 + 2) / sum(mean)),
        ("lost", ((40 + 240) / 2 - (30 + 210) / 2) / 10),  # at 95 %, nats a chain
        ("bias/15", (10 * (-1 + 2.1) + 30 * (-2 + 2.8)) / 2),
        ("bias/25", (10 * (-2 + 2.1) + 30 * (-2 + 2.8)) / 2),
        ("spread", (2 + 6) / math.sqrt(2) / 2),
        ("mixture", (math.log(math.cosh(1)) + math.log(math.cosh(3))) / 2),
    ):
        assert found[f"{name}/heavy"][0].item() == pytest.approx(expected), name
    area = torch.tensor([[-2.45, 0.35], [-(21 + 84) / 2, (84 - 21) / 2]]).double()
    torch.testing.assert_close(found["area/heavy"], area)


def test_scores_of_an_antibody_are_of_both_chains_by_the_residue() -> None:
    """A human, a mouse's and another one; each heavy chain has 60 residues, each light one 40."""
    log_p = torch.tensor([[-1.0, -3.0, -8.0], [-2.0, -4.0, -9.0], [0.0, 0.0, 0.0]]).double()
    by_chain = torch.tensor([-10.0, -30.0, 0.0]).double()
    arrays = {
        "group": torch.tensor([0, 1, 2]),
        "num_residues": torch.tensor([60, 60, 60, 40, 40, 40]),
        "log_p": torch.cat([log_p, 2 * log_p]),
        "log-score": torch.cat([by_chain, by_chain]),
        "pseudo": torch.cat([by_chain, 3 * by_chain]),
        "fifteen": torch.cat([by_chain, -3 * by_chain]),
    }
    found = AntibodyCurves.preset("quick").of_orders(arrays)
    human, mouse = [-3, -6, -12, -20, -40, 20], [-6, -9, -15, -60, -120, 60]
    expected = torch.tensor([human, mouse]).double() / 100
    torch.testing.assert_close(found["scores"], expected)
    assert found["auc"][:, 0].tolist() == [1, 1, 1, 1, 1, 0]
    assert found["auc_difference"][2, 5].tolist() == [1, 0]


def test_findings_of_the_curves() -> None:
    """Of two chains of each kind; what is computed elsewhere is 300 ± 100."""
    arrays: defaultdict[str, Tensor] = defaultdict(lambda: torch.tensor([300.0, 100.0]))
    arrays |= {
        "hidden": torch.tensor([-3.0, -2.0, -5.0, -4.0]).double(),
        "frequencies": torch.tensor([-4.0, -4.0, -8.0, -8.0]).double(),
        "positions": torch.tensor([-1.0, -1.0, -2.0, -2.0]).double(),
        "pseudo": torch.tensor([-10.0, -20.0, -30.0, -40.0]).double(),
        "log_p": torch.tensor([[-11.0, -13.0], [-22.0, -24.0]] * 2).double(),
        "auc_difference": torch.arange(72.0).view(6, 6, 2).double(),
    }
    found = AntibodyCurves.preset("quick").findings(arrays)
    uniform = -math.log(20)
    for name, heavy, light in (
        ("antibody-hidden", -2.5 - uniform, -4.5 - uniform),
        ("antibody-frequencies", -2.5 + 4, -4.5 + 8),
        ("antibody-positions", -2.5 + 1, -4.5 + 2),
        ("antibody-pseudo", (2 + 3) / 2, (-18 - 17) / 2),
        ("antibody-crossover", 3.0, 3.0),  # percent, as a share
        ("antibody-last-crossover", 3.0, 3.0),
        ("antibody-tail", 300.0, 300.0),
    ):
        assert found[f"{name}/heavy"].measured == pytest.approx(heavy), name
        assert found[f"{name}/light"].measured == pytest.approx(light), name
    # All orders less masks in strata, the third of six scores less the fourth.
    gain = found["antibody-orders"]
    assert (gain.measured, gain.standard_error) == (2 * (2 * 6 + 3), 2 * (2 * 6 + 3) + 1)


@pytest.mark.xdist_group("antibody-curves")
def test_arrays_of_the_curves_hang_together(quick) -> None:
    outcome, _ = quick("antibody-curves")
    arrays = outcome.arrays
    assert arrays["group"].tolist() == [0, 0, 1, 1, 2, 2]
    assert arrays["curves"].shape == (12, 10) and arrays["log_p"].shape == (12, 2)
    for kind, rows in (("heavy", slice(0, 6)), ("light", slice(6, 12))):
        assert torch.equal(arrays[f"curve/{kind}"], arrays["curves"][rows].mean(dim=0))
    # All are the area, or near it for a network that hardly looks at what is shown.
    per_residue = arrays["log_p"].mean(dim=1) / arrays["num_residues"]
    for name in antibodies.NETWORK_SCORES:
        assert (arrays[name] / arrays["num_residues"] - per_residue).abs().max() < 0.1
    assert arrays["scores"].shape == (4, 6)


@pytest.mark.xdist_group("antibody-curves")
def test_curves_go_on_where_they_were_stopped(quick, tmp_path, monkeypatch) -> None:
    """Stopped three times, once before it has done more than the time before."""
    unbroken, _ = quick("antibody-curves")
    ask = MaskedLM.ask

    def stopping_at(last: int) -> Callable[..., object]:
        numbers = itertools.count(1)

        def stops(*args: object, **options: object) -> object:
            if next(numbers) == last:
                raise KeyboardInterrupt
            return ask(*args, **options)

        return stops

    folder = tmp_path / "state"
    for last in (4, 8, 2):
        monkeypatch.setattr(MaskedLM, "ask", stopping_at(last))
        with pytest.raises(KeyboardInterrupt):
            experiment.run("antibody-curves", "quick", device="cpu", checkpoints=folder)
    monkeypatch.setattr(MaskedLM, "ask", ask)
    assert list(folder.rglob("*part-*.safetensors"))
    resumed = experiment.run("antibody-curves", "quick", device="cpu", checkpoints=folder)
    assert resumed.arrays.keys() == unbroken.arrays.keys()
    for name, values in unbroken.arrays.items():
        assert torch.equal(resumed.arrays[name], values), name


@pytest.mark.bad_input
def test_a_single_order_has_no_spread() -> None:
    with pytest.raises(ValueError, match=r"num_orders must be >= 2, got 1\."):
        experiment.run("antibody-curves", "quick", num_orders=1)


@pytest.mark.xdist_group("antibody-chain")
def test_a_chain_with_everything_hidden_asks_for_every_residue(quick) -> None:
    arrays = quick("antibody-chain")[0].arrays
    # What is left belongs to the five tokens that are no residues; the network is a random one.
    mass = arrays["everything"].exp().sum(dim=1)
    assert (mass > 0.5).all() and (mass < 1).all()
    chain = few()[2].heavy
    assert "".join(RESIDUES[number] for number in arrays["residue"]) == chain
    model = AntibodyChain.preset("quick").scorer(RunContext(), "float32")
    scores = mpt_score.sentences(model, [chain], pseudo=True, num_masks=1)
    assert arrays["alone"].sum().item() == pytest.approx(
        scores.pseudo_log_likelihood.item(), abs=1e-4
    )
    tokens = model.encode([chain])
    log_q = model.model.log_tokens(tokens.ids, tokens.maskable)[0, 1:-1]
    of_chain = arrays["everything"].gather(1, arrays["residue"][:, None])[:, 0]
    torch.testing.assert_close(of_chain, log_q, atol=1e-5, rtol=0)


def test_a_chain_is_scored_by_what_is_hidden_and_where() -> None:
    """Of a network whose answer depends on the place and on how much is hidden: all is known."""

    def log_values(ids: Tensor, mask: Tensor) -> Tensor:
        place = torch.arange(1.0, ids.shape[1] + 1)[:, None]
        count = mask.sum(dim=1)[:, None, None]
        return (place * count * torch.linspace(0.0, 0.5, 25).double()).log_softmax(-1)

    scorer = mpt_score.load(log_values, ResidueTokenizer())
    design = mpt_score.Design(rates=(0.5, 1.0), num_masks=20)
    scores = chain_scores(scorer, "YC", design)

    def log_residues(count: int) -> Tensor:
        mask = torch.arange(4)[None] < count  # of the four tokens, the ends counted
        return log_values(torch.zeros(1, 4), mask)[0, 1:-1, -len(RESIDUES) :]

    residue = torch.tensor([RESIDUES.index("Y"), RESIDUES.index("C")])
    assert torch.equal(scores["residue"], residue)
    torch.testing.assert_close(scores["everything"], log_residues(2))
    first, second = log_residues(1).gather(1, residue[:, None])[:, 0]
    torch.testing.assert_close(scores["alone"], torch.stack([first, second]))
    # One of both is hidden by each mask, the first by a share of them.
    share = ((scores["score"][0] - second) / (first - second)).item()
    assert 20 * share == pytest.approx(round(20 * share), abs=1e-3) and 0 < share < 1
    error = (first - second).abs().item() * math.sqrt(share * (1 - share) / 19)
    both = log_residues(2).gather(1, residue[:, None]).mean().item()
    assert scores["score"][1].item() == pytest.approx(both)
    assert scores["error"].tolist() == pytest.approx([error, 0.0], abs=1e-6)


@pytest.mark.bad_input
def test_a_network_of_words_reads_no_chains() -> None:
    scorer = mpt_score.load(mpt_score.networks.small_bert_folder())
    with pytest.raises(ValueError, match="scorer must read a chain residue by residue"):
        chain_scores(scorer, HEAVY, mpt_score.Design(strata=2))
