"""A valid call of every public callable runs; with an argument of a wrong type or shape it is refused.

What is tried instead of an argument is wrong by its annotation alone. What mathematics asks for besides
is tried by hand, in `test_bad_input.py` and where it belongs.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Union

import pytest
import torch
import valid_calls
import valid_calls_networks
from jaxtyping import AbstractArray
from surface import SURFACE
from torch import Tensor
from transformers import ViTMAEForPreTraining
from valid_calls import Call

from mpt_lml import ConditionalModel, TractableModel

pytestmark = pytest.mark.bad_input

CALLS = valid_calls.CALLS + valid_calls_networks.CALLS
# Public names without a valid call, and why.
WITHOUT = {
    "ConditionalModel": "abstract; its methods are called on each model",
    "TractableModel": "abstract; its methods are called on each model",
    "data.CorruptDataError": "an error",
    "data.DataNotFoundError": "an error",
    "plots.COLORS": "a constant",
    "masks.SizeLaw": "abstract; its methods are called on each law",
    "results.History": "made by `maximize`",
    "results.Maxima": "made by `bfgs`",
    "models.row_network.NOISE_VARIANCE": "a constant",
    "models.row_network.NUM_ROWS": "a constant",
    "models.row_network.PRIORS": "a constant",
    "masks.UniformSize": "no argument; its methods are there",
    "gaussian.LowRankPosterior": "made by `of`",
    "score.networks.BERT_BASE": "a constant",
    "score.networks.BERT_BASE_COMMIT": "a constant",
    "score.networks.CheckpointError": "an error",
    "score.networks.VIT_MAE_BASE": "a constant",
    "score.networks.VIT_MAE_BASE_COMMIT": "a constant",
    "score.networks.vit_mae.IMAGENET": "a constant",
    "orders.confidence": "a rule, which `orders.adaptive` calls",
    "orders.left_to_right": "a rule, which `orders.adaptive` calls",
    "orders.MixtureBounds": "made by `mixture_bounds`",
    "orders.AdaptiveOrder": "made by `adaptive`",
    "scores.OverOrders": "made by `orders.exact`",
    "theory.diffusion.Draws": "made by `sample`",
    "theory.chains.ChainBlocks": "made by `markov_blocks`",
    "score.Accuracy": "made by `PairScores.accuracy`",
    "score.Contrast": "made by `contrast` of scores; its methods are there",
    "score.AnswerScores": "made by `answers`; its methods are there",
    "score.PairScores": "made by `pairs`; its methods are there",
    "score.SentenceScores": "made by `sentences`; its methods are there",
    "score.TokenScores": "made by `surprisals`; its methods are there",
    "score.texts.fetch_books": "asks a network",
    "score.Scorer": "made by `load`; its methods are there",
}


def name_of(call: Call) -> str:
    """Such as ``models.ppca.PPCA.log_marginal``."""
    owner = getattr(call.function, "__self__", call.function)
    kind = owner if inspect.isroutine(owner) or inspect.isclass(owner) else type(owner)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind is not call.function:
        name += f".{call.function.__name__}"
    return name.partition(".")[2]


def test_every_public_name_has_a_valid_call_or_a_reason() -> None:
    called = [call.function for call in CALLS]
    missing = [name for name, function in SURFACE.items() if function not in called]
    assert [name for name in missing if name not in WITHOUT] == []


BASES = (ConditionalModel, TractableModel)


def test_the_methods_of_every_public_model_are_called() -> None:
    called = set()
    for call in CALLS:
        owner = getattr(call.function, "__self__", None)
        called.add((type(owner), call.function.__name__))
    missing = []
    for name, model in SURFACE.items():
        for base in BASES:
            if not inspect.isclass(model) or model in BASES or not issubclass(model, base):
                continue
            for method, function in vars(base).items():
                is_public = inspect.isfunction(function) and not method.startswith("_")
                # Not every model has a list of values.
                if is_public and method != "log_values" and (model, method) not in called:
                    missing.append(f"{name}.{method}")
    assert missing == [], "a row in the list of methods() of valid_calls.py makes these calls"


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_a_wrong_type_or_shape_is_refused_by_its_name(call: Call) -> None:
    call.function(**call.arguments)  # which is valid
    for name, value in wrong_arguments(call):
        refusal = refusal_of(call, name, value)
        assert re.search(rf"\b{name}\b", refusal), f"{name} = {value!r:.80}: {refusal}"


def refusal_of(call: Call, name: str, value: Any) -> str:
    """What is said to a call with another value of one argument."""
    try:
        call.function(**(call.arguments | {name: value}))
    except (TypeError, ValueError) as error:
        return str(error)
    return "it was accepted"


# -- what is wrong by the annotations -----------------------------------------------------------------


def wrong_arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """Names of arguments, each with something that it must not be."""
    annotations = annotations_of(call.function)
    letters = Counter(letters_of_model(call))
    for annotation in annotations.values():
        letters.update(letters_of(annotation))
    for name, value in call.arguments.items():
        annotation = annotations.get(name, Any)
        for wrong in wrong_types(annotation):
            yield name, wrong
        if isinstance(value, Tensor):
            for wrong in wrong_tensors(annotation, value, letters):
                yield name, wrong


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Of the arguments."""
    source = inspect.unwrap(function)
    if inspect.isclass(source):
        source = inspect.unwrap(source.__init__)
    # Its class of transformers is imported for the type checker alone.
    late = {"ViTMAEForPreTraining": ViTMAEForPreTraining}
    hints = typing.get_type_hints(source, localns=late, include_extras=True)
    hints.pop("return", None)
    return hints


def alternatives_of(annotation: Any) -> list[Any]:
    """The parts of a union, without what is said besides them."""
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
    if origin is Annotated and parts[0] is not Any:
        return alternatives_of(parts[0])
    if origin in (Union, types.UnionType):
        return [alternative for part in parts for alternative in alternatives_of(part)]
    return [annotation]


def wrong_types(annotation: Any) -> Iterator[Any]:
    alternatives = alternatives_of(annotation)
    if Any in alternatives or object in alternatives:
        return
    yield object()
    if types.NoneType not in alternatives:
        yield None
    if str not in alternatives:
        yield "a word"
    if int in alternatives and float not in alternatives:
        yield 1.5
    if {int, float}.intersection(alternatives) and bool not in alternatives:
        yield True


def wrong_tensors(annotation: Any, value: Tensor, letters: Counter[str]) -> Iterator[Tensor]:
    """Another dtype, an axis more, an entry fewer along an axis that something else has, too."""
    yield value.half()
    yield value.long() if value.dtype != torch.int64 else value.double()
    axes = letters_of(annotation)
    if not all(axis.isalpha() for axis in axes) or not axes:
        return  # "..." or "*B": there may be more
    yield value[None]
    for axis, letter in enumerate(axes):
        if letters[letter] > 1 and value.shape[axis] > 1:
            yield value.narrow(axis, 0, value.shape[axis] - 1)


def letters_of(annotation: Any) -> list[str]:
    """The axes of a tensor, such as N and D; none where its annotation is no tensor alone."""
    for alternative in alternatives_of(annotation):
        if inspect.isclass(alternative) and issubclass(alternative, AbstractArray):
            return alternative.dim_str.split()
    return []


def letters_of_model(call: Call) -> list[str]:
    """The axes whose sizes a model says."""
    model = call.arguments.get("model", getattr(call.function, "__self__", None))
    sizes = {"D": "num_features", "K": "latent_dim"}
    return [letter for letter, size in sizes.items() if isinstance(getattr(model, size, None), int)]
