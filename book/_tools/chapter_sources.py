"""Which files the outputs of a chapter depend on, read from the sources without running them.

These are the modules of our packages that its cells import, by name or by way of another module,
at once or inside a function; the recorded runs that it loads; the files of ``book/`` that one of these
asks for, by ``book_file("results/small_bert")``, or that the cells name; the pins and whatever else
lies in the packages.

A package's ``__init__`` is looked through: ``from mpt_lml import PPCA`` leads to the module that
defines ``PPCA``, not to all that ``mpt_lml`` imports. Where the sources do not say what is meant (a
package handed on as a value, an import by a computed name), everything counts.

Of a module the code counts, not its comments, docstrings and layout. Of its functions, classes and
constants those count whose name the chapter's code has in it, or the code of one that counts.
"""

import ast
import copy
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from book_layout import Page
from jupytext.myst import myst_to_notebook

PACKAGES = ("mpt_lml", "mpt_score")
PINS = "constraints.txt"
RESULTS = "book/results"
# `load` there takes the name of a recorded run: which file it reads, those who call it say.
RECORDED = "mpt_lml.recorded"
# What imports or executes by a text that may be computed.
COMPUTED_IMPORTS = {
    "importlib",
    "import_module",
    "__import__",
    "exec",
    "eval",
    "runpy",
    "subprocess",
}
# A file's name in a string: with a folder or an ending, and nothing that a file's name lacks.
FILE_NAME = re.compile(r"[\w-]+(?:[./][\w-]+)+")


@cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """All nodes, kept: each question below looks at them again."""
    return list(ast.walk(tree))


def used_names(tree: ast.AST) -> set[str]:
    """Full names of what the code uses of its imports, each as long as it is written there.

    ``curves.exact_curve`` after ``from mpt_lml import curves`` is ``mpt_lml.curves.exact_curve``.
    """
    imported = imported_names(tree)
    return {full_name_of(node, imported) for node in outermost_names(tree)}


@cache
def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: ``np`` for ``numpy``, ``PPCA`` for ``mpt_lml.PPCA``.

    ``import mpt_lml.theory.rates`` makes two entries, one for ``mpt_lml`` and one for itself.
    """
    names = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                names[alias.name] = alias.name
                names[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def outermost_names(tree: ast.AST) -> list[ast.Name | ast.Attribute]:
    """``a.b.c`` once, without the ``a.b`` and the ``a`` in it."""
    nodes = [node for node in nodes_of(tree) if isinstance(node, ast.Name | ast.Attribute)]
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return [node for node in nodes if id(node) not in inner]


def full_name_of(node: ast.expr, imported: dict[str, str]) -> str:
    """``mpt_lml.curves.exact_curve`` for ``curves.exact_curve``; "" for what was not imported."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imported:
        return ""
    return ".".join([imported[node.id], *attributes])


def strings(tree: ast.AST) -> set[str]:
    """All texts that the code contains."""
    constants = (node.value for node in nodes_of(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def literal_names(tree: ast.AST) -> dict[str, set[str]]:
    """The texts that a loop's variable takes: ``for name in ("figure-2", "table-1")``."""
    names = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            try:
                values = ast.literal_eval(node.iter)
            except ValueError:
                continue
            if isinstance(values, tuple | list) and all(isinstance(each, str) for each in values):
                names[node.target.id] = set(values)
    return names


def calls_of(tree: ast.AST, function: str) -> Iterator[ast.Call]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            if name == function or (isinstance(name, ast.Name) and name.id == function):
                yield node


class Part(NamedTuple):
    """A statement of a module, without docstrings."""

    defines: frozenset[str]  # the names that it gives; none for what counts always
    mentions: frozenset[str]  # all names in it, imported ones and those of attributes as well
    code: str


class WithoutDocstrings(ast.NodeTransformer):
    """Leaves out each expression that is only a text: a docstring, or one below an attribute."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def mentioned(tree: ast.AST) -> set[str]:
    """All names in the code, wherever they come from and whatever they are an attribute of."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.update(node.name.split("."))
    return names


def parts_of(tree: ast.Module) -> list[Part]:
    parts = []
    for statement in WithoutDocstrings().visit(copy.deepcopy(tree)).body:
        defines = set()
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defines = {statement.name}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defines = {
                node.id
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name)
            }
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            # Each name by itself: what imports it does not use it yet.
            for alias in statement.names:
                given = alias.asname or alias.name.split(".")[0]
                code = f"{ast.dump(alias)} of {getattr(statement, 'module', None)}"
                parts.append(Part(frozenset({given}), frozenset(alias.name.split(".")), code))
            continue
        is_special = any(name.startswith("__") for name in defines)
        parts.append(
            Part(
                frozenset() if is_special else frozenset(defines),
                frozenset(mentioned(statement)),
                ast.dump(statement),
            )
        )
    return parts


class Uses(NamedTuple):
    """What one source uses itself, not by way of others."""

    modules: set[str]
    files: set[Path]


@dataclass(frozen=True)
class ChapterSources:
    """The sources of our packages below ``root``, and what each chapter needs of them."""

    root: Path

    @cached_property
    def paths(self) -> dict[str, Path]:
        """The file of each module; a package's name stands for its ``__init__``."""
        paths = {}
        for package in PACKAGES:
            for path in sorted((self.root / "src" / package).rglob("*.py")):
                parts = path.relative_to(self.root / "src").with_suffix("").parts
                paths[".".join(parts).removesuffix(".__init__")] = path
        return paths

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(path.read_text("utf-8")) for name, path in self.paths.items()}

    @cached_property
    def recorded(self) -> set[str]:
        """The names of the runs that the book carries."""
        return {path.stem for path in (self.root / RESULTS).glob("*.json")}

    @cached_property
    def common(self) -> set[Path]:
        """Files that count for every chapter: the pins and the packages' data."""
        files = {self.root / PINS}
        for package in PACKAGES:
            files |= set(files_below(self.root / "src" / package))
        return files - set(self.paths.values())

    @cached_property
    def book_data(self) -> set[Path]:
        """The files of ``book/`` that the packages carry with them."""
        return self.book_files("results")

    @cached_property
    def everything(self) -> set[Path]:
        """What a chapter depends on that does not say what it imports."""
        return self.common | set(self.paths.values()) | self.book_data

    def is_package(self, name: str) -> bool:
        return name in self.paths and self.paths[name].name == "__init__.py"

    def files_of(self, code: str) -> set[Path]:
        """The files that the outputs of ``code`` depend on, which may have IPython's magic lines."""
        try:
            tree = ast.parse(without_magics(code))
        except SyntaxError:
            return self.everything
        used = {node.id for node in nodes_of(tree) if isinstance(node, ast.Name)}
        if (used | set(imported_names(tree))) & COMPUTED_IMPORTS:
            return self.everything
        chapter = self.uses_of(tree)
        files = self.common | chapter.files
        for text in strings(tree):
            if FILE_NAME.fullmatch(text):
                files |= self.book_files(text)
        waiting = set(chapter.modules)
        modules: set[str] = set()
        while waiting:
            name = waiting.pop()
            modules.add(name)
            files |= {self.paths[name]} | self.module_uses[name].files
            waiting |= self.module_uses[name].modules - modules
        return files

    @cached_property
    def module_uses(self) -> dict[str, Uses]:
        """What each module uses; of a package nothing, since names are looked up through it."""
        nothing = Uses(set(), set())
        return {
            name: nothing if self.is_package(name) else self.uses_of(tree)
            for name, tree in self.trees.items()
        }

    def uses_of(self, tree: ast.AST) -> Uses:
        modules = set()
        for name in imported_names(tree).values():
            modules |= self.modules_of(name, imported_only=True)
        for name in used_names(tree):
            modules |= self.modules_of(name)
        files = self.files_asked_for(tree)
        files |= {self.root / RESULTS / f"{name}.json" for name in self.runs_named(tree)}
        return Uses(modules, files)

    def modules_of(self, name: str, imported_only: bool = False) -> set[str]:
        """The modules that are read where ``name`` is used, with the packages they lie in.

        A package that is used as a value (``getattr(mpt_lml, name)``) is used as a whole. One that
        is ``imported_only`` is not: which of its names count is seen where they are used.
        """
        package, *rest = name.split(".")
        modules = set()
        while package in self.paths:
            modules.add(package)
            if not self.is_package(package):
                return modules
            if not rest and imported_only:
                return modules
            if not rest or rest[0] == "*":
                return modules | self.whole(package)
            inner = f"{package}.{rest[0]}"
            if inner not in self.paths:
                return modules | self.behind(package, rest)
            package, rest = inner, rest[1:]
        return modules

    def behind(self, package: str, rest: list[str]) -> set[str]:
        """The modules behind a name that a package's ``__init__`` has from one of them."""
        imported = imported_names(self.trees[package])
        if rest[0] not in imported:
            return self.whole(package)  # made by the package itself, in whatever way
        return self.modules_of(".".join([imported[rest[0]], *rest[1:]]))

    def whole(self, package: str) -> set[str]:
        return {name for name in self.paths if name.startswith(f"{package}.")}

    def runs_named(self, tree: ast.AST) -> set[str]:
        """The recorded runs that ``tree`` loads; all where it does not say which."""
        imported = imported_names(tree)
        loops = literal_names(tree)
        names: set[str] = set()
        calls = {id(node.func): node for node in nodes_of(tree) if isinstance(node, ast.Call)}
        for node in outermost_names(tree):
            if not self.is_load(full_name_of(node, imported)):
                continue
            call = calls.get(id(node))
            asked = call.args[0] if call and call.args else None
            if isinstance(asked, ast.Constant):
                names.add(asked.value)
            elif isinstance(asked, ast.Name) and asked.id in loops:
                names |= loops[asked.id]
            else:
                return self.recorded
        return names & self.recorded

    def is_load(self, name: str) -> bool:
        package, *rest = name.split(".")
        if self.is_package(package) and rest:
            name = imported_names(self.trees[package]).get(rest[0], name)
        return name == f"{RECORDED}.load"

    def files_asked_for(self, tree: ast.AST) -> set[Path]:
        """What ``book_file`` is called with; all data of ``book/`` where that is computed."""
        files: set[Path] = set()
        if tree is self.trees.get(RECORDED):
            return files  # a recorded run by its name, which those who load it say
        for call in calls_of(tree, "book_file"):
            name = call.args[0] if call.args else None
            constant = isinstance(name, ast.Constant)
            files |= self.book_files(name.value) if constant else self.book_data
        return files

    def book_files(self, name: str) -> set[Path]:
        """A file of ``book/``, or all files of a folder."""
        return set(files_below(self.root / "book" / name))

    @cached_property
    def parts(self) -> dict[Path, list[Part]]:
        return {self.paths[name]: parts_of(tree) for name, tree in self.trees.items()}

    def code_that_counts(self, code: str, files: set[Path]) -> dict[Path, str]:
        """Of each module among ``files`` what the outputs of ``code`` depend on."""
        counts: dict[Path, list[str]] = {file: [] for file in files if file in self.parts}
        defining: dict[str, list[tuple[Path, Part]]] = {}
        waiting = mentioned(ast.parse(without_magics(code)))
        for file in counts:
            for part in self.parts[file]:
                if not part.defines:
                    counts[file].append(part.code)
                    if file.name != "__init__.py":  # which is looked through
                        waiting |= part.mentions
                for name in part.defines:
                    defining.setdefault(name, []).append((file, part))
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            for file, part in defining.get(name, ()):
                counts[file].append(part.code)
                waiting |= part.mentions - seen
        return {file: "\n".join(sorted(codes)) for file, codes in counts.items()}

    def hashes(self, page: Page) -> dict[str, str]:
        """The files that a page depends on beside its own, each with a hash of what counts of it.

        For a chapter those of its cells; for any other page, such as the reference, everything.
        """
        if page.number is None:
            files = self.everything
            code = {}
        else:
            chapter = code_of(page)
            files = self.files_of(chapter)
            code = {} if files == self.everything else self.code_that_counts(chapter, files)
        hashes = {}
        for path in sorted(files):
            content = code[path].encode() if path in code else content_of(path)
            hashes[str(path.relative_to(self.root))] = hashlib.sha256(content).hexdigest()
        return {"Python": sys.version, **hashes}


def content_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b"missing"


def without_magics(code: str) -> str:
    """Code with IPython's magic lines replaced by ``pass``."""
    return re.sub(r"^( *)[%!].*", r"\1pass", code, flags=re.M)


def code_of(page: Page) -> str:
    notebook = myst_to_notebook(page.path.read_text(encoding="utf-8"))
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def files_below(path: Path) -> list[Path]:
    """``path`` itself if it is a file, or the files in that folder, without compiled ones."""
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The files that came, went, or have another content now."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
