"""All randomness is that of the generator which is passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models import generator, random_bernoulli, random_ppca
from torch import Tensor

from mpt_lml import HMM, PPCA, BernoulliPCA, ConjugateRegression, TractableModel, estimators, masks
from mpt_lml.estimators.latent import GaussianProposal
from mpt_lml.models.vae import LatentVariableModel

BERNOULLI = random_bernoulli(6, 2, 12)


POINTS = BERNOULLI.sample(3, generator=generator(1))


PROPOSAL = GaussianProposal(torch.zeros(3, 2).double(), torch.eye(2).double().expand(3, 2, 2), 0.5)


DRAWS: dict[str, Callable[[torch.Generator], Tensor]] = {
    "BernoulliPCA.sample_given": lambda g: BERNOULLI.sample_given(
        torch.zeros(20, 2).double(), generator=g
    ),
    "GaussianProposal.sample": lambda g: PROPOSAL.sample(4, generator=g),
    "UniformSize.sample": lambda g: masks.UniformSize().sample(30, 50, generator=g),
    "UniformSize.stratified": lambda g: masks.UniformSize().stratified(3, 500, generator=g),
    "sample_ranks": lambda g: masks.sample_ranks(3, 20, generator=g),
    "sample_masks": lambda g: masks.sample_masks(3, 20, masks.UniformSize(), generator=g),
    "stratified_masks": lambda g: masks.stratified_masks(3, 20, masks.UniformSize(), generator=g),
    "iwae": lambda g: torch.tensor(estimators.iwae(BERNOULLI, POINTS, 4, generator=g)),
    "ImportanceConditional": lambda g: estimators.ImportanceConditional(
        BERNOULLI, 4, generator=g
    ).log_each(POINTS, torch.ones(3, 6).tril(2).bool()),
    "area": lambda g: torch.tensor(
        estimators.area(random_ppca(5, 2), POINTS[:, :5], 2, generator=g)
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_all_randomness_is_the_generators(draw: Callable[[torch.Generator], Tensor]) -> None:
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)  # what must not matter
        found.append(draw(generator(5)))
    assert torch.equal(*found)
    assert not torch.equal(found[0], draw(generator(6)))


# -- a model on another device than its generator -------------------------------------------------------


def models_on(device: str) -> dict[str, TractableModel]:
    loadings = torch.ones(4, 2)
    models = {
        "PPCA": PPCA(loadings, 0.2),
        "HMM": HMM.cyclic(num_features=4),
        "ConjugateRegression": ConjugateRegression(loadings),
    }
    for model in models.values():
        for name, value in vars(model).items():
            if isinstance(value, Tensor):
                setattr(model, name, value.to(device))
    return models


@pytest.mark.parametrize("name", models_on("cpu"))
def test_draws_are_where_the_model_is(name: str) -> None:
    # The device "meta" is on every machine: it has shapes only, and refuses tensors of other devices.
    draws = models_on("meta")[name].sample(3, generator=generator())
    assert draws.shape == (3, 4)
    assert draws.device.type == "meta"


@pytest.mark.parametrize("noise_variance", [None, 0.5])
def test_draws_given_z_are_where_the_decoder_is(noise_variance: float | None) -> None:
    class Elsewhere(LatentVariableModel):
        def _decoded(self, z: Tensor) -> Tensor:
            return torch.zeros(*z.shape[:-1], 4, device="meta")

    model = Elsewhere()
    model.num_features, model.latent_dim, model.noise_variance = 4, 2, noise_variance
    assert model.sample_given(torch.zeros(3, 2), generator=generator()).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("name", ["PPCA", "ConjugateRegression", "BernoulliPCA"])
def test_a_gpu_gets_the_draws_of_the_cpu(name: str) -> None:
    def draws(device: str) -> Tensor:
        loadings = torch.ones(4, 2, device=device)
        models = {
            "PPCA": PPCA(loadings, 0.2),
            "ConjugateRegression": ConjugateRegression(loadings),
            "BernoulliPCA": BernoulliPCA(loadings),
        }
        return models[name].sample(3, generator=generator())

    assert draws("cuda").device.type == "cuda"
    torch.testing.assert_close(draws("cuda").cpu(), draws("cpu"))
