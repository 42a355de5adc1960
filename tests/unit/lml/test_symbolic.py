"""Every identity of chapter 2 is exactly 0; every printed slip is exactly its stated excess."""

from itertools import permutations
from math import comb, factorial

import pytest
import sympy as sp

from mpt_lml import symbolic

TABLES = [2, 3, 4]
GAUSSIANS = [2, 3]


@pytest.fixture(
    params=[f"table-{d}" for d in TABLES] + [f"gaussian-{d}" for d in GAUSSIANS],
    scope="module",
)
def model(request):
    kind, size = request.param.split("-")
    return (
        symbolic.SymbolicTable(int(size))
        if kind == "table"
        else symbolic.SymbolicGaussian(int(size))
    )


def sizes(model):
    return range(1, model.num_features + 1)


def printed_score(model, num_masked):
    """Proposition 1's middle form: token j from the D − j coordinates after it, masked or not."""
    return sum(model.order_term(j) for j in range(1, num_masked + 1)) / num_masked


def printed_excess(model):
    return model.residual(lambda m: printed_score(model, m))


def printed_four_difference(model, t):
    """Eq. 4 as printed: D! terms that see D − t coordinates, and pairs that see t − 1."""
    size = model.num_features
    mirrored = size - t + 1
    pairs = mirrored * comb(size, mirrored) * model.score(mirrored)
    return model.normal_form(factorial(size) * model.order_term(t) - pairs)


def information(model):
    """Pointwise mutual information of the first two coordinates."""
    single = model.log_marginal((0,)) + model.log_marginal((1,))
    return model.normal_form(model.log_marginal((0, 1)) - single)


def test_chain_rule_holds_along_every_order(model):
    for order in permutations(range(model.num_features)):
        terms = [model.log_conditional(j, order[t:]) for t, j in enumerate(order, start=1)]
        assert model.normal_form(sum(terms) - model.log_marginal()) == 0


def test_average_over_orders(model):
    assert model.residual(model.order_term) == 0


def test_grouping_by_size(model):
    size = model.num_features
    pairs = [m * comb(size, m) * model.score(m) for m in sizes(model)]
    weights = [factorial(m - 1) * factorial(size - m) for m in sizes(model)]
    orders = factorial(size) * sum(model.order_term(t) for t in sizes(model))
    grouped = sum(w * pair for w, pair in zip(weights, pairs, strict=True))
    assert model.normal_form(orders - grouped) == 0


def test_term_t_of_the_average_is_the_score_of_size_t(model):
    for t in range(1, model.num_features + 1):
        difference = model.order_term(t) - model.score(t)
        assert model.normal_form(difference) == 0


def test_proposition_1(model):
    assert model.residual(model.score) == 0


def test_telescoping_lemma_at_every_size(model):
    for num_masked in range(1, model.num_features + 1):
        rest = model.num_features - num_masked
        ends = [model.mean_log_marginal(r) for r in (rest, rest + 1)]
        assert model.normal_form(model.score(num_masked) - ends[1] + ends[0]) == 0


def test_ends_of_the_averages_of_marginals(model):
    assert model.mean_log_marginal(0) == 0
    full = model.mean_log_marginal(model.num_features)
    assert model.normal_form(full - model.log_marginal()) == 0


def test_printed_equation_4_is_off_by_its_counts_and_its_multiplicity(model):
    size = model.num_features
    total = 0
    for t in range(1, size + 1):
        orders = factorial(t - 1) * factorial(size - t)
        mirrored = size - t + 1
        pairs = t * comb(size, t)
        # The D! orders on the left of what is printed, whose right is of the mirrored size.
        left = orders * pairs * model.score(t)
        assert model.normal_form(factorial(size) * model.order_term(t) - left) == 0
        difference = printed_four_difference(model, t)
        # Only the middle position of an odd number keeps its size; at D = 3 it occurs once.
        assert (difference == 0) == (t == mirrored and orders == 1)
        total += difference
    assert (model.normal_form(total) == 0) == (size == 2)


@pytest.mark.parametrize("two", [symbolic.SymbolicTable(2), symbolic.SymbolicGaussian(2)])
def test_equation_4_fails_at_two_coordinates_by_twice_the_information(two):
    expected = information(two)
    for t, sign in ((1, 2), (2, -2)):
        difference = printed_four_difference(two, t)
        assert two.normal_form(difference - sign * expected) == 0


def test_printed_score_is_the_joint_block_over_m(model):
    size = model.num_features
    for m in range(1, size + 1):
        block = (model.log_marginal() - model.mean_log_marginal(size - m)) / m
        assert model.normal_form(printed_score(model, m) - block) == 0


def test_printed_middle_expression_of_proposition_1_has_the_stated_excess(model):
    size = model.num_features
    gaps = [
        (model.log_marginal() - model.mean_log_marginal(size - m)) / m - model.score(m)
        for m in range(1, size + 1)
    ]
    excess = printed_excess(model)
    assert excess != 0
    assert model.normal_form(excess - sum(gaps)) == 0


@pytest.mark.parametrize("two", [symbolic.SymbolicTable(2), symbolic.SymbolicGaussian(2)])
def test_at_two_coordinates_the_excess_is_half_the_pointwise_mutual_information(two):
    half = information(two) / 2
    assert half != 0
    assert two.normal_form(printed_excess(two) - half) == 0


def test_table_against_a_table_of_fractions():
    # Independent of SymPy's algebra: exact fractions, marginals summed by hand.
    table = symbolic.SymbolicTable(2)
    values = dict(zip(table.entries.values(), [sp.Integer(k) for k in (1, 4, 3, 2)], strict=True))
    assert sp.exp(table.log_marginal().subs(values)) == sp.Rational(1, 10)
    assert sp.exp(table.log_marginal((1,)).subs(values)) == sp.Rational(4, 10)
    assert sp.exp(table.log_conditional(1, (0,)).subs(values)) == sp.Rational(1, 5)
    assert sp.exp(table.log_conditional(0, (1,)).subs(values)) == sp.Rational(1, 4)


def test_gaussian_against_the_bivariate_density():
    gaussian = symbolic.SymbolicGaussian(2)
    values = {"x_0": 1, "x_1": 2, "mu_0": 0, "mu_1": 1, "s_00": 2, "s_01": 1, "s_11": 3}
    values = {s: values[s.name] for s in gaussian.log_marginal().free_symbols}
    # d = (1, 1), Sigma^-1 = [[3, -1], [-1, 2]] / 5: quadratic form 3/5, determinant 5.
    joint = -(2 * sp.log(2 * sp.pi) + sp.log(5) + sp.Rational(3, 5)) / 2
    # x_0 | x_1: mean 1/3, variance 5/3, squared deviation over variance 4/15.
    conditional = -(sp.log(2 * sp.pi) + sp.log(sp.Rational(5, 3)) + sp.Rational(4, 15)) / 2
    assert sp.expand(gaussian.log_marginal().subs(values) - joint) == 0
    assert sp.expand(gaussian.log_conditional(0, (1,)).subs(values) - conditional) == 0


@pytest.mark.parametrize("size", GAUSSIANS)
def test_gaussian_parts_vanish_separately(size):
    gaussian = symbolic.SymbolicGaussian(size)
    rest = range(size - 1)
    raw = (
        gaussian.log_conditional(size - 1, rest)
        + gaussian.log_marginal(rest)
        - gaussian.log_marginal()
    )
    assert raw != 0  # not zero as written, so the reductions below do something
    assert gaussian._quadratic_part(raw) == 0
    assert symbolic._log_determinant_part(raw) == 0
    assert gaussian._quadratic_part(gaussian.log_marginal()) != 0
    assert symbolic._log_determinant_part(gaussian.log_marginal()) != 0


def test_no_floating_point_number_anywhere(model):
    for m in range(1, model.num_features + 1):
        assert not model.score(m).atoms(sp.Float)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: symbolic.SymbolicTable(0), "must be >= 1, got 0"),
        (lambda: symbolic.SymbolicGaussian(0), "must be >= 1, got 0"),
        (
            lambda: symbolic.SymbolicTable(2).log_marginal((0, 0)),
            r"distinct numbers in 0..1. Got \[0, 0\]",
        ),
        (lambda: symbolic.SymbolicTable(2).log_conditional(0, (0,)), "arget"),
        (
            lambda: symbolic.SymbolicGaussian(2).log_conditional(2, ()),
            "target must be in 0..1, got 2",
        ),
        (lambda: symbolic.SymbolicTable(2).score(0), "num_masked must be in 1..2, got 0"),
        (
            lambda: symbolic.SymbolicTable(2).mean_log_marginal(3),
            "num_observed must be in 0..2, got 3",
        ),
        (
            lambda: symbolic.SymbolicTable(2).order_term(0),
            "position must be in 1..2, got 0",
        ),
    ],
)
def test_bad_input_names_the_value_and_the_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()
