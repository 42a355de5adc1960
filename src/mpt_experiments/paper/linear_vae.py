"""Figure 3, upper: Bernoulli PCA trained by the ELBO, by masks and by log p(x) itself."""

import functools
import math
import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, seeded, setting
from mpt_lml import data, fit, grids, objectives
from mpt_lml.grids import Grid
from mpt_lml.masks import FixedRate, UniformSize, stratified_masks
from mpt_lml.models.mixture import BernoulliPCA
from mpt_lml.models.ppca import PPCA
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


class Figure3Upper(Experiment, name="figure-3-upper", cost="about 50 min", resumable=True):
    """Figure 3, upper: Bernoulli linear VAE by the ELBO and by masks.

    Full-batch Adam from all seeds, fresh masks every epoch, judged on adaptive grids. ``trained``
    holds rows DATA/OBJECTIVE/SCALE/MASKS[/long]: SCALE multiplies the start, MASKS is the masks per
    epoch, that many parts of the data with a mask each (0: none). "published" is "block" on 4 × 4
    nodes, "elbo-small" the ELBO with a small encoder.

    Arrays in nats, (seeds,), for the KEY of a row: ``lml/KEY`` and ``held/KEY``, the mean log p(x) of
    training and test images on adaptive grids after ``num_epochs`` (KEY/long: ``long_epochs``);
    ``coarse/KEY`` and ``own/KEY`` on 4 × 4 nodes and on the grid of the training; ``bound/KEY``, the
    ELBO; ``gaussian``, see :meth:`gaussian_deficit`. Along the training (epochs, seeds):
    ``track/KEY``, ``read/KEY`` on 4 × 4 nodes, ``loss/KEY``. With ``decoders``: ``decoders/KEY``
    (seeds, D, K + 1).
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
    decoders: bool = False  # return those of all seeds in place of ``gaussian``

    def measure(self, context: RunContext) -> Outcome:
        images: dict[str, list[Tensor]] = {}
        arrays: dict[str, Tensor] = {}
        for row in self.trained:
            name = row.split("/")[0]
            if name not in images:
                pixels = data.images(name, "train").pixels[: self.num_data]
                more = data.images(name, "test").pixels[: self.held_out]
                images[name] = [(each >= 0.5).float().to(context.device) for each in (pixels, more)]
            work = functools.partial(self._row, row, images[name], context)
            used = context.checksum(images[name])
            arrays |= context.computed_once(row.replace("/", "-"), work, data=used)
        arrays |= {} if self.decoders else {"gaussian": self.gaussian_deficit()}
        used = context.checksum(x for pair in images.values() for x in pair)
        return Outcome(self._findings(arrays, *images), arrays, used)

    def _row(self, row: str, images: Sequence[Tensor], context: RunContext) -> dict[str, Tensor]:
        """Train and judge one row."""
        (x, held_out), key = images, row.removesuffix("/long")
        history = self.train(row, x, context)
        epochs = len(history.values["lml"]) - 1
        tracked = [*range(0, epochs, self.track_every), epochs]
        arrays = {f"track/{key}": history.values["lml"][tracked]}
        if key.endswith(("/published/1/1", "/elbo/1/0")):
            arrays[f"read/{key}"] = history.values["read"][tracked]
            arrays[f"loss/{key}"] = history.values["objective"][tracked[:-1]]
        ends = {key: history.snapshots[self.num_epochs], row: history.parameters}
        for end, p in ends.items():
            arrays[f"lml/{end}"] = self._judge(p, x.double())
            arrays[f"held/{end}"] = self._judge(p, held_out.double())
            if "encoder" in p:
                arrays[f"bound/{end}"] = bound(p, x)
        W, b = (ends[key][name].double() for name in ("loadings", "offset"))
        for value, name in (("coarse", "published"), ("own", key.split("/")[1])):
            grid = self.grid(name).to(W)
            arrays[f"{value}/{key}"] = objectives.mixture(W, b, x.double(), None, grid)
        if self.decoders:
            arrays[f"decoders/{key}"] = torch.cat([W, b[..., None]], dim=-1)
        return {name: value.cpu() for name, value in arrays.items()}

    def _judge(self, p: fit.Parameters, x: Float[Tensor, "N D"]) -> Float[Tensor, " seeds"]:
        pairs = zip(p["loadings"].double(), p["offset"].double(), strict=True)
        # 11 nodes an axis differ by hundredths of a nat.
        lml = [BernoulliPCA(W, b).adaptive_log_marginal(x, nodes_per_axis=7) for W, b in pairs]
        return torch.stack([each.mean() for each in lml])

    def train(self, row: str, x: Float[Tensor, "N D"], context: RunContext) -> History:
        """All seeds side by side; the parameters at ``num_epochs`` are a snapshot."""
        name, objective, scale, num_masks, *long = row.split("/")
        epochs = self.long_epochs[name != "mnist"] if long else self.num_epochs
        small = 0.01 if objective == "elbo-small" else 1.0
        begin = self.start(x.shape[1], float(scale), small)
        if not objective.startswith("elbo"):
            begin = {name: begin[name] for name in ("loadings", "offset")}

        def lml_on(nodes: Grid) -> fit.Tracked:
            return lambda p: objectives.mixture(p["loadings"], p["offset"], x, None, nodes)

        fine = grids.trapezoid(self.latent_dim, self.track_nodes, extent=8.0)
        state, used = f"{row.replace('/', '-')}-training", context.checksum([x])
        return fit.maximize(
            {name: value.to(x) for name, value in begin.items()},
            self.objective(objective, x, int(num_masks)),
            num_epochs=epochs,
            learning_rate=self.learning_rate,
            generators=[seeded(seed + 1) for seed in self.seeds],
            track={"lml": lml_on(fine.to(x)), "read": lml_on(self.grid("published").to(x))},
            track_every=self.track_every,
            snapshots=(self.num_epochs,),
            checkpoint=context.checkpoint(state, every=50, data=used),
            progress=lambda items, _: context.progress(items, row),
        )

    def objective(self, name: str, x: Float[Tensor, "N D"], num_masks: int = 1) -> fit.Objective:
        """What is maximized: (parameters, generators) -> (B,), in nats per datum."""
        grid = self.grid(name).to(x)
        law = UniformSize() if name == "uniform" else FixedRate(self.fixed_rate)
        block = name not in ("fixed", "uniform")

        def value(p: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
            if name == "marginal":
                return objectives.mixture(p["loadings"], p["offset"], x, None, grid)
            if name.startswith("elbo"):
                shape = (len(x), self.latent_dim)
                noise = torch.stack([torch.randn(shape, generator=g) for g in generators])
                return objectives.linear_elbo(**p, x=x, noise=noise.to(x))
            mask = stratified_masks(num_masks, x.shape[1], law, generator=generators)
            return objectives.mixture(**p, x=x, mask=mask.to(x.device), grid=grid, block=block)

        return value

    def grid(self, objective: str) -> Grid:
        """Where ``objective`` integrates: the authors' 4 × 4 nodes on [−5, 5]² if "published"."""
        if objective != "published":
            return grids.trapezoid(self.latent_dim, self.grid_nodes, self.grid_extent)
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            return grids.trapezoid(self.latent_dim, 4)

    def start(self, D: int, scale: float = 1.0, encoder_scale: float = 1.0) -> dict[str, Tensor]:
        """Normal loadings, offsets and encoders of every seed, times ``scale``; (B, ...) each.

        ``scale`` 1 is the authors' script's; ``encoder_scale`` multiplies the encoder once more.
        """
        K, generators = self.latent_dim, [*map(seeded, self.seeds)]
        shapes = {"loadings": (D, K), "offset": (D,), "encoder": (K, D)}
        shapes["encoder_log_variance"] = (K,)
        drawn = {}
        for name, shape in shapes.items():
            drawn[name] = torch.stack([torch.randn(shape, generator=g) for g in generators])
        scales = {"loadings": scale, "offset": scale, "encoder": scale * encoder_scale}
        drawn |= {name: factor * drawn[name] for name, factor in scales.items()}
        # Theirs encodes V (x − b); ours V x + c, which starts there and may leave.
        drawn["encoder_offset"] = -(drawn["encoder"] @ drawn["offset"][..., None])[..., 0]
        return drawn

    def gaussian_deficit(self) -> Float[Tensor, " seeds"]:
        """Best LML of PPCA on the gray digits minus the LML where the ELBO's ascent ends, in nats.

        With q(z|x) = N(V (x − μ), L Lᵀ), which can be exact, in closed form (Lucas et al. 2019).
        """
        x, batch = data.images("digits").pixels, len(self.seeds)
        best, eye = PPCA.fit_closed_form(x, self.latent_dim), torch.eye(x.shape[1], dtype=x.dtype)
        moment = objectives.second_moment(x - best.mean)
        begin = self.start(x.shape[1])
        parameters = {name: begin[name].double() for name in ("loadings", "encoder")}
        parameters["log_noise"] = x.new_zeros(batch)
        parameters["root"] = torch.eye(self.latent_dim, dtype=x.dtype).repeat(batch, 1, 1)

        def energy(linear: Tensor, root: Tensor) -> Float[Tensor, " B"]:
            trace = (linear @ moment @ linear.mT).diagonal(dim1=1, dim2=2).sum(dim=1)
            return trace + root.square().sum(dim=(1, 2))

        def elbo(p: fit.Parameters, _: object) -> Tensor:
            loadings, encoder, root = p["loadings"], p["encoder"], p["root"].tril()
            errors = energy(eye - loadings @ encoder, loadings @ root)
            codes = energy(encoder, root) - self.latent_dim
            divergence = 0.5 * codes - root.diagonal(dim1=1, dim2=2).abs().log().sum(dim=1)
            scale = x.shape[1] * (math.log(2 * math.pi) + p["log_noise"])
            return -0.5 * (scale + errors / p["log_noise"].exp()) - divergence

        count, rate = 5 * self.num_epochs, self.learning_rate
        ends = fit.maximize(parameters, elbo, num_epochs=count, learning_rate=rate).parameters
        reached = objectives.log_marginal(ends["loadings"], ends["log_noise"].exp(), moment)
        return objectives.log_marginal(best.loadings, best.noise_variance, moment) - reached

    def _findings(self, arrays: dict[str, Tensor], first: str, *more: str) -> dict[str, Finding]:
        """Differences over seeds that started alike, in nats, of what was trained."""
        found = {} if self.decoders else {"claim-elbo-suboptimal": Finding.over(arrays["gaussian"])}
        pairs = {name: (first, *rows) for name, rows in (ON_FIRST | ON_EACH).items()}
        for other in more:
            for name, rows in ON_EACH.items():
                tail = ("-" if "/" in name else "/") + other.replace("_", "-")
                pairs[name + tail] = (other, *rows)
        pairs["elbo-deficit"] = ("digits", "lml/marginal/1/0/long", "lml/elbo-small/1/0/long")
        for name, (of, *pair) in pairs.items():
            both = [arrays[at] for row in pair if (at := row.replace("/", f"/{of}/", 1)) in arrays]
            if len(both) == 2:
                found[name] = Finding.over(both[0] - both[1])
        return found


def bound(p: fit.Parameters, x: Float[Tensor, "N D"], num_draws: int = 20) -> Float[Tensor, " B"]:
    """The ELBO of every seed's model and encoder, mean over the data and ``num_draws`` z, nats, (B,)."""
    g, (batch, _, latent_dim) = seeded(0), p["loadings"].shape
    noises = [torch.randn(batch, len(x), latent_dim, generator=g).to(x) for _ in range(num_draws)]
    return torch.stack([objectives.linear_elbo(**p, x=x, noise=z) for z in noises]).mean(dim=0)
