"""Curves that the authors stored."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.data.places import checked
from mpt_lml.files import book_file

__all__ = ["published_curves"]

# Of its lines, whatever ends them.
_SHA256 = "d23dfb0ea9c8a57a807a2099186b11351d777c80912b4fc27ba63c974bee0ad6"


def published_curves() -> dict[str, Float[Tensor, " R"]]:
    """BERT-base on five sets of GLUE (Table 2; Figure 5, right), ``KIND/SET``, nats per hidden token.

    KIND is ``random`` or ``pretrained``, SET ``ax``, ``cola``, ``qnli``, ``mrpc`` or ``sst2``; at
    masking rates of 1, ..., 99 %, float64. Source: ``data/results/`` of the paper's public
    repository; see the README beside the table. Raises ``CorruptDataError`` where it was changed.

    >>> published_curves()["random/ax"].shape
    torch.Size([99])
    """
    path = book_file("results/published_curves/bert_base.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    checked(path, _SHA256, content="\n".join(lines).encode())
    table = np.genfromtxt(lines, delimiter=",", names=True)
    return {
        f"{kind}/{name}": torch.tensor(table[f"{name}_{kind}"])
        for kind in ("random", "pretrained")
        for name in ("ax", "cola", "qnli", "mrpc", "sst2")
    }
