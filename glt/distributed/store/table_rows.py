"""The rows of a graph's tables that a server keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glt.distributed.store.placement import Placement

if TYPE_CHECKING:
    from glt.distributed.dist_dataset import DistDataset


def rows_of_table(data: DistDataset, table: str, placement: Placement, server: int) -> tuple[Tensor, bool]:
    """Returns rows ``[n, ...]`` in the order of a placement, and whether they are the mapped ones: those of one
    partition are; of several, they are copied one behind the other.

    Args:
        data: The server's partition.
        table: Its name, such as ``'x'``.
        placement: Of the type of nodes or edges.
        server: Whose rows.

    Raises:
        LookupError: If there is no such table; names those there are.
        glt.errors.PartitionError: If another partition of this server cannot be read.
    """
    kind, at = placement.kind, placement.type_index
    whole = data.whole_node_labels[at] if kind == "node" and table == "y" else None
    if whole is not None:  # of all nodes, in place of those stored with partitions
        return whole.gather(torch.from_numpy(placement.ids_on(server)), torch.empty(
            (placement.rows_on(server), *whole.row_shape), dtype=whole.dtype
        )), False  # fmt: skip
    parts = [part for part, of in enumerate(placement.server_of) if of == server]
    found = []
    for part in parts or [data.partition_idx]:
        is_own = part == data.partition_idx
        tables = (data.own if is_own else data.map_other(data.load_args["graph_dir"], part)).tables(kind, at)
        if table not in tables:
            of = (data.schema.node_types if kind == "node" else data.schema.edge_types)[at]
            raise LookupError(f"{kind}s of type {of!r} have no table {table!r}: they have {sorted(tables)}")
        found.append(tables[table].tensor)
    if not parts:
        return found[0][:0], True
    return (found[0], True) if len(found) == 1 else (torch.cat(found), False)
