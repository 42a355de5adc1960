"""Drawn pictures: tokens, tables, graphs, arrows, braces and clocks in one house style.

Each function takes an ``ax`` and places on it and draws one thing; it computes nothing. A picture begins
with :func:`canvas`, on which a unit is about half an inch. Ten units are a page's column, and words
stay readable when a phone shows them at its width.

What a thing is shows in its look:

===========  =================================================================
``visible``  observed: ink on paper
``hidden``   hidden, and not asked for here: a gray cover
``asked``    hidden and asked for: orange
``latent``   never observed; a cause, a state, a prior: blue
``summed``   what is added up, and the sum: green
``faint``    there, but not part of the story
===========  =================================================================
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

from mpt_lml.checks import Interval, NonNegative, Positive, checked

__all__ = ["arrow", "bars", "brace", "canvas", "clock", "node", "table", "tokens", "write"]

Look = Literal["visible", "hidden", "asked", "latent", "summed", "faint"]
Place = Sequence[float]
"""Place as x and y, in units of the canvas."""

INCHES_PER_UNIT = 0.48
TEXT_SIZE = 10.0  # points: 11 pixels on a phone that shows ten units on its width of 390 pixels
SYMBOL_SIZE = 12.0  # the index of a symbol has 70 % of it: 9 pixels on a phone
LINE_WIDTH = 1.3


class _Colors(NamedTuple):
    fill: str
    edge: str
    text: str


# The edges are Okabe and Ito's colors. `book/_ext/dark_figures.py` has the same for a dark page.
_COLORS = {
    "visible": _Colors("#FFFFFF", "#444444", "#222222"),
    "hidden": _Colors("#C4CAD2", "#7A828C", "#222222"),
    "asked": _Colors("#FDE3D0", "#D55E00", "#A63C00"),
    "latent": _Colors("#D5E8F5", "#0072B2", "#00517F"),
    "summed": _Colors("#D3EEE4", "#009E73", "#00644A"),
    "faint": _Colors("#FFFFFF", "#BBBBBB", "#737373"),
}
_IN_FRONT = ("faint", "hidden", "visible", "latent", "summed", "asked")


@checked
def canvas(
    width: Annotated[float, Interval("(0,100)")], height: Annotated[float, Interval("(0,100)")]
) -> Axes:
    """An empty picture of ``width`` times ``height`` units, without axes.

    Args:
        width: in units of 0.48 inches; ten fill a column.
        height: in the same units.

    Returns:
        The axes of a new figure. The place (0, 0) is their lower left corner.

    >>> canvas(10.0, 4.0).get_xlim() == (0.0, 10.0)
    True
    """
    size = (width * INCHES_PER_UNIT, height * INCHES_PER_UNIT)
    figure = plt.figure(figsize=size, layout="none")
    ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    ax.set_axis_off()
    return ax


@checked
def write(
    words: str,
    *,
    ax: Axes,
    at: Place,
    look: Look = "visible",
    align: Literal["left", "center", "right"] = "center",
    size: Positive = TEXT_SIZE,
) -> None:
    """Write words, which may hold formulas between dollar signs.

    Args:
        words: what to write.
        ax: the axes to write on.
        at: the place of the words' left end, middle or right end, at half their height.
        look: whose color they take.
        align: which of the three ``at`` is.
        size: in points.

    Raises:
        ValueError: for a place that is not two numbers.

    >>> write("the rest", ax=canvas(4.0, 1.0), at=(2.0, 0.5))
    """
    x, y = _numbers("at", at)
    ax.text(x, y, words, color=_COLORS[look].text, ha=align, va="center", size=size)


@checked
def tokens(
    words: Sequence[str],
    looks: Sequence[Look],
    *,
    ax: Axes,
    at: Place,
    width: Positive = 1.0,
) -> list[tuple[float, float]]:
    """A row of coordinates, each in a separate box.

    Args:
        words: of each coordinate; "" leaves a box empty.
        looks: of each coordinate.
        ax: the axes to draw on.
        at: the middle of the first box's left edge.
        width: of a box with its distance to the next.

    Returns:
        The middle of each box, from which arrows can start.

    Raises:
        ValueError: for another number of looks than of words, or a place that is not two numbers.

    >>> tokens(["the", "?"], ["visible", "asked"], ax=canvas(2.0, 1.0), at=(0.0, 0.5))
    [(0.5, 0.5), (1.5, 0.5)]
    """
    if len(words) != len(looks):
        raise ValueError(f"there must be a look for each word, got {len(looks)} and {len(words)}.")
    left, y = _numbers("at", at)
    centers = []
    for number, (word, look) in enumerate(zip(words, looks, strict=True)):
        x = left + (number + 0.5) * width
        colors = _COLORS[look]
        half_width = 0.5 * width - 0.06
        box = FancyBboxPatch(
            (x - half_width, y - 0.36),
            2 * half_width,
            0.72,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colors.fill,
            edgecolor=colors.edge,
            linewidth=LINE_WIDTH,
        )
        ax.add_patch(box)
        write(word, ax=ax, at=(x, y), look=look)
        centers.append((x, y))
    return centers


@checked
def table(
    words: Sequence[Sequence[str]],
    looks: Sequence[Sequence[Look]],
    *,
    ax: Axes,
    at: Place,
    width: Positive = 1.0,
    height: Positive = 0.7,
) -> None:
    """A table of cells: probabilities, the patches of an image, rows and columns of data.

    Args:
        words: of each cell, row by row; "" leaves a cell empty.
        looks: of each cell, row by row.
        ax: the axes to draw on.
        at: the upper left corner.
        width: of a cell.
        height: of a cell.

    Raises:
        ValueError: for rows of words and looks of different lengths, or a wrong place.

    >>> table([["0.5", "0.5"]], [["visible", "summed"]], ax=canvas(2.0, 1.0), at=(0.0, 1.0))
    """
    left, top = _numbers("at", at)
    if [len(row) for row in words] != [len(row) for row in looks]:
        raise ValueError("words and looks must have the same rows and columns.")
    for i, row in enumerate(looks):
        for j, look in enumerate(row):
            colors = _COLORS[look]
            x = left + j * width
            y = top - (i + 1) * height
            cell = Rectangle((x, y), width, height, fc=colors.fill, ec=colors.edge, lw=LINE_WIDTH)
            # Neighbors share an edge; it has the color of the one that matters more.
            cell.set_zorder(1 + 0.1 * _IN_FRONT.index(look))
            ax.add_patch(cell)
            write(words[i][j], ax=ax, at=(x + width / 2, y + height / 2), look=look)


@checked
def node(
    word: str, *, ax: Axes, at: Place, look: Look = "visible", radius: Positive = 0.42
) -> None:
    """A node of a graph.

    Args:
        word: in the node, a symbol.
        ax: the axes to draw on.
        at: its middle.
        look: of the node.
        radius: of the circle.

    Raises:
        ValueError: for a place that is not two numbers.

    >>> node("$z$", ax=canvas(1.0, 1.0), at=(0.5, 0.5), look="latent")
    """
    colors = _COLORS[look]
    center = _numbers("at", at)
    ax.add_patch(Circle(center, radius, fc=colors.fill, ec=colors.edge, lw=LINE_WIDTH, zorder=3))
    ax.text(*center, word, color=colors.text, ha="center", va="center", size=SYMBOL_SIZE, zorder=4)


@checked
def arrow(
    start: Place,
    end: Place,
    *,
    ax: Axes,
    word: str = "",
    look: Look = "visible",
    gap: NonNegative = 0.45,
) -> None:
    """An arrow, which may have a word at its middle.

    Args:
        start: the place it comes from.
        end: the place it points to.
        ax: the axes to draw on.
        word: on the arrow, on a ground of its own.
        look: whose color it takes.
        gap: left free at both ends, where a node or a token stands.

    Raises:
        ValueError: for a place that is not two numbers.

    >>> arrow((0.0, 0.5), (3.0, 0.5), ax=canvas(3.0, 1.0), word="p")
    """
    begin = np.array(_numbers("start", start))
    stop = np.array(_numbers("end", end))
    inches = ax.get_figure().dpi_scale_trans.inverted()  # type: ignore[union-attr]
    to_inches = ax.transData + inches
    points_per_unit = 72 * float(to_inches.transform((1, 0))[0] - to_inches.transform((0, 0))[0])
    ax.add_patch(
        FancyArrowPatch(
            tuple(begin),
            tuple(stop),
            arrowstyle="-|>,head_length=4.5,head_width=2.2",
            color=_COLORS[look].edge,
            linewidth=LINE_WIDTH,
            shrinkA=gap * points_per_unit,
            shrinkB=gap * points_per_unit,
            zorder=0.9,  # behind the boxes and nodes that it joins
        )
    )
    if word:
        x, y = (begin + stop) / 2
        ground: dict[str, Any] = {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 1.5}
        place: dict[str, Any] = {"ha": "center", "va": "center", "size": TEXT_SIZE, "zorder": 3}
        ax.text(x, y, word, color=_COLORS[look].text, bbox=ground, **place)


@checked
def brace(start: Place, end: Place, *, ax: Axes, word: str = "", look: Look = "summed") -> None:
    """A brace below what it joins, from left to right, and the sum or name below its tip.

    Args:
        start: its left end.
        end: its right end, at the same height.
        ax: the axes to draw on.
        word: below the tip.
        look: whose color it takes.

    Raises:
        ValueError: for ends at different heights, an end that is not right of the start, or places
            that are not two numbers.

    >>> brace((0.0, 1.0), (4.0, 1.0), ax=canvas(4.0, 1.0), word="their sum")
    """
    left, y = _numbers("start", start)
    right, height_right = _numbers("end", end)
    if y != height_right or not left < right:
        raise ValueError(f"end must lie right of start, at its height, got {end} and {start}.")
    depth = 0.16
    middle = (left + right) / 2
    corner = min(0.25, (right - left) / 4)
    places = [
        (left, y),
        (left, y - depth),
        (left + corner, y - depth),
        (middle - corner, y - depth),
        (middle, y - depth),
        (middle, y - 2 * depth),
        (middle, y - depth),
        (middle + corner, y - depth),
        (right - corner, y - depth),
        (right, y - depth),
        (right, y),
    ]
    turn = Path.CURVE3
    codes = [Path.MOVETO, turn, turn, Path.LINETO, turn, turn, turn, turn, Path.LINETO, turn, turn]
    line = PathPatch(Path(places, codes), fc="none", ec=_COLORS[look].edge, lw=LINE_WIDTH)
    ax.add_patch(line)
    write(word, ax=ax, at=(middle, y - 2 * depth - 0.3), look=look)


@checked
def clock(
    times: Sequence[str], *, ax: Axes, at: Place, width: Positive, word: str = ""
) -> list[tuple[float, float]]:
    """A line of time with equally spaced ticks, from left to right.

    Args:
        times: what stands below each tick; at least two.
        ax: the axes to draw on.
        at: the place of the first tick.
        width: from the first tick to the last.
        word: behind the arrow's head, right of the last tick.

    Returns:
        The places of the ticks.

    Raises:
        ValueError: for fewer than two times, or a place that is not two numbers.

    >>> clock(["0", "1/2", "1"], ax=canvas(6.0, 1.0), at=(0.5, 0.5), width=4.0, word="t")
    [(0.5, 0.5), (2.5, 0.5), (4.5, 0.5)]
    """
    if len(times) < 2:
        raise ValueError(f"a clock needs two times or more, got {len(times)}.")
    left, y = _numbers("at", at)
    ticks = [(left + width * k / (len(times) - 1), y) for k in range(len(times))]
    arrow((left - 0.1, y), (left + width + 0.6, y), ax=ax, gap=0.0)
    for (x, _), time in zip(ticks, times, strict=True):
        ax.plot([x, x], [y - 0.1, y + 0.1], color=_COLORS["visible"].edge, lw=LINE_WIDTH)
        write(time, ax=ax, at=(x, y - 0.42))
    write(word, ax=ax, at=(left + width + 0.75, y), align="left")
    return ticks


@checked
def bars(
    heights: Sequence[float], *, ax: Axes, at: Place, width: Positive = 0.7, look: Look = "summed"
) -> list[tuple[float, float]]:
    """Bars side by side without gaps, as terms of a sum are drawn to scale.

    Args:
        heights: of each bar; negative ones hang below the line.
        ax: the axes to draw on.
        at: the left end of the line on which they stand.
        width: of a bar.
        look: of the bars.

    Returns:
        The middle of each bar's far end.

    Raises:
        ValueError: for a place that is not two numbers.

    >>> bars([1.0, 0.5], ax=canvas(2.0, 1.0), at=(0.0, 0.0), width=1.0)
    [(0.5, 1.0), (1.5, 0.5)]
    """
    left, base = _numbers("at", at)
    colors = _COLORS[look]
    ends = []
    for number, height in enumerate(heights):
        x = left + number * width
        ax.add_patch(
            Rectangle((x, base), width, height, fc=colors.fill, ec=colors.edge, lw=LINE_WIDTH)
        )
        ends.append((x + width / 2, base + height))
    return ends


def _numbers(name: str, place: Place) -> tuple[float, float]:
    """The two numbers of a place; the annotation has seen that it holds numbers."""
    if len(place) != 2:
        raise ValueError(f"{name} must be two numbers, x and y, got {len(place)}.")
    x, y = place
    return float(x), float(y)
