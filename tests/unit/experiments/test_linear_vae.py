"""The training of linear VAEs, and the experiment of Figure 3, upper row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from first_steps import after_adam
from models import generator
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import logsigmoid

from experiments import ledger, records
from experiments.experiment import RunContext
from experiments.paper.linear_vae import Figure3Upper, scaled
from experiments.trainings import linear_vae
from mpt_lml import BernoulliPCA, data, estimators, grids, objectives
from mpt_lml.masks import FixedRate, stratified_masks
from mpt_lml.results import History

Item = TypeVar("Item")
SHORT_RUN = Figure3Upper(
    seeds=(4, 44), num_data=40, num_epochs=6, long_epochs=(9, 9), track_nodes=30, track_every=2
)
SHORT = SHORT_RUN.settings("digits")


def test_a_pixel_is_one_from_one_half_on() -> None:
    pixels = data.images("digits", "train").pixels[: SHORT.num_data]
    ones = linear_vae.binary_images(SHORT)
    assert (pixels == 0.5).any() and (ones[pixels == 0.5] == 1).all()
    assert (ones[pixels == 7 / 16] == 0).all() and (ones[pixels == 9 / 16] == 1).all()


def literal_objective(name: str, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """The objective of the first seed's first step, in nats a datum, as its formula is written."""
    num_features = x.shape[1]
    draws = linear_vae.generators_of_steps(SHORT)[0]

    def log_p(z: Tensor) -> Tensor:
        logits = z @ parameters["loadings"].T + parameters["offset"]
        return x * logsigmoid(logits) + (1 - x) * logsigmoid(-logits)

    if name == "elbo":
        noise = torch.randn((len(x), 2), generator=draws)
        mean = x @ parameters["encoder"].T + parameters["encoder_offset"]
        posterior = Normal(mean, (0.5 * parameters["encoder_log_variance"]).exp())
        divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum(dim=1)
        z = mean + posterior.stddev * noise
        return (log_p(z).sum(dim=1) - divergence).mean()
    grid = linear_vae.training_grid(SHORT, name)
    mask = stratified_masks(1, num_features, FixedRate(0.15), generator=draws)[0]
    at_nodes = torch.stack([log_p(node.to(x)) for node in grid.nodes])  # (G, N, D)
    log_weights = grid.log_weights.to(x)[:, None]
    if name == "published":  # D/M log p(x_A)
        log_block = (log_weights + at_nodes[..., mask].sum(dim=2)).logsumexp(dim=0)
        return num_features / mask.sum() * log_block.mean()
    given = (log_weights + at_nodes[..., ~mask].sum(dim=2)).log_softmax(dim=0)  # of z given x_R
    values = (given[..., None] + at_nodes[..., mask]).logsumexp(dim=0)
    return num_features * values.mean()


@pytest.mark.parametrize("name", ["elbo", "published", "fixed"])
def test_a_step_is_one_of_adam_on_the_objective(name: str) -> None:
    x = linear_vae.binary_images(SHORT)
    one_step = dataclasses.replace(SHORT_RUN, num_epochs=1)
    history = one_step.train(f"digits/{name}/1/1", x, RunContext())
    first = linear_vae.start(SHORT, x.shape[1], name)
    weights = {key: value[0].double().requires_grad_() for key, value in first.items()}
    value = literal_objective(name, weights, x.double())
    value.backward()
    torch.testing.assert_close(
        history.values["objective"][0, 0].double(), value.detach(), rtol=1e-4, atol=0
    )
    for key, weight in weights.items():
        after = history.parameters[key][0].double()
        is_clear = weight.grad.abs() > 1e-3  # elsewhere rounding decides how far a step goes
        expected = after_adam(weight.detach(), weight.grad, SHORT.learning_rate)
        assert is_clear.any()
        torch.testing.assert_close(after[is_clear], expected[is_clear], rtol=0, atol=1e-5)


def test_the_quadrature_along_the_way_is_that_of_the_end() -> None:
    """Two rules for the same integral: one grid for all data, and one around each datum."""
    x = linear_vae.binary_images(SHORT)
    history = dataclasses.replace(SHORT_RUN, num_epochs=60).train(
        "digits/elbo/1/0", x, RunContext()
    )
    ends = linear_vae.mean_log_marginal(history.parameters, x)
    torch.testing.assert_close(history.values["lml"][-1].double(), ends, atol=0.01, rtol=0)


def test_data_that_are_not_there_are_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("MPT_LML_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr("mpt_lml.data.image_sets.local_path", lambda name: None)

    def nothing(name: str, split: str) -> None:
        raise data.DataNotFoundError(f"no {name}")

    monkeypatch.setattr("mpt_lml.data.image_sets._from_hub", nothing)
    with pytest.raises(data.DataNotFoundError, match="no mnist"):
        linear_vae.binary_images(linear_vae.LinearVAESettings())


QUICK = Figure3Upper.preset("quick")
SHORT_ROW = dataclasses.replace(QUICK, num_epochs=2, long_epochs=(3, 3))
DIGITS = (data.images("digits", "train").pixels[: QUICK.num_data] >= 0.5).float()


def trained(config: Figure3Upper, row: str) -> History:
    return config.train(f"digits/{row}", DIGITS, RunContext())


def test_the_elbo_is_the_fit_minus_the_divergence() -> None:
    """The fit through K numbers a datum against the sum over pixels."""
    normal = {"generator": generator(1), "dtype": torch.float64}
    x = (torch.rand(12, 9, **normal) < 0.4).double()
    loadings, offset = torch.randn(9, 2, **normal), torch.randn(9, **normal)
    encoder, shift, spread = (torch.randn(*s, **normal) for s in ((2, 9), (2,), (2,)))
    noise = torch.randn(12, 2, **normal)
    mean, variance = x @ encoder.T + shift, spread.exp()
    posterior = torch.distributions.Normal(mean, variance.sqrt())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    divergence = torch.distributions.kl_divergence(posterior, prior).sum(dim=1)
    z = mean + variance.sqrt() * noise
    slow = BernoulliPCA(loadings, offset).log_factors(x, z).sum(dim=1) - divergence
    parts = (loadings, offset, encoder, shift, spread)
    ours = objectives.linear_elbo(*(each[None] for each in parts), x, noise[None])
    assert ours.item() == pytest.approx(slow.mean().item(), abs=1e-10)


def test_all_objectives_start_alike_and_rise() -> None:
    config = dataclasses.replace(QUICK, num_epochs=30, track_every=30, seeds=(4,))
    names = ("elbo", "fixed", "uniform", "block", "marginal", "published", "elbo-small")
    tracked = {name: trained(config, f"{name}/1/1").values["lml"] for name in names}
    for values in tracked.values():
        torch.testing.assert_close(values[0], tracked["elbo"][0], rtol=0, atol=0)
        assert (values[-1] > values[0] + 1.0).all()


def test_published_is_the_block_on_sixteen_nodes_which_also_read_the_lml() -> None:
    history = trained(QUICK, "published/1/1")
    for w, b, read in zip(
        history.parameters["loadings"],
        history.parameters["offset"],
        history.values["read"][-1],
        strict=True,
    ):
        axis = torch.tensor([-5.0, -5 / 3, 5 / 3, 5.0], dtype=torch.float64)
        nodes = torch.cartesian_prod(axis, axis)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(nodes).sum(dim=1).softmax(dim=0)
        logits = nodes @ w.double().T + b.double()
        x = DIGITS.double()[:, None]
        by_hand = (x * logits - torch.nn.functional.softplus(logits)).sum(dim=2) + prior.log()
        assert read.item() == pytest.approx(by_hand.logsumexp(dim=1).mean().item(), abs=1e-3)
    with pytest.warns(RuntimeWarning, match="mass"):
        same = trained(dataclasses.replace(QUICK, grid_nodes=4), "block/1/1")
    torch.testing.assert_close(same.parameters, history.parameters, rtol=0, atol=0)


def test_masks_per_epoch_are_parts_of_the_data() -> None:
    """With 20 masks one step is less noisy, by √20 = 4.5 if masks were all; 40 tell a spread to 11 %."""

    def spread(masks: int) -> float:
        config = dataclasses.replace(QUICK, seeds=tuple(range(40)))
        settings = config.settings("digits")
        begin = linear_vae.start(dataclasses.replace(settings, seeds=(4,)), 64, "fixed")
        same = {name: value.repeat_interleave(40, 0) for name, value in begin.items()}
        objective = linear_vae.objective(settings, DIGITS, "fixed", masks)
        return objective(same, [generator(s) for s in range(40)]).std().item()

    assert spread(20) < 0.5 * spread(1)


def test_scales_of_the_start() -> None:
    settings = QUICK.settings("digits")
    whole = linear_vae.start(settings, 64, "elbo")
    all_small = scaled(whole, 0.01)
    encoder = linear_vae.start(settings, 64, "elbo-small")
    for name in ("loadings", "offset", "encoder"):
        torch.testing.assert_close(all_small[name], 0.01 * whole[name])
        factor = 0.01 if name == "encoder" else 1.0
        torch.testing.assert_close(encoder[name], factor * whole[name])
    for drawn in (whole, all_small, encoder):  # the code of x = b is 0, as in the script
        at_offset = (drawn["encoder"] @ drawn["offset"][..., None])[..., 0]
        torch.testing.assert_close(at_offset, -drawn["encoder_offset"])


def test_a_run_says_all_that_the_ledger_asks_of_its_data(tmp_path: Path) -> None:
    outcome = SHORT_ROW.run(RunContext(folder=tmp_path))
    asked = {
        entry["id"]
        for entry in ledger.entries(ledger.location())
        if entry["command"] == "python -m experiments run figure-3-upper"
    }
    elsewhere = {name for name in asked if name.endswith(("digits", "fashion-mnist"))}
    assert set(outcome.findings) == asked - elsewhere
    arrays = outcome.arrays
    for row in SHORT_ROW.trained:
        key = row.removesuffix("/long")
        assert len(arrays[f"track/{key}"]) == 2  # both ends
        if "elbo" in row:
            assert (arrays[f"bound/{row}"] < arrays[f"lml/{row}"]).all()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = SHORT_ROW.run(RunContext(folder=tmp_path))
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for name, value in arrays.items():
        torch.testing.assert_close(again.arrays[name], value, rtol=0, atol=0, equal_nan=True)
    other = dataclasses.replace(SHORT_ROW, learning_rate=0.02)  # not passed over in silence
    with pytest.raises(records.CheckpointMismatchError, match="learning_rate"):
        other.run(RunContext(folder=tmp_path))


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    config = dataclasses.replace(QUICK, trained=("digits/fixed/1/1", "digits/elbo/1/0"))

    def stopping(items: Iterable[Item], description: str) -> Iterator[Item]:
        for done, item in enumerate(items):
            if description == "digits/elbo/1/0" and done == 4:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        config.run(RunContext(progress=stopping, folder=tmp_path))
    whole, resumed = (config.run(RunContext(folder=each)).arrays for each in (None, tmp_path))
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=0, equal_nan=True)


def test_a_long_cell_is_judged_where_the_short_ones_stop() -> None:
    for name in ("published", "elbo"):
        long, short = (trained(QUICK, f"{name}/1/1{tail}") for tail in ("/long", ""))
        assert (len(long.values["lml"]), len(short.values["lml"])) == (10, 7)
        torch.testing.assert_close(long.snapshots[6], short.parameters, rtol=0, atol=0)
        assert not torch.equal(long.parameters["loadings"], short.parameters["loadings"])


def test_the_gaussian_elbo_loses_nothing_and_half_trained_it_does() -> None:
    settings = {"seeds": (4,), "num_epochs": 120, "learning_rate": 0.04}
    done = dataclasses.replace(QUICK, **settings).gaussian_deficit()
    assert (done > -1e-9).all() and (done < 0.02).all()
    assert (QUICK.gaussian_deficit() > 1.0).all()


def test_every_cell_once_and_the_published_one_first() -> None:
    keys = [row.removesuffix("/long") for row in Figure3Upper().trained]
    assert len(set(keys)) == len(keys) and keys[0] == "mnist/published/1/1"


def test_grids_against_importance_sampling() -> None:
    """A coarse grid is caught, a fine one and the adaptive one are not."""
    normal = {"generator": generator(3), "dtype": torch.float64}
    model = BernoulliPCA(torch.randn(60, 2, **normal), torch.randn(60, **normal))
    x = model.sample(40, generator=generator(4))
    pair = model.loadings[None], model.offset[None], x, None
    coarse, fine = (
        objectives.mixture(*pair, grid.to(x)).item()
        for grid in (
            linear_vae.training_grid(QUICK.settings("digits"), "published"),
            grids.trapezoid(2, 160),
        )
    )
    weighted = estimators.iwae(model, x, 500, generator=generator())
    assert abs(coarse - weighted) > 5 * weighted.standard_error
    for found in (fine, model.adaptive_log_marginal(x).mean().item()):
        assert abs(found - weighted) < 4 * weighted.standard_error


def test_steps_do_not_draw_the_numbers_of_the_start() -> None:
    settings = linear_vae.LinearVAESettings(seeds=(4, 44))
    loadings = linear_vae.start(settings, 3, "fixed")["loadings"]
    for run, of_run in enumerate(linear_vae.generators_of_steps(settings)):
        assert not torch.equal(torch.randn(3, 2, generator=of_run), loadings[run])
