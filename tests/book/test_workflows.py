"""Workflows run the actions that were read, and only a job that publishes gets a token for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from book_layout import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+(\.\d+)+$")
workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])


def floating(text: str) -> list[str]:
    """Actions that are not named by a commit with its version beside it."""
    used = [line.strip("- ") for line in text.splitlines() if re.search(r"\buses:", line)]
    return [line for line in used if not PINNED.fullmatch(line)]


def with_a_token(text: str) -> list[str]:
    """What can identify itself to another service and runs commands besides ("all": every job)."""
    content = yaml.safe_load(text)
    places = {"all": content} | content["jobs"]
    rights = {name: place.get("permissions", {}) for name, place in places.items()}
    able = [n for n, right in rights.items() if right == "write-all" or "id-token" in right]
    commands = [n for n, job in content["jobs"].items() if any("run" in s for s in job["steps"])]
    return [name for name in able if name in ("all", *commands)]


@workflows
def test_actions_are_commits(path: Path) -> None:
    assert floating(path.read_text()) == []


@workflows
def test_a_token_is_for_publishing_alone(path: Path) -> None:
    text = path.read_text()
    assert with_a_token(text) == []
    assert "permissions" in yaml.safe_load(text)  # without the line a job may write to everything


COMMIT = "11d5960a326750d5838078e36cf38b85af677262"


def test_a_tag_or_a_branch_is_found() -> None:
    assert floating(f"      - uses: actions/checkout@{COMMIT} # v4.4.0\n        uses: x\n") == [
        "uses: x"
    ]
    for name in ("v4", "main", COMMIT, f"{COMMIT[1:]} # v4.4.0", f"{COMMIT} # v4"):
        assert floating(f"- uses: actions/checkout@{name}") == [f"uses: actions/checkout@{name}"]


def test_a_token_beside_commands_is_found() -> None:
    jobs = (
        "jobs: {deploy: {permissions: {id-token: write}, steps: [uses: x]}, a: {steps: [run: y]}}"
    )
    assert with_a_token(jobs) == []
    assert with_a_token("permissions: {id-token: write}\n" + jobs) == ["all"]
    assert with_a_token("permissions: write-all\n" + jobs) == ["all"]
    assert with_a_token(jobs.replace("uses: x", "run: x")) == ["deploy"]


def test_every_weekly_job_is_reported() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())["jobs"]
    assert set(jobs["report"]["needs"]) == set(jobs) - {"report"}
