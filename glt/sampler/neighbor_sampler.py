"""Neighbour sampling in this process, behind PyG's sampler interface."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_option
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    NumNeighbors,
)

from glt import _core
from glt._checks import check_at_least, check_one_of
from glt._reprs import says, typed
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, checked_times
from glt.data.dataset import placed_together
from glt.data.device import Accelerator
from glt.data.schema import EdgeType, NodeType
from glt.sampler.config import TEMPORAL_STRATEGIES, SamplingConfig, per_edge_type, refuse_conflicts
from glt.sampler.device import DeviceSampling, sampling_device
from glt.sampler.graph import (
    Finish,
    NeighborOutput,
    SampledGraph,
    bidirectional,
    call_once,
    require_distinct_reverses,
    sampled_graph,
    sampler_output,
)
from glt.sampler.hotness import BATCH_SIZE, EdgeFacts, find_facts, probabilities
from glt.sampler.link import LocalLinks
from glt.sampler.order import CallKeys, check_random_seed, draw_random_seed

if TYPE_CHECKING:
    from glt.sampler.graph import Output, Source

DIRECTIONS = {"forward": "in", "backward": "out"}


@short_traceback
class NeighborSampler(BaseSampler):
    """Samples multi-hop neighbourhoods: uniformly, by weight or by time, in one tree per seed or one for all.

    A batch is a function of (graph, seeds, options, key) alone, whatever the number of threads. Works as the
    ``neighbor_sampler`` argument of PyG's ``NeighborLoader`` and ``LinkNeighborLoader``.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, a pair ``(FeatureStore, GraphStore)``, a :class:`glt.data.Dataset` or
            :class:`glt.data.Graph`, or a dict of such graphs by edge type, all of one direction.
        num_neighbors: Edges per node and hop: a list for all edge types, a dict by edge type, or PyG's
            ``NumNeighbors``; -1 takes all, 0 none. A node is expanded once, at the hop that discovers it.
        subgraph_type: ``'directional'``: the sampled edges; ``'bidirectional'``: and their reverses; ``'induced'``: all
            edges among the sampled nodes, with ``disjoint`` among those of each tree.
        replace: Draw with replacement: exactly that many edges for every node that has one; -1 still takes each once.
        disjoint: A tree of its own for each seed; ``batch`` tells the trees apart.
        temporal_strategy: With ``time_attr``, of the edges up to the seed's time: ``'uniform'`` draws; the ``'last'``
            ones; or ``'decay'``: draws with weights that halve with each ``half_life`` that an edge is older than the
            seed (rounded down, 31 at most).
        time_attr: Attribute with the times of nodes, or of edges; int64. Implies ``disjoint``. Types without it are not
            bound by time. Seeds are looked at as of ``NodeSamplerInput.time``, by default their own times.
        sampler: ``'neighbor'``: each node draws its own neighbours. ``'labor'``: each node of the graph has a random
            number for each hop of a batch, and a node takes those of its neighbours whose numbers are lowest, so that
            nodes with common neighbours take the same ones: a batch has as many edges per node, and fewer nodes. By
            weight, numbers are divided by weights. The trees of disjoint batches share them too.
        batch_dependency: With ``'labor'``, how many batches in succession keep the numbers, so that a cache of rows
            serves more of them. Draws within such a window depend on each other.
        time_bound: ``'<='``: edges up to the seed's time; ``'<'``: only those before it, which leaves out the event
            that a label is about.
        time_window: Of these edges, only those no more than this before the seed's time (``seed - time_window`` is
            still in): an integer in the unit of the times, or a dict by edge type; types that it leaves out have none.
        half_life: Of ``'decay'``, likewise. Types that a dict leaves out are drawn uniformly.
        weight_attr: Attribute with weights of edges, at least 0 and finite: draws are proportional to them. Edges of
            weight 0 come last, when no others are left. Among the d edges that a node is expanded along, a weight
            above 0 counts as no less than about 2 d 10^-18 times the largest.
        is_sorted, share_memory: Accepted for PyG's sake: here they change neither results nor cost.
        directed: False is PyG's old name for ``subgraph_type='induced'``.
        sample_direction: ``'forward'`` expands nodes along their in-edges, ``'backward'`` along their out-edges; edges
            keep their direction. Datasets and graphs know their own direction.
        with_edge: Return edge ids.
        exclude_edges: For :meth:`sample_from_edges`. ``'self'``: the seed edges of a batch, with all edges parallel to
            them, are not sampled in it, others taking their place; ``'reverse'``: nor are their reverses. An edge type:
            the same, naming the type that holds the reverses.
        random_seed: Seed of the draws, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads per batch; the result does not depend on it.
        device: Where to sample; batches are there, bit for bit the same everywhere. A GPU needs graphs with mode
            ``'CUDA'`` or ``'ZERO_COPY'`` (:class:`glt.data.Graph`). ``'host'`` runs the kernels on the host, for tests.
            Default: the GPU of graphs with mode ``'CUDA'``, else the CPU.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.

    Source: Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987) on Philox4x32-10 (Salmon et al., SC 2011);
    ``'labor'``: Balin and Catalyurek, NeurIPS 2023, as sequential Poisson sampling (Ohlsson, 1998).

    Example:
        >>> from torch_geometric.sampler import NodeSamplerInput
        >>> dataset = glt.testing.ring_graph().to_dataset()
        >>> sampler = glt.sampler.NeighborSampler(dataset, [2, 2], random_seed=0)
        >>> sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([5]))).node
        tensor([5, 3, 4, 1, 2])
    """

    config: SamplingConfig
    time_attr: str | None
    weight_attr: str | None

    def __init__(
        self,
        data: Source | SampledGraph,
        num_neighbors: Any,
        subgraph_type: Any = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
        *,
        sampler: str = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        with_edge: bool = True,
        exclude_edges: str | EdgeType | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        device: Accelerator | torch.device | int | str | None = None,
    ) -> None:
        subgraph_type = getattr(subgraph_type, "value", subgraph_type)
        refuse_conflicts(**locals())  # by the names of the arguments
        check_one_of("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
        check_one_of("sample_direction", sample_direction, DIRECTIONS)
        num_threads = check_at_least("num_threads", num_threads, 1)
        self.random_seed: int = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self.num_threads = num_threads
        self.time_attr, self.weight_attr = time_attr, weight_attr
        self._backward = sample_direction == "backward"
        self.graph: SampledGraph = sampled_graph(
            data, edge_dir=DIRECTIONS[sample_direction], time_attr=time_attr, weight_attr=weight_attr
        )
        require_distinct_reverses(self.graph.schema, self.graph.edge_dir)
        if DIRECTIONS[sample_direction] != self.graph.edge_dir and self._backward:
            raise ValueError("sample_direction = 'backward': the dataset has its own direction; leave it out")
        self.config = SamplingConfig.checked(
            num_neighbors,
            self.graph.schema,
            sampler=sampler,
            batch_dependency=batch_dependency,
            replace=replace,
            with_edge=with_edge,
            disjoint=disjoint,
            weighted=weight_attr is not None,
            temporal=None if time_attr is None else temporal_strategy,
            time_level=self.graph.time_level if time_attr is not None else None,
            time_bound=time_bound,
            time_window=time_window,
            half_life=half_life,
            timed=[each.by_time is not None for each in self.graph.topologies],
            subgraph_type=subgraph_type if directed else "induced",
            exclude_edges=exclude_edges,
        )
        self.accelerator: Accelerator | None = sampling_device(device, self.graph)
        if self.accelerator is not None:
            _ = self.on_device  # says now what it cannot do
        self.keep_orig_edges = False  # PyG's switch: bidirectional batches keep the sampled edges as orig_row, orig_col
        self._reset()

    def _reset(self) -> None:
        self._spare: list[_core.Batch] = []  # one per thread that samples at the same time, kept for their memory
        self._lock = threading.Lock()
        self._call_keys = CallKeys()
        self.endpoints: Any = None  # of LocalLinks

    def __getstate__(self) -> dict[str, Any]:
        made_anew = ("_spare", "_lock", "_call_keys", "endpoints", "edge_facts", "on_device")
        return {name: value for name, value in self.__dict__.items() if name not in made_anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def csrs(self) -> list[_core.Csr]:
        return self.graph.csrs(self.config)

    @cached_property
    def on_device(self) -> DeviceSampling:
        graphs, place = self.graph.graphs, self.accelerator
        assert place is not None, "the sampler samples on the CPU"
        placed_together(graphs, place)
        return DeviceSampling(self.graph, self.config, place.device, lambda r: graphs[r].placed(place))

    @cached_property
    def edge_facts(self) -> list[EdgeFacts]:
        """How edges relate to each other, for :meth:`sample_prob`; needs a pass over all edges."""
        return find_facts(self.graph, self.csrs, self.num_threads)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.accelerator is None else self.accelerator.device

    @property
    def num_neighbors(self) -> NumNeighbors:
        counts = [list(c) for c in self.config.num_neighbors]
        return NumNeighbors(self.graph.schema.by_edge_type(counts) if self.is_hetero else counts[0])

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: Any) -> None:
        counts = per_edge_type(num_neighbors, self.graph.schema, self.config.replace)
        self.config = replace_option(self.config, num_neighbors=counts)

    @property
    def is_hetero(self) -> bool:
        return self.graph.schema.is_hetero

    @property
    def is_temporal(self) -> bool:
        return self.config.temporal is not None

    @property
    def disjoint(self) -> bool:
        return self.config.disjoint

    @property
    def edge_permutation(self) -> None:
        """None: edge ids are the original ones already."""
        return None

    def sample_one_hop(
        self, seeds: Tensor, num_neighbors: int, *, edge_type: EdgeType | None = None, batch_key: int | None = None
    ) -> NeighborOutput:
        """Samples up to ``num_neighbors`` edges (-1: all) of each of ``seeds [S]``; duplicate seeds get the same picks.

        Args:
            edge_type: Which edges; needed in a heterogeneous graph.
            batch_key: Key of the draws, in [0, 2^64). Default: a new one in every call.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            KeyError, TypeError, ValueError: If an argument does not fit, or the sampler is temporal.
        """
        at = self.graph.schema.edge_index(edge_type)
        if self.is_temporal:
            raise ValueError("sample_one_hop with time_attr: one hop has no seed times; use sample_from_nodes")
        SamplingConfig.checked([num_neighbors], replace=self.config.replace)
        key = self._call_keys.of_call(self.random_seed, batch_key)
        seeds = as_ids(seeds, "seeds")
        if self.accelerator is not None:
            rows = self.on_device.sample_rows(at, seeds, num_neighbors=num_neighbors, hop=0, batch_key=key)
            return NeighborOutput(rows[1], rows[0], rows[2])
        draws = num_neighbors, self.config.replace, key, 0
        numbers = self.config.numbers(key)
        if numbers:
            neighbor_type = self.graph.ends[at][1]
            numbers = {"number_key": _core.number_key(numbers["shared_key"], 0, neighbor_type)}
        options: dict[str, Any] = {"with_edge": self.config.with_edge, "num_threads": self.num_threads, "name": "seeds"}
        options |= numbers
        hop = _core.OneHop(self.csrs[at], seeds.numpy(), *draws, edge_type=at, **options)
        count = torch.empty(len(seeds), dtype=torch.uint32)
        nbr = torch.empty(hop.num_edges, dtype=torch.int64)
        edge = torch.empty_like(nbr) if self.config.with_edge else None
        hop.copy_out(count.numpy(), nbr.numpy(), None if edge is None else edge.numpy())
        return NeighborOutput(nbr, count.to(torch.int64), edge)

    def sample_from_nodes(
        self, index: NodeSamplerInput, *, batch_key: int | None = None, shared_key: int | None = None
    ) -> Output:
        """Samples the neighbourhood of ``index.node``.

        Args:
            index: PyG's sampler input.
            batch_key: Key of the draws (:meth:`BatchIndex.key`). Default: a new one in every call.
            shared_key: With ``sampler='labor'``, key of the numbers of nodes (:meth:`BatchIndex.shared_key`). Default:
                as ``batch_key`` says.

        Returns:
            ``node [N]`` in order of first occurrence, seeds first and as given; ``row, col [E]`` in local ids, sorted
            by ``col``, running neighbour -> expanded node; ``edge [E]`` original edge ids, or None without
            ``with_edge``; ``batch [N]`` the tree of each node when disjoint; all of the dtype of ``edge_index``. Counts
            per hop as lists; ``metadata`` is ``(index.input_id, index.time)``. Dicts by type in heterogeneous graphs.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            KeyError, ValueError: If the node type or the times of ``index`` do not fit.
        """
        return self.begin_from_nodes(index, batch_key=batch_key, shared_key=shared_key)()

    def begin_from_nodes(
        self, index: NodeSamplerInput, *, batch_key: int | None = None, shared_key: int | None = None
    ) -> Finish:
        """Begins a batch of :meth:`sample_from_nodes`. A GPU starts on it now, and need not be idle in between if the
        next batch is begun before this one is ended.

        Returns:
            What waits for the batch and returns it, or raises; to be called once, on the same CUDA stream. On the CPU
                all is done in that call: seeds must stay as they are. If it is never called, it waits for its kernels
                when it is dropped.
        """
        if (index.input_type is not None) != self.is_hetero:
            types = f"one of {list(self.graph.schema.node_types)}"
            expected = types if self.is_hetero else "None, the graph being homogeneous"
            raise ValueError(f"input_type = {index.input_type!r}: expected {expected}")
        node_type = self.graph.schema.node_index(index.input_type)
        seeds = as_ids(index.node, "seeds")
        time = index.time
        if time is not None and not self.is_temporal:
            raise ValueError("seed times and no time_attr: expected a sampler with time_attr")
        if self.is_temporal and time is None:
            time = self.graph.seed_time(node_type, seeds)
        finish = self.begin_or_sample([(node_type, seeds)], time, batch_key=batch_key, shared_key=shared_key)
        metadata = index.input_id, index.time

        def with_metadata() -> Output:
            out = finish()
            out.metadata = metadata
            return out

        return with_metadata

    def sample(
        self,
        seeds: Sequence[tuple[int, Tensor]],
        seed_time: Tensor | None = None,
        *,
        batch_key: int | None = None,
        shared_key: int | None = None,
        exclusions: list[_core.Exclusions | None] | None = None,
    ) -> Output:
        """Samples the neighbourhood of seeds of any types: PyG's output without ``metadata``. A subclass's own is
        called for nodes and links too.

        Args:
            seeds: Node ids ``[n]``, int64, by position of their node type. When disjoint, trees count through the list.
            seed_time: Time of each tree, int64, where the sampler is temporal.
            batch_key, shared_key: As of :meth:`sample_from_nodes`.
            exclusions: Per edge type, edges that are not sampled.
        """
        return self.begin(seeds, seed_time, batch_key=batch_key, shared_key=shared_key, exclusions=exclusions)()

    def begin_or_sample(self, *given: Any, **options: Any) -> Finish:
        """:meth:`begin`, or a subclass's own :meth:`sample` when the batch is ended, with the options that are not
        None."""
        if not is_replaced(self, "sample"):
            return self.begin(*given, **options)
        asked = {name: value for name, value in options.items() if value is not None}
        return call_once(partial(self.sample, *given, **asked))

    def begin(
        self,
        seeds: Sequence[tuple[int, Tensor]],
        seed_time: Tensor | None = None,
        *,
        batch_key: int | None = None,
        shared_key: int | None = None,
        exclusions: list[_core.Exclusions | None] | None = None,
        config: SamplingConfig | None = None,
    ) -> Finish:
        """Begins a batch of :meth:`sample`, as :meth:`begin_from_nodes`. ``config``: in place of the sampler's own."""
        config, graph = config or self.config, self.graph
        if seed_time is not None:
            seed_time = config.latest(checked_times("seed times", seed_time, sum(len(each) for _, each in seeds)))
        key = self._call_keys.of_call(self.random_seed, batch_key)
        if self.accelerator is None:
            numbers = config.numbers(key, shared_key)
            finish = call_once(partial(self._sample_on_host, config, seeds, seed_time, key, exclusions, numbers))
        else:
            finish = self.on_device.launch(config, seeds, seed_time, key, exclusions, shared_key)

        def finish_as_asked() -> Output:
            out = finish()
            if self._backward:
                out = _forward_facing(out, graph)
            if config.subgraph_type == "bidirectional":
                out = bidirectional(out, self.keep_orig_edges)
            return out

        return finish_as_asked

    def _sample_on_host(
        self,
        config: SamplingConfig,
        seeds: Sequence[tuple[int, Tensor]],
        seed_time: Tensor | None,
        key: int,
        exclusions: list[_core.Exclusions | None] | None,
        numbers: dict[str, int],
    ) -> Output:
        graph = self.graph
        with self._lock:
            batch = self._spare.pop() if self._spare else _core.Batch(list(graph.num_nodes), list(graph.ends))
        time = None if seed_time is None else seed_time.numpy()
        try:
            batch.start([(t, s.numpy()) for t, s in seeds], config.with_edge, config.disjoint, time)
            options: dict[str, Any] = {"replace": config.replace, "last": config.last, "num_threads": self.num_threads}
            options |= config.native_times | numbers
            counts = [list(each) for each in config.num_neighbors]
            batch.sample(self.csrs, counts, batch_key=key, exclusions=exclusions, **options)
            if config.subgraph_type == "induced":
                batch.induce(self.csrs, self.num_threads)
        except MemoryError as error:
            raise MemoryError(config.no_room(sum(len(s) for _, s in seeds))) from error
        out = sampler_output(batch, graph, config, col_first=self._backward)
        with self._lock:
            self._spare.append(batch)
        return out

    def _sample(self, seed: Any, seed_time: Any = None, **kwargs: Any) -> Output:
        """PyG's own samplers call one another by this name, such as its ``BidirectionalNeighborSampler``."""
        if not isinstance(seed, dict):
            return self.sample([(0, seed.to(torch.int64))], seed_time)
        times = None if seed_time is None else torch.cat([seed_time[t] for t in seed])
        return self.sample([(self.graph.schema.node_index(t), s.to(torch.int64)) for t, s in seed.items()], times)

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        *,
        batch_key: int | None = None,
        shared_key: int | None = None,
    ) -> Output:
        """Samples the neighbourhoods of both ends of edges, in PyG's form, and of the negatives that ``neg_sampling``
        asks for: see ``glt.sampler.negatives``. ``batch_key`` and ``shared_key`` are as in :meth:`sample_from_nodes`.

        Returns:
            As :meth:`sample_from_nodes`, the seeds being the distinct ends in ascending order; when disjoint, all ends
                as they come, sources before destinations before negatives, and ``batch [N]`` the seed edge of each
                node. ``metadata`` is that of PyG's samplers: ``input_id``, and the names of
                :class:`glt.sampler.link.LinkBatch`.

        Raises:
            IndexError: If an end is outside the graph; names the first.
            KeyError, ValueError: If type, times or weights do not fit, or there is no negative to be found.
        """
        return self.begin_from_edges(index, neg_sampling, batch_key=batch_key, shared_key=shared_key)()

    def begin_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        *,
        batch_key: int | None = None,
        shared_key: int | None = None,
    ) -> Finish:
        """Begins a batch of :meth:`sample_from_edges`, as :meth:`begin_from_nodes`; negatives are waited for now."""
        key = self._call_keys.of_call(self.random_seed, batch_key)
        return LocalLinks(self, index, neg_sampling).begin(key, shared_key)

    @short_traceback
    def sample_prob(
        self, seeds: Any, num_nodes: Any = None, *, batch_size: int = BATCH_SIZE, num_batches: int | None = None
    ) -> Tensor | dict[NodeType, Tensor]:
        """Estimates how likely each node is to be in a batch: what partitioners place nodes and fill caches by.

        A batch is that of a loader which shuffles ``seeds`` and has this sampler's options: ``batch_size`` of them,
        drawn without replacement, and what is sampled around them. Every node that can be reached gets a probability
        above 0, every other 0. Equal arguments give equal results, whatever ``num_threads`` and ``random_seed``.

        Probabilities are computed along the edges, hop by hop, as if edges led to a node independently of each other;
        paths that turn back are left out. That is close where many nodes are drawn from (within 2% of the expected size
        of a batch on Slashdot) and too much where short cycles are followed whole (12% on Cora). Successive draws by
        weight are taken to be exponential clocks, but for one and two draws, which are exact. ``num_batches`` batches
        are then sampled, and correct this as far as they contradict it.

        Args:
            seeds: All seeds of an epoch: ids ``[n]``, a bool mask, or a PyG ``NodeSamplerInput``; in a heterogeneous
                graph a dict by node type, whose seeds are shuffled together, or a pair ``(node type, ids)``. Duplicates
                count as often as they come.
            num_nodes: Number of nodes of the graph, or a dict by node type, at least as many as the sampler's graph
                has.
            batch_size: Seeds in a batch; all of them where there are fewer.
            num_batches: Batches to sample for correction, 0 (none) or at least 2. Default: 64 to 1024, such that about
                four times as many nodes are sampled as there are, or a million.

        Returns:
            ``[num_nodes]`` float32 in [0, 1], or a dict of such by node type. A GPU's, used up to 16 hops, are those of
                the CPU to 1e-6.

        Memory: ``4 * (hops + 1) + 8`` bytes per node. The first call finds out which paths turn back, with 4 bytes per
        edge of one edge type; one or two bits per edge are kept.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            KeyError, TypeError, ValueError: If an argument does not fit, there are no seeds, or the sampler is
                temporal, where :func:`glt.sampler.hotness_from_counts` serves.
        """
        return probabilities(self, seeds, num_nodes, batch_size, num_batches)

    def check_links(self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> None:
        """Raises what :meth:`sample_from_edges` would, but for negatives that are there and too rare to be drawn."""
        LocalLinks(self, index, neg_sampling).require_negatives()

    @says
    def __repr__(self) -> str:
        schema = self.graph.schema
        nodes = typed(sum(self.graph.num_nodes), "nodes", len(schema.node_types))
        edges = typed(sum(each.num_edges for each in self.graph.topologies), "edges", len(schema.edge_types))
        where = f"on {self.accelerator}" if self.accelerator else "on the CPU"
        return f"{where}, {nodes}, {edges}, {self.config.says()}, random_seed={self.random_seed}"


_METHODS = {name: getattr(NeighborSampler, name) for name in ("sample", "sample_from_nodes", "sample_from_edges")}


def is_replaced(sampler: NeighborSampler, name: str) -> bool:
    """Whether a method is a subclass's own, or a mock's: then what begins batches must call it."""
    return getattr(getattr(sampler, name), "__func__", None) is not _METHODS[name]


def _forward_facing(out: Output, graph: SampledGraph) -> Output:
    """Turns the edges of a backward sample, which run neighbour -> expanded node, back into the graph's."""
    if isinstance(out, HeteroSamplerOutput):
        for name in ("row", "col", "edge", "num_sampled_edges"):
            values = getattr(out, name)
            if values is not None:  # by position: the reverse types may be types of the graph themselves
                setattr(out, name, graph.schema.by_edge_type(values.values()))
    out.row, out.col = out.col, out.row
    return out
