"""PyG's NeighborLoader on glt's sampler and gather."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.typing import InputNodes

from glt.data.dataset import Dataset
from glt.data.feature import Feature
from glt.loader.keyed_batches import KeyedBatches
from glt.sampler.neighbor_sampler import NeighborSampler
from glt.sampler.seed_order import BatchIndex

# Options of PyG's loader that change what a batch holds, and the one value of each that works here so far.
_ONLY = {
    "input_time": None,
    "subgraph_type": "directional",
    "disjoint": False,
    "temporal_strategy": "uniform",
    "time_attr": None,
    "weight_attr": None,
    "directed": True,
}


class NeighborLoader(KeyedBatches, torch_geometric.loader.NeighborLoader):
    """A drop-in ``torch_geometric.loader.NeighborLoader`` for homogeneous node sampling.

    Batches follow PyG's contract, point by point; duplicate seeds, which PyG gets wrong, are right. For a fixed
    ``random_seed`` the batches of an epoch are always the same, and equal to those of
    :class:`glt.distributed.DistNeighborLoader` with the same seeds and options.

    Args:
        data: A PyG ``Data`` or a :class:`glt.data.Dataset`.
        num_neighbors: Edges per node, one number per hop; -1 takes all, 0 none.
        input_nodes: Seeds: ids, a bool mask over all nodes, or None for all nodes.
        replace: Draw with replacement.
        random_seed: Seed of shuffling and sampling, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads to sample and gather with; the batches do not depend on it.
        neighbor_sampler: Another sampler with PyG's interface. A :class:`glt.sampler.NeighborSampler` brings its own
            fan-out, seed and number of threads to sample with.
        transform, transform_sampler_output, filter_per_worker, input_id, **kwargs: As in PyG; every argument of
            ``torch.utils.data.DataLoader`` among them. Of ``input_time, subgraph_type, disjoint, temporal_strategy,
            time_attr, weight_attr, directed`` only PyG's defaults are accepted.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or is not supported yet; names it.
    """

    def __init__(
        self,
        data: Data | Dataset,
        num_neighbors: Sequence[int],
        input_nodes: InputNodes = None,
        *,
        replace: bool = False,
        random_seed: int | None = None,
        num_threads: int = 1,
        neighbor_sampler: BaseSampler | None = None,
        **kwargs: Any,
    ) -> None:
        for name, only in _ONLY.items():
            value = kwargs.pop(name, only)
            if getattr(value, "value", value) != only:  # of SubgraphType too
                raise ValueError(f"{name} = {value!r}: this version knows {only!r} only, on homogeneous graphs")
        if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
            raise ValueError(f"num_threads = {num_threads!r}: expected an integer of at least 1")
        kwargs.pop("is_sorted", None)  # saves PyG a sort that is not done here
        source = _as_data(data)
        if isinstance(neighbor_sampler, NeighborSampler):
            # Its own seed, threads and options hold; a second opinion here would silently lose to them.
            if random_seed not in (None, neighbor_sampler.random_seed):
                raise ValueError(
                    f"random_seed = {random_seed}, but neighbor_sampler was given {neighbor_sampler.random_seed}: "
                    "give it to one of them"
                )
            if replace != neighbor_sampler.config.replace:
                raise ValueError(f"replace = {replace}, but neighbor_sampler was made with {not replace}")
            if list(num_neighbors) != neighbor_sampler.num_neighbors:
                raise ValueError(
                    f"num_neighbors = {list(num_neighbors)}, but neighbor_sampler was made with "
                    f"{neighbor_sampler.num_neighbors}: pass the same"
                )
            random_seed = neighbor_sampler.random_seed
        self._choose_seed(random_seed, kwargs)
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, replace=replace, random_seed=self.random_seed, num_threads=num_threads
            )
        self.num_threads = num_threads
        self._features: dict[str, Feature] = {}
        super().__init__(source, num_neighbors, input_nodes, neighbor_sampler=neighbor_sampler, **kwargs)
        _check_inputs(input_nodes, self.input_data.node, source.num_nodes)
        self._number_batches()

    def collate_fn(self, index: BatchIndex | Tensor | list[int]) -> SamplerOutput | Data:
        """Samples a batch; in a DataLoader worker also looks up its features, if ``filter_per_worker``."""
        if not isinstance(index, BatchIndex):
            return super().collate_fn(index)
        inputs = self.input_data[index.input_id]
        if isinstance(self.node_sampler, NeighborSampler):
            out = self.node_sampler.sample_from_nodes(inputs, batch_key=index.key(self.random_seed))
        else:
            out = self.node_sampler.sample_from_nodes(inputs)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: SamplerOutput) -> Data:
        """Joins a sample with the features of its nodes and edges."""
        if not (isinstance(out, SamplerOutput) and isinstance(self.node_sampler, NeighborSampler)):
            return super().filter_fn(out)
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        data = copy.copy(self.data)
        self._filter_nodes(data, out.node)
        self._filter_edges(data, out)
        if "n_id" not in data:
            data.n_id = out.node
        if out.edge is not None and "e_id" not in data:
            data.e_id = out.edge
        data.batch = out.batch
        data.num_sampled_nodes = out.num_sampled_nodes
        data.num_sampled_edges = out.num_sampled_edges
        data.input_id, data.seed_time = out.metadata
        data.batch_size = len(data.input_id)
        return data if self.transform is None else self.transform(data)

    def _filter_nodes(self, data: Data, node: Tensor) -> None:
        store = self.data._store
        for key, value in list(store.items()):
            if key == "num_nodes":
                data.num_nodes = len(node)
            elif store.is_node_attr(key):
                data[key] = self._rows(key, value, node)

    def _filter_edges(self, data: Data, out: SamplerOutput) -> None:
        store = self.data._store
        for key, value in list(store.items()):
            if key != "edge_index" and store.is_edge_attr(key):
                data[key] = None if out.edge is None else self._rows(key, value, out.edge)
        data.edge_index = _stacked(out.row, out.col)

    def _rows(self, key: str, value: Any, ids: Tensor) -> Any:
        """Rows ``ids`` of an attribute: our gather where rows are contiguous, PyG's indexing for the rest."""
        dim = self.data.__cat_dim__(key, value, self.data._store)
        plain = type(value) is Tensor and value.layout == torch.strided and not value.requires_grad
        if not plain or dim != 0 or value.device.type != "cpu" or not value.is_contiguous():
            return index_select(value, ids.to(value.device) if isinstance(value, Tensor) else ids, dim=dim)
        feature = self._features.get(key)
        if feature is None or feature.tensor.data_ptr() != value.data_ptr() or feature.shape != value.shape:
            feature = self._features[key] = Feature(value)
        out = None
        if torch.utils.data.get_worker_info() is not None:
            # Bound for the main process: written to shared memory at once instead of copied there later.
            num_bytes = len(ids) * max(1, value[:1].numel()) * value.element_size()
            storage = torch.UntypedStorage._new_shared(num_bytes)
            out = torch.empty(0, dtype=value.dtype).set_(storage, 0, (len(ids), *value.shape[1:]), value.stride())
        return feature.gather(ids, out, num_threads=self.num_threads)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_features": {}}


def _check_inputs(input_nodes: InputNodes, seeds: Tensor, num_nodes: int | None) -> None:
    """Refuses seeds outside the graph where they are given, not when their batch comes up."""
    if num_nodes is None:
        return
    if isinstance(input_nodes, Tensor) and input_nodes.dtype == torch.bool and len(input_nodes) != num_nodes:
        raise ValueError(f"input_nodes is a mask of {len(input_nodes)} elements: expected one per node, {num_nodes}")
    bad = ((seeds < 0) | (seeds >= num_nodes)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise IndexError(f"input_nodes[{at}] = {int(seeds[at])} is outside [0, {num_nodes}) (num_nodes = {num_nodes})")


def _as_data(data: Data | Dataset) -> Data:
    if isinstance(data, Data):
        return data
    if not isinstance(data, Dataset):
        raise TypeError(f"data has type {type(data).__name__}: expected a homogeneous PyG Data or a glt Dataset")
    if data.edge_dir != "in":
        raise ValueError("data samples along out-edges: this loader is PyG's, build the dataset with edge_dir='in'")
    out = Data(num_nodes=data.num_nodes)
    for key, feature in (("x", data.node_features), ("y", data.node_labels), ("edge_attr", data.edge_features)):
        if feature is None:
            continue
        if feature.row_of is not None:
            raise ValueError(f"{key} is a Feature with row_of, as partitions have: this loader needs one row per id")
        out[key] = feature.tensor
    return out


def _stacked(row: Tensor, col: Tensor) -> Tensor:
    """``torch.stack([row, col])``, without copying where they are the two rows of one tensor already."""
    adjacent = (
        row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + len(row)
        and row.is_contiguous()
        and col.is_contiguous()
    )
    return row.as_strided((2, len(row)), (len(row), 1)) if adjacent and len(row) else torch.stack([row, col])
