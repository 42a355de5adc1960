"""Small autoencoders trained by masks, linear probes of their features, and areas beside them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import OneCycleLR

from mpt_experiments.experiment import seeded
from mpt_lml import fit, masks, scores
from mpt_lml.data import image_sets
from mpt_lml.results import trapezoid_weights
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks.vit_mae import ViTMAE

RATES = (0.15, 0.5, 0.75)
LAWS: tuple[masks.SizeLaw, ...] = (*map(masks.FixedRate, RATES), masks.UniformSize())


class Labeled(NamedTuple):
    """What a probe is fitted to, and where ``is_test``, judged on."""

    x: Tensor
    label: Int[Tensor, " N"]
    is_test: Bool[Tensor, " N"]


def probe_accuracy(features: Float[Tensor, "N k"], data: Labeled) -> float:
    """Balanced test accuracy, the mean over classes, of a logistic regression on the features.

    They are standardized. Every fifth training row chooses the penalty; then all fit the weights.
    """
    from sklearn import linear_model, model_selection, pipeline, preprocessing

    is_test = data.is_test
    train_x = features[~is_test].double().numpy()
    train_label = data.label[~is_test].numpy()
    held_out = np.arange(len(train_x)) % 5 == 4
    regression = linear_model.LogisticRegression(class_weight="balanced", max_iter=5000)
    search = model_selection.GridSearchCV(
        pipeline.make_pipeline(preprocessing.StandardScaler(), regression),
        {"logisticregression__C": [0.01, 0.1, 1.0]},
        scoring="balanced_accuracy",
        cv=[(*np.nonzero(~held_out), *np.nonzero(held_out))],
    )
    search.fit(train_x, train_label)
    return float(search.score(features[is_test].double().numpy(), data.label[is_test].numpy()))


def rank_correlation(a: Float[Tensor, "... n"], b: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Spearman's of each row, ties at their mean rank; 0 where all values of one side are equal."""
    num_values = a.shape[-1]
    rows = []
    pairs = zip(a.reshape(-1, num_values), b.reshape(-1, num_values), strict=True)
    for x, y in pairs:
        is_constant = (x == x[0]).all() or (y == y[0]).all()
        rows.append(0.0 if is_constant else spearmanr(x.numpy(), y.numpy()).statistic)
    return torch.tensor(rows, dtype=torch.float64).view(a.shape[:-1])


def features(network: Any, x: Tensor) -> Float[Tensor, "N w"]:
    """Mean over patches of the encoder's last layer, nothing hidden, ``x`` in the network's units."""
    embeddings = network.vit.embeddings
    embeddings.config.mask_ratio = 0.0
    order = torch.arange(embeddings.patch_embeddings.num_patches).expand(len(x), -1).float()
    return network.vit(x, noise=order).last_hidden_state[:, 1:].mean(dim=1)


def supervised_accuracy(
    network: Any,
    data: Labeled,
    num_steps: int,
    seed: int,
    features: Callable[[Any, Tensor], Tensor] = features,
) -> float:
    """The probe's accuracy after ``network`` and a linear layer were trained on the labels."""
    generator = seeded(seed)
    rows = (~data.is_test).nonzero().flatten()
    head = nn.Linear(network.config.hidden_size, int(data.label.max()) + 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)

    def loss(step: int) -> Tensor:
        batch = rows[torch.randint(len(rows), (32,), generator=generator)]
        return functional.cross_entropy(head(features(network, data.x[batch])), data.label[batch])

    both = nn.ModuleList([network, head])
    schedule = OneCycleLR(AdamW(both.parameters(), 2e-3), 2e-3, num_steps, pct_start=0.1)
    fit.descend(both, loss, [schedule], num_steps=num_steps, max_norm=1.0)
    with torch.no_grad():
        return probe_accuracy(features(network, data.x), data)


def area_and_scores(
    model: Any, x: Float[Tensor, "N ..."], sizes: Sequence[int]
) -> Float[Tensor, " 5"]:
    """Area (trapezoid), its standard error over data and masks, scores at the three rates, nats.

    One random mask of each size for every datum, the same ones for every model of D coordinates.
    """
    generator = seeded(2)
    num_features = model.num_features
    drawn = [masks.sample_masks(len(x), num_features, size, generator=generator) for size in sizes]
    score = torch.stack([scores.mask_score(model.log_each(x, m), m) for m in drawn]).double()
    area = mean_and_error(trapezoid_weights(sizes, num_features) @ score)
    at_rates = [sizes.index(size) for size in sizes_at_rates(num_features)]
    return torch.stack([*area, *score[at_rates].mean(dim=1)])


def sizes_at_rates(num_features: int) -> list[int]:
    return [masks.FixedRate(rate).num_masked(num_features) for rate in RATES]


def labeled_images(name: str, num_train: int, num_test: int) -> Labeled:
    """Training images, then held-out ones, with their classes."""
    x = torch.cat(
        [
            image_sets.images(name, "train").grid[:num_train].float(),
            image_sets.images(name, "test").grid[:num_test].float(),
        ]
    )
    train_label = image_sets.labels(name, "train")[:num_train]
    test_label = image_sets.labels(name, "test")[:num_test]
    label = torch.cat([train_label, test_label])
    return Labeled(x, label, torch.arange(len(label)) >= len(train_label))


def train(
    model: ViTMAE,
    x: Float[Tensor, "N C H W"],
    num_steps: int,
    generator: torch.Generator,
    *,
    batch_size: int,
    learning_rate: float,
    matrix_rate: float | None = None,
    law: masks.SizeLaw | None = None,
    weight_of_size: Float[Tensor, " D"] | None = None,
    **options: Any,
) -> list[Tensor]:
    """Fit the network of ``model`` to ``x`` by :meth:`ViTMAE.loss`, each size once in D steps.

    Args:
        model: whose network is trained, in place.
        x: images, (N, C, H, W).
        num_steps: of the optimizers.
        generator: what sizes, rows and masks are drawn from.
        batch_size: images a step.
        learning_rate: the largest of AdamW's one cycle.
        matrix_rate: of Muon, which the matrices inside the layers follow where it is given.
        law: of the sizes in D steps, where it is not uniform.
        weight_of_size: by which the loss is multiplied where 1, ..., D patches are hidden.
        options: of ``fit.descend``.

    Returns:
        What ``watch`` has given.
    """
    num_features = model.num_features
    next_sizes: list[int] = []

    def loss(step: int) -> Tensor:
        if not next_sizes:
            sizes = torch.randperm(num_features, generator=generator) + 1
            if law is not None:
                spread = law.stratified(num_features, num_features, generator=generator)
                sizes = spread[sizes - 1]
            next_sizes.extend(sizes.tolist())
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        size = next_sizes.pop()
        mask = masks.sample_masks(batch_size, num_features, size, generator=generator)
        value = model.loss(x[rows], mask)
        if weight_of_size is not None:
            value = weight_of_size[size - 1] * value
        return value

    schedules = _schedules(model.network, num_steps, learning_rate, matrix_rate)
    model.network.train()
    options = {"num_steps": num_steps, "max_norm": 1.0} | options
    _, watched = fit.descend(model.network, loss, schedules, **options)
    model.network.eval()
    return watched


def _schedules(
    network: nn.Module, num_steps: int, learning_rate: float, matrix_rate: float | None
) -> list[OneCycleLR]:
    """One cycle of AdamW, and of Muon for the matrices inside the layers."""
    cycle = partial(OneCycleLR, total_steps=num_steps, pct_start=0.1)
    matrices = []
    others = []
    for name, weight in network.named_parameters():
        if not weight.requires_grad:
            continue
        is_inner_matrix = weight.ndim == 2 and "layer" in name
        if matrix_rate is not None and is_inner_matrix:
            matrices.append(weight)
        else:
            others.append(weight)
    adam = AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedules = [cycle(adam, learning_rate)]
    if matrix_rate is not None:
        muon = Muon(matrices, lr=matrix_rate, weight_decay=0.01)
        schedules.append(cycle(muon, matrix_rate, cycle_momentum=False))
    return schedules
