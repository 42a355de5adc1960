"""The hidden Markov model against sums over all hidden paths, and at the book's size."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cases import TractableModelCase
from models import generator, random_hmm

from mpt_lml import HMM, JointTable, masks

EXACT = 1e-10


def every_sequence(num_symbols: int, num_features: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(num_symbols), repeat=num_features)))


def by_paths(model: HMM, sequence: list[int]) -> float:
    """p(x), one hidden path after the other."""
    total = 0.0
    for path in itertools.product(range(model.num_states), repeat=model.num_features):
        weight = model.initial[path[0]].item()
        for before, after in itertools.pairwise(path):
            weight *= model.transition[before, after].item()
        for state, symbol in zip(path, sequence, strict=True):
            weight *= model.emission[state, symbol].item()
        total += weight
    return total


def as_table(model: HMM) -> JointTable:
    """The same distribution as an explicit table."""
    x = every_sequence(model.num_values, model.num_features)
    weights = torch.tensor([by_paths(model, row) for row in x.tolist()], dtype=torch.float64)
    return JointTable(weights.view([model.num_values] * model.num_features))


def left_to_right() -> HMM:
    """States that are never entered again: zeros in the transitions, where states may die out."""
    model = random_hmm(3, 3, 4, seed=4)
    upper = model.transition.triu()
    return HMM(model.initial, upper / upper.sum(dim=1, keepdim=True), model.emission, 4)


HMMS = {
    "D=1": random_hmm(2, 3, 1),
    "one state": random_hmm(1, 3, 3, seed=1),
    "one symbol more": random_hmm(3, 4, 3, seed=2),
    "long": random_hmm(2, 2, 6, seed=3),
    "cyclic": HMM.cyclic(3, 3, 4),
    "left to right": left_to_right(),
}


@pytest.mark.parametrize("model", HMMS.values(), ids=HMMS.keys())
class TestHMM(TractableModelCase):
    def test_every_answer_is_the_tables(self, model: HMM) -> None:
        x, mask, table = self.data(model), self.every_mask(model), as_table(model)
        kept = masks.subsets(model.num_features)
        pairs = [
            (model.log_marginal(x), table.log_marginal(x)),
            (model.log_subset_marginal(x, kept), table.log_subset_marginal(x, kept)),
            (model.log_conditional(x, mask), table.log_conditional(x, mask)),
        ]
        for ours, brute in pairs:
            torch.testing.assert_close(ours, brute, atol=EXACT, rtol=0)

    def test_pairs_are_the_diagonal_of_the_table_of_all(self, model: HMM) -> None:
        x, mask = self.data(model, 9), self.every_mask(model)
        count = min(len(x), len(mask))
        every = model.log_conditional(x[:count], mask[:count])
        paired = model.log_each(x[:count], mask[:count])
        torch.testing.assert_close(paired, every.diagonal().T, atol=0, rtol=0)

    def test_sampler_follows_the_probabilities(self, model: HMM) -> None:
        count = 40_000
        drawn = model.sample(count, generator=generator(5))
        place = model.num_values ** torch.arange(model.num_features - 1, -1, -1)
        x = every_sequence(model.num_values, model.num_features)
        expected = model.log_marginal(x).exp()
        assert expected.sum().item() == pytest.approx(1.0, abs=EXACT)
        observed = torch.bincount((drawn * place).sum(dim=1), minlength=len(x)) / count
        # z ~ N(0, 1) for each of at most 81 sequences: beyond 5 once in 20,000 such tests. The
        # additional 1 / count is for rare sequences, whose counts are Poisson, not normal.
        error = 5 * (expected * (1 - expected) / count).sqrt() + 1 / count
        assert ((observed - expected).abs() <= error).all()


def test_reversing_time_reverses_the_answers() -> None:
    """The reversed chain has transition P(z' | z) = π(z') T(z', z) / π(z) where π is stationary."""
    model = HMM.cyclic()
    backward = HMM(model.initial, model.transition.T.contiguous(), model.emission, 16)
    x = model.sample(50, generator=generator(1))
    mask = masks.sample_masks(50, 16, masks.UniformSize(), generator=generator(2))
    torch.testing.assert_close(
        model.log_each(x, mask).flip(1),
        backward.log_each(x.flip(1), mask.flip(1)),
        atol=EXACT,
        rtol=0,
    )


def test_the_books_language() -> None:
    model = HMM.cyclic()
    assert (model.num_states, model.num_values, model.num_features) == (6, 12, 16)
    torch.testing.assert_close(model.initial @ model.transition, model.initial)
    row = torch.full((6,), 0.05 / 6, dtype=torch.float64)
    row += torch.tensor([0.05, 0.0, 0.0, 0.0, 0.2, 0.7], dtype=torch.float64)
    torch.testing.assert_close(model.transition[4], row)  # 4 -> 5 (.7), 4 (.2), 0 (.05)
    assert model.emission[2].topk(2).indices.sort().values.tolist() == [4, 5]
    assert model.emission[2, 4:6].sum().item() == pytest.approx(0.95)


def test_long_sequences_do_not_underflow() -> None:
    model = HMM.cyclic(num_features=3000)
    x = model.sample(2, generator=generator(3))
    mask = masks.sample_masks(2, 3000, 1500, generator=generator(4))
    values = model.log_each(x, mask)
    assert torch.isfinite(values).all()
    total = model.log_marginal(x)
    assert (total < -4000).all()  # exp of it is 0 in double precision
    assert torch.isfinite(total).all()


def test_states_that_are_never_left_are_allowed() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    emission = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    model = HMM(torch.tensor([1.0, 0.0]).double(), eye, emission, 3)
    x = torch.tensor([[0, 1, 0]])
    expected = math.log(0.9 * 0.1 * 0.9)
    assert model.log_marginal(x).item() == pytest.approx(expected, abs=EXACT)
    # The first state alone is possible, so the symbols are independent.
    alone = model.log_conditional(x, masks.subsets(3)[7:])[0, 0]
    assert alone.sum().item() == pytest.approx(expected, abs=EXACT)


def test_what_comes_later_may_speak_for_the_least_likely_state() -> None:
    """States that never move: 300 symbols against one of them, then 300 for it."""
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    emission = torch.tensor([[0.95, 0.05], [0.05, 0.95]], dtype=torch.float64)
    x = torch.tensor([[0] * 300 + [1] * 300 + [0]])
    mask = torch.arange(601)[None] == 600
    model = HMM(half, eye, emission, 601)
    log_half = math.log(0.5)
    # Half way one state has 19^300 = 1e383 times the probability of the other, in the end as much.
    assert model.log_each(x, mask)[0, -1].item() == pytest.approx(log_half, abs=1e-9)
    of_states = torch.full((2,), log_half, dtype=torch.float64)
    torch.testing.assert_close(model.log_posterior(x, ~mask)[0, 0], of_states, atol=1e-9, rtol=0)
    known = 300 * (math.log(0.95) + math.log(0.05))  # in either state
    log_marginal = model.log_subset_marginal(x, ~mask).item()
    assert log_marginal == pytest.approx(known, rel=1e-13)


def test_a_move_may_have_the_smallest_probability_there_is() -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    smallest = 2.0**-1074
    transition = torch.tensor([[1.0, smallest], [smallest, 1.0]], dtype=torch.float64)
    emission = torch.tensor([[0.95, 0.05], [0.05, 0.95]], dtype=torch.float64)
    x = torch.tensor([[0] * 300 + [1] * 300])
    # Never to move has 19^-300 = 1e-384 of the probability of one move. That may come i symbols too
    # early or too late, with 19^-i of the probability of the best: 1 + 2 (1/19 + 1/19² + ...) = 10/9.
    expected = math.log(0.5) + 600 * math.log(0.95) - 1074 * math.log(2.0) + math.log(10 / 9)
    log_marginal = HMM(half, transition, emission, 600).log_marginal(x).item()
    assert log_marginal == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(
    "answer",
    [
        lambda model, x, mask: model.log_marginal(x),
        lambda model, x, mask: model.log_each(x, mask),
        lambda model, x, mask: model.log_posterior(x, ~mask),
    ],
    ids=["log_marginal", "log_each", "log_posterior"],
)
def test_derivatives_are_slopes(answer) -> None:
    """First and second ones, in logits of all tables."""
    source = HMMS["one symbol more"]
    tables = torch.cat([source.initial[:, None], source.transition, source.emission], dim=1)
    widths = [1, source.num_states, source.num_values]
    x = source.sample(2, generator=generator(1))
    mask = torch.zeros(2, source.num_features, dtype=torch.bool)
    mask[0, 1] = True
    mask[1] = True

    def answers(logits: torch.Tensor) -> torch.Tensor:
        initial, transition, emission = logits.split(widths, dim=1)
        law = (initial.flatten().softmax(0), transition.softmax(1), emission.softmax(1))
        return answer(HMM(*law, source.num_features), x, mask)

    logits = tables.log().requires_grad_()
    assert torch.autograd.gradcheck(answers, logits)
    assert torch.autograd.gradgradcheck(answers, logits)


def test_single_precision_answers_in_single_precision() -> None:
    model = HMM(torch.ones(2) / 2, torch.eye(2), torch.full((2, 2), 0.5), 3)
    x, mask = torch.zeros(1, 3).long(), torch.tensor([[True, False, True]])
    assert model.log_marginal(x).dtype == torch.float32
    assert model.log_each(x, mask).dtype == torch.float32


HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
SQUARE = torch.full((2, 2), 0.5, dtype=torch.float64)
MODEL = HMM(HALF, SQUARE, SQUARE, 3)
X = torch.tensor([[0, 1, 0]])
MASK = masks.all_masks(3, 2)
CASES = {
    "integer initial": (lambda: HMM(HALF.long(), SQUARE, SQUARE, 3), TypeError, "torch.int64"),
    "no rows": (lambda: HMM(HALF, HALF, SQUARE, 3), ValueError, r"transition.*\(2, 2\).*\(2,\)"),
    "states differ": (
        lambda: HMM(HALF, SQUARE, SQUARE[:1], 3),
        ValueError,
        r"emission must have shape \(2, V\), got \(1, 2\)",
    ),
    "sum": (lambda: HMM(HALF, SQUARE * 0.9, SQUARE, 3), ValueError, "transition must sum to 1"),
    "one row": (
        lambda: HMM(HALF, SQUARE * torch.tensor([[1.0], [0.9]]), SQUARE, 3),
        ValueError,
        "off by 0.1",
    ),
    "negative": (lambda: HMM(HALF - HALF[:1] * 3, SQUARE, SQUARE, 3), ValueError, "negative"),
    "NaN": (lambda: HMM(HALF * math.nan, SQUARE, SQUARE, 3), ValueError, "initial must be finite"),
    "zero emission": (
        lambda: HMM(HALF, SQUARE, torch.eye(2, dtype=torch.float64), 3),
        ValueError,
        r"emission\[0, 1\] is 0",
    ),
    "length": (lambda: HMM(HALF, SQUARE, SQUARE, 0), ValueError, "num_features"),
    "float x": (lambda: MODEL.log_marginal(X.double()), TypeError, "torch.float64"),
    "x of other D": (lambda: MODEL.log_marginal(X[:, :2]), ValueError, r"\(N, 3\).*got \(1, 2\)"),
    "unknown symbol": (
        lambda: MODEL.log_marginal(X + 1),
        ValueError,
        r"0\.\.1 in column 1, but x\[0, 1\] is 2",
    ),
    "negative symbol": (
        lambda: MODEL.log_conditional(X - 1, MASK),
        ValueError,
        r"x\[0, 0\] is -1",
    ),
    "rows do not pair": (
        lambda: MODEL.log_each(X, MASK),
        ValueError,
        "got 1 and 3.*log_conditional",
    ),
    "empty mask": (
        lambda: MODEL.log_each(X, torch.zeros(1, 3, dtype=torch.bool)),
        ValueError,
        r"mask\[0\] masks nothing",
    ),
    "no generator": (lambda: MODEL.sample(3, generator=None), TypeError, "torch.Generator"),
    "symbols do not share out": (lambda: HMM.cyclic(6, 13), ValueError, "multiple.*got 13"),
    "too few states": (lambda: HMM.cyclic(2, 4), ValueError, "num_states.*got 2"),
    "preferred": (lambda: HMM.cyclic(preferred=1.0), ValueError, "preferred.*got 1.0"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES.keys())
def test_a_wrong_call_is_named(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def posterior_by_paths(model: HMM, x: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
    """p(z_j | x_R) of every place, (D, Q), by a sum over all paths of the hidden states."""
    states = range(len(model.initial))
    posterior = torch.zeros(len(x), len(model.initial), dtype=torch.float64)
    for path in itertools.product(states, repeat=len(x)):
        probability = model.initial[path[0]]
        for before, after in itertools.pairwise(path):
            probability = probability * model.transition[before, after]
        for state, symbol, seen in zip(path, x, observed, strict=True):
            probability = probability * (model.emission[state, symbol] if seen else 1)
        for place, state in enumerate(path):
            posterior[place, state] += probability
    return posterior / posterior.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_posteriors_of_states_are_sums_over_paths(has_zeros: bool) -> None:
    model = random_hmm(3, 4, 5, seed=3)
    if has_zeros:  # from left to right
        transition = model.transition.triu()
        transition = transition / transition.sum(dim=1, keepdim=True)
        initial = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        model = HMM(initial, transition, model.emission, 5)
    at = generator(1)
    x = model.sample(8, generator=at)
    observed = torch.rand(8, 5, generator=at) < 0.6
    observed[0] = False
    observed[1] = True
    found = model.log_posterior(x, observed)
    for row in range(8):
        expected = posterior_by_paths(model, x[row], observed[row])
        torch.testing.assert_close(found[row].exp(), expected, atol=1e-12, rtol=0)
        assert found[row].isneginf().equal(expected == 0)
    assert found.isneginf().any() == has_zeros


def test_a_hidden_symbol_is_predicted_by_the_posterior_of_its_state() -> None:
    """At a length at which messages that are not scaled would underflow."""
    model = HMM.cyclic(num_features=2000)
    x = model.sample(2, generator=generator(2))
    mask = masks.sample_masks(2, 2000, 700, generator=generator(3))
    posterior = model.log_posterior(x, ~mask).exp()
    predicted = (posterior @ model.emission).log().gather(2, x[..., None])[..., 0]
    torch.testing.assert_close(predicted[mask], model.log_each(x, mask)[mask], atol=1e-10, rtol=0)


@pytest.mark.bad_input
def test_one_set_a_sequence_is_asked_for() -> None:
    model = random_hmm(2, 3, 4)
    x = model.sample(3, generator=generator(1))
    with pytest.raises(ValueError, match="same number of rows, got 3 and 2"):
        model.log_posterior(x, torch.ones(2, 4) > 0)
    with pytest.raises(TypeError, match="observed"):
        model.log_posterior(x, torch.ones(3, 4))


@pytest.mark.bad_input
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_rows_may_be_off_by_rounding_and_by_no_more(dtype: torch.dtype, most: float) -> None:
    def language(slip: float) -> HMM:
        emission = torch.tensor([[0.25, 0.75 + slip]], dtype=dtype)
        return HMM(torch.ones(1, dtype=dtype), torch.ones(1, 1, dtype=dtype), emission, 2)

    language(most / 2)
    with pytest.raises(ValueError, match="emission must sum to 1 in every row"):
        language(2 * most)
