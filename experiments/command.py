"""``python -m experiments``: list, run and compare the paper's experiments."""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from experiments.registry import EXPERIMENTS
from mpt_score.command_line import Parser, answer

PROGRAM = "python -m experiments"

# What a command needs of torch is imported when it runs: a list of names needs nothing of it.


def parser() -> Parser:
    """The commands and their options."""
    whole = Parser(
        prog=PROGRAM,
        description="The experiments of 'On Masked Pre-training and the Marginal Likelihood'.",
    )
    commands = whole.add_subparsers(dest="command", required=True)

    listing = commands.add_parser("list", help="names, costs and titles; or one with its settings")
    listing.add_argument("name", nargs="?", help="what one of them measures, and its settings")

    run = commands.add_parser("run", help="run one and store what it finds")
    run.add_argument("name", help="as 'list' shows it")
    run.add_argument("--preset", choices=("paper", "quick"), default="paper")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the result; without it the paper's settings enter book/results and the "
        "ledger, others go to mpt-lml-results",
    )
    run.add_argument(
        "--checkpoints", metavar="DIR", help="folder for finished parts, which stay there"
    )
    run.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="replace a setting of the preset, as in --set seeds=1,2,3",
    )

    compare = commands.add_parser("compare", help="measured beside published, from the ledger")
    compare.add_argument("name", nargs="?", help="an experiment, or a recorded run")
    compare.add_argument("--all", action="store_true", help="every entry")
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 for a mistake in the call)."""
    return answer(PROGRAM, _act, arguments)


def _act(arguments: Sequence[str]) -> None:
    given = parser().parse_args(arguments)
    if given.command == "list":
        print(_settings_of(given.name) if given.name else _names())
    elif given.command == "compare":
        from experiments import recording

        if (given.name is None) != given.all:
            raise ValueError("compare takes the name of an experiment, or --all.")
        print(recording.comparison(given.name))
    else:
        from experiments import recording
        from experiments.experiment import find

        settings: dict[str, Any] = {}
        for name, value in map(_setting, given.set):
            if name in settings:
                raise ValueError(f"--set {name} is given twice. Leave one of them out.")
            settings[name] = value
        recording.run_and_store(
            find(given.name),
            settings,
            preset=given.preset,
            device=given.device,
            out=given.out,
            checkpoints=given.checkpoints,
        )


def _names() -> str:
    width = max(map(len, EXPERIMENTS))
    rows = [
        f"  {name:<{width}}  {entry.cost:<12} {entry.title}"
        for name, entry in sorted(EXPERIMENTS.items())
    ]
    return "\n".join(rows)


def _settings_of(name: str) -> str:
    """Description of an experiment, and its settings in both presets."""
    from experiments.experiment import find

    kind = find(name)
    lines = [inspect.getdoc(kind) or "", "", "Settings:"]
    for field in dataclasses.fields(kind):
        line = f"  {field.name} = {field.default!r}"
        if "quick" in field.metadata:
            line += f"  (quick: {field.metadata['quick']!r})"
        lines.append(line)
    return "\n".join(lines)


def _setting(text: str) -> tuple[str, Any]:
    """A name and its value: a Python literal, or else the text itself.

    >>> _setting("seeds=1,2,3"), _setting("model=some/folder")
    (('seeds', (1, 2, 3)), ('model', 'some/folder'))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, got {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


if __name__ == "__main__":
    sys.exit(main())
