"""The book's two small networks as scripts, for the explorers that run them inside a page.

A page that is opened from a folder may load scripts and nothing else. So code and weights, packed as
base64, are written into ``_static`` whenever the site is built. They are on no page: an explorer adds
them when a reader comes near it, or begins to type.

* ``known-language-weights.js``: weights of Chapter 11's network, rounded to half precision.
* ``small-bert.js``: tokenizer and network of the small BERT. Its matrices are rounded to 8 bits: 32
  numbers of a row are one of half precision, times whole numbers from −127 to 127. From the vectors of
  the word pieces their mean is taken first.

Both begin with ``networks/matrices.js``.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from sphinx.application import Sphinx

CODE = Path(__file__).with_name("networks")
RESULTS = Path(__file__).resolve().parents[1] / "results"
KNOWN_LANGUAGE = "known-language-weights.js"
SMALL_BERT = "small-bert.js"
WORDS = "model.embeddings.tok_embeddings.weight"
SHARE = 32
"""Numbers of a row that share a scale."""


def known_language(weights: Path = RESULTS / "known_language.safetensors") -> str:
    """What defines ``matrices`` and ``knownLanguageWeights``: names, shapes, and numbers as base64."""
    tensors = dict(sorted(load_file(weights).items()))
    numbers = [tensor.astype("<f2").ravel() for tensor in tensors.values()]
    packed = {"shapes": shapes(tensors), "half": packed_base64(numbers)}
    return f"{code('matrices')}window.knownLanguageWeights = {json.dumps(packed)};\n"


def small_bert(folder: Path = RESULTS / "small_bert") -> str:
    """What defines ``matrices`` and ``smallBert``: tokenizer, network, worker, and what they need."""
    tensors = dict(sorted(load_file(folder / "model.safetensors").items()))
    tensors["center"] = tensors[WORDS].astype("f4").mean(axis=0).astype("<f2")
    small, half = [], []
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            half.append(tensor.astype("<f2"))
            continue
        numbers = tensor.astype("f4") - (tensors["center"] if name == WORDS else 0)
        parts = numbers.reshape(-1, SHARE)
        scales = (abs(parts).max(axis=1) / 127).astype("<f2")
        steps = parts / np.maximum(scales, np.finfo("f2").tiny)[:, None].astype("f4")
        small.append(steps.round().clip(-127, 127).astype("i1").ravel())
        half.append(scales)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    packed = {
        "vocabulary": sorted(vocabulary, key=vocabulary.__getitem__),
        "shapes": shapes(tensors),
        "share": SHARE,
        "half": packed_base64(half),
        "int8": packed_base64(small),
    }
    names = "Tokenizer, Network, worker"
    made = f"window.smallBert = {{ {names}, packed: {json.dumps(packed)} }};\n"
    return code("matrices") + code("small-bert") + made


def code(name: str) -> str:
    return (CODE / f"{name}.js").read_text(encoding="utf-8")


def shapes(tensors: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def packed_base64(numbers: list[Any]) -> str:
    return base64.b64encode(np.concatenate(numbers)).decode()


def write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        static = Path(app.outdir, "_static")
        static.joinpath(KNOWN_LANGUAGE).write_text(known_language(), encoding="utf-8")
        static.joinpath(SMALL_BERT).write_text(small_bert(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
