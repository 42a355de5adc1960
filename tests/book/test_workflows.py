"""Workflows run the actions and tools that were read, and only a job that publishes gets a token."""

from __future__ import annotations

import re
import subprocess
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


def keeping_credentials(text: str) -> list[str]:
    """Jobs whose checkout leaves the token of the run in the working copy."""
    found = []
    for name, job in yaml.safe_load(text)["jobs"].items():
        for step in job["steps"]:
            persists = step.get("with", {}).get("persist-credentials", True)
            if "actions/checkout@" in step.get("uses", "") and persists is not False:
                found.append(name)
    return found


def without_hashes(text: str) -> list[str]:
    """Calls of pip that install something else than the package itself or files of known hashes."""
    calls = re.findall(r"\bpip install (.+)", text)
    own = re.compile(r"-e ?[\"'.]")
    return [call for call in calls if "--require-hashes -r " not in call and not own.search(call)]


def floating_images(text: str) -> list[str]:
    """Containers of jobs that are not named by their digest."""
    jobs = yaml.safe_load(text)["jobs"].values()
    images = [str(job["container"]) for job in jobs if "container" in job]
    return [image for image in images if not re.search(r"@sha256:[0-9a-f]{64}\b", image)]


@workflows
def test_nothing_floats_and_no_credential_stays(path: Path) -> None:
    text = path.read_text()
    assert keeping_credentials(text) == []
    assert without_hashes(text) == []
    assert floating_images(text) == []


PINS = sorted((ROOT / ".ci" / "pins").glob("*.txt"))


@pytest.mark.parametrize("path", PINS, ids=[path.stem for path in PINS])
def test_each_pinned_tool_has_its_hashes(path: Path) -> None:
    text = path.read_text().replace("\\\n", "")
    asked = path.with_suffix(".in").read_text().split()
    assert {line.split("==")[0] for line in text.splitlines()} >= set(asked)
    for line in text.splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}\s*", line), line


def test_a_bot_moves_every_pin() -> None:
    bot = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())
    kinds = {(each["package-ecosystem"], each["directory"]) for each in bot["updates"]}
    assert kinds == {("github-actions", "/"), ("pip", "/"), ("pip", "/.ci/pins")}
    assert all(each["cooldown"]["default-days"] >= 7 for each in bot["updates"])


def test_what_floats_is_found() -> None:
    checkout = "jobs: {a: {steps: [{uses: actions/checkout@v4, with: {persist-credentials: X}}]}}"
    assert keeping_credentials(checkout.replace("X", "false")) == []
    assert keeping_credentials(checkout.replace("X", "true")) == ["a"]
    assert keeping_credentials("jobs: {a: {steps: [uses: actions/checkout@v4]}}") == ["a"]
    assert without_hashes("run: pip install twine\nrun: pip install -e .") == ["twine"]
    image = "jobs: {a: {container: 'python:3.11X', steps: []}}"
    assert floating_images(image.replace("X", "@sha256:" + "0" * 64)) == []
    assert floating_images(image.replace("X", "")) == ["python:3.11"]


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


def own_commands(text: str) -> list[str]:
    """Steps of jobs that run something else than one script of .ci or one target of make."""
    commands = []
    for name, job in yaml.safe_load(text)["jobs"].items():
        if name == "report":
            continue  # nothing of the repository is there
        commands += [step["run"].strip() for step in job["steps"] if "run" in step]
    script = re.compile(r'(bash|python) \.ci/[\w.-]+( "\$\w+")?( #.*)?|make [\w-]+( #.*)?')
    return [command for command in commands if not script.fullmatch(command)]


def scripts_of(text: str) -> set[str]:
    return set(re.findall(r"\.ci/([\w.-]+)", text))


@workflows
def test_a_job_is_one_script(path: Path) -> None:
    """So that what fails there can be run here."""
    others = own_commands(path.read_text())
    # Colab's image is started by docker, and runs the script inside.
    assert [command for command in others if '"$IMAGE" .ci/colab' not in command] == []


def test_workflows_and_scripts_agree() -> None:
    scripts = {path.name for path in (ROOT / ".ci").iterdir() if path.is_file()}
    called = set().union(*(scripts_of(path.read_text()) for path in WORKFLOWS))
    assert called == scripts - {"gpu"}  # for a machine with a GPU, which no runner has
    for name in scripts - {"links.py"}:
        subprocess.run(["bash", "-n", ROOT / ".ci" / name], check=True)


def test_a_step_beside_the_scripts_is_found() -> None:
    assert own_commands("jobs: {a: {steps: [run: bash .ci/run, run2: x]}}") == []
    assert own_commands('jobs: {a: {steps: [{run: "pip install x"}]}}') == ["pip install x"]
    assert own_commands('jobs: {a: {steps: [{run: "bash .ci/run; ls"}]}}') == ["bash .ci/run; ls"]


def test_every_weekly_job_is_reported() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())["jobs"]
    assert set(jobs["report"]["needs"]) == set(jobs) - {"report"}
