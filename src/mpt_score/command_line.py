"""How a command ends: one sentence for a mistake, one for a signal, and its exit status."""

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: whoever sees to an interruption from the keyboard sees to it in the same way."""


def answer(program: str, act: Callable[[], object]) -> int:
    """Do what a command line asks for; a mistake is one sentence on standard error.

    Args:
        program: The name that a message begins with.
        act: Parses the command line and does it.

    Returns:
        The exit status: 0, 1 where a reader closed the pipe, 2 for a mistake in the call, 130 and 143
        where SIGINT or SIGTERM stopped it. The message of a ``KeyboardInterrupt`` says what is left
        behind.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows only ASCII shows "?" for "±" and "–". Standard error does so already.
        sys.stdout.reconfigure(errors="replace")
    try:
        with _terminated_as_interrupted():
            act()
            write_output("")
    except BrokenPipeError:
        return 1  # whoever read the lines has had enough, as in `mpt-score ... | head`
    except (TypeError, ValueError, OSError, ImportError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"{program}: stopped; {str(stop) or 'nothing was written'}", file=sys.stderr)
        number = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
        return 128 + number
    finally:
        _let_go_of_output()
    return 0


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    def terminate(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    if threading.current_thread() is not threading.main_thread():
        yield  # others cannot be signaled
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def write_output(text: str) -> None:
    """Write to standard output, now, or say why it cannot be written."""
    try:
        sys.stdout.write(text)
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
