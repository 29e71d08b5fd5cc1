"""A partition that this process has mapped: what it answers, asked from here or from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.data.feature import Feature
from glt.data.graph import Graph
from glt.data.partition_book import PartitionBook
from glt.data.schema import Schema
from glt.data.topology import Topology, layout_of
from glt.distributed.node_cache import NodeCache
from glt.distributed.requests import EarliestRequest, HasEdgesRequest, InducedRequest, OneHopRequest
from glt.distributed.row_hotness import row_hotness
from glt.partition import NodePart, Partition


@dataclass(frozen=True)
class Placing:
    """Where samplers on a GPU find what is mapped; see :meth:`DistDataset.load`."""

    graph_mode: str = "CPU"
    device: str | int | torch.device | None = None
    split_ratio: float = 0.0


@dataclass(frozen=True, eq=False)
class LocalPartition:
    """What can be read of a partition that this process has mapped.

    Attributes:
        index: Which partition.
        schema: The types there are; in all that follows, a type is its position.
        nodes: By node type, what was loaded.
        graphs: By edge type, the rows of the nodes that it owns; neighbours have global ids.
        node_tables: By node type, rows that it owns by name: ``'x'``, ``'y'``, ``'time'`` and named ones.
        edge_tables: By edge type, likewise: ``'edge_attr'`` and named ones.
        node_caches: By node type, copies of rows that other partitions own; None without.
    """

    index: int
    schema: Schema
    nodes: tuple[NodePart, ...]
    graphs: tuple[Graph, ...]
    node_tables: tuple[dict[str, Feature], ...]
    edge_tables: tuple[dict[str, Feature], ...]
    node_caches: tuple[NodeCache | None, ...]

    @classmethod
    def of(cls, part: Partition, placing: Placing, labelled: Sequence[bool]) -> LocalPartition:
        """Wraps the arrays of a partition.

        Args:
            part: What was loaded.
            placing: For samplers on a GPU.
            labelled: By node type, whether labels come from elsewhere, so that those of the partition do not count.
        """
        counts = [entry.num_nodes for entry in part.manifest.node_types]
        node_tables: list[dict[str, Feature]] = []
        node_caches: list[NodeCache | None] = []
        edge_tables: list[dict[str, Feature]] = []
        for t, node in enumerate(part.nodes):
            named = {"x": node.feat, "y": None if labelled[t] else node.label, "time": node.time, **node.attrs}
            hotness = row_hotness(part, t) if 0 < placing.split_ratio < 1 else None
            node_tables.append(_tables(named, (node.book, part.index), placing, hotness))
            cache = None
            if node.cache is not None:
                kept = node.cache
                copied = {"x": kept.feat, "y": kept.label, "time": kept.time, **kept.attrs}
                tables = {name: Feature(_tensor(copied[name])) for name in node_tables[t]}
                cache = NodeCache.of(kept.ids, counts[t], tables)
            node_caches.append(cache)
        graphs = []
        ends = part.schema.ends(part.manifest.edge_dir)
        sides = part.schema.ends("out")
        for r, edge in enumerate(part.edges):
            shared: dict[str, Any] = {
                "layout": layout_of(part.manifest.edge_dir),
                "num_nodes": (counts[sides[r][0]], counts[sides[r][1]]),
                "book": part.nodes[ends[r][0]].book,
                "part": part.index,
                "trusted": True,  # the sampler still refuses ids out of range, when it meets them
            }
            columns = tuple(torch.from_numpy(a) for a in (edge.indptr, edge.indices, edge.edge_ids))
            timed = edge.by_time
            by_time: Any = None
            if timed is not None:
                by_time = tuple(torch.from_numpy(a) for a in (timed.indices, timed.edge_ids, timed.time))
            weights = None
            if edge.weight_sum is not None and edge.weight_guide is not None:
                weights = torch.from_numpy(edge.weight_sum), torch.from_numpy(edge.weight_guide)
            topology = Topology.from_rows(*columns, weights=weights, by_time=by_time, **shared)
            graphs.append(Graph(topology, placing.graph_mode, placing.device))
            named = {"edge_attr": edge.feat, **edge.attrs}
            edge_tables.append({} if edge.book is None else _tables(named, (edge.book, part.index), placing, None))
        return cls(
            part.index, part.schema, part.nodes, tuple(graphs),
            tuple(node_tables), tuple(edge_tables), tuple(node_caches),
        )  # fmt: skip

    def csr(self, edge_type: int, weighted: bool, timed: bool) -> _core.Csr:
        """Edges with the weights, or sorted by the times, that are asked for; plain where the type has none."""
        topology = self.graphs[edge_type].topology
        if timed and topology.by_time is not None:
            return topology.csr_by_time
        return topology.csr if weighted else topology.csr_unweighted

    def edges(self, asked: OneHopRequest | InducedRequest) -> _core.OneHop | _core.InducedRows:
        """Answers either request for edges."""
        return self.induced(asked) if isinstance(asked, InducedRequest) else self.one_hop(asked)

    def one_hop(self, asked: OneHopRequest) -> _core.OneHop:
        """Samples one hop.

        Raises:
            IndexError: If a node is outside the graph or owned by another partition; names the first.
            ValueError: If there are no such edges, or they lack the weights or times that are asked for.
        """
        edge_type = self._named("edge", self.schema.edge_types, asked.edge_type)
        topology = self.graphs[asked.edge_type].topology
        if asked.weighted and topology.weights is None:
            raise ValueError(f"partition {self.index} has no weights of {edge_type}: partition with edge_weight")
        if asked.seed_time is not None and topology.by_time is None:
            raise ValueError(
                f"partition {self.index} has no times of {edge_type}: partition with edge_time or node_time"
            )
        excluded = asked.excluded and _core.Exclusions(*(side.numpy() for side in asked.excluded))
        csr = self.csr(asked.edge_type, asked.weighted, asked.seed_time is not None)
        return _core.OneHop(
            csr, asked.nodes.numpy(), asked.num_neighbors, asked.replace, asked.batch_key, asked.hop, asked.edge_type,
            with_edge=asked.with_edge, name=f"nodes to expand along {edge_type}" if self.schema.is_hetero else "nodes",
            tree=None if asked.tree is None else asked.tree.numpy(),
            seed_time=None if asked.seed_time is None else asked.seed_time.numpy(), last=asked.last,
            exclusions=excluded,
        )  # fmt: skip

    def induced(self, asked: InducedRequest) -> _core.InducedRows:
        """Finds the edges between nodes and members; errors as of :meth:`one_hop`."""
        self._named("edge", self.schema.edge_types, asked.edge_type)
        csr = self.csr(asked.edge_type, False, False)
        return _core.InducedRows(csr, asked.nodes.numpy(), asked.members.numpy(), asked.with_edge)

    def all_edges(self, edge_type: int) -> tuple[Tensor, Tensor]:
        """The edges of a type that are here: sources and destinations ``[2, B]``, global ids, and the ids of the edges
        ``[B]``, by which they are sorted; all int64."""
        topology = self.graphs[edge_type].topology
        by_name = self.schema.edge_types[edge_type]
        center = self.schema.node_index(by_name[2] if topology.edge_dir == "in" else by_name[0])
        nodes = torch.from_numpy(self.nodes[center].ids)  # in the order of the rows
        assert topology.edge_ids is not None, "partitions have them"
        centers = torch.repeat_interleave(nodes, topology.degrees, output_size=topology.num_edges)
        neighbors = topology.indices.long()
        ids, order = topology.edge_ids.long().sort()
        ends = (neighbors, centers) if topology.edge_dir == "in" else (centers, neighbors)
        return torch.stack([side[order] for side in ends]), ids

    def has_edges(self, asked: HasEdgesRequest) -> Tensor:
        """Says which pairs are edges ``[n]``, bool.

        Raises:
            IndexError: If a center is outside the graph or owned by another partition; names the first.
            ValueError: If there are no such edges, or not as many neighbours as centers.
        """
        self._named("edge", self.schema.edge_types, asked.edge_type)
        found = torch.empty(len(asked.centers), dtype=torch.uint8)
        csr = self.csr(asked.edge_type, False, False)
        _core.has_edges(csr, asked.centers.numpy(), asked.neighbors.numpy(), found.numpy())
        return found.bool()

    def earliest_node(self, asked: EarliestRequest) -> tuple[int, int] | None:
        """The owned node of the smallest time, the first of several, and that time; None without nodes or times.

        Raises:
            ValueError: If there is no such node type.
        """
        self._named("node", self.schema.node_types, asked.node_type)
        time = self.node_tables[asked.node_type].get("time")
        if time is None or len(time) == 0:
            return None
        row = int(time.tensor.numpy().argmin())  # rows ascend with ids
        return int(self.nodes[asked.node_type].owned[row]), int(time.tensor[row])

    def tables(self, kind: str, type_: int) -> dict[str, Feature]:
        """The tables of a type of nodes or edges.

        Raises:
            ValueError: If there is no such kind or type.
        """
        if kind not in ("node", "edge"):
            raise ValueError(f"kind = {kind!r}: expected 'node' or 'edge'")
        self._named(kind, self.schema.node_types if kind == "node" else self.schema.edge_types, type_)
        return (self.node_tables if kind == "node" else self.edge_tables)[type_]

    def _named(self, kind: str, types: Sequence[Any], type_: int) -> Any:
        """What a type is called; a position that came from elsewhere may be any number."""
        if not 0 <= type_ < len(types):
            raise ValueError(f"{kind} type {type_} is asked for: there are {len(types)}, {list(types)}")
        return types[type_]


def _tables(
    named: dict[str, Any], owned: tuple[PartitionBook, int], placing: Placing, hotness: Tensor | None
) -> dict[str, Feature]:
    options: dict[str, Any] = {}
    if placing.split_ratio:
        options = {
            "split_ratio": placing.split_ratio, "device": "cuda" if placing.device is None else placing.device,
            "hotness": hotness,
        }  # fmt: skip
    return {name: Feature(_tensor(rows), owned=owned, **options) for name, rows in named.items() if rows is not None}


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)
