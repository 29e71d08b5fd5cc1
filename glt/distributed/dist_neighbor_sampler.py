"""Multi-hop sampling and feature lookup over partitions, many batches at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageLayout
from glt.data.device import Event
from glt.distributed.batch_start import BatchStart
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.hop_loop import HopLoop
from glt.distributed.local_partition import LocalPartition
from glt.distributed.partitions import LONG, Partitions
from glt.distributed.router import PartitionRouter
from glt.distributed.row_lookup import RowLookup, Specs, in_message
from glt.sampler.config import SamplingConfig

if TYPE_CHECKING:
    from glt.sampler.device_batch import DeviceBatch

# What a batch reports about its own making, in this order, as float64 in the message's "stats".
STATS = ("sampling_s", "remote_s", "gathering_s", "blocked_s", "num_remote_nodes", "num_cached_nodes",
         "num_nodes", "num_edges", "remote_bytes")  # fmt: skip


@dataclass
class SampledBatch:
    """A batch whose edges are sampled and whose remote rows are on their way; :meth:`DistNeighborSampler.fill` writes
    it out.

    Attributes:
        specs: Dtype and shape of each tensor of the batch, by the names of :mod:`glt.distributed.collate`.
        stats: What it reports about its making, by the names of ``STATS``.
    """

    specs: Specs
    stats: dict[str, float]
    _batch: Any
    _rows: list[RowLookup]
    _start: BatchStart


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
        spare: Where batches are kept for their memory, 4 bytes per node each: samplers of the same dataset and loop may
            share it. Default: a place of its own.
        partitions: What reads and asks them.

    Raises:
        ValueError: If there are several partitions and no router.
    """

    def __init__(
        self,
        dataset: DistDataset,
        config: SamplingConfig,
        router: PartitionRouter | None,
        loop: ConcurrentEventLoop,
        collect_features: bool = True,
        others: Mapping[int, LocalPartition] | None = None,
        spare: list[_core.Batch] | None = None,
        *,
        partitions: type[Partitions] = Partitions,
    ) -> None:
        self.partitions = partitions(dataset, others or {}, router, loop)
        self.dataset, self.config, self.loop = dataset, config, loop
        self.collect_features = collect_features
        schema = dataset.schema
        self._num_node_types, self._num_edge_types = len(schema.node_types), len(schema.edge_types)
        need_edge = config.with_edge or (collect_features and any(dataset.own.edge_tables))
        self._hops = HopLoop(dataset, config, self.partitions, need_edge)
        self._spare = [] if spare is None else spare

    async def sample(self, start: BatchStart, batch_key: int) -> SampledBatch:
        """Samples the edges of a batch and asks for its remote rows.

        Args:
            start: What it is sampled around.
            batch_key: Key of the draws, in [0, 2^64); see :meth:`glt.sampler.BatchIndex.key`.

        Raises:
            IndexError: If a seed is outside the graph.
            glt.errors.PeerLost: If a process that owns part of the neighbourhood is gone.
            glt.errors.RemoteError: If it raised an exception; carries its traceback.
        """
        stats = dict.fromkeys(STATS, 0.0)
        batch = self._new_batch()
        try:
            await self._hops.run(batch, start, batch_key, stats)
        except MemoryError as error:
            raise MemoryError(self.config.no_room(sum(len(nodes) for _, nodes in start.seeds))) from error
        specs = self._specs(batch, start)
        num_nodes = [batch.num_nodes(t) for t in range(self._num_node_types)]
        stats["num_nodes"] = sum(num_nodes)
        stats["num_edges"] = sum(batch.num_edges(r) for r in range(self._num_edge_types))
        rows: list[RowLookup] = []
        if self.collect_features:
            rows = await self.partitions.timed(stats, "sampling_s", sum(num_nodes), self._locate_rows, batch)
            self.partitions.ask_for_rows(rows)
            for each in rows:
                specs |= each.specs
            stats["num_remote_nodes"] = sum(each.num_remote for each in rows if each.kind == "node")
            stats["num_cached_nodes"] = sum(each.num_cached for each in rows)
            for t, labels in enumerate(self.dataset.whole_node_labels):
                if labels is not None:
                    specs[in_message("y", "node", t)] = (labels.dtype, (num_nodes[t], *labels.row_shape))
        return SampledBatch(specs, stats, batch, rows, start)

    def _new_batch(self) -> Any:
        """What takes the hops of a batch: a ``_core.Batch``, or what answers as it does."""
        return self._spare.pop() if self._spare else _core.Batch(self.dataset.num_nodes_of, self.dataset.ends)

    def _specs(self, batch: _core.Batch | DeviceBatch, start: BatchStart) -> Specs:
        """What a batch holds, rows of tables apart."""
        hops = self.config.num_hops
        specs: Specs = {"stats": (torch.float64, (len(STATS),))}
        if self.config.subgraph_type == "directional":  # other edges belong to no hop
            specs["num_sampled_nodes"] = (torch.int64, (self._num_node_types, hops + 1))
            specs["num_sampled_edges"] = (torch.int64, (self._num_edge_types, hops))
        for t in range(self._num_node_types):
            specs[f"n_id/n{t}"] = (torch.int64, (batch.num_nodes(t),))
            if self.config.disjoint:
                specs[f"batch/n{t}"] = (torch.int64, (batch.num_nodes(t),))
        for r in range(self._num_edge_types):
            specs[f"edge_index/e{r}"] = (torch.int64, (2, batch.num_edges(r)))
            if self.config.with_edge:
                specs[f"e_id/e{r}"] = (torch.int64, (batch.num_edges(r),))
        return specs | {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in start.known.items()}

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
        await self.partitions.timed(sampled.stats, "gathering_s", LONG, self._fill_here, sampled, out)
        for rows in sampled._rows:
            for positions, reply in rows.replies:
                tensors = await self.partitions.answer(reply, sampled.stats)
                await self.partitions.timed(
                    sampled.stats, "gathering_s", LONG, self._scatter, rows, tensors, positions, out
                )
        out["stats"].copy_(torch.tensor([sampled.stats[name] for name in STATS], dtype=torch.float64))
        return self._finished(sampled)

    def _scatter(
        self, rows: RowLookup, tables: Mapping[str, Tensor], positions: np.ndarray, out: dict[str, Tensor]
    ) -> None:
        """Writes what a partition answered to its places."""
        rows.scatter(tables, positions, out)

    def _finished(self, sampled: SampledBatch) -> Event | None:
        """All has been asked for that fills the batch; returns what is to be waited for."""
        self._spare.append(sampled._batch)
        return None

    def _locate_rows(self, batch: _core.Batch) -> list[RowLookup]:
        """Sorts the nodes (and edges) of a batch by who has their rows."""
        own = self.dataset.own
        nodes = [(t, batch.nodes(t)) for t in range(self._num_node_types) if own.node_tables[t]]
        edges = [(r, batch.edges(r)) for r in range(self._num_edge_types) if own.edge_tables[r]]
        return [
            RowLookup.of(self.dataset, self.partitions.local, kind, type_, ids)
            for kind, several in (("node", nodes), ("edge", edges))
            for type_, ids in several
        ]

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        self._fill_batch(sampled, out)
        for rows in sampled._rows:
            rows.gather_local(out)
        if self.collect_features:
            for t, labels in enumerate(self.dataset.whole_node_labels):
                if labels is not None:
                    labels.gather(out[f"n_id/n{t}"], out[in_message("y", "node", t)])

    def _fill_batch(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        """All but the rows of tables."""
        batch, start = sampled._batch, sampled._start
        for t in range(self._num_node_types):
            tree = out[f"batch/n{t}"] if self.config.disjoint else None
            batch.copy_nodes(t, _written(out[f"n_id/n{t}"]), None if tree is None else _written(tree))
            if tree is not None and start.example is not None:
                tree.copy_(start.example.to(tree.device)[tree])
        for r in range(self._num_edge_types):
            row, col = out[f"edge_index/e{r}"]
            edge = _written(out[f"e_id/e{r}"]) if self.config.with_edge else None
            batch.copy_edges(r, _written(row), _written(col), edge)
        if "num_sampled_nodes" in out:
            num_nodes = [batch.num_sampled_nodes(t) for t in range(self._num_node_types)]
            num_edges = [batch.num_sampled_edges(r) for r in range(self._num_edge_types)]
            for name, counts in (("num_sampled_nodes", num_nodes), ("num_sampled_edges", num_edges)):
                out[name].copy_(torch.tensor(counts, dtype=torch.int64).view(out[name].shape))
        for name, tensor in start.known.items():
            out[name].copy_(tensor)


def _written(tensor: Tensor) -> Any:
    """What a batch writes to: an array for the CPU's, the tensor itself where it is on a GPU."""
    return tensor if tensor.is_cuda else tensor.numpy()


def layout_of(sampled: SampledBatch) -> MessageLayout:
    """The message that the batch becomes."""
    return MessageLayout(sampled.specs)
