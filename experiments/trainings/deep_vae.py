"""Deep VAEs trained by the ELBO and by masks, several seeds side by side (paper, Figure 3, lower row).

An objective says what a step draws and what it maximizes. Everything random is drawn on the CPU, some
steps ahead, and to_device, so that the numbers are the same on every device. Between two evaluations no
step asks the device for a number. Training is in single precision, evaluations are in double.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.trainings import dense_vae
from experiments.trainings.dense_vae import Parameters, dense_model, dense_parameters
from mpt_lml import data, estimators, grids, masks
from mpt_lml.checks import Count, Positive, checked, require_answer
from mpt_lml.fit import Progress, silent
from mpt_lml.masks import FixedRate, SizeLaw
from mpt_lml.models.mixture import GridConditional
from mpt_lml.models.vae import VAE
from mpt_lml.numerics import double

Draws = Mapping[str, Tensor]
FIXED = FixedRate(0.33)  # the paper's
NUM_ROUNDS = 3  # of the recursion, in which z is drawn given the filled image
_BLOCK_BYTES = 2**26  # of random numbers that are drawn ahead


@checked
@dataclass(frozen=True)
class DeepVAESettings:
    """A dense VAE with a Gaussian likelihood of stated variance, trained by Adam on minibatches.

    The defaults are those of the record of Figure 3, lower row: the paper states data, likelihood,
    recursion and 33 %, the rest is ours.

    Args:
        seeds: one for each run.
        dataset: name of the images, as ``data.images`` has it.
        num_data: how many of them are trained on.
        hidden: units of each layer of the encoder but the last.
        latent_dim: K.
        noise_variance: σ².
        num_steps: steps of Adam.
        batch_size: images a step.
        learning_rate: of Adam.
        track_every: steps from one evaluation to the next.
        track_data: images of an evaluation.
        track_samples: draws of z an image around the mode.
        track_draws: draws of z an image from the encoder.
    """

    seeds: tuple[int, ...] = (4, 44, 444, 4444, 44444)
    dataset: str = "mnist"
    num_data: Count = 2000
    hidden: tuple[int, ...] = (200,)
    latent_dim: Count = 10
    noise_variance: Positive = 0.1
    num_steps: Count = 3000
    batch_size: Count = 100
    learning_rate: Positive = 1e-3
    track_every: Count = 200
    track_data: Count = 100
    track_samples: Count = 200
    track_draws: Count = 50

    def images(self) -> Float[Tensor, "N D"]:
        """Training images in [0, 1].

        Raises:
            DataNotFoundError: where they are not on this machine; it lists the three ways to get them.
        """
        return data.images(self.dataset).pixels[: self.num_data].float()

    def generators(self) -> list[torch.Generator]:
        """Generators of the runs, which draw the networks first and then the steps."""
        return [torch.Generator().manual_seed(seed) for seed in self.seeds]


@dataclass(frozen=True, eq=False)
class DeepVAERun:
    """Result of :func:`train_deep_vae`: B runs, evaluated T times.

    ``steps`` (T,): numbers of steps before each evaluation. ``log_p_x`` (T, B): log p(x), on a grid
    for K ≤ 3, else by importance weights around the modes; ``by_encoder`` (T, B): the estimate from
    draws of the encoder; both mean over images. ``objective`` (num_steps, B): before every step. All
    in nats.
    ``parameters``: the weights.
    """

    steps: Tensor
    log_p_x: Float[Tensor, "T B"]
    by_encoder: Float[Tensor, "T B"]
    objective: Float[Tensor, "steps B"]
    parameters: dict[str, Tensor]


# -- objectives ---------------------------------------------------------------------------------------


class Objective(ABC):
    """Objective of a training: its random numbers, and its value given these."""

    def networks(
        self, num_features: int, settings: DeepVAESettings, generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor]:
        """The networks of every run before the first step."""
        sizes = (num_features, settings.hidden, settings.latent_dim)
        return dense_parameters(*sizes, generators=generators)

    def of_images(self, parameters: Parameters) -> Parameters:
        """The networks that are evaluated, whose encoder reads whole images."""
        return parameters

    @abstractmethod
    def noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, "Noise"]:
        """The random numbers of one step and run, for images of a ``shape`` (n, D), in their order."""

    def to_device(self, draws: Draws, device: torch.device) -> dict[str, Tensor]:
        """Draws of some steps, (steps, B, ...), as :meth:`value` takes them, on the device."""
        return {name: _to(value, device) for name, value in draws.items()}

    @abstractmethod
    def value(
        self, parameters: Parameters, x: Tensor, draws: Draws, settings: DeepVAESettings
    ) -> Float[Tensor, " B"]:
        """Value on minibatches (B, n, D), nats. On a GPU it must not ask the device for a number."""


class ELBO(Objective):
    """The usual objective."""

    def noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, "Noise"]:
        return {"elbo_noise": normal(1, shape[0], settings.latent_dim)}

    def value(
        self, parameters: Parameters, x: Tensor, draws: Draws, settings: DeepVAESettings
    ) -> Float[Tensor, " B"]:
        noise = draws["elbo_noise"].to(x)[:, 0]
        return dense_vae.elbo(parameters, x, noise, settings.noise_variance)


class RecursiveScore(Objective):
    """D times the score of one mask an image after the recursion: our reading of the paper's training.

    Masks hide 33 %. Holes begin at 0, and are filled twice with the decoder's mean. The gradient goes
    through the third encoding and decoding alone.
    """

    def noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, "Noise"]:
        return for_masks(*shape) | {"noise": normal(NUM_ROUNDS, shape[0], settings.latent_dim)}

    def to_device(self, draws: Draws, device: torch.device) -> dict[str, Tensor]:
        noise = super().to_device({"noise": draws["noise"]}, device)
        return noise | {"mask": masks_from(draws, FIXED, device)}

    def value(
        self, parameters: Parameters, x: Tensor, draws: Draws, settings: DeepVAESettings
    ) -> Float[Tensor, " B"]:
        mask = draws["mask"]
        noise = draws["noise"].to(x).transpose(0, 1)
        with torch.no_grad():
            filled = dense_vae.refill(parameters, x, mask, noise[:-1])
        return dense_vae.recursive(parameters, x, mask, filled, noise[-1:], settings.noise_variance)


OBJECTIVES: dict[str, Objective] = {"elbo": ELBO(), "fixed": RecursiveScore()}
"""The two trainings of Figure 3, lower row, by their names in its record."""


class Noise(NamedTuple):
    """Random numbers of one step and run, and the function of PyTorch that draws them."""

    function: Callable[..., Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


def normal(count: int, num_images: int, size: int) -> Noise:
    """``count`` standard normal vectors of length ``size`` an image."""
    return Noise(torch.randn, (count, num_images, size))


def for_masks(num_masks: int, num_features: int) -> dict[str, Noise]:
    """The numbers of ``masks.stratified_masks``, in its order, which :func:`masks_from` reads."""
    return {
        "shift": Noise(torch.rand, (1,), torch.float64),
        "order": Noise(torch.rand, (num_masks, num_features), torch.float64),
    }


def drawn(
    noise: Mapping[str, Noise], num_steps: int, generators: Sequence[torch.Generator]
) -> dict[str, Tensor]:
    """The numbers of some steps, (steps, B, ...), drawn step by step from the generator of every run."""
    block = {}
    for name, each in noise.items():
        block[name] = torch.empty((num_steps, len(generators), *each.shape), dtype=each.dtype)
    for step in range(num_steps):
        for run, generator in enumerate(generators):
            for name, each in noise.items():
                each.function(each.shape, generator=generator, out=block[name][step, run])
    return block


def masks_from(draws: Draws, law: SizeLaw, device: torch.device) -> Bool[Tensor, "*B P D"]:
    """The masks of ``masks.stratified_masks``; ranked on the device, where it is fast."""
    num_masks, num_features = draws["order"].shape[-2:]
    quantile = masks.quantiles(num_masks, draws["shift"])
    sizes = _to(law.sizes_at(quantile, num_features), device)
    return masks.from_ranks(masks.ranks_of(_to(draws["order"], device)), sizes)


def _to(value: Tensor, device: torch.device) -> Tensor:
    """``value`` on the device; to a GPU from pinned memory, so that nothing waits for the copy."""
    if device.type != "cuda" or value.device.type == "cuda":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


# -- evaluations --------------------------------------------------------------------------------------


def models_of(
    parameters: Parameters, settings: DeepVAESettings, dtype: torch.dtype = torch.float64
) -> list[VAE]:
    """The model of every run."""
    trained = {name: value.detach().to(dtype) for name, value in parameters.items()}
    runs = range(len(settings.seeds))
    return [dense_model(trained, run, settings.noise_variance) for run in runs]


def on_grid(model: VAE) -> GridConditional:
    """``model`` on a grid that knows its log p(x), K ≤ 3: 161 nodes per axis agree to 1e-5 nats."""
    return GridConditional(model, grids.trapezoid(model.latent_dim, 41))


def log_p_x(parameters: Parameters, x: Tensor, settings: DeepVAESettings) -> Float[Tensor, " B"]:
    """Mean log p(x) of every run, nats: on a grid for K ≤ 3, else weighted around the modes."""
    x = double(x)
    models = models_of(parameters, settings)
    if settings.latent_dim <= grids.MAX_LATENT_DIM:
        return torch.stack([on_grid(model).log_marginal(x).mean() for model in models])
    values = [
        estimators.iwae(
            model, x, settings.track_samples, generator=torch.Generator().manual_seed(run)
        )
        for run, model in enumerate(models)
    ]
    return torch.tensor(values, dtype=torch.float64)


def by_encoder(parameters: Parameters, x: Tensor, settings: DeepVAESettings) -> Float[Tensor, " B"]:
    """Lower bound of log p(x) from ``track_draws`` draws of the encoder, to look at."""
    values = [
        estimators.iwae(
            model,
            x,
            settings.track_draws,
            generator=torch.Generator().manual_seed(0),
            proposal=estimators.from_encoder,
        )
        for model in models_of(parameters, settings, x.dtype)
    ]
    return torch.tensor(values)


# -- training -----------------------------------------------------------------------------------------


@checked
def train_deep_vae(
    settings: DeepVAESettings,
    objective: Objective,
    *,
    images: Float[Tensor, "N D"] | None = None,
    progress: Progress = silent,
    label: str = "step",
) -> DeepVAERun:
    """Train one VAE from each seed, side by side, and evaluate them during training.

    Args:
        settings: of networks, data, steps and evaluations.
        objective: what is maximized, one of :data:`OBJECTIVES` for example.
        images: in [0, 1], in single precision, where to compute; those of the settings if left out.
        progress: shows the steps as they pass.
        label: what it calls them.

    Returns:
        Evaluations and weights, on the device: :class:`DeepVAERun`.

    Raises:
        FloatingPointError: where the objective is not finite any more, seen at the next evaluation.
        DataNotFoundError: where the images of the settings are not on this machine.
    """
    x = settings.images() if images is None else images
    generators = settings.generators()
    networks = objective.networks(x.shape[1], settings, generators)
    weights = {name: value.to(x).requires_grad_() for name, value in networks.items()}
    training = _Training(settings, objective, x, weights, generators)
    tracked: dict[int, tuple[Tensor, Tensor]] = {}

    def evaluate(step: int) -> None:
        if step % settings.track_every == 0 or step == settings.num_steps:
            training.require_finite()
            few = x[: settings.track_data]
            with torch.no_grad():
                trained = objective.of_images(weights)
                tracked[step] = (
                    log_p_x(trained, few, settings).to(x),
                    by_encoder(trained, few, settings).to(x),
                )

    evaluate(0)
    for _ in progress(range(settings.num_steps), label):
        training.take_step()
        evaluate(training.num_steps)

    log_p, reported = zip(*tracked.values(), strict=True)
    return DeepVAERun(
        steps=torch.tensor(list(tracked), dtype=torch.int64).to(x.device),
        log_p_x=torch.stack(log_p),
        by_encoder=torch.stack(reported),
        objective=training.objectives,
        parameters={name: value.detach() for name, value in weights.items()},
    )


class _Training:
    """Adam's steps, which ask the device for nothing."""

    def __init__(
        self,
        settings: DeepVAESettings,
        objective: Objective,
        x: Float[Tensor, "N D"],
        weights: dict[str, Tensor],
        generators: Sequence[torch.Generator],
    ) -> None:
        self.settings = settings
        self.objective = objective
        self.x = x
        self.weights = weights
        self.generators = generators
        self.num_steps = 0
        # Row e: of step e, before it.
        self.objectives = x.new_full((settings.num_steps, len(generators)), torch.nan)
        self.adam = torch.optim.Adam(list(weights.values()), lr=settings.learning_rate)
        # The current block of draws, and the row of the next step.
        self.block: dict[str, Tensor] = {}
        self.place = 0

    def take_step(self) -> None:
        if not self.block or self.place == len(self.block["rows"]):
            self._draw_block()
        draws = {name: values[self.place] for name, values in self.block.items()}
        minibatch = self.x[draws["rows"]]
        value = self.objective.value(self.weights, minibatch, draws, self.settings)
        require_answer("objective.value()", value, (len(self.generators),))
        gradients = torch.autograd.grad(-value.sum(), list(self.weights.values()))
        for weight, gradient in zip(self.weights.values(), gradients, strict=True):
            weight.grad = gradient
        self.adam.step()
        self.objectives[self.num_steps] = value.detach()
        self.place += 1
        self.num_steps += 1

    def _draw_block(self) -> None:
        """Draw a block for some steps, step by step from the generator of every run."""
        shape = (self.settings.batch_size, self.x.shape[1])
        bytes_a_step = 8 * shape[0] * shape[1] * len(self.generators)
        remaining = self.settings.num_steps - self.num_steps
        count = min(remaining, max(1, _BLOCK_BYTES // bytes_a_step))
        rows = Noise(partial(torch.randint, len(self.x)), shape[:1], torch.int64)
        noise = {"rows": rows} | self.objective.noise(shape, self.settings)
        block = drawn(noise, count, self.generators)
        rows_on_device = _to(block.pop("rows"), self.x.device)
        self.block = {"rows": rows_on_device} | self.objective.to_device(block, self.x.device)
        self.place = 0

    def require_finite(self) -> None:
        """Raise ``FloatingPointError`` where a value of the steps so far is not finite."""
        values = self.objectives[: self.num_steps]
        is_finite = values.isfinite()
        if not is_finite.all():
            step, run = (~is_finite).nonzero()[0].tolist()
            raise FloatingPointError(
                f"the objective is {values[step, run].item()} at step {step} in run {run} of "
                f"{values.shape[1]}. A smaller learning rate may help."
            )
