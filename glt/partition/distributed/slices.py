"""A graph in slices, one on each rank: what is here, and where it is in the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from glt.partition.distributed.agreement import agree
from glt.partition.distributed.exchange import Exchange
from glt.partition.graph_input import GraphInput
from glt.partition.npy_file import scratch_array
from glt.partition.rows import Rows

NODE_TABLES: Final = ("node_feat", "node_label", "node_time", "node_attrs")
EDGE_TABLES: Final = ("edge_feat", "edge_weight", "edge_time", "edge_attrs")


@dataclass(frozen=True, eq=False)
class GraphSlice:
    """The slice of a rank, and how long those of all ranks are.

    Attributes:
        graph: The slice; its ``num_nodes`` are those of the whole graph.
        node_rows: ``[world_size, num_node_types]`` int64, rows of node tables.
        num_edges: ``[world_size, num_edge_types]`` int64.
    """

    graph: GraphInput
    node_rows: np.ndarray
    num_edges: np.ndarray

    @classmethod
    def of(
        cls, exchange: Exchange, edge_dir: str, num_nodes: Any, edge_index: Any, tables: dict[str, Any]
    ) -> GraphSlice:
        """Checks the slices of all ranks; ``tables`` by the names of ``NODE_TABLES`` and ``EDGE_TABLES``.

        Raises:
            TypeError, ValueError, KeyError, IndexError: As :meth:`GraphInput.of`, or if slices do not fit together.
        """
        node_types = list(num_nodes) if isinstance(num_nodes, Mapping) else [None]
        rows = [_num_rows(tables, node_type) for node_type in node_types]
        graph = GraphInput.of(
            edge_dir, num_nodes, edge_index, tables["node_feat"], tables["edge_feat"], tables["node_label"],
            tables["edge_weight"], tables["edge_time"], tables["node_time"], tables["node_attrs"],
            tables["edge_attrs"], num_rows=rows,
        )  # fmt: skip
        agree(exchange, _kinds(graph))
        node_rows = exchange.gather_counts(np.array(rows, np.int64))
        for at, nodes in enumerate(graph.nodes):
            found = node_rows[:, at]
            if (nodes.tables or nodes.time is not None) and found.sum() != nodes.num_nodes:
                of_type = f" of type {nodes.node_type!r}" if graph.schema.is_hetero else ""
                raise ValueError(
                    f"tables of nodes{of_type} have {found.tolist()} rows on the ranks, {found.sum()} together: "
                    f"expected num_nodes = {nodes.num_nodes}, each node on one rank"
                )
        return cls(graph, node_rows, exchange.gather_counts(np.array([e.num_edges for e in graph.edges], np.int64)))


def first_rows(num_rows: np.ndarray) -> np.ndarray:
    """Returns where the slice of each rank begins, given how many rows each has, and the number of all, at the end."""
    return np.concatenate([[0], np.cumsum(num_rows)])


def gather_rows(
    exchange: Exchange, rows: np.ndarray, num_rows: np.ndarray, round_bytes: int, scratch: Path | None = None
) -> np.ndarray:
    """Returns the slices of all ranks as one array; in a file in ``scratch``, if given.

    Args:
        exchange: Connects the ranks.
        rows: The slice of this rank; of the same dtype and shape of a row on all of them.
        num_rows: ``[world_size]``, of all ranks.
        round_bytes: Memory beside the result.
        scratch: A directory, for an array of one dimension.
    """
    first = first_rows(num_rows)
    shape = (int(first[-1]), *rows.shape[1:])
    whole = np.empty(shape, rows.dtype) if scratch is None else scratch_array(scratch, shape[0], rows.dtype)
    row_bytes = max(1, whole[:1].nbytes)
    step = max(1, round_bytes // (exchange.world_size * row_bytes))
    for begin in range(0, int(num_rows.max()), step):
        piece = np.ascontiguousarray(rows[begin : begin + step])
        received = exchange.all_to_all([[piece]] * exchange.world_size)
        for at, end, data in zip(first[:-1] + begin, first[1:], received, strict=True):
            to = whole[at : min(at + step, end)] if at < end else whole[:0]
            to[:] = data.view(rows.dtype).reshape(to.shape)
    return whole


def gather_argument(exchange: Exchange, name: str, value: Any, round_bytes: int) -> Any:
    """Returns an argument that has an element for each node, given the slice of it that each rank has.

    Tensors and arrays in it, which may be inside of dicts and lists, come back as arrays of all nodes.
    """
    agree(exchange, {name: structure(value)})
    return _gathered(exchange, name, value, round_bytes)


def _gathered(exchange: Exchange, name: str, value: Any, round_bytes: int) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _gathered(exchange, f"{name}[{key!r}]", value[key], round_bytes) for key in sorted(value, key=repr)
        }
    if isinstance(value, list | tuple):
        return [_gathered(exchange, f"{name}[{at}]", each, round_bytes) for at, each in enumerate(value)]
    if not isinstance(value, np.ndarray | torch.Tensor):
        return value
    rows = Rows.of(name, value, value.shape[0] if value.ndim else 0, "node").array
    num_rows = exchange.gather_counts(np.array([len(rows)]))[:, 0]
    return gather_rows(exchange, rows, num_rows, round_bytes)


def structure(value: Any) -> object:
    """Returns what must be alike on all ranks of an argument: everything but lengths and contents of slices."""
    if isinstance(value, Mapping):
        return {key: structure(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return [structure(each) for each in value]
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} [*{''.join(f', {size}' for size in value.shape[1:])}]"
    return value


def _num_rows(tables: dict[str, Any], node_type: str | None) -> int:
    """Rows of the first table of a node type; whether all have as many, and what they are, is checked later."""
    for name in NODE_TABLES:
        value = tables[name]
        if node_type is not None:
            value = value.get(node_type) if isinstance(value, Mapping) else None
        if name == "node_attrs":
            value = next(iter(value.values()), None) if isinstance(value, Mapping) else None
        if isinstance(value, np.ndarray | torch.Tensor) and value.ndim:
            return int(value.shape[0])
    return 0


def _kinds(graph: GraphInput) -> dict[str, object]:
    """Which tables there are, and of what kind, by name."""
    kinds: dict[str, object] = {}

    def add(name: str, of_type: str, rows: Rows | None) -> None:
        kinds[name + of_type] = None if rows is None else f"{rows.torch_dtype} {['*', *rows.row_shape]}"

    for nodes in graph.nodes:
        of_type = f"[{nodes.node_type!r}]" if graph.schema.is_hetero else ""
        add("node_feat", of_type, nodes.feat)
        add("node_label", of_type, nodes.label)
        kinds["node_time" + of_type] = nodes.time is not None
        for name, rows in nodes.attrs.items():
            add("node_attrs", f"{of_type}[{name!r}]", rows)
    for edges in graph.edges:
        of_type = f"[{edges.edge_type!r}]" if graph.schema.is_hetero else ""
        add("edge_feat", of_type, edges.feat)
        kinds["edge_weight" + of_type] = None if edges.weight is None else str(edges.weight.dtype)
        kinds["edge_time" + of_type] = edges.time is not None
        for name, rows in edges.attrs.items():
            add("edge_attrs", f"{of_type}[{name!r}]", rows)
    return kinds
