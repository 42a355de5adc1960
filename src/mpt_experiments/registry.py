"""Which experiments there are: read from their sources, so that a list of names needs no torch."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOMS = ("paper", "findings")


class Entry(NamedTuple):
    """One experiment: ``class Table1(Experiment, name="table-1", cost="about 10 s")``."""

    name: str
    title: str  # the first line of the docstring
    cost: str
    module: str
    class_name: str


@cache
def catalogue() -> dict[str, Entry]:
    """The experiments of this package by name, sorted.

    >>> catalogue()["table-1"].cost
    'about 10 s'
    """
    package = Path(__file__).resolve().parent
    entries = {}
    for room in ROOMS:
        for path in sorted((package / room).glob("*.py")):
            module = f"mpt_experiments.{room}.{path.stem}"
            for entry in entries_of(path.read_text(encoding="utf-8"), module):
                entries[entry.name] = entry
    return dict(sorted(entries.items()))


def entries_of(source: str, module: str) -> list[Entry]:
    """The classes in ``source`` that give themselves a name; name and cost are literals there."""
    entries = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if "name" not in keywords:
            continue
        name = ast.literal_eval(keywords["name"])
        cost = ast.literal_eval(keywords["cost"])
        title = (ast.get_docstring(node) or "").partition("\n")[0]
        entries.append(Entry(name, title, cost, module, node.name))
    return entries
