"""Assignments of nodes by their ids or hotness alone: random, by frequency, and those made elsewhere."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Unpack

from glt import _core
from glt._checks import integer
from glt._tracebacks import short_traceback
from glt.data.schema import NodeType
from glt.partition.format.book import owner_dtype
from glt.partition.graph_input import GraphInput
from glt.partition.methods.hotness import NodeHotness
from glt.partition.methods.partitioner import (
    GraphArguments,
    Hotness,
    PartitionerBase,
    PerEdgeType,
    PerNodeType,
    checked_owners,
)


@short_traceback
class AssignedPartitioner(PartitionerBase):
    """Gives each node to the partition that ``owners`` says, for assignments made elsewhere.

    Args:
        owners: Partition of each node, ``[num_nodes]`` integers in ``[0, num_parts)``, tensor or array; of a
            heterogeneous graph, a dict of them by node type, of all types that have nodes.
        origin: What made the assignment, for the manifest: a dict that JSON can hold.

    The other arguments are those of :class:`PartitionerBase`, as are the errors: beside them a TypeError, KeyError or
    ValueError where ``owners`` does not fit.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> owners = torch.arange(40) // 20
        >>> manifest = glt.partition.AssignedPartitioner("halves", 2, 40, graph.edge_index, owners=owners).partition()
        >>> manifest.part_num_nodes, manifest.edge_cut_ratio
        ((20, 20), 0.075)
    """

    needs_graph: ClassVar[bool] = False
    node_arguments: ClassVar[frozenset[str]] = frozenset({"owners"})

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int] | GraphInput,
        edge_index: PerEdgeType | None = None,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        owners: PerNodeType,
        origin: Mapping[str, Any] | None = None,
        **graph: Unpack[GraphArguments],
    ) -> None:
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)
        self.origin: dict[str, Any] = dict(origin or {})
        schema = self.graph.schema
        self._owners = [
            checked_owners(
                f"owners[{nodes.node_type!r}]" if schema.is_hetero else "owners",
                np.empty(0, np.int64) if value is None and nodes.num_nodes == 0 else value,
                nodes.num_nodes,
                num_parts,
            )
            for nodes, value in zip(self.graph.nodes, schema.per_node_type("owners", owners), strict=True)
        ]

    def given_arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        yield from super().given_arrays()
        for owner in self._owners:
            yield "owners", owner

    def assign_nodes(self, node_type: int, num_nodes: int) -> np.ndarray:
        return self._owners[node_type]

    def strategy_arguments(self) -> dict[str, Any]:
        digest = hashlib.blake2b(digest_size=16)
        for owner in self._owners:
            digest.update(owner.data)
        return {"owners_digest": digest.hexdigest(), **self.origin}


_SAMPLE = 1 << 19  # numbers that prices are found on: a round takes about num_parts times as many operations
_ROUNDS = 30


@short_traceback
class FrequencyPartitioner(PartitionerBase):
    """Gives each node to the partition that reads it most, as far as all are to own equally many.

    Owners are chosen such that as many of the expected reads as possible are local, under the condition that the
    partitions own equally many of the nodes that are read, up to one, and equally many of the others, up to one in
    all. That is an assignment problem, solved by its dual: each partition has a price, nodes choose what they gain most
    from after paying, and prices rise where there are too many (Bertsekas, Annals of Operations Research 14, 1988).
    Prices are found on a sample; then the nodes that lose least by it move from full to empty partitions. For two
    partitions the result is the best there is, the odd node included. Nodes that are not read are dealt out at random.

    The assignment of a node type is a function of ``(probs, num_parts, random_seed)`` alone.

    Args:
        probs: For each partition how likely each node is to be read by its trainers, from
            :meth:`glt.sampler.NeighborSampler.sample_prob` with their seeds: a list of ``[num_nodes]`` tensors or
            arrays; of a heterogeneous graph a dict of such lists by node type, or a list of dicts. Types without are
            dealt out at random. It is also the ``hotness`` by which ``cache_ratio`` and ``cache_memory_budget`` fill
            caches.
        random_seed: Seed of the sample and of dealing out, in ``[0, 2**64)``.

    The other arguments and the errors are those of :class:`PartitionerBase`. Peak memory beside its and the inputs is
    16 bytes per node. ``probs`` of many partitions may be too large for memory: arrays that are mapped from files are
    read in pieces.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> reads = [torch.arange(40.0), torch.arange(40.0).flip(0)]  # by the trainers of each partition
        >>> manifest = glt.partition.FrequencyPartitioner("by-reads", 2, 40, graph.edge_index, reads).partition()
        >>> glt.partition.load_partition("by-reads", 0).nodes[0].ids[:4]
        memmap([20, 21, 22, 23])
    """

    needs_graph: ClassVar[bool] = False
    hotness_argument: ClassVar[str] = "probs"

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int] | GraphInput,
        edge_index: PerEdgeType | None = None,
        probs: Hotness | None = None,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        random_seed: int = 0,
        **graph: Unpack[GraphArguments],
    ) -> None:
        self.random_seed: int = integer("random_seed", random_seed, 0, 2**64 - 1, "the seed of what is left to chance")
        if probs is None:
            raise TypeError("probs is None: expected a list of one array [num_nodes] for each partition")
        if graph.get("hotness") is not None:
            raise ValueError("hotness and probs are both given: expected probs, by which caches are filled too")
        graph["hotness"] = probs
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)

    def assign_nodes(self, node_type: int, num_nodes: int) -> np.ndarray:
        hotness = self.hotness[node_type]
        owner = np.empty(num_nodes, owner_dtype(self.num_parts))
        read = np.zeros(num_nodes, bool) if hotness is None else hotness.is_read()
        hot = np.flatnonzero(read)
        room = _shares(num_nodes, self.num_parts)
        if hotness is not None and hot.size:
            owner[hot] = assign_by_hotness(hotness, hot, self.num_parts, self.random_seed, node_type)
            most_first = np.argsort(-np.bincount(owner[hot], minlength=self.num_parts), kind="stable")
            room[most_first] = room - _shares(hot.size, self.num_parts)
        cold = np.flatnonzero(~read)
        _core.shuffle(cold, self.random_seed, node_type)
        owner[cold] = np.repeat(np.arange(self.num_parts, dtype=owner.dtype), room)
        return owner

    def strategy_arguments(self) -> dict[str, Any]:
        digest = hashlib.blake2b(digest_size=16)
        for hotness in self.hotness:
            if hotness is not None:
                columns = ((idx, np.ascontiguousarray(each).data) for idx, each in hotness.columns())
                parts = {idx: hashlib.blake2b(column).hexdigest() for idx, column in columns}
                digest.update("".join(hotness.of_all_parts(parts)).encode())
        return {"random_seed": self.random_seed, "probs": digest.hexdigest()}


def assign_by_hotness(
    hotness: NodeHotness, nodes: np.ndarray, num_parts: int, random_seed: int, node_type: int
) -> np.ndarray:
    """Returns the owner of each of ``nodes [n]``, ids ascending, all partitions owning equally many up to one; the
    sample depends on ``random_seed`` and ``node_type``.
    """
    target = _shares(nodes.size, num_parts)
    sample = np.arange(nodes.size)
    if nodes.size * num_parts > _SAMPLE:
        _core.shuffle(sample, random_seed, node_type)
        sample = np.sort(sample[: _SAMPLE // num_parts])
    (value,) = hotness.map(nodes[sample], lambda value: [value.T])
    price = _prices(np.ascontiguousarray(value.T))
    dtype = owner_dtype(num_parts)
    (owner,) = hotness.map(nodes, lambda value: [np.argmax(value - price[:, None], axis=0).astype(dtype)])
    if num_parts == 2 and nodes.size % 2 == 1:
        (at_first,) = hotness.map(nodes, lambda value: [value[0] >= value[1]])
        if np.count_nonzero(at_first) <= nodes.size // 2:
            target = target[::-1]  # of nodes in the order of what they gain, the middle one is read more by the second
    _level(hotness, nodes, owner, target, price)
    return owner


def _prices(value: np.ndarray) -> np.ndarray:
    """Prices ``[num_parts]`` at which about equally many of the columns of ``value [num_parts, n]`` choose each row."""
    num_parts, n = value.shape
    price = np.zeros(num_parts)
    rank = n - max(1, n // num_parts)
    gain = value.copy()
    for _ in range(_ROUNDS if n > num_parts > 1 else 0):
        before = price.copy()
        for idx in range(num_parts):
            gain[idx] = -np.inf
            price[idx] = np.partition(value[idx] - gain.max(axis=0), rank)[rank]  # so many gain at least this
            gain[idx] = value[idx] - price[idx]
        if np.abs(price - before).max() <= 1e-9 * value.max():
            break
    return price


def _level(hotness: NodeHotness, nodes: np.ndarray, owner: np.ndarray, target: np.ndarray, price: np.ndarray) -> None:
    """Moves nodes from partitions that own too many to others, those first that lose least; until all own their
    target."""
    num_parts = target.size
    while True:
        surplus = np.bincount(owner, minlength=num_parts) - target
        full = int(np.argmax(surplus))
        if surplus[full] <= 0:
            return
        # Each pass empties a partition down to its target, or fills another: at most 2 * num_parts passes.
        members = np.flatnonzero(owner == full)
        free = np.flatnonzero(surplus < 0).astype(owner.dtype)
        gain, best = hotness.map(nodes[members], partial(_move, price, full, free))
        first = np.argsort(-gain, kind="stable")[: surplus[full]]
        for idx in free.tolist():
            moved = first[best[first] == idx][: -surplus[idx]]
            owner[members[moved]] = idx


def _move(price: np.ndarray, full: int, free: np.ndarray, value: np.ndarray) -> list[np.ndarray]:
    """What nodes of ``value [num_parts, n]`` gain by going from ``full`` to the best of ``free``, and which that is."""
    gain = value - price[:, None]
    chosen = np.argmax(gain[free], axis=0)
    best = free[chosen]
    return [gain[best, np.arange(best.size)] - gain[full], best]


def _shares(count: int, num_parts: int) -> np.ndarray:
    """Splits a count evenly; the first partitions have one more."""
    return count // num_parts + (np.arange(num_parts) < count % num_parts)


@short_traceback
class RandomPartitioner(PartitionerBase):
    """Gives every partition the same number of nodes, up to one, chosen at random.

    The assignment of a node type is a function of ``(its position among the node types, num_nodes, num_parts,
    random_seed)`` and of its labels in ``balance_ntypes`` alone: the same seed gives the same directory, byte for byte.
    With ``balance_ntypes``, every partition gets the same number of nodes of each label too, up to one.

    Args:
        random_seed: Seed of the permutation, in ``[0, 2**64)``.

    The other arguments, the errors and the memory needed are those of :class:`PartitionerBase`.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> glt.partition.RandomPartitioner("random", 2, 40, graph.edge_index, node_feat=graph.x).partition()
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='out', 12 files, 3.6 KB)
    """

    balances: ClassVar[frozenset[str]] = frozenset({"balance_ntypes"})
    needs_graph: ClassVar[bool] = False

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int] | GraphInput,
        edge_index: PerEdgeType | None = None,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        random_seed: int = 0,
        **graph: Unpack[GraphArguments],
    ) -> None:
        self.random_seed: int = integer("random_seed", random_seed, 0, 2**64 - 1, "the seed of the permutation")
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)
        if self.balance.nodes is not None:
            self.assign_node_bytes = 29  # two permutations more, and the labels as they are and permuted

    def assign_nodes(self, node_type: int, num_nodes: int) -> np.ndarray:
        permutation = np.arange(num_nodes)
        _core.shuffle(permutation, self.random_seed, node_type)
        owner = np.empty(num_nodes, owner_dtype(self.num_parts))
        label = self.balance.nodes[node_type].of_node if self.balance.nodes is not None else None
        if label is not None:
            # One label after the other, dealt in turn: each is spread evenly, and so are all together.
            permutation = permutation[np.argsort(label[permutation], kind="stable")]
            for idx in range(self.num_parts):
                owner[permutation[idx :: self.num_parts]] = idx
            return owner
        for idx in range(self.num_parts):
            begin, end = idx * num_nodes // self.num_parts, (idx + 1) * num_nodes // self.num_parts
            owner[permutation[begin:end]] = idx
        return owner

    def strategy_arguments(self) -> dict[str, Any]:
        return {"random_seed": self.random_seed}
