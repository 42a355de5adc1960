"""The maxima of the masked objective at fixed sizes, and how training gets to them from small starts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks, objectives
from mpt_lml.experiments.registry import Finding, Outcome, Progress, checksum, experiment, silent
from mpt_lml.experiments.training import (
    Draw,
    Problem,
    Training,
    initial_loadings,
    over,
    problem,
    train_together,
)
from mpt_lml.files import read_json, write_json
from mpt_lml.masks import SizeLaw

REACHED = 1e-5
"""Nats below the maximum of an objective that count as having reached it."""


@dataclass(frozen=True)
class FixedSizes(Training):
    """Figure 2's problem at several truths, from starts of several scales.

    ``truths`` are seeds of the data and of the loadings behind them (the first is the paper's),
    ``seeds`` those of the starts W₀, which ``scales`` multiplies. Training runs at each of ``sizes``
    and at every size.
    """

    seeds: tuple[int, ...] = tuple(range(20))
    truths: tuple[int, ...] = (1991, 1, 2, 3, 4)
    scales: tuple[float, ...] = (1.0, 0.3, 0.1, 0.01)
    sizes: tuple[int, ...] = (1, 2, 8, 9)

    @classmethod
    def paper(cls) -> FixedSizes:
        """The settings of Figure 2, twenty starts a truth and scale."""
        return cls()

    @classmethod
    def quick(cls) -> FixedSizes:
        """Two truths and scales at D = 5."""
        return cls(
            num_data=200,
            num_features=5,
            num_epochs=40,
            seeds=(0, 1),
            truths=(1991, 1),
            scales=(1.0, 0.1),
            sizes=(1, 4),
        )


def climb(
    of: Problem, law: SizeLaw, starts: Float[Tensor, "B D K"], *, max_steps: int = 1000
) -> Float[Tensor, "B D K"]:
    """A local maximum of the exact objective near every start, by BFGS, all of them side by side.

    Steps are at most half a unit long and backtrack until the objective rises, so that a start is
    not thrown into another's neighborhood. A run ends where the gradient is below 1e-6, or where
    rounding leaves nothing to gain.
    """

    def evaluate(flat: Float[Tensor, "B DK"]) -> tuple[Tensor, Tensor]:
        point = flat.detach().requires_grad_()
        loadings = point.unflatten(1, starts.shape[1:])
        value = objectives.exact(loadings, of.best.noise_variance, of.moment, law)
        (slope,) = torch.autograd.grad(value.sum(), point)
        return value.detach(), slope

    x = starts.detach().flatten(1)
    end, active = x.clone(), torch.arange(len(x))
    value, slope = evaluate(x)
    size = x.shape[1]
    inverse = torch.eye(size, dtype=x.dtype).expand(
        len(x), size, size
    )  # of minus the Hessian, as far as known
    for step in range(max_steps):
        direction = (inverse @ slope[..., None])[..., 0]
        direction = direction * (0.5 / direction.norm(dim=1, keepdim=True)).clamp(max=1.0)
        gain = (direction * slope).sum(dim=1)
        length = torch.ones_like(gain)
        new, new_value, new_slope = x + direction, *evaluate(x + direction)
        for _ in range(40):
            short = ~(new_value >= value + 1e-4 * length * gain)
            if not short.any():
                break
            length[short] /= 2
            new[short] = x[short] + length[short, None] * direction[short]
            new_value[short], new_slope[short] = evaluate(new[short])
        inverse = _bfgs(inverse, new - x, slope - new_slope, first=step == 0)
        better = new_value > value
        x, slope = (
            torch.where(better[:, None], new, x),
            torch.where(better[:, None], new_slope, slope),
        )
        value = torch.where(better, new_value, value)
        end[active] = x
        going = better & (slope.abs().amax(dim=1) > 1e-6)
        if not going.any():
            break
        active, x, slope = active[going], x[going], slope[going]
        value, inverse = value[going], inverse[going]
    return end.unflatten(1, starts.shape[1:])


def _bfgs(
    inverse: Float[Tensor, "B n n"], moved: Tensor, bent: Tensor, *, first: bool
) -> Float[Tensor, "B n n"]:
    """The inverse Hessian after a step ``moved`` that changed the gradient by −``bent``."""
    product = (moved * bent).sum(dim=1)[:, None, None]
    usable = product > 1e-14
    product = product.where(usable, torch.ones_like(product))
    identity = torch.eye(moved.shape[1], dtype=moved.dtype)
    if first:
        inverse = identity * product / bent.square().sum(dim=1).clamp(min=1e-300)[:, None, None]
    left = identity - moved[:, :, None] * bent[:, None, :] / product
    updated = left @ inverse @ left.mT + moved[:, :, None] * moved[:, None, :] / product
    return torch.where(usable, updated, inverse)


def product_error(loadings: Float[Tensor, "D K"], reference: Float[Tensor, "D K"]) -> float:
    """Relative Frobenius error of W Wᵀ, which unlike W is not free to rotate."""
    truth = reference @ reference.T
    return ((loadings @ loadings.T - truth).norm() / truth.norm()).item()


@experiment(
    "fixed-sizes",
    title="Maxima of the masked objective at fixed sizes, by truth and start scale",
    cost="about 10 min",
    config=FixedSizes,
    resumable=True,
    gpu=False,
)
def fixed_sizes(
    config: FixedSizes,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Both draws, every truth, from every start; always on the CPU.

    Arrays, for draw in (paper, model), in nats: ``lost/DRAW`` (truths, sizes), the LML lost at the
    maximum of a size's exact objective; ``below/DRAW`` (truths, sizes, scales, starts), how far
    below that maximum climbing the exact objective ends; ``short/DRAW`` (truths, sizes + 1, scales,
    starts), how far below its own maximum the LML is over the last tenth of training by sampled
    masks, with every size last; ``bias/DRAW`` (truths, scales, starts), objective minus LML at every
    size, mean over the epochs. The maximum of an objective is the best end of all its climbs,
    one of which starts at the maximum of the LML.
    """
    draws: tuple[Draw, ...] = ("paper", "model")
    cells = [(draw, truth) for draw in draws for truth in config.truths]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    used = []
    for draw, truth in progress(cells, "draw, truth"):
        own = dataclasses.replace(config, data_seed=truth)
        of = problem(own, draw)
        used.append(of.x)
        path = None if checkpoints is None else checkpoints / f"{draw}-{truth}.json"
        found[draw, truth] = _kept(path, config) or _cell(own, of)
        if path is not None:
            write_json(path, {"settings": repr(config), "cell": found[draw, truth]})
    arrays = {
        f"{name}/{draw}": torch.tensor(
            [found[draw, truth][name] for truth in config.truths], dtype=torch.float64
        )
        for draw in draws
        for name in ("lost", "below", "short", "bias")
    }
    return Outcome(_findings(arrays, config), arrays, checksum(used))


def _kept(path: Path | None, config: FixedSizes) -> dict[str, Any] | None:
    """What an earlier run of the same settings left at ``path``."""
    if path is None or not path.exists():
        return None
    content = read_json(path)
    return content["cell"] if content["settings"] == repr(config) else None


def _cell(config: FixedSizes, of: Problem) -> dict[str, Any]:
    starts = initial_loadings(config)[0]
    scaled = torch.tensor(config.scales, dtype=starts.dtype)[:, None, None, None] * starts
    batch = torch.cat([of.best.loadings[None], scaled.flatten(0, 1)])
    best = of.log_marginal(of.best.loadings)
    lost, below = [], []
    for size in config.sizes:
        law = masks.FixedSize(size)
        ends = climb(of, law, batch)
        value = objectives.exact(ends, of.best.noise_variance, of.moment, law)
        lost.append((best - of.log_marginal(ends[value.argmax()])).item())
        below.append((value.max() - value[1:]).view(scaled.shape[:2]).tolist())
    laws = [*map(masks.FixedSize, config.sizes), masks.UniformSize()]
    count = len(config.scales)
    trained = train_together(config, [of] * count, laws, scales=config.scales)
    late = trained["lml"][..., -max(1, config.num_epochs // 10) :].mean(dim=-1)
    bias = (trained["objective"] - trained["lml"])[:, -1, :, :-1].mean(dim=-1)
    short = (best - late).transpose(0, 1)
    return {"lost": lost, "below": below, "short": short.tolist(), "bias": bias.tolist()}


def _findings(arrays: dict[str, Tensor], config: FixedSizes) -> dict[str, Finding]:
    """At the published rate and at full masking but one, over the truths."""
    size = masks.FixedRate(config.fixed_rate).num_masked(config.num_features)
    two, last = config.sizes.index(size), len(config.sizes) - 1
    reached = _share(arrays["below/model"] <= REACHED)
    late = arrays["short/paper"].mean(dim=-1)
    return {
        "claim-varying-rates-unbiased": over(arrays["bias/paper"][0, 0]),
        "claim-fixed-rate-maximizes": over(arrays["lost/paper"][:, two]),
        "fixed-rate-shortfall": over(late[:, two, 0]),
        "fixed-rate-shortfall-model": over(arrays["short/model"].mean(dim=-1)[:, two, 0]),
        "size-9-unit-starts": over(reached[:, last, 0]),
        "size-9-small-starts": over(reached[:, last, -1]),
    }


def _share(reached: Bool[Tensor, "*cells starts"]) -> Float[Tensor, "*cells"]:
    return reached.double().mean(dim=-1)
