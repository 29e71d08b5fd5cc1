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
LOCAL, PARTITIONED, CLIENT, BY_NAME = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)

# What the example of servers, and that of graphs by name, take for granted.
PREPARE = """
import sys
import torch
import glt.distributed as gd
from glt.data.synthetic import synthetic_graph
from glt.partition import RandomPartitioner

if sys.argv[1] == "papers":
    gd.partition_graph(synthetic_graph().to_pyg(), "papers", 2, "parts")
else:
    task = synthetic_graph()
    mask = torch.zeros(task.num_nodes, dtype=torch.bool).index_fill_(0, task.train_idx, True)
    RandomPartitioner("parts", 2, task.num_nodes, task.edge_index, node_feat=task.x, node_label=task.y,
                      node_attrs={"train_mask": mask}).partition()
"""


# Output is buffered, so that each process of a program writes its lines whole: several of them share one pipe.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}


@pytest.fixture
def run(tmp_path, start):
    """Runs a program in an empty directory, as a file, and returns what it printed."""

    def run(code, *words, before=()):
        (tmp_path / "code.py").write_text(code)
        words = [*before, "code.py", *words]
        if code == LOCAL:  # as users start it
            command, env = [sys.executable, *words], os.environ | ENVIRONMENT
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        else:
            done = start(*words, folder=tmp_path, timeout_s=200, **ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_training_in_one_process_learns(run):
    losses = [float(text) for text in re.findall(r"loss of the last batch (\S+)", run(LOCAL))]
    assert len(losses) == 3 and losses[-1] < 2.0 < 2.77, "log(16) is chance"


def test_partitions_and_sampling_processes(run):
    port = free_port()
    said = run(PARTITIONED.replace("master_port=11112", f"master_port={port}"))
    assert sorted(line.split()[0] for line in said.splitlines()) == ["0", "1"]
    assert all(int(line.split()[1]) > 100_000 for line in said.splitlines())


def test_servers_and_a_client(run, tmp_path):
    run(PREPARE, "masked")
    (command,) = re.findall(r"^    (glt serve --partition .*?) +# and --rank 1", TEXT, re.M)
    port, servers = free_port(), []
    words = command.replace("10.0.0.1", "127.0.0.1").split()[1:]
    for rank in (0, 1):
        words[words.index("--rank") + 1] = str(rank)
        here = [sys.executable, "-m", "glt", *words, "--master-port", str(port), "--clients", "1"]
        servers.append(subprocess.Popen(here, cwd=tmp_path, env=os.environ | ENVIRONMENT, stderr=subprocess.DEVNULL))
    try:
        client = CLIENT.replace("10.0.0.1", "127.0.0.1").replace("master_port=29540", f"master_port={port}")
        said = run(client.replace("...  #", "print(batch.num_edges)  #"))
        assert sum(map(int, said.split())) > 100_000
        assert [server.wait(60) for server in servers] == [0, 0]
    finally:
        for server in servers:
            server.kill()
            server.wait()


@pytest.mark.parametrize("trainers", [1, 2])
def test_graphs_by_name(run, trainers):
    run(PREPARE, "papers")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", trainers, "--master-port", free_port())
    say = "\nprint(f'loss {loss.item():.3f}\\n', end='')\n"  # in one write: torchrun's trainers share the pipe
    said = run(BY_NAME + say, before=() if trainers == 1 else torchrun)
    losses = [float(text) for text in re.findall(r"loss (\S+)", said)]
    assert len(losses) == trainers and max(losses) < 2.7, f"log(16) is 2.77, which is chance: {said}"


COMMANDS = re.findall(r"^    (glt .*?)(?: +#.*)?$", TEXT, re.M)


@pytest.mark.parametrize("line", COMMANDS)
def test_flags_of_commands_exist(line, command):
    words = line.split()
    library = words[2].split("|")[:1] if words[1] == "import" else []
    status, told, _ = command(words[1], *library, "--help")
    flags = [word for word in words if word.startswith("--")]
    assert status == 0 and not [flag for flag in flags if flag not in told and flag.replace("_", "-") not in told]
