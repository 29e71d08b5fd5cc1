"""README.md: its code runs, as a stranger would run it, and its commands are those that there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glt.testing.cluster import free_port

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
LOCAL, PARTITIONED, CLIENT = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
SERVE = re.findall(r"^    (glt serve .*?) &$", TEXT, re.M)


# Output is buffered, so that each process of a program writes its lines whole: several of them share one pipe.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}


def test_blocks_run_in_order_in_one_directory(tmp_path, start):
    """As a reader does: each block is saved as a file, and finds what the one before it left."""
    (tmp_path / "local.py").write_text(LOCAL)
    env = os.environ | ENVIRONMENT
    local = subprocess.run(  # as users start it
        [sys.executable, "local.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
    )
    assert local.returncode == 0, local.stderr
    losses = [float(text) for text in re.findall(r"loss of the last batch (\S+)", local.stdout)]
    assert len(losses) == 3 and losses[-1] < 2.0 < 2.77, "log(16) is chance"

    (tmp_path / "partitioned.py").write_text(PARTITIONED.replace("master_port=11112", f"master_port={free_port()}"))
    done = start("partitioned.py", folder=tmp_path, timeout_s=200, **ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    edges = dict(map(int, line.split()) for line in done.stdout.splitlines())
    assert sorted(edges) == [0, 1] and min(edges.values()) > 100_000

    port, servers = free_port(), []
    for line in SERVE:
        words = [sys.executable, "-m", *line.split(), "--master-port", str(port)]
        servers.append(subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL))
    try:
        (tmp_path / "client.py").write_text(CLIENT.replace("master_port=29540", f"master_port={port}"))
        done = start("client.py", folder=tmp_path, timeout_s=200, **ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 200_000
        assert [server.wait(60) for server in servers] == [0, 0]
    finally:
        for server in servers:
            server.kill()
            server.wait()


def test_the_page_is_short():
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", TEXT))))
def test_links_of_the_page_lead_somewhere(path):
    assert (ROOT / path).exists()


COMMANDS = re.findall(r"^    (glt .*?)(?: &| +#.*)?$", TEXT, re.M)


@pytest.mark.parametrize("line", COMMANDS)
def test_flags_of_commands_exist(line, command):
    words = line.split()
    library = words[2].split("|")[:1] if words[1] == "import" else []
    status, told, _ = command(words[1], *library, "--help")
    flags = [word for word in words if word.startswith("--")]
    assert status == 0 and not [flag for flag in flags if flag not in told and flag.replace("_", "-") not in told]
