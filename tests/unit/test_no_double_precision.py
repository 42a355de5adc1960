"""Devices without double precision, such as Apple's "mps": one sentence says what to do."""

from __future__ import annotations

import pytest
import torch
from models import generator, random_bernoulli, random_hmm

from mpt_lml import HMM, PPCA, BernoulliPCA
from mpt_lml.models.base import TractableModel
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.numerics import double


class WithoutDouble(torch.Tensor):
    """A tensor on a device that refuses as torch does on "mps"."""

    def double(self) -> torch.Tensor:  # type: ignore[override]
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")


def stand_in(values: torch.Tensor) -> torch.Tensor:
    return values.float().as_subclass(WithoutDouble)


def test_the_sentence_names_the_device_and_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"the device cpu has no double precision.*\.cpu\(\)"):
        double(stand_in(torch.ones(2)))


def models() -> dict[str, TractableModel]:
    hmm = random_hmm(3, 4, 6)
    tables = (stand_in(table) for table in (hmm.initial, hmm.transition, hmm.emission))
    bernoulli = random_bernoulli(6, 1, 9)
    loadings = torch.randn(6, 2, generator=generator(2))
    return {
        "PPCA": PPCA(stand_in(loadings), 0.2),
        "HMM": HMM(*tables, 6),
        "BernoulliPCA": BernoulliPCA(stand_in(bernoulli.loadings)),
        "ConjugateRegression": ConjugateRegression(stand_in(loadings)),
    }


@pytest.mark.parametrize("name", models())
def test_every_closed_form_says_it(name: str) -> None:
    model = models()[name]
    x = torch.zeros(2, 6)
    x = x.long() if name == "HMM" else stand_in(x)
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        model.log_marginal(x)
