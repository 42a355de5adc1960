"""``mpt-score``: files in, records out, one sentence for every mistake, an output that is its state."""

from __future__ import annotations

import csv
import json
import math
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_bert import tiny, tokenizer

import mpt_score
from mpt_score import batch_store, lines, networks, output, score_file
from mpt_score.command import main, parse
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.output import RecordFile
from mpt_score.summaries import WINDOWS, Summary

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


def records(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


# -- the numbers of the library -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"num_orders": 3, "pseudo": True, "seed": 7},
        {"num_masks": 2},
        {"block_length": 2, "later": "absent"},
    ],
    ids=str,
)
def test_sentences_are_those_of_the_library(folder, texts, capsys, settings) -> None:
    options = []
    for name, value in settings.items():
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    assert call(folder, "sentences", texts, *options) == 0
    out, said = capsys.readouterr()
    scores = mpt_score.sentences(folder, TEXTS, **settings)
    for number, (record, wanted) in enumerate(zip(records(out), scores.rows(), strict=True)):
        shared = record.keys() & wanted.keys()
        assert {"log_score", "num_tokens", "bits_per_byte"} <= shared
        assert {name: record[name] for name in shared} == {name: wanted[name] for name in shared}
        assert (
            record["line"] == number + 1
            and record["unit"] == "nats"
            and record["model"] == str(folder)
        )
        assert ("pseudo_log_likelihood" in record) == ("pseudo" in settings)
        assert ("blocks of 2" in record["quantity"]) == ("block_length" in settings)
    assert f"{folder}, seed {settings.get('seed', 0)}" in said and "texts: 5" in said
    for unit in ("token", "byte"):
        assert f"mean: {scores.mean(unit)}" in said
    assert f"mean: {scores.mean()} a text" in said


def test_texts_of_an_item_see_the_same_orders(folder, tmp_path, capsys) -> None:
    table = tmp_path / "design.csv"
    cells = "the cat sat a dog,1,cat\nthe dog sat a dog,1,dog\na cat,01,cat\n"
    table.write_text(f"text,item,noun\n{cells}")
    more = ("--column", "text", "--items", "item", "--keep", "item,noun", "--num-orders", 2)
    out = tmp_path / "records.csv"
    texts = ["the cat sat a dog", "the dog sat a dog", "a cat"]
    scores = mpt_score.sentences(folder, texts, items=["1", "1", "01"], num_orders=2)
    for _ in range(2):  # of records that are made, and of records that are read
        assert call(folder, "sentences", table, *more, "--out", out) == 0
        said = capsys.readouterr().err
        assert f"mean: {scores.mean()} a text" in said  # errors are over items
        for unit in ("token", "byte"):
            assert f"mean: {scores.mean(unit)}" in said
    assert out.read_text().startswith("line,item,noun,log_score,")
    with out.open() as stored:
        found = list(csv.DictReader(stored))
    assert [float(record["log_score"]) for record in found] == scores.log_score.tolist()
    assert [(record["item"], record["noun"]) for record in found] == [
        ("1", "cat"),
        ("1", "dog"),
        ("01", "cat"),
    ]


def test_pairs_are_those_of_the_library(folder, tmp_path, capsys) -> None:
    path = tmp_path / "pairs.tsv"
    first = ["the cat sat", "a cat", "a dog", "the cat"]
    second = ["the dog sat", "a dog", "a cat", "the cat"]
    path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(first, second, strict=True)))
    assert call(folder, "pairs", path, "--pseudo") == 0
    out, said = capsys.readouterr()
    scores = mpt_score.pairs(folder, first, second, pseudo=True)
    for name in ("log_ratio", "pseudo_difference", "standard_error"):
        assert [record[name] for record in records(out)] == getattr(scores, name).tolist()
    assert f"the more probable one in {scores.accuracy()}" in said
    assert "equally probable, each half a hit: 1" in said
    path.write_text("the cat sat\tthe dog sat\n")
    assert call(folder, "pairs", path) == 0
    said = capsys.readouterr().err
    assert "pairs: 1\n" in said and "more probable" not in said and ": 0\n" not in said


def test_answers_are_those_of_the_library(folder, tmp_path, capsys) -> None:
    path = tmp_path / "asked.jsonl"
    options = [[" sat", " dog sat"], [" cats"]]
    questions = [{"prompt": "the cat", "options": options[0], "item": [3, 4]}]
    questions.append({"prompt": "a", "options": options[1], "item": math.nan})
    path.write_text("\n".join(map(json.dumps, questions)))
    more = ("--pseudo", "--within-word", "--keep", "item")
    assert call(folder, "answers", path, *more) == 0
    out, said = capsys.readouterr()
    scores = mpt_score.answers(folder, ["the cat", "a"], options, pseudo=True, within_word=True)
    found = records(out)
    assert [(record["line"], record["option"]) for record in found] == [(1, 0), (1, 1), (2, 0)]
    for name in ("log_score", "pseudo_log_likelihood", "within_word", "num_tokens"):
        wanted = getattr(scores, name)
        assert [record[name] for record in found] == [*wanted[0].tolist(), wanted[1, 0].item()]
    assert [record["item"] for record in found] == [
        [3, 4],
        [3, 4],
        None,
    ]  # JSON has no word for nan
    assert sum(record["best"] for record in found) == 2
    assert "prompts: 2" in said and "options: 3" in said
    assert "so that they are not comparable: 1" in said


def test_a_curve_says_area_only_where_it_is_one(folder, texts, tmp_path, capsys) -> None:
    assert call(folder, "curve", texts, "--rates", "15,40") == 0
    out, said = capsys.readouterr()
    assert [record["rate"] for record in records(out)] == [0.15, 0.4] and "area" not in said
    table = tmp_path / "curve.csv"
    assert call(folder, "curve", texts, "--rates", "5:95:10", "--out", table) == 0
    said = capsys.readouterr().err
    design = mpt_score.Design(tuple(p / 100 for p in range(5, 96, 10)), seed=0)
    wanted = mpt_score.curve(folder, TEXTS, design)
    assert f"area: {wanted.area()} a token" in said
    # Of the usual rates of training those that were asked for.
    biases = wanted.bias_at([0.15, 0.25])
    assert f"at 15 %: {biases[0.15]}\nD·S − area at 25 %: {biases[0.25]}\n" in said
    assert "area at 40 %" not in said
    with table.open() as stored:
        found = list(csv.DictReader(stored))
    assert [float(record["score"]) for record in found] == wanted.score.tolist()
    assert {record["num_texts"] for record in found} == {"5"}
    assert call(folder, "curve", texts, "--rates", "15", "--out", table) == 2
    assert "records of another run: rates is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "lines", "more", "number", "quantile"),
    [
        (
            "pairs",
            ["the cat sat a dog\ta dog sat the cat"],
            ("--num-orders", 3),
            "log_ratio",
            4.3027,
        ),
        (
            "answers",
            [json.dumps({"prompt": "the", "options": [" cat sat a dog"]})],
            ("--num-orders", 3),
            "log_score",
            4.3027,
        ),
        ("curve", TEXTS, ("--rates", "15,40"), "score", 2.7764),
    ],
    ids=["pairs", "answers", "curve"],
)
def test_intervals_are_students(
    folder, tmp_path, capsys, kind: str, lines: list[str], more: tuple, number: str, quantile: float
) -> None:
    """Of two degrees of freedom over three orders, of four over five texts."""
    path = tmp_path / "lines"
    path.write_text("\n".join(lines))
    assert call(folder, kind, path, *more) == 0
    for record in records(capsys.readouterr().out):
        reach = quantile * record["standard_error"]
        assert reach > 0.0
        ends = [record[number] - reach, record[number] + reach]
        assert [record["low"], record["high"]] == pytest.approx(ends, abs=1e-3 * reach)


def test_one_text_is_said_to_have_the_error_that_it_has(folder, tmp_path, capsys) -> None:
    path = tmp_path / "one.txt"
    path.write_text("the cats sat a dog\n")  # six pieces, 63 masks
    for num_masks, says in ((1, "not known"), (8, "95 % interval over masks"), (63, "exact")):
        assert call(folder, "sentences", path, "--num-masks", num_masks) == 0
        out, said = capsys.readouterr()
        (record,) = records(out)
        assert f"{record['log_score']:.4f} nats; " in said and says in said
        assert "nan" not in said and "±" not in said
        assert (record["low"] is None) == (says == "not known")


def test_unknown_tokens_do_not_improve_bits_a_byte(tmp_path, capsys) -> None:
    """A line of Chinese and emoji: the same tokens are scored as in the words around it."""
    known = "She was alone in the house."
    path = tmp_path / "texts.txt"
    path.write_text(f"{known}\n{known} 😀😀😀 北京市东城区\nx 北京市东城区东华门大街\n", "utf-8")
    assert call(networks.small_bert_folder(), "sentences", path, "--num-masks", 4) == 0
    out, said = capsys.readouterr()
    plain, mixed, chinese = records(out)
    assert plain["num_unknown"] == 0 and plain["num_bytes"] == len(known)
    assert mixed["num_unknown"] >= 2 and mixed["num_bytes"] == len(known)
    assert chinese["num_tokens"] == chinese["num_bytes"] == 1
    for record in (plain, mixed, chinese):
        bits = -record["log_score"] / math.log(2)
        assert record["bits_per_byte"] == pytest.approx(bits / record["num_bytes"])
    total = mixed["num_unknown"] + chinese["num_unknown"]
    assert f"whose bytes do not count: {total}" in said and "with unknown tokens: 2" in said


def test_a_long_text_counts_once_whatever_its_windows(folder) -> None:
    (row,) = mpt_score.sentences(mpt_score.load(folder), ["the cat"]).rows()
    summary = Summary(parse(["sentences", "texts.txt", "--model", "m"]))
    for num_windows in (1, 3):
        summary.add(row | {"num_windows": num_windows})
    assert f"{WINDOWS}: 1" in "\n".join(summary.lines())


# -- lines --------------------------------------------------------------------------------------------


def read_lines(path: Path, kind: str = "sentences", *more: str) -> list[Any]:
    return list(lines.read(parse([kind, str(path), "--model", "m", *more])))


def test_lines_keep_their_numbers(tmp_path) -> None:
    path = tmp_path / "many.txt"
    path.write_bytes("\ufeffthe cat\r\n\r\na dog\rthe\u2028dog\n\n".encode())
    found = [(line.number, line.texts[0]) for line in read_lines(path)]
    assert found == [(1, "the cat"), (3, "a dog"), (4, "the\u2028dog")]
    path.write_text(" the cat \n")
    assert [line.texts[0] for line in read_lines(path)] == [
        " the cat "
    ]  # as a script would read it


def test_parts_are_bounded_by_lines_and_work(monkeypatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINES", 5)
    monkeypatch.setattr(lines, "MOST_WORK", 1000)
    monkeypatch.setattr(lines, "USUAL_CHARACTERS", 10)

    def sizes_of(length: int, whole_orders: bool) -> list[int]:
        many = [lines.Line(number, ["x" * length]) for number in range(12)]
        return [len(part) for part in lines.parts(many, whole_orders=whole_orders, on_gpu=False)]

    assert sizes_of(3, False) == sizes_of(3, True) == [5, 5, 2]
    assert sizes_of(40, False) == [3] * 4
    assert sizes_of(20, False) == [5, 5, 2] and sizes_of(20, True) == [3] * 4


@pytest.mark.bad_input
def test_a_line_of_more_than_a_million_characters_costs_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 20)
    for name, more in (("long.txt", ()), ("long.csv", ("--column", "text"))):
        path = tmp_path / name
        path.write_text("text\n" + "a dog " * 20 + "\na dog\n")
        *_, fault, last = read_lines(path, "sentences", *more)
        assert fault == (2, "has more than 20 characters: split it, or close its quotes.")
        assert (last.number, last.texts) == (3, ["a dog"])


@pytest.mark.bad_input
def test_columns_of_tables(folder, tmp_path, capsys) -> None:
    table = tmp_path / "texts.csv"
    table.write_text('id,good,bad\n1,"the cat\nsat",a dog\n2,a dog,the dog\n3\n4,a,b,c\n')
    first, second, *faults = read_lines(table, "pairs", "--column", "bad,good", "--keep", "id")
    assert (first.number, first.texts) == (2, ["a dog", "the cat\nsat"])
    assert (second.number, second.copied) == (4, {"id": "2"})
    assert [fault.number for fault in faults] == [5, 6]
    assert all("more or fewer cells than the header" in fault.reason for fault in faults)
    objects = tmp_path / "texts.jsonl"
    objects.write_text('{"text": "the cat"}\n{"words": "a"}\n{"text": 3}\n{"text": "\\ud83d"}\n')
    good, *faults = read_lines(objects, "sentences", "--column", "text")
    assert good.texts == ["the cat"]
    for fault, reason in zip(
        faults, ('be {"text": ...}', "a text is", "is no Unicode text"), strict=True
    ):
        assert reason in fault.reason
    for path, content, more, message in (
        (table, b"good,bad\n", ["--column", "nix"], "has no column 'nix'; it has good, bad"),
        (table, b"good\n", [], "is a table: name where its texts are, --column NAME"),
        (table, b"good\n", ["--column", "a,b"], "--column must be 1 for sentences, got 2: a,b"),
        (
            table,
            b"a,model\nx,y\n",
            ["--column", "a", "--keep", "model"],
            "--keep model: records have",
        ),
        (table, b"a,line\nx,y\n", ["--column", "a", "--keep", "line"], "--keep line: records have"),
        (tmp_path / "x.txt", b"x\n", ["--column", "a"], "--column is for .csv and .jsonl files"),
        (tmp_path / "x.tsv", b"a\tb\n", ["--column", "a"], "a table must be .csv or .jsonl"),
        (tmp_path / "x.txt", b"x\n", ["--keep", "a"], "are for tables: name where"),
    ):
        path.write_bytes(content)
        assert call(folder, "sentences", path, *more) == 2
        assert message in capsys.readouterr().err


def test_a_table_may_have_empty_lines_and_a_name_in_capitals(tmp_path) -> None:
    table = tmp_path / "TEXTS.CSV"
    table.write_text("text,more\n\nthe cat,1\n\n\na dog,2\n")
    found = read_lines(table, "sentences", "--column", "text")
    assert [(line.number, line.texts) for line in found] == [(3, ["the cat"]), (6, ["a dog"])]


@pytest.mark.bad_input
@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_with_another_delimiter_is_told_apart(folder, tmp_path, capsys, delimiter) -> None:
    path = tmp_path / "items.csv"
    path.write_text(f"item{delimiter}text\n1{delimiter}the cat sat\n")
    assert call(folder, "sentences", path, "--column", "text") == 2
    said = capsys.readouterr().err
    assert "has no column 'text'" in said
    assert said.endswith(" Its columns are to be separated by commas.\n")
    path.write_text("item,sentence\n1,the cat sat\n")
    assert call(folder, "sentences", path, "--column", "text") == 2
    assert capsys.readouterr().err.endswith("it has item, sentence.\n")


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", ["sentences", "curve"])
def test_a_fasta_file_is_refused_with_a_command_that_makes_lines(
    folder, tmp_path, capsys, kind
) -> None:
    path = tmp_path / "chains.fasta"
    path.write_text(">P1 one\nMKTA\nYIA\n\n>P2\nGSHM\n")
    assert call(folder, kind, path, "--skip") == 2
    said = capsys.readouterr().err
    assert f"{path} begins with '>P1 one', as a FASTA file does" in said
    remedy = said.partition("Make each sequence a line: ")[2].partition(" > chains.txt")[0]
    made = subprocess.run(remedy, shell=True, capture_output=True, text=True, check=True)
    assert made.stdout == "MKTAYIA\nGSHM\n"


def test_a_table_may_have_texts_that_begin_as_a_fasta_file(folder, tmp_path, capsys) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "> the cat"}\n')
    assert call(folder, "sentences", path, "--column", "text") == 0
    path = tmp_path / "pairs.tsv"
    path.write_text("> the cat\t> the dog\n")
    (line,) = lines.read(parse(["pairs", str(path), "--model", str(folder)]))
    assert line.texts == ["> the cat", "> the dog"]
    path = tmp_path / "texts.txt"
    path.write_text("the cat\n> the dog\n")
    read = lines.read(parse(["sentences", str(path), "--model", str(folder)]))
    assert [line.texts for line in read] == [["the cat"], ["> the dog"]]
    path = tmp_path / "damaged.jsonl"
    path.write_text("> the cat\n")
    assert call(folder, "sentences", path, "--column", "text") == 2
    assert "must be {\"text\": ...}, got '> the cat'" in capsys.readouterr().err


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "content", "more", "sentence"),
    [
        (
            "x.csv",
            'id,text\n1,a dog\n2,"a cat\n3,a dog\n',
            ("--skip",),
            "line 3: a cell that begins",
        ),
        ("x.csv", 'text\na dog\n"a" cat\n', (), "line 3: a cell that begins with a quote must end"),
        (
            "x.csv",
            '"text\na dog\n',
            (),
            "line 1: a cell that begins with a quote must end with one",
        ),
        (
            "x.csv",
            "text,text\na cat,a dog\n",
            (),
            "line 1: 2 columns are called 'text'. Rename all",
        ),
        ("x.csv", "k,text,k\n1,a dog,2\n", ("--keep", "k"), "line 1: 2 columns are called 'k'."),
        (
            "x.jsonl",
            '{"text": "a dog"}\n{"text": "a cat", "text": "a dog"}\n',
            (),
            "line 2: has the key 'text' twice. Leave one of them out.",
        ),
        (
            "x.jsonl",
            '{"text": "a dog", "k": {"a": 1, "a": 2}}\n',
            ("--keep", "k"),
            "line 1: has the key 'a' twice.",
        ),
    ],
)
def test_a_table_that_can_be_read_in_two_ways_is_refused(
    folder, tmp_path, capsys, name: str, content: str, more: tuple, sentence: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert call(folder, "sentences", path, "--column", "text", *more) == 2
    out, said = capsys.readouterr()
    assert out == "" and f"{path}, {sentence}" in said.splitlines()[-1]


def test_columns_that_are_not_read_may_share_a_name(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('text,,\n"a ""dog""",1,2\n')
    (line,) = read_lines(path, "sentences", "--column", "text")
    assert line.texts == ['a "dog"']


def test_an_object_that_is_kept_is_json(folder, tmp_path) -> None:
    path = tmp_path / "texts.jsonl"
    kept = [{"a": [1, None]}, ["Ä", True], "a, b"]
    path.write_text("".join(json.dumps({"text": "a dog", "k": each}) + "\n" for each in kept))
    more = ("--column", "text", "--keep", "k", "--num-masks", 2, "--out")
    assert call(folder, "sentences", path, *more, tmp_path / "records.csv") == 0
    assert call(folder, "sentences", path, *more, tmp_path / "records.jsonl") == 0
    assert [record["k"] for record in records((tmp_path / "records.jsonl").read_text())] == kept
    with (tmp_path / "records.csv").open() as stored:
        cells = [record["k"] for record in csv.DictReader(stored)]
    assert cells == ['{"a": [1, null]}', '["Ä", true]', "a, b"]


@pytest.mark.bad_input
def test_a_pair_is_of_two_columns(folder, tmp_path, capsys) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\na cat,a dog\n")
    assert call(folder, "pairs", path, "--column", "a,a") == 2
    assert "--column must be two columns, got 'a' twice." in capsys.readouterr().err


def id_lines(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"ids": text}) + "\n" for text in texts))
    return path


def test_token_ids_are_scored_as_their_strings(folder, texts, tmp_path, capsys) -> None:
    file = id_lines(tmp_path / "ids.jsonl", tokenizer()(TEXTS)["input_ids"])
    for kind, more in (("sentences", ("--num-orders", 2)), ("curve", ("--rates", "10:90:20"))):
        name = "log_score" if kind == "sentences" else "score"
        assert call(folder, kind, texts, *more) == 0
        wanted = [record[name] for record in records(capsys.readouterr().out)]
        assert call(folder, kind, file, "--column", "ids", *more) == 0
        assert [record[name] for record in records(capsys.readouterr().out)] == wanted


def test_a_prompt_of_token_ids_may_be_empty(folder, tmp_path, capsys) -> None:
    file = tmp_path / "ids.jsonl"
    options = [[5, 6], [5, 11]]
    file.write_text(json.dumps({"prompt": [], "options": options}))
    assert call(folder, "answers", file) == 0
    wanted = mpt_score.answers(folder, [[]], [options]).log_score[0].tolist()
    assert [record["log_score"] for record in records(capsys.readouterr().out)] == wanted


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ([3, -1], "token ids are whole numbers from 0 on, got -1"),
        ([3, True], "token ids are whole numbers from 0 on, got True"),
        ([3, 2**63], "token ids are whole numbers from 0 on, got 9223372036854775808"),
        ([], "a token id is needed"),
        ("the cat", "a file has strings or token ids, not both"),
    ],
)
def test_wrong_token_ids_name_their_line(tmp_path, text, reason) -> None:
    file = id_lines(tmp_path / "ids.jsonl", [[5, 6], text, [7]])
    first, fault, last = read_lines(file, "sentences", "--column", "ids")
    assert (first.texts, last.texts) == ([[5, 6]], [[7]])
    assert fault.number == 2 and fault.reason.startswith(reason)


@pytest.mark.bad_input
@pytest.mark.parametrize("prompt", ["", "the"])
def test_a_prompt_and_its_options_are_of_one_kind(tmp_path, prompt) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"prompt": prompt, "options": [[5, 6], [7]]}))
    (fault,) = read_lines(file, "answers")
    assert fault.reason.startswith("a line has strings or token ids, not both")


SPECIAL = {
    "sentences": ["the cat", "the [MASK] sat", "a dog"],
    "pairs": ["the cat\tthe dog", "the cat sat\tthe cat", "a cat\ta dog"],
    "answers": [
        json.dumps({"prompt": "the", "options": options})
        for options in ([" cat"], [" cat", " zebra"], [" dog"])
    ],
    "curve": ["the cat", "the cat " * 20, "a dog"],
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_bad_line_costs_itself_alone(folder, tmp_path, capsys, kind) -> None:
    path, good = tmp_path / "texts.txt", tmp_path / "good.txt"
    path.write_text("\n".join(["", *SPECIAL[kind]]))
    good.write_text("\n".join(["", SPECIAL[kind][0], "", SPECIAL[kind][2]]))
    assert call(folder, kind, path) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "texts.txt, line 3: " in refusal and "--skip" in refusal
    assert call(folder, kind, path, "--skip") == 0
    out, said = capsys.readouterr()
    assert "skipped: " in said and "texts.txt, line 3: " in said
    assert call(folder, kind, good) == 0
    for record, wanted in zip(records(out), records(capsys.readouterr().out), strict=True):
        assert record.keys() == wanted.keys()
        for name, value in wanted.items():
            is_number = isinstance(value, float)
            assert record[name] == (pytest.approx(value, rel=1e-5) if is_number else value)
    path.write_text(SPECIAL[kind][1])
    assert call(folder, kind, path, "--skip", "--out", tmp_path / "records.csv") == 2
    assert f"no line of {path} can be scored" in capsys.readouterr().err
    assert not (tmp_path / "records.csv").exists()


def test_bad_lines_of_a_curve_are_named_in_the_order_of_the_file(folder, tmp_path, capsys) -> None:
    """Whether they are too long for the network, hold no known word, or are no texts at all."""
    path = tmp_path / "texts.jsonl"
    texts = ["the cat " * 20, "a dog", "zebra", 3]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = ("curve", path, "--column", "text", "--rates", "15")
    assert call(folder, *command) == 2
    assert f"{path}, line 1: " in capsys.readouterr().err
    assert call(folder, *command, "--skip") == 0
    skipped = [line for line in capsys.readouterr().err.splitlines() if "skipped: " in line]
    for line, number in zip(skipped, (1, 3, 4), strict=True):
        assert f"{path}, line {number}: " in line


def test_an_answer_that_is_no_number_costs_its_line(folder, tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the cat\na dog\nthe dog sat\n")
    ask = mpt_score.Scorer.ask

    def broken(self: Any, ids: torch.Tensor, rows: torch.Tensor, *given: Any, **named: Any) -> Any:
        is_broken = (ids == 10).any(dim=1)[rows, None]
        answer = ask(self, ids, rows, *given, **named)
        return lambda: answer().masked_fill(is_broken, math.nan)

    monkeypatch.setattr(mpt_score.Scorer, "ask", broken)
    more = ("--num-masks", 2)
    assert call(folder, "sentences", path, *more) == 2
    assert "line 2: the model says nan of token" in capsys.readouterr().err
    assert call(folder, "sentences", path, *more, "--skip") == 0
    out, said = capsys.readouterr()
    assert [record["line"] for record in records(out)] == [1, 3]
    assert "line 2: the model says nan of token" in said and "skipped lines: 1" in said


@pytest.mark.bad_input
def test_a_file_without_text_is_named_in_one_line(folder, tmp_path, capsys) -> None:
    path = tmp_path / "wrong.txt"
    path.write_bytes(b"\n \n")
    assert call(folder, "curve", path, "--rates", "15") == 2
    out, said = capsys.readouterr()
    assert "has no text" in said and len(said.splitlines()) == 1 and out == ""


# -- the output is its state --------------------------------------------------------------------------


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is two lines."""
    monkeypatch.setattr(lines, "MOST_LINES", 2)


@pytest.fixture
def command(folder: Path, texts: Path, tmp_path: Path) -> tuple[Any, ...]:
    return (folder, "sentences", texts, "--num-masks", 2, "--out", tmp_path / "records.csv")


def state_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user stops the command while it scores the part of that number, from 1."""
    score = score_file.score_lines
    calls = []

    def stopped(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return score(*given)

    monkeypatch.setattr(score_file, "score_lines", stopped)


def test_a_table_has_one_header_though_whole_parts_are_skipped(
    folder, texts, tmp_path, capsys, few_lines
) -> None:
    texts.write_text("\n".join(["???"] * 4 + TEXTS))
    out = tmp_path / "records.csv"
    for _ in range(2):  # of records that are made, and of records that are read
        assert call(folder, "sentences", texts, "--skip", "--out", out) == 0
        assert "skipped lines: 4\n" in capsys.readouterr().err
    with out.open() as stored:
        assert [record["line"] for record in csv.DictReader(stored)] == ["5", "6", "7", "8", "9"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_stopped_run_goes_on(folder, texts, tmp_path, capsys, few_lines, suffix) -> None:
    out, whole = tmp_path / f"records.{suffix}", tmp_path / f"whole.{suffix}"
    texts.write_text("\n".join([*TEXTS[:2], "???", *TEXTS[2:]]))
    command = (folder, "sentences", texts, "--skip", "--out")
    assert call(*command, whole) == 0
    summary = capsys.readouterr().err.partition("seed 0")[2]
    for number in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(number, patch)
            assert call(*command, out) == 130
        said = capsys.readouterr().err.splitlines()[-1]
        if number == 1:
            assert said == "mpt-score: stopped; nothing was written"
            assert not out.exists() and not state_of(out).exists()
        else:
            assert f"3 records are in {out}, the same command goes on from there" in said
            assert whole.read_bytes().startswith(out.read_bytes())
    scored = []
    with pytest.MonkeyPatch.context() as patch:
        score = score_file.score_lines
        patch.setattr(score_file, "score_lines", lambda *given: scored.append(1) or score(*given))
        assert call(*command, out) == 0
        assert len(scored) == 1  # of three parts, the last one
        assert capsys.readouterr().err.partition("seed 0")[2] == summary
        assert out.read_bytes() == whole.read_bytes()
        assert state_of(out).read_bytes() == state_of(whole).read_bytes()
        assert call(*command, out) == 0
        said = capsys.readouterr().err
        assert "is whole already" in said and said.partition("seed 0")[2] == summary
        assert len(scored) == 1


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("pairs", "the cat sat\tthe dog sat\na dog\ta cat\nthe cat\tthe cat\n"),
        (
            "answers",
            '{"prompt": "the cat", "options": [" sat", " dog sat"]}\n'
            '{"prompt": "the do", "options": ["g sat", "gs"]}\n'
            '{"prompt": "a", "options": [" cat", " dog"]}\n',
        ),
    ],
    ids=["pairs", "answers"],
)
def test_records_that_are_read_have_the_summary_of_those_that_were_made(
    folder, tmp_path, capsys, kind, content, suffix
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text(content)
    out = tmp_path / f"records.{suffix}"
    assert call(folder, kind, path, "--out", out) == 0
    summary = capsys.readouterr().err.partition("seed 0")[2]
    assert ": 1\n" in summary  # a tie, or a question whose options are not comparable, or joined
    assert call(folder, kind, path, "--out", out) == 0
    assert capsys.readouterr().err.partition("seed 0")[2] == summary


def test_a_run_without_a_file_says_how_many_records_it_wrote(
    folder, texts, capsys, few_lines
) -> None:
    texts.write_text("\n".join([*TEXTS[:3], "???"]))
    assert call(folder, "sentences", texts) == 2
    out, said = capsys.readouterr()
    assert len(records(out)) == 2
    assert "line 4: " in said and said.rstrip().endswith(" 2 records were written.")


@contextmanager
def passes_in_a_minute(number: int, *, in_all: float = math.inf) -> Iterator[list[int]]:
    """A clock by which so many batches take more than a minute, and a stop after some batches.

    Yields the rows that have gone through the network, batch by batch.
    """
    batches: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        made = score_file.BatchStore

        def counted(_: Any, num_rows: int) -> None:
            if len(batches) >= in_all:
                raise KeyboardInterrupt
            batches.append(num_rows)

        def with_clock(path: Path) -> Any:
            return made(path, clock=lambda: 61.0 * (len(batches) // number))

        patch.setattr(score_file.tqdm, "update", counted)
        patch.setattr(score_file, "BatchStore", with_clock)
        yield batches


def function_of_a_known_identity(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "known_function.py").write_text(
        "import torch\n"
        "identity = 'of this test'\n"
        "def f(ids, mask):\n"
        "    places = torch.arange(20.0) * (1 + ids.masked_fill(mask, 4).sum(1)[:, None, None])\n"
        "    return places.cos().expand(*ids.shape, 20).log_softmax(-1)\n"
    )
    return "known_function:f"


@pytest.mark.parametrize("kind", ["network", "function"])
def test_a_part_that_takes_long_keeps_its_passes(
    folder, texts, tmp_path, capsys, monkeypatch, kind
) -> None:
    """A run of one part is stopped before a record is there."""
    out, whole = tmp_path / "records.csv", tmp_path / "whole.csv"
    command = (folder, "sentences", texts, "--max-tokens", 32)
    if kind == "function":
        name = function_of_a_known_identity(tmp_path, monkeypatch)
        command = (name, *command[1:], "--tokenizer", folder)
    with passes_in_a_minute(2) as in_all:
        assert call(*command, "--out", whole) == 0
    with passes_in_a_minute(2, in_all=5) as before:
        assert call(*command, "--out", out) == 130
    kept = out.with_name("records.csv.passes")
    assert f"passes are in {kept}, the same command goes on from" in capsys.readouterr().err
    assert out.read_bytes() == b"" and len(before) == 5

    content = kept.read_bytes()
    assert call(*command, "--seed", 1, "--out", out) == 2
    assert "has records of another run: seed is 0 there, 1 here" in capsys.readouterr().err
    for length in (len(content), len(content) - 1):  # the last answer was not written to its end
        kept.write_bytes(content[:length])
        copies = {each: each.read_bytes() for each in (out, state_of(out))}
        with passes_in_a_minute(2) as after:
            assert call(*command, "--out", out) == 0
        num_kept = 4 if length == len(content) else 3
        assert after == in_all[num_kept:] and len(after) > 2
        assert out.read_bytes() == whole.read_bytes()
        assert state_of(out).read_bytes() == state_of(whole).read_bytes()
        assert not kept.exists()
        for path, bytes_before in copies.items():
            path.write_bytes(bytes_before)


def test_a_run_may_be_stopped_again_behind_an_answer_that_was_cut(folder, texts, tmp_path) -> None:
    out = tmp_path / "records.csv"
    command = (folder, "sentences", texts, "--max-tokens", 32, "--out", out)
    kept = tmp_path / "records.csv.passes"
    with passes_in_a_minute(1, in_all=3):
        assert call(*command) == 130
    kept.write_bytes(kept.read_bytes()[:-1])
    with passes_in_a_minute(1, in_all=3) as second:
        assert call(*command) == 130
    with passes_in_a_minute(1) as third:
        assert call(*command) == 0
    assert len(second) == 3
    with passes_in_a_minute(1) as in_all:
        assert call(*command[:-1], tmp_path / "whole.csv") == 0
    assert third == in_all[5:]
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_file_of_passes_may_be_cut_anywhere(tmp_path) -> None:
    """What is left is what was written whole, and what is saved later follows it."""
    path = tmp_path / "passes"
    store = batch_store.BatchStore(path)
    store.answer("first", lambda: torch.tensor([1.0]))
    store.save()
    num_bytes_of_first = path.stat().st_size
    store.answer("second", lambda: torch.tensor([2.0, 3.0]))
    store.save()
    content = path.read_bytes()
    for num_bytes in range(num_bytes_of_first, len(content)):
        path.write_bytes(content[:num_bytes])
        again = batch_store.BatchStore(path)
        assert again.saved == {"first": torch.tensor([1.0])}
        again.answer("second", lambda: torch.tensor([2.0, 3.0]))
        again.save()
        assert path.read_bytes() == content


def test_passes_are_known_by_the_shape_of_what_was_asked() -> None:
    row = torch.arange(4)
    assert len({batch_store.digest_of(each) for each in (row, row[None], row.view(2, 2))}) == 3


def test_passes_of_a_part_that_is_written_are_not_kept(tmp_path) -> None:
    path = tmp_path / "passes"
    store = batch_store.BatchStore(path)
    store.answer("first", lambda: torch.tensor([1.0]))
    store.forget()
    store.answer("second", lambda: torch.tensor([2.0]))
    store.save()
    assert batch_store.BatchStore(path).saved == {"second": torch.tensor([2.0])}


def test_passes_of_a_later_part(folder, texts, tmp_path, few_lines) -> None:
    out, whole = tmp_path / "records.csv", tmp_path / "whole.csv"
    command = (folder, "sentences", texts, "--max-tokens", 32, "--out")
    with passes_in_a_minute(1) as in_all:
        assert call(*command, whole) == 0
    with passes_in_a_minute(1, in_all=len(in_all) - 1):
        assert call(*command, out) == 130
    assert whole.read_bytes().startswith(out.read_bytes()) and out.read_bytes()
    with passes_in_a_minute(1) as after:
        assert call(*command, out) == 0
    assert after == in_all[-1:]
    assert out.read_bytes() == whole.read_bytes()


def test_records_that_were_removed_take_their_passes_along(
    folder, texts, tmp_path, capsys, few_lines
) -> None:
    out, whole = tmp_path / "records.csv", tmp_path / "whole.csv"
    command = (folder, "sentences", texts, "--max-tokens", 32, "--out")
    with passes_in_a_minute(1) as in_all:
        assert call(*command, whole) == 0
    for files in ([out], [out, state_of(out)]):
        # In the second part, of which passes are kept behind the records of the first.
        num_passes = [
            record["num_passes"]
            for record in csv.DictReader(whole.read_text(encoding="utf-8").splitlines())
        ]
        num_rows = sum(map(int, num_passes[:2]))
        num_batches = next(n for n in range(len(in_all)) if sum(in_all[:n]) > num_rows)
        with passes_in_a_minute(1, in_all=num_batches):
            assert call(*command, out) == 130
        assert out.read_bytes() and out.with_name("records.csv.passes").exists()
        for path in files:
            path.unlink()
        with passes_in_a_minute(1) as after:
            assert call(*command, out) == 0
        assert after == in_all
        assert out.read_bytes() == whole.read_bytes()
        for path in tmp_path.glob("records.csv*"):
            path.unlink()


def test_without_an_identity_nothing_is_kept(folder, texts, tmp_path, monkeypatch) -> None:
    name = function_of_a_known_identity(tmp_path, monkeypatch)
    module = tmp_path / "known_function.py"
    (tmp_path / "unknown_function.py").write_text(module.read_text().replace("identity", "_"))
    out = tmp_path / "records.csv"
    command = (name.replace("known", "unknown"), "sentences", texts, "--tokenizer", folder)
    with passes_in_a_minute(1, in_all=2):
        assert call(*command, "--out", out) == 130
    assert list(tmp_path.glob("records.csv*")) == []


def test_the_bar_counts_passes(folder, texts, tmp_path, monkeypatch, capsys) -> None:
    moves: list[int] = []
    asked: list[int] = []
    monkeypatch.setattr(score_file.tqdm, "update", lambda _, number: moves.append(number))
    ask = MaskedLM._log_tokens_of_rows

    def watched(model: MaskedLM, masked_rows: Any, some: slice) -> torch.Tensor:
        asked.append(some.stop - some.start)
        return ask(model, masked_rows, some)

    monkeypatch.setattr(MaskedLM, "_log_tokens_of_rows", watched)
    out = tmp_path / "records.jsonl"
    assert call(folder, "sentences", texts, "--max-tokens", 32, "--out", out) == 0
    assert len(moves) > 5
    assert sum(moves) == sum(asked)
    assert "\r" not in capsys.readouterr().err  # which is no terminal
    # Rows of two texts that show the same go through the network once.
    assert sum(asked) <= sum(record["num_passes"] for record in records(out.read_text()))


def test_a_kill_at_any_moment_leaves_what_goes_on(command, few_lines, monkeypatch) -> None:
    """Killed before or after each write to the disk, of records and of the state."""
    out = command[-1]
    scorer = mpt_score.load(command[0])
    monkeypatch.setattr(score_file, "load", lambda *_, **__: scorer)  # once for all runs
    write = output._write_all
    left: list[tuple[bytes, bytes | None]] = []  # by a kill

    def watched(stream: Any, start: int, content: bytes) -> None:
        for how_much in (0, 30, len(content)):
            write(stream, start, content[:how_much])
            state = state_of(out).read_bytes() if state_of(out).exists() else None
            left.append((out.read_bytes(), state))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_write_all", watched)
        assert call(*command) == 0
    # The state at the start, records and state of three parts, and the mark of the end.
    assert len(left) == 3 * 8
    whole, journal = out.read_bytes(), state_of(out).read_bytes()
    for number, (rows_left, state_left) in enumerate(left):
        out.write_bytes(rows_left)
        state_of(out).unlink()
        if state_left is not None:
            state_of(out).write_bytes(state_left)
        assert call(*command) == 0, number
        assert (out.read_bytes(), state_of(out).read_bytes()) == (whole, journal)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_after_a_full_disk_the_same_command_goes_on(command, few_lines, texts, capsys) -> None:
    """Full in the records, and, where these are few, in the state."""
    out = command[-1]
    assert call(*command) == 0
    whole = out.read_bytes()
    for size in (len(whole) - 50, 100):
        out.unlink()
        state_of(out).unlink()
        capsys.readouterr()
        with full_disk(size):
            assert call(*command) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(f"mpt-score: {out} cannot be written: File too large.")
        assert out.exists() == state_of(out).exists() == (size > 100)
        if out.exists():
            assert said.endswith("the same command goes on from there.")
            assert whole.startswith(out.read_bytes()) and out.read_bytes().endswith(b"\n")
        assert call(*command) == 0
        assert out.read_bytes() == whole
    assert sorted(path.name for path in out.parent.glob("records*")) == [
        "records.csv",
        "records.csv.state",
    ]


def test_a_second_run_into_one_file_is_refused(command, few_lines, capsys, monkeypatch) -> None:
    out = command[-1]
    score = score_file.score_lines
    finish = RecordFile.finish
    seen = []

    def run_a_second(*given: Any) -> None:
        before = out.read_bytes()
        assert call(*command) == 2
        seen.append(capsys.readouterr().err.splitlines()[-1])
        assert out.read_bytes() == before

    def score_beside(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(score_file, "score_lines", score)
            run_a_second()
        return score(*given)

    def finish_beside(file: RecordFile) -> None:
        finish(file)
        run_a_second()

    monkeypatch.setattr(score_file, "score_lines", score_beside)
    monkeypatch.setattr(RecordFile, "finish", finish_beside)
    assert call(*command) == 0
    assert len(seen) == 4  # beside each part, and when all but the lock was done
    assert set(seen) == {
        f"mpt-score: --out {out} is being written by another run: name another file."
    }


def test_a_changed_setting_model_or_input_is_seen(
    command, few_lines, texts, tmp_path, capsys
) -> None:
    out = command[-1]
    with pytest.MonkeyPatch.context() as patch:
        stop_at(3, patch)
        assert call(*command) == 130
    left = out.read_bytes()

    def refused(sentence: str, *more: object, folder: Path = command[0]) -> None:
        capsys.readouterr()
        assert call(folder, *command[1:], *more) == 2
        assert sentence in capsys.readouterr().err
        assert out.read_bytes() == left

    refused("has records of another run: seed is 0 there, 1 here", "--seed", 1)
    refused("pseudo is False there, True here", "--pseudo")
    refused("max_tokens is None there, 7 here", "--max-tokens", 7)
    other = tmp_path / "other"
    tiny(seed=1).float().save_pretrained(other)
    tokenizer().save_pretrained(other)
    refused(f"model is {command[0]} there, {other} here", folder=other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "fingerprint", lambda network: "0" * 64)
        refused("weights has changed since")
    for place in (1, 3):
        changed = [*TEXTS[:place], "the cats", *TEXTS[place + 1 :]]
        texts.write_text("\n".join(changed))
        refused("a line up to 4 has changed, or there are more")
    texts.write_text("\n".join(TEXTS[:2]))
    refused("a line up to 4 has changed, or there are more")
    texts.write_text("\n".join([*TEXTS[:4], "the cats", "a dog"]))  # of parts that are not written
    assert call(*command) == 0
    left = out.read_bytes()
    with texts.open("a") as stream:
        stream.write("\nthe dog\n")
    refused("a line up to 6 has changed, or there are more")
    for changed_records in (left + b"8,\n", left[:-3]):
        out.write_bytes(changed_records)
        left = changed_records
        refused("was changed after it was written")


@pytest.mark.parametrize(
    ("code", "change", "sentence"),
    [
        ("identity = 'a coin'", "# another one", "function has changed since"),
        ("", "", "my_coin:coin names no identity"),
    ],
    ids=["changed code", "no identity"],
)
def test_a_function_goes_on_where_it_is_known_to_be_the_same(
    tmp_path, capsys, monkeypatch, code: str, change: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    id_lines(tmp_path / "ids.jsonl", [[0, 1], [1, 1]])
    coin = "coin = lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1)"
    command = ["sentences", "ids.jsonl", "--column", "ids", "--model", "my_coin:coin"]
    written = []
    for end, status in (("", 0), (change, 2)):
        Path("my_coin.py").write_text(f"import torch\n{code}\n{coin}\n{end}\n")
        sys.modules.pop("my_coin", None)
        assert main([*command, "--out", "records.csv"]) == status
        written.append(Path("records.csv").read_bytes())
    sys.modules.pop("my_coin", None)
    assert sentence in capsys.readouterr().err and written[0] == written[1]


@pytest.mark.bad_input
def test_memory_that_ends_leaves_what_goes_on(command, few_lines, capsys, monkeypatch) -> None:
    out = command[-1]
    score = score_file.score_lines

    def without_memory(scorer: Any, good: Any, options: Any) -> Any:
        if out.stat().st_size > 0:
            torch.zeros(10**15)
        return score(scorer, good, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_file, "score_lines", without_memory)
        assert call(*command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "memory does not suffice for 'sentences" in said and "--num-masks 2" in said
    assert said.endswith(f"2 records are in {out}, the same command goes on from there.")
    assert call(*command) == 0


@pytest.mark.parametrize("bad", [b"???", b"\xff"], ids=["no token", "no text"])
def test_a_bad_line_ends_a_run_that_goes_on_once_it_is_mended(
    command, few_lines, texts, capsys, bad: bytes
) -> None:
    out = command[-1]
    texts.write_bytes("\n".join(TEXTS[:4]).encode() + b"\n" + bad)
    assert call(*command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{texts}, line 5: " in said
    assert said.endswith(f"4 records are in {out}, the same command goes on from there.")
    texts.write_text("\n".join(TEXTS))
    assert call(*command) == 0
    with out.open() as stored:
        assert [record["line"] for record in csv.DictReader(stored)] == ["1", "2", "3", "4", "5"]


@pytest.mark.bad_input
@pytest.mark.parametrize("number", [3, 4], ids=["stopped", "whole"])
def test_rows_and_a_state_that_were_changed_are_refused(
    command, few_lines, capsys, monkeypatch, number: int
) -> None:
    out = command[-1]
    stop_at(number, monkeypatch)
    assert call(*command) == (130 if number == 3 else 0)
    written = out.read_bytes()
    state = json.loads(state_of(out).read_bytes())
    damaged = f"{state_of(out)} is damaged. Name another file, or remove records.csv and"
    changed_input = "a line up to {} has changed, or there are more"
    half = len(written) // 2
    for rows_there, changes, sentence in (
        (written.replace(b",-", b",+", 1), {}, f"{out} was changed after it was written"),
        (written[:half] + b"X" * (len(written) - half), {}, "was changed after it was written"),
        (written, {"num_bytes": half}, "was changed after it was written"),
        (written, {"num_records": str(state["num_records"])}, damaged),
        (written, {"is_whole": 1}, damaged),
        (written, {"last_line": 0}, changed_input.format(0)),
        (written, {"last_line": 2}, changed_input.format(2)),
    ):
        out.write_bytes(rows_there)
        state_of(out).write_text(json.dumps(state | changes))
        assert call(*command) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
        assert out.read_bytes() == rows_there


@pytest.mark.bad_input
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no such file")
@pytest.mark.bad_input
def test_records_of_a_setting_that_there_is_no_more_are_of_another_run(command, capsys) -> None:
    assert call(*command) == 0
    state = state_of(command[-1])
    content = json.loads(state.read_bytes())
    content["run"]["of_old"] = 3
    state.write_text(json.dumps(content))
    assert call(*command) == 2
    assert "of_old is 3 there, None here" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(folder, capsys) -> None:
    assert call(folder, "curve", "/proc/self/mem", "--rates", 15) == 2
    sentence = "mpt-score: /proc/self/mem cannot be read: Input/output error.\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.bad_input
def test_a_file_of_somebody_else_is_never_written(command, capsys) -> None:
    out = command[-1]
    out.write_text("my own\n")
    for state in (None, "", "no journal\n{}\n"):
        if state is not None:
            state_of(out).write_text(state)
        assert call(*command) == 2
        said = capsys.readouterr().err
        assert "is there already, without the records.csv.state" in said or "is damaged" in said
        assert out.read_text() == "my own\n"


def test_what_is_written_is_forgotten(command, few_lines, texts, monkeypatch) -> None:
    """Memory grows with a part and not with the file: when one is scored, none before it is left."""
    texts.write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    references: list[weakref.ref[mpt_score.SentenceScores]] = []
    num_alive = []
    score = score_file.score_lines

    def score_and_count(*given: Any) -> Any:
        scores = score(*given)
        num_alive.append(sum(reference() is not None for reference in references))
        references.append(weakref.ref(scores))
        return scores

    monkeypatch.setattr(score_file, "score_lines", score_and_count)
    assert call(*command) == 0
    assert num_alive == [0] * 10


@pytest.mark.parametrize("kind", ["sentences", "curve"])
def test_a_text_is_tokenized_once(folder, texts, monkeypatch, kind) -> None:
    words = type(tokenizer())
    tokenized: list[str] = []
    tokenize = words.__call__

    def watched(self: Any, given: Any, *more: Any, **options: Any) -> Any:
        tokenized.extend([given] if isinstance(given, str) else given)
        return tokenize(self, given, *more, **options)

    monkeypatch.setattr(words, "__call__", watched)
    known = ["the cat sat", "a dog sat", "the cats"]
    texts.write_text("\n".join(known))
    assert call(folder, kind, texts) == 0
    assert sorted(tokenized) == sorted(known)


def test_a_pipe_is_read_once(folder, texts, tmp_path, capsys, monkeypatch) -> None:
    assert call(folder, "sentences", texts, "--num-orders", 2) == 0
    wanted = capsys.readouterr().out
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["cp", str(texts), str(pipe)])
    assert call(folder, "sentences", pipe, "--num-orders", 2) == 0
    assert writer.wait() == 0
    assert capsys.readouterr().out == wanted
    with texts.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert call(folder, "sentences", "-", "--num-orders", 2) == 0
    assert capsys.readouterr().out == wanted


# -- whole processes ----------------------------------------------------------------------------------

# A process that scores by a function need not import transformers, which takes the most time.
TABLE = """
import torch

identity = "a table"


def log_q(ids, mask):
    shown = ids.masked_fill(mask, 2).sum(dim=1, keepdim=True)
    odds = torch.sin(shown + 3.0 * torch.arange(ids.shape[1])).double()
    return torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1))
"""
ROWS_OF_IDS = [[0, 1, 1], [1, 0, 0, 1], [1, 1], [0, 0, 1, 1, 0], [1, 0]]


@pytest.fixture
def of_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A command in a folder of its own, with a function instead of a network."""
    (tmp_path / "my_table.py").write_text(TABLE)
    id_lines(tmp_path / "ids.jsonl", ROWS_OF_IDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = ["--model", "my_table:log_q", "--num-masks", "2"]
    yield ["sentences", "ids.jsonl", "--column", "ids", *model]
    sys.modules.pop("my_table", None)


# Each command in a fork of one process, which has imported all: standard output is a pipe whose
# reader is gone, and a full disk. Exit codes and standard error are those of the whole process.
UNWRITABLE = """
import gc, os, sys
from mpt_score import score_file
from mpt_score.command import main

gc.freeze()  # or each fork would look through all that is imported when it ends
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
def test_standard_output_that_is_closed_is_no_mistake_and_a_full_disk_is(of_table) -> None:
    # Python 3.12 warns of every fork beside threads; here they hold nothing that the child waits for.
    silent = "ignore:This process:DeprecationWarning"
    ended = subprocess.run(
        [sys.executable, "-W", silent, "-c", UNWRITABLE, *of_table],
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # as a user has it
        capture_output=True,
        text=True,
        check=True,
    )
    full = "mpt-score: standard output cannot be written: No space left on device."
    assert ended.stderr.splitlines() == ["1", full, "2"]


# What torchrun does, from one process that has imported all, for each command.
LAUNCHED = """
import gc, json, runpy, sys
from torch.distributed.launcher import LaunchConfig, elastic_launch
from mpt_score import lines, score_file
lines.MOST_LINES = 2
gc.freeze()  # or each fork would look through all that is imported when it ends

def one():
    try:
        runpy.run_module("mpt_score.command", run_name="__main__")
    except SystemExit as stopped:
        return stopped.code

alone = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "one"}
for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command
    found = elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **alone), one)()
    assert found == {0: 0, 1: 0}, found
"""


@pytest.mark.slow
def test_two_processes_write_what_one_writes(of_table, few_lines) -> None:
    """From the start, and where one process was stopped after two of four parts."""
    id_lines(Path("ids.jsonl"), [*ROWS_OF_IDS, [1, 0, 1], [0, 0]])
    command = [*of_table, "--out"]
    assert main([*command, "whole.csv"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_at(3, patch)
        assert main([*command, "stopped.csv"]) == 130
    calls = [[*command, "anew.csv"], [*command, "stopped.csv"]]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED, json.dumps(calls)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = ["anew.csv", "stopped.csv", "whole.csv"]
    files = {path.name: path.read_bytes() for path in Path().glob("*.csv*")}
    assert sorted(files) == sorted([*names, *(f"{name}.state" for name in names)])
    for name in names:
        assert files[name] == files["whole.csv"]
        assert files[f"{name}.state"] == files["whole.csv.state"]
    assert done.stderr.count("texts: 7\n") == 2


@pytest.mark.bad_input
def test_several_processes_need_a_file(folder, capsys, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert call(folder, "sentences", "-") == 2
    assert "several processes need a file to read, got -" in capsys.readouterr().err
