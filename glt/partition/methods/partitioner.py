"""The base of all partitioners: an assignment of nodes becomes a partition directory."""

import inspect
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypedDict, overload

import numpy as np
import torch

from glt._checks import check_flag, check_path, integer, refuse_unknown, warn_no_effect
from glt._progress import progress_bar
from glt._reprs import says, typed
from glt._tracebacks import short_traceback
from glt.data.arrays import from_array, require_data
from glt.data.schema import EdgeType, NodeType
from glt.partition.format.book import Book, owner_dtype
from glt.partition.format.files import BLOCK_BYTES, require_free, require_space, staging
from glt.partition.format.load import load_id_map
from glt.partition.format.manifest import MAX_PARTS, Manifest, installed_version
from glt.partition.format.rows import Array, Rows
from glt.partition.graph_input import GraphInput, first_where, require_in_place
from glt.partition.methods.balance import Balance
from glt.partition.methods.forecast import Forecast, forecast
from glt.partition.methods.hotness import CacheInput, HotnessByType, NodeHotness
from glt.partition.methods.writer import (
    PartitionWriter,
    edge_entry,
    node_entry,
)
from glt.partition.store_dtype import StoreDtype, packed_graph

logger = logging.getLogger(__name__)

PerNodeType = Array | Mapping[NodeType, Array]
PerEdgeType = Array | Mapping[EdgeType, Array]
NamedNodeTables = Mapping[str, Array] | Mapping[NodeType, Mapping[str, Array]]
NamedEdgeTables = Mapping[str, Array] | Mapping[EdgeType, Mapping[str, Array]]
NodeLabelTables = Array | Sequence[Array]
IdsOf = torch.Tensor | dict[NodeType, torch.Tensor] | dict[EdgeType, torch.Tensor]
PartsOf = Array | Sequence[Array]
Hotness = PartsOf | Sequence[Mapping[NodeType, Array]] | Mapping[NodeType, PartsOf]


class GraphArguments(TypedDict, total=False):
    """The arguments that all partitioners take by keyword and hand on to :class:`PartitionerBase`, which explains
    them."""

    edge_assign_strategy: str
    chunk_size: int
    device: torch.device | str | int | None
    node_label: PerNodeType | None
    edge_weight: PerEdgeType | None
    edge_time: PerEdgeType | None
    node_time: PerNodeType | None
    hotness: Hotness | None
    cache_ratio: float | Mapping[NodeType, float]
    cache_memory_budget: int | Mapping[NodeType, int]
    balance_ntypes: bool | NodeLabelTables | Mapping[NodeType, NodeLabelTables] | None
    balance_edges: bool
    relabel: bool
    num_threads: int | None
    sort_memory_bytes: int | None
    node_attrs: NamedNodeTables | None
    edge_attrs: NamedEdgeTables | None
    node_keys: Any
    overwrite: bool
    store_dtype: StoreDtype | None


# The reference's text says "by_des" where its code says "by_dst"; both mean the destination.
_STRATEGIES: Final = {"by_src": "by_src", "by_dst": "by_dst", "by_des": "by_dst"}
SORT_BYTES: Final = 64 << 20  # of each thread: from here on, larger buckets sort no faster
MAX_SORT_BYTES: Final = 1 << 30  # of all threads


@short_traceback
class PartitionerBase(ABC):
    """Splits a graph and its features by node and writes the result to disk.

    To write a partitioner of your own, override :meth:`assign_nodes`, and :meth:`strategy_arguments` if it has
    arguments of its own.

    An edge goes to the partition of its source or of its destination; features, labels and times of nodes follow the
    node, features, weights and times of edges the edge. A heterogeneous graph comes as dicts by node type
    (``num_nodes``, which names all of them, ``node_*``) and by edge type (``edge_index``, which names all of them,
    ``edge_*``); their order is part of the key of random draws. Tables may be given for some types only. A graph that
    :func:`glt.partition.read_graph` has read stands in for ``num_nodes``, ``edge_index`` and all tables.
    ``glt.partition.format.layout`` lists the files.

    Inputs are never copied whole, and may be memory-mapped: they are read front to back. Peak memory beside them is 13
    bytes per node of a type (14 with more than 256 partitions) plus ``sort_memory_bytes``, or plus a chunk of features
    for each thread. Where the edges of a type do not fit into the former, they pass through a scratch file in the file
    system of ``output_dir``, of 12 bytes per edge (16 with more than 2**32 edges), and what a weight has, and 8 with
    times. :meth:`forecast` tells all of it beforehand. A run that is killed leaves a directory that does not load, and
    that the next run with the same ``output_dir`` on this host removes. A graph that no machine holds goes to
    :func:`partition_distributed`.

    Args:
        output_dir: Directory to create: must not exist, or be empty, unless ``overwrite`` says otherwise. It appears in
            one rename when everything is written; until then a directory named ``<output_dir>.tmp-...`` lies beside it.
        num_parts: Number of partitions, 1 to 2**16.
        num_nodes: Number of nodes, 1 to 2**32 - 1; node ids are in ``[0, num_nodes)``. A type among several may have
            none.
        edge_index: Source and destination of each edge, ``[2, num_edges]``, int32 or int64, tensor or array. The id of
            an edge is its position here.
        node_feat, edge_feat: Optional tensors or arrays ``[num_nodes, ...]`` and ``[num_edges, ...]`` of at most four
            dimensions; of any dtype that NumPy has too, bfloat16, float8 (all but e8m0fnu) or complex32.
        edge_assign_strategy: ``"by_src"`` for sampling along out-edges (a row holds the out-edges of a node), or
            ``"by_dst"`` for sampling along in-edges. ``"by_des"``, as the reference tutorial spells it, means
            ``"by_dst"``.
        chunk_size: Feature rows that each thread copies at a time. The result does not depend on it.
        device: Without effect, as a warning says; GLT has it. Partitioning runs on the host. ``torch.device('cpu')``,
            or a cuda device of this machine.
        node_label: Optional tensor or array ``[num_nodes, ...]``.
        edge_weight: Optional tensor or array ``[num_edges]``, finite and at least 0, for weighted sampling. Other
            dtypes than float32 and float64 are copied. Their range within a row: :class:`glt.data.Topology`.
        edge_time: Optional tensor or array ``[num_edges]`` of integers, for temporal sampling by edge time.
        node_time: Optional tensor or array ``[num_nodes]`` of integers, for temporal sampling by node time: edges have
            the time of their neighbour, the end that does not own them. Not together with ``edge_time``.
        balance_ntypes: What nodes to spread evenly over the partitions, as DGL's argument of this name: labels of
            nodes, ``[num_nodes]`` integers or bools, such as classes or a training mask; or a list of several, whose
            combinations are spread. Of a heterogeneous graph, a dict of them by node type; nodes of different types are
            told apart, also of types that the dict leaves out. True: types alone. What was achieved is in the manifest.
        balance_edges: Whether partitions shall own equally many edges too, of each type, and of the nodes of each label
            in ``balance_ntypes``. What was achieved is in the manifest.
        relabel: Give nodes and edges new ids, of which each partition owns a range: first those of partition 0 in their
            old order, then those of partition 1, type by type; an edge goes with its owner. A loaded book is then
            ``num_parts + 1`` numbers, where it is 5 to 8 bytes per node else, and per edge where edges have features.
            All that is sampled from the directory speaks of the new ids, seeds included;
            :meth:`glt.distributed.DistDataset.map_to_original` and :class:`IdMap` lead back.
        num_threads: Threads, 1 to 1024; default: one for each core that this process may use. The result does not
            depend on it.
        sort_memory_bytes: Memory for sorting edges, of all threads together; at least 1 MiB. Default: 64 MiB for each
            thread, 1 GiB at most. More is taken where scratch files exceed 275 GB per 64 MiB of a thread: as the square
            root of their size. The result does not depend on it.
        node_attrs, edge_attrs: Optional dicts from names to tensors or arrays ``[num_nodes, ...]`` and ``[num_edges,
            ...]``, such as ``{"train_mask": mask}``, and TensorFrames of PyTorch Frame; of a heterogeneous graph dicts
            by type of such dicts. Batches have them under these names.
        node_keys: Optional :class:`glt.data.KeyMap` of the nodes' keys, or its folder; of a heterogeneous graph a dict
            by node type. The directory has a copy: see ``ids`` of :class:`glt.distributed.DistDataset`.
        hotness: Optional: how often each partition's trainers read each node, from
            :meth:`glt.sampler.NeighborSampler.sample_prob` with their seeds, or another number of at least 0: a list of
            one array ``[num_nodes]`` per partition, or one array for all. Of a heterogeneous graph a dict of such by
            node type, or a list of dicts. The manifest then says which share of feature reads is expected to be remote.
        cache_ratio: With ``hotness``: each partition keeps copies of the rows of the hottest nodes that it does not
            own, of types with features, up to this share of the nodes of each type, in [0, 1]; or a dict by node type.
        cache_memory_budget: The same in bytes of a partition's copies and their ids, per node type. With both, the
            smaller cache is made; 0 does not limit.
        overwrite: Replace the partitions that are in ``output_dir``, once the new ones are whole; until then both take
            room. Jobs that have them open go on with the old files. A directory with other files in it is refused.
        store_dtype: Store features smaller, in files, caches and messages: ``'float16'``, ``'bfloat16'``, ``'int8'`` or
            ``'int4'``, the latter two with a factor per row. Batches have float32. A dict says it by table (``'x'``,
            ``'edge_attr'`` or a name in ``node_attrs`` or ``edge_attrs``); of a heterogeneous graph by type, for its
            features, or for several tables a dict again. The manifest says by how much rows have changed.

    Not every partitioner can balance; :attr:`balances` says which arguments one takes.

    Raises:
        TypeError, ValueError: If an argument is unusable; names the argument, its value and what was expected.
        KeyError: If a dict names a type that ``num_nodes`` or ``edge_index`` does not.
        IndexError: If a node id is out of range; names the first.
        PartitionError: If ``output_dir`` is not empty, or ``overwrite`` would remove other files than partitions.

    Example:
        >>> class Modulo(glt.partition.PartitionerBase):
        ...     def assign_nodes(self, node_type, num_nodes):
        ...         return np.arange(num_nodes) % self.num_parts
        ...
        >>> graph = glt.testing.ring_graph()
        >>> Modulo("modulo", 2, graph.num_nodes, graph.edge_index).partition()
        Manifest(2 partitions by Modulo, 40 nodes, 80 edges, edge_dir='out', 10 files, 2.7 KB)
    """

    balances: ClassVar[frozenset[str]] = frozenset()
    """Which of ``balance_ntypes`` and ``balance_edges`` :meth:`assign_nodes` heeds; the others are refused."""

    needs_graph: ClassVar[bool] = True
    """Whether :meth:`assign_nodes` looks at edges or tables of ``self.graph``. One that does not, but at ids,
    ``self.balance`` and ``self.hotness`` alone, may say False, and :func:`partition_distributed` takes it."""

    node_arguments: ClassVar[frozenset[str]] = frozenset()
    """Its own arguments that have an element for each node, such as ``owners``: :func:`partition_distributed` takes
    slices of them."""

    assign_node_bytes: int = 9
    """Memory that :meth:`assign_nodes` takes per node of a type, for :meth:`forecast`."""
    hotness_argument: ClassVar[str] = "hotness"
    """What the argument is called that ``hotness`` comes from."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int] | GraphInput,
        edge_index: PerEdgeType | None = None,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        device: torch.device | str | int | None = None,
        node_label: PerNodeType | None = None,
        *,
        edge_weight: PerEdgeType | None = None,
        edge_time: PerEdgeType | None = None,
        node_time: PerNodeType | None = None,
        balance_ntypes: bool | NodeLabelTables | Mapping[NodeType, NodeLabelTables] | None = None,
        balance_edges: bool = False,
        relabel: bool = False,
        num_threads: int | None = None,
        sort_memory_bytes: int | None = None,
        node_attrs: NamedNodeTables | None = None,
        edge_attrs: NamedEdgeTables | None = None,
        node_keys: Any = None,
        hotness: Hotness | None = None,
        cache_ratio: float | Mapping[NodeType, float] = 0.0,
        cache_memory_budget: int | Mapping[NodeType, int] = 0,
        overwrite: bool = False,
        store_dtype: StoreDtype | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            known = {
                name
                for kind in type(self).__mro__
                if issubclass(kind, PartitionerBase)
                for name in inspect.signature(kind).parameters
            }
            refuse_unknown(type(self).__name__, unknown, known - unknown.keys() - {"unknown"})
        check_path("output_dir", output_dir, "a directory to create")
        self.output_dir: Path = Path(os.path.realpath(output_dir))  # a link to it stays one, and leads to the result
        self.num_parts: int = integer("num_parts", num_parts, 1, MAX_PARTS, "the number of partitions")
        self.chunk_size: int = integer("chunk_size", chunk_size, 1, 2**63 - 1, "feature rows copied at a time")
        if num_threads is None:
            num_threads = len(os.sched_getaffinity(0))
        self.num_threads: int = integer("num_threads", num_threads, 1, 1024, "threads that work at the same time")
        if sort_memory_bytes is None:
            sort_memory_bytes = min(SORT_BYTES * self.num_threads, MAX_SORT_BYTES)
        self.sort_memory_bytes: int = integer(
            "sort_memory_bytes", sort_memory_bytes, 1 << 20, 2**63 - 1, "memory for sorting edges, of all threads"
        )
        self.edge_assign_strategy: str = checked_strategy(edge_assign_strategy)
        self.device: torch.device = _host_device("cpu" if device is None else device)
        warn_no_effect("device", device, "partitioning runs on the host, and num_threads says on how many cores")
        check_flag("relabel", relabel)
        self.relabel = relabel
        tables: dict[str, Any] = {
            "node_feat": node_feat,
            "edge_feat": edge_feat,
            "node_label": node_label,
            "edge_weight": edge_weight,
            "edge_time": edge_time,
            "node_time": node_time,
            "node_attrs": node_attrs,
            "edge_attrs": edge_attrs,
            "node_keys": node_keys,
        }
        if not isinstance(num_nodes, GraphInput):
            graph = GraphInput.of(num_nodes, edge_index, **tables)
        elif given := [name for name, value in {"edge_index": edge_index, **tables}.items() if value is not None]:
            raise ValueError(f"num_nodes is a whole graph, and {given[0]} is given too: leave one of them out")
        else:
            graph = num_nodes
        self.graph: GraphInput = packed_graph(graph, store_dtype).expanding(
            "out" if self.edge_assign_strategy == "by_src" else "in"
        )
        self.balance: Balance = Balance.of(self.graph, balance_ntypes, balance_edges)
        for name, asked in (("balance_ntypes", self.balance.nodes is not None), ("balance_edges", balance_edges)):
            if asked and name not in self.balances:
                raise ValueError(
                    f"{name} is given, but {type(self).__name__} does not balance by it: use a partitioner that does, "
                    "such as FennelPartitioner, or leave it out"
                )
        self.caches: CacheInput = CacheInput.of(
            self.graph, self.num_parts, self.hotness_argument, hotness, cache_ratio, cache_memory_budget
        )
        if not isinstance(hotness, HotnessByType):  # of slices, whose tables are elsewhere
            self.caches.require_use(self.graph.nodes)
        check_flag("overwrite", overwrite)
        self.overwrite = overwrite
        require_free(self.output_dir, overwrite=overwrite)

    @property
    def thread_bytes(self) -> int:
        """Memory of each thread for sorting edges."""
        return self.sort_memory_bytes // self.num_threads

    @property
    def hotness(self) -> tuple[NodeHotness | None, ...]:
        """By node type, numbers of all nodes for each partition; None where none were given."""
        return self.caches.hotness

    @abstractmethod
    def assign_nodes(self, node_type: int, num_nodes: int) -> Array:
        """Returns the partition of each node of a type: ``[num_nodes]`` integers in ``[0, num_parts)``.

        Called by :meth:`partition` once for each node type, in order. ``self.graph`` has the checked input,
        ``self.balance`` the checked balance asked for.

        Args:
            node_type: Position of the type in ``self.graph.schema.node_types``; 0 for a homogeneous graph.
            num_nodes: Number of its nodes.
        """

    def strategy_arguments(self) -> dict[str, Any]:
        """Returns the arguments that determine :meth:`assign_nodes`, for the manifest; must be JSON."""
        return {}

    @short_traceback
    def forecast(self) -> Forecast:
        """Returns what :meth:`partition` will take: memory, disk and time."""
        return self.forecast_of(self.graph)

    def forecast_of(self, graph: GraphInput) -> Forecast:
        """Returns what partitioning a graph takes, of which only the sizes are looked at."""
        sizes = (self.num_parts, self.num_threads, self.thread_bytes, self.chunk_size, self.assign_node_bytes)
        expected = forecast(graph, *sizes, self.relabel)
        return expected.with_files(*self.caches.most_files(self.num_parts, graph.nodes))

    @overload
    def partition(self, progress: bool | None = None, return_mapping: Literal[False] = False) -> Manifest: ...

    @overload
    def partition(
        self, progress: bool | None = None, *, return_mapping: Literal[True]
    ) -> tuple[Manifest, IdsOf, IdsOf]: ...

    @short_traceback
    def partition(
        self, progress: bool | None = None, return_mapping: bool = False
    ) -> Manifest | tuple[Manifest, IdsOf, IdsOf]:
        """Writes the partition directory.

        Args:
            progress: Whether to draw a tqdm bar of bytes (edges read, scratch files and result written) once it has
                taken two seconds. Default: if stderr is a terminal.
            return_mapping: With ``relabel``, whether to return the original ids too, as DGL's ``partition_graph`` does.

        Returns:
            The manifest: counts, edge cut, balance, checksums and the run id. Its summary is logged at level INFO, the
            forecast before the work begins.
            With ``return_mapping`` also the original id of each new node id, ``[num_nodes]``, and of each new edge id,
            ``[num_edges]``: int32 or int64 tensors mapped from the directory, dicts by type where the graph has types.

        Raises:
            PartitionError: If ``output_dir`` is not free, or its file system lacks the space that is forecast.
            TypeError, ValueError: If :meth:`assign_nodes` returned no owner of each node, a partition has more than
                2**32 - 1 rows of edge features, or a mapping is asked for where nothing is relabelled.
            OSError: If it cannot be written, for example because the disk is full. Nothing is left behind.
            RuntimeError: If torch has moved a tensor since the constructor, which sending it to another process does.
        """
        self.require_relabel(return_mapping)
        self._require_in_place()
        strategy_arguments = json.loads(json.dumps(self.strategy_arguments()))  # as the manifest will read it
        with staging(self.output_dir, overwrite=self.overwrite) as root:
            expected = self.forecast()
            logger.info("%s will take %s, in %s", type(self).__name__, expected.summary(), self.output_dir)
            require_space(self.output_dir, expected.disk_bytes)  # now that what dead runs left is gone
            with progress_bar("partition", expected.work_bytes, progress) as advance:
                books = self.books()
                writer = PartitionWriter(root, range(self.num_parts), advance, **self.writer_options)
                manifest = self.write(writer, self.graph, books, strategy_arguments)
            manifest.write(root)  # last: a directory without it does not load
        logger.info("%s, in %s", manifest.summary(), self.output_dir)
        return (manifest, *self.original_ids()) if return_mapping else manifest

    def require_relabel(self, return_mapping: bool) -> None:
        """Raises ValueError if a mapping is asked for where nothing is relabelled."""
        if return_mapping and not self.relabel:
            raise ValueError("return_mapping = True: expected relabel=True too; ids stay those of the input without it")

    def original_ids(self) -> tuple[IdsOf, IdsOf]:
        """Returns the original id of each new node id and of each new edge id, mapped from the finished directory."""
        schema = self.graph.schema
        of_nodes, of_edges = (
            [from_array(load_id_map(self.output_dir, type_, verify=False).original) for type_ in types]
            for types in (schema.node_types, schema.edge_types)
        )
        if not schema.is_hetero:
            return of_nodes[0], of_edges[0]
        return schema.by_node_type(of_nodes), schema.by_edge_type(of_edges)

    def books(self) -> list[Book]:
        """Returns the book of each node type, from :meth:`assign_nodes`."""
        self._require_in_place()
        books = []
        for at, nodes in enumerate(self.graph.nodes):
            of_type = f" of node type {nodes.node_type!r}" if self.graph.schema.is_hetero else ""
            name = f"what {type(self).__name__}.assign_nodes returned{of_type}"
            owner = checked_owners(name, self.assign_nodes(at, nodes.num_nodes), nodes.num_nodes, self.num_parts)
            books.append(Book.of(owner, self.num_parts))
        return books

    def given_arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the arrays that :meth:`partition` will read, and the arguments that they came as."""
        for name, table in self.graph.tables():
            yield name, table.given if isinstance(table, Rows) else table
        for hotness in self.hotness:
            for array in () if hotness is None else hotness.arrays:
                yield self.hotness_argument, array

    def _require_in_place(self) -> None:
        for name, array in self.given_arrays():
            require_in_place(name, array)

    @property
    def writer_options(self) -> dict[str, Any]:
        """Arguments of a :class:`PartitionWriter`."""
        return {name: getattr(self, name) for name in ("chunk_size", "num_threads", "thread_bytes", "relabel")}

    def write(
        self, writer: PartitionWriter, graph: GraphInput, books: Sequence[Book], strategy_arguments: dict[str, Any]
    ) -> Manifest:
        """Writes ``graph``, which ``writer`` may have a slice of, and returns the manifest."""
        node_types, edge_types = [], []
        for at, (nodes, book) in enumerate(zip(graph.nodes, books, strict=True)):
            writer.write_nodes(at, nodes, book)
            keys = self.graph.nodes[at].keys
            if keys is not None:
                writer.write_keys(nodes.node_type, keys, book)
            plan = self.caches.plan(at, nodes, book)
            if plan is not None:
                writer.write_caches(at, nodes, book, plan)
            reads = None if plan is None else plan.forecast
            columns = None if keys is None else keys.columns
            labels = self.balance.entries(at, book)
            entry = node_entry(nodes, book, labels, reads, self.relabel, columns, writer.table_entry)
            node_types.append(entry)
        for at, edges in enumerate(graph.edges):
            counts = writer.write_edges(at, edges, books)
            of_labels = self.balance.edge_entries(edges, books[edges.expanded])
            neighbors = graph.nodes[edges.neighbor]
            edge_types.append(edge_entry(edges, neighbors, *counts, of_labels, self.relabel, writer.table_entry))
        return Manifest(
            num_parts=self.num_parts,
            edge_dir=graph.edge_dir,
            strategy=type(self).__name__,
            arguments=strategy_arguments,
            checksum_block_bytes=BLOCK_BYTES,
            time_level=graph.time_level,
            is_hetero=graph.schema.is_hetero,
            node_types=tuple(node_types),
            edge_types=tuple(edge_types),
            files=dict(sorted(writer.entries().items())),
            glt_version=installed_version(),
            frames=graph.schema.frames,
        ).signed()

    @says
    def __repr__(self) -> str:
        nodes = typed(sum(each.num_nodes for each in self.graph.nodes), "nodes", len(self.graph.schema.node_types))
        edges = typed(sum(each.num_edges for each in self.graph.edges), "edges", len(self.graph.schema.edge_types))
        return f"{str(self.output_dir)!r}, {self.num_parts} partitions of {nodes}, {edges}, {self.edge_assign_strategy}"


def checked_strategy(value: object) -> str:
    """Returns ``"by_src"`` or ``"by_dst"``."""
    if not isinstance(value, str) or value not in _STRATEGIES:
        raise ValueError(
            f"edge_assign_strategy = {value!r}: expected 'by_src' (for sampling out-edges, edge_dir 'out') or 'by_dst' "
            "(for sampling in-edges, edge_dir 'in')"
        )
    return _STRATEGIES[value]


def _host_device(value: object) -> torch.device:
    try:
        device = torch.device("cuda", value) if type(value) is int else torch.device(value)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device = {value!r}: expected torch.device('cpu') or a cuda device ({error})") from error
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus):
        return device
    raise ValueError(
        f"device = {device}: expected torch.device('cpu') or one of the {num_gpus} cuda devices of this machine; "
        "partitioning runs on the host and its result never depends on the device, so pass torch.device('cpu')"
    )


def checked_owners(name: str, value: object, num_nodes: int, num_parts: int) -> np.ndarray:
    """Returns the partition of each node ``[num_nodes]``, from a tensor or array, in the dtype of a book; a TypeError
    or ValueError names ``name`` and the first owner that does not fit.
    """
    require_data(value, name)
    owner = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    if not isinstance(owner, np.ndarray) or owner.dtype.kind not in "iu":
        got = getattr(owner, "dtype", type(owner).__name__)
        raise TypeError(f"{name} is {got}: expected a tensor or array of integers, the partition of each node")
    if owner.shape != (num_nodes,):
        raise ValueError(f"{name} has shape {list(owner.shape)}: expected one owner per node, [{num_nodes}]")
    bad = first_where(owner, lambda piece: (piece < 0) | (piece >= num_parts))
    if bad is not None:
        raise ValueError(f"{name}[{bad}] = {owner[bad]}: expected partitions 0 to {num_parts - 1} ({num_parts = })")
    return np.ascontiguousarray(owner, owner_dtype(num_parts))
