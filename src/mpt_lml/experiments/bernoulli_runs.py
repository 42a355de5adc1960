"""Figure 3, upper: as published, repaired, and with masks per epoch and start scale as axes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, fit
from mpt_lml.experiments import bernoulli
from mpt_lml.experiments.bernoulli import Bernoulli
from mpt_lml.experiments.registry import Finding, Outcome, Progress, checksum, experiment, silent
from mpt_lml.files import replacing
from mpt_lml.models.bernoulli_pca import BernoulliPCA
from mpt_lml.models.ppca import PPCA


@dataclass(frozen=True)
class Cell:
    """One training of all seeds; ``masks`` is 0 for objectives without any."""

    data: str
    objective: str
    scale: float
    masks: int
    num_epochs: int

    @property
    def key(self) -> str:
        """DATA/OBJECTIVE/SCALE/MASKS."""
        return f"{self.data}/{self.objective}/{self.scale:g}/{self.masks}"


def cells(config: Bernoulli) -> list[Cell]:
    """Everything that is trained, in order."""
    found = []
    for key in config.trained:
        name, objective, scale, masks, *long = key.split("/")
        epochs = config.long_epochs[name != "mnist"] if long else config.num_epochs
        found.append(Cell(name, objective, float(scale), int(masks), epochs))
    return found


@experiment(
    "figure-3-upper",
    title="Figure 3, upper: Bernoulli linear VAE by the ELBO and by masks",
    cost="about 35 min, resumable",
    config=Bernoulli,
    resumable=True,
)
def figure_3_upper(
    config: Bernoulli,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Every cell of :func:`cells` from all seeds, judged on adaptive grids.

    Arrays, for the KEY of a cell: ``track/KEY`` (tracked epochs, seeds) on a fine grid, for
    "published" and "elbo" at scale 1 also ``read/KEY`` on 4 × 4 nodes and ``loss/KEY``, the
    objective; ``lml/KEY``, ``held/KEY``, ``coarse/KEY`` and ``own/KEY`` (seeds,), the mean log p(x)
    after ``num_epochs`` of the training and the test images on adaptive grids, of the training images
    on 4 × 4 nodes and on the grid of the training; ``lml/KEY/long`` and ``held/KEY/long`` after
    ``long_epochs``; ``bound/KEY`` (seeds,), the ELBO reached. For the first seed of some cells
    ``loadings/KEY`` (D, K + 1), offset last, and ``grids/KEY`` of
    :func:`bernoulli.compare_grids`. ``gaussian`` (seeds,): see :func:`gaussian_deficit`.
    """
    arrays: dict[str, Tensor] = {}
    images = {
        name: (
            bernoulli.binary_images(name, config.num_data).to(device),
            bernoulli.binary_images(name, config.held_out, "test").to(device),
        )
        for name in dict.fromkeys(cell.data for cell in cells(config))
    }
    for cell in cells(config):
        arrays |= _kept(config, cell, *images[cell.data], checkpoints, progress)
    arrays["gaussian"] = gaussian_deficit(config)
    return Outcome(
        findings(config, arrays),
        arrays,
        checksum(x.cpu() for pair in images.values() for x in pair),
    )


def _kept(
    config: Bernoulli,
    cell: Cell,
    x: Float[Tensor, "N D"],
    held_out: Float[Tensor, "T D"],
    checkpoints: Path | None,
    progress: Progress,
) -> dict[str, Tensor]:
    """What :func:`_run` returns, read from ``checkpoints`` where the same cell is finished."""
    if checkpoints is None:
        return _run(config, cell, x, held_out, None, progress)
    stem = cell.key.replace("/", "-")
    path = checkpoints / f"{stem}.judged.npz"
    settings = {k: v for k, v in dataclasses.asdict(config).items() if k != "trained"}
    settings |= {"cell": dataclasses.asdict(cell), "data": checksum([x.cpu(), held_out.cpu()])}
    text = json.dumps(settings, sort_keys=True)
    if path.exists():
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["settings"]) == text:
                names = [name for name in stored.files if name != "settings"]
                return {name: torch.from_numpy(stored[name]) for name in names}
    arrays = _run(config, cell, x, held_out, checkpoints / f"{stem}.npz", progress)
    with replacing(path) as partial, partial.open("wb") as stream:
        plain = {name: value.numpy() for name, value in arrays.items()}
        np.savez(stream, settings=np.array(text), **plain)  # type: ignore[arg-type]
    return arrays


def _run(
    config: Bernoulli,
    cell: Cell,
    x: Float[Tensor, "N D"],
    held_out: Float[Tensor, "T D"],
    checkpoint: Path | None,
    progress: Progress,
) -> dict[str, Tensor]:
    """Train and judge one cell."""
    history = bernoulli.train(
        config,
        x,
        cell.objective,
        masks=cell.masks,
        scale=cell.scale,
        num_epochs=cell.num_epochs,
        checkpoint=checkpoint,
        progress=lambda items, _: progress(items, cell.key),
    )
    epochs = tracked(config, cell.num_epochs)
    arrays = {f"track/{cell.key}": history.values["lml"][epochs]}
    if cell.scale == 1.0 and cell.objective in ("published", "elbo"):
        arrays[f"read/{cell.key}"] = history.values["read"][epochs]
        arrays[f"loss/{cell.key}"] = history.values["objective"][epochs[:-1]]
    ends = {"": history.snapshots[config.num_epochs]}
    if cell.num_epochs > config.num_epochs:
        ends["/long"] = history.parameters
    for end, parameters in ends.items():
        trained = bernoulli.models(parameters)
        arrays[f"lml/{cell.key}{end}"] = _judge(config, trained, x.double())
        arrays[f"held/{cell.key}{end}"] = _judge(config, trained, held_out.double())
        if "encoder" in parameters:
            arrays[f"bound/{cell.key}{end}"] = bernoulli.bound(parameters, x)
    trained = bernoulli.models(ends[""])
    for name, grid in (("coarse", "published"), ("own", cell.objective)):
        nodes = config.grid(grid)
        on_grid = [BernoulliPCA(m.loadings, m.offset, grid=nodes) for m in trained]
        values = [m.log_marginal(x.double()).mean() for m in on_grid]
        arrays[f"{name}/{cell.key}"] = torch.stack(values)
    if (cell.objective, cell.scale, cell.masks) in (
        ("published", 1.0, 1),
        ("elbo", 1.0, 0),
        ("uniform", 1.0, config.long_masks),
    ):
        first = torch.cat([trained[0].loadings, trained[0].offset[:, None]], dim=1)
        arrays[f"loadings/{cell.key}"] = (1000 * first).round() / 1000
        arrays[f"grids/{cell.key}"] = bernoulli.compare_grids(
            trained[0], x[: config.arbiter_data].double(), config.arbiter_samples
        )
    return {name: value.detach().cpu() for name, value in arrays.items()}


def tracked(config: Bernoulli, num_epochs: int) -> list[int]:
    """Epochs whose LML is kept."""
    return [*range(0, num_epochs, config.track_every), num_epochs]


def _judge(
    config: Bernoulli, trained: list[BernoulliPCA], x: Float[Tensor, "N D"]
) -> Float[Tensor, " seeds"]:
    """Mean log p(x) on adaptive grids; against 11 nodes an axis, 7 err by hundredths of a nat."""
    nodes = config.judge_nodes
    return torch.stack([m.adaptive_log_marginal(x, nodes_per_axis=nodes).mean() for m in trained])


def gaussian_deficit(config: Bernoulli) -> Float[Tensor, " seeds"]:
    """Best LML of PPCA on the gray digits minus the LML where the ELBO's ascent ends, nats per datum.

    The linear VAE with Gaussian likelihood and q(z|x) = N(V (x − μ), L Lᵀ), which can hold the exact
    posterior (Lucas et al. 2019): the expected ELBO is in closed form, its gradient without noise.
    """
    x = data.images("digits").pixels
    best = PPCA.fit_closed_form(x, config.latent_dim)
    centered = x - best.mean
    moment, (num_features, latent_dim) = centered.T @ centered / len(x), best.loadings.shape
    begin = bernoulli.start(config, num_features)
    parameters = {name: begin[name].double() for name in ("loadings", "encoder")}
    parameters["log_noise"] = torch.zeros(len(config.seeds), dtype=x.dtype)
    parameters["root"] = torch.eye(latent_dim, dtype=x.dtype).repeat(len(config.seeds), 1, 1)

    def trace(a: Tensor) -> Tensor:
        return a.diagonal(dim1=-2, dim2=-1).sum(dim=-1)

    def elbo(p: fit.Parameters, _: object) -> Tensor:
        loadings, encoder, root = p["loadings"], p["encoder"], p["root"].tril()
        rest = torch.eye(num_features, dtype=x.dtype) - loadings @ encoder
        errors = trace(rest @ moment @ rest.mT) + (loadings @ root).square().sum(dim=(1, 2))
        codes = trace(encoder @ moment @ encoder.mT) + root.square().sum(dim=(1, 2)) - latent_dim
        divergence = 0.5 * codes - root.diagonal(dim1=1, dim2=2).abs().log().sum(dim=1)
        noise = p["log_noise"].exp()
        scale = num_features * (math.log(2 * math.pi) + p["log_noise"])
        return -0.5 * (scale + errors / noise) - divergence

    ends = fit.maximize(
        parameters, elbo, num_epochs=5 * config.num_epochs, learning_rate=config.learning_rate
    ).parameters
    reached = [
        PPCA(w, noise_variance=float(s.exp()), mean=best.mean).log_marginal(x).mean()
        for w, s in zip(ends["loadings"], ends["log_noise"], strict=True)
    ]
    return best.log_marginal(x).mean() - torch.stack(reached)


def findings(config: Bernoulli, arrays: Mapping[str, Tensor]) -> dict[str, Finding]:
    """Differences over seeds that started alike, in nats; what they say is in the ledger."""
    name, *others = dict.fromkeys(cell.data for cell in cells(config))
    ten = config.long_masks
    published, elbo, gentle = "published/1/1", "elbo/1/0", "elbo-small/1/0"
    block, fixed, uniform = (f"{each}/1/{ten}" for each in ("block", "fixed", "uniform"))

    def apart(one: str, other: str, value: str = "lml", end: str = "") -> Finding:
        pair = (arrays[f"{value}/{name}/{row}{end}"] for row in (one, other))
        return over_seeds(next(pair) - next(pair))

    def misread(row: str) -> Finding:
        return over_seeds(arrays[f"coarse/{name}/{row}"] - arrays[f"lml/{name}/{row}"])

    rose = arrays[f"track/{name}/{published}"]
    found = {
        "fig-3-upper": apart(published, elbo),
        "fig-3-upper/maximized": over_seeds(rose[-1] - rose[0]),
        "fig-3-upper/estimation": misread(published),
        "claim-uniform-size-trains-better": apart(uniform, fixed, "held"),
        "claim-elbo-suboptimal": over_seeds(arrays["gaussian"]),
        "fig-3-upper/held-out": apart(published, elbo, "held"),
        "fig-3-upper/repaired": apart("block/1/1", elbo),
        "fig-3-upper/ten-masks": apart(block, elbo),
        "fig-3-upper/small-start": apart(fixed, gentle),
        "fig-3-upper/uniform-small-start": apart(uniform, gentle),
        "fig-3-upper/uniform-small-start-long": apart(uniform, gentle, end="/long"),
        "block-against-conditional": apart(block, fixed),
        "masks-per-epoch": apart(block, "block/1/1"),
        "start-scale": apart("block/0.01/1", "block/1/1"),
        "start-scale/elbo": apart("elbo/0.01/0", elbo),
        "grid-4-by-4": misread(uniform),
    }
    for name in others:
        tail = name.replace("_", "-")
        found[f"fig-3-upper/{tail}"] = apart(published, elbo)
        found[f"fig-3-upper/ten-masks-{tail}"] = apart(block, elbo)
        found[f"fig-3-upper/uniform-small-start-{tail}"] = apart(uniform, gentle)
    name = "digits"
    return found | {"elbo-deficit": apart("marginal/1/0", gentle, end="/long")}


def over_seeds(values: Float[Tensor, " seeds"]) -> Finding:
    """Mean and standard error."""
    return Finding(values.mean().item(), values.std().item() / math.sqrt(len(values)))
