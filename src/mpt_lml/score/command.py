"""``mpt-lml score``: sentences, pairs, answers, a curve or images from a file, with their errors."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from tqdm.auto import tqdm

from mpt_lml import files, networks, score
from mpt_lml.score.door import Keep, Progress, Scorer, afresh

USED = {  # which option is which keyword
    "sentences": {"masks": "num_masks", "orders": "num_orders", "error": "error"}
    | {"pseudo": "pseudo", "documents": "documents", "seed": "seed"},
    "curve": {"masks": "num_masks", "rates": "rates", "plot": "plot", "seed": "seed"},
    "pairs": {"masks": "budget", "pseudo": "pseudo", "seed": "seed"},
    "answers": {"masks": "budget", "seed": "seed"},
    "images": {"masks": "num_masks", "seed": "seed"},
}
KINDS = {
    "sentences": "log-score of each text, error, inconsistency, pseudo-log-likelihood",
    "pairs": "log-ratio of texts that differ in a few tokens; a line is TEXT <tab> TEXT",
    "answers": 'log-scores of options; a line is {"prompt": "...", "options": ["...", ...]}',
    "curve": "score by masking rate, area, and what fixed rates are off by",
    "images": "a folder of images under a ViT-MAE, by patch and in bits per dimension",
}
WRITERS = (".jsonl", ".csv", ".json")


def add_to(commands: Any) -> None:
    """The subcommand and its options."""
    about = {"help": "score your own texts or images with a masked model"}
    about["description"] = "\n".join(f"{kind:<10} {what}" for kind, what in KINDS.items())
    about["epilog"] = (
        "Several processes or GPUs: accelerate launch -m mpt_lml.experiments.cli score ... "
        "--checkpoints DIR; each takes its share, the numbers are those of one."
    )
    form = argparse.RawDescriptionHelpFormatter
    add = commands.add_parser("score", **about, formatter_class=form).add_argument
    add("kind", choices=KINDS)
    add("file", help="UTF-8, one text a line (- is stdin); for images a folder")
    add("--model", metavar="NAME", help="folder, or name on the hub; default: the book's own BERT")
    add("--revision", metavar="COMMIT", help="of a name on the hub")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--precision", choices=("float32", "bfloat16", "float16"), default="float32")
    add("--max-tokens", type=int, default=8192, metavar="N", help="in the network at a time")
    add("--masks", type=int, metavar="N", help="masks a text; pairs, answers: at most")
    add("--orders", type=int, metavar="N", help="sentences: complete orders, for inconsistency")
    add("--error", type=float, metavar="E", help="sentences: masks until E nats a token is reached")
    add("--pseudo", action="store_true", help="sentences, pairs: pseudo-log-likelihoods beside it")
    add("--documents", action="store_true", help="sentences: an empty line ends a document")
    add("--rates", metavar="R", help="curve: percent, as 15 or 5,50 or 5:95:10 (default: 1:99)")
    add("--plot", metavar="FILE", help="curve: a picture (.svg, .pdf, .png)")
    add("--seed", type=int, default=0)
    add("--skip", action="store_true", help="leave out, and list, lines that cannot be scored")
    add("--out", metavar="FILE", help=f"{', '.join(WRITERS)}; default: JSON lines on stdout")
    add("--checkpoints", metavar="DIR", help="keep what is done there, and go on from it")


def run(options: argparse.Namespace) -> None:
    """Score; rows go to --out or stdout, what they say together to standard error."""
    for path in filter(None, (options.out, options.plot)):
        files.require_writable(Path(path).parent)
    if options.out is not None and Path(options.out).suffix not in WRITERS:
        raise ValueError(f"--out must end in {', '.join(WRITERS)}, got {options.out!r}.")
    if options.out is not None and Path(options.out).exists():
        raise ValueError(f"{options.out} is there already: remove it, or name another file.")
    team = _Team.here(options.checkpoints)
    model = options.model or networks.small_bert_folder()
    given = {name: getattr(options, name) for name in ("revision", "precision", "max_tokens")}
    scorer = score.load(model, device=team.device(options.device), **given)
    lines, faults = _readable(options, scorer)
    for fault in faults if team.rank == 0 else ():
        print(f"skipped: {fault}", file=sys.stderr)
    texts = {"texts": files.digest(repr([line.texts for line in lines]), {})}
    work = _work(options, lines)
    settings = {name: getattr(options, name) for name in sorted(vars(options)) if name in IDENTITY}
    keep = scorer.keep(team.folder, **texts, **settings) if team.folder else afresh
    found = team.together(lambda progress: work(scorer, keep=keep, progress=progress))
    if team.rank == 0:
        rows = found.rows()
        if options.kind != "curve":
            for place, row in enumerate(rows):
                row["line"] = lines[row.get("prompt", place)].number
        _write(options.out, rows, {"settings": settings, "model": scorer.identity, **texts})
        print("\n".join(found.summary()), file=sys.stderr)
        if options.plot is not None:
            _plot(found, Path(options.plot))


IDENTITY = ("kind", "masks", "orders", "error", "pseudo", "rates", "seed")


@dataclass(frozen=True)
class _Line:
    number: int  # in the file, from 1
    texts: tuple[str, ...]  # what is encoded; answers: prompt + option
    document: int = 0
    prompt: str = ""


def _lines(path: str) -> list[tuple[int, str, int]]:
    """Number, text and document of each line that is not empty, in UTF-8."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}.") from error
    found, document = [], 0
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            byte = f"byte 0x{raw[error.start]:02x} at {error.start + 1}"
            raise ValueError(f"{path}, line {number} is not UTF-8 ({byte}): convert it.") from None
        document += not text.strip()
        found += [(number, text, document)] * bool(text.strip())
    if not found:
        raise ValueError(f"{path} has no text: one a line is needed.")
    return found


def _line(kind: str, number: int, text: str, document: int) -> _Line:
    """A line taken apart. Raises ``ValueError`` where it is not what ``kind`` needs."""
    if kind == "pairs":
        parts = tuple(text.split("\t"))
        if len(parts) != 2:
            raise ValueError(f"two texts with one tab between are needed, got {text[:60]!r}.")
        return _Line(number, parts, document)
    if kind == "answers":
        try:
            asked = json.loads(text)
            prompt, options = asked["prompt"], [asked["prompt"] + each for each in asked["options"]]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{KINDS[kind].partition('; ')[2]}, got {text[:60]!r}.") from error
        if not options:
            raise ValueError("at least one option is needed.")
        return _Line(number, tuple(options), document, prompt)
    return _Line(number, (text,), document)


def _readable(options: argparse.Namespace, scorer: Scorer) -> tuple[list[_Line], list[str]]:
    """Lines that can be scored, and why others cannot; without --skip the first of these raises."""
    whole = options.kind != "sentences"  # long texts are read through windows there

    def good(some: Sequence[tuple[int, str, int]]) -> list[_Line]:
        """Together; one by one only where that fails."""
        try:
            parsed = [_line(options.kind, *each) for each in some]
            rows = scorer.encode([text for line in parsed for text in line.texts])
            most = int(rows.lengths.max())
            if whole and scorer.max_length is not None and most > scorer.max_length:
                raise ValueError(f"{most} tokens are more than the model's {scorer.max_length}.")
            return parsed
        except ValueError as error:
            if len(some) > 1:
                return [line for each in some for line in good([each])]
            faults.append(f"{options.file}, line {some[0][0]}: {error}")
            if not options.skip:
                raise ValueError(f"{faults[0]} Mend it, or leave such lines out: --skip.") from None
            return []

    faults: list[str] = []
    lines = _lines(options.file)
    found = [line for start in range(0, len(lines), 256) for line in good(lines[start : start + 256])]
    if not found:
        raise ValueError(f"no line of {options.file} can be scored; {faults[0]}")
    return found, faults


def _work(options: argparse.Namespace, lines: Sequence[_Line]) -> Callable[..., Any]:
    """The call that ``kind`` asks for, still without its model."""
    asked = {name: getattr(options, name) for name in USED[options.kind]}
    given = {USED[options.kind][name]: value for name, value in asked.items() if value is not None}
    for name in ("masks", "orders", "error", "pseudo", "documents", "rates", "plot"):
        if getattr(options, name) not in (None, False) and name not in asked:
            raise ValueError(f"--{name} means nothing for {options.kind}. Leave it out.")
    first = [line.texts[0] for line in lines]
    if options.kind == "sentences":
        if given.pop("documents"):
            given["documents"] = [line.document for line in lines]
        return partial(score.sentences, texts=first, **given)
    if options.kind == "curve":
        rates = _rates(given.pop("rates", "1:99"))
        return partial(score.curve, texts=first, design=score.Design(rates, **given))
    if options.kind == "pairs":
        return partial(score.pairs, first=first, second=[line.texts[1] for line in lines], **given)
    prompts = [line.prompt for line in lines]
    choices = [[each[len(line.prompt) :] for each in line.texts] for line in lines]
    return partial(score.answers, prompts=prompts, options=choices, **given)


def _rates(text: str) -> tuple[int, ...]:
    """Rates in percent: 15, or 5,50, or 5:95:10 with its last number."""
    found: list[int] = []
    for part in text.split(","):
        try:
            first, last, step, *_ = (*map(int, part.split(":")), None, None)
        except ValueError:
            raise ValueError(f"--rates must be as 15, 5,50 or 5:95:10, got {text!r}.") from None
        found += range(first, (first if last is None else last) + 1, step or 1)
    return tuple(found)


@dataclass
class _Team:
    """The processes that share the work: each keeps every world-th part, all then read the rest."""

    folder: Path | None
    rank: int
    size: int

    @classmethod
    def here(cls, folder: str | None) -> _Team:
        """As ``accelerate launch`` and ``torchrun`` say it to each of their processes."""
        rank, size = (int(os.environ.get(name, d)) for name, d in (("RANK", 0), ("WORLD_SIZE", 1)))
        if size > 1 and folder is None:
            raise ValueError(f"{size} processes meet in a folder: name one with --checkpoints DIR.")
        if size > 1:
            distributed.init_process_group("gloo")
        return cls(files.require_writable(folder) if folder else None, rank, size)

    def device(self, asked: str) -> str:
        local = os.environ.get("LOCAL_RANK", "0")
        on_gpu = torch.cuda.is_available() and asked != "cpu"
        return f"cuda:{local}" if on_gpu and self.size > 1 else asked

    def together(self, work: Callable[[Progress], Any]) -> Any:
        """``work`` with its loops shared: one loop more at every turn is there for all to read."""
        whole = 0 if self.size > 1 else None
        while True:
            try:
                return work(self._progress(whole))
            except _Shared:
                distributed.barrier()
                whole = (whole or 0) + 1

    def _progress(self, whole: int | None) -> Progress:
        """Of every loop its items with a bar; of the first that is not ``whole``, the own share."""
        seen = 0

        def progress(items: Iterable[Any], name: str) -> Iterator[Any]:
            nonlocal seen
            seen += 1
            own = list(items) if whole is None or seen <= whole else list(items)[self.rank :: self.size]
            yield from tqdm(own, desc=name, disable=None if self.rank == 0 else True, leave=False)
            if whole is not None and seen > whole:
                raise _Shared

        return progress


class _Shared(Exception):
    """The own share of a loop is done."""


def _write(path: str | None, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Rows as JSON lines, as CSV, or as one JSON with what they belong to; whole or not at all."""
    if path is not None and path.endswith(".json"):
        clean = [{key: None if value != value else value for key, value in row.items()} for row in rows]
        files.write_json(path, {**about, "rows": clean})
        return
    text = io.StringIO(newline="")
    if path is not None and path.endswith(".csv"):
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    else:
        for row in rows:
            clean = {key: None if value != value else value for key, value in row.items()}
            text.write(json.dumps(clean, ensure_ascii=False) + "\n")
    if path is None:
        sys.stdout.write(text.getvalue())
        return
    with files.replacing(Path(path)) as partial_file:
        partial_file.write_text(text.getvalue(), encoding="utf-8")
