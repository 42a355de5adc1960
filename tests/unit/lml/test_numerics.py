"""Precision: what autocast may not touch, devices without double precision, the last digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from models import generator, random_bernoulli, random_hmm
from other_device import MPS, OtherDevice
from torch import Tensor

from mpt_lml import (
    HMM,
    PPCA,
    BernoulliPCA,
    GridConditional,
    estimators,
    fit,
    gaussian,
    grids,
    masks,
    numerics,
    objectives,
    orders,
)
from mpt_lml.models import vae
from mpt_lml.models.base import FromFunction, TractableModel
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.models.vae import LatentVariableModel
from mpt_lml.numerics import LOG_ZERO, double, log_or_zero, log_sum, softplus
from mpt_lml.theory import chains, diffusion, rates
from mpt_lml.theory.godambe import GaussianFamily, Godambe

MASK = masks.sample_masks(4, 6, masks.UniformSize(), generator=generator(1))


def models() -> dict[str, TractableModel]:
    hmm, bernoulli = random_hmm(3, 4, 6), random_bernoulli(6, 1, 9)
    loadings = torch.randn(6, 2, generator=generator(2))
    return {
        "PPCA": PPCA(loadings, 0.2, torch.ones(6)),
        "HMM": HMM(hmm.initial.float(), hmm.transition.float(), hmm.emission.float(), 6),
        "BernoulliPCA": BernoulliPCA(bernoulli.loadings.float(), bernoulli.offset.float()),
        "ConjugateRegression": ConjugateRegression(loadings),
    }


def answers(model: TractableModel) -> list[Tensor]:
    x = model.sample(4, generator=generator(3))
    return [
        x,
        model.log_marginal(x),
        model.log_subset_marginal(x, MASK),
        model.mean_log_subset_marginal(x, MASK),
        model.log_each(x, MASK),
        model.log_conditional(x, MASK),
        model.mean_log_conditional(x, MASK),
    ]


@pytest.mark.parametrize("name", models())
def test_closed_forms_do_not_change(name: str) -> None:
    model = models()[name]
    expected = answers(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = answers(model)
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


def test_objectives_do_not_change() -> None:
    x = torch.randn(40, 6, generator=generator(4))
    loadings, noise = torch.randn(6, 2, generator=generator(2)), torch.tensor(0.2)

    def values() -> list[Tensor]:
        moment = objectives.second_moment(x)
        return [
            moment,
            objectives.log_marginal(loadings, noise, moment),
            objectives.sampled(loadings, noise, moment, MASK),
            objectives.exact(loadings, noise, moment, masks.UniformSize()),
            objectives.curve(loadings, noise, moment),
        ]

    expected = values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = values()
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def theory() -> dict[str, Callable[[], Iterable[Tensor]]]:
    """Closed forms without a model, of numbers in single precision."""
    transition = torch.randn(5, 5, generator=generator(6)).softmax(dim=1)
    direction = torch.randn(5, 5, generator=generator(7))
    slope = transition * (direction - (transition * direction).sum(dim=1, keepdim=True))
    loadings = torch.randn(6, 2, generator=generator(2))
    family = GaussianFamily.ppca(loadings, 0.3)
    information = Godambe.of(family)
    uniform = torch.full((6,), 1 / 6)
    score = -torch.rand(6, generator=generator(8))
    time = torch.tensor([0.2, 0.7])
    log_probability = -9.0 * torch.rand(5, 3, generator=generator(9))
    return {
        "markov_blocks": lambda: chains.markov_blocks(transition, slope, 9),
        "ppca": lambda: vars(GaussianFamily.ppca(loadings, 0.3)).values(),
        "mask_forms": lambda: [family.mask_forms(MASK)],
        "products": lambda: [family.products(family.directions)],
        "Godambe.of": lambda: vars(Godambe.of(family)).values(),
        "random masks": lambda: vars(
            Godambe.of(family, [2, 3], num_masks=3, generator=generator(1))
        ).values(),
        "efficiency": lambda: [information.efficiency(2), information.gradient_rms()],
        "law_efficiency": lambda: [information.law_efficiency(uniform, masks_per_datum=2)],
        "best_law": lambda: information.best_law(),
        "diffusion": lambda: [
            diffusion.bernstein(score, time),
            diffusion.nelbo(score, torch.square),
            diffusion.step_elbo(score, torch.square, 3),
            diffusion.block_elbo(score, 3),
            diffusion.schedule_derivative(torch.square, time),
        ],
        "rates": lambda: [
            rates.crossover(score.sort(descending=True).values),
            rates.chain_crossover(torch.arange(1.0, 90.0).log()),
            rates.random_loadings_curve(9, 2, 0.2),
        ],
        "mixture_bounds": lambda: orders.mixture_bounds(log_probability),
    }


@pytest.mark.parametrize("name", theory())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_theory_does_not_change(name: str, dtype: torch.dtype) -> None:
    expected = list(theory()[name]())
    with torch.autocast("cpu", dtype=dtype):
        found = list(theory()[name]())
    for got, wanted in zip(found, expected, strict=True):
        if isinstance(wanted, Tensor):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        else:
            assert got == wanted


PIXELS = (torch.randn(4, 6, generator=generator(6)) > 0).float()
LATENTS = torch.randn(4, 2, generator=generator(7))


def of_a_decoder(model: LatentVariableModel, x: Tensor) -> list[Tensor]:
    return [
        model.decode(LATENTS),
        model.log_factors(x, LATENTS),
        model.log_table(x, LATENTS),
        model.log_joint(x, LATENTS),
        model.sample_given(LATENTS, generator=generator(8)),
    ]


def of_bernoulli_pca() -> list[Tensor]:
    model = BernoulliPCA(torch.randn(6, 2, generator=generator(2)), torch.ones(6))
    batch = (model.loadings[None], model.offset[None], PIXELS)
    encoder = (model.loadings.mT[None], torch.ones(1, 2), torch.zeros(1, 2))
    return [
        *of_a_decoder(model, PIXELS),
        model.posterior_weights(PIXELS, MASK),
        model.adaptive_log_marginal(PIXELS),
        GridConditional(model, model.grid).log_conditional(PIXELS, MASK),
        objectives.mixture(*batch, None, model.grid),
        objectives.mixture(*batch, MASK[None], model.grid),
        objectives.mixture(*batch, MASK[None], model.grid, block=True),
        objectives.linear_elbo(*batch[:2], *encoder, PIXELS, LATENTS[None]),
    ]


def of_modes() -> list[Tensor]:
    """Of a normal log-density whose precision is a product of matrices."""
    w = torch.randn(6, 2, generator=generator(2))

    def log_joint(z: Tensor) -> Tensor:
        return z.sum(dim=-1) - 0.5 * (z @ w.mT).square().sum(dim=-1)

    return list(grids.find_modes(log_joint, LATENTS, tolerance=1e-3))


def of_gaussians() -> list[Tensor]:
    x, noise = torch.randn(4, 6, generator=generator(4)), torch.tensor(0.2)
    model = PPCA(torch.randn(6, 2, generator=generator(2)), noise, torch.ones(6))
    fitted = PPCA.fit_closed_form(x, 2)
    given = gaussian.LowRankPosterior.of(model.loadings, noise, ~MASK)
    return [
        model.covariance,
        *model.posterior(x),
        *given.mean_and_residual(x),
        given.variance(),
        fitted.loadings,
        fitted.noise_variance,
        gaussian.log_density(x, model.mean, model.covariance),
        *gaussian.condition_dense(x, model.mean, model.covariance, MASK[0]),
        gaussian.divergence(model.covariance, 2 * model.covariance),
        objectives.mask_scores(model.loadings, noise, objectives.second_moment(x), MASK),
    ]


def of_dense_networks() -> list[Tensor]:
    plain = vae.dense_parameters(6, [5], 2, generators=[generator(1)])
    model, noise, hidden = vae.dense_model(plain, 0), LATENTS[None], MASK[None]
    return [
        *of_a_decoder(model, PIXELS),
        *model.encode(PIXELS),
        objectives.elbo(plain, PIXELS, noise, 0.3),
        objectives.refill(plain, PIXELS, hidden, noise[None]),
        objectives.recursive(plain, PIXELS, hidden, PIXELS[None], noise[None], 0.3),
    ]


@pytest.mark.parametrize(
    "values",
    [of_bernoulli_pca, of_modes, of_gaussians, of_dense_networks],
    ids=lambda f: f.__name__,
)
def test_nothing_that_is_not_a_users_network_changes(values: Callable[[], list[Tensor]]) -> None:
    expected = values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = values()
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


def test_a_network_keeps_what_its_user_has_chosen() -> None:
    layer, seen = torch.nn.Linear(6, 6 * 3), []

    def log_values(x: Tensor, mask: Tensor) -> Tensor:
        output = layer(x.masked_fill(mask, 0).float())
        seen.append(output.dtype)
        return output.float().unflatten(-1, (6, 3)).log_softmax(dim=-1)

    x = torch.randint(3, (4, 6), generator=generator(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = FromFunction(log_values, 6).log_each(x, MASK)
    assert set(seen) == {torch.bfloat16}
    assert value.dtype == torch.float32


def test_the_sentence_names_the_device_and_the_remedy() -> None:
    with OtherDevice(MPS) as other:
        values = torch.ones(2).to(other.device)
        with pytest.raises(TypeError, match=r"the device mps:0 has no double precision.*\.cpu\(\)"):
            double(values)


def test_a_crossover_needs_no_double_precision() -> None:
    score = torch.tensor([0.0, -1.0, -5.0])
    with OtherDevice(MPS) as other:
        there = rates.crossover(score.to(other.device)).item()
    assert there == rates.crossover(score).item()


@pytest.mark.parametrize(("total", "size", "budget"), [(5, 1, 2), (5, 3, 2), (0, 1, 9), (7, 2, 9)])
def test_chunks_cover_all_within_the_budget(total: int, size: int, budget: int) -> None:
    slices = list(numerics.chunks(total, size, budget))
    assert [i for some in slices for i in range(total)[some]] == list(range(total))
    sizes = [some.stop - some.start for some in slices]
    assert all(one == max(1, budget // size) for one in sizes[:-1])
    assert all(one * size <= max(budget, size) for one in sizes)


def test_a_softplus_keeps_its_last_digit() -> None:
    logits = torch.linspace(-45, 45, 91, dtype=torch.float64)
    exact = [math.log1p(math.exp(-abs(logit))) + max(logit, 0.0) for logit in logits.tolist()]
    torch.testing.assert_close(
        softplus(logits), torch.tensor(exact, dtype=torch.float64), atol=1e-14, rtol=0
    )


def test_a_sum_of_logarithms_is_relative_to_its_largest_term() -> None:
    log_3 = math.log(3.0)
    far = 1e6  # exp of it overflows, and of its negative underflows
    columns = [[log_3, 0.0, LOG_ZERO], [far, far, far - 1e3], [-far, -far + log_3, 2 * LOG_ZERO]]
    terms = torch.tensor(columns, dtype=torch.float64)
    expected = [math.log(4.0), far + math.log(2.0), -far + math.log(4.0)]
    torch.testing.assert_close(log_sum(terms, 1), terms.new_tensor(expected), atol=1e-9, rtol=0)
    torch.testing.assert_close(log_sum(terms.T[:, None], 0)[0], log_sum(terms, 1), atol=0, rtol=0)
    assert log_sum(terms[:, :1], 1).equal(terms[:, 0])


def test_the_logarithm_of_0_is_a_number_without_a_slope() -> None:
    values = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    logarithms = log_or_zero(values)
    torch.testing.assert_close(logarithms.exp(), values, atol=0, rtol=1e-15)
    (slopes,) = torch.autograd.grad(logarithms.sum(), values)
    assert slopes.tolist() == [0.0, 2.0, 1.0]


def test_gamma_draws_come_from_the_generator_and_move_it_alone() -> None:
    """The numbers are those of torch 2's CPU generator: other ones would move recorded draws."""
    source = generator(0)
    global_state = torch.get_rng_state()
    draws = numerics.standard_gamma(torch.tensor([0.5, 2.0, 30.0]).double(), generator=source)
    expected = [0.0007893582063475732, 0.6315406048880828, 30.548819220207278]
    assert draws.tolist() == pytest.approx(expected, rel=1e-14)
    following = torch.rand(1, generator=source, dtype=torch.float64).item()
    assert following == pytest.approx(0.5813409198075745, rel=1e-14)
    assert torch.equal(torch.get_rng_state(), global_state)


# -- tensors that were made inside torch.inference_mode ------------------------------------------------


def tensors() -> tuple[Tensor, ...]:
    ones = (torch.rand(9, 4, generator=generator(3)) > 0.5).double()
    loadings = torch.randn(4, 2, generator=generator(4)).double()
    return ones, loadings, torch.zeros(4).double(), torch.eye(4).double()[None]


def ascended(ones: Tensor, loadings: Tensor, *_: Tensor) -> Tensor:
    return fit.bfgs(ones, lambda point: -(point - 1.0).square().sum(dim=1)).parameters


def integrated(ones: Tensor, loadings: Tensor, offset: Tensor, _: Tensor) -> Tensor:
    return BernoulliPCA(loadings, offset).adaptive_log_marginal(ones)


def annealed(ones: Tensor, loadings: Tensor, offset: Tensor, moment: Tensor) -> Tensor:
    settings = {"num_chains": 2, "num_steps": 3, "generator": generator(5)}
    value, _ = estimators.annealed_evidence(
        moment, 9, 2, 0.5, backward_from=loadings[None], **settings
    )
    return value


@pytest.mark.parametrize("compute", [ascended, integrated, annealed])
def test_tensors_made_in_inference_mode_give_the_same(compute: Callable[..., Tensor]) -> None:
    expected = compute(*tensors())
    with torch.inference_mode():
        inside = tensors()
        found_inside = compute(*inside)
    assert torch.equal(found_inside, expected)
    assert torch.equal(compute(*inside), expected)


@pytest.mark.bad_input
@pytest.mark.parametrize("within", [True, False])
def test_functions_of_tensors_that_have_no_derivatives_are_refused(within: bool) -> None:
    with torch.inference_mode():
        scale = torch.tensor(2.0)
    with torch.inference_mode(within), pytest.raises(ValueError, match="this needs derivatives"):
        fit.bfgs(torch.zeros(1, 1), lambda point: -(scale * point).square().sum(dim=1))
