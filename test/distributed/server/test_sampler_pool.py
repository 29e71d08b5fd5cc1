"""The server's watch over its samplers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from promptness import eventually

from glt.distributed.server import pool as pool_module
from glt.distributed.server.loaders import ServedLoaders
from glt.distributed.server.membership import ReadPlan
from glt.distributed.server.pool import PoolMember, SamplerPool


def test_the_watch_goes_on_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    again = threading.Event()

    def look(pool: SamplerPool) -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")
        again.set()
        pool._closed = True

    monkeypatch.setattr(SamplerPool, "_look", look)
    pool = SamplerPool({"server_rank": 0}, 1, 1.0, lambda worker, text: None)
    assert again.wait(60)
    pool.close()


def test_a_sampler_without_descriptors_is_given_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients are told so, who would try again in vain for minutes."""
    monkeypatch.setattr(pool_module, "_FULL_S", 3600.0)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process: Any = SimpleNamespace(pid=1, poll=lambda: None, wait=lambda timeout: 0, terminate=int, kill=int)
    pool = SamplerPool({"server_rank": 0}, 1, 60.0, lambda worker, text: None)
    pool._members[0] = PoolMember(0, process, mine, is_ready=True)
    loaders = ServedLoaders(pool, "server 0", 8, 1 << 30)
    session: Any = SimpleNamespace(id="s", group="g", rank=0)
    told: Mapping[str, Any] = {
        "prefetch_size": 1, "concurrency": 1, "buffer_bytes": 1, "order": {"num_seeds": 3},
    }  # fmt: skip
    with theirs:
        loader = loaders.open(session, told, {"ids": torch.arange(3)}, {}, 1, ReadPlan({}, ()))
        assert loaders.hand_over(loader.id, "s", 0, theirs.fileno(), {}) is None
        theirs.send(json.dumps({"full": True}).encode())
        assert eventually(lambda: pool.is_full(0))
        wrong = loaders.hand_over(loader.id, "s", 0, theirs.fileno(), {})
        assert wrong is not None and "worker 0 of server 0 is out of file descriptors" in wrong
        loaders.close_all("the end")
        theirs.send(json.dumps({"ended": f"{loader.id}/1", "stats": {}}).encode())
        assert eventually(lambda: not pool.is_full(0))
        pool.close()
