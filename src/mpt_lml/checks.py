"""Validation of the arguments of public functions by their annotations.

The decorator :func:`checked` reads these annotations:

=======================================  ===========================================================
``Float[Tensor, "N D"]``                 float32 or float64, two axes, no NaN or infinity
``Int[Tensor, "N D"]``                   int64
``Bool[Tensor, "P D"]``                  bool; a mask, in which **True means masked**
``Data``                                 data for ``require_data`` of ``self`` or the argument ``model``
``int``                                  an integer
``Count``                                an integer from 1 on
``Index``                                an integer from 0 on
``Annotated[int, Within(2, 9)]``         an integer from 2 to 9
``float``                                a finite number
``Positive``, ``NonNegative``            a finite number > 0, one >= 0
``Rate``                                 a number in (0, 1]
``Annotated[float, Interval("[0,1)")]``  a number in [0, 1)
``Literal["one", "all"]``                one of these words
``Sequence[int]``, ``tuple[int, ...]``   a sequence, each item of which is checked, too
``Callable``, ``PPCA``, ``str``, ...     an object of that type
``... | None``                           the same, or None
=======================================  ===========================================================

Letters are axes: N data, D coordinates, K latent dimensions, P masks, M masked coordinates, L sizes on
a curve. Equal letters of one call are equal sizes, at least 1; only an axis named by a single small
letter (``n``, ``k``) may be empty, not one named by a word (``subsets``). D is the ``num_features``
and K the ``latent_dim`` of ``self`` or of the argument ``model``. Axes before the others (``...``,
``*batch``) broadcast. Floating-point tensors of one call share a dtype. A function in ``Annotated`` is
a further check: it is called with the name and the value. A string there is a sentence that follows a
refusal, and so is the ``hint`` of ``Interval``.

Data and floating-point tensors of one call have to be on one device, that of the model where it says
one (``data_device``). Masks, orders and other indices follow them, and so do numbers without axes:
they are moved there before the function is called. Generators are on the CPU, so that draws are the
same on every device. What follows no argument is made on the CPU, too, whatever the default device of
``torch.set_default_device`` is: inside a checked function that is the CPU.

Validation always runs, also where one public function calls another: it takes some microseconds. Where
an inner loop would feel it, other modules call a body with an underscore, such as ``_mask_score``,
whose check takes longer than its arithmetic. A name without an underscore that is not in ``__all__``
is for other modules of these packages, and may check nothing.

Conditions that no annotation can state, and results of functions that a user passes in, are checked by
:func:`check` and the ``require_...`` functions below. Checks of one domain are in its module.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar, Union, overload

import numpy as np
import torch
from jaxtyping import AbstractArray
from torch import Tensor

_T = TypeVar("_T")


# -- what can stand in an annotation ----------------------------------------------------------------


@dataclass(frozen=True)
class Within:
    """Annotates an integer from ``low`` to ``high``, both included: ``Annotated[int, Within(1)]``."""

    low: int
    high: int | None = None

    def __call__(self, name: str, value: Any) -> None:
        require_count(name, value, self.low, self.high)


@dataclass(frozen=True)
class Interval:
    """Annotates a number in an interval such as "(0,1]"; a "~" behind it lets NaN pass, too.

    ``hint`` is a sentence that follows a refusal.
    """

    legal: str
    hint: str = ""

    def __call__(self, name: str, value: Any) -> None:
        require_number(name, value, self.legal, hint=self.hint)


class _OfModel:
    """Annotates data that are checked by ``require_data`` of the model."""


Count = Annotated[int, Within(1)]
Index = Annotated[int, Within(0)]
Positive = Annotated[float, Interval("(0,inf)")]
NonNegative = Annotated[float, Interval("[0,inf)")]
Rate = Annotated[float, Interval("(0,1]", "15 % is rate=0.15.")]
Data = Annotated[Tensor, _OfModel()]
FilePath = str | os.PathLike[str]


_OUT_OF_MEMORY = re.compile(
    "DefaultCPUAllocator|Storage size calculation overflow|integer multiplication overflow"
)
"""Messages of PyTorch, which has no type of error for a CPU without memory, contain one of these."""


# -- the decorator ------------------------------------------------------------------------------------


@overload
def checked(function: _T, *, finite: bool = True) -> _T: ...
@overload
def checked(function: None = None, *, finite: bool = True) -> Callable[[_T], _T]: ...


def checked(function: Any = None, *, finite: bool = True) -> Any:
    """Decorate a public function: arguments that do not fit its annotations are refused in a sentence.

    A dataclass is checked when an instance is made.

    Args:
        function: a function, a method, or a dataclass.
        finite: whether NaN and infinity are refused. False is for functions whose result shows them.

    Returns:
        The function (or class), with the same signature. It raises ``TypeError`` for a wrong type or
        dtype, ``ValueError`` for a wrong shape, number or word, ``RuntimeError`` under
        ``torch.autocast``, and ``MemoryError`` where the CPU has no memory for its result.

    >>> from jaxtyping import Float
    >>> @checked
    ... def halves(x: Float[Tensor, "N D"], num_masks: Count) -> Tensor:
    ...     return x / 2
    >>> halves(torch.ones(3), 1)
    Traceback (most recent call last):
    ValueError: x must have shape (N, D), got (3,). A single one is passed as x[None, :].
    >>> halves(torch.ones(1, 3), 0)
    Traceback (most recent call last):
    ValueError: num_masks must be >= 1, got 0.
    """
    if function is None:
        return functools.partial(checked, finite=finite)
    if isinstance(function, type):
        function.__init__ = _checked_function(function.__init__, finite, function)  # type: ignore[misc]
        return function
    return _checked_function(function, finite, None)


def _checked_function(function: Callable, finite: bool, owner: type | None) -> Callable:
    names = []  # of positional arguments
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)

    @functools.cache
    def rules() -> dict[str, "_Rule"]:
        # At the first call: annotations may name classes that are defined further down.
        return _rules_of(function, owner)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise RuntimeError(
                f"{_name_of(function)} must not be called under torch.autocast, which rounds products to "
                "three digits. Put only the call of your network under it."
            )
        given = dict(zip(names, args, strict=False))
        if kwargs:
            given.update(kwargs)
        call = _Call(given.get("model", given.get("self")), finite)
        try:
            with _on_cpu():
                for name, rule in rules().items():
                    if name in given:
                        rule(name, given[name], call)
                call.compare()
                moved = call.moved_indices(given)
                if not moved:
                    return function(*args, **kwargs)
                positional = list(args)
                for place, name in enumerate(names[: len(args)]):
                    positional[place] = moved.pop(name, args[place])
                return function(*positional, **(kwargs | moved))
        except RuntimeError as error:
            if _OUT_OF_MEMORY.search(str(error)):
                raise MemoryError(
                    f"{_name_of(function)} needs more memory than there is. Give it smaller sizes, or "
                    "fewer at a time."
                ) from error
            raise

    return wrapper


def _on_cpu() -> AbstractContextManager[Any]:
    """What is made without a device is made on the CPU, not as ``torch.set_default_device`` says."""
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


def _name_of(function: Callable) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _rules_of(function: Callable, owner: type | None) -> dict[str, "_Rule"]:
    source: Any = inspect.unwrap(function)
    hints = typing.get_type_hints(source, include_extras=True)
    if owner is not None and dataclasses.is_dataclass(owner):
        hints = typing.get_type_hints(owner, include_extras=True)
    rules = {}
    for name, parameter in inspect.signature(source).parameters.items():
        is_named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        rule = _rule(hints[name]) if is_named and name in hints else None
        if rule is not None:
            rules[name] = rule
    return rules


_SIZES_OF_MODEL = (("D", "num_features"), ("K", "latent_dim"))


class _Call:
    """The state of one checked call: sizes of letters, and the tensors that have to fit each other."""

    __slots__ = (
        "device",
        "device_owner",
        "dtypes",
        "finite",
        "indices",
        "leading",
        "model",
        "sizes",
        "tensors",
    )

    def __init__(self, model: Any, finite: bool) -> None:
        self.model = model
        self.finite = finite
        self.sizes: dict[str, int] = {}
        self.tensors: dict[str, Tensor] = {}
        self.dtypes: tuple[torch.dtype, ...] = ()  # of those with floating-point numbers
        self.leading: tuple[torch.Size, ...] = ()
        self.device: torch.device | None = None  # of the data
        self.device_owner = "the model"  # or the argument that the device is of
        self.indices: dict[str, Tensor] = {}  # and numbers, which are moved to the data
        if model is not None:
            self.device = getattr(model, "data_device", None)
            for letter, attribute in _SIZES_OF_MODEL:
                size = getattr(model, attribute, None)
                if type(size) is int:
                    self.sizes[letter] = size

    def place(self, name: str, device: torch.device | None) -> None:
        """Check that data are on the device of the model, or else on that of the first data."""
        if device is None or device == self.device:
            return
        if self.device is not None:
            if device == torch.empty(0, device=self.device).device:  # a model may say "cuda"
                return
            raise ValueError(
                f"{name} must be on {self.device}, where {self.device_owner} is, and is on {device}. "
                "Move one of them to the other's device, a tensor with .to(device)."
            )
        self.device = device
        self.device_owner = name

    def moved_indices(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Move indices and numbers that are on another device than the data.

        Without data they follow the first of them. Items of a sequence are not moved.

        Returns:
            Those that were moved, by the name of their argument.
        """
        moved = {}
        for name, value in self.indices.items():
            if self.device is None:
                self.device = value.device
            if value.device != self.device and given.get(name) is value:
                moved[name] = value.to(self.device)
        return moved

    def compare(self) -> None:
        """Check that tensors share a dtype, and that their leading axes can be broadcast."""
        if len(self.dtypes) > 1:
            floating = {name: one for name, one in self.tensors.items() if one.is_floating_point()}
            require_one_dtype(**floating)
        if len(self.leading) > 1:
            try:
                np.broadcast_shapes(*self.leading)  # torch's first imports sympy: 0.3 s
            except ValueError:
                shapes = _shapes(self.tensors)
                raise ValueError(f"leading axes must be equal or 1, got {shapes}.") from None


_Rule = Callable[[str, Any, _Call], None]


def check(*arguments: tuple[str, Any, Any], finite: bool = True, **sizes: int) -> None:
    """Check values that are no arguments, such as results of a user's function, as :func:`checked` does.

    Args:
        arguments: triples of a name for messages, a value, and the annotation that it has to fit.
        finite: as for :func:`checked`.
        sizes: known sizes of letters, such as ``D=3``.

    >>> from jaxtyping import Float
    >>> check(("scores()", torch.ones(3), Float[Tensor, " N"]), N=2)
    Traceback (most recent call last):
    ValueError: scores() must have shape (2,), got (3,).
    """
    call = _Call(None, finite)
    call.sizes = sizes
    for name, value, annotation in arguments:
        rule = _rule(annotation)
        if rule is not None:
            rule(name, value, call)
    call.compare()


# -- from an annotation to a rule -----------------------------------------------------------------------


@functools.cache
def _rule(annotation: Any) -> _Rule | None:
    """Make the check that an annotation asks for; None where it asks for none."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if annotation is Any:
        return None
    if origin is Annotated:
        return _annotated_rule(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return _union_rule(arguments)
    if origin is Literal:
        return functools.partial(_check_choice, choices=arguments)
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return _tensor_rule(annotation)
    if annotation is int:
        return _without_call(_require_integer)
    if annotation is float:
        return _number_rule((Interval("(-inf,inf)"),))
    if annotation is Tensor:
        return _check_any_tensor
    if annotation is torch.Generator:
        return _check_generator
    kind = origin or annotation
    if issubclass(kind, collections.abc.Iterable) and arguments:
        return _collection_rule(kind, arguments)
    return functools.partial(_check_kind, kind=kind)


def _without_call(require: Callable[[str, Any], None]) -> _Rule:
    return lambda name, value, call: require(name, value)


def _number_rule(checks: Sequence[Callable[[str, Any], None]]) -> _Rule:
    def check_number(name: str, value: Any, call: _Call) -> None:
        for require in checks:
            require(name, value)
        if isinstance(value, Tensor):  # without axes
            call.indices[name] = value

    return check_number


def _annotated_rule(annotation: Any, remarks: tuple[Any, ...]) -> _Rule:
    if any(isinstance(remark, _OfModel) for remark in remarks):
        return _check_data
    checks = [remark for remark in remarks if callable(remark)]
    # Within and Interval say what an integer or a number is themselves.
    if any(isinstance(remark, Within | Interval) for remark in checks):
        return _number_rule(checks)
    rule = _rule(annotation)
    hints = [remark for remark in remarks if isinstance(remark, str)]

    def check_annotated(name: str, value: Any, call: _Call) -> None:
        if rule is not None:
            rule(name, value, call)
        for remark in checks:
            remark(name, value)

    def check_with_hints(name: str, value: Any, call: _Call) -> None:
        try:
            check_annotated(name, value, call)
        except (TypeError, ValueError) as error:
            raise type(error)(" ".join([str(error), *hints])) from None

    return check_with_hints if hints else check_annotated


def _union_rule(choices: tuple[Any, ...]) -> _Rule:
    others = tuple(choice for choice in choices if choice is not types.NoneType)
    is_optional = len(others) < len(choices)
    rules = [_rule(choice) for choice in others]

    def check_union(name: str, value: Any, call: _Call) -> None:
        if value is None and is_optional:
            return
        if len(rules) == 1:
            rules[0](name, value, call)  # type: ignore[misc]
            return
        errors = []
        for rule in rules:
            try:
                rule(name, value, call)  # type: ignore[misc]
                return
            except TypeError:
                continue
            except ValueError as error:
                errors.append(error)  # the right type: this is the sentence to show
        if errors:
            raise errors[0]
        raise TypeError(f"{name} must be of type {_names_of(others)}, got {value!r}.")

    return check_union


def _names_of(annotations: tuple[Any, ...]) -> str:
    names = []
    for annotation in annotations:
        kind = typing.get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
        names.append(getattr(kind, "__name__", str(kind)))
    return " or ".join(dict.fromkeys(names))


_PLAIN_COLLECTIONS = (collections.abc.Sequence, collections.abc.Collection)


def _collection_rule(kind: type, arguments: tuple[Any, ...]) -> _Rule:
    """Make the check of a sequence, a tuple of any length or a mapping, and of its items."""
    if issubclass(kind, collections.abc.Mapping):
        item = _rule(arguments[-1])
        accepted: type = kind
    elif kind is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        return functools.partial(_check_kind, kind=tuple)
    else:
        item = _rule(arguments[0])
        accepted = collections.abc.Sequence if kind is tuple else kind

    def check_collection(name: str, value: Any, call: _Call) -> None:
        _check_kind(name, value, call, kind=accepted)
        if item is None:
            return
        if isinstance(value, collections.abc.Mapping):
            for key, one in value.items():
                item(f"{name}[{key!r}]", one, call)
            return
        each = f"each of {name}"
        for one in value:
            item(each, one, call)

    return check_collection


def _check_data(name: str, value: Any, call: _Call) -> None:
    if hasattr(call.model, "require_data"):  # a wrong model has been refused by its own annotation
        call.model.require_data(value)
        _place_tensor(name, value, call, is_index=False)


def _check_choice(name: str, value: Any, call: _Call, *, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}.")


def _check_kind(name: str, value: Any, call: _Call, *, kind: type) -> None:
    fits = isinstance(value, kind)
    if fits and kind in _PLAIN_COLLECTIONS:
        # A word is a sequence of letters, and an array has a length: neither is what was meant.
        fits = not (isinstance(value, str | bytes | Tensor) or hasattr(value, "__array__"))
    if not fits:
        raise TypeError(f"{name} must be of type {kind.__name__}, got {value!r}.")
    call.place(name, getattr(value, "data_device", None))


def _require_integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}.")


def _check_generator(name: str, value: Any, call: _Call) -> None:
    require_generator(value, name)


def _check_any_tensor(name: str, value: Any, call: _Call) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")
    _place_tensor(name, value, call, is_index=not value.is_floating_point())


def _place_tensor(name: str, value: Tensor, call: _Call, *, is_index: bool) -> None:
    if is_index or value.ndim == 0:  # PyTorch lets a number of the CPU meet tensors elsewhere
        call.indices[name] = value
    else:
        call.place(name, value.device)


def _tensor_rule(annotation: Any) -> _Rule:
    is_floating = "float32" in annotation.dtypes
    dtype = None
    if not is_floating:
        dtype = torch.bool if "bool" in annotation.dtypes else torch.int64
    axes = _Axes.of(annotation)

    def check_tensor(name: str, value: Any, call: _Call) -> None:
        require_dtype(name, value, dtype)
        axes.check(name, value, call)
        _place_tensor(name, value, call, is_index=not is_floating)
        if is_floating:
            if value.dtype not in call.dtypes:
                call.dtypes += (value.dtype,)
            if call.finite:
                require_finite(name, value)

    return check_tensor


@dataclass(frozen=True)
class _Axes:
    """The letters of a shape, such as "... N D"."""

    words: tuple[str, ...]
    letters: tuple[str, ...]
    any_first: bool
    any_last: bool
    numbers: dict[str, int]  # the letters that are numbers
    may_be_empty: frozenset[str]

    @classmethod
    def of(cls, annotation: Any) -> "_Axes":
        words = tuple(annotation.dim_str.replace("#", "").split())
        is_any = [word == "..." or word.startswith("*") for word in words]
        letters = tuple(w for w, any_number in zip(words, is_any, strict=True) if not any_number)
        any_first = bool(words) and is_any[0]
        any_last = len(words) > 1 and is_any[-1]
        numbers = {letter: int(letter) for letter in letters if letter.isdigit()}
        may_be_empty = frozenset(one for one in letters if len(one) == 1 and one.islower())
        return cls(words, letters, any_first, any_last, numbers, may_be_empty)

    def check(self, name: str, value: Tensor, call: _Call) -> None:
        """Compare a shape with the letters, and note the sizes of those that are new."""
        shape = value.shape
        named = shape
        leading = None
        num_more = len(shape) - len(self.letters)
        fits = num_more == 0
        if num_more > 0:
            fits = self.any_first or self.any_last
            if self.any_first:
                leading = shape[:num_more]
                named = shape[num_more:]
                fits = 0 not in leading
        sizes = call.sizes | self.numbers
        if fits:
            for letter, size in zip(self.letters, named, strict=False):
                if size != sizes.setdefault(letter, size):
                    fits = False
                if size == 0 and letter not in self.may_be_empty:
                    fits = False
        if not fits:
            raise ValueError(self.error(name, shape, call))
        call.sizes = sizes
        call.tensors[name] = value
        if leading:
            call.leading += (leading,)

    def error(self, name: str, shape: torch.Size, call: _Call) -> str:
        sizes = []
        for word in self.words:
            sizes.append(str(call.sizes.get(word, word.upper())) if word in self.letters else "...")
        wanted = ", ".join(sizes)
        if len(sizes) == 1:
            wanted += ","
        message = f"{name} must have shape ({wanted}), got {tuple(shape)}"
        if call.tensors:
            message += f" beside {_shapes(call.tensors)}"
        message += "."
        if len(shape) == len(self.letters) - 1:
            message += f" A single one is passed as {name}[None, :]."
        return message


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())


# -- checks that are called by name -----------------------------------------------------------------


_FLOATS = (torch.float32, torch.float64)


def require_answer(name: str, value: Any, shape: Sequence[int], *, gradient: bool = True) -> None:
    """Check that a function has returned a tensor of this shape, differentiable for ``gradient``."""
    require_dtype(name, value)
    if value.shape != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(value.shape)}.")
    if gradient and not value.requires_grad:
        raise ValueError(f"{name} must depend on its argument, got a constant {value}.")


def require_gradient(name: str, gradient: Tensor | None) -> None:
    """Check that ``torch.autograd.grad`` has returned a gradient, and not None for an unused tensor."""
    if gradient is None:
        raise ValueError(f"{name} must depend on its argument, and does on other tensors only.")


def require_dtype(name: str, value: object, dtype: torch.dtype | None = None) -> None:
    """Check that ``value`` is a dense tensor of this dtype, by default float32 or float64."""
    wanted = _FLOATS if dtype is None else (dtype,)
    if (
        isinstance(value, Tensor)
        and value.dtype in wanted
        and value.layout is torch.strided
        and not value.is_meta
        and not value.is_nested
    ):
        return
    got = type(value).__name__
    if isinstance(value, Tensor) and (value.is_meta or value.is_nested):
        odd = "meta tensor, which has no numbers" if value.is_meta else "nested tensor"
        raise TypeError(f"{name} must be a dense tensor with numbers, got a {odd}.")
    if isinstance(value, Tensor):
        got = str(value.dtype) if value.layout == torch.strided else str(value.layout)
    kind = dtype or "floating-point (float32 or float64)"
    hint = ""
    if dtype == torch.bool:
        hint = f" Convert with {name}.bool(); in a mask True = masked."
    raise TypeError(f"{name} must be a {kind} tensor, got {got}.{hint}")


def require_one_dtype(**tensors: Tensor) -> None:
    """Check that the tensors, by name, are of one dtype."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1:
        raise TypeError(f"tensors must share one dtype, got {dtypes}: convert with .to(dtype).")


def require_entries(name: str, value: Tensor, bad: Tensor, legal: str, remedy: str) -> None:
    """Refuse a tensor with illegal entries, and name the first of them.

    Args:
        name: the name of the tensor in the message.
        value: the tensor, of any shape.
        bad: True at each entry that is not legal, boolean, of the same shape.
        legal: the words after "must be", such as "0 or 1".
        remedy: a sentence that says what to do.

    >>> x = torch.tensor([0.5, 2.0])
    >>> require_entries("x", x, x > 1, "at most 1", "Divide by the largest.")
    Traceback (most recent call last):
    ValueError: x must be at most 1, but x[1] is 2 (1 such entries). Divide by the largest.
    """
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be {legal}, but {name}{list(where)} is {value[where].item():.4g} "
            f"({int(bad.sum())} such entries). {remedy}"
        )


def require_finite(name: str, value: Tensor) -> None:
    """Check that ``value`` has no NaN and no infinity."""
    # One pass, where all is well: a sum is finite only if each of its terms is. Where it overflows,
    # require_entries finds no term that is not, and refuses nothing.
    if not math.isfinite(value.sum().item()):
        require_entries(name, value, ~value.isfinite(), "finite", "Remove or impute them first.")


_SINGLE_PRECISION_ROUNDING = 1e-6


def rounded_to_single(dtype: torch.dtype, error: float) -> str:
    """Hint for float64 probabilities whose sum is off 1 by no more than single precision rounds."""
    if dtype != torch.float64 or error > _SINGLE_PRECISION_ROUNDING:
        return ""
    return " The numbers look rounded to single precision: make them with dtype=torch.float64."


def require_row_sums(
    name: str, table: Tensor, total: float, tolerance: float, *, unit: float = 1.0
) -> None:
    """Check that each row of ``table`` (..., V) adds up to ``total``.

    Args:
        name: the name of the table in the message.
        table: probabilities, whose rows add up to 1, or their derivatives, whose rows add up to 0.
        total: 1 or 0.
        tolerance: most that a row may be off, in parts of ``unit``.
        unit: the size of the entries.
    """
    worst = (table.sum(dim=-1) - total).abs().max().item()
    if worst > tolerance * unit:
        remedy = " Divide each by its sum." if total else ""
        hint = rounded_to_single(table.dtype, worst / unit)
        raise ValueError(
            f"{name} must sum to {total:g} in every row, one is off by {worst:.2g}.{remedy}{hint}"
        )


def require_number(name: str, value: Any, legal: str, *, hint: str = "") -> None:
    """Check that ``value`` is a single number, not a bool, in an interval.

    Args:
        name: the name of the number in the message.
        value: the number, or a tensor without axes.
        legal: the interval, such as "(0,inf)" or "[0,1)". A "~" behind it lets NaN pass, too.
        hint: a sentence that follows a refusal.
    """
    low, high = _ends_of(legal)
    if type(value) is float and low < value < high:
        return
    hint = f" {hint}" if hint else ""
    if isinstance(value, Tensor) and (value.is_meta or value.is_nested):
        raise TypeError(f"{name} must be a single number, got a meta or nested tensor.{hint}")
    if type(value) is int and abs(value) > sys.float_info.max:
        raise ValueError(f"{name} must be a number that a float holds, below 1.8e308.{hint}")
    number = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
    # A Fraction is a Real, but torch computes with none.
    is_number = isinstance(number, Real) and not isinstance(number, bool | Fraction)
    is_legal = is_number and (
        low < number < high
        or ("[" in legal and number == low)
        or ("]" in legal and number == high)
        or ("~" in legal and number != number)  # NaN
    )
    if not is_legal:
        kind = "number in " + legal.rstrip("~").replace(",", ", ")
        kind = "finite number > 0" if legal == "(0,inf)" else kind
        error = ValueError if is_number or isinstance(value, Tensor) else TypeError
        raise error(f"{name} must be a single {kind}, got {value!r}.{hint}")


@functools.cache
def _ends_of(legal: str) -> tuple[float, float]:
    """Parse the two ends of an interval such as "(0,1]"."""
    low, high = legal.rstrip("~")[1:-1].split(",")
    return float(low), float(high)


_LARGEST_INT64 = 2**63 - 1


def require_count(name: str, value: int, low: int, high: int | None = None) -> None:
    """Check that ``value`` is an integer from ``low`` to ``high``, which an int64 can hold."""
    if type(value) is int and low <= value <= (_LARGEST_INT64 if high is None else high):
        return
    legal = f">= {low}" if high is None else f"in {low}..{high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer ({legal.removeprefix('in ')}), got {value!r}.")
    if high is None and value > _LARGEST_INT64:
        raise ValueError(f"{name} must be below 2^63, got {value}.")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be {legal}, got {value}.")


MAX_ENUMERATED = 2**18
"""The largest number of masks, subsets, points or orders that are enumerated."""


def require_log_enumerable(what: str, log_number: float, instead: str) -> None:
    """Refuse to enumerate more than ``MAX_ENUMERATED`` of ``what``, and say what to use ``instead``.

    Their number is given by its logarithm, as it may have millions of digits.
    """
    if log_number <= math.log(MAX_ENUMERATED) + 1e-6:  # less than one more would add
        return
    if log_number < 700.0:  # what a float holds
        number = f"{math.exp(log_number):.3e}"
    else:
        number = f"about 10^{log_number / math.log(10.0):.0f}"
    raise ValueError(
        f"{what} are {number}, more than the {MAX_ENUMERATED} that are enumerated: use {instead}."
    )


MAX_BYTES = 2**38
"""256 GiB, the largest size of a tensor whose parts are computed one after the other."""


def require_memory(what: str, bytes_needed: int, instead: str) -> None:
    """Refuse a tensor of more than ``MAX_BYTES``, named ``what``, and say what to use ``instead``.

    It is for a tensor that long work leads to. One that is made at once is refused by PyTorch's
    allocator, and :func:`checked` says so.
    """
    if bytes_needed > MAX_BYTES:
        gigabytes = bytes_needed // 2**30
        raise ValueError(f"{what} would take {gigabytes} GiB of memory: use {instead}.")


def require_generator(generator: object, name: str = "generator") -> torch.Generator:
    """Check that ``generator`` is a ``torch.Generator`` on the CPU, and return it."""
    argument = f"{name}=" if name.isidentifier() else ""  # and not "each of generators"
    hint = f"Pass for example {argument}torch.Generator().manual_seed(0)."
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator, got {generator!r}. {hint}")
    if generator.device.type != "cpu":
        raise ValueError(
            f"{name} must be on the CPU, where draws are the same for every device, got one on "
            f"{generator.device}. {hint}"
        )
    return generator
