"""Validation of a function of data and masks: normalization, leakage and independence of the batch."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.numerics import double

_SAME_ANSWER_TOLERANCE = 1e-4
"""Largest difference of equal answers in nats: kernels round differently beside other numbers."""
_NORMALIZATION_TOLERANCE = 1e-3
"""Largest log of a sum of probabilities, in nats, where rounding is negligible. A log-softmax in float32
misses 0 by 1e-5 at most, with 126,464 values, for logits in any precision."""
_MAX_BATCH_TOLERANCE = 0.25
"""Largest difference between batches of an expected log-probability, in nats. Other shapes take other
kernels, which round differently: by 1e-5 in float32; by some hundredths in bfloat16, which rounds a
logit of 20 by up to 0.06."""

_Function = Callable[[Tensor, Tensor], Tensor]


class _Datum(NamedTuple):
    """One datum with its mask, and the log-probabilities for it alone."""

    x: Int[Tensor, "1 D"]
    mask: Bool[Tensor, "1 D"]
    log_values: Float[Tensor, "M V"]


def validate_conditionals(
    name: str, function: _Function, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]
) -> int:
    """Validate a function that returns log-probabilities of hidden coordinates.

    It is called with the datum of which most is hidden: under its mask, and with a half, a quarter and a
    single one of those coordinates hidden, because a function may treat few differently from many.
    At each of these rates it is called twice, with two values at each hidden coordinate; then twice
    with a second datum in the batch. That takes ten calls of one or two data. Other rates and larger
    batches are not checked.

    Args:
        name: the name of the function in messages.
        function: takes integers ``x`` and ``mask``, both (B, D), and returns log q(x_j = v | x_R) of
            the hidden coordinates only, nats, (M, V). NaN passes as in :func:`require_normalized`.
        x: data, one or two of which are used, (B, D).
        mask: one mask a datum, (B, D).

    Returns:
        V, the number of values.

    Raises:
        ValueError: as :func:`require_normalized` and :func:`require_no_leakage`, for a function that is
            not deterministic, and for one whose answer for a datum depends on the rest of the batch.
    """
    most_hidden = int(mask.sum(dim=1).argmax())
    datum = x[most_hidden : most_hidden + 1]
    most = mask[most_hidden : most_hidden + 1]
    trial_masks = _with_fewer_hidden(most)
    answers = []
    for trial_mask in trial_masks:
        values = function(datum, trial_mask)
        num_hidden = trial_mask.sum().expand(len(values))
        require_normalized(name, values, num_hidden, x.shape[1])
        values = values.double()
        _require_no_leakage_and_no_draws(name, function, datum, trial_mask, values)
        answers.append(values)
    first = _Datum(datum, most, answers[0])
    other = _Datum(datum, trial_masks[-1], answers[-1])
    if len(trial_masks) == 1:  # one coordinate is hidden: this datum has no second mask
        other = _different_datum(function, x, mask, datum)
    _require_independent_data(name, function, first, other)
    return values.shape[1]


def require_normalized(
    name: str, log_values: Float[Tensor, "M V"], num_hidden: Int[Tensor, " M"], num_features: int
) -> None:
    """Check that answers are logarithms of probabilities.

    Args:
        name: the name of the function in the message.
        log_values: log-probabilities of all values at M hidden coordinates, nats, (M, V), in the
            precision in which they were returned. NaN passes where all values of a coordinate are NaN:
            the caller can say which. NaN for some of them would hide the sum of the others.
        num_hidden: number of hidden coordinates at each answer, for the message, (M,).
        num_features: D, for the message.

    Raises:
        ValueError: where the probabilities of all values do not add up to 1, within
            :func:`normalization_tolerance`, and where some of these are NaN.
    """
    most = normalization_tolerance(log_values.dtype, log_values.shape[1])
    values = double(log_values)
    log_total = values.logsumexp(dim=1)
    if log_total.isnan().any():
        _require_no_single_nan(name, values, num_hidden, num_features)
    if not (log_total.abs() > most).any():
        return
    worst = int(log_total.abs().nan_to_num().argmax())
    totals = values.sum(dim=1)
    precision = str(log_values.dtype).removeprefix("torch.")
    remedy = "logits.log_softmax(dim=-1)"
    if (values >= 0).all() and (totals - 1.0).abs().max() <= 0.05:
        remedy = "values.log()"
    elif log_total.abs().nan_to_num().max() <= 0.05:
        # What a log-softmax in half precision misses: an answer can be cast to float32 after it.
        remedy = "logits.float().log_softmax(dim=-1), which rounds nothing to half precision"
    raise ValueError(
        f"{name} must return logarithms of probabilities, but where it hides {num_hidden[worst]} of "
        f"{num_features} places they add up to {log_total[worst].exp():.4g}, not to 1: "
        f"return {remedy} (in {precision} the sum may be off by {most:.2g})."
    )


def _require_no_single_nan(
    name: str, values: Float[Tensor, "M V"], num_hidden: Int[Tensor, " M"], num_features: int
) -> None:
    """Check that the answer for a coordinate is NaN for all values or for none."""
    is_nan = values.isnan()
    is_some = is_nan.any(dim=1) & ~is_nan.all(dim=1)
    if not is_some.any():
        return
    worst = int(is_some.int().argmax())
    value = int(is_nan[worst].int().argmax())
    raise ValueError(
        f"{name} must return logarithms of probabilities, but where it hides {num_hidden[worst]} of "
        f"{num_features} places it answers nan of value {value}: return logits.log_softmax(dim=-1), "
        "which gives -inf for a logit of -inf, a probability of 0."
    )


def normalization_tolerance(dtype: torch.dtype, num_values: int) -> float:
    """Tolerance in nats within which log Σ_v q(v) of a normalized answer is 0.

    Rounded to unit roundoff u, each log q(v) moves by at most u |log q(v)|. So the sum lies between
    those of q^(1+u) and of q^(1−u), which for V values are at least V^(−u) and at most V^u: the
    logarithm is off by u log V or less.

    Args:
        dtype: the precision of the answer.
        num_values: V.

    >>> (
    ...     round(normalization_tolerance(torch.float32, 30522), 4),
    ...     round(normalization_tolerance(torch.bfloat16, 30522), 4),
    ... )
    (0.001, 0.0413)
    """
    unit_roundoff = torch.finfo(dtype).eps / 2
    return _NORMALIZATION_TOLERANCE + unit_roundoff * math.log(max(num_values, 1))


def with_hidden_replaced(
    x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"], num_values: int
) -> Int[Tensor, "B D"]:
    """Copy of the data with another value at every hidden coordinate."""
    return torch.where(mask, (x + 1) % num_values, x)


def require_no_leakage(name: str, answers: Sequence[Tensor], remedy: str) -> None:
    """Leakage check: refuse a function that reads hidden coordinates.

    Args:
        name: the name of the function in the message.
        answers: its answers for the same data with different values at hidden coordinates.
        remedy: a sentence that says what to do.

    Raises:
        ValueError: where the answers are not all the same.
    """
    first = answers[0]
    for other in answers[1:]:
        if not _is_same(other, first):
            raise ValueError(
                f"{name} changes its answer when what is hidden is replaced: it reads what it scores, "
                f"or is random. {remedy}"
            )


def _with_fewer_hidden(most: Bool[Tensor, "1 D"]) -> list[Bool[Tensor, "1 D"]]:
    """Make masks that hide all coordinates of ``most``, every second, every fourth, and the first."""
    rank = most.cumsum(dim=1) - 1
    num_hidden = int(most.sum())
    step_by_number = {math.ceil(num_hidden / step): step for step in (num_hidden, 4, 2, 1)}
    return [most & (rank % step == 0) for _, step in sorted(step_by_number.items(), reverse=True)]


def _require_no_leakage_and_no_draws(
    name: str, function: _Function, datum: Tensor, mask: Tensor, values: Tensor
) -> None:
    """Refuse a function whose answer depends on hidden values, or is not deterministic.

    A second call with the same data distinguishes the two.
    """
    other_datum = with_hidden_replaced(datum, mask, values.shape[1])
    other_values = function(other_datum, mask).double()
    if _is_same(other_values, values):
        return
    if not _is_same(function(other_datum, mask).double(), other_values):
        raise ValueError(
            f"{name} answers otherwise when it is asked the same again: it draws at random, or keeps "
            "something from call to call. Call eval() of the network, and let nothing be kept."
        )
    remedy = "Where mask is True show it a mask token or anything constant."
    require_no_leakage(name, [values, other_values], remedy)


def _different_datum(function: _Function, x: Tensor, mask: Tensor, datum: Tensor) -> _Datum:
    """Choose the first datum with other visible values than ``datum``, or the first of all."""
    is_other = ((x != datum) & ~mask).any(dim=1) & mask.any(dim=1)
    first = int(is_other.int().argmax())
    other = x[first : first + 1]
    other_mask = mask[first : first + 1]
    return _Datum(other, other_mask, function(other, other_mask).double())


def _require_independent_data(name: str, function: _Function, datum: _Datum, other: _Datum) -> None:
    """Refuse a function whose answer for a datum depends on the rest of its batch.

    The rounding of a network cannot be seen from its answer, which is float32 where bfloat16 was cast
    before the log-softmax. So it is measured, in a batch of a datum and its copy.
    """
    twice = torch.cat([datum.x, datum.x])
    both_masks = torch.cat([datum.mask, datum.mask])
    copies = function(twice, both_masks).double().chunk(2)
    rounding = max(_change(copy, datum.log_values) for copy in copies)
    both = torch.cat([other.x, datum.x])
    both_masks = torch.cat([other.mask, datum.mask])
    lengths = [len(other.log_values), len(datum.log_values)]
    of_other, of_datum = function(both, both_masks).double().split(lengths)
    change = max(_change(of_other, other.log_values), _change(of_datum, datum.log_values))
    if change > min(_MAX_BATCH_TOLERANCE, _NORMALIZATION_TOLERANCE + 10.0 * rounding):
        raise ValueError(
            f"{name} answers otherwise of a row when another row is asked with it: its "
            f"log-probabilities change by {change:.2g} nats. Let no mean, softmax, norm or state run "
            "over the first dimension, the batch."
        )


def _is_same(values: Tensor, others: Tensor) -> bool:
    return torch.allclose(values, others, rtol=0, atol=_SAME_ANSWER_TOLERANCE, equal_nan=True)


def _change(values: Float[Tensor, "M V"], expected: Float[Tensor, "M V"]) -> float:
    """Largest mean absolute change of log-probabilities under ``expected`` at a coordinate, in nats.

    Values of small probability get small weight: half precision rounds them most. NaN in one of the two
    is an infinite change.
    """
    changes = (values - expected).abs().nan_to_num(torch.inf, torch.inf)
    is_unchanged = (values == expected) | (values.isnan() & expected.isnan())
    p = expected.exp().nan_to_num(1.0)
    weighted = (p * changes).masked_fill(is_unchanged | (p == 0.0), 0.0)
    return float(weighted.sum(dim=1).max())
