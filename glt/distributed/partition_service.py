"""What a process offers to others: sampling and rows of tables, from the partition that it holds."""

from __future__ import annotations

import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageKind, encode_message
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.requests import (
    EarliestRequest,
    HasEdgesRequest,
    InducedRequest,
    OneHopRequest,
    RowsRequest,
    id_dtype,
    reply_buffer,
)
from glt.distributed.transport import Handler


class PartitionService:
    """Answers requests from one partition. A reply is a function of its request alone: asking again is always safe."""

    def __init__(self, dataset: DistDataset) -> None:
        self.dataset = dataset

    def handlers(self) -> dict[str, Handler]:
        return {
            OneHopRequest.method: self.sample_one_hop,
            RowsRequest.method: self.gather_rows,
            InducedRequest.method: self.induced_rows,
            HasEdgesRequest.method: self.has_edges,
            EarliestRequest.method: self.earliest_node,
        }

    def sample_one_hop(self, request: Tensor) -> Tensor:
        """Answers a :class:`OneHopRequest`: ``count [n]`` (uint32, sums to E), ``neighbor [E]`` and, if asked for,
        ``edge [E]`` (global ids, int32 where all ids fit, else int64).

        Raises:
            IndexError: If a node is outside the graph or owned by another partition; names the first.
            ValueError: If there are no such edges here.
        """
        asked = OneHopRequest.decode(request)
        return self._edges(asked, self.dataset.own.one_hop(asked))

    def induced_rows(self, request: Tensor) -> Tensor:
        """Answers an :class:`InducedRequest` as :meth:`sample_one_hop` does.

        Raises:
            IndexError: If a node is outside the graph or owned by another partition; names the first.
            ValueError: If there are no such edges here.
        """
        asked = InducedRequest.decode(request)
        return self._edges(asked, self.dataset.own.induced(asked))

    def _edges(self, asked: OneHopRequest | InducedRequest, hop: _core.OneHop | _core.InducedRows) -> Tensor:
        data = self.dataset
        specs = {
            "count": (torch.uint32, (len(asked.nodes),)),
            "neighbor": (id_dtype(data.num_neighbor_nodes_of[asked.edge_type]), (hop.num_edges,)),
        }
        if asked.with_edge:
            specs["edge"] = (id_dtype(data.num_edges_of[asked.edge_type]), (hop.num_edges,))
        buffer, out = reply_buffer(specs)
        edge = out["edge"].numpy() if asked.with_edge else None
        hop.copy_out(out["count"].numpy(), out["neighbor"].numpy(), edge)
        return buffer

    def has_edges(self, request: Tensor) -> Tensor:
        """Answers a :class:`HasEdgesRequest`: ``found [n]``, bool.

        Raises:
            IndexError: If a center is outside the graph or owned by another partition; names the first.
            ValueError: If there is no such edge type.
        """
        found = self.dataset.own.has_edges(HasEdgesRequest.decode(request))
        return encode_message({"found": found}, MessageKind.REPLY)

    def earliest_node(self, request: Tensor) -> Tensor:
        """Answers an :class:`EarliestRequest`: ``earliest``, ``[2]`` int64, node and time; ``[0]`` if there is none.

        Raises:
            ValueError: If there is no such node type.
        """
        earliest = self.dataset.own.earliest_node(EarliestRequest.decode(request))
        return encode_message({"earliest": torch.tensor(earliest or (), dtype=torch.int64)}, MessageKind.REPLY)

    def gather_rows(self, request: Tensor) -> Tensor:
        """Answers a :class:`RowsRequest`: one tensor ``[n, ...]`` per table, rows in the order of the ids.

        Raises:
            IndexError: If an id is outside the graph or owned by another partition; names the first.
            ValueError: If there is no such table here.
        """
        asked = RowsRequest.decode(request)
        own = self.dataset.own
        tables = own.tables(asked.kind, asked.type)
        missing = [name for name in asked.tables if name not in tables]
        if missing:
            types = own.schema.node_types if asked.kind == "node" else own.schema.edge_types
            raise ValueError(
                f"partition {own.index} has no {asked.kind} tables {missing} of {types[asked.type]}: there are "
                f"{sorted(tables)}"
            )
        wanted = {name: tables[name] for name in asked.tables}
        buffer, out = reply_buffer({n: (t.dtype, (len(asked.ids), *t.row_shape)) for n, t in wanted.items()})
        for name, table in wanted.items():
            table.gather(asked.ids, out[name])
        return buffer
