"""What every model inherits, functions as models, and coordinates in groups."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cases import check_area_or_refusal
from models import generator, points, random_ppca, random_table
from moved import Move, other_device
from other_device import DEVICE

from mpt_lml import (
    HMM,
    PPCA,
    VAE,
    BernoulliPCA,
    GridConditional,
    JointTable,
    curves,
    grids,
    masks,
)
from mpt_lml.models.base import ConditionalModel, FromFunction, Grouped, TractableModel
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.models.tables import ConditionalTable

MODEL = random_ppca(6, 2)
GROUP = torch.tensor([0, 1, 0, 2, 2, 1])
X = MODEL.sample(4, generator=generator())


def test_groups_of_one_are_the_model() -> None:
    single, mask = Grouped(MODEL, torch.arange(6)), masks.subsets(6)[1:]
    assert torch.equal(single.log_conditional(X, mask), MODEL.log_conditional(X, mask))


def test_groups_are_sums() -> None:
    mask = masks.subsets(3)[1:]
    values = Grouped(MODEL, GROUP).log_conditional(X, mask)
    for p, row in enumerate(mask):
        inner = MODEL.log_conditional(X, row[GROUP][None])[0]
        for j in range(3):
            expected = inner[:, j == GROUP].sum(dim=1) if row[j] else torch.zeros(4).double()
            torch.testing.assert_close(values[p, :, j], expected)
    mean = Grouped(MODEL, GROUP).mean_log_conditional(X, mask)
    torch.testing.assert_close(mean, values.mean(dim=1))


def test_the_loss_is_total_correlation() -> None:
    """Exactly, on a table: E log p(x) − area = mean over masks and groups of the group's TC ≥ 0."""
    table = random_table(2, 2, 2, 2)
    every = torch.cartesian_prod(*[torch.arange(2)] * 4)
    p = table.log_marginal(every).exp()
    grouped, group = Grouped(table, torch.tensor([0, 0, 1, 1])), torch.tensor([0, 0, 1, 1])
    mask = masks.subsets(2)[1:]
    one_by_one = (grouped.log_conditional(every, mask) * p[:, None]).sum(dim=1)
    gap = 0.0
    for row, values in zip(mask, one_by_one, strict=True):
        seen = ~row[group][None]
        for j in row.nonzero().flatten():
            both = table.log_subset_marginal(every, seen | (group == j)[None])[0]
            joint = ((both - table.log_subset_marginal(every, seen)[0]) * p).sum()
            correlation = (joint - values[j]).item()
            assert correlation > 0
            gap += correlation / row.sum().item() / math.comb(2, int(row.sum()))
    area = sum(
        (values.sum() / row.sum()).item() / math.comb(2, int(row.sum()))
        for row, values in zip(mask, one_by_one, strict=True)
    )
    assert area == pytest.approx((p * p.log()).sum().item() - gap, abs=1e-12)


def test_a_group_with_its_joint_density_is_a_coordinate() -> None:
    """Proposition 1 holds, and the joint density is at least what single members add up to."""
    jointly = Grouped(MODEL, GROUP, jointly=True)
    curve = curves.exact_curve(jointly, X)
    assert curve.area() == pytest.approx(MODEL.log_marginal(X).mean().item(), abs=1e-10)
    single, mask = torch.arange(6), masks.subsets(6)[1:]
    values = Grouped(MODEL, single, jointly=True).log_conditional(X, mask)
    torch.testing.assert_close(values, MODEL.log_conditional(X, mask))


def test_groups_follow_a_model_that_says_no_device() -> None:
    class Homeless(TractableModel):
        """MODEL, wherever data are."""

        num_features = MODEL.num_features

        def _sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
            raise NotImplementedError

        def _log_subset_marginal(self, x: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
            return Move(x.device)(MODEL).log_subset_marginal(x, observed)

    grouped = Grouped(Homeless(), GROUP, jointly=True)
    mask = masks.subsets(3)[1:]
    here = grouped.log_conditional(X, mask)
    with other_device():
        there = grouped.log_conditional(X.to(DEVICE), mask).cpu()
    torch.testing.assert_close(there, here)


def test_patches_go_row_by_row_in_an_image_that_is_not_square() -> None:
    rows = [[0, 0, 1, 1, 2, 2]] * 2 + [[3, 3, 4, 4, 5, 5]] * 2
    assert Grouped.patches(4, 6, 2).view(4, 6).tolist() == rows
    assert Grouped.patches(6, 4, 2).view(6, 4)[:, 0].tolist() == [0, 0, 2, 2, 4, 4]


def test_patches_of_an_image() -> None:
    assert Grouped.patches(4, 4, 2).view(4, 4).tolist() == [[0, 0, 1, 1]] * 2 + [[2, 2, 3, 3]] * 2
    assert Grouped.patches(2, 6, 2).tolist() == [0, 0, 1, 1, 2, 2] * 2


def test_a_curve_of_groups() -> None:
    curve = curves.exact_curve(Grouped(MODEL, GROUP), X)
    assert curve.num_features == 3
    assert curve.area() < MODEL.log_marginal(X).mean()


@pytest.mark.bad_input
def test_joint_densities_take_marginals() -> None:
    with pytest.raises(TypeError, match="model must be of type TractableModel"):
        Grouped(Grouped(MODEL, GROUP), torch.arange(3), jointly=True)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grouped(MODEL, torch.arange(5)), r"shape \(6,\), got \(5,\)"),
        (lambda: Grouped(MODEL, torch.tensor([0, 0, 2, 2, 3, 3])), r"without a gap.*\[0, 2, 3\]"),
        (lambda: Grouped(MODEL, GROUP).log_conditional(X, masks.all_masks(6, 1)), r"\(P, 3\)"),
        (lambda: Grouped.patches(8, 8, 3), "side 3 do not cover an image 8 by 8"),
    ],
)
def test_refused_with_a_reason(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_image_is_covered_by_patches_both_ways() -> None:
    for height, width in ((4, 6), (6, 4)):
        with pytest.raises(ValueError, match="do not cover"):
            Grouped.patches(height, width, 4)
    group = Grouped.patches(2, 6, 2).view(2, 6)
    assert group.tolist() == [[0, 0, 1, 1, 2, 2]] * 2


def test_one_coordinate_is_enough_for_a_function() -> None:
    weights = torch.tensor([[[0.25, 0.75]]])
    coin = FromFunction(lambda x, mask: weights.log().expand(len(x), 1, 2), 1)
    x = torch.tensor([[0], [1]])
    assert torch.equal(coin.log_each(x, torch.ones(2, 1).bool()).exp().T, weights[0])


def inconsistent(num_features: int = 4, num_values: int = 3, noise: float = 0.7, seed: int = 0):
    joint = random_table(*[num_values] * num_features, seed=seed)
    return ConditionalTable.of(joint, noise=noise, generator=generator(seed + 1))


class TestFromFunction:
    @pytest.mark.parametrize("rows", [1, 7, 4096])
    def test_is_what_it_wraps(self, rows: int) -> None:
        model, x = inconsistent(), points(4, 3)[::7]
        mask = masks.subsets(4)[1:]
        wrapped = FromFunction(model.log_values, 4)
        wrapped._pairs_at_once = rows
        assert torch.equal(wrapped.log_conditional(x, mask), model.log_conditional(x, mask))

    @pytest.mark.bad_input
    def test_refuses(self) -> None:
        model = FromFunction(inconsistent().log_values, 4)
        with pytest.raises(ValueError, match=r"x must have shape \(N, 4\).*got \(3, 5\)"):
            model.log_conditional(torch.zeros(3, 5).long(), masks.all_masks(4, 1))
        with pytest.raises(ValueError, match="masks nothing"):
            model.log_conditional(points(4, 3), torch.zeros(1, 4).bool())

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (5.0, r"add up to 445\.2, not to 1: return logits\.log_softmax"),
            (1 / 3, r"add up to 4\.187, not to 1: return values\.log\(\)"),
        ],
    )
    def test_refuses_what_is_no_log_probability(self, answer: float, message: str) -> None:
        model = FromFunction(lambda x, mask: torch.full((*x.shape, 3), answer), 4)
        with pytest.raises(ValueError, match=f"log_values must return logarithms .*{message}"):
            model.log_each(points(4, 3), torch.ones(81, 4).bool())
        with pytest.raises(ValueError, match=message):  # it is asked again, as nothing was let in
            model.log_values(points(4, 3)[:1], torch.ones(1, 4).bool())

    @pytest.mark.bad_input
    def test_refuses_an_answer_that_has_seen_what_it_scores(self) -> None:
        def leak(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (0.01 * torch.nn.functional.one_hot(x, 3)).log_softmax(dim=-1)

        model = FromFunction(leak, 4)
        with pytest.raises(
            ValueError, match="log_values changes its answer .* reads what it scores"
        ):
            model.log_conditional(points(4, 3), masks.all_masks(4, 1))
        shown = FromFunction(lambda x, mask: leak(x.masked_fill(mask, 0), mask), 4)
        assert shown.log_conditional(points(4, 3), masks.all_masks(4, 1)).isfinite().all()

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        "peeks",
        [
            lambda mask: mask & (mask.sum(dim=1, keepdim=True) == 1),
            lambda mask: mask & (mask.sum(dim=1, keepdim=True) == 2),
            lambda mask: mask & (mask.sum(dim=1, keepdim=True) > 2),
            lambda mask: mask & torch.tensor([False, False, False, True]),
        ],
        ids=["where one is hidden", "where two are", "where most are", "at the last place"],
    )
    def test_is_tried_where_much_is_hidden_some_and_little(self, peeks) -> None:
        """Of the masks 1000, 0110, 0111: the one in the middle hides neither most nor the last."""

        def leak(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen = torch.nn.functional.one_hot(x, 3) * peeks(mask)[..., None]
            return (0.01 * seen).log_softmax(dim=-1)

        mask = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]).bool()
        with pytest.raises(ValueError, match="it reads what it scores"):
            FromFunction(leak, 4).log_conditional(points(4, 3)[:1], mask)

    def test_is_tested_once(self) -> None:
        asked = []

        def coins(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            asked.append(len(x))
            return torch.zeros(*x.shape, 3).log_softmax(dim=-1)

        model = FromFunction(coins, 4)
        for _ in range(2):
            model.log_each(points(4, 3), torch.ones(81, 4).bool())
        # Under masks that hide four, two and one, each with two texts; then two rows at a time.
        assert asked == [81, *[1] * 6, 2, 2, 81]

    @pytest.mark.parametrize("method", ["log_each", "log_values"])
    def test_is_asked_for_few_pairs_at_a_time(self, method: str) -> None:
        asked = []

        def coins(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            asked.append(len(x))
            return torch.zeros(*x.shape, 3).log_softmax(dim=-1)

        model = FromFunction(coins, 4)
        answer = getattr(model, method)(points(4, 3).repeat(10, 1), torch.ones(810, 4).bool())
        assert len(answer) == 810
        assert max(asked) == 512


@pytest.mark.bad_input
@pytest.mark.parametrize("method", ["log_each", "log_conditional", "mean_log_conditional"])
def test_a_model_without_mathematics_says_what_it_lacks(method: str) -> None:
    class Empty(ConditionalModel):
        num_features = 2

    with pytest.raises(TypeError, match="Empty must override _log_each or _log_conditional"):
        getattr(Empty(), method)(torch.zeros(1, 2), torch.ones(1, 2).bool())


# Models over thirty decades of one of their scales, in either precision, and data of theirs.
W = torch.randn(4, 2, generator=generator(1), dtype=torch.float64)
CENTER = torch.randn(4, generator=generator(2), dtype=torch.float64)
FIXED = torch.randn(3, 4, generator=generator(3), dtype=torch.float64)
GRID = grids.trapezoid(2, 9)
# Logits that are 0 at some of the grid's nodes, and at none of their neighbours.
CANCELLING = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, 1.25], [-1.0, 2.0, -1.25], [0.5, 0, 0]])
Scaled = tuple[TractableModel, torch.Tensor]


def with_draws(model: TractableModel) -> Scaled:
    return model, model.sample(3, generator=generator(7))


def with_pixels(model: TractableModel, dtype: torch.dtype) -> Scaled:
    return model, masks.subsets(4).to(dtype)


def bernoulli(loadings: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype) -> Scaled:
    return with_pixels(BernoulliPCA(loadings.to(dtype), offset.to(dtype), grid=GRID), dtype)


def gaussian_decoder(scale: float, noise_variance: float, dtype: torch.dtype) -> Scaled:
    w = (scale * W).to(dtype)

    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("a grid asks no encoder")

    def decode(z: torch.Tensor) -> torch.Tensor:
        return z.tanh() @ w.mT

    model = VAE(encode, decode, num_features=4, latent_dim=2, noise_variance=noise_variance)
    return with_draws(GridConditional(model, GRID.to(w)))


def hmm(rare: float, stuck: float, dtype: torch.dtype) -> Scaled:
    """A symbol that one state emits rarely, and a state that is left rarely."""
    rows = torch.tensor([[rare, 1 - rare], [0.7, 0.3]], dtype=torch.float64).to(dtype)
    transition = torch.tensor([[1 - stuck, stuck], [0.4, 0.6]], dtype=torch.float64).to(dtype)
    model = HMM(torch.tensor([1.0, 0.0]).to(dtype), transition, rows, 4)
    return model, points(4, 2)


def table(rare: float, dtype: torch.dtype) -> Scaled:
    weights = torch.tensor([1.0, rare], dtype=torch.float64)
    cells = random_table(2, 2, 2).log_table.exp() * torch.einsum("a,b,c->abc", *[weights] * 3)
    return JointTable((cells / cells.sum()).to(dtype)), points(3, 2)


SCALED: dict[str, Callable[[float, torch.dtype], Scaled]] = {
    "PPCA, loadings": lambda s, d: with_draws(PPCA((s * W).to(d), 1.0)),
    "PPCA, one row": lambda s, d: with_draws(
        PPCA(torch.cat([s * W[:1], W[1:]]).to(d), 0.5, CENTER.to(d))
    ),
    "PPCA, noise": lambda s, d: with_draws(PPCA(W.to(d), s)),
    "PPCA, noise beside other data": lambda s, d: (PPCA(W.to(d), s), FIXED.to(d)),
    "PPCA, unit": lambda s, d: with_draws(PPCA((s * W).to(d), 0.3 * s**2, (s * CENTER).to(d))),
    "PPCA, mean": lambda s, d: with_draws(PPCA(W.to(d), 0.3, (s * CENTER).to(d))),
    "PPCA, data": lambda s, d: (PPCA(W.to(d), 0.3), (s * FIXED).to(d)),
    "BernoulliPCA, loadings": lambda s, d: bernoulli(s * W, CENTER, d),
    "BernoulliPCA, offset": lambda s, d: bernoulli(W, s * CENTER, d),
    "BernoulliPCA, both": lambda s, d: bernoulli(s * W, s * CENTER, d),
    "BernoulliPCA, cancelling": lambda s, d: bernoulli(
        s * CANCELLING[:, :2].double(), s * CANCELLING[:, 2].double(), d
    ),
    "GridConditional, logits": lambda s, d: with_pixels(
        GridConditional(bernoulli(s * W, s * CENTER, d)[0], GRID.to(W.to(d))), d
    ),
    "GridConditional, noise": lambda s, d: gaussian_decoder(1.0, s, d),
    "GridConditional, means": lambda s, d: gaussian_decoder(s, 0.3, d),
    "ConjugateRegression, inputs": lambda s, d: with_draws(ConjugateRegression((s * W).to(d))),
    "ConjugateRegression, prior": lambda s, d: with_draws(
        ConjugateRegression(W.to(d), prior_scale=s)
    ),
    "ConjugateRegression, rate": lambda s, d: with_draws(ConjugateRegression(W.to(d), rate=s)),
    "ConjugateRegression, shape": lambda s, d: with_draws(ConjugateRegression(W.to(d), shape=s)),
    "ConjugateRegression, data": lambda s, d: (ConjugateRegression(W.to(d)), (s * FIXED).to(d)),
    "HMM, emission": lambda s, d: hmm(0.1 * min(s, 1 / s), 0.1, d),
    "HMM, emission to 1e-300": lambda s, d: hmm(0.1 * min(s, 1 / s) ** 20, 0.1, d),
    "HMM, transition": lambda s, d: hmm(0.1, 0.1 * min(s, 1 / s), d),
    "HMM, both to 1e-300": lambda s, d: hmm(*[0.1 * min(s, 1 / s) ** 20] * 2, d),
    "JointTable": table,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", SCALED)
def test_the_area_is_log_p_at_every_scale_or_nothing_is_answered(
    name: str, dtype: torch.dtype
) -> None:
    num_models = 0
    for exponent in range(-15, 16, 2):
        try:
            model, x = SCALED[name](10.0**exponent, dtype)
        except ValueError:  # tables that single precision does not hold
            continue
        check_area_or_refusal(model, x)
        num_models += 1
    assert num_models > 0


def every_model(base: type = ConditionalModel) -> list[type]:
    return [base, *(below for child in base.__subclasses__() for below in every_model(child))]


@pytest.mark.parametrize("model", every_model(), ids=lambda model: model.__name__)
def test_what_is_concrete_is_not_overridden(model: type) -> None:
    """A model brings mathematics; checks, batches and zeros are those of the base classes."""
    doors = {"log_each", "log_values", "log_conditional", "mean_log_conditional", "log_marginal"}
    doors |= {"log_subset_marginal", "mean_log_subset_marginal", "sample"}
    bases = (ConditionalModel, TractableModel)
    assert model in bases or not doors & vars(model).keys()
