"""Draw the cover, ``book/_static/cover.svg``: an exact mask-rate curve with its area shaded.

    python book/_tools/cover.py [FILE]
    python book/_tools/cover.py shared-link      the picture that goes with a shared link
    python book/_tools/cover.py bert [FILE]      one rate against the area, for BERT-base
    python book/_tools/cover.py links [FILE]     from the game to a skill: the picture of the epilogue

The curve is that of a PPCA model with D = 14 coordinates. The same command writes the same file.
"""

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
import torch

from mpt_lml import PPCA, curves, data, drawings, plots

TARGET = Path(__file__).resolve().parents[1] / "_static" / "cover.svg"
BERT = TARGET.with_name("bert-base.svg")
LINKS = TARGET.with_name("links.svg")
SHARED = TARGET.with_name("shared-link.png")  # those who show links take no SVG
PAPER, INK, BLUE, WASH = "#fbfaf7", "#222222", "#0072B2", "#d5e5ee"
ORANGE, WORDS, FALSE_WASH = plots.COLORS["too high"], plots.COLORS["too high, words"], "#fde3d0"
PINK, PINK_WASH = plots.COLORS["bert-base"], "#f3e1eb"


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


def draw_shared_link(target: Path = SHARED) -> None:
    """1200 x 630 pixels: the question, the answer, the curve; nothing that needs good eyes."""
    g = torch.Generator().manual_seed(3)
    model = PPCA(torch.randn(14, 4, generator=g, dtype=torch.float64), noise_variance=0.2)
    curve = curves.exact_curve(model, model.sample(200, generator=g))
    fig = plt.figure(figsize=(12, 6.3), facecolor=PAPER)
    ax = fig.add_axes((0.06, 0.1, 0.88, 0.5), facecolor=PAPER)
    ax.bar(curve.num_masked, curve.score, width=1.0, color=WASH, edgecolor=PAPER, lw=2)
    ax.plot(curve.num_masked, curve.score, color=BLUE, lw=5, marker="o", ms=10)
    ax.axhline(0.0, color=INK, lw=2)
    ax.set(xlim=(0.4, 14.6), xticks=[], yticks=[])
    for side in ax.spines.values():
        side.set_visible(False)
    ax.text(9.6, -0.34, r"this area is $\log\, p(x)$", fontsize=34, color=INK, ha="center")
    fig.text(0.06, 0.82, "Why Masked Pre-training Works", fontsize=40, weight="bold", color=INK)
    says = "Hide one word, two, all of them. Add up the scores."
    fig.text(0.06, 0.7, says, fontsize=27, color=INK)
    fig.text(0.94, 0.04, "1 … 14 of 14 hidden", fontsize=20, color=INK, ha="right")
    fig.savefig(target, facecolor=PAPER, dpi=100, metadata={"Software": None})


def draw_bert(target: Path = BERT) -> None:
    """The authors' curves of BERT-base, their mean over five sets, and the rectangle at 15 %."""
    published = data.published_curves()
    sets = ("ax", "cola", "qnli", "mrpc", "sst2")
    mean = torch.stack([published[f"pretrained/{name}"] for name in sets]).mean(dim=0)
    percent = torch.arange(1, 100)
    at_15, height = mean[14].item(), mean.mean().item()
    crossing = int((mean - height).abs().argmin()) + 1
    plots.use_style()
    mpl.rcParams.update({"svg.hashsalt": "bert", "svg.fonttype": "path"})
    fig, ax = plt.subplots(figsize=(5.4, 3.7))
    ax.fill_between(percent, mean, 0, color=PINK_WASH, lw=0)
    ax.fill_between(percent, mean, at_15, where=mean < at_15, color=FALSE_WASH, lw=0)
    ax.plot([0, 100], [at_15, at_15], color=ORANGE, lw=2)
    ax.plot([0, 100], [height, height], color=INK, lw=1.2, ls="--")
    ax.plot(percent, mean, color=PINK, lw=3)
    ax.plot([15, crossing], [at_15, height], "o", color=INK, ms=8)
    ax.text(17, at_15 + 0.12, "15 %: one score, kept up", color=WORDS, va="bottom")
    ax.text(1, height - 0.14, "mean height of the curve", color=INK, va="top")
    ax.text(crossing - 1, height - 0.14, f"{crossing} %", color=INK, va="top", ha="right")
    ax.text(45, -1.3, "the area of the curve", color=INK, ha="center", fontsize=12)
    arrow = {"arrowstyle": "-", "color": WORDS, "shrinkB": 0}
    says = {"color": WORDS, "va": "center", "ha": "right", "arrowprops": arrow}
    ax.annotate("what 15 % does not see", (91, -3.7), (76, -4.9), **says)
    ax.axhline(0.0, color=INK, lw=1.0)
    ax.grid(False)
    ax.set(xlim=(0, 100), ylim=(-5.9, 0.1), xticks=(0, 15, 40, crossing, 100))
    ax.set(xlabel="word pieces hidden, in %", ylabel="score, nats a piece")
    fig.savefig(target, metadata={"Date": None, "Creator": None})


def draw_links(target: Path = LINKS) -> None:
    """Four steps from guessing to a skill, each with what is known of it."""
    plots.use_style()
    mpl.rcParams.update({"svg.hashsalt": "links", "svg.fonttype": "path"})
    ax = drawings.canvas(10, 8.2)
    stations = (
        "hide some words, guess each of them",
        "log p(x) of the whole sentence",
        "all that ties the words together",
        "features: vectors that help elsewhere",
        "a new task is learned from little",
    )
    links = (
        ("summed", "the scores add up:", "proved, if the guesses fit together"),
        ("summed", "each tie is worth its nats:", "proved, at the top of every size"),
        (
            "asked",
            "are better guesses better features?",
            "with one hidden: in full on one language of three",
        ),
        ("faint", "do they help where you need them?", "no theorem says so"),
    )
    heights = [7.75 - 1.8 * number for number in range(5)]
    for words, height in zip(stations, heights, strict=True):
        drawings.tokens([words], ["visible"], ax=ax, at=(0.9, height), width=8.2)
    for (look, asks, says), height in zip(links, heights, strict=False):
        drawings.arrow((2.2, height), (2.2, height - 1.8), ax=ax, look=look)
        drawings.write(asks, ax=ax, at=(2.7, height - 0.7), look=look, align="left")
        drawings.write(says, ax=ax, at=(2.7, height - 1.1), look=look, align="left")
    plt.gcf().savefig(target, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    if sys.argv[1:] == ["shared-link"]:
        draw_shared_link()
    elif sys.argv[1:2] == ["bert"]:
        draw_bert(*map(Path, sys.argv[2:3]))
    elif sys.argv[1:2] == ["links"]:
        draw_links(*map(Path, sys.argv[2:3]))
    else:
        draw(*map(Path, sys.argv[1:2]))
