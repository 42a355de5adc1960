"""What the paper gives: its own draw of data, and the curves that the authors stored."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.data.places import checked
from mpt_lml.files import book_file
from mpt_lml.spec import require, require_memory

# Of its lines, whatever ends them.
_SHA256 = "d23dfb0ea9c8a57a807a2099186b11351d777c80912b4fc27ba63c974bee0ad6"


class GaussianDraw(NamedTuple):
    """Data of the paper's PPCA experiments with the loadings they were drawn from."""

    x: Float[Tensor, "N D"]
    loadings: Float[Tensor, "D K"]


def paper_gaussian(
    num_data: int, num_features: int, latent_dim: int, *, generator: torch.Generator
) -> GaussianDraw:
    """The paper's own draw, number for number: x = Z Wᵀ + ε/5 with **one** ε a datum.

    W (D, K), Z (N, K) and ε (N, 1) are drawn in float32 and in this order, as the authors' published
    code does. The noise is shared by all D coordinates and has standard deviation 1/5 where the
    model has variance 1/5: for printed numbers only; elsewhere ``PPCA.sample``.

    >>> draw = paper_gaussian(100, 6, 2, generator=torch.Generator().manual_seed(1991))
    >>> draw.x.shape, draw.loadings.shape
    (torch.Size([100, 6]), torch.Size([6, 2]))
    """
    require(locals(), "num_data 1.., num_features 1.., latent_dim 0.., generator")
    require_memory(f"{num_data} data", 8 * num_data * num_features, "a smaller num_data")
    single = torch.float32  # named: the numbers must not follow torch's default dtype
    loadings = torch.randn(num_features, latent_dim, generator=generator, dtype=single)
    latent = torch.randn(num_data, latent_dim, generator=generator, dtype=single)
    noise = torch.randn(num_data, 1, generator=generator, dtype=single) * (1.0 / 5.0)
    return GaussianDraw((latent @ loadings.T + noise).double(), loadings.double())


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
