"""Networks that guess hidden rows of a table: their training."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml.checks import Count, Positive, checked
from mpt_lml.fit import Progress, silent
from mpt_lml.models.row_network import NUM_ROWS, Prior, RowNetwork, draw_tables

__all__ = ["objective", "train_row_network"]

WARM_UP = 0.1
"""Share of the steps until the learning rate is at its largest."""


def objective(
    network: RowNetwork,
    x: Float[Tensor, "B n"],
    y: Float[Tensor, "B n"],
    mask: Bool[Tensor, "B n"],
) -> Float[Tensor, ""]:
    """Mean log-score of the hidden rows of each table, averaged over the tables, nats a row.

    With sizes that are uniform on 1..n it is, in expectation, the n-th part of log q of a table.
    """
    of_each = network.log_each(x, y, mask).sum(dim=1) / mask.sum(dim=1)
    return of_each.mean()


def hidden_rows(batch_size: int) -> Bool[Tensor, "B n"]:
    """Masks of every size alike: the first table hides one row, the next two, and so on.

    Rows are exchangeable, under a prior and for the network, so that the last ones are as good as any.
    """
    size = torch.arange(batch_size) % NUM_ROWS + 1
    return torch.arange(NUM_ROWS) >= NUM_ROWS - size[:, None]


@checked
def train_row_network(
    prior: Prior,
    *,
    seed: int,
    num_steps: Count,
    batch_size: Count,
    learning_rate: Positive,
    width: Count,
    device: torch.device | None = None,
    progress: Progress = silent,
) -> RowNetwork:
    """Train a network on tables of one prior, each of which it sees once.

    The weights are rounded to half precision at the end, in which the book carries them.

    Args:
        prior: of the tables.
        seed: of the first weights, and of the tables.
        num_steps: of AdamW.
        batch_size: tables a step.
        learning_rate: the largest of one cycle.
        width: of a row's state.
        device: where the network is trained; None is the CPU.
        progress: shows the steps as they pass.

    >>> network = train_row_network(
    ...     "linear", seed=4, num_steps=2, batch_size=12, learning_rate=1e-3, width=8
    ... )
    >>> network.training
    False
    """
    generator = torch.Generator().manual_seed(seed)
    network = RowNetwork(width, seed=seed).to(device or "cpu")
    mask = hidden_rows(batch_size).to(network.data_device)
    optimizer = AdamW(network.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    cycle = OneCycleLR(
        optimizer, learning_rate, total_steps=num_steps, pct_start=WARM_UP, cycle_momentum=False
    )
    for _ in progress(range(num_steps), f"{prior}, seed {seed}, step"):
        x, y = draw_tables(prior, batch_size, generator=generator)
        loss = -objective(network, x.to(mask.device), y.to(mask.device), mask)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        cycle.step()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(weight.half())
    return network.requires_grad_(False).eval()
