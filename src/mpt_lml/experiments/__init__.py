"""The paper's experiments by name, with their settings as data; ``mpt-lml`` runs them."""

from importlib import import_module
from pkgutil import iter_modules

from mpt_lml.experiments.base import Bench, Outcome, find, load, names, run  # noqa: F401

__all__ = ["Outcome", "load", "run"]

for _module in iter_modules(__path__):
    if _module.name != "cli":  # the others enter their experiments in the registry
        import_module(f"{__name__}.{_module.name}")
