"""The identities of chapter 2, checked with symbols instead of numbers.

Two generic models answer the book's one question, log p(x_j | x_R), with SymPy expressions: a
joint table of binary coordinates with arbitrary positive entries, and a Gaussian with an arbitrary
mean and covariance. Every check returns a *residual*, left side minus right side, reduced to a
normal form in which 0 means "equal for every such model". No floating-point number occurs.

Coordinates are numbered 0..D-1; sets of coordinates are tuples of such numbers. An order o is read
as in the paper: the coordinate at position t is predicted from those *after* it, o_{t+1}..o_D.
"Moreno-Muñoz et al. (2023)" below is arXiv 2306.00520.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations, permutations, product
from math import comb, factorial
from typing import Protocol, runtime_checkable

import sympy as sp

__all__ = [
    "SymbolicGaussian",
    "SymbolicModel",
    "SymbolicTable",
    "chain_rule_residual",
    "grouping_residual",
    "mean_log_marginal",
    "order_average_residual",
    "order_term",
    "pointwise_mutual_information",
    "printed_four_difference",
    "printed_score",
    "printed_score_excess",
    "proposition_residual",
    "score",
    "telescoping_residual",
]

Coordinates = Iterable[int]


@runtime_checkable
class SymbolicModel(Protocol):
    """What an identity needs of a model: D, log marginals, log conditionals, a normal form."""

    num_features: int

    def log_marginal(self, observed: Coordinates | None = None) -> sp.Expr: ...

    def log_conditional(self, target: int, observed: Coordinates) -> sp.Expr: ...

    def normal_form(self, expression: sp.Expr) -> sp.Expr: ...


def _checked(observed: Coordinates | None, num_features: int) -> tuple[int, ...]:
    if observed is None:
        return tuple(range(num_features))
    indices = tuple(sorted(observed))
    if len(set(indices)) != len(indices) or not set(indices) <= set(range(num_features)):
        raise ValueError(
            f"observed must be distinct numbers in 0..{num_features - 1}. Got {indices}."
        )
    return indices


def _checked_target(target: int, observed: Sequence[int], num_features: int) -> None:
    if target in observed or target not in range(num_features):
        raise ValueError(
            f"target must be one of 0..{num_features - 1} and not observed. "
            f"Got target {target} with observed {tuple(observed)}."
        )


def _checked_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"{name} must be in {lowest}..{highest}. Got {value}.")


class SymbolicTable:
    """A joint table of D binary coordinates with 2^D positive symbols, at one point x.

    The entries need not sum to one: a probability is a sum of entries divided by the sum of all,
    so the symbols range over every strictly positive table.

    Args:
        num_features: D, the number of coordinates.
        x: the point, D zeros and ones; the origin by default.
    Raises:
        ValueError: D < 1, or x is not D zeros and ones.
    """

    def __init__(self, num_features: int, x: Sequence[int] | None = None) -> None:
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1. Got {num_features}.")
        self.num_features = num_features
        self.x = tuple(x) if x is not None else (0,) * num_features
        if len(self.x) != num_features or not set(self.x) <= {0, 1}:
            raise ValueError(f"x must be {num_features} zeros and ones. Got {self.x}.")
        self.entries: dict[tuple[int, ...], sp.Symbol] = {
            cell: sp.Symbol("p_" + "".join(map(str, cell)), positive=True)
            for cell in product((0, 1), repeat=num_features)
        }

    def weight(self, observed: Coordinates) -> sp.Expr:
        """Sum of the entries that agree with x on the observed coordinates."""
        indices = _checked(observed, self.num_features)
        agreeing = [
            e for cell, e in self.entries.items() if all(cell[i] == self.x[i] for i in indices)
        ]
        return sp.Add(*agreeing)

    def log_marginal(self, observed: Coordinates | None = None) -> sp.Expr:
        """log p(x_R) in nats; `observed` = None means every coordinate, and () gives 0."""
        indices = _checked(observed, self.num_features)
        return self.normal_form(sp.log(self.weight(indices) / self.weight(())))

    def log_conditional(self, target: int, observed: Coordinates) -> sp.Expr:
        """log p(x_j | x_R) in nats: the table restricted to x_R, renormalized, and read at x_j."""
        indices = _checked(observed, self.num_features)
        _checked_target(target, indices, self.num_features)
        return self.normal_form(sp.log(self.weight((*indices, target)) / self.weight(indices)))

    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """Expand into a rational combination of logarithms of distinct sums of entries.

        Those sums are irreducible and no two are proportional, so their logarithms are linearly
        independent over the rationals: the combination is 0 as a function iff it is 0 as written.
        """
        return sp.expand(sp.expand_log(sp.expand(expression)))


class SymbolicGaussian:
    """A Gaussian in D dimensions with symbolic mean and covariance, at a symbolic point x.

    Conditionals are the univariate normals of the textbook (mean and variance by the Schur
    complement); nothing about determinants of the joint is used to write them down.

    Args:
        num_features: D, the number of coordinates.
    Raises:
        ValueError: D < 1.
    """

    def __init__(self, num_features: int) -> None:
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1. Got {num_features}.")
        self.num_features = num_features
        indices = range(num_features)
        self.x = sp.Matrix([sp.Symbol(f"x_{i}", real=True) for i in indices])
        self.mean = sp.Matrix([sp.Symbol(f"mu_{i}", real=True) for i in indices])
        self.covariance = sp.Matrix(
            num_features,
            num_features,
            lambda i, j: sp.Symbol(f"s_{min(i, j)}{max(i, j)}", real=True),
        )

    @cached_property
    def _deviation(self) -> sp.Matrix:
        return self.x - self.mean

    def log_marginal(self, observed: Coordinates | None = None) -> sp.Expr:
        """log N(x_R; mu_R, Sigma_RR) in nats; 0 for no coordinate."""
        indices = list(_checked(observed, self.num_features))
        if not indices:
            return sp.S.Zero
        block = self.covariance.extract(indices, indices)
        deviation = self._deviation.extract(indices, [0])
        quadratic = (deviation.T * block.adjugate() * deviation)[0] / block.det()
        return -(len(indices) * sp.log(2 * sp.pi) + sp.log(block.det()) + quadratic) / 2

    def log_conditional(self, target: int, observed: Coordinates) -> sp.Expr:
        """log p(x_j | x_R) in nats, from the conditional mean and variance of coordinate j."""
        indices = list(_checked(observed, self.num_features))
        _checked_target(target, indices, self.num_features)
        mean, variance = self.mean[target], self.covariance[target, target]
        if indices:
            block = self.covariance.extract(indices, indices)
            gain = self.covariance.extract([target], indices) * block.adjugate() / block.det()
            mean += (gain * self._deviation.extract(indices, [0]))[0]
            variance -= (gain * self.covariance.extract(indices, [target]))[0]
        square = (self.x[target] - mean) ** 2
        return -(sp.log(2 * sp.pi) + sp.log(variance) + square / variance) / 2

    def quadratic_part(self, expression: sp.Expr) -> sp.Expr:
        """The part of a log-density without logarithms, as one canceled rational function."""
        deviations = [sp.Dummy(f"d_{i}") for i in range(self.num_features)]
        shift = {x: d + mean for x, d, mean in zip(self.x, deviations, self.mean, strict=True)}
        back = {d: x - mean for x, d, mean in zip(self.x, deviations, self.mean, strict=True)}
        rational = expression.replace(sp.log, lambda argument: sp.S.Zero).xreplace(shift)
        symbols = sorted(rational.free_symbols, key=str)
        if not symbols:
            return rational
        field = sp.QQ.frac_field(*symbols)
        return field.to_sympy(field.from_sympy(rational)).xreplace(back)

    def log_determinant_part(self, expression: sp.Expr) -> sp.Expr:
        """The logarithms of a log-density, as logarithms of distinct irreducible polynomials."""
        names = {atom: sp.Dummy() for atom in sorted(expression.atoms(sp.log), key=str)}
        linear = expression.xreplace(names)
        return sp.expand(
            sp.Add(
                *[linear.diff(name) * _log_of_factors(atom.args[0]) for atom, name in names.items()]
            )
        )

    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """Quadratic part plus log-determinant part, each in its own normal form."""
        return self.quadratic_part(expression) + self.log_determinant_part(expression)


def _log_of_factors(argument: sp.Expr) -> sp.Expr:
    """log of a positive rational function, as a combination of logs of its irreducible factors."""
    if argument.is_number:
        return sp.expand_log(sp.log(argument))
    numerator, denominator = sp.fraction(sp.cancel(argument))
    (top, top_factors), (bottom, bottom_factors) = (
        sp.factor_list(numerator),
        sp.factor_list(denominator),
    )
    logs = [power * sp.log(factor) for factor, power in top_factors]
    logs += [-power * sp.log(factor) for factor, power in bottom_factors]
    return sp.Add(sp.log(top / bottom), *logs)


def _mean(expressions: Iterable[sp.Expr]) -> sp.Expr:
    terms = list(expressions)
    return sp.Add(*terms) / len(terms)


def _rest(masked: Sequence[int], num_features: int) -> tuple[int, ...]:
    return tuple(i for i in range(num_features) if i not in masked)


def mean_log_marginal(model: SymbolicModel, num_observed: int) -> sp.Expr:
    """ell_r(x): the average of log p(x_R) over all R of size r, in nats.

    ell_0 = 0 and ell_D = log p(x).
    Raises:
        ValueError: num_observed is outside 0..D.
    """
    _checked_range("num_observed", num_observed, 0, model.num_features)
    subsets = combinations(range(model.num_features), num_observed)
    return _mean(model.log_marginal(observed) for observed in subsets)


def score(model: SymbolicModel, num_masked: int) -> sp.Expr:
    """S(x; M): log p(x_j | x_R) averaged over all masks of size M and all j masked, in nats.

    Source: Moreno-Muñoz et al. (2023), Proposition 1.
    Raises:
        ValueError: num_masked is outside 1..D.
    """
    _checked_range("num_masked", num_masked, 1, model.num_features)
    return _mean(
        model.log_conditional(target, _rest(masked, model.num_features))
        for masked in combinations(range(model.num_features), num_masked)
        for target in masked
    )


def order_term(model: SymbolicModel, position: int) -> sp.Expr:
    """Term t of the chain rule averaged over the D! orders o, in nats.

    The term is log p(x_{o_t} | x_{o_{t+1}}..x_{o_D}); its average is S(x; t).
    Source: Moreno-Muñoz et al. (2023), the line before Eq. 4.
    Raises:
        ValueError: position (t) is outside 1..D.
    """
    _checked_range("position", position, 1, model.num_features)
    orders = permutations(range(model.num_features))
    return _mean(model.log_conditional(o[position - 1], o[position:]) for o in orders)


def chain_rule_residual(model: SymbolicModel, order: Sequence[int]) -> sp.Expr:
    """sum_t log p(x_{o_t} | x_{o_{t+1}}..x_{o_D}) - log p(x) for one order, in nats.

    Source: Moreno-Muñoz et al. (2023), Eq. 2.
    Raises:
        ValueError: order is not a permutation of 0..D-1.
    """
    order = tuple(order)
    if sorted(order) != list(range(model.num_features)):
        raise ValueError(
            f"order must be a permutation of 0..{model.num_features - 1}. Got {order}."
        )
    terms = [model.log_conditional(target, order[t:]) for t, target in enumerate(order, start=1)]
    return model.normal_form(sp.Add(*terms) - model.log_marginal())


def order_average_residual(model: SymbolicModel) -> sp.Expr:
    """The average of the chain rule over all D! orders, minus log p(x), in nats.

    Source: Moreno-Muñoz et al. (2023), Eq. 3.
    """
    terms = [order_term(model, t) for t in range(1, model.num_features + 1)]
    return model.normal_form(sp.Add(*terms) - model.log_marginal())


def _pair_sum(model: SymbolicModel, num_masked: int) -> sp.Expr:
    pairs = num_masked * comb(model.num_features, num_masked)
    return pairs * score(model, num_masked)


def grouping_residual(model: SymbolicModel) -> sp.Expr:
    """Sum over D! orders minus the same sum regrouped by mask size.

    sum_o sum_t log p(x_{o_t} | x_{o_{t+1}}..x_{o_D})
      - sum_M (M-1)! (D-M)! sum_{|A|=M} sum_{j in A} log p(x_j | x_R).
    Source: Moreno-Muñoz et al. (2023), Eq. 4, with the factor (M-1)! (D-M)! put in.
    """
    size = model.num_features
    orders = factorial(size) * sp.Add(*[order_term(model, t) for t in range(1, size + 1)])
    groups = [
        factorial(m - 1) * factorial(size - m) * _pair_sum(model, m) for m in range(1, size + 1)
    ]
    return model.normal_form(orders - sp.Add(*groups))


def proposition_residual(model: SymbolicModel) -> sp.Expr:
    """sum_{M=1}^{D} S(x; M) - log p(x). Moreno-Muñoz et al. (2023), Proposition 1 and Eq. 5."""
    scores = [score(model, m) for m in range(1, model.num_features + 1)]
    return model.normal_form(sp.Add(*scores) - model.log_marginal())


def telescoping_residual(model: SymbolicModel, num_masked: int) -> sp.Expr:
    """S(x; M) - (ell_{D-M+1} - ell_{D-M}), the telescoping lemma of chapter 2."""
    _checked_range("num_masked", num_masked, 1, model.num_features)
    rest = model.num_features - num_masked
    step = mean_log_marginal(model, rest + 1) - mean_log_marginal(model, rest)
    return model.normal_form(score(model, num_masked) - step)


def printed_four_difference(model: SymbolicModel, position: int) -> sp.Expr:
    """Eq. 4 as printed, an equation for each t: its left side minus its right side, in nats.

    Left, the D! terms at position t, which see the D-t coordinates after it. Right, what the
    printed counts say: C(D, t-1) visible sets, hence of t-1 members, with D-t+1 tokens each.
    """
    size = model.num_features
    left = factorial(size) * order_term(model, position)
    return model.normal_form(left - _pair_sum(model, size - position + 1))


def printed_score(model: SymbolicModel, num_masked: int) -> sp.Expr:
    """The size-M score when masked token j is predicted from D-j coordinates, x_{R(1:D-j)}.

    Averaged over the D! orders o with M(j) = o_j and R(1:D-j) = {o_{j+1}..o_D}: the D-j coordinates
    after token j, masked or not. A mask of size M leaves only D-M observed: this is not S(x; M).
    """
    _checked_range("num_masked", num_masked, 1, model.num_features)
    orders = permutations(range(model.num_features))
    return _mean(model.log_conditional(o[j], o[j + 1 :]) for o in orders for j in range(num_masked))


def printed_score_excess(model: SymbolicModel) -> sp.Expr:
    """sum_M `printed_score`(M) - log p(x), in nats.

    At D = 2 it is half the pointwise mutual information.
    """
    scores = [printed_score(model, m) for m in range(1, model.num_features + 1)]
    return model.normal_form(sp.Add(*scores) - model.log_marginal())


def pointwise_mutual_information(model: SymbolicModel, first: int = 0, second: int = 1) -> sp.Expr:
    """log p(x_i, x_j) - log p(x_i) - log p(x_j), in nats."""
    pair = model.log_marginal((first, second))
    return model.normal_form(pair - model.log_marginal((first,)) - model.log_marginal((second,)))
