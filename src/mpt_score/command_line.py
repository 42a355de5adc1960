"""What both command lines share: kinds of values, the look of help, one sentence for a mistake."""

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, get_args

from cyclopts import App, CycloptsError, Parameter, Token, UnusedCliTokensError
from cyclopts.help import DefaultFormatter, PanelSpec
from rich import box

FEWEST_IN_A_RANGE = 3
"""Numbers that are written as a range, 5:15:5, and not one by one."""


def read_whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """An integer. (The library itself would cut 2.5 to 2.)"""
    token = tokens[-1]
    try:
        return int(token.value)
    except ValueError:
        raise _refusal(token, "a whole number") from None


def read_list(kind: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """Values between commas; 5:95:10 is a range with its last number.

    Args:
        kind: ``tuple[int, ...]``, or a tuple of ``float`` or ``str``, which have no ranges.
        tokens: The arguments that were given, one for each time that the option was.
    """
    token = tokens[-1]  # where the option is given again, the last one counts
    entry = get_args(kind)[0]
    values: list[Any] = []
    for part in token.value.split(","):
        try:
            if entry is int and ":" in part:
                values += _range_with_last(*map(int, part.split(":")))
            else:
                values.append(entry(part))
        except (TypeError, ValueError):
            form = "15, 5,50 or 5:95:10" if entry is int else "0.15 or 0.1,0.5"
            raise _refusal(token, f"as {form}") from None
    return tuple(values)


def _refusal(token: Token, expected: str) -> CycloptsError:
    return CycloptsError(msg=f"{token.keyword} must be {expected}, got {token.value!r}.")


def _range_with_last(first: int, last: int, step: int = 1) -> range:
    return range(first, last + 1, step)


def as_text(value: Any) -> str:
    """A value as it is written on a command line: the inverse of :func:`read_list`.

    >>> as_text((5, 15, 25)), as_text((1, 10, 100)), as_text(0.15)
    ('5:25:10', '1,10,100', '0.15')
    """
    if not isinstance(value, tuple):
        return str(value)
    if len(value) >= FEWEST_IN_A_RANGE and all(isinstance(number, int) for number in value):
        first, last = value[0], value[-1]
        step = value[1] - first
        if step > 0 and value == tuple(_range_with_last(first, last, step)):
            return f"{first}:{last}" if step == 1 else f"{first}:{last}:{step}"
    return ",".join(str(entry) for entry in value)


WholeNumber = Annotated[int, Parameter(converter=read_whole_number)]
ListParameter = Parameter(
    converter=read_list, n_tokens=1, negative="", allow_leading_hyphen=True, show_default=as_text
)
"""For a tuple that is one argument, as 1,10,100."""
Switch = Annotated[bool, Parameter(negative="")]
"""An option without a value that is off unless it is given."""


def new_app(name: str, about: str) -> App:
    """A command line that has no commands yet; its help is text in columns, without boxes."""
    columns = DefaultFormatter(panel_spec=PanelSpec(box=box.SIMPLE, padding=(0, 0)))
    return App(
        name=name,
        help=about,
        help_format="plaintext",
        help_formatter=columns,
        version_flags=[],
        result_action="return_value",
        default_parameter=Parameter(allow_repeating=True),  # the last one counts
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )


def answer(program: str, act: Callable[[], object]) -> int:
    """Do what a command line asks for; a mistake is one sentence on standard error.

    Args:
        program: The name that a message begins with.
        act: Calls the command line.

    Returns:
        The exit status: 0, 1 where a reader closed the pipe, 2 for a mistake in the call, 130 when
        interrupted. The message of a ``KeyboardInterrupt`` says what is left behind.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows only ASCII shows "?" for "±" and "–". Standard error does so already.
        sys.stdout.reconfigure(errors="replace")
    try:
        act()
        _flush_output()
    except BrokenPipeError:
        return 1  # whoever read the lines has had enough, as in `mpt-score ... | head`
    except UnusedCliTokensError as error:
        unused = " ".join(error.unused_tokens or ())
        print(f"{program}: too many arguments: {unused}", file=sys.stderr)
        return 2
    except (CycloptsError, TypeError, ValueError, OSError, ImportError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"{program}: stopped; {str(stop) or 'nothing was written'}", file=sys.stderr)
        return 130
    finally:
        _let_go_of_output()
    return 0


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"standard output cannot be written: {error.strerror}.") from error


def _let_go_of_output() -> None:
    """Close standard output where it cannot be written.

    Python would write what is left in its buffer once more when it ends, and complain.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
