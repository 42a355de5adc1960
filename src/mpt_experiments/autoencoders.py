"""Small autoencoders trained by masks, linear probes of their features, and areas beside them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import fit, masks, scores
from mpt_lml.data import image_sets
from mpt_lml.results import trapezoid_weights
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks.vit_mae import ViTMAE

RATES = (0.15, 0.5, 0.75)
LAWS: tuple[masks.SizeLaw, ...] = (*map(masks.FixedRate, RATES), masks.UniformSize())


class Labeled(NamedTuple):
    """What probes are fitted to, and where ``test``, judged on."""

    x: Tensor
    y: Int[Tensor, " N"]
    test: Bool[Tensor, " N"]


def probe(features: Float[Tensor, "N k"], of: Labeled) -> float:
    """Balanced test accuracy, the mean over classes, of a logistic regression on the features.

    They are standardized. Every fifth training row chooses the penalty; then all fit the weights.
    """
    from sklearn import linear_model, model_selection, pipeline, preprocessing

    held = torch.arange(int((~of.test).sum())).numpy() % 5 == 4
    how = {"scoring": "balanced_accuracy", "cv": [(*np.nonzero(~held), *np.nonzero(held))]}
    line = linear_model.LogisticRegression(class_weight="balanced", max_iter=5000)
    both = pipeline.make_pipeline(preprocessing.StandardScaler(), line)
    penalties = {"logisticregression__C": [0.01, 0.1, 1.0]}
    search = model_selection.GridSearchCV(both, penalties, **how)
    seen, asked = ((features[e].double().numpy(), of.y[e].numpy()) for e in (~of.test, of.test))
    return float(search.fit(*seen).score(*asked))


def rank_correlation(a: Float[Tensor, "... n"], b: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Spearman's, ties at their mean rank; 0 where all values of one side are equal."""
    a, b = ((v[..., None] - v[..., None, :]).sign().sum(dim=-1).double() for v in (a, b))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt().clamp_min(1e-9)


def features(network: Any, x: Tensor) -> Float[Tensor, "N w"]:
    """Mean over patches of the encoder's last layer, nothing hidden, ``x`` in the network's units."""
    embeddings = network.vit.embeddings
    embeddings.config.mask_ratio = 0.0
    order = torch.arange(embeddings.patch_embeddings.num_patches).expand(len(x), -1).float()
    return network.vit(x, noise=order).last_hidden_state[:, 1:].mean(dim=1)


def supervised(
    network: Any,
    of: Labeled,
    num_steps: int,
    seed: int,
    features: Callable[[Any, Tensor], Tensor] = features,
) -> float:
    """The probe's accuracy after ``network`` and a linear layer were trained on the labels."""
    rows, g = (~of.test).nonzero().flatten(), torch.Generator().manual_seed(seed)
    head = nn.Linear(network.config.hidden_size, int(of.y.max()) + 1)
    head.requires_grad_(False).weight.zero_(), head.bias.zero_()

    def loss(step: int) -> Tensor:
        chosen = rows[torch.randint(len(rows), (32,), generator=g)]
        return functional.cross_entropy(head(features(network, of.x[chosen])), of.y[chosen])

    both = nn.ModuleList([network, head.requires_grad_()])
    cycle = OneCycleLR(AdamW(both.parameters(), 2e-3), 2e-3, num_steps, pct_start=0.1)
    fit.descend(both, loss, [cycle], num_steps=num_steps, max_norm=1.0)
    with torch.no_grad():
        return probe(features(network, of.x), of)


def scores_of(model: Any, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Area (trapezoid), its standard error over data and masks, scores at the three rates, nats.

    One random mask of each size for every datum, the same ones for every model of D coordinates.
    """
    g, count = torch.Generator().manual_seed(2), model.num_features
    drawn = [masks.sample_masks(len(x), count, size, generator=g) for size in sizes]
    found = torch.stack([scores.mask_score(model.log_each(x, m), m) for m in drawn]).double()
    area = mean_and_error(trapezoid_weights(sizes, count) @ found)
    return torch.stack([*area, *found[[sizes.index(m) for m in sizes_of(count)]].mean(dim=1)])


def sizes_of(count: int) -> list[int]:
    return [masks.FixedRate(rate).num_masked(count) for rate in RATES]


def labeled(name: str, num_data: int, num_test: int) -> Labeled:
    """Training images, then held-out ones, with their classes."""
    x, y = [], []
    for split, count in (("train", num_data), ("test", num_test)):
        x.append(image_sets.images(name, split).grid[:count].float())  # type: ignore[arg-type]
        y.append(image_sets.labels(name, split)[:count])  # type: ignore[arg-type]
    return Labeled(torch.cat(x), torch.cat(y), torch.arange(sum(map(len, y))) >= len(y[0]))


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
    **options: Any,
) -> list[Tensor]:
    """Fit the network of ``model`` to ``x`` by :meth:`ViTMAE.loss`, each size once in D steps.

    Or D sizes of ``law``. With ``matrix_rate``, the matrices inside the layers follow Muon at that
    rate. ``options`` are those of ``fit.descend``; returned is what ``watch`` has seen.
    """
    count = model.num_features
    sizes: list[int] = []

    def loss(step: int) -> Tensor:
        if not sizes:
            deck = torch.randperm(count, generator=generator) + 1
            if law is not None:
                deck = law.stratified(count, count, generator=generator)[deck - 1]
            sizes.extend(deck.tolist())
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        mask = masks.sample_masks(batch_size, count, sizes.pop(), generator=generator)
        return model.loss(x[rows], mask)

    cycle = partial(OneCycleLR, total_steps=num_steps, pct_start=0.1)
    rest = {name: w for name, w in model.network.named_parameters() if w.requires_grad}
    inner = [name for name, w in rest.items() if matrix_rate and w.ndim == 2 and "layer" in name]
    matrices = [rest.pop(name) for name in inner]
    adam = AdamW(rest.values(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedules = [cycle(adam, learning_rate)]
    if matrix_rate is not None:
        muon = Muon(matrices, lr=matrix_rate, weight_decay=0.01)
        schedules.append(cycle(muon, matrix_rate, cycle_momentum=False))
    model.network.train()
    options = {"num_steps": num_steps, "max_norm": 1.0} | options
    _, watched = fit.descend(model.network, loss, schedules, **options)
    model.network.eval()
    return watched
