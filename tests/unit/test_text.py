"""The classic books: their list, and a corpus that is not theirs."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pytest

from mpt_lml.data import CorruptDataError, DataNotFoundError, sentences, texts
from mpt_lml.data.places import DATA_VARIABLE

FOLDER = Path(__file__).parents[2] / "book" / "results" / "small_bert"


def listed() -> list[dict[str, str]]:
    return list(csv.DictReader((FOLDER / "books.csv").read_text(encoding="utf-8").splitlines()))


def test_the_model_card_lists_the_books_and_the_checksum() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(listed()) == 23
    for row in listed():
        found = [row["title"], row["author"], row["year"], f"`{row['git blob'][:10]}`", row["use"]]
        assert "| " + " | ".join(found) + " |" in card
    assert texts._BOOKS_SHA256 in card
    held_out = [row["title"] for row in listed() if row["use"] == "held out"]
    assert held_out == ["Kidnapped", "Treasure Island"]


@pytest.mark.bad_input
def test_another_corpus_is_refused(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "classic_books"
    folder.mkdir(parents=True)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(DataNotFoundError, match="make it as the model card says"):
        sentences("books")
    (folder / "corpus.txt").write_text(f"A book.\n\n{texts._FIRST_HELD_OUT} in June.\n")
    with pytest.raises(CorruptDataError, match=f"expected {texts._BOOKS_SHA256}.*model card"):
        sentences("books")


@pytest.mark.data
def test_the_corpus_is_the_one_that_is_described() -> None:
    assert sentences("books").first[0].startswith(texts._FIRST_HELD_OUT)
    first = sentences("books", "train").first
    assert "Being a reprint from the reminiscences" in " ".join(first[:3])


def glue_file(tmp_path: Path, monkeypatch, name: str, rows: list[list[str]]) -> Path:
    """``rows`` as a file of GLUE, under a header where the published file has one."""
    table = texts._TABLES[name]
    path = tmp_path / "glue" / table.file
    path.parent.mkdir(parents=True)
    header = [[f"name {i}" for i in range(table.num_columns)]] * table.has_header
    path.write_text("\n".join("\t".join(row) for row in header + rows) + "\n\n", encoding="utf-8")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    return path


# As published (gluebenchmark.com): where the text stands, how many columns, and a line of names.
GLUE = {
    "glue/ax": ((5, 6), 8, True),
    "glue/cola": ((3,), 4, False),
    "glue/mrpc": ((3, 4), 5, True),
    "glue/qnli": ((1, 2), 4, True),
    "glue/sst-2": ((0,), 2, True),
}


@pytest.mark.parametrize("name", GLUE)
def test_a_set_of_glue_is_its_text_columns_without_the_names(
    tmp_path: Path, monkeypatch, name: str
) -> None:
    columns, width, names = GLUE[name]
    rows = [[f"row {n}, cell {i} " for i in range(width)] for n in range(3)]
    path = glue_file(tmp_path, monkeypatch, name, rows)
    found = sentences(name)
    halves = [tuple(f"row {n}, cell {i}" for n in range(3)) for i in columns]
    assert found.first == halves[0]
    assert found.second == (halves[1] if len(columns) == 2 else None)
    assert path.read_text().startswith("name 0" if names else "row 0")


@pytest.mark.bad_input
@pytest.mark.parametrize("name", GLUE)
def test_a_short_row_of_glue_is_named_by_its_line(tmp_path: Path, monkeypatch, name: str) -> None:
    _, width, names = GLUE[name]
    rows = [["x"] * width, ["x"] * (width + 1), ["x"] * (width - 1)]  # a stray tab is no loss
    glue_file(tmp_path, monkeypatch, name, rows)
    message = f"row {3 + names}: {width - 1} columns, expected {width}"
    with pytest.raises(CorruptDataError, match=message):
        sentences(name)


def test_glue_comes_from_the_hub_where_no_folder_has_it(monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked = []

    def load_dataset(*words: str, **named: str) -> dict[str, list[str]]:
        asked.append((*words, *named.values()))
        return {"question": ["Who?", "Why?"], "sentence": ["She.", "So."], "label": [0, 1]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = sentences("glue/qnli")
    assert asked == [("nyu-mll/glue", "qnli", "validation")]
    assert (found.first, found.second) == (("Who?", "Why?"), ("She.", "So."))


def test_the_two_last_books_are_held_out_and_nothing_else_is(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "classic_books"
    folder.mkdir(parents=True)
    first = "It was _late_. He said: 'Go!' She went.\r\n\r\n***\n\nMr.\nSmith   stayed"
    held = f'{texts._FIRST_HELD_OUT} in June. "Stop," he said. and ran.\n'
    content = f"{first}\n\n{held}".encode()
    (folder / "corpus.txt").write_bytes(content)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(texts, "_BOOKS_SHA256", hashlib.sha256(content).hexdigest())
    train = ("It was late.", "He said: 'Go!'", "She went.", "Mr.", "Smith stayed")
    assert sentences("books", "train").first == train
    test = (f"{texts._FIRST_HELD_OUT} in June.", '"Stop," he said. and ran.')
    assert sentences("books").first == test


def test_wikitext_has_two_files(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "wikitext-2"
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text(" = A = \n\n A test . \n", encoding="utf-8")
    (folder / "valid.txt").write_text(" = = B = = \n\n A fit ; held out ? \n", encoding="utf-8")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert sentences("wikitext-2").first == ("A test.",)
    assert sentences("wikitext-2", "train").first == ("A fit; held out?",)
