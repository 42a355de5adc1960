"""The paper's experiments by name, with their settings as data; ``mpt-lml`` runs them."""

from mpt_lml.experiments import (
    area,
    bernoulli,
    bernoulli_runs,
    bert,
    convergence,
    deep_vae,
    identity,
    language,
    rates,
    small_bert,
    text_rates,
    training,
    vit_mae,
)
from mpt_lml.experiments.registry import (
    Experiment,
    Finding,
    Outcome,
    UnknownExperimentError,
    find,
    names,
    run,
)

__all__ = [
    "Experiment",
    "Finding",
    "Outcome",
    "UnknownExperimentError",
    "area",
    "bernoulli",
    "bernoulli_runs",
    "bert",
    "convergence",
    "deep_vae",
    "find",
    "identity",
    "language",
    "names",
    "rates",
    "run",
    "small_bert",
    "text_rates",
    "training",
    "vit_mae",
]
