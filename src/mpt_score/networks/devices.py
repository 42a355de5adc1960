"""Where a network computes: which devices are here, and answers that go back to the data."""

from typing import Any

import torch
from torch import Tensor


def gpu() -> torch.device | None:
    """The GPU that torch sees, if there is one."""
    return torch.device("cuda") if torch.cuda.is_available() else None


def require_device(device: str) -> None:
    """Refuse the name of a device that is not here, or is none.

    Args:
        device: "cpu", "cuda", "cuda:1", "mps", or what else torch has a device for.

    Raises:
        ValueError: with what is here instead.
    """
    refusal = f"device {device!r} cannot be used here: "
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(
            f"{refusal}it names none. Give 'auto', 'cpu', 'cuda', 'cuda:1' (the second GPU) or 'mps'."
        ) from None
    number = torch.device(device).index or 0
    instead = "Give 'cpu', or 'auto', which takes a GPU where there is one."
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{refusal}torch sees no GPU. {instead}")
    if kind == "cuda" and number >= torch.cuda.device_count():
        raise ValueError(
            f"{refusal}torch sees {torch.cuda.device_count()} GPUs, and counts them from cuda:0."
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"{refusal}torch sees no GPU of Apple's. {instead}")
    if kind == "meta":
        raise ValueError(f"{refusal}what is on it has no numbers. {instead}")
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each kind has its own, and some texts are a page long
        raise ValueError(f"{refusal}torch has no such device. {instead}") from error


def require_one_device(network: Any) -> None:
    """Refuse a network in parts on several devices, and one without numbers.

    Args:
        network: a module with parameters.

    Raises:
        ValueError: for such a network.
    """
    devices = {parameter.device for parameter in network.parameters()}
    if len(devices) > 1:
        raise ValueError(
            f"network must be on one device, and is on {' and '.join(sorted(map(str, devices)))}. "
            "Move it with network.to(device)."
        )
    if any(device.type == "meta" for device in devices):
        raise ValueError("network is on the device meta: it has no weights. Load them first.")


def to_device_of(data: Tensor, values: Tensor) -> Tensor:
    """``values`` where the data are; in single precision on Apple's GPUs, which have no double one."""
    if data.device.type == "mps":
        values = values.float()
    return values.to(data.device)
