"""The referee's numbers of antibodies, on a small random network, against the scorer's own."""

from __future__ import annotations

import pytest
import torch

from mpt_experiments.experiment import RunContext
from mpt_experiments.findings.antibody_orders import AntibodyOrders, residues_between_marks
from mpt_lml import orders

pytest.importorskip("transformers")
QUICK = AntibodyOrders.preset("quick")


def test_a_run_goes_on_from_the_chains_that_it_has(tmp_path) -> None:
    context = RunContext(folder=tmp_path)
    first = QUICK.run(context).arrays
    assert first["antibody"].shape == (2,)
    assert first["number/area"].shape == (4,)
    (tmp_path / "chain-1.safetensors").unlink()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = QUICK.run(context).arrays
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_pseudo_log_likelihood_is_the_scorers() -> None:
    scorer = QUICK.scorer(RunContext(), "float32")
    for chain in ("EVQLVESGGG", "DIQMTQS"):
        ids = scorer.encode([chain]).ids
        one_hidden = torch.eye(len(chain) + 2, dtype=torch.bool)[1:-1]
        alone = scorer.model.log_tokens(ids.expand(len(chain), -1), one_hidden).sum().item()
        found = QUICK.of_chain(scorer, ids[0])
        assert found["pseudo"].item() == pytest.approx(alone, abs=1e-4)
        assert found["area"] <= found["mixture-4"] <= found["mixture-4-above"]


def test_an_order_is_a_distribution_over_chains() -> None:
    scorer = QUICK.scorer(RunContext(), "float32")
    ids = scorer.encode(["EV"]).ids[0]
    model = residues_between_marks(scorer, ids)
    num_tokens = model.log_values(ids[None, 1:-1], torch.ones(1, 2, dtype=torch.bool)).shape[2]
    every_chain = torch.cartesian_prod(torch.arange(num_tokens), torch.arange(num_tokens))
    along = orders.adaptive(model, every_chain, orders.confidence).log_probability
    assert along.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
