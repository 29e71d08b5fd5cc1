"""The sampling law in plain Python, one draw and one edge at a time: slow, short, and equal to the native core bit for
bit, because every decision compares integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from glt._reprs import repr_of_fields

Draw = Callable[[int, int], int]  # (number of the draw, bound) -> a number in [0, bound)


def reference_picks(
    draw: Draw,
    edges: Sequence[int],
    k: int,
    replace: bool = False,
    *,
    weight: Sequence[int] | None = None,
    last: bool = False,
    number: Sequence[int] | None = None,
) -> list[int]:
    """Returns which of the ``edges`` that it may take a node takes, in order.

    Args:
        draw: The draws of the node.
        edges: Ascending; with ``last`` by time.
        k: Edges to take; -1 takes all.
        replace: Draw with replacement: exactly k draws if there is an edge to take; -1 still takes each once.
        weight: Integer weights (see :func:`integer_weights`), by edge. Default: all edges are equally likely.
        last: Only the last k edges.
        number: The numbers of the neighbours, by edge: the lowest are taken, divided by weights if there are some, in
            the order of edges; nothing is drawn.
    """
    rest = list(edges)
    if last and 0 <= k < len(rest):
        rest = rest[len(rest) - k :]
    if not rest:
        return []
    if number is not None and 0 <= k < len(rest):
        return _lowest(rest, k, number, weight)
    if replace and k >= 0:
        if weight is None or sum(weight[e] for e in rest) == 0:
            return [rest[draw(i, len(rest))] for i in range(k)]
        return [_fall_on(rest, weight, draw, i) for i in range(k)]
    if k < 0 or k >= len(rest):
        return rest
    picks: list[int] = []
    if weight is not None:
        while len(picks) < k and sum(weight[e] for e in rest) > 0:
            picks.append(_fall_on(rest, weight, draw, len(picks)))
            rest.remove(picks[-1])
    return picks + [rest[at] for at in _floyd(len(rest), k - len(picks), draw, len(picks))]


def _lowest(edges: list[int], k: int, number: Sequence[int], weight: Sequence[int] | None) -> list[int]:
    """Edges without weight come last, by their numbers; of equal ones the earlier comes first."""

    def rank(e: int) -> tuple[bool, Fraction, int]:
        divisor = 1 if weight is None else weight[e]
        return divisor == 0, Fraction(number[e], divisor or 1), e

    return sorted(sorted(edges, key=rank)[:k])


def _fall_on(edges: list[int], weight: Sequence[int], draw: Draw, number: int) -> int:
    """The edge that a draw falls on when the weights of ``edges`` stand side by side."""
    left = draw(number, sum(weight[e] for e in edges))
    for e in edges:
        left -= weight[e]
        if left < 0:
            return e
    raise AssertionError("a draw is below the sum of the weights")


def _floyd(n: int, k: int, draw: Draw, first_draw: int) -> list[int]:
    """Floyd's algorithm: a number drawn twice stands for the largest one so far."""
    picks: list[int] = []
    for i in range(k):
        largest = n - k + i
        pick = draw(first_draw + i, largest + 1)
        picks.append(largest if pick in picks else pick)
    return picks


def integer_weights(weight: Sequence[float]) -> list[int]:
    """Returns the weights of one row as integers that add up to below 2^62: all are multiplied by one power of two and
    cut; a positive weight becomes at least 1."""
    _, exponent = math.frexp(max(weight, default=0.0))
    scale = 61 - exponent - len(weight).bit_length()
    return [max(1, int(math.ldexp(w, scale))) if w > 0 else 0 for w in weight]


def age_weights(time: Sequence[int], latest: int, half_life: int) -> list[int]:
    """Returns the weights of edges with these times: 2^31, halved with each half-life that an edge is older than the
    latest time it may have, rounded down, but no less than 1."""
    return [1 << max(0, 31 - (latest - each) // half_life) if each <= latest else 0 for each in time]


def node_number(key: int, node: int) -> int:
    """The number of a node, 64 bits: two halves mixed as in Wellons' "triple32"."""
    low, top, first, second = node % 2**32, node >> 32, key % 2**32, key >> 32
    high = _mixed(((low ^ first) + top * 0x9E3779B1) % 2**32, second)
    return high << 32 | _mixed((high + 0x9E3779B1 + top) % 2**32, first)


def _mixed(x: int, key: int) -> int:
    x = (x ^ x >> 17) * 0xED5AD4BB % 2**32
    x = ((x ^ x >> 11) * 0xAC4C1B51 + key) % 2**32
    x = (x ^ x >> 15) * 0x31848BAB % 2**32
    return x ^ x >> 14


_BATCH_KEY, _TREE, _NUMBER, _SHARED_KEY = 1, 5, 7, 8  # purposes of derived keys


def reference_shared_key(batch_key: int) -> int:
    """The key of the numbers of nodes of a batch that shares them with no other."""
    return _derive_key(batch_key, _SHARED_KEY, 0, 0)


def philox(counter: Sequence[int], key: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 of four 32-bit words under a 64-bit key (Salmon et al., SC 2011).

    Example:
        >>> [hex(word) for word in glt.testing.philox((0, 0, 0, 0), key=0)]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    for number in range(10):
        k0 = (key + number * 0x9E3779B9) & 0xFFFFFFFF
        k1 = ((key >> 32) + number * 0xBB67AE85) & 0xFFFFFFFF
        low, high = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = high >> 32 ^ c1 ^ k0, high & 0xFFFFFFFF, low >> 32 ^ c3 ^ k1, low & 0xFFFFFFFF
    return c0, c1, c2, c3


def _derive_key(key: int, purpose: int, a: int, b: int) -> int:
    word = philox((b & 0xFFFFFFFF, b >> 32, a, 0xFFFF0000 | purpose), key)
    return word[1] << 32 | word[0]


def reference_key(random_seed: int, epoch: int, index: int) -> int:
    """The key of a batch, 64 bits: all of its draws derive from it.

    Example:
        >>> glt.testing.reference_key(random_seed=7, epoch=0, index=0) == glt.testing.reference_key(7, 0, 1)
        False
    """
    return _derive_key(random_seed, _BATCH_KEY, epoch, index)


@dataclass(frozen=True)
class ReferenceBatch:
    """What PyG calls a ``SamplerOutput``, as int64 arrays: ``node [N]``, ``row``, ``col`` and ``edge`` ``[E]``.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> glt.testing.reference_batch(graph.edge_index, 40, seeds=[5], num_neighbors=[2])
        ReferenceBatch(node=int64 [3], row=int64 [2], col=int64 [2], edge=int64 [2], num_sampled_nodes=[1, 2],
        num_sampled_edges=[2])
    """

    node: np.ndarray
    row: np.ndarray
    col: np.ndarray
    edge: np.ndarray
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]

    __repr__ = repr_of_fields


@dataclass(frozen=True)
class ReferenceEdges:
    """The edges of one type, as a sampler walks them: the id of an edge is its position.

    ``expanded`` and ``found`` are the positions of the node types whose nodes are expanded, and found; ``center`` and
    ``neighbor`` the ends of each edge ``[E]``; ``time`` and ``weight`` those of each edge ``[E]``. None: an edge is
    always there, all are equally likely.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> edges = glt.testing.ReferenceEdges(0, 0, center=graph.edge_index[1], neighbor=graph.edge_index[0])
        >>> edges
        ReferenceEdges(expanded=0, found=0, center=int64 [80], neighbor=int64 [80])
    """

    expanded: int
    found: int
    center: Any
    neighbor: Any
    time: Any = None
    weight: Any = None

    __repr__ = repr_of_fields


@dataclass(frozen=True)
class ReferenceTypedBatch:
    """Lists by node type (``node``, ``tree``, ``num_sampled_nodes``) and by edge type (the others).

    ``tree`` is the position of the seed that a node was reached from, in a disjoint batch; otherwise meaningless.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> edges = glt.testing.ReferenceEdges(0, 0, center=graph.edge_index[1], neighbor=graph.edge_index[0])
        >>> key = glt.testing.reference_key(7, 0, 0)
        >>> batch = glt.testing.reference_typed_batch(1, [edges], [(0, [5])], [[2]], key=key)
        >>> batch.num_sampled_nodes
        [[1, 2]]
    """

    node: list[np.ndarray]
    tree: list[np.ndarray]
    row: list[np.ndarray]
    col: list[np.ndarray]
    edge: list[np.ndarray]
    num_sampled_nodes: list[list[int]]
    num_sampled_edges: list[list[int]]

    __repr__ = repr_of_fields


def reference_batch(
    edge_index: Any,
    num_nodes: int,
    seeds: Sequence[int],
    num_neighbors: Sequence[int],
    replace: bool = False,
    random_seed: int = 0,
    epoch: int = 0,
    index: int = 0,
    edge_dir: str = "in",
    edge_weight: Any = None,
) -> ReferenceBatch:
    """Samples one homogeneous batch, coordinates ``(random_seed, epoch, index)``, by the letter of the law.

    Args:
        edge_index: Source and destination ids ``[2, E]``.
        seeds: Node ids in order, duplicates allowed.
        num_neighbors: Edges per node and hop; -1 takes all.
        replace: Draw with replacement.
        edge_dir: ``'in'`` expands a node along its in-edges, ``'out'`` along its out-edges.
        edge_weight: The weight of each edge ``[E]``. Default: all are equally likely.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> glt.testing.reference_batch(graph.edge_index, 40, seeds=[5], num_neighbors=[2], random_seed=7).node
        array([5, 3, 4])
    """
    ends = np.asarray(edge_index)
    center, neighbor = (ends[1], ends[0]) if edge_dir == "in" else (ends[0], ends[1])
    edges = ReferenceEdges(0, 0, center, neighbor, weight=edge_weight)
    key = reference_key(random_seed, epoch, index)
    batch = reference_typed_batch(1, [edges], [(0, seeds)], [num_neighbors], key=key, replace=replace)
    return ReferenceBatch(**{field.name: getattr(batch, field.name)[0] for field in fields(ReferenceBatch)})


def reference_typed_batch(
    num_node_types: int,
    edges: Sequence[ReferenceEdges],
    seeds: Sequence[tuple[int, Sequence[int]]],
    num_neighbors: Sequence[Sequence[int]],
    *,
    key: int,
    replace: bool = False,
    disjoint: bool = False,
    seed_time: Sequence[int] | None = None,
    last: bool = False,
    shared_key: int | None = None,
    time_bound: str = "<=",
    time_window: Sequence[int | None] | None = None,
    half_life: Sequence[int | None] | None = None,
    exclusions: Sequence[Collection[tuple[int, int]] | None] | None = None,
) -> ReferenceTypedBatch:
    """Samples one batch of a graph with several types by the letter of the law; as :func:`reference_batch`, but:

    Args:
        edges: The edges of each type.
        seeds: Node types and ids, in order. In a disjoint batch they are the roots of trees 0, 1, 2, ... over the whole
            list.
        num_neighbors: Edges per edge type and hop.
        key: The key of the batch, see :func:`reference_key`.
        disjoint: Nothing is shared between the trees.
        seed_time: One per tree; edges with a later time are not there. Needs ``disjoint``.
        last: Of edges with times, take the latest, not random ones.
        shared_key: Key of the numbers of nodes: each node takes the neighbours whose numbers are lowest, see
            :func:`node_number`. None: it draws.
        time_bound: ``'<'``: edges of the seed's own time are not there either.
        time_window: Per edge type, edges earlier than the seed's time minus this are not there.
        half_life: Per edge type, draw edges with times by age: see :func:`age_weights`.
        exclusions: Per edge type, pairs (expanded node, neighbour) whose edges are not there.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> edges = glt.testing.ReferenceEdges(0, 0, center=graph.edge_index[1], neighbor=graph.edge_index[0])
        >>> key = glt.testing.reference_key(7, 0, 0)
        >>> batch = glt.testing.reference_typed_batch(1, [edges], [(0, [5])], [[2]], key=key)
        >>> batch.node
        [array([5, 3, 4])]
    """
    rows_of = [_rows_of(e, seed_time is not None or last) for e in edges]
    node, tree = _lists(num_node_types), _lists(num_node_types)
    local: list[dict[tuple[int, int], int]] = [{} for _ in range(num_node_types)]
    row, col, edge = _lists(len(edges)), _lists(len(edges)), _lists(len(edges))

    def add(kind: int, found: int, root: int, always: bool) -> int:
        identity = (root if disjoint else 0, found)
        if always or identity not in local[kind]:
            local[kind].setdefault(identity, len(node[kind]))
            node[kind].append(found)
            tree[kind].append(root)
        return local[kind][identity]

    roots = [(kind, int(seed)) for kind, ids in seeds for seed in ids]
    for root, (kind, seed) in enumerate(roots):
        add(kind, seed, root, True)
    node_counts, edge_counts = [[len(n)] for n in node], _lists(len(edges))
    first = [0] * num_node_types
    for hop in range(len(num_neighbors[0]) if edges else 0):
        end, edges_before = [len(n) for n in node], [len(e) for e in edge]
        for r, e in enumerate(edges):
            excluded = (exclusions[r] if exclusions else None) or ()
            for expanded in range(first[e.expanded], end[e.expanded]):
                center, root = node[e.expanded][expanded], tree[e.expanded][expanded]
                there = rows_of[r].get(center, [])
                earliest, latest = -math.inf, math.inf
                if e.time is not None and seed_time is not None:
                    latest = int(seed_time[root]) - (time_bound == "<")
                    window = time_window[r] if time_window else None
                    earliest = -math.inf if window is None else int(seed_time[root]) - window
                allowed = [
                    i
                    for i, at in enumerate(there)
                    if (center, int(e.neighbor[at])) not in excluded
                    and (e.time is None or earliest <= int(e.time[at]) <= latest)
                ]
                draw = partial(_draw, _derive_key(key, _TREE, 0, root) if disjoint else key, hop, r, center)
                weight = None if e.weight is None else integer_weights([float(e.weight[at]) for at in there])
                halving = half_life[r] if half_life else None
                if halving is not None and latest < math.inf:
                    weight = age_weights([int(e.time[at]) for at in there], int(latest), halving)
                take_last = last and e.time is not None
                k = num_neighbors[r][hop]
                number = None
                if shared_key is not None:
                    number_key = _derive_key(shared_key, _NUMBER, hop, e.found)
                    number = [node_number(number_key, int(e.neighbor[at])) for at in there]
                picks = reference_picks(draw, allowed, k, replace, weight=weight, last=take_last, number=number)
                for position in picks:
                    row[r].append(add(e.found, int(e.neighbor[there[position]]), root, False))
                    col[r].append(expanded)
                    edge[r].append(there[position])
        first = end
        for counts, made, before in ((node_counts, node, end), (edge_counts, edge, edges_before)):
            for count, values, begin in zip(counts, made, before, strict=True):
                count.append(len(values) - begin)
    lists: dict[str, Any] = {"node": node, "tree": tree, "row": row, "col": col, "edge": edge}
    arrays = {name: [np.array(each, dtype=np.int64) for each in of_type] for name, of_type in lists.items()}
    return ReferenceTypedBatch(**arrays, num_sampled_nodes=node_counts, num_sampled_edges=edge_counts)


def _lists(number: int) -> list[list[int]]:
    return [[] for _ in range(number)]


def _rows_of(edges: ReferenceEdges, by_time: bool) -> dict[int, list[int]]:
    """The edges of each center: in input order, or by time and then in input order."""
    rows: dict[int, list[int]] = {}
    for e, center in enumerate(np.asarray(edges.center).tolist()):
        rows.setdefault(center, []).append(e)
    if by_time and edges.time is not None:
        for row in rows.values():
            row.sort(key=lambda e: edges.time[e])
    return rows


def _draw(key: int, hop: int, edge_type: int, node: int, number: int, bound: int) -> int:
    words = philox((node & 0xFFFFFFFF, node >> 32, number // 2, edge_type << 16 | hop << 8), key)
    return (words[number % 2 * 2 + 1] << 32 | words[number % 2 * 2]) * bound >> 64
