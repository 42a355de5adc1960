"""Figures: leaves that take results and an ``ax`` and compute nothing but positions (wing)."""

from __future__ import annotations

import math
from importlib import resources

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from mpt_lml.results import MaskCurve


def use_style() -> None:
    """Use the book's matplotlib style (``book.mplstyle``) from here on."""
    with resources.as_file(resources.files("mpt_lml") / "book.mplstyle") as path:
        plt.style.use(path)


def bits_per_dimension(nats: float, num_features: int) -> float:
    """−nats / (D ln 2): the unit of compression, for a log-probability of D coordinates."""
    return -nats / (num_features * math.log(2.0))


def mask_curve(
    curve: MaskCurve,
    *,
    ax: Axes,
    label: str | None = None,
    color: str | None = None,
    rate_axis: bool = False,
    area: bool = False,
) -> None:
    """Draw S(x; M) against M (or the rate M/D), with two standard errors shaded where there are any.

    ``area=True`` shades the area between curve and zero, which is log p(x) by Proposition 1.
    """
    position = (curve.mask_rate if rate_axis else curve.num_masked).numpy()
    score, error = curve.score.numpy(), 2 * np.nan_to_num(curve.standard_error.numpy())
    marker = "o" if len(score) <= 30 else ""
    (line,) = ax.plot(position, score, marker=marker, label=label, color=color)
    if error.any():
        ax.fill_between(
            position, score - error, score + error, color=line.get_color(), alpha=0.25, lw=0
        )
    if area:
        ax.fill_between(position, 0.0, score, color=line.get_color(), alpha=0.15, lw=0)
    ax.set_xlabel("mask rate M/D" if rate_axis else "masked coordinates M")
    ax.set_ylabel("S(x; M)  [nats / coordinate]")


def convergence(
    difference: Float[Tensor, "runs P"], *, ax: Axes, label: str | None = None, color: str = "C0"
) -> None:
    """Draw LML minus estimate after 1..P masks per size, one faint line per run, and the zero line."""
    masks_per_size = np.arange(1, difference.shape[1] + 1)
    for index, row in enumerate(difference.numpy()):
        ax.plot(masks_per_size, row, color=color, alpha=0.55, label=None if index else label)
    ax.axhline(0.0, color="#444444", lw=1.0, ls="--")
    ax.set_xlabel("masks per size P")
    ax.set_ylabel("LML − estimate  [nats]")
