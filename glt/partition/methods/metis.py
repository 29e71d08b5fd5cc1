"""Assignment of nodes by METIS, whose own functions are called in the library that pymetis brings.

pymetis's ``part_graph`` has no argument for several constraints, which balance by labels and edges needs, and copies
lists; METIS's C functions (Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular
graphs", SIAM J. Sci. Comput. 20(1), 1998; https://github.com/KarypisLab/METIS, manual of version 5) have both.
"""

import ctypes
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import Unpack  # which torch needs too

from glt import _core
from glt._checks import available_memory, integer
from glt._tracebacks import short_traceback
from glt.data.schema import NodeType
from glt.partition.format.book import owner_dtype
from glt.partition.graph_input import GraphInput
from glt.partition.methods.edge_cut import Adjacency, AdjacencyPartitioner
from glt.partition.methods.partitioner import GraphArguments, PerEdgeType, PerNodeType

logger = logging.getLogger(__name__)

NUM_OPTIONS: Final = 40  # METIS_NOPTIONS
OK: Final = 1
ERRORS: Final = {
    -2: "it calls its input wrong (METIS_ERROR_INPUT)",
    -3: "it had not enough memory (METIS_ERROR_MEMORY); FennelPartitioner needs less",
    -4: "it was interrupted, or failed inside (METIS_ERROR)",
}


@dataclass(frozen=True)
class Metis:
    """METIS's library; ``id_dtype`` is that of its integers, int32 or int64."""

    library: ctypes.CDLL
    pymetis: ModuleType
    id_dtype: np.dtype

    @classmethod
    def load(cls) -> "Metis":
        """Raises ImportError, saying what to install, where there is no pymetis or none that exports METIS."""
        try:
            import pymetis
            from pymetis import _internal
        except ImportError as error:
            raise ImportError(
                f"MetisPartitioner needs pymetis, which cannot be imported ({error}): install it with "
                "`pip install pymetis`, or use FennelPartitioner, which needs nothing"
            ) from error
        library = ctypes.CDLL(_internal.__file__)
        if not hasattr(library, "METIS_PartGraphRecursive"):
            raise ImportError(
                f"{_internal.__file__} does not export METIS's functions: install pymetis 2025.2 from a wheel of PyPI "
                "(`pip install --only-binary :all: pymetis`), or use FennelPartitioner"
            )
        return cls(library, pymetis, np.dtype(pymetis.zero_copy_dtype()))


@contextmanager
def _printing_to_the_log() -> Iterator[None]:
    """What C code prints goes to the log meanwhile: METIS says there that it makes partitions empty, which is no
    failure."""
    c = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(c, "stdout")
    c.open_memstream.restype = ctypes.c_void_p
    text, size, before = ctypes.c_char_p(), ctypes.c_size_t(), stdout.value
    stream = c.open_memstream(ctypes.byref(text), ctypes.byref(size))
    if not stream:  # no memory for it: METIS may print
        yield
        return
    stdout.value = stream
    try:
        yield
    finally:
        stdout.value = before
        c.fclose(ctypes.c_void_p(stream))  # from here on text is whole
        for line in dict.fromkeys((text.value or b"").decode(errors="replace").splitlines()):
            logger.debug("METIS says: %s", line.strip(" \t*"))
        c.free(text)


def _pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


# Assignment of nodes by METIS: few edges cut, in memory.


# What METIS took at its peak, its input included: measured on R-MAT and on random graphs of degrees 4 and 30.
NODE_BYTES: Final = 100
NEIGHBOR_BYTES: Final = {"cut": 130, "vol": 155}
CONSTRAINT_BYTES: Final = 16  # per node and column of weights


@short_traceback
class MetisPartitioner(AdjacencyPartitioner):
    """Cuts few edges by METIS, through pymetis (``pip install pymetis``).

    METIS sees one graph without types and directions: parallel edges are one edge whose weight is their number, self
    loops are left out. It minimises the number of edges between partitions, or with ``objtype`` ``"vol"`` the number of
    (node, other partition that it has a neighbour in). Nodes that METIS leaves above the bounds of ``imbalance`` are
    moved afterwards, hubs last. With ``balance_edges``, on graphs with hubs, a partition may own more edges than
    :class:`FennelPartitioner` would leave it.

    METIS works in memory: it takes about 100 bytes per node and 130 per neighbour (155 for ``"vol"``), of which there
    are two for each pair of connected nodes, and 16 bytes per node for each label, for all together and for each edge
    type and label where edges are balanced (:meth:`assign_bytes`). With less memory, or more than 2**31 - 1 nodes or
    neighbours where pymetis was built with 32 bits, the graph is refused before METIS starts; use
    :class:`FennelPartitioner`.

    Args:
        random_seed: METIS's seed, in ``[0, 2**31)``. The same seed and graph give the same directory, byte for byte.
        objtype: ``"cut"`` or ``"vol"``, METIS's objective, as DGL's argument of this name.
        memory_budget_bytes: What METIS may take; None: what this machine, or the container, has available.

    The other arguments are those of :class:`AdjacencyPartitioner`, as are the errors. Beside them:

    Raises:
        ImportError: If pymetis cannot be imported; says what to install.
        MemoryError: From :meth:`partition`, if the forecast exceeds the memory; names both.
        ValueError: From :meth:`partition`, if METIS's integers cannot hold the graph.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> manifest = glt.partition.MetisPartitioner("metis", 2, graph.num_nodes, graph.edge_index).partition()
        >>> manifest.edge_cut_ratio < 0.2
        True
    """

    assign_edge_ns: ClassVar[float] = 4000

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
        objtype: str = "cut",
        memory_budget_bytes: int | None = None,
        imbalance: float = 0.05,
        **graph: Unpack[GraphArguments],
    ) -> None:
        self.random_seed: int = integer("random_seed", random_seed, 0, 2**31 - 1, "METIS's seed")
        if objtype not in ("cut", "vol"):
            raise ValueError(
                f"objtype = {objtype!r}: expected 'cut' (few edges between partitions) or 'vol' (few nodes needed by "
                "other partitions)"
            )
        self.objtype = objtype
        if memory_budget_bytes is not None:
            memory_budget_bytes = integer("memory_budget_bytes", memory_budget_bytes, 0, 2**63 - 1, "bytes")
        self.memory_budget_bytes = memory_budget_bytes
        super().__init__(
            output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, imbalance=imbalance, **graph
        )
        self._metis = Metis.load()

    def assign_all(self, adjacency: Adjacency, label: np.ndarray | None, label_cap: np.ndarray) -> np.ndarray:
        num_nodes = adjacency.num_nodes
        if num_nodes <= self.num_parts:  # METIS wants a node for each partition
            return np.arange(num_nodes).astype(owner_dtype(self.num_parts))
        indptr = np.empty(num_nodes + 1, np.int64)
        _core.sort_rows(adjacency.indptr, adjacency.indices, indptr)
        self._require_fits(num_nodes, int(indptr[-1]), adjacency.indices.size)
        owned = self.owned_edges()
        node_weight = self._node_weight(num_nodes, label, label_cap.size, owned)
        neighbor, edge_weight = np.empty(indptr[-1], np.int64), np.empty(indptr[-1], np.int64)
        _core.merge_rows(adjacency.indptr, adjacency.indices, indptr, neighbor, edge_weight)
        dtype = self._metis.id_dtype
        rows = [each.astype(dtype, copy=False) for each in (indptr, neighbor, edge_weight)]
        owner = self.part_graph(rows, node_weight).astype(owner_dtype(self.num_parts))
        num_moved = self.keep_caps(adjacency, label, label_cap, owned, self.random_seed, owner)
        logger.debug("METIS left %d nodes in partitions that were too large", num_moved)
        return owner

    def part_graph(self, rows: Sequence[np.ndarray], node_weight: np.ndarray | None) -> np.ndarray:
        """Returns the partition of each node, ``[num_nodes]``; raises RuntimeError saying why if METIS fails.

        ``rows`` are ``indptr``, the neighbours of each node, each once and without the node itself, and their positive
        weights, all of METIS's integers, like ``node_weight [num_nodes, constraints]``, whose columns are balanced
        (None: nodes count alike). ``"cut"`` is minimised by recursive bisection, ``"vol"`` by k-way refinement, which
        alone knows it. ``imbalance`` is kept to a thousandth.
        """
        indptr, neighbor, edge_weight = rows
        library, dtype = self._metis.library, self._metis.id_dtype
        keys, types = self._metis.pymetis.OptionKey, self._metis.pymetis.ObjType
        options = np.full(NUM_OPTIONS, -1, dtype)  # -1: METIS's default
        options[int(keys.SEED)] = self.random_seed
        options[int(keys.UFACTOR)] = max(1, round(self.imbalance * 1000))
        options[int(keys.OBJTYPE)] = int(types.VOL if self.objtype == "vol" else types.CUT)
        num_constraints = 1 if node_weight is None else node_weight.shape[1]
        counts = np.array([indptr.size - 1, num_constraints, self.num_parts, 0], dtype)
        owner = np.empty(indptr.size - 1, dtype)
        run = library.METIS_PartGraphKway if self.objtype == "vol" else library.METIS_PartGraphRecursive
        run.restype = ctypes.c_int
        graph = (counts[0:1], counts[1:2], indptr, neighbor, node_weight, None, edge_weight)
        with _printing_to_the_log():
            status = run(*map(_pointer, (*graph, counts[2:3], None, None, options, counts[3:4], owner)))
        if status != OK:
            raise RuntimeError(
                f"METIS could not partition {owner.size} nodes with {neighbor.size} neighbours into {self.num_parts}: "
                f"{ERRORS.get(status, f'status {status}')}"
            )
        return owner

    def assign_bytes(self, num_nodes: int, num_neighbors: int) -> int:
        """Returns about how much memory METIS takes at its peak, its input included."""
        num_constraints = 0
        if self.balance.edges or self.balance.nodes is not None:
            labels = None if self.balance.nodes is None else [len(nodes.labels) for nodes in self.balance.nodes]
            num_labels = 1 if labels is None else sum(labels)
            kinds = self.edge_kinds
            num_groups = sum(len(each) * (1 if labels is None else labels[t]) for t, each in enumerate(kinds))
            num_constraints = num_labels + (num_labels > 1) + num_groups
        per_node = NODE_BYTES + CONSTRAINT_BYTES * num_constraints
        return per_node * num_nodes + NEIGHBOR_BYTES[self.objtype] * num_neighbors

    def strategy_arguments(self) -> dict[str, Any]:
        return super().strategy_arguments() | {"random_seed": self.random_seed, "objtype": self.objtype}

    def _node_weight(
        self, num_nodes: int, label: np.ndarray | None, num_labels: int, owned: Sequence[np.ndarray]
    ) -> np.ndarray | None:
        if label is None and not owned:
            return None
        with_all = num_labels > 1  # rare labels alone would let all nodes share a partition
        has_edges = self.edge_sums(owned, label, num_labels) > 0
        weight = np.zeros((num_nodes, num_labels + with_all + np.count_nonzero(has_edges)), self._metis.id_dtype)
        weight[np.arange(num_nodes), 0 if label is None else label] = 1
        if with_all:
            weight[:, num_labels] = 1
        # A column for each kind of edges, of the nodes of each label that have some.
        column = (num_labels + with_all - 1 + np.cumsum(has_edges)).reshape(has_edges.shape)
        kind = begin = 0
        for counts in owned:
            of_type = np.arange(begin, begin + len(counts))
            for of_kind in counts.T:
                some = of_type[of_kind > 0]
                weight[some, column[kind, 0 if label is None else label[some]]] = of_kind[of_kind > 0]
                kind += 1
            begin += len(counts)
        return weight

    def _require_fits(self, num_nodes: int, num_neighbors: int, total_weight: int) -> None:
        largest = np.iinfo(self._metis.id_dtype).max
        if max(num_nodes, num_neighbors, total_weight) > largest:
            raise ValueError(
                f"the graph has {num_nodes} nodes and {total_weight} neighbours, edges counted from both ends, but "
                f"this pymetis counts to {largest}: install one built with 64 bits (the wheels of PyPI are), or use "
                "FennelPartitioner"
            )
        forecast = self.assign_bytes(num_nodes, num_neighbors)
        budget, limit = self.memory_budget_bytes, "memory_budget_bytes"
        if budget is None:
            budget, limit = available_memory()
        logger.info("METIS is expected to take %.2f GiB of memory for %d neighbours", forecast / 2**30, num_neighbors)
        if forecast > budget:
            raise MemoryError(
                f"METIS is expected to take {forecast} bytes for {num_nodes} nodes with {num_neighbors} neighbours, "
                f"but there are {budget} ({limit}): use FennelPartitioner, or pass memory_budget_bytes if you know "
                "better"
            )
