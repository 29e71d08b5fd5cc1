"""Requests between samplers, and what carries them: connections of glt's own, or ``torch.distributed.rpc``.

Nothing above :class:`Transport` knows which.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch import Tensor

from glt.distributed.wire.credentials import current_credentials

TRANSPORTS: Final = ("tcp", "rpc")
DEFAULT_TRANSPORT: Final = "tcp"  # docs/design.md says why

# Takes the bytes of a request and returns those of the reply: one-dimensional uint8 tensors.
Handler = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A process that answers requests, as errors name it.

    Attributes:
        name: Unique in the job.
        rank: The trainer that it samples for, or the server that it is.
        worker: Which of that trainer's samplers it is; None: the trainer or server itself.
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
    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[asyncio.Future[Tensor]]:
        """Sends requests, ``(method, bytes)`` each, together. On the loop of this process
        (:mod:`glt.distributed.wire.threads`), where the replies are awaited too.

        A future gives the reply, an error message if the handler raised; or it raises :class:`glt.errors.PeerLost`,
        naming the peer, when that is gone or silent past the deadline."""

    @abstractmethod
    def close(self, gracefully: bool = False) -> None:
        """Stops serving and calling; may be called again, from any thread. ``gracefully``: all peers are closing too,
        and are waited for, a few seconds at most, where one would otherwise see a connection break."""


def chosen_transport(told: str | None) -> str:
    """The transport between samplers of trainers: what a loader was told, else ``GLT_TRANSPORT``, else the default.

    Raises:
        ValueError: If the environment names no transport; or if ``rpc`` is asked for, which proves and encrypts
            nothing, and this process has a token, TLS or ``require_auth``.
    """
    name, value = "transport", told
    if told is None and (value := os.environ.get("GLT_TRANSPORT") or None) is not None:
        name = "GLT_TRANSPORT"
        if value not in TRANSPORTS:
            raise ValueError(f"GLT_TRANSPORT = {value!r}: expected one of {list(TRANSPORTS)}")
    credentials = current_credentials()
    has = "a token" if credentials.token_file else "TLS" if credentials.tls else ""
    has = has or ("require_auth" if credentials.require_auth else "")
    if not has:
        return value or DEFAULT_TRANSPORT
    if value == "rpc":
        raise ValueError(
            f"{name} = 'rpc': torch.distributed.rpc asks for no proof and encrypts nothing, and this job has {has}; "
            "use 'tcp', or leave it out; or, on a network that you trust, start the job without: glt launch makes no "
            "token with --extra-envs GLT_TRANSPORT=rpc"
        )
    return "tcp"
