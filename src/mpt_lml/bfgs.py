"""The maxima of many runs side by side, by quasi-Newton steps."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.numerics import differentiable
from mpt_lml.spec import require, require_answer, require_finite, require_slope

__all__ = ["climb"]


@differentiable()
def climb(
    start: Float[Tensor, "B ..."], objective: Callable[[Tensor], Tensor], *, max_steps: int = 1000
) -> Tensor:
    """A local maximum of ``objective`` near every start, (B, ...), by BFGS (Nocedal & Wright 2006).

    ``objective`` is deterministic, (b, ...) -> (b,) in any unit for every b up to B. Steps are at most
    half a unit long and backtrack until it rises. A run ends where the gradient is below 1e-6, or
    rounding leaves nothing to gain. Raises ``ValueError`` for values of another shape.

    >>> climb(torch.zeros(3, 2), lambda w: -(w - 1.0).square().sum(dim=1)).tolist()[0]
    [1.0, 1.0]
    """

    def evaluate(flat: Tensor) -> tuple[Tensor, Tensor]:
        point = flat.detach().requires_grad_()
        value = objective(point.unflatten(1, start.shape[1:]))
        require_answer("objective(start)", value, point.shape[:1])
        (slope,) = torch.autograd.grad(value.sum(), point, allow_unused=True)
        require_slope("objective(start)", slope)
        return value.detach(), slope

    require(locals(), "start B N ..., objective Callable, max_steps 1..")
    x = start.detach().flatten(1)
    ends, active, (value, slope) = x.clone(), torch.arange(len(x)).to(x.device), evaluate(x)
    require_finite("objective(start)", value)
    inverse = None  # of minus the Hessian, as far as known
    for _ in range(max_steps):
        step = slope if inverse is None else (inverse @ slope[..., None])[..., 0]
        step = step * (0.5 / step.norm(dim=1, keepdim=True)).clamp(max=1.0)
        gain = 1e-4 * (step * slope).sum(dim=1)
        new_value, new_slope = evaluate(x + step)
        for _ in range(40):
            short = ~(new_value >= value + gain)
            if not short.any():
                break
            step[short], gain[short] = step[short] / 2, gain[short] / 2
            new_value[short], new_slope[short] = evaluate((x + step)[short])
        new = x + step
        inverse = _bfgs(inverse, new - x, slope - new_slope)
        better = new_value > value
        ends[active[better]] = new[better]
        going = better & (new_slope.abs().amax(dim=1) > 1e-6)
        if not going.any():
            break
        state = (active, new, new_value, new_slope, inverse)
        active, x, value, slope, inverse = (each[going] for each in state)
    return ends.unflatten(1, start.shape[1:])


def _bfgs(inverse: Tensor | None, moved: Tensor, bent: Tensor) -> Tensor:
    """The inverse Hessian (B, n, n) after a step that changed the gradient by −``bent``."""
    product = (moved * bent).sum(dim=1)[:, None, None]
    usable = product > 1e-14
    product = product.where(usable, 1.0)
    identity = torch.eye(moved.shape[1], dtype=moved.dtype, device=moved.device)
    if inverse is None:
        inverse = identity * product / bent.square().sum(dim=1).clamp(min=1e-300)[:, None, None]
    left = identity - moved[:, :, None] * bent[:, None, :] / product
    updated = left @ inverse @ left.mT + moved[:, :, None] * moved[:, None, :] / product
    return torch.where(usable, updated, inverse)
