"""A trial of a function of data and masks: are these log-probabilities, and blind to what is hidden?"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST_OFF = 0.05
"""Of the logarithm of a sum of probabilities that is 1: bfloat16 has three digits."""
_MOST_CHANGED = 1e-4
"""Of an answer that is the same: kernels may round otherwise what stands beside other numbers."""


def try_log_values(
    name: str,
    function: Callable[[Tensor, Tensor], Tensor],
    x: Int[Tensor, "B D"],
    mask: Bool[Tensor, "B D"],
) -> int:
    """Try a function that says what its hidden coordinates are, and refuse one that cannot be right.

    It is tried on one datum, twice: under the mask that hides most, and with a single one of those
    coordinates hidden, because a function may treat few in another way than many. What it does
    between the two is not tried.

    Args:
        name: of the function, in messages.
        function: takes integers ``x`` and ``mask``, both (B, D), and gives log q(x_j = v | x_R) of
            the hidden coordinates only, nats, (M, V). NaN is let through: who uses it can say where.
        x: data, of which one is tried, (B, D).
        mask: one mask a datum, (B, D).

    Returns:
        V, the number of values.

    Raises:
        ValueError: as of :func:`require_normalized` and :func:`require_blind`.
    """
    most_hidden = int(mask.sum(dim=1).argmax())
    datum = x[most_hidden : most_hidden + 1]
    most = mask[most_hidden : most_hidden + 1]
    single = most & (most.cumsum(dim=1) == 1)
    for tried in (most, single):
        values = function(datum, tried).double()
        num_hidden = tried.sum().expand(len(values))
        require_normalized(name, values, num_hidden, x.shape[1])
        num_values = values.shape[1]
        other_data = with_others_hidden(datum, tried, num_values)
        other_values = function(other_data, tried).double()
        remedy = "Call eval(), and where mask is True show it a mask token or anything constant."
        require_blind(name, [values, other_values], remedy)
    return num_values


def require_normalized(
    name: str, log_values: Float[Tensor, "M V"], num_hidden: Int[Tensor, " M"], num_features: int
) -> None:
    """Refuse answers that are no logarithms of probabilities.

    Args:
        name: of the function, in the message.
        log_values: of all values of M hidden coordinates, nats, (M, V). NaN is let through.
        num_hidden: how many coordinates of the datum were hidden at each answer, for the message, (M,).
        num_features: D, likewise.

    Raises:
        ValueError: where the probabilities of all values do not add up to 1.
    """
    log_total = log_values.logsumexp(dim=1)
    if not (log_total.abs() > MOST_OFF).any():
        return
    worst = int(log_total.abs().nan_to_num().argmax())
    totals = log_values.sum(dim=1)
    are_probabilities = (log_values >= 0).all() and (totals - 1.0).abs().max() <= MOST_OFF
    remedy = "values.log()" if are_probabilities else "logits.log_softmax(dim=-1)"
    raise ValueError(
        f"{name} must return logarithms of probabilities, but where it hides {num_hidden[worst]} of "
        f"{num_features} places they add up to {log_total[worst].exp():.4g}, not to 1: "
        f"return {remedy}."
    )


def with_others_hidden(
    x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"], num_values: int
) -> Int[Tensor, "B D"]:
    """The data with another value at every hidden coordinate."""
    return torch.where(mask, (x + 1) % num_values, x)


def require_blind(name: str, answers: Sequence[Tensor], remedy: str) -> None:
    """Refuse a function that looks at what is hidden.

    Args:
        name: of the function, in the message.
        answers: what it says of the same data with different values at hidden coordinates.
        remedy: what to do.

    Raises:
        ValueError: where the answers are not all the same.
    """
    first = answers[0]
    for other in answers[1:]:
        if not torch.allclose(other, first, rtol=0, atol=_MOST_CHANGED, equal_nan=True):
            raise ValueError(
                f"{name} changes its answer when what is hidden is replaced: it reads what it scores, "
                f"or is random. {remedy}"
            )
