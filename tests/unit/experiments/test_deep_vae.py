"""The training of deep VAEs, and the experiment of Figure 3, lower row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from first_steps import after_adam
from models import generator
from other_device import OtherDevice
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from experiments import recursion
from experiments.experiment import RunContext
from experiments.masked_vae import PartialEncoder
from experiments.paper.deep_vae import DeepVAETraining, Figure3Lower
from experiments.records import as_dict
from experiments.trainings import deep_vae, dense_vae
from experiments.trainings.deep_vae import ELBO, OBJECTIVES, DeepVAESettings, train_deep_vae
from mpt_lml import masks
from mpt_lml.masks import FixedRate, UniformSize
from mpt_lml.models import vae
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.vae import VAE

SHORT = DeepVAESettings(
    seeds=(4, 44),
    dataset="digits",
    num_data=60,
    hidden=(4,),
    latent_dim=1,
    num_steps=8,
    learning_rate=3e-3,
    track_every=4,
    track_data=3,
    track_samples=50,
    track_draws=20,
)
ALL = {**OBJECTIVES, "partial": PartialEncoder(num_samples=3)}


def literal_objective(name: str, model: VAE, x: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """The objective of one run and step, nats a datum, as its formula is written.

    Args:
        x: the minibatch, (n, D).
        noise: of z, one row of (n, K) for each time that z is drawn.
        mask: one a datum, (n, D).
    """

    def code(images: Tensor, normal: Tensor) -> tuple[Normal, Tensor]:
        mean, variance = model.encode(images)
        return Normal(mean, variance.sqrt()), mean + variance.sqrt() * normal

    def log_p(z: Tensor) -> Tensor:
        return Normal(model.decode(z), SHORT.noise_variance**0.5).log_prob(x)

    if name == "elbo":
        posterior, z = code(x, noise[0])
        divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum(dim=1)
        return (log_p(z).sum(dim=1) - divergence).mean()
    filled = torch.where(mask, 0.0, x)
    with torch.no_grad():
        for normal in noise[:2]:
            filled = torch.where(mask, model.decode(code(filled, normal)[1]), x)
    values = log_p(code(filled, noise[2])[1]).where(mask, 0.0).sum(dim=1) / mask.sum(dim=1)
    return x.shape[1] * values.mean()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_is_one_of_adam_on_the_objective(name: str) -> None:
    settings = replace(SHORT, num_steps=1)
    x = settings.images()
    # The first run: its generator draws the networks, then the rows, then what the objective needs.
    generators = settings.generators()
    start = OBJECTIVES[name].networks(64, settings, generators)
    num_images = settings.batch_size
    rows = torch.randint(len(x), (num_images,), generator=generators[0])
    mask = torch.ones(num_images, 64, dtype=torch.bool)
    if name == "fixed":
        mask = masks.stratified_masks(num_images, 64, FixedRate(0.33), generator=generators[0])
    noise = torch.randn((3 if name == "fixed" else 1, num_images, 1), generator=generators[0])

    weights = {key: value[:1].double().requires_grad_() for key, value in start.items()}
    model = dense_vae.dense_model(weights, 0, settings.noise_variance)
    value = literal_objective(name, model, x[rows].double(), noise.double(), mask)
    value.backward()
    run = train_deep_vae(settings, OBJECTIVES[name])
    torch.testing.assert_close(run.objective[0, 0].double(), value.detach(), rtol=1e-4, atol=0)
    for key, weight in weights.items():
        after = run.parameters[key][0].double()
        gradient = weight.grad[0]
        is_clear = gradient.abs() > 1e-3  # elsewhere rounding decides how far a step goes
        expected = after_adam(weight.detach()[0], gradient, settings.learning_rate)
        torch.testing.assert_close(after[is_clear], expected[is_clear], rtol=0, atol=1e-5)


@pytest.mark.parametrize("law", [FixedRate(0.33), UniformSize()])
def test_masks_that_are_drawn_ahead_are_stratified_masks(law: masks.SizeLaw) -> None:
    wanted = masks.stratified_masks(5, 7, law, generator=[generator(1), generator(2)])
    block = deep_vae.drawn(deep_vae.for_masks(5, 7), 1, [generator(1), generator(2)])
    mask = deep_vae.masks_from(block, law, torch.device("cpu"))
    assert torch.equal(mask[0], wanted)


@pytest.mark.parametrize("name", ALL)
def test_how_many_steps_are_drawn_ahead_changes_no_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_deep_vae(SHORT, ALL[name])
    monkeypatch.setattr(deep_vae, "_BLOCK_BYTES", 3 * 8 * 100 * 64 * 2)  # three steps at a time
    pieces = train_deep_vae(SHORT, ALL[name])
    assert torch.equal(whole.objective, pieces.objective)
    assert torch.equal(whole.log_p_x, pieces.log_p_x)


def test_an_evaluation_is_of_the_steps_that_it_names() -> None:
    run = train_deep_vae(SHORT, ELBO())
    assert run.steps.tolist() == [0, 4, 8]
    shorter = train_deep_vae(replace(SHORT, num_steps=4), ELBO())
    assert torch.equal(run.log_p_x[:2], shorter.log_p_x)
    uneven = train_deep_vae(replace(SHORT, num_steps=6), ELBO())
    assert uneven.steps.tolist() == [0, 4, 6]  # the last one, whatever track_every
    few = SHORT.images()[:3]
    assert torch.equal(run.log_p_x[2], deep_vae.log_p_x(run.parameters, few, SHORT).float())
    assert run.objective.shape == (8, 2) and (run.objective[-1] > run.objective[0]).all()


def test_a_training_that_leaves_the_numbers_says_where() -> None:
    with pytest.raises(FloatingPointError, match="at step 1 in run 0 of 2. A smaller learning"):
        train_deep_vae(replace(SHORT, learning_rate=1e30), ELBO())


@pytest.mark.parametrize("name", ALL)
def test_on_another_device_the_numbers_are_the_same(name: str) -> None:
    here = train_deep_vae(SHORT, ALL[name])
    with OtherDevice() as other:
        there = train_deep_vae(SHORT, ALL[name], images=SHORT.images().to(other.device))
        assert there.log_p_x.device.type == "cuda"
        values, objective = there.log_p_x.cpu(), there.objective.cpu()
    torch.testing.assert_close(values, here.log_p_x, rtol=0, atol=1e-4)
    torch.testing.assert_close(objective, here.objective, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_between_evaluations_no_step_waits_for_the_device(name: str) -> None:
    waits = []
    for num_steps in (2, 14):
        with OtherDevice() as other:
            settings = replace(SHORT, num_steps=num_steps, track_every=30, latent_dim=2)
            train_deep_vae(settings, ALL[name], images=settings.images().to(other.device))
            waits.append(sum(other.waits.values()))
    assert waits[0] == waits[1]


CONFIG = recursion.Recursion.preset("quick")
# Choices of the recursion, more of the same, of which no finding speaks.
WITHOUT_A_FINDING = (
    "1 round",
    "10 rounds",
    "draws, from decoder",
    "gradient through all",
    "5 draws of z",
    "partial, by score",
)
X = CONFIG.images()[:60]


def normal(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ["elbo", "encoder by the ELBO", "exact"])
def test_only_exact_conditionals_leave_the_encoder_as_it_was_drawn(name: str) -> None:
    objective = {**recursion.VARIANTS, **recursion.REFERENCES}[name]
    trained = CONFIG.train(X, objective, RunContext(), name).parameters
    start = dense_vae.dense_parameters(64, (64,), 2, generators=[generator(4), generator(44)])
    moved = not torch.equal(trained["encoder/0/weight"], start["encoder/0/weight"])
    assert moved == (name != "exact")
    assert not torch.equal(trained["decoder/0/weight"], start["decoder/0/weight"])


@pytest.mark.parametrize(
    ("kind", "file", "label"),
    [(Figure3Lower, "digits-partial", "partial"), (recursion.Recursion, "1", "start from decoder")],
)
def test_an_interrupted_run_goes_on_from_what_it_has_finished(
    kind: type[DeepVAETraining],
    file: str,
    label: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The training that was interrupted begins anew, and its numbers are those of a whole run."""
    for name in WITHOUT_A_FINDING:
        monkeypatch.delitem(recursion.VARIANTS, name)
    short = {
        "num_steps": 3,
        "track_every": 3,
        "track_data": 2,
        "track_samples": 5,
        "track_draws": 5,
    }
    config = kind.preset("quick", num_data=60, hidden=(4,), latent_dim=1, **short)
    trained = []

    def stopped(items: Iterable[Any], description: str) -> Iterator[Any]:
        for number, item in enumerate(items):
            if description == label and number == 2:
                raise KeyboardInterrupt
            yield item

    def noted(items: Iterable[Any], description: str) -> Iterable[Any]:
        trained.append(description)
        return items

    with pytest.raises(KeyboardInterrupt):
        config.run(RunContext(progress=stopped, folder=tmp_path))
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept and not (tmp_path / f"{file}.safetensors").exists()
    resumed = config.run(RunContext(progress=noted, folder=tmp_path))
    assert label in trained and "elbo" not in trained[: trained.index(label)]
    assert kept.items() <= {path: path.read_bytes() for path in tmp_path.iterdir()}.items()
    whole = config.run(RunContext())
    assert as_dict(resumed) == as_dict(whole)


def parameters() -> dict[str, torch.Tensor]:
    drawn = dense_vae.dense_parameters(6, [5], 2, generators=[generator(1)])
    return {name: 2 * value.double() for name, value in drawn.items()}


class Off(ConditionalModel):
    """The conditionals of ``exact``, with errors log q − log p of (N, D) times the mask's size."""

    def __init__(self, exact: ConditionalModel, error: torch.Tensor) -> None:
        self.exact = exact
        self.error = error
        self.num_features = exact.num_features

    def _log_conditional(self, x, mask):
        size = mask.sum(dim=1)[:, None, None]
        error = torch.where(mask[:, None], size * self.error, 0.0)
        return self.exact.log_conditional(x, mask) + error


def test_areas_have_the_error_of_their_conditionals(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense_vae.dense_model(parameters(), 0, 0.3)
    x, exact = normal(3, 6), deep_vae.on_grid(model)
    monkeypatch.setattr(recursion, "SIZES", (1, 3, 6))
    assert recursion.area_error(model, exact, x).abs().max() == 0
    # S off by M: the sum is 1 + ... + 6.
    error = recursion.area_error(model, Off(exact, torch.ones(3, 6).double()), x)
    torch.testing.assert_close(error, torch.full((3,), 21.0).double())


def test_conditionals_are_compared_by_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of six is hidden; three images, whose hidden coordinates are off by 1, 3 and −1 nats."""
    model = dense_vae.dense_model(parameters(), 0, 0.3)
    off = Off(deep_vae.on_grid(model), torch.tensor([1.0, 3.0, -1.0]).double()[:, None])
    monkeypatch.setattr(recursion, "approximations", lambda *_: [off, off.exact])
    found = recursion.compare(model, normal(3, 6))
    root_mean_square = math.sqrt((1 + 9 + 1) / 3)
    bias = 6 * (1 + 3 - 1) / 3
    error = 6 * math.sqrt((0 + 4 + 4) / 2) / math.sqrt(3)
    expected = torch.tensor([[root_mean_square, bias, error], [0.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(found, expected)


def test_pseudo_gibbs_comes_first_and_accepts_whatever_is_proposed() -> None:
    model = dense_vae.dense_model(parameters(), 0, 0.3)
    pseudo_gibbs, metropolis, weighted = recursion.approximations(model, 20)
    assert (pseudo_gibbs.corrected, metropolis.corrected) == (False, True)
    for chains in (pseudo_gibbs, metropolis):  # half of the steps are thrown away
        assert chains.num_chains * (chains.num_steps - chains.num_steps // 2) == 20
    assert weighted.num_samples == 20


def test_areas_are_those_of_pseudo_gibbs_on_data_or_on_draws(monkeypatch) -> None:
    """As if the area of an image were off by the mean of its pixels."""

    def area_error(model: vae.VAE, method: object, x: torch.Tensor) -> torch.Tensor:
        assert method == "pseudo-Gibbs"
        return x.mean(dim=1)

    monkeypatch.setattr(recursion, "approximations", lambda *_: ["pseudo-Gibbs", "Metropolis"])
    monkeypatch.setattr(recursion, "area_error", area_error)
    monkeypatch.setattr(recursion, "compare", lambda *_: torch.zeros(3, 3))
    networks = CONFIG.start(X)
    monkeypatch.setattr(
        recursion.Recursion, "train", lambda *_: SimpleNamespace(parameters=networks)
    )
    arrays = CONFIG.examine("elbo", networks, X.double()) | CONFIG._judged(X, RunContext())
    few = X[: CONFIG.area_data].double()
    for name in ("area/elbo", "judged/area"):
        torch.testing.assert_close(arrays[name], few.mean().expand(2))
    draws = [
        deep_vae.on_grid(model).sample(CONFIG.area_data, generator=generator(run)).mean()
        for run, model in enumerate(CONFIG.models(networks))
    ]
    torch.testing.assert_close(arrays["area_model/elbo"], torch.stack(draws))


def test_findings_of_the_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two seeds, which differ by 2 in all that is written down."""
    lml = {
        "baseline": 10.0,
        "20 draws of z": 13.0,
        "encoder by the ELBO": 17.0,
        "uniform": 22.0,
        "exact": 50.0,
        "partial, weighted, 20": 39.0,
        "partial_uniform": 95.0,
        "elbo": 80.0,
    }

    def trained(self, name: str, *_: Any) -> dict[str, torch.Tensor]:
        first = torch.tensor([lml.get(name, math.nan)])
        table = torch.full((2, 3, 3), math.nan).double()
        table[:, 0, 1] = torch.tensor([5.0, 7.0])  # the bias of pseudo-Gibbs
        return {
            f"lml/{name}": torch.cat([first, first + 2.0]).double(),
            f"encoder/{name}": torch.tensor([1.0, 6.0] if name == "baseline" else [math.nan] * 2),
            f"posterior/{name}": torch.tensor([4.0, 8.0]),
            f"conditionals/{name}/fixed": table if name == "elbo" else table.fill_(math.nan),
            f"area/{name}": torch.tensor([8.0, 10.0]) if name == "elbo" else table,
        }

    judged = {"judged/lml": torch.full((2,), math.nan), "judged/area": torch.tensor([3.0, 5.0])}
    monkeypatch.setattr(recursion.Recursion, "_variant", trained)
    monkeypatch.setattr(recursion.Recursion, "_judged", lambda *_: judged)
    found = recursion.Recursion.preset("quick").run(RunContext()).findings
    assert {name: finding.measured for name, finding in found.items()} == {
        "claim-approximate-estimation": 4.0,
        "recursion-encoder-width": (1 / 4 + 6 / 8) / 2,
        "recursion-many-draws": 3.0,
        "recursion-encoder-by-elbo": 7.0,
        "recursion-uniform-size": 12.0,
        "recursion-against-exact": -40.0,
        "partial-against-exact": -11.0,
        "partial-uniform-against-elbo": 15.0,
        "pseudo-gibbs-bias": 6.0,
        "pseudo-gibbs-area": 9.0,
    }


def test_widths_of_encoder_and_posterior() -> None:
    """Orthogonal loadings of length 2: posterior variance σ²/(4 + σ²), codes of x in closed form."""
    loadings = 2 * torch.linalg.qr(normal(6, 2)).Q
    model = vae.VAE(
        lambda x: (x[..., :2], x[..., :2] * 0 - torch.tensor([1.0, 3.0]).double()),
        lambda z: z @ loadings.T,
        num_features=6,
        latent_dim=2,
        noise_variance=0.3,
    )
    x = normal(4, 6)
    found = recursion.codes(model, x)
    assert found["posterior"] == pytest.approx(math.sqrt(0.3 / 4.3), abs=1e-6)
    assert found["encoder"] == pytest.approx((math.exp(-0.5) + math.exp(-1.5)) / 2, abs=1e-6)
