from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from models import generator

from mpt_lml import checks, masks, objectives
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
    mask = masks.subsets(5)[index : index + 1]
    forms = family.mask_forms(mask)[0]
    moment = family.covariance.clone().requires_grad_()
    W = loadings().requires_grad_()
    (gradient,) = torch.autograd.grad(
        objectives.sampled(W, NOISE, moment, mask), W, create_graph=True
    )
    for q, step in enumerate(steps()):
        (slope,) = torch.autograd.grad((gradient * step).sum(), moment, retain_graph=True)
        symmetric = 0.5 * (slope + slope.mT)
        torch.testing.assert_close(forms[q], symmetric, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_variability_is_the_covariance_of_simulated_gradients(name: str) -> None:
    family = FAMILIES[name]
    every = masks.subsets(len(family.covariance))
    info, forms = Godambe.of(family), family.mask_forms(every)
    g = torch.Generator().manual_seed(8)
    count, size = 20_000, 2
    factor = torch.linalg.cholesky(family.covariance)
    x = torch.randn(count, len(factor), generator=g, **f64) @ factor.mT
    rows = (every.sum(dim=1) == size).nonzero().flatten()
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
    every = masks.subsets(len(family.covariance))
    by_mask, size = family.mask_forms(every), every.sum(dim=1)
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
        ones = torch.ones(6, **f64)
        torch.testing.assert_close(info.law_efficiency(law, ones), info.efficiency(1)[1])
        for number in (1, 3):
            found = info.law_efficiency(law, 7.0 * torch.ones(6, **f64), masks_per_datum=number)
            torch.testing.assert_close(found, info.efficiency(number)[1])

    @pytest.mark.parametrize("scale", [1e-300, 1e-170, 7.0, 1e170, 1e300])
    def test_weights_times_a_number_are_as_efficient(self, scale: float) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        law = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1], **f64)
        weights = torch.arange(1.0, 6.0, **f64)
        for number in (1, 3):
            expected = info.law_efficiency(law, weights, masks_per_datum=number)
            found = info.law_efficiency(law, scale * weights, masks_per_datum=number)
            torch.testing.assert_close(found, expected)

    def test_the_law_is_optimal(self) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        rms = info.gradient_rms()
        best = (rms.square() / (rms / rms.sum())).sum()
        other = torch.rand(50, 5, generator=torch.Generator().manual_seed(9), **f64) + 0.01
        assert ((rms.square() / (other / other.sum(1, True))).sum(dim=1) >= best - 1e-12).all()


class TestSomeSizes:
    """Information of some of the sizes 1, ..., D."""

    def test_a_law_of_them_is_one_of_all_sizes(self) -> None:
        """The others have probability 0: what a gradient is multiplied by there does not matter."""
        family = FAMILIES["ppca"]
        every, some = Godambe.of(family), Godambe.of(family, [4, 1])
        probabilities = torch.tensor([0.3, 0.7], **f64)
        weights = torch.tensor([2.0, 0.5], **f64)
        of_all, weights_of_all = torch.zeros(5, **f64), torch.ones(5, **f64)
        of_all[[3, 0]] = probabilities
        weights_of_all[[3, 0]] = weights
        for number in (1, 3):
            found = some.law_efficiency(probabilities, weights, masks_per_datum=number)
            expected = every.law_efficiency(of_all, weights_of_all, masks_per_datum=number)
            torch.testing.assert_close(found, expected)

    def test_a_gradient_is_as_noisy_as_among_all_sizes(self) -> None:
        family = FAMILIES["ppca"]
        expected = Godambe.of(family).gradient_rms()[[1, 4]]
        torch.testing.assert_close(Godambe.of(family, [2, 5]).gradient_rms(), expected)

    @pytest.mark.bad_input
    def test_the_weights_of_the_likelihood_need_all_sizes(self) -> None:
        for info in (
            Godambe.of(FAMILIES["ppca"], [1, 2]),
            Godambe.of(FAMILIES["ppca"], [1, 2], num_masks=4, generator=torch.Generator()),
        ):
            with pytest.raises(ValueError, match=r"weights must be given, for 2 of D = 5 sizes"):
                info.law_efficiency(torch.full((2,), 0.5, **f64))

    @pytest.mark.bad_input
    def test_no_size_is_given_twice(self) -> None:
        with pytest.raises(ValueError, match=r"sizes must differ, got \[1, 1, 2\]"):
            Godambe.of(FAMILIES["ar1"], [1, 1, 2])


class TestSinglePrecision:
    """The covariance rounds its last digit, and nothing else rounds."""

    @pytest.mark.parametrize("noise_variance", [0.3, 0.01])
    def test_differs_by_rounding(self, noise_variance: float) -> None:
        wide = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
        single = GaussianFamily.ppca(wide, noise_variance)
        info = Godambe.of(GaussianFamily(single.covariance.double(), single.directions.double()))
        found = Godambe.of(single)
        condition = torch.linalg.cond(info.sensitivity[:-1])
        # H, J and I are rounded: entries by 6e-8 of the largest, what their inverses weigh by more.
        rounding = 6e-8 * len(info.fisher) * condition
        for count in (1, None):
            expected = info.efficiency(count)[:-1]
            off = (found.efficiency(count)[:-1].double() / expected - 1).abs()
            assert (off < rounding).all()

    def test_full_masking_identifies_nothing(self) -> None:
        """Variances say nothing of the correlation, whose information is rounding of either sign."""
        family = FAMILIES["ar1"]
        directions = torch.cat([family.directions, family.covariance[None]])
        for seed in range(12):
            mix = torch.randn(2, 2, generator=torch.Generator().manual_seed(seed), **f64)
            mixed = torch.einsum("pq,qij->pij", mix, directions).float()
            single = GaussianFamily(family.covariance.float(), mixed)
            assert Godambe.of(single).efficiency(1).isnan().tolist() == [False] * 5 + [True]


@pytest.mark.bad_input
class TestByHand:
    @pytest.mark.parametrize("name", ["fisher", "sensitivity", "one_mask"])
    def test_a_negative_covariance_is_refused(self, name: str) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        with pytest.raises(ValueError, match=rf"{name} must be positive definite"):
            dataclasses.replace(info, **{name: -vars(info)[name]})

    def test_all_masks_do_not_vary_more_than_one(self) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        with pytest.raises(ValueError, match="one_mask.* must not be less than shared"):
            dataclasses.replace(info, shared=3.0 * info.shared)

    def test_covariances_of_two_sizes_are_transposes(self) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        shared = info.shared.clone()
        shared[0, 1] = 0.0
        with pytest.raises(ValueError, match="must be the transpose of"):
            dataclasses.replace(info, shared=shared)

    def test_there_are_no_more_sizes_than_coordinates(self) -> None:
        with pytest.raises(ValueError, match="num_features must be >= 5, got 4"):
            dataclasses.replace(Godambe.of(FAMILIES["ppca"]), num_features=4)

    def test_left_out_the_sizes_are_all(self) -> None:
        info = Godambe.of(FAMILIES["ppca"])
        by_hand = Godambe(info.fisher, info.sensitivity, info.shared, info.one_mask)
        uniform = torch.full((5,), 0.2, **f64)
        assert by_hand.law_efficiency(uniform) == info.law_efficiency(uniform)
        assert torch.equal(by_hand.gradient_rms(), info.gradient_rms())


class TestEpochs:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_the_law_of_epochs_is_the_information_of_the_objective_of_p_masks(
        self, name: str
    ) -> None:
        """Both sides from definitions: H and J of P masks by enumeration, and eff_P from eff_1."""
        family = FAMILIES[name]
        every = masks.subsets(len(family.covariance))[1:]
        size = every.sum(dim=1)
        weight = (1.0 / (len(family.covariance) * torch.bincount(size)[1:].double()))[size - 1]
        forms = family.mask_forms(every)
        mean = torch.einsum("s,sqij->qij", weight, forms)
        one = torch.einsum("s,spq->pq", weight, family.products(forms))
        fisher = Godambe.of(family).fisher
        torch.testing.assert_close(family.products(mean), fisher)
        uniform = masks.UniformSize().probabilities(len(family.covariance))
        first = Godambe.of(family).law_efficiency(uniform)
        for number in (1, 2, 5, 40):
            # Two of P masks of a datum share what all masks share: P J_1 + P (P - 1) J_all over P².
            variability = (number * one + number * (number - 1) * family.products(mean)) / number**2
            loss = torch.linalg.solve(fisher, variability).trace()
            law = 1.0 / (1.0 + (1.0 / first - 1.0) / number)
            torch.testing.assert_close(len(fisher) / loss, law)
            found = Godambe.of(family).law_efficiency(uniform, masks_per_datum=number)
            torch.testing.assert_close(found, law)

    def test_a_biased_weight_keeps_less_than_everything(self) -> None:
        info = Godambe.of(FAMILIES["ar1"])
        uniform, ones = masks.UniformSize().probabilities(6), torch.ones(6, **f64)
        ones[0] = 3.0
        values = [info.law_efficiency(uniform, w, masks_per_datum=10**8) for w in (None, ones)]
        assert values[0] > 1.0 - 1e-6 and values[1] < 0.99


class TestRandomMasks:
    def test_agree_with_the_enumeration(self) -> None:
        family, g = autoregressive(8, 0.8), torch.Generator().manual_seed(3)
        exact = Godambe.of(family, (2, 4, 6))
        drawn = [Godambe.of(family, (2, 4, 6), num_masks=400, generator=g) for _ in range(40)]
        for number in (1, 5, None):
            values = torch.stack([each.efficiency(number) for each in drawn])
            error = values.std(dim=0) / 40**0.5
            # H² / J from 400 masks is off by a term of order 1/400 of itself besides its noise.
            off = (values.mean(dim=0) - exact.efficiency(number)).abs()
            assert (off < 4 * error + 0.002).all(), number

    def test_a_few_are_unbiased(self) -> None:
        """With three masks their products with themselves would be a third of the whole."""
        family, g = autoregressive(6, 0.8), torch.Generator().manual_seed(5)
        drawn = [Godambe.of(family, (2, 4), num_masks=3, generator=g) for _ in range(300)]
        exact = Godambe.of(family, (2, 4))
        for name in ("sensitivity", "one_mask", "shared"):
            rows = torch.stack([getattr(each, name) for each in drawn])
            off = (rows.mean(dim=0) - getattr(exact, name)).abs()
            assert (off < 4 * rows.std(dim=0) / 300**0.5).all(), name

    def test_sizes_are_those_asked_for(self) -> None:
        every, some = Godambe.of(FAMILIES["equi"]), Godambe.of(FAMILIES["equi"], (2, 5))
        torch.testing.assert_close(some.shared, every.shared[[1, 4]][:, [1, 4]])
        torch.testing.assert_close(some.efficiency(3), every.efficiency(3)[[1, 4]])

    def test_a_long_chain_keeps_its_limit(self) -> None:
        """AR(1), D to infinity: blocks of masked places between two visible ones, exact."""
        phi, rate, length = 0.8, 0.5, 200
        sensitivity = variability = 0.0
        for block in range(1, 40):
            family, mask = autoregressive(block + 2, phi), torch.ones(1, block + 2).bool()
            mask[0, 0] = mask[0, -1] = False
            form = family.mask_forms(mask)[0] * block / (block + 2)
            inverse = torch.linalg.inv(family.covariance)
            score = 0.5 * inverse @ family.directions @ inverse
            often = (1 - rate) ** 2 * rate**block
            sensitivity += often / rate * family.products(form, score).item()
            variability += often / rate**2 * family.products(form).item()
        limit = sensitivity**2 / variability * (1 - phi**2) ** 2 / (1 + phi**2)
        g = torch.Generator().manual_seed(4)
        chain = autoregressive(length, phi)
        rows = [Godambe.of(chain, [100], num_masks=10, generator=g).efficiency(1) for _ in range(8)]
        values = torch.cat(rows)
        # The two ends have one neighbor: a share of a few places in 200 beside the noise.
        assert abs(values.mean() - limit) < 4 * values.std() / 8**0.5 + 0.02 * limit


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Godambe.of(autoregressive(13, 0.5)), r"2\^D masks.* in 1..12, got 13"),
        (
            lambda: GaussianFamily(torch.eye(3), torch.ones(2, 3, 3)),
            r"directions must be linearly independent, got 2 of rank 1",
        ),
        (
            lambda: Godambe.of(FAMILIES["ar1"]).law_efficiency(masks.FixedSize(2).probabilities(6)),
            r"probabilities must be positive where no weights are given, .* Give weights",
        ),
        (
            lambda: Godambe.of(FAMILIES["ar1"]).efficiency(0),
            r"masks_per_datum must be >= 1, got 0",
        ),
        (
            lambda: FAMILIES["ar1"].products(torch.ones(6, 6, **f64)),
            r"forms must have shape \(\.\.\., P, 6, 6\), got \(6, 6\)",
        ),
        *(
            (
                lambda weight=weight: Godambe.of(FAMILIES["ar1"]).law_efficiency(
                    torch.full((6,), 1 / 6, **f64), torch.full((6,), weight, **f64)
                ),
                "weights must be >= 0, and not all 0",
            )
            for weight in (0.0, -1.0)
        ),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# Of W = loadings_of_five(), sizes 1, 2 and 3, by 60 digits.
EFFICIENCY = {
    1e-1: (0.940915, 0.959723, 0.986780),
    1e-2: (0.942890, 0.940049, 0.967662),
    1e-3: (0.943174, 0.937285, 0.938466),
    1e-4: (0.943204, 0.937001, 0.931941),
    1e-5: (0.943207, 0.936972, 0.931213),
    # From here on within 1e-4 of the limit.
    1e-6: (0.9432, 0.9370, 0.9311),
    1e-7: (0.9432, 0.9370, 0.9311),
    1e-8: (0.9432, 0.9370, 0.9311),
}


def loadings_of_five() -> torch.Tensor:
    return torch.randn(5, 2, generator=torch.Generator().manual_seed(0), **f64)


def unless_refused(call):
    """What it returns, or None where it says that rounding would show."""
    try:
        return call()
    except ValueError as error:
        if "rounding may change" not in str(error):
            raise
        return None


class TestNarrow:
    """Small noise: of directions within the span of W masked scores tell a share σ² of all.

    H has an eigenvalue of σ² and J of σ⁴ there, in coordinates in which the Fisher information is 1.
    """

    @pytest.mark.parametrize("noise_variance", EFFICIENCY)
    def test_an_efficiency_is_right_or_refused(self, noise_variance: float) -> None:
        family = GaussianFamily.ppca(loadings_of_five(), noise_variance)
        for size, expected in enumerate(EFFICIENCY[noise_variance], start=1):
            found = unless_refused(Godambe.of(family, [size]).efficiency)
            if found is None:
                assert noise_variance < 1e-3
            else:
                assert abs(found.item() / expected - 1.0) < 1e-3

    @pytest.mark.parametrize("distance", [1e-6, 1e-8, 1e-10, 1e-12, 1e-13, 1e-14])
    def test_one_parameter_is_right_or_refused(self, distance: float) -> None:
        """Noise d·(1, ..., 5) of one factor: efficiency has a limit, from which it is off by order d."""

        def of(distance: float) -> Godambe:
            noise = torch.arange(1.0, 6.0, **f64).diag()
            family = GaussianFamily(1.0 + distance * noise, noise[None])
            return Godambe.of(family, [1, 2, 3, 4])

        found = unless_refused(of(distance).efficiency)
        if found is None:
            assert distance < 1e-8
        else:
            torch.testing.assert_close(found, of(1e-6).efficiency(), rtol=1e-3, atol=0)

    @pytest.mark.parametrize("small", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9])
    def test_matrices_by_hand_are_right_or_refused(self, small: float) -> None:
        """H = diag(1, h) and J = H², all of the information, turned: J has no digit of h² at 1e-8."""
        turn = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], **f64)
        size = torch.tensor([1.0, small], **f64)
        sensitivity = turn.mT @ (size[:, None] * turn)
        variability = turn.mT @ (size.square()[:, None] * turn)
        nothing = torch.zeros(1, 1, 2, 2, **f64)
        info = Godambe(torch.eye(2, **f64), sensitivity[None], nothing, variability[None])
        found = unless_refused(lambda: info.efficiency(1).item())
        assert small < 1e-4 if found is None else abs(found - 1.0) < 1e-3

    @pytest.mark.bad_input
    def test_rounding_by_hand_is_heeded(self) -> None:
        eye, nothing = torch.eye(2, **f64), torch.zeros(1, 1, 2, 2, **f64)
        info = Godambe(eye, 0.1 * eye[None], nothing, 0.01 * eye[None], rounding=1e-4)
        with pytest.raises(ValueError, match="within a share of 0.001, .* share of 4.0e-03"):
            info.efficiency(1)

    @pytest.mark.bad_input
    def test_a_covariance_that_is_hardly_definite(self) -> None:
        """Of rank 4 up to its last digits: rounding is no negative number, and is too much."""
        direction = torch.ones(1, 5, 5, **f64)
        for seed in range(60):
            factor = torch.randn(5, 4, generator=generator(seed), **f64)
            covariance = factor @ factor.mT + 1e-16 * torch.eye(5, **f64)
            refusals = "covariance must be positive definite|efficiencies must be known within"
            with pytest.raises(ValueError, match=refusals):
                Godambe.of(GaussianFamily(covariance, direction)).efficiency()

    def test_units_of_coordinates_and_parameters_do_not_matter(self) -> None:
        family = GaussianFamily.ppca(loadings_of_five(), 0.01)
        unit = torch.tensor([1e-2, 1.0, 1e2, 0.1, 10.0], **f64)
        of_parameter = torch.logspace(-2, 2, len(family.directions), **f64)[:, None, None]
        directions = of_parameter * family.directions * unit[:, None] * unit
        other = GaussianFamily(family.covariance * unit[:, None] * unit, directions)
        expected = Godambe.of(family)
        found = Godambe.of(other)
        torch.testing.assert_close(found.efficiency(), expected.efficiency(), equal_nan=True)
        torch.testing.assert_close(found.rounding, expected.rounding, rtol=1e-6, atol=0)

    @pytest.mark.bad_input
    def test_a_small_size_is_not_hidden_by_a_large_one(self) -> None:
        eye = torch.eye(2, **f64)
        sensitivity = torch.stack([eye, -1e-7 * eye])
        with pytest.raises(ValueError, match="sensitivity must be positive definite"):
            Godambe(eye, sensitivity, torch.zeros(2, 2, 2, 2, **f64), torch.stack([eye, eye]))


@pytest.mark.bad_input
def test_what_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "MAX_BYTES", 8 * 4**2 - 1
    )  # products of one parameter at four sizes
    family = autoregressive(4, 0.5)
    with pytest.raises(ValueError, match="covariances of 1 parameters at 4 sizes would take"):
        Godambe.of(family)
