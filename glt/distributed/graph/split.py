"""Shares of nodes or edges: even among trainers, and as local as possible."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt._checks import check_flag, check_one_of, integer
from glt._tracebacks import short_traceback
from glt.data.arrays import require_data, require_in_range
from glt.data.schema import EdgeType, NodeType, PartitionBook
from glt.distributed.context import World, current_world, get_context

REMAINDERS: Final = ("keep", "drop", "pad")


class Interval(NamedTuple):
    """The selected items ``begin`` to ``end - 1`` of a partition."""

    partition: int
    begin: int
    end: int


def split_counts(
    counts: Sequence[int], homes: Sequence[Collection[int]], *, force_even: bool = True, remainder: str = "keep"
) -> list[list[Interval]]:
    """Divides the selected items of all partitions among trainers, each item once, and as many as possible to trainers
    that are local to its partition. No split whose shares are as even has more local items.

    Args:
        counts: Selected items of each partition ``[num_partitions]``.
        homes: For each trainer, the partitions that are local to it. Trainers of one host have the same ones, those of
            different hosts have none in common.
        force_even: True: shares differ by one item at most. False: trainers get what is local to them, those with the
            same home equally much; items that are local to none go to the smallest shares.
        remainder: As of :func:`node_split`; empty shares are padded with an item of another share.

    Returns:
        For each trainer its intervals, the local ones first.

    Raises:
        ValueError: If an argument is unusable; names it.
    """
    sizes = np.asarray(counts, np.int64)
    if sizes.ndim != 1 or (sizes < 0).any():
        raise ValueError(f"counts = {counts!r}: expected one number of at least 0 per partition")
    check_one_of("remainder", remainder, REMAINDERS)
    if remainder != "keep" and not force_even:
        raise ValueError(
            f"remainder = {remainder!r} makes all shares equal, but force_even is False: leave one of them out"
        )
    groups = _groups(homes, len(sizes))
    num_trainers, total = len(homes), int(sizes.sum())
    lines = {home: _line(sorted(home), sizes) for home in groups}
    here = {home: _length(line) for home, line in lines.items()}
    wanted = _even_sizes(total, num_trainers, groups, here, extra=remainder != "drop")
    shares: list[list[Interval]] = [[] for _ in homes]
    spare: list[Interval] = []
    for home, ranks in groups.items():
        local = min(here[home], sum(wanted[rank] for rank in ranks)) if force_even else here[home]
        ends = np.cumsum([0, *_evenly(local, len(ranks))]).tolist()
        for rank, begin, end in zip(ranks, ends, ends[1:], strict=False):
            shares[rank] = _cut(lines[home], begin, end)
        spare += _cut(lines[home], local, here[home])
    spare += _line(sorted(set(range(len(sizes))).difference(*groups)), sizes)
    own = [_length(share) for share in shares]
    if not force_even:
        wanted = _filled(own, _length(spare))
    at = 0
    for share, size, more in zip(shares, own, wanted, strict=True):
        share += _cut(spare, at, at + more - size)
        at += more - size
    if remainder == "pad" and total % num_trainers:
        _pad(shares, -(-total // num_trainers))
    return shares


def _groups(homes: Sequence[Collection[int]], num_partitions: int) -> dict[frozenset[int], list[int]]:
    if not homes:
        raise ValueError("homes is empty: expected the local partitions of at least one trainer")
    groups: dict[frozenset[int], list[int]] = {}
    for rank, home in enumerate(homes):
        if not isinstance(home, Collection) or not all(isinstance(part, Integral) for part in home):
            raise TypeError(f"homes[{rank}] = {home!r}: expected the partitions of that trainer's host, such as [0, 1]")
        for part in home:
            if not 0 <= part < num_partitions:
                raise ValueError(f"homes[{rank}] names partition {part}: expected 0 to {num_partitions - 1}")
        groups.setdefault(frozenset(home), []).append(rank)
    seen: dict[int, int] = {}
    for home, (rank, *_) in groups.items():
        for part in sorted(home):
            if part in seen:
                raise ValueError(
                    f"homes[{rank}] = {sorted(home)} and homes[{seen[part]}] = {sorted(homes[seen[part]])} share "
                    f"partition {part}, but are not the same: expected trainers of one host, or of two"
                )
            seen[part] = rank
    return groups


def _even_sizes(
    total: int, num_trainers: int, groups: dict[frozenset[int], list[int]], here: dict[frozenset[int], int], extra: bool
) -> list[int]:
    size, more = divmod(total, num_trainers)
    larger: list[int] = []  # trainers whose shares have an item more
    for home, ranks in groups.items():
        larger += ranks[: max(0, here[home] - size * len(ranks))]
    larger = larger[:more]
    larger += [rank for rank in range(num_trainers) if rank not in larger][: more - len(larger)]
    return [size + (extra and rank in larger) for rank in range(num_trainers)]


def _evenly(total: int, num_shares: int) -> list[int]:
    size, more = divmod(total, num_shares)
    return [size + (at < more) for at in range(num_shares)]


def _filled(sizes: list[int], total: int) -> list[int]:
    """Adds ``total`` items to the smallest sizes, the first of equal ones first."""
    order = np.argsort(sizes, kind="stable")
    ascending = np.array(sizes)[order]
    # To raise the k smallest to the size of the largest of them takes:
    takes = ascending * np.arange(1, len(sizes) + 1) - np.cumsum(ascending)
    lowest = order[: np.count_nonzero(takes <= total)]
    filled = np.array(sizes)
    filled[np.sort(lowest)] = _evenly(int(filled[lowest].sum()) + total, len(lowest))
    return filled.tolist()


def _pad(shares: list[list[Interval]], size: int) -> None:
    whole = [share for share in shares if _length(share) == size]
    for at, share in enumerate(each for each in shares if _length(each) < size):
        part, begin, _ = (share or whole[at % len(whole)])[0]
        share.append(Interval(part, begin, begin + 1))


def _line(parts: Iterable[int], sizes: np.ndarray) -> list[Interval]:
    return [Interval(part, 0, int(sizes[part])) for part in parts if sizes[part]]


def _length(line: Iterable[Interval]) -> int:
    return sum(end - begin for _, begin, end in line)


def _cut(line: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """The items ``begin`` to ``end - 1`` of a line."""
    found, at = [], 0
    for part, first, last in line:
        low, high = max(begin - at, 0), min(end - at, last - first)
        if low < high:
            found.append(Interval(part, first + low, first + high))
        at += last - first
    return found


PIECE: Final = 1 << 20  # rows of a mask that are in memory at a time


class SelectedIds:
    """The ids of one type that a mask or a list selects, ascending by partition; ``counts`` of each partition, int64.

    A mask ``[num_ids]`` of bools, or of zeros and ones in uint8, is read in pieces: once to count, and again where ids
    are asked for. It may be a tensor, a (mapped) array, or a :class:`glt.distributed.DistTensor`. Without a ``book`` of
    owners all ids count as of partition 0. ``name`` is that of ``given`` in errors.

    Raises:
        TypeError: If it is neither.
        ValueError: If a mask has another length or other values, or an id comes twice; names the first.
        IndexError: If there is no such id; names the first.
    """

    def __init__(self, name: str, given: Any, num_ids: int, book: PartitionBook | None, piece: int = PIECE) -> None:
        self._name, self._num_ids, self._book, self._piece = name, num_ids, book, piece
        require_data(given, name)
        if isinstance(given, list | tuple | range):
            given = np.asarray(given, np.int64 if len(given) == 0 else None)
        dtype = str(getattr(given, "dtype", type(given).__name__)).removeprefix("torch.")
        shape = tuple(getattr(given, "shape", ()))
        if dtype not in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"):
            raise TypeError(f"{name} is {dtype}: expected a mask of bools, or integer ids")
        if len(shape) != 1:
            raise ValueError(f"{name} has shape {list(shape)}: expected one dimension, a mask or ids")
        self._is_mask = dtype in ("bool", "uint8")
        if self._is_mask and shape[0] != num_ids:
            raise ValueError(f"{name} is a mask of {shape[0]}: expected one value for each of {num_ids}")
        self._given = given if self._is_mask else _ascending(name, given, num_ids)
        num_partitions = 1 if book is None else book.num_parts
        pieces = range(-(-len(self._given) // self._piece))
        counted = [np.bincount(self._read(piece)[1], minlength=num_partitions) for piece in pieces]
        # Where the ids of each partition begin among those of all pieces before.
        self._before = np.cumsum(np.array([np.zeros(num_partitions, np.int64), *counted]), axis=0)
        self.counts: np.ndarray = self._before[-1]

    def ids(self, intervals: Sequence[Interval], order_by: Any = None) -> Tensor:
        """The ids ``[n]``, int64, of some intervals of positions among the selected ids of a partition, which are
        ascending, or in the order of the numbers ``order_by``, equal ones by id; all selected ids of the partitions are
        then in memory."""
        if order_by is None:
            return torch.from_numpy(_joined(self._intervals(intervals)))
        ordered: dict[int, np.ndarray] = {}
        for part in sorted({part for part, _, _ in intervals}):
            whole = _joined(self._intervals([Interval(part, 0, int(self.counts[part]))]))
            ordered[part] = whole[np.argsort(_as_array(order_by[torch.from_numpy(whole)]), kind="stable")]
        return torch.from_numpy(_joined([ordered[part][begin:end] for part, begin, end in intervals]))

    def _intervals(self, intervals: Sequence[Interval]) -> list[np.ndarray]:
        """The ids of each interval; pieces that have none of them are not read."""
        found: list[list[np.ndarray]] = [[] for _ in intervals]
        for piece, (before, after) in enumerate(pairwise(self._before)):
            if not any(before[part] < end and begin < after[part] for part, begin, end in intervals):
                continue
            ids, owner = self._read(piece)
            for at, (part, begin, end) in enumerate(intervals):
                low, high = max(begin - before[part], 0), min(end, after[part]) - before[part]
                if low < high:
                    found[at].append(ids[owner == part][low:high])
        return [_joined(each) for each in found]

    def _read(self, piece: int) -> tuple[np.ndarray, np.ndarray]:
        """The selected ids of a piece, ascending, and their owners."""
        begin = piece * self._piece
        rows = _as_array(self._given[begin : min(begin + self._piece, len(self._given))])
        if self._is_mask:
            if rows.dtype != np.bool_ and rows.max(initial=0) > 1:
                at = begin + int(np.flatnonzero(rows > 1)[0])
                raise ValueError(
                    f"{self._name}[{at}] = {rows[at - begin]}: expected a mask of zeros and ones, being uint8; ids "
                    "are wider integers"
                )
            rows = np.flatnonzero(rows) + begin
        owner = np.zeros(len(rows), np.int64) if self._book is None else self._book.owners(rows)
        return rows, owner


def _ascending(name: str, given: Any, num_ids: int) -> np.ndarray:
    ids = _as_array(given)
    if ids.dtype == np.uint64 and ids.max(initial=0) >= 1 << 63:
        raise IndexError(f"{name} holds {ids.max()}: expected ids in [0, {num_ids})")
    ids = ids.astype(np.int64)
    require_in_range(name, torch.from_numpy(ids), num_ids, "; a mask has the dtype bool or uint8")
    ids.sort()
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if twice.size:
        raise ValueError(f"{name} holds {ids[twice[0]]} twice: expected each id once")
    return ids


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _as_array(rows: Any) -> np.ndarray:
    return rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)


Homes = Sequence[Collection[int]]


@short_traceback
def node_split(
    nodes: Any,
    partition_book: Any = None,
    ntype: NodeType | None = None,
    rank: int | None = None,
    force_even: bool = True,
    node_trainer_ids: Any = None,
    *,
    num_trainers: int | None = None,
    homes: Homes | None = None,
    remainder: str = "keep",
) -> Tensor:
    """Returns this trainer's share of the selected nodes, for example for training.

    Each selected node is in one share, and shares differ by one node at most. A trainer gets nodes of the partitions of
    its own host as long as there are any. Nothing is drawn: the share is a function of the arguments, and trainers need
    not call together.

    For synchronous training say ``remainder='drop'`` or ``'pad'``: all trainers then have the same number of steps,
    where otherwise one may have a batch more, for which DDP waits in vain (or needs ``join``). For evaluation keep all
    nodes, and bring results together with :func:`gather_metrics`.

    Args:
        nodes: A mask over all nodes of the type ``[num_nodes]``, bool or uint8: a tensor, an array, a
            :class:`DistTensor` such as ``g.ndata['train_mask']``, which is read in pieces; or ids ``[n]``, each once,
            the same on all trainers.
        partition_book: Owners of the nodes: a book, books by node type, or a dataset that has them. Default: those of
            the graph that this process has joined (:func:`initialize`).
        ntype: Node type; None: the only one.
        rank: Whose share. Default: this trainer's.
        force_even: False: no node leaves its host if that has a trainer; shares are as uneven as partitions are.
        node_trainer_ids: Numbers of all nodes, such as ``g.ndata['trainer_id']``, by which the nodes of a partition are
            ordered before they are divided among the trainers of its host; see ``num_trainers_per_machine`` of
            :func:`glt.partition.partition_graph`.
        num_trainers: Number of shares. Default: one for each trainer.
        homes: For each trainer, the partitions that are on its host. Default: hosts have equally many trainers, in the
            order of their ranks, and the partitions of their servers.
        remainder: What becomes of the nodes that are too many for shares of one size: ``'keep'``: some have one more;
            ``'drop'``: they are left out, always the same ones; ``'pad'``: smaller shares have their first node twice.

    Returns:
        Ids ``[n]``, int64: one partition after the other, the local ones first, in each ascending (or in the order of
        ``node_trainer_ids``).

    Raises:
        TypeError, ValueError, IndexError, KeyError: If an argument is unusable; names it.
        RuntimeError: If nothing says which trainer this is.

    Example:
        >>> book = glt.partition.load_partition("parts", 0).nodes[0].book
        >>> shares = [glt.distributed.node_split(torch.arange(10), book, rank=rank, num_trainers=2) for rank in (0, 1)]
        >>> [len(share) for share in shares]
        [5, 5]
    """
    options = {"force_even": force_even, "remainder": remainder}
    return _share("node", nodes, partition_book, ntype, rank, num_trainers, homes, node_trainer_ids, options)


@short_traceback
def edge_split(
    edges: Any,
    partition_book: Any = None,
    etype: EdgeType | None = None,
    rank: int | None = None,
    force_even: bool = True,
    edge_trainer_ids: Any = None,
    *,
    num_trainers: int | None = None,
    homes: Homes | None = None,
    remainder: str = "keep",
) -> Tensor:
    """Returns this trainer's share of the selected edges; as :func:`node_split`, by edge type.

    Edges of a directory that was not relabelled have owners only if they have features or attributes; without those
    shares are even, but no edge counts as local.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> len(glt.distributed.edge_split(torch.arange(80) % 2 == 0))
        40
        >>> glt.distributed.finalize()
    """
    options = {"force_even": force_even, "remainder": remainder}
    return _share("edge", edges, partition_book, etype, rank, num_trainers, homes, edge_trainer_ids, options)


def default_homes(num_partitions: int, num_trainers: int) -> list[list[int]]:
    """The partitions of each trainer's host by default: hosts have equally many trainers and partitions, in order."""
    if num_trainers >= num_partitions:
        return [[rank * num_partitions // num_trainers] for rank in range(num_trainers)]
    homes: list[list[int]] = [[] for _ in range(num_trainers)]
    for part in range(num_partitions):
        homes[part * num_trainers // num_partitions].append(part)
    return homes


def _share(
    kind: str,
    selected: Any,
    given: Any,
    type_: Any,
    rank: int | None,
    num_trainers: int | None,
    homes: Homes | None,
    trainer_ids: Any,
    options: dict[str, Any],
) -> Tensor:
    world, context = current_world(), get_context()
    if given is None:
        if world is None or world.data is None:
            raise RuntimeError(
                "partition_book is None, and this process has joined no graph: call "
                "glt.distributed.initialize(...) first, or give the book"
            )
        given = world.data
    num_ids, book = _book_of(kind, given, type_)
    if num_trainers is None and homes is not None:
        num_trainers = len(homes)
    if rank is None or num_trainers is None:
        if world is not None:
            own_rank, own_num_trainers = world.rank, world.num_trainers
        elif context is not None:
            own_rank, own_num_trainers = context.rank, context.world_size
        else:
            raise RuntimeError(
                "this process is no trainer that is known: call glt.distributed.initialize(...) first, or give rank "
                "and num_trainers"
            )
        rank = own_rank if rank is None else rank
        num_trainers = own_num_trainers if num_trainers is None else num_trainers
    num_trainers = integer("num_trainers", num_trainers, 1, 1 << 31, "the number of shares")
    rank = integer("rank", rank, 0, num_trainers - 1, f"one of {num_trainers} trainers (num_trainers)")
    if homes is None:
        homes = _homes(world, 1 if book is None else book.num_parts, num_trainers)
    elif len(homes) != num_trainers:
        raise ValueError(f"homes is of {len(homes)} trainers: expected {num_trainers} (num_trainers)")
    check_flag("force_even", options["force_even"])
    if trainer_ids is not None and len(trainer_ids) != num_ids:
        raise ValueError(f"{kind}_trainer_ids has {len(trainer_ids)} rows: expected one for each of {num_ids}")
    ids = SelectedIds(f"{kind}s", selected, num_ids, book)
    shares = split_counts(ids.counts.tolist(), [()] * num_trainers if book is None else homes, **options)
    return ids.ids(shares[rank], trainer_ids)


def _homes(world: World | None, num_partitions: int, num_trainers: int) -> Homes:
    """The partitions of the servers of each trainer's host: servers and trainers are numbered host by host."""
    if world is None:
        return default_homes(num_partitions, num_trainers)
    servers = default_homes(world.num_servers, num_trainers)
    owners = [world.owner_of(part) for part in range(num_partitions)]
    return [[part for part, server in enumerate(owners) if server in mine] for mine in servers]


def _book_of(kind: str, given: Any, type_: Any) -> tuple[int, PartitionBook | None]:
    if isinstance(given, PartitionBook):
        return given.num_ids, given
    if isinstance(given, Mapping):
        if type_ is None and len(given) == 1:
            type_ = next(iter(given))
        if type_ not in given:
            raise KeyError(f"partition_book has no {kind} type {type_!r}: expected one of {list(given)}")
        return _book_of(kind, given[type_], None)
    if not hasattr(given, "schema") or not hasattr(given, "manifest"):
        raise TypeError(
            f"partition_book has type {type(given).__name__}: expected a PartitionBook, a dict of them by {kind} type, "
            "or a dataset that has them"
        )
    at = given.schema.node_index(type_) if kind == "node" else given.schema.edge_index(type_)
    num_ids = (given.num_nodes_of if kind == "node" else given.num_edges_of)[at]
    books = getattr(given, f"{kind}_books", None)
    if books is not None:
        return num_ids, books[at]
    entry = (given.manifest.node_types if kind == "node" else given.manifest.edge_types)[at]
    return num_ids, None if entry.offsets is None else PartitionBook.of_ranges(list(entry.offsets))
