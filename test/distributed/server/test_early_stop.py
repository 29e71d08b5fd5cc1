"""``glt serve`` that is stopped while it is still being imported."""

import json
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, time
import glt.cli

def import_slowly(name):
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)

glt.cli.importlib.import_module = import_slowly
sys.exit(glt.cli.main(["serve", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flags", [[], ["--log-format", "json"], ["--log-format=json"]])
def test_it_says_that_it_was_stopped(number, flags):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(number)), *flags], capture_output=True, text=True, timeout=60
    )
    said = f"stopped by {number.name} before it was ready"
    assert ended.returncode == 0 and ended.stdout == "", ended
    (line,) = ended.stderr.splitlines()
    if flags:
        told = json.loads(line)
        assert told["message"] == said and told.keys() >= {"time", "level", "logger", "server", "worker", "pid"}
    else:
        assert said in line
