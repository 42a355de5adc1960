"""Is every address outside still there? `python .ci/links.py`, before a release; needs a network.

A DOI is asked of the registry itself, which answers programs; publishers often do not. What says
"gone" fails; what refuses a program, is busy or slow is listed and does not.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "README.md",
    "CONTRIBUTING.md",
    "tests/README.md",
    "CITATION.cff",
    "pyproject.toml",
    "book/*.md",
    "book/*.bib",
)
ADDRESS = re.compile(r"https?://[^\s<>\"'`{}|\\^]+")
DOI = re.compile(r"\bdoi\s*=\s*\{([^}]+)\}", re.I)
GONE = (404, 410)


def addresses(text: str) -> set[str]:
    """Every address in ``text``, without the punctuation of its sentence; DOIs as the registry's."""
    unique = set()
    for address in ADDRESS.findall(text):
        address = address.split("#")[0].rstrip(".,;:!?*]")
        while address.endswith(")") and address.count(")") > address.count("("):
            address = address[:-1].rstrip(".,;:!?*]")
        if "localhost" not in address:
            unique.add(address)
    return unique | {f"https://doi.org/api/handles/{doi}" for doi in DOI.findall(text)}


def all_addresses(root: Path = ROOT) -> list[str]:
    files = [path for pattern in SOURCES for path in sorted(root.glob(pattern))]
    return sorted(set().union(*(addresses(path.read_text("utf-8")) for path in files)))


def ask(address: str) -> str:
    """ "" when it is there, "gone: …", or "not known: …"."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            if "/api/handles/" in address and json.load(answer).get("responseCode") != 1:
                return "gone: the registry has no such DOI"
            return ""
    except urllib.error.HTTPError as error:
        return f"{'gone' if error.code in GONE else 'not known'}: {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        unknown_host = "Name or service not known" in str(error)
        return f"{'gone' if unknown_host else 'not known'}: {error}"


def report(
    addresses: Iterable[str], asked: Callable[[str], str] = ask
) -> Iterator[tuple[str, str]]:
    """(address, answer) of all that did not answer well; what seems gone is asked twice."""
    addresses = list(addresses)
    with ThreadPoolExecutor(8) as pool:
        for address, answer in zip(addresses, pool.map(asked, addresses), strict=True):
            if answer.startswith("gone"):
                answer = asked(address)
            if answer:
                yield address, answer


def main() -> int:
    asked = all_addresses()
    answers = list(report(asked))
    for address, answer in answers:
        print(f"{address}\n    {answer}")
    num_gone = sum(answer.startswith("gone") for _, answer in answers)
    print(f"{len(asked)} addresses, {num_gone} gone, {len(answers) - num_gone} not known")
    without_network = len(answers) == len(asked)  # then nothing is known
    return int(num_gone > 0 or without_network)


if __name__ == "__main__":
    sys.exit(main())
