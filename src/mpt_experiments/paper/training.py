"""PPCA trained by masks: Figure 2, the curve along a run (Figure 5, left), maxima of single sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, seeded, setting
from mpt_experiments.paper.area import dense_curve, fall_beyond
from mpt_experiments.paper.convergence import NOISE, NOISE_VARIANCE, paper_problem
from mpt_lml import curves, fit, masks, objectives
from mpt_lml.data import images
from mpt_lml.masks import SizeLaw
from mpt_lml.models.ppca import PPCA
from mpt_lml.results import History

DRAWS = ("paper", "model")


@dataclass(frozen=True, eq=False)
class Problem:
    """Data with the loadings they were drawn from and those of the greatest LML, σ² and μ known."""

    x: Float[Tensor, "N D"]
    loadings: Float[Tensor, "D K"]
    moment: Float[Tensor, "D D"]
    best: Float[Tensor, "D K"]

    def log_marginal(self, loadings: Float[Tensor, "*B D K"]) -> Float[Tensor, "*B"]:
        return objectives.log_marginal(loadings, NOISE.to(self.moment), self.moment)

    def exact(self, loadings: Float[Tensor, "*B D K"], law: SizeLaw) -> Float[Tensor, "*B"]:
        return objectives.exact(loadings, NOISE.to(self.moment), self.moment, law)


class Training(Experiment):
    """PPCA with known noise, W alone learned, D fresh masks an epoch."""

    num_data: int = setting(2000, quick=100)
    num_features: int = setting(10, quick=6)
    latent_dim: int = 2
    data_seed: int = 1991
    num_epochs: int = setting(1000, quick=40)

    def problem(self, draw: str, context: RunContext) -> Problem:
        """The paper's own draw, or as many data from the model with the same loadings."""
        N, D, K, g = self.num_data, self.num_features, self.latent_dim, seeded(self.data_seed)
        model, x = paper_problem((N, D, K), g)
        x = (x if draw == "paper" else model.sample(N, generator=g)).to(context.device)
        zero, moment = torch.zeros_like(x[0]), objectives.second_moment(x)
        best = PPCA.fit_closed_form(x, K, noise_variance=NOISE_VARIANCE, mean=zero)
        return Problem(x, model.loadings.to(x), moment, best.loadings)

    def starts(self) -> tuple[Float[Tensor, "seeds D K"], list[torch.Generator]]:
        """W₀ = randn(D, K) in float32 under every seed, and the generators that go on to masks."""
        generators, shape = [*map(seeded, self.seeds)], (self.num_features, self.latent_dim)
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
        (start, generators), size = self.starts(), self.num_features
        start = start * torch.tensor(scales, dtype=start.dtype)[:, None, None, None, None]
        moment = torch.stack([of.moment for of in problems])
        moment = moment.repeat_interleave(len(laws) * len(generators), dim=0)
        noise = NOISE.to(moment)

        def objective(p: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
            mask = masks.stratified_masks(size, size, laws, generator=generators).flatten(0, 1)
            mask = mask.repeat(len(problems), 1, 1).to(moment.device)
            return objectives.sampled(p["loadings"], noise, moment, mask)

        start = start.to(moment).expand(len(problems), len(laws), -1, -1, -1)
        return fit.maximize(
            {"loadings": start.flatten(0, 2)},
            objective,
            num_epochs=self.num_epochs,
            learning_rate=0.01,
            generators=generators,
            track={"lml": lambda p: objectives.log_marginal(p["loadings"], noise, moment)},
            snapshots=snapshots,
            progress=context.progress,
        )


class Figure2(Training, name="figure-2", cost="about 2 s"):
    """Figure 2: PPCA trained at every size and at 20 %, on two draws of data.

    Both laws on the paper's own draw and on data from the model, five starts each. Arrays, for draw
    in (paper, model) and law in (uniform, fixed): ``lml/DRAW/LAW`` and ``objective/DRAW/LAW`` (epochs
    + 1, seeds), ``true_lml/DRAW`` and ``best_lml/DRAW`` (), the LML of generating and best loadings.
    On the paper's draw, largest entries of gradients at the starts minus that of the LML:
    ``gradient_error`` (), of Σ_M S(x; M), and ``gradient_off`` (seeds,), of D S(x; M) at 20 %.
    """

    fixed_rate: float = 0.2

    def measure(self, context: RunContext) -> Outcome:
        problems = [self.problem(draw, context) for draw in DRAWS]
        laws = {"uniform": masks.UniformSize(), "fixed": masks.FixedRate(self.fixed_rate)}
        W = self.starts()[0].to(context.device).requires_grad_()
        difference = problems[0].exact(W, laws["uniform"]) - problems[0].log_marginal(W)
        (slope,) = torch.autograd.grad(difference.sum(), W)
        arrays = {"gradient_error": slope.abs().max().cpu()}
        difference = problems[0].exact(W, laws["fixed"]) - problems[0].log_marginal(W)
        (slope,) = torch.autograd.grad(difference.sum(), W)
        arrays["gradient_off"] = slope.abs().amax(dim=(1, 2)).cpu()
        for draw, of in zip(DRAWS, problems, strict=True):
            arrays[f"true_lml/{draw}"] = of.log_marginal(of.loadings).cpu()
            arrays[f"best_lml/{draw}"] = of.log_marginal(of.best).cpu()
        for name, rows in self.train(problems, list(laws.values()), context).values.items():
            each = rows.cpu().unflatten(1, (len(problems) * len(laws), -1)).unbind(dim=1)
            keys = (f"{name}/{draw}/{law}" for draw, law in product(DRAWS, laws))
            arrays |= zip(keys, each, strict=True)
        return Outcome(self._findings(arrays), arrays, context.checksum(of.x for of in problems))

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        best, generating = arrays["best_lml/paper"], arrays["true_lml/paper"]
        uniform, fixed = (arrays[f"lml/paper/{law}"] for law in ("uniform", "fixed"))
        loss, tenth = arrays["objective/paper/fixed"], max(1, self.num_epochs // 10)
        early = (loss - fixed)[:tenth].mean(dim=0)
        ends = (each[-1 - tenth : -1].mean(dim=0) for each in (uniform, fixed, loss))  # then NaN
        uniform_end, end, loss_end = ends
        return {
            "fig-2-left": Finding.over(best - uniform_end),
            "gradient-of-all-sizes": Finding(arrays["gradient_error"].item()),
            "claim-stochastic-gradient": Finding.over(arrays["gradient_off"]),
            "fig-2-center": Finding.over(loss_end - end),
            "fig-2-right": Finding.over(generating - end),
            # The share of the distance to the maximum that training at 20 % closes.
            "claim-lml-still-maximized": Finding.over(1 - (best - end) / (best - fixed[0])),
            "claim-same-value": Finding((loss_end.max() - loss_end.min()).item()),
            "claim-bias-constant": Finding.over(loss_end - end - early),
        }


class Figure5Left(Training, name="figure-5-left", cost="about 5 s"):
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
        of, epochs = self.problem("paper", context), range(0, self.num_epochs + 1, self.every)
        history = self.train([of], [masks.UniformSize()], context, snapshots=epochs)
        kept, g = [history.snapshots[epoch]["loadings"] for epoch in epochs], seeded(self.data_seed)
        models = [[PPCA(W, NOISE_VARIANCE) for W in each] for each in kept]
        drawn = [curves.sampled_curve(m, of.x, self.num_masks, generator=g) for m, *_ in models]
        arrays = {
            "epochs": torch.tensor(epochs),
            "score": torch.stack([curve.score for curve in drawn]),
            "standard_error": torch.stack([curve.standard_error for curve in drawn]),
            "lml": history.values["lml"].cpu(),
            "true_lml": of.log_marginal(of.loadings).cpu(),
            "areas": torch.stack([self._areas(of, each, g) for each in kept]).cpu(),
        }
        for name, each in (("first", models[0]), ("last", models[-1])):
            smooth = [dense_curve(m, of.moment, self.dense_masks, generator=g) for m in each]
            arrays[name] = torch.stack(smooth)
        return Outcome(self._findings(arrays), arrays, context.checksum([of.x]))

    def _areas(self, of: Problem, loadings: Tensor, g: torch.Generator) -> Float[Tensor, " seeds"]:
        count, size = self.num_masks, self.num_features
        sizes = [m for _ in loadings for m in range(1, size + 1)]
        drawn = [masks.sample_masks(count, size, m, generator=g) for m in sizes]
        mask = torch.cat(drawn).view(len(loadings), -1, size).to(loadings.device)
        scores = objectives.mask_scores(loadings, NOISE.to(of.moment), of.moment, mask)
        return scores.sum(dim=1) / count

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        first, last, areas = arrays["first"], arrays["last"], arrays["areas"]
        fall = (last[:, 0] - last[:, -1]).abs()
        risen = (areas[-1] - areas[0]) / self.num_features  # of the curve's mean height
        grown = (arrays["score"][-1] - arrays["score"][0]).sum().item()
        error = arrays["standard_error"][[0, -1]].square().sum().sqrt().item()
        return {
            "fig-5-left": Finding.over((areas - arrays["lml"][arrays["epochs"]]).mean(dim=0)),
            "claim-area-converges": Finding.over(areas[-1] - arrays["true_lml"]),
            "claim-tail-85": Finding.over(fall_beyond(last, 0.85)),
            "claim-flat-at-init": Finding.over((first.amax(dim=1) - first.amin(dim=1)) / fall),
            "fig-5-similar-low": Finding.over((first.amax(dim=1) - first.amin(dim=1)) / risen),
            "flat-at-init-rise": Finding.over(first[:, -1] - first[:, 0]),
            "area-growth": Finding(grown, error),
        }


class FixedSizes(Training, name="fixed-sizes", cost="about 5 min", resumable=True, gpu=False):
    """Maxima of the masked objective at fixed sizes, by truth and start scale.

    Figure 2's problem at several truths, from starts of several scales. ``truths`` are seeds of the
    data and the loadings behind them. Arrays, for draw in (paper, model), nats: ``lost/DRAW``
    (truths, sizes), the LML lost at the maximum of a size's exact objective, the best end of all
    climbs; ``below/DRAW`` (truths, sizes, scales, starts), how far below it a climb ends;
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
        rows: dict[str, list[Tensor]] = {}
        used = []
        for draw, truth in context.progress(list(product(DRAWS, self.truths)), "draw, truth"):
            of = replace(self, data_seed=truth).problem(draw, context)
            used.append(of.x)
            work, own = partial(self._cell, of), context.checksum([of.x])
            for name, values in context.computed_once(f"{draw}-{truth}", work, data=own).items():
                rows.setdefault(f"{name}/{draw}", []).append(values)
        arrays = {name: torch.stack(values) for name, values in rows.items()}
        return Outcome(self._findings(arrays), arrays, context.checksum(used))

    def _cell(self, of: Problem) -> dict[str, Tensor]:
        scales = torch.tensor(self.scales, dtype=of.x.dtype)[:, None, None, None]
        starts = scales * self.starts()[0]
        everywhere = torch.cat([of.best[None], starts.flatten(0, 1)])
        best, lost, below = of.log_marginal(of.best), [], []
        laws = [*map(masks.FixedSize, self.sizes), masks.UniformSize()]
        for law in laws[:-1]:
            ends = fit.bfgs(everywhere, partial(of.exact, law=law))
            value = of.exact(ends, law)
            lost.append(best - of.log_marginal(ends[value.argmax()]))
            below.append((value.max() - value[1:]).view(starts.shape[:2]))
        trained = self.train([of] * len(scales), laws, RunContext(), scales=self.scales).values
        batch = (len(scales), len(laws), -1)
        lml, objective = (trained[name].unflatten(1, batch) for name in ("lml", "objective"))
        late = lml[-max(1, self.num_epochs // 10) :].mean(dim=0)
        return {
            "lost": torch.stack(lost),
            "below": torch.stack(below),
            "short": (best - late).transpose(0, 1).contiguous(),
            "bias": (objective - lml)[:-1, :, -1].mean(dim=0),
        }

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        two = self.sizes.index(masks.FixedRate(0.2).num_masked(self.num_features))
        # A climb that ends within 1e-5 nats of the maximum has reached it.
        reached = (arrays["below/model"] <= 1e-5).double().mean(dim=-1)[:, -1]
        short = {draw: arrays[f"short/{draw}"].mean(dim=-1)[:, two, 0] for draw in DRAWS}
        return {
            "claim-varying-rates-unbiased": Finding.over(arrays["bias/paper"][0, 0]),
            "fixed-rate-shortfall": Finding.over(short["paper"]),
            "fixed-rate-shortfall-model": Finding.over(short["model"]),
            "size-9-unit-starts": Finding.over(reached[:, 0]),
            "size-9-small-starts": Finding.over(reached[:, -1]),
        }


class DigitsTraining(Experiment, name="digits-training", cost="about 5 min", gpu=False):
    """The digits at 15 %: slow, or headed elsewhere?

    PPCA with loadings and log σ² free, trained at one rate on the scanned digits from random starts:
    Adam at 0.01, then at 0.001 so that the jitter of the masks dies down; once also after
    ``first_epochs``, as in chapter 6. Where the objective itself has its maximum, BFGS tells, on
    ``climb_masks`` masks of every seed: from the closed form and from the end of training. Arrays, in
    nats per image and for SET in (train, test): ``best/SET`` (), the closed form's LML; ``lml/SET``
    (epochs, seeds) at the ``epochs`` of the first phase; ``early/SET`` and ``end/SET`` (seeds,), after
    ``first_epochs`` and all epochs, settled; ``top/SET`` (seeds, 2), at the ends of the climbs;
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
        law, generators = masks.FixedRate(self.fixed_rate), [*map(seeded, self.seeds)]

        def sampled(p: fit.Parameters, mask: Tensor) -> Tensor:
            return objectives.sampled(p["loadings"], _noise(p), moments["train"], mask)

        def objective(p: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
            size = len(center)
            mask = masks.stratified_masks(self.num_masks, size, law, generator=generators)
            return sampled(p, mask)

        def train(start: fit.Parameters, num_epochs: int, rate: float) -> History:
            return fit.maximize(
                start,
                objective,
                num_epochs=num_epochs,
                learning_rate=rate,
                generators=generators,
                track={part: partial(_lml, moment) for part, moment in moments.items()},
                track_every=self.every,
                snapshots=[min(self.first_epochs, num_epochs)],
                progress=context.progress,
            )

        shape = best.loadings.shape
        drawn = [0.1 * torch.randn(shape, generator=g, dtype=torch.float64) for g in generators]
        first_noise = torch.full((len(drawn), 1), 0.1, dtype=torch.float64)
        start = {"loadings": torch.stack(drawn), "log_noise": first_noise.log()}
        history = train(start, self.num_epochs, 0.01)
        early = train(history.snapshots[self.first_epochs], self.early_settling, 0.001)
        end = train(history.parameters, self.settling, 0.001)

        def climbs(seed: int) -> dict[str, Tensor]:
            g, size = seeded(self.seeds[seed]), len(center)
            mask = masks.sample_masks(self.climb_masks, size, law, generator=g)
            trained = {name: value[seed] for name, value in end.parameters.items()}
            closed = {"loadings": best.loadings, "log_noise": best.noise_variance.log()[None]}
            both = torch.stack([_packed(closed), _packed(trained)])
            ends = fit.bfgs(both, lambda flat: sampled(_unpacked(flat, shape), mask))
            p = _unpacked(ends, shape)
            found = {f"top/{part}": _lml(moment, p) for part, moment in moments.items()}
            return found | {"objective": sampled(p, mask)}

        epochs = torch.arange(0, self.num_epochs + 1, self.every)
        arrays = context.stack(climbs, range(len(self.seeds)), "climb") | {"epochs": epochs}
        for part, moment in moments.items():
            closed_form = objectives.log_marginal(best.loadings, best.noise_variance, moment)
            arrays[f"best/{part}"] = closed_form
            arrays[f"lml/{part}"] = history.values[part][epochs]
            arrays[f"early/{part}"] = early.values[part][-1]
            arrays[f"end/{part}"] = end.values[part][-1]
        missing = arrays["best/train"] - arrays["early/train"]
        elsewhere = arrays["best/train"] - arrays["top/train"][:, 0]
        findings = {
            "digits-slowness": Finding.over(1 - elsewhere / missing),
            "digits-elsewhere": Finding.over(elsewhere),
        }
        return Outcome(findings, arrays, context.checksum(pixels.values()))


def _noise(p: fit.Parameters) -> Tensor:
    return p["log_noise"][..., 0].exp()


def _lml(moment: Tensor, p: fit.Parameters) -> Tensor:
    return objectives.log_marginal(p["loadings"], _noise(p), moment)


def _packed(p: fit.Parameters) -> Tensor:
    return torch.cat([p["loadings"].flatten(), p["log_noise"]])


def _unpacked(flat: Float[Tensor, "B n"], shape: torch.Size) -> dict[str, Tensor]:
    return {"loadings": flat[:, :-1].unflatten(1, shape), "log_noise": flat[:, -1:]}
