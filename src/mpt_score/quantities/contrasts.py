"""Differences of conditions: what an experiment asks of its items, with errors that are honest.

Texts of one item that are scored along the same orders share the noise of these orders, and most of it
cancels in a difference. So the error over orders is that of the difference along each order, and not of
its terms one by one.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import check
from mpt_lml.results import Estimate
from mpt_score.quantities.means import as_rows, mean_estimate
from mpt_score.tokens import as_list

SAME_WEIGHT = 1e-9
"""Largest difference, as a share of the largest weight, of two weights that are the same."""
NO_SPREAD = 1e-6
"""Largest error, as a share of what was added up, that is rounding: networks say single precision."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A weighted sum of conditions for each of I items; ``contrast`` of scores makes one.

    Attributes:
        items: their names.
        value: Σ_r w_r times the score of r over the texts or tokens r of an item, (I,); nan where one
            of them has no score.
        order_error: its standard error over orders, (I,); 0 where all orders are in it. It is nan,
            which stands for not known, where all orders that were drawn gave the same number: a single
            one, equal ones, or orders of which none showed the words that differ.
        degrees: of freedom of ``order_error``, (I,); 0 where that is nan, without end where it is 0.
        unit: of value and error.

    >>> value = torch.tensor([1.0, 3.0])
    >>> contrast = Contrast(
    ...     ("a", "b"), value, torch.tensor([0.3, 0.4]), torch.tensor([3.0, 3.0]), "bits"
    ... )
    >>> contrast.mean()
    2.0000 ± 1.0000 bits
    >>> contrast.interval()
    tensor([[0.0453, 1.9547],
            [1.7270, 4.2730]], dtype=torch.float64)
    """

    items: tuple[Any, ...]
    value: Float[Tensor, " I"]
    order_error: Float[Tensor, " I"]
    degrees: Float[Tensor, " I"]
    unit: str

    def interval(self) -> Float[Tensor, "I two"]:
        """Where the values would be with every order: Student's 95 % intervals over orders.

        Returns:
            Their ends, (I, 2), in the unit of the values.
        """
        return students_interval(self.value, self.order_error, self.degrees)

    def mean(self) -> Estimate:
        """The mean over items, with its error over items: for items like these.

        It contains the error over orders, as items have orders of their own. Items without a value are
        left out; ``num_samples`` of the result counts the others.

        Raises:
            ValueError: where no item has a value.
        """
        return mean_estimate(self.value[self._has_value()], self.unit)

    def mean_of_these(self) -> Estimate:
        """The same mean with its error over orders alone: how far it is off for these very items.

        The error is nan where that of an item is.
        """
        has_value = self._has_value()
        count = int(has_value.sum())
        error = self.order_error[has_value].square().sum().sqrt().item() / count
        return Estimate(self.value[has_value].mean().item(), error, count, self.unit)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary an item, for a table.

        ``low`` and ``high`` are the ends of 95 % intervals. None stands for what is not known, and for
        degrees of freedom without end.
        """
        low, high = self.interval().T
        numbers = {
            "value": self.value,
            "order_error": self.order_error,
            "degrees": self.degrees,
            "low": low,
            "high": high,
        }
        columns: dict[str, Any] = {"item": self.items}
        for name, values in numbers.items():
            columns[name] = [each if math.isfinite(each) else None for each in values.tolist()]
        columns["unit"] = [self.unit] * len(self.items)
        return as_rows(columns)

    def _has_value(self) -> Bool[Tensor, " I"]:
        has_value = ~self.value.isnan()
        if not has_value.any():
            raise ValueError(
                "no item has a value: in each of them a text was skipped, or a token that counts is "
                "unknown."
            )
        return has_value


def contrast_of(
    weights: Any,
    terms: Float[Tensor, "R S"],
    items: Sequence[Any],
    texts: Int[Tensor, " R"],
    same_orders: Int[Tensor, " R"],
    degrees: Float[Tensor, " R"],
    unit: str,
) -> Contrast:
    """The contrast of each item from R scored texts or tokens.

    Args:
        weights: of each of the R, numbers.
        terms: what each got along S orders; nan where it has no score.
        items: the item of each.
        texts: the number of the text of each.
        same_orders: equal where two were scored along the same orders; others are independent.
        degrees: of freedom of the error of each over its orders: 0 where these are one or all the same,
            without end where all orders are in it.
        unit: of the terms.

    Raises:
        ValueError: for another number of weights, where all of them are 0, and for an item whose texts
            have other weights than those of most items.
    """
    listed = weights.tolist() if isinstance(weights, Tensor) else as_list(weights)
    check(("weights", listed, Sequence[float]))
    weight = torch.tensor(listed, dtype=torch.float64)
    if len(weight) != len(terms):
        raise ValueError(
            f"weights must be {len(terms)} numbers, one a text or token, got {len(weight)}."
        )
    if not weight.any():
        raise ValueError("weights must not all be 0: nothing would be compared.")
    terms_of_item: dict[Any, list[int]] = {}
    for number in weight.nonzero().flatten().tolist():
        terms_of_item.setdefault(items[number], []).append(number)
    _require_same_design(weight, terms, texts, terms_of_item)
    values = []
    variances = []
    squares_per_degree = []
    for numbers in terms_of_item.values():
        weighted = weight[numbers, None] * terms[numbers]
        values.append(weighted.mean(dim=1).sum())
        _, group = same_orders[numbers].unique(return_inverse=True)
        of_groups = [group == number for number in range(int(group.max()) + 1)]
        variances_of_groups = [
            _variance(weighted[of_group], degrees[numbers][of_group]) for of_group in of_groups
        ]
        variances.append(sum(variance for variance, _ in variances_of_groups))
        squares_per_degree.append(
            sum(variance**2 / degrees for variance, degrees in variances_of_groups)
        )
    variance = torch.tensor(variances, dtype=torch.float64)
    degrees_of_items = degrees_of_sum(
        variance, torch.tensor(squares_per_degree, dtype=torch.float64)
    )
    return Contrast(
        tuple(terms_of_item), torch.stack(values), variance.sqrt(), degrees_of_items, unit
    )


def _variance(weighted: Float[Tensor, "G S"], degrees: Float[Tensor, " G"]) -> tuple[float, float]:
    """The variance of the sum of G terms over S orders that they share, and its degrees of freedom.

    From orders that differ and yet gave the same sum it is nan. None of them may have shown the words
    on which the terms differ, and then they tell nothing of those that do.

    Args:
        weighted: weight times score of each term along each order.
        degrees: as of :func:`contrast_of`.
    """
    if weighted.isnan().any():
        return math.nan, 1.0
    if degrees.isinf().all():
        return 0.0, math.inf
    num_orders = weighted.shape[1]
    error = error_over_orders(weighted.sum(dim=0, keepdim=True)).item()
    has_spread = error > NO_SPREAD * weighted.abs().mean(dim=1).sum().item()
    if not has_spread or not degrees.all():
        return math.nan, 1.0
    return error**2, num_orders - 1.0


def degrees_of_sum(
    variance: Float[Tensor, " N"], squared_per_degree: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Effective degrees of freedom of a variance that is a sum (Satterthwaite).

    Args:
        variance: the sum of the variances of independent terms.
        squared_per_degree: the sum of their squares, each over its degrees of freedom.

    Returns:
        0 where the variance is not known, infinite where it is 0.
    """
    degrees = variance.square() / squared_per_degree
    return torch.where(variance.isnan(), 0.0, degrees.nan_to_num(math.inf, posinf=math.inf))


def students_interval(
    value: Float[Tensor, " N"], error: Float[Tensor, " N"], degrees: Float[Tensor, " N"]
) -> Float[Tensor, "N two"]:
    """Student's 95 % intervals around N values.

    Args:
        value: in any unit.
        error: their standard errors.
        degrees: of freedom of these; 0 gives nan.

    Returns:
        Their ends, (N, 2).
    """
    from scipy import stats

    reach = torch.from_numpy(stats.t.ppf(0.975, degrees.numpy())) * error
    return torch.stack([value - reach, value + reach], dim=1)


def _require_same_design(
    weight: Float[Tensor, " R"],
    terms: Float[Tensor, "R S"],
    texts: Int[Tensor, " R"],
    terms_of_item: dict[Any, list[int]],
) -> None:
    """Refuse an item that misses a text of a condition, or has one twice.

    A sum of weights does not show it: an item that misses both texts of one noun has a simple effect
    in place of an interaction. So the weights of its texts, in any order, must be those of most items.
    A region may have another number of words in each text, either with one weight for all of them or
    with weights that add up to that of the text: one of the two must be the same in all items. Items
    without a value are left out, as they already have none.
    """
    weights_of_texts: dict[Any, list[list[float]]] = {}
    for item, numbers in terms_of_item.items():
        if terms[numbers].isnan().any():
            continue
        of_text: dict[int, list[float]] = {}
        for text, each in zip(texts[numbers].tolist(), weight[numbers].tolist(), strict=True):
            of_text.setdefault(text, []).append(each)
        weights_of_texts[item] = list(of_text.values())
    if not weights_of_texts:
        return
    rounding = SAME_WEIGHT * weight.abs().max().item()
    by_sum = {
        item: _sorted_weights([[math.fsum(each)] for each in of_texts], rounding)
        for item, of_texts in weights_of_texts.items()
    }
    by_word = {
        item: _sorted_weights(of_texts, rounding) for item, of_texts in weights_of_texts.items()
    }
    designs = max(by_sum, by_word, key=lambda designs: _most_common(designs)[1])
    expected, count = _most_common(designs)
    if count == len(designs):
        return
    item, weights = next(pair for pair in designs.items() if pair[1] != expected)
    raise ValueError(
        f"weights of the texts of item {item!r} must be {_listed(expected, rounding)}, as in other "
        f"items, got {_listed(weights, rounding)}: add the text that is missing, take out the one that "
        "is there twice, or leave the item out."
    )


Weights = tuple[tuple[int, ...], ...]
"""The different weights within each text of an item, sorted, as multiples of what is rounding."""


def _sorted_weights(of_texts: list[list[float]], rounding: float) -> Weights:
    return tuple(
        sorted(tuple(sorted({round(each / rounding) for each in text})) for text in of_texts)
    )


def _most_common(designs: dict[Any, Weights]) -> tuple[Weights, int]:
    """The weights that most items have, and how many have them; the first of those with as many."""
    return Counter(designs.values()).most_common(1)[0]


def _listed(weights: Weights, rounding: float) -> str:
    return ", ".join(f"{each * rounding:.6g}" for text in weights for each in text)


def error_over_orders(terms: Float[Tensor, "T S"]) -> Float[Tensor, " T"]:
    """The standard error of the mean over S orders; 0 of a single one, which is right if it is all."""
    num_orders = terms.shape[1]
    return terms.std(dim=1, correction=min(1, num_orders - 1)) / math.sqrt(num_orders)


def item_names(items: Any, count: int) -> list[Hashable]:
    """The item of each of ``count`` texts.

    Raises:
        TypeError: for what is no list or column, and for an item that has no equal, as a list.
        ValueError: for another number, and for an item that is None or nan.
    """
    names = items.tolist() if isinstance(items, Tensor) else as_list(items)
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"items must be a list or a column, one item a text, got {items!r}.")
    if len(names) != count:
        raise ValueError(f"{count} texts came with {len(names)} items.")
    for number, name in enumerate(names):
        if not isinstance(name, Hashable):
            raise TypeError(
                f"items: that of text {number} must be a name or a number, got {name!r}."
            )
        if name is None or (isinstance(name, float) and math.isnan(name)):
            raise ValueError(
                f"items: text {number} has no item ({name}). Name one, or leave it out."
            )
    return list(names)
