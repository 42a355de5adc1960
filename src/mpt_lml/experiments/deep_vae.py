"""Figure 3, lower row: a deep VAE trained by the ELBO and by masks with recursive encoding–decoding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, estimators, fit, masks, objectives, quadrature, scores
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
from mpt_lml.masks import FixedRate, SizeLaw, UniformSize
from mpt_lml.models import vae
from mpt_lml.models.base import ConditionalModel
from mpt_lml.quadrature import Grid
from mpt_lml.results import History

OBJECTIVES = ("elbo", "fixed", "uniform")
EXACT = ("exact", "exact_uniform")
ON_DIGITS = (*OBJECTIVES, *EXACT)


@dataclass(frozen=True)
class DeepVAE(Config):
    """A dense VAE with a Gaussian likelihood of stated variance; Adam on minibatches.

    The paper states the data, the likelihood, the recursion and 33 %; no script for this row was
    published, so the sizes of the networks and of the steps are ours.
    """

    dataset: str = "mnist"
    num_data: int = 2000
    hidden: tuple[int, ...] = (200,)
    latent_dim: int = 10
    noise_variance: float = 0.1
    num_steps: int = 3000
    batch_size: int = 100
    learning_rate: float = 1e-3
    fixed_rate: float = 0.33
    num_rounds: int = 3
    track_every: int = 200
    track_data: int = 100
    track_samples: int = 50
    lml_data: int = 200
    lml_samples: int = 5000
    ais_data: int = 10
    ais_temperatures: int = 1000
    ais_chains: int = 10
    ais_seeds: int = 2  # annealing is the most expensive check, so of two models only
    arbiter_steps: int = 1500  # digits, K = 2: where a grid knows the conditionals
    arbiter_data: int = 30
    arbiter_nodes: int = 81  # an axis; 41 already agree with 161 to 1e-5 nats in log p(x)
    arbiter_draws: int = 200
    exact_nodes: int = 20  # an axis, to train with exact conditionals, shifted at every step
    exact_masks: int = 4  # a minibatch, scored on all of it

    @classmethod
    def paper(cls) -> DeepVAE:
        """MNIST, Gaussian likelihood, 33 %."""
        return cls()

    @classmethod
    def quick(cls) -> DeepVAE:
        """Digits, few steps."""
        return cls(
            dataset="digits",
            num_data=100,
            hidden=(8,),
            latent_dim=2,
            num_steps=6,
            track_every=3,
            track_data=10,
            lml_data=10,
            lml_samples=100,
            ais_data=4,
            ais_temperatures=10,
            ais_chains=4,
            ais_seeds=1,
            exact_nodes=12,
            arbiter_steps=5,
            arbiter_data=3,
            arbiter_nodes=30,
            arbiter_draws=20,
            seeds=(4, 44),
        )

    def on_digits(self) -> DeepVAE:
        """The small problem on which conditionals are compared with a grid."""
        return dataclasses.replace(
            self,
            dataset="digits",
            num_data=1198,
            hidden=(64,),
            latent_dim=2,
            num_steps=self.arbiter_steps,
            learning_rate=3e-3,
        )

    def law(self, objective: str) -> SizeLaw:
        """Sizes of the masked objectives."""
        return UniformSize() if "uniform" in objective else FixedRate(self.fixed_rate)


def images(config: DeepVAE) -> Float[Tensor, "N D"]:
    """Training images in [0, 1], float32."""
    return data.images(config.dataset).pixels[: config.num_data].to(torch.float32)


def train(
    config: DeepVAE,
    x: Float[Tensor, "N D"],
    objective: str,
    *,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> History:
    """All seeds side by side; an "epoch" of the history is one step on a minibatch of each.

    ``objective`` is "elbo", "fixed" or "uniform" (sizes, with recursive encoding–decoding), or
    "exact" and "exact_uniform": the fixed rate and uniform sizes with the model's own conditionals,
    on a grid that is shifted at random at every step (K ≤ 3, no encoder).
    For the others ``values["lml"]`` is an importance-weighted estimate on a few data with
    ``track_samples`` draws at the encoder's proposal, NaN in between: a lower bound to look at.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in config.seeds]
    parameters = vae.dense_parameters(
        x.shape[1], config.hidden, config.latent_dim, generators=generators
    )
    settings: dict[str, Any] = dataclasses.asdict(config) | {
        "objective": objective,
        "data": checksum([x.cpu()]),
    }
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}
    parameters = {name: value.to(x) for name, value in parameters.items()}
    if objective in EXACT:  # no encoder: it stays as it was drawn
        idle = {name: value for name, value in parameters.items() if name.startswith("encoder")}
    else:
        idle = {}
    function = _objective(config, x, objective)
    history = fit.maximize(
        {name: value for name, value in parameters.items() if name not in idle},
        lambda p, g: function({**idle, **p}, g),
        num_epochs=config.num_steps,
        learning_rate=config.learning_rate,
        generators=generators,
        track={} if idle else {"lml": lambda p: _track(config, p, x)},
        track_every=config.track_every,
        checkpoint=None if checkpoint is None else fit.Checkpoint(checkpoint, settings, every=200),
        progress=progress,
    )
    return dataclasses.replace(history, parameters=idle | history.parameters)


def _objective(config: DeepVAE, x: Float[Tensor, "N D"], objective: str) -> fit.Objective:
    size, latent_dim = config.batch_size, config.latent_dim

    def minibatch(generators: Sequence[torch.Generator]) -> Float[Tensor, "B n D"]:
        rows = [torch.randint(len(x), (size,), generator=g) for g in generators]
        return x[torch.stack(rows).to(x.device)]

    def elbo(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch = minibatch(generators)
        noise = torch.stack([torch.randn(size, latent_dim, generator=g) for g in generators])
        return objectives.vae.elbo(p, batch, noise.to(x), config.noise_variance)

    def masked(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch = minibatch(generators)
        law, shape = config.law(objective), (config.num_rounds, size, latent_dim)
        mask = torch.stack(
            [objectives.draw_masks(size, x.shape[1], law, generator=g) for g in generators]
        )
        noise = torch.stack([torch.randn(shape, generator=g) for g in generators], dim=1)
        return objectives.vae.recursive(
            p, batch, mask.to(x.device), noise.to(x), config.noise_variance
        )

    def exact(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch, law = minibatch(generators), config.law(objective)
        values = []
        for run, g in enumerate(generators):
            mask = objectives.draw_masks(config.exact_masks, x.shape[1], law, generator=g).to(
                x.device
            )
            model = vae.dense_model(p, run, "gaussian", config.noise_variance)
            shifted = _shifted(grid, config.exact_nodes, generator=g)
            log_p = estimators.GridConditional(model, shifted).log_conditional(batch[run], mask)
            values.append(x.shape[1] * scores.mask_score(log_p, mask).mean())
        return torch.stack(values)

    if objective in EXACT:
        grid = quadrature.trapezoid(latent_dim, config.exact_nodes).to(x)
        return exact
    return elbo if objective == "elbo" else masked


def _shifted(grid: Grid, nodes_per_axis: int, *, generator: torch.Generator) -> Grid:
    """The equally spaced ``grid`` moved by a random fraction of its spacing.

    On nodes that stay, training makes the decoder fit between them: log p(x) on that grid rises and on
    any other one falls.
    """
    width = grid.nodes[:, 0].max() - grid.nodes[:, 0].min()
    fraction = torch.rand(grid.latent_dim, generator=generator).to(grid.nodes) - 0.5
    nodes = grid.nodes + fraction * width / (nodes_per_axis - 1)
    log_weights = (-0.5 * nodes.square().sum(dim=-1)).log_softmax(dim=0)
    return Grid(nodes, log_weights, name=f"{grid.name}, shifted")


def _track(
    config: DeepVAE, parameters: Mapping[str, Tensor], x: Float[Tensor, "N D"]
) -> Float[Tensor, " B"]:
    values = []
    for run in range(len(config.seeds)):
        model = vae.dense_model(parameters, run, "gaussian", config.noise_variance)
        estimate = estimators.iwae(
            model,
            x[: config.track_data],
            config.track_samples,
            generator=torch.Generator().manual_seed(0),
            proposal=estimators.from_encoder,
        )
        values.append(float(estimate))
    return torch.tensor(values, dtype=x.dtype)


def conditional_models(
    model: vae.VAE, num_draws: int, *, seed: int = 0
) -> dict[str, ConditionalModel]:
    """The approximate conditionals by name, with ``num_draws`` weights or kept steps a mask."""

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def importance(proposal: estimators.ProposalRule) -> ConditionalModel:
        return estimators.ImportanceConditional(
            model, num_draws, generator=generator(), proposal=proposal
        )

    def gibbs(corrected: bool) -> ConditionalModel:
        return estimators.GibbsConditional(
            model, num_draws // 5, generator=generator(), corrected=corrected, num_chains=10
        )

    return {
        "pseudo-Gibbs": gibbs(corrected=False),
        "Metropolis-within-Gibbs": gibbs(corrected=True),
        "importance, prior": importance(estimators.from_prior),
        "importance, encoder": importance(estimators.from_encoder),
        "importance, mode": importance(estimators.at_mode),
    }


def compare_conditionals(
    config: DeepVAE, model: vae.VAE, x: Float[Tensor, "N D"], *, progress: Progress = silent
) -> dict[str, Float[Tensor, "names three"]]:
    """Every approximate conditional against the grid, at the fixed rate and with everything hidden.

    Per rate a table (methods, 3): root-mean-square error of log p(x_j | x_R) in nats, bias of the
    score D·S in nats, and its standard error over data. Methods as in :func:`conditional_models`.
    """
    grid = quadrature.trapezoid(model.latent_dim, config.arbiter_nodes)
    exact = estimators.GridConditional(model, grid)
    num_features = x.shape[1]
    tables = {}
    for name, rate in (("fixed", config.fixed_rate), ("all", 1.0)):
        mask = masks.sample_masks(
            2 if rate < 1 else 1,
            num_features,
            FixedRate(rate),
            generator=torch.Generator().manual_seed(1),
        )
        truth = exact.log_conditional(x, mask)
        rows = []
        methods = conditional_models(model, config.arbiter_draws)
        for method in progress(list(methods), f"conditionals, {name}"):
            error = methods[method].log_conditional(x, mask) - truth
            hidden = mask[:, None, :].expand_as(error)
            score = num_features * (error.sum(dim=2) / mask.sum(dim=1)[:, None]).mean(dim=0)
            rows.append(
                torch.stack(
                    [
                        error[hidden].square().mean().sqrt(),
                        score.mean(),
                        score.std() / math.sqrt(len(x)),
                    ]
                )
            )
        tables[name] = torch.stack(rows)
    return tables


@experiment(
    "figure-3-lower",
    title="Figure 3, lower: a deep VAE trained by the ELBO and by masks",
    cost="about 25 min, resumable",
    config=DeepVAE,
    resumable=True,
)
def figure_3_lower(
    config: DeepVAE,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Three objectives on the data set, and the approximate conditionals on digits against a grid.

    Arrays, for objective in (elbo, fixed, uniform): ``track/OBJECTIVE`` (tracked steps, seeds),
    ``lml/OBJECTIVE`` and ``error/OBJECTIVE`` (seeds,), importance-weighted estimates from the modes
    with their standard errors; ``ais/OBJECTIVE`` (2, some seeds) the check on fewer data, AIS minus
    IWAE and its error; ``bound/OBJECTIVE`` (seeds, group sizes 1, 4, ..., 1024) the IWAE bound from
    the encoder minus that value; ``originals``, ``holes``, ``reconstructions/OBJECTIVE`` and
    ``imputations/OBJECTIVE`` (5, D). On digits with K = 2, for objectives "exact"
    and "exact_uniform" too: ``digits/OBJECTIVE`` (seeds,) log p(x) on a grid, and of two
    ``conditionals/OBJECTIVE/RATE`` (seeds, methods, 3) of :func:`compare_conditionals`.
    """
    x = images(config).to(device)
    arrays: dict[str, Tensor] = {"steps": torch.arange(0, config.num_steps, config.track_every)}
    for objective in OBJECTIVES:
        path = None if checkpoints is None else checkpoints / f"{config.dataset}-{objective}.npz"
        history = train(config, x, objective, checkpoint=path, progress=progress)
        kept = [*arrays["steps"].tolist(), config.num_steps]
        arrays[f"track/{objective}"] = history.values["lml"][kept].cpu()
        arrays |= _evaluate(config, history.parameters, x, objective, progress)
    arrays["steps"] = torch.tensor([*arrays["steps"].tolist(), config.num_steps])
    arrays |= _on_digits(config.on_digits(), checkpoints, progress)
    return Outcome(_findings(arrays), arrays, checksum([x.cpu()]))


def _evaluate(
    config: DeepVAE,
    parameters: Mapping[str, Tensor],
    x: Float[Tensor, "N D"],
    objective: str,
    progress: Progress,
) -> dict[str, Tensor]:
    """LML of every seed with errors, the check by annealing, the bias, pictures of the first seed."""
    exact, errors, checks, bounds = [], [], [], []
    models, few = trained_models(config, parameters), x[: config.lml_data].double()
    for run in progress(range(len(models)), f"{objective}, LML of seed"):
        model = models[run]
        generator = torch.Generator().manual_seed(run)
        estimate = estimators.iwae(model, few, config.lml_samples, generator=generator)
        exact.append(float(estimate))
        errors.append(estimate.standard_error)
        some = few[: config.ais_data]
        weighted = estimators.iwae(model, some, config.lml_samples, generator=generator)
        if run < config.ais_seeds:
            annealed = estimators.ais(
                model, some, config.ais_chains, config.ais_temperatures, generator=generator
            )
            error = math.hypot(annealed.standard_error, weighted.standard_error)
            checks.append([float(annealed) - float(weighted), error])
        with torch.no_grad():
            proposal = estimators.from_encoder(model, some, None)
            logs = estimators.log_weights(model, some, proposal, 4096, generator=generator)
        groups = [estimators.log_mean_of(logs, 4**power).mean() for power in range(6)]
        bounds.append(torch.stack(groups) - float(weighted))
    found = {
        f"lml/{objective}": torch.tensor(exact, dtype=torch.float64),
        f"error/{objective}": torch.tensor(errors, dtype=torch.float64),
        f"ais/{objective}": torch.tensor(checks, dtype=torch.float64).T,
        f"bound/{objective}": torch.stack(bounds),
    }
    first = vae.dense_model(parameters, 0, "gaussian", config.noise_variance)
    return found | {
        name if name in ("originals", "holes") else f"{name}/{objective}": picture
        for name, picture in pictures(first, x[:5], config.fixed_rate).items()
    }


def pictures(
    model: vae.VAE, x: Float[Tensor, "N D"], rate: float
) -> dict[str, Float[Tensor, "N D"]]:
    """Images, their reconstructions, and what corrected chains put into hidden pixels (two digits)."""
    generator = torch.Generator().manual_seed(0)
    hidden = masks.sample_masks(len(x), x.shape[1], FixedRate(rate), generator=generator)
    gibbs = estimators.GibbsConditional(
        model, 50, generator=generator, corrected=True, num_chains=1
    )
    with torch.no_grad():
        mean, _ = model.encode(x)
        filled = gibbs.impute(x, hidden)[0]
        expected = model.decode(model.encode(filled)[0])
    shown = {
        "originals": x,
        "holes": torch.where(hidden, torch.nan, x),
        "reconstructions": model.decode(mean).detach(),
        "imputations": torch.where(hidden, expected, x),
    }
    return {name: (100 * value.cpu()).round() / 100 for name, value in shown.items()}


def _on_digits(config: DeepVAE, checkpoints: Path | None, progress: Progress) -> dict[str, Tensor]:
    """K = 2: log p(x) of every objective on a grid, and the conditionals of two against it."""
    x = images(config)
    found: dict[str, Tensor] = {}
    for objective in ON_DIGITS:
        path = None if checkpoints is None else checkpoints / f"arbiter-{objective}.npz"
        history = train(config, x, objective, checkpoint=path, progress=progress)
        models = trained_models(config, history.parameters)
        found[f"digits/{objective}"] = _known(config, models, x.double())
        if objective not in ("elbo", "fixed"):
            continue
        few = x[: config.arbiter_data].double()
        runs = [compare_conditionals(config, model, few, progress=progress) for model in models]
        for rate in runs[0]:
            found[f"conditionals/{objective}/{rate}"] = torch.stack([run[rate] for run in runs])
    return found


def trained_models(config: DeepVAE, parameters: Mapping[str, Tensor]) -> list[vae.VAE]:
    """The trained models, one a seed, in double precision."""
    double = {name: value.detach().double() for name, value in parameters.items()}
    return [
        vae.dense_model(double, run, "gaussian", config.noise_variance)
        for run in range(len(config.seeds))
    ]


def _known(
    config: DeepVAE, models: Sequence[vae.VAE], x: Float[Tensor, "N D"]
) -> Float[Tensor, " seeds"]:
    """Mean log p(x) of some data on a grid, every seed."""
    grid, few = quadrature.trapezoid(config.latent_dim, config.arbiter_nodes), x[: config.lml_data]
    return torch.stack(
        [estimators.GridConditional(model, grid).log_marginal(few).mean() for model in models]
    )


def _findings(arrays: Mapping[str, Tensor]) -> dict[str, Finding]:
    """Differences of LML over seeds; a tie within 4.6 standard errors (t, 4 degrees) confirms."""

    def difference(first: str, second: str) -> tuple[float, float]:
        gap = arrays[f"lml/{first}"] - arrays[f"lml/{second}"]
        noise = arrays[f"error/{first}"].square() + arrays[f"error/{second}"].square()
        error = math.sqrt((gap.var().item() + noise.mean().item()) / len(gap))
        return gap.mean().item(), error

    gap, error = difference("elbo", "fixed")
    uniform, uniform_error = difference("uniform", "fixed")
    pseudo = arrays["conditionals/elbo/fixed"][:, 0, 1]  # bias of D·S, pseudo-Gibbs, over seeds
    bias = arrays["bound/elbo"][:, 0]  # one draw from the encoder: the ELBO
    own, ideal = arrays["digits/fixed"], arrays["digits/exact"]
    return {
        "fig-3-lower": Finding(gap, error, "confirmed" if abs(gap) <= 4.6 * error else "refuted"),
        "deep-vae-uniform-size": Finding(
            uniform, uniform_error, "confirmed" if uniform > 4.6 * uniform_error else "refuted"
        ),
        "pseudo-gibbs-conditionals": _over_seeds(pseudo, "refuted", "confirmed"),
        "iwae-bias": _over_seeds(bias, "corrected", "confirmed"),
        "recursion-trains-conditionals": _over_seeds(own - ideal, "refuted", "confirmed"),
    }


def _over_seeds(values: Float[Tensor, " seeds"], differs: Verdict, agrees: Verdict) -> Finding:
    """Mean with its standard error, and whether that is away from 0 (t, 4 degrees, 1 %)."""
    mean, error = values.mean().item(), values.std().item() / math.sqrt(len(values))
    return Finding(mean, error, differs if abs(mean) > 4.6 * error else agrees)
