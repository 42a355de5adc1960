from __future__ import annotations

import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from models import generator, random_ppca

from mpt_lml import curves, plots
from mpt_lml.results import MaskCurve

pytestmark = pytest.mark.usefixtures("house_style")


def test_the_curve_is_drawn_as_it_is() -> None:
    model = random_ppca(5, 2)
    x = model.sample(4, generator=generator())
    curve = curves.sampled_curve(model, x, 10, generator=generator(1))
    _, ax = plt.subplots()
    plots.mask_curve(curve, ax=ax, area=True)
    (first,) = ax.lines
    assert first.get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert first.get_ydata().tolist() == curve.score.tolist()
    assert "nats" in ax.get_ylabel()
    shaded = ax.collections[-1].get_paths()[0].vertices
    edge = {round(y, 12) for x, y in shaded if x == 3}
    assert edge == {0.0, round(curve.score[2].item(), 12)}


def test_two_standard_errors_are_shaded_on_both_sides() -> None:
    sizes = torch.tensor([1, 2, 3])
    curve = MaskCurve(sizes, -1.0 * sizes, torch.tensor([0.5, math.nan, 0.25]), 3, num_masks=4)
    _, ax = plt.subplots()
    plots.mask_curve(curve, ax=ax)
    vertices = ax.collections[0].get_paths()[0].vertices
    edges = {size: {float(y) for x, y in vertices if x == size} for size in (1, 2, 3)}
    assert edges == {1: {-2.0, 0.0}, 2: {-2.0}, 3: {-3.5, -2.5}}  # no error: no shade


def test_figures_are_opaque_so_that_they_read_on_a_dark_page() -> None:
    assert mpl.colors.to_rgba(mpl.rcParams["figure.facecolor"]) == (1.0, 1.0, 1.0, 1.0)


def test_a_model_has_a_color_of_the_house_style_for_itself() -> None:
    cycle = [color.upper() for color in mpl.rcParams["axes.prop_cycle"].by_key()["color"]]
    models = [plots.COLORS[name].strip("#") for name in ("ppca", "small bert", "bert-base")]
    too_high = plots.COLORS["too high"].strip("#")
    assert len({*models, too_high}) == 4
    assert {*models, too_high} <= {color.strip("#") for color in cycle}
