"""The weights of the book's network as a script, for the explorer of Chapter 11.

They are rounded to half precision, one tensor after the other in the order of their names, and packed
as base64 into ``_static/known-language-weights.js``: a page that is opened from a folder may load
scripts and nothing else. The file is made from ``book/results`` whenever the site is built. It is on
no page; the explorer asks for it when a reader comes near.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from sphinx.application import Sphinx

WEIGHTS = Path(__file__).resolve().parents[1] / "results" / "known_language.safetensors"
NAME = "known-language-weights.js"


def script(weights: Path = WEIGHTS) -> str:
    """What defines ``window.knownLanguageWeights``: names, shapes, and the numbers as base64."""
    tensors = dict(sorted(load_file(weights).items()))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    numbers = [tensor.astype("<f2").ravel() for tensor in tensors.values()]
    packed = {"shapes": shapes, "half": base64.b64encode(np.concatenate(numbers)).decode()}
    return f"window.knownLanguageWeights = {json.dumps(packed)};\n"


def write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        Path(app.outdir, "_static", NAME).write_text(script(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
