"""Forked programs are like those that are started: arguments, environment, output, exit codes, children."""

import os
import subprocess
import sys

import forked
import psutil
import pytest

from glt.testing.cluster import Cluster

ARGUMENTS = "import os, sys; print(sys.argv, os.getcwd(), os.environ['WORD']); print('told', file=sys.stderr)"
CHILD = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-c", "import os; print(os.getppid()); input()"], env={"ONE": "1"},
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert int(process.stdout.readline()) == os.getpid()
with open(f"/proc/{process.pid}/cmdline") as file:
    assert "os.getppid()" in file.read()
with open(f"/proc/{process.pid}/environ") as file:
    assert file.read().startswith("ONE=1")
process.kill()
sys.exit(process.wait() == -9)
"""
SPAWN = """
import multiprocessing, sys

def double(number):
    print("double", flush=True)
    return 2 * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(double, [1, 2]))
"""


def run(folder, *words, timeout_s=120.0):
    return forked.run([sys.executable, *words], folder, os.environ | {"WORD": "word"}, timeout_s)


def test_a_program_has_its_arguments_directory_and_environment(tmp_path):
    done = run(tmp_path, "-c", ARGUMENTS, "x", "y z")
    assert (done.returncode, done.stdout) == (0, f"['-c', 'x', 'y z'] {tmp_path} word\n")
    assert done.stderr == "told\n"
    (tmp_path / "script.py").write_text(ARGUMENTS)
    assert run(tmp_path, "script.py", "x").stdout == f"['script.py', 'x'] {tmp_path} word\n"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_how_a_program_ended(tmp_path, code, status, said):
    done = run(tmp_path, "-c", code)
    assert done.returncode == status and said in done.stderr, done.stderr


def test_a_program_that_takes_too_long_is_killed(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run(tmp_path, str(script), timeout_s=8)
    pid = int((tmp_path / "pid").read_text())
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], 60)
    assert not psutil.pid_exists(pid)


def test_its_children_are_its_own(tmp_path):
    done = run(tmp_path, "-c", CHILD)
    assert done.returncode == 1, done.stderr
    (tmp_path / "spawn.py").write_text(SPAWN)
    done = run(tmp_path, "spawn.py")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[2, 4]", done.stderr
    assert done.stdout.count("double") == 2


def has_template(trainer):
    return subprocess.Popen.__module__ == forked.__name__ and forked._template is not None


def test_trainers_of_clusters_have_their_samplers_forked_in_the_default_run(request):
    is_default = "not integration" in request.config.getoption("markexpr")
    with Cluster(1, has_template) as cluster:
        assert cluster.results() == [is_default]
