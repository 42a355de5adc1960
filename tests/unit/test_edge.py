"""Every public function of PPCA at the edge of its numbers, against Gaussians in 60 digits.

`pytest -s tests/unit/test_edge.py` prints what the table on the API page states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import mpmath
import pytest
import torch
from models import generator
from torch import Tensor

from mpt_lml import PPCA, curves, gaussian, masks, objectives, scores

PAGE = Path(__file__).parents[2] / "book" / "api.md"
D, K = 5, 3
EVERY = masks.subsets(D)
WIDE = torch.float64
EXPONENTS = range(-8, 9, 2)
Exact = list[list[mpmath.mpf]]


@pytest.fixture(autouse=True)
def sixty_digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def kinds() -> dict[str, Tensor]:
    w = torch.randn(D, K, generator=generator(1), dtype=WIDE)
    return {
        "generic": w,
        "two rows alike": torch.cat([w[:2], w[:3]]),
        "two columns alike": torch.cat([w[:, :1], w[:, :2]], dim=1),
        "of rank one": w[:, :1] @ w[:1],
        "columns scaled": w * torch.tensor([1.0, 1e3, 1e6], dtype=WIDE),
        "rows scaled": w * torch.logspace(-3, 3, D, dtype=WIDE)[:, None],
        "large": 1e4 * w,
        "small": 1e-6 * w,
        "none": 0 * w,
    }


def digits(values: Tensor) -> mpmath.matrix:
    return mpmath.matrix(values.tolist())


def exact_covariance(model: PPCA) -> mpmath.matrix:
    w = digits(model.loadings)
    return w * w.T + mpmath.mpf(model.noise_variance.item()) * mpmath.eye(len(model.loadings))


def exact_marginals(model: PPCA, x: Tensor) -> Exact:
    """log p(x_R) of every datum for every R of ``EVERY``."""
    sigma, rows = exact_covariance(model), [[mpmath.mpf(0)] * len(x)]
    for observed in EVERY[1:]:
        kept = observed.nonzero().flatten().tolist()
        factor = mpmath.cholesky(mpmath.matrix([[sigma[i, j] for j in kept] for i in kept]))
        log_det = 2 * mpmath.fsum(mpmath.log(factor[i, i]) for i in range(len(kept)))
        most = -(len(kept) * mpmath.log(2 * mpmath.pi) + log_det) / 2
        data = [[mpmath.mpf(v) for v in datum] for datum in x[:, kept].tolist()]
        rows.append([most - _square(factor, datum) / 2 for datum in data])
    return rows


def _square(factor: mpmath.matrix, x: list[mpmath.mpf]) -> mpmath.mpf:
    """xᵀ (L Lᵀ)⁻¹ x."""
    white: list[mpmath.mpf] = []
    for i, value in enumerate(x):
        known = mpmath.fsum(factor[i, k] * white[k] for k in range(i))
        white.append((value - known) / factor[i, i])
    return mpmath.fsum(value**2 for value in white)


def rounded(marginals: Exact) -> tuple[Tensor, Tensor]:
    """log p(x_R) as (2^D, N), and log p(x_j | x_R) for the complements of R but the last."""
    subset = torch.tensor([[float(value) for value in row] for row in marginals], dtype=WIDE)
    each = torch.zeros(len(EVERY) - 1, len(marginals[0]), D, dtype=WIDE)
    for p, observed in enumerate(EVERY[:-1]):
        for j in (~observed).nonzero().flatten().tolist():
            pairs = zip(marginals[p + 2**j], marginals[p], strict=True)
            each[p, :, j] = torch.tensor([float(more - less) for more, less in pairs], dtype=WIDE)
    return subset, each


def apart(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative where the number itself is large."""
    return ((got.to(WIDE) - wanted).abs() / wanted.abs().clamp(min=1.0)).max().item()


def conditionals(model: PPCA, x: Tensor, wanted: tuple[Tensor, Tensor]) -> Iterator[tuple]:
    subset, each = wanted
    mask, mean = ~EVERY[:-1], each.mean(dim=1)
    pairs = torch.arange(len(mask)) % len(x)
    yield "log_marginal", apart(model.log_marginal(x), subset[-1])
    yield "log_subset_marginal", apart(model.log_subset_marginal(x, EVERY), subset)
    yield (
        "mean_log_subset_marginal",
        apart(model.mean_log_subset_marginal(x, EVERY), subset.mean(1)),
    )
    yield "log_conditional", apart(model.log_conditional(x, mask), each)
    yield (
        "log_each",
        apart(model.log_each(x[pairs], mask), each[torch.arange(len(mask)), pairs]),
    )
    yield "mean_log_conditional", apart(model.mean_log_conditional(x, mask), mean)


def trained(model: PPCA, x: Tensor, wanted: tuple[Tensor, Tensor]) -> Iterator[tuple]:
    subset, each = wanted
    of = model.loadings, model.noise_variance, objectives.second_moment(x)
    mask = ~EVERY[:-1]
    score = scores.mask_score(each.mean(dim=1), mask)
    curve = scores.mean_by_size(score, mask.sum(dim=1), D)[1:]
    yield "objectives.log_marginal", apart(objectives.log_marginal(*of), subset[-1].mean())
    yield "objectives.sampled", apart(objectives.sampled(*of, mask), D * score.mean())
    yield "objectives.exact", apart(objectives.exact(*of, masks.UniformSize()), curve.sum())
    yield "objectives.curve", apart(objectives.curve(*of), curve)


def latents(model: PPCA, x: Tensor) -> Iterator[tuple]:
    sigma, w = exact_covariance(model), digits(model.loadings)
    gain = w.T * sigma**-1
    mean, covariance = model.posterior(x)
    yield "posterior", apart(mean, from_digits(gain * digits(x).T).T)
    yield "posterior", apart(covariance, from_digits(mpmath.eye(K) - gain * w))
    exact = from_digits(sigma)
    yield "covariance", ((model.covariance.to(WIDE) - exact).abs().max() / exact.max()).item()
    draw, again = model.sample(9, generator=generator(3)), generator(3)
    z, e = (torch.randn(9, n, generator=again, dtype=x.dtype).to(WIDE) for n in (K, D))
    wanted = z @ model.loadings.to(WIDE).T + model.noise_variance.to(WIDE).sqrt() * e
    size = max(wanted.abs().max().item(), 1e-300)
    yield "sample", apart(draw.to(WIDE) / size, wanted / size)


def fitted(x: Tensor) -> Iterator[tuple]:
    """σ² relative to itself, and the covariance to its largest entry."""
    rows = digits(x)
    center = mpmath.matrix([[mpmath.fsum(rows[:, j]) / len(x)] for j in range(D)])
    rows -= mpmath.ones(len(x), 1) * center.T
    values, vectors = mpmath.eigsy(rows.T * rows / len(x))
    for dim in (1, K):
        noise = mpmath.fsum(values[i] for i in range(D - dim)) / (D - dim)
        wanted = noise * mpmath.eye(D)
        for i in range(D - dim, D):
            wanted += (values[i] - noise) * vectors[:, i] * vectors[:, i].T
        model = PPCA.fit_closed_form(x, dim)
        yield "fit_closed_form", abs(model.noise_variance.item() / float(noise) - 1.0)
        wide = from_digits(wanted)
        yield (
            "fit_closed_form",
            ((model.covariance.to(WIDE) - wide).abs() / wide.max()).max().item(),
        )


def from_digits(values: mpmath.matrix) -> Tensor:
    return torch.tensor([[float(v) for v in row] for row in values.tolist()], dtype=WIDE)


def measured(dtype: torch.dtype) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """The largest error of every function, and ε ‖W‖²/σ² where data and moments were refused."""
    worst: dict[str, float] = {}
    refused: list[tuple[float, float]] = []
    for exponent in EXPONENTS:
        for w in kinds().values():
            model = PPCA(w.to(dtype), 10.0**exponent)
            unit = torch.finfo(dtype).eps * w.square().sum().item() / 10.0**exponent
            draws = model.sample(12, generator=generator(2))
            off = torch.randn(3, D, generator=generator(4), dtype=dtype)
            groups = [fitted(draws), latents(model, draws)]
            exact = exact_marginals(model, torch.cat([draws[:3], off]))
            for x, own in ((draws[:3], slice(3)), (off, slice(3, None))):
                wanted = rounded([row[own] for row in exact])
                groups += [conditionals(model, x, wanted), trained(model, x, wanted)]
            for group in groups:
                try:
                    for name, error in group:
                        worst[name] = max(worst.get(name, 0.0), error)
                except ValueError:
                    refused.append((group.__name__, unit))
    return worst, refused


def stated(dtype: torch.dtype) -> dict[str, float]:
    """The column of the table on the API page."""
    found: dict[str, float] = {}
    for names, *numbers in re.findall(r"^\| (`.*`) \| (\S+) \| (\S+) \|$", PAGE.read_text(), re.M):
        for name in re.findall(r"`(.*?)`", names):
            found[name] = float(numbers[dtype == torch.float32])
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_every_function_is_as_good_as_its_table_says_or_refuses(dtype: torch.dtype) -> None:
    worst, refused = measured(dtype)
    promised = stated(dtype)
    for name, error in worst.items():
        print(f"{name:28}{error:.0e} of {promised[name]:.0e}")
    assert worst.keys() == promised.keys()
    assert {name: error for name, error in worst.items() if error > promised[name]} == {}
    assert dtype == torch.float32 or max(promised.values()) <= 1e-6
    # Nothing is refused out of caution: moments lose as much as W Wᵀ does, data its square root.
    limit = torch.finfo(dtype).eps ** 0.4
    moments = [unit for what, unit in refused if what == "trained"]
    others = [unit for what, unit in refused if what != "trained"]
    assert min(moments) > 2 * limit
    assert min(others) > 0.1 * limit**0.5


def test_the_referees_case() -> None:
    """D = 200 and σ² = 1e-8 in float64, where the conditionals were 12.8 nats a coordinate off."""
    w = torch.randn(200, 5, generator=generator(0), dtype=WIDE)
    model = PPCA(w, 1e-8)
    x = model.sample(3, generator=generator(1))
    seen = (2, 4, 6)  # about K = 5 observed coordinates it is worst
    mask = torch.cat([masks.sample_masks(1, 200, 200 - r, generator=generator(2)) for r in seen])
    got = model.mean_log_conditional(x, mask)
    noise, rows, data = mpmath.mpf(model.noise_variance.item()), digits(w), digits(x)
    for p, row in enumerate(mask):
        seen = digits(w[~row])
        gram = (seen.T * seen + noise * mpmath.eye(5)) ** -1
        latent = gram * seen.T * digits(x[:, ~row]).T
        for j in row.nonzero().flatten().tolist()[:10]:
            variance = noise * (1 + (rows[j, :] * gram * rows[j, :].T)[0])
            left = [(data[n, j] - (rows[j, :] * latent[:, n])[0]) ** 2 for n in range(3)]
            square = mpmath.fsum(left) / (3 * variance)
            wanted = -(mpmath.log(2 * mpmath.pi * variance) + square) / 2
            assert abs(got[p, j].item() - float(wanted)) <= 1e-9
    area = curves.sampled_curve(model, x, 1, generator=generator(3), targets="one", scheme="nested")
    assert abs(area.area() - model.log_marginal(x).mean().item()) <= 1e-6


def test_gradients_are_those_of_the_other_path() -> None:
    """float32 needs the root of σ² Λ_R here, float64 its square: two ways to one derivative."""
    w = torch.randn(6, 2, generator=generator(5), dtype=WIDE)
    x, mask = PPCA(w, 1e-3).sample(40, generator=generator(6)), masks.subsets(6)[1:]
    found = []
    for dtype, stiff in ((torch.float64, False), (torch.float32, True)):
        at = [w.to(dtype).requires_grad_(), torch.tensor(1e-3, dtype=dtype).requires_grad_()]
        given = gaussian.LowRankPosterior.of(at[0], at[1], ~mask)
        assert given.stiff == stiff
        model = PPCA(*at)
        value = (
            model.mean_log_conditional(x.to(dtype), mask).sum()
            + model.log_marginal(x.to(dtype)).mean()
        )
        found.append(torch.autograd.grad(value, at))
    for narrow, wide in zip(found[1], found[0], strict=True):
        assert (narrow.to(WIDE) - wide).abs().max() <= 2e-3 * wide.abs().max()


@pytest.mark.bad_input
class TestRefused:
    MESSAGE = r"rounding in torch.float64 changes log-densities by \de[-+]\d+ nats, more than 5e-07"

    def test_noise_that_rounding_swallows(self) -> None:
        with pytest.raises(ValueError, match=self.MESSAGE):
            PPCA(1e5 * kinds()["generic"], 1e-8).log_marginal(torch.zeros(1, D, dtype=WIDE))

    def test_moments_that_have_lost_their_digits(self) -> None:
        w, noise = 1e2 * kinds()["generic"], torch.tensor(1e-7, dtype=WIDE)
        PPCA(w, noise).mean_log_conditional(torch.zeros(1, D, dtype=WIDE), EVERY[1:])
        with pytest.raises(ValueError, match="methods of PPCA"):
            objectives.log_marginal(w, noise, torch.eye(D, dtype=WIDE))

    def test_data_that_contradict_each_other(self) -> None:
        """Twins that differ by 10^5 standard deviations: nothing is known of the rest."""
        model = PPCA(kinds()["two rows alike"], 1e-10)
        mask = torch.tensor([[False, True, False, True, False]])
        with pytest.raises(ValueError, match="beside loadings or data"):
            model.log_conditional(torch.eye(D, dtype=WIDE)[:1], mask)


def test_data_of_fewer_rows_than_dimensions_have_a_fit() -> None:
    x = torch.randn(3, D, generator=generator(8), dtype=WIDE)
    model = PPCA.fit_closed_form(x, 4, noise_variance=0.1)
    assert model.loadings.shape == (D, 4)
    assert (model.loadings[:, 2:] == 0).all()  # two directions vary more than the noise at most
