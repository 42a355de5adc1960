"""The options of ``python -m experiments run``: those of every run, and an experiment's settings."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from mpt_score.command_line import ListParameter, WholeNumber, as_text

_RUN = Group.create_ordered("Run")
_SETTINGS = Group.create_ordered("Settings", help="A list is as 1,10,100 or as 5:95:10.")


@Parameter(name="*", group=_RUN)
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What every run has, whatever it measures."""

    preset: Literal["paper", "quick"] = "paper"
    """The settings that are not given."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    out: str | None = None
    """Folder for NAME.json; by default book/results (the paper's settings) or mpt-lml-results."""
    json: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """Write the result into this file only; - is standard output."""
    checkpoints: str | None = None
    """Folder for the finished parts of a long run, from which the same command goes on."""


def setting_parameters(experiment: type[Any]) -> list[inspect.Parameter]:
    """A keyword for each field of an experiment, for the signature of its command.

    Args:
        experiment: A frozen dataclass whose fields have defaults, and in their metadata the value of
            the quick preset where that is another.
    """
    kinds = get_type_hints(experiment)
    parameters = []
    for field in fields(experiment):
        values = _written(field.default)
        if "quick" in field.metadata:
            values += f" (quick: {_written(field.metadata['quick'])})"
        shown = Parameter(help=values, show_default=False, negative_iterable="", group=_SETTINGS)
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[_readable(kinds[field.name]), shown],
            )
        )
    return parameters


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Settings as they are written on the command line.

    >>> as_arguments({"num_masks": (1, 10, 100), "panels": ((5, 200), (50, 40)), "small": True})
    ['--num-masks', '1,10,100', '--panels', '5', '200', '--panels', '50', '40', '--small']
    """
    arguments = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        elif _is_nested(value):
            for row in value:
                arguments += [f"--{option}", *map(str, row)]
        else:
            arguments += [f"--{option}", as_text(value)]
    return arguments


def _readable(kind: Any) -> Any:
    """A field's type, and how its values are read from a command line where that is not plain."""
    if kind is int:
        return WholeNumber
    if get_origin(kind) is tuple and get_args(kind)[0] in (int, float, str):
        return Annotated[kind, ListParameter]
    return kind


def _is_nested(value: Any) -> bool:
    """Whether a value is rows of numbers or words, one option each."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], tuple)


def _written(value: Any) -> str:
    """A value for the help: as it is written on the command line."""
    if _is_nested(value):
        return ", ".join(" ".join(map(str, row)) for row in value)
    if value is None or value == ():
        return "none"
    return as_text(value)
