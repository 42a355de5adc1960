"""``mpt-score sentences`` at distinct sentences: sentences a second, the network's share, memory.

    python benchmarks/throughput.py [--only WORD] [--json benchmarks/throughput.json]

The sentences are short ones of the public-domain books in the folder that MPT_LML_DATA names; without
them there are no rows. Each row is the whole command in a process of its own, with one thread: times
are its CPU seconds from the start of Python to the last row, imports and loading among them.

Networks: the book's small BERT (6 layers, 160 wide), BERT-base's shape with random weights, and one
layer 32 wide, which costs next to nothing, so that memory can be measured at many lines.

No batch is kept. What the peak of memory still rises by are holes in the heap where batches of other
shapes were: the small BERT needs 544 MiB for 1,000 lines and 678 for 9,000.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import corpus
import torch
from memory import peak_memory

from mpt_lml.data.sources import DataNotFoundError
from mpt_lml.files import read_json, write_json
from mpt_score import MaskedLM, command, networks, texts

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Case:
    """One run of the command."""

    network: str
    num_sentences: int
    options: tuple[str, ...]


CASES = (
    Case("small BERT", 10_000, ("--num-masks", "2")),
    Case("small BERT", 300, ()),
    Case("BERT-base's shape", 100, ("--num-masks", "2")),
    Case("one layer", 1_000, ("--num-masks", "2")),
    Case("one layer", 10_000, ("--num-masks", "2")),
    Case("one layer", 38_000, ("--num-masks", "2")),
)


@dataclass(frozen=True)
class Row:
    """What was measured of a case."""

    what: str
    seconds: float  # of CPU, of all of it
    sentences_per_second: float
    start_seconds: float  # of them until the network is loaded
    share_of_network: float  # of the seconds after the start
    share_with_start: float  # of all seconds
    peak_mebibytes: float
    start_mebibytes: float  # of that peak, when the network was loaded


class Clock:
    """CPU seconds spent within some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.process_time() - start

        return timed


def measure(what: str, model: str, file: str, options: tuple[str, ...]) -> Row:
    """The command, in this process, which has done nothing else."""
    from mpt_score import score_file

    torch.set_num_threads(1)
    in_network = Clock()
    # Body, head, and its softmax over the vocabulary: what a masked language model says.
    MaskedLM._losses = in_network.around(MaskedLM._losses)  # type: ignore[method-assign]
    at_start = []
    load = score_file._load

    def load_and_look(*arguments: Any) -> Any:
        scorer = load(*arguments)
        at_start.extend([time.process_time(), peak_memory()])
        return scorer

    score_file._load = load_and_look
    out = f"{file}.jsonl"
    if command.main(["sentences", file, "--model", model, *options, "--out", out]) != 0:
        raise RuntimeError(f"{what} was not scored.")
    seconds = time.process_time()
    count = len(Path(out).read_text(encoding="utf-8").splitlines())
    start_seconds, start_memory = at_start
    return Row(
        what=what,
        seconds=seconds,
        sentences_per_second=count / seconds,
        start_seconds=start_seconds,
        share_of_network=in_network.seconds / (seconds - start_seconds),
        share_with_start=in_network.seconds / seconds,
        peak_mebibytes=peak_memory() / MEBIBYTE,
        start_mebibytes=start_memory / MEBIBYTE,
    )


def folder_of(network: str, where: Path) -> str:
    """A folder with the network of a case and its tokenizer, or the name of the book's own."""
    if network == "small BERT":
        return "small-bert"
    import transformers

    folder = where / network
    if network == "one layer":
        tokenizer = networks.load_tokenizer(networks.small_bert_folder())
        config = transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=32,
            max_position_embeddings=64,
        )
    else:
        tokenizer = networks.load_tokenizer(texts.bert_vocabulary())
        config = transformers.BertConfig()
    networks.at_random(transformers.BertForMaskedLM, config, seed=4).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def row_of(case: Case) -> Row:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        file = where / "sentences.txt"
        sentences = corpus.short_sentences(case.num_sentences)
        file.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        model = folder_of(case.network, where)
        what = f"{case.network}, {case.num_sentences:,} sentences, {' '.join(case.options)}"
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            return pool.apply(measure, (what.removesuffix(", "), model, str(file), case.options))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose network or number has this in it")
    parser.add_argument("--json", metavar="PATH", help="also write the rows as JSON")
    options = parser.parse_args()
    try:
        corpus.short_sentences(1)
    except DataNotFoundError as error:
        print(f"not measured: {error}")
        return 0
    rows = []
    for case in CASES:
        if options.only in f"{case.network} {case.num_sentences} ":
            rows.append(asdict(row_of(case)))
            print(rows[-1], flush=True)
    if options.json:
        _keep(Path(options.json), rows)
    return 0


def _keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows of other cases that are there stay."""
    from experiments.provenance import provenance

    now = {row["what"] for row in rows}
    before = read_json(path)["rows"] if path.exists() else []
    others = [row for row in before if row["what"] not in now]
    origin = provenance("python benchmarks/throughput.py")
    write_json(path, {"rows": [*others, *rows], "provenance": origin})


if __name__ == "__main__":
    raise SystemExit(main())
