"""Figures for a dark page: their colors can be told apart and read, and the page shows one of two."""

from __future__ import annotations

import base64
import importlib.util
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpt_lml import plots

BOOK = Path(__file__).parents[2] / "book"
SPEC = importlib.util.spec_from_file_location("dark_figures", BOOK / "_ext" / "dark_figures.py")
dark_figures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(dark_figures)

OKABE_ITO = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555"]
FILLS_AND_TEXTS = [
    ("#ffffff", "#222222"),
    ("#ffffff", "#737373"),
    ("#fde3d0", "#a63c00"),
    ("#d5e8f5", "#00517f"),
    ("#d3eee4", "#00644a"),
    ("#c4cad2", "#222222"),
]


def luminance(color: str) -> float:
    levels = dark_figures.parsed(color)
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("fill", "text"), FILLS_AND_TEXTS)
def test_words_can_be_read_on_both_pages(fill: str, text: str) -> None:
    assert contrast(fill, text) >= 4.5
    assert contrast(dark_figures.partner(fill), dark_figures.partner(text)) >= 4.5


@pytest.mark.parametrize("color", OKABE_ITO)
def test_lines_stand_out_from_a_dark_page(color: str) -> None:
    assert contrast(dark_figures.partner(color), dark_figures.PAPER) >= 4.5


def test_the_palette_stays_a_palette() -> None:
    partners = [
        dark_figures.to_lab(dark_figures.parsed(dark_figures.partner(c))) for c in OKABE_ITO
    ]
    for one, other in itertools.combinations(partners, 2):
        assert np.linalg.norm(one - other) > 0.08  # a step is about 0.02


def test_white_becomes_paper_and_black_becomes_ink() -> None:
    ends = dark_figures.turned(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    wanted = [dark_figures.parsed(dark_figures.PAPER), dark_figures.parsed(dark_figures.INK)]
    assert np.abs(ends[0] - wanted[0]).max() < 0.01
    assert np.abs(ends[1] - wanted[1]).max() < 0.05  # without the tint of the ink


def test_hue_stays_and_lightness_turns() -> None:
    light, deep = (
        dark_figures.to_lab(dark_figures.turned(np.array([c, 0.2, 0.2]))) for c in (1.0, 0.4)
    )
    assert deep[0] > light[0]
    assert np.degrees(np.arctan2(light[2], light[1])) == pytest.approx(25, abs=10)


def test_every_part_of_a_figure_is_turned() -> None:
    written = io.BytesIO()
    Image.new("RGB", (2, 1), "white").save(written, "PNG")
    picture = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    figure = (
        '<svg viewBox="0 0 72 36"><path style="fill: #ffffff; stroke: #D55E00"/>'
        f'<use xlink:href="#p6c462fc35f"/><image xlink:href="{picture}"/><path d="M 0 0"/></svg>'
    )
    dark = dark_figures.dark(figure)
    assert f"fill: {dark_figures.PAPER}; stroke: #ff8f4a" in dark
    assert "#p6c462fc35f" in dark
    assert f'<svg fill="{dark_figures.INK}"' in dark  # what has no fill was black
    found = dark_figures.PIXELS.search(dark)
    pixel = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB").getpixel((0, 0))
    assert np.abs(np.array(pixel) / 255 - dark_figures.parsed(dark_figures.PAPER)).max() < 0.01


def test_a_page_has_both_figures_with_one_text() -> None:
    image = '<img alt="A line." src="../_images/a.svg" />'
    both = dark_figures.pair(image, "a.svg", '<svg viewBox="0 0 72 36">')
    assert both.count('alt="A line."') == 2
    assert both.count('width="96" height="48"') == 2
    assert 'class="vector on-light' in both
    assert 'src="../_images/a-dark.svg"' in both


@pytest.mark.parametrize("name", ["too high", "too low"])
def test_an_explorer_has_the_color_of_the_figures(name: str) -> None:
    css = (BOOK / "_static" / "explorers.css").read_text(encoding="utf-8")
    light, dark = re.findall(rf"--oe-{name.replace(' ', '-')}: (#\w+);", css)
    assert light == plots.COLORS[name].lower()
    assert dark == dark_figures.PARTNERS[light]
