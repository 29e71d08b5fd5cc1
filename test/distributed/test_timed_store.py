"""Calls of stores end, whoever hosts them; and stores that cannot check are waited on."""

import threading
import time

import pytest
import torch.distributed as dist

from glt.distributed.job.initialize import Ending
from glt.distributed.wire.store import TimedStore
from glt.errors import RendezvousError


class Stopped(dist.Store):
    """As of a stopped process: it never answers."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()

    def check(self, keys):
        self.asked.wait(60.0)
        return True


class Unable(dist.Store):
    """It has what torch's stores must have, and cannot check."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout):
        deadline = time.monotonic() + timeout.total_seconds()
        while keys[0] not in self.values:
            if time.monotonic() > deadline:
                raise RuntimeError("wait timeout")
            time.sleep(0.01)


def test_a_store_that_does_not_answer_is_given_up():
    stopped = Stopped()
    store = TimedStore(stopped, 0.2)
    began = time.monotonic()
    for _ in range(2):  # the second one does not wait at all
        with pytest.raises(dist.DistError, match=r"no answer within 0\.2 s"):
            store.check(["key"])
    assert time.monotonic() - began < 30
    stopped.asked.set()


def test_waiting_for_a_key():
    inner = dist.HashStore()
    store = TimedStore(inner)
    assert store.wait_for("key", 0.1) is None
    store.set("key", "value")
    assert store.wait_for("key", 0.1) == b"value"

    def look():
        raise RendezvousError("it will never be")

    with pytest.raises(RendezvousError, match="it will never be"):
        store.wait_for("other", 60.0, look)


def test_waiting_where_the_store_cannot_check():
    unable = Unable()
    store = TimedStore(unable)
    assert store.wait_for("key", 0.1) is None
    unable.values["key"] = b"7"
    assert store.wait_for("key", 0.1) == b"7"


def test_its_thread_ends_with_it():
    before = threading.active_count()
    store = TimedStore(dist.HashStore())
    assert threading.active_count() == before + 1
    del store
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_errors_that_were_there_before_end_nothing():
    try:
        raise ValueError("before")
    except ValueError:
        ending = Ending()
        assert ending.why() == ""
    try:
        raise ValueError("after")
    except ValueError:
        assert ending.why() == "ValueError: after"
    assert ending.why() == ""
