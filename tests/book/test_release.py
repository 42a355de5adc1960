"""What is published: addresses, citation, forms, and the wheel as a reader installs it.

`make release` leaves in `dist/` exactly the files that were tried here (MPT_LML_DIST).
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import serve
import yaml
from book_layout import ROOT, Book
from checks import run

import mpt_lml

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
if "date-released" in CITATION:
    CITATION["date-released"] = str(CITATION["date-released"])
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
LINKS = runpy.run_path(str(ROOT / ".ci" / "links.py"))

# The part of the Citation File Format 1.2.0 that is used here; anything else is a misprint.
TEXT = {"type": "string", "minLength": 1}
PEOPLE = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            {"required": ["name"], "properties": {"name": TEXT}, "additionalProperties": False},
            {
                "required": ["family-names", "given-names"],
                "properties": {"family-names": TEXT, "given-names": TEXT, "orcid": TEXT},
                "additionalProperties": False,
            },
        ]
    },
}
REFERENCE = {
    "type": "object",
    "required": ["type", "title", "authors"],
    "additionalProperties": False,
    "properties": {
        "type": {"enum": ["article", "book", "conference-paper", "report", "software"]},
        "title": TEXT,
        "authors": PEOPLE,
        "collection-title": TEXT,
        "year": {"type": "integer", "minimum": 1900},
        "url": TEXT,
        "doi": {"type": "string", "pattern": r"^10\.\d{4,9}(\.\d+)?/\S+$"},
    },
}
CFF = {
    "type": "object",
    "required": ["cff-version", "message", "title", "authors"],
    "additionalProperties": False,
    "properties": {
        "cff-version": {"const": "1.2.0"},
        "message": TEXT,
        "title": TEXT,
        "abstract": TEXT,
        "type": {"enum": ["software", "dataset"]},
        "authors": PEOPLE,
        "version": TEXT,
        "date-released": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        "license": {"enum": ["MIT"]},
        "repository-code": {"type": "string", "pattern": "^https://"},
        "url": {"type": "string", "pattern": "^https://"},
        "doi": REFERENCE["properties"]["doi"],
        "keywords": {"type": "array", "items": TEXT, "uniqueItems": True, "minItems": 1},
        "references": {"type": "array", "items": REFERENCE},
    },
}


def test_the_citation_is_valid_and_of_this_version() -> None:
    jsonschema.validate(CITATION, CFF)
    jsonschema.validate(CITATION | {"date-released": "2026-11-21"}, CFF)
    assert CITATION["repository-code"] == Book().repository
    assert CITATION["license"] == PROJECT["license"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"authors": []},
        {"subtitle": "x"},
        {"date-released": "21.11.2026"},
        {"authors": [{"names": "x"}]},
    ],
)
def test_a_citation_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(CITATION | wrong, CFF)


def test_one_version_everywhere() -> None:
    versions = {PROJECT["version"], CITATION["version"], mpt_lml.__version__}
    versions |= {os.environ.get("MPT_LML_TAG", PROJECT["version"]).removeprefix("v")}
    assert versions == {PROJECT["version"]}
    newest = re.search(r"^## (\S+) \((.+)\)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest is not None and newest[1] == PROJECT["version"]
    # A date of release is in both or in neither, and a tagged version has one.
    assert newest[2] == CITATION.get("date-released", "in preparation")
    assert "MPT_LML_TAG" not in os.environ or "date-released" in CITATION


def relative(text: str) -> list[str]:
    """Targets of links and images that lead nowhere outside of the repository's own pages."""
    found = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"(?:src|href)=\"([^\"]+)", text)
    return [target for target in found if not target.startswith("https://")]


def test_the_readme_renders_where_packages_are_published() -> None:
    assert relative(README) == []
    assert relative("[a](LICENSE) ![b](book/x.svg) [c](https://a.b)") == ["LICENSE", "book/x.svg"]


def test_every_address_of_the_project_is_the_one_of_the_configuration() -> None:
    book = Book()
    owner_and_name = book.repository.removeprefix("https://github.com/")
    raw = f"https://raw.githubusercontent.com/{owner_and_name}/main/"
    blob = f"{book.repository}/blob/main/"
    own = [book.repository, book.site, raw, f"https://codespaces.new/{owner_and_name}"]
    own += [book.colab(page.docname) for page in book.chapters]
    own += ["https://colab.research.google.com/assets/colab-badge.svg"]
    found = [*re.findall(r"https://[^\s)>]+", README), *PROJECT["urls"].values()]
    for address in found:
        assert address.startswith(tuple(own)), address
        for place in (raw, blob):
            if address.startswith(place):
                assert (ROOT / address.removeprefix(place)).is_file(), address
        page = address.removeprefix(book.site + "/")
        if page != address:
            assert (ROOT / page).with_suffix(".md").is_file(), address
        form = re.search(r"issues/new\?template=(.+)", address)
        assert form is None or form[1] in [path.name for path in FORMS]


@pytest.mark.parametrize("path", FORMS, ids=[path.stem for path in FORMS])
def test_a_form_is_one(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form) <= {
        "name", "description", "body", "title", "labels", "assignees",
    }  # fmt: skip
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    names = [part["id"] for part in asked]
    assert len(names) == len(set(names)) > 0
    for part in asked:
        assert part["type"] in ("input", "textarea", "dropdown", "checkboxes")
        assert part["attributes"]["label"]
        assert (part["type"] == "dropdown") == ("options" in part["attributes"])


def test_the_container_runs_commands_that_there_are() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in ("postCreateCommand", "postAttachCommand"):
        make, target = container[step].split()
        assert make == "make" and re.search(rf"^{target}:", makefile, re.M), container[step]
    (port,) = container["forwardPorts"]
    assert port == serve.PORT
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert f":{lowest}-" in container["image"] and f"python{lowest}" in makefile


def test_addresses_in_a_text() -> None:
    text = "See (https://a.b/c_(d)), <https://e.f>; doi = {10.1/x} and https://g.h/i#j. `http://localhost`"
    assert LINKS["addresses"](text) == {
        "https://a.b/c_(d)",
        "https://e.f",
        "https://g.h/i",
        "https://doi.org/api/handles/10.1/x",
    }


def test_what_is_gone_is_asked_twice_and_reported() -> None:
    answers = {
        "there": [""],
        "gone": ["gone: 404"] * 2,
        "back": ["gone: 404", ""],
        "shy": ["not known: 403"],
    }
    found = dict(LINKS["report"](answers, lambda address: answers[address].pop(0)))
    assert found == {"gone": "gone: 404", "shy": "not known: 403"}


# The wheel, as a reader has it


PINS = ROOT / ".ci" / "pins"


def environment(folder: Path, *asked: object) -> Path:
    """The interpreter of a new environment in which pip was ``asked`` to install something."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-compile", *asked, cwd=folder.parent)
    return python


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with build backend, build and twine, all of known hashes."""
    folder = tmp_path_factory.mktemp("tools") / "venv"
    return environment(folder, "--require-hashes", "-r", PINS / "release.txt")


@pytest.fixture(scope="module")
def dist(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel (made from the sdist) and sdist."""
    folder = tmp_path_factory.mktemp("release")
    target = (
        (ROOT / os.environ["MPT_LML_DIST"]) if "MPT_LML_DIST" in os.environ else folder / "dist"
    )
    # Isolated, build would install the newest backend, whose hash nobody knows.
    run(tools, "-m", "build", "--no-isolation", "--outdir", target, ROOT, cwd=folder)
    files = sorted(target.iterdir())
    stem = f"mpt_lml-{PROJECT['version']}"
    assert [path.name for path in files] == [f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"]
    assert run(tools, "-m", "twine", "check", "--strict", *files, cwd=folder).count("PASSED") == 2
    return target


@pytest.fixture(scope="module")
def reader(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = dist.glob("*.whl")
    folder = tmp_path_factory.mktemp("reader") / "venv"
    return environment(folder, "-c", ROOT / "constraints.txt", f"{wheel}[score]")


def outside() -> dict[str, str]:
    """Nothing of this process that could let the checkout in, and no network."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MPT_LML_DATA", "COVERAGE_PROCESS_START")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


USED = """
import sys, torch, mpt_lml
from mpt_lml import PPCA, data
from mpt_score import MaskedLM, networks
assert mpt_lml.__file__.startswith(sys.prefix), mpt_lml.__file__
assert mpt_lml.__version__ == sys.argv[1]
x = data.images("digits", "test").pixels
assert PPCA.fit_closed_form(x, 2).log_marginal(x).isfinite().all()
assert mpt_lml.load("table-1").findings
network, tokenizer = networks.load_small_bert()
with torch.no_grad():
    ids = tokenizer("the sea", return_tensors="pt")["input_ids"]
    assert network(input_ids=ids).logits.isfinite().all()
print("used")
"""


@pytest.mark.slow
def test_the_wheel_works_where_there_is_no_checkout(reader: Path, tmp_path: Path) -> None:
    assert run(reader, "-c", USED, PROJECT["version"], cwd=tmp_path, env=outside()) == "used\n"
    assert not list(tmp_path.iterdir())  # nothing is left in the reader's folder


TYPED = """
import mpt_lml
import mpt_score

estimate: mpt_lml.Estimate = mpt_score.sentences("folder", ["the cat"]).mean("byte")
"""
MISTYPED = f"""{TYPED}
mpt_score.sentences("folder", ["the cat"], pseudo="yes")
"""


@pytest.mark.slow
@pytest.mark.parametrize("text, num_errors", [(TYPED, 0), (MISTYPED, 1)])
def test_the_types_of_a_users_calls_are_checked(
    dist: Path, tmp_path: Path, text: str, num_errors: int
) -> None:
    """Each package has its py.typed: without one, its import is the error."""
    (wheel,) = dist.glob("*.whl")
    # Without torch and the others, which mypy would take minutes to read.
    python = environment(tmp_path / "venv", "--no-deps", wheel)
    (tmp_path / "user.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--python-executable", python, "user.py"],
        cwd=tmp_path, env=outside(), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.count("error:") == num_errors, done.stdout + done.stderr
    assert done.returncode == int(num_errors > 0), done.stdout + done.stderr
