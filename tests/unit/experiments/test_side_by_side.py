"""Networks that are trained side by side as if each were alone."""

from __future__ import annotations

import functools

import pytest
import torch
from models import generator
from other_device import OtherDevice
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from experiments.trainings import side_by_side
from experiments.trainings.known_language import Stratified
from experiments.trainings.side_by_side import SideBySide, train_side_by_side
from mpt_lml import HMM, masks, scores
from mpt_score.networks.symbol_bert import SymbolBERT

pytest.importorskip("transformers")


def test_networks_side_by_side_learn_as_if_alone() -> None:
    """Three steps of each by itself, with a plain loop, against three steps of both together."""
    models = [SymbolBERT(5, 6, 8, seed=seed) for seed in (1, 2)]
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

    class FirstStep(torch.optim.AdamW):
        def step(self) -> None:
            of_weights = [weight.grad for weight in self.param_groups[0]["params"]]
            gradients.append(torch.cat([gradient.flatten(1) for gradient in of_weights], dim=1))

    monkeypatch.setattr(side_by_side, "AdamW", FirstStep)
    train_side_by_side(
        models,
        source,
        [law, law],
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
        [masks.FixedRate(0.5)] * 2,
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


def test_they_move_together() -> None:
    """With their constants; answers are where the rows are, and networks stay where they were."""
    networks = [SymbolBERT(5, 6, 8, seed=seed).network for seed in (1, 2)]
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
    uniform = [masks.UniformSize()]
    train_side_by_side([here], source, uniform, generators=[generator()], **settings)
    with OtherDevice() as other:
        there.network.to(other.device)
        train_side_by_side([there], source, uniform, generators=[generator()], **settings)
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
            [masks.UniformSize()],
            generators=[generator()],
            num_steps=1,
            batch_size=2,
            learning_rate=1e-3,
            half_precision=half_precision,
        )
    dtype = torch.bfloat16 if half_precision else torch.float32
    assert asked == [(torch.device("meta"), dtype)]


@pytest.mark.bad_input
@pytest.mark.parametrize("missing", ["laws", "generators"])
def test_a_network_without_a_law_or_a_generator_of_its_own_is_refused(missing: str) -> None:
    models = [SymbolBERT(3, 4, 8, seed=seed) for seed in (1, 2)]
    settings = {"num_steps": 1, "batch_size": 2, "learning_rate": 1e-3}
    laws = [masks.UniformSize()] * (1 if missing == "laws" else 2)
    draws = [generator()] * (1 if missing == "generators" else 2)
    source = HMM.cyclic(num_features=4)
    with pytest.raises(ValueError, match=f"{missing} must be one for each network, got 1 for 2"):
        train_side_by_side(models, source, laws, generators=draws, **settings)


# -- several laws, and blocks of draws ---------------------------------------------------

SOURCE = HMM.cyclic(num_features=6)


def trained(
    laws: list[masks.SizeLaw], seeds: list[int], **settings: object
) -> tuple[list[SymbolBERT], Tensor]:
    """Networks of six symbols and width 8, and the losses of their training."""
    models = [SymbolBERT(12, 6, 8, seed=seed) for seed in seeds]
    how = {"num_steps": 7, "batch_size": 5, "learning_rate": 1e-2} | settings
    draws = [generator(seed) for seed in seeds]
    return models, train_side_by_side(models, SOURCE, laws, generators=draws, **how)


def weights_of(model: SymbolBERT) -> Tensor:
    return parameters_to_vector(model.network.parameters()).detach()


def answers_of(model: SymbolBERT) -> Tensor:
    """Not its weights: a key's bias changes nothing, and Adam follows the rounding of its gradient."""
    x = SOURCE.sample(20, generator=generator(9))
    mask = masks.sample_masks(20, 6, masks.UniformSize(), generator=generator(9))
    return model.log_values(x, mask).detach()


def test_steps_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one network, with AdamW's own gradients; seven steps in blocks of three."""
    monkeypatch.setattr(side_by_side, "STEPS_AT_ONCE", 3)
    law = masks.FixedRate(0.4)
    [model], losses = trained([law], [4])
    alone = SymbolBERT(12, 6, 8, seed=4)
    optimizer = torch.optim.AdamW(alone.network.parameters(), lr=1e-2)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=7)
    draws = generator(4)
    expected = []
    for _ in range(7):
        x = SOURCE.sample(5, generator=draws)
        mask = masks.sample_masks(5, 6, law, generator=draws)
        log_q = alone.log_values(x, mask).gather(2, x[..., None])[..., 0]
        loss = -scores.mask_score(log_q, mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        expected.append(loss.item())
    assert losses[:, 0].tolist() == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(answers_of(model), answers_of(alone), atol=1e-3, rtol=0)


def test_each_network_follows_its_own_law() -> None:
    """Three laws and two seeds at once, against each law by itself."""
    laws = [masks.FixedSize(2), masks.UniformSize(), Stratified()]
    together, losses = trained([law for law in laws for _ in (1, 2)], [4, 44] * 3)
    for number, law in enumerate(laws):
        apart, by_itself = trained([law, law], [4, 44])
        columns = slice(2 * number, 2 * number + 2)
        torch.testing.assert_close(losses[:, columns], by_itself)
        for found, wanted in zip(together[columns], apart, strict=True):
            torch.testing.assert_close(answers_of(found), answers_of(wanted), atol=1e-3, rtol=0)
    assert (answers_of(together[0]) - answers_of(together[2])).abs().max() > 0.01


def test_sequences_of_generators_in_one_state_are_drawn_once() -> None:
    """As if each were drawn by itself: the same sequences until the stratified law has taken less."""
    laws = [masks.FixedSize(2), masks.UniformSize(), Stratified()]
    draws = [generator(4) for _ in laws]
    x, mask = side_by_side._draw(SOURCE, laws, 3, 5, draws, torch.device("cpu"))
    for number, law in enumerate(laws):
        own = generator(4)
        for step in range(3):
            assert torch.equal(x[step, number], SOURCE.sample(5, generator=own))
            expected = masks.sample_masks(5, 6, law, generator=own)
            assert torch.equal(mask[step, number], expected)
    assert torch.equal(x[:, 0], x[:, 1]) and not torch.equal(x[1:, 0], x[1:, 2])


def test_a_loss_without_a_number_is_named_and_changes_nothing() -> None:
    model = SymbolBERT(12, 6, 8, seed=4)
    with pytest.raises(FloatingPointError, match=r"the loss of network 0 is nan at step \d"):
        train_side_by_side(
            [model],
            SOURCE,
            [masks.UniformSize()],
            generators=[generator(4)],
            num_steps=9,
            batch_size=5,
            learning_rate=1e30,
        )
    assert torch.equal(weights_of(model), weights_of(SymbolBERT(12, 6, 8, seed=4)))


# -- on a card -------------------------------------------------------------------------------------


@functools.cache
def trained_on_the_cpu() -> tuple[list[Tensor], Tensor]:
    return trained_on("cpu")


def trained_on(device: torch.device | str) -> tuple[list[Tensor], Tensor]:
    """Weights of two networks after seven steps, and the losses."""
    models = [SymbolBERT(12, 6, 8, seed=seed).to(device) for seed in (4, 44)]
    losses = train_side_by_side(
        models,
        SOURCE,
        [masks.UniformSize(), masks.FixedSize(2)],
        generators=[generator(4), generator(44)],
        num_steps=7,
        batch_size=5,
        learning_rate=1e-2,
    )
    assert losses.device == models[0].device
    return [weights_of(model).cpu() for model in models], losses.cpu()


@pytest.mark.parametrize("steps_at_once", [3, 100])
def test_another_device_trains_the_same(
    steps_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a wait but for one in each block of draws."""
    monkeypatch.setattr(side_by_side, "STEPS_AT_ONCE", steps_at_once)
    weights, losses = trained_on_the_cpu()
    with OtherDevice() as other:
        weights_there, losses_there = trained_on(other.device)
    torch.testing.assert_close(losses_there, losses)
    for one, expected in zip(weights_there, weights, strict=True):
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=0)
    # Losses are looked at when the next block has been drawn, and at the end, where they and the
    # weights are read back.
    num_blocks = -(-7 // steps_at_once)
    assert other.waits["aten.nonzero.default"] == num_blocks
    assert other.waits.total() <= num_blocks + 10


@pytest.mark.parametrize(
    ("kind", "has_bfloat16", "expected"),
    [
        ("cpu", False, torch.bfloat16),
        ("cuda", True, torch.bfloat16),
        ("cuda", False, torch.float32),  # a T4 imitates bfloat16
    ],
)
def test_half_precision_is_what_the_device_has(
    kind: str, has_bfloat16: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_supported(including_emulation: bool) -> bool:
        return has_bfloat16 or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert side_by_side._dtype_of_products(True, torch.device(kind)) == expected
    assert side_by_side._dtype_of_products(False, torch.device(kind)) == torch.float32
