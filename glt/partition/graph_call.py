"""Partitions a graph by one call, with the arguments of DGL's function of this name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from glt._checks import check_flag, integer
from glt._tracebacks import short_traceback
from glt.data.dataset import Dataset
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import require_graph_name, write_part_config
from glt.partition.graph_input import GraphInput, arguments_by_type
from glt.partition.inputs.read import dataset_arguments, graph_arguments
from glt.partition.methods import METHODS
from glt.partition.methods.partitioner import IdsOf, PartitionerBase, checked_strategy
from glt.partition.methods.partitioners import AssignedPartitioner

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


# What DGL's function also takes, or did, and what to say where it is passed on.
_NOT_HERE: Final = {
    "n_jobs": "say num_threads",
    "relabel": "it is called reshuffle here, as in DGL",
    "store_eids": "partitions always have the ids of edges",
    "store_inner_node": "partitions hold the nodes that they own, and no others",
    "store_inner_edge": "partitions hold the edges that they own, and no others",
}
# Arguments that decide on the assignment, where more than one trainer per machine takes a part of a partition.
_ASSIGNING: Final = frozenset({"random_seed", "imbalance", "num_passes", "memory_budget_bytes"})
_BOTH: Final = frozenset({"num_threads", "sort_memory_bytes", "edge_assign_strategy", "overwrite"})
_FINE_METHODS: Final = ("metis", "fennel", "random")

# By kind: nodes and edges of a homogeneous graph share the names of a batch.
TRAINER_IDS: Final = {"node": "trainer_id", "edge": "edge_trainer_id"}


@short_traceback
def partition_graph(
    g: Data | HeteroData | Dataset,
    graph_name: str,
    num_parts: int,
    out_path: str | os.PathLike[str],
    num_hops: int = 1,
    part_method: str = "metis",
    balance_ntypes: Any = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
    num_trainers_per_machine: int = 1,
    objtype: str = "cut",
    graph_formats: str | Sequence[str] | None = None,
    use_graphbolt: bool = False,
    *,
    reshuffle: bool = True,
    edge_assign_strategy: str = "by_dst",
    weight_attr: str | None = None,
    time_attr: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Manifest | tuple[IdsOf, IdsOf]:
    """Partitions a graph into a directory that glt samples from, and gives it a name.

    All attributes of nodes and edges come along: batches have them, and ``g.ndata['train_mask']`` is one. The directory
    is that of a partitioner (:class:`PartitionerBase`), with ``<graph_name>.json`` beside its manifest.

    Args:
        g: A PyG ``Data`` or ``HeteroData``, or a :class:`glt.data.Dataset`.
        graph_name: Its name, which :class:`glt.distributed.DistGraph` is told.
        num_parts: Number of partitions; machines may be more or fewer.
        out_path: The directory to create; with ``overwrite=True`` partitions that are there are replaced.
        num_hops: 1, the ids of neighbours, which is all that samplers need. More are refused: copies of others' hot
            rows are ``cache_ratio`` with ``hotness``.
        part_method: ``'metis'`` (needs pymetis), ``'random'``, ``'fennel'`` (few edges cut, in bounded memory),
            ``'frequency'`` (needs ``probs``) or ``'assigned'`` (needs ``owners``).
        balance_ntypes: Numbers of nodes, such as a training mask, whose values are spread evenly over partitions:
            ``[num_nodes]``, or a dict by node type; or several, or True. See :class:`PartitionerBase`.
        balance_edges: Whether partitions shall own equally many edges too, of each type, and of the nodes of each value
            of ``balance_ntypes``.
        return_mapping: Whether to return the original ids.
        num_trainers_per_machine: Above 1, each partition is made of as many pieces with few edges between them, and
            nodes and edges have the number of theirs, from 0 to ``num_parts * num_trainers_per_machine - 1``, as
            attributes ``'trainer_id'`` and ``'edge_trainer_id'`` (int32), which :func:`glt.distributed.node_split` and
            ``edge_split`` take. With METIS, Fennel and random. Takes four bytes per node and edge of memory.
        objtype: What METIS minimises, ``'cut'`` or ``'vol'``; others than ``'cut'`` are refused without METIS.
        graph_formats: What the edges are stored as: ``'csc'``, or ``'csr'`` with ``edge_assign_strategy='by_src'``.
        use_graphbolt: Refused: there is one kind of partition, and samplers read it as it is.
        reshuffle: Whether nodes and edges get new ids, of which each partition owns a range; with False they keep those
            of ``g``, and each host holds a book of all.
        edge_assign_strategy: ``'by_dst'``: an edge belongs to the owner of its destination, as in DGL, and in-edges are
            sampled; or ``'by_src'``.
        weight_attr, time_attr: Attributes to sample by: see :func:`graph_arguments`.
        progress: As in :meth:`PartitionerBase.partition`.
        options: Of the partitioner, such as ``random_seed``, ``imbalance``, ``hotness``, ``cache_ratio``,
            ``num_threads``, ``overwrite``; unknown ones are refused.

    Returns:
        The manifest; with ``return_mapping``, as DGL, ``(orig_nids, orig_eids)``: the original id of each new node id
        and of each new edge id, int32 or int64 tensors, dicts by type where there are types. An embedding by new ids
        is put back by ``original[orig_nids.long()] = embedding``, or :func:`to_original_order` where it is large.

    Raises:
        TypeError, ValueError, KeyError, IndexError: If an argument is unusable; names it, and what to do.
        PartitionError: If ``out_path`` is not empty, or has no room.
        ImportError: If pymetis is needed and not there.

    Example:
        >>> glt.partition.partition_graph(glt.testing.ring_graph().to_data(), "ring", 2, "ring", part_method="random")
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='in', 16 files, 5.5 KB)
        >>> glt.partition.load_partition("ring/ring.json", 0)
        Partition(0 of 2, 20 nodes, 40 edges, edge_dir='in')
    """
    require_graph_name(graph_name)
    if not isinstance(out_path, str | os.PathLike):
        raise TypeError(f"out_path = {out_path!r}: expected the path of the directory to create")
    chosen, assigning = _method(part_method, objtype, options)
    edge_assign_strategy = checked_strategy(edge_assign_strategy)
    _require_known(num_hops, graph_formats, use_graphbolt, edge_assign_strategy)
    num_trainers = integer(
        "num_trainers_per_machine", num_trainers_per_machine, 1, 2**16, "trainers that share a partition"
    )
    check_flag("reshuffle", reshuffle)
    check_flag("return_mapping", return_mapping)
    if return_mapping and not reshuffle:
        raise ValueError("return_mapping = True, but reshuffle is False: ids stay those of g; leave one of them out")
    graph = GraphInput.of(**_arguments(g, weight_attr, time_attr))
    assigning |= {"balance_ntypes": balance_ntypes, "balance_edges": balance_edges}
    written: dict[str, Any] = {"relabel": reshuffle, "edge_assign_strategy": edge_assign_strategy}
    written |= {name: value for name, value in options.items() if name not in _ASSIGNING}
    assigning |= {name: value for name, value in options.items() if name in _ASSIGNING}
    partitioner: PartitionerBase
    if num_trainers == 1:
        partitioner = chosen(out_path, num_parts, graph, **assigning, **written)
    elif part_method not in _FINE_METHODS:
        raise ValueError(
            f"num_trainers_per_machine = {num_trainers}, but part_method = {part_method!r}: expected one of "
            f"{list(_FINE_METHODS)}, which can cut partitions further"
        )
    else:
        num_parts = integer("num_parts", num_parts, 1, 2**16 // num_trainers, "the number of partitions")
        assigning |= {name: value for name, value in written.items() if name in _BOTH}
        pieces = chosen(out_path, num_parts * num_trainers, graph, **assigning)
        partitioner = _of_pieces(graph, pieces, num_trainers, out_path, written)
    if return_mapping:
        _, orig_nids, orig_eids = partitioner.partition(progress, return_mapping=True)
    else:
        manifest = partitioner.partition(progress)
    more = {} if num_trainers == 1 else {"num_trainers_per_machine": num_trainers}
    write_part_config(partitioner.output_dir, graph_name, part_method, **more)
    return (orig_nids, orig_eids) if return_mapping else manifest


def _method(part_method: str, objtype: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The partitioner, and what ``objtype`` is to it."""
    for name in options:
        if name in _NOT_HERE:
            raise TypeError(f"partition_graph has no argument {name}: {_NOT_HERE[name]}")
    if not isinstance(part_method, str) or part_method not in METHODS:
        raise ValueError(f"part_method = {part_method!r}: expected one of {list(METHODS)}")
    has_objective = "objtype" in METHODS[part_method].options
    if not has_objective and objtype != "cut":
        raise ValueError(
            f"objtype = {objtype!r} is METIS's objective, but part_method = {part_method!r}: leave it out, or say "
            "part_method='metis'"
        )
    return METHODS[part_method].load(), {"objtype": objtype} if has_objective else {}


def _require_known(num_hops: Any, graph_formats: Any, use_graphbolt: Any, edge_assign_strategy: str) -> None:
    if isinstance(num_hops, bool) or num_hops != 1:
        raise ValueError(
            f"num_hops = {num_hops!r}: expected 1; partitions hold the edges of their own nodes and samplers ask the "
            "owners of others; for copies of hot rows give hotness and cache_ratio"
        )
    if use_graphbolt is not False:
        raise ValueError(
            f"use_graphbolt = {use_graphbolt!r}: expected False; there is one kind of partition, which samplers map "
            "and read as it is"
        )
    stored, other = ("csc", "by_src") if edge_assign_strategy == "by_dst" else ("csr", "by_dst")
    formats = [graph_formats] if isinstance(graph_formats, str) else graph_formats
    if formats is not None and list(formats) != [stored]:
        raise ValueError(
            f"graph_formats = {graph_formats!r}: expected {stored!r}, the one that partitions are stored in with "
            f"edge_assign_strategy={edge_assign_strategy!r} (with {other!r} it is the other compressed one); leave it "
            "out"
        )


def _arguments(g: Any, weight_attr: str | None, time_attr: str | None) -> dict[str, Any]:
    if not isinstance(g, Dataset):
        if not hasattr(g, "stores"):
            raise TypeError(f"g has type {type(g).__name__}: expected a PyG Data or HeteroData, or a glt.data.Dataset")
        return graph_arguments(g, weight_attr=weight_attr, time_attr=time_attr)
    if time_attr not in (None, g.time_attr):
        raise ValueError(f"time_attr = {time_attr!r}, but g is a Dataset whose times are {g.time_attr!r}: leave it out")
    return dataset_arguments(g, weight_attr=weight_attr)


def _of_pieces(
    given: GraphInput,
    fine: PartitionerBase,
    num_trainers: int,
    out_path: str | os.PathLike[str],
    written: dict[str, Any],
) -> PartitionerBase:
    """Returns a partitioner whose partitions are ``num_trainers`` of those of ``fine`` each, and whose nodes and edges
    have the number of their piece as an attribute."""
    graph = fine.graph
    pieces = [book.owner for book in fine.books()]

    def attrs(kind: str, type_: Any, numbers: np.ndarray) -> dict[str, Any]:
        name, named = TRAINER_IDS[kind], given.get(f"{kind}_attrs") or {}
        named = (named.get(type_) or {}) if graph.schema.is_hetero else named
        if name in named:
            raise ValueError(
                f"g has an attribute {name!r} of {kind}s, which num_trainers_per_machine = {num_trainers} adds: "
                "rename it"
            )
        return {f"{kind}_attrs": {**named, name: numbers.astype(np.int32)}}

    nodes = [
        {"num_nodes": each.num_nodes, "owners": piece // num_trainers, **attrs("node", each.node_type, piece)}
        for each, piece in zip(graph.nodes, pieces, strict=True)
    ]
    edges = [
        {"edge_index": whole.index, **attrs("edge", each.edge_type, pieces[each.expanded][each.row_ids])}
        for whole, each in zip(given.edges, graph.edges, strict=True)
    ]
    origin = {"pieces": type(fine).__name__, "num_trainers_per_machine": num_trainers, **fine.strategy_arguments()}
    arguments = {**given, **arguments_by_type(graph.schema, nodes, edges)}
    return AssignedPartitioner(out_path, fine.num_parts // num_trainers, origin=origin, **arguments, **written)
