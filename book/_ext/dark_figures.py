"""Figures for a dark page: every vector figure gets a twin in colors of its own.

A figure is drawn once, on white paper. Where a page shows it, a second image with the same alternative
text stands beside it, and the theme shows the one or the other; the one that is not shown is not
loaded. The colors of the house style have partners that were chosen for a dark ground (`PARTNERS`);
any other color keeps its hue, and its lightness is turned around between ink and paper. Pixels
inside a figure (an image, a heat map) take the same way, so that words on them stay readable.
"""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sphinx.application import Sphinx

PAPER = "#14181e"  # the theme's dark ground
INK = "#e8ebf0"
PARTNERS = {
    "#ffffff": PAPER,
    "#000000": INK,
    # ink, axes and grids of `book.mplstyle`
    "#222222": INK,
    "#333333": "#d3d9e1",
    "#444444": "#aab3bf",
    "#555555": "#a3adb9",
    "#dddddd": "#303944",
    "#bbbbbb": "#4d5763",
    "#737373": "#98a2af",
    # Okabe and Ito
    "#0072b2": "#56b0ee",
    "#d55e00": "#ff8f4a",
    "#009e73": "#34c796",
    "#cc79a7": "#e59cc5",
    "#56b4e9": "#9fd8fa",
    "#e69f00": "#f3b93c",
    # the looks of `mpt_lml.drawings`
    "#c4cad2": "#3f4956",
    "#7a828c": "#8b95a3",
    "#fde3d0": "#44260f",
    "#a63c00": "#ffb482",
    "#d5e8f5": "#12334e",
    "#00517f": "#a8d6f8",
    "#d3eee4": "#0e3a2b",
    "#00644a": "#8fe2c3",
    # the cover
    "#fbfaf7": PAPER,
    "#d5e5ee": "#1b3a50",
}
COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
PIXELS = re.compile(r"data:image/png;base64,\s*([A-Za-z0-9+/=\s]+)")
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
IMAGE = re.compile(r'<img\b[^>]*\bsrc="(?:\.\./)*_images/([^"/]+\.svg)"[^>]*/?>')
PIXELS_PER_POINT = 4 / 3
GRAY_EXPONENT = 1.5

# Linear light to cone responses, and these to lightness and two axes of hue (Ottosson's Oklab).
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def to_lab(colors: np.ndarray) -> np.ndarray:
    """Oklab of sRGB colors between 0 and 1, (..., 3)."""
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ TO_CONES.T) @ TO_LAB.T


def to_rgb(lab: np.ndarray) -> np.ndarray:
    """sRGB between 0 and 1 of Oklab colors; what no screen can show is cut off."""
    cones = (lab @ np.linalg.inv(TO_LAB).T) ** 3
    linear = np.clip(cones @ np.linalg.inv(TO_CONES).T, 0.0, 1.0)
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def parsed(color: str) -> np.ndarray:
    return np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255


def turned(colors: np.ndarray) -> np.ndarray:
    """Colors with the same hue, and lightness turned around: white is PAPER, black is INK."""
    lab = to_lab(colors)
    dark = to_lab(parsed(PAPER))[0]
    light = to_lab(parsed(INK))[0]
    lightness = lab[..., :1]
    # A strong color of middle lightness stays in the middle: a dark blue would vanish.
    chroma = np.hypot(lab[..., 1:2], lab[..., 2:])
    strength = np.clip(chroma / 0.12, 0.0, 1.0)
    # The eye needs a larger step in the dark: middle grays come out lighter than halfway.
    around = light + (dark - light) * lightness**GRAY_EXPONENT
    middle = 0.62 + 0.22 * around
    lab = np.concatenate([around + strength * (middle - around), lab[..., 1:]], axis=-1)
    neutral = to_lab(parsed(PAPER))[1:]  # the paper's own blue, for grays
    lab[..., 1:] += (1 - strength) * lightness * neutral
    return to_rgb(lab)


def partner(color: str) -> str:
    """The color that stands for another one on a dark page."""
    color = color.lower()
    if color in PARTNERS:
        return PARTNERS[color]
    levels = np.rint(255 * turned(parsed(color))).astype(int)
    return "#" + "".join(f"{level:02x}" for level in levels)


def dark_pixels(found: re.Match[str]) -> str:
    """A PNG in a figure, its pixels in colors for a dark page."""
    image = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGBA")
    pixels = np.array(image)
    pixels[..., :3] = np.rint(255 * turned(pixels[..., :3] / 255))
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def dark(svg: str) -> str:
    """A figure for a dark page."""
    parts = PIXELS.split(svg)
    pixels = [dark_pixels(found) for found in PIXELS.finditer(svg)]
    # Every second part is the text of a picture, in which "#" cannot stand.
    texts = [COLOR.sub(lambda found: partner(found[0]), text) for text in parts[::2]]
    whole = texts[0]
    for picture, text in zip(pixels, texts[1:], strict=True):
        whole += picture + text
    # What has no fill of its own is black by default: here it is ink.
    return whole.replace("<svg ", f'<svg fill="{INK}" ', 1)


def pair(image: str, name: str, svg: str) -> str:
    """The image for a light page, and the one for a dark page, with their size."""
    size = SIZE.search(svg)
    if size and "width=" not in image:
        width, height = (round(float(side) * PIXELS_PER_POINT) for side in size.groups())
        image = image.replace("<img ", f'<img width="{width}" height="{height}" ', 1)
    other = image.replace(name, dark_name(name))
    return f"{with_class(image, 'light')}{with_class(other, 'dark')}"


def dark_name(name: str) -> str:
    return name.removesuffix(".svg") + "-dark.svg"


def with_class(image: str, theme: str) -> str:
    names = f"vector on-{theme} dark-light"
    if 'class="' in image:
        image = image.replace('class="', f'class="{names} ', 1)
    else:
        image = image.replace("<img ", f'<img class="{names}" ', 1)
    return image.replace("<img ", '<img loading="lazy" ', 1)


def show_both(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Give every vector figure of a page its twin, and write that beside the figure."""
    if app.builder.format != "html" or "body" not in context:
        return
    sources = {name: source for source, name in app.builder.images.items()}
    folder = Path(app.outdir, app.builder.imagedir)

    def doubled(found: re.Match[str]) -> str:
        name = found[1]
        if name not in sources:
            return found[0]
        svg = Path(app.srcdir, sources[name]).read_text(encoding="utf-8")
        target = folder / dark_name(name)
        if not target.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(dark(svg), encoding="utf-8")
        return pair(found[0], name, svg)

    context["body"] = IMAGE.sub(doubled, context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", show_both)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
