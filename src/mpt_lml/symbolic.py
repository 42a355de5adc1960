"""Models that answer with SymPy expressions instead of numbers, to check the identities of chapter 2.

Coordinates are numbered 0..D−1. The coordinate at position t of an order o is predicted from those
*after* it, o_{t+1}..o_D (Moreno-Muñoz et al. 2023). Every expression is exact and in nats.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from itertools import combinations, permutations, product

import sympy as sp

from mpt_lml.checks import Count, checked, require_count, require_enumerable

__all__ = ["SymbolicGaussian", "SymbolicTable"]


class _SymbolicModel(ABC):
    def __init__(self, num_features: int) -> None:
        self.num_features = num_features

    @checked
    def log_marginal(self, observed: Collection[int] | None = None) -> sp.Expr:
        """log p(x_R).

        Args:
            observed: R, distinct coordinates in 0..D−1; None means every one, and () gives 0.

        Returns:
            Nats.
        """
        if observed is None:
            observed = range(self.num_features)
        return self._log_marginal(self._sorted(observed))

    @checked
    def log_conditional(self, target: int, observed: Collection[int]) -> sp.Expr:
        """log p(x_j | x_R).

        Args:
            target: j, a coordinate that is not in R.
            observed: R, distinct coordinates in 0..D−1.

        Returns:
            Nats.

        Raises:
            ValueError: for a coordinate that is not there, is named twice, or is both.
        """
        indices = self._sorted(observed)
        require_count("target", target, 0, self.num_features - 1)
        if target in indices:
            raise ValueError(f"target must be a coordinate not in {indices}. Got target {target}.")
        return self._log_conditional(target, indices)

    @checked
    def order_term(self, position: int) -> sp.Expr:
        """Term t = ``position`` of the chain, averaged over the D! orders (the line before Eq. 4).

        Args:
            position: t, in 1..D.

        Returns:
            Nats.
        """
        require_count("position", position, 1, self.num_features)
        orders = permutations(range(self.num_features))
        return _mean(self.log_conditional(o[position - 1], o[position:]) for o in orders)

    @checked
    def score(self, num_masked: int) -> sp.Expr:
        """S(x; M): the average of log p(x_j | x_R) over all masks of size M and all j masked.

        Args:
            num_masked: M, in 1..D.

        Returns:
            Nats a coordinate.
        """
        require_count("num_masked", num_masked, 1, self.num_features)
        everything = set(range(self.num_features))
        masks = combinations(everything, num_masked)
        return _mean(
            self.log_conditional(j, everything - set(mask)) for mask in masks for j in mask
        )

    @checked
    def mean_log_marginal(self, num_observed: int) -> sp.Expr:
        """ℓ_r(x): the average of log p(x_R) over all R of size r; ℓ_0 = 0 and ℓ_D = log p(x).

        Args:
            num_observed: r, in 0..D.

        Returns:
            Nats.
        """
        require_count("num_observed", num_observed, 0, self.num_features)
        subsets = combinations(range(self.num_features), num_observed)
        return _mean(self.log_marginal(observed) for observed in subsets)

    @checked
    def residual(self, term: Callable[[int], sp.Expr]) -> sp.Expr:
        """Σ_{M=1}^{D} term(M) − log p(x) in normal form: 0 for :meth:`score` (Proposition 1).

        Args:
            term: a summand in nats, from M = 1..D.

        Returns:
            Nats.

        Raises:
            TypeError: for a term that is no expression of SymPy.
        """
        terms = [term(num_masked) for num_masked in range(1, self.num_features + 1)]
        for expression in terms:
            if not isinstance(expression, sp.Expr):
                raise TypeError(f"term must return an expression of sympy, got {expression!r}.")
        return self.normal_form(sp.Add(*terms) - self.log_marginal())

    @abstractmethod
    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """An equal expression that is 0 exactly if it is 0 for every such model."""

    @abstractmethod
    def _log_marginal(self, observed: list[int]) -> sp.Expr: ...

    @abstractmethod
    def _log_conditional(self, target: int, observed: list[int]) -> sp.Expr: ...

    def _sorted(self, observed: Collection[int]) -> list[int]:
        for index in observed:
            require_count("each of observed", index, 0, self.num_features - 1)
        indices = sorted(observed)
        if len(set(indices)) != len(indices):
            legal = f"0..{self.num_features - 1}"
            raise ValueError(f"observed must be distinct numbers in {legal}. Got {indices}.")
        return indices


class SymbolicTable(_SymbolicModel):
    """A joint table of D binary coordinates with 2^D positive symbols, at one point x.

    The entries need not sum to one: a probability is a sum of ``entries`` divided by the sum of all,
    so the symbols range over every strictly positive table. x is the origin: what holds there holds
    everywhere, by other names of the values.

    Args:
        num_features: D.

    Raises:
        ValueError: for D < 1, and for a table with more cells than are enumerated.

    >>> model = SymbolicTable(2)
    >>> model.log_conditional(1, (0,)), model.residual(model.score)
    (log(p_00) - log(p_00 + p_01), 0)
    """

    @checked
    def __init__(self, num_features: Count) -> None:
        super().__init__(num_features)
        num_cells = 2 ** min(num_features, 64)  # whatever is more is too many, too
        require_enumerable(f"the cells of a table of D = {num_features}", num_cells, "a smaller D")
        self.entries: dict[tuple[int, ...], sp.Symbol] = {}
        for cell in product((0, 1), repeat=num_features):
            self.entries[cell] = sp.Symbol("p_" + "".join(map(str, cell)), positive=True)

    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """Expand into a rational combination of logarithms of distinct sums of entries.

        Those sums are irreducible and no two are proportional, so their logarithms are linearly
        independent over the rationals: the combination is 0 as a function iff it is 0 as written.
        """
        return sp.expand(sp.expand_log(sp.expand(expression)))

    def _log_marginal(self, observed: list[int]) -> sp.Expr:
        return self.normal_form(sp.log(self._weight(observed) / self._weight([])))

    def _log_conditional(self, target: int, observed: list[int]) -> sp.Expr:
        # The table restricted to x_R, renormalized, and read at x_j.
        return self.normal_form(sp.log(self._weight([*observed, target]) / self._weight(observed)))

    def _weight(self, observed: list[int]) -> sp.Expr:
        """Sum of the entries that agree with x on the observed coordinates."""
        agreeing = []
        for cell, entry in self.entries.items():
            if not any(cell[i] for i in observed):  # x is the origin
                agreeing.append(entry)
        return sp.Add(*agreeing)


class SymbolicGaussian(_SymbolicModel):
    """A Gaussian in D dimensions with symbolic ``mean`` and ``covariance``, at a symbolic point ``x``.

    Conditionals are the univariate normals of the textbook (mean and variance by the Schur
    complement); nothing about determinants of the joint is used to write them down.

    Args:
        num_features: D.

    Raises:
        ValueError: for D < 1.

    >>> print(SymbolicGaussian(2).log_conditional(1, ()))
    -log(s_11)/2 - log(2*pi)/2 - (-mu_1 + x_1)**2/(2*s_11)
    """

    @checked
    def __init__(self, num_features: Count) -> None:
        super().__init__(num_features)

        def covariance(i: int, j: int) -> sp.Symbol:
            return sp.Symbol(f"s_{min(i, j)}{max(i, j)}", real=True)

        indices = range(num_features)
        self.x = sp.Matrix([sp.Symbol(f"x_{i}", real=True) for i in indices])
        self.mean = sp.Matrix([sp.Symbol(f"mu_{i}", real=True) for i in indices])
        self.covariance = sp.Matrix([[covariance(i, j) for j in indices] for i in indices])

    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """Sum of one canceled rational function and logarithms of distinct irreducible polynomials."""
        return self._quadratic_part(expression) + _log_determinant_part(expression)

    def _log_marginal(self, observed: list[int]) -> sp.Expr:
        if not observed:
            return sp.S.Zero
        block = self.covariance.extract(observed, observed)
        deviation = (self.x - self.mean).extract(observed, [0])
        quadratic = (deviation.T * block.adjugate() * deviation)[0] / block.det()
        return -(len(observed) * sp.log(2 * sp.pi) + sp.log(block.det()) + quadratic) / 2

    def _log_conditional(self, target: int, observed: list[int]) -> sp.Expr:
        mean = self.mean[target]
        variance = self.covariance[target, target]
        if observed:
            block = self.covariance.extract(observed, observed)
            gain = self.covariance.extract([target], observed) * block.adjugate() / block.det()
            mean += (gain * (self.x - self.mean).extract(observed, [0]))[0]
            variance -= (gain * self.covariance.extract(observed, [target]))[0]
        square = (self.x[target] - mean) ** 2
        return -(sp.log(2 * sp.pi) + sp.log(variance) + square / variance) / 2

    def _quadratic_part(self, expression: sp.Expr) -> sp.Expr:
        """Part of an expression without logarithms, as one canceled rational function of x − μ."""
        from_x = {}
        to_x = {}
        for i, (x, mean) in enumerate(zip(self.x, self.mean, strict=True)):
            deviation = sp.Dummy(f"d_{i}")
            from_x[x] = deviation + mean
            to_x[deviation] = x - mean
        rational = expression.replace(sp.log, lambda argument: sp.S.Zero).xreplace(from_x)
        symbols = sorted(rational.free_symbols, key=str)
        if not symbols:
            return rational
        field = sp.QQ.frac_field(*symbols)
        return field.to_sympy(field.from_sympy(rational)).xreplace(to_x)


def _log_determinant_part(expression: sp.Expr) -> sp.Expr:
    """Logarithms of an expression, split into those of irreducible polynomials."""
    dummies = {atom: sp.Dummy() for atom in sorted(expression.atoms(sp.log), key=str)}
    linear = expression.xreplace(dummies)
    terms = []
    for atom, dummy in dummies.items():
        log_of_factors = sp.expand_log(sp.log(sp.factor(atom.args[0])), force=True)
        terms.append(linear.diff(dummy) * log_of_factors)
    return sp.expand(sp.Add(*terms))


def _mean(expressions: Iterable[sp.Expr]) -> sp.Expr:
    terms = list(expressions)
    return sp.Add(*terms) / len(terms)
