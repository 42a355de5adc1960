"""A network whose data are tables: it guesses hidden rows from shown ones, without knowing the prior.

A table has n rows, each with an input x and an output y. A prior over functions makes a table: y is a
polynomial of x with coefficients from N(0, I), plus noise. The exact answer is that of
``PPCA(torch.linalg.vander(x, N=degree + 1), NOISE_VARIANCE)``. A network that has been trained on many
tables of one prior comes near to it in one pass (prior-fitted networks, Müller et al. 2022).
"""

import math
from typing import Literal, final

import torch
from jaxtyping import Bool, Float
from safetensors.torch import load_file
from torch import Tensor, nn

from mpt_lml.checks import Count, Index, checked
from mpt_lml.files import book_file
from mpt_lml.models.base import ConditionalModel
from mpt_lml.numerics import LOG_2PI

__all__ = ["NOISE_VARIANCE", "NUM_ROWS", "PRIORS", "RowConditional", "RowNetwork", "draw_tables"]

NUM_ROWS = 12
"""Rows of a table in training, and the most that a network takes."""

NOISE_VARIANCE = 0.25
"""Variance of an output about its polynomial."""

LARGEST_INPUT = 2.0
"""Inputs are uniform between minus this and this."""

Prior = Literal["linear", "quadratic"]

PRIORS: dict[Prior, int] = {"linear": 1, "quadratic": 2}
"""Degree of the polynomial, by the name of the prior."""

NUM_LAYERS = 3
"""Layers of the transformer."""

NUM_HEADS = 2
"""Heads of each layer."""

TABLES_AT_ONCE = 512
"""Tables in one pass of a network: what they need stays near the core."""


@checked
def draw_tables(
    prior: Prior, num_tables: Count, num_rows: Count = NUM_ROWS, *, generator: torch.Generator
) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N n"]]:
    """Tables of one prior, each with inputs, coefficients and noise of its own.

    Args:
        prior: a name in :data:`PRIORS`.
        num_tables: N.
        num_rows: n.
        generator: of all draws.

    Returns:
        Inputs and outputs, (N, n) each.

    >>> x, y = draw_tables("linear", 5, generator=torch.Generator().manual_seed(0))
    >>> x.shape, y.shape
    (torch.Size([5, 12]), torch.Size([5, 12]))
    """
    num_coefficients = PRIORS[prior] + 1
    x = LARGEST_INPUT * (2.0 * torch.rand(num_tables, num_rows, generator=generator) - 1.0)
    coefficients = torch.randn(num_tables, num_coefficients, 1, generator=generator)
    noise = math.sqrt(NOISE_VARIANCE) * torch.randn(num_tables, num_rows, generator=generator)
    powers = torch.linalg.vander(x, N=num_coefficients)
    return x, (powers @ coefficients)[..., 0] + noise


class _Layer(nn.Module):
    """One layer of the transformer: every row asks those that it may read, then thinks alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, state: Tensor, may_read: Tensor) -> Tensor:
        """state (B, n, width) and may_read (B, 1, n, n) -> (B, n, width)."""
        three = self.query_key_value(self.norm_1(state)).unflatten(2, (3, NUM_HEADS, -1))
        query, key, value = three.permute(2, 0, 3, 1, 4)  # each (B, heads, n, width / heads)
        answer = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=may_read)
        state = state + self.out(answer.transpose(1, 2).flatten(2))
        return state + self.think(self.norm_2(state))


@final
class RowNetwork(nn.Module):
    """A transformer whose tokens are the rows of a table: a normal distribution for each output.

    A row reads the shown rows and itself. So what is said of a hidden row depends on the shown rows
    and its own input, and neither on other hidden rows nor on the order of the rows. A table with
    fewer rows than in training is as one of training of which fewer rows are asked for.

    Args:
        width: of a row's state, a multiple of :data:`NUM_HEADS`.
        seed: of the first weights.

    >>> network = RowNetwork(seed=4)
    >>> x, y = draw_tables("linear", 5, generator=torch.Generator().manual_seed(0))
    >>> mean, log_variance = network(x, y, torch.ones(5, 12).bool())
    >>> mean.shape, log_variance.shape
    (torch.Size([5, 12]), torch.Size([5, 12]))
    """

    @checked
    def __init__(self, width: Count = 48, *, seed: Index) -> None:
        if width % NUM_HEADS:
            raise ValueError(
                f"width must be a multiple of {NUM_HEADS}, one part for each head, got {width}."
            )
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # torch.nn draws from the global generator
            torch.manual_seed(seed)
            self.enter = nn.Linear(3, width)
            self.layers = nn.ModuleList([_Layer(width) for _ in range(NUM_LAYERS)])
            self.norm = nn.LayerNorm(width)
            self.leave = nn.Linear(width, 2)

    @property
    def data_device(self) -> torch.device:
        """The device of the weights, on which tables have to be."""
        return self.enter.weight.device

    @classmethod
    @checked
    def load(cls, prior: Prior) -> "RowNetwork":
        """The network of a prior that the book carries, ready to answer and not to be trained.

        Args:
            prior: a name in :data:`PRIORS`.

        >>> sum(weight.numel() for weight in RowNetwork.load("linear").parameters())
        57266
        """
        carried = load_file(book_file("results/row-networks.safetensors"))
        weights = {
            name.removeprefix(f"{prior}."): value.float()
            for name, value in carried.items()
            if name.startswith(f"{prior}.")
        }
        network = cls(seed=0)
        network.load_state_dict(weights)
        return network.requires_grad_(False).eval()

    @checked
    def forward(
        self, x: Float[Tensor, "B n"], y: Float[Tensor, "B n"], mask: Bool[Tensor, "B n"]
    ) -> tuple[Float[Tensor, "B n"], Float[Tensor, "B n"]]:
        """Mean and log-variance of every output, given the shown rows.

        Args:
            x: inputs, (B, n).
            y: outputs, (B, n); what stands where ``mask`` is True is not read.
            mask: the rows of each table that are hidden, (B, n); True means hidden.

        Returns:
            Mean and logarithm of the variance, (B, n) each. Where a row is shown they mean nothing.

        Raises:
            ValueError: for more rows than in training, and for missing values.
        """
        require_rows(x.shape[1])
        tokens = torch.stack([x, y.masked_fill(mask, 0.0), mask.to(x)], dim=2)
        state = self.enter(tokens.to(self.enter.weight))
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        may_read = (~mask[:, None, :] | itself)[:, None]
        for layer in self.layers:
            state = layer(state, may_read)
        mean, log_variance = self.leave(self.norm(state)).unbind(dim=2)
        return mean, log_variance

    @checked
    def log_each(
        self, x: Float[Tensor, "B n"], y: Float[Tensor, "B n"], mask: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n"]:
        """log q(y_j | y_R, x) of every hidden row, nats, (B, n); 0 where a row is shown.

        Args:
            x: inputs, (B, n).
            y: outputs, (B, n).
            mask: the rows of each table that are hidden, (B, n).

        >>> x, y = draw_tables("linear", 5, generator=torch.Generator().manual_seed(0))
        >>> RowNetwork(seed=4).log_each(x, y, torch.ones(5, 12).bool()).shape
        torch.Size([5, 12])
        """
        mean, log_variance = self(x, y, mask)
        square = (y - mean).square() * (-log_variance).exp()
        return (-0.5 * (LOG_2PI + log_variance + square)).where(mask, 0.0)


def require_rows(num_rows: int) -> None:
    """Refuse more rows than in training."""
    if num_rows > NUM_ROWS:
        raise ValueError(
            f"a table must have {NUM_ROWS} rows at most, as the network had in training, got "
            f"{num_rows}. Leave rows out, or train a network on larger tables."
        )


@final
class RowConditional(ConditionalModel):
    """A network at the inputs of one table: the coordinates are its n outputs.

    Missing outputs are refused. Leave their rows out: a table may have fewer rows than in training.

    Args:
        network: trained on tables of one prior.
        inputs: of the rows, (n,), the same for all data.

    >>> x, y = draw_tables("linear", 1, generator=torch.Generator().manual_seed(0))
    >>> model = RowConditional(RowNetwork(seed=4), x[0])
    >>> model.log_each(y, torch.ones(1, 12).bool()).shape
    torch.Size([1, 12])
    """

    _pairs_at_once = TABLES_AT_ONCE

    @checked
    def __init__(self, network: RowNetwork, inputs: Float[Tensor, " n"]) -> None:
        require_rows(len(inputs))
        self.network = network
        self.inputs = inputs
        self.num_features = len(inputs)

    @property
    def data_device(self) -> torch.device | None:
        return self.inputs.device

    @torch.no_grad()
    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.network.log_each(self.inputs.to(x).expand(len(x), -1), x, mask)
