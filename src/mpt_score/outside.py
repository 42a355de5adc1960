"""A model from a user's own module, named as ``module:function``."""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mpt_lml.files import digest
from mpt_score.functions import hint_of

FORM = "a function (ids, mask) -> log-probabilities, or one without arguments that returns it"
_WORD = r"[^\W\d]\w*"
_NAME = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")


class OutsideModel(NamedTuple):
    """What a user's module gave."""

    model: Any  # a function (ids, mask) → log-probabilities, or what else `load` takes
    tokenizer: Any  # of `transformers`, its folder or name; or None
    identity: str | None  # what decides its numbers; None where the module does not say


def is_outside_name(name: object) -> bool:
    """Whether ``name`` is of the form ``module:function``.

    >>> is_outside_name("my_models.llada:build"), is_outside_name("google-bert/bert-base-uncased")
    (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def outside_model(name: str) -> OutsideModel:
    """Import ``module:function``, from the current folder or what is installed, and make the model.

    Args:
        name: The module and a name in it. That is a function of ``ids`` and ``mask`` that returns
            log-probabilities; or a factory, which is called without arguments and returns such a
            function or another model that :func:`~mpt_score.loading.load` takes, alone or with its
            tokenizer.

    Returns:
        The model. No source shows which weights a function reads, so that its identity has to be named:
        a string ``identity`` of the returned function, of the factory or of the module, such as a
        checkpoint's commit. With it go ``name`` and a digest of the user's own sources, those that
        a call imports among them. Where nothing is named, the identity is None.

    Raises:
        ValueError: Where the module, or the name in it, is not there, or its code fails.
        TypeError: For anything else under that name.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    module_name, attribute = match.groups()
    module = _import(module_name, name)
    if not hasattr(module, attribute):
        functions = [key for key, value in vars(module).items() if _is_own(value, module)]
        has = ", ".join(sorted(functions)) or "none"
        raise ValueError(f"{name}: {module_name} has no {attribute} (its functions: {has}).")
    named = getattr(module, attribute)
    made = _run(named, f"{name}()") if _is_factory(named, name) else named
    model, tokenizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not callable(model) and not hasattr(model, "log_tokens"):
        raise TypeError(f"{name} must be {FORM}, got {type(model).__name__}.")
    identities = [getattr(place, "identity", None) for place in (model, named, module)]
    identity = next((each for each in identities if isinstance(each, str)), None)
    is_network = isinstance(model, torch.nn.Module) and hasattr(model, "config")
    is_function = not is_network and not hasattr(model, "log_tokens")
    if identity is not None:
        if is_function:
            _call_once(model)
        identity = f"{name}, {identity}, {_digest_of(module)}"
    if is_function:
        model = _in_one_sentence(model, name)
    return OutsideModel(model, tokenizer, identity)


def _import(module_name: str, name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does; a command that was installed does not

    def import_it() -> ModuleType | None:
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if f"{module_name}.".startswith(f"{error.name}."):
                return None  # itself or a package before one of its dots, not what it imports
            raise

    module = _run(import_it, f"import {module_name}")
    if module is None:
        raise ValueError(
            f"{name}: there is no module {module_name}, neither in {folder} nor installed."
        )
    return module


def _run(
    act: Callable[[], Any], what: str, hint: Callable[[BaseException], str] = lambda error: ""
) -> Any:
    """Run a user's code; what goes wrong in it is one sentence with its place, and a hint."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        message = f"{what}: {type(error).__name__} in {where}: {error}"
        raise ValueError(f"{message.rstrip(' :.')}. {hint(error)}".strip()) from error


def _call_once(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Ask of two tokens, so that modules are loaded that a function imports when it is called.

    What goes wrong is said when it is asked of texts.
    """
    with suppress(Exception), torch.no_grad():
        function(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[True, False]]))


def _in_one_sentence(function: Callable[[Tensor, Tensor], Tensor], name: str) -> Any:
    """The function; what goes wrong in it is one sentence with its place."""

    def answer(ids: Tensor, mask: Tensor) -> Tensor:
        what = f"{name}, asked of {tuple(ids.shape)} ids"
        return _run(lambda: function(ids, mask), what, lambda error: hint_of(error, ids))

    return answer


def _is_factory(value: Any, name: str) -> bool:
    """Whether a value is to be called for the model; a function of ids and mask is the model."""
    is_model = isinstance(value, torch.nn.Module) or hasattr(value, "log_tokens")
    if is_model or not callable(value):
        return False
    required = [
        parameter.name
        for parameter in inspect.signature(value).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(required) not in (0, 2):
        needs = ", ".join(required)
        raise TypeError(f"{name} must be {FORM}; it needs ({needs}).")
    return not required


def _is_own(value: Any, module: ModuleType) -> bool:
    return inspect.isroutine(value) and value.__module__ == module.__name__


def _digest_of(module: ModuleType) -> str:
    """Of the sources of the user's own loaded modules: its package, and what lies beside that.

    What was installed is left out, but for the package itself.
    """
    top_name = module.__name__.partition(".")[0]
    top_file = getattr(sys.modules[top_name], "__file__", None)
    root = None
    if top_file is not None:
        folder = Path(top_file).resolve().parent
        root = folder.parent if Path(top_file).stem == "__init__" else folder
    sources = []
    for name, loaded in sorted(sys.modules.items()):
        path = Path(getattr(loaded, "__file__", None) or "").resolve()
        is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
        is_beside = root in path.parents and not is_installed and name != "__main__"
        is_users = name.partition(".")[0] == top_name or is_beside
        if is_users and path.suffix == ".py" and path.is_file():
            sources.append(f"{name}\n{path.read_text(errors='replace')}")
    return digest("\n".join(sources), {})
