"""The paper's experiments by name, with their settings as data; ``mpt-lml`` runs them."""

from mpt_lml.experiments import (  # noqa: F401  they enter themselves in the registry
    area,
    bert,
    convergence,
    deep_vae,
    efficiency,
    fixed_size,
    identity,
    known_language,
    linear_vae,
    probe,
    rates,
    recursion,
    scoring,
    siblings,
    small_bert,
    table_2,
    text_probe,
    training,
    vit_mae,
)
from mpt_lml.experiments.base import (  # noqa: F401
    Bench,
    Experiment,
    Finding,
    Outcome,
    UnknownExperimentError,
    find,
    load,
    names,
    run,
)

__all__ = ["Outcome", "load", "run"]
