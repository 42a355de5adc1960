"""Masked transformers and their causal twins: against sums over every string, and plain loops."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from mpt_experiments import language_trainings
from mpt_experiments.experiment import RunContext, seeded
from mpt_experiments.findings import epochs_of_transformers as epochs
from mpt_experiments.findings.epochs_of_transformers import (
    CausalNetwork,
    CausalNetworks,
    EpochsOfTransformers,
    MaskedNetworks,
    Passes,
    Sequences,
)
from mpt_lml import masks, orders
from mpt_score.networks.symbol_bert import SymbolBERT

pytest.importorskip("transformers")
QUICK = EpochsOfTransformers.preset("quick")
NUM_SYMBOLS = 12
LENGTH = 3
SEEDS = (5, 55)
EVERY_ORDER = torch.tensor(list(itertools.permutations(range(LENGTH))))


def bert(seed: int, num_features: int = LENGTH) -> SymbolBERT:
    return SymbolBERT(NUM_SYMBOLS, num_features, 8, "modern", seed=seed)


def masked(*seeds: int) -> MaskedNetworks:
    return MaskedNetworks([bert(seed) for seed in seeds], torch.float32, is_compiled=False)


def causal(*seeds: int) -> CausalNetworks:
    return CausalNetworks([bert(seed) for seed in seeds], torch.float32, is_compiled=False)


def every_string() -> Tensor:
    return torch.tensor(list(itertools.product(range(NUM_SYMBOLS), repeat=LENGTH)))


def drawn(num_data: int = 40) -> Tensor:
    """Training sequences of two seeds."""
    language = language_trainings.middle(LENGTH)
    return torch.stack([language.sample(num_data, generator=seeded(seed)) for seed in SEEDS])


# -- networks -----------------------------------------------------------------------------------------


def test_a_causal_network_does_not_look_ahead() -> None:
    network = bert(1, num_features=6).network
    x = torch.randint(NUM_SYMBOLS, (7, 6), generator=seeded(1))
    other = x.clone()
    other[:, 4:] = (other[:, 4:] + 1) % NUM_SYMBOLS
    ahead = CausalNetwork(network)
    before, after = ahead(x).logits, ahead(other).logits
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=0)
    assert (after[:, 4] != before[:, 4]).any()
    # It looks at everything that stands before, and the same network without a mask at both sides.
    other = x.clone()
    other[:, 0] = (other[:, 0] + 1) % NUM_SYMBOLS
    assert ((ahead(other).logits - before).abs().amax(dim=(0, 2)) > 0).all()
    assert (network(x).logits[:, 0] != before[:, 0]).any()


def test_log_q_is_that_of_each_symbol_after_the_ones_before() -> None:
    networks = causal(*SEEDS)
    x = drawn()
    values = epochs.log_left_to_right(networks.together, x, networks.mask_token)
    one = CausalNetwork(bert(SEEDS[1]).network)
    total = torch.zeros(x.shape[1], dtype=torch.float64)
    begin = torch.full((x.shape[1], 1), NUM_SYMBOLS)
    for place in range(LENGTH):
        shown = torch.cat([begin, x[1, :, :place]], dim=1)
        log_values = one(shown).logits[:, -1].double().log_softmax(dim=1)
        total += log_values.gather(1, x[1, :, place, None])[:, 0]
    torch.testing.assert_close(values[1], total.detach(), rtol=0, atol=1e-5)


def test_a_causal_network_gives_a_distribution() -> None:
    networks = causal(*SEEDS)
    x = every_string().expand(2, -1, -1)
    total = epochs.log_left_to_right(networks.together, x, networks.mask_token).exp().sum(dim=1)
    # The mask token keeps a little probability.
    assert (total < 1 + 1e-6).all()
    assert (total > 0.5).all()


def test_excesses_are_sums_over_every_string() -> None:
    """Every order of every string, against the exact area and mixture; and left to right."""
    language = language_trainings.middle(LENGTH)
    x = every_string()
    log_probability = language.log_marginal(x)
    of_two = log_probability.expand(2, -1)
    asked = Sequences(x.expand(2, -1, -1), of_two, EVERY_ORDER.expand(2, len(x), -1, -1))
    half = Sequences(asked.x, asked.log_probability, asked.order[:, : len(x) // 2])
    nets = masked(*SEEDS)
    of_masked = nets.measure(asked, half, half)
    exact = orders.exact(bert(SEEDS[1]), x)
    area = (log_probability - exact.mean).mean()
    mixture = (log_probability - exact.log_mix).mean()
    assert mixture < area
    assert of_masked["excess/masked/area"][1].item() == pytest.approx(area.item(), abs=1e-5)
    assert of_masked["excess/masked/mixture"][1].item() == pytest.approx(mixture.item(), abs=1e-5)
    first = slice(0, len(x) // 2)
    area = (log_probability - exact.mean)[first].mean().item()
    assert of_masked["selection/masked/area"][1].item() == pytest.approx(area, abs=1e-5)
    assert of_masked["training/masked"][1].item() == pytest.approx(area, abs=1e-5)
    twins = causal(*SEEDS)
    of_causal = twins.measure(half, asked, asked)
    values = epochs.log_left_to_right(twins.together, asked.x, twins.mask_token)
    excess = log_probability - values[1]
    assert of_causal["excess/causal/more"][1].item() == pytest.approx(excess.mean().item())
    assert of_causal["excess/causal"][1].item() == pytest.approx(excess[first].mean().item())
    assert of_causal["selection/causal"][1].item() == pytest.approx(excess.mean().item())


def test_every_sequence_has_its_own_orders() -> None:
    networks = masked(*SEEDS)
    x = drawn(5)
    order = masks.sample_ranks(2 * 5 * 4, LENGTH, generator=seeded(1)).view(2, 5, 4, LENGTH)
    along = epochs.log_along_orders(networks.together, x, order, networks.mask_token)
    model = bert(SEEDS[1])
    for number, row in enumerate(x[1]):
        for order_number, places in enumerate(order[1, number]):
            terms = []
            for step in range(LENGTH):
                mask = torch.zeros(1, LENGTH, dtype=torch.bool)
                mask[0, places[: step + 1]] = True
                terms.append(model.log_each(row[None], mask)[0, places[step]])
            wanted = torch.stack(terms).sum().item()
            assert along[order_number, 1, number].item() == pytest.approx(wanted, abs=1e-5)


def test_long_lists_are_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = masked(*SEEDS)
    twins = causal(*SEEDS)
    x = drawn(7)
    order = EVERY_ORDER.expand(2, 7, -1, -1)
    along = epochs.log_along_orders(networks.together, x, order, networks.mask_token)
    values = epochs.log_left_to_right(twins.together, x, twins.mask_token)
    monkeypatch.setattr(epochs, "ROWS_AT_ONCE", 36)
    again = epochs.log_along_orders(networks.together, x, order, networks.mask_token)
    torch.testing.assert_close(again, along, rtol=0, atol=1e-5)
    monkeypatch.setattr(epochs, "ROWS_AT_ONCE", 3)
    again = epochs.log_left_to_right(twins.together, x, twins.mask_token)
    torch.testing.assert_close(again, values, rtol=0, atol=1e-5)


# -- training -----------------------------------------------------------------------------------------


def test_every_pass_visits_every_sequence_once() -> None:
    training = torch.arange(24).view(2, 12, 1).expand(-1, -1, 4).clone()
    passes = Passes(training, 4, SEEDS)
    visited = torch.stack([passes.batch(step)[..., 0] for step in range(6)], dim=1)
    of_passes = visited.view(2, 2, 12)
    assert torch.equal(of_passes.sort(dim=2).values, training[..., 0][:, None].expand_as(of_passes))
    assert (of_passes[:, 0] != of_passes[:, 1]).any()
    assert (of_passes[0] != of_passes[1] - 12).any()
    # As many of each size as of another, in every batch.
    assert torch.equal(passes.masks().sum(dim=2), torch.tensor([1, 2, 3, 4]).expand(2, 4))


def test_a_seed_does_not_depend_on_the_others() -> None:
    both = QUICK.draws(8)
    alone = dataclasses.replace(QUICK, seeds=(55,)).draws(8)
    assert torch.equal(both.training[1], alone.training[0])
    for name in ("test", "selection", "remembered"):
        for together, single in zip(getattr(both, name), getattr(alone, name), strict=True):
            assert torch.equal(together[1], single[0])
    assert (both.test.x != both.selection.x).any()
    assert (both.test.x[0] != both.test.x[1]).any()
    language = language_trainings.middle(QUICK.num_features)
    truth = language.log_marginal(both.test.x[1])
    torch.testing.assert_close(both.test.log_probability[1], truth)
    assert torch.equal(both.remembered.x, both.training)


def plain_training(kind: str, x: Tensor, num_passes: int, batch_size: int, rate: float) -> Tensor:
    """The weights of the second seed's network, trained alone, a sequence and a place at a time."""
    seed = SEEDS[1]
    network = bert(seed).network
    of_order = seeded(42_000_000 + seed)
    of_masks = seeded(43_000_000 + seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    one_way = CausalNetwork(network)
    for _ in range(num_passes):
        permutation = torch.randperm(len(x), generator=of_order)
        for rows in permutation.split(batch_size):
            mask = masks.stratified_masks(
                batch_size, LENGTH, masks.UniformSize(), generator=of_masks
            )
            losses = []
            for row, hidden in zip(x[rows], mask, strict=True):
                if kind == "masked":
                    shown = torch.where(hidden, NUM_SYMBOLS, row)
                    log_values = network(shown[None]).logits[0].log_softmax(dim=1)
                    places = [place for place in range(LENGTH) if hidden[place]]
                else:
                    shown = torch.tensor([NUM_SYMBOLS, *row[:-1].tolist()])
                    log_values = one_way(shown[None]).logits[0].log_softmax(dim=1)
                    places = list(range(LENGTH))
                terms = [log_values[place, row[place]] for place in places]
                losses.append(-torch.stack(terms).sum() / len(places))
            optimizer.zero_grad()
            (sum(losses) / len(losses)).backward()
            optimizer.step()
    return parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize("networks_of", [masked, causal])
def test_networks_side_by_side_are_trained_as_if_alone(networks_of) -> None:
    x = drawn(12)
    networks = networks_of(*SEEDS)
    start = networks.together.vectors()
    trained = networks.train(
        Passes(x, 6, SEEDS),
        rate=1e-3,
        num_passes=2,
        looks=[1, 2],
        measure=lambda: {"weights": networks.together.vectors()},
    )
    plain = plain_training(networks.kind, x[1], 2, 6, 1e-3)
    assert (plain - start[1]).abs().max() > 1e-3
    torch.testing.assert_close(trained["weights"][1, 1], plain, rtol=0, atol=2e-5)
    again = networks.train(
        Passes(x, 6, SEEDS),
        rate=1e-3,
        num_passes=1,
        looks=[1],
        measure=lambda: {"weights": networks.together.vectors()},
    )
    torch.testing.assert_close(again["weights"][:, 0], trained["weights"][:, 0], rtol=0, atol=1e-6)


def test_both_kinds_begin_with_the_same_weights() -> None:
    assert torch.equal(masked(*SEEDS).together.vectors(), causal(*SEEDS).together.vectors())


@pytest.mark.parametrize("networks_of", [masked, causal])
def test_a_network_that_diverges_leaves_the_others(networks_of) -> None:
    draws = dataclasses.replace(QUICK, num_features=LENGTH).draws(12)

    def measured(networks) -> dict[str, Tensor]:
        return networks.train(
            Passes(draws.training, 6, SEEDS),
            rate=1e-2,
            num_passes=1,
            looks=[1],
            measure=lambda: networks.measure(draws.test, draws.selection, draws.remembered),
        )

    whole = measured(networks_of(*SEEDS))
    broken = networks_of(*SEEDS)
    broken._initial[0][0, 0] = torch.nan
    for name, values in measured(broken).items():
        assert values[0].isnan().all()
        torch.testing.assert_close(values[1], whole[name][1], rtol=0, atol=1e-5)


# -- choice and predictions ---------------------------------------------------------------------------


def curves(*values: list[float]) -> Tensor:
    """(rates, seeds, looks): three seeds about each curve."""
    middle = torch.tensor(values, dtype=torch.float64)
    return torch.stack([middle - 0.01, middle, middle + 0.01], dim=1)


def hand_made(num_data: int, causal_curve: list[float], area_curve: list[float]) -> dict:
    """Two rates, of which the second is good; the mixture is 0.5 below the area."""
    bad = [9.0] * len(causal_curve)
    arrays = {f"passes/{num_data}": torch.tensor([1, 2, 4, 8])}
    for measure, curve, shift in (
        ("causal", causal_curve, 0.0),
        ("causal/more", causal_curve, 0.0),
        ("masked/area", area_curve, 0.0),
        ("masked/mixture", area_curve, -0.5),
    ):
        shifted = [value + shift for value in curve]
        arrays[f"excess/{measure}/{num_data}"] = curves(bad, shifted)
        arrays[f"selection/{measure}/{num_data}"] = curves(bad, shifted)
    return arrays


FEW = ([3.0, 2.0, 4.0, 6.0], [5.0, 4.0, 3.0, 2.2])
"""The causal one overfits, the masked one overtakes it after 4 passes, and is best after 8."""
MANY = ([3.0, 2.0, 1.0, 0.5], [5.0, 4.0, 3.0, 2.2])


def as_predicted() -> dict[str, Tensor]:
    return hand_made(100, *FEW) | hand_made(1000, *FEW) | hand_made(10_000, *MANY)


def judged(arrays: dict[str, Tensor]) -> dict[str, float]:
    return {name: epochs.judge(claims, arrays) for name, claims in epochs.PREDICTIONS.items()}


def test_other_sequences_than_those_of_the_test_choose() -> None:
    arrays = hand_made(100, *FEW)
    arrays["selection/causal/100"] = curves([9.0, 9.0, 9.0, 1.0], [3.0, 2.0, 4.0, 6.0])
    assert epochs.own_best(arrays, "causal", 100) == (0, 3)
    torch.testing.assert_close(
        epochs.at_own_best(arrays, "causal", 100),
        torch.tensor([8.99, 9.0, 9.01], dtype=torch.float64),
    )
    assert epochs.along_passes(arrays, "causal", 100).tolist() == pytest.approx([9.0] * 4)
    arrays["selection/causal/100"][0, 2, 3] = torch.nan  # one seed has diverged there
    assert epochs.own_best(arrays, "causal", 100) == (1, 1)
    arrays["selection/causal/100"][:] = torch.nan
    assert epochs.own_best(arrays, "causal", 100) is None
    assert epochs.ahead(arrays, "masked/area", 100) is None


@pytest.mark.parametrize(
    ("masked_curve", "first"),
    [
        ([5.0, 4.0, 2.0, 1.0], 4.0),
        ([2.0, 2.0, 2.0, 2.0], 1.0),
        ([2.0, 4.0, 2.0, 4.0], None),  # ahead in between only
        ([2.0, 4.0, 4.0, 2.0], 8.0),
        ([3.0, 3.0, 3.0, 3.0], None),  # as far is not ahead
        ([2.0, math.nan, 2.0, 2.0], 4.0),
        ([2.0, 2.0, 2.0, math.nan], None),
    ],
)
def test_the_crossing_is_the_first_look_from_which_it_stays_ahead(masked_curve, first) -> None:
    causal_curve = torch.full((4,), 3.0)
    found = epochs.first_ahead(torch.tensor(masked_curve), causal_curve, [1, 2, 4, 8])
    assert found == first


def test_predictions_hold_where_they_should() -> None:
    assert judged(as_predicted()) == {
        "no-crossing": 1.0,
        "overfitting": 1.0,
        "crossing": 1.0,
        "own-best-area": 1.0,
        "own-best-mixture": 1.0,
        "later": 1.0,
    }


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        (hand_made(10_000, *FEW), {"no-crossing", "own-best-mixture"}),
        (hand_made(1000, *MANY), {"overfitting", "crossing", "own-best-mixture", "later"}),
        (hand_made(100, [3.0, 2.0, 4.0, 6.0], [5.0, 4.0, 2.2, 3.0]), {"later"}),
        (hand_made(100, [3.0, 2.0, 4.0, 6.0], [5.0, 4.0, 3.0, 1.9]), {"own-best-area"}),
        (hand_made(10_000, [3.0, 2.0, 1.0, 0.5], [5.0, 4.0, 3.0, 0.8]), {"own-best-mixture"}),
    ],
)
def test_predictions_fail_where_they_should(changed: dict, failing: set[str]) -> None:
    answers = judged(as_predicted() | changed)
    assert {name for name, answer in answers.items() if answer == 0.0} == failing


def test_what_cannot_be_judged_is_nan() -> None:
    answers = judged(hand_made(100, *FEW))
    assert all(math.isnan(answer) for answer in answers.values())
    arrays = as_predicted()
    arrays["selection/causal/10000"][:] = torch.nan
    answers = judged(arrays)
    missing = {name for name, answer in answers.items() if math.isnan(answer)}
    assert missing == {"no-crossing", "own-best-area", "own-best-mixture"}
    # A difference of no more than two errors is none.
    assert not epochs.is_positive(torch.tensor([1.0, -0.5, 0.5]))
    assert epochs.is_positive(torch.tensor([1.0, 0.9, 0.5]))


def test_the_ratio_falls_to_one_from_above() -> None:
    ratio = epochs.predicted_ratio([1, 2, 300])
    assert 1 / ratio[0].item() == pytest.approx(0.195, abs=1e-3)
    assert ratio[1].item() == pytest.approx(1 + (ratio[0].item() - 1) / 2)
    assert 1 < ratio[2] < 1.02


# -- experiment ---------------------------------------------------------------------------------------


def test_a_run_goes_on_from_what_it_kept(tmp_path) -> None:
    first = QUICK.run(RunContext(folder=tmp_path))
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == len(QUICK.num_data) * 2 * len(QUICK.masked_rates)
    times = {path: path.stat().st_mtime_ns for path in files}
    lost = tmp_path / "100-causal-rate-0.01.safetensors"
    lost.unlink()
    again = QUICK.run(RunContext(folder=tmp_path))
    changed = {path for path in files if path.stat().st_mtime_ns != times[path]}
    assert changed == {lost}
    for name, array in first.arrays.items():
        torch.testing.assert_close(
            again.arrays[name], array, rtol=0, atol=1e-5, equal_nan=True, msg=name
        )


def test_every_network_is_in_the_arrays() -> None:
    arrays = QUICK.run(RunContext()).arrays
    for num_data, num_passes in zip(QUICK.num_data, QUICK.num_passes, strict=True):
        looks = QUICK.looks(num_passes)
        shape = (len(QUICK.masked_rates), len(QUICK.seeds), len(looks))
        assert arrays[f"passes/{num_data}"].tolist() == looks
        for measure in (*epochs.MEASURES, "causal/more"):
            assert arrays[f"excess/{measure}/{num_data}"].shape == shape
        for measure in epochs.MEASURES:
            assert arrays[f"selection/{measure}/{num_data}"].shape == shape
        for kind in epochs.KINDS:
            assert arrays[f"training/{kind}/{num_data}"].shape == shape
            assert arrays[f"diverged/{kind}/{num_data}"].tolist() == [0] * len(QUICK.masked_rates)
    assert {f"prediction/{name}" for name in epochs.PREDICTIONS} <= arrays.keys()


def test_looks_end_with_the_last_pass() -> None:
    assert QUICK.looks(40) == [1, 2, 4, 8, 16, 32, 40]
    assert QUICK.looks(300) == [1, 2, 4, 8, 16, 32, 64, 128, 192, 300]


def test_batches_divide_the_data() -> None:
    with pytest.raises(ValueError, match="batch_sizes must divide num_data, got 30 for 100"):
        EpochsOfTransformers(batch_sizes=(30, 100, 100))
