"""What a client knows of the graph that servers hold: everything but the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt.distributed.service.remote_books import RemoteBooks
from glt.partition.format.manifest import Manifest

if TYPE_CHECKING:
    from glt.distributed.service.client import DistClient


class RemoteDataset:
    """Stands for a :class:`~glt.distributed.DistDataset` in checks and batches; attributes are as there.

    Args:
        client: Asks the servers.
        about: What a server tells of its dataset.
    """

    def __init__(self, client: DistClient, about: dict[str, Any]) -> None:
        self._client = client
        self.manifest = Manifest.from_json(about["manifest"])
        self.schema = self.manifest.schema
        self.num_partitions = self.manifest.num_parts
        self.partition_idx: int | None = None
        self.num_nodes_of = tuple(entry.num_nodes for entry in self.manifest.node_types)
        self.num_edges_of = tuple(entry.num_edges for entry in self.manifest.edge_types)
        self.edge_dir = self.manifest.edge_dir
        self.ends = self.schema.ends(self.edge_dir)
        parts = self.num_partitions
        self.node_books = RemoteBooks(client, "node", self.manifest.node_types, parts)
        self.edge_books = RemoteBooks(client, "edge", self.manifest.edge_types, parts)
        self.load_args = {"graph_dir": about["graph_dir"]}
        self.num_servers, self.client_rank = client.num_servers, client.context.rank

    def seeds_of_split(self, split: str, node_type: int) -> Tensor:
        """This client's share of a split: all its nodes by ascending id, cut into as many pieces as there are clients,
        whose lengths differ by one at most; ``[n]`` int64."""
        parts = [
            self._client.request(rank, "glt.seeds_of_split", split, node_type, readable)
            for rank, readable in self._readers().items()
        ]
        return self._share(torch.cat(parts).sort().values)

    def seeds_of_file(self, path: str, server_rank: int) -> Tensor:
        """What a file on a server holds."""
        return self._client.request(server_rank, "glt.seeds_of_file", path)

    def all_edges(self, edge_type: int) -> tuple[Tensor, Tensor]:
        """This client's share of all edges of a type, by ascending id: ends ``[2, B]`` and ids ``[B]``, int64."""
        found = [
            self._client.request(rank, "glt.all_edges", edge_type, part)
            for rank, parts in self._readers().items()
            for part in parts
        ]
        ends = torch.cat([each[0] for each in found], 1)
        ids, order = torch.cat([each[1] for each in found]).sort()
        mine = self._share(order)
        return ends[:, mine], ids[self._share(torch.arange(len(ids)))]

    def _share(self, whole: Tensor) -> Tensor:
        context = self._client.context
        first, last = (len(whole) * rank // context.world_size for rank in (context.rank, context.rank + 1))
        return whole[first:last].clone()

    def _readers(self) -> dict[int, list[int]]:
        """Which server to ask for the seeds of which partitions: the first that reads each."""
        readers: dict[int, list[int]] = {}
        missing = set(range(self.num_partitions))
        for rank in range(self._client.num_servers):
            mine = sorted(missing & set(self._client.request(rank, "glt.readable")))
            if mine:
                readers[rank] = mine
            missing -= set(mine)
        return readers

    def __repr__(self) -> str:
        return f"RemoteDataset({self.num_partitions} partitions on {self._client.num_servers} servers)"
