"""A sampler's batches, made by the kernels of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.device import Accelerator, accelerator_of
from glt.data.topology import Topology
from glt.sampler import negatives
from glt.sampler.config import SamplingConfig
from glt.sampler.device_batch import DeviceBatch, PlacedRows, Seeds, address_of, current_stream, device_index
from glt.sampler.graph import SampledGraph, hop_counts, typed_output
from glt.sampler.negatives import Endpoint, NegativeRounds

if TYPE_CHECKING:
    from glt.data.device_topology import DeviceTopology
    from glt.sampler.graph import Finish, Output
    from glt.sampler.hotness import EdgeFacts


# Hotness passed along edges by a kernel: what ``_core.add_doubt`` adds up on the CPU.
#
# On the device ``cpu``, where the host runs the kernel, the sums are the CPU's, bit for bit; by weight for rows of up
# to 256 edges, beyond which terms are added in another order. A GPU's logarithms and exponentials differ in their last
# bits from the host's and multiplications are fused with additions: probabilities agree to 1e-6.


class DeviceHotness:
    """One sampler's edges, for :func:`glt.sampler.hotness.compute_hotness`: rows, ends and facts by edge type.
    ``options``, for tests, are those of ``_core.DeviceHotness``."""

    def __init__(
        self,
        device: torch.device,
        placed: Sequence[PlacedRows],
        ends: Sequence[tuple[int, int]],
        facts: Sequence[EdgeFacts],
        **options: Any,
    ) -> None:
        self.device, self.placed, self.ends, self.facts = device, placed, ends, facts
        self._native = _core.DeviceHotness(device=device_index(device), **options)
        self._lock = threading.Lock()  # around the native object, which is for one thread at a time
        self._bits = [(self._to_device(fact.repeated), self._to_device(fact.mutual)) for fact in facts]

    def doubts(self, config: SamplingConfig, hop: int, found: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Adds up what all edges contribute at one hop, of at most ``_core.most_hotness_hops``; waits for it. ``found``
        are probabilities of being found by each hop, by node type ``[num_nodes, num_columns]`` float32. Returns by node
        type ``[num_nodes]`` int64, in units of ``_core.doubt_unit``."""
        tables = [self._to_device(table) for table in found]
        sums = [torch.zeros(len(table), dtype=torch.int64, device=self.device) for table in found]
        counts = [list(map(int, each)) for each in config.num_neighbors]
        for r, (expanded, neighbor) in enumerate(self.ends):
            repeated, mutual = self._bits[r]
            way_back: dict[str, Any] = {}
            if mutual is not None:
                back = self.facts[r].back
                way_back = {"mutual": mutual.data_ptr(), "back": self.placed[back].rows, "back_neighbors": counts[back]}
            with self._lock:
                self._native.add_doubt(
                    self.placed[r].rows,
                    counts[r],
                    weighted=config.weighted,
                    replace=config.replace,
                    hop=hop,
                    expanded=address_of(tables[expanded]),
                    neighbor=address_of(tables[neighbor]),
                    num_columns=found[neighbor].shape[1],
                    doubt=sums[neighbor].data_ptr(),
                    repeated=address_of(repeated),
                    stream=current_stream(self.device),
                    **way_back,
                )
        return [each.cpu().numpy() for each in sums]

    def _to_device(self, values: np.ndarray | None) -> Tensor | None:
        if values is None:
            return None
        as_known = values.view(np.int64) if values.dtype == np.uint64 else values
        return torch.from_numpy(np.ascontiguousarray(as_known)).to(self.device)


# Negatives found by a kernel: the same that :mod:`glt.sampler.negatives` finds in rounds.
#
# A block of threads tries the candidates of one negative, one after the other, and reads the row that would hold the
# edge, all of it, since rows are in no order. On the device ``cpu`` the host runs the kernel.


class DeviceNegatives:
    """Finds the negatives of batches on one device, where weights and times of nodes stay from batch to batch.
    ``options``, for tests, are those of ``_core.DeviceNegatives``."""

    def __init__(self, device: torch.device, **options: Any) -> None:
        self.device = device
        self._native = _core.DeviceNegatives(device=device_index(device), **options)
        self._lock = threading.Lock()  # around the native object, which knows one stream at a time
        self._kept: dict[str, tuple[Any, Tensor]] = {}  # by name: what was given last, and where it is

    def finish(
        self,
        rounds: NegativeRounds,
        rows: PlacedRows | None,
        edge_dir: str,
        src_time: np.ndarray | None,
        dst_time: np.ndarray | None,
    ) -> None:
        """Answers all rounds at once; waits for the answer. ``rows`` are all edges, None where there are none; times
        are of every node of an end. Raises ValueError if there is no negative for a slot."""
        if rounds.done:
            return
        n = len(rounds.dst)
        inputs: list[Tensor] = []  # kept until the answer is there
        given = None if rounds.source is None else self._to_device(rounds.source, inputs)
        late = None if rounds.seed_time is None else self._to_device(rounds.seed_time, inputs)
        src = self._end(rounds.src_end, src_time if late is not None else None, given, inputs)
        dst = self._end(rounds.dst_end, dst_time if late is not None else None, None, inputs)
        out = torch.full((2 * n + 1,), -1, dtype=torch.int64, device=self.device)
        address = out.data_ptr()
        results: dict[str, Any] = {"src_out": address, "dst_out": address + 8 * n, "gave_up": address + 16 * n}
        with self._lock:
            self._native.launch(
                None if rows is None else rows.rows,
                from_destination=edge_dir == "in",
                src=src,
                dst=dst,
                batch_key=rounds.batch_key,
                num_slots=n,
                max_attempts=negatives.MAX_ATTEMPTS,
                seed_time=address_of(late),
                **results,
                stream=current_stream(self.device),
            )
        found = out.cpu().numpy()  # which waits
        rounds.answer(found[:n], found[n : 2 * n], int(found[2 * n]))

    def _end(
        self, end: Endpoint, time: np.ndarray | None, given: Tensor | None, inputs: list[Tensor]
    ) -> _core.NegativeEnd:
        if given is not None:
            return _core.NegativeEnd(num_nodes=end.num_nodes, given=given.data_ptr())
        weights = address_of(self._kept_on_device(f"{end.side} weights", end.weight_sum, inputs))
        known = None if end.earliest is None else time
        times = address_of(self._kept_on_device(f"{end.side} times", known, inputs))
        first, at = end.earliest or (0, 0)
        return _core.NegativeEnd(
            num_nodes=end.num_nodes, weight_sum=weights, time=times, earliest=first, earliest_time=at
        )

    def _kept_on_device(self, name: str, values: np.ndarray | None, inputs: list[Tensor]) -> Tensor | None:
        """Copies an array to the device, unless it was the last one of that name, or another view of the same. It is
        among the inputs too: another thread may replace it before this one's kernel is done."""
        if values is None:
            return None
        known = self._kept.get(name)
        if known is None or (known[0].ctypes.data, len(known[0])) != (values.ctypes.data, len(values)):
            # Waited for: batches on other streams will read it, which do not come after this copy.
            known = self._kept[name] = values, torch.from_numpy(values.view(np.int64)).to(self.device)
        inputs.append(known[1])
        return known[1]

    def _to_device(self, values: np.ndarray, inputs: list[Tensor]) -> Tensor:
        """Copies an array of this batch to the device in the order of the stream, without waiting; it stays until the
        answer is there."""
        tensor = torch.from_numpy(np.ascontiguousarray(values, np.int64))
        inputs += [tensor, tensor.to(self.device, non_blocking=True)]
        return inputs[-1]


Columns: TypeAlias = "Topology | DeviceTopology"


class DeviceSampling:
    """Samples the batches of a :class:`~glt.sampler.NeighborSampler` on one device, bit for bit what the CPU samples.
    On the device ``cpu`` it runs the kernels' bodies on the host.

    Several threads may sample at the same time, each on its current stream. Each batch under way takes 4 bytes per
    node, or 8 bytes per node of the batch when disjoint, and about 40 bytes for each time that a batch names a node.

    ``config`` gives all options but ``num_neighbors``, given anew for each batch. ``place(r)`` returns where the arrays
    of edge type r are (``Graph.placed`` on a GPU), asked before each batch, since torch may have moved them.
    ``options``, for tests, are those of :class:`~glt.sampler.device_batch.DeviceBatch`. Raises ValueError if the rows
    are a partition's.
    """

    def __init__(
        self,
        graph: SampledGraph,
        config: SamplingConfig,
        device: torch.device,
        place: Callable[[int], Columns],
        **options: Any,
    ) -> None:
        if any(topology.book is not None for topology in graph.topologies):
            raise ValueError(
                f"a partition's graph on device {str(device)!r}: expected one whose nodes all have rows; sample "
                "partitions on the CPU"
            )
        if config.disjoint and config.subgraph_type == "induced":
            raise ValueError(
                f"subgraph_type = 'induced', disjoint = True and a sampler on {str(device)!r}: its kernels induce one "
                "subgraph per batch; sample on the CPU"
            )
        self.graph, self.device, self._options = graph, device, options
        self._config, self._place = config, place
        self._found: tuple[list[Columns], list[PlacedRows]] | None = None
        self._spare: dict[int, list[DeviceBatch]] = {}  # by stream: their memory is used in its order
        self._lock = threading.Lock()
        self._executor = {name: options[name] for name in ("order", "shuffle_seed", "num_threads") if name in options}
        self._negatives = DeviceNegatives(device, **self._executor)
        self._hotness: DeviceHotness | None = None
        self._rows()  # says now what cannot be placed

    def _rows(self) -> list[PlacedRows]:
        found = self._found
        if found is None or any(self._place(r) is not known for r, known in enumerate(found[0])):
            self._found = found = self._hotness = None  # which keep device memory
            columns = [self._place(r) for r in range(len(self.graph.topologies))]
            found = self._found = columns, [self._rows_of(r, each) for r, each in enumerate(columns)]
        return found[1]

    def _rows_of(self, edge_type: int, columns: Columns) -> PlacedRows:
        """As :meth:`SampledGraph.csrs`: by time, with weights, or plain."""
        config = self._config
        topology = self.graph.topologies[edge_type]
        rows: dict[str, Any] = {"num_neighbor_nodes": topology.num_neighbor_nodes}
        rows["first_edge_id"] = topology.first_edge_id
        indices, edge_ids = columns.indices, columns.edge_ids
        copies = None if isinstance(columns, Topology) else columns.hot
        if copies is not None:
            rows["hot"] = copies.shift, copies.indices, copies.edge_ids
        if config.temporal is not None and columns.by_time is not None:
            indices, edge_ids, rows["time"] = columns.by_time
            if copies is not None:
                rows["hot"] = copies.shift, copies.timed_indices, copies.timed_edge_ids
        elif config.weighted and config.temporal is None:
            rows["weights"] = columns.weights
        return PlacedRows.of(columns.indptr, indices, edge_ids, **rows)

    def launch(self, config: SamplingConfig, *given: Any) -> Finish:
        """Asks for the kernels of a batch, as :meth:`begin`; what it returns waits for them on the stream, and returns
        the sample."""
        launched = [self._launched(config, *given)]
        stream = current_stream(self.device)

        def finish() -> Output:
            if not launched:
                raise RuntimeError("the batch was ended before; begin another")
            if current_stream(self.device) != stream:
                raise RuntimeError("the batch was begun on another CUDA stream: end it on the same")
            batch = launched.pop()
            self._finished(batch, config)
            nodes, edges = batch.results(config.disjoint, config.with_edge)
            out = typed_output(self.graph, config, nodes, edges, hop_counts(batch, self.graph, config))
            self.end(batch)
            return out

        return finish

    def sample_rows(
        self,
        edge_type: int,
        nodes: Tensor,
        *,
        num_neighbors: int,
        hop: int,
        batch_key: int,
        tree: Tensor | None = None,
        seed_time: Tensor | None = None,
        excluded: _core.Exclusions | None = None,
        time_window: int = -1,
        half_life: int = 0,
        shared_key: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples the rows of ``nodes [n]``, int64, that a batch expands at a hop, for a caller that puts the hop
        together. Waits for the device twice: for the counts of the batch, and to count the edges of each node.

        ``tree`` is that of each node in a disjoint batch ``[n]``, uint32; ``seed_time`` the latest time of each node's
        edges ``[n]``, int64; ``excluded`` edges must not be taken; ``time_window`` and ``half_life`` are native ones;
        ``shared_key`` is that of the numbers of nodes, where rows take the lowest.

        Returns:
            Edges per node ``[n]``, their other ends and their ids ``[E]``, node after node; int64, on the device.
        """
        times = None
        if seed_time is not None and tree is not None:  # by tree: nodes of one tree have one time
            places = tree.long()
            times = torch.zeros(int(places.max()) + 1 if len(places) else 0, dtype=torch.int64)
            times[places] = seed_time
        expanded, found = self.graph.ends[edge_type]
        counts = tuple((num_neighbors if r == edge_type else 0,) for r in range(len(self.graph.topologies)))
        exclusions = None
        if excluded is not None:
            exclusions = [excluded if r == edge_type else None for r in range(len(counts))]
        one_hop = replace(self._config, num_neighbors=counts, disjoint=tree is not None, subgraph_type="directional")
        by_type = {"time_window": [time_window] * len(counts), "half_life": [half_life] * len(counts)}
        options: dict[str, Any] = {"trees": tree, "first_hop": hop, "shared_key": shared_key, **by_type}
        batch = self.begin(one_hop, [(expanded, nodes)], times, batch_key, exclusions, **options)
        row, col, edge = batch.edges(edge_type, one_hop.with_edge)
        node, _ = batch.nodes(found, False)
        self.end(batch)
        return torch.bincount(col, minlength=len(nodes)), node[row], edge

    def hotness(self, config: SamplingConfig, facts: Sequence[EdgeFacts]) -> partial[list[np.ndarray]]:
        """Returns what passes on probabilities, for :mod:`glt.sampler.hotness`."""
        rows = self._rows()
        hotness = self._hotness
        if hotness is None or hotness.facts is not facts or hotness.placed is not rows:
            hotness = DeviceHotness(self.device, rows, self.graph.ends, facts, **self._executor)
            self._hotness = hotness
        return partial(hotness.doubts, config)

    def finish_negatives(self, rounds: NegativeRounds, edge_type: int | None, times: Sequence[Tensor | None]) -> None:
        """Answers the rounds of a link batch, given the times of nodes at both ends."""
        rows = None if edge_type is None else self._rows()[edge_type]
        src_time, dst_time = (None if time is None else time.numpy() for time in times)
        self._negatives.finish(rounds, rows, self.graph.edge_dir, src_time, dst_time)

    def _launched(
        self,
        config: SamplingConfig,
        seeds: Seeds,
        seed_time: Tensor | None,
        batch_key: int,
        exclusions: Sequence[_core.Exclusions | None] | None = None,
        shared_key: int | None = None,
        **options: Any,
    ) -> DeviceBatch:
        with self._lock:
            spare = self._spare.get(current_stream(self.device))
            batch = spare.pop() if spare else None
        if batch is None:
            batch = DeviceBatch(self.graph.num_nodes, self.graph.ends, self.device, **self._options)
        options |= {name: getattr(config, name) for name in ("replace", "last", "with_edge", "disjoint")}
        options |= {"batch_key": batch_key, "seed_time": seed_time, "exclusions": exclusions}
        options = config.native_times | config.numbers(batch_key, shared_key) | options
        batch.launch(self._rows(), seeds, config.num_neighbors, **options)
        return batch

    def _finished(self, batch: DeviceBatch, config: SamplingConfig) -> None:
        batch.finish(self._rows)
        if config.subgraph_type == "induced":
            batch.induce()

    def begin(self, config: SamplingConfig, *given: Any, **options: Any) -> DeviceBatch:
        """Samples a batch for a caller who copies it out; then comes :meth:`end`, on the same stream. ``given`` are
        seeds, their times, the key and exclusions, ``options`` those of :meth:`DeviceBatch.launch`."""
        batch = self._launched(config, *given, **options)
        self._finished(batch, config)
        return batch

    def end(self, batch: DeviceBatch) -> None:
        """Takes back the memory of a batch, once its copies are launched."""
        batch.end()
        with self._lock:
            self._spare.setdefault(current_stream(self.device), []).append(batch)


def sampling_device(device: Accelerator | torch.device | int | str | None, graph: SampledGraph) -> Accelerator | None:
    """Returns what a sampler is to sample on, None being the CPU; raises TypeError or ValueError."""
    modes = {each.mode for each in graph.graphs}
    if device is None:
        if "CUDA" not in modes:
            return None
        device = next(each.device for each in graph.graphs if each.mode == "CUDA")
        device = "cuda" if device is None else device
    place = accelerator_of(device, "device")
    if place is None:
        return None
    if not graph.graphs or "CPU" in modes:
        raise ValueError(
            f"device = {device!r}: the graph is for CPU samplers; pass a glt Dataset or Graph with mode 'CUDA' or "
            "'ZERO_COPY'"
        )
    return place
