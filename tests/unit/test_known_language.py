"""The network of chapter 10, its gap to the source, and the experiment around them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from models import generator, random_hmm
from safetensors.torch import load_file, save_file

from mpt_experiments.bench import Bench
from mpt_experiments.findings import known_language
from mpt_experiments.findings.known_language import LAWS, KnownLanguage, Problem
from mpt_lml import HMM, masks
from mpt_lml.files import CheckpointMismatchError, book_file
from mpt_score import SymbolBERT
from mpt_score.networks.hub import CheckpointError

pytest.importorskip("transformers")
SOURCE = random_hmm(2, 3, 4, seed=8)


def small(seed: int = 1) -> SymbolBERT:
    return SymbolBERT(3, 4, 16, seed=seed)


def log_q(net, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """From the network's probabilities over all symbols, one position after the other."""
    values = torch.zeros(x.shape, dtype=torch.float64)
    for n, row in enumerate(mask):
        seen = x[n].clone()
        seen[row] = 3
        with torch.no_grad():
            probabilities = net.network(input_ids=seen[None]).logits[0].double().softmax(dim=1)
        for j in row.nonzero().flatten().tolist():
            values[n, j] = probabilities[j, x[n, j]].log()
    return values


def test_conditionals_are_the_networks_own() -> None:
    net, x = small(), SOURCE.sample(7, generator=generator(1))
    mask = masks.sample_masks(7, 4, masks.UniformSize(), generator=generator(2))
    values, expected = net.log_each(x, mask), log_q(net, x, mask)
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=0)  # float32 logits
    every = net.log_conditional(x, mask)
    torch.testing.assert_close(every.diagonal().T, expected, atol=1e-5, rtol=0)
    scores = known_language.masked_scores(net, x, mask, half_precision=False)
    by_hand = torch.stack([v[m].mean() for v, m in zip(expected, mask, strict=True)]).float()
    torch.testing.assert_close(scores, by_hand, atol=1e-5, rtol=0)


def test_a_masked_symbol_is_not_seen() -> None:
    net, x = small(), SOURCE.sample(5, generator=generator(3))
    mask = torch.tensor([[True, False, True, False]]).expand(5, 4)
    other = x.clone()
    other[:, 2] = (x[:, 2] + 1) % 3
    before = net.log_each(x, mask)
    after = net.log_each(other, mask)
    assert torch.equal(before[:, 0], after[:, 0])
    assert (before[:, 2] != after[:, 2]).all()
    other[:, 1] = (x[:, 1] + 1) % 3
    assert (net.log_each(other, mask)[:, 0] != after[:, 0]).all()


def test_the_gap_is_the_mean_divergence_over_orders() -> None:
    """Σ_M (S_p − S_q), averaged under p, against KL(p ‖ p_σ) summed over all x and all orders."""
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
        # The mask token has a little probability too, so p_σ may sum to less than 1.
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


def test_training_is_repeatable_and_learns() -> None:
    how = KnownLanguage(num_steps=150, batch_size=64, half_precision=False)
    problem = Problem(SOURCE, 500, 2, generator=generator(7))
    areas = []
    for _ in range(2):
        net = small()
        before = problem.compare(net)["gap"].item()
        watch = {"watch": lambda: problem.compare(net)["gap"], "watched": (0, 150)}  # noqa: B023
        gaps = how.train(net, SOURCE, "uniform", seed=3, **watch)
        assert gaps[0] == before
        areas.append(gaps[1].item())
    assert areas[0] == areas[1] < 0.3 * before


def test_half_precision_trains_the_same() -> None:
    problem = Problem(SOURCE, 500, 2, generator=generator(8))
    areas = []
    for half in (False, True):
        net = small()
        how = KnownLanguage(num_steps=60, batch_size=64, half_precision=half)
        how.train(net, SOURCE, "stratified", seed=3)
        assert all(p.dtype == torch.float32 for p in net.network.parameters())
        areas.append(problem.compare(net)["gap"].item())
    assert areas[0] == pytest.approx(areas[1], rel=0.1)


def test_the_books_network_is_close_to_the_source() -> None:
    net = SymbolBERT.load()
    assert not any(each.requires_grad for each in net.network.parameters())
    found = Problem(HMM.cyclic(), 200, 2, generator=generator(9)).compare(net)
    assert 2 * found["gap_error"] < found["gap"] < 0.4


@pytest.mark.bad_input
def test_weights_are_loaded_from_a_file_only(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "nothing.safetensors", 7):
        with pytest.raises(FileNotFoundError, match="path must be a file of safetensors, got"):
            SymbolBERT.load(path)


def test_weights_that_are_not_whole_are_refused(tmp_path) -> None:
    """Whatever the file lacks would stay as it was drawn."""
    whole, path = book_file("results/known_language.safetensors"), tmp_path / "net.safetensors"
    weights = load_file(whole)
    path.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        SymbolBERT.load(path)
    for name in list(weights)[::7]:
        save_file({key: value for key, value in weights.items() if key != name}, path)
        with pytest.raises(CheckpointError, match=f"{path} is .*of another network"):
            SymbolBERT.load(path)
    save_file(
        {k: value[:1].clone() if "encoder" in k else value for k, value in weights.items()}, path
    )
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        SymbolBERT.load(path)


def test_the_experiment_goes_on_from_its_files(tmp_path, monkeypatch) -> None:
    config = KnownLanguage.preset("quick", variants=())
    bench = Bench(folder=tmp_path)
    first = config.run(bench)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 2 * len(LAWS)
    net = SymbolBERT.load(next(file for file in files if file.name.startswith("uniform")))
    found = Problem(HMM.cyclic(), 20, 2, generator=generator(10)).compare(net)
    assert first.arrays["gap/uniform"][0] == found["gap"]  # its weights lie beside its results
    monkeypatch.setattr(KnownLanguage, "train", None)  # calling it would fail
    assert first.as_dict() == config.run(bench).as_dict()
    files[-1].unlink()
    with pytest.raises(TypeError):
        config.run(bench)
    with pytest.raises(CheckpointMismatchError, match="its num_test is 20, wanted 21"):
        replace(config, num_test=21).run(bench)


@pytest.mark.xdist_group("known-language")
def test_the_quick_run_says_what_it_found(quick) -> None:
    outcome, _ = quick("known-language")
    finding = outcome.findings["known-language-uniform-size"]
    fixed = [outcome.arrays[f"gap/{law}"] for law in LAWS if law.startswith("fixed")]
    smallest = min((each - outcome.arrays["gap/uniform"]).mean().item() for each in fixed)
    assert finding.measured == pytest.approx(smallest)
    assert outcome.arrays["size_gap/uniform"].shape == (2, 16)
