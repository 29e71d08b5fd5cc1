"""Sampling and lookup of rows on a GPU, for the loaders of a distributed job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.data.device import Accelerator, Event
from glt.distributed.batch_start import BatchStart
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_sampler import STATS, DistNeighborSampler, SampledBatch
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.local_partition import LocalPartition
from glt.distributed.partitions import LONG
from glt.distributed.router import PartitionRouter
from glt.distributed.row_lookup import RowLookup, in_message
from glt.sampler.config import SamplingConfig
from glt.sampler.device_batch import DeviceBatch, Edges, Nodes

_Ids = dict[tuple[str, int], Tensor]


class DeviceNeighborSampler(DistNeighborSampler):
    """A :class:`DistNeighborSampler` whose batches the kernels of a GPU make, bit for bit those of the CPU.

    All partitions are read here. Seeds, negatives and times are looked at by the CPU; everything from the first hop
    on is asked for on one stream, and waited for once per batch, for its counts, on a thread of the loop. Several
    batches are under way at once; what one asks for comes after what the one before it asked for.

    Has not run on a GPU yet: the tests run it with the kernels' host executor.

    Args:
        dataset, config, router, loop, collect_features, others: As in :class:`DistNeighborSampler`.
        accelerator: The GPU.
        stream: Of the kernels. Default: one of its own.
        staged: Where batches go: False, to tensors of the GPU, which are used where they are. True, to host memory that
            a channel passes on, pinned for copies that wait for nothing; then rows are looked up by the CPU, straight
            into it, as far as none of a table are in device memory: they need not cross the bus twice more.

    Raises:
        ValueError: If the dataset was loaded for the CPU, or an option is one that kernels lack.
    """

    def __init__(
        self,
        dataset: DistDataset,
        config: SamplingConfig,
        router: PartitionRouter | None,
        loop: ConcurrentEventLoop,
        collect_features: bool = True,
        others: Mapping[int, LocalPartition] | None = None,
        *,
        accelerator: Accelerator,
        stream: torch.cuda.Stream | None = None,
        staged: bool,
    ) -> None:
        super().__init__(dataset, config, router, loop, collect_features, others)
        self.accelerator, self.staged = accelerator, staged
        self.stream = accelerator.new_stream() if stream is None else stream
        self._local = local = dataset.local_graph(self.partitions.local)
        self._kernel_config = replace(config, with_edge=self._hops.with_edge)
        with accelerator.on(self.stream):
            self._sampling = local.kernels(self._kernel_config, accelerator)
        self._tables = [
            (kind, type_, name)
            for kind, by_type in (("node", dataset.own.node_tables), ("edge", dataset.own.edge_tables))
            for type_, tables in enumerate(by_type)
            for name in tables
            if collect_features
        ]

    async def sample(self, start: BatchStart, batch_key: int) -> SampledBatch:
        stats = dict.fromkeys(STATS, 0.0)
        try:
            batch = await self.partitions.timed(stats, "sampling_s", LONG, self._sample_there, start, batch_key)
        except (MemoryError, torch.cuda.OutOfMemoryError) as error:
            raise MemoryError(self.config.no_room(sum(len(nodes) for _, nodes in start.seeds))) from error
        specs = self._specs(batch, start)
        num_nodes = [batch.num_nodes(t) for t in range(self._num_node_types)]
        num_edges = [batch.num_edges(r) for r in range(self._num_edge_types)]
        stats["num_nodes"], stats["num_edges"] = sum(num_nodes), sum(num_edges)
        for kind, type_, name in self._tables:
            table = self._local.tables.feature(kind, type_, name)
            count = (num_nodes if kind == "node" else num_edges)[type_]
            specs[in_message(name, kind, type_)] = (table.dtype, (count, *table.row_shape))
        for t, labels in self._labels():
            specs[in_message("y", "node", t)] = (labels.dtype, (num_nodes[t], *labels.row_shape))
        return SampledBatch(specs, stats, batch, [], start)

    def _labels(self) -> list[tuple[int, Any]]:
        """Labels that come from files of their own, by node type."""
        whole = self.dataset.whole_node_labels if self.collect_features else ()
        return [(t, labels) for t, labels in enumerate(whole) if labels is not None]

    def _sample_there(self, start: BatchStart, batch_key: int) -> DeviceBatch:
        exclusions: list[Any] = []
        if start.exclusions:
            by_type: list[_core.Exclusions | None] = [None] * self._num_edge_types
            for r, pairs in start.exclusions.items():
                by_type[r] = _core.Exclusions(*(side.numpy() for side in pairs))
            exclusions.append(by_type)
        with self.accelerator.on(self.stream):
            return self._sampling.begin(self._kernel_config, start.seeds, start.seed_time, batch_key, *exclusions)

    async def fill(self, sampled: SampledBatch, out: dict[str, Tensor]) -> Event | None:
        """As :meth:`DistNeighborSampler.fill`; unless staged, ``out`` are tensors of the GPU, but for ``stats`` and the
        counts per hop."""
        timed, stats = self.partitions.timed, sampled.stats
        ids: _Ids = {}
        ready = await timed(stats, "gathering_s", LONG, self._fill_there, sampled, out, ids)
        if self.staged:
            await timed(stats, "gathering_s", LONG, self._fill_rest, ready, out, ids)
        out["stats"].copy_(torch.tensor([stats[name] for name in STATS], dtype=torch.float64))
        return None if self.staged else ready

    def _fill_there(self, sampled: SampledBatch, out: dict[str, Tensor], ids: _Ids) -> Event:
        """Asks for all that the GPU does of a batch; returns the event after it."""
        batch, start, place = sampled._batch, sampled._start, self.accelerator
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
                if self._hops.with_edge:
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
                    self._local.tables.gather(place, kind, type_, name, ids[kind, type_], target)
            for t, labels in self._labels() if not self.staged else ():
                labels.gather_on(place, ids["node", t], out[in_message("y", "node", t)], trusted=True)
            for name, tensor in made.items():
                out[name].copy_(tensor, non_blocking=True)
            for key, tensor in ids.items() if self.staged else ():
                there = f"{'n_id/n' if key[0] == 'node' else 'e_id/e'}{key[1]}"
                ids[key] = out[there] if there in out else tensor.cpu()
            if "num_sampled_nodes" in out:
                num_nodes = [batch.num_sampled_nodes(t) for t in range(self._num_node_types)]
                num_edges = [batch.num_sampled_edges(r) for r in range(self._num_edge_types)]
                for name, counts in (("num_sampled_nodes", num_nodes), ("num_sampled_edges", num_edges)):
                    out[name].copy_(torch.tensor(counts, dtype=torch.int64).view(out[name].shape))
            self._sampling.end(batch)  # from now on it may be another thread's
            return place.record()

    def _is_hot(self, kind: str, type_: int, name: str) -> bool:
        """Whether rows of a table are in device memory."""
        return self._local.tables.feature(kind, type_, name).split_ratio > 0

    def _fill_rest(self, ready: Event, out: dict[str, Tensor], ids: _Ids) -> None:
        """What the CPU looks up, once the ids are here."""
        ready.synchronize()
        for kind, type_, name in self._tables:
            if not self._is_hot(kind, type_, name):
                of = ids[kind, type_].numpy()
                RowLookup.of(self.dataset, self.partitions.local, kind, type_, of, name).gather_local(out)
        for t, labels in self._labels():
            labels.gather(ids["node", t], out[in_message("y", "node", t)])
