"""Shares of the way to direct training, and what else is read off recorded runs."""

import math
from types import SimpleNamespace

import pytest
import torch

from experiments import derived, ledger
from experiments.experiment import RunContext, seeded
from experiments.paper.deep_vae import Figure3Lower
from experiments.paper.training import FixedSizes
from experiments.recursion import Recursion
from experiments.trainings.deep_vae import ELBO
from mpt_lml import BernoulliPCA, data
from mpt_lml.recorded import Finding

f64 = {"dtype": torch.float64}


def track(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, **f64)


def test_the_linear_vae_is_measured_against_training_on_log_p() -> None:
    """Of two seeds: from −100 and −200, in three epochs, direct training gains 100 and 160."""
    published, direct = derived.PUBLISHED, derived.MARGINAL
    ends = {published: 0.9, derived.ELBO: 0.8, "block/1/1": 0.7, "block/1/10": 0.6}
    start = torch.tensor([-100.0, -200.0], **f64)
    way = torch.tensor([100.0, 160.0], **f64)
    arrays = {}
    for images, factor in (("mnist", 1.0), ("digits", 0.5)):
        for row, part in ends.items():
            steps = [start, start + 0.3 * way, start + factor * part * way]
            arrays[f"track/{images}/{row}"] = torch.stack(steps)
        # Its own record goes on for longer.
        longer = [start, start + 0.9 * way, start + way, start + 2 * way]
        arrays[f"track/{images}/{direct}"] = torch.stack(longer)
    # Of the recorded losses the second half, and each against log p(x) of the same epoch.
    lml = arrays[f"track/mnist/{published}"]
    arrays[f"loss/mnist/{published}"] = lml + track([50.0, 50.0], [-1.0, -2.0], [-3.0, -6.0])
    arrays |= {
        f"{name}/mnist/{published}": track([at])[0] for name, at in (("coarse", 2.0), ("lml", 0.5))
    }
    found = derived.linear_vae(arrays)
    assert {name: finding.measured for name, finding in found.items()} == pytest.approx(
        {
            "direct-way": 130.0,
            "fig-3-upper/maximized": 0.9,
            "direct-share/elbo": 0.8,
            "direct-share/fine-grid": 0.7,
            "direct-share/ten-masks": 0.6,
            "direct-share/digits": 0.45,
            "fig-3-upper/estimation": (-2 - 4) / 2,
            "grid-4-by-4/published": 1.5,
        }
    )
    assert found["direct-way"].standard_error == pytest.approx(30.0)


def test_a_model_without_z_is_the_best_without_loadings() -> None:
    x = (torch.rand(50, 6, generator=seeded(1), **f64) > torch.linspace(0.2, 0.8, 6)).double()
    x[:, 0] = 1.0  # a pixel that never changes costs nothing
    offset = torch.zeros(6, **f64)
    offset[0], offset[1:] = 40.0, x[:, 1:].mean(dim=0).logit()
    flat = BernoulliPCA(torch.zeros(6, 2, **f64), offset)
    best = flat.log_marginal(x).mean().item()
    assert derived.independent_pixels(x) == pytest.approx(best, abs=1e-9)


def test_the_share_of_a_model_without_z() -> None:
    half = torch.tensor([[0.0], [1.0]], **f64)  # one coin: −ln 2
    published, direct = f"track/mnist/{derived.PUBLISHED}", f"track/mnist/{derived.MARGINAL}"
    arrays = {published: track([-2.0], [-1.0]), direct: track([-2 * math.log(2)], [0.0], [1.0])}
    found = derived.without_z(arrays, {"mnist": half, "fashion_mnist": half.repeat(1, 3)})
    assert found["direct-share/without-z"].measured == pytest.approx(0.5)
    assert found["without-z/mnist"].measured == pytest.approx(-math.log(2))
    assert found["without-z/fashion-mnist"].measured == pytest.approx(-3 * math.log(2))


def test_the_deep_vae_is_measured_against_the_elbo() -> None:
    arrays = {"track/fixed": track([-30.0], [-12.0]), "track/elbo": track([-30.0], [-10.0])}
    assert derived.deep_vae(arrays)["claim-deep-vae-maximizes"].measured == pytest.approx(0.9)


def test_the_recursion_is_measured_against_the_elbo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recursion, "images", lambda _: torch.zeros(2, 64))
    monkeypatch.setattr(Recursion, "log_likelihood", lambda *_: torch.tensor([-80.0], **f64))
    ends = {"baseline": -60.0, "uniform": -40.0, "exact": -20.0, "elbo": 20.0}
    found = derived.recursion({f"lml/{name}": track([end])[0] for name, end in ends.items()})
    assert {name: finding.measured for name, finding in found.items()} == {
        "claim-approximate-maximization": 0.2,
        "direct-share/recursion-uniform": 0.4,
        "direct-share/exact-conditionals": 0.6,
    }


def test_shares_of_training_at_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two truths with two starts each, which lie 4 and 16, and 10 and 30 below the maximum."""
    log_p = {1: [-4.0, -16.0], 2: [-10.0, -30.0]}

    def problem(self, *_: object) -> SimpleNamespace:
        def log_marginal(at: str) -> torch.Tensor:
            return torch.tensor(0.0 if at == "best" else log_p[self.data_seed], **f64)

        return SimpleNamespace(best="best", log_marginal=log_marginal)

    settings = FixedSizes(truths=(1, 2))
    monkeypatch.setattr(FixedSizes, "preset", lambda: settings)
    monkeypatch.setattr(FixedSizes, "starts", lambda _: ("start", None))
    monkeypatch.setattr(FixedSizes, "problem", problem)
    shape = (2, len(settings.sizes), len(settings.scales), 2)
    arrays = {
        name: torch.full(shape, math.nan, **f64) for name in ("short/paper", "below/paper")
    } | {"lost/paper": torch.full(shape[:2], math.nan, **f64)}
    unit_scale = settings.scales.index(1.0)
    for size, short in ((2, 1.0), (8, 4.0), (9, 5.0)):
        at_size = settings.sizes.index(size)
        # On average, a share of the mean way: that of the second start is another one.
        of_starts = torch.tensor([[0.0, 2.0], [1.0, 3.0]], **f64)
        arrays["short/paper"][:, at_size, unit_scale] = short * of_starts
        arrays["lost/paper"][:, at_size] = torch.tensor([short, 3 * short], **f64)
        arrays["below/paper"][:, at_size, unit_scale] = short * track([-1.0, 2.0], [-4.0, 5.0])
    found = derived.fixed_sizes(arrays)
    assert {name: finding.measured for name, finding in found.items()} == {
        "claim-fixed-rate-maximizes": pytest.approx(1 - (1 / 10 + 2 / 20) / 2),
        "fixed-rate-share/80": pytest.approx(1 - (4 / 10 + 8 / 20) / 2),
        "fixed-rate-share/90": pytest.approx(1 - (5 / 10 + 10 / 20) / 2),
        "fixed-rate-maximum": 2.0,
        "same-value/90": 5 * (3 + 9) / 2,
    }


def test_the_start_that_is_drawn_again_is_the_one_of_the_training() -> None:
    of = Figure3Lower.preset("quick", num_steps=1, latent_dim=2)
    assert isinstance(of, Figure3Lower)
    x = of.images()
    first = of.train(x, ELBO(), RunContext(), "any").log_p_x[0]
    again = of.log_likelihood(of.start(x), x[: of.track_data].double())
    torch.testing.assert_close(again.to(first), first, rtol=1e-6, atol=0.0)
    assert first.unique().numel() == len(of.seeds)


def test_a_curve_is_compared_at_its_own_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PPCA with the shape of BERT-base's curve, at 2, 4, ..., 98 %, is at no distance from it."""
    bert = data.published_curves()["pretrained/cola"].double()
    last = torch.cat([3.0 * bert[1::2], torch.tensor([math.nan], **f64)])
    monkeypatch.setattr(derived, "farthest_from_bert", lambda arrays, sets: Finding(7.0))
    found = derived.shapes({"last": last.expand(2, -1)}, {})
    assert found["fig-5-right-similar"].measured == pytest.approx(0.0, abs=1e-9)
    assert found["fig-6-unlike"] == Finding(7.0)


@pytest.mark.xdist_group("derived")
def test_the_ledger_has_what_the_records_say(quick) -> None:
    entries = {entry["id"]: entry for entry in ledger.entries(ledger.location())}
    findings = quick("derived")[0].findings
    recorded = {name: entries[name]["measured"] for name in findings}
    measured = {name: finding.measured for name, finding in findings.items()}
    assert measured == pytest.approx(recorded, rel=1e-4, abs=1e-6)
