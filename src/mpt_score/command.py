"""``mpt-score``: texts, pairs, answers or a curve from a file, with errors."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

KINDS = {
    "sentences": "log-score of each text, error, inconsistency, pseudo-log-likelihood",
    "pairs": "log-ratio of texts that differ in a few tokens; a line is TEXT <tab> TEXT",
    "answers": 'log-scores of options; a line is {"prompt": "...", "options": ["...", ...]}',
    "curve": "score by masking rate, area, and what fixed rates are off by",
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    about: dict[str, Any] = {"prog": "mpt-score"}
    about["description"] = "Score your own texts with a masked model.\n\n"
    about["description"] += "\n".join(f"{kind:<10} {what}" for kind, what in KINDS.items())
    about["epilog"] = (
        "Several processes or GPUs: accelerate launch -m mpt_score.command ... "
        "--checkpoints DIR; each takes its share, the numbers are those of one."
    )
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(**about, formatter_class=form)
    add = top.add_argument
    add("kind", choices=KINDS)
    add("file", help="UTF-8, one text a line (- is stdin)")
    add("--model", metavar="NAME", help="folder, or name on the hub; default: the book's own BERT")
    add("--revision", metavar="COMMIT", help="of a name on the hub")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--precision", choices=("float32", "bfloat16", "float16"), help="float32")
    add("--max-tokens", type=int, metavar="N", help="in the network at a time (8192)")
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    add("--masks", **number, help="sentences, curve: masks each, or at each rate")
    add("--orders", **number, help="sentences: for inconsistency; pairs, answers: at most")
    add("--error", type=float, metavar="E", help="sentences: masks until E nats a token is reached")
    both = argparse.BooleanOptionalAction
    add("--pseudo", action=both, help="sentences, pairs: pseudo-log-likelihoods beside it, or not")
    add("--documents", action="store_true", help="sentences: an empty line ends a document")
    add("--rates", metavar="R", help="curve: percent, as 15 or 5,50 or 5:95:10 (default: 1:99)")
    add("--plot", metavar="FILE", help="curve: a picture (.svg, .pdf, .png)")
    add("--seed", type=int, default=0)
    add("--skip", action="store_true", help="leave out, and list, lines that cannot be scored")
    add("--out", metavar="FILE", help=".jsonl, .csv or .json; default: JSON lines on stdout")
    add("--checkpoints", metavar="DIR", help="keep what is done there, and go on from it")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 for a mistake in the call)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows only ASCII shows "?" for "±" and "–". Standard error does so already.
        sys.stdout.reconfigure(errors="replace")
    options = parser().parse_args(arguments)
    # It brings torch, which --help does not need.
    from mpt_score import score_file

    try:
        score_file.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the lines has had enough, as in `mpt-score ... | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TypeError, ValueError, OSError, ImportError) as error:
        print(f"mpt-score: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        left = "nothing was written"
        if options.checkpoints:
            left = f"the same command goes on from {options.checkpoints}"
        print(f"mpt-score: stopped; {left}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
