"""The classic books: their list, and a corpus that is not theirs."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pytest
import torch

from mpt_lml.data import CorruptDataError, DataNotFoundError, sources
from mpt_lml.data.sources import DATA_VARIABLE
from mpt_score import networks, texts
from mpt_score.texts import sentences
from mpt_score.tokens import encode

FOLDER = Path(__file__).parents[3] / "book" / "results" / "small_bert"


def listed() -> list[dict[str, str]]:
    return list(csv.DictReader((FOLDER / "books.csv").read_text(encoding="utf-8").splitlines()))


def test_the_model_card_lists_the_books_and_the_checksum() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(listed()) == 23
    for row in listed():
        found = [row["title"], row["author"], row["year"], f"`{row['git blob'][:10]}`", row["use"]]
        assert "| " + " | ".join(found) + " |" in card
    assert texts._BOOKS["sha256"] in card
    held_out = [row["title"] for row in listed() if row["use"] == "held out"]
    assert held_out == ["Kidnapped", "Treasure Island"]


@pytest.mark.bad_input
def test_another_corpus_is_refused(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "classic_books"
    folder.mkdir(parents=True)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataNotFoundError, match=r"fetch_books\(\) brings the 23 published files"):
        sentences("books")
    (folder / "corpus.txt").write_text(f"A book.\n\n{texts._BOOKS['first_held_out']} in June.\n")
    with pytest.raises(CorruptDataError, match=f"expected {texts._BOOKS['sha256']}.*model card"):
        sentences("books")


@pytest.mark.data
def test_the_corpus_is_the_one_that_is_described() -> None:
    assert sentences("books").first[0].startswith(texts._BOOKS["first_held_out"])
    first = sentences("books", "train").first
    assert "Being a reprint from the reminiscences" in " ".join(first[:3])


def glue_file(tmp_path: Path, monkeypatch, name: str, rows: list[list[str]]) -> Path:
    """``rows`` as a file of GLUE, under a header where the published file has one."""
    table = texts._GLUE[name]
    path = tmp_path / table["file"]
    path.parent.mkdir(parents=True)
    header = [[f"name {i}" for i in range(table["num_columns"])]] * table["has_header"]
    path.write_text("\n".join("\t".join(row) for row in header + rows) + "\n\n", encoding="utf-8")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    return path


def as_published(monkeypatch, name: str, halves: list[tuple[str, ...]]) -> None:
    """What the columns of ``name`` have to be: these."""
    content = "\n".join(map("\t".join, zip(*halves, strict=True))).encode()
    own = {"num_rows": len(halves[0]), "columns_sha256": hashlib.sha256(content).hexdigest()}
    monkeypatch.setitem(texts._GLUE, name, texts._GLUE[name] | own)


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
    halves = [tuple(f"row {n}, cell {i}" for n in range(3)) for i in columns]
    as_published(monkeypatch, name, halves)
    found = sentences(name)
    assert found.first == halves[0]
    assert found.second == (halves[1] if len(columns) == 2 else None)
    assert path.read_text().startswith("name 0" if names else "row 0")


@pytest.mark.bad_input
@pytest.mark.parametrize("name", GLUE)
def test_a_short_line_of_glue_is_named_by_its_number(
    tmp_path: Path, monkeypatch, name: str
) -> None:
    _, width, names = GLUE[name]
    rows = [["x"] * width, ["x"] * (width + 1), ["x"] * (width - 1)]  # a stray tab is no loss
    glue_file(tmp_path, monkeypatch, name, rows)
    message = f"line {3 + names}: {width - 1} columns, expected {width}"
    with pytest.raises(CorruptDataError, match=message):
        sentences(name)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", GLUE)
@pytest.mark.parametrize("change", ["empty", "cut", "altered", "as published"])
def test_a_set_of_glue_that_is_not_whole_is_refused(
    tmp_path: Path, monkeypatch, name: str, change: str
) -> None:
    columns, width, _ = GLUE[name]
    rows = [[f"row {n}, cell {i}" for i in range(width)] for n in range(3)]
    path = glue_file(tmp_path, monkeypatch, name, rows)
    with pytest.raises(
        CorruptDataError, match=rf"{path} has 3 lines of {name}, expected \d{{3,4}}"
    ):
        sentences(name)
    as_published(monkeypatch, name, [tuple(row[i] for row in rows) for i in columns])
    lines = path.read_text(encoding="utf-8").splitlines()
    if change == "empty":
        path.write_text("")
    elif change == "cut":
        path.write_text("\n".join(lines[:-2]), encoding="utf-8")
    elif change == "altered":
        cell = f"row 1, cell {columns[-1]}"
        path.write_text("\n".join(lines).replace(cell, cell[::-1]), encoding="utf-8")
    else:  # a mark at the start and other line ends are no change of the text
        path.write_text("\r\n".join(lines), encoding="utf-8-sig")
        assert sentences(name).first[2] == f"row 2, cell {columns[0]}"
        return
    said = "SHA256 is .* expected" if change == "altered" else "lines of .*, expected 3"
    with pytest.raises(CorruptDataError, match=f"{path.name}.*{said}.*truncated; fetch it again"):
        sentences(name)


@pytest.mark.bad_input
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_a_line_is_no_text(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(content)
    with pytest.raises(CorruptDataError, match=f"{path} is empty"):
        sentences(str(path))


@pytest.mark.bad_input
def test_a_file_in_another_encoding_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("a café\n".encode("latin-1"))
    with pytest.raises(CorruptDataError, match=f"{path} is not UTF-8 text"):
        sentences(str(path))


@pytest.mark.bad_input
def test_another_wikitext_or_vocabulary_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    for name in ("text/wikitext-2/test.txt", "text/wikitext-2/valid.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(" = A = \n\n A test . \n")
        split = "test" if "test" in name else "train"
        expected = texts._WIKITEXT[split]["sha256"]
        with pytest.raises(CorruptDataError, match=f"{name} is not the published.*{expected}"):
            sentences("wikitext-2", split)
    path = tmp_path / "bert_vocab" / "bert-base-uncased-vocab.txt"
    with pytest.raises(DataNotFoundError, match=r"vocab.txt of bert-base-uncased"):
        texts.bert_vocabulary()
    path.parent.mkdir()
    path.write_text("[PAD]\n[UNK]\n")
    with pytest.raises(
        CorruptDataError, match=f"expected {sources.PUBLISHED['vocabulary']['sha256']}"
    ):
        texts.bert_vocabulary()


@pytest.mark.data
def test_the_texts_at_hand_are_the_published_ones() -> None:
    rows = {"ax": 1104, "cola": 1043, "mrpc": 1725, "qnli": 5463, "sst-2": 872}
    assert {name: len(sentences(f"glue/{name}").first) for name in rows} == rows
    assert sentences("glue/mrpc").first[0].startswith("PCCW's chief operating officer")
    assert len(sentences("wikitext-2").first) > 1000 < len(sentences("wikitext-2", "train").first)
    assert len(texts.bert_vocabulary().read_text(encoding="utf-8").splitlines()) == 30522


@pytest.mark.bad_input
def test_a_hub_that_gives_other_lines_is_refused(monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = {"sentence": ["One."]}
    monkeypatch.setattr(datasets, "load_dataset", lambda *words, **named: found)
    with pytest.raises(CorruptDataError, match=r"nyu-mll/glue has 1 lines.*cola, expected 1043"):
        sentences("glue/cola")


def test_glue_comes_from_the_hub_where_no_folder_has_it(monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked = []

    def load_dataset(*words: str, **named: str) -> dict[str, list[str]]:
        asked.append((*words, *named.values()))
        return {"question": ["Who?", "Why?"], "sentence": ["She.", "So."], "label": [0, 1]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    as_published(monkeypatch, "glue/qnli", [("", ""), ("", "")])
    found = sentences("glue/qnli")
    assert asked == [("nyu-mll/glue", "qnli", "validation")]
    assert (found.first, found.second) == (("Who?", "Why?"), ("She.", "So."))


def test_the_two_last_books_are_held_out_and_nothing_else_is(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "classic_books"
    folder.mkdir(parents=True)
    first = "It was _late_. He said: 'Go!' She went.\r\n\r\n***\n\nMr.\nSmith   stayed"
    opening = texts._BOOKS["first_held_out"]
    held = f'{opening} in June. "Stop," he said. and ran.\n'
    content = f"{first}\n\n{held}".encode()
    (folder / "corpus.txt").write_bytes(content)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setitem(texts._BOOKS, "sha256", hashlib.sha256(content).hexdigest())
    train = ("It was late.", "He said: 'Go!'", "She went.", "Mr.", "Smith stayed")
    assert sentences("books", "train").first == train
    test = (f"{opening} in June.", '"Stop," he said. and ran.')
    assert sentences("books").first == test


def wikitext_as_here(monkeypatch, folder: Path) -> None:
    """The published files are those of ``folder``."""
    for about in texts._WIKITEXT.values():
        path = folder / Path(about["file"]).name
        if path.exists():
            monkeypatch.setitem(about, "sha256", hashlib.sha256(path.read_bytes()).hexdigest())


def test_words_taken_out_of_wikitext_are_unknown(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "wikitext-2"
    folder.mkdir(parents=True)
    content = (
        " = Title = \n\n The <unk> had 3 @,@ 000 men ( and ships ) . It sank .\n\n <unk> <unk> \n"
    )
    (folder / "test.txt").write_text(content, encoding="utf-8")
    wikitext_as_here(monkeypatch, folder)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    found = sentences("wikitext-2").first
    assert found == ("The [UNK] had 3,000 men (and ships).", "It sank.")


def test_wikitext_has_two_files(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "text" / "wikitext-2"
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text(" = A = \n\n A test . \n", encoding="utf-8")
    (folder / "valid.txt").write_text(" = = B = = \n\n A fit ; held out ? \n", encoding="utf-8")
    wikitext_as_here(monkeypatch, folder)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert sentences("wikitext-2").first == ("A test.",)
    assert sentences("wikitext-2", "train").first == ("A fit; held out?",)


def test_some_tokens_are_whole_short_and_the_same_every_time() -> None:
    _, tokenizer = networks.load_small_bert()
    every = encode(tokenizer, sentences("written").first)
    longest = int(every.lengths.median())
    tokens = texts.some_tokens("written", tokenizer, 1000, longest)
    short = every.rows((every.lengths <= longest).nonzero()[:, 0])
    order = torch.randperm(len(short), generator=torch.Generator().manual_seed(0))
    assert torch.equal(tokens.ids, short.ids[order])  # recorded curves rest on it
    few = texts.some_tokens("written", tokenizer, 3, longest)
    assert torch.equal(few.lengths, tokens.lengths[:3])
    assert torch.equal(few.ids, tokens.ids[:3, : few.ids.shape[1]])
    assert len(texts.some_tokens("written", tokenizer, 1000)) == len(every)


@pytest.mark.bad_input
def test_sentences_that_are_all_too_long_are_refused() -> None:
    _, tokenizer = networks.load_small_bert()
    with pytest.raises(ValueError, match="sentences of written are longer than 3 tokens"):
        texts.some_tokens("written", tokenizer, 4, longest=3)
