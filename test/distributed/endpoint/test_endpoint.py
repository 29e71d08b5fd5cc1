"""The HTTP endpoint of a process: metrics, numbers, the page, probes; who is answered, and how much strangers cost."""

import contextlib
import json
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from certificates import Certificates
from promptness import expect_prompt

import glt
from glt import _deadlines as deadlines
from glt.distributed.endpoint.endpoint import StatsEndpoint
from glt.distributed.server.stats import COUNTERS, GAUGES, RATES
from glt.distributed.wire import listener
from glt.distributed.wire.credentials import Credentials, Token, set_credentials, use_credentials
from glt.distributed.wire.threads import call_on_loop
from glt.errors import RendezvousError
from glt.testing.cluster import free_port

ABOUT = {"host": "here", "partition": "0", "pid": "7", "server": "1", "version": glt.__version__}

TENSOR_NUMBERS = ("num_rows", "num_bytes", "num_reads", "num_writes", "read_bytes", "written_bytes")


def row(number):
    ratios = ("remote_node_ratio", "cache_hit_ratio", "hot_row_ratio")
    return {**dict.fromkeys((*COUNTERS, *GAUGES, *RATES, *ratios), number), "pid": 7}


def stats():
    counts = {"server": "server 1", "num_clients": 2, "num_loaders": 1, "num_workers": 1, "num_restarts": 4}
    rows = {"totals": row(9.0), "loaders": {'g-0-"1\n': row(3.0)}, "workers": {"0": row(9.0)}}
    tensors = {"emb": dict(zip(TENSOR_NUMBERS, range(1, 7), strict=True))}
    return {"uptime_s": 5.0, "is_draining": False, "tensors": tensors, **counts, **rows}


def open_endpoint(host="127.0.0.1", port=0, asks_for_token=False, not_ready=lambda: ""):
    return StatsEndpoint("server 1", ABOUT, stats, not_ready, host, port, asks_for_token)


def threads():
    """Those of this process; the timers are pytest's."""
    return {each for each in threading.enumerate() if not isinstance(each, threading.Timer)}


@pytest.fixture
def endpoint():
    pytest.importorskip("prometheus_client")
    before = threads()
    opened = open_endpoint()
    yield opened
    opened.close()
    opened.close()
    assert threads() <= before  # one of an earlier test may have ended meanwhile


def read(address, path="/metrics"):
    with urllib.request.urlopen("http://{}:{}{}".format(*address, path), timeout=30) as answer:
        text = answer.read().decode()
    parser = pytest.importorskip("prometheus_client.parser")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


NUMBERS = """batches_total errors_total sent_bytes_total remote_bytes_total nodes_total queued_batches queued_bytes
running_batches unread_batches batches_per_second bytes_per_second remote_node_ratio cache_hit_ratio
cached_nodes_total window_nodes_total cached_bytes_total window_bytes_total
disk_rows_total hot_rows_total disk_bytes_total disk_seconds_total hot_row_ratio""".split()


def test_every_number_is_published_by_scope(endpoint):
    found = read(endpoint.address)
    assert found["glt_server_uptime_seconds", ()] == 5
    assert found["glt_server_clients", ()] == 2 and found["glt_server_worker_restarts_total", ()] == 4
    assert found["glt_server_info", tuple(ABOUT.items())] == 1
    loader, worker = ("loader", 'g-0-"1\n'), ("worker", "0")
    for scope, labels, value in (("server", (), 9), ("loader", (loader,), 3), ("worker", (worker,), 9)):
        for name in NUMBERS:
            assert found[f"glt_{scope}_{name}", labels] == value, (scope, name)
        for stage in ("sampling", "gathering", "remote", "blocked"):
            assert found[f"glt_{scope}_stage_seconds_total", tuple(sorted((*labels, ("stage", stage))))] == value
    names = ("rows", "bytes", "reads_total", "writes_total", "read_bytes_total", "written_bytes_total")
    assert [found[f"glt_tensor_{name}", (("tensor", "emb"),)] for name in names] == [1, 2, 3, 4, 5, 6]


def test_closing_does_not_wait_for_who_asks_nothing(endpoint):
    with socket.create_connection(endpoint.address, timeout=30):
        read(endpoint.address)  # so the silent one was accepted
        began = time.monotonic()
        endpoint.close()
        expect_prompt(time.monotonic() - began, "to close", within_s=2.0)
    with pytest.raises(OSError):
        socket.create_connection(endpoint.address, timeout=5)


def test_a_port_that_is_taken_is_named(endpoint):
    with pytest.raises(RendezvousError, match=f"metrics_port = {endpoint.address[1]}.*another program"):
        open_endpoint(port=endpoint.address[1])


def test_a_server_publishes_until_it_ends(world):
    pytest.importorskip("prometheus_client")
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    before = threads()
    glt.distributed.init_server(1, None, 0, data, "127.0.0.1", free_port(), metrics_port=0, rpc_timeout=120.0)
    try:
        server = glt.distributed.get_server()
        address = server.metrics.address
        assert address[0] == "127.0.0.1"
        found = read(address)
        assert found["glt_server_workers", ()] == 1 and found["glt_server_batches_total", ()] == 0
        told = json.loads(ask(server.metrics, path="stats")[1])
        assert told.keys() == glt.distributed.server_stats().keys() and told["workers"].keys() == {"0"}
        assert ask(server.metrics, path="readyz") == (200, b"ready\n")
        server.drain(0.0)
        status, body = ask(server.metrics, path="readyz")
        assert status == 503 and b"draining: no more clients" in body
        assert json.loads(ask(server.metrics, path="stats")[1])["is_draining"]
    finally:
        glt.distributed.wait_and_shutdown_server(0.0)
    # The thread that accepts connections and the one that beats end by themselves.
    assert not {each.name for each in threads() - before if "metrics" in each.name or "process_request" in each.name}
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=5)


@pytest.fixture
def guarded(tmp_path):
    """An endpoint that asks for the read token, over https; the token, and what trusts its certificate."""
    pytest.importorskip("prometheus_client")
    token = Token.new()
    token.write(tmp_path / "token")
    certificates = Certificates(tmp_path)
    certificates.issue("job")
    before = use_credentials(str(tmp_path / "token"), certificates.tls("job"))
    opened = open_endpoint(asks_for_token=True)
    yield opened, token, ssl.create_default_context(cafile=certificates.ca)
    opened.close()
    set_credentials(before)


def ask(endpoint, context=None, path="metrics", **headers):
    return get(endpoint.url + path, context, headers)


def get(url, context=None, headers=None):
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("require_auth", [False, True])
def test_metrics_beyond_this_host_for_everybody(require_auth, monkeypatch, caplog):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(listener, "_warned", set())
    monkeypatch.setattr(listener, "current_credentials", lambda: Credentials(require_auth=require_auth))
    if require_auth:
        with pytest.raises(
            RendezvousError, match=r"who reaches 0\.0\.0\.0 reads the metrics of .*--metrics-auth.* refuse"
        ):
            open_endpoint("0.0.0.0")
    else:
        open_endpoint("0.0.0.0").close()
        assert "who reaches 0.0.0.0 reads the metrics of" in caplog.text


def test_metrics_are_for_those_with_the_read_token(guarded, caplog):
    endpoint, token, context = guarded
    assert endpoint.url.startswith("https://127.0.0.1:")
    status, body = ask(endpoint, context, Authorization=f"Bearer {token.for_reading()}")
    assert status == 200 and b"glt_server_uptime_seconds 5.0" in body
    wrong = [{}, {"Authorization": f"Bearer {token}"}, {"Authorization": f"Bearer {Token.new().for_reading()}"}]
    for headers in [*wrong, {"Authorization": f"Basic {token.for_reading()}"}, {"Authorization": "Bearer"}]:
        assert ask(endpoint, context, **headers) == (401, b""), headers
    with socket.create_connection(endpoint.address, timeout=30) as plain:  # no TLS
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"glt_" not in plain.recv(1 << 16)
    assert str(token)[10:] not in caplog.text and str(token.for_reading())[10:] not in caplog.text


def test_metrics_of_a_process_that_has_no_token_any_more_are_not_told(tmp_path, caplog):
    pytest.importorskip("prometheus_client")
    token = Token.new()
    token.write(tmp_path / "token")
    before = use_credentials(str(tmp_path / "token"))
    opened = open_endpoint(asks_for_token=True)
    header = {"Authorization": f"Bearer {token.for_reading()}"}
    try:
        assert ask(opened, **header)[0] == 200
        set_credentials(before)
        assert ask(opened, **header) == (401, b"")
    finally:
        set_credentials(before)
        opened.close()
    assert "Traceback" not in caplog.text


def test_those_who_ask_for_metrics_are_bounded(endpoint):
    """In number, and in what they may send."""
    silent = [socket.create_connection(endpoint.address, timeout=30) for _ in range(80)]
    try:
        assert read(endpoint.address)
        until_s = time.monotonic() + 30  # those that were ended take a moment to notice
        while len([each for each in threads() if "process_request_thread" in each.name]) > 64:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        for each in silent:
            each.close()
    with socket.create_connection(endpoint.address, timeout=30) as flood:
        flood.sendall(b"GET /metrics HTTP/1.1\r\n")
        with pytest.raises(OSError):
            for number in range(1 << 16):
                flood.sendall(b"x-%d: " % (number % 50) + b"z" * 1000 + b"\r\n")


def test_who_asks_for_metrics_slowly_is_hung_up_on(endpoint, monkeypatch):
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 1.0)
    began = time.monotonic()
    with socket.create_connection(endpoint.address, timeout=30) as slow, pytest.raises(OSError):
        while time.monotonic() - began < 60:
            slow.sendall(b"G")
            time.sleep(0.1)
    expect_prompt(time.monotonic() - began, "to hang up")
    assert read(endpoint.address)


def test_metrics_that_ask_for_a_token_need_one(world):
    pytest.importorskip("prometheus_client")
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    with pytest.raises(ValueError, match="metrics_auth = True, and there is no token: expected token_file"):
        glt.distributed.init_server(1, None, 0, data, "127.0.0.1", free_port(), metrics_port=0, metrics_auth=True)
    assert glt.distributed.get_context() is None


def test_a_server_that_starts_says_what_it_waits_for(world, monkeypatch):
    """The port is open before its sampling processes are there."""
    port, heard = free_port(), {}

    def ensure(pool, count):
        for path in ("readyz", "healthz"):
            heard[path] = get(f"http://127.0.0.1:{port}/{path}")
        raise glt.errors.WorkerDied("none comes up")

    monkeypatch.setattr("glt.distributed.server.pool.SamplerPool.ensure", ensure)
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    with pytest.raises(glt.errors.WorkerDied, match="none comes up"):
        glt.distributed.init_server(1, None, 0, data, "127.0.0.1", free_port(), metrics_port=port, num_workers=3)
    assert heard["readyz"] == (503, b"starting: 0 of 3 sampling processes are ready\n")
    assert heard["healthz"] == (200, b"ok\n")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_loop_that_does_not_answer_is_no_health(endpoint, monkeypatch):
    monkeypatch.setattr(deadlines, "SEND_S", 0.2)
    held = threading.Event()
    call_on_loop(held.wait, 30.0)
    try:
        status, body = ask(endpoint, path="healthz")
        assert status == 503 and b"has not answered for 0.2 s" in body
    finally:
        held.set()
    assert ask(endpoint, path="healthz") == (200, b"ok\n")


def test_readiness_says_why_not():
    why = "draining"
    with open_endpoint(not_ready=lambda: why) as opened:
        assert ask(opened, path="readyz") == (503, b"draining\n")
        why = ""
        assert ask(opened, path="readyz") == (200, b"ready\n")


def test_probes_and_the_page_need_no_token_and_tell_no_number(guarded):
    endpoint, token, context = guarded
    for path in ("", "healthz", "readyz"):
        status, body = ask(endpoint, context, path)
        assert status == 200 and b"g-0-" not in body and str(token)[10:].encode() not in body, path
    for path in ("stats", "metrics", "nothing", "../stats", "healthz/stats", "stats?healthz"):
        assert ask(endpoint, context, path)[0] == 401, path
    status, body = ask(endpoint, context, "stats", Authorization=f"Bearer {token.for_reading()}")
    assert status == 200 and json.loads(body) == stats()


def test_a_path_that_is_not_there_names_those_that_are(endpoint):
    assert ask(endpoint, path="nothing") == (404, b"expected one of / /stats /metrics /healthz /readyz\n")


def test_the_page_may_load_nothing_and_run_its_own_script_only(endpoint):
    with urllib.request.urlopen(endpoint.url, timeout=30) as answer:
        text, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert rules["script-src"].startswith("'sha256-") and "unsafe" not in policy
    for name in ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"):  # of XML, which nothing loads
        text = text.replace(name, "")
    for forbidden in ("://", "innerHTML", "outerHTML", "eval(", "document.write", "insertAdjacent", "@import"):
        assert forbidden not in text, forbidden


def test_without_prometheus_the_rest_is_answered(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with open_endpoint() as opened:
        assert "/metrics needs the package prometheus_client" in caplog.text
        status, body = ask(opened)
        assert status == 501 and b"pip install prometheus_client" in body
        assert json.loads(ask(opened, path="stats")[1]) == stats()
        assert ask(opened, path="")[0] == ask(opened, path="readyz")[0] == 200


class Loader:
    """As a distributed loader of a trainer."""

    def stats(self):
        stages = dict.fromkeys(("sampling_s", "gathering_s", "remote_s", "blocked_s"), 0.5)
        return {"num_batches": 3, "num_seeds": 9, "wait_s": 1.5, "cache_hit_ratio": 0.25, **stages}


def test_loaders_of_a_trainer_are_published_too():
    loaders = {"train": Loader()}
    with glt.distributed.publish_stats(loaders) as opened:
        assert opened.address[0] == "127.0.0.1" and opened.url in repr(opened)
        told = json.loads(ask(opened, path="stats")[1])
        assert told["loaders"] == {"train": Loader().stats()} and told["num_loaders"] == 1 and told["uptime_s"] >= 0
        assert "trainer (host" in told["trainer"]
        loaders["valid"] = Loader()
        pytest.importorskip("prometheus_client")
        found = read(opened.address)
        assert found["glt_loader_batches_total", (("loader", "valid"),)] == 3
        assert found["glt_loader_stage_seconds_total", (("loader", "train"), ("stage", "remote"))] == 0.5
        assert found["glt_trainer_loaders", ()] == 2


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"loaders": [Loader()]}, TypeError, "loaders has type list: expected a dict of loaders by name"),
        ({"loaders": {"train": 3}}, TypeError, r"loaders\['train'\] has type int, without stats\(\)"),
        ({"port": 70000}, ValueError, "port = 70000"),
        ({"host": 3}, TypeError, "host"),
        ({"auth": True}, ValueError, "auth = True, and there is no token: expected GLT_TOKEN_FILE"),
    ],
)
def test_wrong_arguments_of_publish_stats(given, kind, words):
    with pytest.raises(kind, match=words):
        glt.distributed.publish_stats(**{"loaders": {}, **given})
