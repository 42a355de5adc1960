"""What a page needs besides figures: numbers that prose can show."""

import math

__all__ = ["glue"]


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
