"""A partition that this process has mapped: what it answers, asked from here or from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageKind, encode_message
from glt.data.dataset import Graph
from glt.data.disk import DiskFeature
from glt.data.feature import Feature
from glt.data.packing import Packing
from glt.data.schema import PartitionBook
from glt.data.topology import Topology, layout_of
from glt.distributed.engine.disk_tables import DiskTables
from glt.distributed.engine.requests import (
    DegreesRequest,
    EarliestRequest,
    HasEdgesRequest,
    InducedRequest,
    OneHopRequest,
    RowsRequest,
    id_dtype,
    reply_buffer,
)
from glt.distributed.wire.transport import Handler
from glt.partition import Partition
from glt.partition.format.manifest import EdgeTypeEntry, NodeTypeEntry

# Copies of rows of other partitions' nodes, answered here instead of there.


@dataclass(frozen=True, eq=False)
class NodeCache:
    """Rows of the nodes of one type that a partition keeps copies of, ``ids`` ascending; ``index`` has the row of each,
    which takes the place of the id in ``tables``, and takes a quarter of a byte for each node of the type."""

    ids: np.ndarray
    index: _core.RowIndex
    tables: Mapping[str, Feature]


# Which rows of a partition are worth their room in device memory.


_STEP = 1 << 24  # ids that are counted at a time
_FAN_OUT = 10.0  # what loaders ask for is not known when rows are placed


def node_hotness(part: Partition, node_type: int) -> Tensor:
    """Returns how hot each node is that a partition owns, ``[rows]``: how often its trainers read it, as the
    partitioner was told. Without that, how many edges of this partition lead to it, which reads all columns of the
    partition once."""
    nodes = part.nodes[node_type]
    if nodes.hotness is not None:
        return torch.from_numpy(nodes.hotness)
    found = np.zeros(part.manifest.node_types[node_type].num_nodes, np.int64)
    for (_, neighbor), edges in zip(part.schema.ends(part.manifest.edge_dir), part.edges, strict=True):
        if neighbor == node_type:
            count_neighbors(edges.indices, found)
    return torch.from_numpy(found[nodes.ids])


def edge_hotness(part: Partition, edge_type: int) -> Tensor:
    """Returns how hot each row of the edges of a partition is, ``[rows]`` float32: as hot as the node that is expanded
    along the edge, times the chance of the edge to be one of ten that are drawn."""
    edges, book = part.edges[edge_type], part.edges[edge_type].book
    assert book is not None, "tables of a partition come with a book"
    expanded, _ = part.schema.ends(part.manifest.edge_dir)[edge_type]
    degree = np.diff(edges.indptr)
    of_row = node_hotness(part, expanded).numpy() * np.minimum(1.0, _FAN_OUT / np.maximum(degree, 1))
    found = np.empty(len(edges.edge_ids), np.float32)
    found[book.rows(edges.edge_ids)] = np.repeat(of_row.astype(np.float32), degree)
    return torch.from_numpy(found)


def count_neighbors(indices: np.ndarray, found: np.ndarray) -> None:
    """Adds to ``found``, by node, how often the node is among ``indices``; IndexError if one is no node."""
    step = max(_STEP, len(found))
    for begin in range(0, len(indices), step):
        some = indices[begin : begin + step]
        if not 0 <= some.min() <= some.max() < len(found):  # it would count up to there, whatever memory that takes
            bad = some[(some < 0) | (some >= len(found))][0]
            raise IndexError(f"neighbour id {bad} is outside [0, {len(found)}): the graph's columns are damaged")
        found += np.bincount(some, minlength=len(found))


@dataclass(frozen=True)
class Placing:
    """Where samplers on a GPU find what is mapped, and how much of it is in memory; see :meth:`DistDataset.load`."""

    graph_mode: str = "CPU"
    device: str | int | torch.device | None = None
    split_ratio: float | None = None
    feature_memory: int | None = None


EdgesRequest = OneHopRequest | InducedRequest | DegreesRequest


@dataclass(frozen=True, eq=False)
class Degrees:
    """The answer to a :class:`DegreesRequest`: counts alone, no edges."""

    count: np.ndarray
    num_edges: ClassVar[int] = 0

    def copy_out(self, count: np.ndarray, neighbor: np.ndarray, edge: np.ndarray | None = None) -> None:
        count[:] = self.count


class LocalPartition:
    """What can be read of a partition that this process has mapped, and has loaded if it ``is_own``. A type is its
    position in the schema.

    Attributes:
        graphs: By edge type, the rows of the nodes that it owns; neighbours have global ids.
        node_tables: By node type, rows that it owns by name: ``'x'``, ``'y'``, ``'time'`` and named ones.
        edge_tables: By edge type, likewise: ``'edge_attr'`` and named ones.
        on_disk: Which tables do not fit in memory, and their hot rows.
        node_caches: By node type, copies of rows that other partitions own; None without.
        num_ids: By edge type, how many neighbours and how many edges there are in the whole graph.
        most_ids: How many there are of the type of nodes or edges that has most.
        require_sound: Raises PartitionError if a file was found to be damaged since it was mapped; called for each
            batch, and each request from elsewhere.
    """

    def __init__(
        self,
        part: Partition,
        placing: Placing,
        labelled: Sequence[bool],
        hot_rows: Mapping[str, Any] | None,
        is_own: bool,
    ) -> None:
        self.index, self.schema, self.nodes = part.index, part.schema, part.nodes
        self.on_disk = DiskTables(part, placing.feature_memory, hot_rows, is_own)
        self.require_sound: Callable[[], None] = part.require_sound
        counts = [entry.num_nodes for entry in part.manifest.node_types]
        self.node_tables: list[dict[str, Feature]] = []
        self.node_caches: list[NodeCache | None] = []
        self.edge_tables: list[dict[str, Feature]] = []
        self.graphs: list[Graph] = []
        self.split_ratio = placing.split_ratio
        # Once for all tables of a type: without the partitioner's hotness it takes a pass over all columns.
        self._hotness = {"node": cache(partial(node_hotness, part)), "edge": cache(partial(edge_hotness, part))}
        for t, node in enumerate(part.nodes):
            named = {"x": node.feat, "y": None if labelled[t] else node.label, "time": node.time, **node.attrs}
            packings = _packings(part.manifest.node_types[t], "x")
            paths, hotness = self.on_disk.of("node", t), self._hotness_if_split("node", t)
            self.node_tables.append(_tables(named, packings, (node.book, part.index), placing, hotness, paths))
            copies, kept = None, node.cache
            if kept is not None:
                copied = {"x": kept.feat, "y": kept.label, "time": kept.time, **kept.attrs}
                tables = {
                    name: Feature(_tensor(copied[name]), store_dtype=packings.get(name)) for name in self.node_tables[t]
                }
                copies = NodeCache(kept.ids, _core.RowIndex(kept.ids, counts[t]), tables)
            self.node_caches.append(copies)
        ends = part.schema.ends(part.manifest.edge_dir)
        types = part.manifest.edge_types
        for edge, entry, (expanded, _), (source, target) in zip(
            part.edges, types, ends, part.schema.ends("out"), strict=True
        ):
            timed, by_time, weights = edge.by_time, None, None
            if timed is not None:
                by_time = _tensors(timed.indices, timed.edge_ids, timed.time)
            if edge.weight_sum is not None:
                weights = _tensors(edge.weight_sum, edge.weight_guide)
            in_order = _count_up(edge.edge_ids)
            topology = Topology.from_rows(
                torch.from_numpy(edge.indptr),
                torch.from_numpy(edge.indices),
                None if in_order else torch.from_numpy(edge.edge_ids),
                first_edge_id=int(edge.edge_ids[0]) if in_order else 0,
                weights=weights,
                by_time=by_time,
                layout=layout_of(part.manifest.edge_dir),
                num_nodes=(counts[source], counts[target]),
                book=part.nodes[expanded].book,
                part=part.index,
                trusted=True,  # the sampler still refuses ids out of range, when it meets them
            )
            self.graphs.append(Graph(topology, placing.graph_mode, placing.device))
            named = {"edge_attr": edge.feat, **edge.attrs}
            owned = edge.book and (edge.book, part.index)
            packings = _packings(entry, "edge_attr")
            r = len(self.edge_tables)
            paths, has_tables = self.on_disk.of("edge", r), any(rows is not None for rows in named.values())
            hotness = self._hotness_if_split("edge", r) if owned and has_tables else None
            self.edge_tables.append(_tables(named, packings, owned, placing, hotness, paths) if owned else {})
        self.on_disk.keep_hot(self.node_tables, partial(node_hotness, part))
        self.num_ids = [(counts[n], entry.num_edges) for (_, n), entry in zip(ends, types, strict=True)]
        self.most_ids = max(*counts, *(entry.num_edges for entry in part.manifest.edge_types), 0)

    def _hotness_if_split(self, kind: str, type_: int) -> Tensor | None:
        return self.hotness(kind, type_) if self.split_ratio is not None and 0 < self.split_ratio < 1 else None

    def hotness(self, kind: str, type_: int) -> Tensor:
        """How hot the rows of a type of nodes or edges are, ``[rows]``, in any unit; reads columns of the partition."""
        return self._hotness[kind](type_)

    def handlers(self) -> dict[str, Handler]:
        """What other processes may ask, by method. A reply is a function of its request alone: asking again is safe."""
        answers: dict[str, Handler] = {
            OneHopRequest.method: partial(self._answer_edges, OneHopRequest),
            InducedRequest.method: partial(self._answer_edges, InducedRequest),
            DegreesRequest.method: partial(self._answer_edges, DegreesRequest),
            RowsRequest.method: self._answer_rows,
            HasEdgesRequest.method: self._answer_has_edges,
            EarliestRequest.method: self._answer_earliest,
        }
        return {method: partial(self._answer, answer) for method, answer in answers.items()}

    def _answer(self, answer: Handler, request: Tensor) -> Tensor:
        self.require_sound()
        return answer(request)

    def _answer_edges(self, kind: type[EdgesRequest], request: Tensor) -> Tensor:
        """``count [n]`` (uint32, sums to E), ``neighbor [E]`` and, if asked for, ``edge [E]``, as int32 where all ids
        fit, or the times of edges."""
        asked = kind.decode(request)
        found = self.edges(asked)
        num_neighbors, num_edges = self.num_ids[asked.edge_type]
        specs = {
            "count": (torch.uint32, (len(asked.nodes),)),
            "neighbor": (id_dtype(num_neighbors), (found.num_edges,)),
        }
        if asked.with_edge or asked.with_time:
            specs["edge"] = (torch.int64 if asked.with_time else id_dtype(num_edges), (found.num_edges,))
        buffer, out = reply_buffer(specs)
        edge = out["edge"].numpy() if "edge" in out else None
        found.copy_out(out["count"].numpy(), out["neighbor"].numpy(), edge)
        return buffer

    def _answer_has_edges(self, request: Tensor) -> Tensor:
        """``found [n]``, bool."""
        return encode_message({"found": self.has_edges(HasEdgesRequest.decode(request))}, MessageKind.REPLY)

    def _answer_earliest(self, request: Tensor) -> Tensor:
        """``earliest``, ``[2]`` int64, node and time; ``[0]`` if there is none."""
        earliest = self.earliest_node(EarliestRequest.decode(request))
        return encode_message({"earliest": torch.tensor(earliest or (), dtype=torch.int64)}, MessageKind.REPLY)

    def _answer_rows(self, request: Tensor) -> Tensor:
        """One tensor ``[n, ...]`` per table, rows in the order of the ids."""
        asked = RowsRequest.decode(request)
        tables = self.tables(asked.kind, asked.type)
        if missing := [name for name in asked.tables if name not in tables]:
            types = self.schema.node_types if asked.kind == "node" else self.schema.edge_types
            raise ValueError(
                f"partition {self.index} has no {asked.kind} tables {missing} of {types[asked.type]}: there are "
                f"{sorted(tables)}"
            )
        wanted = {name: tables[name] for name in asked.tables}
        stored = {name: table.tensor[:0] for name, table in wanted.items()}
        buffer, out = reply_buffer({n: (rows.dtype, (len(asked.ids), *rows.shape[1:])) for n, rows in stored.items()})
        for name, table in wanted.items():
            table.gather_stored(asked.ids, out[name])
        return buffer

    def csr(self, edge_type: int, weighted: bool, timed: bool) -> _core.Csr:
        """Edges with the weights, or sorted by the times, that are asked for; plain where the type has none."""
        topology = self.graphs[edge_type].topology
        if timed and topology.by_time is not None:
            return topology.csr_by_time
        return topology.csr if weighted else topology.csr_unweighted

    def edges(self, asked: EdgesRequest) -> _core.OneHop | _core.InducedRows | Degrees:
        """Answers any request for edges."""
        if isinstance(asked, OneHopRequest):
            return self.one_hop(asked)
        return self.induced(asked) if isinstance(asked, InducedRequest) else self.degrees(asked)

    def one_hop(self, asked: OneHopRequest) -> _core.OneHop:
        """Samples one hop."""
        edge_type = self._named("edge", self.schema.edge_types, asked.edge_type)
        topology = self.graphs[asked.edge_type].topology
        if asked.weighted and topology.weights is None:
            raise ValueError(f"partition {self.index} has no weights of {edge_type}: partition with edge_weight")
        if asked.seed_time is not None and topology.by_time is None:
            raise ValueError(
                f"partition {self.index} has no times of {edge_type}: partition with edge_time or node_time"
            )
        csr = self.csr(asked.edge_type, asked.weighted, asked.seed_time is not None)
        number_key = None
        if asked.shared_key is not None:
            ends = self.schema.ends(topology.edge_dir)[asked.edge_type]
            number_key = _core.number_key(asked.shared_key, asked.hop, ends[1])
        return _core.OneHop(
            csr,
            asked.nodes.numpy(),
            asked.num_neighbors,
            asked.replace,
            asked.batch_key,
            asked.hop,
            asked.edge_type,
            with_edge=asked.with_edge,
            name=f"nodes to expand along {edge_type}" if self.schema.is_hetero else "nodes",
            tree=None if asked.tree is None else asked.tree.numpy(),
            seed_time=None if asked.seed_time is None else asked.seed_time.numpy(),
            last=asked.last,
            exclusions=asked.native_excluded,
            time_window=asked.time_window,
            half_life=asked.half_life,
            number_key=number_key,
            with_time=asked.with_time,
        )

    def induced(self, asked: InducedRequest) -> _core.InducedRows:
        """Finds the edges between nodes and members; errors as of :meth:`one_hop`."""
        self._named("edge", self.schema.edge_types, asked.edge_type)
        csr = self.csr(asked.edge_type, False, False)
        trees = {name: getattr(asked, name) for name in ("tree", "member_tree")}
        given = {name: each.numpy() for name, each in trees.items() if each is not None}
        return _core.InducedRows(csr, asked.nodes.numpy(), asked.members.numpy(), asked.with_edge, **given)

    def degrees(self, asked: DegreesRequest) -> Degrees:
        """Looks up how many edges nodes have; errors as of :meth:`one_hop`."""
        self._named("edge", self.schema.edge_types, asked.edge_type)
        topology, nodes = self.graphs[asked.edge_type].topology, asked.nodes.numpy()
        assert topology.book is not None, "partitions have books"
        _core.require_owned(topology.book.native, nodes, self.index)
        rows = topology.book.rows(nodes).astype(np.int64)
        indptr = topology.indptr.numpy()
        return Degrees(np.minimum(indptr[rows + 1] - indptr[rows], 2**32 - 1).astype(np.uint32))

    def expanded(self, edge_type: int) -> np.ndarray:
        """The nodes that the rows of an edge type are of, in their order."""
        edge_dir = self.graphs[edge_type].topology.edge_dir
        return self.nodes[self.schema.ends(edge_dir)[edge_type][0]].ids

    def all_edges(self, edge_type: int) -> tuple[Tensor, Tensor]:
        """The edges of a type that are here: sources and destinations ``[2, B]``, global ids, and the ids of the edges
        ``[B]``, by which they are sorted; all int64."""
        topology, nodes = self.graphs[edge_type].topology, torch.from_numpy(self.expanded(edge_type))
        centers = torch.repeat_interleave(nodes, topology.degrees, output_size=topology.num_edges)
        neighbors = topology.indices.long()
        ids, order = topology.all_edge_ids().long().sort()
        ends = (neighbors, centers) if topology.edge_dir == "in" else (centers, neighbors)
        return torch.stack([side[order] for side in ends]), ids

    def has_edges(self, asked: HasEdgesRequest) -> Tensor:
        """Says which pairs are edges ``[n]``, bool."""
        self._named("edge", self.schema.edge_types, asked.edge_type)
        found = torch.empty(len(asked.centers), dtype=torch.uint8)
        csr = self.csr(asked.edge_type, False, False)
        _core.has_edges(csr, asked.centers.numpy(), asked.neighbors.numpy(), found.numpy())
        return found.bool()

    def earliest_node(self, asked: EarliestRequest) -> tuple[int, int] | None:
        """The owned node of the smallest time, the first of several, and that time; None without nodes or times."""
        self._named("node", self.schema.node_types, asked.node_type)
        time = self.node_tables[asked.node_type].get("time")
        if time is None or len(time) == 0:
            return None
        row = int(time.tensor.numpy().argmin())  # rows ascend with ids
        return int(self.nodes[asked.node_type].owned[row]), int(time.tensor[row])

    @property
    def node_specs(self) -> list[dict[str, tuple[torch.dtype, torch.Size]]]:
        """By node type, dtype and shape of the rows of its tables as they are stored."""
        return [
            {name: (t.tensor.dtype, t.tensor.shape[1:]) for name, t in tables.items()} for tables in self.node_tables
        ]

    def tables(self, kind: str, type_: int) -> dict[str, Feature]:
        """The tables of a type of nodes or edges."""
        if kind not in ("node", "edge"):
            raise ValueError(f"kind = {kind!r}: expected 'node' or 'edge'")
        self._named(kind, self.schema.node_types if kind == "node" else self.schema.edge_types, type_)
        return (self.node_tables if kind == "node" else self.edge_tables)[type_]

    def _named(self, kind: str, types: Sequence[Any], type_: int) -> Any:
        """What a type is called; a position that came from elsewhere may be any number."""
        if not 0 <= type_ < len(types):
            raise ValueError(f"{kind} type {type_} is asked for: there are {len(types)}, {list(types)}")
        return types[type_]


def _packings(entry: NodeTypeEntry | EdgeTypeEntry, features: str) -> dict[str, Packing | None]:
    """How the tables of a type are packed, by their names in batches."""
    tables = {features: entry.feat, **entry.attrs}
    return {name: table.packing for name, table in tables.items() if table is not None}


def _tables(
    named: dict[str, Any],
    packings: Mapping[str, Packing | None],
    owned: tuple[PartitionBook, int],
    placing: Placing,
    hotness: Tensor | None,
    paths: Mapping[str, Path],
) -> dict[str, Feature]:
    """``paths``: of the tables that stay on disk."""
    options: dict[str, Any] = {}
    if placing.split_ratio:
        device = "cuda" if placing.device is None else placing.device
        options = {"split_ratio": placing.split_ratio, "device": device, "hotness": hotness}

    def table(name: str, rows: Tensor) -> Feature:
        if name in paths:
            return DiskFeature(paths[name], dtype=rows.dtype, owned=owned, store_dtype=packings.get(name))
        return Feature(rows, owned=owned, store_dtype=packings.get(name), **options)

    return {name: table(name, _tensor(rows)) for name, rows in named.items() if rows is not None}


def _tensors(*arrays: Any) -> Any:
    return tuple(map(torch.from_numpy, arrays))


def _count_up(ids: np.ndarray) -> bool:
    """Whether each id is one more than that before it, as those of edges that were relabelled and came sorted. Reads
    all only where the last one says so."""
    if len(ids) == 0 or int(ids[-1]) - int(ids[0]) != len(ids) - 1:
        return False
    begins = range(0, len(ids), _STEP)
    return all(bool((np.diff(ids[begin : begin + _STEP + 1]) == 1).all()) for begin in begins)


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)
