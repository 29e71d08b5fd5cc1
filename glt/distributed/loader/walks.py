"""Windows of random walks over partitions, and negatives, for one trainer of a distributed job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least
from glt._reprs import options as told_options
from glt._tracebacks import short_traceback
from glt.channel.message import Message
from glt.data.arrays import checked_times
from glt.data.schema import EdgeType, NodeType
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.engine.walks import WalkSeeds
from glt.distributed.loader.base import DistLoader, LoaderOptions, take_over
from glt.distributed.loader.deployment import opened
from glt.distributed.loader.loaders import require_attributes, seeds_by_name
from glt.distributed.options import WorkerOptions
from glt.loader.seeds import ids_of_keys
from glt.loader.walks import WalkWindows, require_times_of_walks, seeds_of_walks, told_of_walks
from glt.sampler.config import SamplingConfig
from glt.sampler.walk_options import WalkOptions


@short_traceback
class DistRandomWalkLoader(DistLoader):
    """Iterates over windows of random walks from the seeds of this trainer, and over negatives, as the losses of PyG's
    ``Node2Vec`` and ``MetaPath2Vec`` take them.

    A batch is ``(pos_rw, neg_rw)``, that of :class:`glt.loader.RandomWalkLoader` on the whole graph, bit for bit, in
    every mode and with any number of partitions. Walks run ahead of the trainer where its samplers are, on the CPU.
    Where partitions are read by others, each step of a batch's walks asks the owners of the nodes that they are at,
    once. Windows and negatives are made by the trainer. Ids are those of the partitions, as of
    :class:`glt.distributed.DistEmbedding`.

    Args:
        data: As of :class:`glt.distributed.DistNeighborLoader`. Partitions assigned ``by_src`` are walked along their
            edges, others against them. In a job of :func:`glt.distributed.initialize`, ``graph.world.data``, with
            ``worker_options=graph.world.worker_options(1)``.
        walk_length, context_size: As of :class:`glt.loader.RandomWalkLoader`.
        input_nodes: Seeds of this trainer, of the node type at which the metapath begins: as of
            :class:`glt.distributed.DistNeighborLoader`.
        batch_size, shuffle, drop_last, to_device, transform, random_seed, worker_options: As of the same.
        input_time: With ``time_attr``, the latest time of the first edge of the walks from each seed, integers.
        walks_per_node, num_negative_samples, p, q, metapath, restart_prob, time_bound: As of
            :class:`glt.loader.RandomWalkLoader`.
        weight_attr, time_attr: Any name: by the weights, or the times of edges, that the graph was partitioned with.

    Attributes:
        offsets: Where in one embedding of ``num_nodes`` rows those of a node type begin.

    Raises:
        Exception: The same as :class:`glt.distributed.DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> with glt.distributed.DistRandomWalkLoader(
        ...     dataset, 5, 3, torch.arange(40), batch_size=20, random_seed=7, worker_options=options
        ... ) as loader:
        ...     [tuple(pos_rw.shape) for pos_rw, neg_rw in loader]
        [(80, 3), (80, 3)]
    """

    def __init__(
        self,
        data: DistDataset | None,
        walk_length: int,
        context_size: int,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        input_time: Any = None,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        metapath: Sequence[EdgeType] | None = None,
        restart_prob: float = 0.0,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        time_bound: str = "<=",
        to_device: torch.device | str | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        graph, worker_options = opened(data, worker_options, None)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, False, to_device, transform, random_seed, worker_options
        )
        time_level = require_attributes(graph, time_attr, weight_attr)
        if time_level == "node":
            raise ValueError(f"time_attr = {time_attr!r}: the partitions have times of nodes; expected those of edges")
        walks_per_node = check_at_least("walks_per_node", walks_per_node, 1)
        self.walks_per_node: int = walks_per_node
        self._walks = walks = WalkOptions.checked(
            graph.schema,
            graph.ends,
            walk_length,
            p=p,
            q=q,
            metapath=metapath,
            restart_prob=restart_prob,
            weight_attr=weight_attr,
            time_attr=time_attr,
            time_bound=time_bound,
        )
        self.windows: WalkWindows = WalkWindows.of(
            walks, graph.schema, graph.ends, graph.num_nodes_of, context_size, num_negative_samples
        )
        given = ids_of_keys(seeds_by_name("input_nodes", input_nodes, graph, worker_options), graph.ids)
        first = graph.ends[walks.path[0]][0]
        columns = {"node": seeds_of_walks(given, first, graph.schema, graph.num_nodes_of)}
        require_times_of_walks(input_time, time_attr)
        if input_time is not None:
            columns["time"] = checked_times("input_time", input_time, len(columns["node"]))
        seeds = WalkSeeds(first, walks, walks_per_node)
        config = SamplingConfig.checked([], graph.schema, with_edge=False)
        self._walks_name = seeds.walks
        super().__init__(graph, config, seeds, SeedTable(columns), options)
        self._copies = None  # negatives are drawn on the CPU: batches are copied when they are whole

    @property
    def offsets(self) -> dict[NodeType, int]:
        return self.windows.offsets

    @property
    def num_nodes(self) -> int:
        return self.windows.num_nodes

    def _collate(self, message: Message) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        take_over(message)
        self._count(message.tensors)
        key = _core.batch_key(self.random_seed, message.epoch, message.index)
        positive, negative = self.windows.batch(message.tensors[self._walks_name], key)
        return self._to_device(positive), self._to_device(negative)

    def _fingerprint(self) -> dict[str, Any]:
        return super()._fingerprint() | self.windows.to_json()

    def _says(self) -> str:
        return told_options(told_of_walks(self._walks, self.windows, self.walks_per_node))
