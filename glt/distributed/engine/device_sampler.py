"""Sampling and lookup of rows on a GPU, and which sampler a loader gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.device import Accelerator, Event
from glt.distributed.engine.client_rows import ClientRows
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import (
    LONG,
    EdgesWanted,
    PartitionRouter,
    Partitions,
    RowsPart,
)
from glt.distributed.engine.requests import OneHopRequest
from glt.distributed.engine.row_lookup import RowCache, RowLookup, RowWindow, in_message
from glt.distributed.engine.sampler import STATS, DistNeighborSampler, SampledBatch
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.engine.seeds import BatchStart
from glt.distributed.wire.threads import ConcurrentEventLoop
from glt.sampler.device import DeviceSampling
from glt.sampler.device_batch import DeviceBatch, Edges, Nodes

_Ids = dict[tuple[str, int], Tensor]


class _DeviceSampler(DistNeighborSampler):
    """What the samplers of a GPU share: a stream, and the kernels, which read the partitions that are read here.

    Batches go to tensors of the GPU, which are used where they are; ``staged`` ones to host memory that a channel
    passes on. Then the CPU looks rows up, straight into it: they need not cross the bus twice more. A dataset that was
    loaded for the CPU, or an option that kernels lack, is a ValueError.
    """

    def __init__(self, place: Accelerator, staged: bool, *sampler: Any, **options: Any) -> None:
        super().__init__(*sampler, **options)
        self.accelerator, self.staged, self.stream = place, staged, place.new_stream()
        self._local = self.dataset.local_graph(self.partitions.local)
        self._kernel_config = replace(self.config, with_edge=self._fetches_edges)
        with place.on(self.stream):
            self._sampling = self._local.kernels(self._kernel_config, place)


class DeviceNeighborSampler(_DeviceSampler):
    """A :class:`DistNeighborSampler` whose batches the kernels of a GPU make, bit for bit those of the CPU.

    All partitions are read here. Seeds, negatives and times are looked at by the CPU; everything from the first hop
    on is asked for on one stream, and waited for once per batch, for its counts, on a thread of the loop. Several
    batches are under way at once; what one asks for comes after what the one before it asked for. Staged batches go to
    pinned memory; of tables that have rows in device memory the GPU looks up all rows.
    """

    def __init__(self, place: Accelerator, staged: bool, *sampler: Any) -> None:
        super().__init__(place, staged, *sampler)
        self.is_local = False  # not by the CPU
        own = self.dataset.own
        self._tables = [
            (kind, type_, name)
            for kind, by_type in (("node", own.node_tables), ("edge", own.edge_tables))
            for type_, tables in enumerate(by_type if self.collect_features else ())
            for name in tables
        ]

    async def sample(self, start: BatchStart, batch_key: int, window: RowWindow | None = None) -> SampledBatch:
        stats = dict.fromkeys(STATS, 0.0) | start.stats
        self.partitions.require_sound()
        exclusions = start.native_exclusions(self._num_edge_types) if start.exclusions else None

        def begin() -> DeviceBatch:
            given = start.seeds, start.seed_time, batch_key, exclusions, start.shared_key
            with self.accelerator.on(self.stream):
                return self._sampling.begin(self._kernel_config, *given)

        try:
            batch = await self.partitions.timed(stats, "sampling_s", LONG, begin)
        except (MemoryError, torch.cuda.OutOfMemoryError) as error:
            raise self._no_room(start) from error
        sampled = self._sampled(batch, start, [], stats)
        for kind, type_, name in self._tables:
            table = self._local.tables.feature(kind, type_, name)
            count = batch.num_nodes(type_) if kind == "node" else batch.num_edges(type_)
            sampled.specs[in_message(name, kind, type_)] = (table.dtype, (count, *table.row_shape))
        return sampled

    async def fill(self, sampled: SampledBatch, out: dict[str, Tensor]) -> Event | None:
        """As :meth:`DistNeighborSampler.fill`; unless staged, ``out`` are tensors of the GPU, but for ``stats`` and the
        counts per hop."""
        timed, stats = self.partitions.timed, sampled.stats
        ids: _Ids = {}
        ready = await timed(stats, "gathering_s", LONG, self._fill_there, sampled, out, ids)
        if self.staged:
            await timed(stats, "gathering_s", LONG, self._fill_rest, ready, out, ids)
        sampled.write_stats(out)
        return None if self.staged else ready

    def _fill_there(self, sampled: SampledBatch, out: dict[str, Tensor], ids: _Ids) -> Event:
        """Asks for all that the GPU does of a batch; returns the event after it."""
        batch, start, place = sampled.batch, sampled.start, self.accelerator
        made: dict[str, Tensor] = {}  # on the GPU, on its way to host memory

        def room(name: str) -> Tensor:
            if not self.staged:
                return out[name]
            made[name] = torch.empty_like(out[name], device=place.device)
            return made[name]

        with place.on(self.stream):
            nodes: dict[int, Nodes] = {}
            edges: dict[int, Edges] = {}
            for t in range(self._num_node_types):
                node, tree = room(f"n_id/n{t}"), room(f"batch/n{t}") if self.config.disjoint else None
                nodes[t], ids["node", t] = (node, tree), node
            for r in range(self._num_edge_types):
                row, col = room(f"edge_index/e{r}")
                edge = None
                if self._fetches_edges:
                    given = self.config.with_edge
                    edge = room(f"e_id/e{r}") if given else torch.empty_like(row, memory_format=torch.contiguous_format)
                    ids["edge", r] = edge
                edges[r] = row, col, edge
            batch.copy_out(nodes, edges)
            for _, tree in nodes.values():
                if tree is not None and start.example is not None:
                    tree.copy_(start.example.to(place.device, non_blocking=True)[tree])
            for name, tensor in start.known.items():
                out[name].copy_(tensor, non_blocking=True)
            for kind, type_, name in self._tables:
                if not self.staged or self._is_hot(kind, type_, name):
                    target = room(in_message(name, kind, type_))
                    self._local.tables.gather(place, (kind, type_, name), ids[kind, type_], target)
            for t, labels in self._labels() if not self.staged else ():
                labels.gather_on(place, ids["node", t], out[in_message("y", "node", t)], trusted=True)
            for name, tensor in made.items():
                out[name].copy_(tensor, non_blocking=True)
            for (kind, type_), tensor in list(ids.items()) if self.staged else ():
                there = f"{kind[0]}_id/{kind[0]}{type_}"
                ids[kind, type_] = out[there] if there in out else tensor.cpu()
            self._fill_counts(batch, out)
            self._sampling.end(batch)  # from now on it may be another thread's
            return place.record()

    def _is_hot(self, kind: str, type_: int, name: str) -> bool:
        """Whether rows of a table are in device memory."""
        tables, place = self._local.tables, self.accelerator
        return tables.share(place)[0] > 0 or tables.copies(place, kind, type_, name) is not None

    def _fill_rest(self, ready: Event, out: dict[str, Tensor], ids: _Ids) -> None:
        """What the CPU looks up, once the ids are here."""
        ready.synchronize()
        for kind, type_, name in self._tables:
            if not self._is_hot(kind, type_, name):
                of = ids[kind, type_].numpy()
                RowLookup(self.dataset, self.partitions.local, kind, type_, of, name).gather(out)
        for t, labels in self._labels():
            labels.gather(ids["node", t], out[in_message("y", "node", t)])


# A batch on a GPU whose rows come from several partitions: those here are there already, the others are brought.


# As of glt.distributed.engine.partitions.RowsPart; counts, neighbours and edges may be int64 tensors of the device.
_Part = tuple[np.ndarray, Any, Any, Any]


class StitchedBatch:
    """Puts the rows of each hop together, and numbers nodes in the order in which the CPU would meet them.

    It answers what :class:`DistNeighborSampler` asks of ``_core.Batch``, with the same results. All that grows with the
    number of edges is on the device: rows are sorted by place in the frontier, nodes are found again by sorting what
    they are called, no table has an element per node of the graph. The frontiers come to the host, which asks other
    partitions for their rows; that, and sizes that the device alone knows, are about four waits per hop and node type.
    """

    def __init__(
        self,
        num_nodes: Sequence[int],
        ends: Sequence[tuple[int, int]],
        place: Accelerator,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._num_nodes, self._ends, self._place, self._stream = tuple(num_nodes), tuple(ends), place, stream

    def start(
        self, seeds: Sequence[tuple[int, np.ndarray]], with_edge: bool, disjoint: bool, seed_time: np.ndarray | None
    ) -> None:
        """Starts a batch; ``seed_time`` is with those who sample."""
        self._with_edge = with_edge
        nothing = np.empty(0, np.int64)
        by_type, trees = ([[nothing] for _ in self._num_nodes] for _ in range(2))
        num_trees = 0
        for s, (t, ids) in enumerate(seeds):
            self._require_ids(t, ids, "seeds" if len(seeds) == 1 else f"seeds[{s}]")
            by_type[t].append(ids)
            trees[t].append(np.arange(num_trees, num_trees + len(ids)))
            num_trees += len(ids)
        if disjoint and num_trees * max(self._num_nodes, default=0) >= 2**63:
            raise ValueError(f"a disjoint batch of {num_trees} seeds, of {max(self._num_nodes)} nodes: use fewer seeds")
        with self._place.on(self._stream):
            self._node = [self._brought(np.concatenate(each)) for each in by_type]
            self._tree = [self._brought(np.concatenate(each)) for each in trees] if disjoint else None
            self._begin = [0] * len(self._num_nodes)  # of the frontier
            self._per_hop = [[len(node)] for node in self._node]
            self._drop_edges()
            self._found: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}  # of this hop, by edge type

    def _drop_edges(self) -> None:
        none = torch.empty(0, dtype=torch.int64, device=self._place.device)
        nothing = none, none, none if self._with_edge else None
        self._edges: list[list[tuple[Tensor, Tensor, Tensor | None]]] = [[nothing] for _ in self._ends]  # by hop
        self._hop_edges: list[list[int]] = [[] for _ in self._ends]

    def _require_ids(self, node_type: int, ids: np.ndarray, name: str) -> None:
        bad = np.flatnonzero((ids < 0) | (ids >= self._num_nodes[node_type]))
        if len(bad):
            raise IndexError(
                f"{name}[{bad[0]}] = {ids[bad[0]]} is outside [0, {self._num_nodes[node_type]}) (num_nodes = "
                f"{self._num_nodes[node_type]})"
            )

    def _brought(self, array: Any) -> Tensor:
        """Integers on the device, as int64."""
        if isinstance(array, Tensor):
            return array
        return brought(torch.from_numpy(np.ascontiguousarray(array, np.int64)), self._place)

    def _keys(self, node_type: int, node: Tensor, tree: Tensor | None) -> Tensor:
        """What nodes are called: in a disjoint batch a node is one per tree."""
        return node if tree is None else tree * self._num_nodes[node_type] + node

    def frontier(self, node_type: int) -> np.ndarray:
        """Ids of the nodes that the next hop expands, int64, on the host; waits for the device."""
        with self._place.on(self._stream):
            return self._node[node_type][self._begin[node_type] :].cpu().numpy()

    def frontier_trees(self, node_type: int) -> np.ndarray:
        """Their trees, uint32."""
        assert self._tree is not None, "only disjoint batches have trees"
        with self._place.on(self._stream):
            return self._tree[node_type][self._begin[node_type] :].cpu().numpy().astype(np.uint32)

    def expand_from(self, edge_type: int, parts: Sequence[_Part]) -> None:
        """Takes one hop of an edge type that partitions sampled: all rows of the frontier, each once."""
        expanded, found = self._ends[edge_type]
        with self._place.on(self._stream):
            begin = self._begin[expanded]
            at, neighbor, edge = self._stitched(parts, len(self._node[expanded]) - begin, found)
            self._found[edge_type] = neighbor, at + begin, edge

    def _stitched(self, parts: Sequence[_Part], num_rows: int, found: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The edges of all parts in the order of the rows: place of the row, neighbour, edge id."""
        covered = np.concatenate([position for position, *_ in parts])
        if len(covered) != num_rows or np.bincount(covered, minlength=num_rows).max(initial=0) > 1:
            raise ValueError(f"{len(covered)} rows were answered: expected each of the {num_rows} asked for, once")
        at, neighbors, edges = [], [], []
        for p, (position, count, neighbor, edge) in enumerate(parts):
            if not isinstance(neighbor, Tensor):  # what kernels sampled, they have checked
                if int(count.sum(dtype=np.int64)) != len(neighbor) or len(count) != len(position):
                    raise ValueError(f"part {p} has {len(neighbor)} edges, its counts add up to {count.sum()}")
                self._require_ids(found, neighbor, f"neighbours of part {p}")
            rows = self._brought(position)
            at.append(torch.repeat_interleave(rows, self._brought(count), output_size=len(neighbor)))
            neighbors.append(self._brought(neighbor))
            if self._with_edge:
                edges.append(self._brought(edge))
        if len(parts) == 1:
            return at[0], neighbors[0], edges[0] if edges else None
        places = torch.cat(at)
        order = torch.argsort(places, stable=True)  # a row is of one part, and its edges are in order there
        return places[order], torch.cat(neighbors)[order], torch.cat(edges)[order] if edges else None

    def end_hop(self) -> None:
        """Numbers the nodes that were found; those that are new are the next frontier."""
        with self._place.on(self._stream):
            by_type: list[list[int]] = [[] for _ in self._num_nodes]
            for r in sorted(self._found):
                by_type[self._ends[r][1]].append(r)
            trees = self._tree  # those of this hop's centers are known
            for t, edge_types in enumerate(by_type):
                self._begin[t] = len(self._node[t])
                if edge_types:
                    self._number(t, edge_types, trees)
                self._per_hop[t].append(len(self._node[t]) - self._begin[t])
            for r, counts in enumerate(self._hop_edges):
                counts.append(len(self._found[r][0]) if r in self._found else 0)
            self._found = {}

    def _number(self, node_type: int, edge_types: Sequence[int], trees: Sequence[Tensor] | None) -> None:
        """Gives the neighbours of these edge types their local ids, and new nodes of the type a place."""
        neighbors = [self._found[r][0] for r in edge_types]
        node, tree = torch.cat(neighbors), None
        if trees is not None:
            tree = torch.cat([trees[self._ends[r][0]][self._found[r][1]] for r in edge_types])
        known = self._node[node_type]
        keys = self._keys(node_type, node, tree)
        before = self._keys(node_type, known, None if self._tree is None else self._tree[node_type])
        # Of all that has one name, the first: a node that is known, or the first neighbour to be it.
        _, group = torch.unique(torch.cat([before, keys]), return_inverse=True)
        place = torch.arange(len(group), device=self._place.device)
        first = torch.full((len(group),), len(group), device=self._place.device)
        first = first.scatter_reduce(0, group, place, "amin")[group][len(known) :]
        is_new = first == place[len(known) :]
        rank = torch.cumsum(is_new, 0) - 1
        local = torch.where(first < len(known), first, len(known) + rank[(first - len(known)).clamp(min=0)])
        self._node[node_type] = torch.cat([known, node[is_new]])
        if self._tree is not None and tree is not None:
            # Not in place: edge types that come later still look up the trees of centers in the list of before.
            self._tree = [*self._tree]
            self._tree[node_type] = torch.cat([self._tree[node_type], tree[is_new]])
        for r, row in zip(edge_types, local.split([len(each) for each in neighbors]), strict=True):
            self._edges[r].append((row, *self._found[r][1:]))

    def begin_induce(self) -> None:
        """Drops the sampled edges: :meth:`induce_from` brings those among the nodes."""
        self._drop_edges()

    def induce_from(self, edge_type: int, parts: Sequence[_Part]) -> None:
        """Takes the edges of a type among the nodes; as :meth:`expand_from`, by place among all nodes."""
        expanded, found = self._ends[edge_type]
        with self._place.on(self._stream):
            at, neighbor, edge = self._stitched(parts, len(self._node[expanded]), found)
            known, order = torch.sort(self._node[found], stable=True)  # of seeds that come twice, the first
            where = torch.searchsorted(known, neighbor)
            if len(neighbor) and not bool((known[where.clamp(max=len(known) - 1)] == neighbor).all()):
                raise ValueError(f"edge type {edge_type}: a neighbour is not in the batch, of which edges were asked")
            self._edges[edge_type].append((order[where], at, edge))

    def _joined(self, edge_type: int) -> tuple[Tensor, Tensor, Tensor | None]:
        rows, cols, edges = zip(*self._edges[edge_type], strict=True)
        return torch.cat(rows), torch.cat(cols), torch.cat(edges) if self._with_edge else None

    def nodes(self, node_type: int) -> np.ndarray:
        """Ids of all nodes so far, int64, on the host; waits for the device."""
        with self._place.on(self._stream):
            return self._node[node_type].cpu().numpy()

    def edges(self, edge_type: int) -> np.ndarray:
        """Ids of all edges so far, int64, on the host; waits for the device."""
        with self._place.on(self._stream):
            edge = self._joined(edge_type)[2]
            assert edge is not None, "asked for only where the batch has them"
            return edge.cpu().numpy()

    def num_nodes(self, node_type: int) -> int:
        return len(self._node[node_type])

    def num_edges(self, edge_type: int) -> int:
        return sum(len(row) for row, *_ in self._edges[edge_type])

    def num_sampled_nodes(self, node_type: int) -> list[int]:
        """Nodes per hop, seeds first."""
        return self._per_hop[node_type]

    def num_sampled_edges(self, edge_type: int) -> list[int]:
        """Edges per hop."""
        return self._hop_edges[edge_type]

    def copy_nodes(self, node_type: int, node: Any, tree: Any) -> None:
        """Writes ids and trees into int64 tensors or arrays, wherever they are; on the current stream."""
        _as_tensor(node).copy_(self._node[node_type])
        if tree is not None:
            assert self._tree is not None, "only disjoint batches have trees"
            _as_tensor(tree).copy_(self._tree[node_type])

    def copy_edges(self, edge_type: int, row: Any, col: Any, edge: Any) -> None:
        """Writes local ids of neighbours and of expanded nodes, and edge ids; as :meth:`copy_nodes`."""
        for into, found in zip((row, col, edge), self._joined(edge_type), strict=True):
            if into is not None:
                _as_tensor(into).copy_(found)  # type: ignore[arg-type]


def _as_tensor(of: Any) -> Tensor:
    return torch.from_numpy(of) if isinstance(of, np.ndarray) else of


# Sampling on a GPU of partitions that are read here, in batches that reach into partitions elsewhere.


T = TypeVar("T")


class DeviceParts(Partitions):
    """:class:`Partitions` of which those that are here are sampled by the kernels of a GPU, on one stream.

    Edges among the nodes of a batch are looked for by the CPU; the GPU puts them together.
    """

    accelerator: Accelerator
    stream: torch.cuda.Stream | None
    sampling: DeviceSampling

    async def timed(self, stats: dict[str, float], stage: str, size: int, call: Callable[..., T], *args: Any) -> T:
        """As :meth:`Partitions.timed`; all calls run off the loop, since all wait for the GPU, however little they ask
        for: behind what it does for other batches, and for the trainer."""
        return await super().timed(stats, stage, LONG, call, *args)

    def _read_here(self, wanted: Sequence[EdgesWanted], parts: list[list[RowsPart]]) -> None:
        for positions, part, request in wanted:
            if not isinstance(request, OneHopRequest):
                super()._read_here([(positions, part, request)], parts)
                continue
            with self.accelerator.on(self.stream):
                rows = self.sampling.sample_rows(
                    request.edge_type,
                    request.nodes,
                    num_neighbors=request.num_neighbors,
                    hop=request.hop,
                    batch_key=request.batch_key,
                    tree=request.tree,
                    seed_time=request.seed_time,
                    excluded=request.native_excluded,
                    time_window=request.time_window,
                    half_life=request.half_life,
                    shared_key=request.shared_key,
                )
            # Tensors of the device, which StitchedBatch takes as they are.
            parts[request.edge_type].append((positions, *rows))  # type: ignore[arg-type]


class DevicePartitionSampler(_DeviceSampler):
    """A :class:`DistNeighborSampler` for a GPU where some partitions are elsewhere; the batches are the CPU's.

    Each hop, the kernels sample the rows of the nodes whose partitions are here while the owners of the others sample
    theirs, which come to the GPU through pinned memory; there the hop is put together (:class:`StitchedBatch`). The
    host waits for the GPU several times per hop, on a thread of the loop: for counts that the GPU alone knows, and for
    the frontier, since it is the host that asks others. Rows of tables come likewise.
    """

    partitions: DeviceParts

    def __init__(self, place: Accelerator, staged: bool, *sampler: Any) -> None:
        super().__init__(place, staged, *sampler, partitions=DeviceParts)
        self.partitions.accelerator, self.partitions.stream = place, self.stream
        self.partitions.sampling = self._sampling

    def _new_batch(self) -> StitchedBatch:
        return StitchedBatch(self.dataset.num_nodes_of, self.dataset.ends, self.accelerator, self.stream)

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        with self.accelerator.on(self.stream):
            if self.staged:
                super()._fill_here(sampled, out)
                return
            self._fill_batch(sampled, out)
            for rows in sampled.rows:
                self._gather_there(rows, out)
                rows.done()
            for t, labels in self._labels():
                into = out[in_message("y", "node", t)]
                labels.gather_on(self.accelerator, out[f"n_id/n{t}"], into, trusted=True)

    def _finished(self, sampled: SampledBatch) -> Event | None:
        if self.staged:
            return None  # what copies to host memory has waited for it
        with self.accelerator.on(self.stream):
            return self.accelerator.record()

    def _gather_there(self, rows: RowLookup, out: dict[str, Tensor]) -> None:
        """Looks up what the partitions here have, copies of others' rows too, and brings the rest."""

        def there(arrays: Sequence[Any]) -> Tensor:
            return brought(torch.from_numpy(np.concatenate(arrays)), self.accelerator)

        here = [(ids, positions) for _, ids, positions in rows.local]
        lists = {False: here, True: here + rows.copied_ids}
        wanted = {with_copies: [*map(there, zip(*some, strict=True))] for with_copies, some in lists.items() if some}
        for name in rows.names:
            into, table = out[in_message(name, rows.kind, rows.type)], (rows.kind, rows.type, name)
            with_copies = self._local.tables.copies(self.accelerator, *table) is not None
            if (found := wanted.get(with_copies)) is not None:
                self._local.tables.gather(self.accelerator, table, found[0], into, found[1])
            brought_rows, brought_at = rows.gather_from_elsewhere(name, with_copies=not with_copies)
            if brought_rows.numel():
                at = brought(torch.from_numpy(brought_at.astype(np.int64)), self.accelerator)
                _as_bytes(into).index_copy_(0, at, _as_bytes(brought(brought_rows, self.accelerator)))


def brought(tensor: Tensor, place: Accelerator) -> Tensor:
    """A copy on the GPU, by way of pinned memory, without waiting."""
    if place.is_host:
        return tensor
    return tensor.pin_memory().to(place.device, non_blocking=True)


def _as_bytes(rows: Tensor) -> Tensor:
    """Rows of any dtype and shape as ``[n, bytes of a row]``: all move alike."""
    return rows.reshape(len(rows), -1).view(torch.uint8)


def sampler_of(
    job: SamplingJob,
    place: Accelerator | None,
    dataset: DistDataset,
    others: Mapping[int, LocalPartition],
    router: PartitionRouter | None,
    loop: ConcurrentEventLoop,
    *,
    staged: bool = True,
    spare: list[_core.Batch] | None = None,
    caches: Sequence[RowCache | None] | None = None,
    clients: Sequence[ClientRows | None] | None = None,
) -> DistNeighborSampler:
    """Returns what samples for a loader at ``place``; None: the CPU. A GPU samples from the whole graph where all of it
    is read here, and else asks for the rest. ``spare``, ``caches`` and ``clients`` (for the CPU alone) are as in
    :class:`DistNeighborSampler`."""
    sampler = dataset, job.config, router, loop, job.collect_features, others
    if place is None or job.seeds.is_whole_batch:
        return DistNeighborSampler(*sampler, spare, caches, clients)
    is_whole = len({dataset.partition_idx, *others}) == dataset.num_partitions
    return (DeviceNeighborSampler if is_whole else DevicePartitionSampler)(place, staged, *sampler, None, caches)
