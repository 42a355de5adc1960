"""``mpt-score``: texts, pairs, answers or a curve from a file, with errors."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mpt_score.command_line import answer, new_app
from mpt_score.lines import require_form
from mpt_score.options import (
    AnswerOptions,
    CurveOptions,
    InputOptions,
    NetworkOptions,
    OutputOptions,
    PairOptions,
    ScoreOptions,
    SentenceOptions,
    require_options,
)

APP = new_app(
    "mpt-score",
    "Score the lines of a file with a masked language model.\n\n"
    "Several processes or GPUs: accelerate launch -m mpt_score.command ... --checkpoints DIR; each "
    "takes its share, the numbers are those of one. 'mpt-score KIND --help' lists options.",
)


def _require_no_option(_: Any, file: str) -> None:
    """A lone hyphen is standard input; what only begins with one is an option that there is not."""
    if file.startswith("-") and file != "-":
        raise ValueError(f"{file} is no option here; a file of that name is ./{file}.")


File = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_require_no_option)]


@APP.command
def sentences(
    file: File,
    /,
    *,
    scores: SentenceOptions = SentenceOptions(),
    network: NetworkOptions = NetworkOptions(),
    source: InputOptions = InputOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Log-score of each text, its error, inconsistency, pseudo-log-likelihood.

    Args:
        file: UTF-8, a text on each line, or a table with --column; - is standard input.
    """
    _score(file, scores, network, source, output)


@APP.command
def pairs(
    file: File,
    /,
    *,
    scores: PairOptions = PairOptions(),
    network: NetworkOptions = NetworkOptions(),
    source: InputOptions = InputOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Log-ratio of two texts that differ in a few tokens.

    Args:
        file: UTF-8, on each line TEXT <tab> TEXT, or a table with --column; - is standard
            input.
    """
    _score(file, scores, network, source, output)


@APP.command
def answers(
    file: File,
    /,
    *,
    scores: AnswerOptions = AnswerOptions(),
    network: NetworkOptions = NetworkOptions(),
    source: InputOptions = InputOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Log-score of each option that a prompt has.

    Args:
        file: UTF-8, on each line {"prompt": "...", "options": ["...", ...]}; - is standard input.
    """
    _score(file, scores, network, source, output)


@APP.command
def curve(
    file: File,
    /,
    *,
    scores: CurveOptions = CurveOptions(),
    network: NetworkOptions = NetworkOptions(),
    source: InputOptions = InputOptions(),
    output: OutputOptions = OutputOptions(),
    plot: str | None = None,
) -> None:
    """Score by masking rate, its area, and what fixed rates are off by.

    Args:
        file: UTF-8, a text on each line, or a table with --column; - is standard input.
        plot: A picture of the curve: a new .svg, .pdf or .png file.
    """
    _score(file, scores, network, source, output, plot)


def _score(
    file: str,
    scores: ScoreOptions,
    network: NetworkOptions,
    source: InputOptions,
    output: OutputOptions,
    plot: str | None = None,
) -> None:
    # Mistakes in the call are said before anything is loaded.
    require_options(scores, network, source, output)
    require_form(file, scores.kind, source)
    try:
        # It brings torch, which --help does not need.
        from mpt_score import score_file

        score_file.run(file, scores, network, source, output, plot)
    except KeyboardInterrupt as stop:
        left = [str(stop)] if str(stop) else []
        if output.checkpoints is not None:
            left.append(_kept_in(output.checkpoints))
        raise KeyboardInterrupt("; ".join(left)) from None


def _kept_in(folder: str) -> str:
    """What an interrupted run finds again, in words."""
    num_parts = len(list(Path(folder).glob("*.safetensors")))
    if num_parts == 0:
        return "nothing was kept yet"
    return f"{num_parts} parts are kept in {folder}, the same command goes on from there"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 for a mistake in the call)."""
    return answer("mpt-score", lambda: APP(arguments))


if __name__ == "__main__":
    sys.exit(main())
