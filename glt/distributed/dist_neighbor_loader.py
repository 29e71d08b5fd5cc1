"""Batches for one trainer of a distributed job."""

from __future__ import annotations

import logging
import os
import socket
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from glt import _core
from glt.channel.message import Message
from glt.data.arrays import as_ids
from glt.distributed.collocated import CollocatedSampler
from glt.distributed.context import require_context
from glt.distributed.dist_dataset import DistDataset, LocalPartition
from glt.distributed.linger import abandon, end
from glt.distributed.loader_stats import LoaderStats
from glt.distributed.options import CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions
from glt.distributed.rendezvous import Rendezvous, require_equal
from glt.distributed.worker_group import WorkerGroup
from glt.errors import PartitionError, RendezvousError
from glt.sampler.config import SamplingConfig
from glt.sampler.seed_order import SeedOrder, check_random_seed, draw_random_seed

logger = logging.getLogger(__name__)

WorkerOptions = MpDistSamplingWorkerOptions | CollocatedDistSamplingWorkerOptions


class DistNeighborLoader:
    """Iterates over sampled neighbourhoods of the seeds of this trainer, as PyG ``Data``.

    Sampling and feature lookup run ahead of the trainer, in processes of their own or on threads of this one, over all
    partitions of the graph. For a fixed ``random_seed`` the batches are the same in every mode, with any number of
    partitions, workers and batches in flight, and with ``edge_dir='in'`` equal to those of
    :class:`glt.loader.NeighborLoader` on the whole graph. They come in index order. Leaving an epoch early is safe. All
    trainers create their loaders, and shut them down, in the same order.

    Attributes of a batch are PyG's: ``n_id [N], edge_index [2, E], input_id [batch_size]``, ``e_id [E]`` (with
    ``with_edge``), all int64; ``x, y [N, ...], edge_attr [E, ...]`` (with ``collect_features``, where the dataset has
    them); ``batch_size``, the number of seeds; ``num_sampled_nodes, num_sampled_edges``, lists with a number per hop,
    that of nodes beginning with the seeds. Edges run neighbour -> expanded node; with ``edge_dir='out'`` that is the
    reverse of the edge.

    Args:
        data: The partition of this trainer, loaded. Each partition is loaded by at least one trainer.
        num_neighbors: Edges per node, one number per hop; -1 takes all, 0 none.
        input_nodes: Seeds of this trainer: ids ``[num_seeds]``, or a bool mask over all nodes.
        batch_size: Seeds per batch.
        shuffle: Permute the seeds anew in each epoch.
        drop_last: Leave out a last batch that is not full.
        replace: Draw with replacement.
        with_edge: Return edge ids as ``e_id``.
        edge_dir: ``'in'`` or ``'out'``; must be how the graph was partitioned, which is the default.
        collect_features: Look up node features, labels and edge features.
        to_device: Where batches go. Default: they stay in CPU memory, shared with the samplers.
        random_seed: Used as given, in [0, 2^63). Default: drawn once per job by rank 0, from torch's generator, and
            made different for each rank; :attr:`random_seed` tells which.
        worker_options: Where sampling runs. Default: one worker process.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.
        RuntimeError: Without ``init_worker_group``.
        MemoryError: If there is no room for the channels.
        glt.errors.RendezvousError: If the trainers do not find each other or were given different options.
        glt.errors.PeerLost: If another trainer, or a worker of one, died or gave up during start-up.
        glt.errors.WorkerDied: If a worker of this trainer does not come up.
        glt.errors.RemoteError: If one raises an exception while it does; carries its traceback.

    Iterating raises ``PeerLost``, ``WorkerDied`` and ``RemoteError`` too, in the place of the batch that is missing.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Sequence[int],
        input_nodes: Tensor,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        replace: bool = False,
        with_edge: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        if not isinstance(data, DistDataset):
            raise TypeError(f"data has type {type(data).__name__}: expected a DistDataset")
        _ = data.load_args  # raises if it is empty
        options = MpDistSamplingWorkerOptions() if worker_options is None else worker_options
        if not isinstance(options, WorkerOptions):
            raise TypeError(
                f"worker_options has type {type(options).__name__}: expected MpDistSamplingWorkerOptions or "
                "CollocatedDistSamplingWorkerOptions"
            )
        self.data, self.options = data, options
        self.context = require_context()
        self.config = SamplingConfig.checked(num_neighbors, replace=replace, with_edge=with_edge)
        if edge_dir not in (None, data.edge_dir):
            raise ValueError(
                f"edge_dir = {edge_dir!r}: the graph was partitioned for {data.edge_dir!r}; partition it with "
                f"edge_assign_strategy={'by_src' if edge_dir == 'out' else 'by_dst'!r}, or leave edge_dir out"
            )
        self.to_device = _checked_device(to_device)
        self.input_nodes = _checked_seeds(input_nodes, data.num_nodes)
        self.collect_features = collect_features
        if random_seed is not None:
            check_random_seed(random_seed)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last), ("collect_features", collect_features)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} = {flag!r}: expected True or False")
        if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
            raise ValueError(f"batch_size = {batch_size!r}: expected an integer of at least 1")
        batch_size = int(batch_size)
        self._others: dict[int, LocalPartition] = {}  # partitions of other trainers that are read here
        self._other_dirs: dict[int, str] = {}
        self._asks_peers = False  # whether any trainer reads partitions through others
        # Everything that can be wrong with the arguments of this trainer is known by now.
        self._rendezvous = self._open_rendezvous()
        try:
            self.random_seed = self._agree(batch_size, shuffle, drop_last, random_seed)
            self.order = SeedOrder(len(self.input_nodes), batch_size, bool(shuffle), bool(drop_last), self.random_seed)
            self._backend = self._start()
        except BaseException as error:
            if self._rendezvous is not None:
                self._rendezvous.give_up(error)
            raise
        self._stats = LoaderStats()
        self._epoch = -1  # of the running iteration
        self._next_epoch = 0
        self._iteration = 0
        self._closed = False
        asked_by = self._rendezvous if self._asks_peers else None
        if self._rendezvous is not None and asked_by is None:
            self._rendezvous.leave()
        self._finalizer = weakref.finalize(self, abandon, self._backend, asked_by, os.getpid())
        logger.info("%s: random_seed = %d, %d batches per epoch", self, self.random_seed, len(self))

    def _open_rendezvous(self) -> Rendezvous | None:
        context, data, options = self.context, self.data, self.options
        if context.world_size > 1:
            return Rendezvous(context, options.master_addr, options.master_port, options.rpc_timeout)
        if data.num_partitions > 1:
            raise ValueError(
                f"data is partition {data.partition_idx} of {data.num_partitions}, but world_size = 1: there must "
                "be a trainer for every partition"
            )
        return None

    def _agree(self, batch_size: int, shuffle: bool, drop_last: bool, random_seed: int | None) -> int:
        """Checks that all trainers want the same, and returns the seed of this one."""
        context, data = self.context, self.data
        if self._rendezvous is None:
            return int(_core.rank_seed(draw_random_seed(), 0)) if random_seed is None else int(random_seed)
        mine = {
            "world_size": context.world_size,
            "mode": type(self.options).__name__,
            "num_workers": getattr(self.options, "num_workers", 0),
            "partitioning run": data.manifest.run_id,
            "num_neighbors": list(self.config.num_neighbors[0]),
            "replace": self.config.replace,
            "with_edge": self.config.with_edge,
            "collect_features": bool(self.collect_features),
            "batch_size": batch_size,
            "shuffle": bool(shuffle),
            "drop_last": bool(drop_last),
            "random_seed": "drawn once per job (None)" if random_seed is None else "given",
            "read_local": bool(self.options.read_local),
            "partition_idx": data.partition_idx,
            "host_id": _host_id(),
            "graph_dir": data.load_args["graph_dir"],
            "job_seed": draw_random_seed() if random_seed is None and context.rank == 0 else None,
        }
        everyone = self._rendezvous.exchange(mine)
        require_equal(everyone, context)
        loaded = {theirs["partition_idx"] for theirs in everyone}
        missing = sorted(set(range(data.num_partitions)) - loaded)
        if missing:
            by_rank = {rank: theirs["partition_idx"] for rank, theirs in enumerate(everyone)}
            raise RendezvousError(
                f"{context.worker_name}: partition_idx: nobody loaded partitions {missing} of {data.num_partitions}; "
                f"loaded are, by rank, {by_rank}. Load each partition on at least one trainer"
            )
        self._find_others(everyone)
        if random_seed is not None:
            return int(random_seed)
        return int(_core.rank_seed(everyone[0]["job_seed"], context.rank))

    def _find_others(self, everyone: list[dict[str, Any]]) -> None:
        """Maps what trainers of this host have mapped anyway, and finds out whether any trainer must ask another."""
        assert self._rendezvous is not None
        data, mine = self.data, everyone[self.context.rank]
        for theirs in everyone:
            index, graph_dir = theirs["partition_idx"], theirs["graph_dir"]
            if not self.options.read_local or theirs["host_id"] != mine["host_id"] or index == data.partition_idx:
                continue
            try:
                self._others[index] = data.map_other(graph_dir, index)
                self._other_dirs[index] = graph_dir
            except (PartitionError, OSError) as error:  # in another container of the same host, for example
                logger.info("%s: partition %d is read through its trainer: %s", self, index, error)
        num_read = 1 + len(self._others)
        found = self._rendezvous.exchange({"num_read": num_read}, "reads")
        self._asks_peers = any(theirs["num_read"] < data.num_partitions for theirs in found)

    def _start(self) -> WorkerGroup | CollocatedSampler:
        options, context = self.options, self.context
        num_rpc_threads = options.rpc_threads(self.data.num_partitions)
        meeting = self._rendezvous if self._asks_peers else None
        if isinstance(options, CollocatedDistSamplingWorkerOptions):
            return CollocatedSampler(
                context, self.data, self.config, self.order, self.input_nodes, self.collect_features,
                options.worker_concurrency, meeting, num_rpc_threads, options.rpc_timeout, self._others,
            )  # fmt: skip
        spec = {
            "rank": context.rank,
            "num_trainers": context.world_size,
            "group_name": context.group_name,
            "load_args": self.data.load_args,
            "other_dirs": self._other_dirs,
            "config": self.config.to_json(),
            "order": asdict(self.order),
            "collect_features": bool(self.collect_features),
            "concurrency": options.worker_concurrency,
            "store": None if meeting is None else [meeting.addr, meeting.port, meeting.prefix],
            "num_rpc_threads": num_rpc_threads,
            "timeout_s": options.rpc_timeout,
        }
        pin = options.pin_memory and torch.cuda.is_available()
        return WorkerGroup(spec, options.num_workers, self.input_nodes, options.channel_bytes, pin)

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``, in [0, 2^31); later ones count up from there. Without it, from 0.

        Raises:
            ValueError: If ``epoch`` is no such number.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**31:
            raise ValueError(f"epoch = {epoch!r}: expected 0 to 2^31 - 1")
        self._next_epoch = epoch

    def __iter__(self) -> Iterator[Data]:
        """Begins an epoch; an earlier iteration that was left early ends with this.

        Raises:
            RuntimeError: If the loader was shut down; from ``next``, also if a newer iteration began.
        """
        if self._closed:
            raise RuntimeError("the loader was shut down: create a new one")
        self._epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._iteration += 1
        self._backend.start_epoch(self._iteration, self._epoch)
        return self._batches(self._iteration)

    def _batches(self, iteration: int) -> Iterator[Data]:
        for index in range(len(self)):
            if iteration != self._iteration:
                raise RuntimeError("this iteration has ended: a newer one of the same loader began")
            if self._closed:
                raise RuntimeError("the loader was shut down during this iteration")
            start = time.perf_counter()
            message = self._receive(index)
            received = time.perf_counter()
            batch = self._collate(message)
            self._stats.wait_s += received - start
            self._stats.collate_s += time.perf_counter() - received
            yield batch

    def _receive(self, index: int) -> Message:
        """The message of a batch of this iteration; those of iterations that were left early are dropped."""
        while True:
            message = self._backend.receive(index)
            if message.loader == self._iteration:
                message.raise_if_error()
                assert message.index == index, f"batch {message.index} came in place of {index}"
                return message

    def _collate(self, message: Message) -> Data:
        tensors = message.tensors
        self._stats.add(tensors.pop("stats"))
        counts = {name: tensors.pop(name).tolist() for name in ("num_sampled_nodes", "num_sampled_edges")}
        if not self.config.with_edge:
            tensors.pop("e_id", None)  # fetched only to look up edge features
        data = Data(num_nodes=len(tensors["n_id"]), **tensors)
        if self.to_device is not None:
            data = data.to(self.to_device, non_blocking=True)
        data.num_sampled_nodes, data.num_sampled_edges = counts.values()
        data.batch_size = len(tensors["input_id"])
        self._stats.num_batches += 1
        self._stats.num_seeds += data.batch_size
        self._stats.num_edges += tensors["edge_index"].shape[1]
        return data

    def stats(self) -> dict[str, float]:
        """Counts and times in seconds since the loader was created.

        ``num_batches, num_seeds, num_nodes, num_edges`` received; ``wait_s`` the trainer waited for batches,
        ``collate_s`` it made ``Data`` of them; summed over batches, on the samplers: ``sampling_s`` and
        ``gathering_s`` of native work, ``remote_s`` waiting for other partitions, ``blocked_s`` waiting for room in
        the channel: several batches wait at once, so that sums may exceed the time that passed. ``remote_bytes`` came
        from other partitions; ``remote_node_ratio`` is the share of nodes whose rows did (0 without
        ``collect_features``). ``channel_*`` are the counters of :meth:`glt.channel.Channel.stats`, summed over
        workers, until the loader is shut down.
        """
        return self._stats.to_dict({} if self._closed else self._backend.stats())

    def shutdown(self) -> None:
        """Ends sampling, and the workers as soon as no living trainer needs this one's partition any more.

        Waits for that a few seconds; then it goes on in the background, and this process ends once it is done. May be
        called again.
        """
        self._closed = True
        if self._finalizer.detach() is not None:
            end(self._backend, self._rendezvous if self._asks_peers else None)

    def __enter__(self) -> DistNeighborLoader:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._rendezvous is not None and self._finalizer.alive:
            # The others may be waiting for this trainer elsewhere, in a collective for example: to wait for them here
            # would hold back the exception that tells why.
            self._rendezvous.give_up(error)
        self.shutdown()

    def __repr__(self) -> str:
        mode = "collocated" if isinstance(self.options, CollocatedDistSamplingWorkerOptions) else "worker mode"
        return f"DistNeighborLoader({self.context.worker_name}, {mode})"


def _host_id() -> str:
    """Tells hosts apart, and containers with names of their own."""
    return f"{socket.gethostname()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def _checked_device(to_device: torch.device | str | int | None) -> torch.device | None:
    if to_device is None:
        return None
    device = torch.device(to_device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"to_device = {to_device!r}: torch finds no GPU here; use 'cpu' or leave it out")
    return device


def _checked_seeds(input_nodes: Any, num_nodes: int) -> Tensor:
    if input_nodes is None:
        raise TypeError("input_nodes = None: expected the seeds of this trainer, ids or a bool mask over all nodes")
    mask = isinstance(input_nodes, Tensor) and input_nodes.dtype == torch.bool
    if mask and len(input_nodes) != num_nodes:
        raise ValueError(f"input_nodes is a mask of {len(input_nodes)} elements: expected one per node, {num_nodes}")
    seeds = as_ids(input_nodes, "input_nodes")
    bad = ((seeds < 0) | (seeds >= num_nodes)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise IndexError(f"input_nodes[{at}] = {int(seeds[at])} is outside [0, {num_nodes}) (num_nodes = {num_nodes})")
    return seeds
