"""The loader of anchor-based link prediction over partitions, for one trainer of a distributed job."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt._checks import check_flag
from glt._tracebacks import short_traceback
from glt.channel.message import Message
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.engine.seeds import AnchorSeeds, NodeSeeds
from glt.distributed.loader.deployment import LoaderData
from glt.distributed.loader.loaders import DistNeighborLoader
from glt.loader.anchors import supervision_of
from glt.sampler.anchors import KINDS, label_lists
from glt.sampler.link import refuse_induced_trees


@short_traceback
class DistABLPLoader(DistNeighborLoader):
    """Anchor-based link prediction, as GiGL's ``DistABLPLoader``: batches around the anchors of this trainer, all their
    positives, and hard negatives, over all partitions.

    Batches are those of :class:`glt.loader.ABLPLoader` on the whole graph, element for element, in every mode; the
    sample is as in :class:`DistNeighborLoader`. Random negatives come from a :class:`DistNeighborLoader` of their own,
    which shuffles this trainer's share of the nodes of the labels' type.

    Args:
        data, num_neighbors, batch_size, shuffle, drop_last: As of :class:`DistNeighborLoader`.
        input_nodes: Anchors of this trainer, in any form of :class:`DistNeighborLoader`.
        positives: As of :class:`glt.loader.ABLPLoader`: edges ``[2, number of edges]`` from anchors to their positives.
            Those of other trainers' anchors may be among them, and are left out.
        negatives: The same of hard negatives; given on all trainers, or on none.
        supervision_edge_type, exclude_edges, use_label_edge_index_output: As of :class:`glt.loader.ABLPLoader`.
        **kwargs: All others of :class:`DistNeighborLoader`, for which ``disjoint`` and ``time_attr`` mean what they do
            of :class:`glt.loader.ABLPLoader`.

    Raises:
        Exception: The same as :class:`DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> positives = torch.tensor([[0, 0, 1], [5, 7, 0]])
        >>> with glt.distributed.DistABLPLoader(
        ...     dataset, [2], [0, 1], batch_size=2, positives=positives, random_seed=7, worker_options=options
        ... ) as loader:
        ...     [batch.y_positive for batch in loader]
        [{0: tensor([2, 3]), 1: tensor([0])}]
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        positives: Any,
        negatives: Any = None,
        supervision_edge_type: Any = None,
        exclude_edges: Any = "reverse",
        use_label_edge_index_output: bool = False,
        **kwargs: Any,
    ) -> None:
        check_flag("use_label_edge_index_output", use_label_edge_index_output)
        subgraph_type = kwargs.get("subgraph_type") if kwargs.get("directed", True) else "induced"
        refuse_induced_trees(bool(kwargs.get("disjoint")), subgraph_type)
        self.use_label_edge_index_output: bool = use_label_edge_index_output
        self._exclude_edges = exclude_edges
        self._given = {"positive": positives, "negative": negatives}, supervision_edge_type
        super().__init__(data, num_neighbors, input_nodes, batch_size, shuffle, drop_last, **kwargs)

    def _input(self, graph: LoaderData, columns: dict[str, Tensor]) -> tuple[NodeSeeds, SeedTable]:
        labels, edge_type = self._given
        del self._given  # they may be large, and those of this trainer's anchors are kept
        supervision, bounds = supervision_of(
            labels,
            columns["node"],
            self._seed_type,
            graph.schema,
            graph.num_nodes_of,
            edge_type,
            self._exclude_edges,
            graph.ids,
        )
        columns |= {f"{kind}_at": each for kind, each in bounds.items()}
        return AnchorSeeds(supervision), SeedTable(columns, supervision.labels)

    def _collate(self, message: Message) -> Data | HeteroData:
        batch = super()._collate(message)
        schema = self.data.schema
        store = batch[schema.node_types[self._seed_type]] if schema.is_hetero else batch
        for name in (f"y_{kind}" for kind in KINDS):
            if name in store:
                y = store[name]
                del store[name]
                setattr(batch, name, y if self.use_label_edge_index_output else label_lists(y, store.batch_size))
        return batch
