"""Every public call on a second device: a GPU where there is one, an emulator of it elsewhere.

Masks, orders and other indices follow the data. Data elsewhere than the model are refused, by a model
that is a network they are taken from anywhere. Answers are where the data are, and have the numbers
that they have on the CPU. A default device (``torch.set_default_device``) changes neither.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import valid_calls
import valid_calls_networks
from jaxtyping import AbstractArray
from models import generator
from moved import PACKAGES, Move, attributes, has_tensors, other_device, package_of
from other_device import DEVICE, MPS, OtherDevice
from test_valid_calls import alternatives_of, annotations_of, name_of
from torch import Tensor
from valid_calls import Call

from mpt_lml import ConditionalModel, curves, fit, numerics
from mpt_lml.theory import godambe
from mpt_score import Design, Scorer, SentenceScores, TokenScores
from mpt_score.quantities.sentence_curves import SentenceCurves
from mpt_score.tokens import Tokens

HERE = torch.device("cpu")
# Texts and what is said of them are on the CPU, wherever a network is.
OF_TEXTS = (SentenceScores, TokenScores, SentenceCurves, Design, Tokens, Scorer)

CALLS = []
for call in valid_calls.CALLS + valid_calls_networks.CALLS:
    owner = getattr(call.function, "__self__", call.function)
    if not isinstance(owner, OF_TEXTS) and owner not in OF_TEXTS:
        CALLS.append(call)


# -- the arguments of a call, moved --------------------------------------------------------------------


def run(call: Call, device_of: Callable[[str], torch.device], *, in_single: bool = False) -> Any:
    """Call with each argument on a device that follows from its name; the owner's is "self"."""

    @functools.cache
    def move_to(device: torch.device) -> Move:
        return Move(device, in_single)

    arguments = {name: move_to(device_of(name))(value) for name, value in call.arguments.items()}
    function: Any = call.function
    if isinstance(function, types.MethodType):
        function = move_to(device_of("self"))(function)
    return function(**arguments)


def is_index(call: Call, name: str) -> bool:
    """Whether an argument is a mask, an order or another index, and no data."""
    if name == "ids":
        return False  # of tokens, which are data
    kinds = []
    for alternative in alternatives_of(annotations_of(call.function).get(name)):
        if inspect.isclass(alternative) and issubclass(alternative, AbstractArray):
            kinds.append("bool" in alternative.dtypes or "int64" in alternative.dtypes)
    return bool(kinds) and all(kinds)


def data_of(call: Call) -> list[str]:
    """The arguments with tensors that are no index, and the owner of a method."""
    names = []
    for name, value in call.arguments.items():
        if not is_index(call, name) and has_tensors(value):
            names.append(name)
    if has_tensors(owner_of(call)):
        names.append("self")
    return names


def owner_of(call: Call) -> Any:
    """The object whose method is called, if it is one."""
    owner = getattr(call.function, "__self__", None)
    return None if inspect.isclass(owner) else owner


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of an answer, in an order of their own."""
    if isinstance(value, OF_TEXTS):
        return []  # `load` chooses a precision for the device
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_in(each)]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_in(each)]
    if package_of(value) in PACKAGES and hasattr(value, "__dict__"):
        return [tensor for each in attributes(value).values() for tensor in tensors_in(each)]
    return []


# -- what is asked of every call -----------------------------------------------------------------------


# A GPU adds in another order than the CPU, on which an emulated one computes.
ALLOWED = {"rtol": 1e-4, "atol": 1e-5} if torch.cuda.is_available() else {}


@functools.cache
def answer_here(number: int) -> list[Tensor]:
    """All tensors of the answer of a call on the CPU, whatever the default device is.

    The answer with which it is compared is made while that is the CPU.
    """
    with torch.device("meta"):
        answer = tensors_in(run(CALLS[number], lambda name: HERE))
    assert {tensor.device for tensor in answer} <= {HERE}
    return answer


def devices_of_answer(call: Call, device_of: Callable[[str], torch.device]) -> set[torch.device]:
    """With arguments on these devices, after a comparison with the answer on the CPU."""
    with other_device():
        answer = tensors_in(run(call, device_of))
        devices = {tensor.device for tensor in answer}
        values = [tensor.detach().cpu() for tensor in answer]
    for value, value_here in zip(values, answer_here(CALLS.index(call)), strict=True):
        torch.testing.assert_close(value, value_here.detach(), equal_nan=True, **ALLOWED)
    return devices


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_all_tensors_there(call: Call) -> None:
    devices = devices_of_answer(call, lambda name: DEVICE)
    if any(has_tensors(value) for value in (*call.arguments.values(), owner_of(call))):
        assert devices <= {DEVICE}


@pytest.mark.parametrize(
    "call",
    [call for call in CALLS if any(is_index(call, name) for name in call.arguments)],
    ids=name_of,
)
def test_indices_alone_here(call: Call) -> None:
    devices = devices_of_answer(call, lambda name: HERE if is_index(call, name) else DEVICE)
    if data_of(call):
        assert devices <= {DEVICE}


DATA_OF_CALLS = [(call, data_of(call)) for call in CALLS]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "name"),
    [(call, name) for call, names in DATA_OF_CALLS if len(names) > 1 for name in names],
    ids=lambda value: name_of(value) if isinstance(value, Call) else value,
)
def test_data_elsewhere_than_the_model(call: Call, name: str) -> None:
    """Refused in a sentence that names both devices, or right all the same."""
    refusal = ""
    try:
        devices_of_answer(call, lambda other: HERE if other == name else DEVICE)
    except ValueError as error:
        refusal = str(error)
    sentence = "must be on (cpu|cuda:0), where .+ is, and is on (cpu|cuda:0)"
    assert not refusal or re.search(sentence, refusal)


# One keeps numbers in double precision beside its float32; one asks for a rank, which mps computes.
NEVER_SINGLE = ("gaussian.LowRankPosterior.", "theory.godambe.GaussianFamily")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "call", [call for call in CALLS if not name_of(call).startswith(NEVER_SINGLE)], ids=name_of
)
def test_a_device_without_double_precision(call: Call) -> None:
    """Such as Apple's "mps": refused in a sentence that says what to do, or answered."""
    refusal = ""
    with OtherDevice(MPS) as other:
        try:
            run(call, lambda name: other.device, in_single=True)
        except TypeError as error:
            refusal = str(error)
    assert not refusal or "has no double precision" in refusal


def test_a_model_may_say_a_device_without_its_number() -> None:
    device = torch.device("cuda")

    class Noise(ConditionalModel):
        num_features = 2
        data_device = device

        def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
            return numerics.log_normal(x, torch.ones(2, device=device))

    with other_device():
        x = torch.zeros(3, 2, device=device)
        curve = curves.sampled_curve(Noise(), x, 1, generator=generator())
        assert curve.score.device == DEVICE


@pytest.mark.bad_input  # a tensor where a float is asked for
@pytest.mark.parametrize("device", [DEVICE, HERE], ids=str)
def test_a_number_follows_the_data(device: torch.device) -> None:
    elsewhere = HERE if device == DEVICE else DEVICE
    with other_device():
        loadings = torch.ones(3, 1, device=device)
        noise_variance = torch.tensor(0.5, device=elsewhere)
        family = godambe.GaussianFamily.ppca(loadings, noise_variance)
        assert family.covariance.device == device


@pytest.mark.bad_input
def test_models_refuse_data_elsewhere() -> None:
    model = valid_calls.MODEL
    message = r"x must be on cpu, where the model is, and is on cuda:0\."
    with other_device():
        x = valid_calls.X.to(DEVICE)
        with pytest.raises(ValueError, match=message):
            model.log_conditional(x, valid_calls.HIDDEN)


@pytest.mark.bad_input
def test_a_law_elsewhere_than_the_information_is_named() -> None:
    message = r"probabilities must be on cuda:0, where the model is, and is on cpu\."
    with other_device():
        family = godambe.GaussianFamily.ppca(torch.ones(3, 1, device=DEVICE), 0.5)
        information = godambe.Godambe.of(family)
        with pytest.raises(ValueError, match=message):
            information.law_efficiency(torch.full((3,), 1 / 3))


@pytest.mark.bad_input
def test_a_tensor_among_parameters_is_named() -> None:
    message = r"parameters\['b'\] must be on cuda:0, where parameters\['a'\] is, and is on cpu\."
    with other_device():
        parameters = {"a": torch.zeros(2, device=DEVICE), "b": torch.zeros(2)}
        with pytest.raises(ValueError, match=message):
            fit.maximize(parameters, _nothing, num_epochs=1, learning_rate=0.1)


def _nothing(parameters: Any, generators: Any) -> Tensor:
    return torch.zeros(2)


@pytest.mark.bad_input
def test_generators_are_on_the_cpu() -> None:
    class OnACard(torch.Generator):
        device = DEVICE  # type: ignore[assignment]

    with pytest.raises(ValueError, match="generator must be on the CPU.*got one on cuda:0"):
        valid_calls.MODEL.sample(2, generator=OnACard())
