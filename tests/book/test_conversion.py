"""From MyST to plain Markdown, on a small book that uses everything the chapters may use."""

from __future__ import annotations

import re

import checks
import nbformat
import notebooks
import pytest
from book_layout import Book, BookError
from form import sections
from plain_markdown import names, number_book
from pybtex.database import Person


def text_of(book: Book, name: str) -> str:
    made = notebooks.build(number_book(book), book.chapter(name), lambda name: f"<{name}>")
    assert checks.raw_myst(made) == []
    nbformat.validate(made)
    return "\n\n".join(cell.source for cell in made.cells)


def edit(book: Book, name: str, old: str, new: str) -> None:
    path = book.chapter(name).path
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    "expected",
    [
        "# 1. The first chapter",
        "## 1.2. A number and a figure",
        "\\tag{1.1}\n$$",
        "> $$ S(x; M) = 1 \\tag{1.3} $$",
        "> **Definition 1.1 (Mask-rate curve).** The *mask-rate curve* is $S(x; M)$ of (1.2):",
        "> **Theorem 1.1 (Area).** The area equals $\\log p(x)$; see Definition 1.1.",
        "> **Lemma 1.1.** A lemma without a title.",
        "*Proof.* By (1.3). $\\square$",
        "of Moreno-Muñoz et al. (2023), already known (Han, 1978; Tipping and Bishop, 1999), says",
        "[(2.1)](https://mpt-lml.github.io/mpt-lml/book/02-second.html#equation-eq-area)",
        "[rate](https://mpt-lml.github.io/mpt-lml/book/notation.html#term-mask-rate)",
        "Inline `{eq}` in code stays, and `$x$` too.",
        "The gap is <sample-gap> nats, as Figure 1.1 shows. Also Fig. 1.1.",
        "**Figure 1.1.** A line, with $y = x$ of (1.1), in two lines.",
        "> **Warning**\n>\n> A warning with code:",
        "#### Exercise 1.1 (Add up)\n\nAdd $1 + 1$.",
        "# @title Code of Figure 1.1\nfig, ax = plt.subplots",
        '# @title Not on the page: set-up and numbers\nglue("sample-half", "0.5")',
        "\n\n# @title A silent check of the half\nassert",
        "> **Question 1**\n>\n> What is $1 + 1$?\n>\n> * two\n> * <sample-half>",
        "<details>\n<summary><b>Answer</b></summary>\n\nTwo, by Theorem 1.1:\n\n```python\n1 + 1",
        "See Section 1.2 and [Chapter 2](https://mpt-lml.github.io/mpt-lml/book/02-second.html"
        ' "The second chapter").',
        "#### Solution to Exercise 1.1\n\nThe answer is in the cell, by (1.1):",
        "#### Solution to Exercise 1.2\n\nIt is plain.",
        "* Te Sun Han (1978). *Nonnegative entropy measures",
    ],
)
def test_first_chapter_reads(sample: Book, expected: str) -> None:
    assert expected in text_of(sample, "01")


@pytest.mark.parametrize(
    "expected",
    [
        "As [Theorem 1.1](https://mpt-lml.github.io/mpt-lml/book/01-first.html#thm-area)",
        'in [Chapter 1](https://mpt-lml.github.io/mpt-lml/book/01-first.html "The first chapter")',
        "([its rule](https://mpt-lml.github.io/mpt-lml/book/01-first.html#sec-rule))",
        "[Figure 1.1](https://mpt-lml.github.io/mpt-lml/book/01-first.html#fig-line), Exercise 2.1",
        "#### Exercise 2.1 (A code)\n\nRun\n\n```python\nprint(1)\n```",
        "#### Solution to Exercise 2.1",
        "| What | Where |\n| :-- | :-- |\n| The *area*, said in two lines | Theorem 2.1 |",
    ],
)
def test_second_chapter_reads(sample: Book, expected: str) -> None:
    assert expected in text_of(sample, "02")


def test_a_name_has_its_particle() -> None:
    person = Person("van den Berg, Rianne")
    assert names(person) == "van den Berg"
    assert names(person, "first", "middle") == "Rianne van den Berg"


def test_a_solution_folds_as_one_under_its_heading(sample: Book) -> None:
    made = notebooks.build(number_book(sample), sample.chapter("01"), str)
    tagged = [cell for cell in made.cells if "solution" in cell.metadata.get("tags", [])]
    assert [cell.source.splitlines()[0] for cell in tagged] == [
        "#### Solution to Exercise 1.1",
        "print(1 + 1)",
        "As said.",
        "#### Solution to Exercise 1.2",
    ]
    first = tagged[0]
    assert first.metadata["jp-MarkdownHeadingCollapsed"]
    assert made.metadata["colab"]["collapsed_sections"] == [tagged[0].id, tagged[3].id]
    assert first.metadata["id"] == first.id
    # What comes next is a heading of the same level, so that the fold ends before it.
    following = made.cells[made.cells.index(tagged[2]) + 1]
    assert following.source.startswith("#### Exercise 1.2")


def test_cells_that_leave_the_page_stay_in_the_notebook_folded(sample: Book) -> None:
    made = notebooks.build(number_book(sample), sample.chapter("01"), str)
    titled = [cell for cell in made.cells if cell.source.startswith("# @title ")]
    assert [cell.metadata.tags for cell in titled] == [
        ["remove-input"],
        ["remove-cell"],
        ["remove-cell"],
    ]
    assert all(cell.metadata["cellView"] == "form" for cell in titled)
    assert all(cell.metadata["jupyter"]["source_hidden"] for cell in titled)


def test_the_text_is_written_anew_around_stored_outputs(sample: Book, capsys) -> None:
    root = ["--root", str(sample.root)]
    assert notebooks.main([*root, "--text", "02"]) == 1
    assert "no notebook yet" in capsys.readouterr().err
    assert notebooks.main([*root, "02"]) == 0
    first = nbformat.read(sample.chapter("02").notebook, as_version=4)
    edit(sample, "02", "Another one, with", "One more, with")
    assert notebooks.main([*root, "--text", "02"]) == 0
    second = nbformat.read(sample.chapter("02").notebook, as_version=4)
    assert any("One more, with" in cell.source for cell in second.cells)
    pairs = zip(notebooks.code_of(first), notebooks.code_of(second), strict=True)
    assert all(cell == again for cell, again in pairs)
    edit(sample, "02", "print(np.arange(3).sum())", "print(np.arange(4).sum())")
    assert notebooks.main([*root, "--text", "02"]) == 1
    assert "other code than its source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{eq}`eq-chain` and", "{eq}`eq-nowhere` and", "no label 'eq-nowhere'"),
        ("{cite:t}`morenomunoz2023masked`", "{cite:t}`nobody`", "no citation key 'nobody'"),
        ("{term}`mask`", "{term}`masque`", "no label 'term masque'"),
        ("{ref}`notation <chapter-notation>`", "{doc}`notation`", "role {doc} has no plain form"),
        ("```{tip}", "```{sidebar}", "{sidebar} has no plain form"),
        ("{term}`mask`", "{index}`mask`", "role {index} has no plain form"),
        ("```{solution-end}\n```", "", "without its solution-end"),
        ("(sec-rule)=", "(chapter-second)=", "label 'chapter-second' stands in"),
        ("A note. With", "\\begin{align}\nx\n\\end{align}\n\nWith", "numbers itself"),
    ],
)
def test_what_cannot_be_converted_is_named(sample: Book, old: str, new: str, message: str) -> None:
    edit(sample, "01", old, new)
    with pytest.raises(BookError, match=re.escape(message)):
        text_of(sample, "01")


def test_an_executed_notebook_is_stale_after_an_edit(sample: Book, capsys) -> None:
    root = ["--root", str(sample.root)]
    assert notebooks.main([*root, "--check", "02"]) == 1
    assert "there is no notebook" in capsys.readouterr().err
    assert notebooks.main([*root, "02"]) == 0
    assert notebooks.main([*root, "--check", "02"]) == 0
    first = sample.chapter("02").notebook.read_bytes()
    edit(sample, "02", "print(np.arange(3).sum())", "print(np.arange(4).sum())")
    assert notebooks.main([*root, "--check", "02"]) == 1
    assert "cell" in capsys.readouterr().err
    edit(sample, "02", "print(np.arange(4).sum())", "print(np.arange(3).sum())")
    assert notebooks.main([*root, "02"]) == 0
    assert sample.chapter("02").notebook.read_bytes() == first


def test_a_cell_that_fails_is_reported(sample: Book, capsys) -> None:
    edit(sample, "02", "print(np.arange(3).sum())", "assert np.arange(3).sum() == 4")
    assert notebooks.main(["--root", str(sample.root), "02"]) == 1
    assert "AssertionError" in capsys.readouterr().err
    assert not sample.chapter("02").notebook.exists()


def test_a_number_no_cell_glued_is_refused() -> None:
    with pytest.raises(BookError, match="no cell of this chapter glues it"):
        notebooks.Glued({"a": "1"})["b"]


def test_unknown_chapter_names_the_known_ones(sample: Book, capsys) -> None:
    assert notebooks.main(["--root", str(sample.root), "09"]) == 1
    assert "there are: 01-first, 02-second" in capsys.readouterr().err


def install_cell(notebook: nbformat.NotebookNode) -> str:
    return next(cell.source for cell in notebook.cells if "colab" in cell.metadata.get("tags", ()))


def test_a_release_changes_the_cell_that_installs_and_keeps_the_outputs(sample: Book) -> None:
    root = ["--root", str(sample.root)]
    changelog = sample.root / "CHANGELOG.md"
    assert notebooks.main([*root, "02"]) == 0
    first = nbformat.read(sample.chapter("02").notebook, as_version=4)
    assert f'"git+{sample.repository}")' in install_cell(first)  # 0.2.0 has no date, and no tag
    changelog.write_text("## 0.2.0 (2026-02-03)\n\n## 0.1.0 (2026-01-02)\n", encoding="utf-8")
    assert notebooks.main([*root, "--check", "02"]) == 1
    assert notebooks.main([*root, "--text", "02"]) == 0
    assert notebooks.main([*root, "--check", "02"]) == 0
    released = nbformat.read(sample.chapter("02").notebook, as_version=4)
    assert f'"git+{sample.repository}@v0.2.0")' in install_cell(released)
    others = zip(notebooks.code_of(first)[1:], notebooks.code_of(released)[1:], strict=True)
    assert all(cell == again for cell, again in others)


def test_a_notebook_opens_itself_on_colab(sample: Book) -> None:
    made = notebooks.build(number_book(sample), sample.chapter("02"), str)
    owner_and_name = sample.repository.removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{owner_and_name}/blob/main/"
    (opened,) = re.findall(r"colab-badge\.svg\)\]\((.+)\)", made.cells[0].source)
    assert opened == f"{address}book/02-second.ipynb"


def test_a_page_between_two_chapters_moves_no_number(sample: Book) -> None:
    """A chapter whose file has no digits is 1½, and what stands in it 1½.1."""
    toc = sample.root / "_toc.yml"
    first = "      - file: book/01-first.md\n"
    text = toc.read_text(encoding="utf-8")
    toc.write_text(text.replace(first, f"{first}      - file: book/between.md\n"), encoding="utf-8")
    between = sample.root / "book" / "between.md"
    second = (sample.root / "book" / "02-second.md").read_text(encoding="utf-8")
    head = second[: second.index("(")]  # what jupytext and its kernel need
    between.write_text(
        f"{head}(sec-between)=\n# Between\n\nOne word.\n\n(sec-deeper)=\n## Deeper\n\nTwo words.\n",
        encoding="utf-8",
    )
    book = Book(sample.root)
    assert [page.number for page in book.chapters] == ["1", "1½", "2"]
    assert [page.title for page in book.chapters if not page.is_note][1] == "Chapter 1½"
    index = number_book(book)
    assert index.find("sec-deeper").number == "1½.1"
    page = book.chapter("between")
    nbformat.write(notebooks.build(index, page, str), page.notebook)
    assert [number for number, _ in sections(page)] == ["1½", "1½.1"]
