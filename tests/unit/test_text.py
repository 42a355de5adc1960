"""The classic books: their list, and a corpus that is not theirs."""

from __future__ import annotations

import csv
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
