"""``glt top``: what it says of servers at work, of those that do not answer, and of what is no server."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from functools import partial

import pytest
from certificates import Certificates
from promptness import eventually
from served import finish, working_server

import glt
from glt import _deadlines as deadlines
from glt.cli import main
from glt.distributed.endpoint.poller import parse_address
from glt.distributed.wire.credentials import Token, set_credentials, use_credentials
from glt.testing.cluster import free_port


class Loader:
    def __init__(self, **times):
        self.times = times or {"remote_s": 3.0, "sampling_s": 1.0}

    def stats(self):
        times = self.times
        return {"num_batches": 3, "num_nodes": 7, "num_remote_nodes": 3, "channel_num_queued": 2, **times}


def top(capsys, *flags):
    """Exit status and what is on stdout."""
    status = main(["top", *flags])
    return status, capsys.readouterr().out


def test_a_server_at_work_and_one_that_is_not_there(world, capsys):
    pytest.importorskip("rich")
    dead = f"127.0.0.1:{free_port()}"
    with working_server(world(1).path) as (stage, address):
        status, shown = top(capsys, "--once", address, dead)
        assert status == 1
        line = next(line for line in shown.splitlines() if line.strip().startswith("server 0"))
        assert re.search(r"running +1 +1 +1 +0 +0 ", line), shown
        assert f"{dead}: no answer: " in shown and "refused" in shown and "client 0 of 'distributed-client'" in shown
        status, shown = top(capsys, "--json", address, dead)
        told = json.loads(shown)
        assert status == 1 and told.keys() == {address, dead} and told[dead].keys() == {"error"}
        (loader,) = told[address]["loaders"].values()
        assert loader["num_errors"] == 0 and told[address]["num_clients"] == 1
        assert top(capsys, "--json", f"http://{address}/metrics")[0] == 0
        finish(stage)


def test_loaders_of_a_trainer_and_names_that_a_terminal_would_obey(capsys):
    pytest.importorskip("rich")
    with glt.distributed.publish_stats({"[red]train\x1b[2J\n": Loader()}) as opened:
        status, shown = top(capsys, "--once", opened.url)
    assert status == 0 and "remote 75%" in shown and "\x1b" not in shown
    assert "[red]train\ufffd[2J" in shown and "trainer" in shown


def test_where_most_of_gathering_is_waiting_for_the_disk_it_is_named(capsys):
    pytest.importorskip("rich")
    with glt.distributed.publish_stats({"train": Loader(sampling_s=1.0, gathering_s=3.0, disk_s=2.2)}) as opened:
        _, shown = top(capsys, "--once", opened.url)
    assert "disk 75%" in shown, shown


def test_the_token_goes_to_those_who_ask_for_it(tmp_path, capsys):
    token, certificates = Token.new(), Certificates(tmp_path)
    token.write(tmp_path / "token")
    certificates.issue("job")
    before = use_credentials(str(tmp_path / "token"), certificates.tls("job"))
    try:
        with glt.distributed.publish_stats({"train": Loader()}, auth=True) as opened:
            host, port = opened.address
            status, shown = top(capsys, "--json", f"{host}:{port}")
            assert status == 0 and json.loads(shown)[f"{host}:{port}"]["num_loaders"] == 1
            set_credentials(None)
            _, shown = top(capsys, "--json", opened.url)
            assert "https needs TLS" in shown
    finally:
        set_credentials(before)
    with glt.distributed.publish_stats({"train": Loader()}) as opened:
        assert top(capsys, "--json", opened.url)[0] == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "are no stats of glt"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"loaders": {"a": 3}}', "are no stats of glt"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"loaders": {"a": {"num_batches": "x"}}}', "are no stats of glt"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"loaders": {}, "totals": 5}', "are no stats of glt"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", "Expecting value"),
        (b"HTTP/1.0 404 no\r\n\r\n", "status 404"),
        (b"HTTP/1.0 401 no\r\n\r\n", "set GLT_TOKEN_FILE"),
        (b"SSH-2.0-x\r\n", "SSH"),
        (b"", "no answer"),
        (None, "no answer"),  # it says nothing, for ever
    ],
)
def test_what_is_no_server_has_a_row_that_says_so(answer, words, capsys, monkeypatch):
    monkeypatch.setattr(deadlines, "SEND_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        kept = []

        def speak():
            with contextlib.suppress(OSError):
                while True:
                    connection = stranger.accept()[0]
                    connection.recv(1 << 16)
                    if answer is None:
                        kept.append(connection)
                    else:
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        status, shown = top(capsys, "--json", "--interval", "3600", address)
        stranger.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        for each in kept:
            each.close()
    assert status == 1 and words in json.loads(shown)[address]["error"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--once", "nothing"], "'nothing': expected HOST:PORT"),
        (["--once", "ftp://a:1"], "'ftp://a:1': expected HOST:PORT"),
        (["--once", "a:99999"], "'a:99999': expected HOST:PORT"),
        (["--interval", "0", "a:1"], "'0': expected seconds, from 0.1 to 3600"),
        (["a:1"], "stdout is no terminal: give --once"),
        ([], "addresses|ADDRESS"),
    ],
)
def test_a_wrong_flag_of_top_ends_with_2(flags, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["top", *flags])
    assert ended.value.code == 2 and re.search(words, capsys.readouterr().err)


def test_without_rich_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit) as ended:
        main(["top", "--once", "127.0.0.1:1"])
    assert ended.value.code == 2 and "pip install 'glt-graph[top]', or give --json" in capsys.readouterr().err
    assert top(capsys, "--json", "127.0.0.1:1")[0] == 1


def test_addresses():
    assert parse_address("host:9100") == (False, "host", 9100, "")
    assert parse_address("https://[::1]:9100/metrics") == (True, "::1", 9100, "")
    assert parse_address("http://proxy:80/job/7/") == (False, "proxy", 80, "/job/7")


def test_it_is_live_in_a_terminal_until_ctrl_c():
    pytest.importorskip("rich")
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    with glt.distributed.publish_stats({"train": Loader()}) as opened:
        command = [sys.executable, "-m", "glt", "top", "--interval", "0.2", opened.url, f"127.0.0.1:{free_port()}"]
        # What a shell starts in the background ignores SIGINT, and so would what it starts.
        heeds = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
        program = subprocess.Popen(
            command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment, preexec_fn=heeds
        )
        os.close(theirs)
        seen = []

        def read():
            with contextlib.suppress(OSError):  # EIO: the program has closed it
                while more := os.read(ours, 1 << 16):
                    seen.append(more)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            assert eventually(lambda: b"".join(seen).count(b"no answer") >= 4), b"".join(seen)
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0
        finally:
            program.kill()
            program.wait()
            reader.join(30)
            os.close(ours)
    shown = b"".join(seen)
    assert b"train" in shown and b"Traceback" not in shown and b"\x1b[?1049l" in shown  # the terminal is as it was
