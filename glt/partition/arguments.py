"""The arguments of a partitioner, checked: every message names the argument, its value and what to pass instead."""

import operator
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from glt.data.arrays import require_data
from glt.partition.format.files import Rows, as_torch_dtype, require_plain

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


def edge_index(name: str, value: object, bounds: tuple[tuple[str, int], tuple[str, int]]) -> np.ndarray:
    """Returns ``edge_index [2, num_edges]`` as a NumPy view with both rows contiguous (a copy only where they are not).

    Args:
        name: The argument, for messages.
        value: Tensor or array of int32 or int64.
        bounds: For sources and for destinations, the number of nodes and what to call it in messages.

    Raises:
        TypeError: If it is not an int32 or int64 tensor or array.
        ValueError: If its shape is not ``[2, num_edges]``.
        IndexError: If a node id is not below its bound, or negative; names the first.
    """
    require_data(value, name)
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        value = value.detach().cpu().numpy() if value.dtype in (torch.int32, torch.int64) else value
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int32, np.int64):
        got = getattr(value, "dtype", None)
        raise TypeError(
            f"{name} is a {type(value).__name__}{f' of {got}' if got is not None else ''}: expected a dense tensor "
            "or array of int32 or int64, shape [2, num_edges]; convert it first"
        )
    require_plain(name, value)
    if value.ndim != 2 or value.shape[0] != 2:
        hint = f"; pass {name}.T" if value.ndim == 2 and value.shape[1] == 2 else ""
        raise ValueError(f"{name} has shape {list(value.shape)}: expected [2, num_edges]{hint}")
    if value.strides[1] != value.itemsize and value.shape[1] > 1:
        value = np.ascontiguousarray(value)
    for i, (bound, num_nodes) in enumerate(bounds):
        for begin, ids in chunks(value[i]):
            if ids.min() >= 0 and ids.max() < num_nodes:
                continue
            at = int(np.flatnonzero((ids < 0) | (ids >= num_nodes))[0])
            raise IndexError(
                f"{name}[{i}][{begin + at}] = {ids[at]} is outside [0, {num_nodes}): pass {bound} larger than every "
                "id, or drop the edge"
            )
    return value


def edge_weight(name: str, value: object, num_edges: int) -> np.ndarray:
    """Returns the weights ``[num_edges]`` as float32 or float64: those dtypes without a copy, others without a loss.

    Raises:
        TypeError: If they are no real numbers.
        ValueError: If there is not one for each edge, or one is negative, infinite, NaN or an integer that a double
            does not hold; names the first.
    """
    weight, torch_dtype = _column(name, value, num_edges, "edge")
    dtype = getattr(torch, torch_dtype)
    if dtype.is_complex:
        raise TypeError(f"{name} has dtype {dtype}: expected real numbers")
    if dtype in (torch.float32, torch.float64):
        exact = weight
    else:
        wide = not dtype.is_floating_point and dtype.itemsize > 2
        tensor = torch.as_tensor(as_torch_dtype(weight, torch_dtype))
        exact = tensor.to(torch.float64 if wide else torch.float32).numpy()
    for begin, piece in chunks(exact):
        bad = np.flatnonzero(~((piece >= 0) & (piece < np.inf)))
        if bad.size:
            raise ValueError(
                f"{name}[{begin + bad[0]}] = {piece[bad[0]]}: expected finite weights of at least 0; a weight of 0 "
                "keeps an edge out while others remain"
            )
        large = np.flatnonzero(piece > 2**53) if weight.dtype.kind in "iu" else bad
        if large.size:
            raise ValueError(
                f"{name}[{begin + large[0]}] = {weight[begin + large[0]]}: expected weights that a double holds "
                "exactly, up to 2**53; scale them down"
            )
    return exact


def time(name: str, value: object, num_rows: int, what: str) -> np.ndarray:
    """Returns the times ``[num_rows]`` of nodes or edges (``what``), integers that int64 holds, without a copy.

    Raises:
        TypeError: If they are no integers: a fractional time would be cut off silently.
        ValueError: If there is not one for each.
    """
    times, torch_dtype = _column(name, value, num_rows, what)
    dtype = getattr(torch, torch_dtype)
    if dtype.is_floating_point or dtype.is_complex or dtype in (torch.bool, torch.uint64):
        raise TypeError(f"{name} has dtype {dtype}: expected integers, such as seconds; convert it to int64")
    return times


def owners(name: str, value: object, num_nodes: int, num_parts: int, dtype: np.dtype) -> np.ndarray:
    """Returns an assignment of nodes ``[num_nodes]`` in the dtype of a book.

    Args:
        name: Where it comes from, for messages: an argument, or what ``assign_nodes`` of a partitioner returned.
        value: Tensor or array.
        num_nodes: Number of nodes.
        num_parts: Number of partitions.
        dtype: Of a book of so many.

    Raises:
        TypeError: If they are no integers.
        ValueError: If there is not one for each node, or one is outside ``[0, num_parts)``; names the first.
    """
    require_data(value, name)
    owner = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    if not isinstance(owner, np.ndarray) or owner.dtype.kind not in "iu":
        got = getattr(owner, "dtype", type(owner).__name__)
        raise TypeError(f"{name} is {got}: expected a tensor or array of integers, the partition of each node")
    if owner.shape != (num_nodes,):
        raise ValueError(f"{name} has shape {list(owner.shape)}: expected one owner per node, [{num_nodes}]")
    bad = np.flatnonzero((owner < 0) | (owner >= num_parts))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}] = {owner[bad[0]]}: expected partitions 0 to {num_parts - 1} (num_parts = {num_parts})"
        )
    return np.ascontiguousarray(owner, dtype)


def _column(name: str, value: object, num_rows: int, what: str) -> tuple[np.ndarray, str]:
    rows = Rows.of(name, value, num_rows, what)
    if rows.row_shape not in ((), (1,)):
        raise ValueError(f"{name} has shape {list(rows.array.shape)}: expected one number per {what}, [{num_rows}]")
    return rows.array.reshape(num_rows), rows.torch_dtype


def chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields pieces of at most ``CHUNK_IDS`` elements, each with the position of its first."""
    for begin in range(0, array.size, CHUNK_IDS):
        yield begin, array[begin : begin + CHUNK_IDS]
