"""GPUs that read each other's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from glt.data.cuda_device import is_cuda


class DeviceGroup:
    """GPUs of this machine that are connected (NVLink, or PCIe peer access) and keep one replica of hot rows together.

    Each GPU of the group holds an equal part of the rows and reads the others' in place; where groups are several, each
    keeps all hot rows.

    Args:
        group_id: Names the group in errors.
        device_list: The GPUs: numbers or devices.

    Raises:
        TypeError, ValueError: If there are none, one is no GPU, or one is there twice.
    """

    def __init__(self, group_id: int, device_list: Sequence[Any]) -> None:
        self.group_id = group_id
        name = f"device_list of group {group_id}"
        for device in device_list:
            if not is_cuda(device, name):
                raise ValueError(f"{name} has {device!r}: expected GPUs, such as 0 or 'cuda:0'")
        indices = [device if isinstance(device, int) else torch.device(device).index for device in device_list]
        if not indices or None in indices or len(set(indices)) != len(indices):
            raise ValueError(f"{name} = {list(device_list)}: expected at least one GPU, by number, each once")
        self.device_list: tuple[torch.device, ...] = tuple(torch.device("cuda", index) for index in indices)

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.device_list)

    def __repr__(self) -> str:
        return f"DeviceGroup({self.group_id}, {[str(device) for device in self.device_list]})"


def group_of(device: torch.device, groups: Sequence[DeviceGroup]) -> tuple[torch.device, ...]:
    """Returns the GPUs that keep hot rows together with ``device``: those of its group, or it alone without groups.

    Raises:
        ValueError: If there are groups, but none has it.
    """
    if not groups:
        return (device,)
    for group in groups:
        if device in group.device_list:
            return group.device_list
    raise ValueError(f"{device} is in none of device_group_list = {list(groups)}")
