"""Draw the cover, ``book/_static/cover.svg``: an exact mask-rate curve with its area shaded.

    python book/_tools/cover.py [FILE]

The curve is that of a PPCA model with D = 14 coordinates. The same command writes the same file.
"""

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
import torch

from mpt_lml import PPCA, curves, plots

TARGET = Path(__file__).resolve().parents[1] / "_static" / "cover.svg"
PAPER, INK, BLUE, WASH = "#fbfaf7", "#222222", "#0072B2", "#d5e5ee"


def draw(target: Path = TARGET) -> None:
    g = torch.Generator().manual_seed(3)
    model = PPCA(torch.randn(14, 4, generator=g, dtype=torch.float64), noise_variance=0.2)
    curve = curves.exact_curve(model, model.sample(200, generator=g))
    plots.use_style()
    mpl.rcParams.update({"svg.hashsalt": "cover", "svg.fonttype": "path"})
    fig, ax = plt.subplots(figsize=(7.6, 3.5), facecolor=PAPER)
    # One bar of width 1 for each size: together they are the sum of Proposition 1, to scale.
    ax.bar(curve.num_masked, curve.score, width=1.0, color=WASH, edgecolor=PAPER, lw=1.2)
    plots.mask_curve(curve, ax=ax, color=BLUE)
    ax.axhline(0.0, color=INK, lw=1.0)
    ax.grid(False)
    ax.set(facecolor=PAPER, xlim=(0.6, 14.4), ylim=(None, 0.04), xticks=range(1, 15))
    ax.set(xlabel="how many of the 14 coordinates are hidden, M", ylabel="score S(x; M), nats")
    words = {"color": INK, "ha": "center", "bbox": {"facecolor": WASH, "ec": "none", "pad": 3.0}}
    ax.text(10, -0.50, "this area is", fontsize=13, va="bottom", **words)
    ax.text(10, -0.53, r"$\log\, p(x)$", fontsize=19, va="top", **words)
    fig.savefig(target, facecolor=PAPER, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:2]))
