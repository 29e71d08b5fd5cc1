"""One-shot sampling: the batch of given seeds now, without a loader, many requests at a time."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from glt import _deadlines as deadlines
from glt._checks import AUTO, check_count, check_flag, real_number
from glt._reprs import options as told_options
from glt._reprs import says
from glt._stats import with_ratios
from glt._tracebacks import short_traceback
from glt.channel.message import Message
from glt.data.schema import EdgeType
from glt.distributed.context import DistRole, require_context
from glt.distributed.engine.sampler import STATS
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.engine.seeds import NodeSeeds
from glt.distributed.loader.base import collate, sampled_for, with_written_rows
from glt.distributed.loader.deployment import opened
from glt.distributed.loader.loaders import checked_config, node_columns, with_batch_size
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.answers import MOST_SEEDS, Question
from glt.distributed.server.api import require_client
from glt.distributed.server.asking import Asker
from glt.distributed.tensors.graph_data import WrittenRows
from glt.distributed.wire.threads import process_loop
from glt.errors import ChannelTimeout, GltError
from glt.sampler.config import GIVEN
from glt.sampler.order import SeedOrder


@short_traceback
class SamplingClient:
    """Samples around given seeds on servers, now: for models that answer requests.

    Made once, by a client (:func:`glt.distributed.init_client`); it opens a connection to each sampling process that
    works for it. Each call of :meth:`sample` is one request, which one of them answers, any number at a time, from any
    threads and asyncio loops. Nothing is sampled ahead, and requests are not gathered to be sampled together. On each
    sampling process they take turns with loaders, a request against a batch.

    The same question has the same answer, always and anywhere: the batch is that of a
    :class:`glt.distributed.DistNeighborLoader` with the same options and ``random_seed``, whose ``input_nodes`` are
    these seeds and whose ``batch_size`` is their number: its first of epoch 0. The key of its draws is thus
    ``(random_seed, 0, 0)``. Two requests for the same node draw the same neighbours of it; clients with other
    ``random_seed`` draw others.

    A request whose sampling process dies, or whose server does, is asked again, elsewhere if there is another, up to
    its deadline. After three losses it fails, since it may be the cause. Processes and servers that come back are used
    again.

    Args:
        num_neighbors, replace, subgraph_type, disjoint: As of :class:`glt.distributed.DistNeighborLoader`.
        temporal_strategy, time_attr, time_bound, time_window, half_life, weight_attr: As of the same, and so are
            with_edge and collect_features.
        sampler: As of the same. All requests have one key: with ``'labor'`` they all share the numbers of nodes.
        batch_dependency: 1: there are no batches in succession, and all requests share what a loader's would.
        random_seed: In [0, 2^63).
        timeout_s: Deadline of a request in seconds, unless it has its own; above 0 and below a day.
        max_waiting: Requests that may wait in this process for a place in flight, 0 to 1048576. ``worker_concurrency``
            of each sampling process may be in flight.
        worker_options: Which servers, how many sampling processes of each, and how many requests each of these is sent
            at a time (``worker_concurrency``). While ``buffer_size`` of answers wait to be sent to this process, its
            other requests wait. ``prefetch_size``, ``cache_memory_budget`` and ``gather_window`` have no effect: each
            answer is made by itself and brings all rows. Default: one sampling process of every server.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.
        RuntimeError: If this process is no client, or a server takes no more loaders, of which this is one.
        MemoryError: If a server has promised too much memory.
        glt.errors.PeerLost, glt.errors.RendezvousError: If a server is not reached.
        glt.errors.WorkerDied: If a sampling process does not come up.

    Example:
        >>> context = glt.distributed.init_client(num_servers=1, num_clients=1, client_rank=0)  # at MASTER_ADDR
        >>> with glt.distributed.SamplingClient([2, 2], collect_features=True) as client:
        ...     batch = client.sample([7, 3])
        ...     batch.n_id[: batch.batch_size].tolist(), batch.x.shape[0]
        ...
        ([7, 3], 9)
        >>> glt.distributed.shutdown_client()
    """

    def __init__(
        self,
        num_neighbors: Any,
        *,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        sampler: str = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        weight_attr: str | None = None,
        with_edge: bool = False,
        collect_features: bool = False,
        random_seed: int = 0,
        timeout_s: float = deadlines.STUCK_S,
        max_waiting: int = 1024,
        worker_options: RemoteDistSamplingWorkerOptions | None = None,
    ) -> None:
        context = require_context()
        if context.role is not DistRole.CLIENT:
            raise RuntimeError(
                f"a SamplingClient asks servers, and this process is {context.worker_name}, a {context.role.value}: "
                "call init_client(...) where servers run; in process, glt.loader.NeighborLoader and "
                "glt.sampler.NeighborSampler give batches of given seeds"
            )
        if not isinstance(worker_options, RemoteDistSamplingWorkerOptions | None):
            raise TypeError(
                f"worker_options has type {type(worker_options).__name__}: expected RemoteDistSamplingWorkerOptions"
            )
        if worker_options is not None and worker_options.num_workers == AUTO:
            raise ValueError(
                "num_workers = 'auto' in worker_options of a SamplingClient: it is measured on the batches of an "
                "epoch, and requests are none; give a number"
            )
        self._data, given = opened(None, worker_options, None)
        check_flag("collect_features", collect_features)
        max_waiting = check_count("max_waiting", max_waiting, 0, 1 << 20)
        if batch_dependency != 1:
            raise ValueError(
                f"batch_dependency = {batch_dependency!r}: requests are no batches in succession, and with "
                "sampler = 'labor' all of them share the numbers of nodes; leave it out"
            )
        self.timeout_s: float = _checked_timeout(timeout_s)
        self._config = checked_config(
            self._data,
            num_neighbors,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            sampler=sampler,
            time_bound=time_bound,
            time_window=time_window,
            half_life=half_life,
            weight_attr=weight_attr,
            input_time=None if time_attr is None else GIVEN,  # each request says so itself
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            with_edge=with_edge,
        )
        order = SeedOrder(0, 1, random_seed=random_seed)  # checks it
        self.random_seed = random_seed
        self._written = WrittenRows.of(self._data.manifest) if collect_features else None
        job = SamplingJob(
            sampled_for(self._config, self._written),
            NodeSeeds(0),  # each question names its own
            SeedTable({"node": torch.empty(0, dtype=torch.int64)}),
            order,
            collect_features,
        )
        client = require_client()
        everywhere = list(range(client.num_servers))
        ranks = everywhere if given.server_rank is None else given.ranks(context.rank, client.num_servers)
        self._asker = Asker(client, ranks, job, given, max_waiting)
        self._worker_name, self._collect_features = context.worker_name, collect_features
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._totals = dict.fromkeys(("num_batches", "num_seeds", *STATS), 0.0)
        self._closed = False
        self._finalizer = weakref.finalize(self, _close_later, self._asker)

    @short_traceback
    def sample(
        self, nodes: Any, time: Any = None, input_id: Any = None, *, timeout_s: float | None = None
    ) -> Data | HeteroData:
        """Samples around seeds and waits for the batch. From any thread.

        Args:
            nodes: Ids ``[num_seeds]``, 1 to 65536, keys, where nodes have some, or a mask over all nodes; of a
                heterogeneous graph ``(node type, ids, keys or mask)``.
            time: Time of each seed, integers; needs ``time_attr``. Default: the times of the nodes themselves.
            input_id: What the batch tells of each seed as ``input_id``. Default: its position in ``nodes``.
            timeout_s: Deadline of this request. Default: that of the client.

        Returns:
            The batch, as of :class:`glt.distributed.DistNeighborLoader`.

        Raises:
            IndexError, TypeError, ValueError: If a seed is outside of the graph, or an argument does not fit; names it.
                Other requests do not mind.
            RuntimeError: If this was closed, or in a fork of the process that made it.
            glt.errors.TooManyRequests: If ``max_waiting`` requests wait for a place.
            glt.errors.ChannelTimeout: If there is no answer before the deadline; it is a ``TimeoutError``.
            glt.errors.PeerLost, glt.errors.WorkerDied: If sampling processes were lost three times while they were at
                it, or none has been reached for ten seconds.
            glt.errors.RemoteError: If a sampling process raises an exception; carries its traceback.
        """
        if process_loop.is_here:
            raise RuntimeError("sample() would wait for glt's own loop on the thread of that loop: await asample()")
        question, within_s = self._question(nodes, time, input_id, timeout_s)
        reply = self._asker.ask(question, within_s)
        try:
            message = reply.result(within_s)
        except FutureTimeout as error:
            if isinstance(error, GltError):
                raise
            raise self._late(question, within_s) from None
        finally:
            reply.cancel()  # if it is not there, it is not wanted any more
        return self._batch(question, message)

    async def asample(
        self, nodes: Any, time: Any = None, input_id: Any = None, *, timeout_s: float | None = None
    ) -> Data | HeteroData:
        """As :meth:`sample`, for programs with an asyncio loop: waits without holding it up. Cancelling it gives the
        request up."""
        question, within_s = self._question(nodes, time, input_id, timeout_s)
        reply = asyncio.wrap_future(self._asker.ask(question, within_s))
        try:
            message = await asyncio.wait_for(reply, within_s)
        except asyncio.TimeoutError as error:
            if isinstance(error, GltError):
                raise
            raise self._late(question, within_s) from None
        if self._written is not None:  # asks servers which rows were written
            return await asyncio.to_thread(self._batch, question, message)
        return self._batch(question, message)

    def _question(self, nodes: Any, time: Any, input_id: Any, timeout_s: float | None) -> tuple[Question, float]:
        within_s = self.timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        if time is not None and self._config.temporal is None:
            raise ValueError("time is given, and this SamplingClient has no time_attr: give it one, or leave time out")
        if time is None and self._config.time_level == "edge":
            raise ValueError(
                "time is not given, and the times of this graph are those of edges, which say nothing of when a seed "
                "is looked at: give one time per seed"
            )
        names = "nodes", "time"
        seed_type, columns = node_columns(self._data, self._config, nodes, time, input_id, names)
        if not 1 <= len(columns["node"]) <= MOST_SEEDS:
            raise ValueError(
                f"nodes has {len(columns['node'])} seeds: expected 1 to {MOST_SEEDS} in a request; a loader takes more"
            )
        return Question(seed_type, columns["node"], columns.get("time"), columns.get("input_id")), within_s

    def _late(self, question: Question, within_s: float) -> ChannelTimeout:
        stats = self._asker.stats()
        return ChannelTimeout(
            f"no batch of these {len(question.nodes)} seeds within {within_s:g} s: of this SamplingClient "
            f"{stats['num_in_flight']} requests are in flight on {stats['num_connections']} sampling processes, and "
            f"{stats['num_waiting']} wait; raise timeout_s, ask for less at a time, or use more sampling processes"
        )

    def _batch(self, question: Question, answer: Message) -> Data | HeteroData:
        answer.raise_if_error()
        tensors, seed_type = answer.tensors, question.node_type
        numbers = dict(zip(STATS, tensors.pop("stats").tolist(), strict=True))
        with self._lock:
            self._totals["num_batches"] += 1
            self._totals["num_seeds"] += len(question.nodes)
            for name, value in numbers.items():
                self._totals[name] += value
        if self._written is not None:
            with self._writing:
                self._written.begin()
                with_written_rows(tensors, self._written, self._config)
        batch = collate(tensors, self._data.schema, self._data.edge_dir, self._config.subgraph_type)
        return with_batch_size(batch, self._data.schema, seed_type)

    def stats(self) -> dict[str, float]:
        """Counts and times in seconds since it was made.

        ``num_requests`` were taken, ``num_answers`` came, errors included, of ``received_bytes``, ``num_in_ring`` of
        them through shared memory;
        ``num_asked_again`` lost their sampling process; now ``num_in_flight`` are sent and not answered,
        ``num_waiting`` wait for a place, and ``num_connections`` sampling processes are there. Of batches, as of a
        loader: ``num_batches, num_seeds, num_nodes, num_edges, sampling_s, gathering_s, remote_s, remote_bytes,
        cached_bytes, num_remote_nodes, num_cached_nodes, remote_node_ratio, cache_hit_ratio, disk_s, disk_bytes,
        num_disk_rows, num_hot_rows, hot_row_ratio``.
        """
        with self._lock:
            totals = {name: total if name.endswith("_s") else int(total) for name, total in self._totals.items()}
        told = self._asker.stats() | with_ratios(totals)
        # Nothing waits for room in a channel, and nothing is in a window.
        return {n: each for n, each in told.items() if n not in ("blocked_s", "num_window_nodes", "window_bytes")}

    def close(self) -> None:
        """Ends it; requests that are not answered fail. May be called again."""
        self._closed = True
        if self._finalizer.detach() is not None:
            self._asker.close()

    def __enter__(self) -> SamplingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @says
    def __repr__(self) -> str:
        state = "closed, " if self._closed else ""
        told = told_options({"collect_features": self._collect_features, "random_seed": self.random_seed})
        return f"{self._worker_name}, {state}{self._data!r}, {self._config.says()}, {told}"


def _checked_timeout(timeout_s: Any) -> float:
    return real_number("timeout_s", timeout_s, above=True, below=deadlines.DAY_S)


def _close_later(asker: Asker) -> None:
    """A collection may come under any lock, also one of a connection."""
    process_loop.get().call_soon_threadsafe(asker.close)
