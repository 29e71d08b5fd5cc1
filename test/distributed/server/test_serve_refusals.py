"""``glt serve`` that does not come to serve: wrong flags, what is in its way, and failures of its own."""

import logging
import re
import signal
import socket
import sys

import pytest

import glt
from glt.cli import main
from glt.distributed.server import command as command_serve
from glt.distributed.server.command import label_files
from glt.distributed.server.server import DistServer
from glt.testing.cluster import free_port, take_census


@pytest.fixture
def glt_serve(monkeypatch, caplog):
    """Runs the command in this process, whose log stays pytest's, and looks at what it leaves."""
    monkeypatch.setattr(command_serve, "write_logs", lambda *args: None)
    caplog.set_level(logging.INFO)

    def run(*flags):
        before, handlers = (
            set(take_census().children),
            [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)],
        )
        try:
            return main(["serve", *map(str, flags)])
        finally:
            assert set(take_census().children) <= before
            assert handlers == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
            assert glt.distributed.get_server() is None and glt.distributed.get_context() is None

    return run


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rank", "2", "--servers", "2"], "server_rank = 2"),
        (["--rank", "-1"], "argument --rank"),
        (["--partition", "/nowhere"], "'/nowhere' is no directory"),
        (["--partition-idx", "2"], "--partition-idx 2: .* has 2 partitions"),
        (["--workers", "3", "--max-workers", "2"], "num_workers = 3.*max_workers = 2"),
        (["--port", "7"], "server 0 listens on master_port"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--drain-timeout", "-1"], "--drain-timeout.*'-1'"),
        (["--max-buffer-size", "much"], "--max-buffer-size.*'much'"),
        (["--seed-dir", "/nowhere"], "--seed-dir"),
        (["--log-format", "xml"], "--log-format"),
        (["--labels", "/nowhere.pt"], "/nowhere.pt"),
        (["--labels", "paper=a.pt", "--labels", "b.pt"], "TYPE=FILE for all, or one FILE"),
        (["--clients", "none"], "--clients"),
    ],
)
def test_a_wrong_flag_ends_with_2(
    world, glt_serve, capsys, flags,
    words,
):  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        glt_serve("--partition", world(2).path, *flags)
    assert ended.value.code == 2
    assert re.search(words, capsys.readouterr().err.replace("\n", " "))


def test_metrics_without_their_library_end_with_2(
    world, glt_serve, capsys,
    monkeypatch,
):  # fmt: skip
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SystemExit) as ended:
        glt_serve("--partition", world(1).path, "--metrics-port", 0)
    assert ended.value.code == 2 and "glt[prometheus]" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--master-port", "--metrics-port"])
def test_a_port_that_is_taken_ends_with_3(world, glt_serve, caplog, flag):
    if flag == "--metrics-port":
        pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--master-port": free_port(), flag: port}
        assert glt_serve("--partition", world(1).path, *(each for item in ports.items() for each in item)) == 3
    name = flag.strip("-").replace("-", "_")
    assert f"{name} = {port}" in caplog.text and "another program has the port" in caplog.text


def test_a_damaged_directory_ends_with_3(private_world, tmp_path, glt_serve, caplog):
    files = [path for path in private_world.path.rglob("*") if path.is_file() and "part0" in str(path)]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))
    assert glt_serve("--partition", private_world.path, "--master-port", free_port()) == 3
    (tmp_path / "empty").mkdir()
    assert glt_serve("--partition", tmp_path / "empty") == 3
    assert caplog.text.count("cannot start: ") == 2


def test_a_server_0_that_is_not_there_ends_with_3(world, glt_serve, caplog):
    # Its samplers must be ready before it looks for server 0; where the machine is busy, the deadline is over by then.
    flags = ("--rank", 1, "--servers", 2, "--master-port", free_port(), "--timeout", 6)
    assert glt_serve("--partition", world(1).path, *flags) == 3
    assert re.search("cannot start: .*(server 0 was not reached at|were not ready after 6 s)", caplog.text)


def test_a_failure_of_the_server_itself_ends_with_1(
    world, glt_serve, caplog,
    capsys, monkeypatch,
):  # fmt: skip
    def fail(self, timeout_s=None):
        if timeout_s:
            raise ZeroDivisionError("out of the blue")
        return False

    monkeypatch.setattr(DistServer, "wait_until_done", fail)
    port = free_port()
    assert glt_serve("--partition", world(1).path, "--master-port", port) == 1
    assert "is ready at" in capsys.readouterr().out
    failed = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert len(failed) == 1 and "out of the blue" in failed[0].getMessage() and failed[0].exc_info
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_the_help_says_how_it_ends(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "exit status:" in text and "neither encrypted nor authenticated" in text
    assert [line.split()[0] for line in text.partition("exit status:\n")[2].splitlines()[:5]] == list("01234")


def test_labels_by_type(tmp_path):
    assert label_files([]) is None
    assert label_files(["a.pt"]) == "a.pt"
    assert label_files(["paper=a.pt", "author=b.npy"]) == {"paper": "a.pt", "author": "b.npy"}
    odd = tmp_path / "a=b.pt"
    odd.touch()
    assert label_files([str(odd)]) == str(odd)
    with pytest.raises(ValueError, match="'paper' are given twice"):
        label_files(["paper=a.pt", "paper=b.pt"])
