"""Subgraphs over partitions: of nodes by budget, of clusters, and of random walks, for one trainer of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt._checks import check_count, check_flag
from glt._reprs import options as told_options
from glt._tracebacks import short_traceback
from glt.channel.message import Message
from glt.data.arrays import as_ids, require_in_range
from glt.data.schema import NodeType
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.node_sets import ClusterSeeds, HgtSeeds, SaintSeeds
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.loader.base import DistLoader, LoaderOptions, collate
from glt.distributed.loader.deployment import LoaderData, opened
from glt.distributed.loader.loaders import node_columns, seeds_by_name, with_batch_size
from glt.distributed.options import WorkerOptions
from glt.loader.clusters import checked_clusters, num_clusters
from glt.sampler.budgets import samples_per_type
from glt.sampler.config import SamplingConfig
from glt.sampler.walk_options import WalkOptions


def _config(graph: LoaderData, with_edge: bool) -> SamplingConfig:
    """All edges among the nodes of a batch, and no hops."""
    check_flag("with_edge", with_edge)
    return SamplingConfig.checked([], graph.schema, subgraph_type="induced", with_edge=with_edge)


@short_traceback
class DistHGTLoader(DistLoader):
    """Iterates over the batches of :class:`glt.loader.HGTLoader` on the whole graph, bit for bit, in every mode and
    with any number of partitions.

    Batches are as of :class:`glt.distributed.DistNeighborLoader`, seeds first, with all edges among their nodes;
    :class:`glt.sampler.HGTSampler` says how these are drawn. Each iteration asks the owners of the nodes that came last
    once. It is sampled by the CPU.

    Args:
        data, input_nodes, batch_size, shuffle, drop_last: As of :class:`glt.distributed.DistNeighborLoader`.
        num_samples: Nodes to draw in each iteration, of each node type: a list, or a dict by node type.
        with_edge, collect_features, to_device, transform, input_id, random_seed, worker_options: As of the same.

    Raises:
        Exception: The same as :class:`glt.distributed.DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> with glt.distributed.DistHGTLoader(
        ...     dataset, [4, 4], torch.arange(10), batch_size=5, random_seed=7, worker_options=options
        ... ) as loader:
        ...     [batch.num_nodes for batch in loader]
        [9, 9]
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_samples: Sequence[int] | Mapping[NodeType, Sequence[int]],
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        with_edge: bool = False,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        input_id: Any = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        graph, worker_options = opened(data, worker_options, None)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, collect_features, to_device, transform, random_seed, worker_options
        )
        config = _config(graph, with_edge)
        self.num_samples: list[list[int]] = samples_per_type(num_samples, graph.schema)
        given = seeds_by_name("input_nodes", input_nodes, graph, worker_options)
        self._seed_type, columns = node_columns(graph, config, given, None, input_id)
        super().__init__(graph, config, HgtSeeds(self._seed_type, self.num_samples), SeedTable(columns), options)

    def _collate(self, message: Message) -> Data | HeteroData:
        return with_batch_size(super()._collate(message), self.data.schema, self._seed_type)

    def _says(self) -> str:
        by_type = self.data.schema.by_node_type(self.num_samples)
        return told_options({"num_samples": by_type if self.data.schema.is_hetero else self.num_samples[0]})


class _NodeSets(DistLoader):
    """Loaders without seed nodes: edges keep the direction that they have in the graph."""

    def _made(self, tensors: dict[str, Tensor]) -> Data | HeteroData:
        tensors.pop(self.seeds.input_id)
        batch = collate(tensors, self.data.schema, "in", self.config.subgraph_type)
        for store in batch.edge_stores if self.data.edge_dir == "out" else ():
            if "edge_index" in store:
                store.edge_index = store.edge_index.flip(0)
        return batch


@short_traceback
class DistClusterLoader(_NodeSets):
    """Iterates over the subgraphs of ``batch_size`` clusters together, with the edges between them.

    Nodes are cluster after cluster, by id; ``n_id`` tells them, and ``e_id`` the edges, with ``with_edge``. Edges run
    as in the graph. Batches are the same bit for bit in every mode and with any number of partitions; those of
    :class:`glt.loader.ClusterLoader` have the same nodes, and edges in another order. Clusters that lie within a
    partition, such as parts of parts, cost least. It is sampled by the CPU.

    Args:
        data, batch_size, shuffle, drop_last: As of :class:`glt.distributed.DistNeighborLoader`.
        cluster: The cluster of each node of the whole graph, ``[num_nodes]``, integers from 0; of a heterogeneous graph
            a dict by node type. Samplers share them, 8 bytes for each node; a client sends them to its servers.
        input_clusters: The clusters of this trainer. Default: all.
        with_edge, collect_features, to_device, transform, random_seed, worker_options: As of the same.

    Raises:
        Exception: The same as :class:`glt.distributed.DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> with glt.distributed.DistClusterLoader(
        ...     dataset, torch.arange(40) // 10, batch_size=2, shuffle=True, random_seed=7, worker_options=options
        ... ) as loader:
        ...     [batch.num_nodes for batch in loader]
        [20, 20]
    """

    _seed_kind = "clusters"

    def __init__(
        self,
        data: DistDataset | None,
        cluster: Any,
        input_clusters: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        with_edge: bool = False,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        graph, worker_options = opened(data, worker_options, None)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, collect_features, to_device, transform, random_seed, worker_options
        )
        schema = graph.schema
        by_type = cluster if schema.is_hetero else {schema.node_types[0]: cluster}
        if not isinstance(by_type, Mapping) or {*by_type} != {*schema.node_types}:
            names = list(schema.node_types)
            raise ValueError(f"cluster: expected a dict with the cluster of each node, by node type, {names}")
        clusters, total = [], max(1, sum(graph.num_nodes_of))
        for node_type, num_nodes in zip(schema.node_types, graph.num_nodes_of, strict=True):
            name = f"cluster[{node_type!r}]" if schema.is_hetero else "cluster"
            clusters.append(checked_clusters(name, by_type[node_type], num_nodes, total))
        self.num_clusters: int = num_clusters(clusters)
        if input_clusters is None:
            input_clusters = torch.arange(self.num_clusters)
        wanted = as_ids(input_clusters, "input_clusters", self.num_clusters)
        require_in_range("input_clusters", wanted, self.num_clusters, f" (there are {self.num_clusters} clusters)")
        seeds = ClusterSeeds.of(clusters, self.num_clusters)
        table = SeedTable({"cluster": wanted}, seeds.extras())
        super().__init__(graph, _config(graph, with_edge), seeds, table, options)

    def _says(self) -> str:
        return told_options({"num_clusters": self.num_clusters})


@short_traceback
class DistGraphSAINTRandomWalkSampler(_NodeSets):
    """Iterates over the subgraphs of :class:`glt.loader.GraphSAINTRandomWalkSampler` on the whole graph, without its
    normalization: the nodes of random walks, by id, and the edges among them, in a graph of one type.

    Batches are the same bit for bit in every mode and with any number of partitions. They have ``n_id``, and ``e_id``
    with ``with_edge``; edges run as in the graph. Walks of each trainer are its own, since its ``random_seed`` is. Each
    step asks the owners of the nodes that walks are at once. It is sampled by the CPU.

    Args:
        data, with_edge, collect_features, to_device, transform, random_seed, worker_options: As of
            :class:`glt.distributed.DistNeighborLoader`. Partitions assigned ``by_src`` are walked along their edges,
            others against them.
        batch_size: Walks in a batch, from uniform nodes.
        walk_length: Steps of a walk, 1 to 255.
        num_steps: Batches of an epoch of this trainer.

    Raises:
        Exception: The same as :class:`glt.distributed.DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> with glt.distributed.DistGraphSAINTRandomWalkSampler(
        ...     dataset, batch_size=4, walk_length=2, num_steps=3, random_seed=7, worker_options=options
        ... ) as loader:
        ...     [batch.num_nodes for batch in loader]
        [10, 12, 8]
    """

    _seed_kind = "steps"

    def __init__(
        self,
        data: DistDataset | None,
        batch_size: int,
        walk_length: int,
        num_steps: int = 1,
        *,
        with_edge: bool = False,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        graph, worker_options = opened(data, worker_options, None)
        options = LoaderOptions(1, False, False, collect_features, to_device, transform, random_seed, worker_options)
        batch_size = check_count("batch_size", batch_size, 1, 2**31 - 1)
        num_steps = check_count("num_steps", num_steps, 1, 2**31 - 1)
        if graph.schema.is_hetero:
            raise ValueError("data has several types: GraphSAINT's laws are for one; use DistHGTLoader")
        if graph.num_nodes_of[0] == 0:
            raise ValueError("data has no nodes: walks have none to begin at")
        walk_length = WalkOptions.checked(graph.schema, graph.ends, walk_length).walk_length
        self.num_samples: int = batch_size
        self.walk_length: int = walk_length
        table = SeedTable({"step": torch.arange(num_steps)})
        super().__init__(graph, _config(graph, with_edge), SaintSeeds(batch_size, walk_length), table, options)

    def _says(self) -> str:
        return told_options({"walk_length": self.walk_length, "num_samples": self.num_samples})
