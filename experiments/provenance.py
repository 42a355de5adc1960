"""Provenance of recorded numbers: commit, machine, versions."""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mpt_lml.files import versions

ROOT = Path(__file__).resolve().parents[1]
"""Folder of the checkout."""


def provenance(command: str, device: str = "cpu") -> dict[str, Any]:
    """Provenance of a recorded number.

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
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--short", "src", "experiments")
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
