"""Each wrong call gives an error that names the value and says what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from models import generator, random_bernoulli, random_ppca, random_table
from torch import Tensor

import mpt_score
from experiments import experiment
from experiments.seeds import require_seeds
from experiments.trainings import dense_vae
from mpt_lml import (
    HMM,
    PPCA,
    VAE,
    ConditionalTable,
    ConjugateRegression,
    FromFunction,
    JointTable,
    checks,
    curves,
    data,
    estimators,
    fit,
    gaussian,
    grids,
    masks,
    objectives,
    orders,
    plots,
    scores,
    verdicts,
)
from mpt_lml.estimators.latent import GaussianProposal
from mpt_lml.page import glue
from mpt_lml.results import Estimate, MaskCurve
from mpt_lml.theory import diffusion, godambe, rates
from mpt_lml.theory.godambe import GaussianFamily, Godambe
from mpt_score import networks, tokens
from mpt_score.texts import sentences
from mpt_score.tokens import Tokens, require_texts

pytestmark = pytest.mark.bad_input

MODEL = random_ppca(4, 2)
TABLE = random_table(2, 3)
BERNOULLI = random_bernoulli(3, 1, 9)
SHORTLY = {"num_epochs": 2, "learning_rate": 0.1}
PIXELS = BERNOULLI.sample(2, generator=generator())
X = MODEL.sample(3, generator=generator())
FLAT = torch.zeros(1, 2)
SQUARE = torch.full((2, 2), 0.5)
MASK = masks.all_masks(4, 2)
LOADINGS = torch.ones(4, 2, dtype=torch.float64)
FREE = FromFunction(lambda x, mask: torch.zeros(*x.shape, 4).log_softmax(-1), 3)
GRID = grids.trapezoid(1, 9)
STACK = (torch.ones(1, 3, 1).double(), torch.zeros(1, 3).double())
AXES = Figure().subplots()
DENSE = dense_vae.dense_parameters(3, [4], 1, generators=[generator()])


def tokens_with(maskable: list[list[bool]], lengths: list[int]) -> Tokens:
    ids = torch.zeros(2, 2).long()
    return Tokens(ids, ids, torch.tensor(maskable), torch.tensor(lengths))


def with_entry(value: float) -> torch.Tensor:
    x = X.clone()
    x[1, 2] = value
    return x


CASES = {
    "float mask": (lambda: MODEL.log_conditional(X, MASK.double()), TypeError, "True = masked"),
    "no masks": (lambda: MODEL.log_conditional(X, MASK[:0]), ValueError, r"got \(0, 4\)"),
    "empty mask": (
        lambda: MODEL.mean_log_conditional(X, masks.subsets(4)),
        ValueError,
        r"mask\[0\] masks nothing",
    ),
    "empty mask of a table": (
        lambda: TABLE.log_conditional(torch.tensor([[0, 0]]), masks.subsets(2)),
        ValueError,
        r"mask\[0\] masks nothing",
    ),
    "an empty mask of a second size": (
        lambda: curves.size_scores(MODEL, X, torch.stack([MASK, MASK & ~MASK[0]])),
        ValueError,
        r"mask\[1, 0\] masks nothing",
    ),
    "an empty mask of a second run": (
        lambda: objectives.mixture(
            torch.ones(2, 3, 1).double(),
            torch.zeros(2, 3).double(),
            PIXELS,
            torch.tensor([[[True] * 3], [[False] * 3]]),
            GRID,
        ),
        ValueError,
        r"mask\[1, 0\] masks nothing",
    ),
    "NaN": (lambda: MODEL.log_marginal(with_entry(math.nan)), ValueError, r"x\[1, 2\] is nan"),
    "infinity": (
        lambda: MODEL.log_conditional(with_entry(-math.inf), MASK),
        ValueError,
        r"x\[1, 2\] is -inf",
    ),
    "NaN in a mean score": (
        lambda: MODEL.mean_log_conditional(with_entry(math.nan), MASK),
        ValueError,
        r"x\[1, 2\] is nan",
    ),
    "x of one axis": (lambda: MODEL.log_marginal(X[0]), ValueError, r"x\[None, :\]"),
    "x of other precision": (lambda: MODEL.log_marginal(X.float()), TypeError, "torch.float32"),
    "noise variance zero": (lambda: PPCA(LOADINGS, 0.0), ValueError, "> 0, got 0.0"),
    "noise variance negative": (lambda: PPCA(LOADINGS, -0.2), ValueError, "> 0, got -0.2"),
    "noise variance NaN": (lambda: PPCA(LOADINGS, math.nan), ValueError, "got nan"),
    "noise variance a vector": (
        lambda: PPCA(LOADINGS, torch.ones(4)),
        ValueError,
        "single finite number",
    ),
    "loadings with NaN": (lambda: PPCA(LOADINGS * math.nan, 0.2), ValueError, r"loadings\[0, 0\]"),
    "K as large as D": (lambda: PPCA.fit_closed_form(X, 4), ValueError, r"0\.\.3, got 4"),
    "K that explains all": (lambda: PPCA.fit_closed_form(X, 2), ValueError, "latent_dim=2"),
    "a divisor of 0": (
        lambda: PPCA.fit_closed_form(X, 1, ddof=3),
        ValueError,
        r"ddof.*0\.\.2, got 3",
    ),
    "probabilities that do not sum to 1": (
        lambda: JointTable(torch.full((2, 2), 0.3)),
        ValueError,
        "sum to 1, got 1.2.*Divide by their sum.$",
    ),
    "a table that was rounded to single precision": (
        lambda: JointTable(torch.tensor([0.2, 0.5, 0.3]).double()),
        ValueError,
        r"got 1\.00000001.* rounded to single precision: .*dtype=torch\.float64",
    ),
    "rows that do not sum to 1": (
        lambda: HMM(torch.tensor([0.5, 0.6]), SQUARE, SQUARE, 3),
        ValueError,
        r"initial must sum to 1 in every row, one is off by 0\.1\. Divide each by its sum.$",
    ),
    "a row that was rounded to single precision": (
        lambda: HMM(torch.tensor([0.2, 0.8]).double(), SQUARE.double(), SQUARE.double(), 3),
        ValueError,
        r"off by 1\.5e-08\..* rounded to single precision: .*dtype=torch\.float64",
    ),
    "a zero probability": (
        lambda: JointTable(torch.tensor([0.0, 1.0])),
        ValueError,
        "smallest is 0",
    ),
    "a value the table does not have": (
        lambda: TABLE.log_marginal(torch.tensor([[0, 1], [0, 3]])),
        ValueError,
        r"0\.\.2 in column 1, but x\[1, 1\] is 3",
    ),
    "a curve's size above D": (
        lambda: curves.sampled_curve(MODEL, X, 2, generator=generator(), sizes=[1, 5]),
        ValueError,
        r"1\.\.4, got 5",
    ),
    "no sizes": (
        lambda: curves.sampled_curve(MODEL, X, 2, generator=generator(), sizes=[]),
        ValueError,
        "at least one mask size",
    ),
    "no masks a size": (
        lambda: curves.sampled_curve(MODEL, X, 0, generator=generator()),
        ValueError,
        ">= 1, got 0",
    ),
    "an exact curve that does not fit": (
        lambda: curves.exact_curve(random_ppca(50, 2), torch.zeros(1, 50).double()),
        ValueError,
        r"D = 50.*1.126e\+15.*sampled_curve",
    ),
    "a subset curve that does not fit": (
        lambda: curves.subset_curve(random_ppca(50, 2), torch.zeros(1, 50).double()),
        ValueError,
        "sampled_curve",
    ),
    "an exact variance that does not fit": (
        lambda: estimators.exact_variance(random_ppca(9, 2), torch.zeros(1, 9).double(), "nested"),
        ValueError,
        "D = 9.*standard error",
    ),
    "an unknown experiment": (
        lambda: experiment.find("table1"),
        experiment.UnknownExperimentError,
        "Did you mean table-1",
    ),
    "nothing like an experiment": (
        lambda: experiment.find("zzz"),
        experiment.UnknownExperimentError,
        "There are: antibody-chain, antibody-curves, ",
    ),
    "an unknown preset": (
        lambda: experiment.run("table-1", "fast"),
        ValueError,
        "'paper' or 'quick'",
    ),
    "an unknown device": (lambda: experiment.run("table-1", device="tpu"), ValueError, "'tpu'"),
    "unknown data": (lambda: data.images("imagenet"), ValueError, "digits, mnist, fashion_mnist"),
    "a matrix that is not positive definite": (
        lambda: gaussian.log_density(FLAT, FLAT[0], torch.diag(torch.tensor([1.0, -1.0]))),
        ValueError,
        r"covariance .* eigenvalue is -1.000e\+00",
    ),
    "sizes that do not increase": (
        lambda: MaskCurve(torch.tensor([2, 1]), torch.zeros(2), torch.zeros(2), 4),
        ValueError,
        r"1\.\.4, got \[2, 1\]",
    ),
    "a number in prose that is none": (lambda: glue("x", math.nan), ValueError, "nan"),
    "unknown tokens of a variance": (
        lambda: estimators.exact_variance(MODEL, X, "nested", targets="some"),
        ValueError,
        "targets must be 'all' or 'one', got 'some'",
    ),
    "a fraction that no tensor takes": (
        lambda: HMM.cyclic(preferred=Fraction(1, 2)),
        TypeError,
        r"preferred must be a single .*Fraction\(1, 2\)",
    ),
    "NumPy's own bool": (
        lambda: mpt_score.pairs(lambda ids, mask: ids, [[0, 1]], [[0, 2]], pseudo=np.True_),
        TypeError,
        "pseudo must be of type bool, got np.True_",
    ),
    "an array of no axis": (
        lambda: fit.maximize({"a": X}, lambda p, g: p["a"][:, 0], snapshots=np.array(1), **SHORTLY),
        TypeError,
        "snapshots must be of type Collection, got array",
    ),
    "half a mask size": (
        lambda: curves.sampled_curve(MODEL, X, 2, generator=generator(), sizes=[2.7]),
        TypeError,
        r"each of sizes must be an integer, got 2\.7",
    ),
    "a divergence from what is no covariance": (
        lambda: gaussian.divergence(MODEL.covariance, -MODEL.covariance),
        ValueError,
        "q must be positive definite, but its smallest eigenvalue is -",
    ),
    "a grid with NaN": (
        lambda: grids.Grid(torch.full((2, 1), math.nan), torch.full((2,), -math.log(2))),
        ValueError,
        r"nodes\[0, 0\] is nan",
    ),
    "one objective for all runs": (
        lambda: fit.maximize(
            {"level": torch.zeros(2)}, lambda p, _: -p["level"].square().sum(), **SHORTLY
        ),
        ValueError,
        r"objective\(parameters\) must have shape \(2,\), got \(\)",
    ),
    "a derivative after the end": (
        lambda: diffusion.schedule_derivative(torch.square, torch.tensor([0.5, 1.5])),
        ValueError,
        r"time must be in \[0, 1\], but time\[1\] is 1\.5",
    ),
    "a variance with a negative direction": (
        lambda: godambe.Godambe(-torch.eye(1), *(torch.ones(n * (1,)) for n in (3, 4, 3))),
        ValueError,
        "fisher must be positive definite",
    ),
    "a draw from nowhere": (
        lambda: BERNOULLI.sample_given(torch.tensor([math.nan]).double(), generator=generator()),
        ValueError,
        r"z\[0\] is nan",
    ),
    "a generator of NumPy": (
        lambda: fit.maximize(
            {"level": torch.zeros(2)},
            lambda p, _: -p["level"].square(),
            **SHORTLY,
            generators=[np.random.default_rng(0)],
        ),
        TypeError,
        "each of generators must be a torch.Generator, .*Pass for example torch.Gen",
    ),
    "changing an estimate": (
        lambda: setattr(Estimate(1.0), "unit", "bits"),
        AttributeError,
        "immutable",
    ),
    "orders in a number of three hundred digits": (
        lambda: orders.every(171),
        ValueError,
        r"about 10\^309.*orders\.draw",
    ),
    "a table in a number of six hundred digits": (
        lambda: JointTable.random((10**6,) * 100, generator=generator()),
        ValueError,
        r"about 10\^600",
    ),
    "a table of coordinates with a single value": (
        lambda: JointTable(torch.ones([1] * 30)),
        ValueError,
        r"the subsets of D = 30 coordinates are 1\.074e\+09",
    ),
    "data beyond all numbers": (
        lambda: MODEL.log_marginal(X * 1e160),
        ValueError,
        "up to .* from the mean, .* standard deviations of the noise",
    ),
    "data beyond all numbers in a conditional": (
        lambda: MODEL.log_conditional(X * 1e160, MASK),
        ValueError,
        "up to .* from the mean, .* standard deviations of the noise",
    ),
    "data beyond all numbers in a mean": (
        lambda: MODEL.mean_log_conditional(X * 1e160, MASK),
        ValueError,
        "up to .* from the mean, .* standard deviations of the noise",
    ),
    "a regression on data whose squares overflow": (
        lambda: ConjugateRegression(LOADINGS).log_marginal(X * 1e160),
        ValueError,
        "overflow torch.float64",
    ),
    "a covariance of the smallest numbers": (
        lambda: gaussian.log_density(X, X[0], 1e-320 * torch.eye(4).double()),
        ValueError,
        "covariance has directions so narrow",
    ),
    "a second moment that overflows": (
        lambda: objectives.second_moment(X * 1e200),
        ValueError,
        "squares beyond torch.float64",
    ),
    "bytes for a Bernoulli model": (
        lambda: BERNOULLI.log_factors(PIXELS * 255 + 1, torch.zeros(2, 1).double()),
        ValueError,
        "0 or 1 for a Bernoulli likelihood",
    ),
    "NaN beside a latent": (
        lambda: BERNOULLI.log_joint(PIXELS * math.nan, torch.zeros(2, 1).double()),
        ValueError,
        r"x\[0, 0\] is nan",
    ),
    "observed sets of other rows": (
        lambda: estimators.at_mode(BERNOULLI, PIXELS, torch.ones(3, 3).bool()),
        ValueError,
        r"leading axes must be equal or 1, got x \(2, 3\), observed \(3, 3\)",
    ),
    "a decoder of other K": (
        lambda: VAE(
            lambda x: (x[:, :2], x[:, :2]), torch.nn.Linear(3, 2), num_features=2, latent_dim=2
        ).decode(torch.zeros(1, 2)),
        RuntimeError,
        "The decoder was given z of K = 2 numbers in torch.float32: check latent_dim",
    ),
    "loadings without numbers": (
        lambda: PPCA(LOADINGS.to("meta"), 0.2),
        TypeError,
        "loadings must be a dense tensor .*meta",
    ),
    "a mask without numbers": (
        lambda: MODEL.log_conditional(X, MASK.to("meta")),
        TypeError,
        "mask must be a dense tensor .*meta",
    ),
    "a value without a number": (
        lambda: verdicts.interval(torch.ones((), device="meta"), 0.1),
        TypeError,
        "value must be a single number, got a meta",
    ),
    "an integer beyond all floats": (
        lambda: Estimate(10**400),
        ValueError,
        "value must be a number that a float holds",
    ),
    "weights that are all 0": (
        lambda: estimators.iwae(
            dense_vae.dense_model(DENSE, 0, 0.5),
            torch.full((1, 3), 1e30),
            5,
            generator=generator(),
            proposal=estimators.from_prior,
        ),
        ValueError,
        "all weights of row 0 of x are 0",
    ),
    "a tensor in prose that is no number": (
        lambda: glue("x", torch.tensor(math.nan)),
        ValueError,
        "nan",
    ),
    "a number of NumPy in prose that is none": (
        lambda: glue("x", np.float32(math.nan)),
        ValueError,
        "nan",
    ),
    "a text of half a character": (
        lambda: require_texts("texts", ["fine", "\ud800 abc"]),
        ValueError,
        "text 1 is .*no Unicode",
    ),
    "a scorer of a number": (
        lambda: mpt_score.Scorer(3),
        TypeError,
        "model must have log_tokens, got int",
    ),
    "sentences of a very long name": (
        lambda: sentences("x" * 5000),
        ValueError,
        "unknown sentences 'xxx",
    ),
    "a builder that builds nothing": (
        lambda: networks.at_random(lambda config: None, None, seed=4),
        TypeError,
        "must return a network, got NoneType",
    ),
    "nothing to mask in a row": (
        lambda: tokens_with([[True, True], [False, False]], [2, 2]),
        ValueError,
        r"maskable\[1\] is False everywhere",
    ),
    "more draws than a memory holds": (
        lambda: MODEL.sample(10**15, generator=generator()),
        MemoryError,
        r"TractableModel\.sample needs more memory than there is\. Give it smaller sizes",
    ),
    "more weights than a memory holds": (
        lambda: estimators.iwae(
            random_bernoulli(4, 1, 9), torch.ones(1, 4).double(), 10**13, generator=generator()
        ),
        ValueError,
        "10000000000000 weights a datum would take .* GiB of memory",
    ),
    "a padding that is masked": (
        lambda: tokens_with([[True, True], [True, True]], [2, 1]),
        ValueError,
        r"maskable\[1\] is True behind the 1 tokens",
    ),
    "a mask of a dense Gaussian that hides nothing": (
        lambda: gaussian.condition_dense(X, X[0], MODEL.covariance, MASK[0] & ~MASK[0]),
        ValueError,
        r"mask(\[0\])? masks nothing: one True at least",
    ),
    "a model of which no marginal is known": (
        lambda: curves.subset_curve(FREE, torch.zeros(1, 3).long()),
        TypeError,
        "model must be of type TractableModel, got .*FromFunction",
    ),
    "a number as a flag": (
        lambda: plots.mask_curve(curves.exact_curve(MODEL, X), ax=AXES, area=1),
        TypeError,
        "area must be of type bool, got 1",
    ),
    "an infinite difference": (
        lambda: verdicts.interval(math.inf, 0.1),
        ValueError,
        "value must be a single number .*, got inf",
    ),
    "an epoch and a half": (
        lambda: fit.maximize(
            {"level": torch.zeros(2)},
            lambda parameters, _: -parameters["level"].square(),
            **SHORTLY,
            snapshots=[0, 1.5],
        ),
        TypeError,
        r"each of snapshots must be an integer.*, got 1\.5",
    ),
    "data in single precision beside a double covariance": (
        lambda: gaussian.log_density(X.float(), X[0], MODEL.covariance),
        TypeError,
        "tensors must share one dtype, got .*float32",
    ),
    "scores and errors of unequal precision": (
        lambda: MaskCurve(torch.tensor([1, 2]), torch.zeros(2), torch.zeros(2).double(), 4),
        TypeError,
        "tensors must share one dtype, got .*float32.*float64",
    ),
    "one replicate, as a number with an error": (
        lambda: verdicts.interval(0.3, 0.1, 1),
        ValueError,
        "n must be >= 2, got 1",
    ),
    "five runs and three moments": (
        lambda: objectives.log_marginal(
            torch.ones(5, 4, 2), torch.tensor(0.2), torch.eye(4).expand(3, 4, 4)
        ),
        ValueError,
        r"leading axes must be equal or 1, got loadings \(5, 4, 2\).*moment \(3, 4, 4\)",
    ),
    "five runs and three moments of a curve": (
        lambda: objectives.curve(
            torch.ones(5, 4, 2), torch.tensor(0.2), torch.eye(4).expand(3, 4, 4)
        ),
        ValueError,
        "leading axes must be equal or 1, got .*moment",
    ),
    "five runs and three sets of masks": (
        lambda: objectives.sampled(
            torch.ones(5, 4, 2), torch.tensor(0.2), torch.eye(4), MASK[:3, None]
        ),
        ValueError,
        r"leading axes must be equal or 1, got .*mask \(3, 1, 4\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES.keys())
def test_refused_with_a_reason(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def noisy_parabola(epochs: int = 12, **options: object) -> fit.History:
    """Two runs of a noisy parabola."""

    def objective(parameters: fit.Parameters, generators: list[torch.Generator]) -> Tensor:
        noise = torch.randn(2, generator=generators[0], dtype=torch.float64)
        return -(parameters["level"] - 1.0 - noise).square()

    start = {"level": torch.zeros(2, dtype=torch.float64)}
    settings = {"learning_rate": 0.1, "generators": [generator(3)], **options}
    return fit.maximize(start, objective, num_epochs=epochs, **settings)


@pytest.mark.bad_input
def test_a_wrong_call_is_refused_by_its_name() -> None:
    """Where going on would give another error, or a number."""
    x, ones = torch.rand(2, 3, dtype=torch.float64), torch.ones(1, 2).bool()
    ids = torch.tensor([[0, 1]])
    length = torch.tensor([2])
    small = networks.small_masked_lm(9, "classic", width=32, num_layers=1, seed=1)
    letters = mpt_score.MaskedLM(small, 4, 1)
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, r"such as \(2, 2, 1, 2\)", lambda: ConditionalTable(torch.zeros(3))),
        (ValueError, "must increase", lambda: rates.crossover(x[0], torch.tensor([0.2, 0.1, 1.0]))),
        (ValueError, r"in 0\.333\.\.1:", lambda: rates.crossover(x[0], height=2.0)),
        (
            ValueError,
            r"schedule\(time\) must",
            lambda: diffusion.schedule_derivative(
                lambda t: t if len(t) == 2 else t.sum(), torch.tensor([0.1, 0.5, 0.9])
            ),
        ),
        (ValueError, "count from 0", lambda: tokens.Tokens(ids - 1, ids, ones, length)),
        (ValueError, "count from 0", lambda: tokens.Tokens(ids, ids - 1, ones, length)),
        (ValueError, "from 1 to L", lambda: tokens.Tokens(ids, ids, ones, length - 2)),
        (
            ValueError,
            r"track\['sum'\]",
            lambda: noisy_parabola(track={"sum": lambda own: own["level"].sum()}),
        ),
        (
            ValueError,
            "x must be 0..8",
            lambda: letters.log_each(torch.tensor([[9]]), ones[:, :1]),
        ),
        (ValueError, "num_features must", lambda: orders.every(0)),
        (
            ValueError,
            "leading axes must be equal or 1",
            lambda: checks.check(
                ("a", x, Float[torch.Tensor, "... D"]),
                ("b", torch.rand(3, 3).double(), Float[torch.Tensor, "... D"]),
            ),
        ),
        (ValueError, "mask must", lambda: scores.mask_score(x, ones)),
        (
            ValueError,
            "standard_error must",
            lambda: MaskCurve(torch.tensor([1, 2]), x[0, :2], -x[0, :2], num_features=2),
        ),
        (
            RuntimeError,
            "no mode after 100 Newton",
            lambda: grids.find_modes(
                lambda z: -z.square().square().sum(dim=1), torch.tensor([[0.0], [2.0]]).double()
            ),
        ),
        (
            ValueError,
            "masks_per_datum must",
            lambda: Godambe.of(GaussianFamily.ppca(torch.ones(3, 1).double(), 0.3)).law_efficiency(
                torch.ones(3).double() / 3, masks_per_datum=0
            ),
        ),
        (
            ValueError,
            "which leaves no noise",
            lambda: PPCA.fit_closed_form(torch.ones(5, 3).double(), latent_dim=1),
        ),
        (
            ValueError,
            r"log_joint\(z\)\[0\] is nan",
            lambda: grids.find_modes(lambda z: z.sum(dim=1) * math.nan, torch.zeros(2, 1).double()),
        ),
        (ValueError, "num_orders must", lambda: orders.draw(0, 3, generator=generator())),
        (
            TypeError,
            "a mean and a log-variance",
            lambda: VAE(lambda x: (x, x, x), lambda z: z, num_features=1, latent_dim=1).encode(
                x[:, :1]
            ),
        ),
        (
            ValueError,
            "does not depend on the parameter 'b'",
            lambda: fit.maximize(
                {"a": torch.ones(2), "b": torch.ones(2)},
                lambda own, _: own["a"].clone(),
                num_epochs=1,
                learning_rate=0.1,
            ),
        ),
        (
            ValueError,
            "b must",
            lambda: fit.maximize(
                {"a": torch.ones(2), "b": torch.ones(3)},
                lambda own, _: own["a"] + own["b"].sum(),
                num_epochs=1,
                learning_rate=0.1,
            ),
        ),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()


def test_data_that_diverge_are_for_the_fit_to_name() -> None:
    """The posterior's doors let NaN through: the fit says at which epoch."""
    loadings = torch.ones(3, 1).double()
    posterior = gaussian.LowRankPosterior.of(loadings, torch.tensor(1.0).double(), masks.subsets(3))
    lost = torch.full((1, 3), math.nan).double()
    assert posterior.log_conditional(lost).isnan().any()
    assert posterior.mean_log_conditional(lost.T @ lost).isnan().any()
    grid, x = grids.trapezoid(1, 9), torch.ones(1, 3).double()
    assert objectives.mixture(lost[..., None], 0 * x, x, None, grid).isnan()
    assert scores.mask_score(lost, torch.ones(1, 3).bool()).isnan()
    assert (
        GaussianProposal(lost, torch.eye(3).double()[None])
        .sample(2, generator=generator())
        .isnan()
        .all()
    )
    plain = VAE(lambda x: (x, x), lambda z: z, num_features=1, latent_dim=1)
    assert plain.decode(lost[:, :1].float()).isnan().all()
    moment = torch.eye(3).double()
    assert objectives.exact(lost.T, x.new_tensor(1.0), moment, masks.UniformSize()).isnan()


def test_the_last_seed_of_all_is_one() -> None:
    assert require_seeds([0, 2**63 - 1]) == (0, 2**63 - 1)
