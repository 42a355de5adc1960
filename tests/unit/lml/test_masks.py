from __future__ import annotations

import math

import pytest
import torch
from models import generator

from mpt_lml import masks, scores


@pytest.mark.parametrize(("num_features", "num_masked"), [(1, 1), (5, 1), (5, 3), (6, 6), (40, 2)])
def test_all_masks_are_all_of_them_once(num_features: int, num_masked: int) -> None:
    mask = masks.all_masks(num_features, num_masked)
    assert mask.shape == (math.comb(num_features, num_masked), num_features)
    assert (mask.sum(dim=1) == num_masked).all()
    assert len(mask.unique(dim=0)) == len(mask)


def test_subsets_are_numbered_by_their_bits() -> None:
    rows = masks.subsets(4)
    assert rows.shape == (16, 4)
    assert rows[0b0110].tolist() == [False, True, True, False]
    assert len(rows.unique(dim=0)) == 16


def test_fifteen_percent_of_512_are_76() -> None:
    assert masks.FixedRate(0.15).num_masked(512) == 76
    assert masks.FixedRate(0.29).num_masked(100) == 29
    assert masks.FixedRate(0.15).num_masked(4) == 1


LAWS = [
    masks.FixedSize(3),
    masks.FixedRate(0.4),
    masks.UniformSize(),
    masks.BernoulliRate(0.15),
    masks.PowerSize(-0.5),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_sampled_sizes_follow_their_law_and_coordinates_are_uniform(law: masks.SizeLaw) -> None:
    count, num_features = 40_000, 6
    mask = masks.sample_masks(count, num_features, law, generator=generator(1))
    expected = law.probabilities(num_features)
    assert expected.sum().item() == pytest.approx(1.0, abs=1e-12)
    observed = torch.bincount(mask.sum(dim=1), minlength=num_features + 1)[1:] / count
    assert ((observed - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt()).all()
    rate = (expected * torch.arange(1, num_features + 1)).sum().item() / num_features
    error = math.sqrt(rate * (1 - rate) / count)
    assert (mask.double().mean(dim=0) - rate).abs().max().item() <= 5 * error


def test_bernoulli_sizes_are_a_binomial_without_zero() -> None:
    rate, num_features = 0.3, 7
    expected = [
        math.comb(num_features, m) * rate**m * (1 - rate) ** (num_features - m)
        for m in range(1, num_features + 1)
    ]
    law = masks.BernoulliRate(rate).probabilities(num_features)
    assert law.tolist() == pytest.approx([p / sum(expected) for p in expected], rel=1e-12)
    assert masks.BernoulliRate(1.0).probabilities(3).tolist() == [0.0, 0.0, 1.0]


def test_weights_make_every_law_the_mean_over_all_sizes() -> None:
    """Σ_M ν(M) w(M) f(M) = (1/D) Σ_M f(M), whatever f."""
    values = torch.tensor([3.0, -1.0, 4.0, 1.0, -5.0]).double()
    for law in (masks.PowerSize(-0.5), masks.PowerSize(1.0), masks.BernoulliRate(0.3)):
        weighted = law.probabilities(5) * law.weights(5) * values
        assert weighted.sum().item() == pytest.approx(values.mean().item(), rel=1e-12)


def test_sizes_by_the_inverse_root_are_squares_of_uniform_numbers() -> None:
    """P(M/D ≤ u²) is about u, with an error of the order 1/√D."""
    cumulative = masks.PowerSize(-0.5).probabilities(10_000).cumsum(0)
    for u in (0.1, 0.5, 0.9):
        assert cumulative[round(10_000 * u**2) - 1].item() == pytest.approx(u, abs=0.01)


def test_a_mask_of_given_size_is_uniform_over_all_of_them() -> None:
    count = 30_000
    mask = masks.sample_masks(count, 5, 2, generator=generator(2))
    index = (mask.long() << torch.arange(5)).sum(dim=1)
    seen = torch.bincount(index, minlength=32)
    seen = seen[seen > 0] / count
    assert len(seen) == 10
    assert (seen - 0.1).abs().max().item() <= 5 * math.sqrt(0.09 / count)


def test_the_same_seed_gives_the_same_masks() -> None:
    draws = [
        masks.sample_masks(20, 9, masks.UniformSize(), generator=generator(s)) for s in (3, 3, 4)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_nested_masks_hide_what_an_order_reveals_last() -> None:
    mask = masks.nested_masks(torch.tensor([2, 0, 1]))
    assert mask.long().tolist() == [[0, 1, 0], [1, 1, 0], [1, 1, 1]]
    batch = torch.tensor([[2, 0, 1], [0, 1, 2]])
    assert torch.equal(masks.nested_masks(batch)[0], mask)
    assert masks.nested_masks(batch)[1].long().tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1]]


def test_score_divides_by_the_number_of_masked_coordinates() -> None:
    mask = torch.tensor([[True, True, False], [False, False, True]])
    values = torch.tensor([[[2.0, 4.0, 0.0]], [[0.0, 0.0, 5.0]]])
    assert scores.mask_score(values, mask).tolist() == [[3.0], [5.0]]
    assert scores.mask_score(values[:, 0], mask).tolist() == [3.0, 5.0]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("mask", "place"),
    [
        ([False, False], ""),
        ([[True, False], [False, False]], r"\[1\]"),
        ([[[True, False]], [[False, False]]], r"\[1, 0\]"),
    ],
)
def test_a_mask_of_nothing_has_no_score(mask: list, place: str) -> None:
    mask = torch.tensor(mask)
    with pytest.raises(ValueError, match=f"^mask{place} masks nothing"):
        scores.mask_score(torch.zeros(mask.shape), mask)


def test_mean_by_size() -> None:
    values = torch.tensor([1.0, 3.0, 10.0])
    assert scores.mean_by_size(values, torch.tensor([1, 1, 3]), 3)[[1, 3]].tolist() == [2.0, 10.0]


def test_the_row_of_a_subset_is_where_it_stands() -> None:
    assert torch.equal(masks.row_of(masks.subsets(5)), torch.arange(32))
    last = torch.zeros(2, 62, dtype=torch.bool)
    last[1, 61] = True
    assert masks.row_of(last).tolist() == [0, 2**61]
    with pytest.raises(ValueError, match=r"num_features must be in 1\.\.62, got 63"):
        masks.row_of(torch.ones(1, 63, dtype=torch.bool))


def test_what_is_enumerated_ends_at_a_quarter_million() -> None:
    assert len(masks.subsets(18)) == 2**18
    with pytest.raises(ValueError, match="262144 that are enumerated"):
        masks.subsets(19)


def test_masks_of_one_step_hide_independently() -> None:
    """Also of equal sizes: neighbors hide the same of ten coordinates in one of ten pairs."""
    mask = masks.stratified_masks(400, 10, masks.FixedSize(1), generator=generator(5))
    hidden = mask.int().argmax(dim=1)
    share = (hidden[1:] == hidden[:-1]).double().mean().item()
    assert abs(share - 0.1) <= 5 * math.sqrt(0.09 / 399)


REFUSED = {
    "no coordinates": (lambda: masks.subsets(0), ValueError, "num_features must"),
    "no coordinates with a size": (
        lambda: masks.all_masks(0, 1),
        ValueError,
        "num_features must",
    ),
    "no coordinates for a law": (
        lambda: masks.sample_masks(2, 0, masks.UniformSize(), generator=generator()),
        ValueError,
        "num_features must",
    ),
    "no masks": (
        lambda: masks.UniformSize().sample(0, 3, generator=generator()),
        ValueError,
        "num_masks must",
    ),
    "True as a size": (lambda: masks.FixedSize(True), TypeError, "must be an integer"),
    "True as a size or a law": (
        lambda: masks.sample_masks(1, 3, True, generator=generator()),
        TypeError,
        "must be of type int or SizeLaw",
    ),
    "True as M": (lambda: masks.all_masks(3, True), TypeError, "must be an integer"),
    "M = 0": (lambda: masks.all_masks(5, 0), ValueError, r"1\.\.5, got 0"),
    "M above D": (lambda: masks.all_masks(5, 6), ValueError, r"1\.\.5, got 6"),
    "sampled M = 0": (
        lambda: masks.sample_masks(3, 5, 0, generator=generator()),
        ValueError,
        "in 1..5, got 0",
    ),
    "sampled M above D": (
        lambda: masks.sample_masks(3, 5, 6, generator=generator()),
        ValueError,
        r"1\.\.5, got 6",
    ),
    "a rate above 1": (lambda: masks.FixedRate(15), ValueError, r"\(0, 1\], got 15"),
    "a rate of 0": (lambda: masks.BernoulliRate(0.0), ValueError, r"\(0, 1\], got 0"),
    "a size law by name": (
        lambda: masks.sample_masks(3, 5, "uniform", generator=generator()),
        TypeError,
        "int or SizeLaw, got .uniform.*such as FixedRate",
    ),
    "too many masks of a size": (
        lambda: masks.all_masks(512, 76),
        ValueError,
        r"1.211e\+92.*sample_masks",
    ),
    "too many subsets": (lambda: masks.subsets(40), ValueError, "sample_masks"),
    "no generator": (lambda: masks.sample_masks(3, 5, 2), TypeError, "'generator'"),
    "generator None": (
        lambda: masks.sample_masks(3, 5, 2, generator=None),
        TypeError,
        "manual_seed",
    ),
    "an order that is none": (
        lambda: masks.nested_masks(torch.tensor([0, 0, 2])),
        ValueError,
        "permutation",
    ),
    "a count beyond 64 bits": (
        lambda: masks.sample_masks(2**63, 4, 2, generator=generator()),
        ValueError,
        "num_masks must be below 2.63, got 9223372036854775808",
    ),
    "more subsets than a float holds": (
        lambda: masks.subsets(1024),
        ValueError,
        r"about 10\^308, more than the 262144.*sample_masks",
    ),
    "subsets that would not fit into memory as a number": (
        lambda: masks.subsets(10**12),
        ValueError,
        r"about 10\^301029995664",
    ),
    "masks in a number of six hundred digits": (
        lambda: masks.all_masks(2000, 1000),
        ValueError,
        r"about 10\^600.*sample_masks",
    ),
    "more sizes than can be drawn": (
        lambda: masks.UniformSize().sample(5, 2**25, generator=generator()),
        ValueError,
        r"num_features must be in 1\.\.16777216",
    ),
    "a rate next to 0": (
        lambda: masks.BernoulliRate(5e-324).probabilities(4),
        ValueError,
        "rate = 5e-324 is so small that no probability of D",
    ),
    "M as a float": (
        lambda: masks.all_masks(4, 2.0),
        TypeError,
        r"num_masked must be an integer.*, got 2\.0",
    ),
    "a law that is a rate": (
        lambda: masks.stratified_masks(3, 4, [0.15], generator=generator()),
        TypeError,
        "law must be of type SizeLaw or Sequence, got .0.15.",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_reason(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shape", [(2, 30, 784), (500, 10), (4, 1), (0, 3)])
def test_ranks_are_those_of_a_sort(shape: tuple[int, ...]) -> None:
    draws = torch.rand(shape, generator=generator(), dtype=torch.float64)
    assert torch.equal(masks.ranks_of(draws), draws.argsort(dim=-1, stable=True))


def test_a_quantile_on_a_bound_belongs_to_the_next_size() -> None:
    quantile = torch.tensor([0.0, 0.25, 0.5, 0.75]).double()
    assert masks.UniformSize().sizes_at(quantile, 4).tolist() == [1, 2, 3, 4]
    assert masks.FixedSize(3).sizes_at(quantile, 4).tolist() == [3, 3, 3, 3]
