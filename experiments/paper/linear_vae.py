"""Figure 3, upper: Bernoulli PCA trained by the ELBO, by masks and by log p(x) itself."""

import functools
import math
import typing

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Experiment, RunContext, on_cpu, seeded, setting
from experiments.records import finding_over
from experiments.trainings import linear_vae
from experiments.trainings.linear_vae import LinearVAESettings, Objective
from mpt_lml import data, fit, objectives
from mpt_lml.models.ppca import PPCA
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.results import History

PRINTED = ("published/1/1", "elbo/1/0")
REPAIRED = ("block/1/1", "block/1/10", "elbo-small/1/0", "uniform/1/10")
ROWS = (
    *(*PRINTED, *REPAIRED[:2], "elbo-small/1/0/long", "uniform/1/10/long", "marginal/1/0/long"),
    *("marginal/0.01/0", "elbo/0.01/0", "fixed/1/1", "uniform/1/1", "fixed/1/10", "block/0.01/1"),
)

# Findings that are means over seeds of one row of the arrays minus another, DATA left out.
ON_FIRST = {  # on the first data
    "fig-3-upper/held-out": ("held/published/1/1", "held/elbo/1/0"),
    "fig-3-upper/repaired": ("lml/block/1/1", "lml/elbo/1/0"),
    "fig-3-upper/small-start": ("lml/fixed/1/10", "lml/elbo-small/1/0"),
    "fig-3-upper/uniform-small-start-long": ("lml/uniform/1/10/long", "lml/elbo-small/1/0/long"),
    "claim-uniform-size-trains-better": ("held/uniform/1/10", "held/fixed/1/10"),
    "block-against-conditional": ("lml/block/1/10", "lml/fixed/1/10"),
    "masks-per-epoch": ("lml/block/1/10", "lml/block/1/1"),
    "start-scale": ("lml/block/0.01/1", "lml/block/1/1"),
    "start-scale/elbo": ("lml/elbo/0.01/0", "lml/elbo/1/0"),
    "grid-4-by-4": ("coarse/uniform/1/10", "lml/uniform/1/10"),
}
ON_EACH = {  # on every data
    "fig-3-upper": ("lml/published/1/1", "lml/elbo/1/0"),
    "fig-3-upper/ten-masks": ("lml/block/1/10", "lml/elbo/1/0"),
    "fig-3-upper/uniform-small-start": ("lml/uniform/1/10", "lml/elbo-small/1/0"),
}


class Figure3Upper(Experiment, name="figure-3-upper", resumable=True):
    """Figure 3, upper: Bernoulli linear VAE by the ELBO and by masks.

    Full-batch Adam from all seeds, fresh masks every epoch, judged on adaptive grids. ``trained``
    holds rows DATA/OBJECTIVE/SCALE/MASKS[/long]: SCALE multiplies the start, MASKS is the masks per
    epoch, that many parts of the data with a mask each (0: none). "published" is "block" on 4 × 4
    nodes, "elbo-small" the ELBO with a small encoder.

    Arrays in nats, (seeds,), for the KEY of a row: ``lml/KEY`` and ``held/KEY``, the mean log p(x) of
    training and test images on adaptive grids after ``num_epochs`` (KEY/long: ``long_epochs``);
    ``coarse/KEY`` and ``own/KEY`` on 4 × 4 nodes and on the grid of the training; ``bound/KEY``, the
    ELBO; ``gaussian``, see :meth:`gaussian_deficit`. Along the training (epochs, seeds):
    ``track/KEY``, ``read/KEY`` on 4 × 4 nodes, ``loss/KEY``.
    """

    trained: tuple[str, ...] = setting(  # in this order
        (
            *(f"mnist/{row}" for row in ROWS),
            *(f"fashion_mnist/{row}" for row in (*PRINTED, *REPAIRED)),
            *(f"digits/{row}" for row in (*ROWS, "block/1/2", "block/1/20")),
        ),
        quick=tuple(f"digits/{row}" for row in ROWS),
    )
    num_data: int = setting(2000, quick=60)
    held_out: int = setting(2000, quick=40)
    latent_dim: int = 2
    num_epochs: int = setting(800, quick=6)
    # Of rows that end in "long": MNIST, others.
    long_epochs: tuple[int, ...] = setting((1200, 4000), quick=(9, 9))
    learning_rate: float = 0.01
    fixed_rate: float = 0.15
    grid_nodes: int = 14  # an axis, for training
    grid_extent: float = 5.0
    track_nodes: int = setting(64, quick=30)  # an axis on [−8, 8]², for the LML along the way
    track_every: int = setting(50, quick=3)

    def measure(self, context: RunContext) -> Outcome:
        images: dict[str, tuple[Tensor, Tensor]] = {}
        arrays: dict[str, Tensor] = {}
        for row in self.trained:
            name = row.split("/")[0]
            if name not in images:
                images[name] = self._binary_images(name, context.device)
            arrays |= context.computed_once(
                row.replace("/", "-"),
                functools.partial(self._row, row, images[name], context),
                data=context.checksum(images[name]),
            )
        arrays = on_cpu(arrays)
        arrays["gaussian"] = self.gaussian_deficit()
        checksum = context.checksum(x for pair in images.values() for x in pair)
        return Outcome(self._findings(arrays, *images), arrays, checksum)

    def _binary_images(self, name: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """Binary images of training and of test."""
        settings = self.settings(name)
        x = linear_vae.binary_images(settings)
        held_out = linear_vae.binary_images(settings, "test", num_data=self.held_out)
        return x.to(device), held_out.to(device)

    def settings(self, images: str, num_epochs: int | None = None) -> LinearVAESettings:
        """Settings of one training."""
        return LinearVAESettings(
            images=images,
            num_data=self.num_data,
            seeds=self.seeds,
            latent_dim=self.latent_dim,
            num_epochs=self.num_epochs if num_epochs is None else num_epochs,
            learning_rate=self.learning_rate,
            fixed_rate=self.fixed_rate,
            grid_nodes=self.grid_nodes,
            grid_extent=self.grid_extent,
            track_nodes=self.track_nodes,
            track_every=self.track_every,
        )

    def _row(
        self, row: str, images: tuple[Tensor, Tensor], context: RunContext
    ) -> dict[str, Tensor]:
        """Train and judge one row."""
        x, held_out = images
        key = row.removesuffix("/long")
        history = self.train(row, x, context)
        num_epochs = len(history.values["lml"]) - 1
        tracked = [*range(0, num_epochs, self.track_every), num_epochs]
        arrays = {f"track/{key}": history.values["lml"][tracked]}
        if key.endswith(("/published/1/1", "/elbo/1/0")):
            arrays[f"read/{key}"] = history.values["read"][tracked]
            arrays[f"loss/{key}"] = history.values["objective"][tracked[:-1]]
        at_num_epochs = history.snapshots[self.num_epochs]
        for end, p in {key: at_num_epochs, row: history.parameters}.items():
            arrays[f"lml/{end}"] = linear_vae.mean_log_marginal(p, x)
            arrays[f"held/{end}"] = linear_vae.mean_log_marginal(p, held_out)
            if "encoder" in p:
                arrays[f"bound/{end}"] = bound(p, x)
        last = history.parameters if key == row else at_num_epochs
        loadings = last["loadings"].double()
        offset = last["offset"].double()
        objective = _objective_of(key)
        grids_of: tuple[tuple[str, Objective], ...] = (("coarse", "published"), ("own", objective))
        for array, grid_of in grids_of:
            grid = linear_vae.training_grid(self.settings("digits"), grid_of).to(loadings)
            lml = objectives.mixture(loadings, offset, x.double(), None, grid)
            arrays[f"{array}/{key}"] = lml
        return arrays

    def train(self, row: str, x: Float[Tensor, "N D"], context: RunContext) -> History:
        """All seeds side by side; the parameters at ``num_epochs`` are a snapshot."""
        name, _, scale, num_masks, *is_long = row.split("/")
        num_epochs = self.num_epochs
        if is_long:
            of_mnist, of_others = self.long_epochs
            num_epochs = of_mnist if name == "mnist" else of_others
        settings = self.settings(name, num_epochs)
        objective = _objective_of(row)
        begin = scaled(linear_vae.start(settings, x.shape[1], objective), float(scale))
        return fit.maximize(
            {part: value.to(x) for part, value in begin.items()},
            linear_vae.objective(settings, x, objective, int(num_masks)),
            num_epochs=num_epochs,
            learning_rate=self.learning_rate,
            generators=linear_vae.generators_of_steps(settings),
            track=linear_vae.tracked(settings, x),
            track_every=self.track_every,
            snapshots=(self.num_epochs,),
            progress=lambda items, _: context.progress(items, row),
        )

    def gaussian_deficit(self) -> Float[Tensor, " seeds"]:
        """Best LML of PPCA on the gray digits minus the LML where the ELBO's ascent ends, in nats.

        With q(z|x) = N(V (x − μ), L Lᵀ), which can be exact, in closed form (Lucas et al. 2019).
        """
        x = data.images("digits").pixels
        num_runs = len(self.seeds)
        best = PPCA.fit_closed_form(x, self.latent_dim)
        eye = torch.eye(x.shape[1], dtype=x.dtype)
        moment = objectives.second_moment(x - best.mean)
        start = linear_vae.start(self.settings("digits"), x.shape[1], "elbo")
        parameters = {name: start[name].double() for name in ("loadings", "encoder")}
        parameters["log_noise"] = x.new_zeros(num_runs)
        parameters["root"] = torch.eye(self.latent_dim, dtype=x.dtype).repeat(num_runs, 1, 1)

        def energy(linear: Tensor, root: Tensor) -> Float[Tensor, " B"]:
            trace = (linear @ moment @ linear.mT).diagonal(dim1=1, dim2=2).sum(dim=1)
            return trace + root.square().sum(dim=(1, 2))

        def elbo(p: fit.Parameters, _: object) -> Tensor:
            loadings = p["loadings"]
            encoder = p["encoder"]
            root = p["root"].tril()
            errors = energy(eye - loadings @ encoder, loadings @ root)
            codes = energy(encoder, root) - self.latent_dim
            divergence = 0.5 * codes - root.diagonal(dim1=1, dim2=2).abs().log().sum(dim=1)
            scale = x.shape[1] * (math.log(2 * math.pi) + p["log_noise"])
            return -0.5 * (scale + errors / p["log_noise"].exp()) - divergence

        ends = fit.maximize(
            parameters, elbo, num_epochs=5 * self.num_epochs, learning_rate=self.learning_rate
        ).parameters
        reached = objectives.log_marginal(ends["loadings"], ends["log_noise"].exp(), moment)
        return objectives.log_marginal(best.loadings, best.noise_variance, moment) - reached

    def _findings(self, arrays: dict[str, Tensor], first: str, *more: str) -> dict[str, Finding]:
        """Differences over seeds that started alike, in nats, of what was trained."""
        findings = {"claim-elbo-suboptimal": finding_over(arrays["gaussian"])}
        pairs = {name: (first, *rows) for name, rows in (ON_FIRST | ON_EACH).items()}
        for other in more:
            for name, rows in ON_EACH.items():
                separator = "-" if "/" in name else "/"
                pairs[f"{name}{separator}{other.replace('_', '-')}"] = (other, *rows)
        pairs["elbo-deficit"] = ("digits", "lml/marginal/1/0/long", "lml/elbo-small/1/0/long")
        for name, (images, one, other) in pairs.items():
            # "lml/block/1/1" of the digits is the array "lml/digits/block/1/1".
            one, other = (row.replace("/", f"/{images}/", 1) for row in (one, other))
            if one in arrays and other in arrays:
                findings[name] = finding_over(arrays[one] - arrays[other])
        return findings


def _objective_of(row: str) -> Objective:
    """The second word of a row, DATA/OBJECTIVE/SCALE/MASKS."""
    name = row.split("/")[1]
    if name not in typing.get_args(Objective):
        raise ValueError(f"row {row!r} trains {name!r}, which is none of {Objective}.")
    return typing.cast(Objective, name)


def scaled(begin: fit.Parameters, scale: float) -> dict[str, Tensor]:
    """A start with loadings, offset and encoder ``scale`` times as large; the code of x = b stays 0."""
    smaller = dict(begin)
    for name in ("loadings", "offset", "encoder"):
        if name in begin:
            smaller[name] = scale * begin[name]
    if "encoder" in begin:
        smaller["encoder_offset"] = linear_vae.encoder_offset(smaller["encoder"], smaller["offset"])
    return smaller


_DRAWS_OF_A_BOUND = 20


def bound(p: fit.Parameters, x: Float[Tensor, "N D"]) -> Float[Tensor, " B"]:
    """The ELBO of every seed's model and encoder, mean over the data and some draws of z, nats, (B,)."""
    generator = seeded(0)
    num_runs, _, latent_dim = p["loadings"].shape
    values = []
    for _ in range(_DRAWS_OF_A_BOUND):
        noise = torch.randn(num_runs, len(x), latent_dim, generator=generator).to(x)
        values.append(objectives.linear_elbo(**p, x=x, noise=noise))
    return torch.stack(values).mean(dim=0)
