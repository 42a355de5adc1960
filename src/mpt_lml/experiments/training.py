"""Figure 2 and Figure 5, left: PPCA trained by masked objectives, the exact LML at every epoch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import curves, data, fit, masks, objectives
from mpt_lml.experiments.convergence import NOISE_VARIANCE
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    Verdict,
    checksum,
    experiment,
    silent,
)
from mpt_lml.masks import SizeLaw
from mpt_lml.models.ppca import PPCA
from mpt_lml.results import History

Draw = Literal["paper", "model"]


@dataclass(frozen=True)
class Training(Config):
    """PPCA with known noise, W alone learned, one fresh mask a slot and epoch."""

    num_data: int = 2000
    num_features: int = 10
    latent_dim: int = 2
    data_seed: int = 1991
    num_epochs: int = 1000
    learning_rate: float = 0.01
    fixed_rate: float = 0.2

    @classmethod
    def paper(cls) -> Training:
        """As published (Figure 2)."""
        return cls()

    @classmethod
    def quick(cls) -> Training:
        """Few data, few epochs."""
        return cls(num_data=100, num_features=6, num_epochs=40)


@dataclass(frozen=True)
class Problem:
    """Data with the loadings they were drawn from, and what the best loadings reach."""

    x: Float[Tensor, "N D"]
    loadings: Float[Tensor, "D K"]
    moment: Float[Tensor, "D D"]
    best: PPCA

    def log_marginal(self, loadings: Float[Tensor, "*B D K"]) -> Float[Tensor, "*B"]:
        """Exact mean log p(x) of the data under ``loadings``."""
        return objectives.log_marginal(loadings, self.best.noise_variance, self.moment)


def problem(config: Training, draw: Draw, device: torch.device = torch.device("cpu")) -> Problem:
    """The paper's own draw, or as many data from the model with the same loadings.

    ``best`` is the maximum of the LML over W in closed form, σ² and μ = 0 known.
    """
    generator = torch.Generator().manual_seed(config.data_seed)
    drawn = data.paper_gaussian(
        config.num_data, config.num_features, config.latent_dim, generator=generator
    )
    x = drawn.x
    if draw == "model":
        x = PPCA(drawn.loadings, NOISE_VARIANCE).sample(config.num_data, generator=generator)
    x = x.to(device)
    best = PPCA.fit_closed_form(
        x, config.latent_dim, noise_variance=NOISE_VARIANCE, mean=torch.zeros_like(x[0])
    )
    return Problem(x, drawn.loadings.to(device), objectives.second_moment(x), best)


def initial_loadings(
    config: Training,
) -> tuple[Float[Tensor, "B D K"], list[torch.Generator]]:
    """W₀ = randn(D, K) in float32 under every seed, and the generators that go on to draw masks."""
    generators = [torch.Generator().manual_seed(seed) for seed in config.seeds]
    shape = (config.num_features, config.latent_dim)
    start = torch.stack([torch.randn(shape, generator=g, dtype=torch.float32) for g in generators])
    return start.double(), generators


def train(
    config: Training,
    of: Problem,
    law: SizeLaw,
    *,
    exact: bool = False,
    snapshots: Sequence[int] = (),
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> History:
    """All seeds side by side; ``values["lml"]`` (epochs + 1, seeds) is the exact LML of every epoch.

    The sampled objective scores D masks an epoch with sizes stratified over ``law``: one of every
    size for the uniform law, D of the one size for a fixed one, as the authors' published scripts
    do. ``exact`` visits every mask instead.
    """
    noise = of.best.noise_variance

    def objective(parameters: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
        loadings = parameters["loadings"]
        if exact:
            return objectives.exact(loadings, noise, of.moment, law)
        mask = draw_for_all(generators, [law], config.num_features)[0]
        return objectives.sampled(loadings, noise, of.moment, mask.to(loadings.device))

    settings = dataclasses.asdict(config) | {
        "law": repr(law),
        "exact": exact,
        "data": checksum([of.x.cpu()]),
    }
    start, generators = initial_loadings(config)
    return fit.maximize(
        {"loadings": start.to(of.x.device)},
        objective,
        num_epochs=config.num_epochs,
        learning_rate=config.learning_rate,
        generators=generators,
        track={"lml": lambda parameters: of.log_marginal(parameters["loadings"])},
        snapshots=snapshots,
        checkpoint=None if checkpoint is None else fit.Checkpoint(checkpoint, settings),
        progress=progress,
    )


def draw_for_all(
    generators: Sequence[torch.Generator], laws: Sequence[SizeLaw], num_features: int
) -> Bool[Tensor, "laws seeds P D"]:
    """One epoch's D masks for every law and seed; the laws of a seed share its random numbers.

    Number for number what :func:`mpt_lml.objectives.draw_masks` draws for one law and generator.
    """
    size = num_features
    rand = [
        (
            torch.rand((), generator=g, dtype=torch.float64),
            torch.rand(size, size, generator=g, dtype=torch.float64),
        )
        for g in generators
    ]
    level = masks.spread(torch.stack([shift for shift, _ in rand]), size)
    ranks = torch.stack([noise for _, noise in rand]).argsort(dim=-1)
    sizes = torch.stack([law.quantile(level, size) for law in laws])
    return ranks < sizes[..., None]


def train_together(
    config: Training,
    problems: Sequence[Problem],
    laws: Sequence[SizeLaw],
    *,
    progress: Progress = silent,
) -> dict[str, Float[Tensor, "problems laws seeds E"]]:
    """Every law on every problem from every seed as one batch; what :func:`train` gives one by one.

    Returns ``lml`` and ``objective``, each (problems, laws, seeds, epochs + 1).
    """
    start, generators = initial_loadings(config)
    batch = (len(problems), len(laws), len(generators))
    noise = problems[0].best.noise_variance
    moment = torch.stack([of.moment for of in problems])[:, None, None]

    def loadings(parameters: fit.Parameters) -> Tensor:
        return parameters["loadings"].unflatten(0, batch)

    def objective(parameters: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
        mask = draw_for_all(generators, laws, config.num_features).to(moment.device)
        return objectives.sampled(loadings(parameters), noise, moment, mask).flatten()

    def lml(parameters: fit.Parameters) -> Tensor:
        return objectives.log_marginal(loadings(parameters), noise, moment).flatten()

    history = fit.maximize(
        {"loadings": start.to(moment.device).expand(*batch, -1, -1).flatten(0, 2)},
        objective,
        num_epochs=config.num_epochs,
        learning_rate=config.learning_rate,
        generators=generators,
        track={"lml": lml},
        progress=progress,
    )
    return {name: rows.T.unflatten(0, batch) for name, rows in history.values.items()}


def laws(config: Training) -> dict[str, SizeLaw]:
    """The two laws of Figure 2: every size, and the fixed rate."""
    return {"uniform": masks.UniformSize(), "fixed": masks.FixedRate(config.fixed_rate)}


@experiment(
    "figure-2",
    title="Figure 2: PPCA trained at every size and at 20 %, on two draws of data",
    cost="about 2 s",
    config=Training,
)
def figure_2(
    config: Training, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Both laws on the paper's own draw and on data from the model, five starts each.

    Arrays, for draw in (paper, model) and law in (uniform, fixed): ``lml/DRAW/LAW`` and
    ``objective/DRAW/LAW`` (epochs + 1, seeds), ``true_lml/DRAW`` and ``best_lml/DRAW`` (), the LML
    of the loadings the data were drawn with and of the best ones.
    """
    draws: tuple[Draw, ...] = ("paper", "model")
    problems = [problem(config, draw, device) for draw in draws]
    named = laws(config)
    values = train_together(config, problems, list(named.values()), progress=progress)
    arrays: dict[str, Tensor] = {}
    for p, draw in enumerate(draws):
        of = problems[p]
        arrays[f"true_lml/{draw}"] = of.log_marginal(of.loadings).cpu()
        arrays[f"best_lml/{draw}"] = of.log_marginal(of.best.loadings).cpu()
        for q, law in enumerate(named):
            for name in ("lml", "objective"):
                arrays[f"{name}/{draw}/{law}"] = values[name][p, q].T.cpu()
    return Outcome(_findings_2(arrays), arrays, checksum([of.x.cpu() for of in problems]))


def _gap(arrays: dict[str, Tensor], draw: str, law: str) -> tuple[float, float]:
    """Best LML minus the mean LML of the last tenth of training, and its standard error over starts."""
    lml = arrays[f"lml/{draw}/{law}"]
    late = lml[-max(1, len(lml) // 10) :].mean(dim=0)
    shortfall = arrays[f"best_lml/{draw}"] - late
    return shortfall.mean().item(), shortfall.std().item() / math.sqrt(len(shortfall))


REACHED = 0.05
"""Nats a datum below the maximum of the LML that count as having reached it.

One mask a size and epoch makes the end of a run jitter: at learning rate 0.01 its loadings move by
about 0.01 an entry, which costs up to a few hundredths of a nat in D = 10 dimensions.
"""


def _findings_2(arrays: dict[str, Tensor]) -> dict[str, Finding]:
    findings = {}
    for name, law in (("fig-2-left", "uniform"), ("fig-2-center", "fixed")):
        gap, error = _gap(arrays, "paper", law)
        start = (arrays["best_lml/paper"] - arrays[f"lml/paper/{law}"][0]).mean().item()
        rose: Verdict = (
            "corrected" if gap <= start / 10 else "refuted"
        )  # nearly there, but not there
        findings[name] = Finding(gap, error, "confirmed" if gap <= REACHED else rose)
    # The zoom shows the objective apart from the LML by a bias that training does not remove.
    late = slice(-1 - max(1, len(arrays["lml/paper/fixed"]) // 10), -1)
    bias = (arrays["objective/paper/fixed"] - arrays["lml/paper/fixed"])[late].mean(dim=0)
    error = bias.std().item() / math.sqrt(len(bias))
    apart = abs(bias.mean().item()) > 3 * error
    findings["fig-2-right"] = Finding(
        bias.mean().item(), error, "confirmed" if apart else "refuted"
    )
    findings["claim-bias-constant"] = _bias_along(arrays)
    return findings


def _bias_along(arrays: dict[str, Tensor]) -> Finding:
    """How far D Ŝ(20 %) − LML moves between the first and the last tenth of training, on model data."""
    bias = (arrays["objective/model/fixed"] - arrays["lml/model/fixed"])[:-1]
    tenth = max(1, len(bias) // 10)
    moved = bias[:tenth].mean(dim=0) - bias[-tenth:].mean(dim=0)
    error = moved.std().item() / math.sqrt(len(moved))
    constant = abs(moved.mean().item()) <= 3 * error
    return Finding(moved.mean().item(), error, "confirmed" if constant else "refuted")


@dataclass(frozen=True)
class FixedSizes(Training):
    """Where the exact objective of each size has its maxima: L-BFGS from many starts."""

    num_starts: int = 20
    start_seed: int = 0

    @classmethod
    def paper(cls) -> FixedSizes:
        """The data of Figure 2, twenty starts a size."""
        return cls()

    @classmethod
    def quick(cls) -> FixedSizes:
        """Three starts at D = 5."""
        return cls(num_data=200, num_features=5, num_starts=3)


def climb(of: Problem, law: SizeLaw, start: Float[Tensor, "D K"]) -> Float[Tensor, "D K"]:
    """A local maximum of the exact objective near ``start``, by L-BFGS with a line search."""
    loadings = start.clone(memory_format=torch.contiguous_format).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [loadings],
        max_iter=2000,
        max_eval=4000,
        tolerance_grad=1e-8,
        tolerance_change=1e-13,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -objectives.exact(loadings, of.best.noise_variance, of.moment, law)
        loss.backward()
        return loss

    optimizer.step(closure)
    return loadings.detach()


def product_error(loadings: Float[Tensor, "D K"], reference: Float[Tensor, "D K"]) -> float:
    """Relative Frobenius error of W Wᵀ, which unlike W is not free to rotate."""
    truth = reference @ reference.T
    return ((loadings @ loadings.T - truth).norm() / truth.norm()).item()


@experiment(
    "fixed-sizes",
    title="The maxima of the masked objective at each fixed size",
    cost="about 2 min",
    config=FixedSizes,
)
def fixed_sizes(
    config: FixedSizes, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Every size on both draws, from every start; always on the CPU.

    Arrays, for draw in (paper, model): ``objective/DRAW``, ``lml/DRAW``, ``error_best/DRAW`` and
    ``error_true/DRAW``, each (sizes, starts); ``best_lml/DRAW`` (). Errors are relative, of W Wᵀ,
    against the closed-form maximum and against the loadings the data were drawn with.
    """
    shape = (config.num_starts, config.num_features, config.latent_dim)
    generator = torch.Generator().manual_seed(config.start_seed)
    starts = torch.randn(shape, generator=generator, dtype=torch.float64)
    arrays: dict[str, Tensor] = {}
    used = []
    cells = [(d, m) for d in ("paper", "model") for m in range(1, config.num_features + 1)]
    rows: dict[str, list[list[list[float]]]] = {"paper": [], "model": []}
    of = {draw: problem(config, draw) for draw in ("paper", "model")}
    for draw, size in progress(cells, "draw, size"):
        here, law = of[draw], masks.FixedSize(size)
        found = [climb(here, law, start) for start in starts]
        rows[draw].append([_summary(here, law, loadings) for loadings in found])
    for draw, here in of.items():
        used.append(here.x)
        table = torch.tensor(rows[draw], dtype=torch.float64)
        for index, name in enumerate(("objective", "lml", "error_best", "error_true")):
            arrays[f"{name}/{draw}"] = table[..., index]
        arrays[f"best_lml/{draw}"] = here.log_marginal(here.best.loadings)
    return Outcome(_finding_of_optima(arrays, config), arrays, checksum(used))


def _summary(of: Problem, law: SizeLaw, loadings: Float[Tensor, "D K"]) -> list[float]:
    value = objectives.exact(loadings, of.best.noise_variance, of.moment, law).item()
    errors = [product_error(loadings, other) for other in (of.best.loadings, of.loadings)]
    return [value, of.log_marginal(loadings).item(), *errors]


def _finding_of_optima(arrays: dict[str, Tensor], config: FixedSizes) -> dict[str, Finding]:
    """Loss of LML at the 20 % maximum on the paper's draw; on the model's own it is next to none."""
    size = masks.FixedRate(config.fixed_rate).num_masked(config.num_features)
    lost = {}
    for draw in ("paper", "model"):
        top = arrays[f"objective/{draw}"][size - 1].argmax()
        lost[draw] = (arrays[f"best_lml/{draw}"] - arrays[f"lml/{draw}"][size - 1, top]).item()
    # Both objectives have their maximum at the truth when data and model agree, up to the data's
    # finite number: D K parameters and N data leave about D K / (2 N) nats.
    slack = config.num_features * config.latent_dim / (2 * config.num_data)
    only_there = lost["model"] <= slack < lost["paper"]
    found = Finding(lost["paper"], verdict="corrected" if only_there else "refuted")
    return {"claim-fixed-rate-maximizes": found}


@dataclass(frozen=True)
class Figure5Left(Training):
    """The curve along a training run at D = 50."""

    num_data: int = 1000
    num_features: int = 50
    num_epochs: int = 600
    num_masks: int = 20
    every: int = 100

    @classmethod
    def paper(cls) -> Figure5Left:
        """As published."""
        return cls()

    @classmethod
    def quick(cls) -> Figure5Left:
        """Few epochs at D = 12."""
        return cls(num_data=100, num_features=12, num_epochs=40, every=20)


@experiment(
    "figure-5-left",
    title="Figure 5, left: the mask-rate curve during training",
    cost="about 5 s",
    config=Figure5Left,
)
def figure_5_left(
    config: Figure5Left, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Curves of the first seed's model at epochs 0, 100, ..., with P masks a size.

    Arrays: ``epochs`` (C,), ``score`` and ``standard_error`` (C, D), ``lml`` (epochs + 1, seeds),
    ``rise`` (seeds,) with S(x; D) − S(x; 1) at initialization.
    """
    of = problem(config, "paper", device)
    epochs = range(0, config.num_epochs + 1, config.every)
    history = train(config, of, masks.UniformSize(), snapshots=epochs, progress=progress)
    generator = torch.Generator().manual_seed(config.data_seed)
    drawn = {
        epoch: curves.sampled_curve(
            PPCA(history.snapshots[epoch]["loadings"][0], NOISE_VARIANCE),
            of.x,
            config.num_masks,
            generator=generator,
        )
        for epoch in epochs
    }
    rise = torch.stack(
        [
            _rise(PPCA(loadings, NOISE_VARIANCE), of.x)
            for loadings in history.snapshots[0]["loadings"]
        ]
    )
    arrays = {
        "epochs": torch.tensor(list(epochs)),
        "score": torch.stack([curve.score for curve in drawn.values()]),
        "standard_error": torch.stack([curve.standard_error for curve in drawn.values()]),
        "lml": history.values["lml"].cpu(),
        "rise": rise,
    }
    return Outcome(_findings_5(arrays, drawn), arrays, checksum([of.x.cpu()]))


def _rise(model: PPCA, x: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
    """S(x; D) − S(x; 1), exactly: sizes 1 and D have D masks and one."""
    size = model.num_features
    ends = [masks.all_masks(size, m).to(x.device)[None] for m in (1, size)]
    one, everything = (curves.size_scores(model, x, mask).mean().cpu() for mask in ends)
    return everything - one


def _findings_5(
    arrays: dict[str, Tensor], drawn: dict[int, curves.MaskCurve]
) -> dict[str, Finding]:
    last, lml = max(drawn), arrays["lml"][:, 0]
    areas = {epoch: curve.area() for epoch, curve in drawn.items()}
    agree = all(abs(a - lml[e].item()) <= 4 * a.standard_error for e, a in areas.items())
    gain = areas[last] - areas[0]
    error = math.hypot(areas[last].standard_error, areas[0].standard_error)
    grows = gain > 4 * error
    rise = arrays["rise"]
    rise_error = rise.std().item() / math.sqrt(len(rise))
    flat = abs(rise.mean().item()) <= 3 * rise_error
    return {
        "fig-5-left": Finding(gain, error, "confirmed" if agree and grows else "refuted"),
        "claim-flat-at-init": Finding(
            rise.mean().item(), rise_error, "confirmed" if flat else "refuted"
        ),
    }
