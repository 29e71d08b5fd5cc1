"""A trainer's share of nodes or edges: as many as any other's, and as local as can be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from glt.data.partition_book import PartitionBook
from glt.data.schema import EdgeType, NodeType
from glt.distributed.context import get_context
from glt.distributed.selected_ids import SelectedIds
from glt.distributed.split_counts import split_counts
from glt.distributed.world import World, current_world

Homes = Sequence[Collection[int]]


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
    """Returns this trainer's share of the nodes that are selected, for example for training.

    Each selected node is in one share. Shares differ by one node at most, whatever partitions hold how many. A trainer
    gets nodes of the partitions of its own host for as long as there are any, and others' only to even out. Nothing is
    drawn: the share is a function of the arguments, and trainers need not call together. Loaders shuffle it.

    For synchronous training say ``remainder='drop'`` or ``'pad'``: all trainers then have the same number of nodes and
    of steps, where otherwise one may have a batch more than another, which DDP waits for in vain (or needs ``join``).
    For evaluation keep all nodes, and bring results together with :func:`gather_metrics`.

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
            ordered before they are dealt out to the trainers of its host; see ``num_trainers_per_machine`` of
            :func:`glt.partition.graph_call`.
        num_trainers: How many shares there are. Default: one for each trainer.
        homes: For each trainer, the partitions that are on its host. Default: hosts have equally many trainers, in the
            order of their ranks, and the partitions of their servers.
        remainder: What becomes of the nodes that are too many for shares of one size: ``'keep'``: some have one more;
            ``'drop'``: they are left out, always the same ones; ``'pad'``: shares that are smaller have their first
            node twice.

    Returns:
        Ids ``[n]``, int64: one partition after the other, the local ones first, in each ascending (or in the order of
        ``node_trainer_ids``).

    Raises:
        TypeError, ValueError, IndexError, KeyError: If an argument is unusable; names it.
        RuntimeError: If nothing says which trainer this is.
    """
    place = _Place.of("node", partition_book, ntype, rank, num_trainers, homes)
    return place.share("nodes", nodes, force_even, "node_trainer_ids", node_trainer_ids, remainder)


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
    """Returns this trainer's share of the edges that are selected; arguments, result and errors as of
    :func:`node_split`, by edge type.

    Edges of a directory that was not relabelled have owners only where they have features or attributes; elsewhere
    shares are even, but no edge counts as local.
    """
    place = _Place.of("edge", partition_book, etype, rank, num_trainers, homes)
    return place.share("edges", edges, force_even, "edge_trainer_ids", edge_trainer_ids, remainder)


def default_homes(num_partitions: int, num_trainers: int) -> list[list[int]]:
    """The partitions of each trainer's host where nothing else is known: hosts follow each other in the order of ranks
    and of partitions, with as many trainers (or partitions) each."""
    if num_trainers >= num_partitions:
        return [[rank * num_partitions // num_trainers] for rank in range(num_trainers)]
    homes: list[list[int]] = [[] for _ in range(num_trainers)]
    for part in range(num_partitions):
        homes[part * num_trainers // num_partitions].append(part)
    return homes


class _Place:
    """Which trainer asks, and what is known of the ids."""

    def __init__(self, rank: int, homes: Homes, num_ids: int, book: PartitionBook | None) -> None:
        self.rank, self.homes, self.num_ids, self.book = rank, homes, num_ids, book

    @classmethod
    def of(
        cls, kind: str, given: Any, type_: Any, rank: int | None, num_trainers: int | None, homes: Homes | None
    ) -> _Place:
        world = current_world()
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
        if world is not None:
            known: tuple[int, int] | None = (world.rank, world.num_trainers)
        else:
            context = get_context()
            known = None if context is None else (context.rank, context.world_size)
        if known is None and (rank is None or num_trainers is None):
            raise RuntimeError(
                "this process is no trainer that is known: call glt.distributed.initialize(...) first, or give rank "
                "and num_trainers"
            )
        rank, num_trainers = (
            mine if asked is None else asked for mine, asked in zip(known or (0, 0), (rank, num_trainers), strict=True)
        )
        for name, value, low in (("num_trainers", num_trainers, 1), ("rank", rank, 0)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} = {value!r}: expected an integer")
            if value < low:
                raise ValueError(f"{name} = {value}: expected at least {low}")
        if rank >= num_trainers:
            raise ValueError(f"rank = {rank} is outside [0, {num_trainers}) (num_trainers = {num_trainers})")
        if homes is None:
            homes = _homes(world, 1 if book is None else book.num_parts, num_trainers)
        elif len(homes) != num_trainers:
            raise ValueError(f"homes is of {len(homes)} trainers: expected {num_trainers} (num_trainers)")
        if book is None:
            homes = [()] * num_trainers
        return cls(rank, homes, num_ids, book)

    def share(self, name: str, given: Any, force_even: bool, ids_name: str, trainer_ids: Any, remainder: str) -> Tensor:
        if not isinstance(force_even, bool):
            raise TypeError(f"force_even = {force_even!r}: expected True or False")
        if trainer_ids is not None and len(trainer_ids) != self.num_ids:
            raise ValueError(f"{ids_name} has {len(trainer_ids)} rows: expected one for each of {self.num_ids}")
        selected = SelectedIds(name, given, self.num_ids, self.book)
        shares = split_counts(selected.counts.tolist(), self.homes, force_even=force_even, remainder=remainder)
        return selected.ids(shares[self.rank], trainer_ids)


def _homes(world: World | None, num_partitions: int, num_trainers: int) -> Homes:
    """A world's servers follow each other host by host, and so do its trainers: what a trainer's servers hold is
    near."""
    if world is None:
        return default_homes(num_partitions, num_trainers)
    servers = default_homes(world.num_servers, num_trainers)
    owners = [world.owner_of(part) for part in range(num_partitions)]
    return [[part for part, server in enumerate(owners) if server in mine] for mine in servers]


def _book_of(kind: str, given: Any, type_: Any) -> tuple[int, PartitionBook | None]:
    """Returns the number of ids of a type, and their owners."""
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
