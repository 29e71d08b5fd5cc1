"""Batches around nodes, for one trainer of a distributed job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.channel.message import Message
from glt.distributed.context import require_context
from glt.distributed.deployment import default_options, graph_of
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_loader import DistLoader, LoaderOptions
from glt.distributed.node_seeds import NodeSeeds
from glt.distributed.options import WorkerOptions
from glt.distributed.refusal import telling_of_misspellings, telling_the_others
from glt.distributed.sampling_options import checked_config
from glt.distributed.seed_checks import (
    checked_class,
    checked_input_id,
    checked_seeds,
    checked_times,
    require_edge_dir,
    require_node_time,
)
from glt.distributed.seed_table import SeedTable
from glt.distributed.service.named_seeds import seeds_by_name


class DistNeighborLoader(DistLoader):
    """Iterates over sampled neighbourhoods of the seeds of this trainer, as PyG ``Data`` or ``HeteroData``.

    Sampling and feature lookup run ahead of the trainer, in processes of their own or on threads of this one, over all
    partitions of the graph. For a fixed ``random_seed`` the batches are the same in every mode, with any number of
    partitions, workers and batches in flight, and equal to those of :class:`glt.loader.NeighborLoader` on the whole
    graph. They come in index order. Leaving an epoch early is safe. All trainers create their loaders, and shut them
    down, in the same order.

    Attributes of a batch are PyG's: ``n_id [N], edge_index [2, E], input_id [batch_size]``, ``e_id [E]`` (with
    ``with_edge``), all int64; ``x, y, time [N, ...], edge_attr [E, ...]`` (with ``collect_features``, where the dataset
    has them) and all tables that the graph was partitioned with by name, such as ``train_mask``; ``batch_size``, the
    number of seeds; ``num_sampled_nodes, num_sampled_edges``, lists with a number per hop, that of nodes beginning with
    the seeds; ``batch [N]``, the tree of each node, of disjoint batches; ``seed_time``, where given. In heterogeneous
    batches they are those of a node or edge type, and all types are there, if empty. Edges run neighbour -> expanded
    node; with ``edge_dir='out'`` that is the reverse of the edge, and edge types are the reverse types: ``('a', 'to',
    'b')`` becomes ``('b', 'rev_to', 'a')``.

    Args:
        data: The partition of this trainer, loaded. Each partition is loaded by at least one trainer. None on a client:
            servers have the partitions.
        num_neighbors: Edges per node and hop: a list for all edge types, a dict by edge type, or PyG's
            ``NumNeighbors``; -1 takes all, 0 none.
        input_nodes: Seeds of this trainer: ids ``[num_seeds]``, or a bool mask over all nodes. Of a heterogeneous graph
            ``(node type, ids or mask)``, or a node type, for all its nodes. On a client also, in place of ids,
            ``'train'``, ``'valid'`` or ``'test'``, its share of the nodes whose ``train_mask``, ``valid_mask`` or
            ``test_mask`` is set in the partitions; or the path of a ``.pt`` or ``.npy`` file below ``seed_dir`` of the
            server.
        batch_size: Seeds per batch.
        shuffle: Permute the seeds anew in each epoch.
        drop_last: Leave out a last batch that is not full.
        input_time: Time of each seed, integers; needs ``time_attr``. Default: the times of the nodes themselves.
        replace: Draw with replacement.
        subgraph_type: ``'directional'``: the sampled edges; ``'bidirectional'``: and their reverses; ``'induced'``: all
            edges among the sampled nodes.
        disjoint: A tree of its own for each seed.
        time_attr, temporal_strategy: Any name: only edges no later than the seed, drawn uniformly (``'uniform'``) or
            the latest of them (``'last'``), by the times that the graph was partitioned with (``edge_time``, or
            ``node_time`` for that of the neighbour). Edge types without times are not bound. Implies ``disjoint``.
        weight_attr: Any name: draw proportionally to the weights that the graph was partitioned with. Among the
            d edges that a node is expanded along, a weight above 0 counts as no less than about 2 d 10^-18 times the
            largest.
        with_edge: Return edge ids as ``e_id``.
        edge_dir: ``'in'`` or ``'out'``; must be how the graph was partitioned, which is the default.
        collect_features: Look up features, labels and times of nodes, and features of edges.
        to_device: Where batches go. To a GPU each is one copy, on a stream of its own; that of the next batch goes on
            while the trainer works on this one, if workers have ``pin_memory``. Batches of a sampler on that GPU beside
            the trainer are there already. Default: they stay where they are made, in CPU memory shared with the
            samplers or on the GPU that samples.
        transform: Called with each batch; what it returns is the batch.
        input_id: What batches tell of each seed as ``input_id``. Default: its position in ``input_nodes``; of a mask,
            the node.
        is_sorted: Accepted for PyG's sake; partitions are always sorted.
        directed: False is PyG's old name for ``subgraph_type='induced'``.
        filter_per_worker: None or True, PyG's word for what is always so here: samplers look up features.
        custom_cls: Class of the batches, derived from PyG's ``Data`` or ``HeteroData``; it is made without arguments.
        random_seed: Used as given, in [0, 2^63). Default: drawn once per job by rank 0, from torch's generator, and
            made different for each rank; :attr:`random_seed` tells which.
        worker_options: Where sampling runs. Default: one worker process; of a client, the server of its turn.

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

    @telling_of_misspellings
    def __init__(
        self,
        data: DistDataset | None,
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
        transform: Callable[[Any], Any] | None = None,
        input_id: Tensor | None = None,
        is_sorted: bool = False,
        directed: bool = True,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        worker_options = default_options(require_context()) if worker_options is None else worker_options
        with telling_the_others(worker_options):
            graph = graph_of(data, worker_options, require_context())
            require_edge_dir(graph, edge_dir)
            options = LoaderOptions(
                batch_size, shuffle, drop_last, collect_features, to_device, transform, random_seed, worker_options,
                checked_class(custom_cls, graph), filter_per_worker,
            )  # fmt: skip
            config = checked_config(
                graph, num_neighbors, temporal_strategy=temporal_strategy, time_attr=time_attr, weight_attr=weight_attr,
                input_time=input_time, replace=replace, subgraph_type=subgraph_type, directed=directed,
                disjoint=disjoint, with_edge=with_edge,
            )  # fmt: skip
            given = seeds_by_name("input_nodes", input_nodes, graph, worker_options)
            self._seed_type, columns = checked_seeds(given, graph)
            num_seeds = len(columns["node"])
            if input_id is not None:
                columns["input_id"] = checked_input_id(input_id, num_seeds)
            if input_time is not None:
                columns["time"] = checked_times("input_time", input_time, num_seeds)
            elif config.temporal is not None:
                require_node_time(graph, self._seed_type)
        super().__init__(graph, config, self._seeds(), SeedTable(columns), options)

    def _seeds(self) -> NodeSeeds:
        return NodeSeeds(self._seed_type)

    def _collate(self, message: Message) -> Data | HeteroData:
        data = super()._collate(message)
        store = data[self.data.schema.node_types[self._seed_type]] if self.data.schema.is_hetero else data
        store.batch_size = len(store.input_id)
        return data
