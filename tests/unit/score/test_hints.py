"""When an option of a prompt is likely to miss its space."""

from __future__ import annotations

import pytest

from mpt_score.hints import missing_space_hint


@pytest.mark.parametrize(
    ("prompt", "option", "joined"),
    [
        ("The cake is", "done", '"isdone"'),
        ("The cake is", "done, she said.", '"isdone,"'),
        ("They married in", "1999", '"in1999"'),
        ("Is it done?", "Yes", '"done?Yes"'),
        ("Он пришёл", "домой", '"пришёлдомой"'),
    ],
)
def test_two_words_that_become_one(prompt: str, option: str, joined: str) -> None:
    hint = missing_space_hint(prompt, option)
    assert hint is not None and joined in hint
    assert missing_space_hint(prompt, f" {option}") is None
    assert missing_space_hint(f"{prompt} ", option) is None


@pytest.mark.parametrize(
    ("prompt", "option"),
    [
        ("The steak was well-", "done"),
        ("He said “", "done"),
        ("It belongs to O'", "Brien"),
        ("The cake (", "done)"),
        ("The cake is done", "."),
        ("The cake is", ""),
        ("", "done"),
        ("MKTAYIAK", "QR"),
        ("我 是", "学生"),
        ("这 叫", "done"),
        ("The cake is\n", "done"),
    ],
)
def test_what_joins_as_it_is_meant(prompt: str, option: str) -> None:
    assert missing_space_hint(prompt, option) is None
