"""The options of the command line, what help looks like, and how a command ends."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpt_score
from mpt_score.command import main, parse, rates
from mpt_score.command_line import answer


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("15", (15,)),
        ("15,50", (15, 50)),
        ("1,5:7,10:30:10", (1, 5, 6, 7, 10, 20, 30)),
        ("5:95:10", tuple(range(5, 96, 10))),
    ],
)
def test_rates(written: str, values: tuple[int, ...]) -> None:
    assert rates(written) == values


WRONG = [
    ([], "the following arguments are required: KIND"),
    (["sya"], "KIND: invalid choice: 'sya'"),
    (["sentences"], "the following arguments are required: FILE"),
    (["sentences", "x", "--nix"], "unrecognized arguments: --nix"),
    (["curve", "x", "--num-orders", "2"], "unrecognized arguments: --num-orders 2"),
    (["sentences", "x", "--num-orders", "2.5"], "--num-orders: invalid int value: '2.5'"),
    (["sentences", "x", "--seed"], "--seed: expected one argument"),
    (
        ["sentences", "x", "--num-orders", "2", "--num-masks", "3"],
        "--num-masks: not allowed with argument --num-orders",
    ),
    (["sentences", "x", "--seed", "1", "--seed=1"], "--seed: is given twice. Leave one of them out."),
    (["curve", "x", "--rates", "1", "--rates", "2"], "--rates: is given twice."),
    (["sentences", "x", "--model", "sys:exit"], "sys:exit(): SystemExit in"),
    (["sentences", "x", "--device", "tpu"], "--device: invalid choice: 'tpu'"),
    (["sentences", "x"], "name a masked language model: --model FOLDER"),
    *(
        (["curve", "x", "--model", "m", "--rates", rates], f"as 15 or 5,50 or 5:95:10, got {rates!r}.")
        for rates in ("1:99999999999", "5-95", "0", "101", "1:2:3:4", "1:9:0", "9:1", "5,9:1", "", "a")
    ),
    (["curve", "x", "--model", "m", "--out", "x.json"], "--out x.json must end in one of .csv, .jsonl"),
    (["curve", "x", "more.txt", "--model", "m"], "unrecognized arguments: more.txt"),
]  # fmt: skip


@pytest.mark.bad_input
@pytest.mark.parametrize(("given", "message"), WRONG, ids=[" ".join(given) for given, _ in WRONG])
def test_a_mistake_is_one_sentence(given, message, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("mpt-score: ") and message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("kind", ["sentences", "pairs", "answers", "curve"])
def test_options_have_the_defaults_of_the_library(kind: str) -> None:
    options = vars(parse([kind, "texts.txt", "--model", "m"]))
    function = mpt_score.Design if kind == "curve" else getattr(mpt_score, kind)
    options["rates"] = tuple(percent / 100 for percent in options.get("rates", ()))
    shared = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in options and name not in ("model", "seed"):  # no seed is 0 here
            assert options[name] == parameter.default, name
            shared.append(name)
    assert {"skip", "num_orders", "pseudo"} & set(shared) or "num_masks" in shared


def test_help_is_plain_text_of_eighty_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["sentences", "--help"], ["answers", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code
        out = capsys.readouterr().out
        assert out.isascii() and max(map(len, out.splitlines())) <= 80


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory.\nframe #0"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("unable to mmap 5063680 bytes: Cannot allocate memory (12)"),
        RuntimeError("can't start new thread"),
        RuntimeError("Storage size calculation overflowed with sizes=[9, 9]"),
        TypeError("zeros(): failed to unpack: Overflow when unpacking long long\nframe #0"),
    ],
    ids=repr,
)
def test_memory_that_ends_is_one_sentence_with_what_was_asked_for(error, capsys) -> None:
    error.add_note("3 records were written.")

    def fail(words: object) -> None:
        raise error

    assert answer("tool", fail, ["curve", "my texts", "--rates", "15"]) == 2
    said = capsys.readouterr().err
    reason = str(error).partition("\n")[0].rstrip(".") or "MemoryError"
    asked = "tool: memory does not suffice for \"curve 'my texts' --rates 15\" "
    remedy = "Ask for less at a time, or free some. 3 records were written.\n"
    assert said == f"{asked}({reason}). {remedy}"


def test_a_number_out_of_range_is_one_sentence_and_a_fault_of_ours_is_none(capsys) -> None:
    assert answer("tool", lambda words: 1 / 0, ["--target", "0"]) == 2
    said = capsys.readouterr().err
    sentence = "a number is too large or too small for '--target 0' (division by zero)."
    assert said == f"tool: {sentence} Take a moderate one.\n"

    def fault(words: object) -> None:
        raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        answer("tool", fault, [])


def stop(words: str = "") -> None:
    raise KeyboardInterrupt(words)


def test_a_stopped_command_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer("tool", lambda _: stop(), []) == 130
    assert capsys.readouterr().err == "tool: stopped; nothing was written\n"
    assert answer("tool", lambda _: stop("all of it is in DIR"), []) == 130
    assert capsys.readouterr().err == "tool: stopped; all of it is in DIR\n"


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Also where the tests run in the background, whose processes ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_both_signals_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):

        def work(words: object) -> None:
            try:
                signal.raise_signal(number)  # noqa: B023
            except KeyboardInterrupt as interrupted:
                raise type(interrupted)("all of it is in DIR") from None

        assert answer("tool", work, []) == 128 + number
        assert capsys.readouterr().err == "tool: stopped; all of it is in DIR\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    program = "from mpt_score.command_line import answer; raise SystemExit(answer('tool', {}))"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program.format("lambda words: print('a word')")],
            env=os.environ | {"PYTHONUNBUFFERED": ""},  # as a user has it
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    sentence = "tool: standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (2, sentence)
