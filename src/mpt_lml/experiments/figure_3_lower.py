"""Figure 3, lower row: training curves of the deep VAE on MNIST."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import estimators
from mpt_lml.experiments.deep_vae import (
    DeepVAE,
    images,
    train,
    trained_models,
)
from mpt_lml.experiments.registry import (
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)

OBJECTIVES = ("elbo", "fixed", "partial")


@experiment(
    "figure-3-lower",
    title="Figure 3, lower: a deep VAE trained by the ELBO and by masks",
    cost="about 12 min, resumable",
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
    """Training by the ELBO, through the recursion at 33 %, and with a partial encoder at 33 %.

    Arrays, for each of ``OBJECTIVES``: ``track/OBJECTIVE`` and ``encoder/OBJECTIVE`` (tracked steps,
    seeds), log p(x) around the modes and what draws from the encoder report; ``loss/OBJECTIVE``, the
    training objective's mean over the steps before each tracked one (the first: at the start);
    ``lml/OBJECTIVE`` and ``error/OBJECTIVE`` (seeds,), estimates at the end on more data with their
    standard errors; ``ais/OBJECTIVE`` (2, some seeds), AIS minus IWAE on few data and its error.
    """
    x = images(config).to(device)
    steps = [*range(0, config.num_steps, config.track_every), config.num_steps]
    arrays: dict[str, Tensor] = {"steps": torch.tensor(steps)}
    for objective in OBJECTIVES:
        path = None if checkpoints is None else checkpoints / f"{config.dataset}-{objective}.npz"
        history = train(config, x, objective, checkpoint=path, progress=progress)
        arrays[f"track/{objective}"] = history.values["lml"][steps].cpu()
        arrays[f"encoder/{objective}"] = history.values["encoder"][steps].cpu()
        loss = history.values["objective"][:-1].cpu()
        means = [loss[a:b].mean(dim=0) for a, b in itertools.pairwise(steps)]
        arrays[f"loss/{objective}"] = torch.stack([loss[0], *means])
        arrays |= _evaluate(config, history.parameters, x, objective, progress)
    return Outcome(_findings(arrays), arrays, checksum([x.cpu()]))


def _evaluate(
    config: DeepVAE,
    parameters: Mapping[str, Tensor],
    x: Float[Tensor, "N D"],
    objective: str,
    progress: Progress,
) -> dict[str, Tensor]:
    """LML of every seed with its error, and the check by annealing."""
    exact, errors, checks = [], [], []
    models, few = trained_models(config, parameters), x[: config.lml_data].double()
    for run in progress(range(len(models)), f"{objective}, LML of seed"):
        model = models[run]
        generator = torch.Generator().manual_seed(run)
        estimate = estimators.iwae(model, few, config.lml_samples, generator=generator)
        exact.append(float(estimate))
        errors.append(estimate.standard_error)
        if run < config.ais_seeds:
            some = few[: config.ais_data]
            weighted = estimators.iwae(model, some, config.lml_samples, generator=generator)
            annealed = estimators.ais(
                model, some, config.ais_chains, config.ais_temperatures, generator=generator
            )
            error = math.hypot(annealed.standard_error, weighted.standard_error)
            checks.append([float(annealed) - float(weighted), error])
    return {
        f"lml/{objective}": torch.tensor(exact, dtype=torch.float64),
        f"error/{objective}": torch.tensor(errors, dtype=torch.float64),
        f"ais/{objective}": torch.tensor(checks, dtype=torch.float64).T,
    }


def _findings(arrays: Mapping[str, Tensor]) -> dict[str, Finding]:
    """Means over seeds with their standard errors; the gain is judged, the rest is ours."""

    def gap(first: str, second: str) -> Finding:
        noise = arrays[f"error/{first}"].square() + arrays[f"error/{second}"].square()
        own = over_seeds(arrays[f"lml/{first}"] - arrays[f"lml/{second}"])
        return Finding(
            own.measured, math.hypot(own.standard_error or 0.0, noise.mean().sqrt().item())
        )

    track = arrays["track/fixed"]
    return {
        "claim-deep-vae-maximizes": over_seeds(track[-1] - track[0]),
        "deep-vae-late-gain": over_seeds(track[-1] - track[1]),
        "elbo-against-recursion": gap("elbo", "fixed"),
        "partial-against-recursion": gap("partial", "fixed"),
        "encoder-bound-gap": over_seeds(arrays["encoder/fixed"][-1] - track[-1]),
    }


def over_seeds(values: Float[Tensor, " seeds"]) -> Finding:
    """Mean with its standard error over runs."""
    return Finding(values.mean().item(), values.std().item() / math.sqrt(len(values)))
