"""What was made of a text is kept until the text, or a tool, changes."""

from pathlib import Path

import memory
import pytest


def lengths(root: Path, *texts: str) -> list[str]:
    """The texts of which the length had to be computed."""
    computed = []

    def length(text: str) -> int:
        computed.append(text)
        return len(text)

    with memory.Memory(root, "lengths") as known:
        for text in texts:
            assert known.of(text.encode(), lambda text=text: length(text)) == len(text)
    return computed


def test_a_text_is_computed_once(tmp_path: Path) -> None:
    assert lengths(tmp_path, "one", "two", "one") == ["one", "two"]
    assert lengths(tmp_path, "two", "three") == ["three"]
    assert lengths(tmp_path, "one") == ["one"]  # was not asked for in between


def test_another_tool_computes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths(tmp_path, "one")
    monkeypatch.setattr(memory, "tools", lambda: "others")
    assert lengths(tmp_path, "one") == ["one"]
    assert lengths(tmp_path, "one") == []
