"""PPCA trained by masks: Figure 2, the curve along a run (Figure 5, left), maxima of single sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Experiment, RunContext, on_cpu, seeded, setting
from experiments.paper.area import dense_curve, fall_beyond
from experiments.paper.convergence import NOISE, NOISE_VARIANCE, paper_problem
from experiments.records import finding_over
from mpt_lml import curves, fit, masks, objectives
from mpt_lml.data import images
from mpt_lml.masks import SizeLaw
from mpt_lml.models.ppca import PPCA
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.results import History

DRAWS = ("paper", "model")
Generators = Sequence[torch.Generator]


@dataclass(frozen=True, eq=False)
class Problem:
    """Data with the loadings they were drawn from and those of the greatest LML, σ² and μ known."""

    x: Float[Tensor, "N D"]
    loadings: Float[Tensor, "D K"]
    moment: Float[Tensor, "D D"]
    best: Float[Tensor, "D K"]

    def log_marginal(self, loadings: Float[Tensor, "*B D K"]) -> Float[Tensor, "*B"]:
        return objectives.log_marginal(loadings, NOISE, self.moment)

    def exact(self, loadings: Float[Tensor, "*B D K"], law: SizeLaw) -> Float[Tensor, "*B"]:
        return objectives.exact(loadings, NOISE, self.moment, law)


class PPCATraining(Experiment):
    """PPCA with known noise, W alone learned, D fresh masks an epoch."""

    num_data: int = setting(2000, quick=100)
    num_features: int = setting(10, quick=6)
    latent_dim: int = 2
    data_seed: int = 1991
    num_epochs: int = setting(1000, quick=40)

    def problem(self, draw: str, context: RunContext) -> Problem:
        """The paper's draw, or as many data from the model with the same loadings."""
        generator = seeded(self.data_seed)
        shape = (self.num_data, self.num_features, self.latent_dim)
        model, x = paper_problem(shape, generator)
        if draw != "paper":
            x = model.sample(self.num_data, generator=generator)
        x = x.to(context.device)
        best = PPCA.fit_closed_form(
            x, self.latent_dim, noise_variance=NOISE_VARIANCE, mean=torch.zeros_like(x[0])
        )
        return Problem(x, model.loadings.to(x), objectives.second_moment(x), best.loadings)

    def starts(self) -> tuple[Float[Tensor, "seeds D K"], list[torch.Generator]]:
        """W₀ = randn(D, K) in float32 under every seed, and the generators that go on to masks."""
        generators = [seeded(seed) for seed in self.seeds]
        shape = (self.num_features, self.latent_dim)
        drawn = [torch.randn(shape, generator=g, dtype=torch.float32) for g in generators]
        return torch.stack(drawn).double(), generators

    def train(
        self,
        problems: Sequence[Problem],
        laws: Sequence[SizeLaw],
        context: RunContext,
        *,
        scales: Sequence[float] = (1.0,),
        snapshots: Sequence[int] = (),
    ) -> History:
        """Every law on every problem from every seed as one batch, the exact LML of every epoch.

        An epoch scores D masks, sizes stratified over the law, as the authors' scripts do. The batch
        axis of the history is (problems, laws, seeds), flattened; ``scales`` are of the starts.
        """
        size = self.num_features
        start, generators = self.starts()
        start = start * torch.tensor(scales, dtype=start.dtype)[:, None, None, None, None]
        moment = torch.stack([problem.moment for problem in problems])
        moment = moment.repeat_interleave(len(laws) * len(generators), dim=0)

        def objective(p: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
            mask = masks.stratified_masks(size, size, laws, generator=generators).flatten(0, 1)
            mask = mask.repeat(len(problems), 1, 1)
            return objectives.sampled(p["loadings"], NOISE, moment, mask)

        start = start.to(moment).expand(len(problems), len(laws), -1, -1, -1)
        return fit.maximize(
            {"loadings": start.flatten(0, 2)},
            objective,
            num_epochs=self.num_epochs,
            learning_rate=0.01,
            generators=generators,
            track={"lml": lambda p: objectives.log_marginal(p["loadings"], NOISE, moment)},
            snapshots=snapshots,
            progress=context.progress,
        )


class Figure2(PPCATraining, name="figure-2"):
    """Figure 2: PPCA trained at every size and at 20 %, on two draws of data.

    Both laws on the paper's draw and on data from the model, five starts each. Arrays, for draw
    in (paper, model) and law in (uniform, fixed): ``lml/DRAW/LAW`` and ``objective/DRAW/LAW`` (epochs
    + 1, seeds), ``true_lml/DRAW`` and ``best_lml/DRAW`` (), the LML of generating and best loadings.
    On the paper's draw, largest entries of gradients at the starts minus that of the LML:
    ``gradient_error`` (), of Σ_M S(x; M), and ``gradient_off`` (seeds,), of D S(x; M) at 20 %.
    """

    fixed_rate: float = 0.2

    def measure(self, context: RunContext) -> Outcome:
        problems = [self.problem(draw, context) for draw in DRAWS]
        laws = {"uniform": masks.UniformSize(), "fixed": masks.FixedRate(self.fixed_rate)}
        start = self.starts()[0].to(context.device)
        off = _gradient_difference(problems[0], start, laws["fixed"])
        arrays = {
            "gradient_error": _gradient_difference(problems[0], start, laws["uniform"]).max(),
            "gradient_off": off.amax(dim=(1, 2)),
        }
        for draw, problem in zip(DRAWS, problems, strict=True):
            arrays[f"true_lml/{draw}"] = problem.log_marginal(problem.loadings)
            arrays[f"best_lml/{draw}"] = problem.log_marginal(problem.best)
        history = self.train(problems, list(laws.values()), context)
        num_batches = len(problems) * len(laws)
        for name, rows in history.values.items():
            batches = rows.unflatten(1, (num_batches, -1)).unbind(dim=1)
            for (draw, law), batch in zip(product(DRAWS, laws), batches, strict=True):
                arrays[f"{name}/{draw}/{law}"] = batch
        arrays = on_cpu(arrays)
        checksum = context.checksum(problem.x for problem in problems)
        return Outcome(self._findings(arrays), arrays, checksum)

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        best = arrays["best_lml/paper"]
        generating = arrays["true_lml/paper"]
        uniform = arrays["lml/paper/uniform"]
        fixed = arrays["lml/paper/fixed"]
        loss = arrays["objective/paper/fixed"]
        tenth = max(1, self.num_epochs // 10)
        early = (loss - fixed)[:tenth].mean(dim=0)
        last_tenth = slice(-1 - tenth, -1)  # the last row of the loss is NaN
        uniform_end = uniform[last_tenth].mean(dim=0)
        end = fixed[last_tenth].mean(dim=0)
        loss_end = loss[last_tenth].mean(dim=0)
        return {
            "fig-2-left": finding_over(best - uniform_end),
            "gradient-of-all-sizes": Finding(arrays["gradient_error"].item()),
            "claim-stochastic-gradient": finding_over(arrays["gradient_off"]),
            "fig-2-center": finding_over(loss_end - end),
            "fig-2-right": finding_over(generating - end),
            # The share of the distance to the maximum that training at 20 % closes.
            "claim-lml-still-maximized": finding_over(1 - (best - end) / (best - fixed[0])),
            "claim-same-value": Finding((loss_end.max() - loss_end.min()).item()),
            "claim-bias-constant": finding_over(loss_end - end - early),
        }


def _gradient_difference(
    problem: Problem, start: Float[Tensor, "B D K"], law: SizeLaw
) -> Float[Tensor, "B D K"]:
    """Absolute difference of the gradients of a law's exact objective and of the LML, by entries."""
    loadings = start.detach().requires_grad_()
    difference = problem.exact(loadings, law) - problem.log_marginal(loadings)
    (gradient,) = torch.autograd.grad(difference.sum(), loadings)
    return gradient.abs()


class Figure5Left(PPCATraining, name="figure-5-left"):
    """Figure 5, left: the mask-rate curve during training.

    Arrays: ``epochs`` (C,), ``score`` and ``standard_error`` (C, D) of the first seed, P masks a
    size, ``lml`` (epochs + 1, seeds), ``true_lml`` () of the generating loadings, ``areas`` (C,
    seeds) of every seed's model, ``first`` and ``last`` (seeds, D), smooth curves of every seed
    before and after training; all in nats.
    """

    num_data: int = setting(1000, quick=100)
    num_features: int = setting(50, quick=12)
    num_epochs: int = setting(600, quick=40)
    num_masks: int = 20
    dense_masks: int = setting(100, quick=12)
    every: int = setting(100, quick=20)

    def measure(self, context: RunContext) -> Outcome:
        problem = self.problem("paper", context)
        epochs = range(0, self.num_epochs + 1, self.every)
        history = self.train([problem], [masks.UniformSize()], context, snapshots=epochs)
        snapshots = [history.snapshots[epoch]["loadings"] for epoch in epochs]
        models = [[PPCA(W, NOISE_VARIANCE) for W in of_seeds] for of_seeds in snapshots]
        generator = seeded(self.data_seed)
        sampled = [
            curves.sampled_curve(of_seeds[0], problem.x, self.num_masks, generator=generator)
            for of_seeds in models
        ]
        areas = [self._areas(problem, of_seeds, generator) for of_seeds in snapshots]
        arrays = {
            "epochs": torch.tensor(epochs),
            "score": torch.stack([curve.score for curve in sampled]),
            "standard_error": torch.stack([curve.standard_error for curve in sampled]),
            "lml": history.values["lml"],
            "true_lml": problem.log_marginal(problem.loadings),
            "areas": torch.stack(areas),
        }
        for name, of_seeds in (("first", models[0]), ("last", models[-1])):
            smooth = [
                dense_curve(model, problem.moment, self.dense_masks, generator=generator)
                for model in of_seeds
            ]
            arrays[name] = torch.stack(smooth)
        arrays = on_cpu(arrays)
        return Outcome(self._findings(arrays), arrays, context.checksum([problem.x]))

    def _areas(
        self, problem: Problem, loadings: Float[Tensor, "B D K"], generator: torch.Generator
    ) -> Float[Tensor, " seeds"]:
        """The area of every seed's model, P random masks a size."""
        size = self.num_features
        drawn = []
        for _ in loadings:
            for num_masked in range(1, size + 1):
                drawn.append(
                    masks.sample_masks(self.num_masks, size, num_masked, generator=generator)
                )
        mask = torch.cat(drawn).view(len(loadings), -1, size)
        scores = objectives.mask_scores(loadings, NOISE, problem.moment, mask)
        return scores.sum(dim=1) / self.num_masks

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        first = arrays["first"]
        last = arrays["last"]
        areas = arrays["areas"]
        fall = (last[:, 0] - last[:, -1]).abs()
        rise_of_mean = (areas[-1] - areas[0]) / self.num_features
        first_range = first.amax(dim=1) - first.amin(dim=1)
        grown = (arrays["score"][-1] - arrays["score"][0]).sum().item()
        error = arrays["standard_error"][[0, -1]].square().sum().sqrt().item()
        return {
            "fig-5-left": finding_over((areas - arrays["lml"][arrays["epochs"]]).mean(dim=0)),
            "claim-area-converges": finding_over(areas[-1] - arrays["true_lml"]),
            "claim-tail-85": finding_over(fall_beyond(last, 0.85)),
            "claim-flat-at-init": finding_over(first_range / fall),
            "fig-5-similar-low": finding_over(first_range / rise_of_mean),
            "flat-at-init-rise": finding_over(first[:, -1] - first[:, 0]),
            "area-growth": Finding(grown, error),
        }


class FixedSizes(PPCATraining, name="fixed-sizes", resumable=True, gpu=False):
    """Maxima of the masked objective at fixed sizes, by truth and start scale.

    Figure 2's problem at several truths, from starts of several scales. ``truths`` are seeds of the
    data and the loadings behind them. Arrays, for draw in (paper, model), nats: ``lost/DRAW``
    (truths, sizes), the LML lost at the maximum of a size's exact objective, the best end of BFGS
    from all starts; ``below/DRAW`` (truths, sizes, scales, starts), how far below it a start ends,
    and ``converged/DRAW``, whether at a maximum: with small masks some go to infinity;
    ``short/DRAW`` (truths, sizes + 1, scales, starts), how far below its maximum the LML is over the
    last tenth of training by sampled masks, every size last; ``bias/DRAW`` (truths, scales, starts),
    objective minus LML at every size, mean over the epochs.
    """

    seeds: tuple[int, ...] = setting(tuple(range(20)), quick=(0, 1))
    num_data: int = setting(2000, quick=200)
    num_features: int = setting(10, quick=5)
    truths: tuple[int, ...] = setting((1991, 1, 2, 3, 4), quick=(1991,))
    scales: tuple[float, ...] = setting((1.0, 0.3, 0.1, 0.01), quick=(1.0, 0.1))
    sizes: tuple[int, ...] = setting((1, 2, 8, 9), quick=(1, 4))

    def measure(self, context: RunContext) -> Outcome:
        cells: dict[str, list[Tensor]] = {}
        used = []
        pairs = list(product(DRAWS, self.truths))
        for draw, truth in context.progress(pairs, "draw, truth"):
            problem = replace(self, data_seed=truth).problem(draw, context)
            used.append(problem.x)
            cell = context.computed_once(
                f"{draw}-{truth}", partial(self._cell, problem), data=context.checksum([problem.x])
            )
            for name, values in cell.items():
                cells.setdefault(f"{name}/{draw}", []).append(values)
        arrays = {name: torch.stack(values) for name, values in cells.items()}
        return Outcome(self._findings(arrays), arrays, context.checksum(used))

    def _cell(self, problem: Problem) -> dict[str, Tensor]:
        """Row of each array that belongs to one truth."""
        scales = torch.tensor(self.scales, dtype=problem.x.dtype)[:, None, None, None]
        starts = scales * self.starts()[0]
        with_best = torch.cat([problem.best[None], starts.flatten(0, 1)])
        best = problem.log_marginal(problem.best)
        laws = [masks.FixedSize(size) for size in self.sizes]
        lost = []
        below = []
        converged = []
        for law in laws:
            ends = fit.bfgs(with_best, partial(problem.exact, law=law))
            highest = ends.value.argmax()
            if not ends.converged[highest]:
                raise RuntimeError(
                    f"the highest of {len(with_best)} climbs at size {law.num_masked} has not arrived "
                    f"after {int(ends.num_steps[highest])} steps: there is no maximum to measure from. "
                    "Try other starts."
                )
            lost.append(best - problem.log_marginal(ends.parameters[highest]))
            below.append((ends.value[highest] - ends.value[1:]).view(starts.shape[:2]))
            converged.append(ends.converged[1:].view(starts.shape[:2]))
        all_laws = [*laws, masks.UniformSize()]
        history = self.train([problem] * len(scales), all_laws, RunContext(), scales=self.scales)
        batch = (len(scales), len(all_laws), -1)
        lml = history.values["lml"].unflatten(1, batch)
        objective = history.values["objective"].unflatten(1, batch)
        late = lml[-max(1, self.num_epochs // 10) :].mean(dim=0)
        return {
            "lost": torch.stack(lost),
            "below": torch.stack(below),
            "converged": torch.stack(converged),
            "short": (best - late).transpose(0, 1).contiguous(),
            "bias": (objective - lml)[:-1, :, -1].mean(dim=0),
        }

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        fifth = self.sizes.index(masks.FixedRate(0.2).num_masked(self.num_features))
        # A run that ends within 1e-5 nats of the maximum has reached it.
        reached = (arrays["below/model"] <= 1e-5).double().mean(dim=-1)[:, -1]
        short = {draw: arrays[f"short/{draw}"].mean(dim=-1)[:, fifth, 0] for draw in DRAWS}
        return {
            "claim-varying-rates-unbiased": finding_over(arrays["bias/paper"][0, 0]),
            "fixed-rate-shortfall": finding_over(short["paper"]),
            "fixed-rate-shortfall-model": finding_over(short["model"]),
            "size-9-unit-starts": finding_over(reached[:, 0]),
            "size-9-small-starts": finding_over(reached[:, -1]),
        }


class DigitsTraining(Experiment, name="digits-training", gpu=False):
    """The digits at 15 %: slow, or headed elsewhere?

    PPCA with loadings and log σ² free, trained at one rate on the scanned digits from random starts:
    Adam at 0.01, then at 0.001 so that the jitter of the masks dies down; once also after
    ``first_epochs``, as in chapter 7. Where the objective itself has its maximum, BFGS tells, on
    ``climb_masks`` masks of every seed: from the closed form and from the end of training. Arrays, in
    nats per image and for SET in (train, test): ``best/SET`` (), the closed form's LML; ``lml/SET``
    (epochs, seeds) at the ``epochs`` of the first phase; ``early/SET`` and ``end/SET`` (seeds,), after
    ``first_epochs`` and all epochs, settled; ``top/SET`` (seeds, 2), where BFGS ends;
    ``objective`` (seeds, 2), their values there.
    """

    latent_dim: int = setting(10, quick=2)
    num_masks: int = 8
    fixed_rate: float = 0.15
    first_epochs: int = setting(500, quick=10)
    num_epochs: int = setting(5000, quick=20)
    early_settling: int = setting(100, quick=5)
    settling: int = setting(500, quick=5)
    every: int = setting(50, quick=5)
    climb_masks: int = setting(1000, quick=32)

    def measure(self, context: RunContext) -> Outcome:
        pixels = {part: images("digits", part).pixels for part in ("train", "test")}
        center = pixels["train"].mean(dim=0)
        moments = {part: objectives.second_moment(x - center) for part, x in pixels.items()}
        best = PPCA.fit_closed_form(pixels["train"], self.latent_dim)
        generators = [seeded(seed) for seed in self.seeds]
        history = self._train(
            self._start(best.loadings.shape, generators),
            moments,
            generators,
            context,
            num_epochs=self.num_epochs,
            learning_rate=0.01,
        )
        settle = partial(self._train, moments=moments, generators=generators, context=context)
        early = settle(
            history.snapshots[self.first_epochs],
            num_epochs=self.early_settling,
            learning_rate=0.001,
        )
        end = settle(history.parameters, num_epochs=self.settling, learning_rate=0.001)

        def maxima(number: int) -> dict[str, Tensor]:
            trained = {name: value[number] for name, value in end.parameters.items()}
            return self._maxima(self.seeds[number], best, trained, moments)

        epochs = torch.arange(0, self.num_epochs + 1, self.every)
        arrays = context.stack(maxima, range(len(self.seeds)), "BFGS, seed")
        arrays["epochs"] = epochs
        for part, moment in moments.items():
            arrays[f"best/{part}"] = objectives.log_marginal(
                best.loadings, best.noise_variance, moment
            )
            arrays[f"lml/{part}"] = history.values[part][epochs]
            arrays[f"early/{part}"] = early.values[part][-1]
            arrays[f"end/{part}"] = end.values[part][-1]
        missing = arrays["best/train"] - arrays["early/train"]
        elsewhere = arrays["best/train"] - arrays["top/train"][:, 0]
        findings = {
            "digits-slowness": finding_over(1 - elsewhere / missing),
            "digits-elsewhere": finding_over(elsewhere),
        }
        return Outcome(findings, arrays, context.checksum(pixels.values()))

    def _start(self, shape: torch.Size, generators: Generators) -> fit.Parameters:
        drawn = [torch.randn(shape, generator=g, dtype=torch.float64) for g in generators]
        noise_variance = torch.full((len(generators), 1), 0.1, dtype=torch.float64)
        loadings = torch.stack([0.1 * each for each in drawn])
        return {"loadings": loadings, "log_noise": noise_variance.log()}

    def _train(
        self,
        start: fit.Parameters,
        moments: Mapping[str, Float[Tensor, "D D"]],
        generators: Generators,
        context: RunContext,
        *,
        num_epochs: int,
        learning_rate: float,
    ) -> History:
        law = masks.FixedRate(self.fixed_rate)
        num_features = len(moments["train"])

        def objective(p: fit.Parameters, generators: Generators) -> Tensor:
            mask = masks.stratified_masks(self.num_masks, num_features, law, generator=generators)
            return _sampled(p, moments["train"], mask)

        return fit.maximize(
            start,
            objective,
            num_epochs=num_epochs,
            learning_rate=learning_rate,
            generators=generators,
            track={part: partial(_log_marginal, moment) for part, moment in moments.items()},
            track_every=self.every,
            snapshots=[min(self.first_epochs, num_epochs)],
            progress=context.progress,
        )

    def _maxima(
        self,
        seed: int,
        best: PPCA,
        trained: fit.Parameters,
        moments: Mapping[str, Float[Tensor, "D D"]],
    ) -> dict[str, Tensor]:
        """Maxima of the objective on many fixed masks, from the closed form and the end of training."""
        shape = best.loadings.shape
        mask = masks.sample_masks(
            self.climb_masks,
            len(moments["train"]),
            masks.FixedRate(self.fixed_rate),
            generator=seeded(seed),
        )
        closed = {"loadings": best.loadings, "log_noise": best.noise_variance.log()[None]}
        starts = torch.stack([_packed(closed), _packed(trained)])
        ends = fit.bfgs(
            starts, lambda flat: _sampled(_unpacked(flat, shape), moments["train"], mask)
        ).require_converged()
        p = _unpacked(ends.parameters, shape)
        arrays = {f"top/{part}": _log_marginal(moment, p) for part, moment in moments.items()}
        arrays["objective"] = ends.value
        return arrays


def _noise_variance(p: fit.Parameters) -> Tensor:
    return p["log_noise"][..., 0].exp()


def _log_marginal(moment: Float[Tensor, "D D"], p: fit.Parameters) -> Tensor:
    return objectives.log_marginal(p["loadings"], _noise_variance(p), moment)


def _sampled(p: fit.Parameters, moment: Float[Tensor, "D D"], mask: Tensor) -> Tensor:
    return objectives.sampled(p["loadings"], _noise_variance(p), moment, mask)


def _packed(p: fit.Parameters) -> Float[Tensor, " n"]:
    return torch.cat([p["loadings"].flatten(), p["log_noise"]])


def _unpacked(flat: Float[Tensor, "B n"], shape: torch.Size) -> dict[str, Tensor]:
    return {"loadings": flat[:, :-1].unflatten(1, shape), "log_noise": flat[:, -1:]}
