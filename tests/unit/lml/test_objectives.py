from __future__ import annotations

import pytest
import torch
from models import generator, random_bernoulli, random_ppca

from mpt_lml import PPCA, curves, grids, masks, objectives

EXACT = 1e-10
NOISE = torch.tensor(0.3, dtype=torch.float64)


def batch(num_features: int = 6, latent_dim: int = 2, runs: int = 3) -> torch.Tensor:
    shape = (runs, num_features, latent_dim)
    return torch.randn(shape, generator=generator(1), dtype=torch.float64)


def moment_of(model: PPCA) -> torch.Tensor:
    return objectives.second_moment(model.sample(40, generator=generator(2)) - model.mean)


def test_a_batch_is_its_models_one_by_one() -> None:
    x = random_ppca(6, 2).sample(30, generator=generator(2))
    moment, loadings = objectives.second_moment(x), batch()
    noise = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    mask = masks.sample_masks(9, 6, masks.UniformSize(), generator=generator(3))
    own = torch.stack([mask, mask.roll(1, 1), mask.roll(2, 1)])
    together = objectives.mask_scores(loadings, noise, moment, own)
    lml = objectives.log_marginal(loadings, noise, moment)
    curve = objectives.curve(loadings, noise, moment)
    for b in range(3):
        model = PPCA(loadings[b], noise[b])
        alone = curves.size_scores(model, x, own[b][None])[0]
        torch.testing.assert_close(together[b], alone, atol=EXACT, rtol=0)
        assert lml[b].item() == pytest.approx(model.log_marginal(x).mean().item(), abs=EXACT)
        exact = curves.exact_curve(model, x).score
        torch.testing.assert_close(curve[b], exact, atol=EXACT, rtol=0)


def test_uniform_sizes_give_the_marginal_likelihood() -> None:
    moment, loadings = moment_of(random_ppca(6, 2)), batch()
    area = objectives.exact(loadings, NOISE, moment, masks.UniformSize())
    lml = objectives.log_marginal(loadings, NOISE, moment)
    torch.testing.assert_close(area, lml, atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    "law", [masks.FixedSize(2), masks.FixedRate(0.5), masks.BernoulliRate(0.3)]
)
def test_exact_objective_is_the_weighted_curve(law: masks.SizeLaw) -> None:
    moment, loadings = moment_of(random_ppca(6, 2)), batch()
    expected = 6 * objectives.curve(loadings, NOISE, moment) @ law.probabilities(6)
    value = objectives.exact(loadings, NOISE, moment, law)
    torch.testing.assert_close(value, expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize("law", [masks.FixedSize(2), masks.UniformSize(), masks.BernoulliRate(0.3)])
def test_sampled_objective_is_unbiased(law: masks.SizeLaw) -> None:
    moment, loadings = moment_of(random_ppca(6, 2)), batch(runs=1)[0]
    g = generator(5)
    drawn = [masks.stratified_masks(6, 6, law, generator=g) for _ in range(1000)]
    draws = objectives.sampled(loadings.expand(1000, -1, -1), NOISE, moment, torch.stack(drawn))
    assert draws.shape == (1000,)
    expected = objectives.exact(loadings, NOISE, moment, law)
    assert abs(draws.mean() - expected) <= 5 * draws.std() / 1000**0.5


def test_stratified_uniform_is_every_size_once() -> None:
    for seed in range(20):
        mask = masks.stratified_masks(7, 7, masks.UniformSize(), generator=generator(seed))
        assert mask.sum(dim=1).tolist() == [1, 2, 3, 4, 5, 6, 7]
        fixed = masks.stratified_masks(7, 7, masks.FixedSize(3), generator=generator(seed))
        assert fixed.sum(dim=1).tolist() == [3] * 7


def test_stratified_sizes_follow_the_law() -> None:
    law, g = masks.BernoulliRate(0.3), generator(3)
    sizes = torch.stack([law.stratified(5, 6, generator=g) for _ in range(2000)])
    seen = torch.bincount(sizes.flatten(), minlength=7)[1:] / sizes.numel()
    expected = law.probabilities(6)
    # Stratification only lowers the variance of an independent draw.
    error = (expected * (1 - expected) / sizes.numel()).sqrt()
    assert ((seen - expected).abs() <= 5 * error).all()


@pytest.mark.parametrize("kind", ["exact", "sampled", "log_marginal"])
def test_gradients_agree_with_finite_differences(kind: str) -> None:
    moment = moment_of(random_ppca(5, 2))
    loadings = batch(5, 2, runs=2).requires_grad_()
    log_noise = torch.tensor([-1.0, 0.3], dtype=torch.float64, requires_grad=True)
    mask = masks.sample_masks(7, 5, masks.UniformSize(), generator=generator(4))

    def value(w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        if kind == "exact":
            return objectives.exact(w, t.exp(), moment, masks.FixedSize(2))
        if kind == "sampled":
            return objectives.sampled(w, t.exp(), moment, mask)
        return objectives.log_marginal(w, t.exp(), moment)

    assert torch.autograd.gradcheck(value, (loadings, log_noise), atol=1e-6, rtol=0)


def test_closed_form_with_known_noise_is_the_maximum_over_the_loadings() -> None:
    x = random_ppca(6, 2).sample(100, generator=generator(6))
    best = PPCA.fit_closed_form(x, 2, noise_variance=0.3, mean=torch.zeros(6).double())
    moment = objectives.second_moment(x)
    loadings = best.loadings.clone().requires_grad_()
    value = objectives.log_marginal(loadings, NOISE, moment)
    (gradient,) = torch.autograd.grad(value, loadings)
    assert gradient.abs().max() < 1e-10
    assert value.item() == pytest.approx(best.log_marginal(x).mean().item(), abs=EXACT)
    for seed in range(5):
        step = 0.05 * torch.randn(6, 2, generator=generator(seed), dtype=torch.float64)
        assert objectives.log_marginal(best.loadings + step, NOISE, moment) < value


@pytest.mark.bad_input
class TestRefused:
    def test_exact_objective_that_does_not_fit(self) -> None:
        with pytest.raises(ValueError, match=r"D = 19.*objectives\.sampled"):
            objectives.exact(batch(19), NOISE, torch.eye(19).double(), masks.UniformSize())

    def test_a_size_that_these_data_do_not_have(self) -> None:
        with pytest.raises(ValueError, match=r"1\.\.6, got 7"):
            objectives.exact(batch(), NOISE, torch.eye(6).double(), masks.FixedSize(7))
        with pytest.raises(ValueError, match=r"1\.\.6, got 7"):
            masks.stratified_masks(6, 6, masks.FixedSize(7), generator=generator())

    @pytest.mark.parametrize("name", ["log_marginal", "sampled", "exact", "curve"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_moment_that_is_none(self, name: str, dtype: torch.dtype) -> None:
        more = {"sampled": [masks.all_masks(6, 2)], "exact": [masks.UniformSize()]}.get(name, [])

        def value(moment: torch.Tensor) -> torch.Tensor:
            call = getattr(objectives, name)
            return call(batch().to(dtype), NOISE.to(dtype), moment.to(dtype), *more)

        moment = torch.eye(6)
        moment[0, 1] = 0.01
        with pytest.raises(ValueError, match=r"moment and its transpose differ by 0\.01"):
            value(moment)
        moment = torch.eye(6)
        moment[2, 2] = -0.01
        with pytest.raises(ValueError, match=r"moment has the eigenvalue -0\.01"):
            value(torch.stack([torch.eye(6), moment, torch.eye(6)]))
        moment[2, 2] = torch.nan
        with pytest.raises(ValueError, match=r"moment must be finite, but moment\[2, 2\] is nan"):
            value(moment)

    def test_a_moment_that_is_not_symmetric_has_no_scores(self) -> None:
        """The masks read its rows and not its columns: half of it would count twice."""
        mask = masks.subsets(6)[1:]
        moment = torch.eye(6).double()
        moment[0, 1] = 0.01
        for each in (moment, torch.stack([torch.eye(6).double(), moment, moment])):
            with pytest.raises(ValueError, match=r"moment and its transpose differ by 0\.01"):
                objectives.mask_scores(batch(), NOISE, each, mask)

    def test_rounding_is_no_reason(self) -> None:
        """One datum of 200 coordinates: all but one eigenvalue are 0, some come out negative."""
        x = 1e3 * torch.randn(1, 200, generator=generator())
        moment = objectives.second_moment(x)
        assert torch.linalg.eigvalsh(moment).min() < 0
        for each in (moment, moment.double(), 0 * moment, 1e-30 * moment):
            w, noise = torch.zeros(200, 1).to(each), torch.tensor(1.0).to(each)
            assert objectives.log_marginal(w, noise, each).isfinite()

    def test_pixels_that_are_neither_0_nor_1(self) -> None:
        w, b, x = torch.zeros(1, 2, 1), torch.zeros(1, 2), torch.tensor([[0.0, 1.0], [1.0, 0.3]])
        c, z = torch.zeros(1, 1), torch.zeros(1, 2, 1)
        grid = grids.trapezoid(1, 9).to(w)
        calls = {
            "mixture": lambda x: objectives.mixture(w, b, x, None, grid),
            "linear_elbo": lambda x: objectives.linear_elbo(w, b, w.mT, c, c, x, z),
        }
        for name, call in calls.items():
            assert call(x.round()).isfinite().all(), name
            for value in (0.3, 7.0, torch.inf, torch.nan):
                other = x.round()
                other[1, 1] = value
                with pytest.raises(ValueError, match=r"0 or 1 .* x\[1, 1\] is"):
                    call(other)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(("num_data", "num_masks"), [(7, 3), (8, 5), (3, 5)])
def test_every_datum_counts_alike_in_parts_that_are_not(
    num_data: int, num_masks: int, block: bool
) -> None:
    """P does not divide N, or is larger: some parts have one datum less, or none at all."""
    model = random_bernoulli(4, 1, 12)
    x = model.sample(num_data, generator=generator(1))
    mask = masks.sample_masks(num_masks, 4, masks.UniformSize(), generator=generator(2))
    part_of_datum = [p for p, part in enumerate(x.tensor_split(num_masks)) for _ in part]
    own = mask[part_of_datum]
    if block:
        scores = model.log_subset_marginal(x, own).diagonal() / own.sum(dim=1)
    else:
        scores = model.log_each(x, own).sum(dim=1) / own.sum(dim=1)
    batch = (model.loadings[None], model.offset[None])
    found = objectives.mixture(*batch, x, mask[None], model.grid, block=block)
    torch.testing.assert_close(found, 4 * scores.mean()[None], atol=EXACT, rtol=0)


@pytest.mark.bad_input
def test_every_model_is_given_its_own_masks() -> None:
    grid, x = grids.trapezoid(1, 9), torch.ones(2, 2).double()
    loadings, offset = torch.zeros(2, 2, 1).double(), torch.zeros(2, 2).double()
    mask = torch.tensor([[[True, False]]])
    with pytest.raises(ValueError):
        objectives.mixture(loadings, offset, x, mask, grid)
    with pytest.raises(ValueError):
        objectives.mixture(loadings, offset[:1], x, None, grid)
