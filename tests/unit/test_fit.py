from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from models import generator, random_ppca

from mpt_lml import fit, masks, objectives
from mpt_lml.results import History

NOISE = torch.tensor(0.3, dtype=torch.float64)
MOMENT = objectives.second_moment(random_ppca(5, 2).sample(60, generator=generator(2)))
START = {"loadings": torch.randn(3, 5, 2, generator=generator(1), dtype=torch.float64)}
SETTINGS = {"law": "uniform", "seeds": [1, 2, 3]}


def objective(parameters: fit.Parameters, generators: Sequence[torch.Generator]) -> torch.Tensor:
    mask = masks.stratified_masks(5, 5, masks.UniformSize(), generator=generators)
    return objectives.sampled(parameters["loadings"], NOISE, MOMENT, mask)


def run(epochs: int = 30, **options: object) -> History:
    options = {"objective": objective, "learning_rate": 0.05, **options}
    return fit.maximize(
        START,
        num_epochs=epochs,
        generators=[generator(s) for s in (4, 5, 6)],
        track={"lml": lambda p: objectives.log_marginal(p["loadings"], NOISE, MOMENT)},
        snapshots=(0, 10, epochs),
        **options,
    )


def same(first: History, second: History) -> bool:
    return (
        all(
            torch.equal(first.values[k].nan_to_num(), second.values[k].nan_to_num())
            for k in first.values
        )
        and torch.equal(first.parameters["loadings"], second.parameters["loadings"])
        and first.snapshots.keys() == second.snapshots.keys()
        and all(
            torch.equal(kept["loadings"], second.snapshots[e]["loadings"])
            for e, kept in first.snapshots.items()
        )
    )


def stop_before(epoch: int, error: type[BaseException] = KeyboardInterrupt):
    def progress(items: Iterable[int], description: str) -> Iterable[int]:
        for item in items:
            if item == epoch:
                raise error
            yield item

    return progress


def test_training_raises_the_likelihood_and_records_every_epoch() -> None:
    history = run(200)
    assert history.values["lml"].shape == (201, 3)
    assert (history.values["lml"][-1] > history.values["lml"][0] + 1).all()
    assert history.values["objective"][-1].isnan().all()
    assert not history.values["objective"][:-1].isnan().any()
    assert torch.equal(history.snapshots[0]["loadings"], START["loadings"])
    assert torch.equal(history.snapshots[200]["loadings"], history.parameters["loadings"])


def test_adam_is_adam() -> None:
    """One run by hand with torch's optimizer and the same masks."""
    g = generator(4)
    loadings = START["loadings"][0].clone().requires_grad_()
    optimizer = torch.optim.Adam([loadings], lr=0.05)
    for _ in range(30):
        mask = masks.stratified_masks(5, 5, masks.UniformSize(), generator=g)
        optimizer.zero_grad()
        (-objectives.sampled(loadings, NOISE, MOMENT, mask)).backward()
        optimizer.step()
    torch.testing.assert_close(
        run().parameters["loadings"][0], loadings.detach(), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("epoch", [1, 7, 10, 29])
def test_a_stopped_run_goes_on_to_the_last_bit(tmp_path: Path, epoch: int) -> None:
    whole = run()
    checkpoint = fit.Checkpoint(tmp_path / "run.safetensors", SETTINGS, every=5)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint, progress=stop_before(epoch))
    assert same(run(checkpoint=checkpoint), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_run_stopped_in_the_middle_of_an_epoch_goes_on_too(tmp_path: Path) -> None:
    whole = run()
    checkpoint = fit.Checkpoint(tmp_path / "run.safetensors", SETTINGS, every=5)
    calls = 0

    def interrupted(parameters, generators):
        nonlocal calls
        calls += 1
        value = objective(parameters, generators)
        if calls == 13:
            raise KeyboardInterrupt
        return value

    with pytest.raises(KeyboardInterrupt):
        run(objective=interrupted, checkpoint=checkpoint)
    assert same(run(checkpoint=checkpoint), whole)


def test_a_run_stopped_twice_and_killed_once(tmp_path: Path) -> None:
    whole = run()
    checkpoint = fit.Checkpoint(tmp_path / "run.safetensors", SETTINGS, every=4)
    for epoch in (6, 17):
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=checkpoint, progress=stop_before(epoch))
    older = checkpoint.path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint, progress=stop_before(25))
    checkpoint.path.write_bytes(older)  # killed: the last periodic file is all there is
    assert same(run(checkpoint=checkpoint), whole)


def test_a_diverged_run_names_the_epoch_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    calls = 0

    def breaking(parameters, generators):
        nonlocal calls
        calls += 1
        value = objective(parameters, generators)
        return value * torch.tensor([1.0, math.nan, 1.0]) if calls == 13 else value

    checkpoint = fit.Checkpoint(tmp_path / "run.safetensors", SETTINGS)
    with pytest.raises(FloatingPointError, match="nan at epoch 12 in run 1 of 3"):
        run(objective=breaking, checkpoint=checkpoint)
    assert same(run(checkpoint=checkpoint), run())


def test_a_gradient_that_is_not_finite_stops_before_the_step(tmp_path: Path) -> None:
    def kinked(parameters, generators):
        loadings = parameters["loadings"]
        return (loadings - loadings.detach()).square().sum(dim=(1, 2)).sqrt()

    checkpoint = fit.Checkpoint(tmp_path / "run", SETTINGS)
    with pytest.raises(FloatingPointError, match="gradient of loadings is nan at epoch 0"):
        run(objective=kinked, checkpoint=checkpoint)
    assert same(run(checkpoint=checkpoint), run())


def test_one_number_a_run_is_a_parameter_too() -> None:
    target = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    history = fit.maximize(
        {"level": torch.zeros(3, dtype=torch.float64)},
        lambda parameters, generators: -(parameters["level"] - target).square(),
        num_epochs=400,
        learning_rate=0.05,
    )
    torch.testing.assert_close(history.parameters["level"], target, atol=1e-3, rtol=0)


@pytest.mark.bad_input
class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": 0}, ">= 1, got 0"),
            ({"epochs": -3}, ">= 1, got -3"),
            ({"learning_rate": 0.0}, "> 0, got 0.0"),
            ({"learning_rate": -0.1}, "> 0, got -0.1"),
            ({"learning_rate": math.nan}, "> 0, got nan"),
            ({"epochs": 5}, r"0\.\.5, got 10"),
        ],
    )
    def test_settings(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            run(**options)

    def test_a_checkpoint_of_another_configuration(self, tmp_path: Path) -> None:
        path = tmp_path / "run.safetensors"
        run(checkpoint=fit.Checkpoint(path, SETTINGS))
        other = {**SETTINGS, "law": "fixed"}
        with pytest.raises(fit.CheckpointMismatchError, match="law is 'uniform', wanted 'fixed'"):
            run(checkpoint=fit.Checkpoint(path, other))

    def test_a_checkpoint_beyond_the_epochs_asked_for(self, tmp_path: Path) -> None:
        checkpoint = fit.Checkpoint(tmp_path / "run.safetensors", SETTINGS)
        run(checkpoint=checkpoint)
        with pytest.raises(fit.CheckpointMismatchError, match="already at epoch 30"):
            run(20, checkpoint=checkpoint)

    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(PermissionError, match="cannot write"):
            run(checkpoint=fit.Checkpoint(tmp_path / "file" / "run.safetensors", SETTINGS))


def test_tracking_every_few_epochs_changes_nothing_but_the_rows_kept() -> None:
    every, few = run(epochs=31), run(epochs=31, track_every=10)
    assert torch.equal(every.parameters["loadings"], few.parameters["loadings"])
    kept = ~few.values["lml"].isnan().any(dim=1)
    assert kept.nonzero().flatten().tolist() == [0, 10, 20, 30, 31]
    assert torch.equal(few.values["lml"][kept], every.values["lml"][kept])
    assert torch.equal(few.values["objective"][:-1], every.values["objective"][:-1])


def test_a_resumed_run_tracks_the_same_epochs(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(
            track_every=7,
            checkpoint=fit.Checkpoint(path, SETTINGS),
            progress=stop_before(15, KeyboardInterrupt),
        )
    resumed = run(track_every=7, checkpoint=fit.Checkpoint(path, SETTINGS))
    assert same(resumed, run(track_every=7))


class TestNetworks:
    """A small network in two optimizers with cycles, watched on the way."""

    def descend(self, **options: object) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        g = generator(3)

        def loss(step: int) -> torch.Tensor:
            x = torch.randn(8, 3, generator=g)
            return (network(x) - x.sum(dim=1, keepdim=True)).square().mean()

        first = torch.optim.AdamW(network[0].parameters(), lr=0.05)
        second = torch.optim.Muon([network[2].weight], lr=0.02)
        cycle = torch.optim.lr_scheduler.OneCycleLR
        losses, watched = fit.descend(
            network,
            loss,
            [cycle(first, 0.05, 40), cycle(second, 0.02, 40, cycle_momentum=False)],
            num_steps=40,
            generators=[g],
            max_norm=1.0,
            watch=lambda: network(torch.ones(1, 3)),
            watched=(0, 10, 40),
            **options,
        )
        return (losses, *watched, *network.parameters())

    def test_it_is_the_loop_by_hand(self) -> None:
        torch.manual_seed(0)
        network, g = torch.nn.Linear(3, 1), generator(3)
        twin = torch.nn.Linear(3, 1)
        twin.load_state_dict(network.state_dict())
        x = torch.randn(8, 3, generator=g)

        def parts(which: torch.nn.Module):
            optimizer = torch.optim.AdamW(which.parameters(), lr=0.1)
            return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)

        optimizer, schedule = parts(network)
        losses, _ = fit.descend(
            network, lambda _: network(x).square().mean(), [schedule], num_steps=10
        )
        optimizer, schedule = parts(twin)
        for step in range(10):
            value = twin(x).square().mean()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            assert losses[step] == value
        assert torch.equal(network.weight, twin.weight)

    @pytest.mark.parametrize("step", [1, 10, 39])
    def test_a_stopped_run_goes_on_to_the_last_bit(self, tmp_path: Path, step: int) -> None:
        whole = self.descend()
        checkpoint = fit.Checkpoint(tmp_path / "run", SETTINGS, every=7)
        with pytest.raises(KeyboardInterrupt):
            self.descend(checkpoint=checkpoint, progress=stop_before(step))
        again = self.descend(checkpoint=checkpoint)
        assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
        assert len(whole) == 1 + 3 + 4

    def test_a_loss_that_is_not_finite_stops_it(self) -> None:
        network = torch.nn.Linear(1, 1)
        flat = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(network.parameters(), lr=0.1))
        with pytest.raises(FloatingPointError, match="loss is nan at epoch 0"):
            fit.descend(network, lambda _: network.weight.sum() * math.nan, [flat], num_steps=3)
