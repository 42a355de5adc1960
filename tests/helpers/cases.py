"""What every tractable model has to satisfy: a case that each model's tests inherit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from models import generator
from moved import Move, other_device
from oracles import RELATIVE, TOLERANCE
from other_device import DEVICE

from mpt_lml import PPCA, curves, masks, orders
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.models.regression import ConjugateRegression

EXACT = 1e-10


def areas(model: TractableModel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The area under the curve of every datum, (N,), and under that of its terms' magnitudes."""
    mask = masks.subsets(model.num_features)[1:]
    sizes = mask.sum(dim=1)
    masks_of_size = [math.comb(model.num_features, size) for size in sizes.tolist()]
    weights = 1.0 / (sizes * torch.tensor(masks_of_size)).double()
    values = model.log_conditional(x, mask).double()
    return tuple(torch.einsum("p,pnd->n", weights, each) for each in (values, values.abs()))


def rounding_growth(model: TractableModel) -> float:
    """How many times as much rounding a Gaussian may take as at σ²/‖W‖² = 1e-6, for smaller noise."""
    if isinstance(model, PPCA):
        signal_to_noise = model.loadings.double().square().sum() / model.noise_variance.double()
    elif isinstance(model, ConjugateRegression):
        signal_to_noise = (model.prior_scale * model.inputs.double()).square().sum()
    else:
        return 1.0
    return max(1.0, 1e-6 * signal_to_noise.item())


def check_area_or_refusal(model: TractableModel, x: torch.Tensor) -> None:
    """The area is log p, of every datum and of their mean; or nothing is answered."""
    questions: list[Callable[[], object]] = [
        lambda: areas(model, x),
        lambda: curves.exact_curve(model, x).area(),
        lambda: model.log_marginal(x),
    ]
    answers = []
    refusals = []
    for question in questions:
        try:
            answers.append(question())
        except ValueError as refusal:
            refusals.append(str(refusal))
    if refusals:
        assert not answers, refusals
        assert all(refusals)
        return
    (area, magnitude), mean_area, log_marginal = answers
    dtype = log_marginal.dtype
    nats = TOLERANCE[dtype] * rounding_growth(model) * model.num_features
    allowed = nats + RELATIVE[dtype] * magnitude
    assert ((area - log_marginal).abs() <= allowed).all(), (area, log_marginal)
    assert abs(mean_area - log_marginal.mean().item()) <= allowed.mean()


class TractableModelCase:
    """Mathematics that holds for any joint distribution; each model inherits it."""

    def data(self, model: TractableModel, n: int = 6) -> torch.Tensor:
        return model.sample(n, generator=generator(7))

    def every_mask(self, model: TractableModel) -> torch.Tensor:
        return masks.subsets(model.num_features)[1:]

    def test_proposition_1(self, model: TractableModel) -> None:
        x = self.data(model)
        for row in x:
            area = curves.exact_curve(model, row[None]).area()
            assert abs(area - model.log_marginal(row[None]).item()) <= EXACT

    def test_a_conditional_is_a_ratio_of_marginals(self, model: TractableModel) -> None:
        x, mask = self.data(model), self.every_mask(model)
        values = model.log_conditional(x, mask)
        for p, j in mask.nonzero().tolist():
            larger = ~mask[p : p + 1]
            given = model.log_subset_marginal(x, larger)[0]
            larger = larger.clone()
            larger[0, j] = True
            ratio = model.log_subset_marginal(x, larger)[0] - given
            torch.testing.assert_close(values[p, :, j], ratio, atol=EXACT, rtol=0)

    def test_zero_where_not_masked_and_never_nan(self, model: TractableModel) -> None:
        x, mask = self.data(model), self.every_mask(model)
        values = model.log_conditional(x, mask)
        assert values.shape == (len(mask), len(x), model.num_features)
        assert torch.isfinite(values).all()
        hidden = mask[:, None, :].expand_as(values)
        assert (values[~hidden] == 0).all()
        assert (values[hidden] != 0).any()

    def test_the_mean_over_data_is_the_mean(self, model: TractableModel) -> None:
        x, mask = self.data(model), self.every_mask(model)
        fast, slow = model.mean_log_conditional(x, mask), model.log_conditional(x, mask).mean(dim=1)
        torch.testing.assert_close(fast, slow, atol=EXACT, rtol=0)
        plain = ConditionalModel._mean_log_conditional(model, x, mask)  # what others inherit
        torch.testing.assert_close(plain, slow, atol=EXACT, rtol=0)
        fast = model.mean_log_subset_marginal(x, ~mask)
        slow = model.log_subset_marginal(x, ~mask).mean(dim=1)
        torch.testing.assert_close(fast, slow, atol=EXACT, rtol=0)

    def test_one_mask_a_datum_is_a_diagonal(self, model: TractableModel) -> None:
        mask = self.every_mask(model)
        x = self.data(model, len(mask))
        every = model.log_conditional(x, mask)
        pairs = torch.arange(len(mask))
        torch.testing.assert_close(model.log_each(x, mask), every[pairs, pairs], atol=EXACT, rtol=0)
        with pytest.raises(ValueError, match="same number of rows"):
            model.log_each(torch.cat([x, x]), mask)

    def test_all_randomness_is_the_generators(self, model: TractableModel) -> None:
        draws = []
        for seed in (0, 1):
            torch.manual_seed(seed)  # what must not matter
            draws.append(model.sample(200, generator=generator(5)))
        assert torch.equal(*draws)
        assert not torch.equal(draws[0], model.sample(200, generator=generator(6)))

    def test_the_empty_and_the_full_set(self, model: TractableModel) -> None:
        x = self.data(model)
        ends = torch.stack([torch.zeros(model.num_features), torch.ones(model.num_features)]).bool()
        values = model.log_subset_marginal(x, ends)
        assert (values[0] == 0).all()
        torch.testing.assert_close(values[1], model.log_marginal(x), atol=EXACT, rtol=0)

    def test_answers_on_another_device_are_those_here(self, model: TractableModel) -> None:
        mask = self.every_mask(model)

        def answers(model: TractableModel) -> list[torch.Tensor]:
            x = self.data(model)
            draws = {"generator": generator(3), "sizes": sorted({1, model.num_features})}
            curve = curves.sampled_curve(model, x, 3, scheme="nested", **draws)
            chain = curves.sampled_curve(
                model, x, 2, generator=generator(4), scheme="nested", targets="one"
            )
            answers = [
                model.log_conditional(x, mask),
                model.mean_log_conditional(x, mask),
                model.log_each(x[:1], mask[-1:]),
                model.log_subset_marginal(x, ~mask),
                model.mean_log_subset_marginal(x, ~mask),
                curves.subset_curve(model, x).score,
                orders.exact(model, x).variance,
            ]
            return [
                *(answer.cpu() for answer in answers),
                torch.tensor([curve.area(), chain.area()]),
            ]

        here = answers(model)
        with other_device():
            there = answers(Move(DEVICE)(model))
        for answer, answer_here in zip(there, here, strict=True):
            torch.testing.assert_close(answer, answer_here, atol=EXACT, rtol=0)
