"""``mpt-score``: files in, rows out, one line for every mistake, parts kept and shared."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_bert import tiny, tokenizer

import mpt_score
from mpt_lml.results import Estimate
from mpt_score import MaskedLM, lines, networks, row_files, score_file, summaries
from mpt_score.command import main
from mpt_score.options import InputOptions
from mpt_score.processes import ProcessGroup
from mpt_score.scorer import Scorer

TEXTS = ["the cat sat", "a dog sat the cat.", "the dog", "the cats sat a dog", "a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny().float().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def call(folder: Path, kind: str, file: object, *more: object) -> int:
    return main([kind, str(file), "--model", str(folder), *map(str, more)])


def rows(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_sentences_are_those_of_the_library(folder, texts, capsys) -> None:
    assert call(folder, "sentences", texts, "--num-orders", 3, "--pseudo", "--seed", 7) == 0
    out, said = capsys.readouterr()
    found = mpt_score.sentences(folder, TEXTS, num_orders=3, pseudo=True, seed=7)
    for number, (row, wanted) in enumerate(zip(rows(out), found.rows(), strict=True)):
        assert {name: row[name] for name in wanted} == wanted
        assert row["line"] == number + 1
        assert row["unit"] == "nats" and "log p" in row["quantity"] and row["model"] == str(folder)
        assert set(row) - set(wanted) == {"line", "unit", "quantity", "model"}
    assert f"{folder}, seed 7" in said and "texts: 5" in said
    for unit in ("token", "character", "byte"):
        assert f"mean: {found.mean(unit)}" in said


@pytest.mark.parametrize("later", ["hidden", "absent"])
def test_blocks_are_those_of_the_library(folder, texts, capsys, later: str) -> None:
    settings = ("--block-length", 2, "--later", later)
    assert call(folder, "sentences", texts, *settings) == 0
    out, said = capsys.readouterr()
    found = mpt_score.sentences(folder, TEXTS, block_length=2, later=later)
    for row, wanted in zip(rows(out), found.rows(), strict=True):
        assert {name: row[name] for name in wanted} == wanted
        assert f"in blocks of 2 from left to right, later ones {later}" in row["quantity"]
    assert f"in blocks of 2 from left to right, later ones {later}; texts: 5" in said
    num_passes = int(mpt_score.passes(folder, TEXTS, block_length=2).sum())
    assert f"passes at most: {num_passes}" in said


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("--block-length", 0), "--block-length must be >= 1, got 0"),
        (("--later", "absent"), "--later must be 'hidden' without blocks, got 'absent'"),
        (("--block-length", 2, "--pseudo"), "--block-length must be None for a pseudo-log"),
    ],
)
def test_blocks_that_are_none_are_refused(folder, texts, capsys, settings, sentence: str) -> None:
    assert call(folder, "sentences", texts, *settings) == 2
    assert sentence in capsys.readouterr().err


def test_empty_lines_end_documents_and_numbers_are_those_of_the_file(
    folder, tmp_path, capsys
) -> None:
    path = tmp_path / "documents.txt"
    path.write_bytes("\ufeffthe cat\nthe dog\n\n\na cat\r\n".encode())
    assert call(folder, "sentences", path, "--num-masks", 2, "--documents") == 0
    found = rows(capsys.readouterr().out)
    assert [row["line"] for row in found] == [1, 2, 5]
    assert [row["document"] for row in found] == [0, 0, 2]
    assert "pseudo_log_likelihood" not in found[0]


def test_pairs(folder, tmp_path, capsys) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("the cat sat\tthe dog sat\na cat\ta dog\n")
    assert call(folder, "pairs", path, "--pseudo") == 0
    found = rows(capsys.readouterr().out)
    wanted = mpt_score.pairs(
        folder, ["the cat sat", "a cat"], ["the dog sat", "a dog"], pseudo=True
    )
    assert [row["log_ratio"] for row in found] == wanted.log_ratio.tolist()
    assert [row["pseudo_difference"] for row in found] == wanted.pseudo_difference.tolist()


def test_pairs_of_other_numbers_of_pieces_are_named_or_listed(folder, tmp_path, capsys) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("the cat\tthe dog\nthe cat sat\tthe cat\n")
    assert call(folder, "pairs", path) == 2
    assert "line 2: has texts of 3 and 2 tokens" in capsys.readouterr().err
    assert call(folder, "pairs", path, "--skip") == 0
    out, said = capsys.readouterr()
    assert [row["line"] for row in rows(out)] == [1]
    assert "pairs.tsv, line 2: has texts of" in said and "skipped lines: 1" in said


def test_answers(folder, tmp_path, capsys) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"prompt": "the cat", "options": [" sat", " dog sat"]}) + "\n")
    assert call(folder, "answers", path) == 0
    out, said = capsys.readouterr()
    wanted = mpt_score.answers(folder, ["the cat"], [[" sat", " dog sat"]])
    assert [row["log_score"] for row in rows(out)] == wanted.log_score[0].tolist()
    assert sum(row["best"] for row in rows(out)) == 1
    assert "options of different numbers of tokens: 1 (line 1)" in said


def test_a_curve_says_area_only_where_it_is_one(folder, texts, tmp_path, capsys) -> None:
    assert call(folder, "curve", texts, "--rates", "15,40") == 0
    said = capsys.readouterr().err
    assert "score at 15 %" in said and "area" not in said
    picture, table = tmp_path / "curve.svg", tmp_path / "curve.csv"
    assert (
        call(folder, "curve", texts, "--rates", "5:95:10", "--plot", picture, "--out", table) == 0
    )
    said = capsys.readouterr().err
    assert "area: " in said and "D·S − area at 25 %" in said
    assert picture.read_text().startswith("<?xml")
    with table.open() as stored:
        found = list(csv.DictReader(stored))
    wanted = mpt_score.curve(
        folder, TEXTS, mpt_score.Design(tuple(p / 100 for p in range(5, 96, 10)), seed=0)
    )
    assert [float(row["score"]) for row in found] == wanted.score.tolist()


def summary_of(*curves: list[float]) -> str:
    """What the command says of texts of ten tokens with these scores at 10, 30, 50, 70 and 90 %."""
    raw = torch.tensor(curves, dtype=torch.float64)[:, None]
    sizes = torch.full((len(curves),), 10)
    design = mpt_score.Design((0.1, 0.3, 0.5, 0.7, 0.9))
    found = mpt_score.SentenceCurves(design, raw, torch.zeros_like(raw), raw[:, 0, -1], sizes)
    return "\n".join(summaries.of_curve(found))


def test_the_rate_that_reads_a_curve_is_said_where_the_curve_tells_it() -> None:
    falls = [-1.0, -2.0, -3.0, -4.0, -5.0]
    said = summary_of(falls, [v - 0.5 for v in falls])
    assert "the rate that reads it: 50.0000 ± 0.0000 %" in said
    # Down through the mean height, -3, at 30 %, up again at 50 %, and down at last before 70 %.
    zigzag = [-1.0, -4.0, -2.0, -4.0, -4.0]
    said = summary_of(zigzag, [v - 0.1 for v in zigzag])
    assert (
        "unclear: the curve crosses its mean height more than once, between 23.3 and 60.0 %" in said
    )
    assert "the rate that reads it" not in summary_of([-3.0] * 5, [-3.0] * 5)


def test_one_text_has_no_error_and_no_rate() -> None:
    said = summary_of([-1.0, -2.0, -3.0, -4.0, -5.0])
    assert "area: -3.0000 nats (no error from one sample) a token" in said
    assert "nan" not in said and "the rate that reads it" not in said


def test_texts_come_from_standard_input(folder, texts, capsys, monkeypatch) -> None:
    assert call(folder, "curve", texts, "--rates", "15") == 0
    rows_of_the_file = capsys.readouterr().out
    with texts.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert call(folder, "curve", "-", "--rates", "15") == 0
    assert capsys.readouterr().out == rows_of_the_file


def test_one_document_has_an_error_over_masks(folder, tmp_path, capsys) -> None:
    path = tmp_path / "one.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    assert call(folder, "sentences", path, "--documents", "--num-masks", 4) == 0
    out, said = capsys.readouterr()
    errors = torch.tensor([row["standard_error"] for row in rows(out)])
    of_the_mean = errors.square().sum().sqrt().item() / len(TEXTS)
    assert of_the_mean > 0
    assert f"error over masks alone, of one document: {of_the_mean:.4f} nats" in said


def test_one_json_says_what_its_rows_belong_to(folder, texts, tmp_path, capsys) -> None:
    path = tmp_path / "out.json"
    assert call(folder, "curve", texts, "--rates", "15", "--out", path) == 0
    content = json.loads(path.read_text())
    assert content["model"]["weights"] and content["kind"] == "curve" and len(content["rows"]) == 1
    assert call(folder, "curve", texts, "--rates", "15", "--out", path) == 2
    assert "is there already" in capsys.readouterr().err


WRONG = {
    "nothing": (b"\n \n", "has no text"),
    "not UTF-8": (b"the cat\nthe \xff dog\n", "line 2: is not UTF-8 (byte 0xff at 5)"),
    "nothing known": (b"the cat\n???\n", "line 2: "),
}


@pytest.mark.parametrize("content, message", WRONG.values(), ids=list(WRONG))
def test_a_file_that_is_none_is_named_in_one_line(
    folder, tmp_path, capsys, content, message
) -> None:
    path = tmp_path / "wrong.txt"
    path.write_bytes(content)
    assert call(folder, "curve", path, "--rates", "15") == 2
    out, said = capsys.readouterr()
    assert message in said and len(said.splitlines()) == 1 and out == ""


def test_what_cannot_be_scored_is_left_out_and_listed(folder, tmp_path, capsys) -> None:
    path = tmp_path / "some.txt"
    path.write_text("the cat\n???\n" + "the cat " * 20 + "\na dog\n")
    assert call(folder, "curve", path, "--rates", "50", "--skip") == 0
    said = capsys.readouterr().err
    assert "some.txt, line 2: " in said and "some.txt, line 3: has 42 tokens" in said
    assert call(folder, "sentences", path, "--skip", "--num-masks", 2) == 0  # windows
    out, said = capsys.readouterr()
    assert [row["line"] for row in rows(out)] == [1, 3, 4] and "scored in windows" in said
    assert call(folder, "curve", path, "--rates", "50") == 2
    path.write_text("???\n")
    assert call(folder, "curve", path, "--rates", "50", "--skip") == 2
    assert "no line of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind, more, message",
    [
        ("curve", ["--num-orders", "2"], "Unknown option: --num-orders"),
        ("sentences", ["--rates", "15"], "Unknown option: --rates"),
        ("curve", ["--rates", "5-95"], "--rates must be as 15"),
        ("curve", ["--rates", "0"], "each of --rates must be in 1..100"),
        ("curve", ["--out", "x.xlsx"], "must end in one of .jsonl, .csv, .tsv, .json"),
        ("curve", ["--out", "x.svg"], "must end in one of .jsonl, .csv, .tsv, .json"),
        ("curve", ["--text"], "--text: the rows of a curve are rates"),
        ("sentences", ["--limit", "0"], "--limit must be >= 1, got 0"),
        ("sentences", ["--column", "text"], "--column is for files that end in"),
        ("curve", ["--plot", "x.csv"], "must end in one of .svg, .pdf, .png"),
        ("curve", ["more.txt"], "too many arguments: more.txt"),
        ("sentences", ["--num-masks", "0"], "--num-masks must be >= 1, got 0"),
        ("sentences", ["--device", "cuda"], "no GPU"),
        ("pairs", [], "one tab between"),
        ("answers", [], '{"prompt"'),
    ],
)
def test_wrong_options_are_one_line(folder, texts, capsys, kind, more, message) -> None:
    if "cuda" in more and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert call(folder, kind, texts, *more) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_an_option_that_there_is_not_is_no_file(capsys) -> None:
    assert main(["sentences", "--nix"]) == 2
    assert "--nix is no option here" in capsys.readouterr().err


def test_a_missing_file_and_a_missing_model_are_one_line(folder, texts, tmp_path, capsys) -> None:
    assert call(folder, "curve", tmp_path / "nothing.txt") == 2
    assert "nothing.txt cannot be read" in capsys.readouterr().err
    assert call(tmp_path / "nothing", "curve", texts) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_revision_is_the_one_that_is_loaded(folder, texts, capsys, monkeypatch) -> None:
    seen, load = [], mpt_score.load

    def watched(model: Any, **given: Any) -> mpt_score.Scorer:
        seen.append(given.pop("revision"))  # a folder has none
        return load(model, **given)

    monkeypatch.setattr(mpt_score, "load", watched)
    assert call(folder, "sentences", texts, "--num-masks", 2, "--revision", "v2") == 0
    assert seen == ["v2"]


def test_each_of_several_processes_has_a_gpu_of_its_own(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    several, single = ProcessGroup(None, 1, 2), ProcessGroup(None, 0, 1)
    assert [several.device(each) for each in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    assert [single.device(each) for each in ("auto", "cuda", "cpu")] == ["auto", "cuda", "cpu"]


def read_lines(path: Path, kind: str = "sentences", **source: Any) -> list[Any]:
    return list(lines.read(str(path), kind, InputOptions(**source)))


def test_lines_keep_their_numbers_and_documents(tmp_path) -> None:
    path = tmp_path / "many.txt"
    path.write_bytes("\ufeffthe cat\r\n\r\na dog\rthe\u2028dog\n\n".encode())
    found = read_lines(path)
    assert [(line.number, line.texts[0], line.document) for line in found] == [
        (1, "the cat", 0),
        (3, "a dog", 1),
        (4, "the\u2028dog", 1),
    ]
    assert len(read_lines(path, limit=2)) == 2


def test_a_line_more_leaves_the_other_batches(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lines, "MEAN_LINES", 8)
    path = tmp_path / "many.txt"
    texts = [f"the cat {n}" for n in range(400)]

    def batches_of(texts: list[str]) -> list[tuple[str, ...]]:
        path.write_text("\n".join(texts))
        return [tuple(line.texts[0] for line in b) for b in lines.batches(read_lines(path))]

    before = batches_of(texts)
    assert [text for batch in before for text in batch] == texts
    assert 20 < len(before) < 100
    after = batches_of(["a dog", *texts[:200], "the dog", *texts[200:]])
    assert len(set(before) - set(after)) <= 2  # a batch that a line has come into
    monkeypatch.setattr(lines, "MOST_LINES", 5)
    assert max(map(len, batches_of(texts))) == 5
    monkeypatch.setattr(lines, "MOST_CHARACTERS", 10)
    assert max(map(len, batches_of(texts))) == 2


def test_columns_of_tables(folder, tmp_path, capsys) -> None:
    table = tmp_path / "texts.csv"
    table.write_text('id,good,bad\n1,"the cat\nsat",a dog\n2,a dog,the dog\n3\n')
    found = read_lines(table, column=("good",))
    assert [line.number for line in found] == [2, 4, 5]
    assert [line.texts for line in found[:2]] == [("the cat\nsat",), ("a dog",)]
    assert found[2].reason.startswith("has 1 cells, the header 3: ")
    found = read_lines(table, "pairs", column=("bad", "good"))
    assert found[1].texts == ("the dog", "a dog")
    objects = tmp_path / "texts.jsonl"
    objects.write_text('{"text": "the cat"}\n{"words": "a dog"}\n{"text": 3}\n')
    found = read_lines(objects, column=("text",))
    assert found[0].texts == ("the cat",)
    assert 'must be {"text": ...}' in found[1].reason and "a text is needed" in found[2].reason
    assert call(folder, "sentences", table, "--column", "nix") == 2
    assert "has no column 'nix'; it has id, good, bad" in capsys.readouterr().err
    for file in (table, objects):
        assert call(folder, "sentences", file) == 2
        assert "is a table: name where its texts are, --column NAME" in capsys.readouterr().err
    assert call(folder, "pairs", table, "--column", "good") == 2
    assert "--column must be 2 for pairs" in capsys.readouterr().err
    more = ("--num-masks", 2, "--skip", "--text", "--limit", 2)
    assert call(folder, "sentences", table, "--column", "bad", *more) == 0
    assert [row["text"] for row in rows(capsys.readouterr().out)] == ["a dog", "the dog"]


@pytest.mark.bad_input
def test_a_cell_with_an_unquoted_separator_is_no_two_cells(tmp_path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("good,bad\nthe cat,the dog\nthe cat, sat,the dog, sat\n")
    found = read_lines(table, "pairs", column=("good", "bad"))
    assert found[0].texts == ("the cat", "the dog")
    assert found[1].reason.startswith("has 4 cells, the header 2: a cell that holds the separator")


@pytest.mark.bad_input
def test_tables_of_other_programs_are_named(tmp_path) -> None:
    table = tmp_path / "texts.csv"
    table.write_bytes("good,bad\n".encode("utf-16"))
    with pytest.raises(ValueError, match="is UTF-16: save it as UTF-8"):
        read_lines(table, column=("good",))
    table.write_text("good;bad\nthe cat;the dog\n")
    with pytest.raises(ValueError, match="has no column 'good'.* must be separated by ','"):
        read_lines(table, column=("good",))


def test_columns_are_kept(folder, tmp_path, capsys) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("item,good,bad,condition\n7,the cat,the dog,near\n8,a cat,a dog,far\n")
    options = ("--column", "good,bad", "--keep", "condition,item")
    assert call(folder, "pairs", table, *options) == 0
    found = rows(capsys.readouterr().out)
    assert [(row["condition"], row["item"]) for row in found] == [("near", "7"), ("far", "8")]
    objects = tmp_path / "asked.jsonl"
    question = {"prompt": "the", "options": [" cat", " dog"], "item": 3}
    objects.write_text(json.dumps(question) + "\n")
    assert call(folder, "answers", objects, "--keep", "item") == 0
    assert [row["item"] for row in rows(capsys.readouterr().out)] == [3, 3]


@pytest.mark.bad_input
def test_columns_that_cannot_be_kept_are_named(folder, texts, tmp_path, capsys) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text,model\nthe cat,a\n")
    for path, options, said in (
        (texts, ["--keep", "item"], "--keep is for the columns of a table"),
        (table, ["--column", "text", "--keep", "nix"], "has no column 'nix'"),
        (
            table,
            ["--column", "text", "--keep", "model"],
            "--keep model: rows have a column of that",
        ),
    ):
        assert call(folder, "sentences", path, *options) == 2
        assert said in capsys.readouterr().err


def id_lines(path: Path, key: str, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts))
    return path


def test_token_ids_are_scored_as_their_strings(folder, texts, tmp_path, capsys) -> None:
    ids = tokenizer()(TEXTS)["input_ids"]
    file = id_lines(tmp_path / "ids.jsonl", "ids", ids)
    for kind, more in (("sentences", ("--num-orders", 2)), ("curve", ("--rates", "10:90:20"))):
        assert call(folder, kind, texts, *more) == 0
        wanted = rows(capsys.readouterr().out)
        assert call(folder, kind, file, "--column", "ids", *more) == 0
        out, said = capsys.readouterr()
        name = "log_score" if kind == "sentences" else "score"
        assert [row[name] for row in rows(out)] == [row[name] for row in wanted]
        assert "their unknown tokens" not in said
    table = tmp_path / "out.csv"
    more = ("--column", "ids", "--text", "--out", table)
    assert call(folder, "sentences", file, *more) == 0
    with table.open() as stored:
        assert [json.loads(row["text"]) for row in csv.DictReader(stored)] == ids


def test_pairs_and_answers_of_token_ids(folder, tmp_path, capsys) -> None:
    first, second = tokenizer()(["the cat sat", "the dog sat"])["input_ids"]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"good": first, "bad": second}) + "\n")
    assert call(folder, "pairs", pairs, "--column", "good,bad", "--text") == 0
    (row,) = rows(capsys.readouterr().out)
    wanted = mpt_score.pairs(folder, ["the cat sat"], ["the dog sat"])
    assert row["log_ratio"] == wanted.log_ratio.item()
    assert (row["first"], row["second"]) == (first, second)
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"prompt": first[:2], "options": [first[2:], second[2:]]}) + "\n")
    assert call(folder, "answers", asked, "--text") == 0
    found = rows(capsys.readouterr().out)
    scores = mpt_score.answers(folder, [first[:2]], [[first[2:], second[2:]]])
    assert [row["log_score"] for row in found] == scores.log_score[0].tolist()
    assert [row["text"] for row in found] == [first[2:], second[2:]]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ([3, -1], "token ids are whole numbers from 0 on, got -1"),
        ([3, 1.5], "token ids are whole numbers from 0 on, got 1.5"),
        ([3, True], "token ids are whole numbers from 0 on, got True"),
        ([3, 2**63], "token ids are whole numbers from 0 on, got 9223372036854775808"),
        ([3, "the"], "token ids are whole numbers from 0 on, got 'the'"),
        ([], "has no token id"),
        ("the cat", "has strings, and line 1 has token ids"),
    ],
)
def test_wrong_token_ids_name_their_line(tmp_path, text, reason) -> None:
    file = id_lines(tmp_path / "ids.jsonl", "ids", [[5, 6], text, [7]])
    first, fault, last = read_lines(file, column=("ids",))
    assert (first.texts, last.texts) == (([5, 6],), ([7],))
    assert fault.number == 2 and fault.reason.startswith(reason)
    both = tmp_path / "both.jsonl"
    both.write_text('{"good": "the", "bad": [3]}\n')
    (fault,) = read_lines(both, "pairs", column=("good", "bad"))
    assert "of one kind" in fault.reason


def test_lines_of_token_ids_have_numbers_of_their_own(tmp_path) -> None:
    file = id_lines(tmp_path / "ids.jsonl", "ids", [[5, 6], [56], [6, 5]])
    assert len({line.draw for line in read_lines(file, column=("ids",))}) == 3


def test_no_network_answers_that_was_not_named(texts, capsys) -> None:
    assert main(["sentences", str(texts)]) == 2
    assert "name a masked language model: --model FOLDER" in capsys.readouterr().err


def test_each_row_is_json_and_nothing_is_infinite(folder, texts, tmp_path, capsys) -> None:
    """Short texts have infinite degrees of freedom; JSON has no word for that."""
    few = ("--num-masks", 64, "--text")
    assert call(folder, "sentences", texts, *few) == 0
    out, _ = capsys.readouterr()
    for line, text in zip(out.splitlines(), TEXTS, strict=True):
        row = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert row["degrees"] is None and row["text"] == text
        assert row["low"] == row["log_score"] == row["high"]
    for suffix, delimiter in ((".tsv", "\t"), (".csv", ",")):
        table = tmp_path / f"rows{suffix}"
        assert call(folder, "sentences", texts, *few, "--out", table) == 0
        with table.open(newline="") as stored:
            found = list(csv.DictReader(stored, delimiter=delimiter))
        assert [row["text"] for row in found] == TEXTS
        assert [float(row["log_score"]) for row in found] == [row["log_score"] for row in rows(out)]
        assert not table.with_name(f"{table.name}.partial").exists()


def test_one_text_has_an_interval_and_no_error(folder, tmp_path, capsys) -> None:
    path = tmp_path / "one.txt"
    path.write_text("the cats sat a dog\n")
    assert call(folder, "sentences", path, "--num-masks", 8) == 0
    out, said = capsys.readouterr()
    (row,) = rows(out)
    assert row["low"] < row["log_score"] < row["high"]
    assert f"95 % interval over masks {row['low']:.4f} to {row['high']:.4f}" in said
    assert "nan" not in said and "±" not in said


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (
            ("--num-masks", 1),
            "error over masks: not known, which takes two orders",
        ),
        (
            ("--num-masks", 2),
            "error over masks: not known, which takes two orders",
        ),
        (("--num-orders", 1), "error over masks: not known, which takes two orders"),
        (("--num-masks", 3), "95 % interval over masks"),
        (("--num-masks", 63), "exact, as every mask was visited"),
    ],
    ids=str,
)
def test_one_text_is_said_to_have_the_error_that_it_has(
    folder, tmp_path, capsys, budget: tuple[str, int], says: str
) -> None:
    path = tmp_path / "one.txt"
    path.write_text("the cats sat a dog\n")  # six pieces, 63 masks
    assert call(folder, "sentences", path, *budget) == 0
    out, said = capsys.readouterr()
    (row,) = rows(out)
    assert f"{row['log_score']:.4f} nats; {says}" in said
    assert "nan" not in said and "±" not in said
    assert (row["low"] is None) == ("not known" in says)


@pytest.mark.parametrize("num_masks", [1, 2, 3])
def test_one_document_of_few_masks(folder, texts, capsys, num_masks: int) -> None:
    assert call(folder, "sentences", texts, "--documents", "--num-masks", num_masks) == 0
    said = capsys.readouterr().err
    assert "nan" not in said and "(no error from one sample)" in said
    assert ("one document: not known" in said) == (num_masks < 3)


def test_scores_at_some_rates_of_one_text_have_no_error() -> None:
    raw = torch.tensor([[[-1.0, -2.0]]], dtype=torch.float64)
    design = mpt_score.Design((0.15, 0.5))
    curves = mpt_score.SentenceCurves(design, raw, 0 * raw, raw[:, 0, -1], torch.tensor([10]))
    assert summaries.of_curve(curves) == [
        "score at 15 %: -1.0000 nats a token (no error from one text)",
        "score at 50 %: -2.0000 nats a token (no error from one text)",
    ]


def test_rows_come_with_their_batch(folder, tmp_path, monkeypatch) -> None:
    """The first rows are there before the last line is read, and a crash keeps them."""
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    path, out = tmp_path / "texts.txt", tmp_path / "rows.jsonl"
    path.write_text("\n".join(TEXTS))
    partial = tmp_path / "rows.jsonl.partial"
    counts = []
    sentences = mpt_score.sentences

    def counted(*args: Any, **options: Any) -> Any:
        counts.append(len(partial.read_text().splitlines()))
        if len(counts) == 3:
            raise KeyboardInterrupt
        return sentences(*args, **options)

    monkeypatch.setattr(mpt_score, "sentences", counted)
    few = ("--num-masks", 2, "--out", out)
    assert call(folder, "sentences", path, *few) == 130
    assert counts == [0, 2, 4] and not out.exists()
    kept = partial.read_text().splitlines()
    assert [json.loads(line)["line"] for line in kept] == [1, 2, 3, 4]


def test_what_a_stopped_run_left_is_not_lost(folder, texts, tmp_path, capsys) -> None:
    out = tmp_path / "rows.jsonl"
    partial = tmp_path / "rows.jsonl.partial"
    partial.write_text('{"line": 1}\n')
    few = ("--num-masks", 2, "--out", out)
    assert call(folder, "sentences", texts, *few) == 2
    assert "has rows of a run that was stopped" in capsys.readouterr().err
    assert partial.read_text() == '{"line": 1}\n'
    assert call(folder, "sentences", texts, *few, "--checkpoints", tmp_path / "state") == 0
    assert len(out.read_text().splitlines()) == len(TEXTS) and not partial.exists()


def test_a_second_run_into_one_file_is_refused(folder, texts, tmp_path, capsys) -> None:
    out = tmp_path / "rows.jsonl"
    more = ("--num-masks", 2, "--out", out, "--checkpoints", tmp_path / "state")
    with row_files.opened(str(out), resumes=True) as first:
        first.write([{"line": 1}])
        assert call(folder, "sentences", texts, *more) == 2
        assert "is being written by another run" in capsys.readouterr().err
        first.finish({})
    assert out.read_text() == '{"line": 1}\n'
    assert call(folder, "sentences", texts, *more) == 2
    assert "is there already" in capsys.readouterr().err


@contextmanager
def full_disk(path: Path, num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes more than ``path`` has."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_keeps_the_rows_that_were_whole(tmp_path) -> None:
    out = tmp_path / "rows.jsonl"
    partial = tmp_path / "rows.jsonl.partial"
    row = {"text": "x" * 1000}
    with (
        pytest.raises(OSError, match=r"rows.jsonl.partial cannot be written: .*3 rows are in"),
        row_files.opened(str(out), resumes=False) as stream,
    ):
        stream.write([row] * 3)
        with full_disk(partial, 1000):
            stream.write([row] * 3)
    assert [json.loads(line) for line in partial.read_text().splitlines()] == [row] * 3


def test_after_a_full_disk_the_same_command_goes_on(
    folder, texts, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    whole = tmp_path / "whole.jsonl"
    out = tmp_path / "rows.jsonl"
    partial = tmp_path / "rows.jsonl.partial"
    assert call(folder, "sentences", texts, "--out", whole) == 0
    write = row_files._File.write

    def write_to_a_full_disk(self: Any, more: Any) -> None:
        with full_disk(partial, 100) if self.count else nullcontext():
            write(self, more)

    capsys.readouterr()
    command = ("sentences", texts, "--out", out, "--checkpoints", tmp_path / "state")
    with monkeypatch.context() as full:
        full.setattr(row_files._File, "write", write_to_a_full_disk)
        assert call(folder, *command) == 2
    price, refusal = capsys.readouterr().err.splitlines()
    assert "passes" in price
    assert refusal.startswith(f"mpt-score: {partial} cannot be written: ")
    assert refusal.endswith(f"2 rows are in {partial}.")
    assert whole.read_bytes().startswith(partial.read_bytes())
    assert call(folder, *command) == 0
    assert out.read_bytes() == whole.read_bytes()


# Each command in a fork of one process, which has imported all: standard output is a pipe whose
# reader is gone, and a full disk. Exit codes and standard error are those of the whole process.
UNWRITABLE = """
import os, sys
import transformers.models.bert.modeling_bert
from mpt_score.command import main

reads, closed_pipe = os.pipe()
os.close(reads)
full_disk = os.open("/dev/full", os.O_WRONLY)
for output in (closed_pipe, full_disk):
    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        sys.stdout = open(1, "w", closefd=False)
        raise SystemExit(main(sys.argv[1:]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_standard_output_that_is_closed_is_no_mistake_and_a_full_disk_is(folder, texts) -> None:
    command = ["sentences", texts, "--model", folder, "--num-masks", "2"]
    ended = subprocess.run(
        [sys.executable, "-c", UNWRITABLE, *command],
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # as a user has it
        capture_output=True,
        text=True,
        check=True,
    )
    price = "to score: 5 texts, 19 tokens; passes at most: 10"
    assert ended.stderr.splitlines() == [
        price,
        "1",
        price,
        "mpt-score: standard output cannot be written: No space left on device. 0 rows were.",
        "2",
    ]


def test_a_part_that_cannot_be_kept_names_its_file(folder, texts, tmp_path, capsys) -> None:
    state = tmp_path / "state"
    state.write_text("no folder")
    assert call(folder, "sentences", texts, "--checkpoints", state) == 2
    assert f"--checkpoints {state} cannot be written" in capsys.readouterr().err


SPECIAL = {
    "sentences": ["the cat", "the [MASK] sat", "a dog"],
    "pairs": ["the cat\tthe dog", "the [SEP] sat\tthe cat sat", "a cat\ta dog"],
    "answers": [
        json.dumps({"prompt": prompt, "options": options})
        for prompt, options in (
            ("the cat", [" sat", " dog"]),
            ("the [MASK] cat", [" sat", " dog"]),
            ("a dog", [" sat", " the"]),
        )
    ],
    "an option": [
        json.dumps({"prompt": "the", "options": options})
        for options in ([" cat"], [" cat", " [CLS] dog"], [" dog"])
    ],
    "an unknown option": [
        json.dumps({"prompt": "the", "options": options})
        for options in ([" cat"], [" cat", " zebra"], [" dog"])
    ],
    "a long option": [
        json.dumps({"prompt": "the", "options": options})
        for options in ([" cat"], [" cat", " sat" * 20], [" dog"])
    ],
}


@pytest.mark.parametrize("what", SPECIAL)
def test_one_text_costs_its_own_line_alone(folder, tmp_path, capsys, what) -> None:
    kind = what if what in ("sentences", "pairs") else "answers"
    path, good = tmp_path / "texts.txt", tmp_path / "good.txt"
    path.write_text("\n".join(SPECIAL[what]))
    good.write_text("\n".join([SPECIAL[what][0], "", SPECIAL[what][2]]))
    assert call(folder, kind, path) == 2
    said = capsys.readouterr().err
    *price, refusal = said.splitlines()
    assert "texts.txt, line 2: " in refusal and "--skip" in refusal
    assert len(price) == (kind == "sentences")
    assert call(folder, kind, path, "--skip") == 0
    out, said = capsys.readouterr()
    assert "skipped: " in said and "texts.txt, line 2: " in said and "skipped lines: 1" in said
    assert call(folder, kind, good) == 0
    for row, wanted in zip(rows(out), rows(capsys.readouterr().out), strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)


def test_an_answer_that_is_no_number_costs_its_line(folder, tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the cat\na dog\nthe dog sat\n")
    log_tokens = MaskedLM.log_tokens

    def broken(self: Any, ids: torch.Tensor, mask: torch.Tensor, **more: Any) -> torch.Tensor:
        values = log_tokens(self, ids, mask, **more)
        return values.masked_fill((ids == 10).any(dim=1, keepdim=True) & mask, math.nan)

    monkeypatch.setattr(MaskedLM, "log_tokens", broken)
    assert call(folder, "sentences", path, "--num-masks", 2, "--skip") == 0
    out, said = capsys.readouterr()
    assert [row["line"] for row in rows(out)] == [1, 3]
    assert "line 2: the model says nan of token" in said


def test_unknown_tokens_do_not_improve_bits_a_byte(tmp_path, capsys) -> None:
    """A line of Chinese and emoji: the same tokens are scored as in the words around it."""
    small = networks.small_bert_folder()
    known = "She was alone in the house."
    path = tmp_path / "texts.txt"
    path.write_text(f"{known}\n{known} 😀😀😀 北京市东城区\nx 北京市东城区东华门大街\n", "utf-8")
    assert call(small, "sentences", path, "--num-masks", 4) == 0
    out, said = capsys.readouterr()
    plain, mixed, chinese = rows(out)
    assert plain["num_unknown"] == 0 and plain["num_bytes"] == len(known)
    assert mixed["num_unknown"] >= 2 and mixed["num_bytes"] == mixed["num_characters"] == len(known)
    assert chinese["num_tokens"] == chinese["num_bytes"] == 1
    for row in (plain, mixed, chinese):
        bits = -row["log_score"] / math.log(2)
        assert row["bits_per_byte"] == pytest.approx(bits / row["num_bytes"])
    total = mixed["num_unknown"] + chinese["num_unknown"]
    assert f"unknown tokens: {total}, in 2 of 3 texts" in said


def test_pairs_say_how_often_the_first_wins(folder, tmp_path, capsys) -> None:
    path = tmp_path / "pairs.txt"
    pairs = [("the cat sat", "the dog sat"), ("a cat", "a dog"), ("a dog", "a cat"), ("a", "a")]
    path.write_text("\n".join("\t".join(pair) for pair in pairs))
    assert call(folder, "pairs", path, "--text") == 0
    out, said = capsys.readouterr()
    found = rows(out)
    assert [(row["first"], row["second"]) for row in found] == pairs
    ratios = torch.tensor([row["log_ratio"] for row in found], dtype=torch.float64)
    hits = (0.5 * (1 + ratios.sign())).double()
    error = 100 * hits.std().item() / 2
    assert f"in {100 * hits.mean():.1f} ± {error:.1f} % of the pairs" in said
    assert "equally probable, each half a hit: 1" in said
    mean = Estimate(ratios.mean().item(), ratios.std().item() / 2, 4, "nats a pair")
    assert f"mean: {mean}" in said


@pytest.mark.parametrize("kind", ["pairs", "answers"])
def test_a_line_keeps_its_orders_wherever_it_stands(folder, tmp_path, capsys, kind) -> None:
    """Nine tokens that differ are too many for all orders: some are drawn."""
    first, second = "the cat a dog sat the a cat dog", "a dog the cat the a sat dog a"
    line = {
        "pairs": f"{first}\t{second}",
        "answers": json.dumps({"prompt": "the", "options": [f" {first}", f" {second}"]}),
    }[kind]
    path = tmp_path / "texts.txt"
    found = []
    for content in (line, "\n".join([line.replace("sat", "cat"), line])):
        path.write_text(content)
        assert call(folder, kind, path, "--num-orders", 4, "--checkpoints", tmp_path / "s") == 0
        found.append(rows(capsys.readouterr().out))
    last = len(found[0])
    for row, wanted in zip(found[1][-last:], found[0], strict=True):
        assert row["standard_error"] > 0
        wanted["line"] = row["line"]
        assert row == pytest.approx(wanted, rel=1e-5)


def test_a_line_more_is_all_that_is_computed(folder, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(lines, "MEAN_LINES", 1)  # each line is a batch of its own
    path, state = tmp_path / "texts.txt", tmp_path / "state"
    path.write_text("\n".join(TEXTS))
    more = ("--num-masks", 2, "--checkpoints", state)
    assert call(folder, "sentences", path, *more) == 0
    before = rows(capsys.readouterr().out)
    seen = []
    log_tokens = MaskedLM.log_tokens

    def watched(self: Any, ids: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        seen.extend(map(tuple, ids.tolist()))
        return log_tokens(self, ids, *args, **options)

    monkeypatch.setattr(MaskedLM, "log_tokens", watched)
    path.write_text("\n".join(["the dogs sat", *TEXTS]))
    assert call(folder, "sentences", path, *more) == 0
    after = rows(capsys.readouterr().out)
    assert len(set(seen)) == 1
    assert [row | {"line": 0} for row in after[1:]] == [row | {"line": 0} for row in before]


def test_the_same_command_goes_on(folder, texts, tmp_path, capsys, monkeypatch) -> None:
    state = tmp_path / "state"
    more = ("--rates", "10:90:20", "--checkpoints", state)
    assert call(folder, "curve", texts, *more) == 0
    whole = capsys.readouterr().out
    assert list(state.glob("*.safetensors"))

    def broken(*_: object, **__: object) -> None:
        raise AssertionError("it was kept")

    monkeypatch.setattr(Scorer, "log_tokens", broken)
    assert call(folder, "curve", texts, *more) == 0
    assert capsys.readouterr().out == whole
    with pytest.raises(AssertionError, match="it was kept"):  # other settings are other parts
        call(folder, "curve", texts, *more, "--seed", 1)


def test_interrupted_it_says_where_it_goes_on(folder, texts, tmp_path, capsys, monkeypatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    state = tmp_path / "state"
    kept = Scorer.log_tokens
    monkeypatch.setattr(Scorer, "log_tokens", stop)
    assert call(folder, "sentences", texts, "--checkpoints", state) == 130
    said = capsys.readouterr().err
    assert "nothing was kept yet" in said and "goes on" not in said
    monkeypatch.setattr(Scorer, "log_tokens", kept)
    assert call(folder, "sentences", texts, "--checkpoints", state) == 0
    num_parts = len(list(state.glob("*.safetensors")))
    capsys.readouterr()
    monkeypatch.setattr(Scorer, "log_tokens", stop)
    more = ("--seed", 1, "--checkpoints", state)
    assert call(folder, "sentences", texts, *more) == 130
    assert f"{num_parts} parts are kept in {state}" in capsys.readouterr().err


# What torchrun does, from one process that has imported all, for one command after the other.
LAUNCHED = """
import runpy, sys
from torch.distributed.launcher import LaunchConfig, elastic_launch
import transformers.models.bert.modeling_bert
import mpt_lml

def one(command):
    sys.argv[1:] = command
    try:
        runpy.run_module("mpt_score.command", run_name="__main__")
    except SystemExit as stopped:
        return stopped.code

for command in {commands}:
    alone = {{"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": command[1]}}
    found = elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **alone), one)(command)
    assert found == {{0: 0, 1: 0}}, found
"""


@pytest.mark.slow
def test_two_processes_say_what_one_says(folder, texts, tmp_path, capsys) -> None:
    """Texts on many lines, so that each has a share; equal up to the rounding of batches."""
    texts.write_text("\n".join(f"{each} a dog" for each in TEXTS * 12) + "\n")
    more = {"curve": ["--rates", "10:90:20"], "sentences": []}
    alone, commands = [], []
    for kind, own in more.items():
        assert call(folder, kind, texts, "--num-masks", 2, *own) == 0
        alone += rows(capsys.readouterr().out)
        command = [kind, texts, "--model", folder, "--num-masks", 2, *own]
        commands.append([*map(str, command), "--checkpoints", str(tmp_path / kind)])
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED.format(commands=commands)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shared = rows(done.stdout)
    assert len(shared) == len(alone) == 5 + 60
    for one, other in zip(shared, alone, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_a_curve_that_stays_on_one_side_is_a_result(folder, tmp_path, capsys) -> None:
    """One token has one height: rows and picture are there, only no rate reads the area."""
    path, picture = tmp_path / "one.txt", tmp_path / "curve.svg"
    path.write_text("cat\ndog\n")
    assert call(folder, "curve", path, "--plot", picture) == 0
    out, said = capsys.readouterr()
    assert len(rows(out)) == 99 and picture.is_file()
    assert "area: " in said and "the rate that reads it" not in said


@pytest.mark.bad_input
def test_no_token_at_a_time_is_refused(folder, texts, capsys) -> None:
    assert call(folder, "sentences", texts, "--max-tokens", 0) == 2
    assert "--max-tokens must be >= 1, got 0" in capsys.readouterr().err


def test_the_price_is_said_before_the_start(folder, tmp_path, capsys) -> None:
    """What was spent is at most that, and it is all of it but for masks that happen to be the same."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS, "the [MASK]", "the dog [SEP]"]) + "\n", encoding="utf-8")
    for more in (["--num-masks", 2], ["--num-orders", 3, "--pseudo"], []):
        assert call(folder, "sentences", path, "--skip", *more) == 0
        out, said = capsys.readouterr()
        found = rows(out)
        settings = {name.strip("-").replace("-", "_"): True for name in more if name == "--pseudo"}
        if more:
            settings[str(more[0]).strip("-").replace("-", "_")] = int(more[1])
        passes = int(mpt_score.passes(folder, TEXTS, **settings).sum())
        tokens = sum(row["num_tokens"] for row in found)
        first = said.splitlines()[0]
        assert first == f"to score: 5 texts, {tokens} tokens; passes at most: {passes}"
        assert sum(row["num_passes"] for row in found) <= passes


def test_no_price_without_a_second_reading(folder, texts, tmp_path, capsys) -> None:
    """A pipe can be read only once: its rows are those of the file, and the price is by the token."""
    assert call(folder, "sentences", texts, "--num-orders", 2) == 0
    wanted = capsys.readouterr().out
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["cp", str(texts), str(pipe)])
    assert call(folder, "sentences", pipe, "--num-orders", 2) == 0
    assert writer.wait() == 0
    out, said = capsys.readouterr()
    assert out == wanted
    assert said.startswith("to score: texts as they come; passes at most: 2 for each token\n")


def test_what_is_written_is_forgotten(folder, tmp_path, monkeypatch) -> None:
    """Memory grows with a batch and not with the file: when one is scored, none before it is left."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    monkeypatch.setattr(lines, "MOST_LINES", 4)
    references: list[weakref.ref[mpt_score.SentenceScores]] = []
    num_alive = []
    score = score_file._Work.score

    def count_and_score(work: Any, batch: Any, faults: Any) -> Any:
        scored = score(work, batch, faults)
        num_alive.append(sum(reference() is not None for reference in references))
        references.append(weakref.ref(scored.scores))
        return scored

    monkeypatch.setattr(score_file._Work, "score", count_and_score)
    out = tmp_path / "rows.jsonl"
    assert call(folder, "sentences", path, "--num-masks", 2, "--out", out) == 0
    assert len(out.read_text().splitlines()) == 20
    assert len(num_alive) >= 5 and max(num_alive) <= 1  # the last one, until the next is there


def test_the_summary_says_both_bounds_of_the_mixture() -> None:
    """And counts the texts in which the one from above is not to be relied on."""

    def shy(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Each token is surer the more are shown, at odd places more than at even ones."""
        num_shown = (~mask).sum(dim=1, keepdim=True)
        odds = 0.3 * num_shown * (torch.arange(ids.shape[1]) % 2)
        return torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1).double())

    texts = [[1, 0] * 5, [0, 1] * 5, [1, 1, 0, 0, 1, 0, 1, 1, 1, 0]]
    scores = mpt_score.sentences(shy, texts)
    scores = dataclasses.replace(scores, is_heavy_tailed=torch.tensor([True, False, True]))
    texts_as_lines = [lines.Line(number, (text,), 0) for number, text in enumerate(texts, start=1)]
    summary = summaries.SentenceSummary(has_documents=False)
    summary.add(scores, texts_as_lines)
    said = "\n".join(summary.lines())
    low, high = (scores.mean(of=name) for name in ("mixture_lower", "mixture_upper"))
    assert f"mixture of orders, bounds from below and above: {low} a text to {high} a text" in said
    assert "not to be relied on in 2 of 3 texts" in said
    single = summaries.SentenceSummary(has_documents=False)
    single.add(mpt_score.sentences(shy, texts, num_orders=1), texts_as_lines)
    assert "mixture" not in "\n".join(single.lines())
