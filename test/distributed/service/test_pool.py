"""The server's watch over its samplers."""

from __future__ import annotations

import threading

import pytest

from glt.distributed.service.pool import SamplerPool


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
