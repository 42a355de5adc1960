"""A probabilistic grammar: a language of nested phrases whose every conditional is known exactly."""

import itertools
import math
from typing import Annotated, NamedTuple, final

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
from mpt_lml.numerics import (
    LOG_LEAST,
    LOG_ZERO,
    WORKING_BYTES,
    double,
    draw_uniform,
    log_or_zero,
    log_sum,
    pick,
)

__all__ = ["Grammar"]


@final
class Grammar(TractableModel):
    """Strings of D symbols of a probabilistic context-free grammar in Chomsky's normal form.

    A phrase of kind a becomes two phrases, b and c, with probability ``rules[a, b, c]``, or one symbol,
    v, with probability ``emission[a, v]``. It begins with one phrase of kind 0. A grammar makes strings
    of every length; this is the law of those of length D, p(x) = p(x, length D) / p(length D).

    p(x) is the inside algorithm (Baker 1979): the probability that a phrase of kind a becomes
    x_i ... x_j is a sum over its rules and over the places where it is cut in two. A hidden
    coordinate is a sum over its symbols, which a phrase of one symbol takes at once. So p(x_R) costs
    what p(x) costs, O(D³) for each rule, and p(x_j | x_R) of every j is a derivative of p(x_R) with
    respect to what stands at place j, which the outside algorithm gives for all places at once
    (Eisner 2016). All is computed in logarithms, of each kind for itself, so that nothing underflows:
    what one kind makes may be 10^300 times as probable as what the only kind makes that fits the rest.

    An entry of ``rules`` or ``emission`` that is 0 stands for what cannot happen; its derivative is 0.

    Args:
        rules: of two phrases in place of one, (Q, Q, Q); ``rules[0, 0, 0]`` is positive.
        emission: of a symbol in place of a phrase, (Q, V); the row of kind 0 is positive. With
            ``rules[0, 0, 0]`` it gives every string a finite log-probability.
        num_features: D.

    Raises:
        TypeError: for tables that are not floating point.
        ValueError: for tables that do not fit, or do not sum to 1 for each kind, rules and symbols
            together (1e-9 in double precision, 1e-5 in single); for a D whose D² spans no memory holds.

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
        self._groups = _pairs_of(rules)
        first = torch.cat([pairs.first for pairs in self._groups])
        second = torch.cat([pairs.second for pairs in self._groups])
        self._num_pairs = len(first)
        # Most rules cannot be used. Only the others are computed: what they rewrite, and as what pair.
        kind, pair = (rules[:, first, second] > 0).nonzero().T
        self._kind_of_rule = kind
        self._pair_of_rule = pair
        self._entries_of_rules = (kind, first[pair], second[pair])
        of_a_span = 3 * len(rules) + 8 * self._num_pairs
        of_a_place = 4 * len(kind) + 2 * self.num_values
        bytes_of_a_string = 8 * num_features * (num_features * of_a_span + of_a_place)
        what = f"the parts of one string of {num_features} symbols"
        require_memory(what, bytes_of_a_string, "a smaller num_features")
        self._pairs_at_once = max(1, WORKING_BYTES // bytes_of_a_string)

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

    @property
    def data_device(self) -> torch.device | None:
        return self.emission.device

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
        leaves = self._leaves(x, mask)
        log_joint = self._around(leaves) + leaves
        log_kinds = log_joint - log_sum(log_joint, 0)
        is_impossible = log_kinds < 0.5 * LOG_ZERO
        log_kinds = log_kinds.masked_fill(is_impossible, -math.inf)
        return log_kinds.permute(2, 1, 0).contiguous().to(self.emission)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        log_length = self._of_lengths()[-1, 0]
        return (self._every_pair(self._log_inside, x, ~observed) - log_length).to(self.emission)

    def _log_inside(self, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """log p(x_R, length D) of every pair."""
        return self._spans(self._leaves(x, mask))[-1][0, 0]

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        leaves = self._leaves(x, mask)
        around = self._around(leaves)
        symbols = self._leaves(x, torch.zeros_like(mask))
        # p(x_R) is linear in what stands at place j: put x_j there instead of every symbol.
        log_each = log_sum(around + symbols, 0) - log_sum(around + leaves, 0)
        return log_each.T.contiguous().to(self.emission)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        leaves = self._leaves(x, mask)
        around = self._around(leaves)
        log_total = log_sum(around + leaves, 0)
        log_values = []
        for symbol in self._log_emission().T[:-1]:
            log_values.append(log_sum(around + symbol[:, None, None], 0) - log_total)
        return torch.stack(log_values).permute(2, 1, 0).contiguous().to(self.emission)

    def _leaves(self, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]) -> Float[Tensor, "Q D B"]:
        """log of what each kind makes of place j: of x_j, or of any symbol where j is hidden."""
        symbols = torch.where(mask, self.num_values, x)
        return self._log_emission()[:, symbols.T]

    def _log_emission(self) -> Float[Tensor, "Q W"]:
        """log of what each kind becomes, symbol 0..V−1 or, last, any of them: W = V + 1."""
        emission = double(self.emission)
        emission = emission.masked_fill(emission == 0, 0.0)  # the sum has no derivative there
        of_any = emission.sum(dim=1, keepdim=True)
        return log_or_zero(torch.cat([emission, of_any], dim=1))

    def _log_rules(self) -> Float[Tensor, "R 1 1"]:
        """log of the rules that can be used, in the order of ``_kind_of_rule`` and ``_pair_of_rule``."""
        return log_or_zero(double(self.rules)[self._entries_of_rules])[:, None, None]

    def _spans(self, leaves: Float[Tensor, "Q D B"]) -> list[Float[Tensor, "Q S B"]]:
        """log of the inside probabilities of the spans of length ℓ = 1, ..., D, by first place.

        There are S = D − ℓ + 1 of each length.
        """
        spans = [leaves]
        log_rules = self._log_rules()
        num_places = leaves.shape[1]
        for length in range(2, num_places + 1):
            num_spans = num_places - length + 1
            left = []
            right = []
            for cut in range(1, length):
                left.append(spans[cut - 1][:, :num_spans])
                right.append(spans[length - cut - 1][:, cut : cut + num_spans])
            spans.append(self._joined(left, right, log_rules))
        return spans

    def _of_lengths(self) -> Float[Tensor, "D Q"]:
        """log of the probability that a phrase of each kind becomes ℓ symbols, ℓ = 1, ..., D."""
        log_rules = self._log_rules()
        lengths = [self._log_emission()[:, -1, None, None]]
        for _ in range(1, self.num_features):
            lengths.append(self._joined(lengths, lengths[::-1], log_rules))
        return torch.stack(lengths)[..., 0, 0]

    def _joined(
        self, left: list[Tensor], right: list[Tensor], log_rules: Tensor
    ) -> Float[Tensor, "Q S B"]:
        """Two phrases become one: log of the sum over its rules and the places where it is cut.

        Args:
            left: what stands before the first, the second, ... place to cut, each (Q, S, B).
            right: what stands after it.
            log_rules: of :meth:`_log_rules`.
        """
        by_pair = []
        for pairs in self._groups:
            cuts = pairs.cuts(len(left))
            if left[cuts]:
                first = _of_kinds(left[cuts], pairs.first)
                second = _of_kinds(right[cuts], pairs.second)
                by_pair.append(log_sum(first + second, 1))
            else:
                shape = (len(pairs.first), *left[0].shape[1:])
                by_pair.append(left[0].new_full(shape, LOG_ZERO))
        by_rule = torch.cat(by_pair)[self._pair_of_rule] + log_rules
        return _log_sum_by(self._kind_of_rule, by_rule, len(self.rules))

    def _around(self, leaves: Float[Tensor, "Q D B"]) -> Float[Tensor, "Q D B"]:
        """log of the derivative of the inside probability with respect to each leaf.

        The outside algorithm: around a span are its sibling, to the right or to the left of it, and
        what is around the parent of the two.
        """
        spans = self._spans(leaves)
        log_rules = self._log_rules()
        num_places = len(spans)
        # In row i is the span that begins with place i, or the one that ends just before it.
        by_start = [_padded(span, 0, length) for length, span in enumerate(spans, start=1)]
        by_end = [_padded(span, length, 0) for length, span in enumerate(spans, start=1)]
        right_siblings = []
        left_siblings = []
        for pairs in self._groups:
            right_siblings.append(_of_kinds(by_start[pairs.lengths_of_second], pairs.second))
            left_siblings.append(_of_kinds(by_end[pairs.lengths_of_first], pairs.first))
        parents_by_start: list[Tensor] = []  # the shortest first
        parents_by_end: list[Tensor] = []
        around = torch.full_like(spans[-1], LOG_ZERO)
        around[0] = 0.0
        for length in range(num_places - 1, 0, -1):
            num_spans = num_places - length + 1
            by_rule = around[self._kind_of_rule] + log_rules
            parent = _log_sum_by(self._pair_of_rule, by_rule, self._num_pairs)
            parents_by_start.insert(0, _padded(parent, 0, length + 1))
            parents_by_end.insert(0, _padded(parent, length + 1, 0))
            from_start = [parent[:, :num_spans] for parent in parents_by_start]
            from_end = [parent[:, length:] for parent in parents_by_end]
            terms = []
            kinds = []
            for pairs, right, left in zip(self._groups, right_siblings, left_siblings, strict=True):
                if length == 1 or not pairs.first_is_lexical:
                    terms.append(_beside(right[:, :, length:], from_start, pairs.rows))
                    kinds.append(pairs.first)
                if length == 1 or not pairs.second_is_lexical:
                    terms.append(_beside(left[:, :, :num_spans], from_end, pairs.rows))
                    kinds.append(pairs.second)
            around = _log_sum_by(torch.cat(kinds), torch.cat(terms), len(self.rules))
        return around

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        """From the whole to its parts: which rule, and how long is its first phrase?"""
        log_lengths = self._of_lengths()
        first, second = (self.rules > 0).any(dim=0).nonzero().T
        log_rules = log_or_zero(double(self.rules)[:, first, second])
        # Of the phrase that begins at each place and is not cut yet; length 0: none begins there.
        shape = (n, self.num_features)
        lengths = torch.zeros(shape, dtype=torch.int64, device=self.emission.device)
        kinds = torch.zeros_like(lengths)
        lengths[:, 0] = self.num_features
        for length in range(self.num_features, 1, -1):
            row, place = (lengths == length).nonzero(as_tuple=True)
            if len(row) == 0:
                continue
            cut = torch.arange(1, length, device=lengths.device)
            log_first = log_lengths[cut - 1][:, first]
            log_second = log_lengths[length - cut - 1][:, second]
            log_choice = log_rules[:, None] + log_first + log_second
            choice = log_choice.flatten(1).softmax(dim=1)[kinds[row, place]]
            chosen = _draw(choice, generator)
            chosen_cut = 1 + chosen // len(first)
            chosen_rule = chosen % len(first)
            kinds[row, place] = first[chosen_rule]
            kinds[row, place + chosen_cut] = second[chosen_rule]
            lengths[row, place] = chosen_cut
            lengths[row, place + chosen_cut] = length - chosen_cut
        symbol = _draw(double(self.emission)[kinds.flatten()], generator)
        return symbol.view(n, self.num_features)


class _Pairs(NamedTuple):
    """Pairs of kinds that follow from some rule, alike in which of the two is lexical.

    A lexical kind is one that no rule rewrites: it becomes one symbol and no more. In a grammar such
    as that of brackets most are, and most sums over the places where a phrase is cut have one term.
    """

    rows: slice  # where these pairs stand among all
    first: Int[Tensor, " P"]
    second: Int[Tensor, " P"]
    first_is_lexical: bool
    second_is_lexical: bool

    @property
    def lengths_of_first(self) -> slice:
        """Those of the lengths 1, 2, ... that the first phrase can have."""
        return slice(0, 1 if self.first_is_lexical else None)

    @property
    def lengths_of_second(self) -> slice:
        return slice(0, 1 if self.second_is_lexical else None)

    def cuts(self, num_cuts: int) -> slice:
        """Those of the places where a phrase can be cut at which one of these pairs may meet."""
        first = num_cuts - 1 if self.second_is_lexical else 0
        last = 0 if self.first_is_lexical else num_cuts - 1
        return slice(first, last + 1)


def _pairs_of(rules: Float[Tensor, "Q Q Q"]) -> list[_Pairs]:
    can_be_used = rules > 0
    is_lexical = ~can_be_used.any(dim=2).any(dim=1)
    first, second = can_be_used.any(dim=0).nonzero().T
    pairs = []
    start = 0
    for first_is_lexical, second_is_lexical in itertools.product((False, True), repeat=2):
        is_alike = is_lexical[first] == first_is_lexical
        is_alike = is_alike & (is_lexical[second] == second_is_lexical)
        if is_alike.any():
            rows = slice(start, start + int(is_alike.sum()))
            alike = (first[is_alike], second[is_alike])
            pairs.append(_Pairs(rows, *alike, first_is_lexical, second_is_lexical))
            start = rows.stop
    return pairs


def _log_sum_by(
    group: Int[Tensor, " T"], terms: Float[Tensor, "T S B"], num_groups: int
) -> Float[Tensor, "G S B"]:
    """log Σ exp over the terms of each group; of none it is about ``LOG_ZERO``."""
    largest = terms.new_full((num_groups, *terms.shape[1:]), LOG_ZERO)
    index = group[:, None, None].expand_as(terms)
    largest = largest.scatter_reduce(0, index, terms.detach(), "amax")
    shares = (terms - largest[group]).clamp_(min=LOG_LEAST).exp_()
    total = torch.full_like(largest, math.exp(LOG_LEAST)).index_add(0, group, shares)
    return total.log() + largest


def _of_kinds(
    spans: list[Float[Tensor, "Q S B"]], kinds: Int[Tensor, " P"]
) -> Float[Tensor, "P L S B"]:
    """The rows of these kinds, of spans of L lengths."""
    if len(spans) == 1:
        return spans[0][kinds][:, None]
    num_kinds = int(kinds.max()) + 1  # the others need not be copied
    return torch.stack([span[:num_kinds] for span in spans], dim=1).index_select(0, kinds)


def _padded(spans: Float[Tensor, "Q S B"], before: int, after: int) -> Tensor:
    """With so many impossible spans before and after."""
    return torch.nn.functional.pad(spans, (0, 0, before, after), value=LOG_ZERO)


def _beside(
    siblings: Float[Tensor, "P L S B"], parents: list[Float[Tensor, "pairs S B"]], rows: slice
) -> Float[Tensor, "P S B"]:
    """log of what siblings of 1, 2, ... places and what is around the parents with them add up to."""
    parents = [parent[rows] for parent in parents[: siblings.shape[1]]]
    return log_sum(siblings[:, : len(parents)] + torch.stack(parents, dim=1), 1)


def _draw(weights: Float[Tensor, "N C"], generator: torch.Generator) -> Int[Tensor, " N"]:
    """One category a row, with a probability proportional to its weight."""
    total = weights.cumsum(dim=1)[:, -1]
    uniform = draw_uniform(total.shape, generator=generator, like=double(total))
    return pick(weights, uniform * total)


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
