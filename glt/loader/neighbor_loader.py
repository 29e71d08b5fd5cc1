"""PyG's NeighborLoader on glt's sampler and gather."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import InputNodes

from glt.data.arrays import require_data
from glt.data.dataset import Dataset
from glt.data.schema import Schema
from glt.loader.base import KeyedBatches, require_agreement
from glt.loader.features import BatchFeatures, as_pyg
from glt.sampler.config import refuse_conflicts
from glt.sampler.neighbor_sampler import NeighborSampler, is_replaced
from glt.sampler.order import BatchIndex
from glt.sampler.output import Finish


class NeighborLoader(KeyedBatches, torch_geometric.loader.NeighborLoader):
    """A drop-in ``torch_geometric.loader.NeighborLoader``.

    Batches follow PyG's contract, point by point; duplicate seeds, which PyG gets wrong, are right. For a fixed
    ``random_seed`` the batches of an epoch are always the same, and equal to those of
    :class:`glt.distributed.DistNeighborLoader` with the same seeds and options.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, a :class:`glt.data.Dataset`, or a pair ``(FeatureStore, GraphStore)``.
        num_neighbors: Edges per node and hop: a list, or in heterogeneous graphs also a dict by edge type; -1 takes
            all, 0 none.
        input_nodes: Seeds: ids, a bool mask over all nodes, or None for all nodes; in heterogeneous graphs a node type,
            or a pair of one and the seeds.
        input_time: Time of each seed, ``[number of seeds]``, int64. Default: the seeds' own.
        replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted, directed: As in
            :class:`glt.sampler.NeighborSampler`.
        neighbor_sampler: Another sampler with PyG's interface. A :class:`glt.sampler.NeighborSampler` brings its own
            options, seed and number of threads to sample with.
        random_seed: Seed of shuffling and sampling, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads to sample and gather with; the batches do not depend on it.
        device: The GPU that samples, and that batches are on, bit for bit those of the CPU; needs a
            :class:`glt.data.Dataset` with mode ``'CUDA'`` or ``'ZERO_COPY'``. Rows come from its memory as far as
            tables have a ``split_ratio``, else from pinned host memory. ``'host'``: for tests, as in the sampler.
            Default: as in :class:`glt.sampler.NeighborSampler`.
        batches_ahead: With a GPU, batches that a thread makes ahead of the trainer, on a stream of its own. Default: 2.
            Two more are being sampled, each with 4 bytes per node of the graph. None of a ``sampler`` or
            ``batch_sampler`` of a class of your own, which is asked for a batch when the trainer asks: it may wait for
            what the trainer does with the one before. (Nor of a ``RandomSampler`` that draws with replacement.)
        gather_window: With a GPU, batches whose distinct rows are fetched once, see :class:`glt.data.WindowGather`;
            for rows that come over PCIe. As many batches more are sampled ahead. Default: 1, each by itself,
            as are those of an order of your own.
        transform, transform_sampler_output, filter_per_worker, **kwargs: As in PyG: ``custom_cls``, ``input_id`` and
            every argument of ``torch.utils.data.DataLoader``.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.
    """

    def __init__(
        self,
        data: Data | HeteroData | Dataset | tuple[FeatureStore, GraphStore],
        num_neighbors: Any,
        input_nodes: InputNodes = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Any = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        random_seed: int | None = None,
        num_threads: int = 1,
        device: torch.device | int | str | None = None,
        batches_ahead: int | None = None,
        gather_window: int | None = None,
        **kwargs: Any,
    ) -> None:
        options: dict[str, Any] = {
            "replace": replace,
            "subgraph_type": getattr(subgraph_type, "value", subgraph_type),
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
            "directed": directed,
        }
        if isinstance(neighbor_sampler, NeighborSampler):
            require_agreement(neighbor_sampler, data, num_neighbors, random_seed, options)
            random_seed, time_attr = neighbor_sampler.random_seed, neighbor_sampler.time_attr
        refuse_conflicts(input_time=input_time, time_attr=time_attr)
        if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
            raise ValueError(f"num_threads = {num_threads!r}: expected an integer of at least 1")
        self._choose_seed(random_seed, kwargs)
        source = as_pyg(data)
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, **options, random_seed=self.random_seed, num_threads=num_threads, device=device
            )
        if isinstance(neighbor_sampler, NeighborSampler):
            refuse_conflicts(input_time=input_time, time_level=neighbor_sampler.config.time_level)
            if neighbor_sampler.is_hetero:
                _require_node_type(input_nodes, neighbor_sampler.graph.schema)
        elif not hasattr(neighbor_sampler, "sample_from_nodes"):
            raise TypeError(f"neighbor_sampler has type {type(neighbor_sampler).__name__}: expected a PyG BaseSampler")
        self._choose_ahead(neighbor_sampler, data, device, batches_ahead, gather_window, kwargs)
        input_nodes = _checked_nodes(source, input_nodes, kwargs.get("input_id"))
        for name, given in (("input_time", input_time), ("input_id", kwargs.get("input_id"))):
            require_data(given, name)
        super().__init__(
            source,
            num_neighbors,
            input_nodes,
            input_time,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        if isinstance(neighbor_sampler, NeighborSampler):
            self._check_inputs(neighbor_sampler)
        place = None if self._ahead is None else self._ahead.accelerator
        self._features = BatchFeatures(data, self.custom_cls, num_threads, place)
        self._number_batches()

    def collate_fn(self, index: BatchIndex | Tensor | list[int]) -> Any:
        """Samples a batch; in a DataLoader worker also looks up its features, if ``filter_per_worker``."""
        if not isinstance(index, BatchIndex):
            return super().collate_fn(index)
        out = self._sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def _sample(self, index: BatchIndex) -> SamplerOutput | HeteroSamplerOutput:
        inputs = self.input_data[index.input_id]
        if isinstance(self.node_sampler, NeighborSampler):
            return self.node_sampler.sample_from_nodes(inputs, batch_key=index.key)
        return self.node_sampler.sample_from_nodes(inputs)

    def _begin_sample(self, index: BatchIndex) -> Finish:
        if is_replaced(self.node_sampler, "sample_from_nodes"):
            return partial(self._sample, index)
        return self.node_sampler.begin_from_nodes(self.input_data[index.input_id], batch_key=index.key)

    def filter_fn(self, out: SamplerOutput | HeteroSamplerOutput) -> Data | HeteroData:
        """Joins a sample with the features of its nodes and edges."""
        if not isinstance(self.node_sampler, NeighborSampler):
            return super().filter_fn(out)
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        return self._transformed(self._with_seeds(self._features.batch(out), out))

    def _with_seeds(self, data: Any, out: SamplerOutput | HeteroSamplerOutput) -> Data | HeteroData:
        input_type = self.input_data.input_type
        seeds = data if input_type is None else data[input_type]
        seeds.input_id, seeds.seed_time = out.metadata
        seeds.batch_size = len(seeds.input_id)
        return data

    def _sampled_by(self) -> Any:
        return self.node_sampler

    def _seed_columns(self) -> dict[str, Tensor | None]:
        inputs = self.input_data
        return {"node": inputs.node, "time": inputs.time, "input_id": inputs.input_id}

    def _check_inputs(self, sampler: NeighborSampler) -> None:
        """Refuses seeds outside the graph, or without times, when they are given: not when their batch comes up."""
        node_type = sampler.graph.schema.node_index(self.input_data.input_type)
        num_nodes, seeds, time = sampler.graph.num_nodes[node_type], self.input_data.node, self.input_data.time
        mask = self.input_nodes[1] if sampler.is_hetero and not isinstance(self.input_nodes, str) else self.input_nodes
        if isinstance(mask, Tensor) and mask.dtype == torch.bool and len(mask) != num_nodes:
            raise ValueError(f"input_nodes is a mask of {len(mask)} elements: expected one per node, {num_nodes}")
        bad = ((seeds < 0) | (seeds >= num_nodes)).nonzero()
        if len(bad):
            at = int(bad[0])
            raise IndexError(
                f"input_nodes[{at}] = {int(seeds[at])} is outside [0, {num_nodes}) (num_nodes = {num_nodes})"
            )
        if time is not None and (time.is_floating_point() or time.is_complex() or time.dtype == torch.bool):
            raise TypeError(f"input_time has dtype {time.dtype}: expected integers, such as seconds")
        if time is not None and time.shape != seeds.shape:
            raise ValueError(f"input_time has shape {list(time.shape)}: expected one time per seed, [{len(seeds)}]")
        if sampler.is_temporal and time is None:
            sampler.graph.seed_time(node_type, seeds[:0])


def _checked_nodes(source: Any, input_nodes: Any, input_id: Any) -> Any:
    """Returns seeds with their ids as a tensor: PyG reads masks that are none as ids 0 and 1, and cuts off fractions.

    Raises:
        TypeError, ValueError: If the seeds are no ids, or ``input_id`` is not one per seed.
    """
    node_type: Any = None
    given = input_nodes
    named = isinstance(given, str) or (isinstance(given, tuple | list) and len(given) and isinstance(given[0], str))
    if isinstance(source, Data) and named:
        raise ValueError(f"input_nodes = {given!r} names a node type, but the graph has none: expected ids alone")
    if named and not isinstance(given, str) and len(given) == 2:
        node_type, given = given
    if given is None or isinstance(given, str):
        return input_nodes if node_type is None else node_type  # a type and None: all nodes, also of stores
    try:
        nodes = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError) as error:
        raise TypeError(f"input_nodes = {given!r}: expected integer ids, or a bool mask") from error
    require_data(nodes, "input_nodes")
    if nodes.layout != torch.strided:
        raise TypeError(f"input_nodes has layout {nodes.layout}: expected a dense tensor, such as that of .to_dense()")
    if nodes.dim() != 1:
        raise ValueError(f"input_nodes has shape {list(nodes.shape)}: expected one dimension of ids, or a bool mask")
    if nodes.is_floating_point() or nodes.is_complex():
        if nodes.numel():
            raise TypeError(f"input_nodes has dtype {nodes.dtype}: expected integer ids, or a bool mask")
        nodes = nodes.to(torch.int64)
    num_seeds = int(nodes.sum()) if nodes.dtype == torch.bool else len(nodes)
    if input_id is not None and len(input_id) != num_seeds:
        raise ValueError(f"input_id has {len(input_id)} elements: expected one per seed, {num_seeds}")
    return nodes if node_type is None else (node_type, nodes)


def _require_node_type(input_nodes: Any, schema: Schema) -> None:
    if isinstance(input_nodes, tuple | list) and len(input_nodes) == 2:
        input_nodes = input_nodes[0]
    if not isinstance(input_nodes, str):
        raise ValueError(
            f"input_nodes is {'None' if input_nodes is None else 'without a node type'}: expected one of the node "
            f"types {list(schema.node_types)}, or a pair of one and the seeds"
        )
    schema.node_index(input_nodes)


# Enclosing subgraphs of seed nodes.


class SubGraphLoader(NeighborLoader):
    """Samples around seed nodes and returns *all* edges among the nodes found, with where the seeds are.

    What SEAL-like link prediction learns from (Zhang and Chen, "Link Prediction Based on Graph Neural Networks",
    NeurIPS 2018): let the seeds of a batch be the ends of links. Batches are those of :class:`NeighborLoader` with
    ``subgraph_type='induced'``, plus ``mapping [batch_size]``: seed i is node ``mapping[i]`` of the batch. In
    heterogeneous graphs it stands in the store of the seeds' type.

    Args:
        data, num_neighbors, input_nodes, **kwargs: As in :class:`NeighborLoader`. The fan-outs bound which nodes are
            found, not which edges are returned.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.
    """

    def __init__(self, data: Any, num_neighbors: Any, input_nodes: Any = None, **kwargs: Any) -> None:
        subgraph_type = kwargs.pop("subgraph_type", "induced")
        if getattr(subgraph_type, "value", subgraph_type) != "induced":
            raise ValueError(
                f"subgraph_type = {subgraph_type!r}: subgraphs are 'induced'; use NeighborLoader for others"
            )
        transform = _WithMapping(kwargs.pop("transform", None))
        super().__init__(data, num_neighbors, input_nodes, subgraph_type="induced", transform=transform, **kwargs)


class _WithMapping:
    """Adds ``mapping`` before the user's transform sees the batch."""

    def __init__(self, transform: Callable[[Any], Any] | None) -> None:
        self.transform: Callable[[Any], Any] | None = transform
        if isinstance(transform, _WithMapping):  # of a loader that is made anew from the options of another
            self.transform = transform.transform

    def __call__(self, data: Any) -> Any:
        for store in data.stores:
            if "batch_size" in store:
                where = store.input_id.device if "input_id" in store else None
                store.mapping = torch.arange(store.batch_size, device=where)
        return data if self.transform is None else self.transform(data)
