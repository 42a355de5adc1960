"""Networks that are trained side by side as if each were alone."""

from __future__ import annotations

import pytest
import torch
from models import generator
from other_device import OtherDevice
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from mpt_lml import HMM, fit, masks, scores
from mpt_score.networks import side_by_side
from mpt_score.networks.side_by_side import SideBySide, train_side_by_side
from mpt_score.networks.symbol_bert import SymbolBERT

pytest.importorskip("transformers")


@pytest.mark.parametrize("architecture", ["classic", "modern"])
def test_networks_side_by_side_learn_as_if_alone(architecture: str) -> None:
    """Three steps of each by itself, with a plain loop, against three steps of both together."""
    models = [SymbolBERT(5, 6, 8, architecture, seed=seed) for seed in (1, 2)]
    together = SideBySide([model.network for model in models])
    ids = torch.randint(6, (3, 2, 4, 6), generator=generator(3))
    optimizer = torch.optim.SGD(together.parameters(), lr=0.5)
    for batch in ids:
        logits = together(batch)
        losses = functional.cross_entropy(logits.flatten(0, 2), batch.flatten(), reduction="none")
        optimizer.zero_grad()
        losses.view(2, -1).mean(dim=1).sum().backward()
        optimizer.step()
    expected = []
    for number, model in enumerate(models):
        network = model.network
        alone = torch.optim.SGD(network.parameters(), lr=0.5)
        for batch in ids[:, number]:
            logits = network(input_ids=batch).logits
            alone.zero_grad()
            functional.cross_entropy(logits.flatten(0, 1), batch.flatten()).backward()
            alone.step()
        expected.append(parameters_to_vector(network.parameters()))
    together.copy_to([model.network for model in models])
    for model, weights in zip(models, expected, strict=True):
        found = parameters_to_vector(model.network.parameters())
        torch.testing.assert_close(found, weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "law", [masks.UniformSize(), masks.FixedRate(0.5)], ids=["uniform", "half"]
)
def test_the_gradient_is_that_of_each_networks_own_score(
    law: masks.SizeLaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first step, against the score of each model alone with the same draws."""
    source = HMM.cyclic(num_features=6)
    seeds = (4, 44)
    models = [SymbolBERT(source.num_values, 6, 8, seed=seed) for seed in seeds]
    gradients: list[Tensor] = []

    def first_step(together: SideBySide, loss, schedules, **options) -> None:
        of_weights = torch.autograd.grad(loss(0), list(together.weights))
        gradients.append(torch.cat([gradient.flatten(1) for gradient in of_weights], dim=1))

    monkeypatch.setattr(fit, "descend", first_step)
    train_side_by_side(
        models,
        source,
        law,
        generators=[generator(seed) for seed in seeds],
        num_steps=5,
        batch_size=8,
        learning_rate=3e-3,
    )
    for model, seed, found in zip(models, seeds, gradients[0], strict=True):
        draws = generator(seed)
        x = source.sample(8, generator=draws)
        mask = masks.sample_masks(8, 6, law, generator=draws)
        log_q = model.log_values(x, mask).gather(2, x[..., None])[..., 0]
        score = scores.mask_score(log_q, mask).mean()
        alone = torch.autograd.grad(-score, list(model.network.parameters()))
        expected = torch.cat([gradient.flatten() for gradient in alone])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_each_network_learns() -> None:
    """Which of three symbols is frequent: its entropy is 0.39 nats, of the first networks log 4."""
    frequent = torch.tensor([[0.9, 0.05, 0.05]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    source = HMM(one, one[:, None], frequent, 4)
    models = [SymbolBERT(3, 4, 8, seed=seed) for seed in (1, 2)]
    train_side_by_side(
        models,
        source,
        masks.FixedRate(0.5),
        generators=[generator(seed) for seed in (1, 2)],
        num_steps=60,
        batch_size=16,
        learning_rate=3e-2,
        half_precision=True,
    )
    x = source.sample(200, generator=generator(3))
    mask = masks.sample_masks(200, 4, masks.FixedRate(0.5), generator=generator(4))
    scores = [model.log_each(x, mask).sum() / mask.sum() for model in models]
    assert min(scores) > -0.6
    weights = [parameters_to_vector(model.network.parameters()) for model in models]
    assert not torch.equal(*weights)


def test_products_have_the_digits_asked_for() -> None:
    """Numbers with the 8 bits of bfloat16 come back as they are, those of single precision do not."""
    together = SideBySide([SymbolBERT(5, 6, 8, seed=seed).network for seed in (1, 2)])
    ids = torch.randint(6, (2, 4, 6), generator=generator(3))
    half, single = together(ids, torch.bfloat16), together(ids)
    assert half.dtype == single.dtype == torch.float32
    assert torch.equal(half.bfloat16().float(), half)
    assert not torch.equal(single.bfloat16().float(), single)
    assert all(weight.dtype == torch.float32 for weight in together.weights)


@pytest.mark.parametrize("architecture", ["classic", "modern"])
def test_they_move_together(architecture: str) -> None:
    """With their constants; answers are where the rows are, and networks stay where they were."""
    networks = [SymbolBERT(5, 6, 8, architecture, seed=seed).network for seed in (1, 2)]
    together = SideBySide(networks)
    ids = torch.randint(6, (2, 4, 6), generator=generator(3))
    wanted = together(ids).detach()
    weights = [parameters_to_vector(network.parameters()) for network in networks]
    with OtherDevice() as other:
        together.to(other.device)
        for rows in (ids, ids.to(other.device)):
            found = together(rows).detach()
            assert found.device == rows.device
            torch.testing.assert_close(found.cpu(), wanted)
        together.copy_to(networks)
        for network, expected in zip(networks, weights, strict=True):
            assert all(each.device.type == "cpu" for each in network.parameters())
            assert torch.equal(parameters_to_vector(network.parameters()), expected)


def test_they_are_trained_where_they_are() -> None:
    """Draws are made on the CPU, so that every device sees the same."""
    settings = {"num_steps": 3, "batch_size": 2, "learning_rate": 1e-3}
    source = HMM.cyclic(num_features=4)
    here, there = (SymbolBERT(source.num_values, 4, 8, seed=1) for _ in range(2))
    train_side_by_side([here], source, masks.UniformSize(), generators=[generator()], **settings)
    with OtherDevice() as other:
        there.network.to(other.device)
        train_side_by_side(
            [there], source, masks.UniformSize(), generators=[generator()], **settings
        )
        for found, wanted in zip(
            there.network.parameters(), here.network.parameters(), strict=True
        ):
            assert found.device == other.device
            torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.bad_input
def test_networks_on_several_devices_are_refused() -> None:
    here, there = (SymbolBERT(3, 4, 8, seed=seed).network for seed in (1, 2))
    with pytest.raises(ValueError, match="must be on one device, and are on cpu and meta. Move"):
        SideBySide([here, there.to("meta")])


@pytest.mark.parametrize("half_precision", [False, True])
def test_rows_come_to_where_the_networks_are(
    half_precision: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From generators of the CPU; the device "meta" knows shapes alone, which is enough to see it."""
    model = SymbolBERT(12, 4, 8, seed=1)
    model.network.to("meta")
    asked: list[tuple[torch.device, torch.dtype]] = []

    class Arrived(Exception):
        pass

    def arrive(together: SideBySide, input_ids: Tensor, dtype: torch.dtype) -> Tensor:
        asked.append((input_ids.device, dtype))
        raise Arrived

    def optimizer(parameters, lr: float, **options: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr)  # fused is for devices that compute

    monkeypatch.setattr(SideBySide, "forward", arrive)
    monkeypatch.setattr(side_by_side, "AdamW", optimizer)
    with pytest.raises(Arrived):
        train_side_by_side(
            [model],
            HMM.cyclic(num_features=4),
            masks.UniformSize(),
            generators=[generator()],
            num_steps=1,
            batch_size=2,
            learning_rate=1e-3,
            half_precision=half_precision,
        )
    dtype = torch.bfloat16 if half_precision else torch.float32
    assert asked == [(torch.device("meta"), dtype)]


@pytest.mark.bad_input
def test_a_network_without_a_generator_of_its_own_is_refused() -> None:
    models = [SymbolBERT(3, 4, 8, seed=seed) for seed in (1, 2)]
    settings = {"num_steps": 1, "batch_size": 2, "learning_rate": 1e-3}
    source = HMM.cyclic(num_features=4)
    with pytest.raises(ValueError, match="one for each network, got 1 for 2"):
        train_side_by_side(
            models, source, masks.UniformSize(), generators=[generator()], **settings
        )
