"""A valid call of every public callable of `mpt_lml`, and what its annotations do not say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import is_color_like
from models import generator as at
from models import random_bernoulli, random_hmm, random_ppca, random_table
from torch import Tensor
from wrong_calls import Call, Legal, at_least, is_symmetric, valid

import mpt_lml
from mpt_experiments import resume
from mpt_lml import (
    curves,
    data,
    drawings,
    estimators,
    fit,
    gaussian,
    grids,
    masks,
    objectives,
    orders,
    page,
    plots,
    scores,
    symbolic,
    verdicts,
)
from mpt_lml.checks import Data
from mpt_lml.estimators.conditionals import GibbsConditional, ImportanceConditional
from mpt_lml.estimators.latent import GaussianProposal
from mpt_lml.models import vae as vaes
from mpt_lml.models.base import TractableModel
from mpt_lml.theory import chains, diffusion, godambe, rates

matplotlib.use("Agg")

MODEL = random_ppca(4, 2)
X = MODEL.sample(3, generator=at())
HMM = random_hmm(2, 3, 4)
WORDS = HMM.sample(3, generator=at())
GRAMMAR = mpt_lml.Grammar.brackets(1, 1, 4)
STRINGS = GRAMMAR.sample(3, generator=at())
TABLE = random_table(2, 3)
SYMBOLS = torch.tensor([[0, 2], [1, 1]])
BERNOULLI = random_bernoulli(3, 1, 9)
BITS = BERNOULLI.sample(3, generator=at())
DENSE = vaes.dense_parameters(3, [4], 1, generators=[at()])
VAE = vaes.dense_model(DENSE, 0)
GRID = grids.trapezoid(1, 9)
CURVE = curves.exact_curve(MODEL, X)
HIDDEN = torch.tensor([[True, False, True, False], [False, True, True, True]])
WORD_OR_NOTHING = [lambda *given, **named: None, lambda *given, **named: "word"]

plt.figure()
AX = plt.gca()
plt.close("all")


# -- what mathematics asks for ----------------------------------------------------------------------


def within(low: float, high: float) -> Legal:
    """All entries of a tensor, or a number."""
    return lambda v: bool(
        ((v >= low) & (v <= high)).all() if isinstance(v, Tensor) else low <= v <= high
    )


def multiple_of(number: int) -> Legal:
    return lambda v: v % number == 0


def one_of(*values: Any) -> Legal:
    return lambda v: v in values


def increase(v: Any) -> bool:
    return list(v) == sorted(set(v))


def sum_to_one(v: Tensor) -> bool:
    return bool((v >= 0).all()) and bool(((v.sum(-1) - 1).abs() <= 1e-6).all())


def positive(v: Tensor) -> bool:
    return bool((v > 0).all())


def are_permutations(v: Tensor) -> bool:
    return torch.equal(v.sort(-1).values, torch.arange(v.shape[-1]).expand_as(v))


def have_shapes_of(parameters: dict[str, Tensor]) -> Legal:
    """Weights of the same networks, in their precision."""
    of_valid = {name: (value.shape, value.dtype) for name, value in parameters.items()}
    return lambda v: {name: (w.shape, w.dtype) for name, w in v.items()} == of_valid


def are_zeros_and_ones(v: Tensor) -> bool:
    return bool(((v == 0) | (v == 1)).all())


# -- models -------------------------------------------------------------------------------------------


def models() -> list[Call]:
    w = torch.ones(4, 2).double()
    half = torch.full((2, 2), 0.5).double()
    return [
        valid(mpt_lml.PPCA, w, 0.2, w[:, 0]),
        valid(MODEL.posterior, X),
        valid(mpt_lml.PPCA.fit_closed_form, MODEL.sample(9, generator=at(3)), 1, ddof=1).where(
            latent_dim=within(0, 3)
        ),
        valid(
            mpt_lml.PPCA.fit_closed_form,
            MODEL.sample(9, generator=at(3)),
            1,
            noise_variance=0.3,
            mean=w[:, 0],
        ).where(latent_dim=within(0, 3)),
        valid(mpt_lml.BernoulliPCA, w[:, :1], offset=w[:, 0], grid=GRID),
        valid(
            BERNOULLI.posterior_weights,
            BITS,
            torch.tensor([[True, False, False], [False, True, True]]),
        ),
        valid(BERNOULLI.adaptive_log_marginal, BITS, nodes_per_axis=5, extent=5.0),
        valid(
            mpt_lml.ConjugateRegression,
            torch.ones(3, 1).double(),
            prior_scale=1.0,
            shape=2.0,
            rate=1.0,
        ),
        valid(mpt_lml.ConditionalTable, torch.zeros(4, 9, 2, 3)).where(
            logits=lambda v: v.shape[:2] == (2 ** v.shape[2], v.shape[3] ** v.shape[2])
        ),
        valid(mpt_lml.ConditionalTable.of, HMM, 3, noise=0.1, generator=at()).where(
            num_values=one_of(3)
        ),
        valid(mpt_lml.JointTable, torch.full((2, 2), 0.25)).where(
            probabilities=lambda v: positive(v) and abs(v.double().sum().item() - 1) < 1e-6
        ),
        valid(mpt_lml.JointTable.random, (2, 3), generator=at()),
        valid(mpt_lml.HMM, half[0], half, half, 3).where(
            initial=sum_to_one,
            transition=sum_to_one,
            emission=lambda v: sum_to_one(v) and positive(v),
        ),
        valid(mpt_lml.HMM.cyclic, 3, 12, 4, preferred=0.9).where(
            num_states=one_of(3, 4, 6, 12),
            num_symbols=multiple_of(3),
            preferred=lambda v: 0 < v < 1,
        ),
        valid(mpt_lml.Grammar, torch.full((1, 1, 1), 0.5), torch.full((1, 2), 0.25), 3).where(
            rules=lambda v: (v == 0.5).all(),
            emission=lambda v: positive(v) and abs(v.double().sum().item() - 0.5) < 1e-6,
        ),
        valid(mpt_lml.Grammar.brackets, 2, 1, 4),
        valid(HMM.log_posterior, WORDS, WORDS > 0),
        valid(GRAMMAR.log_posterior, GRAMMAR.sample(2, generator=at()), torch.ones(2, 4) > 0),
        valid(
            mpt_lml.FromFunction,
            lambda x, mask: torch.zeros(*x.shape, 4).log_softmax(-1),
            3,
            rows=2,
        )
        .then(lambda model: model.log_each(torch.zeros(1, 3).long(), torch.ones(1, 3) > 0))
        .where(num_features=one_of(3))
        .trying(
            log_values=[
                *WORD_OR_NOTHING,
                lambda x, mask: torch.tensor(0.0),
                lambda x, mask: torch.zeros(*x.shape),
                lambda x, mask: torch.zeros(4),
                lambda x, mask: torch.zeros(*x.shape, 4).long(),
                lambda x, mask: torch.full((*x.shape, 4), math.nan),
            ]
        ),
        valid(mpt_lml.Grouped, MODEL, torch.tensor([0, 0, 1, 1]), jointly=True).where(
            # The groups are counted from 0 without a gap.
            group=lambda v: len(v) == 4 and v.unique().tolist() == list(range(len(v.unique())))
        ),
        valid(mpt_lml.Grouped.patches, 4, 4, 2).where(
            height=multiple_of(2), width=multiple_of(2), patch=one_of(1, 2, 4)
        ),
        valid(mpt_lml.GridConditional, VAE, GRID),
        valid(
            mpt_lml.VAE,
            lambda x: (x[..., :1], 0 * x[..., :1]),
            lambda z: z.expand(*z.shape[:-1], 3),
            num_features=3,
            latent_dim=1,
            noise_variance=0.5,
        )
        .then(used)
        .where(num_features=one_of(3), latent_dim=one_of(1))
        .trying(
            encoder=[*WORD_OR_NOTHING, lambda x: x, lambda x: (x, x)],
            decoder=[*WORD_OR_NOTHING, lambda z: z, lambda z: z.sum()],
        ),
    ]


def used(model: mpt_lml.VAE) -> Tensor:
    model.encode(torch.zeros(2, model.num_features))
    return model.log_factors(torch.zeros(2, model.num_features), torch.zeros(2, model.latent_dim))


def methods() -> list[Call]:
    """What every model answers."""
    double = torch.zeros(2, 3).double()
    calls = []
    for model, x in (
        (MODEL, X),
        (HMM, WORDS),
        (GRAMMAR, STRINGS),
        (TABLE, SYMBOLS),
        (BERNOULLI, BITS),
        (mpt_lml.ConjugateRegression(double[:1].mT + 1), double),
        (mpt_lml.FromFunction(_uniform, 3), torch.zeros(2, 3).long()),
        (mpt_lml.ConditionalTable(torch.zeros(4, 9, 2, 3)), SYMBOLS),
        (mpt_lml.Grouped(MODEL, torch.tensor([0, 0, 1, 1])), X),
        (mpt_lml.GridConditional(VAE, GRID.to(torch.ones(1))), BITS.float()),
        (GibbsConditional(VAE, 4, generator=at(), corrected=True), BITS.float()),
        (ImportanceConditional(BERNOULLI, 3, generator=at()), BITS),
    ):
        calls += methods_of(model, x)
    return calls


def methods_of(model: mpt_lml.ConditionalModel, x: Tensor) -> list[Call]:
    few = masks.all_masks(model.num_features, 1)[:2]
    paired = few.repeat(2, 1)[: len(x)]
    calls = [
        data_check(model, x),
        valid(model.log_each, x, paired),
        valid(model.log_conditional, x, few),
        valid(model.mean_log_conditional, x, few),
    ]
    # A function and a network say what their values are when they answer.
    if model.num_values is not None or "_log_values" in vars(type(model)):
        calls.append(valid(model.log_values, x, paired))
    if isinstance(model, TractableModel):
        calls.append(valid(model.log_marginal, x))
        calls.append(valid(model.log_subset_marginal, x, few))
        calls.append(valid(model.mean_log_subset_marginal, x, few))
        calls.append(valid(model.sample, 2, generator=at()))
    return calls


def data_check(model: Any, x: Tensor) -> Call:
    """Refuse what is no data of a model: a part of every check, and public itself."""
    return replace(valid(model.require_data, x), annotations={"x": Data})


def _uniform(x: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(*x.shape, 3).log_softmax(-1)


def latent_variable_models() -> list[Call]:
    calls = []
    for model, x in ((BERNOULLI, BITS), (VAE, BITS.float())):
        z = torch.zeros(len(x), 1).to(x)
        calls.append(valid(model.log_factors, x, z).passing_nan("z"))
        calls.append(valid(model.log_table, x, z).passing_nan("x"))
        calls.append(valid(model.sample_given, z, generator=at()))
        calls.append(valid(model.log_prior, z).passing_nan("z"))
        calls.append(valid(model.log_joint, x, z, x > -1).passing_nan("z"))
        calls.append(valid(model.decode, z).passing_nan("z"))
    calls.append(data_check(VAE, BITS.float()))
    calls.append(valid(VAE.encode, BITS.float()).passing_nan("x"))
    return calls


# -- masks, scores, curves ------------------------------------------------------------------------------


def mask_calls() -> list[Call]:
    calls = [
        valid(masks.all_masks, 3, 2).where(num_features=at_least(2), num_masked=within(1, 3)),
        valid(masks.subsets, 3, instead="other"),
        valid(masks.row_of, HIDDEN),
        valid(masks.sample_masks, 2, 5, 2, generator=at()).where(
            num_features=at_least(2),
            size=lambda v: isinstance(v, masks.SizeLaw) or 1 <= v <= 5,
        ),
        valid(masks.stratified_masks, 2, 3, masks.UniformSize(), generator=at()),
        valid(masks.stratified_masks, 2, 3, [masks.FixedSize(1)] * 2, generator=[at(), at()]),
        valid(masks.nested_masks, torch.tensor([[2, 0, 1], [0, 1, 2]])).where(
            order=are_permutations
        ),
        valid(masks.FixedSize, 2),
        valid(masks.FixedRate, 0.5),
        valid(masks.BernoulliRate, 0.5),
        valid(masks.PowerSize, -0.5),
        valid(masks.PowerSize(-0.5).weights, 3),
        valid(masks.FixedRate(0.5).num_masked, 3),
    ]
    for law in (
        masks.FixedSize(1),
        masks.FixedRate(0.5),
        masks.BernoulliRate(0.5),
        masks.PowerSize(-0.5),
        masks.UniformSize(),
    ):
        calls.append(valid(law.sample, 2, 3, generator=at()))
        calls.append(valid(law.stratified, 2, 3, generator=at()))
        calls.append(valid(law.probabilities, 3))
    return calls


def curve_calls() -> list[Call]:
    values = -torch.ones(2, 3)
    sizes = lambda v: len(v) > 0 and increase(v) and min(v) >= 1 and max(v) <= 4  # noqa: E731
    return [
        valid(curves.exact_curve, MODEL, X),
        valid(curves.subset_curve, MODEL, X),
        valid(curves.subset_levels, MODEL, X),
        valid(curves.sampled_curve, MODEL, X, 2, generator=at(), sizes=[1, 3]).where(sizes=sizes),
        valid(curves.size_scores, MODEL, X, HIDDEN[None]),
        valid(curves.running_area, values).passing_nan("values"),
        valid(estimators.area, MODEL, X, 2, generator=at()),
        valid(estimators.exact, MODEL, X),
        valid(estimators.ordered_chain, MODEL, X, 2, generator=at()),
        valid(estimators.exact_variance, MODEL, X, "nested", "one"),
        valid(
            scores.mask_score, values, torch.tensor([[True, False, True], [True, True, True]])
        ).taking_nan("log_conditional"),  # what is not masked is not read
        valid(scores.mean_by_size, -torch.ones(3, 2), torch.tensor([0, 1, 1]), 1)
        .passing_nan("values")
        .where(sizes=within(0, 1)),
        valid(orders.every, 3),
        valid(orders.draw, 2, 3, generator=at()),
        valid(orders.log_probability, HMM, WORDS, torch.tensor([[0, 1, 2, 3], [2, 0, 0, 1]])).where(
            ranks=within(0, math.inf)
        ),
        valid(orders.exact, HMM, WORDS),
        valid(orders.adaptive, HMM, WORDS, orders.confidence),
        valid(orders.by_blocks, orders.confidence, 2),
        valid(orders.TokenRule, lambda x, mask, log_values: log_values[..., 0]),
        valid(orders.mixture_bounds, -torch.ones(4, 3), torch.zeros(3)).where(
            log_probability=lambda v: len(v) >= 2
        ),
        valid(orders.mixture_bound, -torch.ones(4, 3), 2)
        .passing_nan("log_probability")
        .where(num_orders=within(1, 4), log_probability=lambda v: len(v) >= 2),
    ]


def results() -> list[Call]:
    length = torch.arange(1, 4)
    number = {"value": 0.3, "error": 0.2, "n": 5}
    calls = [
        valid(mpt_lml.Estimate, 1.0, 0.1, 3),
        valid(
            mpt_lml.MaskCurve,
            length,
            -1.0 * length,
            0.1 * length,
            3,
            9,
            0.1,
            each=torch.zeros(3, 9),
        )
        .then(lambda curve: curve.area())
        # Of the parts: the area has an error of its own, and reads no single mask.
        .taking_nan("standard_error", "each")
        .where(
            each=lambda v: v.is_floating_point() and v.ndim == 2 and len(v) == 3,
            num_masked=lambda v: increase(v.tolist()) and v[0] > 0 and v[-1] < 4,
            num_features=at_least(3),
        ),
        valid(CURVE.area),
        valid(CURVE.partial_sums),
        valid(page.glue, "name", 1.0).where(
            value=lambda v: (
                not isinstance(v, float | Tensor) or bool(torch.as_tensor(v).isfinite().all())
            )
        ),
        valid(plots.use_style),
        valid(plots.mask_curve, CURVE, ax=AX, color="C0").where(color=is_color_like),
        valid(data.Images, torch.zeros(2, 12).double(), (2, 6))
        .then(lambda images: images.grid)
        .where(
            pixels=within(0, 1),
            shape=lambda v: len(v) in (2, 3) and math.prod(v) == 12 and v[2:] in ((), (3,)),
        )
        .trying(shape=[(2, 5), (12,), (2, 2, 4), (2, 3, 2), (-2, -6), (2.0, 6.0), [2, 6]]),
        valid(data.images, "digits", "test").where(name=one_of("digits")),
        valid(data.paper_gaussian, 3, 4, 2, generator=at()),
        valid(data.published_curves),
        valid(verdicts.mean_and_error, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0)
        .passing_nan("samples")
        .where(dim=within(-2, 1)),
    ]
    decisions = [
        valid(verdicts.equivalent, **number, margin=1.0, at=0.0),
        valid(verdicts.interval, **number),
    ]
    for decide in (verdicts.agrees, verdicts.apart, verdicts.exceeds):
        decisions.append(valid(decide, **number, at=0.0))
    # One value has no error.
    return calls + [call.where(n=at_least(2)) for call in decisions]


def drawing_calls() -> list[Call]:
    def is_place(v: Any) -> bool:
        return len(v) == 2

    at_place = {"ax": AX, "at": (0.0, 1.0)}
    row = ["visible", "asked"]
    return [
        valid(drawings.canvas, 2, 1.5),
        valid(drawings.write, "a word", **at_place, look="asked").where(at=is_place),
        valid(drawings.tokens, ["a", "?"], row, **at_place).where(
            at=is_place, words=lambda v: len(v) == 2, looks=lambda v: len(v) == 2
        ),
        valid(drawings.table, [["a", "?"]], [row], **at_place).where(
            at=is_place,
            words=lambda v: [len(cells) for cells in v] == [2],
            looks=lambda v: [len(cells) for cells in v] == [2],
        ),
        valid(drawings.node, "z", **at_place).where(at=is_place),
        valid(drawings.arrow, (0.0, 0.0), (1.0, 0.0), ax=AX, word="p").where(
            start=is_place, end=is_place
        ),
        valid(drawings.brace, (0.0, 0.0), (1.0, 0.0), ax=AX).where(
            start=lambda v: is_place(v) and v[0] < 1 and v[1] == 0,
            end=lambda v: is_place(v) and v[0] > 0 and v[1] == 0,
        ),
        valid(drawings.clock, ["0", "1"], **at_place, width=2.0).where(
            at=is_place, times=lambda v: len(v) > 1
        ),
        valid(drawings.bars, [1.0, 0.5], **at_place).where(at=is_place),
    ]


def symbolic_calls() -> list[Call]:
    model = symbolic.SymbolicTable(2)

    def are_coordinates(v: Any) -> bool:
        return all(type(j) is int and j in (0, 1) for j in v) and len(set(v)) == len(list(v))

    return [
        valid(symbolic.SymbolicGaussian, 2),
        valid(symbolic.SymbolicTable, 2),
        valid(model.log_marginal, [0]).where(observed=are_coordinates),
        valid(model.log_conditional, 1, [0]).where(
            target=one_of(1), observed=lambda v: are_coordinates(v) and 1 not in v
        ),
        valid(model.order_term, 1).where(position=within(1, 2)),
        valid(model.score, 1).where(num_masked=within(1, 2)),
        valid(model.mean_log_marginal, 1).where(num_observed=within(0, 2)),
        valid(model.residual, model.score),
    ]


# -- estimators, objectives, training --------------------------------------------------------------------


def estimator_calls() -> list[Call]:
    x = BITS.float()
    everything = torch.ones(3, 3) > 0
    no_proposals = [lambda *given: torch.zeros(3, 1), lambda model, x, observed: x]
    proposal = estimators.from_prior(VAE, x, None)
    unit = GaussianProposal(torch.zeros(3, 2), torch.eye(2).repeat(3, 1, 1), 0.1)
    moment = torch.eye(3).double()[None] + 0.5
    return [
        valid(estimators.at_mode, VAE, x, everything),
        valid(estimators.from_prior, VAE, x, everything),
        valid(estimators.from_encoder, VAE, x, everything),
        valid(estimators.iwae, VAE, x, 2, generator=at(), proposal=estimators.from_prior).trying(
            proposal=no_proposals
        ),
        valid(estimators.log_weights, VAE, x, proposal, 2, generator=at()).where(
            x=lambda v: len(v) == 3
        ),
        valid(estimators.ais, VAE, x, 2, 3, generator=at()),
        valid(
            estimators.annealed_evidence,
            moment,
            3,
            1,
            0.5,
            num_chains=2,
            num_steps=2,
            generator=at(),
            backward_from=torch.ones(1, 3, 1).double(),
        ).where(latent_dim=one_of(1)),
        valid(estimators.GibbsConditional, VAE, 2, generator=at(), corrected=True),
        valid(
            estimators.ImportanceConditional,
            VAE,
            2,
            generator=at(),
            proposal=estimators.from_prior,
        )
        .then(lambda model: model.log_each(x, everything))
        .trying(proposal=no_proposals),
        # What is not finite is passed on to the draws.
        valid(GaussianProposal, unit.mean, unit.factor, 0.1)
        .then(lambda proposal: proposal.sample(2, generator=at()))
        .passing_nan("mean", "factor"),
        valid(unit.sample, 2, generator=at()),
        valid(unit.log_density, torch.zeros(3, 2)).passing_nan("z"),
    ]


def objective_calls() -> list[Call]:
    w = torch.ones(3, 1).double()
    moment = torch.eye(3).double() + 0.5
    few = torch.tensor([[True, False, True], [True, True, True]])
    given = (w, torch.tensor(0.5).double(), moment)
    stack = (w[None], torch.zeros(1, 3).double())
    encoder = (
        torch.zeros(1, 1, 3).double(),
        torch.zeros(1, 1).double(),
        torch.zeros(1, 1).double(),
    )
    calls = [
        valid(objectives.log_marginal, *given),
        valid(objectives.sampled, *given, few),
        valid(objectives.exact, *given, masks.UniformSize()),
        valid(objectives.curve, *given),
    ]
    # NaN passes on: fit.maximize names the epoch and the run.
    finite = lambda v: not v.isinf().any()  # noqa: E731
    calls = [
        call.passing_nan("loadings", "noise_variance").where(loadings=finite) for call in calls
    ]
    x = BITS.float()
    noise = torch.zeros(1, 1, 3, 1)
    half = torch.tensor([[[True, False, True]] * 3])
    of_parts = vaes.dense_parameters(3, [4], 1, generators=[at()], partial=True)
    calls += [
        valid(objectives.elbo, DENSE, x, noise[0], 0.5)
        .passing_nan("noise")
        .where(parameters=have_shapes_of(DENSE)),
        valid(objectives.refill, DENSE, x, half, noise, 0.5, pixel_noise=torch.zeros(1, 1, 3, 3))
        .passing_nan("noise")
        .taking_nan("pixel_noise")  # only that of hidden pixels is read
        .where(parameters=have_shapes_of(DENSE)),
        valid(objectives.recursive, DENSE, x, half, x[None], noise, 0.5)
        .passing_nan("filled", "noise")
        .where(parameters=have_shapes_of(DENSE)),
        valid(objectives.partial, of_parts, x, half, noise, 0.5)
        .passing_nan("noise")
        .where(parameters=have_shapes_of(of_parts)),
        valid(objectives.mask_scores, *given, few)
        .passing_nan("loadings", "noise_variance", "moment")
        .where(loadings=finite),
        valid(objectives.second_moment, X),
        valid(objectives.mixture, *stack, BITS, few[None], GRID)
        .passing_nan("loadings", "offset")
        .where(x=are_zeros_and_ones),
        valid(objectives.linear_elbo, *stack, *encoder, BITS, torch.zeros(1, 3, 1).double())
        .passing_nan(
            "loadings", "offset", "encoder", "encoder_offset", "encoder_log_variance", "noise"
        )
        .where(x=are_zeros_and_ones),
    ]
    return calls


def gaussian_calls() -> list[Call]:
    mean = torch.zeros(4).double()
    sigma = MODEL.covariance
    of = gaussian.LowRankPosterior.of(MODEL.loadings, MODEL.noise_variance, HIDDEN)
    moment = X.mT @ X
    calls = [
        valid(gaussian.log_density, X, mean, sigma),
        valid(gaussian.condition_dense, X, mean, sigma, HIDDEN[0]),
        valid(gaussian.divergence, sigma, sigma),
        valid(
            gaussian.LowRankPosterior.of, MODEL.loadings, MODEL.noise_variance, HIDDEN
        ).passing_nan("loadings", "noise_variance"),
    ]
    for name in ("mean_and_residual", "log_conditional", "log_marginal"):
        calls.append(valid(getattr(of, name), X).passing_nan("centered"))
    for name in ("mean_log_conditional", "mean_log_marginal"):
        calls.append(valid(getattr(of, name), moment).passing_nan("moment"))
    return calls


def grid_calls() -> list[Call]:
    nodes = torch.zeros(3, 2)
    log_weights = torch.full((3,), -math.log(3))
    grid = grids.Grid(nodes, log_weights)
    return [
        valid(grids.Grid, nodes, log_weights).where(
            log_weights=lambda v: abs(v.double().exp().sum().item() - 1) < 1e-3
        ),
        valid(grid.sample, 2, generator=at()),
        valid(grid.to, X).taking_nan("like"),  # its dtype and device are all that is read
        valid(grids.trapezoid, 1, 9, 5.0).where(latent_dim=within(1, 3)),
        valid(grids.gauss_hermite, 1, 9).where(latent_dim=within(1, 3)),
        valid(
            grids.find_modes,
            lambda z: -2 * (z - 3).square().sum(-1),
            torch.zeros(2, 1),
            max_steps=20,
            tolerance=1e-3,
            accepted=1.0,
        ).trying(
            log_joint=[
                *WORD_OR_NOTHING,
                lambda z: z,
                lambda z: z.sum(),
                lambda z: torch.zeros(2),
                lambda z: z.sum(-1) * math.nan,
            ]
        ),
    ]


def training() -> list[Call]:
    start = {"level": torch.zeros(2)}
    net = torch.nn.Linear(2, 1)
    schedule = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(net.parameters(), lr=0.01))
    no_scores = [
        *WORD_OR_NOTHING,
        lambda *given: torch.tensor(1.0),
        lambda p, *given: p["level"].sum(),
        lambda p, *given: p["level"][:1],
        lambda p, *given: p["level"][None],
        lambda *given: 1.0,
    ]
    epochs = lambda v: all(type(epoch) is int and 0 <= epoch <= 2 for epoch in v)  # noqa: E731
    return [
        valid(
            fit.bfgs,
            torch.zeros(2, 3),
            lambda w: -(w - 1.0).square().sum(dim=1),
            max_steps=5,
        ).trying(
            objective=[
                *WORD_OR_NOTHING,
                lambda w: -w.square().sum(),
                lambda w: w,
                lambda w: torch.ones(len(w)),
                lambda w: w.sum(dim=1) * math.nan,
            ]
        ),
        valid(resume.FileCheckpoint, Path("run"), {"law": "uniform"}, 10),
        valid(
            fit.maximize,
            start,
            lambda p, generators: -(p["level"] - 1).square(),
            num_epochs=2,
            learning_rate=0.1,
            track={"level": lambda p: p["level"]},
            snapshots=[0, 2],
            progress=fit.silent,
        )
        .where(
            parameters=lambda v: {name: p.shape for name, p in v.items()} == {"level": (2,)},
            snapshots=epochs,
        )
        .trying(
            parameters=[
                {"level": 1.0},
                {"level": torch.zeros(2).long()},
                {"level": torch.zeros(())},
                {"level": torch.zeros(2), "other": torch.zeros(3)},
                {"level": torch.zeros(0)},
            ],
            objective=no_scores,
            track=[{"level": score} for score in no_scores] + [{"level": 3}],
        ),
        valid(
            fit.descend,
            net,
            lambda step: net.weight.square().sum(),
            [schedule],
            num_steps=2,
            max_norm=1.0,
            watch=lambda: torch.ones(1),
            watched=[1],
            progress=fit.silent,
        )
        .where(watched=epochs)
        .trying(
            loss=[
                *WORD_OR_NOTHING,
                lambda step: 1.0,
                lambda step: torch.ones(2, requires_grad=True),
                lambda step: torch.tensor(1.0),
                lambda step: torch.tensor(math.nan, requires_grad=True),
            ]
        ),
    ]


# -- theory ---------------------------------------------------------------------------------------------


def theory() -> list[Call]:
    score = -torch.ones(3).double()
    no_schedules = [
        *WORD_OR_NOTHING,
        lambda t: 2.0,
        lambda t: t.sum(),
        lambda t: t + 1.0,
        lambda t: 1.0 - t,
        lambda t: t * math.nan,
        lambda t: t[:1],
    ]
    column = torch.tensor([[1.0], [2.0], [3.0]]).double()
    family = godambe.GaussianFamily.ppca(column, 0.5)
    information = godambe.Godambe.of(family)
    steps = torch.tensor([[0, 1, 2, 3], [3, 0, 0, 1]])

    def are_directions(v: Tensor) -> bool:
        return is_symmetric(v) and int(torch.linalg.matrix_rank(v.flatten(1))) == len(v)

    def is_of_a_chain(v: Tensor) -> bool:
        return bool((v.diff() >= -1e-5).all() and (v.diff().diff() <= 1e-5).all())

    coin = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double()
    turn = torch.tensor([[0.5, -0.5], [-0.5, 0.5]]).double()
    blocks = chains.markov_blocks(coin, turn, 24)
    shares = torch.tensor([0.25, 0.5]).double()

    def are_steps(v: Tensor) -> bool:
        return bool((v > 0).all() and (v.sum(dim=1) - 1).abs().max() < 1e-9)

    def are_shares(v: Tensor) -> bool:
        return bool(((v > 0) & (v < 1)).all())

    def are_changes(v: Tensor) -> bool:
        return bool(v.sum(dim=1).abs().max() < 1e-9)

    return [
        valid(chains.markov_blocks, coin, turn, 2).where(transition=are_steps, slope=are_changes),
        valid(chains.rate_efficiency, blocks, shares).where(hidden_share=are_shares),
        valid(chains.rate_noise, blocks, shares).where(hidden_share=are_shares),
        valid(diffusion.bernstein, score, torch.tensor([0.0, 0.5, 1.0]).double())
        .passing_nan("score")
        .where(rate=within(0, 1)),
        valid(diffusion.schedule_derivative, torch.square, torch.tensor([0.0, 0.5]))
        .where(time=within(0, 1))
        .trying(schedule=no_schedules),
        valid(diffusion.nelbo, score, torch.square, 8)
        .passing_nan("score")
        .trying(schedule=no_schedules),
        valid(diffusion.step_elbo, score, torch.square, 2)
        .passing_nan("score")
        .trying(schedule=no_schedules),
        valid(diffusion.block_elbo, score, 3)
        .passing_nan("score")  # with fewer blocks not every size is read
        .where(num_steps=within(1, 3)),
        valid(diffusion.sample, HMM, steps, generator=at()).where(ranks=within(0, math.inf)),
        valid(godambe.GaussianFamily, family.covariance, family.directions).where(
            directions=are_directions
        ),
        valid(godambe.GaussianFamily.ppca, column, 0.5).where(
            loadings=lambda v: bool(v.norm() > 0)
        ),
        valid(family.mask_forms, torch.tensor([[True, False, True]])),
        valid(
            godambe.Godambe,
            information.fisher,
            information.sensitivity,
            information.shared,
            information.one_mask,
        )
        .then(lambda information: information.efficiency())
        .where(),
        valid(godambe.Godambe.of, family, [1, 2], num_masks=2, generator=at()).where(
            sizes=lambda v: all(1 <= size <= 3 for size in v)
        ),
        valid(information.variability, 1),
        valid(information.efficiency, 1),
        valid(
            information.law_efficiency,
            torch.full((3,), 1 / 3).double(),
            torch.ones(3).double(),
            masks_per_datum=1,
        ).where(probabilities=sum_to_one),
        valid(information.best_law, 1),
        valid(rates.chain_crossover, torch.arange(1.0, 90.0).double().log()).where(
            gap_entropy=is_of_a_chain
        ),
        valid(rates.chain_curve, torch.tensor([0.0, 0.7, 1.1]).double(), 2.0).where(
            gap_entropy=is_of_a_chain, marginal_entropy=lambda v: v >= 1.1
        ),
        valid(
            rates.crossover,
            torch.tensor([0.0, -1.0, -5.0]).double(),
            torch.tensor([0.2, 0.4, 0.8]).double(),
            -2.0,
        ).where(rate=lambda v: bool((v.diff() > 0).all())),
        valid(
            rates.jackknife,
            lambda mean: mean[..., 0],
            torch.tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 1.0]]),
        )
        .where(groups=lambda v: len(v) > 1)
        .trying(
            statistic=[
                *WORD_OR_NOTHING,
                lambda mean: mean,
                lambda mean: mean.sum(),
                lambda mean: 1.0,
            ]
        ),
        valid(rates.random_loadings_curve, 4, 1, 0.2),
        valid(rates.sizes_and_weights, 20, 3, "midpoint").where(
            num_features=at_least(3), num_sizes=within(1, 20)
        ),
    ]


CALLS = (
    models()
    + methods()
    + latent_variable_models()
    + mask_calls()
    + curve_calls()
    + results()
    + symbolic_calls()
    + drawing_calls()
    + estimator_calls()
    + objective_calls()
    + gaussian_calls()
    + grid_calls()
    + training()
    + theory()
)
