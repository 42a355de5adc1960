"""The pages of the packages, from the packages' own lists.

In ``book/api-NAME.md``, ``% overview`` becomes a table of the package's modules and their public names,
and ``% names`` the documentation of every name of every public module's ``__all__``. The package's
docstring lists its modules in the order in which a stranger should read them; so does the page.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import mpt_lml
import mpt_score

PAGES = {
    "book/api-mpt-lml": mpt_lml,
    "book/api-mpt-score": mpt_score,
}
# ``Annotated[Bool[Tensor, 'P D'], <function each_masks_something at 0x7f10abdb7740>]``
CHECKED_TYPE = re.compile(
    r"(?:~?typing\.)?Annotated\[((?:(?!Annotated\[).)*?), <[^<>]* at 0x[0-9a-f]+>\]"
)


def public_modules(package: ModuleType) -> Iterator[ModuleType]:
    """``package``, and the modules of its docstring that have a list of names, in that order."""
    yield package
    for name in re.findall(r"^\* ``([\w.]+)``", package.__doc__ or "", flags=re.M):
        module = import_module(f"{package.__name__}.{name}")
        if hasattr(module, "__all__"):
            yield module


def names_of(module: ModuleType, package: ModuleType) -> list[tuple[str, Any]]:
    """What the module's list has besides modules: the name and what it stands for.

    What is defined in another public module is shown there.
    """
    public = {each.__name__ for each in public_modules(package)}
    pairs = []
    for name in module.__all__:
        value = getattr(module, name)
        home = getattr(value, "__module__", module.__name__)
        if not inspect.ismodule(value) and (home == module.__name__ or home not in public):
            pairs.append((name, value))
    return pairs


def full_name(module: ModuleType, name: str, value: Any) -> str:
    """Where ``name`` is documented: constants in the module itself, all else where it is defined."""
    has_home = inspect.isclass(value) or inspect.isroutine(value)
    return f"{value.__module__ if has_home else module.__name__}.{name}"


def overview(package: ModuleType) -> str:
    """A table: every public module, what it is for, and links to its names."""
    rows = ["| module | what it is for | names |", "|:--|:--|:--|"]
    for module in public_modules(package):
        first_line = (inspect.getdoc(module) or "").partition("\n")[0]
        links = [
            f"{{py:obj}}`{name} <{full_name(module, name, value)}>`"
            for name, value in names_of(module, package)
        ]
        if not links:
            continue
        about = first_line.replace("``", "`").replace("|", "\\|")
        rows.append(f"| {{py:mod}}`{module.__name__}` | {about} | {', '.join(links)} |")
    return "\n".join(rows)


def section(module: ModuleType, package: ModuleType) -> str:
    """The documentation of ``module`` and of its names."""
    lines = [f"## `{module.__name__}`", "", "```{eval-rst}"]
    lines += [f".. automodule:: {module.__name__}", "   :no-members:"]
    for name, value in names_of(module, package):
        target = full_name(module, name, value)
        if inspect.isclass(value):
            lines += ["", f".. autoclass:: {target}", "   :members:", "   :show-inheritance:"]
        elif inspect.isroutine(value):
            lines += ["", f".. autofunction:: {target}"]
        else:
            lines += ["", f".. autodata:: {target}"]
    return "\n".join([*lines, "```"])


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname in PAGES:
        package = PAGES[docname]
        sections = "\n\n".join(section(module, package) for module in public_modules(package))
        text = source[0].replace("% overview", overview(package))
        source[0] = text.replace("% names", sections)


def without_checks(app: Sphinx, what: str, name: str, *_: Any) -> None:
    """Show of a type that a function checks the type, and not the function with its address."""
    annotations = app.env.temp_data.get("annotations", {}).get(name, {})
    for parameter, text in annotations.items():
        annotations[parameter] = CHECKED_TYPE.sub(r"\1", text)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    # After autodoc has written the annotations down.
    app.connect("autodoc-process-signature", without_checks, priority=600)
    return {"version": "5", "parallel_read_safe": True, "parallel_write_safe": True}
