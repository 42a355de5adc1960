"""The network of chapter 11, its gap to the source, and the experiment around them."""

from __future__ import annotations

import functools
import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from chapter_cells import defined_by
from models import generator, random_hmm
from torch import Tensor

from experiments.experiment import RunContext
from experiments.known_language import KnownLanguage
from experiments.records import CheckpointMismatchError, as_dict
from experiments.trainings import known_language
from experiments.trainings.known_language import (
    LAWS,
    KnownLanguageSettings,
    Problem,
    train_known_language,
)
from mpt_lml import HMM, masks
from mpt_lml.recorded import Finding
from mpt_score.networks.symbol_bert import SymbolBERT

pytest.importorskip("transformers")
SOURCE = random_hmm(2, 3, 4, seed=8)


def small(seed: int = 1) -> SymbolBERT:
    return SymbolBERT(3, 4, 16, seed=seed)


def test_the_gap_is_the_mean_divergence_over_orders() -> None:
    """Σ_M (S_p − S_q), averaged under p, against KL(p ‖ p_π) summed over all x and all orders."""
    net, features = small(), 4
    x = torch.tensor(list(itertools.product(range(3), repeat=features)))
    weight = SOURCE.log_marginal(x).exp()
    divergence = 0.0
    for order in itertools.permutations(range(features)):
        log_p_sigma = torch.zeros(len(x), dtype=torch.float64)
        for position, j in enumerate(order):
            mask = torch.ones(len(x), features, dtype=torch.bool)
            mask[:, list(order[:position])] = False
            log_p_sigma += net.log_each(x, mask)[:, j]
        # The mask token has a little probability too, so p_π may sum to less than 1.
        assert log_p_sigma.exp().sum() < 1 + 1e-6
        divergence += (weight @ (SOURCE.log_marginal(x) - log_p_sigma)).item() / 24
    gap = 0.0
    for mask in masks.subsets(features)[1:]:
        size = int(mask.sum())
        rows = mask.expand(len(x), -1)
        difference = SOURCE.log_each(x, rows)
        difference = difference - net.log_each(x, rows)
        gap += (weight @ difference.sum(dim=1)).item() / size / math.comb(features, size)
    assert gap == pytest.approx(divergence, abs=1e-5)
    assert gap > 0.01
    problem = Problem(SOURCE, 4000, 2, generator=generator(5))
    compared = problem.compare(net)
    for name in ("area", "chain"):
        per_sequence = compared[name].mean(dim=1)
        error = per_sequence.std().item() / math.sqrt(len(per_sequence))
        assert abs(per_sequence.mean().item() - gap) < 4 * error


def test_the_source_does_not_differ_from_itself() -> None:
    other = random_hmm(2, 3, 4, seed=9)
    problem = Problem(SOURCE, 30, 3, generator=generator(6))
    same, different = problem.compare(SOURCE), problem.compare(other)
    assert same["area"].abs().max() == same["size_gap"].abs().max() == 0
    # A model with one joint gives log p − log q whatever the order: no spread.
    expected = SOURCE.log_marginal(problem.x) - other.log_marginal(problem.x)
    torch.testing.assert_close(different["chain"], expected[:, None].expand(-1, 3))
    assert different["spread"] < 1e-10


def test_each_design_has_the_error_of_what_it_shares() -> None:
    """Source and network are asked about the same masks, or the same sequences, or neither."""
    other, count = random_hmm(2, 3, 4, seed=9), 40
    problem = Problem(SOURCE, count, 2, generator=generator(6))
    of_source, of_network = (
        problem.by_size(model.log_each(problem.rows, problem.mask)).sum(dim=2)
        for model in (SOURCE, other)
    )
    found = problem.designs(problem.compare(other)["area"])
    variances = {
        "error/same masks, all tokens": (of_source - of_network)[:, 0].var(),
        "error/same sequences, other masks": (of_source[:, 0] - of_network[:, 1]).var(),
        "error/other sequences": of_source[:, 0].var() + of_network[:, 0].var(),
    }
    errors = {name: (variance / count).sqrt() for name, variance in variances.items()}
    torch.testing.assert_close(found, errors)
    assert len({round(error.item(), 6) for error in errors.values()}) == 3


@pytest.mark.parametrize("law", LAWS)
def test_training_masks_follow_their_law(law: str) -> None:
    sizes = torch.cat(
        [
            masks.sample_masks(128, 16, LAWS[law], generator=generator(seed)).sum(dim=1)
            for seed in range(40)
        ]
    )
    expected = {"fixed-15": [2], "fixed-50": [8], "fixed-80": [12]}.get(law, range(1, 17))
    assert sizes.unique().tolist() == list(expected)
    if law == "stratified":
        assert (torch.bincount(sizes)[1:] == 40 * 8).all()
    if law == "uniform":
        assert not (torch.bincount(sizes)[1:] == 40 * 8).all()


def gaps_after(**settings: object) -> list[float]:
    """Of networks of two seeds, trained side by side."""
    how = KnownLanguage(batch_size=64, width=16, **settings)
    problem = Problem(SOURCE, 500, 2, generator=generator(7))
    networks = how.train(SOURCE, "uniform", (3, 4), RunContext())
    assert all(p.dtype == torch.float32 for net in networks for p in net.network.parameters())
    return [problem.compare(net)["gap"].item() for net in networks]


@functools.cache
def in_single_precision() -> list[float]:
    return gaps_after(num_steps=30, half_precision=False)


def test_training_is_repeatable_and_learns() -> None:
    before = gaps_after(num_steps=1)
    after = in_single_precision()
    assert after == gaps_after(num_steps=30, half_precision=False)
    assert max(after) < 0.3 * min(before)


def test_half_precision_trains_the_same() -> None:
    half = gaps_after(num_steps=30, half_precision=True)
    assert half == pytest.approx(in_single_precision(), rel=0.1)


def test_the_books_network_is_close_to_the_source() -> None:
    net = SymbolBERT.load()
    assert not any(each.requires_grad for each in net.network.parameters())
    found = Problem(HMM.cyclic(), 200, 2, generator=generator(9)).compare(net)
    assert 2 * found["gap_error"] < found["gap"] < 0.4


@pytest.mark.xdist_group("known-language")
def test_the_experiment_goes_on_from_its_files(quick, tmp_path, monkeypatch) -> None:
    first, folder = quick("known-language")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = KnownLanguage.preset("quick")
    context = RunContext(folder=tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 2 * len(LAWS) + 1  # and the variant
    net = SymbolBERT.load(next(file for file in files if file.name.startswith("uniform")))
    found = Problem(HMM.cyclic(), 20, 2, generator=generator(10)).compare(net)
    assert first.arrays["gap/uniform"][0] == found["gap"]  # its weights lie beside its results
    monkeypatch.setattr(KnownLanguage, "train", None)  # calling it would fail
    assert as_dict(first) == as_dict(config.run(context))
    files[-1].unlink()
    with pytest.raises(TypeError):
        config.run(context)
    with pytest.raises(CheckpointMismatchError, match="its num_test is 20, wanted 21"):
        replace(config, num_test=21).run(context)


def test_a_law_is_compared_with_uniform_sizes_seed_by_seed(monkeypatch) -> None:
    """Of two seeds: the gaps, and areas of three sequences along two orders, written down."""
    gaps = {
        "fixed-15": [9.0, 11.0],
        "fixed-50": [6.0, 10.0],
        "fixed-80": [8.0, 14.0],
        "uniform": [1.0, 3.0],
        "stratified": [0.0, 1.0],
    }
    of_sequences = {"uniform": [1.0, 2.0, 6.0], "fixed-15": [2.0, 5.0, 11.0]}
    orders = torch.tensor([0.5, 1.5]).double()  # of the mean over both

    def compared(self, law: str, seeds, *_: object) -> dict[str, Tensor]:
        area = torch.tensor(of_sequences.get(law, [0.0, 0.0, 0.0])).double()[:, None] * orders
        rows = {"gap": torch.tensor(gaps[law]), "area": area.expand(2, 3, 2)}
        others = ("gap_error", "spread", "size_gap", "num_parameters")
        return rows | dict.fromkeys(others, torch.full((2,), math.nan))

    monkeypatch.setattr(KnownLanguage, "_compared", compared)
    outcome = KnownLanguage.preset("quick", num_test=3).run(RunContext())
    # At 50 %, the smallest of the fixed rates: 6 − 1 and 10 − 3.
    assert outcome.findings["known-language-uniform-size"] == Finding(6.0, 1.0)
    # Of 15 % sequences exceed uniform sizes by 1, 3 and 5 nats, with a standard deviation of 2.
    expected = torch.full((2,), 2 / math.sqrt(3)).double()
    torch.testing.assert_close(outcome.arrays["excess_error/fixed-15"], expected)


# -- before any training: what belongs to which seed and law ------------------------------------------

SEEDS = (44, 4)
RUNS = [*itertools.product(LAWS, [16], SEEDS), ("uniform", 32, 44)]
"""Law, width and seed, the variant last, which has the first seed alone."""
SIZES = {16: "16-10-0.003", 32: "32-5-0.003"}
"""Width, steps and rate."""


class Untrained(NamedTuple):
    arrays: dict[str, Tensor]
    laws: list[masks.SizeLaw]  # of each training, as it was asked for
    draws: list[list[int]]  # the seeds of its generators
    folder: Path


@pytest.fixture
def untrained(tmp_path, monkeypatch) -> Untrained:
    found = Untrained({}, [], [], tmp_path)

    def train(models, source, laws, *, generators, num_steps, **settings: object) -> Tensor:
        [law] = set(laws)
        found.laws.append(law)
        found.draws.append([each.initial_seed() for each in generators])
        return torch.zeros(num_steps, len(models))

    monkeypatch.setattr(known_language, "train_side_by_side", train)
    outcome = KnownLanguage.preset("quick", seeds=SEEDS).run(RunContext(folder=tmp_path))
    found.arrays.update(outcome.arrays)
    return found


def test_a_network_its_draws_and_its_file_belong_to_its_seed(untrained: Untrained) -> None:
    assert untrained.laws == [*LAWS.values(), LAWS["uniform"]]
    assert untrained.draws == [[44, 4]] * len(LAWS) + [[44]]
    files = {file.stem: file for file in untrained.folder.glob("*.safetensors")}
    assert len(files) == len(RUNS)
    for law, width, seed in RUNS:
        kept = SymbolBERT.load(files[f"{law}-{SIZES[width]}-{seed}"])
        own = SymbolBERT(12, 16, width, seed=seed)
        for name, weight in own.network.named_parameters():
            assert torch.equal(kept.network.get_parameter(name), weight)


def test_each_array_is_what_the_networks_of_its_seeds_lack(untrained: Untrained) -> None:
    problem = Problem(HMM.cyclic(), 20, 2, generator=generator(10))
    first, second = (problem.compare(SymbolBERT(12, 16, 16, seed=seed)) for seed in SEEDS)
    arrays = untrained.arrays
    for law in LAWS:
        for name in ("gap", "gap_error", "spread", "size_gap"):
            expected = torch.stack([first[name], second[name]])
            torch.testing.assert_close(arrays[f"{name}/{law}"], expected)
    wide = SymbolBERT(12, 16, 32, seed=44)
    num_parameters = sum(weight.numel() for weight in wide.network.parameters())
    assert arrays[f"variant/{SIZES[32]}"][0] == num_parameters
    compared = problem.compare(wide)
    expected = torch.stack([compared[name] for name in ("gap", "gap_error", "spread")])
    torch.testing.assert_close(arrays[f"variant/{SIZES[32]}"][1:], expected)
    for name, error in problem.designs(first["area"]).items():
        torch.testing.assert_close(arrays[name], error)


# -- the same training on a page -----------------------------------------------------------------------


@functools.cache
def page() -> dict[str, Any]:
    """What chapter 11 defines for its training."""
    language = HMM.cyclic()
    x = language.sample(1, generator=generator(1))
    mask = torch.ones(1, 16, dtype=torch.bool)
    cells = ("class Attention", "class Block", "our_names =", "manual_seed(4)\nnetwork = ")
    cells += ("def log_conditionals", "class Settings")
    return defined_by("11-known-language", *cells, source=language, x=x, mask=mask)


def test_the_settings_of_the_experiment_are_those_of_the_record() -> None:
    settings = KnownLanguageSettings()
    record = KnownLanguage()
    for name in ("seeds", "num_steps", "batch_size", "learning_rate", "half_precision", "width"):
        assert getattr(settings, name) == getattr(record, name)
    assert (settings.num_test, settings.num_orders) == (record.num_test, record.num_orders)
    assert settings.laws == tuple(LAWS)


def test_the_settings_of_the_page_are_those_of_the_record() -> None:
    """Of its first seed; the record's products are in half precision, which the page leaves out."""
    of_page = page()["Settings"]()
    of_record = KnownLanguageSettings()
    for name in ("learning_rate", "width", "batch_size"):
        assert getattr(of_page, name) == getattr(of_record, name)
    assert of_page.steps == of_record.num_steps
    assert of_page.law == LAWS["uniform"] and of_page.seed == of_record.seeds[0]
    package = SymbolBERT(12, 16, of_page.width, seed=4).network
    assert of_page.blocks == len(package.bert.encoder.layer)


@pytest.mark.parametrize("law", ["uniform", "fixed-15"])
def test_the_page_trains_as_the_experiment(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same first weights, twenty steps: the same answers."""
    names = page()
    start = SymbolBERT(12, 16, 16, seed=5)
    transformer = names["Transformer"]

    def from_there(width: int, blocks: int) -> torch.nn.Module:
        network = transformer(width, blocks=blocks)
        network.load_state_dict(renamed(start.network, names["our_names"]))
        return network

    monkeypatch.setitem(names, "Transformer", from_there)
    shared = {"width": 16, "batch_size": 8}
    settings = names["Settings"](steps=20, law=LAWS[law], seed=5, **shared)
    network = names["train"](settings)
    short = KnownLanguageSettings(
        laws=(law,), seeds=(5,), num_steps=20, half_precision=False, **shared
    )
    [expected] = train_known_language(short)[law]
    problem = Problem(HMM.cyclic(), 5, 1, generator=generator(7))
    with torch.no_grad():
        answers = network(problem.rows, problem.mask).double()
        before = transformer(16).double()(problem.rows, problem.mask)
    found = expected.log_values(problem.rows, problem.mask)
    assert (found - before).abs().max() > 0.1  # they have moved
    torch.testing.assert_close(answers, found.detach(), atol=1e-3, rtol=0)


def renamed(network: torch.nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    weights = {}
    for name, weight in network.named_parameters():
        for old, new in names.items():
            name = name.replace(old, new)
        weights[name] = weight.detach().clone()
    return weights


def test_what_is_half_trained_is_no_record() -> None:
    def stopped(items, label):
        for number, item in enumerate(items):
            if number == 4:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        KnownLanguage.preset("quick").run(RunContext(progress=stopped))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"laws": ("always",)}, "laws must be some of fixed-15, .*, got"),
        ({"laws": ()}, "laws must be some of fixed-15"),
        ({"seeds": (4, 4)}, "seeds must differ"),
        ({"num_orders": 1}, "num_orders must be >= 2"),
    ],
)
def test_settings_that_name_no_training_are_refused(setting: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KnownLanguageSettings(**setting)
