"""The paper's experiments by name, with their settings as data; ``mpt-lml`` runs them."""

import os
from typing import TYPE_CHECKING, Any

# As mpt_lml does it, before torch is loaded: waiting threads soon sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from mpt_experiments.experiment import Outcome, load, run

__all__ = ["Outcome", "load", "run"]


def __getattr__(name: str) -> Any:
    """Bring a public name when it is used: ``mpt-lml list`` needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'mpt_experiments' has no attribute {name!r}")
    from mpt_experiments import experiment

    return getattr(experiment, name)
