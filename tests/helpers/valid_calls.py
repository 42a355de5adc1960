"""A valid call of every public callable of `mpt_lml`; those of other packages: `valid_calls_networks`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import torch
from models import generator as at
from models import random_bernoulli, random_hmm, random_ppca, random_table
from torch import Tensor

import mpt_lml
from experiments.trainings import dense_vae
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
    recorded,
    scores,
    verdicts,
)
from mpt_lml.estimators.conditionals import GibbsConditional, ImportanceConditional
from mpt_lml.estimators.latent import GaussianProposal
from mpt_lml.models import row_network
from mpt_lml.models.base import TractableModel
from mpt_lml.theory import chains, diffusion, godambe, rates

matplotlib.use("Agg")

MODEL = random_ppca(4, 2)
X = MODEL.sample(3, generator=at())
HMM = random_hmm(2, 3, 4)
WORDS = HMM.sample(3, generator=at())
TABLE = random_table(2, 3)
SYMBOLS = torch.tensor([[0, 2], [1, 1]])
BERNOULLI = random_bernoulli(3, 1, 9)
BITS = BERNOULLI.sample(3, generator=at())
DENSE = dense_vae.dense_parameters(3, [4], 1, generators=[at()])
VAE = dense_vae.dense_model(DENSE, 0)
ROW_NETWORK = row_network.RowNetwork(8, seed=4)
GRID = grids.trapezoid(1, 9)
CURVE = curves.exact_curve(MODEL, X)
SPARSE_CURVE = mpt_lml.MaskCurve(
    CURVE.num_masked[::3], CURVE.score[::3], CURVE.standard_error[::3], 4
)
HIDDEN = torch.tensor([[True, False, True, False], [False, True, True, True]])

plt.figure()
AX = plt.gca()
plt.close("all")


class Call(NamedTuple):
    """A callable and legal values of all of its arguments, by name."""

    function: Callable[..., Any]
    arguments: dict[str, Any]


def valid(function: Callable[..., Any], /, *values: Any, **named: Any) -> Call:
    """A call of ``function`` with these arguments, and with those that have a default."""
    signature = inspect.signature(function)
    bound = signature.bind(*values, **named)
    bound.apply_defaults()
    arguments = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    return Call(function, arguments)


# -- models -------------------------------------------------------------------------------------------


def models() -> list[Call]:
    w = torch.ones(4, 2).double()
    half = torch.full((2, 2), 0.5).double()
    return [
        valid(mpt_lml.PPCA, w, 0.2, w[:, 0]),
        valid(
            mpt_lml.PPCA.fit_closed_form,
            MODEL.sample(9, generator=at(3)),
            1,
            noise_variance=0.3,
            mean=w[:, 0],
        ),
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
        valid(mpt_lml.ConditionalTable, torch.zeros(4, 9, 2, 3)),
        valid(mpt_lml.ConditionalTable.of, HMM, noise=0.1, generator=at()),
        valid(mpt_lml.JointTable, torch.full((2, 2), 0.25)),
        valid(mpt_lml.JointTable.random, (2, 3), generator=at()),
        valid(mpt_lml.HMM, half[0], half, half, 3),
        valid(mpt_lml.HMM.cyclic, 3, 12, 4, preferred=0.9),
        valid(HMM.log_posterior, WORDS, WORDS > 0),
        valid(
            mpt_lml.FromFunction,
            lambda x, mask: torch.zeros(*x.shape, 4).log_softmax(-1),
            3,
        ),
        valid(mpt_lml.Grouped, MODEL, torch.tensor([0, 0, 1, 1]), jointly=True),
        valid(mpt_lml.Grouped.patches, 4, 4, 2),
        valid(mpt_lml.GridConditional, VAE, GRID),
        valid(
            mpt_lml.VAE,
            lambda x: (x[..., :1], 0 * x[..., :1]),
            lambda z: z.expand(*z.shape[:-1], 3),
            num_features=3,
            latent_dim=1,
            noise_variance=0.5,
        ),
        valid(row_network.draw_tables, "linear", 2, 3, generator=at()),
        valid(row_network.RowNetwork, 8, seed=4),
        valid(ROW_NETWORK.forward, X, X, X > 0),
        valid(ROW_NETWORK.log_each, X, X, X > 0),
        valid(row_network.RowConditional, ROW_NETWORK, X[0]),
    ]


def methods() -> list[Call]:
    """What every model answers."""
    double = torch.zeros(2, 3).double()
    calls = []
    for model, x in (
        (MODEL, X),
        (HMM, WORDS),
        (TABLE, SYMBOLS),
        (BERNOULLI, BITS),
        (mpt_lml.ConjugateRegression(double[:1].mT + 1), double),
        (mpt_lml.FromFunction(_uniform, 3), torch.zeros(2, 3).long()),
        (mpt_lml.ConditionalTable(torch.zeros(4, 9, 2, 3)), SYMBOLS),
        (mpt_lml.Grouped(MODEL, torch.tensor([0, 0, 1, 1])), X),
        (mpt_lml.GridConditional(VAE, GRID.to(torch.ones(1))), BITS.float()),
        (row_network.RowConditional(ROW_NETWORK, X[0]), X),
        (GibbsConditional(VAE, 4, generator=at(), corrected=True), BITS.float()),
        (ImportanceConditional(BERNOULLI, 3, generator=at()), BITS),
    ):
        calls += methods_of(model, x)
    return calls


def methods_of(model: mpt_lml.ConditionalModel, x: Tensor) -> list[Call]:
    few = masks.all_masks(model.num_features, 1)[:2]
    paired = few.repeat(2, 1)[: len(x)]
    calls = [
        valid(model.require_data, x),
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


def _uniform(x: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(*x.shape, 3).log_softmax(-1)


def latent_variable_models() -> list[Call]:
    calls = []
    for model, x in ((BERNOULLI, BITS), (VAE, BITS.float())):
        z = torch.zeros(len(x), 1).to(x)
        calls.append(valid(model.log_factors, x, z))
        calls.append(valid(model.log_factors_at_nodes, x, z))
        calls.append(valid(model.sample_given, z, generator=at()))
        calls.append(valid(model.log_joint, x, z))
        calls.append(valid(model.decode, z))
    calls.append(valid(VAE.require_data, BITS.float()))
    calls.append(valid(VAE.encode, BITS.float()))
    return calls


# -- masks, scores, curves ------------------------------------------------------------------------------


def mask_calls() -> list[Call]:
    calls = [
        valid(masks.all_masks, 3, 2),
        valid(masks.subsets, 3, instead="other"),
        valid(masks.row_of, HIDDEN),
        valid(masks.sample_ranks, 3, 4, generator=at()),
        valid(masks.sample_masks, 2, 5, 2, generator=at()),
        valid(masks.stratified_masks, 2, 3, masks.UniformSize(), generator=at()),
        valid(masks.nested_masks, torch.tensor([[2, 0, 1], [0, 1, 2]])),
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
        calls.append(valid(law.sizes_at, torch.tensor([[0.0], [0.9]]), 3))
        calls.append(valid(law.probabilities, 3))
    return calls


def curve_calls() -> list[Call]:
    values = -torch.ones(2, 3)
    return [
        valid(curves.exact_curve, MODEL, X),
        valid(curves.subset_curve, MODEL, X),
        valid(curves.subset_levels, MODEL, X),
        valid(curves.sampled_curve, MODEL, X, 2, generator=at(), sizes=[1, 3]),
        valid(curves.size_scores, MODEL, X, HIDDEN[None]),
        valid(curves.running_area, values),
        valid(estimators.area, MODEL, X, 2, generator=at()),
        valid(estimators.exact, MODEL, X),
        valid(estimators.exact_variance, MODEL, X, "nested", "one"),
        valid(scores.mask_score, values, torch.tensor([[True, False, True], [True, True, True]])),
        valid(scores.mean_by_size, -torch.ones(3, 2), torch.tensor([0, 1, 1]), 1),
        valid(orders.every, 3),
        valid(orders.draw, 2, 3, generator=at()),
        valid(orders.log_probability, HMM, WORDS, torch.tensor([[0, 1, 2, 3], [2, 0, 0, 1]])),
        valid(orders.exact, HMM, WORDS),
        valid(orders.adaptive, HMM, WORDS, orders.confidence),
        valid(orders.by_blocks, orders.confidence, 2),
        valid(orders.mixture_bounds, -torch.ones(4, 3)),
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
        ),
        valid(CURVE.area),
        valid(SPARSE_CURVE.area),
        valid(CURVE.partial_sums),
        valid(page.compare_with_record, "two numbers", [1.0, 2.0], [1.0, 2.1], tolerance=0.2),
        valid(page.glue, "name", 1.0),
        valid(page.table, ["size", "score"], [["1", "0.5"]]),
        valid(plots.use_style),
        valid(plots.mask_curve, CURVE, ax=AX, color="C0"),
        valid(data.Images, torch.zeros(2, 12).double(), (2, 6)),
        valid(data.images, "digits", "test"),
        valid(data.paper_gaussian, 3, 4, 2, generator=at()),
        valid(data.published_curves),
        valid(recorded.load, "table-1"),
        valid(recorded.names),
        valid(recorded.Finding, 0.5, 0.1),
        valid(
            recorded.Outcome,
            {"gap": recorded.Finding(0.5)},
            {"x": torch.ones(2)},
            data_sha256="0",
            settings={},
            seconds=1.0,
            provenance={},
        ),
        valid(verdicts.mean_and_error, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0),
        valid(verdicts.equivalent, **number, margin=1.0, at=0.0),
        valid(verdicts.interval, **number),
    ]
    for decide in (verdicts.agrees, verdicts.apart, verdicts.exceeds):
        calls.append(valid(decide, **number, at=0.0))
    return calls


def drawing_calls() -> list[Call]:
    at_place = {"ax": AX, "at": (0.0, 1.0)}
    row = ["visible", "asked"]
    return [
        valid(drawings.canvas, 2.0, 1.5),
        valid(drawings.write, "a word", **at_place, look="asked"),
        valid(drawings.tokens, ["a", "?"], row, **at_place),
        valid(drawings.table, [["a", "?"]], [row], **at_place),
        valid(drawings.node, "z", **at_place),
        valid(drawings.arrow, (0.0, 0.0), (1.0, 0.0), ax=AX, word="p"),
        valid(drawings.brace, (0.0, 0.0), (1.0, 0.0), ax=AX),
        valid(drawings.clock, ["0", "1"], **at_place, width=2.0),
        valid(drawings.bars, [1.0, 0.5], **at_place),
    ]


def estimator_calls() -> list[Call]:
    x = BITS.float()
    everything = torch.ones(3, 3) > 0
    proposal = estimators.from_prior(VAE, x)
    unit = GaussianProposal(torch.zeros(3, 2), torch.eye(2).repeat(3, 1, 1), 0.1)
    return [
        valid(estimators.at_mode, VAE, x, everything),
        valid(estimators.from_prior, VAE, x),
        valid(estimators.from_encoder, VAE, x, everything),
        valid(estimators.iwae, VAE, x, 2, generator=at(), proposal=estimators.from_prior),
        valid(estimators.log_weights, VAE, x, proposal, 2, generator=at()),
        valid(estimators.GibbsConditional, VAE, 2, generator=at(), corrected=True),
        valid(estimators.ImportanceConditional, VAE, 2, generator=at()),
        valid(unit.sample, 2, generator=at()),
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
    return [
        valid(objectives.log_marginal, *given),
        valid(objectives.sampled, *given, few),
        valid(objectives.exact, *given, masks.UniformSize()),
        valid(objectives.curve, *given),
        valid(objectives.mask_scores, *given, few),
        valid(objectives.second_moment, X),
        valid(objectives.mixture, *stack, BITS, few[None], GRID),
        valid(objectives.linear_elbo, *stack, *encoder, BITS, torch.zeros(1, 3, 1).double()),
    ]


def gaussian_calls() -> list[Call]:
    mean = torch.zeros(4).double()
    sigma = MODEL.covariance
    of = gaussian.LowRankPosterior.of(MODEL.loadings, MODEL.noise_variance, HIDDEN)
    moment = X.mT @ X
    calls = [
        valid(gaussian.log_density, X, mean, sigma),
        valid(gaussian.condition_dense, X, mean, sigma, HIDDEN[0]),
        valid(gaussian.divergence, sigma, sigma),
        valid(gaussian.LowRankPosterior.of, MODEL.loadings, MODEL.noise_variance, HIDDEN),
    ]
    for name in ("log_conditional", "log_marginal"):
        calls.append(valid(getattr(of, name), X))
    for name in ("mean_log_conditional", "mean_log_marginal"):
        calls.append(valid(getattr(of, name), moment))
    return calls


def grid_calls() -> list[Call]:
    nodes = torch.zeros(3, 2)
    log_weights = torch.full((3,), -math.log(3))
    grid = grids.Grid(nodes, log_weights)
    return [
        valid(grids.Grid, nodes, log_weights),
        valid(grid.sample, 2, generator=at()),
        valid(grid.to, X),
        valid(grids.trapezoid, 1, 9, 5.0),
        valid(
            grids.find_modes,
            lambda z: -2 * (z - 3).square().sum(-1),
            torch.zeros(2, 1),
            tolerance=1e-3,
            accepted=1.0,
        ),
    ]


def training() -> list[Call]:
    start = {"level": torch.zeros(2)}
    return [
        valid(
            fit.bfgs,
            torch.zeros(2, 3),
            lambda w: -(w - 1.0).square().sum(dim=1),
            max_steps=5,
        ),
        valid(
            fit.maximize,
            start,
            lambda p, generators: -(p["level"] - 1).square(),
            num_epochs=2,
            learning_rate=0.1,
            track={"level": lambda p: p["level"]},
            snapshots=[0, 2],
            progress=fit.silent,
        ),
    ]


# -- theory ---------------------------------------------------------------------------------------------


def theory() -> list[Call]:
    score = -torch.ones(3).double()
    column = torch.tensor([[1.0], [2.0], [3.0]]).double()
    family = godambe.GaussianFamily.ppca(column, 0.5)
    information = godambe.Godambe.of(family)
    steps = torch.tensor([[0, 1, 2, 3], [3, 0, 0, 1]])

    coin = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double()
    turn = torch.tensor([[0.5, -0.5], [-0.5, 0.5]]).double()
    blocks = chains.markov_blocks(coin, turn, 24)
    shares = torch.tensor([0.25, 0.5]).double()

    return [
        valid(chains.markov_blocks, coin, turn, 2),
        valid(chains.rate_efficiency, blocks, shares),
        valid(chains.rate_noise, blocks, shares),
        valid(diffusion.bernstein, score, torch.tensor([0.0, 0.5, 1.0]).double()),
        valid(diffusion.schedule_derivative, torch.square, torch.tensor([0.0, 0.5])),
        valid(diffusion.nelbo, score, torch.square),
        valid(diffusion.step_elbo, score, torch.square, 2),
        valid(diffusion.sample, HMM, steps, generator=at()),
        valid(godambe.GaussianFamily, family.covariance, family.directions),
        valid(godambe.GaussianFamily.ppca, column, 0.5),
        valid(family.mask_forms, torch.tensor([[True, False, True]])),
        valid(
            godambe.Godambe,
            information.fisher,
            information.sensitivity,
            information.shared,
            information.one_mask,
        ),
        valid(godambe.Godambe.of, family, [1, 2], num_masks=2, generator=at()),
        valid(information.variability, 1),
        valid(information.efficiency, 1),
        valid(
            information.law_efficiency,
            torch.full((3,), 1 / 3).double(),
            torch.ones(3).double(),
            masks_per_datum=1,
        ),
        valid(rates.chain_crossover, torch.arange(1.0, 90.0).double().log()),
        valid(
            rates.crossover,
            torch.tensor([0.0, -1.0, -5.0]).double(),
            torch.tensor([0.2, 0.4, 0.8]).double(),
            -2.0,
        ),
        valid(
            rates.jackknife,
            lambda mean: mean[..., 0],
            torch.tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 1.0]]),
        ),
        valid(rates.random_loadings_curve, 4, 1, 0.2),
    ]


CALLS = (
    models()
    + methods()
    + latent_variable_models()
    + mask_calls()
    + curve_calls()
    + results()
    + drawing_calls()
    + estimator_calls()
    + objective_calls()
    + gaussian_calls()
    + grid_calls()
    + training()
    + theory()
)
