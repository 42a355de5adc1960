from __future__ import annotations

import itertools

import pytest
import torch

from mpt_lml import masks, objectives
from mpt_lml.theory.godambe import GaussianFamily, Godambe

f64 = {"dtype": torch.float64}
NOISE = torch.tensor(0.3, **f64)


def loadings() -> torch.Tensor:
    return torch.randn(5, 2, generator=torch.Generator().manual_seed(5), **f64)


@pytest.fixture(scope="module")
def ppca() -> tuple[GaussianFamily, Godambe]:
    family = GaussianFamily.ppca(loadings(), 0.3)
    return family, Godambe.of(family)


def autoregressive(size: int, phi: float) -> GaussianFamily:
    lag = (torch.arange(size, **f64)[:, None] - torch.arange(size)).abs()
    return GaussianFamily(phi**lag, (lag * phi ** (lag - 1.0).clamp(min=0.0))[None])


FAMILIES = {
    "ppca": GaussianFamily.ppca(loadings(), 0.3),
    "ar1": autoregressive(6, 0.8),
    "equi": GaussianFamily(1.1 * torch.eye(6, **f64) - 0.1, (1.0 - torch.eye(6, **f64))[None]),
}


def steps() -> torch.Tensor:
    """The same orthonormal directions of W, found from ∂C numerically: δW = C'-preimage."""
    W, family = loadings(), FAMILIES["ppca"]
    # ∂C = δW Wᵀ + W δWᵀ is linear in δW: least squares with minimal norm leaves out rotations.
    basis = torch.eye(10, **f64).view(10, 5, 2)
    images = basis @ W.mT + W @ basis.mT
    solved = torch.linalg.pinv(images.flatten(1).mT) @ family.directions.flatten(1).mT
    return solved.mT.view(-1, 5, 2)


def test_directions_are_orthonormal_and_leave_out_the_rotation() -> None:
    flat = steps().flatten(1)
    assert len(flat) == 9
    torch.testing.assert_close(flat @ flat.mT, torch.eye(9, **f64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_sensitivity_is_the_hessian_of_the_objective(
    size: int, ppca: tuple[GaussianFamily, Godambe]
) -> None:
    family, info = ppca
    law = masks.FixedSize(size)

    def value(flat: torch.Tensor) -> torch.Tensor:
        return objectives.exact(flat.view(5, 2), NOISE, family.covariance, law)

    hessian = -torch.autograd.functional.hessian(value, loadings().flatten())
    flat = steps().flatten(1)
    torch.testing.assert_close(
        info.sensitivity[size - 1], flat @ hessian @ flat.mT, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("index", [1, 6, 21, 31])
def test_forms_are_the_derivative_of_the_objective(
    index: int, ppca: tuple[GaussianFamily, Godambe]
) -> None:
    """D s(A) is affine in the second moment; the slope of its gradient is F_A."""
    family, _ = ppca
    forms = family.mask_forms()
    mask = masks.subsets(5)[index : index + 1]
    moment = family.covariance.clone().requires_grad_()
    W = loadings().requires_grad_()
    (gradient,) = torch.autograd.grad(
        objectives.sampled(W, NOISE, moment, mask), W, create_graph=True
    )
    for q, step in enumerate(steps()):
        (slope,) = torch.autograd.grad((gradient * step).sum(), moment, retain_graph=True)
        symmetric = 0.5 * (slope + slope.mT)
        torch.testing.assert_close(forms[index, q], symmetric, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_variability_is_the_covariance_of_simulated_gradients(name: str) -> None:
    family = FAMILIES[name]
    info, forms = Godambe.of(family), family.mask_forms()
    g = torch.Generator().manual_seed(8)
    count, size = 20_000, 2
    factor = torch.linalg.cholesky(family.covariance)
    x = torch.randn(count, len(factor), generator=g, **f64) @ factor.mT
    rows = (masks.subsets(len(factor)).sum(dim=1) == size).nonzero().flatten()
    drawn = rows[torch.randint(len(rows), (count,), generator=g)]
    for form, expected in (
        (forms[drawn, 0], info.one_mask[size - 1, 0, 0]),
        (forms[rows, 0].mean(dim=0).expand(count, -1, -1), info.all_masks[size - 1, 0, 0]),
    ):
        center = (form * family.covariance).sum(dim=(1, 2))
        square = (torch.einsum("ni,nij,nj->n", x, form, x) - center).square()
        assert abs(square.mean() - expected) < 4 * square.std() / count**0.5


@pytest.mark.parametrize("name", FAMILIES)
def test_all_sizes_together_are_the_likelihood(name: str) -> None:
    """Proposition 1, differentiated: the mean over M of D·S's gradient form is that of log p."""
    family = FAMILIES[name]
    by_mask, size = family.mask_forms(), masks.subsets(len(family.covariance)).sum(dim=1)
    sizes = range(1, len(family.covariance) + 1)
    mean = torch.stack([by_mask[size == m].mean(dim=0) for m in sizes]).mean(dim=0)
    inverse = torch.linalg.inv(family.covariance)
    full = 0.5 * inverse @ family.directions @ inverse
    torch.testing.assert_close(mean, full, rtol=0, atol=1e-10)
    info = Godambe.of(family)
    torch.testing.assert_close(info.sensitivity.mean(dim=0), info.fisher, rtol=0, atol=1e-9)


class TestEfficiency:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_is_between_zero_and_one_and_grows_with_the_masks(self, name: str) -> None:
        info = Godambe.of(FAMILIES[name])
        rows = [info.efficiency(count)[:-1] for count in (1, 2, 10, None)]
        for few, many in itertools.pairwise(rows):
            assert (few < many).logical_or(torch.isclose(few, many)).all()
        assert (rows[0] > 0).all() and (rows[-1] <= 1 + 1e-12).all()
        torch.testing.assert_close(info.efficiency(10**9)[:-1], rows[-1])

    def test_masks_share_the_noise_between_masks(self) -> None:
        info = Godambe.of(FAMILIES["ar1"])
        between = info.one_mask - info.all_masks
        torch.testing.assert_close(info.variability(4), info.all_masks + between / 4)

    def test_full_masking_identifies_nothing(self) -> None:
        for name in FAMILIES:
            info = Godambe.of(FAMILIES[name])
            assert info.efficiency()[-1].isnan()

    def test_does_not_depend_on_the_parameters(self) -> None:
        family = FAMILIES["ppca"]
        mix = torch.randn(9, 9, generator=torch.Generator().manual_seed(2), **f64)
        other = GaussianFamily(
            family.covariance, torch.einsum("pq,qij->pij", mix, family.directions)
        )
        for count in (1, None):
            torch.testing.assert_close(
                Godambe.of(other).efficiency(count)[:-1], Godambe.of(family).efficiency(count)[:-1]
            )

    def test_one_parameter_by_hand(self) -> None:
        info = Godambe.of(FAMILIES["ar1"])
        h, j = info.sensitivity[:-1, 0, 0], info.all_masks[:-1, 0, 0]
        torch.testing.assert_close(info.efficiency()[:-1], h**2 / j / info.fisher[0, 0])

    def test_a_law_of_one_size_is_that_size(self) -> None:
        info = Godambe.of(FAMILIES["ar1"])
        law = masks.FixedSize(2).probabilities(6)
        assert abs(info.law_efficiency(law) - info.efficiency(1)[1].item()) < 1e-12

    @pytest.mark.parametrize("metric", ["euclidean", "fisher"])
    def test_the_law_is_optimal(self, metric: str) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        rms = info.gradient_rms(metric)
        best = (rms.square() / (rms / rms.sum())).sum()
        other = torch.rand(50, 5, generator=torch.Generator().manual_seed(9), **f64) + 0.01
        assert ((rms.square() / (other / other.sum(1, True))).sum(dim=1) >= best - 1e-12).all()

    def test_the_fisher_law_is_the_most_efficient_weighted_one(self) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        rms = info.gradient_rms("fisher")
        best = info.law_efficiency(rms / rms.sum())
        other = torch.rand(50, 5, generator=torch.Generator().manual_seed(9), **f64) + 0.01
        assert all(info.law_efficiency(law / law.sum()) <= best + 1e-12 for law in other)
        assert abs(best - 9 / rms.sum().item() ** 2) < 1e-12


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Godambe.of(autoregressive(13, 0.5)), r"2\^D subsets.* in 1..12, got 13"),
        (
            lambda: GaussianFamily(torch.eye(3), torch.ones(2, 3, 3)),
            r"directions must be linearly independent, got 2 of rank 1",
        ),
        (lambda: Godambe.of(FAMILIES["ar1"]).gradient_rms("l1"), r"metric must be.*got 'l1'"),
        (
            lambda: Godambe.of(FAMILIES["ar1"]).efficiency(0),
            r"masks_per_datum must be in >= 1, got 0",
        ),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
