"""Sampling on a GPU of partitions that are read here, in batches that reach into partitions elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.device import Accelerator, Event
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_sampler import DistNeighborSampler, SampledBatch
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.local_partition import LocalPartition
from glt.distributed.partitions import LONG, EdgesWanted, Partitions, RowsPart
from glt.distributed.requests import OneHopRequest
from glt.distributed.router import PartitionRouter
from glt.distributed.row_lookup import RowLookup, in_message
from glt.distributed.stitched_batch import StitchedBatch
from glt.sampler.config import SamplingConfig
from glt.sampler.device import DeviceSampling

T = TypeVar("T")


class DeviceParts(Partitions):
    """:class:`Partitions` of which those that are here are sampled by the kernels of a GPU, on one stream.

    Edges among the nodes of a batch are looked for by the CPU; the GPU puts them together.
    """

    accelerator: Accelerator
    stream: torch.cuda.Stream | None
    sampling: DeviceSampling
    config: SamplingConfig

    async def timed(self, stats: dict[str, float], stage: str, size: int, call: Callable[..., T], *args: Any) -> T:
        """As :meth:`Partitions.timed`; all calls run off the loop, since all wait for the GPU, however little they ask
        for: behind what it does for other batches, and for the trainer."""
        return await super().timed(stats, stage, LONG, call, *args)

    def _read_here(self, wanted: Sequence[EdgesWanted], parts: list[list[RowsPart]]) -> None:
        for positions, part, request in wanted:
            if isinstance(request, OneHopRequest):
                with self.accelerator.on(self.stream):
                    rows = self._sampled(request)
                # Tensors of the device, which StitchedBatch takes as they are.
                parts[request.edge_type].append((positions, *rows))  # type: ignore[arg-type]
            else:
                super()._read_here([(positions, part, request)], parts)

    def _sampled(self, asked: OneHopRequest) -> tuple[Tensor, Tensor, Tensor | None]:
        excluded = asked.excluded and _core.Exclusions(*(side.numpy() for side in asked.excluded))
        return self.sampling.sample_rows(
            self.config, asked.edge_type, asked.nodes, num_neighbors=asked.num_neighbors, hop=asked.hop,
            batch_key=asked.batch_key, tree=asked.tree, seed_time=asked.seed_time, excluded=excluded,
        )  # fmt: skip


class DevicePartitionSampler(DistNeighborSampler):
    """A :class:`DistNeighborSampler` for a GPU where some partitions are elsewhere; the batches are the CPU's.

    Each hop, the kernels sample the rows of the nodes whose partitions are here while the owners of the others sample
    theirs, which come to the GPU through pinned memory; there the hop is put together
    (:class:`~glt.distributed.stitched_batch.StitchedBatch`). The host waits for the GPU several times per hop, on a
    thread of the loop: for the counts of each edge type's rows, within those of torch's operations whose results have a
    size that the GPU alone knows, and for the frontier, since it is the host that asks others. Rows of tables come
    likewise: those of partitions here from the GPU's tiers, the others by way of pinned memory.

    Has not run on a GPU yet: the tests run it with the kernels' host executor.

    Args:
        dataset, config, router, loop, collect_features, others: As in :class:`DistNeighborSampler`.
        accelerator: The GPU.
        stream: Of the kernels. Default: one of its own.
        staged: Where batches go: False, to tensors of the GPU. True, to host memory that a channel passes on; then
            rows of tables are looked up by the CPU, straight into it.

    Raises:
        ValueError: If the dataset was loaded for the CPU, or an option is one that kernels lack.
    """

    partitions: DeviceParts

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
        super().__init__(dataset, config, router, loop, collect_features, others, partitions=DeviceParts)
        self.accelerator, self.staged = accelerator, staged
        self.stream = accelerator.new_stream() if stream is None else stream
        self._local = local = dataset.local_graph(self.partitions.local)
        here = self.partitions
        here.accelerator, here.stream = accelerator, self.stream
        here.config = replace(config, with_edge=self._hops.with_edge)
        with accelerator.on(self.stream):
            here.sampling = local.kernels(here.config, accelerator)

    def _new_batch(self) -> StitchedBatch:
        return StitchedBatch(self.dataset.num_nodes_of, self.dataset.ends, self.accelerator, self.stream)

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        with self.accelerator.on(self.stream):
            if self.staged:
                super()._fill_here(sampled, out)
                return
            self._fill_batch(sampled, out)
            for rows in sampled._rows:
                self._gather_there(rows, out)
            for t, labels in enumerate(self.dataset.whole_node_labels if self.collect_features else ()):
                if labels is not None:
                    into = out[in_message("y", "node", t)]
                    labels.gather_on(self.accelerator, out[f"n_id/n{t}"], into, trusted=True)

    def _finished(self, sampled: SampledBatch) -> Event | None:
        if self.staged:
            return None  # what copies to host memory has waited for it
        with self.accelerator.on(self.stream):
            return self.accelerator.record()

    def _gather_there(self, rows: RowLookup, out: dict[str, Tensor]) -> None:
        """Looks up what the partitions here have, and their copies of others' rows."""
        if rows.local:
            ids = self._brought(torch.from_numpy(np.concatenate([ids for _, ids, _ in rows.local])))
            at = [positions for *_, positions in rows.local if positions is not None]  # never None: parts are several
            positions = self._brought(torch.from_numpy(np.concatenate(at)))
            for name in rows.names:
                into = out[in_message(name, rows.kind, rows.type)]
                self._local.tables.gather(self.accelerator, rows.kind, rows.type, name, ids, into, positions)
        for cached, where in rows.cached:
            assert rows.cache is not None
            found = {n: t.gather(torch.from_numpy(cached)) for n, t in rows.cache.tables.items() if n in rows.names}
            self._scatter(rows, found, where, out)

    def _scatter(
        self, rows: RowLookup, tables: Mapping[str, Tensor], positions: np.ndarray, out: dict[str, Tensor]
    ) -> None:
        if self.staged:
            rows.scatter(tables, positions, out)
            return
        with self.accelerator.on(self.stream):
            at = self._brought(torch.from_numpy(positions.astype(np.int64)))
            for name, table in tables.items():
                into = out[in_message(name, rows.kind, rows.type)]
                if table.numel():
                    _as_bytes(into).index_copy_(0, at, _as_bytes(self._brought(table)))

    def _brought(self, tensor: Tensor) -> Tensor:
        """A copy on the GPU, by way of pinned memory, that nobody waits for."""
        if self.accelerator.is_host:
            return tensor
        return tensor.pin_memory().to(self.accelerator.device, non_blocking=True)


def _as_bytes(rows: Tensor) -> Tensor:
    """Rows of any dtype and shape as ``[n, bytes of a row]``: all move alike."""
    return rows.reshape(len(rows), -1).view(torch.uint8)
