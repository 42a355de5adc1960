"""Area against probes over laws of the mask size: what is found, by which rules; weights of laws."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from models import generator
from scipy import stats

import mpt_experiments
from mpt_experiments import autoencoders, law_correlation, probed_networks
from mpt_experiments.experiment import Finding, RunContext
from mpt_experiments.findings import probes_of_laws
from mpt_experiments.findings.probes_of_laws import ACCURACY, AREA, ProbesOfLaws
from mpt_experiments.language_trainings import RECIPES
from mpt_experiments.paper.deep_vae import Figure3Lower, PartialEncoder
from mpt_experiments.probed_networks import ProbedVAEs
from mpt_lml import fit, masks, objectives
from mpt_lml.models import vae
from mpt_score import networks
from mpt_score.networks.vit_mae import ViTMAE

pytest.importorskip("transformers")
QUICK = ProbesOfLaws.preset("quick")
INVERSE_ROOT = RECIPES["inverse-root"]


@pytest.fixture
def outcome(quick) -> tuple:
    return quick("probes-of-laws")


@pytest.mark.xdist_group("probes-of-laws")
def test_findings_follow_from_the_arrays(outcome: tuple) -> None:
    arrays = outcome[0].arrays
    found = arrays["found/vae"]
    assert found.shape == (4, 2, 6) and arrays["before/vae"].shape == (2, 6)
    assert len(found[..., AREA].unique()) == 8  # each law and seed a network of its own
    assert (found[..., AREA].mean(dim=0) > arrays["before/vae"][:, AREA]).all()
    assert ((found[..., ACCURACY] > 0) & (found[..., ACCURACY] <= 1)).all()
    names = list(RECIPES)
    assert [names[k] for k in arrays["laws/vae"]] == list(QUICK.laws)
    area, accuracy = found.mean(dim=1)[:, [AREA, ACCURACY]].T.numpy()
    measured = outcome[0].findings["probes-of-laws/vae"]
    assert measured.measured == pytest.approx(stats.pearsonr(area, accuracy).statistic)
    low, high = np.tanh(np.arctanh(measured.measured) + 2.575829 * np.array([-1, 1]))  # L - 3 = 1
    assert measured.standard_error == pytest.approx((high - low) / (2 * 2.575829), rel=1e-5)
    ranks = stats.spearmanr(area, accuracy).statistic
    assert arrays["ranks/vae"].item() == pytest.approx(ranks)
    fields = law_correlation.OfLaws(*arrays["of-laws/vae"].tolist())
    assert fields.correlation == measured.measured
    score = found.mean(dim=1)[:, 3].numpy()
    at_half = stats.pearsonr(score, accuracy).statistic
    assert arrays["at-rates/vae"][1, 0].item() == pytest.approx(at_half)


@pytest.mark.xdist_group("probes-of-laws")
def test_what_is_finished_is_not_done_again(outcome: tuple, monkeypatch, tmp_path: Path) -> None:
    found, folder = outcome[0], shutil.copytree(outcome[1], tmp_path, dirs_exist_ok=True)
    kept = {path.stem for path in folder.glob("*.safetensors")}
    assert kept == {"vae-before", *(f"vae-{law}" for law in QUICK.laws)}

    def again(*arguments: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(ProbedVAEs, "after", again)
    same = QUICK.run(RunContext(folder=folder))
    assert all(torch.equal(found.arrays[key], same.arrays[key]) for key in found.arrays)
    (folder / "vae-fixed-15.safetensors").unlink()
    with pytest.raises(AssertionError, match="trained again"):
        QUICK.run(RunContext(folder=folder))


@pytest.mark.xdist_group("probe-pilot")
def test_the_pilot_compares_the_same_networks(quick) -> None:
    found, _ = quick("probe-pilot")
    for name in ("vae", "digits", "cola"):
        random, trained = (found.arrays[f"{key}/{name}"] for key in ("random", "trained"))
        for accuracy in (random, trained):
            assert ((accuracy > 0) & (accuracy <= 1)).all()
        gain = found.findings[f"probe-pilot/{name}"]
        assert gain.measured == pytest.approx((trained.mean() - random.mean()).item())
        assert found.arrays[f"clear/{name}"] == probes_of_laws.is_clear(gain)
    assert found.arrays["payable/digits"] == 1.0  # four steps
    assert found.arrays["payable/cola"] == 0.0
    probed = small("mae")
    (before,) = probed.before()["measured"]
    seen = probed.data.labeled
    network = networks.small_mae(8, 1, 2, seed=3, width=16, num_layers=2, decoder_layers=1)
    x = probed.data.unlabeled
    with torch.no_grad():
        features = autoencoders.features(network, (seen.x - x.mean()) / x.std())
    assert before[ACCURACY].item() == pytest.approx(autoencoders.probe_accuracy(features, seen))


# -- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain", "error", "clear"),
    [(0.03, 0.01, True), (0.03, 0.02, False), (0.019, 0.001, False), (-0.1, 0.001, False)],
)
def test_what_a_clear_gain_is(gain: float, error: float, clear: bool) -> None:
    assert probes_of_laws.is_clear(Finding(gain, error)) == clear


def test_what_can_be_paid_for() -> None:
    assert probes_of_laws.is_payable(20.0)
    assert not probes_of_laws.is_payable(20.1)


def test_the_error_of_one_network_beside_several() -> None:
    """Its variance is that of one draw, and of the mean of five."""
    random = torch.tensor([0.5, 0.52, 0.54, 0.5, 0.52])
    found = probes_of_laws.gain_of_one(torch.tensor([0.6]), random)
    assert found.measured == pytest.approx(0.6 - 0.516, abs=1e-6)
    wanted = random.double().std().item() * math.sqrt(1 + 1 / 5)
    assert found.standard_error == pytest.approx(wanted)


def laws_with(area: torch.Tensor, accuracy: torch.Tensor) -> torch.Tensor:
    """Fifteen laws, two seeds that differ by next to nothing."""
    found = torch.zeros(15, 2, 6, dtype=torch.float64)
    found[..., AREA] = area[:, None] + torch.tensor([0.0, 1e-6])
    found[..., 2:5] = area[:, None, None]
    found[..., ACCURACY] = accuracy[:, None] + torch.tensor([1e-6, 0.0])
    return found


@pytest.mark.parametrize(("slope", "wanted"), [(1.0, 1), (-1.0, -1), (0.0, 0)])
def test_the_rule_on_numbers_made_by_hand(slope: float, wanted: int) -> None:
    area = torch.linspace(-1, 1, 15, dtype=torch.float64)
    noise = (-1.0) ** torch.arange(15)  # has a correlation of 0 with the area
    answers = probes_of_laws.over_laws(laws_with(area, slope * area + 0.3 * noise))
    assert answers["direction"] == wanted
    low, high = answers["of-laws"][1:3].tolist()
    assert (low > 0) - (high < 0) == wanted
    at_rates = answers["at-rates"][:, 0]
    assert (at_rates * wanted > 0.8).all() if wanted else (at_rates.abs() < 0.1).all()


def test_one_law_on_which_everything_hangs_is_seen() -> None:
    area = torch.zeros(15, dtype=torch.float64)
    area[:7] = 0.1
    area[14] = -50.0
    accuracy = torch.zeros(15, dtype=torch.float64)
    accuracy[:14:2] = 0.01
    accuracy[14] = -0.5
    answers = probes_of_laws.over_laws(laws_with(area, accuracy))
    assert answers["direction"] == 1
    assert answers["without-one"].abs().argmin() == 14
    assert answers["without-one"][14].abs() < 0.2 < answers["without-one"][:14].min()


def test_the_power_is_what_it_says() -> None:
    """Fisher's z of fifteen pairs of normal numbers, drawn many times."""
    correlation = probes_of_laws.detectable(15)
    drawn = torch.randn(2, 40_000, 15, generator=generator(0), dtype=torch.float64)
    y = correlation * drawn[0] + math.sqrt(1 - correlation**2) * drawn[1]
    x = drawn[0] - drawn[0].mean(dim=1, keepdim=True)
    y = y - y.mean(dim=1, keepdim=True)
    r = (x * y).sum(dim=1) / (x.square().sum(dim=1) * y.square().sum(dim=1)).sqrt()
    share = (r.atanh() * math.sqrt(12) > 2.575829).double().mean().item()
    # The mean of z is larger by r/(2 · 14) than the interval takes it to be.
    assert share == pytest.approx(0.8, abs=0.04)


# -- laws -----------------------------------------------------------------------------------------


def small(kind: probed_networks.Kind) -> probed_networks.ProbedNetworks:
    data = probed_networks.images("digits", 300, 250, 200, 5)
    probed: probed_networks.ProbedNetworks = probed_networks.KINDS[kind](
        data=data, seeds=(3,), num_steps=2, width=16, num_samples=2
    )
    return probed


def test_laws_that_are_one_count_once() -> None:
    """Of 16 patches, 45 to 55 % are the eight that 50 % are; of 64 pixels they are several."""
    without = [name for name in RECIPES if name != "band-45-55"]
    assert small("mae").laws(list(RECIPES)) == without
    assert small("vae").laws(list(RECIPES)) == list(RECIPES)


def test_the_probe_is_shown_few_labels_and_all_that_is_tested() -> None:
    data = probed_networks.images("digits", 300, 50, 200, 5)
    assert len(data.unlabeled) == 300 and len(data.held_out) == 5
    assert (~data.labeled.is_test).sum() == 50 and data.labeled.is_test.sum() == 200
    assert torch.equal(data.labeled.x[:50], data.unlabeled[:50])
    assert torch.equal(data.labeled.x[50:55], data.held_out)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_weight_multiplies_the_score_of_its_datum(weighted: bool) -> None:
    """And not the bound that the encoder follows."""
    p = vae.dense_parameters(4, [5], 2, generators=[generator(1)], partial=True)
    p = {name: value.double().requires_grad_() for name, value in p.items()}
    x = torch.rand(3, 4, generator=generator(2), dtype=torch.float64)
    mask = torch.ones(4, 4).tril().bool()[None, :3]  # of sizes 1, 2 and 3
    noise = torch.randn(2, 1, 3, 2, generator=generator(3), dtype=torch.float64)
    weights = torch.tensor([[0.5, 2.0, 3.0]], dtype=torch.float64)

    def value(rows: slice, row_weights: torch.Tensor | None = None) -> torch.Tensor:
        return objectives.partial(
            p,
            x[rows],
            mask[:, rows],
            noise[:, :, rows],
            0.1,
            weighted=weighted,
            row_weights=row_weights,
        )

    whole = value(slice(0, 3), weights).sum()
    of_each = torch.cat([value(slice(n, n + 1)) for n in range(3)])
    torch.testing.assert_close(whole, (weights[0] * of_each).mean())
    for part in ("encoder", "decoder"):
        of_part = [tensor for name, tensor in p.items() if name.startswith(part)]
        gradient = torch.autograd.grad(whole, of_part, retain_graph=True)
        is_bound = weighted and part == "encoder"
        wanted = of_each.mean() if is_bound else (weights[0] * of_each).mean()
        by_hand = torch.autograd.grad(wanted, of_part, retain_graph=True)
        for ours, theirs in zip(gradient, by_hand, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_an_unbiased_law_weights_the_scores_of_a_vae() -> None:
    """PartialEncoder hands on 1/(D P(M)), and nothing where the law is not unbiased."""
    settings = Figure3Lower.preset("quick", seeds=(4,))
    x = torch.rand(1, 3, 64, generator=generator(2))
    p = settings.start(x[0], [generator(1)], partial=True)
    size = torch.tensor([1, 20, 64])
    mask = (torch.arange(64) < size[:, None])[None]
    noise = torch.randn(1, 3, settings.latent_dim, generator=generator(5))[:, None]
    probability = torch.arange(1, 65).double() ** -0.5
    probability /= probability.sum()
    row_weights = (1 / (64 * probability[size - 1])).float()[None]
    for is_unbiased, weights in ((True, row_weights), (False, None)):
        objective = PartialEncoder(law=masks.PowerSize(-0.5), is_unbiased=is_unbiased)
        found = objective.score(p, x, mask, [generator(5)], settings)
        wanted = objectives.partial(p, x, mask, noise, 0.1, row_weights=weights)
        torch.testing.assert_close(found, wanted)


def test_vaes_are_trained_by_the_weights_of_their_law(monkeypatch) -> None:
    asked = []

    def train(self: object, x: object, objective: PartialEncoder, *rest: object) -> None:
        asked.append(objective)
        raise InterruptedError

    monkeypatch.setattr(Figure3Lower, "train", train)
    for name in ("inverse-root", "fixed-15"):
        with pytest.raises(InterruptedError):
            small("vae").after(RECIPES[name])
    assert [each.is_unbiased for each in asked] == [True, False]
    assert [each.law for each in asked] == [INVERSE_ROOT.law, masks.FixedRate(0.15)]


def test_an_unbiased_law_weights_the_losses_of_an_mae(monkeypatch) -> None:
    """Where every loss is 1, what is minimized at size M is 1/(D P(M)), whose mean is 1."""
    sizes: list[int] = []
    values: list[float] = []

    def loss(self: ViTMAE, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        sizes.append(int(mask[0].sum()))
        return torch.ones(())

    def descend(network: object, loss, schedules: object, **options: object) -> tuple:
        values.extend(loss(step).item() for step in range(1600))
        return torch.zeros(1), []

    monkeypatch.setattr(ViTMAE, "loss", loss)
    monkeypatch.setattr(fit, "descend", descend)
    small("mae").after(INVERSE_ROOT)
    probability = torch.arange(1, 17).double() ** -0.5
    probability /= probability.sum()
    wanted = 1 / (16 * probability[torch.tensor(sizes) - 1])
    np.testing.assert_allclose(values, wanted.numpy(), rtol=1e-6)
    assert np.mean(values) == pytest.approx(1.0, abs=0.02)
    assert len(set(sizes)) == 16


def test_a_network_is_trained_in_each_setting() -> None:
    """The masked autoencoder, which the quick run leaves to the pilot."""
    wanted = {"images": (("vae", "mae", "digits", 6, 2),), "num_labels": 250}
    found = mpt_experiments.run("probes-of-laws", "quick", **wanted).arrays
    assert (found["found/vae"][..., AREA] > found["before/vae"][:, AREA]).all()
    assert (found["found/vae"][..., 1] > 0).all()


def test_the_run_takes_what_the_recorded_pilot_admits() -> None:
    """Clear gains that fifteen laws can pay for, less what is named; the same networks and steps."""
    pilot = mpt_experiments.load("probe-pilot")
    asked = {wanted[0]: wanted for wanted in probes_of_laws.ProbePilot().images}
    admitted = {
        name: asked[name][:4]
        for name in asked
        if pilot.arrays[f"clear/{name}"] and pilot.arrays[f"payable/{name}"]
    }
    for name in probes_of_laws.LEFT_OUT:
        del admitted[name]
    assert {wanted[0]: wanted[:4] for wanted in ProbesOfLaws().images} == admitted
