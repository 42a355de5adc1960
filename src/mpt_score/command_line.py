"""How a command reads its options, and how it ends: in one sentence, with an exit status."""

import argparse
import io
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from mpt_score.errors import is_out_of_memory


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence without the usage, and whose options are given once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", None, _StoreOnce)  # in place of the one that takes the last value

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


class _StoreOnce(argparse.Action):
    is_given = False

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if self.is_given:
            raise argparse.ArgumentError(self, "is given twice. Leave one of them out.")
        self.is_given = True
        setattr(namespace, self.dest, values)


class TerminatedError(KeyboardInterrupt):
    """A SIGTERM, which is handled as the SIGINT of an interruption from the keyboard."""


def answer(
    program: str, act: Callable[[Sequence[str]], object], arguments: Sequence[str] | None = None
) -> int:
    """Do what a command line asks for; a mistake is one sentence on standard error.

    Args:
        program: The name that a message begins with.
        act: Parses the command line and does it.
        arguments: The command line, by default that of the process.

    Returns:
        The exit status: 0, 1 where a reader closed the pipe, 2 for a mistake in the call, 130 and 143
        where SIGINT or SIGTERM stopped it. The message of a ``KeyboardInterrupt`` says what has been
        written.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows only ASCII shows "?" for "±" and "–". Standard error does so already.
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with _sigterm_as_sigint():
            act(arguments)
            write_output("")
    except BrokenPipeError:
        return 1  # whoever read the lines has had enough, as in `mpt-score ... | head`
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ArithmeticError):
            sentence = _resource_message(error, arguments)
        elif isinstance(error, TypeError | ValueError | OSError | ImportError):
            sentence = str(error)
        else:
            raise
        print(f"{program}: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"{program}: stopped; {str(stop) or 'nothing was written'}", file=sys.stderr)
        number = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
        return 128 + number
    finally:
        close_stdout()
    return 0


def _resource_message(error: Exception, arguments: Sequence[str]) -> str:
    """The sentence for memory or a number that does not suffice, with what has been written before."""
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    asked = f"for {shlex.join(arguments)!r} ({reason})."
    if is_out_of_memory(error):
        sentence = f"memory does not suffice {asked} Ask for less at a time, or free some."
    else:
        sentence = f"a number is too large or too small {asked} Take a moderate one."
    return " ".join([sentence, *getattr(error, "__notes__", [])]).strip()


@contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
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


def close_stdout() -> None:
    """Close standard output where it cannot be written.

    Python would write what is left in its buffer once more when it ends, and complain.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
