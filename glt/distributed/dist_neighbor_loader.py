"""Batches around nodes, for one trainer of a distributed job."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.channel.message import Message
from glt.data.arrays import as_ids
from glt.distributed.agreement import WorkerOptions
from glt.distributed.context import require_context
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_loader import DistLoader, LoaderOptions
from glt.distributed.node_seeds import NodeSeeds
from glt.distributed.options import MpDistSamplingWorkerOptions
from glt.distributed.sampling_options import checked_config
from glt.distributed.seed_table import SeedTable


class DistNeighborLoader(DistLoader):
    """Iterates over sampled neighbourhoods of the seeds of this trainer, as PyG ``Data``.

    Sampling and feature lookup run ahead of the trainer, in processes of their own or on threads of this one, over all
    partitions of the graph. For a fixed ``random_seed`` the batches are the same in every mode, with any number of
    partitions, workers and batches in flight, and with ``edge_dir='in'`` equal to those of
    :class:`glt.loader.NeighborLoader` on the whole graph. They come in index order. Leaving an epoch early is safe. All
    trainers create their loaders, and shut them down, in the same order.

    Attributes of a batch are PyG's: ``n_id [N], edge_index [2, E], input_id [batch_size]``, ``e_id [E]`` (with
    ``with_edge``), all int64; ``x, y [N, ...], edge_attr [E, ...]`` (with ``collect_features``, where the dataset has
    them); ``batch_size``, the number of seeds; ``num_sampled_nodes, num_sampled_edges``, lists with a number per hop,
    that of nodes beginning with the seeds. Edges run neighbour -> expanded node; with ``edge_dir='out'`` that is the
    reverse of the edge.

    Args:
        data: The partition of this trainer, loaded. Each partition is loaded by at least one trainer.
        num_neighbors: Edges per node, one number per hop; -1 takes all, 0 none.
        input_nodes: Seeds of this trainer: ids ``[num_seeds]``, or a bool mask over all nodes.
        batch_size: Seeds per batch.
        shuffle: Permute the seeds anew in each epoch.
        drop_last: Leave out a last batch that is not full.
        replace: Draw with replacement.
        with_edge: Return edge ids as ``e_id``.
        edge_dir: ``'in'`` or ``'out'``; must be how the graph was partitioned, which is the default.
        collect_features: Look up node features, labels and edge features.
        to_device: Where batches go. Default: they stay in CPU memory, shared with the samplers.
        random_seed: Used as given, in [0, 2^63). Default: drawn once per job by rank 0, from torch's generator, and
            made different for each rank; :attr:`random_seed` tells which.
        worker_options: Where sampling runs. Default: one worker process.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.
        RuntimeError: Without ``init_worker_group``.
        MemoryError: If there is no room for the channels.
        glt.errors.RendezvousError: If the trainers do not find each other or were given different options.
        glt.errors.PeerLost: If another trainer, or a worker of one, died or gave up during start-up.
        glt.errors.WorkerDied: If a worker of this trainer does not come up.
        glt.errors.RemoteError: If one raises an exception while it does; carries its traceback.

    Iterating raises ``PeerLost``, ``WorkerDied`` and ``RemoteError`` too, in the place of the batch that is missing.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Any,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        with_edge: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        require_context()
        require_loaded(data, edge_dir)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, collect_features, to_device, random_seed,
            MpDistSamplingWorkerOptions() if worker_options is None else worker_options,
        )  # fmt: skip
        config = checked_config(
            data, num_neighbors, temporal_strategy=temporal_strategy, time_attr=time_attr, weight_attr=weight_attr,
            input_time=input_time, replace=replace, subgraph_type=subgraph_type, disjoint=disjoint,
            with_edge=with_edge,
        )  # fmt: skip
        self._seed_type, nodes = checked_seeds(input_nodes, data)
        columns = {"node": nodes}
        if input_time is not None:
            columns["time"] = checked_times("input_time", input_time, len(nodes))
        elif config.temporal is not None:
            require_node_time(data, self._seed_type)
        super().__init__(data, config, self._seeds(), SeedTable(columns), options)

    def _seeds(self) -> NodeSeeds:
        return NodeSeeds(self._seed_type)

    def _collate(self, message: Message) -> Data | HeteroData:
        data = super()._collate(message)
        store = data[self.data.schema.node_types[self._seed_type]] if self.data.schema.is_hetero else data
        store.batch_size = len(store.input_id)
        return data


def require_loaded(data: Any, edge_dir: str | None) -> None:
    """Raises unless ``data`` is a dataset that was loaded, and partitioned for ``edge_dir``, if that is given."""
    if not isinstance(data, DistDataset):
        raise TypeError(f"data has type {type(data).__name__}: expected a DistDataset")
    _ = data.load_args  # raises if it is empty
    if edge_dir not in (None, data.edge_dir):
        raise ValueError(
            f"edge_dir = {edge_dir!r}: the graph was partitioned for {data.edge_dir!r}; partition it with "
            f"edge_assign_strategy={'by_src' if edge_dir == 'out' else 'by_dst'!r}, or leave edge_dir out"
        )


def checked_times(name: str, times: Any, num_seeds: int) -> Tensor:
    """Returns one time per seed, int64."""
    times = times if isinstance(times, Tensor) else torch.as_tensor(times)
    if times.is_floating_point() or times.is_complex() or times.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {times.dtype}: expected integers, such as seconds")
    if tuple(times.shape) != (num_seeds,):
        raise ValueError(f"{name} has shape {list(times.shape)}: expected one time per seed, [{num_seeds}]")
    return times.to("cpu", torch.int64).contiguous()


def require_node_time(data: DistDataset, node_type: int) -> None:
    """Raises unless nodes of the type have times of their own, to be looked at when no others are given."""
    if not data.manifest.node_types[node_type].has_time:
        raise ValueError(
            f"input_time is not given and {data.schema.node_types[node_type]!r} nodes have no time in "
            f"{data.load_args['graph_dir']!r}: give one time per seed, or partition with node_time=..."
        )


def checked_seeds(input_nodes: Any, data: DistDataset) -> tuple[int, Tensor]:
    """Returns the position of the seeds' type and their ids, int64.

    Args:
        input_nodes: Ids, or a bool mask over all nodes of the type; of a heterogeneous graph ``(type, ids)``, or a type
            alone, which stands for all its nodes.
        data: The graph.
    """
    schema = data.schema
    node_type: Any = None
    if isinstance(input_nodes, str):
        node_type, input_nodes = input_nodes, slice(None)
    elif isinstance(input_nodes, tuple | list) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        node_type, input_nodes = input_nodes
        input_nodes = slice(None) if input_nodes is None else input_nodes
    if input_nodes is None:
        raise TypeError("input_nodes = None: expected the seeds of this trainer, ids or a bool mask over all nodes")
    if (node_type is not None) != schema.is_hetero:
        expected = f"(type, ids) with one of {list(schema.node_types)}" if schema.is_hetero else "ids without a type"
        raise ValueError(f"input_nodes has {'no type' if node_type is None else f'type {node_type!r}'}: {expected}")
    if node_type is not None and node_type not in schema.node_types:
        raise ValueError(f"input_nodes is of type {node_type!r}: expected one of {list(schema.node_types)}")
    index = schema.node_index(node_type)
    num_nodes = data.num_nodes_of[index]
    if isinstance(input_nodes, slice):
        return index, torch.arange(num_nodes)
    mask = isinstance(input_nodes, Tensor) and input_nodes.dtype == torch.bool
    if mask and len(input_nodes) != num_nodes:
        raise ValueError(f"input_nodes is a mask of {len(input_nodes)} elements: expected one per node, {num_nodes}")
    seeds = as_ids(input_nodes, "input_nodes")
    bad = ((seeds < 0) | (seeds >= num_nodes)).nonzero()
    if len(bad):
        at = int(bad[0])
        of_type = f" of type {node_type!r}" if schema.is_hetero else ""
        raise IndexError(
            f"input_nodes[{at}] = {int(seeds[at])} is outside [0, {num_nodes}) (num_nodes{of_type} = {num_nodes})"
        )
    return index, seeds
