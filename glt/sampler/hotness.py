"""Hotness says how often a node is read: one number per node, comparable within a node type. Partitioners place nodes
and fill caches by it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, require_in_range
from glt.data.schema import HOMOGENEOUS, NodeType, Schema
from glt.sampler.config import SamplingConfig
from glt.sampler.graph import SampledGraph

if TYPE_CHECKING:
    from glt.sampler.neighbor_sampler import NeighborSampler

_CHUNK = 1 << 24  # edges counted at a time


@short_traceback
def hotness_from_counts(
    batches: Iterable[Any], num_nodes: int | Mapping[NodeType, int]
) -> Tensor | dict[NodeType, Tensor]:
    """Counts nodes in batches: the share of the batches that have each node.

    Exact in the limit of many batches, whatever the sampling options (times, weights, negatives). Nodes in few batches
    are known badly, and a cache chosen by the same counts looks better than it will be; 100 batches and more keep that
    small.

    Args:
        batches: A loader, or any iterable of ``Data`` or ``HeteroData`` with ``n_id``; iterated once.
        num_nodes: Number of nodes of the whole graph, or numbers by node type for ``HeteroData``.

    Returns:
        ``[num_nodes]`` float32, or a dict of such by node type.

    Raises:
        IndexError, KeyError, TypeError, ValueError: If ``num_nodes`` does not fit a batch, one has no ``n_id``, or
            there are none.

    Example:
        >>> loader = glt.NeighborLoader(glt.testing.ring_graph().to_data(), [2], torch.tensor([5]), random_seed=0)
        >>> hotness = glt.sampler.hotness_from_counts(loader, num_nodes=40)
        >>> hotness.nonzero().flatten()
        tensor([3, 4, 5])
    """
    is_hetero = isinstance(num_nodes, Mapping)
    sizes: Mapping[Any, int] = num_nodes if isinstance(num_nodes, Mapping) else {None: num_nodes}
    counts = {t: torch.zeros(n) for t, n in sizes.items()}
    num_batches = 0
    for num_batches, batch in enumerate(batches, 1):
        if hasattr(batch, "node_types") != is_hetero:
            raise TypeError(
                f"num_nodes = {num_nodes!r} and a batch of type {type(batch).__name__}: expected a dict by node type "
                "for HeteroData, else an integer"
            )
        for store in batch.node_stores:
            node_type = store._key
            if "n_id" not in store:
                raise TypeError(f"batch {num_batches - 1} has no n_id: expected the batches of a neighbour loader")
            if node_type not in counts:
                raise KeyError(f"batch {num_batches - 1} has node type {node_type!r}: num_nodes has {list(counts)}")
            ids, known = store["n_id"].cpu().long().unique(), counts[node_type]
            if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < len(known):
                raise IndexError(
                    f"batch {num_batches - 1} has node {int(ids[-1])}{f' of type {node_type!r}' * is_hetero}: "
                    f"num_nodes = {len(known)}"
                )
            known[ids] += 1
    if num_batches == 0:
        raise ValueError("batches is empty: expected at least one batch to count in")
    found = {t: met / num_batches for t, met in counts.items()}
    return found if is_hetero else found[None]


@short_traceback
def hotness_from_degrees(
    edge_index: Any, num_nodes: int | Mapping[NodeType, int], edge_dir: str = "in"
) -> Tensor | dict[NodeType, Tensor]:
    """Counts the edges by which sampling may reach each node, as a share of all edges: for when neither seeds nor
    fan-outs are known. It is the same for all partitions.

    Args:
        edge_index: ``[2, num_edges]`` integers, or a dict of such by edge type.
        num_nodes: Number of nodes, or a dict by node type.
        edge_dir: ``'in'``: edges are followed against their direction, so that neighbours are sources; ``'out'``: along
            it.

    Returns:
        ``[num_nodes]`` float32, or a dict of such by node type.

    Raises:
        IndexError: If a node id is outside the graph.
        KeyError, TypeError, ValueError: If types or shapes do not fit.

    Example:
        >>> glt.sampler.hotness_from_degrees(torch.tensor([[0, 1, 1], [2, 2, 0]]), num_nodes=3)
        tensor([0.3333, 0.6667, 0.0000])
    """
    if isinstance(num_nodes, Mapping) != isinstance(edge_index, Mapping):
        raise TypeError("num_nodes and edge_index: expected dicts by type of both, or of neither")
    schema = Schema(tuple(num_nodes), tuple(edge_index)) if isinstance(num_nodes, Mapping) else HOMOGENEOUS
    degrees = [np.zeros(count, np.int64) for count in schema.per_node_type("num_nodes", num_nodes)]
    edges_of = schema.per_edge_type("edge_index", edge_index)
    for (_, neighbor), edge_type, edges in zip(schema.ends(edge_dir), schema.edge_types, edges_of, strict=True):
        name = f"edge_index[{edge_type}]" if schema.is_hetero else "edge_index"
        if not hasattr(edges, "shape") or len(edges.shape) != 2 or edges.shape[0] != 2:
            raise ValueError(f"{name} has shape {list(getattr(edges, 'shape', []))}: expected [2, num_edges]")
        row = edges[0 if edge_dir == "in" else 1]
        for begin in range(0, row.shape[0], _CHUNK):  # edges may be mapped, and more than memory holds
            ids = as_ids(row[begin : begin + _CHUNK], name).numpy()
            if not 0 <= ids.min() <= ids.max() < degrees[neighbor].size:
                bad = ids.max() if ids.min() >= 0 else ids.min()
                raise IndexError(f"{name} has node {bad}: expected ids in [0, {degrees[neighbor].size})")
            degrees[neighbor] += np.bincount(ids, minlength=degrees[neighbor].size)
    num_edges = max(1, sum(int(degree.sum()) for degree in degrees))
    found = [torch.from_numpy((degree / num_edges).astype(np.float32)) for degree in degrees]
    return schema.by_node_type(found) if schema.is_hetero else found[0]


# How likely nodes are to be in a batch: computed from the graph, then corrected by what a few batches show.
#
# The computation (csrc/core/hotness.h) reaches every node, but takes the paths to a node to be independent. Sampled
# batches are right on average, but rarely see most nodes. The two are weighed against each other as a prior and its
# observations: node by node the number of batches with it is taken to be binomial, its probability to have a beta
# distribution around the computed one, and the spread of that, the same for all nodes, is estimated from how far
# counts and computation are apart beyond what chance explains (Efron and Morris, JASA 70(350), 1975, call this
# empirical Bayes). Where the computation is right, the counts hardly matter; where it is not, they decide.


BATCH_SIZE: Final = 1024  # of a loader in the reference's tutorials
_FEWEST, _MOST = 64, 1024  # batches
_EPOCH: Final = 2**32 - 2  # of the keys of these batches: none that a loader reaches


@dataclass(frozen=True)
class EdgeFacts:
    """How the edges of one type relate to each other, a bit per edge, ``[ceil(num_edges / 64)]`` uint64, None if there
    are none: ``repeated`` have the ends of an earlier one, ``mutual`` a reverse of edge type ``back``."""

    repeated: np.ndarray | None
    mutual: np.ndarray | None
    back: int = 0


def find_facts(graph: SampledGraph, csrs: Sequence[_core.Csr], num_threads: int) -> list[EdgeFacts]:
    """By edge type. Of several types that run the other way, the one that has most of the reverses counts. Needs 4
    bytes per edge of one edge type and 4 per node and thread meanwhile."""
    found: list[EdgeFacts] = []
    for r, (expanded, neighbor) in enumerate(graph.ends):
        bits = np.empty((csrs[r].num_edges + 63) // 64, np.uint64)
        _core.find_repeated(csrs[r], bits, num_threads)
        facts, most = EdgeFacts(bits if bits.any() else None, None), 0
        for b, ends in enumerate(graph.ends):
            if ends != (neighbor, expanded) or csrs[r].num_edges == 0 or csrs[b].num_edges == 0:
                continue
            mutual = np.empty_like(bits)
            _core.find_mutual(csrs[r], csrs[b], mutual, num_threads)
            count = int(np.count_nonzero(np.unpackbits(mutual.view(np.uint8))))
            if count > most:
                facts, most = EdgeFacts(facts.repeated, mutual, b), count
        found.append(facts)
    return found


def doubts_on_host(sampler: NeighborSampler, hop: int, found: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Passes probabilities along edges on the CPU, as :class:`glt.sampler.device.DeviceHotness` does on a GPU."""
    graph, config, csrs = sampler.graph, sampler.config, sampler.csrs
    counts = [list(map(int, each)) for each in config.num_neighbors]
    doubt = [np.zeros(n, np.int64) for n in graph.num_nodes]
    for r, (expanded, neighbor) in enumerate(graph.ends):
        fact = sampler.edge_facts[r]
        options: dict[str, Any] = {"repeated": fact.repeated, "num_threads": sampler.num_threads}
        if fact.mutual is not None:
            options |= {"mutual": fact.mutual, "back": csrs[fact.back], "back_neighbors": counts[fact.back]}
        draws = csrs[r], counts[r], config.weighted, config.replace, hop
        _core.add_doubt(*draws, found[expanded], found[neighbor], doubt[neighbor], **options)
    return doubt


def compute_hotness(
    graph: SampledGraph,
    config: SamplingConfig,
    seeds: Sequence[np.ndarray],
    num_nodes: Sequence[int],
    batch_size: int,
    doubts: Callable[[int, Sequence[np.ndarray]], list[np.ndarray]],
) -> list[np.ndarray]:
    """Computes probabilities from the graph by node type, ``[num_nodes]`` float32; options without times. ``doubts(hop,
    found)`` is :func:`doubts_on_host` or a GPU's; nodes beyond those of the graph have no edges."""
    num_seeds = sum(map(len, seeds))
    trees = min(batch_size, num_seeds) if config.disjoint else 1
    share = min(1.0, batch_size / max(num_seeds, 1)) if not config.disjoint else 1 / max(num_seeds, 1)
    # Column i: found by hop i. Rows are nodes, so that all of a node is one memory access.
    found = [np.zeros((count, config.num_hops + 1), np.float32) for count in num_nodes]
    for table, ids in zip(found, seeds, strict=True):
        distinct, times = np.unique(ids, return_counts=True)
        table[distinct, 0] = 1 - (1 - share) ** times
    in_graph = [table[:n] for table, n in zip(found, graph.num_nodes, strict=True)]
    for hop in range(config.num_hops):
        for table, n, sums in zip(found, graph.num_nodes, doubts(hop, in_graph), strict=True):
            with np.errstate(divide="ignore"):  # a seed of every batch
                missed = np.log1p(-table[:n, 0].astype(np.float64)) - sums * _core.doubt_unit
            np.maximum(-np.expm1(missed), table[:n, hop], out=table[:n, hop + 1], casting="same_kind")
            table[n:, hop + 1] = table[n:, hop]
    probs = [np.ascontiguousarray(table[:, -1]) for table in found]
    if trees > 1:  # trees are sampled independently of each other
        probs = [(-np.expm1(trees * np.log1p(-p.astype(np.float64)))).astype(np.float32) for p in probs]
    return probs


def seeds_by_type(seeds: Any, schema: Schema, num_nodes: Sequence[int]) -> list[np.ndarray]:
    """Returns seeds in any form of :meth:`glt.sampler.NeighborSampler.sample_prob` by node type; raises IndexError,
    KeyError, TypeError or ValueError if they do not fit."""
    if hasattr(seeds, "node") and hasattr(seeds, "input_type"):  # PyG's NodeSamplerInput
        seeds = seeds.node if seeds.input_type is None else {seeds.input_type: seeds.node}
    elif isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        seeds = {seeds[0]: seeds[1]}
    found = []
    for t, given in enumerate(schema.per_node_type("seeds", seeds)):
        name = f"seeds[{schema.node_types[t]!r}]" if schema.is_hetero else "seeds"
        if getattr(given, "dtype", None) in (torch.bool, np.bool_) and given.shape != (num_nodes[t],):
            shape = list(given.shape)
            raise ValueError(f"{name} is a mask of shape {shape}: expected one bool per node, [{num_nodes[t]}]")
        ids = torch.empty(0, dtype=torch.int64) if given is None else as_ids(given, name)
        require_in_range(name, ids, num_nodes[t])
        found.append(ids.numpy())
    if not any(map(len, found)):
        raise ValueError("seeds is empty: expected the ids of at least one seed")
    return found


def counts_of_nodes(num_nodes: Any, graph: SampledGraph) -> list[int]:
    """Returns ``num_nodes``, a number or a dict by node type, by node type; None stands for the graph's own."""
    counts = []
    for t, given in enumerate(graph.schema.per_node_type("num_nodes", num_nodes)):
        own = graph.num_nodes[t]
        name = f"num_nodes[{graph.schema.node_types[t]!r}]" if graph.schema.is_hetero else "num_nodes"
        if given is not None and (isinstance(given, bool) or not hasattr(given, "__index__")):
            raise TypeError(f"{name} = {given!r}: expected the number of nodes, an integer")
        if given is not None and int(given) < own:
            raise ValueError(f"{name} = {given}: expected at least {own}, the nodes that the graph has")
        counts.append(own if given is None else int(given))
    return counts


def enough_batches(probs: Sequence[np.ndarray]) -> int:
    """Enough for four times as many nodes as there are, which takes about as long as the computation, or a million,
    which takes no time; 64 to 1024."""
    per_batch = sum(float(prob.sum(dtype=np.float64)) for prob in probs)
    num_sampled = max(4 * sum(map(len, probs)), 1 << 20)
    return int(np.clip(num_sampled / max(per_batch, 1), _FEWEST, _MOST))


def correct_hotness(
    probs: Sequence[np.ndarray],
    graph: SampledGraph,
    seeds: Sequence[np.ndarray],
    batch_size: int,
    num_batches: int,
    sampled: Callable[[list[tuple[int, Tensor]], int], Sequence[Tensor]],
) -> list[np.ndarray]:
    """Weighs probabilities of :func:`compute_hotness` and the counts in ``num_batches`` batches, at least 2, against
    each other. ``sampled(seeds, batch_key)`` returns the nodes of a batch by node type, which are counted where they
    are."""
    counts: list[Any] = [0] * len(probs)
    for number, chosen in zip(range(num_batches), _batches_of(seeds, batch_size), strict=False):
        inside = [(t, torch.from_numpy(ids[ids < graph.num_nodes[t]])) for t, ids in enumerate(chosen)]
        nodes = sampled(inside, _core.batch_key(0, _EPOCH, number))
        for t, ids in enumerate(nodes):
            if number == 0:
                counts[t] = torch.zeros(len(probs[t]), dtype=torch.int32, device=ids.device)
            beyond = torch.from_numpy(chosen[t][chosen[t] >= graph.num_nodes[t]]).to(ids.device)
            for met in (ids, beyond):
                counts[t][met] += 1  # once each, however often it is there
    shares = [count.cpu().numpy() / num_batches for count in counts]
    return [_weighed(prob, share, num_batches) for prob, share in zip(probs, shares, strict=True)]


def _batches_of(seeds: Sequence[np.ndarray], batch_size: int) -> Iterator[list[np.ndarray]]:
    bounds = np.cumsum([0, *map(len, seeds)])
    size = min(batch_size, int(bounds[-1]))
    for epoch in itertools.count():
        order = np.arange(bounds[-1])
        _core.shuffle(order, 0, epoch)
        for begin in range(0, len(order) - size + 1, size):
            at = order[begin : begin + size]
            yield [
                ids[at[(at >= first) & (at < first + len(ids))] - first]
                for ids, first in zip(seeds, bounds, strict=False)
            ]


def _weighed(prob: np.ndarray, share: np.ndarray, num_batches: int) -> np.ndarray:
    """The mean of the beta distribution of each node's probability, given the share of batches that it was in."""
    chance = prob * (1.0 - prob)
    total = float(chance.sum())
    if total == 0:  # all nodes are certain to be met or not to be
        return prob
    beyond = float(np.square(share - prob).sum()) - total / num_batches
    # Variance of the prior in units of prob * (1 - prob): 1 / (strength + 1), strength in batches.
    spread = min(0.5, max(beyond / (total * (1 - 1 / num_batches)), 1e-9))
    strength = 1 / spread - 1
    mixed = (strength * prob + num_batches * share) / (strength + num_batches)
    return np.where(chance > 0, mixed, prob).astype(np.float32)


def probabilities(
    sampler: NeighborSampler, seeds: Any, num_nodes: Any, batch_size: int, num_batches: int | None
) -> Tensor | dict[NodeType, Tensor]:
    """Answers :meth:`glt.sampler.NeighborSampler.sample_prob`."""
    graph, config = sampler.graph, sampler.config
    if sampler.is_temporal:
        raise ValueError(
            f"sample_prob with time_attr = {sampler.time_attr!r}: which edges are early enough depends on the "
            "seed; use glt.sampler.hotness_from_counts(loader, num_nodes)"
        )
    if any(topology.book is not None for topology in graph.topologies):
        raise ValueError("sample_prob of a partition's graph: expected the whole graph, whose nodes all have rows")
    batch_size = check_at_least("batch_size", batch_size, 1)
    if num_batches is not None:
        num_batches = check_at_least("num_batches", num_batches, 0)
    if num_batches == 1:
        raise ValueError("num_batches = 1: expected 0 (no correction) or at least 2, to tell error from chance")
    counts = counts_of_nodes(num_nodes, graph)
    given = seeds_by_type(seeds, graph.schema, counts)
    doubts = partial(doubts_on_host, sampler)
    if sampler.accelerator is not None and config.num_hops <= _core.most_hotness_hops:
        doubts = sampler.on_device.hotness(config, sampler.edge_facts)
    plain = replace(config, with_edge=False, subgraph_type="directional")

    def sample(seeds: list[tuple[int, Tensor]], batch_key: int) -> list[Tensor]:
        out = sampler.begin(seeds, batch_key=batch_key, config=plain)()
        return [ids.long() for ids in (out.node.values() if isinstance(out.node, dict) else (out.node,))]

    probs = compute_hotness(graph, config, given, counts, batch_size, doubts)
    if num_batches is None:
        num_batches = enough_batches(probs)
    if num_batches > 0:
        probs = correct_hotness(probs, graph, given, batch_size, num_batches, sample)
    tensors = [torch.from_numpy(prob) for prob in probs]
    return graph.schema.by_node_type(tensors) if graph.schema.is_hetero else tensors[0]
