"""What all loaders of a distributed job have in common: everything but what their seeds are."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from glt._checks import AUTO, check_flag, integer
from glt._reprs import options, says
from glt._spans import take_spans
from glt._stats import Stats, with_ratios
from glt._trace import Trace, Traced
from glt._tracebacks import short_traceback
from glt.channel.channel import ON_HOST
from glt.channel.message import Message, MessageKind, device_view
from glt.data.device import HOST, Accelerator, Event, accelerator_of, missing_for_cuda
from glt.data.frames import join_all
from glt.data.schema import Schema, reverse_edge_type
from glt.distributed.context import DistContext, require_context
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.sampler import STATS
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.engine.seeds import Seeds
from glt.distributed.loader.deployment import Backend, LoaderData, abandon, deployment_of, end
from glt.distributed.options import RemoteDistSamplingWorkerOptions, WorkerOptions, refuse_gpus
from glt.distributed.tensors.graph_data import WrittenRows
from glt.distributed.wire.threads import refuse_fork
from glt.errors import GltError, MessageError
from glt.loader.tuning import WorkerTuner
from glt.sampler.config import SamplingConfig
from glt.sampler.graph import bidirectional
from glt.sampler.order import Iteration, OneThread, Position, Resumable, SeedOrder, as_json, check_random_seed, crc32_of

# Batches on their way from host memory to a GPU, while the trainer works on the one before.


class DeviceCopies:
    """Copies messages to a GPU: one copy each, on a stream of its own.

    A message's memory is kept until its copy is done; it is a slot of a channel, which samplers fill again after that.
    From pageable memory the call itself does the copy.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._under_way: list[tuple[Event, Tensor]] = []
        self.accelerator = accelerator
        self._stream = accelerator.new_stream()

    def start(self, message: Message) -> Message:
        """Returns the message with its tensors on the GPU, but for those that the trainer reads as numbers.

        They are there once ``ready`` has happened. Messages that are there already, and errors, stay as they are.
        """
        source = message.buffer
        if source is None or message.ready is not None or not message.tensors:
            return message
        self.sweep()
        with self.accelerator.on(self._stream):
            buffer = torch.empty(source.numel(), dtype=torch.uint8, device=self.accelerator.device)
            buffer.copy_(source, non_blocking=True)
            ready = self.accelerator.record()
        self._under_way.append((ready, source))
        tensors = {
            name: tensor.clone()
            if name in ON_HOST
            else device_view(buffer, tensor.data_ptr() - source.data_ptr(), tensor.dtype, tensor.shape)
            for name, tensor in message.tensors.items()
        }
        return Message(message.kind, message.loader, message.epoch, message.index, tensors, buffer, ready)

    def sweep(self) -> None:
        """Lets go of the memory of copies that are done."""
        self._under_way = [(event, source) for event, source in self._under_way if not event.query()]

    def __del__(self) -> None:
        self.close()  # the channel's memory must not be filled again, or go, under a copy

    def close(self) -> None:
        """Waits for the copies, and lets go of all memory."""
        under_way, self._under_way = self._under_way, []
        for event, _ in under_way:
            event.synchronize()


def take_over(message: Message) -> None:
    """Makes the current stream wait for a message's tensors, and keeps their memory until it has used them."""
    if message.ready is None:
        return
    if message.buffer is None or not message.buffer.is_cuda:
        message.ready.wait()
        return
    place = Accelerator(message.buffer.device)
    place.wait_for(message.ready)
    place.keep_for_current(message.buffer)


logger = logging.getLogger(__name__)


@dataclass
class LoaderOptions:
    """Options that all loaders have, as :class:`glt.distributed.DistNeighborLoader` describes them, checked.
    ``accelerator`` is the GPU that batches go to."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    collect_features: bool
    to_device: torch.device | str | int | None
    transform: Callable[[Any], Any] | None
    random_seed: int | None
    worker_options: WorkerOptions

    def __post_init__(self) -> None:
        for name in ("shuffle", "drop_last", "collect_features"):
            check_flag(name, getattr(self, name))
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"transform = {self.transform!r}: expected a function of a batch")
        try:
            integer("batch_size", self.batch_size, 1, 2**63 - 1, "seeds per batch")
        except TypeError as error:  # a ValueError, as of PyG's loaders
            raise ValueError(str(error)) from error
        if self.random_seed is not None:
            check_random_seed(self.random_seed)
        self.accelerator = self._accelerator()

    def _accelerator(self) -> Accelerator | None:
        if self.to_device == HOST or self.to_device is None:
            return accelerator_of(self.to_device, "to_device")
        try:
            device = torch.device(self.to_device)
        except (TypeError, RuntimeError) as error:
            raise (TypeError if isinstance(error, TypeError) else ValueError)(
                f"to_device = {self.to_device!r}: expected a device such as 'cpu' ({error})"
            ) from error
        if device.type == "meta":
            raise ValueError(
                f"to_device = {self.to_device!r}: tensors there have no data; expected a device such as 'cpu'"
            )
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"to_device = {self.to_device!r}: torch finds no GPU here; use 'cpu' or leave it out")
        if device.type != "cuda" or missing_for_cuda() is not None:  # a copy needs no kernels of ours
            return None
        return accelerator_of(device, "to_device")


class DistLoader(Traced, Resumable):
    """Iterates over the batches of this trainer; what a batch is sampled around is up to the kind of loader.

    ``data`` is the partition of this trainer, loaded, or what servers tell of theirs; the rows of ``table`` are
    ``seeds``. Errors are those of :class:`glt.distributed.DistNeighborLoader`.
    """

    _seed_kind: ClassVar[str] = "nodes"

    data: LoaderData
    config: SamplingConfig
    seeds: Seeds
    table: SeedTable
    collect_features: bool
    to_device: torch.device | str | int | None
    options: WorkerOptions
    transform: Callable[[Any], Any] | None
    order: SeedOrder
    random_seed: int
    custom_cls: Any = None  # of batches; None: PyG's own

    def __init__(
        self, data: LoaderData, config: SamplingConfig, seeds: Seeds, table: SeedTable, options: LoaderOptions
    ) -> None:
        if seeds.is_whole_batch:
            refuse_gpus(options.worker_options, type(self).__name__)
        self.data, self.config, self.seeds, self.table = data, config, seeds, table
        self.collect_features, self.to_device = options.collect_features, options.to_device
        place = options.accelerator
        self._copies = None if place is None else DeviceCopies(place)
        self.options, self.transform = options.worker_options, options.transform
        self.context: DistContext = require_context()
        batch_size = int(options.batch_size)
        # Everything that can be wrong with the arguments of this trainer is known by now.
        wanted = {
            "loader": type(self).__name__,
            **config.to_json(),
            **seeds.to_json(),
            "columns": sorted(table.columns.keys() - {"input_id"}),
            "tensors beside the seeds": sorted(table.extras),
            "collect_features": options.collect_features,
            "batch_size": batch_size,
            "shuffle": options.shuffle,
            "drop_last": options.drop_last,
        }
        self._deployment = deployed = deployment_of(self.options)(
            self.context, data, self.options, wanted, options.random_seed, self._announcement()
        )
        self.random_seed = deployed.random_seed
        group, serving = deployed.group, deployed.serving
        with nullcontext() if group is None else group.during("it started the loader"):
            self._settle(deployed.announced)
            self.order = SeedOrder(len(table), batch_size, options.shuffle, options.drop_last, self.random_seed)
            self._written = self._written_rows() if options.collect_features else None
            sampled = sampled_for(config, self._written)
            job = SamplingJob(sampled, seeds, table, self.order, options.collect_features, self.options.gather_window)
            self._backend: Backend = deployed.start(job, place)
        self._tuner: WorkerTuner | None = None
        if getattr(self.options, "num_workers", 0) == AUTO:
            self._tuner = WorkerTuner(1, self._backend.most_workers)
        self._totals = dict.fromkeys(("num_batches", "num_seeds", "epoch_s", "wait_s", "collate_s", *STATS), 0.0)
        self._position = Position()
        self._one_thread = OneThread[Data | HeteroData]()
        self._seeds_crc32: int | None = None
        self._closed, self._pid = False, os.getpid()
        if group is not None and serving is None:
            group.leave()
        self._finalizer = weakref.finalize(self, abandon, self._backend, serving, os.getpid())
        logger.info("%s: random_seed = %d, %d batches per epoch", self, self.random_seed, len(self))

    def _announcement(self) -> dict[str, Any]:
        """What the other trainers are to know of this one; JSON."""
        return {}

    def _settle(self, announced: list[dict[str, Any]]) -> None:
        """Takes note of what the trainers announced to each other, by rank, before sampling starts."""

    def _written_rows(self) -> WrittenRows | None:
        """Where the rows are that were written since the graph was partitioned."""
        return WrittenRows.of(self.data.manifest)

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return len(self.order)

    _num_batches = __len__

    def _fingerprint(self) -> dict[str, Any]:
        if self._seeds_crc32 is None:
            self._seeds_crc32 = crc32_of(self.table.columns | self.table.extras)
        return as_json(
            {
                "loader": type(self).__name__,
                **{name: value for name, value in asdict(self.order).items() if name != "random_seed"},
                **self.seeds.to_json(),
                **self.config.to_json(),
                "num_nodes": list(self.data.num_nodes_of),
                "num_edges": list(self.data.num_edges_of),
                "seeds_crc32": self._seeds_crc32,
            }
        )

    def _take_seed(self, random_seed: int) -> None:
        self.random_seed = random_seed
        self.order = replace(self.order, random_seed=random_seed)

    @short_traceback
    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Begins an epoch; an earlier iteration that was left early ends with this."""
        if self._closed:
            raise RuntimeError("the loader was shut down: create a new one")
        self._refuse_fork()
        began_s = time.perf_counter()
        with self._one_thread:
            if self._written is not None:
                self._written.begin()
            begun = self._position.begin(len(self))
            self._ask_for(begun)
        return self._one_thread.over(self._batches(begun, began_s, self._open_trace))

    def _ask_for(self, begun: Iteration) -> None:
        num_samplers = 0  # all
        if self._tuner is not None:
            self._tuner.begin()
            num_samplers = self._backend.num_samplers(self._tuner.num_workers)
        start = EpochStart(begun.iteration, begun.epoch, begun.first, self.random_seed, num_samplers)
        self._backend.start_epoch(replace(start, trace=int(self._open_trace is not None)))

    def _refuse_fork(self) -> None:
        if not isinstance(self.options, RemoteDistSamplingWorkerOptions):  # clients say so themselves
            refuse_fork(self._pid, "iterate where the loader was created, or create it in the fork", "trainer")

    def _batches(
        self, begun: Iteration, counted_s: float, trace: Trace | None
    ) -> Generator[Data | HeteroData, None, None]:
        ahead: Message | GltError | None = None
        for index in range(begun.first, len(self)):
            if begun.iteration != self._position.iteration:
                raise RuntimeError(
                    "this iteration has ended: a newer one of the same loader began, or a state was loaded; iterate "
                    "over one at a time, and create a loader for each thread"
                )
            if self._closed:
                raise RuntimeError("the loader was shut down during this iteration")
            self._refuse_fork()
            if self._tuner is not None and self._tuner.measure((self._totals["epoch_s"], self._totals["wait_s"])):
                begun, ahead = self._position.begin_again(begun, index), None
                self._ask_for(begun)
            start = time.perf_counter()
            message = self._receive(begun.iteration, index, ahead)
            if self._copies is not None and index + 1 < len(self):
                ahead = self._look_ahead(begun.iteration, index + 1, self._copies)
            received = time.perf_counter()
            made = take_spans(message.tensors)
            batch = self._collate(message)
            collated_s = time.perf_counter()
            self._totals["wait_s"] += received - start
            self._totals["collate_s"] += collated_s - received
            if self.transform is not None:
                batch = self.transform(batch)
            self._position.deliver(begun, index)
            now_s = time.perf_counter()
            self._totals["epoch_s"] += now_s - counted_s
            counted_s = now_s
            if trace is None or not trace.is_open:
                yield batch
            else:
                trace.batch(index, made, received)
                trace.span("wait for batch", start, received, index)
                trace.span("collate", received, collated_s, index)
                if self.transform is not None:
                    trace.span("transform", collated_s, now_s, index)
                yield batch
                trace.span("train", now_s, time.perf_counter(), index)
        self._totals["epoch_s"] += time.perf_counter() - counted_s

    def _look_ahead(self, iteration: int, index: int, copies: DeviceCopies) -> Message | GltError | None:
        """The message of the batch after, if it is there already: on its way to the GPU while the trainer works on the
        one before. What is wrong with it is raised in its place."""
        try:
            while (message := self._backend.receive(index, wait=False)) is not None:
                if message.loader == iteration:
                    return copies.start(message) if message.kind is MessageKind.BATCH else message
        except GltError as error:
            return error
        return None

    def _receive(self, iteration: int, index: int, ahead: Message | GltError | None) -> Message:
        """The message of a batch of an iteration; those of iterations that were left early are dropped."""
        while True:
            try:
                if isinstance(ahead, GltError):
                    raise ahead
                message, ahead = ahead or self._backend.receive(index), None
                assert message is not None, "it waits"
                if message.loader != iteration:
                    continue
                message.raise_if_error()
            except GltError as error:
                serving = self._deployment.serving
                lost = error if serving is None else serving.tell(error)
                raise lost from error.__cause__
            if message.index != index:
                raise MessageError(f"batch {message.index} came in place of {index}: its sampler is another glt's")
            return message if self._copies is None else self._copies.start(message)

    def _traced_as(self) -> str:
        return self.context.worker_name

    def _collate(self, message: Message) -> Data | HeteroData:
        take_over(message)
        tensors = message.tensors
        self._count(tensors)
        with_written_rows(tensors, self._written, self.config)
        return self._to_device(self._made(tensors))

    def _made(self, tensors: dict[str, Tensor]) -> Data | HeteroData:
        return collate(tensors, self.data.schema, self.data.edge_dir, self.config.subgraph_type, self.custom_cls)

    def _count(self, tensors: dict[str, Tensor]) -> None:
        """Takes what a batch reports about its making out of its tensors."""
        self._totals["num_batches"] += 1
        self._totals["num_seeds"] += len(tensors[self.seeds.input_id])
        for name, value in zip(STATS, tensors.pop("stats").tolist(), strict=True):
            self._totals[name] += value

    def _to_device(self, data: Any) -> Any:
        if self.to_device is None or self.to_device == HOST:
            return data
        # Where it is, as a rule. From a GPU the CPU must wait: what it reads at once would not be there yet.
        return data.to(self.to_device, non_blocking=torch.device(self.to_device).type != "cpu")

    def stats(self) -> Stats:
        """Counts and times in seconds since the loader was created; what they print as says what limits the job.

        ``num_batches, num_seeds, num_nodes, num_edges`` received; ``epoch_s`` the trainer iterated, up to the batch
        that it was handed last; ``wait_s`` the trainer waited for batches,
        ``collate_s`` it made ``Data`` of them; summed over batches, on the samplers: ``sampling_s`` and
        ``gathering_s`` of native work, ``remote_s`` waiting for other partitions, ``blocked_s`` waiting for room in
        the channel: several batches wait at once, so that sums may exceed the time that passed. Of ``gathering_s``
        there were ``disk_s`` waiting for ``num_disk_rows`` of tables that stay on disk, ``disk_bytes`` read;
        ``num_hot_rows`` of them were in memory, the share ``hot_row_ratio``. ``remote_bytes`` came
        from other partitions. ``num_remote_nodes`` were nodes whose rows did, ``num_cached_nodes`` such of whose rows
        there were copies, in the partition's cache or kept since they were asked for, ``num_window_nodes`` such that
        had been asked for in the same ``gather_window`` (all 0 without ``collect_features``); these saved
        ``cached_bytes`` and ``window_bytes`` of rows, edges' included. ``remote_node_ratio`` is the share of all nodes
        that are remote, ``cache_hit_ratio`` that of cached ones among all three. ``channel_*`` are the counters of
        :meth:`glt.channel.Channel.stats`, summed over workers, until the loader is shut down; on servers, what is sent
        there has arrived at this client, and what keeps a sampler from sending is told by
        :func:`glt.distributed.server_stats`.
        """
        totals = {name: total if name.endswith("_s") else int(total) for name, total in self._totals.items()}
        channel = {} if self._closed else self._backend.stats()
        told = {f"channel_{name}": value for name, value in channel.items()}
        fixed = {"num_workers": getattr(self.options, "num_workers", 0)}
        workers = fixed if self._tuner is None else self._tuner.told()
        return Stats(with_ratios(totals) | told | workers)

    def shutdown(self) -> None:
        """Ends sampling, and the workers as soon as no living trainer needs this one's partition any more.

        Waits for that a few seconds; then it goes on in the background, and this process ends once it is done. May be
        called again.
        """
        self._closed = True
        if self._copies is not None:
            self._copies.close()
        if self._finalizer.detach() is not None:
            end(self._backend, self._deployment.serving)

    def __enter__(self) -> DistLoader:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._deployment.group is not None and self._finalizer.alive:
            # The others may be waiting for this trainer elsewhere, in a collective for example: to wait for them here
            # would hold back the exception that tells why.
            self._deployment.group.give_up(error)
        self.shutdown()

    @says
    def __repr__(self) -> str:
        who, order = self.context.worker_name, self.order
        batches = f"{len(order)} batches of {order.batch_size} {self._seed_kind}"
        told = options({"shuffle": order.shuffle, "drop_last": order.drop_last, "random_seed": self.random_seed})
        state = "shut down, " if self._closed else ""
        return f"{who}, {state}{self._deployment.mode}, {self.data!r}, {batches}, {self._says()}, {told}"

    def _says(self) -> str:
        return self.config.says()


def sampled_for(config: SamplingConfig, written: WrittenRows | None) -> SamplingConfig:
    """What to sample so that :func:`with_written_rows` finds the ids that it goes by."""
    return replace(config, with_edge=True) if written is not None and written.needs_edge_ids else config


def with_written_rows(tensors: dict[str, Tensor], written: WrittenRows | None, config: SamplingConfig) -> None:
    """Puts rows that were written since the graph was partitioned into the tensors of a message."""
    if written is None:
        return
    written.put(tensors)
    if not config.with_edge:
        for name in [each for each in tensors if each.startswith("e_id/")]:
            del tensors[name]


def collate(
    tensors: dict[str, Tensor], schema: Schema, edge_dir: str, subgraph_type: str, custom_cls: Any = None
) -> Data | HeteroData:
    """Makes a batch of the tensors of a message; nothing is copied, but for bidirectional ones."""
    counts = {"n": "num_sampled_nodes", "e": "num_sampled_edges"}
    per_hop = {kind: tensors.pop(name).tolist() for kind, name in counts.items() if name in tensors}
    data: Any = (custom_cls or (HeteroData if schema.is_hetero else Data))()
    stores = _stores(data, schema, edge_dir)
    for path, tensor in tensors.items():
        name, _, place = path.rpartition("/")
        if place not in stores:  # of seed edges
            stores[place] = data[schema.edge_types[int(place.removeprefix("l"))]]
        stores[place][name] = tensor
    for i in range(len(schema.node_types)):
        stores[f"n{i}"]["num_nodes"] = len(stores[f"n{i}"]["n_id"])
    for kind, by_type in per_hop.items():
        for i, each in enumerate(by_type):
            stores[f"{kind}{i}"][counts[kind]] = each
    if subgraph_type == "bidirectional":
        parts = [path.rpartition("/") for path in tensors]  # names may have slashes too
        columns = {name for name, _, place in parts if place.startswith("e")} - {"edge_index"}
        _make_bidirectional(data, columns)
    for frame in schema.frames:
        store = stores[f"{frame.level[0]}{frame.type_index}"]
        if frame.tables()[0] in store:  # of features that are collected
            join_all([frame], store)
    return data


def _stores(data: Any, schema: Schema, edge_dir: str) -> dict[str, Any]:
    if not schema.is_hetero:
        return dict.fromkeys(("n0", "e0", "l0"), data.stores[0])
    nodes = {f"n{i}": data[node_type] for i, node_type in enumerate(schema.node_types)}
    names = schema.edge_types if edge_dir == "in" else [reverse_edge_type(t) for t in schema.edge_types]
    edges = {f"e{i}": data[edge_type] for i, edge_type in enumerate(names)}
    return {**nodes, **edges}


def _make_bidirectional(data: Any, columns: set[str]) -> None:
    """Adds the reverses of all edges, as PyG does; of edges that it merges, attributes are lost where it loses them."""
    stores = data.stores if isinstance(data, Data) else data.edge_stores
    known = {store._key: store["edge_index"] for store in stores if "edge_index" in store}
    row, col = ({key: ends[i] for key, ends in known.items()} for i in (0, 1))
    position: dict[Any, Any] = {key: torch.arange(ends.shape[1], device=ends.device) for key, ends in known.items()}
    if isinstance(data, Data):
        (key,) = known
        one = bidirectional(SamplerOutput(torch.empty(0), row[key], col[key], position[key], None))
        row, col, position = {key: one.row}, {key: one.col}, {key: one.edge}
    else:
        several = HeteroSamplerOutput({}, row, col, position, None).to_bidirectional()
        row, col, position = several.row, several.col, several.edge or {}
    for store in stores:
        if store._key not in known:
            continue
        store["edge_index"] = torch.stack([row[store._key], col[store._key]])
        kept = position[store._key]
        for name in columns & set(store.keys()):
            if kept is None:
                del store[name]
            else:
                store[name] = store[name][kept]
