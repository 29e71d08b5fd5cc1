"""The arguments of a partitioner, checked: every message names the argument, its value and what to pass instead."""

import operator
from collections.abc import Iterator
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
    edges = _array(name, value, (np.int32, np.int64), "[2, num_edges]")
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = f"; pass {name}.T" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise ValueError(f"{name} has shape {list(edges.shape)}: expected [2, num_edges]{hint}")
    if edges.strides[1] != edges.itemsize and edges.shape[1] > 1:
        edges = np.ascontiguousarray(edges)
    for i, (bound, num_nodes) in enumerate(bounds):
        for begin, ids in chunks(edges[i]):
            if ids.min() >= 0 and ids.max() < num_nodes:
                continue
            at = int(np.flatnonzero((ids < 0) | (ids >= num_nodes))[0])
            raise IndexError(
                f"{name}[{i}][{begin + at}] = {ids[at]} is outside [0, {num_nodes}): pass {bound} larger than every "
                "id, or drop the edge"
            )
    return edges


def edge_weight(name: str, value: object, num_edges: int) -> np.ndarray:
    """Returns the weights ``[num_edges]`` as a NumPy view, float32 or float64.

    Raises:
        TypeError: If it is not a float32 or float64 tensor or array.
        ValueError: If its shape differs, or a weight is negative, infinite or NaN; names the first.
    """
    weight = _column(name, _array(name, value, (np.float32, np.float64), f"[{num_edges}]"), num_edges, "edge")
    for begin, piece in chunks(weight):
        bad = np.flatnonzero(~((piece >= 0) & (piece < np.inf)))
        if bad.size:
            raise ValueError(
                f"{name}[{begin + bad[0]}] = {piece[bad[0]]}: expected finite weights of at least 0; set it to 0 to "
                "have the edge sampled last, or drop the edge"
            )
    return weight


def time(name: str, value: object, num_rows: int, what: str) -> np.ndarray:
    """Returns the times ``[num_rows]`` of nodes or edges (``what``) as a NumPy view, int32 or int64.

    Raises:
        TypeError: If it is not an int32 or int64 tensor or array.
        ValueError: If its shape differs.
    """
    return _column(name, _array(name, value, (np.int32, np.int64), f"[{num_rows}]"), num_rows, what)


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


def _array(name: str, value: object, dtypes: tuple[type, ...], shape: str) -> np.ndarray:
    array = value
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        known = str(value.dtype).removeprefix("torch.") in _names(dtypes)
        array = value.detach().cpu().numpy() if known else value
    if not isinstance(array, np.ndarray) or array.dtype not in dtypes:
        got = getattr(value, "dtype", None)
        raise TypeError(
            f"{name} is a {type(value).__name__}{f' of {got}' if got is not None else ''}: expected a dense tensor "
            f"or array of {' or '.join(_names(dtypes))}, shape {shape}; convert it first"
        )
    return array


def _column(name: str, array: np.ndarray, num_rows: int, what: str) -> np.ndarray:
    if array.shape != (num_rows,):
        raise ValueError(f"{name} has shape {list(array.shape)}: expected one number per {what}, [{num_rows}]")
    return array


def _names(dtypes: tuple[type, ...]) -> list[str]:
    return [np.dtype(dtype).name for dtype in dtypes]


def chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields pieces of at most ``CHUNK_IDS`` elements, each with the position of its first."""
    for begin in range(0, array.size, CHUNK_IDS):
        yield begin, array[begin : begin + CHUNK_IDS]
