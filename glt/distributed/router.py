"""Which process to ask for what a partition owns."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from torch import Tensor

from glt.channel.message import read_message
from glt.distributed.requests import Request
from glt.distributed.transport import Peer, Transport


class PartitionRouter:
    """Sends requests to a process that serves the partition.

    Args:
        transport: Carries them.
        peers: All processes that serve partitions, this one among them.
        me: This process. Among several that serve a partition it keeps to one, others to others.

    Raises:
        ValueError: If a partition is served by nobody; names it.
    """

    def __init__(self, transport: Transport, peers: Sequence[Peer], me: Peer, num_partitions: int) -> None:
        self.transport = transport
        self.peer_of: list[Peer] = []
        for part in range(num_partitions):
            serving = [peer for peer in peers if peer.partition_idx == part]
            if not serving:
                loaded = sorted({peer.partition_idx for peer in peers})
                raise ValueError(
                    f"partition_idx: nobody loaded partition {part} of {num_partitions}; the trainers loaded {loaded}. "
                    "Load each partition on at least one trainer"
                )
            same_worker = [peer for peer in serving if peer.worker == me.worker] or serving
            self.peer_of.append(same_worker[me.rank % len(same_worker)])

    def ask(self, part: int, requests: Sequence[Request]) -> list[Future[Tensor]]:
        """Asks the owner of a partition several things at a time."""
        calls = [(request.method, request.encode()) for request in requests]
        return self.transport.call_all(self.peer_of[part], calls)


def tensors_of(reply: Tensor) -> dict[str, Tensor]:
    """The tensors of a reply, which alias its bytes; raises what the peer raised, with its traceback in the text."""
    message = read_message(reply)
    message.raise_if_error()
    return message.tensors
