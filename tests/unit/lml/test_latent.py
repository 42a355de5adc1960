"""Proposals for z and importance weights, against PPCA (exact) and fine grids."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from models import elbo, generator, random_bernoulli, random_ppca

from experiments.trainings import dense_vae
from mpt_lml import PPCA, VAE, BernoulliPCA, GridConditional, curves, estimators, grids, masks
from mpt_lml.models.vae import LatentVariableModel

NOISE = 0.3


def posterior(model: PPCA, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean, (..., K), and covariance, (K, K), of p(z | x), by regressing z on x."""
    gain = torch.linalg.solve(model.covariance, model.loadings).T
    identity = torch.eye(model.latent_dim).to(gain)
    return (x - model.mean) @ gain.T, identity - gain @ model.loadings


def linear_vae(model: PPCA, *, shift: float = 0.0, shrink: float = 1.0) -> VAE:
    """PPCA as a VAE whose encoder is the exact posterior, unless it is shifted or shrunk.

    The posterior covariance of this one is diagonal, because the loadings are orthogonal.
    """

    def encoder(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, covariance = posterior(model, x)
        mean = mean + shift
        return mean, (shrink * covariance.diagonal()).log().expand(mean.shape)

    return VAE(
        encoder,
        lambda z: z @ model.loadings.T + model.mean,
        num_features=model.num_features,
        latent_dim=model.latent_dim,
        noise_variance=float(model.noise_variance),
    )


def orthogonal_ppca(num_features: int, latent_dim: int, seed: int = 0) -> PPCA:
    rough = random_ppca(num_features, latent_dim, seed)
    left, values, _ = torch.linalg.svd(rough.loadings, full_matrices=False)
    return PPCA(left * values, NOISE, rough.mean)


def nonlinear_vae(likelihood: str, seed: int = 0) -> VAE:
    """A random network with K = 2, in float64, its weights doubled so that it is far from linear."""
    drawn = dense_vae.dense_parameters(8, [16], 2, generators=[generator(seed)])
    parameters = {name: 2.5 * value.double() for name, value in drawn.items()}
    noise = 0.2 if likelihood == "gaussian" else None
    return dense_vae.dense_model(parameters, 0, noise)


def data_of(model: LatentVariableModel, n: int, seed: int = 3) -> torch.Tensor:
    z = torch.randn(n, model.latent_dim, generator=generator(seed), dtype=torch.float64)
    return model.sample_given(z, generator=generator(seed + 1))


def every_pair(
    sampler: estimators.GibbsConditional, x: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``log_conditional`` with the chains of all masks side by side."""
    found = sampler.log_each(x.repeat(len(mask), 1), mask.repeat_interleave(len(x), dim=0))
    return found.unflatten(0, (len(mask), len(x)))


PCA = orthogonal_ppca(6, 2)
LINEAR = linear_vae(PCA)
NONLINEAR = {kind: nonlinear_vae(kind) for kind in ("bernoulli", "gaussian")}
ON_GRIDS = {**NONLINEAR, "linear": LINEAR, "logistic": random_bernoulli(8, 2, 20, seed=4)}
FINE = grids.trapezoid(2, 161, 8.0)
MODEL = pytest.mark.parametrize("model", ON_GRIDS.values(), ids=ON_GRIDS.keys())


class TestLinearVAE:
    """Everything is known: the encoder is the posterior."""

    def test_elbo_and_every_weight_is_the_marginal(self) -> None:
        x = PCA.sample(5, generator=generator(1))
        exact = PCA.log_marginal(x)
        noise = torch.randn(4, 5, 2, generator=generator(2), dtype=torch.float64)
        mean, variance = LINEAR.encode(x)
        for draw in noise:
            z = mean + variance.sqrt() * draw
            proposal = estimators.from_encoder(LINEAR, x)
            weight = LINEAR.log_joint(x, z) - proposal.log_density(z[None])[0]
            torch.testing.assert_close(weight, exact, atol=1e-10, rtol=0)
        many = torch.randn(20_000, 5, 2, generator=generator(2), dtype=torch.float64)
        bound = elbo(LINEAR, x, many)
        # The fit is quadratic in z: its spread over 20,000 draws is far below 0.02 a datum.
        torch.testing.assert_close(bound, exact, atol=0.1, rtol=0)

    def test_a_wrong_encoder_loses_the_divergence(self) -> None:
        wrong = linear_vae(PCA, shift=0.4, shrink=0.5)
        x = PCA.sample(5, generator=generator(1))
        _, covariance = posterior(PCA, x)
        variance = covariance.diagonal()
        divergence = 0.5 * (0.5 + 0.16 / variance - 1 - math.log(0.5)).sum()
        logs = estimators.log_weights(
            wrong, x, estimators.from_encoder(wrong, x), 20_000, generator=generator(5)
        )
        gap = PCA.log_marginal(x) - logs.mean(dim=0)
        error = logs.std(dim=0) / math.sqrt(20_000)
        assert ((gap - divergence).abs() <= 5 * error).all()

    def test_importance_conditionals_from_the_posterior(self) -> None:
        x = PCA.sample(4, generator=generator(1))
        mask = masks.sample_masks(6, 6, 3, generator=generator(2))
        exact = PCA.log_conditional(x, mask)
        sampler = estimators.ImportanceConditional(LINEAR, 20_000, generator=generator(3))
        ours = sampler.log_conditional(x, mask)
        # p(x_j | z) varies by a factor of a few: 0.03 is above five standard errors at S = 20,000.
        torch.testing.assert_close(ours, exact, atol=0.03, rtol=0)

    def test_gibbs_with_the_posterior_needs_no_correction(self) -> None:
        x = PCA.sample(4, generator=generator(1))
        mask = masks.sample_masks(3, 6, 3, generator=generator(2))
        exact = PCA.log_conditional(x, mask)
        for corrected in (False, True):
            gibbs = estimators.GibbsConditional(
                LINEAR, 60, generator=generator(4), corrected=corrected, num_chains=200
            )
            assert (every_pair(gibbs, x, mask) - exact).abs().max() < 0.15

    def test_a_wrong_encoder_fools_pseudo_gibbs_only(self) -> None:
        wrong = linear_vae(PCA, shift=0.2)
        x = PCA.sample(4, generator=generator(1))
        mask = masks.sample_masks(3, 6, 3, generator=generator(2))
        exact = PCA.log_conditional(x, mask)
        error = {}
        for corrected in (False, True):
            steps = 600 if corrected else 100  # rejections: it mixes slowly
            gibbs = estimators.GibbsConditional(
                wrong, steps, generator=generator(4), corrected=corrected, num_chains=50
            )
            error[corrected] = (every_pair(gibbs, x, mask) - exact).abs().max().item()
        assert error[True] < 0.15
        assert error[False] > 0.5  # the shift feeds on itself: each round adds to it


class TestAgainstTheGrid:
    @MODEL
    def test_the_grid_is_a_joint_distribution(self, model: LatentVariableModel) -> None:
        x = data_of(model, 3)
        rough = GridConditional(model, grids.trapezoid(2, 12))
        for row in x:
            area = curves.exact_curve(rough, row[None]).area()
            assert abs(area - rough.log_marginal(row[None]).item()) < 1e-10

    def test_the_grid_is_exact_for_ppca(self) -> None:
        x = PCA.sample(5, generator=generator(1))
        grid = GridConditional(LINEAR, FINE)
        torch.testing.assert_close(grid.log_marginal(x), PCA.log_marginal(x), atol=1e-9, rtol=0)
        mask = masks.subsets(6)[1:]
        ours, exact = grid.log_conditional(x, mask), PCA.log_conditional(x, mask)
        torch.testing.assert_close(ours, exact, atol=1e-9, rtol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_grid_of_another_precision_than_the_decoder_is_drawn_from(self, dtype) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            decoder = torch.nn.Linear(1, 4).to(dtype)
        sizes = {"num_features": 4, "latent_dim": 1}
        model = VAE(lambda x: (x[..., :1], x[..., :1]), decoder, **sizes)
        grid = grids.trapezoid(1, 9)
        for other in (torch.float32, torch.float64):
            on_grid = GridConditional(model, grid.to(torch.ones(1, dtype=other)))
            x = on_grid.sample(2000, generator=generator(5))
            assert x.dtype == dtype
            # 2000 zeros and ones: a standard error of at most 0.0112 each, here five of them.
            expected = grid.log_weights.exp() @ decoder(grid.nodes.to(dtype)).sigmoid().double()
            assert (x.double().mean(dim=0) - expected).abs().max() < 0.056

    @pytest.mark.bad_input
    def test_a_function_of_another_precision_than_the_grid_is_refused_by_name(self) -> None:
        weights = torch.ones(1, 4)
        sizes = {"num_features": 4, "latent_dim": 1}
        model = VAE(lambda x: (x[..., :1], x[..., :1]), lambda z: z @ weights, **sizes)
        on_grid = GridConditional(model, grids.trapezoid(1, 9).to(weights.double()))
        with pytest.raises(
            RuntimeError,
            match=r"z of K = 1 numbers in torch.float64: .* the precision of its weights",
        ):
            on_grid.sample(2, generator=generator(5))

    def test_the_grid_is_bernoulli_pcas(self) -> None:
        model = ON_GRIDS["logistic"]
        x, mask = (
            data_of(model, 5),
            masks.sample_masks(20, 8, masks.UniformSize(), generator=generator()),
        )
        ours = GridConditional(model, model.grid).log_conditional(x, mask)
        torch.testing.assert_close(ours, model.log_conditional(x, mask), atol=1e-10, rtol=0)

    @MODEL
    def test_iwae_with_5000_samples(self, model: LatentVariableModel) -> None:
        x = data_of(model, 20)
        exact = GridConditional(model, FINE).log_marginal(x).mean().item()
        estimate = estimators.iwae(model, x, 5000, generator=generator(8))
        assert abs(estimate - exact) <= 3 * estimate.standard_error
        assert estimate.standard_error < 0.02  # informative

    def test_the_bias_falls_as_one_over_s(self) -> None:
        model = NONLINEAR["gaussian"]
        x = data_of(model, 4)
        exact = GridConditional(model, FINE).log_marginal(x)
        proposal = estimators.at_mode(model, x)
        proposal = replace(proposal, factor=2.0 / 1.2 * proposal.factor)
        logs = estimators.log_weights(model, x, proposal, 160_000, generator=generator(1))
        bias = {}
        for s in (1, 20, 80):  # E of the log of a mean of s weights, from disjoint groups
            groups = logs.unflatten(0, (-1, s)).logsumexp(dim=1) - math.log(s)
            bias[s] = (groups.mean(dim=0) - exact).mean().item()
        assert bias[1] < bias[20] < bias[80] < 0
        assert bias[20] / bias[80] == pytest.approx(4, rel=0.35)
        relative = (logs - exact).exp().var(dim=0)  # E w = p(x)
        assert bias[80] == pytest.approx(-(relative / 160).mean().item(), rel=0.35)

    @pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
    def test_every_node_is_decoded_once(self, kind: str) -> None:
        model, calls = NONLINEAR[kind], []
        x, nodes = data_of(model, 3), grids.trapezoid(2, 12).nodes
        ours = model.log_factors_at_nodes(x, nodes)
        theirs = model.log_factors(x, nodes[:, None].expand(-1, len(x), -1))
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
        counting = VAE(
            model.encoder,
            lambda z: calls.append(len(z)) or model.decoder(z),
            num_features=8,
            latent_dim=2,
            noise_variance=model.noise_variance,
        )
        counting.log_factors_at_nodes(x, nodes)
        assert calls == [len(nodes)]

    def test_gradients_of_exact_conditionals(self) -> None:
        drawn = dense_vae.dense_parameters(4, [3], 2, generators=[generator(1)])
        names = [name for name in drawn if name.startswith("decoder")]
        x = torch.rand(3, 4, generator=generator(3), dtype=torch.float64)
        mask, grid = masks.all_masks(4, 2), grids.trapezoid(2, 8, 3.0)
        start = [drawn[name].double().requires_grad_() for name in names]

        def score(*values: torch.Tensor) -> torch.Tensor:
            parameters = {**drawn, **dict(zip(names, values, strict=True))}
            model = dense_vae.dense_model(parameters, 0, 0.3)
            return GridConditional(model, grid).log_conditional(x, mask)

        assert torch.autograd.gradcheck(score, start)

    @pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
    def test_sampled_conditionals_approach_the_grids(self, kind: str) -> None:
        model = NONLINEAR[kind]
        x = data_of(model, 6)
        mask = masks.sample_masks(4, 8, masks.UniformSize(), generator=generator(2))
        exact = GridConditional(model, FINE).log_conditional(x, mask)
        rms = []
        for samples in (20, 320, 5120):
            sampler = estimators.ImportanceConditional(model, samples, generator=generator(3))
            ours = sampler.log_conditional(x, mask)
            rms.append((ours - exact)[:, :, :][exact != 0].square().mean().sqrt().item())
        # Sixteen times the samples, a quarter of the error (a random posterior: by a factor of two).
        assert rms[1] < 0.5 * rms[0]
        assert rms[2] < 0.5 * rms[1]
        assert rms[2] < 0.05


X = torch.zeros(2, 8, dtype=torch.float64)
BAD = {
    "gray pixels, importance weights": (
        lambda: estimators.iwae(NONLINEAR["bernoulli"], X + 0.5, 10, generator=generator()),
        r"x\[0, 0\] is 0\.5 \(16 such entries\)",
    ),
    "gray pixels, grid": (
        lambda: GridConditional(NONLINEAR["bernoulli"], FINE).log_marginal(X + 0.5),
        "0 or 1 for a Ber",
    ),
    "pixels out of range": (
        lambda: estimators.ImportanceConditional(
            NONLINEAR["bernoulli"], 5, generator=generator()
        ).log_conditional(X - 3, masks.all_masks(8, 2)),
        r"x\[0, 0\] is -3",
    ),
    "encoder of another K": (
        lambda: (
            linear_vae(orthogonal_ppca(8, 3))
            .__class__(
                lambda x: (x[:, :3], x[:, :3]),
                lambda z: z.new_zeros(len(z), 8),
                num_features=8,
                latent_dim=2,
            )
            .encode(X)
        ),
        r"encoder's mean must have shape \(2, 2\), got \(2, 3\)",
    ),
    "encoder whose two heads differ": (
        lambda: VAE(
            lambda x: (x[:, :2], x[:, :3]),
            lambda z: z.new_zeros(len(z), 8),
            num_features=8,
            latent_dim=2,
        ).encode(X),
        r"encoder's log-variance must have shape \(2, 2\), got \(2, 3\)",
    ),
    "decoder of another D": (
        lambda: VAE(lambda x: (x, x), lambda z: z, num_features=8, latent_dim=2).decode(X[:, :2]),
        r"decoder's output must have shape \(2, 8\), got \(2, 2\)",
    ),
    "no variance of a Gaussian": (
        lambda: VAE(
            lambda x: (x, x), lambda z: z, num_features=2, latent_dim=2, noise_variance=0.0
        ),
        "noise_variance must be a single finite number > 0, got 0.0",
    ),
    "one sample": (
        lambda: estimators.iwae(LINEAR, X[:, :6], 1, generator=generator()),
        "num_samples",
    ),
    "other D": (lambda: estimators.iwae(LINEAR, X, 10, generator=generator()), r"\(N, 6\)"),
    "a grid for K = 4": (lambda: grids.trapezoid(4, 5), r"estimators\.iwae"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.bad_input
def test_a_model_without_an_encoder() -> None:
    model = random_bernoulli(4, 2, 20)
    with pytest.raises(TypeError, match="no encoder; use at_mode or from_prior"):
        estimators.from_encoder(model, X[:, :4])
    with pytest.raises(TypeError, match="of type VAE"):
        estimators.GibbsConditional(model, 3, generator=generator(), corrected=True)


def broken(part: str, value: float) -> VAE:
    """A VAE whose encoder's mean, its log-variance or its decoder answers ``value``."""

    def answer(name: str, zero: torch.Tensor) -> torch.Tensor:
        return zero + value if name == part else zero

    def encoder(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return answer("mean", 0 * x[..., :1]), answer("log-variance", 0 * x[..., :1])

    def decoder(z: torch.Tensor) -> torch.Tensor:
        return answer("decoder", z.expand(*z.shape[:-1], 3))

    return VAE(encoder, decoder, num_features=3, latent_dim=1)


ENCODERS = [("mean", math.nan), ("log-variance", 2000.0), ("log-variance", -2000.0)]
ONES, FIRST = torch.ones(2, 3), torch.tensor([[True, False, False]])


@pytest.mark.bad_input
class TestNetworksThatAreBroken:
    """A result is never NaN: it is refused with the name of what was."""

    @pytest.mark.parametrize(("part", "value"), ENCODERS)
    def test_encoder(self, part: str, value: float) -> None:
        model, g = broken(part, value), generator()
        said = f"the encoder's {part.removeprefix('log-')} must be finite.*estimators.at_mode"
        with pytest.raises(ValueError, match=said):
            estimators.iwae(model, ONES, 9, generator=g, proposal=estimators.from_encoder)
        for corrected in (False, True):
            chain = estimators.GibbsConditional(model, 4, generator=g, corrected=corrected)
            with pytest.raises(ValueError, match=said):
                chain.log_conditional(ONES, FIRST)

    @pytest.mark.parametrize(
        "rule", [estimators.from_encoder, estimators.from_prior, estimators.at_mode]
    )
    def test_decoder(self, rule) -> None:
        model, g = broken("decoder", math.nan), generator()
        with pytest.raises(ValueError, match=r"log p\(x, z\) .*is NaN in .*the model's decoder"):
            estimators.iwae(model, ONES, 9, generator=g, proposal=rule)
        sampler = estimators.ImportanceConditional(model, 4, generator=g)
        with pytest.raises(ValueError, match="is NaN in .*the model's decoder"):
            sampler.log_conditional(ONES, FIRST)

    def test_decoder_of_what_asks_no_encoder(self) -> None:
        model, g = broken("decoder", math.nan), generator()
        chain = estimators.GibbsConditional(model, 4, generator=g, corrected=True)
        with pytest.raises(ValueError, match="the decoder's output at z = 0 is NaN in 3 of 3"):
            chain.log_conditional(ONES, FIRST)
        on_grid = GridConditional(model, grids.trapezoid(1, 9).to(ONES))
        for call in (on_grid.log_marginal, lambda x: on_grid.log_conditional(x, FIRST)):
            with pytest.raises(
                ValueError, match=r"output at the nodes must be finite.*\[0, 0\] is nan"
            ):
                call(ONES)

    def test_a_decoder_that_breaks_away_from_zero(self) -> None:
        model = VAE(
            lambda x: (0 * x[..., :1], 0 * x[..., :1]),
            lambda z: torch.where(z == 0, z, z * math.nan).expand(*z.shape[:-1], 3),
            num_features=3,
            latent_dim=1,
        )
        chain = estimators.GibbsConditional(model, 4, generator=generator(), corrected=False)
        with pytest.raises(ValueError, match="along the chain is NaN"):
            chain.log_conditional(ONES, FIRST)


BERNOULLI = random_bernoulli(6, 2, 12)
POINTS = BERNOULLI.sample(3, generator=generator(1))


def test_what_is_hidden_from_an_encoder_is_filled_with_the_decoders_mean_at_zero() -> None:
    model = VAE(
        lambda x: (x, 0 * x),
        lambda z: z + torch.tensor([0.5, -1.0, 2.0]),
        num_features=3,
        latent_dim=3,
        noise_variance=0.1,
    )
    x = torch.tensor([[7.0, 8.0, 9.0]])
    observed = torch.tensor([[True, False, True]])
    assert estimators.from_encoder(model, x, observed).mean.tolist() == [[7.0, -1.0, 9.0]]
    assert estimators.from_encoder(model, x).mean.tolist() == [[7.0, 8.0, 9.0]]


@pytest.mark.parametrize(("said", "found"), [(3.0, 3.0), (40.0, 0.0)])
def test_a_mode_is_searched_from_the_more_probable_start(said: float, found: float) -> None:
    """Two modes: the one at 3 is higher, the one at 0 is nearer to where a search begins."""

    def decoder(z: torch.Tensor) -> torch.Tensor:
        # Logits of ten ones: 0 near z = 0, 6 near 3, and -2 between and beyond.
        near_zero = 2 * torch.exp(-10 * z.square())
        near_three = 8 * torch.exp(-10 * (z - 3).square())
        return (near_zero + near_three - 2).expand(*z.shape[:-1], 10)

    model = VAE(
        lambda x: (0 * x[..., :1] + said, 0 * x[..., :1]), decoder, num_features=10, latent_dim=1
    )
    mode = estimators.at_mode(model, torch.ones(1, 10).double()).mean
    assert mode.item() == pytest.approx(found, abs=0.5)  # the prior pulls by 0.2


@pytest.mark.parametrize("num_samples", [2, 7])
def test_weights_that_are_all_alike_have_no_error(num_samples: int) -> None:
    """Three fair coins that know nothing of z: every weight is p(x) = 1/8."""
    model = BernoulliPCA(torch.zeros(3, 2).double())
    x = torch.ones(4, 3).double()
    settings = {"generator": generator(1), "proposal": estimators.from_prior}
    estimate = estimators.iwae(model, x, num_samples, **settings)
    assert estimate == pytest.approx(-3 * math.log(2), abs=1e-14)
    assert estimate.standard_error == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_proposal_draws_from_its_density(share: float) -> None:
    """E q0(z)/q(z) = 1 for any density q0, here another normal one, wherever q is wider."""
    factor = torch.tensor([[1.5, 0.0], [0.4, 1.2]], dtype=torch.float64)
    mean = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    proposal = estimators.latent.GaussianProposal(mean, factor[None], share)
    z = proposal.sample(20_000, generator=generator(3))
    inner = torch.distributions.MultivariateNormal(mean[0], 0.25 * torch.eye(2).double())
    ratio = (inner.log_prob(z[:, 0]) - proposal.log_density(z)[:, 0]).exp()
    error = ratio.std().item() / math.sqrt(len(ratio))
    assert abs(ratio.mean().item() - 1) <= 5 * error < 0.1


def test_a_proposal_is_as_wide_as_it_was_asked_to_be() -> None:
    plain = estimators.at_mode(BERNOULLI, POINTS)
    assert plain.prior_share == 0.1
    precision = torch.linalg.inv(plain.factor @ plain.factor.mT) * 1.2**2
    here = plain.mean.clone().requires_grad_()
    hessian = torch.autograd.functional.hessian(
        lambda z: BERNOULLI.log_joint(POINTS, z).sum(), here
    )
    own = -torch.stack([hessian[n, :, n] for n in range(3)])
    torch.testing.assert_close(precision, own, atol=1e-3, rtol=0)  # the search's tolerance, 1e-4
