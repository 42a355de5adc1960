"""A probabilistic grammar: a language of nested phrases whose every conditional is known exactly."""

from typing import Annotated, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Data,
    Within,
    checked,
    require_memory,
    require_values,
    rounded_to_single,
)
from mpt_lml.models.base import TractableModel, require_pairs
from mpt_lml.numerics import WORKING_BYTES, differentiable, double, pick

_TINY = 1e-300
"""Below every scale of a span, so that a span which no phrase derives is divided by something."""


@final
class Grammar(TractableModel):
    """Strings of D symbols of a probabilistic context-free grammar in Chomsky's normal form.

    A phrase of kind a becomes two phrases, b and c, with probability ``rules[a, b, c]``, or one symbol,
    v, with probability ``emission[a, v]``. It begins with one phrase of kind 0. A grammar makes strings
    of every length; this is the law of those of length D, p(x) = p(x, length D) / p(length D).

    p(x) is the inside algorithm (Baker 1979): the probability that a phrase of kind a becomes
    x_i ... x_j is a sum over its rules and over the places where it is cut in two. A hidden
    coordinate is a sum over its symbols, which a phrase of one symbol takes at once. So p(x_R) costs
    what p(x) costs, O(D³) for each rule, and p(x_j | x_R) of every j is a derivative of log p(x_R) with
    respect to what stands at place j: the outside algorithm is the inside one, differentiated
    (Eisner 2016). Every span has its own scale, so that nothing underflows.

    Args:
        rules: of two phrases in place of one, (Q, Q, Q); ``rules[0, 0, 0]`` is positive.
        emission: of a symbol in place of a phrase, (Q, V); the row of kind 0 is positive. With
            ``rules[0, 0, 0]`` it gives every string a finite log-probability.
        num_features: D.

    Raises:
        TypeError: for tables that are not floating point.
        ValueError: for tables that do not fit, or do not sum to 1 for each kind, rules and symbols
            together (1e-9 in double precision, 1e-5 in single).

    >>> language = Grammar.brackets(num_features=4)
    >>> x = language.sample(5, generator=torch.Generator().manual_seed(0))
    >>> language.log_conditional(x, torch.tensor([[True, True, False, False]])).shape
    torch.Size([1, 5, 4])
    """

    num_values: int

    @checked
    def __init__(
        self,
        rules: Float[Tensor, "Q Q Q"],
        emission: Float[Tensor, "Q V"],
        num_features: Count,
    ) -> None:
        _require_kinds(rules, emission)
        self.rules = rules
        self.emission = emission
        self.num_features = num_features
        self.num_values = emission.shape[1]
        # Most pairs of phrases follow from no rule. Only those that do are ever multiplied.
        pair = (rules > 0).any(dim=0).nonzero()
        self._first = pair[:, 0]
        self._second = pair[:, 1]
        num_products = len(pair) * (num_features**3 // 6 + num_features)
        self._pairs_at_once = max(1, WORKING_BYTES // (4 * 8 * num_products))

    @classmethod
    @checked
    def brackets(
        cls,
        num_kinds: Annotated[int, Within(1)] = 3,
        num_fillers: Annotated[int, Within(1)] = 2,
        num_features: Count = 16,
    ) -> "Grammar":
        """Nested brackets of several kinds between filler symbols, with some typing errors.

        A phrase is two phrases (.3), a phrase in brackets (.3), empty brackets (.05) or one symbol
        (.35): a filler in nine of ten cases, any bracket in the tenth. Symbols 0, 2, 4, ... open a
        bracket, 1, 3, 5, ... close it, and the fillers come last. An opening bracket says which kind
        closes, wherever that is.

        Args:
            num_kinds: of brackets.
            num_fillers: filler symbols.
            num_features: D, the length of a string.

        Returns:
            The model, in double precision.
        """
        num_phrases = 1 + 3 * num_kinds
        num_brackets = 2 * num_kinds
        require_memory(f"{num_phrases}³ rules", 8 * num_phrases**3, "fewer num_kinds")
        rules = torch.zeros(num_phrases, num_phrases, num_phrases, dtype=torch.float64)
        emission = torch.zeros(num_phrases, num_brackets + num_fillers, dtype=torch.float64)
        rules[0, 0, 0] = 0.3
        emission[0, :num_brackets] = 0.35 * 0.1 / num_brackets
        emission[0, num_brackets:] = 0.35 * 0.9 / num_fillers
        for kind in range(num_kinds):
            opening = 1 + 3 * kind
            rest = opening + 1  # of a phrase in brackets, after the opening one
            closing = opening + 2
            rules[0, opening, rest] = 0.3 / num_kinds
            rules[0, opening, closing] = 0.05 / num_kinds
            rules[rest, 0, closing] = 1.0
            emission[opening, 2 * kind] = 1.0
            emission[closing, 2 * kind + 1] = 1.0
        return cls(rules, emission, num_features)

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), int64, with symbols in 0..V−1."""
        require_values(x, [self.num_values] * self.num_features)

    @checked
    def log_posterior(self, x: Data, observed: Bool[Tensor, "N D"]) -> Float[Tensor, "N D Q"]:
        """log p(a_j | x_R) of the kind of the phrase behind every symbol, one set R a string.

        This is the inside–outside posterior: the probability, over all ways to build a string that
        agrees with x_R, that symbol j is what a phrase of kind a became.

        Args:
            x: strings, (N, D), int64. What stands where ``observed`` is False is not read.
            observed: the set R of each string, (N, D), boolean; True means in R.

        Returns:
            Nats, (N, D, Q); −inf for a kind that cannot be.

        Raises:
            TypeError: for sets that are not boolean, or symbols that are not int64.
            ValueError: for a symbol outside 0..V−1, or another number of sets than of strings.

        >>> language = Grammar.brackets(num_features=4)
        >>> x = torch.tensor(
        ...     [[0, 6, 6, 6]]
        ... )  # "[...": does the last symbol, hidden, close the first?
        >>> kind = language.log_posterior(x, torch.tensor([[True, True, True, False]]))[0, 3].exp()
        >>> kind[[0, 3]]  # a symbol of its own, or a closing bracket of the first kind
        tensor([0.0091, 0.9909], dtype=torch.float64)
        """
        require_pairs(x, observed)
        with self._precision():
            return self._in_batches(self._log_kinds, x, ~observed)

    def _log_kinds(self, x: Tensor, mask: Tensor) -> Tensor:
        leaves, slope = self._slope_of_leaves(x, mask)
        # p(x_R) is linear in each leaf: the share of it that goes through kind a at place j.
        return (slope * leaves).log().to(self.emission)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._every_pair(self._log_observed, x, ~observed)

    def _log_observed(
        self, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]
    ) -> Float[Tensor, " B"]:
        """log p(x_R) of every pair."""
        log_inside = self._log_inside(self._leaves(x, mask))
        return (log_inside - self._log_length()).to(self.emission)

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._log_values(x, mask).gather(2, x[..., None])[..., 0]

    def _slope_of_leaves(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What stands at each place, and the derivative of log p(x_R) with respect to it, (B, D, Q)."""
        with differentiable(), torch.enable_grad():
            leaves = self._leaves(x, mask).detach().requires_grad_()
            log_inside = self._log_inside(leaves)
            (slope,) = torch.autograd.grad(log_inside.sum(), leaves)
        return leaves.detach(), slope

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        _, slope = self._slope_of_leaves(x, mask)
        # p(x_R) is linear in what stands at place j: put symbol v there instead of every symbol.
        return (slope @ double(self.emission)).log().to(self.emission)

    def _leaves(self, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]) -> Tensor:
        """What each kind makes of place j: of x_j, or of any symbol where j is hidden, (B, D, Q)."""
        emission = double(self.emission).T
        of_any = emission.sum(dim=0, keepdim=True)
        symbols = torch.where(mask, self.num_values, x)
        return torch.cat([emission, of_any])[symbols]

    def _log_inside(self, leaves: Float[Tensor, "B D Q"]) -> Float[Tensor, " B"]:
        """log of the probability that a phrase of kind 0 becomes the whole string."""
        spans, log_scales = self._spans(leaves)
        return spans[-1][:, 0, 0].log() + log_scales[-1][:, 0]

    def _spans(self, leaves: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Inside probabilities of the spans of length 1, 2, ..., D, one row a first place.

        Returns:
            Of each length ℓ: the probabilities, (B, D − ℓ + 1, Q), the largest of a span being 1, and
            the logarithm of that scale, (B, D − ℓ + 1).
        """
        first_table = double(self.rules)[:, self._first, self._second].T
        span, log_scale = _scaled(leaves, torch.zeros_like(leaves[..., 0]))
        spans = [span]
        log_scales = [log_scale]
        num_places = leaves.shape[1]
        for length in range(2, num_places + 1):
            num_spans = num_places - length + 1
            products = []
            log_weights = []
            for cut in range(1, length):
                left = spans[cut - 1][:, :num_spans, self._first]
                right = spans[length - cut - 1][:, cut : cut + num_spans, self._second]
                products.append(left * right)
                log_left = log_scales[cut - 1][:, :num_spans]
                log_right = log_scales[length - cut - 1][:, cut : cut + num_spans]
                log_weights.append(log_left + log_right)
            log_weight = torch.stack(log_weights)
            largest = log_weight.detach().amax(dim=0)
            weight = (log_weight - largest).exp()
            pairs = (torch.stack(products) * weight[..., None]).sum(dim=0)
            span, log_scale = _scaled(pairs @ first_table, largest)
            spans.append(span)
            log_scales.append(log_scale)
        return spans, log_scales

    def _of_lengths(self, num_places: int) -> Float[Tensor, "L Q"]:
        """log of the probability that a phrase of each kind becomes ℓ symbols, ℓ = 1, ..., L."""
        of_any = double(self.emission).sum(dim=1)
        spans, log_scales = self._spans(of_any.expand(1, num_places, -1))
        rows = []
        for span, log_scale in zip(spans, log_scales, strict=True):
            rows.append(span[0, 0].log() + log_scale[0, 0])
        return torch.stack(rows)

    def _log_length(self) -> Float[Tensor, ""]:
        """log p(length D)."""
        return self._of_lengths(self.num_features)[-1, 0]

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        """From the whole to its parts: which rule, and how long is its first phrase?"""
        log_lengths = self._of_lengths(self.num_features)
        log_rules = double(self.rules)[:, self._first, self._second].log()
        # The kind of the phrase of each length that begins at each place; −1: there is none.
        shape = (self.num_features + 1, n, self.num_features)
        kind = torch.full(shape, -1, device=self.emission.device)
        kind[self.num_features, :, 0] = 0
        for length in range(self.num_features, 1, -1):
            row, place = (kind[length] >= 0).nonzero(as_tuple=True)
            if len(row) == 0:
                continue
            cut = torch.arange(1, length, device=kind.device)
            log_first = log_lengths[cut - 1][:, self._first]
            log_second = log_lengths[length - cut - 1][:, self._second]
            log_choice = log_rules[:, None] + log_first + log_second
            choice = log_choice.flatten(1).softmax(dim=1)[kind[length, row, place]]
            chosen = _draw(choice, generator)
            chosen_cut = 1 + chosen // len(self._first)
            chosen_rule = chosen % len(self._first)
            kind[chosen_cut, row, place] = self._first[chosen_rule]
            kind[length - chosen_cut, row, place + chosen_cut] = self._second[chosen_rule]
        symbol = _draw(double(self.emission)[kind[1].flatten()], generator)
        return symbol.view(n, self.num_features)


def _scaled(span: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """``span`` (..., Q) divided by its largest entry, whose logarithm joins ``log_scale``."""
    largest = span.detach().amax(dim=-1).clamp(min=_TINY)
    return span / largest[..., None], log_scale + largest.log()


def _draw(weights: Float[Tensor, "N C"], generator: torch.Generator) -> Int[Tensor, " N"]:
    """One category a row, with a probability proportional to its weight."""
    uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64)
    return pick(weights, uniform.to(weights.device) * weights.cumsum(dim=1)[:, -1])


def _require_kinds(rules: Tensor, emission: Tensor) -> None:
    for name, table in (("rules", rules), ("emission", emission)):
        if (table < 0).any():
            raise ValueError(f"{name} must be finite and not negative, got {table.min().item()}.")
    worst = (rules.sum(dim=(1, 2)) + emission.sum(dim=1) - 1.0).abs().max().item()
    if worst > (1e-9 if emission.dtype == torch.float64 else 1e-5):
        hint = rounded_to_single(emission.dtype, worst)
        raise ValueError(
            f"rules[a] and emission[a] must sum to 1 together for every kind a, one is off by "
            f"{worst:.2g}. Divide both by their sum.{hint}"
        )
    if not rules[0, 0, 0] > 0:
        raise ValueError(
            "rules[0, 0, 0] must be positive, got 0: some strings would be impossible."
        )
    if not (emission[0] > 0).all():
        symbol = int((emission[0] <= 0).nonzero()[0])
        raise ValueError(
            f"emission[0] must be positive, but emission[0, {symbol}] is 0: some strings would be "
            "impossible."
        )
