"""The landing page: an explorer of a chapter at work, and numbers of two digits.

``{explorer} NAME``     the sentence explorer that a cell of the chapter ``NAME`` put out
``{about}`ID` ``        a measured value of the ledger to two digits, without its error; ``ID %``
``{judged}`VERDICT` ``  how many statements of the paper have this verdict; ``run``: were run for a
                        rule; ``after``: of these, by a rule written after the number was known
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from ledger import LEDGER, format_number
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective, SphinxRole

from experiments.ledger import JUDGED, statements

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))

from plain_markdown import sentence_explorer


class Explorer(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        place = f"book/{self.arguments[0]}.ipynb"
        self.env.note_dependency(place)
        shown = sentence_explorer(Path(self.env.srcdir, place))
        return [nodes.raw("", shown, format="html")]


class About(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_dependency(LEDGER)
        wanted, _, percent = self.text.partition(" ")
        ledger = self.env.app.ledger
        for entry in (*ledger.paper, *ledger.findings):
            if entry.id == wanted and entry.measured is not None:
                value = 100 * entry.measured if percent else entry.measured
                return [nodes.Text(two_digits(value) + ("\u00a0%" if percent else ""))], []
        raise ExtensionError(f"{{about}}: no measured entry {wanted!r} in {LEDGER}")


def two_digits(value: float) -> str:
    """68.23 is "68", 1.2576 is "1.3", 0.06399 is "0.064"."""
    rounded = float(f"{value:.1e}")
    return format_number(rounded, f".{max(0, -int(f'{rounded:e}'[-3:]) + 1)}f")


class Judged(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_dependency(LEDGER)
        number = count_judged(self.text, map(vars, self.env.app.ledger.paper))
        if not number:
            raise ExtensionError(f"{{judged}}: no statement of the paper is {self.text!r}")
        return [nodes.Text(str(number))], []


def count_judged(what: str, entries: Iterable[Mapping[str, Any]]) -> int:
    """How many statements have the verdict ``what``, were ``run``, or have a rule of ``after``."""
    judged = [(word, known) for word, known in statements(entries) if word in JUDGED]
    if what == "run":
        return len(judged)
    return sum(what in each for each in judged)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("explorer", Explorer)
    app.add_role("about", About())
    app.add_role("judged", Judged())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
