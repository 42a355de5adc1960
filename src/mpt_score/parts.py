"""Parts of a long run: made afresh, or kept in a folder and read back."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mpt_lml.files import digest, load_tensors, save_tensors, versions

Part = Mapping[str, Tensor]
Parts = Mapping[str, Callable[[], Part]]
Run = Callable[[str, Parts], list[Part]]


def parts_of(run: Run, kind: str, parts: Parts, *wanted: str) -> list[Part]:
    """What ``run`` answers: for each of ``parts`` a mapping that has the ``wanted`` names."""
    found = run(kind, parts)
    if not isinstance(found, list | tuple) or len(found) != len(parts):
        got = f"{len(found)}" if isinstance(found, list | tuple) else repr(found)
        raise ValueError(f"run must return a list of its {len(parts)} parts, got {got}.")
    for part in found:
        if not isinstance(part, Mapping) or not {*wanted} <= {*part}:
            got = repr(sorted(part) if isinstance(part, Mapping) else part)
            raise ValueError(f"run must return what each part gives, {wanted}, got {got}.")
    return found


def afresh(_: str, parts: Parts) -> list[Part]:
    """For ``run``: what each part gives, in their order; nothing is shown or kept."""
    return [work() for work in parts.values()]


def named(kind: str, said: object, texts: Any, works: Any, **more: Tensor) -> Parts:
    """For ``run``: parts by number; what follows the @ is of ``said`` and of all tokens."""
    every = {f"{n} {key}": own for n, text in enumerate(texts) for key, own in vars(text).items()}
    mark = digest(repr(said), every | more)[:12]
    return {f"{kind}-{n:05d}@{mark}": work for n, work in enumerate(works)}


def keep_in(folder: str | Path, identity: dict[str, Any]) -> Run:
    """Parts in ``folder``, each of this ``identity`` and these versions."""
    own = {**identity, "versions": versions()}
    mark = digest(json.dumps(own, sort_keys=True, default=str), {})[:12]

    def kept(name: str, work: Callable[[], Part]) -> Part:
        path = Path(folder, f"{mark}-{name}.safetensors")
        if not path.exists():
            save_tensors(path, work(), own)
        return load_tensors(path, own)

    return lambda _, parts: [kept(name, work) for name, work in parts.items()]
