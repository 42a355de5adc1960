"""Figures: leaves that take results and an ``ax`` and compute nothing but positions."""

from importlib import resources
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like

from mpt_lml.checks import checked
from mpt_lml.results import MaskCurve

__all__ = ["COLORS", "mask_curve", "use_style"]

COLORS = {
    "ppca": "#0072B2",
    "small bert": "#009E73",
    "bert-base": "#CC79A7",
    "too high": "#D55E00",
    "too low": "#0072B2",
    "too high, words": "#A63C00",
}
"""Colors of all figures: one for each model, and one for a log-probability that is stated too high.

The lines and areas are colors of ``book.mplstyle``; the words have the contrast that letters need.
"""


def use_style() -> None:
    """Use the book's matplotlib style (``book.mplstyle``) from here on.

    >>> use_style()
    """
    with resources.as_file(resources.files("mpt_lml") / "book.mplstyle") as path:
        plt.style.use(path)


@checked
def mask_curve(curve: MaskCurve, *, ax: Axes, color: Any = None, area: bool = False) -> None:
    """Draw S(x; M), nats, against M, with two standard errors shaded where there are any.

    Args:
        curve: what to draw.
        ax: the axes to draw on.
        color: as matplotlib takes it; by default the next of its cycle.
        area: shade the area between curve and zero, which is log p(x) by Proposition 1.

    >>> import torch
    >>> sizes = torch.arange(1, 4)
    >>> mask_curve(MaskCurve(sizes, -1.0 * sizes, 0.0 * sizes, 3), ax=plt.figure().subplots())
    """
    if color is not None and not is_color_like(color):
        raise ValueError(f"color must be one that matplotlib knows, got {color!r}.")
    position = curve.num_masked.numpy(force=True)
    score = curve.score.numpy(force=True)
    two_errors = 2 * np.nan_to_num(curve.standard_error.numpy(force=True))
    marker = "o" if len(score) <= 30 else ""
    (line,) = ax.plot(position, score, marker=marker, color=color)
    shade: dict[str, Any] = {"color": line.get_color(), "lw": 0}
    if two_errors.any():
        ax.fill_between(position, score - two_errors, score + two_errors, alpha=0.25, **shade)
    if area:
        ax.fill_between(position, 0.0, score, alpha=0.15, **shade)
    ax.set_xlabel("hidden coordinates M")
    ax.set_ylabel("S(x; M)  [nats / coordinate]")
