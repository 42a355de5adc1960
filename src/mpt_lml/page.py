"""Parts of a page besides figures: tables, numbers in prose, a training beside its record."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import Positive, checked

__all__ = ["compare_with_record", "glue", "table"]


def glue(name: str, value: object) -> None:
    """Record a value under a name, so that prose can show it with ``{glue:text}``.

    Writes the same output as ``myst_nb.glue`` without needing that package (on Colab, for example).

    Args:
        name: what the prose calls it.
        value: any object; what is shown is its ``repr``.

    Raises:
        TypeError: for a name that is no text.
        ValueError: for an empty name, and for a float that is not finite: a number in prose has to
            be a number.

    >>> glue("gap", math.inf)
    Traceback (most recent call last):
    ValueError: glue('gap'): inf is not a number to print in prose
    """
    if not isinstance(name, str):
        raise TypeError(f"glue takes a name first, a str, got {name!r}")
    if not name.strip():
        raise ValueError(f"glue takes a name that prose can call, got {name!r}")
    number = value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        number = value.item()  # of a tensor or array without axes
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"glue({name!r}): {value} is not a number to print in prose")
    from IPython.display import display  # only a page needs it

    prefix = "application/papermill.record/"
    scrapbook = {"name": name, "mime_prefix": prefix}
    # repr, also of a string: myst-nb evaluates the text, and an unquoted "1.10" would become 1.1.
    display({f"{prefix}text/plain": repr(value)}, raw=True, metadata={"scrapbook": scrapbook})


@checked
def table(head: Sequence[str | int], rows: Sequence[Sequence[str | int]]) -> Any:
    """Table of results for the page.

    Args:
        head: what stands above each column.
        rows: of entries as they are to be shown; the first names its row. Entries may hold HTML.

    Returns:
        What a notebook shows as a table, an ``IPython.display.HTML``.

    Raises:
        ValueError: for a row with more or fewer entries than the head.

    >>> print(table(["size", "score"], [["1", "−0.26"]]).data)
    <table><thead><tr><th scope="col">size</th><th scope="col">score</th></tr></thead>
    <tbody>
    <tr><th scope="row">1</th><td>−0.26</td></tr>
    </tbody></table>
    """
    from IPython.display import HTML  # only a page needs it

    top = "".join(f'<th scope="col">{entry}</th>' for entry in head)
    lines = [f"<table><thead><tr>{top}</tr></thead>", "<tbody>"]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(
                f"the row {list(row)} has {len(row)} entries, and the head {len(head)}."
            )
        name, *entries = row
        cells = "".join(f"<td>{entry}</td>" for entry in entries)
        lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    lines.append("</tbody></table>")
    return HTML("\n".join(lines))


@checked
def compare_with_record(
    what: str, measured: Any, recorded: Any, *, tolerance: Positive, unit: str = "nats"
) -> None:
    """Print the distance of new values from their record, and whether it is within tolerance.

    The difference is printed to the digits that the tolerance has, so that the line is the same on every
    machine that agrees well.

    Args:
        what: what is compared, and at which settings: "log p(x) after 3 epochs, two seeds".
        measured: numbers that the page computed, a tensor on any device.
        recorded: the same numbers of the record, in the same order.
        tolerance: the largest difference that is called agreement, in ``unit``.
        unit: of the numbers.

    Raises:
        TypeError: where ``what`` is no text, or numbers are none.
        ValueError: for other shapes, for numbers that are none, and for a tolerance that is not
            positive.

    >>> compare_with_record("log p(x), two seeds", [1.0, 2.0], [1.0, 2.04], tolerance=0.1)
    Compared with the record: log p(x), two seeds.
    Largest difference 0.0 nats (0.1 allowed): agrees with the record.
    """
    ours = _numbers("measured", measured)
    theirs = _numbers("recorded", recorded)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"measured has the shape {tuple(ours.shape)} and recorded {tuple(theirs.shape)}: "
            "compare the same numbers, in the same order."
        )
    if not (ours.numel() and ours.isfinite().all() and theirs.isfinite().all()):
        raise ValueError("measured and recorded must have finite numbers, and at least one.")
    difference = (ours - theirs).abs().max().item()
    digits = max(0, math.ceil(-math.log10(tolerance)))
    verdict = "agrees with" if difference <= tolerance else "DOES NOT AGREE with"
    print(f"Compared with the record: {what}.")
    print(
        f"Largest difference {difference:.{digits}f} {unit} ({tolerance:g} allowed): "
        f"{verdict} the record."
    )


def _numbers(name: str, value: Any) -> Float[Tensor, "..."]:
    """Value as a tensor in double precision, on the CPU."""
    try:
        # Python's own numbers would become single precision first.
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
        return tensor.detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be numbers, or a tensor of them, got {value!r:.60}."
        ) from error
