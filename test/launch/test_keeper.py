"""The keeper of a host, spoken to as a launcher speaks to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from glt.distributed.job.hosts import THIS_HOST
from glt.launch.hosts import Reach, partition_of, partitions_of_hosts
from glt.launch.keeper import Pipe


def run_keeper(code: str, plan: dict[str, Any], wait_s: float = 0.0) -> tuple[float, list[dict[str, Any]]]:
    """Runs ``code`` under a keeper whose stdin stays open; returns how long that took and what it told.

    What it tells is read ``wait_s`` later.
    """
    command, begin = Reach(over_ssh=False).run_program(THIS_HOST, "keeper")
    spec = {"name": "it", "argv": [sys.executable, "-c", code], "env": {}, "cwd": "/", "streams": []}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        start = time.monotonic()
        text = json.dumps({"processes": [spec], "stop_s": 1.0, "silent_s": None} | plan).encode() + b"\n"
        keeper.stdin.write(begin + text)
        keeper.stdin.flush()
        time.sleep(wait_s)
        told = [json.loads(line) for line in keeper.stdout]
        return time.monotonic() - start, told


def test_a_silent_launcher_ends_everything() -> None:
    """A host that is cut off hears neither from its launcher nor that the connection has ended."""
    took_s, told = run_keeper("import time; time.sleep(600)", {"silent_s": 0.5})
    assert [each["event"] for each in told] == ["started", "ended", "done"]
    assert told[1]["code"] == -15 and took_s < 30


def test_what_a_process_left_behind_ends() -> None:
    left = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '''{}''']); print('bye')"
    sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    _, told = run_keeper(left.format(sleep), {})
    assert [each["event"] for each in told] == ["started", "lines", "ended", "done"] and told[2]["code"] == 0


def test_a_flood_of_output_is_whole() -> None:
    """Also for a reader that takes its time, longer than processes have to close their pipes."""
    _, told = run_keeper("for i in range(50_000): print(i)\nprint('x' * 200_000, end='')", {}, wait_s=3.0)
    lines = [text for each in told if each["event"] == "lines" for text in each["texts"]]
    assert lines[:50_000] == [str(number) for number in range(50_000)]
    assert "".join(lines[50_000:]) == "x" * 200_000  # in pieces: memory is bounded


def test_a_flood_after_one_pipe_was_closed() -> None:
    _, told = run_keeper("import os; os.close(2)\nfor i in range(300_000): print(i)", {}, wait_s=3.0)
    lines = [text for each in told if each["event"] == "lines" for text in each["texts"]]
    assert lines == [str(number) for number in range(300_000)] and told[-2]["code"] == 0


def test_a_command_that_there_is_not() -> None:
    command, begin = Reach(over_ssh=False).run_program(THIS_HOST, "keeper")
    spec = {"name": "it", "argv": ["/no/such"], "env": {}, "cwd": "/"}
    text = json.dumps({"processes": [spec], "stop_s": 1.0, "silent_s": None}).encode() + b"\n"
    done = subprocess.run(command, input=begin + text, capture_output=True, timeout=60, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["event"] for each in told] == ["lines", "started", "ended", "done"] and told[2]["code"] == 127


def test_lines_of_a_pipe() -> None:
    pipe = Pipe("it", 3)
    assert pipe.take(b"one\ntw") == ["one"]
    assert pipe.take(b"o\r\n 10%\r 20%\n\n") == ["two", " 20%", ""]
    assert pipe.take(b"last \xff") == []
    assert pipe.take(b"") == ["last \N{REPLACEMENT CHARACTER}"]


def test_partitions_go_to_as_few_hosts_as_there_can_be() -> None:
    for num_hosts in range(1, 6):
        for num_servers in range(1, 5):
            total = num_hosts * num_servers
            for num_parts in range(1, total + 1):
                loaded = [partition_of(server, total, num_parts) for server in range(total)]
                counts = [loaded.count(part) for part in range(num_parts)]
                assert min(counts) >= 1 and max(counts) - min(counts) <= 1
                hosts = partitions_of_hosts(num_hosts, num_servers, num_parts)
                assert sum(map(len, hosts)) <= num_parts + num_hosts - 1
                if num_parts == num_hosts:
                    assert hosts == [[part] for part in range(num_parts)]


def test_the_programs_of_hosts_need_the_standard_library_only() -> None:
    """They are sent to hosts, which may have no glt: an import of ours would fail there, and only there."""
    folder = Path(__file__).parents[2] / "glt" / "launch"
    for name in ("keeper", "check"):
        for line in (folder / f"{name}.py").read_text().partition("_PROBE = ")[0].splitlines():
            if line.startswith(("import ", "from ")):
                assert line.split()[1].split(".")[0] in sys.stdlib_module_names, (name, line)
