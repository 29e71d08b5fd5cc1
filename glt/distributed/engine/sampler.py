"""Multi-hop sampling and feature lookup over partitions, many batches at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._reprs import says
from glt._spans import SPANS, at_hop, book
from glt.channel.message import MessageLayout
from glt.data.device import Event
from glt.data.feature import Feature
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
from glt.distributed.engine.requests import InducedRequest, OneHopRequest
from glt.distributed.engine.row_lookup import AskingBatch, RowCache, RowLookup, RowWindow, Specs, in_message
from glt.distributed.engine.seeds import BatchStart
from glt.distributed.wire.threads import ConcurrentEventLoop
from glt.sampler.config import SamplingConfig

if TYPE_CHECKING:
    from glt.sampler.device_batch import DeviceBatch

# What a batch reports about its own making, in this order, as float64 in the message's "stats".
STATS = (
    "sampling_s",
    "remote_s",
    "gathering_s",
    "disk_s",
    "blocked_s",
    "num_remote_nodes",
    "num_cached_nodes",
    "num_window_nodes",
    "num_disk_rows",
    "num_hot_rows",
    "num_nodes",
    "num_edges",
    "remote_bytes",
    "cached_bytes",
    "window_bytes",
    "disk_bytes",
)


@dataclass(frozen=True)
class OwnedNodes:
    """Nodes of a frontier that one partition owns: ``positions [n]`` there, uint32, and ids ``[n]``; in a disjoint
    batch their trees, uint32, and with times the times of those trees' seeds, int64."""

    part: int
    positions: np.ndarray
    nodes: Tensor
    tree: Tensor | None
    seed_time: Tensor | None


Frontiers = dict[int, list[OwnedNodes]]  # what a hop expands, by node type

_Pairs = tuple[Tensor, Tensor]  # expanded nodes and neighbours whose edges are not sampled


@dataclass
class SampledBatch:
    """A batch whose edges are sampled and whose remote rows are on their way; :meth:`DistNeighborSampler.fill` writes
    it.

    Attributes:
        specs: Dtype and shape of each tensor of the batch, by the names of :func:`glt.distributed.loader.base.collate`.
        stats: What it reports about its making, by the names of ``STATS``.
        batch: Its nodes and edges: a ``_core.Batch``, or what answers as it does.
        rows: Where the rows of its nodes and edges come from.
    """

    specs: Specs
    stats: dict[str, float]
    batch: Any
    rows: list[RowLookup]
    start: BatchStart

    @property
    def layout(self) -> MessageLayout:
        """The message that the batch becomes."""
        return MessageLayout(self.specs)

    def write_stats(self, out: Mapping[str, Tensor]) -> None:
        out["stats"].numpy()[:] = [self.stats[name] for name in STATS]
        if (spans := SPANS.get()) is not None:
            spans.write(out)


class DistNeighborSampler:
    """Samples from a partition here and, through the router, from the partitions elsewhere.

    The hops of a batch follow each other. All that a hop asks of other partitions, over all edge types, is asked at
    once, and local rows are sampled while that is in flight. While one batch waits, others go on: see
    :class:`ConcurrentEventLoop`. The result is the one that :class:`glt.sampler.NeighborSampler` gives on the whole
    graph, bit for bit.

    Args:
        dataset: The partition here.
        config: What to sample.
        router: Where the partitions are that are not read here; None if there are none.
        loop: Where native calls run.
        collect_features: Look up node features, labels and edge features.
        others: Further partitions that are read here, by index (:meth:`DistDataset.map_other`).
        caches: Rows of partitions elsewhere that batches have asked for, by node type: samplers of the same dataset may
            share them (``row_caches`` makes some). Default: none.
        clients: Rows that the client keeps, by node type: of a sampler for one stream. Default: it keeps none.
        spare: Where batches are kept for their memory, 4 bytes per node each: samplers of the same dataset and loop may
            share it. Default: a place of its own.
        partitions: What reads and asks them.

    Attributes:
        is_local: Whether one native call makes a batch: all partitions are read here, and sampled by the CPU.

    Raises:
        ValueError: If there are several partitions and no router.

    Example:
        >>> dataset = glt.distributed.DistDataset().load("parts", 0)
        >>> others = {1: dataset.map_other("parts", 1)}
        >>> config = glt.sampler.SamplingConfig(num_neighbors=((2, 2),))
        >>> loop = glt.distributed.ConcurrentEventLoop(concurrency=1)
        >>> glt.distributed.DistNeighborSampler(dataset, config, None, loop, others=others).is_local
        True
        >>> loop.shutdown()
    """

    dataset: DistDataset
    config: SamplingConfig
    loop: ConcurrentEventLoop

    def __init__(
        self,
        dataset: DistDataset,
        config: SamplingConfig,
        router: PartitionRouter | None,
        loop: ConcurrentEventLoop,
        collect_features: bool = True,
        others: Mapping[int, LocalPartition] | None = None,
        spare: list[_core.Batch] | None = None,
        caches: Sequence[RowCache | None] | None = None,
        clients: Sequence[ClientRows | None] | None = None,
        *,
        partitions: type[Partitions] = Partitions,
    ) -> None:
        self.partitions: Partitions = partitions(dataset, others or {}, router, loop)
        self.dataset, self.config, self.loop = dataset, config, loop
        self.collect_features = collect_features
        self._num_node_types, self._num_edge_types = len(dataset.schema.node_types), len(dataset.schema.edge_types)
        self._fetches_edges = config.with_edge or (collect_features and any(dataset.own.edge_tables))
        self._spare = [] if spare is None else spare
        self.caches: Sequence[RowCache | None] = [None] * self._num_node_types if caches is None else caches
        self.clients: Sequence[ClientRows | None] = [None] * self._num_node_types if clients is None else clients
        self.is_local: bool = not self.partitions.elsewhere

    async def sample(self, start: BatchStart, batch_key: int, window: RowWindow | None = None) -> SampledBatch:
        """Samples the edges of a batch and asks for its remote rows.

        Args:
            start: What it is sampled around.
            batch_key: Key of the draws, in [0, 2^64); see :attr:`glt.sampler.BatchIndex.key`.
            window: Of the batches that ask for each remote row once between them. Default: this one asks for all.

        Raises:
            IndexError: If a seed is outside the graph.
            glt.errors.PeerLost: If a process that owns part of the neighbourhood is gone.
            glt.errors.RemoteError: If it raised an exception; carries its traceback.
            glt.errors.PartitionError: If a file of a partition was found to be damaged.
        """
        if self.is_local:
            return await self.loop.run_native(self.sample_here, start, batch_key)
        self.partitions.require_sound()
        stats, rows = dict.fromkeys(STATS, 0.0) | start.stats, []
        batch = self._new_batch()
        try:
            await self._sample_hops(batch, start, batch_key, stats)
        except MemoryError as error:
            raise self._no_room(start) from error
        if self.collect_features:
            num_nodes = sum(batch.num_nodes(t) for t in range(self._num_node_types))
            with_edges = any(self.dataset.own.edge_tables)
            size = LONG if with_edges or window is not None else num_nodes
            with nullcontext() if window is None else AskingBatch(window) as asking:
                rows = await self.partitions.timed(stats, "sampling_s", size, self._locate_rows, batch, asking)
                self.partitions.ask_for_rows(rows)
        return self._sampled(batch, start, rows, stats)

    def sample_here(self, start: BatchStart, batch_key: int) -> SampledBatch:
        """As :meth:`sample`, on the calling thread, of a sampler that :attr:`is_local`."""
        stats, began_s, config = dict.fromkeys(STATS, 0.0) | start.stats, time.perf_counter(), self.config
        self.partitions.require_sound()
        batch = self._new_batch()
        try:
            self._begin(batch, start)
            batch.sample(
                self.rows_of_all(config.weighted, config.temporal is not None),
                config.num_neighbors,
                replace=config.replace,
                batch_key=batch_key,
                last=config.last,
                exclusions=start.native_exclusions(self._num_edge_types),
                **config.native_times,
                **config.numbers(batch_key, start.shared_key),
            )
            if config.subgraph_type == "induced":
                batch.induce(self.rows_of_all(False, False))
        except MemoryError as error:
            raise self._no_room(start) from error
        rows = self._locate_rows(batch) if self.collect_features else []
        sampled = self._sampled(batch, start, rows, stats)
        book(stats, "sampling_s", began_s, time.perf_counter())
        return sampled

    def rows_of_all(self, weighted: bool, timed: bool) -> list[list[_core.Csr]]:
        """The rows of all partitions, by edge type, of a sampler that :attr:`is_local`."""
        parts = [self.partitions.local[part] for part in range(self.dataset.num_partitions)]
        return [[part.csr(r, weighted, timed) for part in parts] for r in range(self._num_edge_types)]

    def _no_room(self, start: BatchStart) -> MemoryError:
        return MemoryError(self.config.no_room(start.num_seeds))

    # -- hops over partitions that are partly elsewhere ------------------------------------------------------------

    async def _sample_hops(
        self, batch: _core.Batch, start: BatchStart, batch_key: int, stats: dict[str, float]
    ) -> None:
        """Samples hop after hop; adds to ``stats``."""
        timed, local = self.partitions.timed, self.partitions.local
        numbers = self.config.numbers(batch_key, start.shared_key)
        # Excluded pairs go only to the partition that has the edges.
        excluded: dict[tuple[int, int], _Pairs] = {}
        for r, (center, neighbor) in start.exclusions.items():
            for part, nodes, positions in self.partitions.by_owner(self.dataset.ends[r][0], center.numpy()):
                excluded[r, part] = torch.from_numpy(nodes), torch.from_numpy(neighbor.numpy()[positions])
        frontiers = await timed(stats, "sampling_s", start.num_seeds, self._frontiers, batch, start, 0)
        for hop in range(self.config.num_hops):
            at_hop(hop)
            wanted: list[EdgesWanted] = []
            size = 0
            for r, (expanded, _) in enumerate(self.dataset.ends):
                num_neighbors = self.config.num_neighbors[r][hop]
                for group in frontiers[expanded] if num_neighbors != 0 else ():
                    request = self._hop_request(r, hop, batch_key, numbers, group, excluded.get((r, group.part)))
                    wanted.append((group.positions, group.part, request))
                    if group.part in local:
                        size += len(group.nodes) * (num_neighbors if num_neighbors >= 0 else LONG)
            parts = await self.partitions.edges(wanted, size, stats)
            num_edges = sum(len(part[2]) for several in parts for part in several)
            frontiers = await timed(stats, "sampling_s", num_edges, self._frontiers, batch, start, hop + 1, parts)
        at_hop(-1)
        if self.config.subgraph_type == "induced":
            await self._induce(batch, stats)

    def _hop_request(
        self,
        edge_type: int,
        hop: int,
        batch_key: int,
        numbers: dict[str, Any],
        group: OwnedNodes,
        excluded: _Pairs | None,
    ) -> OneHopRequest:
        config, topology = self.config, self.dataset.own.graphs[edge_type].topology
        timed = group.seed_time is not None and topology.by_time is not None
        times: dict[str, Any] = {name: each[edge_type] for name, each in config.native_times.items() if each and timed}
        return OneHopRequest(
            edge_type,
            group.nodes,
            config.num_neighbors[edge_type][hop],
            config.replace,
            batch_key,
            hop,
            self._fetches_edges,
            weighted=config.weighted and topology.weights is not None,
            last=timed and config.last,
            tree=group.tree,
            seed_time=group.seed_time if timed else None,
            excluded=excluded,
            **numbers,
            **times,
        )

    def _begin(self, batch: _core.Batch, start: BatchStart) -> None:
        time = None if start.seed_time is None else start.seed_time.numpy()
        seeds = [(node_type, nodes.numpy()) for node_type, nodes in start.seeds]
        batch.start(seeds, self._fetches_edges, self.config.disjoint, time)

    def _frontiers(
        self, batch: _core.Batch, start: BatchStart, hop: int, parts: Sequence[list[RowsPart]] = ()
    ) -> Frontiers:
        """Begins the batch, or takes in the parts of the hop before; returns the nodes that a hop expands along any
        edge type, by owner: at once, since each call on the pool costs a thread switch."""
        if hop == 0:
            self._begin(batch, start)
        else:
            for r, several in enumerate(parts):
                if several:
                    batch.expand_from(r, several)
            batch.end_hop()
        found: Frontiers = {}
        for r, (t, _) in enumerate(self.dataset.ends if hop < self.config.num_hops else ()):
            if t not in found and self.config.num_neighbors[r][hop] != 0:
                trees = batch.frontier_trees(t) if self.config.disjoint else None
                found[t] = []
                for part, nodes, positions in self.partitions.by_owner(t, batch.frontier(t)):
                    tree = None if trees is None else torch.from_numpy(trees[positions])
                    time = None if start.seed_time is None or tree is None else start.seed_time[tree.long()]
                    found[t].append(OwnedNodes(part, positions, torch.from_numpy(nodes), tree, time))
        return found

    async def _induce(self, batch: _core.Batch, stats: dict[str, float]) -> None:
        """Replaces the sampled edges by all among the nodes."""

        def all_nodes() -> list[tuple[np.ndarray, np.ndarray | None]]:
            trees = batch.trees if self.config.disjoint else lambda t: None
            return [(batch.nodes(t), trees(t)) for t in range(self._num_node_types)]

        def take(parts: list[list[RowsPart]]) -> None:
            batch.begin_induce()
            for r, several in enumerate(parts):
                if several:
                    batch.induce_from(r, several)

        wanted: list[EdgesWanted] = []
        nodes = await self.partitions.timed(stats, "sampling_s", 0, all_nodes)
        for r, (expanded, neighbor) in enumerate(self.dataset.ends):
            members, member_trees = nodes[neighbor]
            if len(members) == 0:
                continue
            centers, trees = nodes[expanded]
            member_tree = None if member_trees is None else torch.from_numpy(member_trees)
            for part, owned, positions in self.partitions.by_owner(expanded, centers):
                tree = None if trees is None else torch.from_numpy(trees[positions])
                asked = r, torch.from_numpy(owned), torch.from_numpy(members), self._fetches_edges, tree, member_tree
                wanted.append((positions, part, InducedRequest(*asked)))
        parts = await self.partitions.edges(wanted, LONG, stats)
        await self.partitions.timed(stats, "sampling_s", LONG, take, parts)

    # -- from a sampled batch to tensors ---------------------------------------------------------------------------

    def _new_batch(self) -> Any:
        """What takes the hops of a batch: a ``_core.Batch``, or what answers as it does."""
        return self._spare.pop() if self._spare else _core.Batch(self.dataset.num_nodes_of, self.dataset.ends)

    def _sampled(self, batch: Any, start: BatchStart, rows: list[RowLookup], stats: dict[str, float]) -> SampledBatch:
        specs = self._specs(batch, start)
        for each in rows:
            specs |= each.specs
        for t, labels in self._labels():
            specs[in_message("y", "node", t)] = (labels.dtype, (batch.num_nodes(t), *labels.row_shape))
        stats["num_nodes"] = sum(batch.num_nodes(t) for t in range(self._num_node_types))
        stats["num_edges"] = sum(batch.num_edges(r) for r in range(self._num_edge_types))
        stats["num_remote_nodes"] = sum(each.num_remote for each in rows if each.kind == "node")
        stats["num_cached_nodes"] = sum(each.num_cached for each in rows)
        stats["num_window_nodes"] = sum(each.num_shared for each in rows if each.kind == "node")
        stats["cached_bytes"] = sum(each.cached_bytes for each in rows)
        if (spans := SPANS.get()) is not None:
            specs |= spans.specs(sum(len(each.replies) + len(each.shared) for each in rows))
        return SampledBatch(specs, stats, batch, rows, start)

    def _specs(self, batch: _core.Batch | DeviceBatch, start: BatchStart) -> Specs:
        """What a batch holds, rows of tables apart. A name ends in ``/n``, ``/e`` or ``/l`` and the number of its type:
        of nodes, of edges or of seed edges. ``partition/graph_input.py`` has the names that a user's tables must not
        have, ``channel/channel.py`` those that a GPU's batch keeps on the host."""
        hops, nodes, edges = self.config.num_hops, range(self._num_node_types), range(self._num_edge_types)
        shapes: dict[str, tuple[int, ...]] = {f"n_id/n{t}": (batch.num_nodes(t),) for t in nodes}
        shapes |= {f"edge_index/e{r}": (2, batch.num_edges(r)) for r in edges}
        if self.config.disjoint:
            shapes |= {f"batch/n{t}": (batch.num_nodes(t),) for t in nodes}
        if self.config.with_edge:
            shapes |= {f"e_id/e{r}": (batch.num_edges(r),) for r in edges}
        if self.config.subgraph_type == "directional":  # other edges belong to no hop
            shapes |= {"num_sampled_nodes": (len(nodes), hops + 1), "num_sampled_edges": (len(edges), hops)}
        specs: Specs = {"stats": (torch.float64, (len(STATS),))} | {n: (torch.int64, s) for n, s in shapes.items()}
        if any(self.clients):
            specs |= {name: (torch.int32, shapes[name]) for name in self._narrow(batch)}
        return specs | {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in start.known.items()}

    def _narrow(self, batch: _core.Batch | DeviceBatch) -> list[str]:
        """What a client of another host gets as int32, since it fits: half of a batch whose rows the client has."""
        most = torch.iinfo(torch.int32).max
        nodes, edges = range(self._num_node_types), range(self._num_edge_types)
        names = [f"n_id/n{t}" for t in nodes if self.dataset.num_nodes_of[t] <= most]
        names += [f"e_id/e{r}" for r in edges if self.config.with_edge and self.dataset.own.num_ids[r][1] <= most]
        if all(batch.num_nodes(t) <= most for t in nodes):
            names += [f"edge_index/e{r}" for r in edges]
        return names

    def _labels(self) -> list[tuple[int, Feature]]:
        """Labels that come from files of their own, by node type, where features are collected."""
        whole = self.dataset.whole_node_labels if self.collect_features else ()
        return [(t, labels) for t, labels in enumerate(whole) if labels is not None]

    async def fill(self, sampled: SampledBatch, out: dict[str, Tensor]) -> Event | None:
        """Writes the batch into tensors of its ``specs``, remote rows as they arrive.

        Args:
            sampled: What :meth:`sample` returned; its memory goes to the next batch afterwards.
            out: CPU tensors of the dtypes and shapes of ``sampled.specs``, under the same names.

        Returns:
            None: they are filled. Of samplers on a GPU, what a stream waits for before it uses them.

        Raises:
            glt.errors.PeerLost, glt.errors.RemoteError: As :meth:`sample`, for rows of features.
        """
        stats = sampled.stats
        # All first, so that the batch is written once, from its beginning to its end: see _core.gather_from.
        await self.partitions.rows_came(sampled.rows, stats)
        await self.partitions.timed(stats, "gathering_s", LONG, self._fill_here, sampled, out)
        sampled.write_stats(out)
        return self._finished(sampled)

    def fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        """As :meth:`fill`, on the calling thread, of a sampler that :attr:`is_local`."""
        began_s = time.perf_counter()
        self._fill_here(sampled, out)
        book(sampled.stats, "gathering_s", began_s, time.perf_counter())
        sampled.write_stats(out)
        self._finished(sampled)

    def _finished(self, sampled: SampledBatch) -> Event | None:
        """All has been asked for that fills the batch; returns what is to be waited for."""
        self._spare.append(sampled.batch)
        return None

    def _locate_rows(self, batch: _core.Batch, asking: AskingBatch | None = None) -> list[RowLookup]:
        """Sorts the nodes (and edges) of a batch by which partition has their rows."""
        own = self.dataset.own
        nodes = [("node", t, batch.nodes(t)) for t in range(self._num_node_types) if own.node_tables[t]]
        edges = [("edge", r, batch.edges(r)) for r in range(self._num_edge_types) if own.edge_tables[r]]
        local = self.partitions.local
        found = [
            RowLookup(self.dataset, local, kind, t, ids, cache=self.caches[t], client=self.clients[t], asking=asking)
            for kind, t, ids in nodes
        ]
        return found + [RowLookup(self.dataset, local, *each, asking=asking) for each in edges]

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        self._fill_batch(sampled, out)
        for rows in sampled.rows:
            rows.gather(out, sampled.stats)
        for t, labels in self._labels():
            labels.gather(out[f"n_id/n{t}"].long(), out[in_message("y", "node", t)])
        # Not before all is written: of a batch that fails a client gets no rows, and is not counted on to have any.
        for rows in sampled.rows:
            rows.done()

    def _fill_batch(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        """All but the rows of tables."""
        batch, start = sampled.batch, sampled.start
        for t in range(self._num_node_types):
            tree = out[f"batch/n{t}"] if self.config.disjoint else None
            batch.copy_nodes(t, _written(out[f"n_id/n{t}"]), None if tree is None else _written(tree))
            if tree is not None and start.example is not None:
                tree.copy_(start.example.to(tree.device)[tree])
        for r in range(self._num_edge_types):
            ends = _written(out[f"edge_index/e{r}"])
            edge = _written(out[f"e_id/e{r}"]) if self.config.with_edge else None
            batch.copy_edges(r, ends[0], ends[1], edge)
        self._fill_counts(batch, out)
        for name, tensor in start.known.items():
            out[name].copy_(tensor)

    def _fill_counts(self, batch: _core.Batch | DeviceBatch, out: dict[str, Tensor]) -> None:
        """Nodes and edges per hop, where the batch has them."""
        if "num_sampled_nodes" in out:
            num_nodes = [batch.num_sampled_nodes(t) for t in range(self._num_node_types)]
            num_edges = [batch.num_sampled_edges(r) for r in range(self._num_edge_types)]
            for name, counts in (("num_sampled_nodes", num_nodes), ("num_sampled_edges", num_edges)):
                out[name].numpy()[:] = counts

    @says
    def __repr__(self) -> str:
        return f"{self.dataset!r}, {self.config.says()}"


def _written(tensor: Tensor) -> Any:
    """What a batch writes to: an array for the CPU's, the tensor itself where it is on a GPU."""
    return tensor if tensor.is_cuda else tensor.numpy()
