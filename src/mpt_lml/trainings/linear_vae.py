"""Figure 3, upper: Bernoulli PCA (the linear VAE) trained by the ELBO, by masks and by log p(x) itself.

>>> import dataclasses
>>> short = dataclasses.replace(TINY, num_epochs=2, num_data=20)
>>> histories = train_linear_vae(short, ("elbo",))
>>> histories["elbo"].num_epochs
2
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, fit, grids, objectives
from mpt_lml.checks import Count, Index, Positive, Rate, checked
from mpt_lml.data.sources import Split
from mpt_lml.grids import Grid
from mpt_lml.masks import FixedRate, UniformSize, stratified_masks
from mpt_lml.models.mixture import BernoulliPCA
from mpt_lml.numerics import differentiable, double, without_inference
from mpt_lml.results import History

__all__ = [
    "FULL",
    "TINY",
    "LinearVAESettings",
    "binary_images",
    "mean_log_marginal",
    "train_linear_vae",
]

Objective = Literal["published", "block", "fixed", "uniform", "elbo", "elbo-small", "marginal"]
"""Name of the objective that is maximized:

* ``"block"``: (D/M) log p(x_A) of a fresh mask at the fixed rate; ``"published"`` is the same on the
  4 × 4 nodes of the authors' script.
* ``"fixed"`` and ``"uniform"``: D S(x; M) at the fixed rate, and with sizes uniform on 1, ..., D.
* ``"elbo"``: the ELBO with a linear encoder; ``"elbo-small"`` has one that starts small.
* ``"marginal"``: the mean log p(x) itself.
"""

_SMALL_ENCODER = 0.01


@checked
@dataclass(frozen=True)
class LinearVAESettings:
    """Settings of Figure 3, upper; the defaults are the paper's.

    Args:
        images: the data, by their name in ``data.images``.
        num_data: how many of them.
        seeds: of the runs, which are trained side by side.
        latent_dim: K.
        num_epochs: steps of Adam, on all data at once.
        learning_rate: of Adam.
        fixed_rate: of the masks.
        grid_nodes: nodes an axis for training; ``"published"`` has 4.
        grid_extent: half the length of an axis of that grid.
        track_nodes: nodes an axis on [−8, 8]^K, for log p(x) during training.
        track_every: epochs from one log p(x) to the next.

    >>> LinearVAESettings(num_epochs=5).images
    'mnist'
    """

    images: str = "mnist"
    num_data: Count = 2000
    seeds: tuple[Index, ...] = (4, 44, 444, 4444, 44444)
    latent_dim: Count = 2
    num_epochs: Count = 800
    learning_rate: Positive = 0.01
    fixed_rate: Rate = 0.15
    grid_nodes: Count = 14
    grid_extent: Positive = 5.0
    track_nodes: Count = 64
    track_every: Count = 50


FULL = LinearVAESettings()
"""Published settings of the figure; their runs are recorded as ``figure-3-upper``."""

TINY = LinearVAESettings(
    images="digits", num_data=300, seeds=(4, 44), num_epochs=60, track_nodes=30, track_every=10
)
"""Settings that take about a second on a CPU, with data that are always there."""


@checked
def binary_images(
    settings: LinearVAESettings, split: Split = "train", *, num_data: Count | None = None
) -> Float[Tensor, "N D"]:
    """Binary images: a pixel is 1 from one half on.

    Args:
        settings: name the data.
        split: ``"train"`` or ``"test"``.
        num_data: N, where it is not that of the settings.

    Returns:
        Zeros and ones in single precision, (N, D).

    Raises:
        DataNotFoundError: where the set is not on this machine; it lists the ways to get it.

    >>> binary_images(TINY).shape
    torch.Size([300, 64])
    """
    count = settings.num_data if num_data is None else num_data
    return (data.images(settings.images, split).pixels[:count] >= 0.5).float()


@checked
@differentiable()
def train_linear_vae(
    settings: LinearVAESettings,
    names: Sequence[Objective] = ("published", "elbo"),
    *,
    images: Float[Tensor, "N D"] | None = None,
    device: torch.device | None = None,
    progress: fit.Progress = fit.silent,
) -> dict[str, History]:
    """Train the model on each objective in turn, all seeds side by side.

    An interrupt ends the training, and what was trained until then is returned: the history of the
    objective that was being trained is shorter, and those after it are missing.

    Args:
        settings: ``FULL``, ``TINY`` or others.
        names: the objectives, as ``Objective`` explains them, each with one mask an epoch.
        images: zeros and ones, (N, D); None: those that the settings name.
        device: where to compute; None: where the images are.
        progress: shows the epochs as they pass.

    Returns:
        By objective a :class:`~mpt_lml.results.History`: ``values["lml"]`` is the mean log p(x) by
        quadrature, ``values["read"]`` the same on the authors' 4 × 4 nodes, every ``track_every``
        epochs and NaN between, and ``values["objective"]`` what was maximized, all nats a datum,
        (epochs + 1, seeds), on the device.

    Raises:
        DataNotFoundError: where the data are not on this machine; it lists the ways to get them.

    >>> short = LinearVAESettings("digits", num_data=20, seeds=(4,), num_epochs=2)
    >>> train_linear_vae(short, ("elbo",))["elbo"].values["objective"].shape
    torch.Size([3, 1])
    """
    x = binary_images(settings) if images is None else without_inference(images)
    if device is not None:
        x = x.to(device)
    histories: dict[str, History] = {}
    for name in names:
        history = _train_one(settings, x, name, progress)
        histories[name] = history
        if history.num_epochs < settings.num_epochs:
            break
    return histories


def _train_one(
    settings: LinearVAESettings, x: Float[Tensor, "N D"], name: Objective, progress: fit.Progress
) -> History:
    return fit.maximize(
        {part: value.to(x) for part, value in start(settings, x.shape[1], name).items()},
        objective(settings, x, name),
        num_epochs=settings.num_epochs,
        learning_rate=settings.learning_rate,
        generators=generators_of_steps(settings),
        track=tracked(settings, x),
        track_every=settings.track_every,
        progress=lambda items, _: progress(items, name),
        interruptible=True,
    )


def generators_of_steps(settings: LinearVAESettings) -> list[torch.Generator]:
    """Generators of every seed's masks and noise; others drew its start."""
    return [torch.Generator().manual_seed(seed + 1) for seed in settings.seeds]


def tracked(settings: LinearVAESettings, x: Float[Tensor, "N D"]) -> dict[str, fit.Tracked]:
    """The mean log p(x) by quadrature, "lml", and on the authors' 4 × 4 nodes, "read"."""

    def lml_on(nodes: Grid) -> fit.Tracked:
        return lambda p: objectives.mixture(p["loadings"], p["offset"], x, None, nodes)

    fine = grids.trapezoid(settings.latent_dim, settings.track_nodes, extent=8.0)
    published = training_grid(settings, "published")
    return {"lml": lml_on(fine.to(x)), "read": lml_on(published.to(x))}


def objective(
    settings: LinearVAESettings, x: Float[Tensor, "N D"], name: Objective, num_masks: int = 1
) -> fit.Objective:
    """Objective as a function (parameters, generators) -> (B,), in nats a datum."""
    grid = training_grid(settings, name).to(x)
    law = UniformSize() if name == "uniform" else FixedRate(settings.fixed_rate)
    block = name not in ("fixed", "uniform")

    def value(p: fit.Parameters, generators: Sequence[torch.Generator]) -> Tensor:
        if name == "marginal":
            return objectives.mixture(p["loadings"], p["offset"], x, None, grid)
        if name.startswith("elbo"):
            shape = (len(x), settings.latent_dim)
            noise = torch.stack([torch.randn(shape, generator=g) for g in generators])
            return objectives.linear_elbo(**p, x=x, noise=noise.to(x))
        mask = stratified_masks(num_masks, x.shape[1], law, generator=generators)
        return objectives.mixture(**p, x=x, mask=mask, grid=grid, block=block)

    return value


def training_grid(settings: LinearVAESettings, name: Objective) -> Grid:
    """Grid on which an objective integrates: the authors' 4 × 4 nodes on [−5, 5]² if "published"."""
    if name != "published":
        return grids.trapezoid(settings.latent_dim, settings.grid_nodes, settings.grid_extent)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return grids.trapezoid(settings.latent_dim, 4)


def start(settings: LinearVAESettings, num_features: int, name: Objective) -> dict[str, Tensor]:
    """Normal loadings, offsets and encoders of every seed, as in the authors' script; (B, ...) each.

    Objectives without an encoder get none. That of ``"elbo-small"`` is a hundredth of the others'.
    """
    K = settings.latent_dim
    generators = [torch.Generator().manual_seed(seed) for seed in settings.seeds]

    def normal(*shape: int) -> Float[Tensor, "seeds ..."]:
        return torch.stack([torch.randn(shape, generator=g) for g in generators])

    # In this order: it is part of the record.
    loadings = normal(num_features, K)
    offset = normal(num_features)
    decoder = {"loadings": loadings, "offset": offset}
    if not name.startswith("elbo"):
        return decoder
    encoder = normal(K, num_features)
    if name == "elbo-small":
        encoder = _SMALL_ENCODER * encoder
    return {
        **decoder,
        "encoder": encoder,
        "encoder_log_variance": normal(K),
        "encoder_offset": encoder_offset(encoder, offset),
    }


def encoder_offset(encoder: Tensor, offset: Tensor) -> Float[Tensor, "seeds K"]:
    """c = −V b: the authors' script encodes V (x − b); ours V x + c, which starts there and may leave."""
    return -(encoder @ offset[..., None])[..., 0]


@checked
def mean_log_marginal(
    parameters: fit.Parameters, x: Float[Tensor, "N D"]
) -> Float[Tensor, " seeds"]:
    """Mean log p(x) of every seed's model on adaptive grids.

    Args:
        parameters: with ``"loadings"`` (seeds, D, K) and ``"offset"`` (seeds, D).
        x: zeros and ones, (N, D).

    Returns:
        Nats, (seeds,), in double precision.

    Raises:
        ValueError: for parameters without one of the two.

    >>> flat = {"loadings": torch.zeros(1, 3, 2), "offset": torch.zeros(1, 3)}
    >>> mean_log_marginal(flat, torch.ones(4, 3)).shape
    torch.Size([1])
    """
    if not {"loadings", "offset"} <= parameters.keys():
        raise ValueError(f"parameters must have 'loadings' and 'offset', got {list(parameters)}.")
    decoders = zip(double(parameters["loadings"]), double(parameters["offset"]), strict=True)
    means = []
    for loadings, offset in decoders:
        model = BernoulliPCA(loadings, offset)
        # 11 nodes an axis differ by hundredths of a nat.
        means.append(model.adaptive_log_marginal(double(x), nodes_per_axis=7).mean())
    return torch.stack(means)
