"""What loaders are given as seeds, checked when it is given, not when its batch comes up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.data.arrays import as_ids, is_mask, require_data
from glt.distributed.loader_data import LoaderData
from glt.sampler.output import require_distinct_reverses


def as_tensor(name: str, given: Any, expected: str) -> Tensor:
    """Returns ``given`` as a tensor; raises TypeError, naming it, where it cannot be one, ValueError where it has no
    data."""
    if isinstance(given, Tensor):
        require_data(given, name)
        return given
    try:
        made = torch.as_tensor(given)
        # What is empty has no numbers that could tell of which kind it is: torch makes floats of it.
        return made.to(torch.int64) if made.numel() == 0 and not hasattr(given, "dtype") else made
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(given).__name__
        raise TypeError(f"{name} is a {kind} that is no tensor ({error}): expected {expected}") from error


def require_edge_dir(data: LoaderData, edge_dir: str | None) -> None:
    """Raises unless the graph was partitioned for ``edge_dir``, if that is given, and batches of it can be had."""
    if edge_dir not in (None, data.edge_dir):
        raise ValueError(
            f"edge_dir = {edge_dir!r}: the graph was partitioned for {data.edge_dir!r}; partition it with "
            f"edge_assign_strategy={'by_src' if edge_dir == 'out' else 'by_dst'!r}, or leave edge_dir out"
        )
    require_distinct_reverses(data.schema, data.edge_dir)


def checked_class(custom_cls: Any, data: LoaderData) -> Any:
    """Returns the class that batches are to be of, None for PyG's own."""
    base = HeteroData if data.schema.is_hetero else Data
    if custom_cls is not None and not (isinstance(custom_cls, type) and issubclass(custom_cls, base)):
        raise TypeError(f"custom_cls = {custom_cls!r}: expected a class derived from {base.__name__}, or None")
    return custom_cls


def checked_times(name: str, times: Any, num_seeds: int) -> Tensor:
    """Returns one time per seed, int64."""
    times = as_tensor(name, times, f"one time per seed, [{num_seeds}]")
    if times.is_floating_point() or times.is_complex() or times.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {times.dtype}: expected integers, such as seconds")
    if tuple(times.shape) != (num_seeds,):
        raise ValueError(f"{name} has shape {list(times.shape)}: expected one time per seed, [{num_seeds}]")
    return times.to("cpu", torch.int64).contiguous()


def require_node_time(data: LoaderData, node_type: int) -> None:
    """Raises unless nodes of the type have times of their own, to be looked at when no others are given."""
    if not data.manifest.node_types[node_type].has_time:
        raise ValueError(
            f"input_time is not given and {data.schema.node_types[node_type]!r} nodes have no time in "
            f"{data.load_args['graph_dir']!r}: give one time per seed, or partition with node_time=..."
        )


def checked_seeds(input_nodes: Any, data: LoaderData) -> tuple[int, dict[str, Tensor]]:
    """Returns the position of the seeds' type, and columns of a :class:`SeedTable`: ``node``, int64, and for a mask
    ``input_id``, the same: like PyG, batches then tell node ids in place of positions.

    Args:
        input_nodes: Ids, or a bool mask over all nodes of the type; of a heterogeneous graph ``(type, ids)``, or a type
            alone, which stands for all its nodes.
        data: The graph.
    """
    schema = data.schema
    node_type: Any = None
    if isinstance(input_nodes, str):
        node_type, input_nodes = input_nodes, slice(None)
    elif isinstance(input_nodes, tuple | list) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        node_type, input_nodes = input_nodes
        input_nodes = slice(None) if input_nodes is None else input_nodes
    if input_nodes is None:
        raise TypeError("input_nodes = None: expected the seeds of this trainer, ids or a bool mask over all nodes")
    if (node_type is not None) != schema.is_hetero:
        expected = f"(type, ids) with one of {list(schema.node_types)}" if schema.is_hetero else "ids without a type"
        raise ValueError(f"input_nodes has {'no type' if node_type is None else f'type {node_type!r}'}: {expected}")
    if node_type is not None and node_type not in schema.node_types:
        raise ValueError(f"input_nodes is of type {node_type!r}: expected one of {list(schema.node_types)}")
    index = schema.node_index(node_type)
    num_nodes = data.num_nodes_of[index]
    if isinstance(input_nodes, slice):
        return index, {"node": torch.arange(num_nodes)}
    if not isinstance(input_nodes, np.ndarray) or input_nodes.dtype in (bool, np.uint8):
        input_nodes = as_tensor("input_nodes", input_nodes, "ids, or a bool mask over all nodes")
    mask = is_mask(input_nodes, num_nodes)
    seeds = as_ids(input_nodes, "input_nodes", num_nodes)
    bad = ((seeds < 0) | (seeds >= num_nodes)).nonzero()
    if len(bad):
        at = int(bad[0])
        of_type = f" of type {node_type!r}" if schema.is_hetero else ""
        raise IndexError(
            f"input_nodes[{at}] = {int(seeds[at])} is outside [0, {num_nodes}) (num_nodes{of_type} = {num_nodes})"
        )
    return index, {"node": seeds, "input_id": seeds} if mask else {"node": seeds}


def checked_input_id(input_id: Any, num_seeds: int) -> Tensor:
    """Returns one id per seed, int64."""
    if not isinstance(input_id, np.ndarray) or input_id.dtype.kind not in "iu":
        input_id = as_tensor("input_id", input_id, f"one id per seed, [{num_seeds}]")
    ids = as_ids(input_id, "input_id")
    if len(ids) != num_seeds:
        raise ValueError(f"input_id has {len(ids)} elements: expected one per seed, {num_seeds}")
    return ids
