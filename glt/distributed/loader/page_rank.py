"""Seeds and the nodes of highest personalised PageRank around them, over partitions, for one trainer of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt._reprs import options as told_options
from glt._tracebacks import short_traceback
from glt.data.schema import NodeType
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.page_rank import PageRankSeeds
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.loader.base import DistLoader, LoaderOptions, collate
from glt.distributed.loader.deployment import opened
from glt.distributed.loader.loaders import node_columns, seeds_by_name
from glt.distributed.options import WorkerOptions
from glt.loader.page_rank import with_page_ranks
from glt.sampler.config import SamplingConfig
from glt.sampler.page_rank_options import PageRankOptions


@short_traceback
class DistPageRankLoader(DistLoader):
    """Iterates over batches of seeds of this trainer and the nodes of highest personalised PageRank around each.

    A batch is that of :class:`glt.loader.PageRankLoader` on the whole graph, bit for bit, in every mode and with any
    number of partitions; without ``collect_features`` it has no rows of nodes. Nodes are found ahead of the trainer
    where its samplers are, on the CPU. Where partitions are read by others, each round of a batch asks owners for the
    degrees of nodes and for the rows of those that are pushed, each once a batch. What came is kept until the batch is
    made: up to 12 bytes for each edge of such rows, and 120 for each node. Besides, 64 seeds at a time take up to 100
    bytes for each node that one of them reaches.

    Without features and shuffling, the batches of an epoch are the rows of a table for this trainer's nodes: see the
    example.

    Args:
        data: As of :class:`glt.distributed.DistNeighborLoader`. Partitions assigned ``by_src`` are walked along their
            edges, others against them.
        num_neighbors: How many nodes are found around each seed at most, the seed itself left out.
        input_nodes, batch_size, shuffle, drop_last: As of :class:`glt.distributed.DistNeighborLoader`.
        alpha, epsilon, neighbor_type: As of :class:`glt.loader.PageRankLoader`.
        collect_features: Look up features, labels and times of nodes.
        to_device, transform, input_id, random_seed, worker_options: As of
            :class:`glt.distributed.DistNeighborLoader`.

    Raises:
        Exception: The same as :class:`glt.distributed.DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> with glt.distributed.DistPageRankLoader(
        ...     dataset, 2, torch.arange(40), batch_size=16, random_seed=7, worker_options=options
        ... ) as loader:
        ...     table = [(batch.n_id[batch.edge_index], batch.edge_weight) for batch in loader]
        ...
        >>> ends, scores = (torch.cat(each, -1) for each in zip(*table))
        >>> ends[:, ends[1] == 20].tolist(), len(scores)
        ([[18, 16], [20, 20]], 80)
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: int,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        alpha: float = 0.15,
        epsilon: float = 1e-4,
        neighbor_type: NodeType | None = None,
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
        config = SamplingConfig.checked([], graph.schema, with_edge=False)
        given = seeds_by_name("input_nodes", input_nodes, graph, worker_options)
        seed_type, columns = node_columns(graph, config, given, None, input_id)
        self._ranks = PageRankOptions.checked(
            graph.schema, seed_type, num_neighbors, alpha=alpha, epsilon=epsilon, neighbor_type=neighbor_type
        )
        if graph.schema.is_hetero:
            self._ranks.edge_type(graph.schema)  # refuses a graph that has it
        super().__init__(graph, config, PageRankSeeds(self._ranks), SeedTable(columns), options)

    def _made(self, tensors: dict[str, Tensor]) -> Data | HeteroData:
        edges = tensors[PageRankSeeds.edges], tensors[PageRankSeeds.weights]
        places = {name: name.rpartition("/")[1:] for name in tensors}
        of_nodes = {name: tensors[name] for name, (slash, place) in places.items() if slash and place[0] == "n"}
        input_id = of_nodes.pop(self.seeds.input_id)
        data = self.data
        batch = collate(of_nodes, data.schema, data.edge_dir, self.config.subgraph_type)
        return with_page_ranks(batch, data.schema, self._ranks, edges, input_id)

    def _fingerprint(self) -> dict[str, Any]:
        return super()._fingerprint() | self._ranks.to_json()  # num_neighbors is not that of hops

    def _says(self) -> str:
        return told_options(self._ranks.told(self.data.schema))
