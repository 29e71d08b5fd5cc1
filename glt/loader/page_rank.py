"""Batches of seeds and the nodes of highest personalised PageRank around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from glt._checks import check_at_least, refuse_unknown
from glt._tracebacks import short_traceback
from glt.data.dataset import Dataset, Graph
from glt.data.schema import NodeType, Schema
from glt.loader.keyed import OF_TORCH
from glt.loader.node_sets import NodeSetLoader
from glt.loader.seeds import checked_nodes, ids_of_keys, split_node_type
from glt.sampler.order import BatchIndex, crc32_of
from glt.sampler.page_rank import PageRankSampler
from glt.sampler.page_rank_options import PageRankEdges, PageRankOptions

if TYPE_CHECKING:
    from glt.sampler.graph import Output, SampledGraph, Source


def with_page_ranks(
    batch: Data | HeteroData,
    schema: Schema,
    options: PageRankOptions,
    edges: tuple[Tensor, Tensor],
    input_id: Tensor,
) -> Data | HeteroData:
    """Completes a batch that has the nodes, and their rows. ``edges`` are ends ``[2, E]`` in local ids, and weights
    ``[E]``. Of a heterogeneous batch the types that have no part in it go."""
    seeds: Any = batch
    links: Any = batch
    if isinstance(batch, HeteroData):
        kept = {schema.node_types[each] for each in (options.seed_type, options.neighbor_type)}
        for node_type in [each for each in batch.node_types if each not in kept]:
            del batch[node_type]
        for edge_type in list(batch.edge_types):
            del batch[edge_type]
        seeds, links = batch[schema.node_types[options.seed_type]], batch[options.edge_type(schema)]
    links.edge_index, links.edge_weight = edges
    seeds.input_id, seeds.batch_size = input_id, len(input_id)
    return batch


@short_traceback
class PageRankLoader(NodeSetLoader):
    """Batches of seeds and the nodes of highest personalised PageRank around each, as PPRGo aggregates them.

    A batch has the seeds as given, then the nodes found beside them, by first occurrence: ``n_id [N]`` and the rows of
    all node attributes. An edge leads from each found node to its seed: ``edge_index [2, E]`` in local ids, seed after
    seed, highest score first, and ``edge_weight [E]``, the scores, float32. ``input_id [batch_size]`` are positions
    among ``input_nodes``, of a mask the nodes; ``batch_size`` is the number of seeds. Edges of the graph, and their
    attributes, are not in a batch.

    A heterogeneous batch has the node types of seeds and of found nodes alone, and one edge type, ``(neighbor_type,
    'page_rank', node_type)``.

    For a fixed ``random_seed`` the batches of an epoch are always the same. Neighbours of a seed are the same in each:
    where memory allows, :class:`glt.sampler.PageRankSampler` makes a table of them once.

    Args:
        data: As of :class:`glt.loader.NeighborLoader`. Walks go along edges, from source to destination; in a dataset
            with ``edge_dir='in'``, against them.
        num_neighbors: How many nodes are found around each seed at most, the seed itself left out.
        input_nodes: Seeds: ids, keys, or a bool mask over all nodes; of a heterogeneous graph a pair of their type and
            these, or the type alone. Default: all nodes.
        alpha, epsilon: As of :class:`glt.sampler.PageRankSampler`.
        neighbor_type: Type of the nodes that are found. Default: that of the seeds.
        transform: Called with each batch; what it returns is yielded.
        random_seed: Seed of shuffling, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads that find nodes and gather rows.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle`` and ``num_workers``.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.

    Source: Bojchevski et al., "Scaling graph neural networks with approximate PageRank", KDD 2020.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.PageRankLoader(data, 2, torch.tensor([5, 9]), batch_size=2, random_seed=7)
        >>> batch = next(iter(loader))
        >>> batch.n_id.tolist(), batch.edge_index.tolist(), batch.x.shape
        ([5, 9, 7, 11, 13], [[2, 1, 3, 4], [0, 0, 1, 1]], torch.Size([5, 4]))
    """

    def __init__(
        self,
        data: Source,
        num_neighbors: int,
        input_nodes: Any = None,
        *,
        alpha: float = 0.15,
        epsilon: float = 1e-4,
        neighbor_type: NodeType | None = None,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        for name in ("dataset", "collate_fn"):  # PyTorch Lightning gives them
            kwargs.pop(name, None)
        refuse_unknown("PageRankLoader", kwargs, OF_TORCH | {*locals()})
        if isinstance(data, Graph):
            raise TypeError("data is a glt Graph: loaders take a Dataset, wrap it: glt.data.Dataset(graph)")
        num_neighbors = check_at_least("num_neighbors", num_neighbors, 1)
        self._given = ids_of_keys(input_nodes, data.ids) if isinstance(data, Dataset) else input_nodes
        self._asked: dict[str, Any] = {
            "num_neighbors": num_neighbors,
            "alpha": alpha,
            "epsilon": epsilon,
            "neighbor_type": neighbor_type,
        }
        self._open(data, random_seed, num_threads, transform, kwargs, edge_dir="out")
        self._features.with_sample = True
        self._complete(len(self._columns["node"]), kwargs)

    def _sampler_of(self, graph: SampledGraph, num_threads: int) -> PageRankSampler:
        given, schema = self._given, graph.schema
        if given is None and not schema.is_hetero:
            given = torch.arange(graph.num_nodes[0])
        elif given is None:
            raise TypeError(
                f"input_nodes = None: expected one of the node types {list(schema.node_types)}, or a pair of one and "
                "the seeds"
            )
        _, self._columns = checked_nodes(given, schema, [int(each) for each in graph.num_nodes])
        del self._given
        node_type = split_node_type(given)[0] if schema.is_hetero else None
        sampler = PageRankSampler(graph, node_type=node_type, num_threads=num_threads, **self._asked)
        if schema.is_hetero:
            sampler.options.edge_type(schema)  # refuses a graph that has it
        return sampler

    def _sample(self, index: BatchIndex) -> Output:
        options, schema = self._sampler.options, self._graph.schema
        seeds = self._columns["node"][index.input_id]
        found = PageRankEdges.of(options, seeds, self._sampler.ranks(seeds))
        nodes: dict[str, list[Tensor]] = {each: [seeds[:0]] for each in schema.node_types}
        nodes[schema.node_types[options.seed_type]].append(seeds)
        nodes[schema.node_types[options.neighbor_type]].append(found.nodes)
        node = {node_type: torch.cat(several) for node_type, several in nodes.items()}
        input_id = self._columns["input_id"][index.input_id] if "input_id" in self._columns else index.input_id
        own, none = ((found.edge_index, found.edge_weight), input_id), seeds[:0]
        if not schema.is_hetero:
            return SamplerOutput(node[schema.node_types[0]], none, none, None, metadata=own)
        empty: Any = dict.fromkeys(schema.edge_types, none)
        return HeteroSamplerOutput(node, empty, empty, None, metadata=own)  # type: ignore[arg-type]

    def _finish(self, batch: Any, out: Output) -> Data | HeteroData:
        return with_page_ranks(batch, self._graph.schema, self._sampler.options, *out.metadata)

    def _told(self) -> dict[str, Any]:
        return self._sampler.options.told(self._graph.schema)  # type: ignore[no-any-return]

    def _fingerprint(self) -> dict[str, Any]:
        return super()._fingerprint() | {"seeds_crc32": crc32_of({"node": self._columns["node"]})}
