"""Batches around edges, for one trainer of a distributed job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from glt.distributed.context import require_context
from glt.distributed.deployment import default_options, graph_of
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_loader import DistLoader, LoaderOptions
from glt.distributed.link_checks import SeedLinks, checked_label, checked_links
from glt.distributed.link_seeds import LinkSeeds, Negatives
from glt.distributed.loader_data import LoaderData
from glt.distributed.options import WorkerOptions
from glt.distributed.refusal import telling_of_misspellings, telling_the_others
from glt.distributed.sampling_options import checked_config
from glt.distributed.seed_checks import checked_class, checked_input_id, checked_times, require_edge_dir
from glt.distributed.seed_table import SeedTable
from glt.distributed.service.named_seeds import seeds_by_name
from glt.sampler import config as conflicts
from glt.sampler.link import checked_negatives, require_summable, reverse_edge_type
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
            of a heterogeneous graph a pair of their edge type and these. None, or the edge type alone: all edges of
            this trainer's partition, in the order of their ids, so that those of all trainers together are all edges;
            one that several trainers have loaded is shared out among them. Of a client of servers: its share of all
            edges, by id, as long as those of the others but for one. ``input_id`` then tells edge ids, and what
            else is given per seed edge is given for all edges of the graph, by id, the same on all trainers.
        edge_label: Label of each seed edge ``[B, ...]``. With binary negatives, whose label is 0, labels that start at
            0 go up by 1: if they do on one trainer, then on all. Clients of servers, which do not meet, look at their
            own each; where the seeds are all edges, at all labels.
        edge_label_time: Time of each seed edge ``[B]``, integers; needs ``time_attr``.
        neg_sampling: ``'binary'``, ``'triplet'``, a dict or PyG's ``NegativeSampling``; None: no negatives. A triplet
            whose source has an edge to (almost) every destination is an error in place of its batch, since no process
            knows all edges beforehand; PyG would train on an edge as a negative.
        neg_sampling_ratio: PyG's old name for the amount of binary negatives.
        exclude_edges: ``'self'``: the seed edges of a batch are not sampled in it, others taking their place;
            ``'reverse'``: nor are their reverses; an edge type: the same, naming the type that holds these.
        batch_size, shuffle, drop_last, replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr,
            with_edge, edge_dir, collect_features, to_device, transform, input_id, is_sorted, directed,
            filter_per_worker, custom_cls, random_seed, worker_options: As in
            :class:`glt.distributed.DistNeighborLoader`.

    Raises:
        The same as :class:`glt.distributed.DistNeighborLoader`.
    """

    @telling_of_misspellings
    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        edge_label_index: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
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
            conflicts.refuse(
                edge_label_time=edge_label_time, time_attr=None if time_attr is None else conflicts.GIVEN
            )  # fmt: skip
            config = checked_config(
                graph, num_neighbors, temporal_strategy=temporal_strategy, time_attr=time_attr, weight_attr=weight_attr,
                input_time=edge_label_time, replace=replace, subgraph_type=subgraph_type, directed=directed,
                disjoint=disjoint, with_edge=with_edge, exclude_edges=exclude_edges,
            )  # fmt: skip
            links = checked_links(seeds_by_name("edge_label_index", edge_label_index, graph, worker_options), graph)
            source, _, target = graph.schema.edge_types[links.edge_type]
            ends = graph.schema.node_index(source), graph.schema.node_index(target)
            if config.exclude_edges not in (None, "self"):
                named = None if config.exclude_edges == "reverse" else config.exclude_edges
                reverse_edge_type(graph.schema, links.edge_type, named)
            drawn = checked_negatives(neg_sampling, neg_sampling_ratio, int(options.batch_size))
            columns = self._columns(graph, links, edge_label, edge_label_time, input_id, drawn)
            negatives = None
            if drawn is not None:
                for side, end in zip(("src", "dst"), ends, strict=True):
                    Endpoint.of(side, graph.num_nodes_of[end], drawn)  # refuses weights that do not fit
                negatives = Negatives(drawn.mode.value, drawn.amount, drawn.src_weight, drawn.dst_weight)
        seeds = LinkSeeds(links.edge_type, ends, negatives)
        super().__init__(graph, config, seeds, SeedTable(columns, seeds.extras()), options)

    def _columns(
        self,
        data: LoaderData,
        links: SeedLinks,
        edge_label: Any,
        edge_label_time: Any,
        input_id: Any,
        drawn: NegativeSampling | None,
    ) -> dict[str, Tensor]:
        self._takes_all = links.ids is not None
        num_links, num_edges = links.ends.shape[1], data.num_edges_of[links.edge_type]
        whole_label = edge_label
        edge_label, edge_label_time, input_id = (
            links.per_edge(name, given, num_edges)
            for name, given in (
                ("edge_label", edge_label), ("edge_label_time", edge_label_time), ("input_id", input_id),
            )
        )  # fmt: skip
        columns = {"row": links.ends[0], "col": links.ends[1]}
        if input_id is not None:
            columns["input_id"] = checked_input_id(input_id, num_links)
        elif links.ids is not None:
            columns["input_id"] = links.ids
        self._lowest_label: float | None = None  # of this trainer, where 0 is the label of negatives
        if edge_label is not None:
            columns["label"] = label = checked_label(edge_label, num_links, drawn)
            if drawn is not None:
                require_summable(label, *_NO_SUM)
            # Those of all edges are known here: clients, which do not meet, agree by that.
            known = label if links.ids is None else checked_label(whole_label, num_edges, drawn)
            if drawn is not None and known.numel():
                # torch has no minimum of some unsigned integers.
                comparable = known if known.is_floating_point() or known.dtype == torch.bool else known.long()
                self._lowest_label = float(comparable.min())
        if edge_label_time is not None:
            columns["time"] = checked_times("edge_label_time", edge_label_time, num_links)
        return columns

    def _told(self) -> dict[str, Any]:
        all_of = self.data.partition_idx if self._takes_all else None
        return {"lowest_label": self._lowest_label, "all edges of": all_of}

    def _settle(self, told: list[dict[str, Any]]) -> None:
        self._share_edges([each["all edges of"] for each in told])
        self._raise_labels(told)

    def _share_edges(self, parts: list[int | None]) -> None:
        """Trainers that take all edges of the same partition take turns: each edge is a seed of one of them."""
        sharing = [rank for rank, part in enumerate(parts) if part is not None and part == self.data.partition_idx]
        if self._takes_all and len(sharing) > 1:
            turn = slice(sharing.index(self.context.rank), None, len(sharing))
            self.table.columns = {name: column[turn].contiguous() for name, column in self.table.columns.items()}

    def _raise_labels(self, told: list[dict[str, Any]]) -> None:
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
