"""What a process offers to others: one hop of sampling and rows of tables, from the partition that it holds."""

from __future__ import annotations

import torch
from torch import Tensor

from glt import _core
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.requests import OneHopRequest, RowsRequest, id_dtype, reply_buffer
from glt.distributed.transport import Handler


class PartitionService:
    """Answers requests from one partition. A reply is a function of its request alone: asking again is always safe."""

    def __init__(self, dataset: DistDataset) -> None:
        self.dataset = dataset

    def handlers(self) -> dict[str, Handler]:
        return {"sample_one_hop": self.sample_one_hop, "gather_rows": self.gather_rows}

    def sample_one_hop(self, request: Tensor) -> Tensor:
        """Answers a :class:`OneHopRequest`: ``count [n]`` (uint32, sums to E), ``neighbor [E]`` and, if asked for,
        ``edge [E]`` (global ids, int32 where all ids fit, else int64).

        Raises:
            IndexError: If a node is outside the graph or owned by another partition; names the first.
        """
        asked = OneHopRequest.decode(request)
        data = self.dataset
        nodes = asked.nodes.numpy()
        hop = _core.OneHop(
            data.graph.csr,
            nodes,
            asked.num_neighbors,
            asked.replace,
            asked.batch_key,
            asked.hop,
            with_edge=asked.with_edge,
        )
        specs = {
            "count": (torch.uint32, (len(nodes),)),
            "neighbor": (id_dtype(data.num_nodes), (hop.num_edges,)),
        }
        if asked.with_edge:
            specs["edge"] = (id_dtype(data.num_edges), (hop.num_edges,))
        buffer, out = reply_buffer(specs)
        edge = out["edge"].numpy() if asked.with_edge else None
        hop.copy_out(out["count"].numpy(), out["neighbor"].numpy(), edge)
        return buffer

    def gather_rows(self, request: Tensor) -> Tensor:
        """Answers a :class:`RowsRequest`: one tensor ``[n, ...]`` per table, rows in the order of the ids.

        Raises:
            IndexError: If an id is outside the graph or owned by another partition; names the first.
            ValueError: If there is no such table here.
        """
        asked = RowsRequest.decode(request)
        data = self.dataset
        owned = data.nodes if asked.kind == "node" else data.edges
        missing = [name for name in asked.tables if owned is None or name not in owned.tables]
        if owned is None or missing:
            raise ValueError(f"partition {data.partition_idx} has no {asked.kind} tables {missing}")
        tables = {name: owned.tables[name] for name in asked.tables}
        buffer, out = reply_buffer({n: (t.dtype, (len(asked.ids), *t.row_shape)) for n, t in tables.items()})
        for name, table in tables.items():
            table.gather(asked.ids, out[name])
        return buffer
