"""Kinds of values on a command line, what help looks like, and how a command ends."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

import mpt_score
from mpt_score import options
from mpt_score.command_line import ListParameter, WholeNumber, answer, as_text, new_app

APP = new_app("tool", "Says what it was given.")


@APP.command
def say(
    *,
    count: WholeNumber = 3,
    rates: Annotated[tuple[int, ...], ListParameter] = (5, 10, 15),
    sizes: Annotated[tuple[float, ...], ListParameter] = (0.5,),
    words: Annotated[tuple[str, ...], ListParameter] = ("a",),
) -> None:
    """Print values.

    Args:
        count: How many.
    """
    print(count, rates, sizes, words, sep="; ")


@APP.command
def fail(kind: str, /) -> None:
    """End in some way."""
    errors = {
        "value": ValueError("no such value"),
        "pipe": BrokenPipeError(),
        "stop": KeyboardInterrupt(),
        "left": KeyboardInterrupt("all of it is in DIR"),
    }
    raise errors[kind]


def ended(arguments: list[str]) -> int:
    return answer("tool", lambda: APP(arguments))


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ([], "3; (5, 10, 15); (0.5,); ('a',)"),
        (["--count", "-2"], "-2; (5, 10, 15); (0.5,); ('a',)"),
        (["--rates", "1,5:7,10:30:10"], "3; (1, 5, 6, 7, 10, 20, 30); (0.5,); ('a',)"),
        (["--count", "1", "--count", "2"], "2; (5, 10, 15); (0.5,); ('a',)"),
        (["--rates", "1,2", "--rates", "4"], "3; (4,); (0.5,); ('a',)"),
        (["--rates", "-1,4"], "3; (-1, 4); (0.5,); ('a',)"),
        (["--sizes", "0.1,2"], "3; (5, 10, 15); (0.1, 2.0); ('a',)"),
        (["--words", "glue/ax,C:1"], "3; (5, 10, 15); (0.5,); ('glue/ax', 'C:1')"),
    ],
)
def test_values(given: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["say", *given]) == 0
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["say", "--count", "2.5"], "--count must be a whole number, got '2.5'."),
        (["say", "--count="], "--count must be a whole number, got ''."),
        (["say", "--rates", "5-95"], "--rates must be as 15, 5,50 or 5:95:10, got '5-95'."),
        (["say", "--rates", "5", "--rates=a"], "--rates must be as 15, 5,50 or 5:95:10, got 'a'."),
        (["say", "--rates", "1:2:3:4"], "got '1:2:3:4'."),
        (["say", "--rates", "1:9:0"], "got '1:9:0'."),
        (["say", "--sizes", "0.1,b"], "--sizes must be as 0.15 or 0.1,0.5, got '0.1,b'."),
        (["say", "--coun", "2"], "Unknown option: --coun. Did you mean --count?"),
        (["say", "more", "and more"], "too many arguments: more and more"),
        (["sya"], 'Unknown command "sya". Did you mean "say"?'),
        (["fail"], "KIND requires an argument."),
        (["fail", "value"], "no such value"),
    ],
)
def test_a_mistake_is_one_sentence(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(given) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("tool: ") and message in error
    assert len(error.splitlines()) == 1


def test_an_interrupted_command_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["fail", "stop"]) == 130
    assert capsys.readouterr().err == "tool: stopped; nothing was written\n"
    assert ended(["fail", "left"]) == 130
    assert capsys.readouterr().err == "tool: stopped; all of it is in DIR\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    program = "from mpt_score.command_line import answer; raise SystemExit(answer('tool', {}))"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program.format("lambda: print('a word')")],
            env=os.environ | {"PYTHONUNBUFFERED": ""},  # as a user has it
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    sentence = "tool: standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (2, sentence)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ((1, 2, 3), "1:3"),
        ((5, 15, 25, 35), "5:35:10"),
        ((1, 10, 100), "1,10,100"),
        ((3, 2, 1), "3,2,1"),
        ((4, 5), "4,5"),
    ],
)
def test_a_list_is_read_as_it_is_written(
    value: tuple[int, ...], written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_text(value) == written
    assert ended(["say", "--rates", written]) == 0
    assert f"; {value}; " in capsys.readouterr().out


def test_help_is_plain_text_of_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["say", "--help"]):
        assert ended(words) == 0
        out = capsys.readouterr().out
        assert out.isascii() and "\x1b" not in out  # no boxes, no colors
        assert max(map(len, out.splitlines())) <= 80
    assert "--count INT" in out and "How many. [default: 3]" in out and "[default: 5:15:5]" in out


@pytest.mark.parametrize(
    ("chosen", "function"),
    [
        (options.SentenceOptions(), mpt_score.sentences),
        (options.PairOptions(), mpt_score.pairs),
        (options.AnswerOptions(), mpt_score.answers),
        (options.NetworkOptions(), mpt_score.load),
        (options.CurveOptions(), mpt_score.Design),
    ],
)
def test_options_have_the_defaults_of_the_library(chosen, function) -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }
    # No model is the book's own; a command's seed is 0; a file's documents are empty lines.
    apart = {"model", "seed", "documents"}
    given = {name: value for name, value in dataclasses.asdict(chosen).items() if name not in apart}
    if "rates" in given:  # in percent at a terminal, fractions in the library
        given["rates"] = tuple(percent / 100 for percent in given["rates"])
    assert given == {name: defaults[name] for name in given}
