"""Lines that could be broken without a test seeing it, each with the test that now does."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from models import generator, random_bernoulli, random_ppca
from torch import Tensor
from transformers import BertTokenizer

import mpt_lml
import mpt_score
from mpt_experiments import autoencoders, provenance
from mpt_lml import (
    PPCA,
    VAE,
    BernoulliPCA,
    ConditionalTable,
    JointTable,
    bfgs,
    curves,
    estimators,
    files,
    fit,
    gaussian,
    grids,
    masks,
    numerics,
    objectives,
    orders,
    results,
    scores,
    spec,
    symbolic,
    verdicts,
)
from mpt_lml.data import image_sets
from mpt_lml.data.places import DataNotFoundError
from mpt_lml.estimators import annealing, latent
from mpt_lml.estimators.latent import GaussianProposal
from mpt_lml.models import vae
from mpt_lml.models.base import FromFunction, Grouped
from mpt_lml.results import Estimate, MaskCurve
from mpt_lml.theory import diffusion, rates
from mpt_lml.theory.godambe import GaussianFamily, Godambe
from mpt_score import SymbolBERT, ViTMAE, networks, texts, tokens
from mpt_score.networks import hub, masked_lm
from mpt_score.networks.hub import CheckpointError
from mpt_score.scorer import BATCH_BYTES

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
    "iwae": lambda g: torch.tensor(estimators.iwae(BERNOULLI, POINTS, 4, generator=g)),
    "ais": lambda g: torch.tensor(estimators.ais(BERNOULLI, POINTS, 4, 3, generator=g)),
    "annealed_evidence": lambda g: estimators.annealed_evidence(
        MOMENT, 5, 1, 1.0, generator=g, **EVIDENCE
    )[0],
    "ImportanceConditional": lambda g: estimators.ImportanceConditional(
        BERNOULLI, 4, generator=g
    ).log_each(POINTS, torch.ones(3, 6).tril(2).bool()),
    "area": lambda g: torch.tensor(
        estimators.area(random_ppca(5, 2), POINTS[:, :5], 2, generator=g)
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


def test_a_proposal_is_as_wide_as_it_was_asked_to_be() -> None:
    plain = estimators.at_mode(BERNOULLI, POINTS, None)
    assert plain.prior_share == 0.1
    precision = torch.linalg.inv(plain.factor @ plain.factor.mT) * 1.2**2
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


def test_a_default_is_what_the_description_says() -> None:
    """Said once in a signature and once in words: called without it and with it."""
    assert verdicts.exceeds(0.5, 0.1)  # above 0: 0.5 is five errors away
    assert verdicts.apart(0.5, 0.1)
    assert verdicts.agrees(0.1, 0.1)
    assert Estimate(1.0).standard_error == 0.0 and Estimate(1.0).num_samples == 0
    assert torch.equal(
        BERNOULLI.adaptive_log_marginal(POINTS),
        BERNOULLI.adaptive_log_marginal(POINTS, nodes_per_axis=11, extent=5.0),
    )
    shapes = {name: tuple(value.shape) for name, value in bert("modern").state_dict().items()}
    assert shapes["model.embeddings.tok_embeddings.weight"] == (40, 160)
    assert bert("modern").config.num_hidden_layers == 6
    assert bert("classic").bert.embeddings.position_embeddings.weight.shape == (64, 160)
    assert networks.small_mae(8, 1, 2, seed=0).config.hidden_size == 64


def bert(architecture: str) -> torch.nn.Module:
    return networks.small_masked_lm(40, architecture, seed=0)


def test_a_value_without_an_error_is_judged_as_it_stands() -> None:
    assert verdicts.agrees(0.3, None, at=0.3)
    assert not verdicts.exceeds(0.3, None, at=0.3)
    assert verdicts.equivalent(0.3, None, margin=0.1, at=0.2 + 1e-12)
    assert verdicts.interval(0.3, None) == (0.3, 0.3)


@pytest.mark.parametrize(("total", "size", "budget"), [(5, 1, 2), (5, 3, 2), (0, 1, 9), (7, 2, 9)])
def test_chunks_cover_all_within_the_budget(total: int, size: int, budget: int) -> None:
    slices = list(numerics.chunks(total, size, budget))
    assert [i for some in slices for i in range(total)[some]] == list(range(total))
    sizes = [some.stop - some.start for some in slices]
    assert all(one == max(1, budget // size) for one in sizes[:-1])
    assert all(one * size <= max(budget, size) for one in sizes)


def test_the_processor_is_named_as_the_system_names_it(monkeypatch) -> None:
    content = "processor\t: 0\nmodel name\t: Some: Thing 9\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: content)
    assert provenance._cpu_name() == "Some: Thing 9"


def test_what_is_written_is_readable_and_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "result.json"
    content = {"name": "σ² – ok", "rows": [[15, 2.5e-7, -31], [[1, 2], [3]]]}
    files.write_json(path, content)
    text = path.read_text(encoding="utf-8")
    assert "σ² – ok" in text and "[15, 2.5e-07, -31]" in text and text.endswith("}\n")
    assert files.read_json(path) == content
    with files.replacing(path) as partial:
        partial.write_text("half")
        assert files.read_json(path) == content  # until all is written
        assert partial.parent == path.parent  # one file system: the replacement is one step
        other = path.stat().st_ino
    assert path.read_text() == "half"
    assert path.stat().st_ino != other
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_image_is_covered_by_patches_both_ways() -> None:
    for height, width in ((4, 6), (6, 4)):
        with pytest.raises(ValueError, match="do not cover"):
            Grouped.patches(height, width, 4)
    group = Grouped.patches(2, 6, 2).view(2, 6)
    assert group.tolist() == [[0, 0, 1, 1, 2, 2]] * 2


def test_what_is_enumerated_ends_at_a_quarter_million() -> None:
    assert len(masks.subsets(18)) == 2**18
    with pytest.raises(ValueError, match="262144 that are enumerated"):
        masks.subsets(19)


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
        kept = None if whole is None else fit.Checkpoint(tmp_path / "run", {}, every=2)
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
    history = climb(epochs=3)
    assert history.values["objective"].shape == (4, 2)
    assert history.values["objective"].dtype == torch.float64
    assert history.values["objective"][-1].isnan().all()
    assert not history.values["objective"][:-1].isnan().any()


def test_steps_of_a_climb_are_at_most_half_a_unit() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * (at - 3.0).square().sum(dim=1)

    top = bfgs.climb(torch.zeros(1, 2, dtype=torch.float64), hill)
    torch.testing.assert_close(top, torch.full((1, 2), 3.0).double(), atol=1e-6, rtol=0)
    moved = torch.stack(seen).diff(dim=0).norm(dim=-1)
    assert moved.max() <= 0.5 + 1e-12
    assert moved[0] == pytest.approx(0.5)  # the slope there is 3 √2


def test_a_step_that_overshoots_is_halved_until_it_rises() -> None:
    """Tops at ±0.01, far within half a unit: every point that is kept is higher than the last."""
    top = bfgs.climb(
        torch.tensor([[0.03], [-0.02]], dtype=torch.float64),
        lambda at: -(1e4 * at.square() - 1.0).square().sum(dim=1),
    )
    torch.testing.assert_close(top.abs(), torch.full((2, 1), 0.01).double(), atol=1e-8, rtol=0)


def test_two_temperatures_and_one_step_are_enough() -> None:
    """β = 0, 1 alone: then annealing is importance sampling from the prior."""
    value = estimators.ais(BERNOULLI, POINTS, 2, 2, generator=generator())
    assert math.isfinite(value)
    table = JointTable(torch.full((2, 2), 0.25).double())
    one = diffusion.block_elbo(torch.tensor([-1.0, -3.0]), 1)
    assert one.item() == -6.0  # both at once: D S(D)
    assert (
        curves.sampled_curve(table, torch.zeros(1, 2).long(), 1, generator=generator()) is not None
    )


@pytest.mark.bad_input
def test_every_model_is_given_its_own_masks() -> None:
    grid, x = grids.gauss_hermite(1, 3), torch.ones(2, 2).double()
    loadings, offset = torch.zeros(2, 2, 1).double(), torch.zeros(2, 2).double()
    mask = torch.tensor([[[True, False]]])
    with pytest.raises(ValueError):
        objectives.mixture(loadings, offset, x, mask, grid)
    with pytest.raises(ValueError):
        objectives.mixture(loadings, offset[:1], x, None, grid)


@pytest.mark.parametrize("layers", [1, 3])
def test_only_the_last_of_any_number_of_layers_is_spared(layers: int) -> None:
    for architecture in ("modern", "classic"):
        network = networks.small_masked_lm(12, architecture, width=32, num_layers=layers, seed=1)
        ids = torch.randint(5, 12, (3, 8), generator=generator())
        where = torch.rand(3, 8, generator=generator(1)) < 0.4
        with torch.no_grad():
            found = masked_lm.masked_logits(network.eval(), ids, where)
            torch.testing.assert_close(found, network(ids).logits[where], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("from_decoder", [False, True])
def test_a_bernoulli_recursion_fills_with_probabilities(from_decoder: bool) -> None:
    """Two rounds by hand, with weights large enough for logits and probabilities to differ."""
    first = vae.dense_parameters(4, [3], 2, generators=[generator(1)])
    parameters = {name: 3.0 * value.double() + 0.1 for name, value in first.items()}
    x = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[[True, True, False, False], [False, True, True, True]]])
    noise = torch.randn(2, 1, 2, 2, generator=generator(2), dtype=torch.float64)

    def decoded(z: Tensor) -> Tensor:
        return 1 / (1 + (-vae.dense(parameters, "decoder", z)).exp())

    filled = x * ~mask
    if from_decoder:
        filled = torch.where(mask, decoded(torch.zeros(1, 1, 2).double()), x)
    for each in noise:
        mean, log_variance = vae.dense(parameters, "encoder", filled).split(2, dim=-1)
        probability = decoded(mean + (log_variance / 2).exp() * each)
        filled = torch.where(mask, probability, x)
    log_factors = torch.where(x == 1, probability, 1 - probability).log() * mask
    expected = 4 * (log_factors.sum(dim=-1) / mask.sum(dim=-1)).mean(dim=-1)
    found = objectives.recursive(parameters, x, mask, noise, None, from_decoder=from_decoder)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.bad_input
def test_pickles_stay_closed_where_no_folder_can_be_looked_at(tmp_path: Path, monkeypatch) -> None:
    """A hub's files are not seen before they are fetched: the loader itself refuses them."""
    network = bert("classic")
    network.config.save_pretrained(tmp_path)
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(hub, "require_folder", lambda *_: None)
    with pytest.raises(CheckpointError, match="could not be loaded.*model.safetensors"):
        networks.load_network(str(tmp_path))


def test_curves_side_by_side_are_bounded_one_by_one() -> None:
    score = -torch.rand(3, 5, generator=generator(), dtype=torch.float64)
    for bound in (
        lambda s: diffusion.nelbo(s, torch.square),
        lambda s: diffusion.step_elbo(s, torch.square, 4),
        lambda s: diffusion.block_elbo(s, 3),
    ):
        alone = torch.stack([bound(row) for row in score])
        torch.testing.assert_close(bound(score), alone, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        diffusion.nelbo(score, torch.square), -score.sum(dim=1), atol=1e-9, rtol=0
    )


def test_apart_is_apart_from_the_value_that_is_named() -> None:
    assert not verdicts.apart(1.0, 0.1, at=1.1)
    assert verdicts.apart(0.0, 0.1, at=1.0)


@pytest.mark.bad_input
def test_one_entry_that_is_not_finite_is_enough(tmp_path: Path) -> None:
    network = bert("classic")
    network.bert.embeddings.LayerNorm.weight.data[3] = math.nan
    network.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="LayerNorm.weight is not finite"):
        networks.load_network(tmp_path)
    mean = torch.tensor([0.0, math.inf])
    with pytest.raises(ValueError, match="mean"):
        PPCA(torch.ones(2, 1), 1.0, mean)


def test_a_variance_of_each_size_has_two_forms() -> None:
    network, sizes = networks.small_mae(8, 1, 4, width=16, seed=0), torch.arange(1.0, 5.0)
    x, mask = torch.rand(2, 1, 8, 8, generator=generator()), masks.subsets(4)[1:]
    short, long = (ViTMAE(network, each) for each in (sizes, sizes[:, None, None]))
    assert torch.equal(short.log_conditional(x, mask), long.log_conditional(x, mask))
    assert not torch.equal(
        short.log_conditional(x, mask), ViTMAE(network, 1.0).log_conditional(x, mask)
    )


def test_with_two_temperatures_annealing_is_importance_sampling_from_the_prior() -> None:
    """β = 0 and 1: the move comes after the only weight."""
    found = estimators.ais(BERNOULLI, POINTS, 50, 2, generator=generator(4))
    z = latent.from_prior(BERNOULLI, POINTS, None).sample(50, generator=generator(4))
    log_likelihood = BERNOULLI.log_factors(POINTS, z).sum(dim=-1)
    expected = (log_likelihood.logsumexp(dim=0) - math.log(50)).mean()
    assert found == pytest.approx(expected.item(), abs=1e-10)


def test_an_integral_by_the_default_grid_is_that_of_a_normal() -> None:
    start = torch.zeros(2, 2, dtype=torch.float64)
    found = grids.log_integral(lambda z: -0.5 * (z - 1.0).square().sum(dim=-1), start)
    # Trapezoids of width 1: the error is that of their Fourier series, 2 e^{-2π²} < 1e-8, and of the
    # tails beyond five standard deviations, below 1e-6 an axis.
    torch.testing.assert_close(
        found, torch.full((2,), math.log(2 * math.pi)).double(), atol=4e-6, rtol=0
    )


def test_a_step_of_less_than_half_a_unit_is_as_long_as_its_slope() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * at.square().sum(dim=1)

    bfgs.climb(torch.tensor([[0.3, 0.0]], dtype=torch.float64), hill)
    assert torch.equal(seen[1], torch.zeros(1, 2).double())  # and not as far beyond


def test_a_size_stands_once_in_a_curve() -> None:
    for sizes in ([1, 1], [2, 1], [0, 1], [1, 5]):
        with pytest.raises(ValueError, match="must increase within 1..4"):
            MaskCurve(torch.tensor(sizes), -torch.ones(2), torch.zeros(2), 4)
    assert MaskCurve(torch.tensor([4]), -torch.ones(1), torch.zeros(1), 4).num_features == 4


def test_the_mean_over_data_of_a_stiff_model_is_the_mean() -> None:
    loadings = torch.randn(6, 2, generator=generator(), dtype=torch.float64)
    model = PPCA(loadings, 1e-10)
    x, mask = model.sample(4, generator=generator(1)), masks.subsets(6)[1:]
    each = model.log_conditional(x, mask).mean(dim=1)
    # Relative to the residual's square over σ²: seven digits are left of sixteen.
    torch.testing.assert_close(model.mean_log_conditional(x, mask), each, atol=1e-5, rtol=1e-6)


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_written_is_found_by_writing() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no folder that refuses also the superuser")
    with pytest.raises(PermissionError, match="cannot write to the output folder /proc/self"):
        files.require_writable("/proc/self")


def test_what_brings_matplotlib_comes_when_it_is_named() -> None:
    assert mpt_lml.__getattr__("plots").__name__ == "mpt_lml.plots"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mpt_lml.__getattr__("nothing")


def test_padding_is_the_tokenizers_and_an_empty_sentence_is_numbered() -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "sun", "[PAD]"]
    tokenizer = BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)})
    ids = tokens.encode(tokenizer, ["sun sun", "sun"]).ids
    assert ids.tolist() == [[1, 4, 4, 2], [1, 4, 2, 5]]
    with pytest.raises(ValueError, match="sentence 1 has no word pieces"):
        tokens.encode(tokenizer, ["sun", "moon", "sun"])


def test_annealing_ends_at_the_posterior_and_begins_at_the_prior() -> None:
    """With three temperatures β has to be 0, 1/2, 1: shifted, another ratio is estimated."""
    found = estimators.ais(BERNOULLI, POINTS, 4000, 3, generator=generator(4))
    exact = BERNOULLI.adaptive_log_marginal(POINTS, nodes_per_axis=41, extent=8.0).mean().item()
    assert abs(found - exact) <= 5 * found.standard_error
    assert found.standard_error < 0.05


def test_one_coordinate_is_enough_for_a_model() -> None:
    weights = torch.tensor([[[0.25, 0.75]]])
    coin = FromFunction(lambda x, mask: weights.log().expand(len(x), 1, 2), 1)
    x = torch.tensor([[0], [1]])
    assert torch.equal(coin.log_each(x, torch.ones(2, 1).bool()).exp().T, weights[0])
    tokenizer = BertTokenizer(vocab={p: n for n, p in enumerate(["[UNK]", "[CLS]", "[SEP]", "a"])})
    tokenizer.add_special_tokens({"mask_token": "[MASK]", "pad_token": "[PAD]"})
    network = networks.small_masked_lm(len(tokenizer), width=32, num_layers=1, seed=0)
    assert masked_lm.MaskedLM.of(network, tokenizer).num_features == 1


@pytest.mark.parametrize(("likelihood", "factor"), [(0.0, 1.05), (math.nan, 0.95)])
def test_steps_grow_where_moves_are_taken_and_shrink_where_not(
    monkeypatch, likelihood: float, factor: float
) -> None:
    """Short ones on a constant likelihood nearly all are; into what is no number, none is."""
    steps, move = [], annealing._hamiltonian_move

    def watched(chains, log_likelihood, beta, step, *rest):
        steps.append(step.flatten()[0].item())
        return move(chains, lambda z: log_likelihood(z) + likelihood, beta, step, *rest)

    monkeypatch.setattr(annealing, "_hamiltonian_move", watched)
    estimators.ais(BernoulliPCA(torch.zeros(3, 1)), torch.ones(1, 3), 50, 4, generator=generator())
    assert steps == pytest.approx([0.2 * factor**k for k in range(3)])


def test_a_gradient_that_is_no_number_is_of_the_run_that_is_named() -> None:
    """√0 has a value and no slope: in the last of three runs, with as many numbers or with two."""
    start = {"level": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])}
    with pytest.raises(FloatingPointError, match="gradient of level is -?inf.* in run 2 of 3"):
        fit.maximize(
            start, lambda own, _: own["level"].sqrt().sum(1), num_epochs=1, learning_rate=0.1
        )


def test_trials_are_halved_along_one_direction() -> None:
    seen = []

    def narrow(at: Tensor) -> Tensor:
        seen.append(at.item())
        return -(1e4 * at.square() - 1.0).square().sum(dim=1)

    bfgs.climb(torch.tensor([[0.03]], dtype=torch.float64), narrow, max_steps=1)
    moved = torch.tensor(seen[1:]) - seen[0]
    assert len(moved) > 2
    torch.testing.assert_close(moved[1:] / moved[:-1], torch.full((len(moved) - 1,), 0.5))


def test_mass_at_one_side_of_a_grid_is_seen() -> None:
    """A long tail along one of two axes: at the sides of the square, hardly at its corners."""

    def tail(z: Tensor) -> Tensor:
        return -(1.0 + z[..., 0].square()).sqrt() - 0.5 * z[..., 1].square()

    with pytest.warns(RuntimeWarning, match="edge holds"):
        grids.log_integral(tail, torch.zeros(1, 2).double())


def test_columns_of_a_table_are_of_one_length() -> None:
    assert results.as_rows({"a": [1, 2], "b": torch.tensor([3, 4])})[1] == {"a": 2, "b": 4}
    for columns in ({"a": [1, 2], "b": [3]}, {"a": [1], "b": [3, 4]}):
        with pytest.raises(ValueError, match="zip"):
            results.as_rows(columns)


def test_a_target_is_proved_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    files.require_target(path)
    assert path.parent.is_dir() and not path.exists()
    with files.replacing(path) as partial:
        partial.write_text("whole")
    assert path.read_text() == "whole"


def test_a_kept_file_does_not_depend_on_the_order_of_what_it_belongs_to(tmp_path: Path) -> None:
    for name, identity in (("one", {"a": 1, "b": 2}), ("other", {"b": 2, "a": 1})):
        files.save_tensors(tmp_path / name, {"x": torch.ones(2)}, identity)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_package_outside_a_checkout_has_an_unknown_commit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "package")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.provenance("none")["commit"] == "unknown"


def test_four_words_in_a_row_are_four() -> None:
    found = texts.labeled("written")[0]
    assert {len(each.split()) for each in found} == {4}
    assert any(texts._WRITTEN[0].endswith(four) for four in found)
    assert all(any(four in sentence for sentence in texts._WRITTEN) for four in found)


def test_a_vocabulary_has_no_capitals() -> None:
    tokenizer = tokens.train_tokenizer(["Sun SUN sun", "A sun"], 40)
    pieces = set(tokenizer.get_vocab()) - set(tokens.SPECIAL_TOKENS)
    assert "sun" in pieces and pieces == {each.lower() for each in pieces}


@pytest.mark.bad_input
def test_a_wrong_call_is_refused_by_its_name() -> None:
    """Where going on would give another error, or a number."""
    x, ones = torch.rand(2, 3, dtype=torch.float64), torch.ones(1, 2).bool()
    loadings = torch.ones(3, 1).double()
    posterior = gaussian.LowRankPosterior.of(loadings, torch.tensor(1.0).double(), masks.subsets(3))
    ids = torch.tensor([[0, 1]])
    length = torch.tensor([2])
    small = networks.small_masked_lm(9, "classic", width=32, num_layers=1, seed=1)
    letters = mpt_score.MaskedLM(small, 4, 1)
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, r"such as \(2, 2, 1, 2\)", lambda: ConditionalTable(torch.zeros(3))),
        (TypeError, "logits", lambda: ConditionalTable(torch.zeros(2, 2, 1, 2).long())),
        (ValueError, "observed", lambda: symbolic.SymbolicTable(2).log_marginal([2])),
        (TypeError, "model must", lambda: orders.exact("model", x)),
        (TypeError, "like must", lambda: grids.gauss_hermite(1, 3).to(ids)),
        (ValueError, "moment must", lambda: posterior.mean_log_conditional(torch.eye(2).double())),
        (ValueError, "must increase", lambda: rates.crossover(x[0], torch.tensor([0.2, 0.1, 1.0]))),
        (ValueError, r"in 0\.333\.\.1:", lambda: rates.crossover(x[0], height=2.0)),
        (
            ValueError,
            r"schedule\(time\) must",
            lambda: diffusion.speed(
                lambda t: t if len(t) == 2 else t.sum(), torch.tensor([0.1, 0.5, 0.9])
            ),
        ),
        (ValueError, "count from 0", lambda: tokens.Tokens(ids - 1, ids, ones, length)),
        (ValueError, "count from 0", lambda: tokens.Tokens(ids, ids - 1, ones, length)),
        (ValueError, "from 1 to L", lambda: tokens.Tokens(ids, ids, ones, length - 2)),
        (ValueError, "shape must be", lambda: image_sets.Images(torch.ones(1, 8), (2, 2, 2))),
        (ValueError, r"in \[0, 1\]", lambda: image_sets.Images(torch.tensor([[0.5, 1.5]]), (1, 2))),
        (TypeError, "second must", lambda: tokens.encode(networks.load_small_bert()[1], ["a"], 3)),
        (
            ValueError,
            r"track\['sum'\]",
            lambda: climb(track={"sum": lambda own: own["level"].sum()}),
        ),
        (
            ValueError,
            "x must be 0..8",
            lambda: letters.log_each(torch.tensor([[9]]), ones[:, :1]),
        ),
        (ValueError, "num_features must", lambda: orders.every(0)),
        (
            TypeError,
            "each of law must",
            lambda: masks.stratified_masks(2, 3, "u", generator=generator()),
        ),
        (TypeError, "source must", lambda: networks.load_network(3)),
        (TypeError, "model must", lambda: latent.at_mode("model", x, None)),
        (
            ValueError,
            "leading axes must be equal or 1",
            lambda: spec.require({"a": x, "b": torch.rand(3, 3).double()}, "a ... D, b ... D"),
        ),
        (ValueError, "mask must", lambda: scores.mask_score(x, ones)),
        (
            ValueError,
            "standard_error must",
            lambda: MaskCurve(torch.tensor([1, 2]), x[0, :2], -x[0, :2], num_features=2),
        ),
        (
            RuntimeError,
            "no mode after 1 Newton",
            lambda: grids.find_modes(
                lambda z: -z.square().square().sum(dim=1),
                torch.tensor([[0.0], [2.0]]).double(),
                max_steps=1,
            ),
        ),
        (
            ValueError,
            "masks_per_datum must",
            lambda: Godambe.of(GaussianFamily.ppca(torch.ones(3, 1).double(), 0.3)).law_efficiency(
                torch.ones(3).double() / 3, masks_per_datum=0
            ),
        ),
        (
            ValueError,
            "which leaves no noise",
            lambda: PPCA.fit_closed_form(torch.ones(5, 3).double(), latent_dim=1),
        ),
        (
            ValueError,
            r"log_joint\(z\)\[0\] is nan",
            lambda: grids.find_modes(lambda z: z.sum(dim=1) * math.nan, torch.zeros(2, 1).double()),
        ),
        (ValueError, "num_orders must", lambda: orders.draw(0, 3, generator=generator())),
        (TypeError, "score must", lambda: diffusion.block_elbo([-1.0, -2.0], 2)),
        (TypeError, "samples must", lambda: verdicts.mean_and_error([1.0, 2.0])),
        (DataNotFoundError, "labels of mnist", lambda: image_sets.labels("mnist", "test")),
        (ValueError, "num_features must", lambda: masks.subsets(0)),
        (ValueError, "num_features must", lambda: masks.all_masks(0, 1)),
        (
            ValueError,
            "num_features must",
            lambda: masks.sample_masks(2, 0, masks.UniformSize(), generator=generator()),
        ),
        (
            ValueError,
            "num_masks must",
            lambda: masks.UniformSize().sample(0, 3, generator=generator()),
        ),
        (
            TypeError,
            "order must be a torch.int64",
            lambda: masks.nested_masks(torch.tensor([0.0, 1.0])),
        ),
        (
            TypeError,
            "a mean and a log-variance",
            lambda: VAE(lambda x: (x, x, x), lambda z: z, num_features=1, latent_dim=1).encode(
                x[:, :1]
            ),
        ),
        (TypeError, "model must", lambda: estimators.exact_variance("model", x)),
        (
            TypeError,
            "model must",
            lambda: estimators.ImportanceConditional("model", 4, generator=generator()),
        ),
        (
            ValueError,
            "does not depend on the parameter 'b'",
            lambda: fit.maximize(
                {"a": torch.ones(2), "b": torch.ones(2)},
                lambda own, _: own["a"].clone(),
                num_epochs=1,
                learning_rate=0.1,
            ),
        ),
        (
            ValueError,
            "b must",
            lambda: fit.maximize(
                {"a": torch.ones(2), "b": torch.ones(3)},
                lambda own, _: own["a"] + own["b"].sum(),
                num_epochs=1,
                learning_rate=0.1,
            ),
        ),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()


def test_data_that_diverge_are_for_the_fit_to_name() -> None:
    """The posterior's doors let NaN through: a climb says at which epoch, and keeps what was before."""
    loadings = torch.ones(3, 1).double()
    posterior = gaussian.LowRankPosterior.of(loadings, torch.tensor(1.0).double(), masks.subsets(3))
    lost = torch.full((1, 3), math.nan).double()
    assert posterior.log_conditional(lost).isnan().any()
    assert posterior.mean_log_conditional(lost.T @ lost).isnan().any()
    grid, x = grids.gauss_hermite(1, 3), torch.ones(1, 3).double()
    assert objectives.mixture(lost[..., None], 0 * x, x, None, grid).isnan()
    assert diffusion.block_elbo(lost, 1).isnan()
    assert scores.mask_score(lost, torch.ones(1, 3).bool()).isnan()
    assert (
        GaussianProposal(lost, torch.eye(3).double()[None])
        .sample(2, generator=generator())
        .isnan()
        .all()
    )
    plain = VAE(lambda x: (x, x), lambda z: z, num_features=1, latent_dim=1)
    assert plain.decode(lost[:, :1].float()).isnan().all()
    moment = torch.eye(3).double()
    assert objectives.exact(lost.T, x.new_tensor(1.0), moment, masks.UniformSize()).isnan()


def test_a_probes_penalty_is_chosen_on_rows_it_was_not_fitted_to(monkeypatch) -> None:
    from sklearn import model_selection

    seen, search = [], model_selection.GridSearchCV
    monkeypatch.setattr(
        model_selection,
        "GridSearchCV",
        lambda *given, cv, **more: seen.extend(cv) or search(*given, cv=cv, **more),
    )
    y = torch.arange(24) % 2
    x = torch.randn(24, 1, generator=generator()) + y[:, None]
    autoencoders.probe(x, autoencoders.Labeled(x, y, torch.arange(24) >= 16))
    ((fitted, held),) = seen
    assert sorted([*fitted, *held]) == list(range(16)) and list(held) == [4, 9, 14]


def test_ranks_of_many_rows_correlate_one_by_one() -> None:
    from scipy import stats

    a, b = torch.rand(2, 5, 3, 5, generator=generator())
    found = autoencoders.rank_correlation(a, b)
    assert found.shape == (5, 3)
    for k in range(5):
        for j in range(3):
            own = stats.spearmanr(a[k, j], b[k, j]).statistic
            assert found[k, j].item() == pytest.approx(own, abs=1e-9)


def test_a_supervised_network_learns_what_it_did_not_see() -> None:
    """It looks along an axis that tells nothing, until the labels turn it."""

    class Blind(torch.nn.Linear):
        config = SimpleNamespace(hidden_size=1)

    network = Blind(2, 1, bias=False)
    with torch.no_grad():
        network.weight[:] = torch.tensor([[0.0, 0.1]])
    y = torch.arange(200) % 2
    x = torch.randn(200, 2, generator=generator())
    x[:, 0] += 6.0 * y
    of = autoencoders.Labeled(x, y, torch.arange(200) >= 100)
    # Of 100 test rows at chance 0.65 is three errors away; seen, the classes are six apart: 0.998.
    assert autoencoders.probe(network(x).detach(), of) < 0.65
    assert (
        autoencoders.supervised(network, of, 200, seed=1, features=lambda own, at: own(at)) > 0.95
    )


def test_labels_are_learned_by_their_cross_entropy(monkeypatch) -> None:
    class Seen(torch.nn.Linear):
        config = SimpleNamespace(hidden_size=1)

    told = []
    monkeypatch.setattr(fit, "descend", lambda _, loss, *__, **___: told.append(loss(0).item()))
    of = autoencoders.Labeled(torch.rand(40, 1), torch.arange(40) % 2, torch.arange(40) >= 20)
    autoencoders.supervised(Seen(1, 1), of, 4, seed=1, features=lambda own, x: own(x).detach())
    assert told == pytest.approx([math.log(2.0)])  # the layer starts at zero


def test_matrices_move_with_the_momentum_they_were_given(monkeypatch) -> None:
    seen = []

    class Watched(torch.optim.Muon):
        def step(self, closure=None):
            seen.extend(group["momentum"] for group in self.param_groups)
            return super().step(closure)

    second = []

    class Rest(torch.optim.AdamW):
        def step(self, closure=None):
            second.extend(group["betas"][1] for group in self.param_groups)
            return super().step(closure)

    monkeypatch.setattr(autoencoders, "Muon", Watched)
    monkeypatch.setattr(autoencoders, "AdamW", Rest)
    model = ViTMAE(networks.small_mae(8, 1, 4, width=16, seed=0), 0.1)
    before = {n: w.detach().clone() for n, w in model.network.named_parameters()}
    x = torch.rand(4, 1, 8, 8, generator=generator())
    given = {"batch_size": 2, "learning_rate": 1e-3, "matrix_rate": 0.02}
    autoencoders.train(model, x, 4, generator(1), **given)
    assert (seen, second) == ([0.95] * 4, [0.95] * 4)
    moved = {n for n, w in model.network.named_parameters() if not torch.equal(w, before[n])}
    assert {n for n, w in before.items() if w.ndim == 2 and "layer" in n} <= moved


def test_a_chain_starts_with_the_decoders_mean_where_it_does_not_see() -> None:
    seen = []

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.clone())
        return x[..., :1] * 0, x[..., :1] * 0

    model = VAE(encode, lambda z: 0 * z + torch.tensor([0.25, 0.75]), num_features=2, latent_dim=1)
    chain = estimators.GibbsConditional(model, 1, generator=generator(), corrected=False)
    chain.log_each(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]]))
    assert seen[0].flatten().tolist() == pytest.approx([1 / (1 + math.exp(-0.25)), 0.0])


def test_the_books_bert_is_its_networks_softmax() -> None:
    net = SymbolBERT(3, 4, 16, seed=1)
    x, mask = torch.tensor([[0, 2, 1, 1]]), torch.tensor([[True, False, True, False]])
    with torch.no_grad():
        said = net.network(input_ids=torch.tensor([[3, 2, 3, 1]])).logits[0].double().exp()
    wanted = [said[0, 0] / said[0].sum(), 1.0, said[2, 1] / said[2].sum(), 1.0]
    assert net.log_each(x, mask)[0].exp().tolist() == pytest.approx([float(p) for p in wanted])


def test_a_file_is_written_at_every_fifth_epoch_and_at_the_end(tmp_path: Path, monkeypatch) -> None:
    kept, save = [], fit._State.save
    monkeypatch.setattr(fit._State, "save", lambda self: (kept.append(self.done), save(self)))
    climb(path=tmp_path / "run")
    assert kept == [5, 10, 12]


@pytest.mark.parametrize(
    ("unknown", "frame"), [(1, [True, False, True, False]), (None, [True, True, True, False])]
)
def test_an_unknown_word_is_no_frame(unknown: int | None, frame: list[bool]) -> None:
    own = SimpleNamespace(all_special_ids=[0, 1, 2], unk_token_id=unknown)
    source = SimpleNamespace(log_tokens=torch.zeros_like)
    scorer = mpt_score.Scorer(source, tokenizer=own)
    assert scorer.is_frame(torch.tensor([0, 1, 2, 3])).tolist() == frame


def test_held_out_images_begin_where_training_ends() -> None:
    found = autoencoders.labeled("digits", 10, 4)
    assert found.test.tolist() == [False] * 10 + [True] * 4
    assert torch.equal(found.x[10:], image_sets.images("digits", "test").grid[:4].float())


def test_rates_of_the_probes_are_berts_the_half_and_maes() -> None:
    assert autoencoders.sizes_of(20) == [3, 10, 15]


def test_a_mean_of_what_is_no_number_is_none() -> None:
    mean, error = verdicts.mean_and_error(torch.tensor([1.0, math.nan]))
    assert mean.isnan() and error.isnan()


def test_a_grid_of_rates_is_sizes_over_coordinates() -> None:
    curve = MaskCurve(torch.tensor([1, 3, 4]), -torch.ones(3), torch.zeros(3), num_features=4)
    assert curve.mask_rate.tolist() == [0.25, 0.75, 1.0]


def test_values_left_out_in_one_context_only_are_missed() -> None:
    """A third value that has probability beside a zero, and none beside a one."""
    joint = torch.tensor([[0.1, 0.2, 0.1], [0.3, 0.3, 1e-9], [1e-9, 1e-9, 1e-9]]).double()
    model = JointTable(joint / joint.sum())
    with pytest.raises(ValueError, match=r"values 0..1 have 0.75 of p"):
        ConditionalTable.of(model, num_values=2)


@pytest.mark.parametrize(("heads", "batches"), [(4, [2, 2, 2, 2]), (8, [1] * 8)])
def test_attention_counts_in_what_goes_together(heads: int, batches: list[int]) -> None:
    config = SimpleNamespace(vocab_size=1, num_attention_heads=heads)
    network = SimpleNamespace(config=config)
    source = SimpleNamespace(network=network, log_tokens=torch.zeros_like)
    length = round((BATCH_BYTES / (12 * 8)) ** 0.5)  # where one row of eight heads fills it
    mask = torch.zeros(8, length, dtype=torch.bool)
    assert mpt_score.Scorer(source, max_tokens=10**9)._batches(mask) == batches


def test_a_module_without_a_configuration_is_a_function() -> None:
    class Coin(torch.nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return torch.full((*ids.shape, 2), -math.log(2.0))

    assert mpt_score.sentences(Coin(), [[0, 1, 1]]).log_score.item() == pytest.approx(
        -3 * math.log(2)
    )


def test_attention_of_the_modern_network_is_local_and_global_in_turn() -> None:
    config = networks.small_masked_lm(9, width=32, num_layers=4, seed=1).config
    turns = ["full_attention", "sliding_attention"] * 2
    assert (config.local_attention, config.layer_types, config.pad_token_id) == (32, turns, 0)


def test_six_pieces_are_a_vocabulary() -> None:
    assert "a" in tokens.train_tokenizer(["a a"], 6).get_vocab()


def test_a_curve_is_exact_unless_masks_were_drawn() -> None:
    one = torch.ones(1)
    assert repr(MaskCurve(one.long(), -one, 0 * one, 1).area()) == "-1.0000 nats (exact)"


@pytest.mark.parametrize(
    ("call", "passes"),
    [
        (mpt_score.sentences, {"num_masks": 32, "num_orders": 2}),
        (mpt_score.images, {"num_masks": 16, "num_replicates": 2}),
        (mpt_score.pairs, {"num_orders": 32}),
        (mpt_score.answers, {"num_orders": 8}),
    ],
)
def test_what_a_score_costs_unasked(call: Callable[..., object], passes: dict[str, int]) -> None:
    told = {name: each.default for name, each in inspect.signature(call).parameters.items()}
    assert {name: told[name] for name in passes} == passes and told["seed"] == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files here")
def test_a_written_file_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        files.write_json(tmp_path / "a.json", {})
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_last_seed_of_all_is_one() -> None:
    assert spec.require_seeds([0, 2**63 - 1]) == (0, 2**63 - 1)


def test_labels_are_the_files(monkeypatch) -> None:
    monkeypatch.setattr(image_sets, "local", Path)
    monkeypatch.setattr(image_sets, "_read_idx", lambda *_: [7, 0, 2])
    assert image_sets.labels("fashion_mnist", "test").tolist() == [7, 0, 2]
