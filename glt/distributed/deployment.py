"""Where the samplers of a loader are: beside the trainer, in processes of its own, or on servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from glt import _core
from glt.channel.message import Message
from glt.data.device import Accelerator, accelerator_of, missing_for_cuda
from glt.distributed.agreement import Agreement
from glt.distributed.batch_start import Seeds
from glt.distributed.collocated import CollocatedSampler
from glt.distributed.context import DistContext, DistRole
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.epoch_start import EpochStart
from glt.distributed.loader_data import LoaderData
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from glt.distributed.rendezvous import Rendezvous
from glt.distributed.seed_table import SeedTable
from glt.distributed.server_client import require_client
from glt.distributed.service.remote_dataset import RemoteDataset
from glt.distributed.service.remote_sampler import RemoteSampler
from glt.distributed.worker_group import WorkerGroup
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder, draw_random_seed


class Backend(Protocol):
    """What makes the batches of a loader."""

    def start_epoch(self, start: EpochStart) -> None: ...

    def receive(self, index: int, wait: bool = True) -> Message | None: ...

    def drain(self) -> None: ...

    def stats(self) -> dict[str, float]: ...

    def close(self, all_finished: bool = False) -> None: ...


class Deployment(ABC):
    """One way of deploying a loader.

    Args:
        context: This process.
        data: The graph.
        options: Where and how to sample.
        wanted: Options of the loader by name, as JSON.
        random_seed: As given to the loader.
        told: What other trainers are to know of this one; JSON.

    Attributes:
        mode: What it is called.
        random_seed: Of this trainer.
        told: What each trainer told, by rank; this one's alone where trainers do not meet.
        rendezvous: Where the trainers meet; None where they do not.
        meeting: The same if any trainer reads partitions through others; else None.
    """

    mode: ClassVar[str]
    random_seed: int
    told: list[dict[str, Any]]
    rendezvous: Rendezvous | None = None
    meeting: Rendezvous | None = None

    def __init__(
        self, context: DistContext, data: Any, options: Any, wanted: dict[str, Any], random_seed: int | None,
        told: dict[str, Any],
    ) -> None:  # fmt: skip
        self.context, self.data, self.options = context, data, options

    @abstractmethod
    def start(
        self, config: SamplingConfig, order: SeedOrder, seeds: Seeds, table: SeedTable, collect_features: bool,
        to_device: Accelerator | None,
    ) -> Backend:  # fmt: skip
        """Starts the samplers.

        Args:
            config, order, seeds, table, collect_features: What to sample.
            to_device: The GPU that batches go to.
        """


class _AmongTrainers(Deployment):
    def __init__(
        self, context: DistContext, data: DistDataset, options: Any, wanted: dict[str, Any], random_seed: int | None,
        told: dict[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(context, data, options, wanted, random_seed, told)
        self.agreement = agreed = Agreement(context, data, options, wanted, random_seed, told)
        self.random_seed, self.told = agreed.random_seed, agreed.told
        self.rendezvous, self.meeting = agreed.rendezvous, agreed.meeting
        self.num_rpc_threads = options.rpc_threads(data.num_partitions)


class Collocated(_AmongTrainers):
    """On threads of the trainer."""

    mode = "collocated"

    def start(
        self, config: SamplingConfig, order: SeedOrder, seeds: Seeds, table: SeedTable, collect_features: bool,
        to_device: Accelerator | None,
    ) -> Backend:  # fmt: skip
        wanted = self.options.device
        return CollocatedSampler(
            self.context, self.data, config, order, seeds, table, collect_features, self.options.worker_concurrency,
            self.meeting, self.num_rpc_threads, self.options.rpc_timeout, self.agreement.others,
            accelerator=accelerator_of(self.data.sampling_device if wanted is None else wanted, "device"),
            pinned=to_device is not None and not to_device.is_host,
        )  # fmt: skip


class InWorkers(_AmongTrainers):
    """In processes of the trainer."""

    mode = "worker mode"

    def start(
        self, config: SamplingConfig, order: SeedOrder, seeds: Seeds, table: SeedTable, collect_features: bool,
        to_device: Accelerator | None,
    ) -> Backend:  # fmt: skip
        options, meeting = self.options, self.meeting
        spec = {
            "rank": self.context.rank,
            "num_trainers": self.context.world_size,
            "group_name": self.context.group_name,
            "dataset": self.data.to_json(),
            "other_dirs": self.agreement.other_dirs,
            "config": config.to_json(),
            "seeds": seeds.to_json(),
            "order": asdict(order),
            "collect_features": collect_features,
            "concurrency": options.worker_concurrency,
            "store": None if meeting is None else [meeting.addr, meeting.port, meeting.prefix],
            "num_rpc_threads": self.num_rpc_threads,
            "timeout_s": options.rpc_timeout,
        }
        devices = options.devices
        if devices is None:
            place = accelerator_of(self.data.sampling_device, "graph_mode = 'CUDA'")
            devices = ["cpu" if place is None else str(place)] * options.num_workers
        on_gpu = any(device != "cpu" for device in devices)
        if on_gpu:
            self.data.require_for_gpu()
        to_gpu = None if to_device is None or to_device.is_host else to_device.device
        pin_for: Any = (to_gpu or "cuda") if options.pin_memory or (to_gpu is not None and on_gpu) else None
        if missing_for_cuda() is not None:
            pin_for = None
        check_peers = (lambda: None) if meeting is None else meeting.check_peers
        return WorkerGroup(spec, devices, table, options.channel_bytes, pin_for, check_peers)


class OnServers(Deployment):
    """In processes of servers. Clients need not create the same loaders, and do not meet."""

    mode = "on servers"

    def __init__(
        self, context: DistContext, data: RemoteDataset, options: Any, wanted: dict[str, Any], random_seed: int | None,
        told: dict[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(context, data, options, wanted, random_seed, told)
        self.told = [told]
        drawn = draw_random_seed() if random_seed is None else random_seed
        self.random_seed = int(_core.rank_seed(drawn, context.rank) if random_seed is None else drawn)

    def start(
        self, config: SamplingConfig, order: SeedOrder, seeds: Seeds, table: SeedTable, collect_features: bool,
        to_device: Accelerator | None,
    ) -> Backend:  # fmt: skip
        options, client = self.options, require_client()
        ranks = options.ranks(self.context.rank, client.num_servers)
        return RemoteSampler(
            client, ranks, options.num_workers, config, order, seeds, table, collect_features,
            options.worker_concurrency, options.buffer_bytes, options.prefetch_size, options.rpc_timeout,
            options.devices,
        )  # fmt: skip


DEPLOYMENTS: Mapping[type, type[Deployment]] = {
    MpDistSamplingWorkerOptions: InWorkers,
    CollocatedDistSamplingWorkerOptions: Collocated,
    RemoteDistSamplingWorkerOptions: OnServers,
}


def deployment_of(options: Any) -> type[Deployment]:
    """Returns how a loader with these options is deployed.

    Raises:
        TypeError: If they are no worker options.
    """
    for kind, deployment in DEPLOYMENTS.items():
        if isinstance(options, kind):
            return deployment
    names = [kind.__name__ for kind in DEPLOYMENTS]
    raise TypeError(f"worker_options has type {type(options).__name__}: expected one of {names}")


def default_options(context: DistContext) -> Any:
    """Where a process samples that was told nothing: a client on servers, a trainer in a worker process."""
    return RemoteDistSamplingWorkerOptions() if context.role is DistRole.CLIENT else MpDistSamplingWorkerOptions()


def graph_of(data: Any, options: Any, context: DistContext) -> LoaderData:
    """Returns the graph of a loader: ``data``, or what servers hold.

    Raises:
        TypeError, ValueError: If there is none, or two.
    """
    on_servers = deployment_of(options) is OnServers
    if on_servers != (context.role is DistRole.CLIENT):
        this = f"this process is {context.worker_name}, a {context.role.value}"
        raise ValueError(
            f"worker_options are RemoteDistSamplingWorkerOptions, but {this}: call init_client(...) in place of "
            "what made it that"
            if on_servers
            else f"worker_options are {type(options).__name__}, but {this}: give RemoteDistSamplingWorkerOptions"
        )
    if not on_servers:
        if not isinstance(data, DistDataset):
            raise TypeError(f"data has type {type(data).__name__}: expected a DistDataset")
        _ = data.load_args  # raises if it is empty
        return data
    if data is not None:
        raise ValueError(
            f"data has type {type(data).__name__}, but servers sample from the partitions that they have: leave it None"
        )
    return require_client().dataset()
