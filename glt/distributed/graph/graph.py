"""DistGraph: a partitioned graph as one, and how its questions find their partitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt import _core
from glt._checks import check_count, check_flag, check_path
from glt._reprs import says, typed
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, require_in_range
from glt.data.schema import EdgeType, NodeType, PartitionBook, Schema
from glt.distributed.context import World
from glt.distributed.engine.partitions import copied
from glt.distributed.engine.row_lookup import by_owner
from glt.distributed.graph.blocks import unique_in_order
from glt.distributed.job.initialize import open_world
from glt.distributed.server.client import Reply
from glt.distributed.tensors.graph_data import GraphData, GraphDataByType, WrittenRows
from glt.distributed.tensors.tensor import flush_all
from glt.sampler.order import check_random_seed, draw_random_seed


class Edges(NamedTuple):
    """Edges of some nodes: how many each node has (``num_edges [n]``, sums to E), and of all edges, node after node,
    the other end (``neighbor [E]``) and the id (``edge [E]``), int64."""

    num_edges: Tensor
    neighbor: Tensor
    edge: Tensor


class GraphRouter:
    """Asks the servers of a world. Edge types are positions in the schema; ids are int64, one-dimensional. IndexError
    names the first node or edge that there is not."""

    def __init__(self, world: World) -> None:
        assert world.data is not None
        self.world, self.data = world, world.data

    def ask(self, part: int, name: str, *args: Any) -> Reply:
        return self.world.call(self.world.reader_of(part), f"glt.graph.{name}", part, *args)

    def _ask_all(self, name: str, *args: Any) -> list[Any]:
        replies = [self.ask(part, name, *args) for part in range(self.data.num_partitions)]
        return [reply.result() for reply in replies]

    def _ask_owners(
        self, edge_type: int, nodes: Tensor, name: str, more: Callable[[Tensor], tuple[Any, ...]]
    ) -> list[tuple[Tensor, Any]]:
        """Asks the owners of nodes; ``more`` gives the further arguments for the nodes at some positions. Returns of
        each owner the positions of its nodes, and its answer."""
        book = self.data.node_books[self.data.ends[edge_type][0]]
        asked = [
            (positions, self.ask(part, name, edge_type, ids, *more(positions)))
            for part, ids, positions in _by_owner(book, nodes)
        ]
        return [(positions, reply.result()) for positions, reply in asked]

    def degrees(self, edge_type: int, nodes: Tensor, edge_dir: str) -> Tensor:
        if edge_dir != self.data.edge_dir:
            found: list[Tensor] = self._ask_all("degrees", edge_type, nodes, True)
            return torch.stack(found).sum(0)
        out = torch.empty(len(nodes), dtype=torch.int64)
        for positions, counts in self._ask_owners(edge_type, nodes, "degrees", lambda _: (False,)):
            out[positions] = counts
        return out

    def edge_owners(self, edge_type: int, ids: Tensor) -> Tensor:
        book = self.data.edge_books[edge_type]
        if book is None:
            return self.find_edges(edge_type, ids)[1]
        require_in_range("edge_ids", ids, self.data.num_edges_of[edge_type])
        return torch.from_numpy(book.owners(ids.numpy()))

    def find_edges(self, edge_type: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The ends of edges ``[2, n]``, and the partitions that they are in."""
        require_in_range("edge_ids", ids, self.data.num_edges_of[edge_type])
        book = self.data.edge_books[edge_type]
        if book is None:  # the owner is not known: all partitions are asked
            everywhere = torch.arange(len(ids))
            shares = [(part, ids, everywhere) for part in range(self.data.num_partitions)]
        else:
            shares = _by_owner(book, ids)
        replies = [self.ask(part, "find_edges", edge_type, owned) for part, owned, _ in shares]
        ends = torch.full((2, len(ids)), -1, dtype=torch.int64)
        parts = torch.full((len(ids),), -1, dtype=torch.int64)
        for (part, _, positions), reply in zip(shares, replies, strict=True):
            is_here, found = reply.result()
            where = positions[is_here]
            ends[:, where], parts[where] = found, part
        missing = (parts < 0).nonzero()
        if len(missing):
            at = int(missing[0])
            raise LookupError(f"edge_ids[{at}] = {int(ids[at])} is in no partition: their edge ids are not 0 to E - 1")
        return ends, parts

    def has_edges(self, edge_type: int, source: Tensor, target: Tensor) -> Tensor:
        centers, neighbors = (target, source) if self.data.edge_dir == "in" else (source, target)
        out = torch.empty(len(centers), dtype=torch.bool)
        for positions, found in self._ask_owners(edge_type, centers, "has_edges", lambda at: (neighbors[at],)):
            out[positions] = found
        return out

    def sample(
        self, edge_type: int, nodes: Tensor, num_neighbors: int, edge_dir: str, replace: bool, key: int, weighted: bool
    ) -> Edges:
        """One hop from nodes ``[n]``, each once, along edges of a type, in their order; arguments as in the loaders,
        ``key`` of the draws at least 0. Where partitions hold the edges of the other direction, all edges of the nodes
        are fetched and sampled here, with the same result."""
        if edge_dir != self.data.edge_dir:
            return self._sample_far(edge_type, nodes, num_neighbors, replace, key)
        answers = self._ask_owners(edge_type, nodes, "sample", lambda _: (num_neighbors, replace, key, weighted))
        return _in_order(len(nodes), [at for at, _ in answers], [Edges(*found) for _, found in answers])

    def _sample_far(self, edge_type: int, nodes: Tensor, num_neighbors: int, replace: bool, key: int) -> Edges:
        found = [Edges(*each) for each in self._ask_all("far_edges", edge_type, nodes)]
        row = torch.cat([torch.repeat_interleave(torch.arange(len(nodes)), each.num_edges) for each in found])
        center, ids = torch.cat([each.neighbor for each in found]), torch.cat([each.edge for each in found])
        # The order of the edges of a node is that of their ids, as in one partition.
        order = torch.from_numpy(np.lexsort((ids.numpy(), row.numpy())))
        indptr = np.zeros(len(nodes) + 1, np.int64)
        np.cumsum(np.bincount(row.numpy(), minlength=len(nodes)), out=indptr[1:])
        near, far = (self.data.num_nodes_of[end] for end in self.data.ends[edge_type])
        # Draws depend on the id of a node, so it keeps its id; of this array only the pages that are written exist.
        row_of = np.zeros(far, np.uint32)
        row_of[nodes.numpy()] = np.arange(len(nodes), dtype=np.uint32)
        csr = _core.Csr(indptr, center[order].numpy(), ids[order].numpy(), row_of, far, near)
        hop = _core.OneHop(csr, nodes.numpy(), num_neighbors, replace, key, 0, edge_type, with_edge=True)
        return Edges(*copied(hop, len(nodes)))


def _by_owner(book: PartitionBook | None, ids: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """Each partition that owns some of these ids, its ids, and their positions."""
    assert book is not None, "nodes have one"
    return [
        (part, torch.from_numpy(owned), torch.from_numpy(positions.astype(np.int64)))
        for part, owned, positions in by_owner(book, ids.numpy())
    ]


def _in_order(num_nodes: int, positions: list[Tensor], found: list[Edges]) -> Edges:
    """Puts the edges that several servers have answered into the order of the nodes."""
    if len(found) == 1 and bool((positions[0] == torch.arange(num_nodes)).all()):
        return found[0]
    if not found:
        empty = torch.empty(0, dtype=torch.int64)
        return Edges(torch.zeros(num_nodes, dtype=torch.int64), empty, empty)
    back = torch.empty(num_nodes, dtype=torch.int64)
    back[torch.cat(positions)] = torch.arange(num_nodes)
    num_edges, neighbor, edge = map(torch.cat, zip(*found, strict=True))
    count = num_edges[back]
    first = (num_edges.cumsum(0) - num_edges)[back] - (count.cumsum(0) - count)
    at = torch.arange(len(edge)) + torch.repeat_interleave(first, count)
    return Edges(count, neighbor[at], edge[at])


class GraphPartitionBook:
    """Owners of nodes and edges. :func:`node_split` and :func:`edge_split` take it.

    Attributes:
        is_relabelled: Whether each partition owns a range of ids.
        num_partitions, schema, manifest, num_nodes_of, num_edges_of, node_books, edge_books: As of a
            :class:`~glt.distributed.DistDataset`.
    """

    def __init__(self, router: GraphRouter) -> None:
        self._router, data = router, router.data
        self.num_partitions = data.num_partitions
        self.schema, self.manifest = data.schema, data.manifest
        self.is_relabelled = data.manifest.is_relabelled
        self.num_nodes_of, self.num_edges_of = data.num_nodes_of, data.num_edges_of
        self.node_books, self.edge_books = data.node_books, data.edge_books

    def node_owners(self, ids: Any, ntype: NodeType | None = None) -> Tensor:
        """The partition of each node ``[n]``, int64 (DGL's ``nid2partid``); IndexError names the first that there is
        not."""
        book = self._node_book(ntype)
        return torch.from_numpy(book.owners(as_ids(ids, "ids", book.num_ids).numpy()))

    def edge_owners(self, ids: Any, etype: EdgeType | None = None) -> Tensor:
        """The partition of each edge ``[n]``, int64 (DGL's ``eid2partid``); errors as of :meth:`node_owners`."""
        at = self.schema.edge_index(etype)
        return self._router.edge_owners(at, as_ids(ids, "ids", self.num_edges_of[at]))

    def nodes_of(self, partition: int, ntype: NodeType | None = None) -> Tensor:
        """Ids of the nodes that a partition owns, ascending ``[n]``, int64 (DGL's ``partid2nids``)."""
        partition = check_count("partition", partition, 0, self.num_partitions - 1)
        book = self._node_book(ntype)
        if book.offset is not None:
            return torch.arange(int(book.offset[partition]), int(book.offset[partition + 1]))
        return torch.from_numpy(np.flatnonzero(book.owners() == partition))

    def edges_of(self, partition: int, etype: EdgeType | None = None) -> Tensor:
        """Ids of the edges that a partition holds, ascending ``[n]``, int64 (DGL's ``partid2eids``)."""
        partition = check_count("partition", partition, 0, self.num_partitions - 1)
        found: Tensor = self._router.ask(partition, "edge_ids", self.schema.edge_index(etype)).result()
        return found

    def node_offsets(self, ntype: NodeType | None = None) -> Tensor | None:
        """First id of each partition, and the number of nodes ``[num_partitions + 1]``, int64; None unless the graph
        was relabelled."""
        offset = self._node_book(ntype).offset
        return None if offset is None else offset.clone()

    def edge_offsets(self, etype: EdgeType | None = None) -> Tensor | None:
        """As :meth:`node_offsets`, of edges."""
        book = self.edge_books[self.schema.edge_index(etype)]
        return None if book is None or book.offset is None else book.offset.clone()

    def _node_book(self, ntype: NodeType | None) -> PartitionBook:
        book = self.node_books[self.schema.node_index(ntype)]
        assert book is not None, "nodes have one"
        return book

    @says
    def __repr__(self) -> str:
        kind = "ranges" if self.is_relabelled else "arrays"
        return f"{self.num_partitions} partitions, {kind}"


INT32_MAX = 2**31 - 1


@short_traceback
class DistGraph:
    """A partitioned graph: in a notebook, under torchrun and with servers.

    Ids are those of the partitions; ``map_to_original`` of a :class:`DistDataset` and
    :func:`glt.partition.load_id_map` map those of a relabelled graph to the original ones. Names that are given to
    tensors belong to this object, not to others of the same graph.

    Args:
        name: Of the graph.
        part_config: The partitions: their directory, or the JSON file in it. Needed unless :func:`initialize` or the
            servers name them; it must then name the same ones.
        world: The job. Default: that of this process.

    Raises:
        RuntimeError: If :func:`initialize` was not called.
        ValueError: If no partitions are named, or others than those there are.
        glt.errors.PartitionError: If they are damaged or missing.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> graph
        DistGraph('ring', 40 nodes, 80 edges, 2 partitions)
        >>> graph.in_degrees(torch.tensor([3, 7])), graph.ndata["x"][torch.tensor([3])]
        (tensor([2, 2]), tensor([[3., 3., 3., 3.]]))
        >>> glt.distributed.finalize()
    """

    def __init__(
        self, name: str, part_config: str | os.PathLike[str] | None = None, *, world: World | None = None
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name = {name!r}: expected the graph's name")
        if part_config is not None:
            check_path("part_config", part_config, "the partitions, or of the JSON file in them")
        self.name = name
        self.world: World = open_world(name, part_config) if world is None else world
        if self.world.data is None:
            raise ValueError(f"{self.world} has no graph")
        self._data = data = self.world.data
        self.schema: Schema = data.schema
        self._router = GraphRouter(self.world)
        self._nodes = {t: GraphData(self.world, "node", at) for at, t in enumerate(self.schema.node_types)}
        self._edges = {t: GraphData(self.world, "edge", at) for at, t in enumerate(self.schema.edge_types)}

    @property
    def is_hetero(self) -> bool:
        return self.schema.is_hetero

    @property
    def ntypes(self) -> list[NodeType]:
        """Names of the node types; ``["node"]`` of a homogeneous graph."""
        return list(self.schema.node_types)

    @property
    def etypes(self) -> list[EdgeType]:
        """``(source type, relation, destination type)`` of each edge type."""
        return list(self.schema.edge_types)

    @short_traceback
    def num_nodes(self, ntype: NodeType | None = None) -> int:
        """Number of nodes of a type, of all types by default."""
        counts = self._data.num_nodes_of
        return sum(counts) if ntype is None else counts[self.schema.node_index(ntype)]

    @short_traceback
    def num_edges(self, etype: EdgeType | None = None) -> int:
        """Number of edges of a type, of all types by default."""
        counts = self._data.num_edges_of
        return sum(counts) if etype is None else counts[self.schema.edge_index(etype)]

    @short_traceback
    def number_of_nodes(self, ntype: NodeType | None = None) -> int:
        """DGL's other name of :meth:`num_nodes`."""
        return self.num_nodes(ntype)

    @short_traceback
    def number_of_edges(self, etype: EdgeType | None = None) -> int:
        """DGL's other name of :meth:`num_edges`."""
        return self.num_edges(etype)

    @property
    def ndata(self) -> Any:
        """Data of the nodes: a :class:`GraphData`, tensors by name; of a heterogeneous graph, such by node type."""
        return GraphDataByType(self._nodes, "node") if self.is_hetero else self._nodes[self.schema.node_types[0]]

    @property
    def edata(self) -> Any:
        """Data of the edges; as :attr:`ndata`, by edge type."""
        return GraphDataByType(self._edges, "edge") if self.is_hetero else self._edges[self.schema.edge_types[0]]

    def written_rows(self) -> WrittenRows:
        """What makes batches have the rows of :attr:`ndata` and :attr:`edata`."""
        return WrittenRows(self.world, [*self._nodes.values(), *self._edges.values()])

    def get_partition_book(self) -> GraphPartitionBook:
        """Owners of nodes and edges."""
        return GraphPartitionBook(self._router)

    def rank(self) -> int:
        """The number of this trainer."""
        return self.world.rank

    def barrier(self, timeout_s: float | None = None) -> None:
        """See :func:`glt.distributed.barrier`."""
        flush_all(self.world)
        self.world.barrier(timeout_s)

    @short_traceback
    def find_edges(self, edge_ids: Any, etype: EdgeType | None = None) -> Tensor:
        """Sources and destinations ``[2, n]``, int64, of edges: ids ``[n]`` or a mask. ``etype`` None: the only one.
        IndexError names the first edge that there is not."""
        at = self.schema.edge_index(etype)
        return self._router.find_edges(at, as_ids(edge_ids, "edge_ids", self._data.num_edges_of[at]))[0]

    @short_traceback
    def in_degrees(self, nodes: Any = None, etype: EdgeType | None = None) -> Tensor:
        """Edges of a type that end in nodes ``[n]``, int64. ``nodes`` are ids or a mask (default: all), ``etype`` None
        the only type. Where partitions hold out-edges (``by_src``), all of them count. IndexError names the first node
        that there is not."""
        return self._degrees(nodes, etype, "in")

    @short_traceback
    def out_degrees(self, nodes: Any = None, etype: EdgeType | None = None) -> Tensor:
        """Edges of a type that begin in nodes ``[n]``, int64; as :meth:`in_degrees`."""
        return self._degrees(nodes, etype, "out")

    def _degrees(self, nodes: Any, etype: EdgeType | None, edge_dir: str) -> Tensor:
        at = self.schema.edge_index(etype)
        num_nodes = self._data.num_nodes_of[self.schema.ends(edge_dir)[at][0]]
        ids = torch.arange(num_nodes) if nodes is None else as_ids(nodes, "nodes", num_nodes)
        return self._router.degrees(at, ids, edge_dir)

    @short_traceback
    def has_edges_between(self, sources: Any, targets: Any, etype: EdgeType | None = None) -> Tensor:
        """Which pairs of sources ``[n]`` and targets ``[n]`` are edges ``[n]``, bool. Raises ValueError if there are
        not as many targets as sources, IndexError, which names the first, if there is no such node."""
        at = self.schema.edge_index(etype)
        source_type, _, target_type = self.schema.edge_types[at]
        num_sources, num_targets = self.num_nodes(source_type), self.num_nodes(target_type)
        source, target = as_ids(sources, "sources", num_sources), as_ids(targets, "targets", num_targets)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} sources and {len(target)} targets: expected as many")
        require_in_range("sources", source, num_sources)
        require_in_range("targets", target, num_targets)
        return self._router.has_edges(at, source, target)

    @short_traceback
    def sample_neighbors(
        self,
        seeds: Any,
        fanout: Any,
        edge_dir: str = "in",
        replace: bool = False,
        prob: str | None = None,
        *,
        random_seed: int | None = None,
    ) -> Data | HeteroData:
        """Samples one hop from nodes, for samplers of one's own; the loaders sample all hops in other processes.

        The sample is a function of the graph, the seeds and the random seed, not of the partitions. Edges in the
        direction that partitions were not assigned by (``'out'`` where they are ``by_dst``) are fetched from all
        partitions first.

        Args:
            seeds: Ids ``[n]``, or a mask; of a heterogeneous graph, a dict of such by node type. Equal ones get the
                same edges, once each.
            fanout: Edges per seed, -1: all; of a heterogeneous graph a number for all edge types, or a dict by edge
                type, where types that it does not name are left out.
            edge_dir: ``'in'``: edges that end in the seeds; ``'out'``: edges that begin there.
            replace: Draw with replacement.
            prob: Any name: draw proportionally to the weights that the graph was partitioned with.
            random_seed: Of the draws. Default: one drawn from torch's generator, which ``torch.manual_seed`` fixes.

        Returns:
            The graph of all nodes with the sampled edges: ``edge_index [2, E]`` of ids, source first, and ``e_id [E]``;
            by edge type of a heterogeneous graph. Edges of a seed follow each other, in the order of the seeds.

        Raises:
            TypeError, ValueError, KeyError: If an argument is unusable; names it.
            IndexError: If there is no such node; names the first.
        """
        if not isinstance(edge_dir, str) or edge_dir not in ("in", "out"):
            raise ValueError(f"edge_dir = {edge_dir!r}: expected 'in' or 'out'")
        check_flag("replace", replace)
        by_type = self._by_type(seeds, "seeds", self.schema.node_index, self._data.num_nodes_of)
        for at, ids in by_type.items():
            require_in_range("seeds", ids, self._data.num_nodes_of[at])
            by_type[at] = unique_in_order(ids)
        fanouts = self._fanouts(fanout)
        self._require_weights(prob, edge_dir, fanouts)
        key = _core.batch_key(draw_random_seed() if random_seed is None else check_random_seed(random_seed), 0, 0)
        found: dict[EdgeType, tuple[Tensor, Tensor]] = {}
        for at, edge_type in enumerate(self.schema.edge_types):
            centers, num_neighbors = by_type.get(self.schema.ends(edge_dir)[at][0]), fanouts[at]
            if centers is None or num_neighbors is None:
                continue
            weighted = prob is not None and self._data.manifest.edge_types[at].has_weight
            edges = self._router.sample(at, centers, num_neighbors, edge_dir, replace, key, weighted)
            center = torch.repeat_interleave(centers, edges.num_edges)
            ends = (edges.neighbor, center) if edge_dir == "in" else (center, edges.neighbor)
            found[edge_type] = torch.stack(ends), edges.edge
        return self._as_graph(found)

    def _by_type(self, given: Any, name: str, index: Callable[[Any], int], counts: Sequence[int]) -> dict[int, Tensor]:
        if not isinstance(given, Mapping):
            at = index(None)  # raises, naming the types, if there are several
            return {at: as_ids(given, name, counts[at])}
        if not self.is_hetero:
            raise TypeError(f"{name} are a dict by type: expected ids, the graph being homogeneous")
        named = [(index(type_), ids, f"{name}[{type_!r}]") for type_, ids in given.items()]
        return {at: as_ids(ids, what, counts[at]) for at, ids, what in named}

    def _fanouts(self, fanout: Any) -> list[int | None]:
        if isinstance(fanout, Mapping):
            given: list[int | None] = [None] * len(self.schema.edge_types)
            for edge_type, each in fanout.items():
                given[self.schema.edge_index(edge_type)] = each
        else:
            given = [fanout] * len(self.schema.edge_types)
        return [None if each is None else check_count("fanout", each, -1, INT32_MAX) for each in given]

    def _require_weights(self, prob: str | None, edge_dir: str, fanouts: list[int | None]) -> None:
        if prob is None:
            return
        if not isinstance(prob, str):
            raise TypeError(f"prob = {prob!r}: expected a name, for the weights that the graph was partitioned with")
        if not any(entry.has_weight for entry in self._data.manifest.edge_types):
            raise ValueError(f"prob = {prob!r}: the graph has no weights; partition it with edge_weight=...")
        if edge_dir != self._data.edge_dir:
            raise ValueError(
                f"prob = {prob!r} with edge_dir = {edge_dir!r}: partitions keep the weights of {self._data.edge_dir!r} "
                "edges only; partition with the other edge_assign_strategy"
            )

    @short_traceback
    def edge_subgraph(self, edges: Any, relabel_nodes: bool = True) -> Data | HeteroData:
        """The graph of some edges.

        Args:
            edges: Ids ``[n]``, or a mask; of a heterogeneous graph, a dict of such by edge type.
            relabel_nodes: True: nodes are those of the edges, ascending, numbered from 0, and ``n_id`` has their ids.
                False: all nodes, with their ids.

        Returns:
            ``edge_index [2, n]`` in the order of ``edges``, and ``e_id [n]``; by edge type of a heterogeneous graph.

        Raises:
            IndexError: If there is no such edge; names the first.
        """
        check_flag("relabel_nodes", relabel_nodes)
        given = self._by_type(edges, "edges", self.schema.edge_index, self._data.num_edges_of)
        found = {
            self.schema.edge_types[at]: (self._router.find_edges(at, ids)[0], ids) for at, ids in sorted(given.items())
        }
        if not relabel_nodes:
            return self._as_graph(found)
        none = torch.empty(0, dtype=torch.int64)
        of_type = {t: [none] for t in self.schema.node_types}
        for (source, _, target), (ends, _) in found.items():
            of_type[source].append(ends[0])
            of_type[target].append(ends[1])
        nodes = {t: torch.cat(ids).unique() for t, ids in of_type.items()}
        for edge_type, (ends, ids) in found.items():
            local = [torch.searchsorted(nodes[edge_type[2 * side]], ends[side]) for side in (0, 1)]
            found[edge_type] = torch.stack(local), ids
        return self._as_graph(found, nodes)

    def _as_graph(
        self, found: Mapping[EdgeType, tuple[Tensor, Tensor]], nodes: Mapping[NodeType, Tensor] | None = None
    ) -> Data | HeteroData:
        """A graph of ends and ids of edges; ``nodes``: ids of its nodes, if not all."""
        graph = HeteroData() if self.is_hetero else Data()
        if not (found or self.is_hetero):
            none = torch.empty((2, 0), dtype=torch.int64)
            found = {self.schema.edge_types[0]: (none, none[0])}
        for edge_type, (ends, ids) in found.items():
            store = graph[edge_type] if self.is_hetero else graph
            store.edge_index, store.e_id = ends, ids
        for node_type, num_nodes in zip(self.schema.node_types, self._data.num_nodes_of, strict=True):
            store = graph[node_type] if self.is_hetero else graph
            if nodes is not None:
                store.n_id = nodes[node_type]
            store.num_nodes = num_nodes if nodes is None else len(nodes[node_type])
        return graph

    @says
    def __repr__(self) -> str:
        nodes = typed(sum(self._data.num_nodes_of), "nodes", len(self.schema.node_types))
        edges = typed(sum(self._data.num_edges_of), "edges", len(self.schema.edge_types))
        return f"{self.name!r}, {nodes}, {edges}, {self._data.num_partitions} partitions"


@short_traceback
def sample_neighbors(
    g: DistGraph,
    nodes: Any,
    fanout: Any,
    edge_dir: str = "in",
    prob: str | None = None,
    replace: bool = False,
    *,
    random_seed: int | None = None,
) -> Data | HeteroData:
    """Samples one hop from nodes: :meth:`DistGraph.sample_neighbors`, with DGL's arguments in DGL's order.

    Args:
        g: The graph.
        nodes: Ids ``[n]``, or a mask; of a heterogeneous graph, a dict of such by node type.
        fanout, edge_dir, prob, replace, random_seed: See the method.

    Returns:
        The graph of all nodes with the sampled edges, for :func:`to_block`.

    Raises:
        The same as the method; TypeError also if ``g`` is no :class:`DistGraph`.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> glt.distributed.sample_neighbors(graph, torch.tensor([5]), 2).edge_index
        tensor([[3, 4],
                [5, 5]])
        >>> glt.distributed.finalize()
    """
    if not isinstance(g, DistGraph):
        raise TypeError(f"g is a {type(g).__name__}: expected a DistGraph")
    return g.sample_neighbors(nodes, fanout, edge_dir, replace, prob, random_seed=random_seed)
