"""ViT-MAE as a Gaussian model: exact masks, explicit variance, nothing seen that is hidden."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from models import generator
from other_device import MPS, OtherDevice

from mpt_lml import curves, masks
from mpt_score import networks
from mpt_score.networks import hub
from mpt_score.networks.vit_mae import ViTMAE, masking_noise

transformers = pytest.importorskip("transformers")


def network(channels: int = 1, size: int = 8, patch: int = 2, seed: int = 0):
    return networks.small_mae(
        size, channels, patch, width=16, num_layers=1, decoder_layers=1, seed=seed
    )


def images(n: int = 5, channels: int = 1, size: int = 8) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=generator(3), dtype=torch.float64)


MODEL = ViTMAE(network(), 0.05, pixel_mean=0.3, pixel_scale=0.4)
COLOR = ViTMAE(
    network(3, 8, 4),
    torch.tensor([0.1, 0.2, 0.3, 0.4]),
    pixel_mean=torch.tensor([0.5, 0.4, 0.3]),
    pixel_scale=torch.tensor([0.2, 0.3, 0.4]),
)


@pytest.mark.parametrize("num_patches", [16, 49, 64, 196])
def test_every_size_is_realized_exactly(num_patches: int) -> None:
    """transformers keeps int(D (1 − ratio)): the half patch must survive rounding at every size."""
    net = network()
    for size in range(1, num_patches + 1):
        masking_noise(net, torch.arange(num_patches)[None] < size)
        ratio = net.vit.embeddings.config.mask_ratio
        assert int(num_patches * (1 - ratio)) == num_patches - size


def test_the_networks_own_mask_is_ours() -> None:
    net, x = network(), images(6).float()
    for size in (1, 7, 16):
        mask = masks.sample_masks(6, 16, size, generator=generator(size))
        assert torch.equal(net(x, noise=masking_noise(net, mask)).mask.bool(), mask)


@pytest.mark.parametrize("model", [MODEL, COLOR], ids=["gray", "color"])
def test_the_score_is_the_literal_one(model: ViTMAE) -> None:
    """From the network's logits, pixel by pixel, in loops."""
    channels, size, _ = model.image_shape
    patch, (x, net) = model.network.config.patch_size, (images(2, channels, size), model.network)
    mask = masks.sample_masks(3, model.num_features, 2, generator=generator())
    values = model.log_conditional(x, mask)
    grid = size // patch
    for p, row in enumerate(mask):
        inputs = (x - model.pixel_mean.view(-1, 1, 1)) / model.pixel_scale.view(-1, 1, 1)
        logits = net(inputs.float(), noise=masking_noise(net, row.expand(2, -1))).logits.double()
        for n, j in ((n, j) for n in range(2) for j in range(model.num_features)):
            total = 0.0
            for a, b, c in (
                (a, b, c) for a in range(patch) for b in range(patch) for c in range(channels)
            ):
                pixel = x[n, c, (j // grid) * patch + a, (j % grid) * patch + b].item()
                output = logits[n, j, (a * patch + b) * channels + c].item()
                mean = model.pixel_mean[c].item() + model.pixel_scale[c].item() * output
                variance = model.variance[1, 0, 0].item()
                total += -0.5 * math.log(2 * math.pi * variance)
                total -= (pixel - mean) ** 2 / (2 * variance)
            expected = total if row[j] else 0.0
            assert values[p, n, j].item() == pytest.approx(expected, abs=1e-4)  # float32 network


def test_the_loss_of_transformers_is_the_same_number() -> None:
    """Mean squared error in units of the network, for one number of σ² without mean and scale."""
    model, x = ViTMAE(network(), 0.05), images(4)
    mask = masks.sample_masks(4, 16, 5, generator=generator(1))
    loss = model.loss(x.float(), mask).item()
    assert loss == model.network(x.float(), noise=masking_noise(model.network, mask)).loss.item()
    score = model.log_each(x, mask).sum() / (4 * 5 * 4)  # images, patches, pixels
    assert score.item() == pytest.approx(-0.5 * math.log(2 * math.pi * 0.05) - loss / 0.1, abs=1e-4)


def test_hidden_pixels_are_not_seen() -> None:
    x, other = images(3), images(3).flip(0)
    mask = masks.sample_masks(3, 16, 9, generator=generator(2))
    mixed = MODEL.images(torch.where(mask[:, :, None], MODEL.patches(other), MODEL.patches(x)))
    assert (mixed != x).any()
    assert torch.equal(MODEL.predict(x, mask), MODEL.predict(mixed, mask))
    shown = MODEL.images(torch.where(mask[:, :, None], MODEL.patches(x), MODEL.patches(other)))
    assert not torch.allclose(MODEL.predict(x, mask), MODEL.predict(shown, mask))


def test_hidden_patches_are_told_apart() -> None:
    """A new decoder of transformers 5 has no positions: all hidden patches would look the same."""
    everything = torch.ones(1, 16, dtype=torch.bool)

    def spread(net: transformers.ViTMAEForPreTraining) -> float:
        prediction = ViTMAE(net, 1.0).predict(images(1), everything)[0]
        return (prediction - prediction[0]).abs().max().item()

    assert spread(network()) > 1e-2
    net = network()
    net.decoder.decoder_pos_embed.data.zero_()
    assert spread(net) < 1e-5
    twin = networks.random_twin(network(), seed=2)
    assert spread(twin) > 1e-2
    for name in networks.FIXED_POSITIONS:
        assert torch.equal(twin.get_parameter(name), network().get_parameter(name)), name
    drawn = [each.vit.embeddings.patch_embeddings.projection.weight for each in (twin, network())]
    assert not torch.equal(*drawn)


def test_masks_of_different_sizes_go_together() -> None:
    x = images(4)
    mask = torch.cat([masks.sample_masks(1, 16, m, generator=generator(m)) for m in (3, 1, 16, 3)])
    together = MODEL.log_each(x, mask)
    for n in range(4):
        alone = MODEL.log_each(x[n : n + 1], mask[n : n + 1])[0]
        torch.testing.assert_close(together[n], alone, atol=1e-4, rtol=1e-4)
    all_pairs = MODEL.log_conditional(x, mask)
    torch.testing.assert_close(all_pairs.diagonal().T, together, atol=1e-4, rtol=1e-4)
    assert (all_pairs[~mask[:, None, :].expand_as(all_pairs)] == 0).all()


def test_variance_by_maximum_likelihood() -> None:
    """The estimate is a maximum: the area, and each score, fall on either side of it."""
    x = images(8)

    def area(model: ViTMAE) -> torch.Tensor:
        return model.image_scores(x, generator=generator(9)).mean(dim=1)

    one = ViTMAE.fit_variance(MODEL.network, x, generator=generator(9))
    own = ViTMAE.fit_variance(MODEL.network, x, generator=generator(9), per="size")
    for model, total in ((one, lambda s: s.sum()), (own, lambda s: s)):
        h = 1e-3
        up, at, down = (
            total(area(model.with_variance(model.variance * f))) for f in (1 + h, 1, 1 - h)
        )
        # Relative derivative d log σ²: 0 up to h² and float32; curvature −D d/2 a score.
        assert (((up - down) / (2 * h)).abs() < 1e-3).all()
        assert (up < at).all() and (down < at).all()
    v, d = own.variance.flatten(), MODEL.pixels_per_patch
    gain = area(own).sum() - area(one).sum()
    expected = 0.5 * d * (16 * v.mean().log() - v.log().sum())  # the mean over the geometric mean
    assert gain.item() == pytest.approx(expected.item(), abs=1e-5)
    assert one.variance[0].item() == pytest.approx(v.mean().item())


def test_a_variance_for_every_pixel() -> None:
    """From the residuals: it scores at least as well as one a size, and is a maximum."""
    x, g = images(100), generator(9)
    own = ViTMAE.fit_variance(MODEL.network, x, generator=generator(9), per="size")
    pairs = own.residuals(x, generator=g)
    variance = torch.stack([r.square().sum(0) / m.sum(0)[:, None] for m, r in pairs])
    assert variance.shape == (16, 16, 4)
    each = own.with_variance(variance)

    def score(model: ViTMAE) -> torch.Tensor:
        return model.image_scores(x, generator=generator(9)).mean(dim=1)

    assert (score(each) > score(own)).all()
    h = 1e-3
    up, down = (score(each.with_variance(each.variance * f)) for f in (1 + h, 1 - h))
    assert (((up - down) / (2 * h)).abs() < 1e-3).all()


def test_residuals_are_hidden_pixels_minus_predictions() -> None:
    x = images(4)
    (mask, found), *rest = MODEL.residuals(x, generator=generator(5), sizes=[3, 16])
    assert len(rest) == 1
    assert torch.equal(mask, masks.sample_masks(4, 16, 3, generator=generator(5)))
    difference = MODEL.patches(x) - MODEL.predict(x, mask)
    assert torch.equal(found, difference * mask[:, :, None])
    squares = MODEL.squared_error(x, generator=generator(5), sizes=[3])
    torch.testing.assert_close(squares[0], difference[mask].view(4, 12).square().mean(dim=1))
    scores = MODEL.image_scores(x, generator=generator(5), sizes=[3])
    torch.testing.assert_close(scores[0], MODEL.log_each(x, mask).sum(dim=1) / 3)


def test_a_constant_network_is_independent_pixels() -> None:
    """Output 0: the density of pixels N(pixel_mean, σ²), whatever the mask, and a flat curve."""
    net = network()
    net.decoder.decoder_pred.weight.data.zero_()
    net.decoder.decoder_pred.bias.data.zero_()
    model, x = ViTMAE(net, 0.07, pixel_mean=0.4), images(3)
    variance = torch.tensor(0.07, dtype=torch.float64)
    expected = torch.distributions.Normal(0.4, variance.sqrt()).log_prob(x).sum(dim=(1, 2, 3))
    everything = torch.ones(1, 16, dtype=torch.bool)
    torch.testing.assert_close(model.log_conditional(x, everything)[0].sum(dim=1), expected)
    order = masks.nested_masks(torch.randperm(16, generator=generator()))
    new = order & ~torch.cat([torch.zeros(1, 16, dtype=torch.bool), order[:-1]])
    chain = (model.log_conditional(x, order) * new[:, None]).sum(dim=(0, 2))
    torch.testing.assert_close(chain, expected)


def test_image_scores_are_the_curve() -> None:
    """One mask an image against masks shared by all images: the same mean."""
    x = images(2)
    sizes = (1, 15)  # 16 masks each: every one can be visited
    exact = [curves.size_scores(MODEL, x, masks.all_masks(16, m)[None]).mean() for m in sizes]
    g = generator(4)
    drawn = torch.stack(
        [MODEL.image_scores(x, generator=g, sizes=sizes).mean(1) for _ in range(60)]
    )
    error = drawn.std(dim=0) / math.sqrt(60)
    for k in range(2):
        assert abs(drawn.mean(dim=0)[k] - exact[k]) < 4 * error[k]
    sampled = curves.sampled_curve(MODEL, x, 3, generator=g, sizes=[4, 8])
    assert sampled.score.dtype == torch.float64


@pytest.mark.parametrize("sizes", [(2, 7, 16), tuple(range(1, 17))], ids=["some", "every"])
def test_the_fitted_curve_has_the_variances_of_other_images(sizes: tuple[int, ...]) -> None:
    """By squared errors it is what the densities of each pixel give under the same masks."""
    x, test = images(4), images(6)
    curve = MODEL.fitted_curve(x, test, generator=generator(5), sizes=sizes)
    g = generator(5)
    variance = torch.ones(16, dtype=torch.float64)  # what stands at other sizes plays no part
    places = torch.tensor(sizes) - 1
    variance[places] = MODEL.squared_error(x, generator=g, sizes=sizes).mean(dim=1)
    fitted = MODEL.with_variance(variance)
    expected = fitted.image_scores(test, generator=g, sizes=sizes).mean(dim=1)
    torch.testing.assert_close(curve.score, expected)  # both in double precision
    by_hand = np.interp(range(1, 17), sizes, expected.numpy()).sum()
    assert curve.area() == pytest.approx(by_hand)
    assert curve.standard_error.isnan().all()  # one mask an image and size


def model_of(net) -> ViTMAE:
    variance = torch.arange(1.0, 17.0) / 16
    return ViTMAE(net, variance, pixel_mean=0.3, pixel_scale=torch.tensor(0.4))


def answers(model: ViTMAE, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of every method that takes images and masks."""
    return {
        "patches": model.patches(x),
        "predict": model.predict(x, mask),
        "loss": model.loss(x, mask[:1].expand(len(x), -1)),
        "log_each": model.log_each(x, mask),
        "log_conditional": model.log_conditional(x, mask),
        "mean_log_conditional": model.mean_log_conditional(x, mask),
    }


def answers_by_draws(model: ViTMAE, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of every method that draws its masks, from one generator."""
    g = generator(9)
    drawn, residual = next(model.residuals(x, generator=g, sizes=[3]))
    return {
        "drawn": drawn,
        "residual": residual,
        "squared_error": model.squared_error(x, generator=g, sizes=[2, 5]),
        "image_scores": model.image_scores(x, generator=g, sizes=[2, 5]),
    }


@pytest.mark.parametrize("mask_is_there", [False, True])
@pytest.mark.parametrize("images_are_there", [False, True])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_answers_are_where_the_images_are(
    kind: str, images_are_there: bool, mask_is_there: bool
) -> None:
    """Wherever the mask is; the network has moved after the model was made."""
    net = network()
    model = model_of(net)
    x = images(5).float()
    mask = masks.sample_masks(5, 16, masks.UniformSize(), generator=generator(1))
    wanted = answers(model, x, mask)
    with OtherDevice(torch.device(kind, 0)) as other:
        net.to(other.device)
        place = other.device if images_are_there else torch.device("cpu")
        if mask_is_there:
            mask = mask.to(other.device)
        for name, found in answers(model, x.to(place), mask).items():
            assert found.device == place, name
            torch.testing.assert_close(found.cpu(), wanted[name])


@pytest.mark.parametrize("images_are_there", [False, True])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_answers_of_drawn_masks_are_where_the_images_are(kind: str, images_are_there: bool) -> None:
    net = network()
    model = model_of(net)
    x = images(5).float()
    wanted = answers_by_draws(model, x)
    score = model.fitted_curve(x, x, generator=generator(2), sizes=[3, 9]).score
    variance = ViTMAE.fit_variance(net, x, generator=generator(2), per="size").variance
    with OtherDevice(torch.device(kind, 0)) as other:
        net.to(other.device)
        place = other.device if images_are_there else torch.device("cpu")
        x = x.to(place)
        for name, found in answers_by_draws(model, x).items():
            assert found.device == place, name
            torch.testing.assert_close(found.cpu(), wanted[name])
        curve = model.fitted_curve(x, x, generator=generator(2), sizes=[3, 9])
        for value in (curve.num_masked, curve.score, curve.standard_error):
            assert value.device == place
        torch.testing.assert_close(curve.score.cpu().double(), score, rtol=1e-6, atol=0)
        fitted = ViTMAE.fit_variance(net, x, generator=generator(2), per="size")
        torch.testing.assert_close(fitted.variance, variance)


def test_enlarged_images_are_lines_between_their_pixels() -> None:
    x = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    with pytest.warns(UserWarning, match=r"\(1, 2, 2\) become \(3, 8, 8\).* repeat each other"):
        large = COLOR.enlarged(x)
    # Pixel i of 8 has its center at (i + 1/2)/4 − 1/2 between the centers 0 and 1 of the two.
    row = ((torch.arange(8) + 0.5) / 4 - 0.5).clamp(0, 1)
    torch.testing.assert_close(large, row.expand(1, 3, 8, 8))
    COLOR.require_data(large)


def test_settings_of_the_network_come_back() -> None:
    net = network().train()
    net.config.mask_ratio = 0.75
    mask = masks.sample_masks(1, 16, 3, generator=generator())
    for call in (ViTMAE(net, 1.0).predict, ViTMAE(net, 1.0).loss):
        call(images(1), mask)
        assert net.config.mask_ratio == 0.75
        assert net.training


def test_a_seed_names_a_network_and_leaves_the_global_one() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = network(seed=5), network(seed=5), network(seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    weight = "decoder.decoder_pred.weight"
    assert torch.equal(first.state_dict()[weight], again.state_dict()[weight])
    assert not torch.equal(first.state_dict()[weight], other.state_dict()[weight])


def test_a_saved_network_comes_back(tmp_path: Path) -> None:
    net = network(3, 8, 4)
    net.save_pretrained(tmp_path)
    loaded = networks.load_network(tmp_path)
    x = images(2, 3)
    mask = masks.sample_masks(2, 4, 2, generator=generator())
    assert torch.equal(ViTMAE(net, 0.1).log_each(x, mask), ViTMAE(loaded, 0.1).log_each(x, mask))
    net.half().save_pretrained(tmp_path)
    assert networks.load_network(tmp_path).dtype == torch.float32


def test_the_commit_of_the_book_is_loaded_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub's cache as it lies on disk, so that a name is resolved without a network."""
    name = hub.VIT_MAE_BASE
    pinned = hub.VIT_MAE_BASE_COMMIT
    home = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    net = network(3, 8, 4)
    net.save_pretrained(home / "snapshots" / pinned)
    network(3, 8, 4, seed=9).save_pretrained(home / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = networks.load_network(name, revision=pinned).state_dict()
    assert all(torch.equal(value, loaded[key]) for key, value in net.state_dict().items())
    assert hub.resolved_revision(name, pinned) == pinned


def with_pixel(value: float) -> torch.Tensor:
    x = images(2)
    x[1, 0, 2, 3] = value
    return x


def normalized():
    net = network()
    net.config.norm_pix_loss = True
    return net


MASK = masks.all_masks(16, 1)
REFUSED = {
    "size": (
        lambda: MODEL.log_conditional(images(2, 1, 28), MASK),
        ValueError,
        r"\(N, 1, 8, 8\).*got \(2, 1, 28, 28\)",
    ),
    "channels": (
        lambda: COLOR.log_conditional(images(2), MASK),
        ValueError,
        r"\(N, 3, 8, 8\).*got \(2, 1, 8, 8\)",
    ),
    "rows": (
        lambda: MODEL.log_conditional(images(2).flatten(1), MASK),
        ValueError,
        r"got \(2, 64\)",
    ),
    "bytes": (
        lambda: MODEL.log_conditional(255 * images(2), MASK),
        ValueError,
        r"\[0, 1\].*Divide bytes by 255",
    ),
    "negative": (lambda: MODEL.log_conditional(with_pixel(-0.5), MASK), ValueError, "from -0.5"),
    "NaN": (
        lambda: MODEL.log_conditional(with_pixel(math.nan), MASK),
        ValueError,
        r"x\[1, 0, 2, 3\] is nan",
    ),
    "integers": (lambda: MODEL.log_conditional(images(2).long(), MASK), TypeError, "torch.int64"),
    "mask of pixels": (
        lambda: MODEL.log_conditional(images(2), masks.all_masks(64, 1)),
        ValueError,
        r"\(P, 16\).*got \(64, 64\)",
    ),
    "other number of masks": (
        lambda: MODEL.predict(images(2), MASK),
        ValueError,
        "same number of rows, got 2 and 16",
    ),
    "empty mask": (
        lambda: MODEL.predict(images(1), ~torch.ones(1, 16, dtype=torch.bool)),
        ValueError,
        "masks nothing",
    ),
    "variance zero": (lambda: ViTMAE(MODEL.network, 0.0), ValueError, "> 0, got 0.0.*fit_variance"),
    "variance of other length": (
        lambda: ViTMAE(MODEL.network, torch.ones(4)),
        ValueError,
        r"16 mask sizes.*\(16, 16, 4\), got shape \(4,\)",
    ),
    "variance per what": (
        lambda: ViTMAE.fit_variance(MODEL.network, images(2), generator=generator(), per="image"),
        ValueError,
        "'all' or 'size', got 'image'",
    ),
    "images without a column": (
        lambda: COLOR.enlarged(torch.zeros(1, 1, 4, 0)),
        ValueError,
        r"x must have shape \(N, C, H, W\), got \(1, 1, 4, 0\)",
    ),
    "images of two channels": (
        lambda: COLOR.enlarged(torch.zeros(1, 2, 4, 4)),
        ValueError,
        "x must have 1 or 3 channels, got 2",
    ),
    "scale zero": (
        lambda: ViTMAE(MODEL.network, 1.0, pixel_scale=0.0),
        ValueError,
        "pixel_scale must be > 0",
    ),
    "mean of other channels": (
        lambda: ViTMAE(MODEL.network, 1.0, pixel_mean=torch.ones(3)),
        ValueError,
        "1 channels",
    ),
    "normalized targets": (
        lambda: ViTMAE(normalized(), 1.0),
        ValueError,
        "norm_pix_loss=True.*no density",
    ),
    "an encoder alone": (lambda: ViTMAE(MODEL.network.vit, 1.0), TypeError, "got ViTMAEModel"),
    "another model": (lambda: ViTMAE(torch.nn.Linear(2, 2), 1.0), TypeError, "got Linear"),
    "patches that do not cover": (
        lambda: network(1, 8, 3),
        ValueError,
        "8 is not a multiple of patch_size 3",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_reason(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.bad_input
class TestLoading:
    def refused(self, source: object, message: str) -> None:
        with pytest.raises(hub.CheckpointError, match=message):
            networks.load_network(source)

    def test_a_folder_that_is_no_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.txt").touch()
        self.refused(tmp_path, "no config.json .it holds holiday.txt")

    def test_a_path_that_is_no_folder(self, tmp_path: Path) -> None:
        self.refused(str(tmp_path / "nowhere"), "nowhere is not a folder")

    def test_pickled_weights(self, tmp_path: Path) -> None:
        net = network()
        net.config.save_pretrained(tmp_path)
        torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
        self.refused(tmp_path, "no .*safetensors .it holds.*pytorch_model.bin.*refused")

    def test_no_weights(self, tmp_path: Path) -> None:
        network().config.save_pretrained(tmp_path)
        self.refused(tmp_path, "has no .*safetensors .it holds config.json")

    def test_an_encoder_alone(self, tmp_path: Path) -> None:
        network().vit.save_pretrained(tmp_path)
        self.refused(tmp_path, "lacks .* such as decoder.*random")

    def test_another_kind_of_model(self, tmp_path: Path) -> None:
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        config = transformers.BertConfig(vocab_size=9, intermediate_size=8, **sizes)
        transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
        with pytest.raises(TypeError, match="ViTMAEForPreTraining.*got BertForMaskedLM"):
            ViTMAE(networks.load_network(tmp_path), 1.0)

    def test_no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreachable(*_: object) -> None:
            raise OSError("we couldn't connect")

        monkeypatch.setattr(hub, "fetch", unreachable)
        self.refused(
            hub.VIT_MAE_BASE, "we couldn't connect.*Else name a folder made by save_pretrained.$"
        )


def test_a_variance_of_each_size_has_two_forms() -> None:
    network, sizes = networks.small_mae(8, 1, 4, width=16, seed=0), torch.arange(1.0, 5.0)
    x, mask = torch.rand(2, 1, 8, 8, generator=generator()), masks.subsets(4)[1:]
    short, long = (ViTMAE(network, each) for each in (sizes, sizes[:, None, None]))
    assert torch.equal(short.log_conditional(x, mask), long.log_conditional(x, mask))
    assert not torch.equal(
        short.log_conditional(x, mask), ViTMAE(network, 1.0).log_conditional(x, mask)
    )


@pytest.mark.bad_input
def test_a_network_in_parts_on_several_devices_is_refused() -> None:
    net = network()
    net.decoder.to("meta")
    with pytest.raises(ValueError, match="on one device, and is on cpu and meta. Move it"):
        ViTMAE(net, 0.1)


@pytest.mark.bad_input
def test_images_in_double_precision_need_a_device_that_has_it() -> None:
    net, mask = network(), torch.ones(2, 16, dtype=torch.bool)
    model = ViTMAE(net, 0.1)
    with OtherDevice(MPS) as other:
        net.to(other.device)
        for call in (
            lambda x: model.log_each(x, mask),
            lambda x: model.loss(x, mask),
            lambda x: model.squared_error(x, generator=generator(1)),
        ):
            with pytest.raises(TypeError, match=r"mps:0 has no double precision. Give x.float"):
                call(images(2))


def test_a_twin_is_where_its_network_is() -> None:
    net = network()
    wanted = networks.random_twin(net, seed=1).state_dict()
    with OtherDevice() as other:
        found = networks.random_twin(net.to(other.device), seed=1)
        for name, value in found.state_dict().items():
            assert value.device == other.device
            assert torch.equal(value.cpu(), wanted[name])
