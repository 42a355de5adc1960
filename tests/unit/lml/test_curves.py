from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator, random_ppca, random_table

from mpt_lml import PPCA, FromFunction, curves, estimators, masks
from mpt_lml.models.base import TractableModel
from mpt_lml.results import MaskCurve

MODELS = {"ppca": random_ppca(5, 2, seed=1), "table": random_table(2, 3, 2, 2, seed=2)}
MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def literal_score(model: TractableModel, x: torch.Tensor, num_masked: int) -> float:
    """S(x; M) as the formula is written, one mask and one coordinate at a time."""
    total, count = 0.0, 0
    for chosen in itertools.combinations(range(model.num_features), num_masked):
        mask = torch.zeros(1, model.num_features, dtype=torch.bool)
        mask[0, list(chosen)] = True
        values = model.log_conditional(x, mask)[0]
        total += sum(values[:, j].mean().item() for j in chosen) / num_masked
        count += 1
    return total / count


@MODEL
def test_exact_curve_is_the_definition(model: TractableModel) -> None:
    x = model.sample(5, generator=generator(1))
    curve = curves.exact_curve(model, x)
    expected = [literal_score(model, x, m) for m in range(1, model.num_features + 1)]
    assert curve.score.tolist() == pytest.approx(expected, abs=1e-12)
    assert (curve.standard_error == 0).all()


@MODEL
def test_telescoping_lemma(model: TractableModel) -> None:
    x = model.sample(5, generator=generator(2))
    exact, lemma = curves.exact_curve(model, x), curves.subset_curve(model, x)
    torch.testing.assert_close(exact.score, lemma.score, atol=1e-10, rtol=0)
    level = curves.subset_levels(model, x)
    assert level[0] == 0
    assert level[-1].item() == pytest.approx(model.log_marginal(x).mean().item(), abs=1e-10)
    partial = exact.partial_sums()
    torch.testing.assert_close(partial, (level[-1] - level).flip(0)[1:], atol=1e-10, rtol=0)


@MODEL
@pytest.mark.parametrize("scheme", ["independent", "nested"])
@pytest.mark.parametrize("tokens", ["all", "one"])
def test_sampled_curve_is_unbiased_with_an_honest_error(
    model: TractableModel, scheme: str, tokens: str
) -> None:
    x = model.sample(3, generator=generator(3))
    truth = curves.exact_curve(model, x)
    curve = curves.sampled_curve(
        model, x, 4000, generator=generator(4), scheme=scheme, targets=tokens
    )
    # At M = D every mask is the same: rounding is all that is left.
    error = curve.standard_error.clamp(min=1e-12)
    assert ((curve.score - truth.score).abs() <= 5 * error).all()


@MODEL
def test_a_sparse_grid_of_sizes(model: TractableModel) -> None:
    x = model.sample(3, generator=generator(3))
    sizes = [1, 3, model.num_features]
    curve = curves.sampled_curve(model, x, 2000, generator=generator(5), sizes=sizes)
    assert curve.num_masked.tolist() == sizes
    truth = curves.exact_curve(model, x).score[[m - 1 for m in sizes]]
    assert ((curve.score - truth).abs() <= 5 * curve.standard_error.clamp(min=1e-12)).all()
    with pytest.raises(ValueError, match="need every size"):
        curve.partial_sums()


def test_nested_curve_states_the_error_of_its_area() -> None:
    model = MODELS["ppca"]
    x = model.sample(20, generator=generator(6))
    area = curves.sampled_curve(model, x, 2000, generator=generator(7), scheme="nested").area()
    theory = math.sqrt(estimators.exact_variance(model, x, "nested") / 2000)
    # A sample standard deviation of 2000 draws has relative error 1.6 %; 8 % is five of them.
    assert area.standard_error == pytest.approx(theory, rel=0.08)


@MODEL
@pytest.mark.parametrize("sizes", [None, [2, 4], [1, 3]])
def test_a_nested_area_is_a_mean_over_orders(model: TractableModel, sizes) -> None:
    """Each order is a curve of its own; areas of independent orders spread as a sample does."""
    x = model.sample(4, generator=generator(6))
    nested = {"scheme": "nested", "sizes": sizes}
    curve = curves.sampled_curve(model, x, 30, generator=generator(7), **nested)
    of_each_order = []
    for score in curve.each.T:
        of_order = MaskCurve(curve.num_masked, score, 0 * score, curve.num_features)
        of_each_order.append(float(of_order.area()))
    areas = torch.tensor(of_each_order, dtype=torch.float64)
    assert curve.area() == pytest.approx(areas.mean().item(), abs=1e-12)
    error = areas.std().item() / math.sqrt(30)
    # Areas of size 10 are rounded at 1e-15, their spread over orders is about 0.1.
    assert curve.area().standard_error == pytest.approx(error, rel=1e-10)


def test_what_an_order_does_not_score_may_be_impossible() -> None:
    def log_values(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        probabilities = torch.full((*x.shape, 2), 0.5, dtype=torch.float64)
        probabilities[mask.all(dim=1), 0] = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return probabilities.log()

    model = FromFunction(log_values, 2)
    x = torch.zeros(1, 2).long()
    for seed in range(20):
        ranks = masks.sample_ranks(1, 2, generator=generator(seed))[0]
        if ranks[0] < ranks[1]:  # with both hidden, the second is the one that is scored
            curve = curves.sampled_curve(
                model, x, 1, generator=generator(seed), targets="one", sizes=[2]
            )
            assert curve.score.item() == pytest.approx(math.log(0.5))


def test_running_area_is_the_area_after_each_mask() -> None:
    model = MODELS["ppca"]
    x = model.sample(4, generator=generator(8))
    values = curves.sampled_curve(model, x, 6, generator=generator(9)).each
    running = curves.running_area(values)
    for count in range(1, 7):
        again = values[:, :count].mean(dim=1).sum()
        assert running[count - 1].item() == pytest.approx(again.item(), abs=1e-12)
    curve = curves.sampled_curve(model, x, 6, generator=generator(9))
    assert running[-1].item() == pytest.approx(curve.area(), abs=1e-12)


def test_size_scores_of_given_masks() -> None:
    model = MODELS["ppca"]
    x = model.sample(4, generator=generator(8))
    mask = torch.stack([masks.all_masks(5, 2), masks.all_masks(5, 3)])
    value = curves.size_scores(model, x, mask)
    assert value.shape == (2, 10)
    score = curves.exact_curve(model, x).score
    torch.testing.assert_close(value.mean(dim=1), score[1:3], atol=1e-12, rtol=0)


def test_marginals_too_large_for_their_differences_are_refused() -> None:
    model = PPCA(torch.ones(4, 1), torch.tensor(0.1))
    near = torch.tensor([[1.0, -1.0, 2.0, 0.5]])
    difference = curves.subset_curve(model, near).score - curves.exact_curve(model, near).score
    assert difference.abs().max() < 1e-5
    with pytest.raises(ValueError, match="nats of rounding in their differences. Use exact_curve"):
        curves.subset_curve(model, 1e4 * near)
    wide = PPCA(model.loadings.double(), model.noise_variance.double())
    far = 1e4 * near.double()
    assert torch.allclose(
        curves.subset_curve(wide, far).score, curves.exact_curve(wide, far).score, rtol=1e-9
    )


def test_a_difference_has_the_rounding_of_the_largest_level() -> None:
    """Six independent coordinates: each has a sixth of the nats whose rounding it takes."""
    model = PPCA(torch.zeros(6, 0), torch.tensor(1.0))
    far = torch.full((1, 6), 300.0)
    with pytest.raises(ValueError, match="nats of rounding in their differences"):
        curves.subset_curve(model, far)


@pytest.mark.bad_input
def test_a_size_is_asked_for_once() -> None:
    model = random_ppca(4, 2)
    with pytest.raises(ValueError, match=r"sizes must be .* and increase, got \[1, 2, 2\]"):
        curves.sampled_curve(
            model, torch.ones(1, 4).double(), 2, generator=generator(), sizes=[1, 2, 2]
        )


def test_what_is_not_refused_has_its_digits() -> None:
    """All loadings are 1 and σ² is small: the first coordinate is far off, the others follow it.

    Given n others, all of value a, x_j is normal with mean a n/(n + σ²) and variance
    σ² (n + 1 + σ²)/(n + σ²).
    """
    num_features, noise_variance = 4, 1e-3
    loadings = torch.ones(num_features, 1)
    num_observed = torch.arange(num_features - 1, -1, -1).double()
    bottom = num_observed + noise_variance
    variance = noise_variance * (bottom + 1) / bottom
    far = torch.full((1, num_features), 1e3)
    with pytest.raises(ValueError, match="rounding in their differences"):
        curves.subset_curve(PPCA(loadings, noise_variance), far)
    near = 0.01 * far
    residual = 10.0 * noise_variance / bottom
    expected = -0.5 * (torch.log(2 * math.pi * variance) + residual.square() / variance)
    # As documented: so many nats a coordinate, or a share of a score that is large.
    for dtype, nats, share in ((torch.float64, 1e-8, 1e-10), (torch.float32, 1e-3, 2e-7)):
        model = PPCA(loadings.to(dtype), noise_variance)
        score = curves.subset_curve(model, near.to(dtype)).score.double()
        torch.testing.assert_close(score, expected, atol=nats * num_features, rtol=share)
