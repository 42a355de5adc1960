"""What chapters 9 and 10 let a reader train is what the records were made with."""

from __future__ import annotations

import ast
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jupytext.myst import myst_to_notebook

from experiments.experiment import RunContext
from experiments.paper.deep_vae import Figure3Lower
from experiments.paper.linear_vae import Figure3Upper
from experiments.trainings import deep_vae, linear_vae
from mpt_lml import data, grids
from mpt_lml.files import book_file

DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def defined_by(chapter: str, *constants: str) -> SimpleNamespace:
    """Functions, classes and some constants that the cells of a page define; nothing else is run."""
    notebook = myst_to_notebook(book_file(f"{chapter}.md").read_text(encoding="utf-8"))
    body = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        for node in ast.parse(cell.source).body:
            target = getattr(getattr(node, "targets", [None])[0], "id", None)
            if isinstance(node, DEFINES) or target in (*constants, "FULL", "TINY"):
                body.append(node)
    names: dict[str, Any] = {"__name__": chapter}
    code = compile(ast.Module(body, []), chapter, "exec", dont_inherit=True)
    exec(code, names)
    return SimpleNamespace(**names)


class TestLinearVAE:
    page = defined_by("09-linear-vae", "grid")

    def test_full_is_the_record(self) -> None:
        full = self.page.FULL
        record = Figure3Upper().settings("mnist")
        same = ("images", "num_data", "num_epochs", "learning_rate", "track_nodes", "track_every")
        for name in same:
            assert getattr(full, name) == getattr(record, name), name
        assert full.seed == record.seeds[0]
        assert full.rate == record.fixed_rate
        nodes = linear_vae.training_grid(record, "published").nodes
        assert full.grid_nodes**2 == len(nodes)

    def test_tiny_trains_as_the_experiment_does(self) -> None:
        tiny = replace(self.page.TINY, num_data=100, num_epochs=40)
        experiment = Figure3Upper(
            seeds=(tiny.seed,),
            num_data=tiny.num_data,
            num_epochs=tiny.num_epochs,
            track_nodes=tiny.track_nodes,
            track_every=tiny.track_every,
        )
        x = linear_vae.binary_images(experiment.settings("digits"))
        with pytest.warns(RuntimeWarning, match="mass"):  # 4 × 4 nodes warn that they are few
            runs = self.page.train_both(tiny, x)
        with pytest.warns(RuntimeWarning, match="mass"):
            coarse = grids.trapezoid(2, tiny.grid_nodes).to(x)
        objectives = {
            "block": self.page.block_objective(tiny.rate, coarse),
            "ELBO": self.page.mean_elbo,
        }
        for name, row in (("block", "published/1/1"), ("ELBO", "elbo/1/0")):
            lml, parameters = runs[name]
            recorded = experiment.train(f"digits/{row}", x, RunContext())
            expected = recorded.values["lml"][:: tiny.track_every, 0]
            torch.testing.assert_close(lml, expected, rtol=0, atol=1e-3)
            loadings = recorded.parameters["loadings"][0]
            torch.testing.assert_close(parameters["W"], loadings, rtol=0, atol=1e-3)
            first = objectives[name](
                self.page.start(tiny.seed, 64), x, torch.Generator().manual_seed(tiny.seed + 1)
            )
            torch.testing.assert_close(first, recorded.values["objective"][0, 0])


class TestDeepVAE:
    page = defined_by("10-deep-vae", "variance")

    def test_full_is_the_record(self) -> None:
        full = self.page.FULL
        record = Figure3Lower.preset().settings
        same = ("dataset", "num_data", "latent_dim", "noise_variance", "num_steps", "batch_size")
        same += ("learning_rate", "track_every", "track_data", "track_samples")
        for name in same:
            assert getattr(full, name) == getattr(record, name), name
        assert full.seed == record.seeds[0]
        assert (full.units,) == record.hidden
        assert full.masking_rate == deep_vae.FIXED.rate

    @pytest.mark.parametrize(("name", "step"), [("elbo", "elbo_step"), ("fixed", "recursion_step")])
    def test_tiny_trains_as_the_experiment_does(self, name: str, step: str) -> None:
        tiny = replace(self.page.TINY, num_data=200, num_steps=20, track_every=10)
        settings = deep_vae.DeepVAESettings(
            seeds=(tiny.seed,),
            dataset=tiny.dataset,
            num_data=tiny.num_data,
            hidden=(tiny.units,),
            latent_dim=tiny.latent_dim,
            num_steps=tiny.num_steps,
            learning_rate=tiny.learning_rate,
            track_every=tiny.track_every,
            track_data=tiny.track_data,
            track_samples=tiny.track_samples,
        )
        x = data.images(tiny.dataset).pixels[: tiny.num_data].float()
        log_p_x, _ = self.page.train_vae(getattr(self.page, step), x, tiny)
        expected = deep_vae.train_deep_vae(settings, deep_vae.OBJECTIVES[name]).log_p_x[:, 0]
        torch.testing.assert_close(log_p_x, expected, rtol=0, atol=1e-3)
