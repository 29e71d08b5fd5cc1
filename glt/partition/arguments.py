"""The arguments of a partitioner, checked: every message names the argument, its value and what to pass instead."""

import operator
from typing import Final

import numpy as np
import torch

# The reference's text says "by_des" where its code says "by_dst"; both mean the destination.
STRATEGIES: Final = {"by_src": "by_src", "by_dst": "by_dst", "by_des": "by_dst"}
CHUNK_IDS: Final = 1 << 20  # ids looked at together: 8 MiB


def integer(name: str, value: object, low: int, high: int, meaning: str) -> int:
    """Returns ``value`` as an int in ``[low, high]``; ``meaning`` says what it counts."""
    if isinstance(value, bool):
        raise TypeError(f"{name} = {value!r}: expected an integer, {meaning}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{name} = {value!r}: expected an integer, {meaning}") from error
    if not low <= number <= high:
        raise ValueError(f"{name} = {number}: expected {low} to {high}, {meaning}")
    return number


def strategy(value: object) -> str:
    """Returns ``"by_src"`` or ``"by_dst"``."""
    if not isinstance(value, str) or value not in STRATEGIES:
        raise ValueError(
            f"edge_assign_strategy = {value!r}: expected 'by_src' (for sampling out-edges, edge_dir 'out') or 'by_dst' "
            "(for sampling in-edges, edge_dir 'in')"
        )
    return STRATEGIES[value]


def host_device(value: object) -> torch.device:
    """Returns ``value`` as a device that exists; what runs on it is up to the caller."""
    try:
        device = torch.device("cuda", value) if type(value) is int else torch.device(value)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device = {value!r}: expected torch.device('cpu') or a cuda device ({error})") from error
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus):
        return device
    raise ValueError(
        f"device = {device}: expected torch.device('cpu') or one of the {num_gpus} cuda devices of this machine; "
        "partitioning runs on the host and its result never depends on the device, so pass torch.device('cpu')"
    )


def edge_index(value: object, num_nodes: int) -> np.ndarray:
    """Returns ``edge_index [2, num_edges]`` as a NumPy view with both rows contiguous (a copy only where they are not).

    Raises:
        TypeError: If it is not an int32 or int64 tensor or array.
        ValueError: If its shape is not ``[2, num_edges]``.
        IndexError: If a node id is outside ``[0, num_nodes)``; names the first.
    """
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        value = value.detach().cpu().numpy() if value.dtype in (torch.int32, torch.int64) else value
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int32, np.int64):
        got = getattr(value, "dtype", None)
        raise TypeError(
            f"edge_index is a {type(value).__name__}{f' of {got}' if got is not None else ''}: expected a dense tensor "
            "or array of int32 or int64, shape [2, num_edges]; convert it first"
        )
    if value.ndim != 2 or value.shape[0] != 2:
        hint = "; pass edge_index.T" if value.ndim == 2 and value.shape[1] == 2 else ""
        raise ValueError(f"edge_index has shape {list(value.shape)}: expected [2, num_edges]{hint}")
    if value.strides[1] != value.itemsize and value.shape[1] > 1:
        value = np.ascontiguousarray(value)
    for i in (0, 1):
        _require_node_ids(f"edge_index[{i}]", value[i], num_nodes)
    return value


def owners(value: object, num_nodes: int, num_parts: int, dtype: np.dtype, where: str) -> np.ndarray:
    """Returns what ``assign_nodes`` of a partitioner returned, checked, in the dtype of a book."""
    owner = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    if not isinstance(owner, np.ndarray) or owner.dtype.kind not in "iu":
        got = getattr(owner, "dtype", type(owner).__name__)
        raise TypeError(f"{where} returned {got}: expected an array of integers, the owner of each node")
    if owner.shape != (num_nodes,):
        raise ValueError(f"{where} returned shape {list(owner.shape)}: expected one owner per node, [{num_nodes}]")
    bad = np.flatnonzero((owner < 0) | (owner >= num_parts))
    if bad.size:
        raise ValueError(
            f"{where} gave node {bad[0]} to partition {owner[bad[0]]}: expected 0 to {num_parts - 1} "
            f"(num_parts = {num_parts})"
        )
    return owner.astype(dtype, copy=False)


def _require_node_ids(name: str, ids: np.ndarray, num_nodes: int) -> None:
    for begin in range(0, ids.size, CHUNK_IDS):
        chunk = ids[begin : begin + CHUNK_IDS]
        if chunk.min() >= 0 and chunk.max() < num_nodes:
            continue
        at = int(np.flatnonzero((chunk < 0) | (chunk >= num_nodes))[0])
        raise IndexError(
            f"{name}[{begin + at}] = {chunk[at]} is outside [0, {num_nodes}): pass num_nodes larger than every id, or "
            "drop the edge"
        )
