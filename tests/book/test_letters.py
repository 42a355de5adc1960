"""One letter, one meaning within a part: chapters use the letters of the notation page."""

from __future__ import annotations

import re

import pytest
from book_layout import Book, Page

PARTS = {"I": range(1, 4), "II": range(4, 8), "III": range(8, 10), "IV": range(10, 13)}
PARTS |= {"V": range(13, 18), "VI": range(18, 20)}
NAMED = r"\\(?:text|mathrm|operatorname\*?|label|tag|begin|end|hspace)\s*\{[^}]*\}"
STYLED = r"\\math(?:cal|bb|bf)\s*\{?\s*[A-Za-z]\s*\}?"
GREEK = re.findall(
    r"\w+",
    """alpha beta gamma delta epsilon varepsilon eta theta iota kappa lambda mu nu xi pi rho sigma
tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell""",
)
CODE = re.compile(r"^```\{code-cell.*?^```\s*$|`[^`\n]*`", re.S | re.M)
CHAPTERS = [pytest.param(page, id=page.name) for page in Book().chapters]


def letters(text: str) -> set[str]:
    """Every letter in the formulas of a MyST page, without indices' meaning or decoration."""
    pairs = re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", CODE.sub(" ", text), re.S)
    tex = re.sub(NAMED, " ", " ".join(one or other for one, other in pairs))
    styled = {re.sub(r"[\s{}]", "", each) for each in re.findall(STYLED, tex)}
    tex = re.sub(STYLED, " ", tex)
    greek = {f"\\{name}" for name in re.findall(r"\\([A-Za-z]+)", tex) if name in GREEK}
    return styled | greek | set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", tex)))


def tables(book: Book) -> dict[str, list[set[str]]]:
    """For each part the letters of each row of its table; "all" holds those of every part."""
    text = (book.root / "book" / "notation.md").read_text(encoding="utf-8")
    _, _, text = text.partition("## Letters, part by part")
    text = text.partition("\n## ")[0]
    pieces = re.split(r"^\*\*(?:Part ([IV]+)|In (all) parts)\*\*$", text, flags=re.M)
    found = {}
    for part, everywhere, table in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| $")]
        found[part or everywhere] = [letters(row) for row in rows]
    return found


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_uses_the_letters_of_its_part(page: Page) -> None:
    known = tables(Book())
    part = next(name for name, numbers in PARTS.items() if page.number in numbers)
    allowed = set().union(*known["all"], *known[part])
    assert letters(page.path.read_text(encoding="utf-8")) - allowed == set()


def test_no_letter_stands_in_two_rows_of_a_table(book: Book) -> None:
    known = tables(book)
    assert set(known) == {"all", *PARTS} and all(map(len, known.values()))
    for part, rows in known.items():
        every = [
            letter for row in rows for letter in row if part == "all" or letter not in "jiMRAre"
        ]
        assert sorted({each for each in every if every.count(each) > 1}) == [], part


def test_a_new_letter_is_seen() -> None:
    text = "a word, `code`, $x_j$ and\n$$\n\\hat\\Lambda = \\operatorname{tr}(\\mathcal N) \\text{if}\n$$"
    assert letters(text) == {"x", "j", "\\Lambda", "\\mathcalN"}
