"""Where a recorded number came from: checkout, commit, machine."""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mpt_lml.files import versions

PACKAGE = Path(__file__).resolve().parent


def checkout() -> Path | None:
    """Root of the repository this package runs from, ``None`` when it was installed elsewhere."""
    root = PACKAGE.parents[1]
    return root if (root / "book" / "ledger.json").is_file() else None


def provenance(command: str, device: str = "cpu") -> dict[str, Any]:
    """Where a recorded number came from.

    Args:
        command: What measures it again.
        device: "cuda" names the GPU, too.

    Returns:
        Command, commit (it ends in ``+changes`` where sources differed), date, versions, hardware.
    """
    hardware: dict[str, Any] = {"cpu": _cpu_name(), "threads": torch.get_num_threads()}
    if device == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name()
    return {
        "command": command,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": versions(),
        "hardware": hardware,
    }


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE.parent), *arguments]  # all three packages
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--short", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
