"""Laws of the size, and networks that are trained side by side as if each were alone."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch
from models import generator
from torch.nn import functional

from mpt_experiments.experiment import RunContext
from mpt_experiments.language_trainings import (
    RECIPES,
    BandSize,
    BellSize,
    EitherRate,
    ModernTraining,
    Training,
)
from mpt_experiments.side_by_side import SideBySide
from mpt_lml import fit, masks
from mpt_lml.files import CheckpointMismatchError
from mpt_lml.models.hmm import HMM
from mpt_score import SymbolBERT

pytest.importorskip("transformers")
FEW_STEPS = Training("near", 4, "uniform", 8, (4, 44), 8, 8, 3e-3, half_precision=False)


@pytest.mark.parametrize("law", ["uniform", "inverse-root"])
def test_the_weights_of_a_law_with_every_size_keep_the_area(law: str) -> None:
    recipe = RECIPES[law]
    weighted = recipe.law.probabilities(16) * recipe.weights(16)
    expected = torch.full((16,), 1 / 16, dtype=torch.float64)
    torch.testing.assert_close(weighted, expected, atol=1e-7, rtol=0)


def test_inverse_root_sizes_are_squares_of_uniform_numbers() -> None:
    num_features = 4000
    probabilities = RECIPES["inverse-root"].law.probabilities(num_features)
    below_quarter = probabilities[: num_features // 4].sum().item()
    assert below_quarter == pytest.approx(0.5, abs=0.02)  # u² < 1/4 where u < 1/2


def test_bert_law_never_hides_more_than_its_share() -> None:
    recipe = RECIPES["fixed-15"]
    mask = masks.stratified_masks(32, 16, recipe.law, generator=generator(0))
    assert (mask.sum(dim=1) == 2).all()
    assert (recipe.weights(16) == 1).all()


def test_laws_of_several_sizes() -> None:
    assert BandSize(0.45, 0.55).probabilities(20).nonzero()[:, 0].tolist() == [8, 9, 10]
    bell = BellSize(0.5, 0.2).probabilities(10)
    assert bell[4].item() == bell.max().item()
    assert (bell[4] / bell[8]).item() == pytest.approx(math.exp(0.5 * (0.4 / 0.2) ** 2))
    either = EitherRate(0.15, 0.85).probabilities(20)
    assert either.nonzero()[:, 0].tolist() == [2, 16]
    assert (either[[2, 16]] == 0.5).all()


@pytest.mark.parametrize("architecture", ["classic", "modern"])
def test_networks_side_by_side_learn_as_if_alone(architecture: str) -> None:
    """Three steps of each by itself, with a plain loop, against three steps of both together."""
    models = [SymbolBERT(5, 6, 8, architecture, seed=seed) for seed in (1, 2)]
    together = SideBySide([model.network for model in models])
    ids = torch.randint(6, (3, 2, 4, 6), generator=generator(3))
    optimizer = torch.optim.SGD(together.parameters(), lr=0.5)
    for batch in ids:
        logits = together(batch)
        losses = functional.cross_entropy(logits.flatten(0, 2), batch.flatten(), reduction="none")
        optimizer.zero_grad()
        losses.view(2, -1).mean(dim=1).sum().backward()
        optimizer.step()
    for number, model in enumerate(models):
        network = model.network
        alone = torch.optim.SGD(network.parameters(), lr=0.5)
        for batch in ids[:, number]:
            logits = network(input_ids=batch).logits
            alone.zero_grad()
            functional.cross_entropy(logits.flatten(0, 1), batch.flatten()).backward()
            alone.step()
        expected = torch.nn.utils.parameters_to_vector(network.parameters())
        torch.testing.assert_close(together.vectors()[number], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [Training, ModernTraining])
def test_weights_return_to_a_network(kind: type[Training]) -> None:
    training = kind(**asdict(FEW_STEPS))
    kept = training.train(RunContext())
    assert sorted(map(int, kept)) == training.steps_kept()
    first = kept["2"]
    assert first.shape[0] == 2
    assert not torch.equal(first[0], first[1])
    network = training.network_after(first[1]).network
    assert torch.equal(torch.nn.utils.parameters_to_vector(network.parameters()), first[1])


def test_trainings_of_two_laws_see_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    sample = HMM.sample

    def watched(self: HMM, n: int, *, generator: torch.Generator) -> torch.Tensor:
        drawn = sample(self, n, generator=generator)
        seen[law].append(drawn)
        return drawn

    monkeypatch.setattr(HMM, "sample", watched)
    for law in ("uniform", "fixed-25"):
        seen[law] = []
        Training("near", 4, law, 8, (4, 44), 2, 8, 3e-3, half_precision=False).train(RunContext())
    first, second = seen.values()
    assert len(first) == 2
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


class FirstStep(Exception):
    """Raised with the loss of the first step, where a training would begin."""


def test_the_loss_is_the_weighted_mean_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over networks and sequences with the conditionals of each network alone."""

    def first_step(network, loss, schedules, **options) -> None:
        raise FirstStep(loss(0).item())

    monkeypatch.setattr(fit, "descend", first_step)
    training = Training("near", 4, "inverse-root", 8, (4, 44), 8, 8, 3e-3, half_precision=False)
    with pytest.raises(FirstStep) as stopped:
        training.train(RunContext())
    x = training.language().sample(16, generator=generator(4))
    of_masks = generator(5)
    law = RECIPES["inverse-root"].law
    expected = 0.0
    for number, seed in enumerate(training.seeds):
        rows = x[8 * number : 8 * number + 8]
        mask = masks.stratified_masks(8, 4, law, generator=of_masks)
        values = training.network(seed).log_each(rows, mask)
        for of_row, hidden in zip(values, mask, strict=True):
            size = int(hidden.sum())
            weight = 1 / (4 * law.probabilities(4)[size - 1].item())
            expected -= weight * of_row[hidden].mean().item() / 8
    assert stopped.value.args[0] == pytest.approx(expected, rel=1e-5)


def test_a_training_is_kept_by_its_own_options(tmp_path) -> None:
    context = RunContext(folder=tmp_path)
    first = FEW_STEPS.weights(context)
    again = FEW_STEPS.weights(context)
    assert all(torch.equal(first[step], again[step]) for step in first)
    (path,) = (tmp_path / "trainings").iterdir()
    other = Training("near", 4, "fixed-15", 8, (4, 44), 8, 8, 3e-3, half_precision=False)
    other.weights(context)
    theirs = tmp_path / "trainings" / f"{other.name}.safetensors"
    theirs.write_bytes(path.read_bytes())
    with pytest.raises(CheckpointMismatchError, match="law"):
        other.weights(context)
