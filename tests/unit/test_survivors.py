"""Lines that could be broken without a test seeing it, each with the test that now does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models import generator, random_bernoulli, random_ppca
from torch import Tensor

from mpt_lml import estimators, fit, masks, numerics, verdicts
from mpt_lml.estimators.latent import GaussianProposal
from mpt_lml.theory import rates

BERNOULLI = random_bernoulli(6, 2, 12)
POINTS = BERNOULLI.sample(3, generator=generator(1))
PROPOSAL = GaussianProposal(torch.zeros(3, 2).double(), torch.eye(2).double().expand(3, 2, 2), 0.5)
MOMENT = torch.eye(3).double()[None]
EVIDENCE = {"num_chains": 2, "num_steps": 3}

DRAWS: dict[str, Callable[[torch.Generator], Tensor]] = {
    "PPCA.sample": lambda g: random_ppca(4, 2).sample(5, generator=g),
    "BernoulliPCA.sample": lambda g: BERNOULLI.sample(20, generator=g),
    "BernoulliPCA.sample_given": lambda g: BERNOULLI.sample_given(
        torch.zeros(20, 2).double(), generator=g
    ),
    "GaussianProposal.sample": lambda g: PROPOSAL.sample(4, generator=g),
    "UniformSize.sample": lambda g: masks.UniformSize().sample(30, 50, generator=g),
    "UniformSize.stratified": lambda g: masks.UniformSize().stratified(3, 500, generator=g),
    "sample_ranks": lambda g: masks.sample_ranks(3, 20, generator=g),
    "sample_masks": lambda g: masks.sample_masks(3, 20, masks.UniformSize(), generator=g),
    "stratified_masks": lambda g: masks.stratified_masks(3, 20, masks.UniformSize(), generator=g),
    "iwae": lambda g: torch.tensor(estimators.iwae(BERNOULLI, POINTS, 4, generator=g).value),
    "ais": lambda g: torch.tensor(estimators.ais(BERNOULLI, POINTS, 4, 3, generator=g).value),
    "annealed_evidence": lambda g: estimators.annealed_evidence(
        MOMENT, 5, 1, 1.0, generator=g, **EVIDENCE
    )[0],
    "ImportanceConditional": lambda g: estimators.ImportanceConditional(
        BERNOULLI, 4, generator=g
    ).log_each(POINTS, torch.ones(3, 6).tril(2).bool()),
    "area": lambda g: torch.tensor(
        estimators.area(random_ppca(5, 2), POINTS[:, :5], 2, generator=g).value
    ),
    "random_size": lambda g: torch.tensor(
        estimators.random_size(random_ppca(5, 2), POINTS[:, :5], 2, generator=g).value
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_all_randomness_is_the_generators(draw: Callable[[torch.Generator], Tensor]) -> None:
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)  # what must not matter
        found.append(draw(generator(5)))
    assert torch.equal(*found)
    assert not torch.equal(found[0], draw(generator(6)))


def test_a_standard_error_divides_by_n_less_one() -> None:
    samples = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]])
    mean, error = verdicts.mean_and_error(samples, dim=1)
    assert mean.tolist() == pytest.approx([7 / 3, 1.0])
    squares = (14 / 3, 6.0)  # Σ (x − mean)²
    assert error.tolist() == pytest.approx([math.sqrt(s / 2 / 3) for s in squares])
    assert verdicts.mean_and_error(samples[:, :1], dim=1)[1].isnan().all()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e8])
def test_what_is_added_to_a_diagonal_follows_its_size(size: float) -> None:
    matrix = torch.full((2, 2), size, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match=f"added {1e-12 * size:.1e} to its diagonal"):
        factor = numerics.cholesky(matrix)
    added = (factor @ factor.T - matrix).diagonal() / size
    torch.testing.assert_close(added, torch.full((2,), 1e-12).double(), atol=1e-15, rtol=0)


def test_a_proposal_is_as_wide_as_it_was_asked_to_be() -> None:
    plain, wide = (estimators.at_mode(BERNOULLI, POINTS, None, widen=w) for w in (1.0, 3.0))
    torch.testing.assert_close(wide.factor, 3.0 * plain.factor)
    assert torch.equal(wide.mean, plain.mean)
    precision = torch.linalg.inv(plain.factor @ plain.factor.mT)
    here = plain.mean.clone().requires_grad_()
    hessian = torch.autograd.functional.hessian(
        lambda z: BERNOULLI.log_joint(POINTS, z).sum(), here
    )
    own = -torch.stack([hessian[n, :, n] for n in range(3)])
    torch.testing.assert_close(precision, own, atol=1e-3, rtol=0)  # the search's tolerance, 1e-4


@pytest.mark.parametrize("dim", [1, 3, 9])
def test_the_curve_of_random_loadings_counts_what_is_observed(dim: int) -> None:
    """v² − (σ² + K − r) v − σ² r = 0 with r = D − M observed."""
    noise, size = 0.2, 7
    curve = rates.random_loadings_curve(size, dim, noise)
    v = (-2.0 * curve - 1.0).exp() / (2.0 * math.pi)
    r = size - torch.arange(1, size + 1).double()
    assert ((v.square() - (noise + dim - r) * v - noise * r).abs() <= 1e-12).all()
    assert len(curve) == size


def climb(epochs: int = 12, path: Path | None = None, **options: object) -> fit.History:
    """Two runs of a noisy parabola."""

    def objective(parameters: fit.Parameters, generators: list[torch.Generator]) -> Tensor:
        noise = torch.randn(2, generator=generators[0], dtype=torch.float64)
        return -(parameters["level"] - 1.0 - noise).square()

    checkpoint = None if path is None else fit.Checkpoint(path, {"of": "test"}, every=5)
    start = {"level": torch.zeros(2, dtype=torch.float64)}
    settings = {"learning_rate": 0.1, "generators": [generator(3)], **options}
    return fit.maximize(start, objective, num_epochs=epochs, checkpoint=checkpoint, **settings)


def test_a_state_between_two_epochs_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    """Stopped when the parameters have moved and the count has not: the file before is the state."""
    whole, path, step = climb(), tmp_path / "run.safetensors", torch.optim.Adam.step
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
            climb(path=path)
    again = climb(path=path)
    assert torch.equal(again.parameters["level"], whole.parameters["level"])
    assert torch.equal(again.values["objective"][:-1], whole.values["objective"][:-1])


def test_a_finished_run_is_its_own_result_and_one_epoch_less_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    first = climb(path=path)
    assert torch.equal(climb(path=path).parameters["level"], first.parameters["level"])
    with pytest.raises(fit.CheckpointMismatchError, match="already at epoch 12, beyond the 11"):
        climb(epochs=11, path=path)


def test_snapshots_end_with_the_last_epoch() -> None:
    assert set(climb(snapshots=(0, 12)).snapshots) == {0, 12}
    with pytest.raises(ValueError, match=r"0\.\.12, got 13"):
        climb(snapshots=(13,))


@pytest.mark.parametrize(
    "call",
    [
        lambda: masks.FixedSize(True),
        lambda: masks.sample_masks(1, 3, True, generator=generator()),
        lambda: masks.all_masks(3, True),
        lambda: estimators.iwae(BERNOULLI, POINTS, True, generator=generator()),
    ],
)
def test_true_is_no_number(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="must be an integer"):
        call()
