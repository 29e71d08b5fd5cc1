"""What Prometheus reads of a server."""

import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest

import glt
from glt.distributed.server.membership import ServerEntry
from glt.distributed.server.stats import COUNTERS, GAUGES, RATES, MetricsEndpoint
from glt.errors import RendezvousError
from glt.testing.cluster import free_port

parser = pytest.importorskip("prometheus_client.parser")

ENTRY = ServerEntry(1, "127.0.0.1", 1, "here", 7, "h", 0, "/parts", "run", 2, None)


TENSOR_NUMBERS = ("num_rows", "num_bytes", "num_reads", "num_writes", "read_bytes", "written_bytes")


def row(number):
    return {**dict.fromkeys((*COUNTERS, *GAUGES, *RATES, "remote_node_ratio", "cache_hit_ratio"), number), "pid": 7}


def stats():
    return {
        "uptime_s": 5.0, "num_clients": 2, "num_loaders": 1, "num_workers": 1, "num_restarts": 4, "is_draining": False,
        "totals": row(9.0), "loaders": {'g-0-"1\n': row(3.0)}, "workers": {"0": row(9.0)},
        "tensors": {"emb": dict(zip(TENSOR_NUMBERS, range(1, 7), strict=True))},
    }  # fmt: skip


def threads():
    """Those of this process; the timers are pytest's."""
    return {each for each in threading.enumerate() if not isinstance(each, threading.Timer)}


@pytest.fixture
def endpoint():
    before = threads()
    opened = MetricsEndpoint(stats, ENTRY, "127.0.0.1", 0)
    yield opened
    opened.close()
    opened.close()
    assert threads() <= before  # one of an earlier test may have ended meanwhile


def read(address, path="/metrics"):
    with urllib.request.urlopen("http://{}:{}{}".format(*address, path), timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_number_is_published_by_scope(endpoint):
    found = read(endpoint.address)
    assert found["glt_server_uptime_seconds", ()] == 5
    assert found["glt_server_clients", ()] == 2 and found["glt_server_worker_restarts_total", ()] == 4
    about = {"host": "here", "partition": "0", "pid": "7", "server": "1", "version": glt.__version__}
    assert found["glt_server_info", tuple(about.items())] == 1
    loader, worker = ("loader", 'g-0-"1\n'), ("worker", "0")
    for scope, labels, value in (("server", (), 9), ("loader", (loader,), 3), ("worker", (worker,), 9)):
        for name in ("batches_total", "errors_total", "sent_bytes_total", "remote_bytes_total", "nodes_total",
                     "queued_batches", "queued_bytes", "running_batches", "unread_batches", "batches_per_second",
                     "bytes_per_second", "remote_node_ratio", "cache_hit_ratio", "cached_nodes_total"):  # fmt: skip
            assert found[f"glt_{scope}_{name}", labels] == value, (scope, name)
        for stage in ("sampling", "gathering", "remote", "blocked"):
            assert found[f"glt_{scope}_stage_seconds_total", tuple(sorted((*labels, ("stage", stage))))] == value


def test_tensors_are_published_by_name(endpoint):
    found = read(endpoint.address)
    names = ("rows", "bytes", "reads_total", "writes_total", "read_bytes_total", "written_bytes_total")
    assert [found[f"glt_tensor_{name}", (("tensor", "emb"),)] for name in names] == [1, 2, 3, 4, 5, 6]


def test_nothing_else_is_answered(endpoint):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(endpoint.address, "/")
    with socket.create_connection(endpoint.address, timeout=30) as line:
        line.sendall(b"POST /metrics HTTP/1.0\r\n\r\n")
        assert b"501" in line.recv(4096)


def test_closing_does_not_wait_for_who_asks_nothing():
    before = threads()
    opened = MetricsEndpoint(stats, ENTRY, "127.0.0.1", 0)
    with socket.create_connection(opened.address, timeout=30) as silent:
        read(opened.address)  # so the silent one was accepted
        opened.close()
        assert threads() <= before  # one of an earlier test may have ended meanwhile
        assert silent.recv(1) == b""
    with pytest.raises(OSError):
        socket.create_connection(opened.address, timeout=5)


def test_a_port_that_is_taken_is_named(endpoint):
    with pytest.raises(RendezvousError, match=f"metrics_port = {endpoint.address[1]}.*another program"):
        MetricsEndpoint(stats, ENTRY, "127.0.0.1", endpoint.address[1])


def test_without_the_library_the_extra_is_named(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    with pytest.raises(ImportError, match=r"metrics_port.*prometheus_client.*glt\[prometheus\]"):
        glt.distributed.init_server(1, None, 0, data, "127.0.0.1", free_port(), metrics_port=0)
    assert glt.distributed.get_server() is None and glt.distributed.get_context() is None


def test_a_server_publishes_until_it_ends(world):
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    before = threads()
    glt.distributed.init_server(1, None, 0, data, "127.0.0.1", free_port(), metrics_port=0, rpc_timeout=120.0)
    try:
        server = glt.distributed.get_server()
        assert server is not None and server.metrics is not None
        address = server.metrics.address
        assert address[0] == "127.0.0.1"
        found = read(address)
        assert found["glt_server_workers", ()] == 1 and found["glt_server_batches_total", ()] == 0
    finally:
        glt.distributed.wait_and_shutdown_server(0.0)
    # The thread that accepts connections and the one that beats end by themselves.
    assert not {each.name for each in threads() - before if "metrics" in each.name or "process_request" in each.name}
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=5)
