"""Draw the cover, ``book/_static/cover.svg``: an exact mask-rate curve with its area shaded.

    python book/_tools/cover.py [FILE]

The curve is that of a PPCA model with D = 14 coordinates, from all 16,383 masks. The same command
always writes the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
import torch

from mpt_lml import PPCA, curves, plots

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "_static" / "cover.svg"
PAPER, INK, BLUE, WASH = "#fbfaf7", "#222222", "#0072B2", "#d5e5ee"


def exact_curve_of_a_model():
    g = torch.Generator().manual_seed(3)
    loadings = torch.randn(14, 4, generator=g, dtype=torch.float64)
    model = PPCA(loadings, noise_variance=0.2)
    x = model.sample(200, generator=g)
    curve = curves.exact_curve(model, x)
    area, truth = curve.area(), model.log_marginal(x).mean().item()
    if abs(area - truth) > 1e-10:
        raise RuntimeError(f"the shaded area is {area}, the log marginal likelihood {truth}")
    return curve


def draw(curve) -> plt.Figure:
    plots.use_style()
    mpl.rcParams.update({"svg.hashsalt": "cover", "svg.fonttype": "path"})
    fig, ax = plt.subplots(figsize=(7.6, 3.5), facecolor=PAPER)
    ax.set_facecolor(PAPER)
    # One bar of width 1 for each size: together they are the sum of Proposition 1, to scale.
    ax.bar(curve.num_masked, curve.score, width=1.0, color=WASH, edgecolor=PAPER, lw=1.2)
    plots.mask_curve(curve, ax=ax, color=BLUE)
    ax.axhline(0.0, color=INK, lw=1.0)
    ax.grid(False)
    ax.set_xlim(0.6, curve.num_features + 0.4)
    ax.set_ylim(top=0.04)
    ax.set_xticks(range(1, curve.num_features + 1))
    ax.set_xlabel("how many of the 14 coordinates are hidden, M")
    ax.set_ylabel("score S(x; M), nats")
    box = {"facecolor": WASH, "edgecolor": "none", "pad": 3.0}
    words = {"color": INK, "ha": "center", "bbox": box}
    ax.text(10, -0.50, "this area is", fontsize=13, va="bottom", **words)
    ax.text(10, -0.53, r"$\log\, p(x)$", fontsize=19, va="top", **words)
    return fig


def main(target: Path = TARGET) -> None:
    figure = draw(exact_curve_of_a_model())
    figure.savefig(target, facecolor=PAPER, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    print(f"wrote {target.name}, {target.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
