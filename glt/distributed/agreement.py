"""What the trainers of a loader find out about each other before it starts."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

from glt import _core
from glt.distributed.context import DistContext
from glt.distributed.dist_dataset import DistDataset, LocalPartition
from glt.distributed.options import TrainerWorkerOptions
from glt.distributed.rendezvous import Rendezvous, require_equal
from glt.errors import PartitionError, RendezvousError
from glt.sampler.order import draw_random_seed

logger = logging.getLogger(__name__)


class Agreement:
    """Makes sure that all trainers want the same, and finds out who must ask whom.

    Args:
        context: This trainer.
        data: Its partition.
        options: Where it samples.
        wanted: Options of the loader by name, as JSON; the same on all trainers.
        random_seed: As given to the loader.
        told: What the others are to know; JSON, may differ.

    Attributes:
        rendezvous: Where the trainers meet; None where this one is alone.
        random_seed: Of this trainer.
        told: What each trainer told, by rank.
        others, other_dirs: Partitions of other trainers, or of none, that are read here, by index, and where they are.
        meeting: The rendezvous if any trainer reads partitions through others; else None.

    Raises:
        ValueError: If a partition has no trainer, and cannot be read without one.
        glt.errors.RendezvousError: If the trainers do not find each other or were given different options.
        glt.errors.PeerLost: If one died or gave up.
    """

    def __init__(
        self,
        context: DistContext,
        data: DistDataset,
        options: TrainerWorkerOptions,
        wanted: dict[str, Any],
        random_seed: int | None,
        told: dict[str, Any],
    ) -> None:
        self.told = [told]
        self.context, self.data, self.options = context, data, options
        self.others: dict[int, LocalPartition] = {}
        self.other_dirs: dict[int, str] = {}
        self.rendezvous: Rendezvous | None = None
        self.meeting: Rendezvous | None = None
        if context.world_size == 1:
            missing = [part for part in range(data.num_partitions) if part != data.partition_idx]
            unread = self._read_unloaded(missing)
            if unread:
                raise ValueError(f"{context.worker_name}: {_unread(unread, data.num_partitions, [data.partition_idx])}")
            self.random_seed = int(_core.rank_seed(draw_random_seed(), 0)) if random_seed is None else int(random_seed)
            return
        self.rendezvous = Rendezvous(context, options.master_addr, options.master_port, options.rpc_timeout)
        try:
            self.random_seed = self._agree(self.rendezvous, wanted, random_seed, told)
        except BaseException as error:
            self.rendezvous.give_up(error)
            raise

    def _agree(
        self, rendezvous: Rendezvous, wanted: dict[str, Any], random_seed: int | None, told: dict[str, Any]
    ) -> int:
        context, data = self.context, self.data
        mine = {
            "group_name": context.group_name,
            "world_size": context.world_size,
            "mode": type(self.options).__name__,
            "num_workers": getattr(self.options, "num_workers", 0),
            "partitioning run": data.manifest.run_id,
            "whole_node_label_file": [labels is not None for labels in data.whole_node_labels],
            **wanted,
            "random_seed": "drawn once per job (None)" if random_seed is None else "given",
            "read_local": bool(self.options.read_local),
            "told": told,
            "partition_idx": data.partition_idx,
            "host_id": host_id(),
            "graph_dir": data.load_args["graph_dir"],
            "job_seed": draw_random_seed() if random_seed is None and context.rank == 0 else None,
        }
        everyone = rendezvous.exchange(mine)
        require_equal(everyone, context)
        self.told = [theirs["told"] for theirs in everyone]
        loaded = {theirs["partition_idx"] for theirs in everyone}
        missing = sorted(set(range(data.num_partitions)) - loaded)
        self._find_others(rendezvous, everyone, self._read_unloaded(missing))
        if random_seed is not None:
            return int(random_seed)
        return int(_core.rank_seed(everyone[0]["job_seed"], context.rank))

    def _read_unloaded(self, missing: list[int]) -> dict[int, str]:
        """Maps partitions that no trainer has loaded, where this one's directory holds them too; says, by index, why it
        cannot."""
        if not self.options.read_local:
            return dict.fromkeys(missing, "read_local=False")
        unread, graph_dir = {}, self.data.load_args["graph_dir"]
        for index in missing:
            try:
                self.others[index] = self.data.map_other(graph_dir, index)
                self.other_dirs[index] = graph_dir
            except (PartitionError, OSError) as error:
                unread[index] = str(error)
        return unread

    def _find_others(self, rendezvous: Rendezvous, everyone: list[dict[str, Any]], unread: dict[int, str]) -> None:
        """Maps what trainers of this host have mapped anyway, and finds out whether any trainer must ask another."""
        data, mine = self.data, everyone[self.context.rank]
        for theirs in everyone:
            index, graph_dir = theirs["partition_idx"], theirs["graph_dir"]
            if not self.options.read_local or theirs["host_id"] != mine["host_id"] or index == data.partition_idx:
                continue
            try:
                self.others[index] = data.map_other(graph_dir, index)
                self.other_dirs[index] = graph_dir
            except (PartitionError, OSError) as error:  # in another container of the same host, for example
                logger.info("%s: partition %d is read through its trainer: %s", self.context.worker_name, index, error)
        found = rendezvous.exchange({"num_read": 1 + len(self.others), "unread": list(unread.items())}, "reads")
        for rank, theirs in enumerate(found):
            if theirs["unread"]:
                loaded = [each["partition_idx"] for each in everyone]
                text = _unread(dict(theirs["unread"]), data.num_partitions, loaded)
                raise RendezvousError(f"{self.context.worker_name}: of trainer {rank}: {text}")
        if any(theirs["num_read"] < data.num_partitions for theirs in found):
            self.meeting = rendezvous


def _unread(unread: dict[int, str], num_partitions: int, loaded: list[int]) -> str:
    index, why = next(iter(unread.items()))
    return (
        f"partition_idx: no trainer loaded partitions {list(unread)} of {num_partitions} (loaded are, by rank, "
        f"{dict(enumerate(loaded))}), and they cannot be read here without one (partition {index}: {why}). Load each "
        "on at least one trainer, or have its files in everyone's graph_dir, with read_local=True"
    )


def host_id() -> str:
    """Tells hosts apart, and containers with names of their own."""
    return f"{socket.gethostname()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
