"""Servers as actors of Ray: Ray places and restarts them, Ray Train starts trainers, glt samples."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal
from uuid import uuid4

from glt import _deadlines as deadlines
from glt._checks import check_at_least, check_count, check_one_of, real_number
from glt.distributed.context import DistContext
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S
from glt.distributed.server.api import init_client, init_server, wait_and_shutdown_server
from glt.distributed.server.options import ServerOptions
from glt.distributed.wire.credentials import TlsOptions
from glt.errors import RendezvousError
from glt.partition.format.manifest import Manifest
from glt.partition.format.remote import local_directory
from glt.testing.cluster import free_port

__all__ = ["Servers", "serve"]

_STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")


@dataclass(frozen=True)
class Servers:
    """Where the servers of :func:`serve` are. It may be sent to tasks, actors and train loops.

    Attributes:
        num_servers: How many there are.
        master_addr, master_port: Of server 0. They stay when Ray restarts it.
        token_file, tls: As in the servers' options. The file is on each node.

    Example:
        >>> glt.ray.Servers(2, "10.0.0.1", 29540)
        Servers(num_servers=2, master_addr='10.0.0.1', master_port=29540, token_file=None, tls=None)
    """

    num_servers: int
    master_addr: str
    master_port: int
    token_file: str | os.PathLike[str] | None = None
    tls: TlsOptions | None = None

    def init_client(
        self,
        num_clients: int | None = None,
        client_rank: int | None = None,
        *,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S,
    ) -> DistContext:
        """Makes this process a client of the servers, as :func:`glt.distributed.init_client` does.

        Args:
            num_clients, client_rank: Default: the world size and rank that Ray Train gave this worker. A process that
                it has not started, such as an actor of Ray Data, is alone: client 0 of 1, in a group of its own.
            rpc_timeout: As there.

        Example:
            >>> servers = glt.ray.Servers(1, "localhost", int(os.environ["MASTER_PORT"]))
            >>> servers.init_client(num_clients=1, client_rank=0).world_size
            1
            >>> glt.distributed.shutdown_client()
        """
        group = "ray"
        if num_clients is None and client_rank is None:
            num_clients, client_rank, group = _place_in_ray()
        return init_client(
            self.num_servers,
            num_clients,  # type: ignore[arg-type]  # it names one that lacks
            client_rank,  # type: ignore[arg-type]
            self.master_addr,
            self.master_port,
            client_group_name=group,
            rpc_timeout=rpc_timeout,
            token_file=self.token_file,
            tls=self.tls,
        )


@contextmanager
def serve(
    graph_dir: str | os.PathLike[str],
    num_servers: int,
    *,
    resources_per_server: Mapping[str, float] | None = None,
    placement_strategy: Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"] = "SPREAD",
    max_restarts: int = -1,
    master_port: int | None = None,
    options: ServerOptions | None = None,
) -> Iterator[Servers]:
    """Runs servers as actors of Ray, for any number of clients, until the ``with`` block ends.

    Server ``r`` loads partition ``r`` modulo their number, and has a bundle of a placement group. Its sampling
    processes are children of its actor's process. All of it ends with the block, or with the program that called this.

    Args:
        graph_dir: What a partitioner wrote, or its URL. Nodes read it, not this program.
        num_servers: How many. Twice as many as partitions are two replicas of each.
        resources_per_server: What Ray reserves for each, by name, as ``ScalingConfig(resources_per_worker=...)`` takes
            it. Default: a CPU for each of ``options.num_workers``.
        placement_strategy: Of the placement group. Default: on different nodes, as far as there are some.
        max_restarts: How often Ray starts a server again that died; -1: always.
        master_port: Port of server 0. Default: one is found.
        options: How servers work. ``max_workers`` is by default the CPUs that Ray reserves for each.

    Yields:
        Servers: Where they are, when all of them take clients.

    Raises:
        ImportError: Without Ray: ``pip install 'glt-graph[ray]'``.
        TypeError, ValueError: If an argument is wrong; names it.
        glt.errors.RendezvousError: If nodes have no room for them, or they are not ready, within ``rpc_timeout`` of
            ``options``.
        ray.exceptions.RayActorError: If a server does not start; has its traceback.

    Example:
        >>> with glt.ray.serve("/data/parts", num_servers=2) as servers:  # doctest: +SKIP
        ...     TorchTrainer(train, train_loop_config={"servers": servers}, scaling_config=scaling).fit()
    """
    check_at_least("num_servers", num_servers, 1)
    check_at_least("max_restarts", max_restarts, -1)
    check_one_of("placement_strategy", placement_strategy, _STRATEGIES)
    if master_port is not None:
        check_count("master_port", master_port, 1, 65535)
    if options is not None and not isinstance(options, ServerOptions):
        raise TypeError(f"options has type {type(options).__name__}: expected a ServerOptions")
    options = options or ServerOptions()
    wanted = {"CPU": options.num_workers} if resources_per_server is None else _checked(resources_per_server)
    if options.max_workers is None:
        options = replace(options, max_workers=max(options.num_workers, int(wanted.get("CPU", 0))))
    ray = _ray()
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    deadline = time.monotonic() + options.rpc_timeout
    with ExitStack() as made:
        group = placement_group([wanted] * num_servers, strategy=placement_strategy)
        made.callback(remove_placement_group, group)
        if not group.wait(options.rpc_timeout):
            raise RendezvousError(
                f"Ray found no room for num_servers = {num_servers} with resources_per_server = {wanted}, "
                f"{placement_strategy}, within {options.rpc_timeout:g} s: free are {ray.available_resources()} of "
                f"{ray.cluster_resources()}; ask for less, or add nodes"
            )
        bundles = [
            PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank) for rank in range(num_servers)
        ]
        find = ray.remote(num_cpus=0, scheduling_strategy=bundles[0])(_find_place)
        left_s = max(0.0, deadline - time.monotonic())
        try:
            master: tuple[str, int] = ray.get(find.remote(master_port), timeout=left_s)
        except ray.exceptions.GetTimeoutError as error:
            raise RendezvousError(
                f"the node of server 0 has not told its address (waited {options.rpc_timeout:g} s): the logs of Ray's "
                "workers say what it does"
            ) from error
        actors: list[Any] = []
        made.callback(_end, ray, actors)
        limits = {"num_cpus": wanted.pop("CPU", 0), "num_gpus": wanted.pop("GPU", 0), "resources": wanted}
        if "memory" in wanted:
            limits["memory"] = wanted.pop("memory")
        make = ray.remote(**limits, max_restarts=max_restarts)(_Server)
        for rank, bundle in enumerate(bundles):
            given = replace(options, port=0) if rank == 0 else options
            placed = make.options(scheduling_strategy=bundle)
            actors.append(placed.remote(os.fspath(graph_dir), num_servers, rank, master, given))
        _wait_until_ready(ray, actors, deadline, options.rpc_timeout)
        yield Servers(num_servers, *master, options.token_file, options.tls)


def _checked(resources: Mapping[str, float]) -> dict[str, float]:
    """Ray itself aborts a node that is asked for less than nothing."""
    if not isinstance(resources, Mapping):
        kind = type(resources).__name__
        raise TypeError(f"resources_per_server has type {kind}: expected numbers by name, such as {{'CPU': 4}}")
    for name, value in resources.items():
        real_number(f"resources_per_server[{name!r}]", value)
    if not any(resources.values()):
        raise ValueError(f"resources_per_server = {resources!r}: expected some, such as {{'CPU': 4}}, or None")
    return dict(resources)


class _Server:
    """An actor. Ray makes it again, with the same arguments, when its process has died."""

    def __init__(
        self, graph_dir: str, num_servers: int, rank: int, master: tuple[str, int], options: ServerOptions
    ) -> None:
        part = rank % Manifest.read(local_directory(graph_dir, None)).num_parts
        init_server(num_servers, None, rank, DistDataset().load(graph_dir, part), *master, options=options)

    def is_ready(self) -> bool:
        return True

    def stop(self) -> None:
        wait_and_shutdown_server(0.0)


def _find_place(port: int | None) -> tuple[str, int]:
    """Address of this node, and a port that no connection of it will take while server 0 is restarted."""
    return _ray().util.get_node_ip_address(), port or free_port()


def _wait_until_ready(ray: ModuleType, actors: Sequence[Any], deadline: float, timeout_s: float) -> None:
    waiting = {actor.is_ready.remote(): rank for rank, actor in enumerate(actors)}
    while waiting:
        ready, _ = ray.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RendezvousError(
                f"servers of rank {sorted(waiting.values())} of {len(actors)} are not ready (waited {timeout_s:g} s): "
                "the logs of Ray's workers say what they do"
            )
        for each in ready:
            ray.get(each)
            del waiting[each]


def _end(ray: ModuleType, actors: Sequence[Any]) -> None:
    if not ray.is_initialized():
        return  # its shutdown has ended the actors
    ends = [actor.stop.remote() for actor in actors]
    if ends:
        ray.wait(ends, num_returns=len(ends), timeout=deadlines.JOIN_S)  # one that is being restarted gives no answer
    for actor in actors:
        ray.kill(actor)


def _place_in_ray() -> tuple[int, int, str]:
    """How many are in the group of this process, its rank, and the group's name."""
    _ray()
    from ray.train import get_context

    try:
        context = get_context()
        return context.get_world_size(), context.get_world_rank(), "ray"
    except RuntimeError:  # it is no worker of Ray Train
        return 1, 0, f"ray-{uuid4().hex}"


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise ImportError("glt.ray needs Ray: pip install 'glt-graph[ray]'") from error
    return ray
