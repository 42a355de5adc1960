"""A valid call of every public callable, argument by argument, with the rule of what is legal."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import Any

import matplotlib
import torch
from models import generator as at
from models import random_bernoulli, random_hmm, random_ppca, random_table
from torch import Tensor
from wrong_calls import (
    Case,
    Kind,
    RefusedError,
    case,
    choice,
    count,
    flag,
    function,
    generator,
    instance,
    integer,
    number,
    optional,
    real,
    seed,
    several,
    tensor,
    text,
)

import mpt_experiments
import mpt_lml
import mpt_score
from mpt_experiments.command import main
from mpt_experiments.resume import FileCheckpoint
from mpt_lml import (
    curves,
    data,
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
from mpt_lml.estimators.conditionals import GibbsConditional, ImportanceConditional
from mpt_lml.models import vae as vaes
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.models.vae import LatentVariableModel
from mpt_lml.theory import diffusion, godambe, rates
from mpt_score.texts import sentences

matplotlib.use("Agg")

MODEL, X = random_ppca(4, 2), random_ppca(4, 2).sample(3, generator=at())
HMM, WORDS = random_hmm(2, 3, 4), random_hmm(2, 3, 4).sample(3, generator=at())
TABLE = random_table(2, 3)
BERNOULLI, PIXELS = random_bernoulli(3, 1, 9), random_bernoulli(3, 1, 9).sample(3, generator=at())
REGRESSION = mpt_lml.ConjugateRegression(torch.ones(3, 1).double())
QUIET = mpt_lml.FromFunction(lambda x, mask: torch.zeros(*x.shape, 3).log_softmax(-1), 3)
LOOSE = mpt_lml.ConditionalTable(torch.zeros(4, 9, 2, 3))
GROUPED = mpt_lml.Grouped(random_ppca(4, 2), torch.tensor([0, 0, 1, 1]))
DENSE = vaes.dense_parameters(3, [4], 1, generators=[at()])
VAE = vaes.dense_model(DENSE, 0)
GRID = grids.trapezoid(1, 9)
FIXED_GRID = mpt_lml.GridConditional(VAE, GRID.to(torch.ones(1)))
FAMILY = godambe.GaussianFamily.ppca(torch.tensor([[1.0], [2.0], [3.0]]).double(), 0.5)
INFORMATION = godambe.Godambe.of(FAMILY)
CURVE = curves.exact_curve(MODEL, X)
SIGMA = MODEL.covariance
HIDDEN = torch.tensor([[True, False, True, False], [False, True, True, True]])


# -- kinds of this package ------------------------------------------------------------------------


def like(model: Any, x: Tensor) -> Kind:
    """Data of a model: what it can have made."""

    def also(v: Tensor) -> bool:
        if v.dtype == torch.int64:
            if isinstance(model, mpt_lml.FromFunction):
                return True  # which values there are is known when the function has answered
            if isinstance(model, mpt_lml.JointTable):
                most = torch.tensor(model.log_table.shape)
            else:
                most = torch.tensor(getattr(model, "num_values", None) or 3)
            return bool(((v >= 0) & (v < most)).all())
        latent = getattr(model, "model", model)
        bernoulli = isinstance(latent, LatentVariableModel) and latent.noise_variance is None
        return not bernoulli or bool(((v == 0) | (v == 1)).all())

    return tensor(x, "0", also=also)


def mask(value: Tensor, free: str = "0") -> Kind:
    return tensor(value, free, also=lambda v: bool(v.any(dim=-1).all()))


def a_model(value: Any, *types: Any) -> Kind:
    # Other models of the right kind do not fit the data: they are refused by name of the data.
    return Kind(lambda: value, lambda v: isinstance(v, types), lambda draw: [GRID, X, type(value)])


def sizes(values: list[int], num_features: int) -> Kind:
    rising = lambda v: list(v) == sorted(set(v))  # noqa: E731
    return several(values, count(values[-1], 1, num_features), also=rising)


def law() -> Kind:
    return instance(masks.UniformSize, masks.SizeLaw, wrong=["uniform", 0.15])


def spd(value: Tensor, lead: bool = False) -> Kind:
    """A symmetric positive definite matrix."""

    def also(v: Tensor) -> bool:
        if not torch.allclose(v, v.mT, rtol=1e-6, atol=0):
            return False
        return not bool(torch.linalg.cholesky_ex(v).info.any())

    return tensor(value, also=also, lead=lead).but(
        wrong=lambda draw: [
            *tensor(value).wrong(draw),
            value
            - draw.uniform(1.0, 9.0) * value.diagonal().max() * torch.eye(len(value)).to(value),
            value + torch.triu(torch.ones_like(value), 1),
            torch.diag(torch.arange(len(value))).to(value),
        ]
    )


def psd(value: Tensor) -> Kind:
    return spd(value).but(
        legal=lambda v: (
            tensor(value).legal(v)
            and torch.allclose(v, v.mT, rtol=1e-6, atol=1e-12)
            and bool(torch.linalg.eigvalsh(v).min() >= -1e-9 * v.abs().max())
        )
    )


def probabilities(value: Tensor, positive: bool = False) -> Kind:
    def also(v: Tensor) -> bool:
        low = (v > 0).all() if positive else (v >= 0).all()
        return bool(low) and bool(((v.sum(-1) - 1).abs() <= 1e-9).all())

    return tensor(value, also=also)


def zeros_and_ones(v: Tensor) -> bool:
    return bool(((v == 0) | (v == 1)).all())


def positive(v: Tensor) -> bool:
    return bool((v > 0).all())


def ranks(value: Tensor) -> Kind:
    """int64, steps counted from 0; large ones are legal and slow, so they are not tried."""
    base = tensor(value, "0", also=lambda v: bool((v >= 0).all()))
    keep = lambda v: not isinstance(v, Tensor) or not v.numel() or v.to_dense().real.max() < 1000  # noqa: E731
    return base.but(wrong=lambda draw: [v for v in base.wrong(draw) if keep(v)])


# -- the table ------------------------------------------------------------------------------------


def _methods() -> dict[str, Case]:
    found = {}
    for name, model, x in (
        ("PPCA", MODEL, X),
        ("HMM", HMM, WORDS),
        ("JointTable", TABLE, torch.tensor([[0, 2], [1, 1]])),
        ("BernoulliPCA", BERNOULLI, PIXELS),
        ("ConjugateRegression", REGRESSION, torch.zeros(2, 3).double()),
        ("FromFunction", QUIET, torch.zeros(2, 3).long()),
        ("ConditionalTable", LOOSE, torch.tensor([[0, 2], [1, 1]])),
        ("Grouped", GROUPED, X),
        ("GridConditional", FIXED_GRID, PIXELS.float()),
        (
            "GibbsConditional",
            GibbsConditional(VAE, 4, generator=at(), corrected=True),
            PIXELS.float(),
        ),
        ("ImportanceConditional", ImportanceConditional(BERNOULLI, 3, generator=at()), PIXELS),
    ):
        d, own = model.num_features, like(model, x)
        few = masks.all_masks(d, 1)[:2]
        paired = mask(few.repeat(2, 1)[: len(x)], "")
        found[f"{name}.require_data"] = case(model.require_data, x=own)
        each = {"x": own.but(legal=_same(x, own)), "mask": paired}
        found[f"{name}.log_each"] = case(model.log_each, **each)
        if getattr(model, "num_values", None) or isinstance(model, mpt_lml.FromFunction):
            found[f"{name}.log_values"] = case(model.log_values, **each)
        for method in ("log_conditional", "mean_log_conditional"):
            found[f"{name}.{method}"] = case(getattr(model, method), x=own, mask=mask(few))
        if not isinstance(model, TractableModel):
            continue
        found[f"{name}.log_marginal"] = case(model.log_marginal, x=own)
        for method in ("log_subset_marginal", "mean_log_subset_marginal"):
            call = getattr(model, method)
            found[f"{name}.{method}"] = case(call, x=own, observed=tensor(few, "0"))
        found[f"{name}.sample"] = case(model.sample, n=count(2), generator=generator())
    return found


def _same(x: Tensor, own: Kind) -> Any:
    return lambda v: own.legal(v) and len(v) == len(x)


def _latent() -> dict[str, Case]:
    found = {}
    for name, model, x in (("BernoulliPCA", BERNOULLI, PIXELS), ("VAE", VAE, PIXELS.float())):
        # Zeros and ones are checked by require_data, which every estimator calls once.
        own, z = tensor(x, "0", nan=True), tensor(torch.zeros(len(x), 1).to(x), lead=True, nan=True)
        shown = tensor(torch.ones(3) > 0, lead=True)
        found[f"{name}.log_factors"] = case(model.log_factors, x=own, z=z)
        found[f"{name}.log_table"] = case(
            model.log_table, x=own, nodes=tensor(0 * x[:, :1], "0", nan=True)
        )
        found[f"{name}.sample_given"] = case(
            model.sample_given, z=tensor(0 * x[0, :1], lead=True), generator=generator()
        )
        found[f"{name}.log_prior"] = case(
            model.log_prior, z=tensor(0 * x[0, :1], lead=True, nan=True)
        )
        found[f"{name}.log_joint"] = case(model.log_joint, x=own, z=z, observed=optional(shown))
    found["BernoulliPCA.decode"] = case(
        BERNOULLI.decode, z=tensor(0 * PIXELS[0, :1], lead=True, nan=True)
    )
    found["VAE.encode"] = case(VAE.encode, x=tensor(PIXELS[0].float(), lead=True, nan=True))
    found["VAE.decode"] = case(VAE.decode, z=tensor(0 * PIXELS[0, :1].float(), lead=True, nan=True))
    found["VAE.require_data"] = case(VAE.require_data, x=like(VAE, PIXELS.float()))
    return found


def _models() -> dict[str, Case]:
    w = torch.ones(4, 2).double()
    few = torch.tensor([[True, False, False], [False, True, True]])
    return {
        "PPCA": case(
            mpt_lml.PPCA,
            loadings=tensor(w, "1", bare=True, also=lambda v: len(v) == 4),
            noise_variance=number(0.2, 0.0),
            mean=optional(tensor(w[:, 0])),
        ),
        "PPCA.posterior": case(MODEL.posterior, x=like(MODEL, X)),
        "PPCA.fit_closed_form": case(
            mpt_lml.PPCA.fit_closed_form,
            x=tensor(MODEL.sample(9, generator=at(3)), "01"),
            latent_dim=count(1, 0, 3),
            ddof=count(0, 0, 8),
            noise_variance=optional(number(0.3, 0.0)),
            mean=optional(tensor(w[:, 0])),
        ),
        "BernoulliPCA": case(
            mpt_lml.BernoulliPCA,
            loadings=tensor(w[:, :1]),
            offset=optional(tensor(w[:, 0])),
            grid=optional(Kind(lambda: GRID, lambda v: isinstance(v, grids.Grid))),
        ),
        "BernoulliPCA.posterior_weights": case(
            BERNOULLI.posterior_weights, x=like(BERNOULLI, PIXELS), observed=tensor(few, "0")
        ),
        "BernoulliPCA.adaptive_log_marginal": case(
            BERNOULLI.adaptive_log_marginal,
            x=like(BERNOULLI, PIXELS),
            nodes_per_axis=count(5, 2),
            extent=number(5.0, 0.0),
        ),
        "ConjugateRegression": case(
            mpt_lml.ConjugateRegression,
            inputs=tensor(torch.ones(3, 1).double(), "01", bare=True, also=lambda v: len(v) > 0),
            prior_scale=number(1.0, 0.0),
            shape=number(2.0, 0.0),
            rate=number(1.0, 0.0),
        ),
        "ConditionalTable": case(
            mpt_lml.ConditionalTable,
            logits=tensor(torch.zeros(4, 9, 2, 3)).but(legal=_logits),
        ),
        "ConditionalTable.of": case(
            mpt_lml.ConditionalTable.of,
            model=a_model(HMM, TractableModel),
            num_values=count(3, 3, 3),
            noise=number(0.1, 0.0, ends="["),
            generator=generator(),
        ),
        "JointTable": case(
            mpt_lml.JointTable,
            probabilities=Kind(
                lambda: torch.full((2, 2), 0.25),
                lambda v: (
                    isinstance(v, Tensor)
                    and v.dtype in (torch.float32, torch.float64)
                    and v.layout == torch.strided
                    and v.ndim > 0
                    and bool((v > 0).all())
                    and abs(v.double().sum().item() - 1) < 1e-6
                ),
                tensor(torch.full((2, 2), 0.25)).wrong,
            ),
        ),
        "JointTable.random": case(
            mpt_lml.JointTable.random,
            sizes=several([2, 3], count(2), also=lambda v: math.prod(v) < 1000),
            generator=generator(),
        ),
        "HMM": case(
            mpt_lml.HMM,
            initial=probabilities(torch.full((2,), 0.5).double()),
            transition=probabilities(torch.full((2, 2), 0.5).double()),
            emission=probabilities(torch.full((2, 4), 0.25).double(), positive=True),
            num_features=count(3),
        ),
        "HMM.cyclic": case(
            mpt_lml.HMM.cyclic,
            num_states=count(3, 3).but(legal=lambda v: integer(v) and v in (3, 4, 6, 12)),
            num_symbols=count(12, 3).but(legal=lambda v: integer(v) and v > 2 and v % 3 == 0),
            num_features=count(4),
            preferred=number(0.9, 0.0, 1.0),
        ),
        "FromFunction": case(
            lambda log_values, num_features, rows: mpt_lml.FromFunction(
                log_values, num_features, rows
            ).log_each(torch.zeros(1, 3).long(), torch.ones(1, 3) > 0),
            log_values=function(
                lambda x, mask: torch.zeros(*x.shape, 4).log_softmax(-1),
                lambda x, mask: torch.tensor(0.0),
                lambda x, mask: torch.zeros(*x.shape),
                lambda x, mask: torch.zeros(4),
                lambda x, mask: torch.zeros(*x.shape, 4).long(),
                lambda x, mask: torch.full((*x.shape, 4), math.nan),
            ),
            num_features=count(3, 3, 3),
            rows=count(2),
        ),
        "Grouped": case(
            mpt_lml.Grouped,
            model=a_model(MODEL, ConditionalModel),
            group=tensor(torch.tensor([0, 0, 1, 1])).but(
                legal=lambda v: (
                    isinstance(v, Tensor)
                    and v.dtype == torch.int64
                    and v.shape == (4,)
                    and v.layout == torch.strided
                    and v.unique().tolist() == list(range(len(v.unique())))
                )
            ),
            jointly=flag(True),
        ),
        "Grouped.patches": case(
            mpt_lml.Grouped.patches,
            height=count(4).but(legal=lambda v: integer(v) and v > 0 and v % 2 == 0),
            width=count(4).but(legal=lambda v: integer(v) and v > 0 and v % 2 == 0),
            patch=count(2).but(legal=lambda v: integer(v) and v in (1, 2, 4)),
        ),
        "GridConditional": case(
            mpt_lml.GridConditional,
            model=a_model(VAE, LatentVariableModel),
            grid=Kind(lambda: GRID, lambda v: isinstance(v, grids.Grid)),
        ),
        "VAE": case(
            lambda **kw: _used(mpt_lml.VAE(**kw)),
            encoder=function(lambda x: (x[..., :1], 0 * x[..., :1]), lambda x: x, lambda x: (x, x)),
            decoder=function(lambda z: z.expand(*z.shape[:-1], 3), lambda z: z, lambda z: z.sum()),
            num_features=count(3, 3, 3),
            latent_dim=count(1, 1, 1),
            noise_variance=optional(number(0.5, 0.0)),
        ),
        "score.SymbolBERT": case(
            mpt_score.SymbolBERT,
            num_symbols=count(3, 2),
            num_features=count(4),
            width=count(8).but(legal=lambda v: integer(v) and v > 0 and v % 4 == 0),
            seed=seed(),
        ),
        "score.SymbolBERT.load": case(mpt_score.SymbolBERT.load, path=optional(_no_file())),
    }


def _used(model: Any) -> Tensor:
    model.encode(torch.zeros(2, model.num_features))
    return model.log_factors(torch.zeros(2, model.num_features), torch.zeros(2, model.latent_dim))


def _logits(v: Any) -> bool:
    if (
        not isinstance(v, Tensor)
        or v.dtype not in (torch.float32, torch.float64)
        or v.ndim != 4
        or v.is_sparse
    ):
        return False
    d, values = v.shape[2:]
    return v.shape[:2] == (2**d, values**d) and bool(v.isfinite().all()) and v.numel() > 0


def _no_file() -> Kind:
    """A path where None means the book's own file."""
    return Kind(lambda: None, lambda v: v is None)


def _masks() -> dict[str, Case]:
    ranks = torch.tensor([[2, 0, 1], [0, 1, 2]])
    found = {
        "masks.all_masks": case(
            masks.all_masks, num_features=count(3, 2), num_masked=count(2, 1, 3)
        ),
        "masks.subsets": case(masks.subsets, num_features=count(3), instead=text("other")),
        "masks.row_of": case(masks.row_of, subset=tensor(HIDDEN, "01", lead=True)),
        "masks.sample_masks": case(
            masks.sample_masks,
            num_masks=count(2),
            num_features=count(5, 2),
            size=count(2, 1, 5).but(
                legal=lambda v: (integer(v) and 1 <= v <= 5) or isinstance(v, masks.SizeLaw)
            ),
            generator=generator(),
        ),
        "masks.stratified_masks": case(
            masks.stratified_masks,
            num_masks=count(2),
            num_features=count(3),
            law=Kind(
                masks.UniformSize, lambda v: isinstance(v, masks.SizeLaw), lambda draw: ["uniform"]
            ),
            generator=generator(),
        ),
        "masks.nested_masks": case(
            masks.nested_masks,
            order=tensor(ranks, "0").but(
                legal=lambda v: (
                    isinstance(v, Tensor)
                    and v.dtype == torch.int64
                    and v.layout == torch.strided
                    and v.ndim > 0
                    and v.numel() > 0
                    and torch.equal(v.sort(-1).values, torch.arange(v.shape[-1]).expand_as(v))
                )
            ),
        ),
        "masks.FixedSize": case(masks.FixedSize, num_masked=count(2)),
    }
    for name, make in (("FixedRate", masks.FixedRate), ("BernoulliRate", masks.BernoulliRate)):
        found[f"masks.{name}"] = case(make, rate=number(0.5, 0.0, 1.0, "]"))
    for name, of in (
        ("FixedSize", masks.FixedSize(1)),
        ("FixedRate", masks.FixedRate(0.5)),
        ("BernoulliRate", masks.BernoulliRate(0.5)),
        ("UniformSize", masks.UniformSize()),
    ):
        both = {"num_masks": count(2), "num_features": count(3), "generator": generator()}
        found[f"masks.{name}.sample"] = case(of.sample, **both)
        found[f"masks.{name}.stratified"] = case(of.stratified, **both)
        found[f"masks.{name}.probabilities"] = case(of.probabilities, num_features=count(3))
    found["masks.FixedRate.num_masked"] = case(
        masks.FixedRate(0.5).num_masked, num_features=count(3)
    )
    return found


def _curves() -> dict[str, Case]:
    both = {"model": a_model(MODEL, ConditionalModel), "x": like(MODEL, X)}
    known = {"model": a_model(MODEL, TractableModel), "x": like(MODEL, X)}
    drawn = {"num_masks": count(2), "generator": generator()}
    how = {"scheme": choice("nested", "independent"), "targets": choice("one", "all")}
    scheme = choice("nested", "independent", "random_size")
    values = tensor(-torch.ones(2, 3), "01", nan=True)
    found = {
        "curves.exact_curve": case(curves.exact_curve, **both),
        "curves.subset_curve": case(curves.subset_curve, **known),
        "curves.subset_levels": case(curves.subset_levels, **known),
        "curves.sampled_curve": case(
            curves.sampled_curve, **both, **drawn, **how, sizes=optional(sizes([1, 3], 4))
        ),
        "curves.size_scores": case(curves.size_scores, **both, mask=mask(HIDDEN[None], "01")),
        "curves.running_area": case(curves.running_area, values=values),
        "estimators.area": case(estimators.area, **both, **drawn),
        "estimators.exact": case(estimators.exact, **known),
        "estimators.ordered_chain": case(
            estimators.ordered_chain, **both, num_orders=count(2), generator=generator()
        ),
        "estimators.exact_variance": case(
            estimators.exact_variance, **both, scheme=scheme, targets=choice("one", "all")
        ),
        "scores.mask_score": case(
            scores.mask_score,
            log_conditional=tensor(-torch.ones(2, 3), "", lead=True, nan=True).but(
                legal=lambda v: (
                    isinstance(v, Tensor)
                    and v.is_floating_point()
                    and v.layout == torch.strided
                    and v.numel() > 0
                    and (
                        1 <= v.ndim <= 3 and v.shape[-1] == 3 and (v.ndim == 1 or len(v) in (1, 2))
                    )
                ),
                passes_on=False,
            ),
            mask=mask(torch.tensor([True, False, True])).but(
                legal=tensor(
                    torch.tensor([True, False, True]),
                    lead=True,
                    also=lambda v: bool(v.any(dim=-1).all()),
                ).legal,
                value=lambda: torch.tensor([[True, False, True], [True, True, True]]),
            ),
        ),
        "scores.mean_by_size": case(
            scores.mean_by_size,
            values=tensor(-torch.ones(3, 2), "1", nan=True).but(
                legal=lambda v: (
                    isinstance(v, Tensor)
                    and v.is_floating_point()
                    and v.layout == torch.strided
                    and v.ndim > 0
                    and len(v) == 3
                )
            ),
            sizes=tensor(torch.tensor([0, 1, 1]), also=lambda v: bool(((v >= 0) & (v < 2)).all())),
            num_features=count(1),
        ),
        "orders.every": case(orders.every, num_features=count(3)),
        "orders.draw": case(
            orders.draw, num_orders=count(2), num_features=count(3), generator=generator()
        ),
        "orders.log_probability": case(
            orders.log_probability,
            model=a_model(HMM, ConditionalModel),
            x=like(HMM, WORDS),
            ranks=ranks(torch.tensor([[0, 1, 2, 3], [2, 0, 0, 1]])),
        ),
        "orders.exact": case(
            orders.exact, model=a_model(HMM, ConditionalModel), x=like(HMM, WORDS)
        ),
        "orders.mixture_bound": case(
            orders.mixture_bound,
            log_probability=tensor(-torch.ones(4, 3), "01", nan=True),
            num_orders=count(2, 1, 4),
        ),
    }
    return found


def _estimators() -> dict[str, Case]:
    f32 = PIXELS.float()
    both = {"model": a_model(VAE, LatentVariableModel), "x": like(VAE, f32)}
    shown = optional(tensor(torch.ones(3) > 0, lead=True).but(value=lambda: torch.ones(3, 3) > 0))
    rule = function(estimators.from_prior, lambda *a: torch.zeros(3, 1), lambda m, x, o: x)
    proposal = estimators.from_prior(VAE, f32, None)
    # What is not finite is passed on to the draws.
    unit = {"mean": tensor(torch.zeros(3, 2), nan=True)}
    unit["factor"] = tensor(torch.eye(2).repeat(3, 1, 1), nan=True)
    from mpt_lml.estimators.latent import GaussianProposal

    moment = torch.eye(3).double()[None] + 0.5
    return {
        "estimators.at_mode": case(
            estimators.at_mode,
            **both,
            observed=shown,
        ),
        "estimators.from_prior": case(estimators.from_prior, **both, observed=shown),
        "estimators.from_encoder": case(
            estimators.from_encoder, **{**both, "model": a_model(VAE, mpt_lml.VAE)}, observed=shown
        ),
        "estimators.iwae": case(
            estimators.iwae, **both, num_samples=count(2, 2), generator=generator(), proposal=rule
        ),
        "estimators.log_weights": case(
            estimators.log_weights,
            **{**both, "x": tensor(f32, also=lambda v: bool(((v == 0) | (v == 1)).all()))},
            proposal=instance(lambda: proposal, GaussianProposal),
            num_samples=count(2),
            generator=generator(),
        ),
        "estimators.ais": case(
            estimators.ais,
            **both,
            num_chains=count(2, 2),
            num_temperatures=count(3, 2),
            generator=generator(),
        ),
        "estimators.annealed_evidence": case(
            estimators.annealed_evidence,
            second_moment=psd(moment[0]).but(
                value=lambda: moment,
                legal=lambda v: (
                    isinstance(v, Tensor) and v.shape == (1, 3, 3) and psd(moment[0]).legal(v[0])
                ),
                wrong=lambda draw: (
                    [v[None] for v in psd(moment[0]).wrong(draw) if isinstance(v, Tensor)]
                    + tensor(moment).wrong(draw)
                ),
            ),
            num_data=count(3),
            latent_dim=count(1, 1, 1),
            noise_variance=number(0.5, 0.0),
            num_chains=count(2, 2),
            num_steps=count(2),
            generator=generator(),
            backward_from=optional(tensor(torch.ones(1, 3, 1).double())),
        ),
        "estimators.GibbsConditional": case(
            estimators.GibbsConditional,
            model=a_model(VAE, mpt_lml.VAE),
            num_steps=count(2),
            generator=generator(),
            corrected=flag(True),
            num_chains=count(1),
        ),
        "estimators.ImportanceConditional": case(
            lambda **kw: estimators.ImportanceConditional(**kw).log_each(f32, f32 > -1),
            model=a_model(VAE, LatentVariableModel),
            num_samples=count(2),
            generator=generator(),
            proposal=rule,
        ),
        "GaussianProposal": case(
            lambda mean, factor, prior_share: GaussianProposal(mean, factor, prior_share).sample(
                2, generator=at()
            ),
            **unit,
            prior_share=number(0.1, 0.0, 1.0, "[)"),
        ),
        "GaussianProposal.sample": case(
            GaussianProposal(*(kind.value() for kind in unit.values())).sample,
            num_samples=count(2),
            generator=generator(),
        ),
        "GaussianProposal.log_density": case(
            GaussianProposal(*(kind.value() for kind in unit.values())).log_density,
            z=tensor(torch.zeros(3, 2), lead=True, nan=True),
        ),
    }


def _objectives() -> dict[str, Case]:
    w = torch.ones(3, 1).double()
    moment = torch.eye(3).double() + 0.5
    known = {
        # What is not finite is passed on: fit.maximize names the epoch and the run.
        "loadings": tensor(
            w,
            "1",
            nan=True,
            bare=True,
            lead=True,
            also=lambda v: v.shape[-2] == 3 and not v.isinf().any(),
        ),
        "noise_variance": tensor(
            torch.tensor(0.5).double(), nan=True, lead=True, also=positive
        ).but(
            legal=lambda v: (
                isinstance(v, Tensor)
                and v.dtype == torch.float64
                and v.ndim <= 1  # the axis of runs
                and bool((v.isnan() | (v > 0)).all())
            )
        ),
        "moment": psd(moment).but(
            legal=lambda v: (
                tensor(moment, lead=True).legal(v)
                and torch.allclose(v, v.mT, rtol=1e-6, atol=1e-12)
                and bool(
                    (torch.linalg.eigvalsh(v).amin(-1) >= -1e-7 * v.abs().amax((-2, -1))).all()
                )
            )
        ),
    }
    few = mask(torch.tensor([True, False, True]), "").but(
        value=lambda: torch.tensor([[True, False, True], [True, True, True]]),
        legal=tensor(
            torch.tensor([True]).expand(3), lead=True, also=lambda v: bool(v.any(-1).all())
        ).legal,
    )
    stack = {"loadings": w[None], "offset": torch.zeros(1, 3).double()}
    each = {k: tensor(v, "", nan=True) for k, v in stack.items()}
    zeros = {
        "encoder": torch.zeros(1, 1, 3).double(),
        "encoder_offset": torch.zeros(1, 1).double(),
        "encoder_log_variance": torch.zeros(1, 1).double(),
    }
    return {
        "objectives.second_moment": case(objectives.second_moment, x=tensor(X, "01")),
        "objectives.log_marginal": case(objectives.log_marginal, **known),
        "objectives.sampled": case(objectives.sampled, **known, mask=few),
        "objectives.exact": case(objectives.exact, **known, law=law()),
        "objectives.curve": case(objectives.curve, **known),
        "objectives.mixture": case(
            objectives.mixture,
            **each,
            x=tensor(PIXELS, "0", also=zeros_and_ones),
            mask=optional(mask(torch.tensor([[[True, False, True]]]), "1")),
            grid=instance(lambda: GRID, grids.Grid),
            block=flag(),
        ),
        "objectives.linear_elbo": case(
            objectives.linear_elbo,
            **each,
            **{k: tensor(v, nan=True) for k, v in zeros.items()},
            x=tensor(PIXELS, also=zeros_and_ones),
            noise=tensor(torch.zeros(1, 3, 1).double(), nan=True),
        ),
        "objectives.mask_scores": case(
            objectives.mask_scores,
            **known | {"moment": tensor(moment, nan=True, lead=True)},
            mask=few,
        ),
        **_vae_objectives(),
    }


def _vae_objectives() -> dict[str, Case]:
    """Of dense networks with D = 3, K = 1, in single precision, one run."""
    x = PIXELS.float()
    hidden = torch.tensor([True, False, True]).expand(1, len(x), 3)
    weights = instance(lambda: DENSE, dict).but(legal=lambda v: v is DENSE)
    shared = {
        "x": tensor(x).but(
            legal=lambda v: tensor(x).legal(v) or tensor(x[None]).legal(v),
        ),
        "noise_variance": optional(number(0.5, 0.0)),
    }
    mask_of_each = mask(hidden, "")
    draws = tensor(torch.zeros(2, 1, len(x), 1), "0", nan=True)
    partial = vaes.dense_parameters(3, [4], 1, generators=[at()], partial=True)
    return {
        "objectives.elbo": case(
            objectives.elbo,
            parameters=weights,
            **shared,
            noise=tensor(torch.zeros(1, len(x), 1), nan=True),
        ),
        "objectives.refill": case(
            objectives.refill,
            parameters=weights,
            **shared,
            mask=tensor(hidden),
            noise=tensor(torch.zeros(2, 1, len(x), 1), nan=True),
            from_decoder=flag(),
            # At a visible pixel it is not read.
            pixel_noise=optional(tensor(torch.zeros(2, 1, len(x), 3), nan=True)).but(
                passes_on=False
            ),
        ),
        "objectives.recursive": case(
            objectives.recursive,
            parameters=weights,
            **shared,
            mask=mask_of_each,
            filled=tensor(torch.zeros(1, len(x), 3), nan=True),
            noise=draws,
            train_encoder=flag(),
        ),
        "objectives.partial": case(
            objectives.partial,
            parameters=instance(lambda: partial, dict).but(legal=lambda v: v is partial),
            **shared,
            mask=mask_of_each,
            noise=draws,
            weighted=flag(),
        ),
    }


def _gaussian() -> dict[str, Case]:
    mean = torch.zeros(4).double()
    rows = HIDDEN[0]
    some = lambda v: bool(v.any())  # noqa: E731
    of = gaussian.LowRankPosterior.of(MODEL.loadings, MODEL.noise_variance, HIDDEN)
    moment = tensor(X.mT @ X, nan=True, lead=True).but(
        legal=lambda v: (
            isinstance(v, Tensor)
            and v.dtype == torch.float64
            and v.shape in ((4, 4), (1, 4, 4))
            and v.layout == torch.strided
        )
    )
    centered = tensor(X, "0", nan=True)
    found = {
        "gaussian.log_density": case(
            gaussian.log_density, x=tensor(X, "0"), mean=tensor(mean), covariance=spd(SIGMA)
        ),
        "gaussian.condition_dense": case(
            gaussian.condition_dense,
            x=tensor(X, "0"),
            mean=tensor(mean),
            covariance=spd(SIGMA),
            mask=tensor(rows, also=some),
        ),
        "gaussian.divergence": case(gaussian.divergence, p=spd(SIGMA), q=spd(SIGMA, lead=True)),
        "gaussian.LowRankPosterior.of": case(
            gaussian.LowRankPosterior.of,
            loadings=tensor(MODEL.loadings, "1", nan=True, lead=True, bare=True),
            noise_variance=tensor(
                MODEL.noise_variance, nan=True, lead=True, also=lambda v: not (v <= 0).any()
            ),
            observed=tensor(HIDDEN, "0", lead=True),
        ),
        "gaussian.LowRankPosterior.mean_and_residual": case(
            of.mean_and_residual, centered=centered
        ),
        "gaussian.LowRankPosterior.log_conditional": case(of.log_conditional, centered=centered),
        "gaussian.LowRankPosterior.log_marginal": case(of.log_marginal, centered=centered),
        "gaussian.LowRankPosterior.mean_log_conditional": case(
            of.mean_log_conditional, moment=moment
        ),
        "gaussian.LowRankPosterior.mean_log_marginal": case(of.mean_log_marginal, moment=moment),
    }
    return found


def _grids() -> dict[str, Case]:
    def well(z: Tensor) -> Tensor:
        return -2 * (z - 3).square().sum(-1)

    nodes, weights = torch.zeros(3, 2), torch.full((3,), -math.log(3))
    grid = grids.Grid(nodes, weights)
    return {
        "grids.Grid": case(
            grids.Grid,
            nodes=tensor(nodes, "1"),
            log_weights=tensor(weights, also=_weights),
        ),
        "grids.Grid.sample": case(grid.sample, n=count(2), generator=generator()),
        "grids.Grid.to": case(
            grid.to,
            like=instance(lambda: X, Tensor).but(
                legal=lambda v: isinstance(v, Tensor) and v.is_floating_point()
            ),
        ),
        "grids.trapezoid": case(
            grids.trapezoid,
            latent_dim=count(1, 1, 3),
            nodes_per_axis=count(9, 2),
            extent=number(5.0, 0.0),
        ),
        "grids.gauss_hermite": case(
            grids.gauss_hermite, latent_dim=count(1, 1, 3), nodes_per_axis=count(9, 2)
        ),
        "grids.find_modes": case(
            grids.find_modes,
            log_joint=function(
                well,
                lambda z: z,
                lambda z: z.sum(),
                lambda z: torch.zeros(2),
                lambda z: z.sum(-1) * math.nan,
            ),
            start=tensor(torch.zeros(2, 1), "01"),
            max_steps=count(20),
            tolerance=number(1e-3, 0.0),
            accepted=optional(number(1.0, 0.0)),
        ),
    }


def _weights(v: Tensor) -> bool:
    return abs(v.double().exp().sum().item() - 1) < 1e-3


def _training() -> dict[str, Case]:
    def objective(parameters: dict[str, Tensor], generators: Any) -> Tensor:
        return -(parameters["level"] - 1).square()

    def network() -> torch.nn.Module:
        net = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(net.weight)
        return net

    def descend(**given: Any) -> Any:
        net = given.pop("network", None)
        net = network() if net is None else net
        if isinstance(net, torch.nn.Module):
            sgd = torch.optim.SGD(net.parameters(), lr=0.01)
            loss = given["loss"]
            if loss is _loss:
                given["loss"] = lambda step: net.weight.square().sum()
        else:
            sgd = torch.optim.SGD(network().parameters(), lr=0.01)
        if isinstance(given["schedules"], str) and given["schedules"] == "made":
            given["schedules"] = [torch.optim.lr_scheduler.ConstantLR(sgd)]
        return fit.descend(net, **given)

    settings = {"law": "uniform"}
    scalars = [
        lambda *a: torch.tensor(1.0),
        lambda p, *a: p["level"].sum(),
        lambda p, *a: p["level"][:1],
        lambda p, *a: p["level"][None],
        lambda *a: 1.0,
    ]
    start = {"level": torch.zeros(2)}
    return {
        "fit.bfgs": case(
            fit.bfgs,
            start=tensor(torch.zeros(2, 3), "01"),
            objective=function(
                lambda w: -(w - 1.0).square().sum(dim=1),
                lambda w: -w.square().sum(),
                lambda w: w,
                lambda w: torch.ones(len(w)),
                lambda w: w.sum(dim=1) * math.nan,
            ),
            max_steps=count(5),
        ),
        "FileCheckpoint": case(
            FileCheckpoint,
            path=Kind(lambda: Path("run"), lambda v: isinstance(v, Path)),
            settings=Kind(lambda: settings, lambda v: isinstance(v, dict)),
            every=count(10),
        ),
        "fit.maximize": case(
            fit.maximize,
            parameters=Kind(
                lambda: start,
                lambda v: False,
                lambda draw: [
                    {"level": 1.0},
                    {"level": torch.zeros(2).long()},
                    {"level": torch.zeros(())},
                    {"level": torch.zeros(2), "other": torch.zeros(3)},
                    {"level": torch.zeros(0)},
                ],
            ),
            objective=function(objective, *scalars),
            num_epochs=count(2),
            learning_rate=number(0.1, 0.0),
            generators=several([], generator(), least=0),
            track=optional(
                Kind(
                    lambda: {"level": lambda p: p["level"]},
                    lambda v: isinstance(v, dict) and not v,
                    lambda draw: [{"level": each} for each in scalars] + [{"level": 3}],
                )
            ),
            track_every=count(1),
            snapshots=several([0, 2], count(2, 0, 2), least=0).but(
                legal=lambda v: (
                    isinstance(v, list | tuple | set | dict | range)
                    and all(integer(each) and 0 <= each <= 2 for each in v)
                )
            ),
            checkpoint=optional(instance(lambda: None)),
            progress=function(fit.silent),
        ),
        "fit.descend": case(
            descend,
            network=Kind(lambda: None, lambda v: v is None),
            loss=function(
                _loss,
                lambda step: 1.0,
                lambda step: torch.ones(2, requires_grad=True),
                lambda step: torch.tensor(1.0),
                lambda step: torch.tensor(math.nan, requires_grad=True),
            ),
            schedules=Kind(lambda: "made", lambda v: isinstance(v, str) and v == "made"),
            num_steps=count(2),
            generators=several([], generator(), least=0),
            max_norm=optional(number(1.0, 0.0)),
            watch=function(lambda: torch.ones(1)),
            watched=several([1], count(1, 0, 2), least=0).but(
                legal=lambda v: (
                    isinstance(v, list | tuple | dict | set | range)
                    and all(integer(each) and 0 <= each <= 2 for each in v)
                )
            ),
            checkpoint=optional(instance(lambda: None)),
            progress=function(fit.silent),
            label=text(),
        ),
    }


def _loss(step: int) -> Tensor:
    raise AssertionError


def _theory() -> dict[str, Case]:
    score = -torch.ones(3).double()
    clock = function(
        torch.square,
        lambda t: 2.0,
        lambda t: t.sum(),
        lambda t: t + 1.0,
        lambda t: 1.0 - t,
        lambda t: t * math.nan,
        lambda t: t[:1],
    )
    family = {"covariance": FAMILY.covariance, "directions": FAMILY.directions}
    parts = ("fisher", "sensitivity", "shared", "one_mask")
    square = {name: tensor(getattr(INFORMATION, name)) for name in parts}
    fisher = square["fisher"]
    rank = lambda v: int(torch.linalg.matrix_rank(v.flatten(1))) == len(v)  # noqa: E731
    own = tensor(score, "0", nan=True, lead=True)
    steps = torch.tensor([[0, 1, 2, 3], [3, 0, 0, 1]])
    return {
        "theory.diffusion.bernstein": case(
            diffusion.bernstein,
            score=own,
            rate=tensor(
                torch.tensor([0.0, 0.5, 1.0]).double(),
                "0",
                also=lambda v: bool(((v >= 0) & (v <= 1)).all()),
            ),
        ),
        "theory.diffusion.schedule_derivative": case(
            diffusion.schedule_derivative,
            schedule=clock.but(legal=lambda v: v is torch.square),
            time=tensor(
                torch.tensor(0.5), lead=True, also=lambda v: bool(((v >= 0) & (v <= 1)).all())
            ).but(value=lambda: torch.tensor([0.0, 0.5])),
        ),
        "theory.diffusion.nelbo": case(
            diffusion.nelbo, score=own, schedule=clock, num_nodes=count(8)
        ),
        "theory.diffusion.step_elbo": case(
            diffusion.step_elbo, score=own, schedule=clock, num_steps=count(2)
        ),
        "theory.diffusion.block_elbo": case(
            diffusion.block_elbo,
            score=tensor(score, "0", nan=True, lead=True),
            num_steps=count(3, 1, 3),  # with fewer blocks not every size is read
        ),
        "theory.diffusion.sample": case(
            diffusion.sample,
            model=a_model(HMM, ConditionalModel),
            ranks=ranks(steps),
            generator=generator(),
        ),
        "theory.godambe.GaussianFamily": case(
            godambe.GaussianFamily,
            covariance=spd(family["covariance"]),
            directions=tensor(
                family["directions"], "0", also=lambda v: rank(v) and torch.allclose(v, v.mT)
            ),
        ),
        "theory.godambe.GaussianFamily.ppca": case(
            godambe.GaussianFamily.ppca,
            loadings=tensor(
                torch.tensor([[1.0], [2.0], [3.0]]).double(),
                "0",
                also=lambda v: v.ndim == 2 and bool(v.norm() > 0),
            ),
            noise_variance=number(0.5, 0.0),
        ),
        "theory.godambe.GaussianFamily.mask_forms": case(
            FAMILY.mask_forms, mask=tensor(torch.tensor([[True, False, True]]), "0")
        ),
        "theory.godambe.Godambe": case(
            lambda **kw: godambe.Godambe(**kw).efficiency(),
            **{
                k: v.but(legal=lambda w, v=v: v.legal(w) and _no_negative(w, v is fisher))
                for k, v in square.items()
                if k != "shared"
            },
            shared=square["shared"],
        ),
        "theory.godambe.Godambe.of": case(
            godambe.Godambe.of,
            family=instance(lambda: FAMILY, godambe.GaussianFamily),
            sizes=several([1, 2], count(1, 1, 3), least=0).but(
                legal=lambda v: (
                    isinstance(v, list | tuple | set | dict | range)
                    and all(integer(each) and 1 <= each <= 3 for each in v)
                )
            ),
            num_masks=count(2, 2),
            generator=optional(generator()),
        ),
        "theory.godambe.Godambe.variability": case(
            INFORMATION.variability, masks_per_datum=optional(count(1))
        ),
        "theory.godambe.Godambe.efficiency": case(
            INFORMATION.efficiency, masks_per_datum=optional(count(1))
        ),
        "theory.godambe.Godambe.law_efficiency": case(
            INFORMATION.law_efficiency,
            probabilities=tensor(
                torch.full((3,), 1 / 3).double(),
                lead=True,
                also=lambda v: bool((v >= 0).all()) and bool(((v.sum(-1) - 1).abs() < 1e-6).all()),
            ),
            weights=optional(tensor(torch.ones(3).double(), lead=True)),
            masks_per_datum=count(1, 1),
        ),
        "theory.godambe.Godambe.best_law": case(INFORMATION.best_law, masks_per_datum=count(1, 1)),
        "theory.rates.chain_crossover": case(
            rates.chain_crossover,
            gap_entropy=tensor(torch.arange(1.0, 90.0).double().log(), "0", also=_of_a_chain),
        ),
        "theory.rates.chain_curve": case(
            rates.chain_curve,
            gap_entropy=tensor(torch.tensor([0.0, 0.7, 1.1]).double(), "0", also=_of_a_chain),
            marginal_entropy=number(2.0, 1.1),
        ),
        "theory.rates.crossover": case(
            rates.crossover,
            score=tensor(torch.tensor([0.0, -1.0, -5.0]).double(), lead=True),
            rate=optional(
                tensor(
                    torch.tensor([0.2, 0.4, 0.8]).double(),
                    also=lambda v: bool((v.diff() > 0).all()),
                )
            ),
            height=optional(
                Kind(
                    lambda: -2.0,
                    lambda v: real(v) or (isinstance(v, Tensor) and v.is_floating_point()),
                )
            ),
        ),
        "theory.rates.jackknife": case(
            rates.jackknife,
            statistic=function(
                lambda mean: mean[..., 0],
                lambda mean: mean,
                lambda mean: mean.sum(),
                lambda mean: 1.0,
            ),
            groups=tensor(
                torch.tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 1.0]]),
                "0",
                nan=True,
                also=lambda v: len(v) > 1,
            ).but(
                legal=lambda v: (
                    isinstance(v, Tensor)
                    and v.dtype in (torch.float32, torch.float64)
                    and v.layout == torch.strided
                    and v.ndim == 2
                    and len(v) > 1
                    and v.shape[1] > 0
                    and bool(v.isfinite().all())
                )
            ),
        ),
        "theory.rates.random_loadings_curve": case(
            rates.random_loadings_curve,
            num_features=count(4),
            latent_dim=count(1, 0),
            noise_variance=number(0.2, 0.0),
        ),
        "theory.rates.sizes_and_weights": case(
            rates.sizes_and_weights,
            num_features=count(20, 3),
            num_sizes=count(3, 1, 20),
            rule=choice("midpoint", "trapezoid", "gauss-legendre", "clenshaw-curtis"),
        ),
    }


def _of_a_chain(h: Tensor) -> bool:
    return bool((h.diff() >= -1e-5).all() and (h.diff().diff() <= 1e-5).all())


def _no_negative(v: Tensor, definite: bool) -> bool:
    """Symmetric up to rounding, and no direction has a negative variance; or each a positive one."""
    size, least = v.abs().max(), torch.linalg.eigvalsh(v).min()
    slack = 0.0 if definite else -1e-7 * size
    return bool((v - v.mT).abs().max() <= 1e-9 * size) and bool(
        least > slack if definite else least >= slack
    )


def _results() -> dict[str, Case]:
    value = {
        "value": number(0.3),
        "error": optional(number(0.2, 0.0, ends="[")),
        "n": optional(count(5, 2)),
    }
    length = torch.arange(1, 4)
    finite = tensor(-1.0 * length)
    pixels = torch.zeros(2, 12).double()
    found = {
        "Estimate": case(
            mpt_lml.Estimate,
            value=number(1.0).but(legal=lambda v: real(v)),
            standard_error=number(0.1, 0.0, ends="[").but(
                legal=lambda v: real(v) and (math.isnan(v) or v >= 0)
            ),
            num_samples=count(3, 0),
            unit=text("nats"),
        ),
        "MaskCurve": case(
            lambda **kw: mpt_lml.MaskCurve(**kw).area(),
            num_masked=tensor(
                length, also=lambda v: bool((v.diff() > 0).all() and v[0] > 0 and v[-1] < 4)
            ),
            score=finite,
            standard_error=tensor(
                0.1 * length, nan=True, also=lambda v: not bool((v < 0).any())
            ).but(
                passes_on=False  # its area has an error of its own
            ),
            num_features=count(3, 3),
            num_masks=count(9, 0),
            area_standard_error=optional(
                number(0.1, 0.0, ends="[").but(legal=lambda v: v is None or (real(v) and not v < 0))
            ),
        ),
        "MaskCurve.area": case(CURVE.area),
        "MaskCurve.partial_sums": case(CURVE.partial_sums),
        "page.glue": case(
            page.glue,
            name=text(),
            value=instance(lambda: 1.0, object).but(
                legal=lambda v: (
                    not (isinstance(v, float) and not math.isfinite(v))
                    and not (isinstance(v, Tensor) and not v.isfinite().all())
                )
            ),
        ),
        "plots.use_style": case(plots.use_style),
        "plots.mask_curve": case(
            plots.mask_curve,
            curve=instance(lambda: CURVE, mpt_lml.MaskCurve),
            ax=_axes(),
            color=_color(),
            area=flag(),
        ),
        "data.Images": case(
            lambda pixels, shape: data.Images(pixels, shape).grid,
            pixels=tensor(pixels, "0", also=lambda v: bool(((v >= 0) & (v <= 1)).all())),
            shape=Kind(
                lambda: (2, 6),
                lambda v: (
                    isinstance(v, tuple)
                    and all(map(integer, v))
                    and len(v) in (2, 3)
                    and math.prod(v) == 12
                    and min(v) > 0
                    and v[2:] in ((), (3,))
                ),
                lambda draw: [(2, 5), (12,), (2, 2, 3), (2, 3, 2), (-2, -6), (2.0, 6.0), [2, 6]],
            ),
        ),
        "data.images": case(data.images, name=choice("digits"), split=choice("train", "test")),
        "data.paper_gaussian": case(
            data.paper_gaussian,
            num_data=count(3),
            num_features=count(4),
            latent_dim=count(2, 0),
            generator=generator(),
        ),
        "data.published_curves": case(data.published_curves),
        "score.texts.sentences": case(
            sentences, name=choice("written"), split=choice("test", "train")
        ),
        "verdicts.mean_and_error": case(
            verdicts.mean_and_error,
            samples=tensor(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "01", lead=True, nan=True).but(
                legal=lambda v: (
                    (
                        isinstance(v, Tensor)
                        and v.dtype in (torch.float32, torch.float64)
                        and v.ndim > 1
                    )
                    or (isinstance(v, Tensor) and v.ndim == 1 and v.is_floating_point())
                ),
                passes_on=True,
            ),
            dim=count(0, -2, 1),
        ),
        "verdicts.equivalent": case(
            verdicts.equivalent, **value, margin=number(1.0, 0.0), at=number(0.0)
        ),
        "verdicts.interval": case(verdicts.interval, **value),
    }
    for name in ("agrees", "apart", "exceeds"):
        found[f"verdicts.{name}"] = case(getattr(verdicts, name), **value, at=number(0.0))
    return found


def _color() -> Kind:
    from matplotlib.colors import is_color_like

    known = lambda v: v is None or is_color_like(v)  # noqa: E731
    return choice("C0", "red").but(legal=known)


def _axes() -> Kind:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    ax = plt.figure().subplots()
    plt.close("all")
    return instance(lambda: ax, Axes)


def _symbolic() -> dict[str, Case]:
    model = symbolic.SymbolicTable(2)
    some = several([0], count(0, 0, 1), also=lambda v: len(set(v)) == len(v), least=0).but()
    return {
        "symbolic.SymbolicGaussian": case(symbolic.SymbolicGaussian, num_features=count(2)),
        "symbolic.SymbolicTable": case(
            symbolic.SymbolicTable,
            num_features=count(2),
        ),
        "symbolic.SymbolicTable.log_marginal": case(
            model.log_marginal, observed=_set(optional(some))
        ),
        "symbolic.SymbolicTable.log_conditional": case(
            model.log_conditional,
            target=count(1, 0, 1).but(legal=lambda v: integer(v) and v == 1),
            observed=_set(some, without=1),
        ),
        "symbolic.SymbolicTable.order_term": case(model.order_term, position=count(1, 1, 2)),
        "symbolic.SymbolicTable.score": case(model.score, num_masked=count(1, 1, 2)),
        "symbolic.SymbolicTable.mean_log_marginal": case(
            model.mean_log_marginal, num_observed=count(1, 0, 2)
        ),
        "symbolic.SymbolicTable.residual": case(model.residual, term=function(model.score)),
    }


def _set(kind: Kind, without: int = -1) -> Kind:
    """Any iterable of coordinates will do."""

    def legal(v: Any) -> bool:
        if v is None:
            return without < 0 and kind.legal(v)
        if isinstance(v, str | bytes) or not hasattr(v, "__iter__"):
            return False
        try:
            values = list(v)
        except TypeError:
            return False
        return all(map(integer, values)) and kind.legal(values) and without not in values

    return kind.but(legal=legal)


# -- experiments and the command -----------------------------------------------------------------

QUICK = {"num_data": 20, "num_features": 4, "latent_dim": 2}


def command(*arguments: str) -> int:
    """The command with these arguments; a message and status 2 become an error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
    if status == 2 and "mpt-lml" in err.getvalue():
        raise RefusedError(err.getvalue())
    assert status == 0, (status, err.getvalue())
    return status


def words(*values: str) -> Kind:
    """An argument of the command: ``values`` are tried; the others are refused or legal alike."""
    return Kind(lambda: values[0], lambda v: v == values[0])


def _command() -> dict[str, Case]:
    def run(**given: Any) -> int:
        fixed = {"--preset": "quick", "--json": "-"}
        argv = ["run", str(given.pop("name")), *given.pop("settings")]
        for key, value in given.items():
            fixed[f"--{key}"] = value
        for key, value in fixed.items():
            argv += [key, value]
        return command(*map(str, argv))

    def texts(value: str, *wrong: str) -> Kind:
        tries = [*wrong, "", "nan", "-1", "0", "one", "1.5", "None", "True", "[]", "1e400"]
        return Kind(lambda: value, lambda v: v == value, lambda draw: tries)

    class Only(Kind):
        pass

    def only(kind: Kind) -> Kind:
        inner = kind.wrong
        return OnlyTexts(kind.value, kind.legal, inner)

    settings = [f"--{key}={value}".replace("_", "-") for key, value in QUICK.items()]
    wrong = [
        [*settings[:at_], f"--{key}={bad}".replace("_", "-"), *settings[at_ + 1 :]]
        for at_, key in enumerate(QUICK)
        for bad in ("", "0", "-3", "2.5", "nan", "inf", "one", "None", "True", "[1]", "1,2")
        if (key, bad) != ("latent_dim", "0")
    ] + [
        ["--num-masks="],
        ["--num-masks=0"],
        ["--num-masks=1.5"],
        ["--num-masks=a,b"],
        ["--nothing=1"],
        ["x"],
    ]
    return {
        "mpt-lml run": case(
            run,
            name=only(texts("table-1", "table1", "zzz", "../table-1")),
            preset=only(texts("quick", "fast")),
            device=only(texts("cpu", "tpu", "cuda:0")),
            settings=OnlyTexts(lambda: settings, lambda v: v is settings, lambda draw: wrong),
            json=only(
                texts("-", "/", "/dev", ".", "/dev/null/x", "/proc/x").but(
                    wrong=lambda draw: ["/", "/dev", ".", "/dev/null/x", "/proc/x"]
                )
            ),
        ),
        "mpt-lml compare": case(
            lambda name: command("compare", name), name=only(texts("table-1", "table1", "zzz"))
        ),
        "mpt-lml run seeds": case(
            lambda seeds: command(
                "run",
                "table-1",
                "--preset",
                "quick",
                "--json",
                "-",
                *settings,
                "--seeds",
                seeds,
            ),
            seeds=OnlyTexts(
                lambda: "4,5",
                lambda v: v == "4,5",
                lambda draw: ["4,4", "-1,4", "a", "1.5,2", "4,nan", "", f"4,{2**70}"],
            ),
        ),
    }


class OnlyTexts(Kind):
    """What a shell can pass: nothing but texts is tried."""

    def tried(self, draw: Any) -> list[Any]:
        return self.wrong(draw)


def _experiments() -> dict[str, Case]:

    def run(name: Any, preset: Any, **settings: Any) -> Any:
        return mpt_experiments.run(name, preset, **{**QUICK, **settings})

    return {
        "experiments.load": case(mpt_experiments.load, name=choice("table-1")),
    }


def table() -> dict[str, Case]:
    """Every case by its name."""
    parts = (
        _models, _methods, _latent, _masks, _curves, _estimators, _objectives, _gaussian, _grids,
        _training, _theory, _results, _symbolic, _experiments, _command,
    )  # fmt: skip
    return {name: each for part in parts for name, each in part().items()}
