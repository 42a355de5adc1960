"""``mpt-lml bert-curve``: the curve of any masked language model on any sentences."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mpt_lml import checkpoints, data
from mpt_lml.data import Tokens, encode
from mpt_lml.data.texts import NAMES
from mpt_lml.experiments.bert_curve import (
    PAPER_RATES,
    Design,
    SentenceCurves,
    chance,
    curves,
)
from mpt_lml.experiments.registry import Progress, resolve_device
from mpt_lml.files import provenance, require_writable, write_json
from mpt_lml.models import bert_networks
from mpt_lml.models.masked_lm import MaskedLM
from mpt_lml.results import Estimate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MODELS = ("small", "small-random", "bert-base-random")


def add_parser(commands: Any) -> None:
    """Add ``bert-curve`` to the subcommands of ``mpt-lml``."""
    parser = commands.add_parser(
        "bert-curve",
        help="curve and area of a masked language model on sentences",
        description="On several GPUs or machines: accelerate launch -m mpt_lml.experiments.cli "
        "bert-curve ...; in several processes on a CPU: torchrun --nproc-per-node 2 -m "
        "mpt_lml.experiments.cli bert-curve --device cpu .... The same command goes on where it was "
        "stopped.",
    )
    parser.add_argument(
        "--model",
        default="small",
        help=f"{', '.join(MODELS)}, a save_pretrained folder, or a hub name (default: small, the "
        "book's own)",
    )
    parser.add_argument("--revision", help="commit of the hub's repository")
    parser.add_argument(
        "--data",
        default="written",
        help=f"{', '.join(NAMES)}, or a text file with one sentence a line",
    )
    parser.add_argument("--rates", type=rates, default="1:99", help="percent: 1:99, 5:95:10, 15,85")
    parser.add_argument(
        "--strata", type=_positive, help="for the area alone: so many random sizes instead"
    )
    parser.add_argument(
        "--masks", type=_positive, default=1, help="masks for each sentence and rate"
    )
    parser.add_argument("--limit", type=_positive, help="take only the first so many sentences")
    parser.add_argument("--skip-long", action="store_true", help="leave out what does not fit")
    parser.add_argument("--replacement", choices=("mask", "bert"), default="mask")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--batch-tokens", type=_positive, default=4096)
    parser.add_argument("--out", metavar="DIR", default="mpt-lml-results")


def _positive(written: str) -> int:
    """A whole number of at least one."""
    if not written.isdecimal() or int(written) < 1:
        raise argparse.ArgumentTypeError(f"{written!r} is not a whole number of at least 1")
    return int(written)


def rates(written: str) -> tuple[int, ...]:
    """Percents from ``1:99``, ``5:95:10`` (last one included) or ``15,50,85``."""
    if re.fullmatch(r"\d+:\d+(:\d+)?", written):
        first, last, step = [*map(int, written.split(":")), 1][:3]
        found = tuple(range(first, last + 1, max(1, step)))
    elif re.fullmatch(r"\d+(,\d+)*", written):
        found = tuple(sorted({int(each) for each in written.split(",")}))
    else:
        found = ()
    if not found or found[0] < 1 or found[-1] > 100:
        raise argparse.ArgumentTypeError(
            f"{written!r} names no rates in 1..100 percent; write 1:99, 5:95:10 or 15,50,85"
        )
    return found


def run(options: argparse.Namespace, progress: Progress) -> None:
    """Compute, store and print; every process of a launch calls this."""
    out = require_writable(options.out)
    process, device, wait = _processes(resolve_device(options.device))
    network, tokenizer = load(options.model, options.revision, options.seed)
    tokens, left_out = _tokens(options, tokenizer, network)
    design = Design(
        options.rates, options.strata, power=2.0, num_masks=options.masks, seed=options.seed
    )
    folder = require_writable(out / f"parts-{_key(options, tokens)}")
    model = MaskedLM.of(
        network.to(device),  # type: ignore[arg-type]
        tokenizer,
        replacement=options.replacement,
        batch_tokens=options.batch_tokens,
    )
    start = time.perf_counter()
    score = partial(
        curves, model, tokens, design, folder=folder, process=process, progress=progress
    )
    result = score()
    seconds = time.perf_counter() - start
    wait()
    if process[0] == 0:
        result = result or score()
        assert result is not None  # the others have finished their parts
        content = _content(options, result, network, left_out, seconds, str(device))
        content["processes"] = process[1]
        path = out / f"bert-curve-{_name(options.model)}-{_name(options.data)}.json"
        write_json(path, content)
        shutil.rmtree(folder, ignore_errors=True)
        print(_report(result, content, path))


def load(
    name: str, revision: str | None, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A network and its tokenizer by the name given to ``--model``."""
    if name in ("small", "small-random"):
        network, tokenizer = bert_networks.load_small_bert()
        if name == "small-random":
            network = bert_networks.random_twin(network, seed=seed)
        return network, tokenizer
    if name == "bert-base-random":
        tokenizer = bert_networks.load_tokenizer(data.bert_vocabulary())
        return bert_networks.random_bert_base(len(tokenizer), seed=seed), tokenizer
    network = bert_networks.load_network(name, revision=revision)
    return network, bert_networks.load_tokenizer(name, revision=revision)


def _processes(device: torch.device) -> tuple[tuple[int, int], torch.device, Any]:
    """(rank, number), this process's device, and what waits for the others."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return (0, 1), device, lambda: None
    from accelerate import PartialState

    state = PartialState(cpu=device.type == "cpu")
    rank = (state.process_index, state.num_processes)
    return rank, state.device, state.wait_for_everyone


def _tokens(
    options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, network: PreTrainedModel
) -> tuple[Tokens, int]:
    """The sentences of ``--data``, and how many were left out as too long."""
    found = _sentences(options.data)[: options.limit]
    longest = getattr(network.config, "max_position_embeddings", None)
    if not options.skip_long or longest is None:
        return encode(tokenizer, found.first, found.second, max_length=longest), 0
    tokens = encode(tokenizer, found.first, found.second)
    fits = (tokens.lengths <= longest).nonzero().flatten()
    if len(fits) == 0:
        raise ValueError(f"all {len(tokens)} sentences are longer than {longest} tokens.")
    return tokens.rows(fits), len(tokens) - len(fits)


def _sentences(name: str) -> data.Sentences:
    """Sentences by name, or the lines of a file; lines without text are no sentences."""
    if name in NAMES:
        return data.sentences(name)
    if not Path(name).is_file():
        raise ValueError(
            f"--data {name}: neither a text file nor one of {', '.join(NAMES)}. Name a UTF-8 "
            "file with one sentence a line."
        )
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"--data {name} is not UTF-8 text: {error}.") from error
    kept = tuple(filter(str.strip, lines))
    if not kept:
        raise ValueError(f"--data {name} is empty: there is nothing to score.")
    return data.Sentences(kept)


def _key(options: argparse.Namespace, tokens: Tokens) -> str:
    """A name for the parts of this very computation."""
    names = ("model", "revision", "rates", "strata", "masks", "replacement", "seed")
    kept = sorted(Path(options.model).glob("*"))  # weights saved in place are other weights
    files = [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in kept]
    settings = json.dumps([files, *(getattr(options, name) for name in names)])
    return hashlib.sha256(settings.encode() + tokens.ids.numpy().tobytes()).hexdigest()[:16]


def _revision(options: argparse.Namespace) -> str | None:
    """The commit on the hub, where the model came from there."""
    if options.model in MODELS:
        return None
    return checkpoints.resolved_revision(options.model, options.revision)


def _name(source: str) -> str:
    short = Path(source).name if Path(source).exists() else source
    return re.sub(r"[^\w.-]+", "-", short).strip("-")


def area_rule(rates: Sequence[int], strata: int | None) -> str | None:
    """How the mean over the columns is an area, in words; ``None`` where it is none.

    Rates have to lie evenly over 0..100 %: a step h apart, and from h/2 to h away from both ends.
    The mean over any others, 15 % alone for one, is the height of the curve there and no area.
    """
    if strata is not None:
        return f"random sizes in {strata} strata"
    steps = {later - rate for rate, later in pairwise(rates)}
    if len(steps) != 1:
        return None
    (step,), first, last = steps, rates[0], 100 - rates[-1]
    if not step / 2 - 1 <= first <= step or abs(first - last) > 1:
        return None
    return f"mean over {len(rates)} rates, {step} % apart"


def _areas(options: argparse.Namespace, result: SentenceCurves) -> dict[str, Estimate]:
    """The areas that these rates have, by name; the paper's unit is defined for all 99 only."""
    if area_rule(options.rates, options.strata) is None:
        return {}
    areas = {"per_token": result.area_per_token(), "per_sentence": result.area_per_sentence()}
    if options.strata is None and options.rates == tuple(range(1, PAPER_RATES + 1)):
        areas["paper_512"] = result.paper_area()
    return areas


def _content(
    options: argparse.Namespace,
    result: SentenceCurves,
    network: PreTrainedModel,
    left_out: int,
    seconds: float,
    device: str,
) -> dict[str, Any]:
    areas = {
        name: {"value": each.value, "standard_error": _finite([each.standard_error])[0]}
        for name, each in _areas(options, result).items()
    }
    return {
        "model": options.model,
        "revision": _revision(options),
        "data": options.data,
        "num_sentences": len(result.raw),
        "left_out_as_too_long": left_out,
        "mean_num_features": result.num_features.double().mean().item(),
        "replacement": options.replacement,
        "masks": options.masks,
        "seed": options.seed,
        "rates": list(result.rates),
        "score": result.score.tolist(),
        "standard_error": _finite(result.standard_error.tolist()),
        "area_rule": area_rule(options.rates, options.strata),
        "areas": areas,
        "mask_error_per_token": result.mask_error() if areas and options.masks > 1 else None,
        "chance_per_token": -math.log(network.config.vocab_size),
        "chance_paper_512": chance(network.config.vocab_size) if "paper_512" in areas else None,
        "seconds": round(seconds, 2),
        "provenance": provenance("mpt-lml bert-curve", device.partition(":")[0]),
    }


def _finite(values: list[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def _report(result: SentenceCurves, content: dict[str, Any], path: Path) -> str:
    lines = [f"{content['num_sentences']} sentences of {content['mean_num_features']:.1f} tokens"]
    if content["left_out_as_too_long"]:
        lines[0] += f" ({content['left_out_as_too_long']} longer ones left out)"
    if content["area_rule"] is None:
        rows = zip(result.rates, result.score, result.standard_error, strict=True)
        lines += [f"score at {rate:.0f} %: {s:.4f} ± {e:.4f} nats per token" for rate, s, e in rows]
        lines.append("no area: that takes rates all over the range, such as --rates 5:95:10")
    else:
        lines.append(f"area per token:            {result.area_per_token()}")
        lines.append(f"area per sentence:         {result.area_per_sentence()}")
        lines[1:1] = [f"areas by:                  {content['area_rule']}"]
    if content["chance_paper_512"] is not None:
        of_chance = f"(chance {content['chance_paper_512']:.1f})"
        lines.append(f"512 tokens, 99 rates:      {result.paper_area()} {of_chance}")
    return "\n".join([*lines, f"wrote {path}"])
