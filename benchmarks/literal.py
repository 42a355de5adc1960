"""The quantities of the book computed the way the formulas are written: baseline and test oracle.

One mask at a time, the blocks of a dense covariance, a dense inverse (the paper's Eqs. 6-7 with the
sign of Eq. 7 corrected), every datum, and everything again for each number of masks P.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpt_lml.models.base import ConditionalModel
from mpt_score.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def mask_score(x: Tensor, mean: Tensor, covariance: Tensor, mask: Tensor) -> float:
    """(1/M) sum over masked j of log p(x_j | x_R), mean over the data."""
    observed = covariance[~mask][:, ~mask]
    gain = covariance[mask][:, ~mask] @ torch.inverse(observed)
    predicted = mean[mask] + (x - mean)[:, ~mask] @ gain.T
    variance = (covariance[mask][:, mask] - gain @ covariance[~mask][:, mask]).diagonal()
    square = (x[:, mask] - predicted) ** 2 / variance
    return (-0.5 * (math.log(2 * math.pi) + variance.log() + square)).sum(
        dim=1
    ).mean().item() / int(mask.sum())


def log_marginal(x: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """Mean over the data of log N(x; mean, covariance)."""
    centered = x - mean
    quadratic = (centered @ torch.inverse(covariance) * centered).sum(dim=1).mean()
    constant = x.shape[1] * math.log(2 * math.pi) + torch.logdet(covariance)
    return -0.5 * (constant + quadratic).item()


def area(x: Tensor, mean: Tensor, covariance: Tensor, mask: Tensor) -> float:
    """Sum over sizes of the mean score of that size's masks; ``mask`` is (sizes, P, D)."""
    total = 0.0
    for of_one_size in mask:
        total += sum(mask_score(x, mean, covariance, row) for row in of_one_size) / len(of_one_size)
    return total


def exact_curve(x: Tensor, mean: Tensor, covariance: Tensor) -> list[float]:
    """S(x; M) for M = 1..D from every mask."""
    num_features = x.shape[1]
    curve = []
    for num_masked in range(1, num_features + 1):
        scores = []
        for chosen in itertools.combinations(range(num_features), num_masked):
            mask = torch.zeros(num_features, dtype=torch.bool)
            mask[list(chosen)] = True
            scores.append(mask_score(x, mean, covariance, mask))
        curve.append(sum(scores) / len(scores))
    return curve


def train(
    x: Tensor, start: Tensor, noise_variance: float, mask: Tensor, learning_rate: float
) -> tuple[Tensor, list[float]]:
    """Adam on the sum of the scores of ``mask`` (epochs, P, D), one mask at a time, scaled by D / P.

    Returns the loadings after the last epoch and the exact mean log p(x) after each.
    """
    num_features = x.shape[1]
    loadings = start.clone().requires_grad_()
    identity = torch.eye(num_features, dtype=x.dtype)
    optimizer = torch.optim.Adam([loadings], lr=learning_rate)
    history = []
    for of_one_epoch in mask:
        objective = torch.zeros((), dtype=x.dtype)
        for row in of_one_epoch:
            covariance = loadings @ loadings.T + noise_variance * identity
            observed = covariance[~row][:, ~row]
            gain = covariance[row][:, ~row] @ torch.inverse(observed)
            predicted = x[:, ~row] @ gain.T
            variance = (covariance[row][:, row] - gain @ covariance[~row][:, row]).diagonal()
            square = (x[:, row] - predicted) ** 2 / variance
            value = -0.5 * (math.log(2 * math.pi) + variance.log() + square)
            objective = objective + value.sum(dim=1).mean() / row.sum()
        optimizer.zero_grad()
        (-objective * num_features / len(of_one_epoch)).backward()
        optimizer.step()
        with torch.no_grad():
            covariance = loadings @ loadings.T + noise_variance * identity
            history.append(log_marginal(x, torch.zeros_like(x[0]), covariance))
    return loadings.detach(), history


def over_orders(
    model: ConditionalModel, x: Tensor, orders: Iterable[tuple[int, ...]]
) -> dict[str, float]:
    """Mean, variance and log-mean-exp of log p_π(x) over ``orders``, one conditional at a time.

    x is one datum (1, D); an order lists the coordinates as they are revealed.
    """
    values = []
    for order in orders:
        hidden = torch.ones(1, x.shape[1], dtype=torch.bool)
        total = 0.0
        for j in order:
            total += model.log_conditional(x, hidden)[0, 0, j].item()
            hidden[0, j] = False
        values.append(total)
    along = torch.tensor(values, dtype=torch.float64)
    return {
        "mean": along.mean().item(),
        "variance": along.var(correction=0).item(),
        "log_mix": (along.logsumexp(dim=0) - math.log(len(along))).item(),
    }


def bernoulli_score(
    x: Tensor, loadings: Tensor, offset: Tensor, mask: Tensor, nodes: Tensor, log_weights: Tensor
) -> Tensor:
    """D times the mean of (1/M) sum over masked j of log p(x_j | x_R), log p(x_d | z_g) as (N, D, G)."""
    logits = loadings @ nodes.T + offset[:, None]
    each = x[:, :, None] * logits - torch.nn.functional.softplus(logits)
    weights = (log_weights + each[:, ~mask].sum(dim=1)).softmax(dim=-1)
    mixed = (each[:, mask].exp() * weights[:, None, :]).sum(dim=-1).log()
    return mixed.mean() * x.shape[1]


def masked_copies(network: PreTrainedModel, row: Tokens, mask: Tensor, mask_token: int) -> Tensor:
    """Sum of log q(x_j | x_R) over every mask (P, L) of one sentence, (P,): a batch of masked copies."""
    ids = row.ids.expand(len(mask), -1)
    with torch.no_grad():
        logits = network(input_ids=ids.masked_fill(mask, mask_token)).logits
    values = logits.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]
    return values.where(mask, 0.0).double().sum(dim=1)


def masked_lm(
    network: PreTrainedModel, tokens: Tokens, mask: Tensor, mask_token: int, batch_size: int = 8
) -> Tensor:
    """Sum of log q(x_j | x_R) over the hidden places of each sentence (N,), one mask (N, L) a sentence.

    As an evaluation loop does it: batches in the order of the data, padded to their longest
    sentence, logits of the whole vocabulary at every position.
    """
    found = []
    for rows in torch.arange(len(tokens)).split(batch_size):
        batch = tokens.rows(rows)
        length = batch.ids.shape[1]
        hidden = mask[rows, :length]
        attended = torch.arange(length) < batch.lengths[:, None]
        types = {"token_type_ids": batch.types} if network.config.model_type == "bert" else {}
        with torch.no_grad():
            logits = network(
                input_ids=batch.ids.masked_fill(hidden, mask_token),
                attention_mask=attended.long(),
                **types,
            ).logits
        labels = batch.ids.masked_fill(~hidden, -100)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
        )
        found.append(-loss.view(hidden.shape).double().sum(dim=1))
    return torch.cat(found)


def hmm_log_conditional(
    x: Tensor, initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor
) -> list[float]:
    """log p(x_j | x_R) of one sequence, each masked j by a forward pass for every symbol it could be."""

    def joint(symbols: list[int | None]) -> float:
        state = initial
        for position, symbol in enumerate(symbols):
            state = state if position == 0 else state @ transition
            state = state if symbol is None else state * emission[:, symbol]
        return state.sum().item()

    found = []
    for place in mask.nonzero().flatten().tolist():
        seen = [None if hidden else int(v) for v, hidden in zip(x, mask, strict=True)]
        each = []
        for symbol in range(emission.shape[1]):
            seen[place] = symbol
            each.append(joint(seen))
        found.append(math.log(each[int(x[place])] / sum(each)))
    return found
