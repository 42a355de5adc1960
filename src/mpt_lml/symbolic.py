"""Models that answer with SymPy expressions instead of numbers, to check the identities of chapter 2.

Coordinates are numbered 0..D−1. The coordinate at position t of an order o is predicted from those
*after* it, o_{t+1}..o_D (Moreno-Muñoz et al. 2023). Every expression is exact and in nats.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import combinations, permutations, product

import sympy as sp

from mpt_lml.spec import require, require_count, require_enumerable

__all__ = ["SymbolicGaussian", "SymbolicTable"]


class _SymbolicModel(ABC):
    def __init__(self, num_features: int) -> None:
        require_count("num_features", num_features, 1)
        self.num_features = num_features

    def log_marginal(self, observed: Iterable[int] | None = None) -> sp.Expr:
        """log p(x_R) in nats; ``observed`` = None means every coordinate, and () gives 0."""
        return self._log_marginal(self._checked(observed))

    def log_conditional(self, target: int, observed: Iterable[int]) -> sp.Expr:
        """log p(x_j | x_R) in nats."""
        indices = self._checked(observed)
        require_count("target", target, 0, self.num_features - 1)
        if target in indices:
            raise ValueError(f"target must be a coordinate not in {indices}. Got target {target}.")
        return self._log_conditional(target, indices)

    def order_term(self, position: int) -> sp.Expr:
        """Term t = ``position`` of the chain, averaged over the D! orders (the line before Eq. 4)."""
        require_count("position", position, 1, self.num_features)
        orders = permutations(range(self.num_features))
        return _mean(self.log_conditional(o[position - 1], o[position:]) for o in orders)

    def score(self, num_masked: int) -> sp.Expr:
        """S(x; M): the average of log p(x_j | x_R) over all masks of size M and all j masked."""
        require_count("num_masked", num_masked, 1, self.num_features)
        everything = set(range(self.num_features))
        masks = combinations(everything, num_masked)
        return _mean(self.log_conditional(j, everything - set(a)) for a in masks for j in a)

    def mean_log_marginal(self, num_observed: int) -> sp.Expr:
        """ℓ_r(x): the average of log p(x_R) over all R of size r; ℓ_0 = 0 and ℓ_D = log p(x)."""
        require_count("num_observed", num_observed, 0, self.num_features)
        subsets = combinations(range(self.num_features), num_observed)
        return _mean(self.log_marginal(observed) for observed in subsets)

    def residual(self, term: Callable[[int], sp.Expr]) -> sp.Expr:
        """Σ_{M=1}^{D} term(M) − log p(x) in normal form: 0 for :meth:`score` (Proposition 1)."""
        require(locals(), "term Callable")
        terms = [term(m) for m in range(1, self.num_features + 1)]
        for each in terms:
            if not isinstance(each, sp.Expr):
                raise TypeError(f"term must return an expression of sympy, got {each!r}.")
        return self.normal_form(sp.Add(*terms) - self.log_marginal())

    @abstractmethod
    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """An equal expression that is 0 exactly if it is 0 for every such model."""

    @abstractmethod
    def _log_marginal(self, observed: list[int]) -> sp.Expr: ...

    @abstractmethod
    def _log_conditional(self, target: int, observed: list[int]) -> sp.Expr: ...

    def _checked(self, observed: Iterable[int] | None) -> list[int]:
        observed = range(self.num_features) if observed is None else observed
        require(locals(), f"observed* 0..{self.num_features - 1}")
        indices = sorted(observed)
        if len(set(indices)) != len(indices):
            legal = f"0..{self.num_features - 1}"
            raise ValueError(f"observed must be distinct numbers in {legal}. Got {indices}.")
        return indices


class SymbolicTable(_SymbolicModel):
    """A joint table of D binary coordinates with 2^D positive symbols, at one point x.

    The entries need not sum to one: a probability is a sum of ``entries`` divided by the sum of all,
    so the symbols range over every strictly positive table. x is the origin: what holds there holds
    everywhere, by other names of the values. Raises ``ValueError`` for D < 1.

    >>> model = SymbolicTable(2)
    >>> model.log_conditional(1, (0,)), model.residual(model.score)
    (log(p_00) - log(p_00 + p_01), 0)
    """

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        cells = 2 ** min(num_features, 64)
        require_enumerable(f"the cells of a table of D = {num_features}", cells, "a smaller D")
        self.entries: dict[tuple[int, ...], sp.Symbol] = {
            cell: sp.Symbol("p_" + "".join(map(str, cell)), positive=True)
            for cell in product((0, 1), repeat=num_features)
        }

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
        cells = self.entries.items()
        return sp.Add(*[entry for cell, entry in cells if not any(cell[i] for i in observed)])


class SymbolicGaussian(_SymbolicModel):
    """A Gaussian in D dimensions with symbolic ``mean`` and ``covariance``, at a symbolic point ``x``.

    Conditionals are the univariate normals of the textbook (mean and variance by the Schur
    complement); nothing about determinants of the joint is used to write them down. Raises
    ``ValueError`` for D < 1.

    >>> print(SymbolicGaussian(2).log_conditional(1, ()))
    -log(s_11)/2 - log(2*pi)/2 - (-mu_1 + x_1)**2/(2*s_11)
    """

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        real, indices = {"real": True}, range(num_features)
        self.x = sp.Matrix([sp.Symbol(f"x_{i}", **real) for i in indices])
        self.mean = sp.Matrix([sp.Symbol(f"mu_{i}", **real) for i in indices])
        rows = [[sp.Symbol(f"s_{min(i, j)}{max(i, j)}", **real) for j in indices] for i in indices]
        self.covariance = sp.Matrix(rows)

    def normal_form(self, expression: sp.Expr) -> sp.Expr:
        """One canceled rational function plus logarithms of distinct irreducible polynomials."""
        return self._quadratic_part(expression) + _log_determinant_part(expression)

    def _log_marginal(self, observed: list[int]) -> sp.Expr:
        if not observed:
            return sp.S.Zero
        block = self.covariance.extract(observed, observed)
        deviation = (self.x - self.mean).extract(observed, [0])
        quadratic = (deviation.T * block.adjugate() * deviation)[0] / block.det()
        return -(len(observed) * sp.log(2 * sp.pi) + sp.log(block.det()) + quadratic) / 2

    def _log_conditional(self, target: int, observed: list[int]) -> sp.Expr:
        mean, variance = self.mean[target], self.covariance[target, target]
        if observed:
            block = self.covariance.extract(observed, observed)
            gain = self.covariance.extract([target], observed) * block.adjugate() / block.det()
            mean += (gain * (self.x - self.mean).extract(observed, [0]))[0]
            variance -= (gain * self.covariance.extract(observed, [target]))[0]
        square = (self.x[target] - mean) ** 2
        return -(sp.log(2 * sp.pi) + sp.log(variance) + square / variance) / 2

    def _quadratic_part(self, expression: sp.Expr) -> sp.Expr:
        deviations = [sp.Dummy(f"d_{i}") for i in range(self.num_features)]
        shift = {x: d + mean for x, d, mean in zip(self.x, deviations, self.mean, strict=True)}
        back = {d: x - mean for x, d, mean in zip(self.x, deviations, self.mean, strict=True)}
        rational = expression.replace(sp.log, lambda argument: sp.S.Zero).xreplace(shift)
        symbols = sorted(rational.free_symbols, key=str)
        if not symbols:
            return rational
        field = sp.QQ.frac_field(*symbols)
        return field.to_sympy(field.from_sympy(rational)).xreplace(back)


def _log_determinant_part(expression: sp.Expr) -> sp.Expr:
    """The logarithms of positive rational functions, as those of their irreducible factors."""
    names = {atom: sp.Dummy() for atom in sorted(expression.atoms(sp.log), key=str)}
    linear = expression.xreplace(names)
    logs = (sp.expand_log(sp.log(sp.factor(atom.args[0])), force=True) for atom in names)
    terms = (linear.diff(name) * log for name, log in zip(names.values(), logs, strict=True))
    return sp.expand(sp.Add(*terms))


def _mean(expressions: Iterable[sp.Expr]) -> sp.Expr:
    terms = list(expressions)
    return sp.Add(*terms) / len(terms)
