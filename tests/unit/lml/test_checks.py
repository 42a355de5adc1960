"""What is decorated is checked, whoever calls it, and shapes are read as they are written."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import PPCA, masks
from mpt_lml.checks import Count, check, checked

pytestmark = pytest.mark.bad_input


@checked
def outer(num_features: Count) -> Tensor:
    return inner(num_features - 1)


@checked
def inner(num_features: Count) -> Tensor:
    return masks.subsets(num_features)


@pytest.mark.parametrize("name", ["mpt_lml.somewhere", "elsewhere"])
def test_a_call_is_checked_whoever_makes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", name)
    assert outer(3).shape == (4, 2)
    with pytest.raises(ValueError, match="num_features must be >= 1, got 0"):
        outer(1)


@checked
def longest(first: Count, *others: int, at_most: Count = 9) -> int:
    return min(max(first, *others), at_most)


def test_the_names_of_positional_arguments_end_where_any_number_of_them_begins() -> None:
    assert longest(1, 2, 0) == 2
    with pytest.raises(ValueError, match="at_most must be >= 1, got 0"):
        longest(1, 2, 3, at_most=0)


@pytest.mark.parametrize(
    ("annotation", "shape", "fits"),
    [
        (Float[Tensor, "N D"], (5, 3), True),
        (Float[Tensor, "N D"], (5, 4), False),
        (Float[Tensor, "N D"], (0, 3), False),
        (Float[Tensor, "n D"], (0, 3), True),
        (Float[Tensor, "D D"], (3, 3), True),
        (Float[Tensor, "N N"], (2, 3), False),
        (Float[Tensor, "N 1 D"], (5, 1, 3), True),
        (Float[Tensor, "N 1 D"], (5, 2, 3), False),
        (Float[Tensor, "... D"], (3,), True),
        (Float[Tensor, "... D"], (2, 7, 3), True),
        (Float[Tensor, "... D"], (0, 3), False),
        (Float[Tensor, "*B N D"], (3,), False),
        (Float[Tensor, "D ..."], (3, 0, 2), True),
        (Float[Tensor, "D ..."], (2, 3), False),
        (Float[Tensor, ""], (), True),
        (Float[Tensor, ""], (1,), False),
    ],
)
def test_letters_of_a_shape(annotation: object, shape: tuple[int, ...], fits: bool) -> None:
    """Where D = 3 is known."""
    if fits:
        check(("x", torch.zeros(shape), annotation), D=3)
    else:
        with pytest.raises(ValueError, match="x must have shape"):
            check(("x", torch.zeros(shape), annotation), D=3)


def test_the_first_choice_of_two_leaves_no_sizes_behind() -> None:
    """What does not fit "N N" has told no N."""
    either = Float[Tensor, "N N"] | Float[Tensor, "M N"]
    check(("x", torch.zeros(2, 3), either), ("y", torch.zeros(3), Float[Tensor, " N"]))


def test_half_precision_by_autocast_is_refused() -> None:
    model = PPCA(torch.ones(3, 1), 0.2)
    refusal = r"PPCA must not be called under torch\.autocast.* Put only the call of your network"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match=refusal):
            PPCA(torch.ones(3, 1), 0.2)
        with pytest.raises(RuntimeError, match="TractableModel.sample must not be called under"):
            model.sample(2, generator=torch.Generator())


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [10**13, 10**18])
def test_sizes_that_no_memory_holds_are_one_sentence(size: int) -> None:
    """Also where a function calls another one; what else torch raises stays as it is."""

    @checked
    def zeros(size: Count) -> Tensor:
        return torch.zeros(4, size) + torch.zeros(3)

    @checked
    def twice(size: Count) -> Tensor:
        return 2 * zeros(size)

    with pytest.raises(
        MemoryError, match=r"zeros needs more memory than there is\. Give it smaller"
    ):
        twice(size)
    with pytest.raises(RuntimeError, match="must match the size"):
        twice(5)
