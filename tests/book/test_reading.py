"""Pages that help to find one's way: cheat-sheet, paths, student edition, link previews."""

from __future__ import annotations

import ast
import html
import inspect
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import front_door
import lxml.html
import nbformat
import notebooks
import pytest
import reading
import student
import yaml
from book_layout import Book, BookError, Page
from form import form
from plain_markdown import number_book, sentence_explorer

import mpt_lml
import mpt_score
import mpt_score.networks.vit_mae

CALL = re.compile(r"^    `(.+)`$", re.M)
CHAPTERS = [pytest.param(page, id=page.name) for page in Book().chapters]


def called(text: str) -> list[tuple[object, inspect.BoundArguments]]:
    """Every call of a public name in ``text``, bound to its signature."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.partition(".")[0] not in ("model", "curve"):
                first, _, rest = name.partition(".")
                target = {"mpt_score": mpt_score}.get(first, mpt_lml)
                for part in (rest if target is mpt_score else name).split("."):
                    target = getattr(target, part)
                keywords = {each.arg: each.value for each in node.keywords}
                found.append((target, inspect.signature(target).bind(*node.args, **keywords)))
    return found


def test_the_calls_of_the_cheat_sheet_exist(book: Book) -> None:
    calls = CALL.findall((book.root / "book" / "cheat-sheet.md").read_text(encoding="utf-8"))
    assert len(calls) >= 14
    assert sum(len(called(text)) for text in calls) >= 10
    with pytest.raises(AttributeError):
        called("curves.no_such_curve(model)")
    with pytest.raises(TypeError, match="generator"):
        called("curves.sampled_curve(model, x, P)")


def test_every_page_has_a_description_for_link_previews(book: Book, site: Path) -> None:
    says = yaml.safe_load((book.root / "book" / "reading.yml").read_text())["descriptions"]
    assert set(says) == {page.name for page in book.pages}
    assert len(set(says.values())) == len(says)
    for page in book.pages:
        assert 60 <= len(says[page.name]) <= 200, page.name
        text = (site / f"{page.docname}.html").read_text(encoding="utf-8")
        assert f'<meta property="og:url" content="{book.url(page.docname)}"' in text
        descriptions = re.findall(
            r'<meta (?:name|property)="(?:og:)?description" content="([^"]*)"', text
        )
        assert set(map(html.unescape, descriptions)) == {says[page.name]}, page.name
        assert len(descriptions) == 2, page.name


def test_start_here_counts_the_exercises(book: Book) -> None:
    texts = [page.path.read_text(encoding="utf-8") for page in book.chapters]
    exercises = sum(text.count("```{exercise}") for text in texts)
    assert exercises == sum(text.count("```{solution-start}") for text in texts)
    page = (book.root / "book" / "start-here.md").read_text(encoding="utf-8")
    assert f"Each of the {exercises} exercises has a solution" in page


def test_the_landing_page_is_a_door(book: Book, site: Path) -> None:
    """Few words, three ways on, three numbers of two digits and the explorer's numbers as emitted."""
    text = (site / "book" / "index.html").read_text(encoding="utf-8")
    article = lxml.html.document_fromstring(text).xpath("//article")[0]
    buttons = article.xpath("//*[contains(@class, 'door-buttons')]//a/@href")
    assert [each.partition("#")[0] for each in buttons] == ["start-here.html"] * 2 + [
        "scoring-guide.html"
    ]
    cards = article.xpath("//*[contains(@class, 'door-numbers')]//*[contains(@class, 'sd-card ')]")
    assert len(cards) == 3
    for card in cards:
        shown = card.xpath(".//*[contains(@class, 'sd-card-title')]")[0].text_content()
        assert len(re.findall(r"[1-9]\d*", shown.replace(".", ""))[0]) == 2, shown
        assert card.xpath(".//a/@href")
    for person in ("Moreno-Muñoz", "Recasens", "Hauberg", book.config["author"]):
        assert person in article.text_content()
    (shown,) = re.findall(r'class="sentence-explorer-data">(.*?)</script>', text, re.S)
    assert shown in sentence_explorer(book.root / "book" / "12-bert.ipynb")


def test_two_digits_of_a_number() -> None:
    numbers = {
        68.233: "68",
        1.2576: "1.3",
        0.06399: "0.064",
        9.96: "10",
        298.8: "300",
        -0.25: "−0.25",
    }
    assert {number: front_door.two_digits(number) for number in numbers} == numbers


def test_a_card_counts_statements_that_a_run_judged() -> None:
    columns = ("id", "verdict", "group", "rule_known")
    rows = [
        ("digit", "confirmed", "table-1", "before"),
        ("cut-digit", "corrected", "table-1", "after"),
        ("alone", "confirmed", "", "before"),
        ("open", "undecided", "", "after"),
        ("to-come", "needs-weights", "", "after"),
        ("theorem", "illustration", "", None),
    ]
    entries = [dict(zip(columns, row, strict=True)) for row in rows]
    wanted = {"run": 3, "after": 2, "misprint": 1, "holds as printed": 1, "needs weights": 0}
    assert {what: front_door.count_judged(what, entries) for what in wanted} == wanted


def test_a_chapter_without_an_explorer_is_named(book: Book) -> None:
    with pytest.raises(BookError, match="01-masked-pretraining.ipynb: 0 sentence explorers"):
        sentence_explorer(book.root / "book" / "01-masked-pretraining.ipynb")


@pytest.mark.parametrize("page", [each for each in CHAPTERS if not each.values[0].is_note])
def test_the_student_edition_has_exercises_and_no_solutions(page: Page) -> None:
    notebook = nbformat.read(page.notebook, as_version=4)
    exercises = set(
        re.findall(
            r"^#### (Exercise \d+½?\.\d+)", "\n".join(c.source for c in notebook.cells), re.M
        )
    )
    made = student.without_solutions(notebook)
    nbformat.validate(made)
    text = "\n".join(cell.source for cell in made.cells)
    assert exercises and all(each in text for each in exercises)
    assert "Solution to" not in text and "<details>" not in text
    assert "colab.research.google.com" not in text  # where the solutions are
    left = re.findall(r'NotImplementedError\("(Exercise \d+½?\.\d+)"\)', text)
    assert left and set(left) <= exercises
    assert len(set(left)) == len(left)  # one cell to fill in, however many the solution has
    assert not any(cell.get("outputs") for cell in made.cells)


@pytest.mark.parametrize("page", CHAPTERS)
def test_checks_fold_and_minutes_show(page: Page, site: Path) -> None:
    """Every check folds under what it would catch, and all together; the page says its minutes."""
    text = html.unescape((site / f"{page.docname}.html").read_text(encoding="utf-8"))
    cells = nbformat.read(page.notebook, as_version=4).cells
    checks = [cell.source for cell in cells if "check" in cell.metadata.get("tags", [])]
    for source in checks:
        title = source.splitlines()[0].removeprefix("# @title ")
        assert f'<span class="admonition-title">{title}</span>' in text, title
    assert checks and "@title" not in text
    assert f'<details class="checks"><summary>{len(checks)} tests</summary>' in text
    assert f'<p class="minutes">{form(page).time} to read</p>' in text


def test_on_the_one_hour_path_a_section_ends_at_its_first_subsection(sample: Book) -> None:
    for page in sample.chapters:
        text = page.path.read_text(encoding="utf-8")
        label = f"(chapter-0{page.number})="
        page.path.write_text(text.replace("(chapter-", f"{label}\n(chapter-", 1), encoding="utf-8")
    with sample.chapter("02").path.open("a", encoding="utf-8") as chapter:
        chapter.write("\n(sec-last)=\n## Last\n\nTwo words.\n\n### Deeper\n\nThree more words.\n")
    ways = "paths: {hour: [sec-last], day: [sec-last]}\ndescriptions: {}\n"
    (sample.root / "book" / "reading.yml").write_text(ways, encoding="utf-8")
    index = number_book(sample)
    for page in sample.chapters:
        nbformat.write(notebooks.build(index, page, str), page.notebook)
    app = SimpleNamespace(srcdir=sample.root, config=SimpleNamespace())
    reading.measure(app)
    paths = app.config.reading["paths"]
    # "Last", "Two words"; and of the day "2.1.1.", "Deeper", "Three more words".
    assert [paths[name][0][1].words for name in ("hour", "day")] == [3, 8]


def test_the_one_hour_path_leads_from_section_to_section(book: Book, site: Path) -> None:
    """Each with a link to the next, before its first subsection, and the last to the closing page."""
    way = yaml.safe_load((book.root / "book" / "reading.yml").read_text())["paths"]["hour"]
    found = {}
    for page in book.chapters:
        text = (site / f"{page.docname}.html").read_text(encoding="utf-8")
        for link in lxml.html.document_fromstring(text).xpath("//p[@class='onwards']//a"):
            section = link.xpath("ancestor::section")[-1]
            assert not section.xpath("./section[following-sibling::p[@class='onwards']]")
            names = {section.get("id"), *section.xpath("./span/@id")}
            found[link.get("href").partition("#")[2]] = names
    assert set(found) == set(way[1:])
    for label, following in itertools.pairwise(way):
        assert label in found[following], (label, following)
    closing = (site / "book" / "after-one-hour.html").read_text(encoding="utf-8")
    assert "Six things you now know" in closing
