"""Bernoulli PCA against enumeration, the literal tensor and its own continuous limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from cases import TractableModelCase
from models import generator, random_bernoulli
from moved import other_device
from other_device import DEVICE

from mpt_lml import VAE, BernoulliPCA, GridConditional, curves, fit, grids, masks, objectives
from mpt_lml.models.base import TractableModel
from mpt_lml.models.vae import require_binary

MODELS = {
    "D=1 K=1": random_bernoulli(1, 1, 20),
    "D=5 K=2, fine": random_bernoulli(5, 2, 40, seed=1),
    "D=6 K=2, coarse": random_bernoulli(6, 2, 12, seed=2),
    "D=4 K=3": random_bernoulli(4, 3, 12, seed=3),
}


def every_datum(num_features: int) -> torch.Tensor:
    return masks.subsets(num_features).double()


def literal_log_likelihood(model: BernoulliPCA, x: torch.Tensor) -> torch.Tensor:
    """log p(x_d | z_g) as the (N, D, G) tensor that the package never makes."""
    logits = (model.grid.nodes @ model.loadings.T + model.offset).T
    return torch.distributions.Bernoulli(logits=logits).log_prob(
        x[:, :, None].expand(-1, -1, len(model.grid))
    )


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
class TestBernoulliPCA(TractableModelCase):
    def test_probabilities_sum_to_one(self, model: BernoulliPCA) -> None:
        x = every_datum(model.num_features)
        assert abs(model.log_marginal(x).exp().sum().item() - 1) <= 1e-12

    def test_the_literal_tensor(self, model: BernoulliPCA) -> None:
        x, mask = every_datum(model.num_features), self.every_mask(model)
        table = literal_log_likelihood(model, x)
        weights = model.grid.log_weights
        ours, ours_marginal = model.log_conditional(x, mask), model.log_subset_marginal(x, ~mask)
        for p, row in enumerate(mask):
            log_omega = (weights + (table * ~row[:, None]).sum(dim=1)).log_softmax(dim=-1)
            expected = (log_omega[:, None, :] + table).logsumexp(dim=-1)
            torch.testing.assert_close(ours[p][:, row], expected[:, row], atol=1e-11, rtol=0)
            marginal = (weights + (table * ~row[:, None]).sum(dim=1)).logsumexp(dim=-1)
            torch.testing.assert_close(ours_marginal[p], marginal, atol=1e-11, rtol=0)
            omega = model.posterior_weights(x, ~row[None])[0]
            torch.testing.assert_close(omega, log_omega.exp(), atol=1e-12, rtol=0)

    def test_sampler_follows_the_scorer(self, model: BernoulliPCA) -> None:
        count, x = 40_000, every_datum(model.num_features)
        drawn = model.sample(count, generator=generator(5)).long()
        powers = 2 ** torch.arange(model.num_features)
        index = torch.empty(len(x), dtype=torch.int64)
        index[(x.long() * powers).sum(dim=1)] = torch.arange(len(x))
        observed = torch.bincount(index[(drawn * powers).sum(dim=1)], minlength=len(x)) / count
        expected = model.log_marginal(x).exp()
        assert ((observed - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt()).all()

    def test_objectives_are_the_models_scores(self, model: BernoulliPCA) -> None:
        x = model.sample(7, generator=generator(3))
        size = model.num_features
        mask = masks.sample_masks(3, size, masks.UniformSize(), generator=generator(4))
        batch = (model.loadings[None], model.offset[None])
        values = model.log_conditional(x, mask).sum(dim=2) / mask.sum(dim=1)[:, None]
        part = torch.tensor([0, 0, 0, 1, 1, 2, 2])  # 7 data in 3 parts
        expected = size * values[part, torch.arange(7)].mean()
        ours = objectives.mixture(*batch, x, mask[None], model.grid)
        torch.testing.assert_close(ours, expected[None], atol=1e-11, rtol=0)
        marginal = model.log_subset_marginal(x, mask) / mask.sum(dim=1)[:, None]
        ours = objectives.mixture(*batch, x, mask[None], model.grid, block=True)
        expected = size * marginal[part, torch.arange(7)].mean()
        torch.testing.assert_close(ours, expected[None], atol=1e-11, rtol=0)
        ours = objectives.mixture(*batch, x, None, model.grid)
        torch.testing.assert_close(ours[0], model.log_marginal(x).mean(), atol=1e-11, rtol=0)


def test_extreme_logits_keep_both_tails() -> None:
    """p(x_j = 1) within 1e-16 of 1 is still a finite, exact log-probability of a zero."""
    model = BernoulliPCA(torch.tensor([[40.0], [0.5]]).double(), torch.tensor([45.0, 0.0]).double())
    x = every_datum(2)
    for row in x:
        area = curves.exact_curve(model, row[None]).area()
        assert area == pytest.approx(model.log_marginal(row[None]).item(), abs=1e-10)


@pytest.mark.parametrize("latent_dim", [1, 2])
def test_grids_converge_to_the_same_integral(latent_dim: int) -> None:
    rough = random_bernoulli(6, latent_dim, 20, seed=5)
    wide = grids.trapezoid(latent_dim, 81, 8.0)  # ±8 leaves 1e-15 of the prior out
    fine = BernoulliPCA(rough.loadings, rough.offset, grid=wide)
    x = every_datum(6)
    reference = fine.log_marginal(x)
    adaptive = fine.adaptive_log_marginal(x, nodes_per_axis=61, extent=10.0)
    torch.testing.assert_close(adaptive, reference, atol=1e-8, rtol=0)
    errors = []
    for nodes in (9, 12, 16, 24):
        grid = grids.trapezoid(latent_dim, nodes, 6.0)
        model = BernoulliPCA(fine.loadings, fine.offset, grid=grid)
        errors.append((model.log_marginal(x) - reference).abs().max().item())
    assert all(later < 0.5 * former for former, later in itertools.pairwise(errors))


def test_adaptive_agrees_where_posteriors_are_narrow() -> None:
    """200 pixels: a shared grid of 20 nodes an axis is off by nats, one of 300 is not."""
    normal = {"generator": generator(6), "dtype": torch.float64}
    model = BernoulliPCA(torch.randn(200, 2, **normal), torch.randn(200, **normal))
    x = model.sample(20, generator=generator(7))
    adaptive = model.adaptive_log_marginal(x, nodes_per_axis=15)
    shared = {
        nodes: BernoulliPCA(
            model.loadings, model.offset, grid=grids.trapezoid(2, nodes, 6.0)
        ).log_marginal(x)
        for nodes in (20, 300)
    }
    torch.testing.assert_close(shared[300], adaptive, atol=1e-5, rtol=0)
    assert (shared[20] - adaptive).abs().max() > 0.5


def test_a_flat_posterior_needs_tolerance() -> None:
    """Curvature 0.02, below the floor of 1: every step goes two percent of the way."""

    def flat(z: torch.Tensor) -> torch.Tensor:
        return -0.01 * z.square().sum(dim=-1)

    start = torch.full((3, 2), 5.0, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="no mode after 100 Newton steps"):
        grids.find_modes(flat, start)
    near, precision = grids.find_modes(flat, start, accepted=0.1)
    torch.testing.assert_close(near, start * 0.98**100, atol=1e-9, rtol=0)
    torch.testing.assert_close(precision, torch.eye(2).double().expand(3, 2, 2))


def test_gradients_agree_with_finite_differences() -> None:
    grid = grids.trapezoid(2, 14)
    normal = {"generator": generator(1), "dtype": torch.float64}
    x = (torch.rand(6, 5, **normal) < 0.5).double()
    mask = masks.sample_masks(2, 5, 2, generator=generator(2))[None]
    loadings, offset = torch.randn(1, 5, 2, **normal), torch.randn(1, 5, **normal)
    encoder, shift, spread = (torch.randn(*s, **normal) for s in ((1, 2, 5), (1, 2), (1, 2)))
    noise = torch.randn(1, 6, 2, **normal)
    for value, arguments in (
        (lambda w, b: objectives.mixture(w, b, x, mask, grid), (loadings, offset)),
        (lambda w, b: objectives.mixture(w, b, x, mask, grid, block=True), (loadings, offset)),
        (lambda w, b: objectives.mixture(w, b, x, None, grid), (loadings, offset)),
        (
            lambda w, b, v, c, s: objectives.linear_elbo(w, b, v, c, s, x, noise),
            (loadings, offset, encoder, shift, spread),
        ),
    ):
        assert torch.autograd.gradcheck(value, [a.clone().requires_grad_() for a in arguments])


def test_the_elbo_is_a_bound_and_tight_where_the_posterior_is_the_prior() -> None:
    grid = grids.trapezoid(2, 60, 7.0)
    normal = {"generator": generator(3), "dtype": torch.float64}
    x = (torch.rand(50, 8, **normal) < 0.4).double()
    noise = torch.randn(1, 50, 2, **normal)
    zero, offset = torch.zeros(1, 8, 2).double(), torch.randn(1, 8, **normal)
    prior = (torch.zeros(1, 2, 8).double(), torch.zeros(1, 2).double(), torch.zeros(1, 2).double())
    tight = objectives.linear_elbo(zero, offset, *prior, x, noise)
    exact = objectives.mixture(zero, offset, x, None, grid)
    torch.testing.assert_close(tight, exact, atol=1e-9, rtol=0)
    loadings = torch.randn(1, 8, 2, **normal)
    many = torch.stack(
        [
            objectives.linear_elbo(loadings, offset, *prior, x, torch.randn(1, 50, 2, **normal))
            for _ in range(200)
        ]
    )
    bound, error = many.mean().item(), many.std().item() / math.sqrt(200)
    exact = objectives.mixture(loadings, offset, x, None, grid).item()
    assert bound + 5 * error < exact


@pytest.mark.parametrize(
    ("size", "dtype"), [(7e2, torch.float32), (7e2, torch.float64), (5e4, torch.float64)]
)
def test_certain_logits_leave_the_sign_of_z(size: float, dtype: torch.dtype) -> None:
    """p(x | z) is 1 on one half of the line and 0 on the other: p(x) = 1/2."""
    loadings = (size * torch.tensor([[1.0], [-1.0], [0.5]])).to(dtype)
    x = torch.tensor([[1.0, 0.0, 1.0]], dtype=dtype)
    model = BernoulliPCA(loadings)
    # The weights of the grid's halves add up to 1/2 up to the rounding of 20 numbers, and sums of
    # logits keep nine decimals.
    close = {"abs": max(20 * torch.finfo(dtype).eps, 1e-9)}
    assert model.log_marginal(x).item() == pytest.approx(-math.log(2), **close)
    hidden = torch.tensor([[True, False, True]])
    assert model.log_conditional(x, hidden)[hidden[None]].tolist() == pytest.approx([0, 0], **close)
    assert model.log_subset_marginal(x, ~hidden).item() == pytest.approx(-math.log(2), **close)
    weights = model.posterior_weights(x, hidden)[0, 0]
    assert weights[model.grid.nodes[:, 0] < 0].max() < 1e-15
    batch = (loadings[None], model.offset[None], x)
    trained = [
        objectives.mixture(*batch, None, model.grid),
        objectives.mixture(*batch, hidden[None], model.grid, block=True) * 2 / 3,  # of M / D
    ]
    assert torch.cat(trained).tolist() == pytest.approx([-math.log(2)] * 2, **close)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_logits_that_cancel_to_the_offset(size: float) -> None:
    """w·z is 0 on the diagonal and above 100 beside it, where one of two pixels is wrong."""
    loadings = size * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    offset = torch.tensor([0.3, -0.2], dtype=torch.float64)
    model = BernoulliPCA(loadings, offset, grid=grids.trapezoid(2, 9))
    nodes, weights = model.grid.nodes, model.grid.log_weights.exp()
    on_diagonal = weights[nodes[:, 0] == nodes[:, 1]].sum().log()
    x = torch.ones(1, 2, dtype=torch.float64)
    expected = on_diagonal + torch.nn.functional.logsigmoid(offset).sum()
    torch.testing.assert_close(model.log_marginal(x)[0], expected, atol=1e-9, rtol=0)
    assert curves.exact_curve(model, x).area() == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [40.0, 1e3])
def test_what_no_node_explains_is_still_weighed(size: float, dtype: torch.dtype) -> None:
    """All pixels are ones, and z = ±1 makes either half of them: however impossible, offsets decide.

    The two halves have the same loadings in another order, so that sums over them are equal. The
    odds of z = 1 are those of the prior, 3, times exp(Σ b_d of the half that −1 makes − Σ b_d of the
    half that 1 makes), and the last pixel says which it was.
    """
    half = 40
    sizes = size * (1.0 + torch.rand(half, generator=generator(1), dtype=dtype))
    shuffled = sizes[torch.randperm(half, generator=generator(2))]
    loadings = torch.cat([sizes, -shuffled, sizes[:1]])[:, None]
    offset = torch.randn(2 * half + 1, generator=generator(3), dtype=dtype) / 10
    nodes = torch.tensor([[-1.0], [1.0]], dtype=dtype)
    grid = grids.Grid(nodes, torch.tensor([0.25, 0.75], dtype=dtype).log())
    x = torch.ones(1, len(offset), dtype=dtype)
    hidden = (torch.arange(len(offset)) == 2 * half)[None]
    close = max(8 * torch.finfo(dtype).eps, 1e-9)
    bernoulli = BernoulliPCA(loadings, offset, grid=grid)
    # Beside such loadings the logit of a decoder, one number, has no place for an offset.
    decoder = GridConditional(BernoulliPCA(loadings, grid=grid), grid)
    for model, b in ((bernoulli, offset.double()), (decoder, 0 * offset.double())):
        first, second = b[:-1].view(2, half).sum(dim=1)
        expected = torch.nn.functional.logsigmoid(second - first + math.log(3.0)).item()
        last = model.log_conditional(x, hidden)[0, 0, -1].item()
        assert last == pytest.approx(expected, abs=close)
        log_p = torch.logaddexp(first - math.log(4.0), second + math.log(0.75)).item()
        log_p -= math.fsum(sizes.tolist())
        assert model.log_subset_marginal(x, ~hidden).item() == pytest.approx(log_p, rel=close)
        if model is bernoulli:
            weight = model.posterior_weights(x, ~hidden)[0, 0, 1].item()
            assert weight == pytest.approx(math.exp(expected), abs=close)
            batch = (loadings[None], offset[None], x, hidden[None], grid)
            found = objectives.mixture(*batch).item() / len(offset)
            assert found == pytest.approx(expected, abs=close)


def test_a_node_without_any_logits_beside_one_of_large_ones() -> None:
    loadings = torch.tensor([[1e5], [-1e5]], dtype=torch.float64)
    nodes = torch.tensor([[1.0], [1e-320]], dtype=torch.float64)
    grid = grids.Grid(nodes, torch.tensor([0.5, 0.5], dtype=torch.float64).log())
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    found = BernoulliPCA(loadings, grid=grid).log_marginal(x).item()
    assert found == pytest.approx(math.log(0.5 + 0.5 / 4), abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("largest", ["loadings", "offset"])
def test_certain_pixels_have_probability_one(largest: str, dtype: torch.dtype) -> None:
    """Logits of random digits, all of the right sign: no sum of them is left over."""
    x = (torch.rand(1, 60, generator=generator(1)) < 0.5).to(dtype)
    sizes = 100.0 + 3e3 * torch.rand(60, generator=generator(2), dtype=dtype)

    def parameters(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        zero = torch.zeros(60, dtype=dtype)
        return (logits[:, None], zero) if largest == "loadings" else (zero[:, None], logits)

    one = torch.ones(1, 1, dtype=dtype)
    grid = grids.Grid(one, torch.zeros(1, dtype=dtype))
    loadings, offset = parameters((2 * x[0] - 1) * sizes)
    model = BernoulliPCA(loadings, offset, grid=grid)
    assert abs(model.log_marginal(x).item()) <= 1e-9
    assert abs(objectives.mixture(loadings[None], offset[None], x, None, grid).item()) <= 1e-9


def test_what_underflows_on_a_grid_is_added_up_in_logarithms() -> None:
    """p(x_j | z) is below 1e-308 wherever z has any weight given the other pixels."""
    loadings = torch.tensor([[1000.0], [-900.0], [5.0], [950.0]], dtype=torch.float64)
    nodes = torch.tensor([[-1.0], [0.9], [1.0]], dtype=torch.float64)
    grid = grids.Grid(nodes, torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log())
    model = BernoulliPCA(loadings, torch.tensor([0.5, -899.5, 0.2, 0.1]).double(), grid=grid)
    x = torch.tensor([[1.0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, False, True], [True, True, True, False]])
    table = literal_log_likelihood(model, x)
    ours = GridConditional(model, grid).log_conditional(x, mask)
    for p, row in enumerate(mask):
        log_omega = (grid.log_weights + (table * ~row[:, None]).sum(dim=1)).log_softmax(dim=-1)
        expected = (log_omega[:, None, :] + table).logsumexp(dim=-1)
        torch.testing.assert_close(ours[p][:, row], expected[:, row], atol=1e-10, rtol=0)


def test_an_adaptive_grid_in_single_precision() -> None:
    """Newton's steps are in double: in single precision none comes within 1e-8 of a mode."""
    wide = random_bernoulli(50, 2, 12, seed=5)
    single = BernoulliPCA(wide.loadings.float(), wide.offset.float())
    wide = BernoulliPCA(single.loadings.double(), single.offset.double())
    x = wide.sample(4, generator=generator(1))
    expected = wide.adaptive_log_marginal(x)
    assert torch.equal(single.adaptive_log_marginal(x.float()), expected.float())


def test_a_grid_follows_a_network_that_is_moved() -> None:
    decoder = torch.nn.Linear(1, 3)
    model = VAE(lambda x: (x[..., :1], x[..., :1]), decoder, num_features=3, latent_dim=1)
    on_grid = GridConditional(model, grids.trapezoid(1, 9))
    x = on_grid.sample(4, generator=generator())
    here = on_grid.log_marginal(x)
    with other_device():
        decoder.to(DEVICE)
        there = on_grid.log_marginal(on_grid.sample(4, generator=generator())).cpu()
    torch.testing.assert_close(there, here)


def test_rare_events_have_no_floor() -> None:
    """An area that says "exact" is log p, also where single precision has no such probability."""
    loadings = torch.randn(4, 1, generator=generator(0))
    model = BernoulliPCA(loadings, torch.tensor([-20.0, -50.0, -90.0, -150.0]))
    x = torch.ones(1, 4)
    total = model.log_marginal(x).item()
    assert total < -300
    for each in (model, grids_own(model)):
        assert curves.exact_curve(each, x).area() == pytest.approx(total, abs=1e-3)


def grids_own(model: BernoulliPCA) -> GridConditional:
    return GridConditional(model, model.grid)


def saying(value: float) -> GridConditional:
    """A network whose decoder answers ``value`` everywhere."""

    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("a grid asks no encoder")

    def decode(z: torch.Tensor) -> torch.Tensor:
        return torch.full((*z.shape[:-1], 4), value, dtype=z.dtype)

    return GridConditional(VAE(encode, decode, num_features=4, latent_dim=2), MODEL.grid)


TOO_LARGE = r"loadings of up to .* and an offset of up to .* are too large: the logits"
LIKELIEST = r"log p\(x \| z\) is .* nats at the likeliest node of the grid, below -1e\+06"
W = torch.ones(4, 2, dtype=torch.float64)
MODEL = BernoulliPCA(W)
X = torch.zeros(2, 4, dtype=torch.float64)
BAD = {
    "four latent dimensions": (
        lambda: BernoulliPCA(torch.ones(5, 4).double()),
        ValueError,
        r"latent_dim = 4 is too large for a grid.*estimators\.iwae needs no grid",
    ),
    "more nodes than are enumerated": (
        lambda: grids.trapezoid(3, nodes_per_axis=65),
        ValueError,
        r"nodes_per_axis = 65 in 3 dimensions are 2\.746e\+05, .* use fewer nodes per axis",
    ),
    "gray pixels": (
        lambda: MODEL.log_marginal(X + 0.25),
        ValueError,
        r"x\[0, 0\] is 0\.25 \(8 such entries\).*Binarize",
    ),
    "pixels out of range": (lambda: require_binary(X - 3), ValueError, r"x\[0, 0\] is -3"),
    "other precision": (lambda: MODEL.log_marginal(X.float()), TypeError, "torch.float32"),
    "grid of another K": (
        lambda: BernoulliPCA(W, grid=grids.trapezoid(1, 20)),
        ValueError,
        r"grid has K = 1 but the model has K = 2",
    ),
    "offset of another D": (
        lambda: BernoulliPCA(W, torch.zeros(3).double()),
        ValueError,
        r"offset must have shape \(4,\)",
    ),
    "encoder that does not fit": (
        lambda: objectives.linear_elbo(
            W[None],
            W[None, :, 0],
            torch.ones(1, 2, 5).double(),
            *[torch.ones(1, 2).double()] * 2,
            X,
            torch.ones(1, 2, 2).double(),
        ),
        ValueError,
        r"encoder must have shape \(1, 2, 4\), got \(1, 2, 5\)",
    ),
    "a grid that fills the memory": (
        lambda: grids.trapezoid(3, 65),
        ValueError,
        r"nodes_per_axis = 65 in 3 dimensions are 2\.746e\+05, more than the 262144",
    ),
    "empty grid": (lambda: grids.trapezoid(2, 1), ValueError, "nodes_per_axis"),
    "an adaptive grid too wide for its nodes": (
        lambda: BernoulliPCA(W).adaptive_log_marginal(X, extent=20.0),
        ValueError,
        r"nodes_per_axis = 11 on extent = 20 lie 4 posterior .* raise nodes_per_axis with extent",
    ),
    "a grid that sees nothing": (
        lambda: grids.trapezoid(1, 2, extent=50.0),
        ValueError,
        r"the grid 2 on ±50 sees nothing of a standard normal prior: lower extent",
    ),
    "a mode of what does not depend on z": (
        lambda: grids.find_modes(lambda z: W.clone().requires_grad_()[:1].sum(1), X[:1, :2]),
        ValueError,
        r"log_joint\(z\) must depend on its argument",
    ),
    "a maximum of what does not depend on its argument": (
        lambda: fit.bfgs(X[:1], lambda w: W.clone().requires_grad_()[:1].sum(1)),
        ValueError,
        r"objective\(start\) must depend on its argument",
    ),
    "no extent": (
        lambda: grids.trapezoid(2, 20, 0.0),
        ValueError,
        "extent must be a single finite number > 0, got 0.0",
    ),
    "a decoder that says NaN": (
        lambda: saying(math.nan).log_marginal(X),
        ValueError,
        "decoder's output at the nodes must be finite, .* is nan .*Look at its weights",
    ),
    "a decoder that says infinity": (
        lambda: saying(math.inf).log_conditional(X, X[:1] == 0),
        ValueError,
        "decoder's output at the nodes must be finite, .* is inf .*Look at its weights",
    ),
    "logits that are too large": (
        lambda: BernoulliPCA(W * 1e308).log_marginal(X),
        ValueError,
        TOO_LARGE,
    ),
    "conditionals of logits that are too large": (
        lambda: BernoulliPCA(W * 1e308).log_conditional(X, X[:1] == 0),
        ValueError,
        TOO_LARGE,
    ),
    "posterior weights of logits that are too large": (
        lambda: BernoulliPCA(W * 1e308).posterior_weights(X, X[:1] == 0),
        ValueError,
        TOO_LARGE,
    ),
    "training at logits that are too large": (
        lambda: objectives.mixture(W[None] * 1e308, W[None, :, 0] * 0, X, None, MODEL.grid),
        ValueError,
        TOO_LARGE,
    ),
    "an offset that single precision does not hold": (
        lambda: BernoulliPCA(W.float() * 0, W[:, 0].float() * 3e38).log_marginal(X.float()),
        ValueError,
        TOO_LARGE,
    ),
    "logits of a decoder that single precision does not hold": (
        lambda: saying(3e38).log_marginal(X.float()),
        ValueError,
        LIKELIEST,
    ),
    "logits of a decoder that leave no digit": (
        lambda: saying(1e22).log_conditional(X, X[:1] == 0),
        ValueError,
        LIKELIEST,
    ),
    "a decoder whose log-probabilities have no sum": (
        lambda: saying(1e308).log_marginal(X),
        ValueError,
        r"log p\(x \| z_g\)\[0, 0\] is -inf .*Look at what the decoder answers",
    ),
    "infinite loadings": (
        lambda: BernoulliPCA(W / 0),
        ValueError,
        r"loadings\[0, 0\] is inf",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


ANSWERS: dict[str, Callable[[TractableModel, torch.Tensor], object]] = {
    "exact_curve": curves.exact_curve,
    "log_marginal": lambda model, x: model.log_marginal(x),
    "log_subset_marginal": lambda model, x: model.log_subset_marginal(x, x < 1),
    "mean_log_subset_marginal": lambda model, x: model.mean_log_subset_marginal(x, x < 1),
    "log_conditional": lambda model, x: model.log_conditional(x, x < 1),
    "mean_log_conditional": lambda model, x: model.mean_log_conditional(x, x < 1),
    "log_each": lambda model, x: model.log_each(x, x < 1),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ANSWERS)
class TestAllRefuseAlike:
    """One datum is unlikely at every node: also where what is asked of it alone is not."""

    x = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_a_decoder(self, name: str, dtype: torch.dtype) -> None:
        def model(logit: float) -> GridConditional:
            weight = torch.tensor([[0.1], [0.1], [0.1]], dtype=dtype)
            offset = torch.tensor([-1.0, 2.0, logit], dtype=dtype)

            def decode(z: torch.Tensor) -> torch.Tensor:
                return z @ weight.mT + offset

            def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                raise AssertionError("a grid asks no encoder")

            vae = VAE(encode, decode, num_features=3, latent_dim=1)
            return GridConditional(vae, grids.trapezoid(1, 9))

        ANSWERS[name](model(-0.99e6), self.x.to(dtype))
        with pytest.raises(ValueError, match=LIKELIEST):
            ANSWERS[name](model(-1.01e6), self.x.to(dtype))

    @pytest.mark.parametrize(
        ("limit", "dtype"), [(1e6, torch.float64), (4e3, torch.float32)], ids=str
    )
    def test_large_logits(self, name: str, limit: float, dtype: torch.dtype) -> None:
        zero = torch.zeros(3, 1, dtype=dtype)
        for share, expectation in (
            (0.99, nullcontext()),
            (1.01, pytest.raises(ValueError, match=TOO_LARGE)),
        ):
            offset = torch.tensor([0.0, 0.0, share * limit], dtype=dtype)
            with expectation:
                ANSWERS[name](BernoulliPCA(zero, offset), self.x.to(dtype))

    def test_logits_that_add_up(self, name: str) -> None:
        halves = torch.tensor([0.0, 0.505e6, 0.505e6], dtype=torch.float64)
        with pytest.raises(ValueError, match=TOO_LARGE):
            ANSWERS[name](BernoulliPCA(torch.zeros(3, 1).double(), halves), self.x)


BERNOULLI = random_bernoulli(6, 2, 12)


POINTS = BERNOULLI.sample(3, generator=generator(1))


def test_the_adaptive_grid_has_eleven_nodes_an_axis_on_five_standard_deviations() -> None:
    assert torch.equal(
        BERNOULLI.adaptive_log_marginal(POINTS),
        BERNOULLI.adaptive_log_marginal(POINTS, nodes_per_axis=11, extent=5.0),
    )


@pytest.mark.parametrize(("latent_dim", "nodes_per_axis"), [(1, 40), (2, 40), (3, 20)])
def test_the_grid_of_the_default(latent_dim: int, nodes_per_axis: int) -> None:
    model = BernoulliPCA(torch.zeros(2, latent_dim))
    assert model.grid.nodes.shape == (nodes_per_axis**latent_dim, latent_dim)
