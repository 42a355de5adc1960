"""Which small fault in the package would no test see?

`make mutants`, or `python tests/mutants.py --number 500 --seed 0`. Each mutant is the package with
one change of its syntax tree; it meets the tests that execute the changed line, the quickest file
first, in a process forked from one that has torch and the like loaded but not the package. Which
tests execute which statement is measured once per test file (coverage) and kept in `_build`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import hashlib
import importlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import string
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[1]
# Not mutated: what whole runs judge (experiments), what only looks (plots), and what needs
# mpt-lml[eval], so that its tests are skipped here (lm_eval).
LEFT_OUT = ("mpt_experiments/paper/", "mpt_experiments/findings/", "mpt_experiments/bench")
LEFT_OUT += ("mpt_experiments/ledger", "mpt_experiments/recording", "mpt_experiments/command")
LEFT_OUT += ("mpt_lml/plots", "mpt_score/lm_eval")
WARM = (
    *("torch._dynamo", "torch.utils.data", "scipy.optimize", "scipy.stats", "sympy"),
    *("sklearn.decomposition", "sklearn.datasets", "matplotlib.pyplot", "jaxtyping", "datasets"),
    *("safetensors.torch", "huggingface_hub", "transformers.models.bert.modeling_bert"),
    "transformers.models.vit_mae.modeling_vit_mae",
)
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
ARITHMETIC |= {ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}
ARITHMETIC |= {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd}
ARITHMETIC |= {ast.And: ast.Or, ast.Or: ast.And}
COMPARISON = {ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE)}
COMPARISON |= {ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,)}
COMPARISON |= {ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,)}
COMPARISON |= {ast.NotIn: (ast.In,)}
NAMES = {"min": "max", "amin": "amax", "minimum": "maximum", "argmin": "argmax", "any": "all"}
NAMES |= {after: before for before, after in NAMES.items()}
FIELDS = ("path", "number", "line", "scope", "before", "after")
EQUIVALENT = Path(__file__).with_name("mutants_survive.toml")
CONTENT = ("path", "scope", "before", "after")  # names a mutant when lines move
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass
class Change:
    """``node.field``, or its entry ``index``, becomes ``new``; `swap` twice undoes it."""

    node: ast.AST
    field: str
    index: int | None
    new: Any

    def swap(self) -> None:
        if self.index is None:
            old = getattr(self.node, self.field)
            setattr(self.node, self.field, self.new)
        else:
            values = getattr(self.node, self.field)
            old, values[self.index] = values[self.index], self.new
        self.new = old


@dataclass(frozen=True)
class Mutant:
    path: str
    number: int  # among the changes of the file
    line: int
    scope: str
    before: str
    after: str

    @property
    def content(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in CONTENT)


def _constants(node: ast.Constant) -> list[Any]:
    value = node.value
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value else [1]
    return [2 * value, -value] if isinstance(value, float) and value else [1.0] * (value == 0.0)


def _own(child: ast.AST, slot: tuple[ast.AST, str, int | None]) -> Iterator[Change]:
    """Changes of this node alone; ``slot`` is where it hangs."""
    if isinstance(child, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(child.op) in ARITHMETIC:
        yield Change(child, "op", None, ARITHMETIC[type(child.op)]())
    if isinstance(child, ast.Compare):
        for i, op in enumerate(child.ops):
            yield from (Change(child, "ops", i, new()) for new in COMPARISON[type(op)])
    if isinstance(child, ast.Constant):
        yield from (Change(child, "value", None, new) for new in _constants(child))
    if isinstance(child, ast.UnaryOp):
        yield Change(*slot, child.operand)
    if isinstance(child, ast.Name) and child.id in NAMES:
        yield Change(child, "id", None, NAMES[child.id])
    if isinstance(child, ast.Attribute) and child.attr in NAMES:
        yield Change(child, "attr", None, NAMES[child.attr])
    if isinstance(child, ast.Call):
        if getattr(child.func, "attr", "") == "where" and len(child.args) == 3:
            yield Change(child, "args", None, [child.args[i] for i in (0, 2, 1)])
        for i, keyword in enumerate(child.keywords):
            if keyword.arg in ("min", "max") and len(child.keywords) == 1:
                yield Change(keyword, "arg", None, NAMES[keyword.arg])
            if keyword.arg not in (None, "device"):
                yield Change(child, "keywords", None, child.keywords[:i] + child.keywords[i + 1 :])
    in_place = isinstance(child, ast.Assign) and not isinstance(child.targets[0], ast.Name)
    in_place = in_place and not isinstance(child.targets[0], ast.Tuple)
    if isinstance(child, ast.Raise | ast.AugAssign | ast.Expr) or in_place:
        yield Change(*slot, ast.Pass())


def _skipped(parent: ast.AST, field: str, child: ast.AST) -> bool:
    """Words, types and decorations."""
    if isinstance(parent, ast.Raise) or field in ("annotation", "returns", "decorator_list"):
        return True
    if isinstance(child, ast.Expr):
        return isinstance(child.value, ast.Constant)
    if isinstance(child, ast.Assign | ast.If | ast.FunctionDef):
        words = {"TYPE_CHECKING", "__all__", "__repr__", "__str__"}
        head = getattr(child, "test", None) or getattr(child, "targets", [None])[0]
        return getattr(child, "name", getattr(head, "id", "")) in words
    warns = isinstance(parent, ast.Call) and ast.unparse(parent.func) == "warnings.warn"
    return warns or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom)


def changes(
    node: ast.AST, scope: tuple[str, ...] = (), statement: ast.stmt | None = None
) -> Iterator[tuple[tuple[str, ...], ast.stmt, Change]]:
    """Every (scope, statement, change) below ``node``, in the order of the source."""
    for field, value in ast.iter_fields(node):
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _skipped(node, field, child):
                continue
            here = child if isinstance(child, ast.stmt) else statement
            slot = (node, field, i if isinstance(value, list) else None)
            yield from ((scope, here, change) for change in _own(child, slot))
            named = isinstance(child, ast.ClassDef | ast.FunctionDef)
            inner = (*scope, child.name) if named else scope
            yield from changes(child, inner, here)
            if isinstance(child, ast.FunctionDef):
                yield from _negated(child, inner)


def _negated(function: ast.FunctionDef, scope: tuple[str, ...]) -> Iterator[Any]:
    kind = ast.unparse(function.returns) if function.returns else ""
    if not ("Tensor" in kind or kind in ("float", "bool")):
        return
    for node in _without_functions(function):
        if isinstance(node, ast.Return) and not isinstance(node.value, ast.Tuple | None):
            sign = ast.Not() if kind == "bool" else ast.USub()
            yield scope, node, Change(node, "value", None, ast.UnaryOp(sign, node.value))


def _without_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from _without_functions(child)


def text(statement: ast.stmt) -> str:
    """The statement, of one with a body only its head."""
    head = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "decorator_list"):
        if hasattr(head, field):
            setattr(head, field, [ast.Expr(ast.Constant(...))] if field == "body" else [])
    if isinstance(head, ast.Try):
        return "try: ..."
    return ast.unparse(ast.fix_missing_locations(head)).removesuffix("\n    ...")


def mutants(source: Path, path: str) -> list[Mutant]:
    found = []
    for number, (scope, statement, change) in enumerate(changes(parsed(source / path))):
        removed = isinstance(change.new, ast.Pass)
        before = text(statement)
        change.swap()
        after = "pass" if removed else text(statement)
        change.swap()
        line = statement.lineno if removed else getattr(change.node, "lineno", statement.lineno)
        found.append(Mutant(path, number, line, ".".join(scope), before, after))
    return found


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def sampled(source: Path, number: int, seed: int, only: str = "") -> list[Mutant]:
    """Over the files in proportion to their lines (largest remainders)."""
    paths = [str(path.relative_to(source)) for path in sorted(source.rglob("*.py"))]
    paths = [path for path in paths if path.startswith(only) and not path.startswith(LEFT_OUT)]
    every = {path: found for path in paths if (found := mutants(source, path))}
    lines = {path: len((source / path).read_text().splitlines()) for path in every}
    exact = {path: number * lines[path] / sum(lines.values()) for path in every}
    rest = number - sum(map(int, exact.values()))
    more = sorted(every, key=lambda path: int(exact[path]) - exact[path])[:rest]
    chosen = []
    for path, found in every.items():
        count = min(int(exact[path]) + (path in more), len(found))
        chosen += random.Random(f"{seed} {path}").sample(found, count)
    return random.Random(seed).sample(chosen, len(chosen))  # a part of a run is a sample, too


def statements(
    node: ast.AST, scope: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ast.stmt, range]]:
    """Each statement with its scope and lines; of one with a body, the lines of its head."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.ClassDef | ast.FunctionDef)
        if isinstance(child, ast.stmt):
            body = getattr(child, "body", None)
            end = max(child.lineno, body[0].lineno - 1) if body else child.end_lineno
            yield scope, child, range(child.lineno, end + 1)
        yield from statements(child, (*scope, child.name) if named else scope)


class Recorder:
    """Which test executes which line, how long it takes, and whether it passes."""

    def __init__(self, switch: Callable[[str], None]) -> None:
        self.switch, self.now = switch, ""
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.now = item.nodeid
        self.switch(self.now)
        yield
        self.now = ""
        self.switch("")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope != "function":
            self.switch("")  # on behalf of every test of the file
        yield
        self.switch(self.now)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        self.failed += [report.nodeid] * report.failed


class Only:
    """These tests in this order."""

    def __init__(self, order: list[str]) -> None:
        self.order, self.by = {name: i for i, name in enumerate(order)}, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = (item for item in items if item.nodeid in self.order)
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by = report.nodeid if report.failed else self.by


class Bench:
    """One checkout: its source, its tests, and what is kept of earlier runs."""

    def __init__(self, source: Path, tests: Path, build: Path) -> None:
        self.source, self.tests, self.build = source.resolve(), tests.resolve(), build.resolve()
        self.build.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(self.source))
        os.environ |= {"PYTHONPATH": str(self.source), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def pytest(self, file: str, plugin: object, *options: str) -> int:
        quiet = ("-q", "-p", "no:cacheprovider", f"--basetemp={self.build / 'tmp'}")
        marks = ("-m", "bad_input or not slow")
        return pytest.main([str(self.tests / file), *marks, *quiet, *options], [plugin])

    def child(self, work: Callable[..., Any], *args: Any, limit: float = 900.0) -> Any:
        """What ``work`` returns in a fork of this process, or why it returned nothing.

        ``limit`` is in seconds of its processor; ten times as many may pass on a busy machine.
        """
        fork = multiprocessing.get_context("fork")
        receive, send = fork.Pipe(duplex=False)

        def inside() -> None:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
            with (self.build / "log.txt").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                try:
                    send.send(work(*args))
                except BaseException as error:  # a mutant may raise anything
                    send.send(f"raised {error!r}"[:200])

        process = fork.Process(target=inside)
        process.start()
        send.close()
        try:
            answer = receive.recv() if receive.poll(10 * limit) else "took too long"
        except EOFError:
            answer = "ended the process"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        return answer

    def record(self, file: str) -> dict[str, Any]:
        """Statement → the tests of one file that execute it; -1 is its import and its fixtures."""
        cover = coverage.Coverage(data_file=None, include=[f"{self.source}/*"], config_file=False)
        cover.start()
        recorder = Recorder(cover.switch_context)
        status = self.pytest(file, recorder)
        cover.stop()
        if status not in (0, 1, 5):  # not: passed, some failed, none chosen
            raise RuntimeError(f"ended with pytest's status {status:d}")
        names = [name for name in recorder.seconds if name not in recorder.failed]
        numbers = {name: i for i, name in enumerate(names)} | {"": -1}
        touched: dict[str, set[int]] = defaultdict(set)
        for path in map(Path, cover.get_data().measured_files()):
            tests, name = (
                cover.get_data().contexts_by_lineno(str(path)),
                path.relative_to(self.source),
            )
            for scope, statement, span in statements(parsed(path)):
                contexts = {context for line in span for context in tests.get(line, [])}
                key = f"{name}:{'.'.join(scope)}:{text(statement)}"
                touched[key] |= {numbers[c] for c in contexts if c in numbers}
        return {
            "names": names,
            "seconds": [round(recorder.seconds[name], 3) for name in names],
            "touched": {key: sorted(found) for key, found in touched.items() if found},
            "failed": recorder.failed,
        }

    def recorded(self) -> dict[str, dict[str, Any]]:
        """By test file; measured again where the file has changed."""
        kept = self.build / "tests.json"
        before = json.loads(kept.read_text()) if kept.exists() else {}
        now = {}
        for path in sorted(self.tests.glob("test_*.py")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if before.get(path.name, {}).get("digest") != digest:
                found = self.child(self.record, path.name)
                if isinstance(found, str):
                    raise SystemExit(f"{path.name} {found}: {self.build / 'log.txt'}")
                before[path.name] = found | {"digest": digest}
                kept.write_text(json.dumps(before))
                print(f"{path.name}: {len(found['names'])} tests", *found["failed"], flush=True)
            now[path.name] = before[path.name]
        return now

    def tests_of(self, mutant: Mutant, budget: float) -> tuple[list[tuple[str, list[str]]], float]:
        """Test files in the order to be tried, each with the tests that execute the statement."""
        scope, own = f"{mutant.path}:{mutant.scope}", Path(mutant.path).stem
        wanted, prefix = f"{scope}:{mutant.before}", ""
        if mutant.before.startswith("def "):  # a default counts where the body is executed
            prefix = f"{scope}:"
        elif mutant.scope.rpartition(".")[2].lstrip("_")[:1] in string.ascii_uppercase:
            prefix = f"{mutant.path}:"  # of a module or a class: executed by its import
        elif not any(wanted in kept["touched"] for kept in self.kept.values()):
            prefix = f"{scope}:"  # changed since it was measured
        plan = []
        for file, kept in self.kept.items():
            keys = (
                [key for key in kept["touched"] if key.startswith(prefix)] if prefix else [wanted]
            )
            hits = {i for key in keys for i in kept["touched"].get(key, [])}
            if -1 in hits:  # imported or made once for all: every test of the file may see it
                every = set(range(len(kept["names"])))
                hits = hits - {-1} if prefix == f"{mutant.path}:" else every
            chosen = sorted((kept["seconds"][i], kept["names"][i]) for i in hits)
            plan.append((own not in file, sum(seconds for seconds, _ in chosen), file, chosen))
        files, spent = [], 0.0
        for *_, file, chosen in sorted(plan):
            names = []
            for seconds, name in chosen:
                if not spent or spent + seconds <= budget:
                    names.append(name)
                    spent += seconds
            files += [(file, names)] if names else []
        return files, spent

    def meet(self, mutant: Mutant, plan: list[tuple[str, list[str]]]) -> str | None:
        """In a child: the test that fails with the mutant in place of its module, or None."""
        file, tree = self.source / mutant.path, parsed(self.source / mutant.path)
        next(itertools.islice(changes(tree), mutant.number, None))[2].swap()
        code = compile(ast.fix_missing_locations(tree), str(file), "exec")
        name = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

        class Mutated(SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                return code

            @classmethod
            def find_spec(cls, fullname: str, *_: object) -> Any:
                loader = cls(fullname, str(file))
                found = importlib.util.spec_from_file_location(fullname, file, loader=loader)
                return found if fullname == name else None

        sys.meta_path.insert(0, Mutated)
        for tests, names in plan:
            only = Only(names)
            if self.pytest(tests, only, "-x") not in (0, 5):
                return only.by or f"{tests} is not collected"
        return None

    def run(self, results: list[dict[str, Any]], budget: float) -> None:
        """Every entry of ``results`` not yet killed gets what killed it, None for a survivor."""
        self.kept = self.recorded()
        for result in results:
            if result["by"] is None:
                mutant, start = Mutant(*(result[name] for name in FIELDS)), time.perf_counter()
                plan, seconds = self.tests_of(mutant, budget)
                limit = 20 + 3 * seconds
                by = self.child(self.meet, mutant, plan, limit=limit) if plan else None
                result |= {"by": by, "seconds": round(time.perf_counter() - start, 2)}
                if by is None:
                    print("{path}:{line} {before} → {after}".format(**result), flush=True)
                (self.build / "results.json").write_text(json.dumps(results, indent=1))


def today(source: Path, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mutants that can still be made, where lines may have moved since."""
    found: dict[tuple[str, ...], Mutant] = {}
    for path in sorted({result["path"] for result in results}):
        found |= {mutant.content: mutant for mutant in mutants(source, path)}
    named = ((tuple(result[name] for name in CONTENT), result) for result in results)
    return [result | asdict(found[content]) for content, result in named if content in found]


def listed(path: Path = EQUIVALENT) -> dict[tuple[str, ...], str]:
    """Mutants that no test can see, with the reason."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    return {tuple(entry[name] for name in CONTENT): entry["reason"] for entry in entries}


def table(results: list[dict[str, Any]]) -> str:
    rows = [f"{'file':40}{'mutants':>8}{'killed':>8}"]
    every = Counter(result["path"] for result in results)
    alive = Counter(result["path"] for result in results if result["by"] is None)
    rows += [f"{path:40}{every[path]:8}{every[path] - alive[path]:8}" for path in sorted(every)]
    count, killed = every.total(), every.total() - alive.total()
    return "\n".join([*rows, f"{killed} of {count} killed, {killed / max(count, 1):.1%}"])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=550, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="files whose path starts so")
    parser.add_argument("--again", action="store_true", help="the last run's, not yet killed")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests a mutant")
    parser.add_argument("--least", type=float, default=0.95, help="share killed, or status 1")
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests" / "unit")
    parser.add_argument("--build", type=Path, default=ROOT / "_build" / "mutants")
    options = parser.parse_args(words)
    bench = Bench(options.source, options.tests, options.build)
    for name in WARM if (options.source / "mpt_lml").exists() else ():
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage five times a session
    if options.again:
        results = today(bench.source, json.loads((bench.build / "results.json").read_text()))
    else:
        sample = sampled(bench.source, options.number, options.seed, options.only)
        results = [asdict(mutant) | {"by": None} for mutant in sample]
    known = listed()
    results = [each for each in results if tuple(each[name] for name in CONTENT) not in known]
    bench.run(results, options.budget)
    print(table(results))
    share = sum(result["by"] is not None for result in results) / max(len(results), 1)
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
