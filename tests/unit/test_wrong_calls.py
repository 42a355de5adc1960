"""Generated wrong calls of every public callable: refused at the door, or legal by a stated rule.

500 calls, the same each time; `MPT_LML_WRONG_CALLS=10000` asks for as many others.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from surface import SURFACE
from wrong_calls_networks import table as networks
from wrong_calls_table import table

pytestmark = [pytest.mark.bad_input, pytest.mark.slow]

TABLE = table() | networks()
CALLS = int(os.environ.get("MPT_LML_WRONG_CALLS", "500"))
# Public names without a case, and why.
WITHOUT = {
    "ConditionalModel": "abstract; its methods are called on each model",
    "data.CorruptDataError": "an error",
    "data.DataNotFoundError": "an error",
    "fit.Checkpoint": "a protocol: an object of the user's",
    "masks.UniformSize": "no argument; its methods are there",
    "gaussian.LowRankPosterior": "made by `of`",
    "theory.godambe.Godambe": "made by `of`",
    "theory.diffusion.schedule_derivative": "there",
    "score.AnswerScores": "made by `answers`; its methods are there",
    "score.PairScores": "made by `pairs`; its methods are there",
    "score.SentenceScores": "made by `sentences`; its methods are there",
    "score.Scorer": "made by `load`; its methods are there",
}


def test_every_public_name_has_a_case_or_a_reason() -> None:
    assert [name for name in SURFACE if name not in TABLE and name not in WITHOUT] == []


@pytest.mark.parametrize("name", TABLE)
def test_the_valid_call_is_one(name: str) -> None:
    assert TABLE[name].judge() is None


def test_wrong_calls_are_refused() -> None:
    faults: Counter[str] = Counter()
    places = [(name, argument) for name, case in TABLE.items() for argument in case.kinds]

    @settings(
        max_examples=CALLS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(places), st.integers(0, 10**6), st.integers(0, 2**32))
    def generated(place: tuple[str, str], which: int, seed: int) -> None:
        name, argument = place
        tried = TABLE[name].kinds[argument].tried(random.Random(seed))
        if tried:
            value = tried[which % len(tried)]
            said = TABLE[name].judge(argument, value)
            if said is not None:
                faults[f"{name}({argument}): {said} <- {str(value)[:60]}"] += 1

    generated()
    print(f"{CALLS} calls, {faults.total()} faults")
    assert not faults, "\n".join(faults)
