"""Batches around edges, for one trainer of a distributed job."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from glt.channel.message import MAX_DIMS
from glt.distributed.agreement import WorkerOptions
from glt.distributed.context import require_context
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_loader import DistLoader, LoaderOptions
from glt.distributed.link_seeds import LinkSeeds, Negatives
from glt.distributed.options import MpDistSamplingWorkerOptions
from glt.distributed.sampling_options import checked_config
from glt.distributed.seed_checks import as_tensor, checked_input_id, checked_times, require_loaded
from glt.distributed.seed_table import SeedTable
from glt.sampler import conflicts
from glt.sampler.link import reverse_edge_type
from glt.sampler.negatives import Endpoint

_NO_SUM = (torch.uint16, torch.uint32, torch.uint64)  # dtypes that torch does not add


class DistLinkNeighborLoader(DistLoader):
    """Iterates over sampled neighbourhoods of the seed edges of this trainer, and of negatives, over all partitions.

    Batches are those of :class:`glt.loader.LinkNeighborLoader` on the whole graph, element for element, in every mode:
    ``edge_label_index [2, B + negatives]`` in local ids, ``edge_label``, ``edge_label_time``; of triplets
    ``src_index``, ``dst_pos_index``, ``dst_neg_index`` and ``seed_time``; ``input_id [B]``; and the sample as in
    :class:`glt.distributed.DistNeighborLoader`, without ``batch_size``. Negatives are no edges of the whole graph: the
    partitions that own them are asked.

    Args:
        data: The partition of this trainer, loaded.
        num_neighbors: Edges per node and hop, a list or a dict by edge type; -1 takes all, 0 none.
        edge_label_index: Seed edges of this trainer ``[2, B]``, source and destination ids, edges of the graph or not;
            of a heterogeneous graph a pair of their edge type and these.
        edge_label: Label of each seed edge ``[B, ...]``. With binary negatives, whose label is 0, labels that start at
            0 go up by 1: if they do on one trainer, then on all.
        edge_label_time: Time of each seed edge ``[B]``, integers; needs ``time_attr``.
        neg_sampling: ``'binary'``, ``'triplet'``, a dict or PyG's ``NegativeSampling``; None: no negatives.
        exclude_edges: ``'self'``: the seed edges of a batch are not sampled in it, others taking their place;
            ``'reverse'``: nor are their reverses; an edge type: the same, naming the type that holds these.
        batch_size, shuffle, drop_last, replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr,
            with_edge, edge_dir, collect_features, to_device, transform, input_id, random_seed, worker_options: As in
            :class:`glt.distributed.DistNeighborLoader`.

    Raises:
        The same as :class:`glt.distributed.DistNeighborLoader`.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Any,
        edge_label_index: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        neg_sampling: Any = None,
        exclude_edges: Any = None,
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
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        require_context()
        require_loaded(data, edge_dir)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, collect_features, to_device, transform, random_seed,
            MpDistSamplingWorkerOptions() if worker_options is None else worker_options,
        )  # fmt: skip
        conflicts.refuse(
            edge_label_time=edge_label_time, time_attr=None if time_attr is None else conflicts.GIVEN
        )  # fmt: skip
        config = checked_config(
            data, num_neighbors, temporal_strategy=temporal_strategy, time_attr=time_attr, weight_attr=weight_attr,
            input_time=edge_label_time, replace=replace, subgraph_type=subgraph_type, disjoint=disjoint,
            with_edge=with_edge, exclude_edges=exclude_edges,
        )  # fmt: skip
        edge_type, edges = _checked_edges(edge_label_index, data)
        source, _, target = data.schema.edge_types[edge_type]
        ends = data.schema.node_index(source), data.schema.node_index(target)
        if config.exclude_edges not in (None, "self"):
            named = None if config.exclude_edges == "reverse" else config.exclude_edges
            reverse_edge_type(data.schema, edge_type, named)
        drawn = _checked_negatives(neg_sampling, int(options.batch_size))
        columns = {"row": edges[0], "col": edges[1]}
        if input_id is not None:
            columns["input_id"] = checked_input_id(input_id, edges.shape[1])
        self._lowest_label: float | None = None  # of this trainer, where 0 is the label of negatives
        if edge_label is not None:
            columns["label"] = label = _checked_label(edge_label, edges.shape[1], drawn)
            if drawn is not None and label.numel():
                # torch has no minimum of some unsigned integers.
                comparable = label if label.is_floating_point() or label.dtype == torch.bool else label.long()
                self._lowest_label = float(comparable.min())
        if edge_label_time is not None:
            columns["time"] = checked_times("edge_label_time", edge_label_time, edges.shape[1])
        negatives = None
        if drawn is not None:
            for side, end in zip(("src", "dst"), ends, strict=True):
                Endpoint.of(side, data.num_nodes_of[end], drawn)  # refuses weights that do not fit
            negatives = Negatives(drawn.mode.value, drawn.amount, drawn.src_weight, drawn.dst_weight)
        seeds = LinkSeeds(edge_type, ends, negatives)
        super().__init__(data, config, seeds, SeedTable(columns, seeds.extras()), options)

    def _told(self) -> dict[str, Any]:
        return {"lowest_label": self._lowest_label}

    def _settle(self, told: list[dict[str, Any]]) -> None:
        """Labels that start at 0 on any trainer go up on all of them: a label means the same to every rank."""
        lowest = [each["lowest_label"] for each in told if each["lowest_label"] is not None]
        if not lowest or min(lowest) != 0 or "label" not in self.table.columns:
            return
        label = self.table.columns["label"]
        bounds = None if label.is_floating_point() or label.dtype == torch.bool else torch.iinfo(label.dtype)
        if bounds is not None and label.numel() and int(label.long().max()) == bounds.max:
            raise ValueError(
                f"edge_label holds {bounds.max}, and goes up by one since 0 is the label of negatives: {label.dtype} "
                "has no larger number; convert it to int64"
            )
        self.table.columns["label"] = label + 1 if label.dtype not in _NO_SUM else (label.long() + 1).to(label.dtype)


def _checked_edges(edge_label_index: Any, data: DistDataset) -> tuple[int, Tensor]:
    """Returns the position of the seed edges' type, and their ends ``[2, B]``, int64."""
    schema = data.schema
    edge_type: Any = None
    if schema.is_hetero:
        expected = f"(edge type, [2, B]) with one of {list(schema.edge_types)}"
        if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) != 2:
            raise ValueError(f"edge_label_index has no edge type: expected {expected}")
        edge_type, edge_label_index = edge_label_index
        if not isinstance(edge_type, tuple | list) or tuple(edge_type) not in schema.edge_types:
            raise ValueError(f"edge_label_index names edge type {edge_type!r}: expected {expected}")
    index = schema.edge_index(edge_type)
    if edge_label_index is None:
        raise TypeError("edge_label_index = None: expected the seed edges of this trainer, [2, B]")
    alone = "" if schema.is_hetero else " without an edge type, the graph being homogeneous"
    edges = as_tensor("edge_label_index", edge_label_index, f"integer ids, [2, B]{alone}")
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"edge_label_index has shape {list(edges.shape)}: expected [2, B]")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise TypeError(f"edge_label_index has dtype {edges.dtype}: expected integer ids")
    edges = edges.to("cpu", torch.int64).contiguous()
    for row, node_type in enumerate((schema.edge_types[index][0], schema.edge_types[index][2])):
        num_nodes = data.num_nodes_of[schema.node_index(node_type)]
        bad = ((edges[row] < 0) | (edges[row] >= num_nodes)).nonzero()
        if len(bad):
            at = int(bad[0])
            of_type = f" of type {node_type!r}" if schema.is_hetero else ""
            raise IndexError(
                f"edge_label_index[{row}, {at}] = {int(edges[row, at])} is outside [0, {num_nodes}), the nodes{of_type}"
            )
    return index, edges


def _checked_negatives(given: Any, batch_size: int) -> NegativeSampling | None:
    try:
        drawn = NegativeSampling.cast(given)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"neg_sampling = {given!r}: expected 'binary', 'triplet', a dict with mode, amount, src_weight and "
            f"dst_weight, or PyG's NegativeSampling ({error})"
        ) from error
    if drawn is None:
        return None
    drawn = copy.copy(drawn)
    drawn.amount = float(drawn.amount)
    if not drawn.amount * batch_size < 2**31:
        raise ValueError(
            f"amount of neg_sampling = {drawn.amount:g}: expected below 2^31 negatives in a batch of {batch_size}"
        )
    return drawn


def _checked_label(given: Any, num_edges: int, drawn: NegativeSampling | None) -> Tensor:
    label = as_tensor("edge_label", given, "numbers, one per seed edge")
    if drawn is not None and drawn.is_triplet():
        raise ValueError("edge_label is given and neg_sampling is 'triplet': triplets have no labels; leave one out")
    if not 1 <= label.dim() <= MAX_DIMS or len(label) != num_edges:
        raise ValueError(
            f"edge_label has shape {list(label.shape)}: expected one per seed edge, {num_edges}, and at most "
            f"{MAX_DIMS} dimensions"
        )
    if label.layout != torch.strided or label.is_complex():
        raise TypeError(f"edge_label is {label.layout} of {label.dtype}: expected dense real numbers")
    return label.detach().cpu().contiguous()
