"""Requests between samplers. Nothing above this interface knows what carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

# Takes the bytes of a request and returns those of the reply: one-dimensional uint8 tensors.
Handler = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A process that answers requests, as errors name it.

    Attributes:
        name: Unique in the job.
        rank: The trainer that it samples for, or the server that it is.
        worker: Which of that trainer's samplers it is; None: the trainer or server itself.
        host, pid: Where it runs.
        partition_idx: The partition that it serves.
        role: What has that rank.
    """

    name: str
    rank: int
    worker: int | None
    host: str
    pid: int
    partition_idx: int
    role: str = "trainer"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        of = f"{self.role} {self.rank}"
        who = of if self.worker is None else f"worker {self.worker} of {of}"
        return f"{who} (partition {self.partition_idx}, host {self.host}, pid {self.pid})"


class Transport(ABC):
    """Carries requests to named peers and their replies back; replies are pure functions of requests.

    An implementation is given its handlers when it is opened, before any peer can ask, and answers with no others.
    """

    @abstractmethod
    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        """Sends requests, ``(method, bytes)`` each, together. A future gives the reply, an error message if the handler
        raised; or it raises :class:`glt.errors.PeerLost`, naming the peer, when that is gone or silent past the
        deadline."""

    @abstractmethod
    def close(self, gracefully: bool = False) -> None:
        """Stops serving and calling. May be called again.

        Args:
            gracefully: All peers are closing too: wait for them, a few seconds at most, so that nobody sees a
                connection break.
        """
