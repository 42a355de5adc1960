"""``mpt-score``: texts, pairs, answers or a curve from a file, with errors."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpt_score.command_line import Parser, answer
from mpt_score.lines import require_form

PROGRAM = "mpt-score"
ABOUT = "Score the lines of a file with a masked language model."
MORE = (
    "'mpt-score KIND --help' lists options. Several GPUs: torchrun --nproc-per-node 2 -m "
    "mpt_score.command KIND FILE --model M --out RECORDS; the numbers are those of one."
)
TEXTS = "UTF-8, a text on each line, or a table with --column; - is standard input"
PAIRS = "UTF-8, on each line TEXT <tab> TEXT, or a table with --column; - is standard input"
QUESTIONS = 'UTF-8, on each line {"prompt": "...", "options": ["...", ...]}; - is standard input'
SUFFIXES = (".csv", ".jsonl")

# What scoring needs of torch is imported when it begins: help and mistakes need nothing of it.


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def rates(text: str) -> tuple[int, ...]:
    """Percents between commas; 5:95:10 is a range with its last number.

    >>> rates("15"), rates("5,50"), rates("5:95:30")
    ((15,), (5, 50), (5, 35, 65, 95))
    """
    percents: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,3})(?::(\d{1,3})(?::([1-9]\d*))?)?", piece)
        first, last, step = match.groups() if match else ("0", None, None)
        percents.extend(range(int(first), int(last or first) + 1, int(step or 1)) or [0])
    if min(percents) < 1 or max(percents) > 100:
        raise argparse.ArgumentTypeError(
            f"must be percents in 1..100, as 15 or 5,50 or 5:95:10, got {text!r}."
        )
    return tuple(percents)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = Parser(prog=PROGRAM, description=ABOUT, epilog=MORE)
    kinds = whole.add_subparsers(dest="kind", required=True, metavar="KIND")

    about = "Log-score of each text, its error, inconsistency, pseudo-log-likelihood."
    scores = _add_kind(kinds, "sentences", about, TEXTS)
    budget = scores.add_mutually_exclusive_group()
    text = "whole orders of each text; by default four"
    budget.add_argument("--num-orders", type=int, metavar="N", help=text)
    text = "instead of orders at most so many passes for each text"
    budget.add_argument("--num-masks", type=int, metavar="N", help=text)
    add = scores.add_argument
    text = "more of them until the standard error is at most so many nats a token"
    add("--target-error", type=float, metavar="NATS", help=text)
    text = (
        "block by block, so many tokens in each; 1 is left to right. Orders are those of each block"
    )
    add("--block-length", type=int, metavar="N", help=text)
    text = "what a block sees of later ones: their places, hidden (default), or nothing"
    add("--later", choices=("hidden", "absent"), default="hidden", help=text)
    add("--pseudo", action="store_true", help="pseudo-log-likelihoods, too, a pass for each token")
    text = "a column: texts of one item and one length see the same orders, for differences of conditions"
    add("--items", metavar="NAME", help=text)

    about = "Log-ratio of two texts that differ in a few tokens."
    add = _add_kind(kinds, "pairs", about, PAIRS).add_argument
    text = "at most so many orders of the tokens that differ (default: 32)"
    add("--num-orders", type=int, default=32, metavar="N", help=text)
    add("--pseudo", action="store_true", help="differences of pseudo-log-likelihoods, too")

    about = "Log-score of each option that a prompt has."
    add = _add_kind(kinds, "answers", about, QUESTIONS).add_argument
    text = "at most so many orders of an answer's tokens (default: 8)"
    add("--num-orders", type=int, default=8, metavar="N", help=text)
    add("--pseudo", action="store_true", help="pseudo-log-likelihoods given the prompt, too")
    text = "likewise, with the later tokens of a word hidden"
    add("--within-word", action="store_true", help=text)

    about = "Score by masking rate, its area, and what fixed rates are off by."
    add = _add_kind(kinds, "curve", about, TEXTS).add_argument
    text = "as 15 or 5,50 or 5:95:10, a range with its last number (default: 1:99)"
    add("--rates", type=rates, default=rates("1:99"), metavar="PERCENTS", help=text)
    text = "masks for each text and rate (default: 1)"
    add("--num-masks", type=int, default=1, metavar="N", help=text)
    return whole


def _add_kind(kinds: Any, name: str, about: str, file: str) -> Any:
    """A command with the options that all have; the group of those that it has for itself."""
    command = kinds.add_parser(name, help=about, description=about, allow_abbrev=False)
    command.set_defaults(items=None, pseudo=False, within_word=False, block_length=None)
    command.set_defaults(num_orders=None, column=(), keep=())
    command.add_argument("file", metavar="FILE", help=file)
    scores = command.add_argument_group("scores")
    text = "of orders and masks (default: 0)"
    scores.add_argument("--seed", type=int, default=0, metavar="N", help=text)

    add = command.add_argument_group("network").add_argument
    text = (
        "folder, name on the hub, MODULE:FUNCTION, or antiberty. To try: small-bert, the book's own"
    )
    add("--model", metavar="M", help=text)
    text = "commit of a name on the hub; by default the newest, which is said"
    add("--revision", metavar="COMMIT", help=text)
    add("--tokenizer", metavar="T", help="folder, or name on the hub; by default the model's own")
    text = "tokens of the longest row; by default as many as the network has places for"
    add("--max-length", type=int, metavar="N", help=text)
    text = "where to compute; auto is a CUDA GPU or the CPU"
    add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help=text)
    text = "of the network's numbers; by default float32 on a CPU, the fast one of a GPU"
    add("--precision", choices=("float32", "bfloat16", "float16"), help=text)
    text = "tokens in the network at a time; by default by the memory of such a device"
    add("--max-tokens", type=int, metavar="N", help=text)

    add = command.add_argument_group("input and output").add_argument
    text = "of a .csv or .jsonl file: the column of texts, or token ids; two for pairs, as good,bad"
    if name != "answers":  # whose columns have names already
        add("--column", type=names, default=(), metavar="NAME", help=text)
    text = (
        "of such a file: other columns, which are copied into the records, as condition,region; an "
        "object or list of .jsonl is JSON in a .csv"
    )
    if name != "curve":  # whose records are rates of all texts
        add("--keep", type=names, default=(), metavar="NAMES", help=text)
    add("--skip", action="store_true", help="leave out, and list, lines that cannot be scored")
    text = (
        "a .csv or .jsonl file, from which a stopped run goes on; by default JSON lines are printed"
    )
    add("--out", metavar="RECORDS", help=text)
    return scores


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a call that can be answered.

    Raises:
        ValueError: For a mistake in it.
    """
    options = parser().parse_args(arguments)
    if not options.model:
        raise ValueError(
            "name a masked language model: --model FOLDER, or its name on the hub. To try the command, "
            "--model small-bert is the book's own, small one."
        )
    if options.out is not None and Path(options.out).suffix not in SUFFIXES:
        raise ValueError(f"--out {options.out} must end in one of {', '.join(SUFFIXES)}.")
    require_form(options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 for a mistake in the call)."""
    return answer(PROGRAM, _act, arguments)


def _act(arguments: Sequence[str]) -> None:
    options = parse(arguments)  # mistakes in the call are said before anything is loaded
    from mpt_score import score_file

    score_file.run(options)


if __name__ == "__main__":
    sys.exit(main())
