"""``mpt-lml``: list, run and compare the paper's experiments."""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from mpt_experiments import registry


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="mpt-lml",
        description="Run the experiments of 'On Masked Pre-training and the Marginal Likelihood'.",
        epilog="What each run costs:\n" + _costs(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="action", required=True)
    commands.add_parser("list", help="names, titles and costs")
    add = commands.add_parser("run", help="run one experiment, store what it finds").add_argument
    add("name", help="see 'mpt-lml list'")
    add("--preset", choices=("paper", "quick"), default="paper")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--seed", type=int, nargs="+", metavar="S", help="replace the preset's seeds")
    add("--model", metavar="FOLDER", help="another network: a folder made by save_pretrained")
    given = "replace a setting: values between commas, 5:95:10 is a range with its last number"
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help=given)
    where = "folder for NAME.json; default: book/results for a paper run in a checkout, which also "
    where += "enters the ledger, else mpt-lml-results, where NAME-2.json may become of it"
    add("--out", metavar="DIR", help=where)
    add("--json", metavar="PATH", help="write the result there only; - is stdout")
    state = "where a long run keeps its state, from which the same command goes on"
    add("--checkpoints", metavar="DIR", help=f"{state} (default: under mpt-lml-results)")
    compare = commands.add_parser("compare", help="measured against published, from the ledger")
    which = compare.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", help="see 'mpt-lml list'")
    which.add_argument("--all", action="store_true", help="the paper's entries and the findings")
    return top


def _costs() -> str:
    entries = registry.catalogue().values()
    width = max(len(entry.name) for entry in entries)
    return "\n".join(
        f"  {entry.name:<{width}}  {entry.cost:<12} {entry.title}" for entry in entries
    )


def _act(options: argparse.Namespace) -> None:
    if options.action == "list":
        print(_costs())
        return
    # It brings torch, which a list of names does not need.
    from mpt_experiments import recording

    if options.action == "compare":
        print(recording.compared(None if options.all else options.name))
    else:
        recording.run_and_store(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 for a mistake in the call)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows only ASCII shows "?" for "±" and "–". Standard error does so already.
        sys.stdout.reconfigure(errors="replace")
    options = parser().parse_args(arguments)
    try:
        _act(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the lines has had enough, as in `mpt-lml list | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TypeError, ValueError, OSError, ImportError) as error:
        print(f"mpt-lml: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        from mpt_experiments import recording

        print(f"mpt-lml: stopped; {recording.left_behind(options)}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
