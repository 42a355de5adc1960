"""The linear VAE (Bernoulli PCA) as Figure 3, upper, trains it: several seeds side by side."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, fit, grids, objectives
from mpt_lml.data.sources import Split
from mpt_lml.grids import Grid
from mpt_lml.masks import FixedRate, UniformSize, stratified_masks
from mpt_lml.models.mixture import BernoulliPCA
from mpt_lml.numerics import double

Objective = Literal["published", "block", "fixed", "uniform", "elbo", "elbo-small", "marginal"]
"""Name of the objective that is maximized:

* ``"block"``: (D/M) log p(x_A) of a fresh mask at the fixed rate; ``"published"`` is the same on the
  4 × 4 nodes of the authors' script.
* ``"fixed"`` and ``"uniform"``: D S(x; M) at the fixed rate, and with sizes uniform on 1, ..., D.
* ``"elbo"``: the ELBO with a linear encoder; ``"elbo-small"`` has one that starts small.
* ``"marginal"``: the mean log p(x) itself.
"""

_SMALL_ENCODER = 0.01


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
    """

    images: str = "mnist"
    num_data: int = 2000
    seeds: tuple[int, ...] = (4, 44, 444, 4444, 44444)
    latent_dim: int = 2
    num_epochs: int = 800
    learning_rate: float = 0.01
    fixed_rate: float = 0.15
    grid_nodes: int = 14
    grid_extent: float = 5.0
    track_nodes: int = 64
    track_every: int = 50


def binary_images(
    settings: LinearVAESettings, split: Split = "train", *, num_data: int | None = None
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
    """
    count = settings.num_data if num_data is None else num_data
    return (data.images(settings.images, split).pixels[:count] >= 0.5).float()


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


def mean_log_marginal(
    parameters: fit.Parameters, x: Float[Tensor, "N D"]
) -> Float[Tensor, " seeds"]:
    """Mean log p(x) of every seed's model on adaptive grids.

    Args:
        parameters: with ``"loadings"`` (seeds, D, K) and ``"offset"`` (seeds, D).
        x: zeros and ones, (N, D).

    Returns:
        Nats, (seeds,), in double precision.
    """
    decoders = zip(double(parameters["loadings"]), double(parameters["offset"]), strict=True)
    means = []
    for loadings, offset in decoders:
        model = BernoulliPCA(loadings, offset)
        # 11 nodes an axis differ by hundredths of a nat.
        means.append(model.adaptive_log_marginal(double(x), nodes_per_axis=7).mean())
    return torch.stack(means)
