"""``python -m experiments``: list, run and compare the paper's experiments."""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter, UnknownOptionError

from experiments.options import RunOptions, setting_parameters
from experiments.registry import EXPERIMENTS
from mpt_score.command_line import answer, new_app

if TYPE_CHECKING:
    from experiments.experiment import Experiment

PROGRAM = "python -m experiments"

Everything = Annotated[bool, Parameter(name="--all", negative="")]


def command_line(experiment: "type[Experiment] | None" = None) -> App:
    """The commands; ``run`` has the settings of ``experiment`` as options."""
    app = new_app(
        PROGRAM, "Run the experiments of 'On Masked Pre-training and the Marginal Likelihood'."
    )
    app.command(list_experiments, name="list")
    app.command(_run_command(experiment), name="run")
    app.command(compare)
    return app


def list_experiments() -> None:
    """Names, costs and titles of the experiments."""
    width = max(map(len, EXPERIMENTS))
    for name, entry in sorted(EXPERIMENTS.items()):
        print(f"  {name:<{width}}  {entry.cost:<12} {entry.title}")


def compare(name: str | None = None, /, *, everything: Everything = False) -> None:
    """Measured against published, from the ledger.

    Args:
        name: An experiment, see 'list', or the record of one that is no code any more.
        everything: The paper's entries and the findings of all experiments.
    """
    if (name is None) != everything:
        raise ValueError("compare takes the name of an experiment, or --all.")
    # It brings torch, which a list of names does not need.
    from experiments import recording

    print(recording.comparison(name))


def _run_command(experiment: "type[Experiment] | None") -> Callable[..., None]:
    """``run``, with the settings of ``experiment`` in its signature, where options are read from."""

    def run(name: str, /, *, options: RunOptions = RunOptions(), **given: Any) -> None:
        """Run one experiment and store what it finds.

        A run of the paper's settings that is written nowhere else enters the ledger.

        Args:
            name: See 'list'. 'run NAME --help' shows its settings, too.
        """
        from experiments import recording
        from experiments.experiment import find

        recording.run_and_store(find(name), options, given)

    signature = inspect.signature(run)
    parameters = [signature.parameters["name"], signature.parameters["options"]]
    if experiment is not None:
        parameters += setting_parameters(experiment)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _act(arguments: Sequence[str]) -> None:
    experiment = _experiment_of(arguments)
    try:
        command_line(experiment)(arguments)
    except UnknownOptionError as error:
        if experiment is not None:
            _refuse_setting(experiment, error)
        raise


def _experiment_of(arguments: Sequence[str]) -> "type[Experiment] | None":
    """The experiment of ``run NAME ...``. Its module is imported, which brings torch."""
    if len(arguments) < 2 or arguments[0] != "run" or arguments[1].startswith("-"):
        return None
    from experiments.experiment import find

    return find(arguments[1])


def _refuse_setting(experiment: "type[Experiment]", error: UnknownOptionError) -> None:
    """Raise ``ValueError`` that names the settings there are, and who has the unknown one."""
    name = (error.token.keyword or "").partition("=")[0].strip("-").replace("-", "_")
    try:
        experiment.preset("paper", **{name: ""})
    except ValueError as refusal:
        raise ValueError(f"{error} {refusal}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 for a mistake in the call)."""
    given = sys.argv[1:] if arguments is None else arguments
    return answer(PROGRAM, lambda: _act(given))


if __name__ == "__main__":
    sys.exit(main())
