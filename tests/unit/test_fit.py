from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from models import generator, random_ppca
from torch import Tensor

from mpt_experiments.resume import FileCheckpoint
from mpt_lml import files, fit, masks, objectives
from mpt_lml.results import History

NOISE = torch.tensor(0.3, dtype=torch.float64)
MOMENT = objectives.second_moment(random_ppca(5, 2).sample(60, generator=generator(2)))
START = {"loadings": torch.randn(3, 5, 2, generator=generator(1), dtype=torch.float64)}
SETTINGS = {"law": "uniform", "seeds": [1, 2, 3]}


def objective(parameters: fit.Parameters, generators: Sequence[torch.Generator]) -> torch.Tensor:
    mask = masks.stratified_masks(5, 5, masks.UniformSize(), generator=generators)
    return objectives.sampled(parameters["loadings"], NOISE, MOMENT, mask)


def run(
    epochs: int = 30,
    *,
    start: torch.Tensor = START["loadings"],
    seeds: Sequence[int] = (4, 5, 6),
    **options: object,
) -> History:
    given = {
        "objective": lambda p, gs: objective({k: v.double() for k, v in p.items()}, gs).to(start),
        "learning_rate": 0.05,
        "generators": [generator(s) for s in seeds],
        "track": {"lml": lambda p: objectives.log_marginal(p["loadings"], NOISE, MOMENT)},
        "snapshots": (0, 10, epochs),
    }
    return fit.maximize({"loadings": start}, num_epochs=epochs, **{**given, **options})


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


class InMemory:
    """The least that a checkpoint is: it copies what it is given, and asks for no identity."""

    every = 5
    state: dict[str, Tensor] | None = None
    identities: list[dict]

    def __init__(self) -> None:
        self.identities = []

    def load(self, identity: dict) -> dict[str, Tensor] | None:
        self.identities.append(identity)
        return self.state

    def save(self, state: dict[str, Tensor], identity: dict) -> None:
        assert identity == self.identities[-1]
        self.state = {name: value.detach().clone() for name, value in state.items()}


@pytest.mark.parametrize("epoch", [1, 7, 10, 29])
def test_whatever_loads_and_saves_is_a_checkpoint(epoch: int) -> None:
    whole = run()
    checkpoint = InMemory()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint, progress=stop_before(epoch))
    assert checkpoint.state is not None
    assert int(checkpoint.state["counts"][0]) == epoch
    assert same(run(checkpoint=checkpoint), whole)
    first, second = checkpoint.identities
    assert first == second
    assert first["learning_rate"] == 0.05 and first["streams"] == 3


@pytest.mark.parametrize("epoch", [1, 7, 10, 29])
def test_a_stopped_run_goes_on_to_the_last_bit(tmp_path: Path, epoch: int) -> None:
    whole = run()
    checkpoint = FileCheckpoint(tmp_path / "run.safetensors", SETTINGS, every=5)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint, progress=stop_before(epoch))
    assert same(run(checkpoint=checkpoint), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_run_stopped_in_the_middle_of_an_epoch_goes_on_too(tmp_path: Path) -> None:
    whole = run()
    checkpoint = FileCheckpoint(tmp_path / "run.safetensors", SETTINGS, every=5)
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
    checkpoint = FileCheckpoint(tmp_path / "run.safetensors", SETTINGS, every=4)
    for epoch in (6, 17):
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=checkpoint, progress=stop_before(epoch))
    older = checkpoint.path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint, progress=stop_before(25))
    checkpoint.path.write_bytes(older)  # killed: the last periodic file is all there is
    assert same(run(checkpoint=checkpoint), whole)


def test_a_finished_run_goes_on_with_more_epochs(tmp_path: Path) -> None:
    """Given what it began with, as by a program that is started again, or what it ended with."""
    whole = run(50, snapshots=(0, 10))
    for name, again in (("new", False), ("same", True)):
        checkpoint = FileCheckpoint(tmp_path / name, SETTINGS)
        generators = [generator(s) for s in (4, 5, 6)]
        ends = run(30, checkpoint=checkpoint, generators=generators, snapshots=(0, 10))
        more = {"generators": generators, "start": ends.parameters["loadings"]} if again else {}
        assert same(run(50, checkpoint=checkpoint, snapshots=(0, 10), **more), whole)
        assert same(run(50, checkpoint=checkpoint, snapshots=(0, 10)), whole)


def test_training_goes_on_in_inference_mode() -> None:
    whole = run(3, snapshots=())
    with torch.inference_mode():
        inside = run(3, snapshots=())
    assert same(inside, whole)


def test_a_diverged_run_names_the_epoch_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    calls = 0

    def breaking(parameters, generators):
        nonlocal calls
        calls += 1
        value = objective(parameters, generators)
        return value * torch.tensor([1.0, math.nan, 1.0]) if calls == 13 else value

    checkpoint = FileCheckpoint(tmp_path / "run.safetensors", SETTINGS)
    with pytest.raises(FloatingPointError, match="nan at epoch 12 in run 1 of 3"):
        run(objective=breaking, checkpoint=checkpoint)
    assert same(run(checkpoint=checkpoint), run())


def test_a_gradient_that_is_not_finite_stops_before_the_step(tmp_path: Path) -> None:
    def kinked(parameters, generators):
        loadings = parameters["loadings"]
        return (loadings - loadings.detach()).square().sum(dim=(1, 2)).sqrt()

    checkpoint = FileCheckpoint(tmp_path / "run", SETTINGS)
    with pytest.raises(FloatingPointError, match="gradient of loadings is nan at epoch 0"):
        run(objective=kinked, checkpoint=checkpoint)
    assert same(run(checkpoint=checkpoint), run())


@pytest.mark.parametrize("name", ["my loadings", "a, b", "bool", "a?", "", "encoder.0"])
def test_a_parameter_may_have_any_name(name: str, tmp_path: Path) -> None:
    def trained(name: str, checkpoint: FileCheckpoint | None) -> torch.Tensor:
        history = fit.maximize(
            {name: torch.zeros(2)},
            lambda parameters, generators: -(parameters[name] - 1).square(),
            num_epochs=3,
            learning_rate=0.1,
            snapshots=(1,),
            checkpoint=checkpoint,
        )
        assert [*history.parameters] == [*history.snapshots[1]] == [name]
        return history.parameters[name]

    checkpoint = FileCheckpoint(tmp_path / "run", {})
    for _ in range(2):
        assert torch.equal(trained(name, checkpoint), trained("level", None))


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

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"track": {"objective": len}}, ValueError, "track must not name 'objective'"),
            (
                {"progress": lambda items, _: []},
                ValueError,
                "progress must pass on every epoch .* ended after 0 of 30",
            ),
        ],
    )
    def test_what_would_answer_silently(self, options: dict, error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            run(**options)

    def test_parameters_that_do_not_fit_each_other(self) -> None:
        shortly = {"num_epochs": 1, "learning_rate": 0.1}
        for parameters, error, message in (
            ({}, ValueError, "parameters must be at least one tensor"),
            ({0: torch.zeros(2)}, TypeError, "parameters must be named by texts, got the name 0"),
            ({"my w": torch.zeros(2).long()}, TypeError, "the parameter my w must .*int64"),
            (
                {"a": torch.zeros(2, 3), "b": torch.zeros(3)},
                ValueError,
                r"the parameter b must have shape \(2, ...\), got \(3,\)",
            ),
        ):
            with pytest.raises(error, match=message):
                fit.maximize(parameters, lambda p, _: None, **shortly)

    def test_a_checkpoint_of_another_training(self, tmp_path: Path) -> None:
        """Under the same settings: what the trainer knows, its user need not write down."""
        checkpoint = FileCheckpoint(tmp_path / "run.safetensors", SETTINGS)
        whole, content = run(checkpoint=checkpoint), checkpoint.path.read_bytes()
        for options, message in (
            ({"learning_rate": 0.1}, "its learning_rate is 0.05, wanted 0.1"),
            ({"seeds": (4, 5, 7)}, "began with other generators: .* Seed them as then"),
            ({"seeds": (5, 4, 6)}, "began with other generators"),
            ({"start": START["loadings"] + 1e-9}, "began with other parameters: .*beginning nor"),
            ({"start": START["loadings"].float()}, "its dtypes is {'loadings': 'torch.float64'}"),
        ):
            with pytest.raises(files.CheckpointMismatchError, match=message):
                run(40, checkpoint=checkpoint, **options)
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(
                files.CheckpointMismatchError, match="its precision is 'torch.float32"
            ):
                run(checkpoint=checkpoint)
        finally:
            torch.set_default_dtype(torch.float32)
        assert checkpoint.path.read_bytes() == content
        assert same(run(checkpoint=checkpoint), whole)

    def test_a_snapshot_of_an_epoch_that_is_over(self, tmp_path: Path) -> None:
        checkpoint = FileCheckpoint(tmp_path / "run.safetensors", SETTINGS)
        run(checkpoint=checkpoint)
        with pytest.raises(files.CheckpointMismatchError, match="kept nothing of epoch 7"):
            run(checkpoint=checkpoint, snapshots=(0, 7, 40), epochs=40)


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
            checkpoint=FileCheckpoint(path, SETTINGS),
            progress=stop_before(15, KeyboardInterrupt),
        )
    resumed = run(track_every=7, checkpoint=FileCheckpoint(path, SETTINGS))
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
        checkpoint = FileCheckpoint(tmp_path / "run", SETTINGS, every=7)
        with pytest.raises(KeyboardInterrupt):
            self.descend(checkpoint=checkpoint, progress=stop_before(step))
        again = self.descend(checkpoint=checkpoint)
        assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
        assert len(whole) == 1 + 3 + 4

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"lr": 0.2}, "its AdamW 0, group 0: initial_lr is "),
            ({"weight_decay": 0.5}, "its AdamW 0, group 0: weight_decay is 0.01, wanted 0.5"),
            ({"total": 41}, "its OneCycleLR 0: .* is "),
            ({"max_norm": None}, "its max_norm is 1.0, wanted None"),
            ({"seed": 4}, "began with other generators"),
            ({"net": 1}, "began with other parameters"),
        ],
    )
    def test_a_file_of_another_training_is_refused(
        self, tmp_path: Path, change: dict, message: str
    ) -> None:
        def train(
            lr: float = 0.1,
            weight_decay: float = 0.01,
            total: int = 40,
            seed: int = 3,
            net: int = 0,
            max_norm: float | None = 1.0,
        ) -> None:
            torch.manual_seed(net)
            network, g = torch.nn.Linear(3, 1), generator(seed)
            adam = torch.optim.AdamW(network.parameters(), weight_decay=weight_decay)
            fit.descend(
                network,
                lambda _: network(torch.randn(8, 3, generator=g)).square().mean(),
                [torch.optim.lr_scheduler.OneCycleLR(adam, lr, total)],
                num_steps=5,
                generators=[g],
                max_norm=max_norm,
                checkpoint=FileCheckpoint(tmp_path / "run", SETTINGS),
            )

        train()
        with pytest.raises(files.CheckpointMismatchError, match=message):
            train(**change)
        train()

    def test_it_goes_on_with_more_steps(self, tmp_path: Path) -> None:
        def train(steps: int, checkpoint: FileCheckpoint | None) -> torch.Tensor:
            torch.manual_seed(0)
            network, g = torch.nn.Linear(3, 1), generator(3)
            sgd = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
            return fit.descend(
                network,
                lambda _: network(torch.randn(8, 3, generator=g)).square().mean(),
                [torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)],
                num_steps=steps,
                generators=[g],
                checkpoint=checkpoint,
            )[0]

        checkpoint = FileCheckpoint(tmp_path / "run", SETTINGS)
        train(5, checkpoint)
        assert torch.equal(train(9, checkpoint), train(9, None))

    def test_a_loss_that_is_not_finite_stops_it(self) -> None:
        network = torch.nn.Linear(1, 1)
        flat = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(network.parameters(), lr=0.1))
        with pytest.raises(FloatingPointError, match="loss is nan at epoch 0"):
            fit.descend(network, lambda _: network.weight.sum() * math.nan, [flat], num_steps=3)

    @pytest.mark.bad_input
    def test_wrong_calls_say_what_to_do(self, tmp_path: Path) -> None:
        network, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

        def schedule(of: torch.nn.Module) -> torch.optim.lr_scheduler.LRScheduler:
            sgd = torch.optim.SGD(of.parameters(), lr=0.1)
            return torch.optim.lr_scheduler.ConstantLR(sgd)

        def good(step: int) -> torch.Tensor:
            return network.weight.square().sum()

        def kinked(step: int) -> torch.Tensor:
            return (network.weight * 0).abs().sqrt().sum()

        before = network.weight.detach().clone()
        kept = FileCheckpoint(tmp_path / "run", {})
        watching = {"watch": lambda: 1.5, "watched": [0], "checkpoint": kept}
        for loss, of, options, error, message in (
            (kinked, network, {}, FloatingPointError, "gradient of weight is nan at epoch 0"),
            (lambda _: other.weight.sum(), network, {}, ValueError, "must depend on weights"),
            (good, other, {}, ValueError, r"schedules\[0\] must be of an optimizer of network"),
            (good, network, watching, TypeError, r"watch\(\) must return a tensor, got 1.5"),
        ):
            with pytest.raises(error, match=message):
                fit.descend(network, loss, [schedule(of)], num_steps=2, **options)
            assert torch.equal(network.weight, before)


def noisy_parabola(epochs: int = 12, path: Path | None = None, **options: object) -> fit.History:
    """Two runs of a noisy parabola."""

    def objective(parameters: fit.Parameters, generators: list[torch.Generator]) -> Tensor:
        noise = torch.randn(2, generator=generators[0], dtype=torch.float64)
        return -(parameters["level"] - 1.0 - noise).square()

    checkpoint = None if path is None else FileCheckpoint(path, {"of": "test"}, every=5)
    start = {"level": torch.zeros(2, dtype=torch.float64)}
    settings = {"learning_rate": 0.1, "generators": [generator(3)], **options}
    return fit.maximize(start, objective, num_epochs=epochs, checkpoint=checkpoint, **settings)


def test_a_state_between_two_epochs_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    """Stopped when the parameters have moved and the count has not: the file before is the state."""
    whole, path, step = noisy_parabola(), tmp_path / "run.safetensors", torch.optim.Adam.step
    calls = 0

    def interrupted(self, closure=None):
        nonlocal calls
        calls += 1
        step(self)
        if calls == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.Adam, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            noisy_parabola(path=path)
    again = noisy_parabola(path=path)
    assert torch.equal(again.parameters["level"], whole.parameters["level"])
    assert torch.equal(again.values["objective"][:-1], whole.values["objective"][:-1])


def test_a_finished_run_is_its_own_result_and_one_epoch_less_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    first = noisy_parabola(path=path)
    assert torch.equal(noisy_parabola(path=path).parameters["level"], first.parameters["level"])
    with pytest.raises(files.CheckpointMismatchError, match="already at epoch 12, beyond the 11"):
        noisy_parabola(epochs=11, path=path)


def test_snapshots_end_with_the_last_epoch() -> None:
    assert set(noisy_parabola(snapshots=(0, 12)).snapshots) == {0, 12}
    with pytest.raises(ValueError, match=r"0\.\.12, got 13"):
        noisy_parabola(snapshots=(13,))


def test_a_watched_run_looks_once(tmp_path: Path) -> None:
    """Also where it goes on at a watched step, and where the look itself draws."""

    def run(stop: int | None = None) -> tuple[list[Tensor], Tensor, int]:
        torch.manual_seed(0)
        network, g, looks = torch.nn.Linear(1, 1), generator(3), 0

        def watch() -> Tensor:
            nonlocal looks
            looks += 1
            return torch.rand(2, generator=g)

        def loss(step: int) -> Tensor:
            if step == stop:
                raise KeyboardInterrupt
            return (network(torch.randn(4, 1, generator=g)) - 1.0).square().mean()

        schedule = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(network.parameters(), 0.1))
        kept = None if whole is None else FileCheckpoint(tmp_path / "run", {}, every=2)
        try:
            losses, seen = fit.descend(
                network,
                loss,
                [schedule],
                num_steps=6,
                generators=[g],
                watch=watch,
                watched=(0, 4, 6),
                checkpoint=kept,
            )
        except KeyboardInterrupt:
            return [], torch.empty(0), looks
        return seen, losses, looks

    whole = None
    whole = run()
    assert whole[2] == 3
    assert run(stop=4)[2] == 2
    seen, losses, looks = run()
    assert looks == 1  # after 6; those after 0 and 4 were kept
    assert torch.equal(losses, whole[1])
    assert all(torch.equal(a, b) for a, b in zip(seen, whole[0], strict=True))


def test_a_history_counts_epochs_and_keeps_the_precision() -> None:
    history = noisy_parabola(epochs=3)
    assert history.values["objective"].shape == (4, 2)
    assert history.values["objective"].dtype == torch.float64
    assert history.values["objective"][-1].isnan().all()
    assert not history.values["objective"][:-1].isnan().any()


def test_a_gradient_that_is_no_number_is_of_the_run_that_is_named() -> None:
    """√0 has a value and no slope: in the last of three runs, with as many numbers or with two."""
    start = {"level": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])}
    with pytest.raises(FloatingPointError, match="gradient of level is -?inf.* in run 2 of 3"):
        fit.maximize(
            start, lambda own, _: own["level"].sqrt().sum(1), num_epochs=1, learning_rate=0.1
        )


def test_a_file_is_written_at_every_fifth_epoch_and_at_the_end(tmp_path: Path, monkeypatch) -> None:
    saved, save = [], FileCheckpoint.save

    def counted(self, state, identity):
        saved.append(int(state["counts"][0]))
        save(self, state, identity)

    monkeypatch.setattr(FileCheckpoint, "save", counted)
    noisy_parabola(path=tmp_path / "run")
    assert saved == [5, 10, 12]


# -- BFGS: short steps, halved until the objective rises ------------------------------


def test_steps_of_bfgs_are_at_most_half_a_unit() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * (at - 3.0).square().sum(dim=1)

    top = fit.bfgs(torch.zeros(1, 2, dtype=torch.float64), hill)
    torch.testing.assert_close(top, torch.full((1, 2), 3.0).double(), atol=1e-6, rtol=0)
    moved = torch.stack(seen).diff(dim=0).norm(dim=-1)
    assert moved.max() <= 0.5 + 1e-12
    assert moved[0] == pytest.approx(0.5)  # the slope there is 3 √2


def test_a_step_that_overshoots_is_halved_until_it_rises() -> None:
    """Tops at ±0.01, far within half a unit: every point that is kept is higher than the last."""
    top = fit.bfgs(
        torch.tensor([[0.03], [-0.02]], dtype=torch.float64),
        lambda at: -(1e4 * at.square() - 1.0).square().sum(dim=1),
    )
    torch.testing.assert_close(top.abs(), torch.full((2, 1), 0.01).double(), atol=1e-8, rtol=0)


def test_a_step_of_less_than_half_a_unit_is_as_long_as_its_slope() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * at.square().sum(dim=1)

    fit.bfgs(torch.tensor([[0.3, 0.0]], dtype=torch.float64), hill)
    assert torch.equal(seen[1], torch.zeros(1, 2).double())  # and not as far beyond


def test_trials_are_halved_along_one_direction() -> None:
    seen = []

    def narrow(at: Tensor) -> Tensor:
        seen.append(at.item())
        return -(1e4 * at.square() - 1.0).square().sum(dim=1)

    fit.bfgs(torch.tensor([[0.03]], dtype=torch.float64), narrow, max_steps=1)
    moved = torch.tensor(seen[1:]) - seen[0]
    assert len(moved) > 2
    torch.testing.assert_close(moved[1:] / moved[:-1], torch.full((len(moved) - 1,), 0.5))
