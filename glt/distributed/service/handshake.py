"""How two processes of the service begin to talk: who they are, which glt they run, and whether they get along."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import glt
from glt.distributed.service.address import printed
from glt.distributed.service.connection import Connection, pulse
from glt.errors import ChannelTimeout, ConnectionLost, MessageError, PeerLost, RendezvousError

PROTOCOL = 1
HANDSHAKE_S = 10.0
_RETRY_S = 0.1


def introduce(kind: str, **more: Any) -> dict[str, Any]:
    """The first frame of whoever connects."""
    me = {"host": socket.gethostname(), "pid": os.getpid()}
    return {"protocol": PROTOCOL, "version": glt.__version__, "kind": kind, **me, **more}


def require_same_version(theirs: dict[str, Any], who: str) -> None:
    """Raises RendezvousError unless the other side runs a glt that this one understands; names both versions."""
    mine = PROTOCOL, _series(glt.__version__)
    if (theirs.get("protocol"), _series(str(theirs.get("version")))) != mine:
        raise RendezvousError(
            f"{who} runs glt {theirs.get('version')} (protocol {theirs.get('protocol')}), this process runs glt "
            f"{glt.__version__} (protocol {PROTOCOL}) on {socket.gethostname()}: install the same glt on all hosts"
        )


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def dial(
    address: tuple[str, int], peer: str, hello: dict[str, Any], timeout_s: float, *, max_bytes: int = 1 << 20,
    retry: bool = True,
) -> tuple[Connection, dict[str, Any]]:  # fmt: skip
    """Connects to a server, introduces this process and returns the connection with the server's answer.

    Args:
        address: Host and port.
        peer: Who is expected there, as errors name it.
        hello: What :func:`introduce` made.
        timeout_s: Deadline in seconds.
        max_bytes: Longest message that is taken from there.
        retry: Try until the deadline where nothing listens yet.

    Raises:
        glt.errors.RendezvousError: If it refuses; or if nothing listens there, or no server, before the deadline.
        glt.errors.PeerLost: If ``retry`` is false, and nothing listens there or the connection breaks meanwhile.
    """
    host, where = address[0], printed(*address)
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        try:
            sock = socket.create_connection(address, timeout=max(0.1, min(left, HANDSHAKE_S)))
        except socket.gaierror as error:
            raise RendezvousError(f"{peer}: there is no host {host!r} ({error}); check master_addr") from error
        except OSError as error:
            if not retry:
                raise PeerLost(f"{peer} cannot be reached at {where}: {error}") from error
            if left <= 0:
                raise RendezvousError(
                    f"{peer} was not reached at {where} within {timeout_s:g} s ({error}): does it run, and do "
                    "master_addr and master_port name the host and port of server 0?"
                ) from error
            time.sleep(_RETRY_S)
            continue
        connection = Connection(sock, peer, max_bytes)
        try:
            connection.send(hello, HANDSHAKE_S)
            # Servers answer when they know what to say, which may take them as long as we wait.
            answer = _answer(connection, max(HANDSHAKE_S, deadline - time.monotonic()))
        except ConnectionLost as error:
            connection.close()
            if retry and time.monotonic() < deadline:
                time.sleep(_RETRY_S)  # it is starting, or being replaced
                continue
            kind = RendezvousError if retry else PeerLost
            raise kind(f"{error}; it ended during the handshake") from error
        except (MessageError, ChannelTimeout) as error:
            connection.close()
            raise RendezvousError(
                f"what listens at {where} is no server of glt, or gave no answer: {error}; check master_addr and "
                "master_port"
            ) from error
        if "refused" in answer:
            connection.close()
            if answer.get("is_ending") and retry and time.monotonic() < deadline:
                time.sleep(_RETRY_S)  # another may take its place
                continue
            raise RendezvousError(f"{peer} at {where} refused: {answer['refused']}")
        try:
            require_same_version(answer, peer)
        except RendezvousError:
            connection.close()
            raise
        pulse.add(connection)
        return connection, answer


def _answer(connection: Connection, timeout_s: float) -> dict[str, Any]:
    answer = connection.receive_json(timeout_s)
    if "protocol" not in answer and "refused" not in answer:
        raise MessageError(f"{connection.peer} answered {sorted(answer)}, which is no handshake")
    return answer
