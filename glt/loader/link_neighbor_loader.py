"""PyG's LinkNeighborLoader on glt's sampler and gather."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import InputEdges

from glt.data.arrays import require_data
from glt.data.dataset import Dataset
from glt.data.schema import EdgeType
from glt.loader.base import KeyedBatches, require_agreement
from glt.loader.features import BatchFeatures, as_pyg
from glt.sampler.config import GIVEN, refuse_conflicts
from glt.sampler.link import checked_negatives, require_summable
from glt.sampler.neighbor_sampler import NeighborSampler, is_replaced
from glt.sampler.order import BatchIndex
from glt.sampler.output import Finish

# The seed edges of a link loader, checked where they are given; those left to a glt dataset come from it.


def seed_edges(data: Any, edge_label_index: Any) -> Any:
    """Returns the seed edges in a form that PyG's loaders take.

    Args:
        data: What the loader was given.
        edge_label_index: Seed edges ``[2, B]``, or None for all edges in the order of their ids; in heterogeneous
            graphs an edge type (two node types where that is clear), or a pair of it and one of those.

    Raises:
        TypeError: If the ends are no integers.
        ValueError: If the seed edges are not ``[2, B]``, or no edge type is named, or none that there is; says which
            there are.
    """
    if isinstance(data, Data) or (isinstance(data, Dataset) and not data.schema.is_hetero):
        if edge_label_index is None:
            return _all_edges(data, None) if isinstance(data, Dataset) else None
        parts = edge_label_index if isinstance(edge_label_index, tuple | list) else ()
        if _is_type(parts) or (len(parts) and _is_type(parts[0])):
            raise ValueError("edge_label_index names an edge type, but the graph has none: expected [2, B] alone")
        return checked_ends(edge_label_index)
    known: list[EdgeType] | None = None  # stores tell
    if isinstance(data, HeteroData):
        known = data.edge_types
    elif isinstance(data, Dataset):
        known = list(data.schema.edge_types)
    expected = "an edge type, or a pair of it and [2, B]" + ("" if known is None else f"; the types are {known}")
    if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) == 0:
        given = "None" if edge_label_index is None else f"a {type(edge_label_index).__name__} without an edge type"
        raise ValueError(f"edge_label_index is {given}: expected {expected}")
    alone = _is_type(edge_label_index)
    if not alone and len(edge_label_index) != 2:
        raise ValueError(f"edge_label_index has {len(edge_label_index)} elements: expected {expected}")
    named, edges = (edge_label_index, None) if alone else edge_label_index
    if not (_is_type(named) or (named is None and known is None)):
        raise ValueError(f"edge_label_index names edge type {named!r}: expected {expected}")
    if edges is not None:
        edges = checked_ends(edges)
    if known is None:
        return edge_label_index if edges is None else (named, edges)
    fits = [t for t in known if tuple(named) in (t, (t[0], t[2]))]
    if len(fits) != 1 and (isinstance(data, Dataset) or edges is None):
        raise ValueError(f"edge_label_index names edge type {named!r}: expected one of {known}")
    if isinstance(data, Dataset):
        return fits[0], _all_edges(data, fits[0]) if edges is None else edges
    return named, edges


def checked_ends(edges: Any) -> Tensor:
    """Returns ends ``[2, B]`` as a tensor; refuses other shapes, and what would be cut off to integers silently."""
    edges = edges if isinstance(edges, Tensor) else torch.as_tensor(edges)
    require_data(edges, "edge_label_index")
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"edge_label_index has shape {list(edges.shape)}: expected [2, B]")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        if edges.numel():
            raise TypeError(f"edge_label_index has dtype {edges.dtype}: expected integer ids")
        edges = edges.to(torch.int64)
    return edges


def _is_type(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) in (2, 3) and all(isinstance(part, str) for part in value)


def _all_edges(data: Dataset, edge_type: EdgeType | None) -> Tensor:
    topology = data.get_graph(edge_type).topology
    edges = topology.coo()
    return edges if topology.edge_ids is None else edges[:, topology.edge_ids.argsort(stable=True)]


class LinkNeighborLoader(KeyedBatches, torch_geometric.loader.LinkNeighborLoader):
    """A drop-in ``torch_geometric.loader.LinkNeighborLoader``: samples around both ends of edges, and negatives.

    Batches follow PyG's contract, point by point, with two differences that are PyG's "to do". Negatives are no edges
    of the graph, ever, and uniform (or by weight) over all pairs that are not; see
    :class:`glt.sampler.negatives.NegativeRounds`. And the edges to predict can be kept out of the sample: leave them in
    the graph, so that no negative is one of them, and use ``exclude_edges``. For a fixed ``random_seed`` the batches of
    an epoch are always the same, and equal to those of :class:`glt.distributed.DistLinkNeighborLoader` with the same
    seed edges and options.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, a :class:`glt.data.Dataset`, or a pair ``(FeatureStore, GraphStore)``.
        num_neighbors: Edges per node and hop, a list or a dict by edge type; -1 takes all, 0 none.
        edge_label_index: Seed edges ``[2, B]``, edges of the graph or not; None: all edges. In heterogeneous graphs an
            edge type, or a pair of that and the seed edges.
        edge_label: Label of each seed edge. With binary negatives, whose label is 0, labels that start at 0 go up by 1.
        edge_label_time: Time of each seed edge, int64; needs ``time_attr``. No node or edge that is later is sampled.
        neg_sampling: ``'binary'``, ``'triplet'``, a dict or a ``NegativeSampling``; None: no negatives. Triplets need a
            destination that their source has no edge to: a seed edge without one is refused, where PyG would train on
            an edge as a negative.
        neg_sampling_ratio: PyG's old name for the amount of binary negatives.
        exclude_edges: ``'self'``: the seed edges of a batch (not its negatives), with all edges parallel to them, are
            not sampled in that batch, others taking their place; ``'reverse'``: nor are their reverses. An edge type:
            the same, naming the type that holds the reverses.
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
        neighbor_sampler: Another sampler with PyG's interface. A :class:`glt.sampler.NeighborSampler` brings its own
            options, seed and number of threads to sample with.
        replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted, directed: As in
            :class:`glt.sampler.NeighborSampler`.
        transform, transform_sampler_output, filter_per_worker, custom_cls, input_id, **kwargs: As in PyG; every
            argument of ``torch.utils.data.DataLoader`` among them.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.
    """

    def __init__(
        self,
        data: Data | HeteroData | Dataset | tuple[FeatureStore, GraphStore],
        num_neighbors: Any,
        edge_label_index: InputEdges = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Any = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        exclude_edges: str | EdgeType | None = None,
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
            "exclude_edges": exclude_edges,
        }
        if isinstance(neighbor_sampler, NeighborSampler):
            require_agreement(neighbor_sampler, data, num_neighbors, random_seed, options)
            random_seed, time_attr = neighbor_sampler.random_seed, neighbor_sampler.time_attr
        refuse_conflicts(edge_label_time=edge_label_time, time_attr=None if time_attr is None else GIVEN)
        if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
            raise ValueError(f"num_threads = {num_threads!r}: expected an integer of at least 1")
        self._choose_seed(random_seed, kwargs)
        neg_sampling = checked_negatives(neg_sampling, neg_sampling_ratio, kwargs.get("batch_size") or 1)
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, **options, random_seed=self.random_seed, num_threads=num_threads, device=device
            )
        elif exclude_edges is not None and not isinstance(neighbor_sampler, NeighborSampler):
            raise ValueError(f"exclude_edges = {exclude_edges!r}: the neighbor_sampler given does not know that option")
        self._choose_ahead(neighbor_sampler, data, device, batches_ahead, gather_window, kwargs)
        edge_label, edge_label_time, input_id = (
            value if value is None or isinstance(value, Tensor) else torch.as_tensor(value)
            for value in (edge_label, edge_label_time, kwargs.pop("input_id", None))
        )
        for name, given in (
            ("edge_label", edge_label),
            ("edge_label_time", edge_label_time),
            ("input_id", input_id),
        ):
            require_data(given, name)
        if edge_label is not None and neg_sampling is not None:
            require_summable(edge_label)
        super().__init__(
            as_pyg(data),
            num_neighbors,
            seed_edges(data, edge_label_index),
            edge_label,
            edge_label_time,
            neg_sampling=neg_sampling,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            input_id=input_id,
            **kwargs,
        )
        self._check_inputs()
        place = None if self._ahead is None else self._ahead.accelerator
        self._features = BatchFeatures(data, self.custom_cls, num_threads, place)
        self._number_batches()

    def _check_inputs(self) -> None:
        """Refuses seed edges and what comes with them where they are given, not when their batch comes up."""
        inputs = self.input_data
        size = len(inputs.row)
        for name, given in (
            ("edge_label", inputs.label),
            ("edge_label_time", inputs.time),
            ("input_id", inputs.input_id),
        ):
            if given is not None and (given.dim() == 0 or len(given) != size):
                raise ValueError(
                    f"{name} has {given.size(0) if given.dim() else 0} rows: expected one per seed edge, {size}"
                )
        if inputs.time is not None and (inputs.time.is_floating_point() or inputs.time.dim() != 1):
            raise TypeError(f"edge_label_time has dtype {inputs.time.dtype}: expected integers, shape [{size}]")
        if isinstance(self.link_sampler, NeighborSampler):
            self.link_sampler.check_links(inputs, self.neg_sampling)

    def _sampled_by(self) -> Any:
        return self.link_sampler

    def _options(self) -> dict[str, Any]:
        drawn = self.neg_sampling
        return {"neg_sampling": None if drawn is None else {"mode": drawn.mode.value, "amount": drawn.amount}}

    def _seed_columns(self) -> dict[str, Tensor | None]:
        inputs, drawn = self.input_data, self.neg_sampling
        weights = {} if drawn is None else {"src_weight": drawn.src_weight, "dst_weight": drawn.dst_weight}
        return {
            "row": inputs.row,
            "col": inputs.col,
            "label": inputs.label,
            "time": inputs.time,
            "input_id": inputs.input_id,
            **weights,
        }

    def collate_fn(self, index: BatchIndex | Tensor | list[int]) -> Any:
        """Samples a batch; in a DataLoader worker also looks up its features, if ``filter_per_worker``."""
        if not isinstance(index, BatchIndex):
            return super().collate_fn(index)
        out = self._sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def _sample(self, index: BatchIndex) -> SamplerOutput | HeteroSamplerOutput:
        inputs = self.input_data[index.input_id]
        if isinstance(self.link_sampler, NeighborSampler):
            return self.link_sampler.sample_from_edges(inputs, self.neg_sampling, batch_key=index.key)
        return self.link_sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)

    def _begin_sample(self, index: BatchIndex) -> Finish:
        if is_replaced(self.link_sampler, "sample_from_edges"):
            return partial(self._sample, index)
        inputs = self.input_data[index.input_id]
        return self.link_sampler.begin_from_edges(inputs, self.neg_sampling, batch_key=index.key)

    def filter_fn(self, out: SamplerOutput | HeteroSamplerOutput) -> Data | HeteroData:
        """Joins a sample with the features of its nodes and edges."""
        if not isinstance(self.link_sampler, NeighborSampler):
            return super().filter_fn(out)
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        return self._transformed(self._with_seeds(self._features.batch(out), out))

    def _with_seeds(self, data: Any, out: SamplerOutput | HeteroSamplerOutput) -> Data | HeteroData:
        input_type = self.input_data.input_type
        links = data if input_type is None else data[input_type]
        links.input_id = out.metadata[0]
        if self.neg_sampling is None or self.neg_sampling.is_binary():
            links.edge_label_index, links.edge_label, links.edge_label_time = out.metadata[1:]
            return data
        src, dst = (data, data) if input_type is None else (data[input_type[0]], data[input_type[-1]])
        src.src_index, dst.dst_pos_index, dst.dst_neg_index, time = out.metadata[1:]
        src.seed_time = dst.seed_time = time
        for name in ("edge_label_index", "edge_label_time"):  # of the source, which say nothing of the batch
            if name in links:
                del links[name]
        return data
