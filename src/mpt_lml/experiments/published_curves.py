"""The authors' own curves of BERT-base (Figure 5, right; Table 2), as they stored them."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.experiments.bert import PER_TOKEN, mean_rate
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.files import book_file
from mpt_lml.numerics import mean_and_error

SETS = ("ax", "cola", "qnli", "mrpc", "sst2")
PRINTED = {
    "random/ax": "-5245.31",
    "random/cola": "-5283.52",
    "random/qnli": "-5343.98",
    "random/mrpc": "-5362.21",
    "pretrained/ax": "-1715.75",
    "pretrained/cola": "-1657.68",
    "pretrained/qnli": "-1770.28",
    "pretrained/mrpc": "-1773.45",
}
"""Table 2, digit by digit. SST-2 is in the files and not in the table."""
RATES = tuple(range(1, 100))
TAIL = 85
BIAS_RATES = (15, 25, 40)


def load() -> dict[str, Float[Tensor, " R"]]:
    """``KIND/SET``, KIND random or pretrained: nats per masked token at 1, ..., 99 %, float64.

    Source: ``data/results/`` of the paper's public repository; see the README beside the table.
    """
    path = book_file("results/published_curves/bert_base.csv")
    rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    assert tuple(int(row["rate_percent"]) for row in rows) == RATES
    return {
        f"{kind}/{name}": torch.tensor([float(row[f"{name}_{kind}"]) for row in rows]).double()
        for kind in ("random", "pretrained")
        for name in SETS
    }


def area(curve: Float[Tensor, " R"]) -> float:
    """The paper's area, 512 · 0.01 · Σ over the 99 rates, nats."""
    return PER_TOKEN * curve.mean().item()


def crossover(curve: Float[Tensor, " R"]) -> float:
    """r*, the rate in percent at which D·S equals the area: the curve has its mean height there."""
    return mean_rate(RATES, curve, curve.mean().item())


def bias(curve: Float[Tensor, " R"], rate: int) -> float:
    """How far D·S at ``rate`` percent lies above the area, nats in the paper's unit."""
    return PER_TOKEN * (curve[RATES.index(rate)] - curve.mean()).item()


def tail(curve: Float[Tensor, " R"]) -> float:
    """Share of the fall from 1 to 99 % that lies beyond 85 %; a straight line has 14/98 = 0.14."""
    return ((curve[RATES.index(TAIL)] - curve[-1]) / (curve[0] - curve[-1])).item()


def flatness(random: Float[Tensor, " R"], pretrained: Float[Tensor, " R"]) -> float:
    """Range of the random curve as a share of the fall of the pre-trained one."""
    return ((random.max() - random.min()) / (pretrained[0] - pretrained[-1])).item()


def digits(value: float) -> tuple[str, str]:
    """``value`` with two decimals, cut and rounded."""
    return f"{math.trunc(100 * value) / 100:.2f}", f"{value:.2f}"


@dataclass(frozen=True)
class PublishedCurves(Config):
    """Nothing is drawn: there are no seeds and the presets are the same."""

    seeds: tuple[int, ...] = ()

    @classmethod
    def paper(cls) -> PublishedCurves:
        """The stored curves."""
        return cls()

    @classmethod
    def quick(cls) -> PublishedCurves:
        """The same."""
        return cls()


@experiment(
    "published-curves",
    title="Table 2 and Figure 5, right, from the authors' stored curves of BERT-base",
    cost="seconds",
    config=PublishedCurves,
    gpu=False,
)
def published_curves(
    config: PublishedCurves,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
) -> Outcome:
    """Areas to the printed digit, and the shape of the curves.

    Arrays, for KIND in (random, pretrained) and each SET: ``area/KIND/SET`` () in the paper's unit;
    for the pre-trained ones ``crossover/SET`` () in percent, ``bias/SET`` (3,) at 15, 25 and 40 %,
    nats in the paper's unit, ``tail/SET`` () and ``flatness/SET`` ().
    """
    found = load()
    arrays: dict[str, Tensor] = {}
    for key, curve in found.items():
        arrays[f"area/{key}"] = _number(area(curve))
    for name in SETS:
        curve = found[f"pretrained/{name}"]
        arrays[f"crossover/{name}"] = _number(crossover(curve))
        arrays[f"bias/{name}"] = _number([bias(curve, rate) for rate in BIAS_RATES])
        arrays[f"tail/{name}"] = _number(tail(curve))
        arrays[f"flatness/{name}"] = _number(flatness(found[f"random/{name}"], curve))
    return Outcome(_findings(arrays), arrays, checksum(found.values()))


def _findings(arrays: dict[str, Tensor]) -> dict[str, Finding]:
    """The table entry by entry; of shapes the least favorable of the four printed sets."""
    findings = {
        f"table-2/{key.replace('/', '-')}": Finding(arrays[f"area/{key}"].item()) for key in PRINTED
    }
    four = SETS[:4]
    findings["fig-5-right-flat"] = Finding(max(arrays[f"flatness/{name}"].item() for name in four))
    findings["fig-5-right-tail"] = Finding(min(arrays[f"tail/{name}"].item() for name in four))
    different = {key: digits(arrays[f"area/{key}"].item()) for key in PRINTED}
    cut = sum(one != two and PRINTED[key] == one for key, (one, two) in different.items())
    findings["table-2-cut-digits"] = Finding(float(cut))
    where = torch.stack([arrays[f"crossover/{name}"] for name in SETS])
    findings["crossover/bert-base"] = _over_sets(where / 100)
    biases = torch.stack([arrays[f"bias/{name}"] for name in SETS])
    for rate, each in zip(BIAS_RATES, biases.T, strict=True):
        findings[f"bias/bert-base-{rate}"] = _over_sets(each)
    return findings


def _over_sets(values: Tensor) -> Finding:
    mean, error = mean_and_error(values)
    return Finding(mean.item(), error.item())


def _number(value: float | list[float]) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
