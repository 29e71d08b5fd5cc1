"""What layer-wise inference is given, checked before anything is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glt.data.arrays import require_data
from glt.data.schema import NodeType, Schema
from glt.distributed.dist_embedding import DistEmbedding
from glt.distributed.dist_tensor import DistTensor


def require_dense(rows: Tensor | DistTensor, name: str) -> None:
    """Raises ValueError or TypeError of a tensor whose rows cannot be read; names it."""
    require_data(rows, name)
    if isinstance(rows, Tensor) and rows.layout != torch.strided:
        raise TypeError(f"{name} is a {rows.layout} tensor: expected a dense one")


def checked_features(
    given: Any, schema: Schema, num_nodes: dict[NodeType, int]
) -> dict[NodeType, Tensor | DistTensor]:  # fmt: skip
    """Features by node type, of the types that have nodes.

    Args:
        given: A tensor, a :class:`DistTensor` or a :class:`DistEmbedding` with a row for each node; of a heterogeneous
            graph a dict of such by node type.
        schema: Of the graph.
        num_nodes: Of the types that have some.

    Raises:
        TypeError, ValueError: If it is something else; names it.
    """
    if schema.is_hetero and not isinstance(given, dict):
        raise TypeError(f"x is a {type(given).__name__}: expected a dict by node type, the graph being heterogeneous")
    found: dict[NodeType, Tensor | DistTensor] = {}
    for node_type, each in (given if schema.is_hetero else {schema.node_types[0]: given}).items():
        what = f"x[{node_type!r}]" if schema.is_hetero else "x"
        if node_type not in schema.node_types:
            raise ValueError(f"x has {node_type!r}: expected node types, {list(schema.node_types)}")
        rows = each.weight if isinstance(each, DistEmbedding) else each
        if not isinstance(rows, Tensor | DistTensor):
            raise TypeError(f"{what} is a {type(rows).__name__}: expected a tensor, a DistTensor or a DistEmbedding")
        require_dense(rows, what)
        count = num_nodes.get(node_type, 0)
        if rows.ndim == 0 or len(rows) != count:
            raise ValueError(f"{what} has shape {list(rows.shape)}: expected a row for each of {count} nodes")
        if count:
            found[node_type] = rows
    return found


def checked_device(given: Any) -> torch.device:
    """A device that torch has here.

    Raises:
        ValueError: If it has no such device.
    """
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError, TypeError) as error:  # as torch has it
        raise ValueError(f"device = {given!r}: expected a device that torch has, such as 'cpu' ({error})") from error
