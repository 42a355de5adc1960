"""Data of the paper: its draw from a Gaussian, and the curves that the authors stored."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import Count, Index, checked
from mpt_lml.data.sources import verified
from mpt_lml.files import book_file

# Of its lines, whatever ends them.
_SHA256 = "d23dfb0ea9c8a57a807a2099186b11351d777c80912b4fc27ba63c974bee0ad6"


class GaussianDraw(NamedTuple):
    """Data of the paper's PPCA experiments with the loadings they were drawn from."""

    x: Float[Tensor, "N D"]
    loadings: Float[Tensor, "D K"]


@checked
def paper_gaussian(
    num_data: Count, num_features: Count, latent_dim: Index, *, generator: torch.Generator
) -> GaussianDraw:
    """The paper's draw of data, number for number: x = Z Wᵀ + ε/5 with **one** ε a datum.

    W (D, K), Z (N, K) and ε (N, 1) are drawn in float32 and in this order, as the authors' published
    code does. The noise is shared by all D coordinates and has standard deviation 1/5 where the
    model has variance 1/5: for printed numbers only; elsewhere ``PPCA.sample``.

    Args:
        num_data: N.
        num_features: D.
        latent_dim: K.
        generator: what is drawn from.

    Returns:
        Data (N, D) and loadings (D, K), float64.

    >>> draw = paper_gaussian(100, 6, 2, generator=torch.Generator().manual_seed(1991))
    >>> draw.x.shape, draw.loadings.shape
    (torch.Size([100, 6]), torch.Size([6, 2]))
    """
    single = torch.float32  # named: the numbers must not follow torch's default dtype
    loadings = torch.randn(num_features, latent_dim, generator=generator, dtype=single)
    latent = torch.randn(num_data, latent_dim, generator=generator, dtype=single)
    noise = torch.randn(num_data, 1, generator=generator, dtype=single) * (1.0 / 5.0)
    return GaussianDraw((latent @ loadings.T + noise).double(), loadings.double())


def published_curves() -> dict[str, Float[Tensor, " R"]]:
    """BERT-base on five sets of GLUE, as the authors stored it (Table 2; Figure 5, right).

    Source: ``data/results/`` of the paper's public repository; see the README beside the table.

    Returns:
        By ``KIND/SET`` the score at masking rates of 1, ..., 99 %, (99,), float64, in nats per hidden
        token. KIND is ``random`` or ``pretrained``, SET ``ax``, ``cola``, ``qnli``, ``mrpc`` or
        ``sst2``.

    Raises:
        CorruptDataError: where the table was changed.

    >>> published_curves()["random/ax"].shape
    torch.Size([99])
    """
    path = book_file("results/published_curves/bert_base.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    verified(path, _SHA256, content="\n".join(lines).encode())
    table = np.genfromtxt(lines, delimiter=",", names=True)
    return {
        f"{kind}/{name}": torch.from_numpy(table[f"{name}_{kind}"].copy())
        for kind in ("random", "pretrained")
        for name in ("ax", "cola", "qnli", "mrpc", "sst2")
    }
