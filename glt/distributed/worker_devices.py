"""Where sampling processes sample: the option ``worker_devices``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from glt.data.device import HOST, accelerator_of

CPU = "cpu"


def checked_devices(worker_devices: Any, num_workers: int) -> list[str] | None:
    """Returns a device per process of this host, as text; None where nothing was said.

    Raises:
        TypeError, ValueError: If they are no devices, too many, or GPUs that cannot be used here; says what is missing.
    """
    named = _named(worker_devices, num_workers)
    if named is None:
        return None
    checked = []
    for i, device in enumerate(named):
        place = accelerator_of(device, f"worker_devices[{i}]")
        checked.append(CPU if place is None else str(place))
    return _in_turn(checked, num_workers)


def named_devices(worker_devices: Any, num_workers: int) -> list[str] | None:
    """As :func:`checked_devices`, of processes elsewhere: whether there are such GPUs is known there."""
    named = _named(worker_devices, num_workers)
    return named and _in_turn(named, num_workers)


def _named(worker_devices: Any, num_workers: int) -> list[str] | None:
    if worker_devices is None:
        return None
    single = isinstance(worker_devices, torch.device | str | int)
    if not single and not isinstance(worker_devices, Sequence):
        raise TypeError(f"worker_devices = {worker_devices!r}: expected a device, such as 'cpu', or a list of them")
    given: list[Any] = [worker_devices] if single else list(worker_devices)
    if not 1 <= len(given) <= num_workers:
        raise ValueError(
            f"worker_devices has {len(given)} devices: expected one per worker ({num_workers}), or fewer, for turns"
        )
    return [_text(device, f"worker_devices[{i}]") for i, device in enumerate(given)]


def _text(device: Any, name: str) -> str:
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise TypeError(f"{name} = {device!r}: expected a device, such as 'cpu' or 'cuda:0'")
    if device == HOST:
        return HOST
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:  # no device is called that, or this build has none of the kind
        raise ValueError(f"{name} = {device!r} is no device: expected 'cpu', or a GPU such as 'cuda:0'") from error
    if found.type not in (CPU, "cuda"):
        raise ValueError(f"{name} = {device!r}: expected 'cpu', or a GPU such as 'cuda:0'")
    return str(found) if found.type == "cuda" else CPU


def _in_turn(devices: list[str], num_workers: int) -> list[str]:
    return [devices[i % len(devices)] for i in range(num_workers)]
