"""Drawn pictures: what is asked for is on the canvas, at its place, in its look."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle

from mpt_lml import drawings

pytestmark = pytest.mark.usefixtures("house_style")


@pytest.fixture
def ax() -> Axes:
    return drawings.canvas(10.0, 4.0)


def drawn(ax: Axes, kind: type) -> list:
    """The patches of a kind, in the order in which they were drawn."""
    return [patch for patch in ax.patches if type(patch) is kind]


def outline(arrow: FancyArrowPatch) -> np.ndarray:
    """Points of an arrow, in units of the canvas."""
    arrow.get_figure().draw_without_rendering()  # what is left free counts in points
    path = arrow.get_path()
    return path.vertices[path.codes != path.CLOSEPOLY]


def words(ax: Axes) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in ax.texts}


def test_a_unit_is_as_wide_as_high_and_ten_fit_a_phone(ax) -> None:
    corner, right, upper = ax.transData.transform([(0, 0), (1, 0), (0, 1)])
    assert right[0] - corner[0] == pytest.approx(upper[1] - corner[1])
    width_in_pixels = 96 * ax.get_figure().get_figwidth()
    # Words have 4/3 pixels a point, and the figure shrinks to the 390 pixels of a phone.
    assert drawings.TEXT_SIZE * 4 / 3 * 390 / width_in_pixels > 9


def test_tokens_stand_side_by_side(ax) -> None:
    places = drawings.tokens(
        ["a", "?", ""], ["visible", "asked", "hidden"], ax=ax, at=(1.0, 2.0), width=2.0
    )
    assert places == [(2, 2), (4, 2), (6, 2)]
    boxes = drawn(ax, FancyBboxPatch)
    assert [box.get_x() + box.get_width() / 2 for box in boxes] == pytest.approx([2, 4, 6])
    assert all(box.get_x() > 1 for box in boxes)
    assert len({to_hex(box.get_facecolor()) for box in boxes}) == 3
    assert words(ax)["?"] == (4, 2)


def test_a_table_begins_at_its_upper_left_corner(ax) -> None:
    looks = [["faint", "summed"], ["asked", "faint"]]
    drawings.table([["1", "2"], ["3", "4"]], looks, ax=ax, at=(1.0, 3.0), width=2.0, height=1.0)
    assert [cell.get_xy() for cell in drawn(ax, Rectangle)] == [(1, 2), (3, 2), (1, 1), (3, 1)]
    assert words(ax) == {"1": (2, 2.5), "2": (4, 2.5), "3": (2, 1.5), "4": (4, 1.5)}


def test_the_edge_of_a_colored_cell_lies_above_its_neighbors(ax) -> None:
    drawings.table([["", "", ""]], [["visible", "asked", "hidden"]], ax=ax, at=(0.0, 1.0))
    before, colored, after = drawn(ax, Rectangle)
    assert colored.get_zorder() > before.get_zorder() > after.get_zorder()


def test_an_arrow_ends_before_what_it_points_to(ax) -> None:
    drawings.arrow((1.0, 2.0), (5.0, 2.0), ax=ax, word="2", gap=0.5)
    (arrow,) = drawn(ax, FancyArrowPatch)
    path = outline(arrow)
    assert path[:, 0].min() == pytest.approx(1.5, abs=0.05)
    assert path[:, 0].max() < 4.55
    assert words(ax)["2"] == pytest.approx((3, 2))


def test_a_brace_joins_its_ends_above_its_word(ax) -> None:
    drawings.brace((1.0, 3.0), (7.0, 3.0), ax=ax, word="their sum")
    (line,) = drawn(ax, PathPatch)
    vertices = line.get_path().vertices
    assert vertices[0].tolist() == [1, 3]
    assert vertices[-1].tolist() == [7, 3]
    x, y = words(ax)["their sum"]
    assert x == 4
    assert y < vertices[:, 1].min()


def test_a_node_has_its_word_in_the_middle(ax) -> None:
    drawings.node("$z$", ax=ax, at=(2.0, 1.0), look="latent", radius=0.3)
    (circle,) = drawn(ax, Circle)
    assert circle.get_center() == words(ax)["$z$"] == (2, 1)
    assert circle.get_radius() == 0.3


def test_ticks_of_a_clock_divide_its_width_equally(ax) -> None:
    ticks = drawings.clock(["0", "1/2", "1"], ax=ax, at=(1.0, 2.0), width=6.0, word="t")
    assert ticks == [(1, 2), (4, 2), (7, 2)]
    assert [line.get_xdata()[0] for line in ax.lines] == [1, 4, 7]
    assert words(ax)["1/2"][0] == 4
    assert words(ax)["t"][0] > 7


def test_bars_are_to_scale_and_hang_where_they_are_negative(ax) -> None:
    ends = drawings.bars([1.0, -0.5], ax=ax, at=(2.0, 1.0), width=1.0)
    assert ends == [(2.5, 2.0), (3.5, 0.5)]
    assert [bar.get_height() for bar in drawn(ax, Rectangle)] == [1.0, -0.5]


def test_words_stand_where_they_are_aligned(ax) -> None:
    drawings.write("the rest", ax=ax, at=(3.0, 1.0), look="asked", align="left", size=9.0)
    (text,) = ax.texts
    assert (text.get_ha(), text.get_va(), text.get_size()) == ("left", "center", 9)


@pytest.mark.bad_input
def test_what_cannot_be_drawn_is_refused(ax) -> None:
    with pytest.raises(ValueError, match="a look for each word"):
        drawings.tokens(["a", "b"], ["visible"], ax=ax, at=(0.0, 0.0))
    with pytest.raises(ValueError, match="the same rows and columns"):
        drawings.table([["a"]], [["visible", "visible"]], ax=ax, at=(0.0, 0.0))
    with pytest.raises(ValueError, match="at must be two numbers"):
        drawings.write("a", ax=ax, at=(0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="end must lie right of start"):
        drawings.brace((1.0, 0.0), (0.0, 0.0), ax=ax)
    with pytest.raises(ValueError, match="end must lie right of start"):
        drawings.brace((0.0, 0.0), (1.0, 1.0), ax=ax)
    with pytest.raises(ValueError, match="two times or more"):
        drawings.clock(["0"], ax=ax, at=(0.0, 0.0), width=1.0)
