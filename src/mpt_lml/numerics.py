"""Small numerical pieces that everything else trusts: precision, chunks, densities of one number."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)

WORKING_BYTES = 2**27
"""Bytes (128 MiB) that one batch of intermediate results may take before work is cut into chunks."""

CACHE_BYTES = 2**22
"""Bytes (4 MiB) of intermediate results that stay in a core's cache; work in such chunks is faster."""


def double(values: Tensor) -> Tensor:
    """``values`` in double precision, in which log-probabilities are computed and then rounded.

    Raises:
        TypeError: on a device that has no double precision, such as Apple's "mps".
    """
    try:
        return values.double()
    except (TypeError, RuntimeError, NotImplementedError) as reason:
        raise TypeError(
            f"the device {values.device} has no double precision, in which closed forms are computed. "
            "Move model and data to the CPU with .cpu() first."
        ) from reason


def log_normal(residual: Tensor, variance: Tensor) -> Tensor:
    """Log-density of ``residual`` under N(0, ``variance``), elementwise, in nats."""
    constant = -0.5 * (LOG_2PI + variance.log())
    return torch.addcdiv(constant, residual.square(), variance, value=-0.5)


def softplus(values: Tensor) -> Tensor:
    """log(1 + exp(``values``)), elementwise, to the last digit of its precision.

    torch's own returns ``values`` above 20, which is 2e-9 short there: thousands of coordinates add
    up to an error that double precision sees.
    """
    threshold = 20.0 if values.dtype == torch.float32 else 40.0
    return torch.nn.functional.softplus(values, threshold=threshold)


def log_likelihood(x: Tensor, output: Tensor, noise_variance: float | None) -> Tensor:
    """log p(x_d | decoder output), elementwise, in nats.

    Args:
        x: data, zeros and ones where there is no ``noise_variance``.
        output: of the decoder: logits of a Bernoulli likelihood, or means of a Gaussian one.
        noise_variance: σ² of a Gaussian likelihood; None for a Bernoulli one.

    Returns:
        Nats, of the shape that ``x`` and ``output`` have together.

    Raises:
        ValueError: for a variance that the precision of the data cannot hold.
    """
    if noise_variance is None:
        return x * output - softplus(output)
    require_variance("noise_variance", float(noise_variance), x.dtype)
    # Filled on the device: for a copy from the CPU a GPU would wait.
    return log_normal(x - output, x.new_full((), noise_variance))


def require_variance(name: str, value: float, dtype: torch.dtype) -> None:
    """Check that ``value`` and its inverse are finite and above 0 in the precision of the data.

    Args:
        name: of the variance, in messages.
        value: the variance.
        dtype: of the data.

    Raises:
        ValueError: where one of them is not.
    """
    limits = torch.finfo(dtype)
    if not limits.tiny <= value <= limits.max:
        raise ValueError(
            f"{name} must be > 0 and within {limits.tiny:.3g}..{limits.max:.3g}, the range of "
            f"{dtype}, got {value}. Use data in float64, or in another unit."
        )


def draw_normal(
    shape: Sequence[int], *, generator: torch.Generator, like: Tensor
) -> Float[Tensor, "..."]:
    """Draws from N(0, 1) in the precision and on the device of ``like``.

    They are made on the CPU, where generators are, and moved: the same numbers on every device.
    """
    return torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)


def draw_uniform(
    shape: Sequence[int], *, generator: torch.Generator, like: Tensor
) -> Float[Tensor, "..."]:
    """Draws from the uniform law on [0, 1) in the precision and on the device of ``like``."""
    return torch.rand(shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)


def draw_categories(
    weights: Float[Tensor, "*B C"], n: int, *, generator: torch.Generator
) -> Int[Tensor, "*B n"]:
    """``n`` categories a row with probabilities proportional to its weights, on their device."""
    drawn = torch.multinomial(weights.cpu(), n, replacement=True, generator=generator)
    return drawn.to(weights.device)


def standard_gamma(shape: Tensor, *, generator: torch.Generator) -> Tensor:
    """One draw from Gamma(a, 1) for each entry a > 0 of ``shape``, on the CPU.

    ``torch.distributions`` draws from the global generator only. So the state of
    ``generator`` is copied into it for the draws, and its previous state is restored after them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        draws = torch.distributions.Gamma(shape, torch.ones_like(shape)).sample()
        generator.set_state(torch.get_rng_state())
    return draws


def num_at_once(bytes_per_item: int, budget: int = WORKING_BYTES) -> int:
    """How many items fit ``budget`` bytes, but one at least."""
    return max(1, budget // max(1, bytes_per_item))


def chunks(total: int, bytes_per_item: int, budget: int = WORKING_BYTES) -> Iterator[slice]:
    """Slices that cover ``range(total)``, each of at most ``budget`` bytes but of one item at least."""
    step = num_at_once(bytes_per_item, budget)
    for start in range(0, total, step):
        yield slice(start, min(total, start + step))


def pick(weights: Float[Tensor, "N C"], level: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Category of each row in which the cumulative sum of the weights passes ``level``.

    Args:
        weights: not negative, (N, C).
        level: uniform between 0 and the sum of the row, (N,).

    >>> pick(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.6]))
    tensor([1])
    """
    bounds = weights.cumsum(dim=1)[:, :-1].contiguous()
    return torch.searchsorted(bounds, level[:, None], right=True).squeeze(1)
