"""One batch at a time, sampled by the kernels of a GPU: in device memory, or in place in pinned host memory.

The host asks for all kernels of a batch at once, on torch's current stream, and waits once, for the counts. If the
second batch in a row has the shapes and options of the one before, its launches become a CUDA graph, and all batches
like it are one launch: what differs (seeds, times, keys, excluded edges) is in memory that stays where it is. On the
device ``cpu``, for tests, the bodies of the same kernels run on the host, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glt import _core


@dataclass(frozen=True)
class PlacedRows:
    """Rows of one edge type in memory that kernels read: the native view, and the tensors that it points into."""

    rows: _core.DeviceRows
    tensors: Sequence[Tensor | None] = field(repr=False)

    @classmethod
    def of(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        num_neighbor_nodes: int,
        weights: tuple[Tensor, Tensor] | None = None,
        time: Tensor | None = None,
        first_edge_id: int = 0,
        hot: tuple[Tensor, Tensor, Tensor | None] | None = None,
    ) -> PlacedRows:
        """Wraps arrays of a graph that was validated on the host, with a row for every node: columns ``[E]`` as
        :class:`~glt.data.topology.Topology` has them, for temporal sampling those by time. ``hot`` are the shifts,
        indices and edge ids of :class:`~glt.data.device_topology.HotRows`. Raises TypeError, naming the array, if a
        dtype or layout does not fit."""
        weight_sum, weight_guide = (None, None) if weights is None else weights
        hot_shift, hot_indices, hot_edge_ids = (None, None, None) if hot is None else hot
        narrow_or_wide = (torch.int32, torch.int64)
        arrays = {
            "indptr": (indptr, (torch.int64,)),
            "indices": (indices, narrow_or_wide),
            "edge_ids": (edge_ids, narrow_or_wide),
            "weight_sum": (weight_sum, (torch.uint64,)),
            "weight_guide": (weight_guide, (torch.uint32,)),
            "time": (time, (torch.int64,)),
            "hot_shift": (hot_shift, (torch.int64,)),
            "hot_indices": (hot_indices, (indices.dtype,)),
            "hot_edge_ids": (hot_edge_ids, narrow_or_wide if edge_ids is None else (edge_ids.dtype,)),
        }
        for name, (array, dtypes) in arrays.items():
            if array is not None and (array.dtype not in dtypes or array.dim() != 1 or not array.is_contiguous()):
                raise TypeError(
                    f"{name} is {array.dtype} of shape {list(array.shape)}: expected a contiguous array of one "
                    f"dimension, {' or '.join(str(d) for d in dtypes)}"
                )
        rows = _core.DeviceRows(
            **{name: 0 if array is None else array.data_ptr() for name, (array, _) in arrays.items()},
            wide_indices=indices.dtype == torch.int64,
            wide_edge_ids=edge_ids is not None and edge_ids.dtype == torch.int64,
            num_nodes=len(indptr) - 1,
            num_neighbor_nodes=num_neighbor_nodes,
            num_edges=len(indices),
            first_edge_id=first_edge_id,
        )
        return cls(rows, [array for array, _ in arrays.values()])


Seeds = Sequence[tuple[int, Tensor]]
Nodes = tuple[Tensor, Tensor | None]
Edges = tuple[Tensor, Tensor, Tensor | None]


def current_stream(device: torch.device) -> int:
    """The handle of torch's current stream; 0 for the host."""
    return 0 if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream


def device_index(device: torch.device) -> int:
    """The number of a GPU, for native objects; -1 for the host."""
    return -1 if device.type == "cpu" else torch.cuda.current_device() if device.index is None else device.index


class DeviceBatch:
    """The native batch (csrc/cuda/device_batch.h) with memory of its own, kept from batch to batch. Use one on one
    stream: results are copied out of that memory, which the next batch overwrites. ``options`` of
    ``_core.DeviceBatch``: its sizes, ``replays=False`` to make no graph, and for the host ``order`` and
    ``num_threads``."""

    def __init__(
        self, num_nodes: Sequence[int], ends: Sequence[tuple[int, int]], device: torch.device, **options: Any
    ) -> None:
        self.device = device
        # Destroyed first: it waits for kernels under way, which use what is below.
        self._native = _core.DeviceBatch(list(num_nodes), list(ends), device=device_index(device), **options)
        self._num_types = len(num_nodes), len(ends)
        self._workspace = torch.empty(0, dtype=torch.uint8, device=device)
        self._tables = [torch.empty(0, dtype=torch.int32, device=device) for _ in num_nodes]
        self._slots: dict[int | str, Tensor] = {}  # where kernels find what callers give: the addresses stay
        self._graphs: Sequence[PlacedRows | None] = ()
        self._inputs: list[Any] = []  # kept, as graphs, until the kernels that read them are done

    def launch(
        self,
        graphs: Sequence[PlacedRows | None],
        seeds: Seeds,
        num_neighbors: Sequence[Sequence[int]],
        *,
        batch_key: int,
        seed_time: Tensor | None = None,
        exclusions: Sequence[_core.Exclusions | None] | None = None,
        trees: Tensor | None = None,
        **options: Any,
    ) -> None:
        """Starts a batch on the current stream and returns; :meth:`finish` ends it.

        Args:
            graphs: Rows of each edge type, or None.
            seeds: ``(node type, ids [n])``, int64.
            num_neighbors: ``[edge types][hops]``.
            seed_time: Time of each tree ``[trees]``, int64.
            exclusions: By edge type, edges that are not sampled.
            trees: Of a disjoint batch with seeds of one type, the tree of each ``[n]``, uint32. Default: one each.
            options: ``replace``, ``last``, ``with_edge``, ``disjoint``, ``first_hop``, ``time_window``,
                ``half_life`` and ``shared_key``.
        """
        on_device = [(t, self._in_slot(at, s)) for at, (t, s) in enumerate(seeds)]
        time = None if seed_time is None else self._in_slot("seed_time", seed_time)
        tree = 0 if trees is None else self._in_slot("trees", trees).data_ptr()
        self._graphs, self._inputs = graphs, [seeds, seed_time, trees]
        self._arguments = (
            [(t, s.data_ptr(), s.numel(), tree) for t, s in on_device],
            [list(counts) for counts in num_neighbors],
        )
        self._options = options | {"batch_key": batch_key}
        if time is not None:
            self._options |= {"seed_time": time.data_ptr(), "num_times": time.numel()}
        if exclusions is not None:
            self._options["exclusions"] = list(exclusions)
        self._launch()

    def _in_slot(self, name: int | str, given: Tensor) -> Tensor:
        """Copies ids, times or trees to where those of batches before were, in the order of the stream."""
        slot, n = self._slots.get(name), given.numel()  # not len, which takes a microsecond
        if slot is None or slot.numel() < n:
            room = max(256, 1 << (n - 1).bit_length()) if n else 256
            slot = self._slots[name] = torch.empty(room, dtype=given.dtype, device=self.device)
        return slot[:n].copy_(given, non_blocking=True)

    def _launch(self) -> None:
        rows = [None if each is None else each.rows for each in self._graphs]
        workspace_bytes, table_words = self._native.prepare(rows, *self._arguments, **self._options)
        if self._workspace.numel() < workspace_bytes:
            self._workspace = torch.empty(0, dtype=torch.uint8, device=self.device)  # before asking for more
            self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=self.device)
        for t, words in enumerate(table_words):
            if self._tables[t].numel() < words:  # smaller ones take part of it: addresses stay
                self._tables[t] = torch.empty(words, dtype=torch.int32, device=self.device)
        tables = [t.data_ptr() for t in self._tables]
        self._native.launch(self._workspace.data_ptr(), tables, current_stream(self.device))

    def finish(self, placed: Callable[[], Sequence[PlacedRows | None]] | None = None) -> None:
        """Waits for the batch; what had too little room is made anew, which gives the same. ``placed`` returns the
        graphs as they are placed now: if torch has moved them since the launch, the batch is made anew too. Raises
        IndexError, naming the first, if a seed is outside the graph; RuntimeError if CUDA reports an error."""
        while not self._is_made(placed):
            self._launch()

    def _is_made(self, placed: Callable[[], Sequence[PlacedRows | None]] | None) -> bool:
        try:
            is_made = self._native.wait()
        except IndexError:  # not kept: its traceback holds this frame, and so the batch with its memory
            if self._have_moved(placed):
                return False
            raise
        return not self._have_moved(placed) and is_made

    def _have_moved(self, placed: Callable[[], Sequence[PlacedRows | None]] | None) -> bool:
        launched = self._graphs
        if placed is not None:
            self._graphs = placed()
        return self._graphs is not launched

    def induce(self) -> None:
        """Replaces the edges of a finished batch by all edges among its nodes; waits for their number. Raises
        IndexError if a neighbour is outside the graph, whose columns are damaged then."""
        workspace = torch.empty(self._native.induced_bytes(), dtype=torch.uint8, device=self.device)
        self._native.induce(workspace.data_ptr())
        self._inputs.append(workspace)

    def nodes(self, node_type: int, disjoint: bool) -> Nodes:
        """Returns ids, and trees where disjoint, ``[N]`` each, int64, on the device."""
        found = self._room_for_nodes(node_type, disjoint)
        self.copy_out({node_type: found}, {})
        return found

    def edges(self, edge_type: int, with_edge: bool) -> Edges:
        """Returns local ids of neighbours and of expanded nodes, and edge ids, ``[E]`` each, int64, on the device."""
        found = self._room_for_edges(edge_type, with_edge)
        self.copy_out({}, {edge_type: found})
        return found

    def results(self, disjoint: bool, with_edge: bool) -> tuple[list[Nodes], list[Edges]]:
        """Returns :meth:`nodes` and :meth:`edges` of all types, in as few launches as there can be."""
        num_node_types, num_edge_types = self._num_types
        nodes = [self._room_for_nodes(t, disjoint) for t in range(num_node_types)]
        edges = [self._room_for_edges(r, with_edge) for r in range(num_edge_types)]
        self.copy_out(dict(enumerate(nodes)), dict(enumerate(edges)))
        return nodes, edges

    def copy_out(self, nodes: Mapping[int, Nodes], edges: Mapping[int, Edges]) -> None:
        """As :meth:`results`, of some types and into contiguous int64 tensors of the device; None: not wanted."""
        num_types, num_edge_types = self._num_types
        nothing = None, None, None
        self._native.copy_out(
            [
                (address_of(node), address_of(tree))
                for node, tree in (nodes.get(t, nothing[:2]) for t in range(num_types))
            ],
            [
                (address_of(row), address_of(col), address_of(edge))
                for row, col, edge in (edges.get(r, nothing) for r in range(num_edge_types))
            ],
        )

    def _room_for_nodes(self, node_type: int, disjoint: bool) -> Nodes:
        node = torch.empty(self.num_nodes(node_type), dtype=torch.int64, device=self.device)
        return node, torch.empty_like(node) if disjoint else None

    def _room_for_edges(self, edge_type: int, with_edge: bool) -> Edges:
        # Rows of one tensor: edge_index, without another copy.
        ends = torch.empty(2, self.num_edges(edge_type), dtype=torch.int64, device=self.device)
        row, col = ends.unbind()
        return row, col, torch.empty_like(row) if with_edge else None

    def num_nodes(self, node_type: int) -> int:
        return self._native.num_nodes(node_type)

    def num_edges(self, edge_type: int) -> int:
        return self._native.num_edges(edge_type)

    @property
    def num_replays(self) -> int:
        """Batches that were one launch of a graph."""
        return self._native.num_replays

    def num_sampled_nodes(self, node_type: int) -> list[int]:
        return self._native.num_sampled_nodes(node_type)

    def num_sampled_edges(self, edge_type: int) -> list[int]:
        return self._native.num_sampled_edges(edge_type)

    def end(self) -> None:
        """Lets go of the inputs. Torch reuses their memory in the order of the stream, so after the kernels."""
        self._graphs, self._inputs = (), []


def address_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
