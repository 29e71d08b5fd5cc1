"""How far a sampler works ahead of its client."""

from __future__ import annotations

import threading

from glt.distributed.service.stream import Window


def test_so_many_are_sent_ahead_and_no_more() -> None:
    window = Window(3, 1000)
    for _ in range(3):
        assert window.wait_to_send(0.0)
        window.num_sent += 1
    assert not window.wait_to_send(0.01)
    window.taken(1)
    assert window.wait_to_send(0.0)
    window.num_sent += 1
    assert not window.wait_to_send(0.0)


def test_whoever_waits_goes_on_when_the_client_takes_one() -> None:
    window = Window(1, 1000)
    window.num_sent = 1
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(window.wait_to_send(60.0)))
    thread.start()
    window.taken(1)
    thread.join(60)
    assert results == [True]
