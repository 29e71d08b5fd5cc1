"""``glt slurm`` writes a batch script; SLURM itself runs it on two nodes of this machine."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch
from launch_world import expect_none_marked, mark_of
from slurm_world import KILL_WAIT_S, Slurm, need_slurm
from torch_geometric.data import Data

import glt

NUM_NODES = 200
MOST_S = 30  # beside KillWait: from the death of a task to the end of its job, as the page says

TRAIN = """\
import os, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv
import glt

torch.set_num_threads(1)
glt.distributed.initialize()  # a server goes no further
dist.init_process_group("gloo")
graph = glt.distributed.DistGraph("ring")
rank = graph.rank()
train_idx = glt.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book(), remainder="pad")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(SAGEConv(2, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
num_batches = 0
for epoch in range(10):
    for seeds in train_idx.split(13):
        block = glt.distributed.to_block(graph.sample_neighbors(seeds, -1), seeds)
        x, y = graph.ndata["feat"][block.src_id], graph.ndata["labels"][seeds]
        out = model((x, x[: block.num_dst]), block.edge_index)
        F.cross_entropy(out, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        num_batches += 1
right = float((out.argmax(1) == y).float().mean())
place = f"host {os.uname().nodename}, local {os.environ['LOCAL_RANK']}, arguments {sys.argv[1:]}"
print(f"RESULT {rank} of {dist.get_world_size()}: {num_batches} batches, accuracy {right:.2f}, {place}")
dist.destroy_process_group()
"""

MEET = """\
import os, signal, time
import torch
import torch.distributed as dist
import glt

context = glt.distributed.init_worker_group()
dist.init_process_group("gloo")
for number in range(5):
    total = torch.tensor([context.rank])
    dist.all_reduce(total)
    print("MET", context.rank, number, int(total))
    if (context.rank, number) == (3, 2):
        print("KILLED AT", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
time.sleep(3600)  # the others miss nothing: it is SLURM that ends them
"""


def glt_slurm(command, *words):
    status, out, err = command("slurm", *words)
    assert status == 0, err
    return out


def test_the_file_is_plain_bash(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--nodes 3 --num-trainers 4 --cpus-per-task 8 --gpus-per-node 4 --time 2:00:00 --partition long".split()
    words += [
        "--sbatch-option",
        "account=team",
        "--sbatch-option",
        "requeue",
        "--extra-envs",
        "A=b c",
        "--python",
        "python3",
        "--part-config",
        "parts",
    ]
    status, told, _ = command("slurm", *words, "-o", "job.sh", "train.py", "--lr", "0.1", "it's $HOME")
    text = Path("job.sh").read_text()
    assert (status, told) == (0, "")
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.M))
    assert options == {
        "job-name": "train", "nodes": "3", "ntasks-per-node": "4", "cpus-per-task": "8", "gpus-per-node": "4",
        "time": "2:00:00", "partition": "long", "account": "team",
    }  # fmt: skip
    assert "#SBATCH --requeue\n" in text and "set -euo pipefail" in text and "export A='b c'" in text
    assert "srun --kill-on-bad-exit=1 --label python3 train.py --lr 0.1 'it'\"'\"'s $HOME'\n" in text
    subprocess.run(["bash", "-n", "job.sh"], check=True, timeout=60)
    assert command("slurm", "-o", "job.sh", "train.py")[0] == 2, "a file that exists is kept"
    assert Path("job.sh").read_text() == text


@pytest.mark.parametrize(
    "words, message",
    [
        (["--num-servers", "1", "train.py"], "--num-servers without --part-config"),
        (["--sbatch-option", "=1", "train.py"], "--sbatch-option =1: expected NAME=VALUE or NAME"),
        (["--sbatch-option", "nodes", "train.py"], "--sbatch-option nodes: it needs a value"),
        (["--extra-envs", "GLT_TOKEN_FILE=/t", "train.py"], "GLT_TOKEN_FILE=/t: the script itself sets GLT_TOKEN_FILE"),
        (
            ["--extra-envs", "GLT_NUM_TRAINERS=2", "--num-servers", "1", "--part-config", "parts", "train.py"],
            "the script itself sets GLT_NUM_TRAINERS",
        ),
        (["--nodes", "0", "train.py"], "expected an integer from 1"),
        (["--job-name", "a\nrm", "train.py"], "an option of sbatch has more than one line"),
        (["--partition", "", "train.py"], "--partition is empty"),
    ],
)
def test_a_wrong_flag_is_named(command, words, message):
    status, out, err = command("slurm", *words)
    assert status == 2 and message in err and out == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the scripts, and a ring in two partitions whose nodes know their side, 100 of them to learn from."""
    folder = tmp_path_factory.mktemp("slurm")
    here = torch.arange(NUM_NODES)
    label = (here >= NUM_NODES // 2).long()
    edges = torch.stack([here, (here + 1) % NUM_NODES])
    data = Data(x=torch.nn.functional.one_hot(label).float(), y=label, edge_index=edges, train_mask=here % 2 == 0)
    glt.distributed.partition_graph(data, "ring", 2, folder / "parts", part_method="random")
    (folder / "train.py").write_text(TRAIN)
    (folder / "meet.py").write_text(MEET)
    return folder


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    need_slurm()
    cluster = Slurm(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


def submitted(slurm, command, folder, *words):
    """Runs a job to its end; returns its state and output. Nothing of it is left."""
    mark = f"slurm-{os.getpid()}-{len(list(folder.iterdir()))}"
    envs = {**mark_of(mark), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(glt.__file__).parents[1])}
    given = [word for pair in envs.items() for word in ("--extra-envs", "=".join(pair))]
    script = folder / f"{mark}.sbatch"
    glt_slurm(command, "--nodes", "2", *given, "--part-config", "parts", "-o", str(script), *words)
    state, said = slurm.ended(slurm.submit(script, folder), folder)
    expect_none_marked(mark)
    assert not list(folder.glob("*.token")), "the token is removed"
    return state, said


@pytest.mark.integration
@pytest.mark.parametrize(
    "flags, num_trainers",
    [(["--num-trainers", "2"], 4), (["--num-servers", "1"], 2)],
    ids=["trainers alone", "servers"],
)
def test_a_training_job(slurm, command, folder, flags, num_trainers):
    state, said = submitted(slurm, command, folder, *flags, "train.py", "--lr", "a b")
    assert state == ("COMPLETED", "0:0"), said
    on_host = num_trainers // 2
    num_batches = 10 * -(-100 // num_trainers // 13)
    assert sorted(re.findall(r"RESULT .*", said)) == [
        f"RESULT {rank} of {num_trainers}: {num_batches} batches, accuracy 1.00, host node{1 + rank // on_host}, "
        f"local {rank % on_host}, arguments ['--lr', 'a b']"
        for rank in range(num_trainers)
    ]


@pytest.mark.integration
def test_a_killed_task_ends_the_job_and_is_named(slurm, command, folder):
    (name, code), said = submitted(slurm, command, folder, "--num-trainers", "2", "meet.py")
    took_s = time.time() - float(re.search(r"KILLED AT (\S+)", said)[1])
    assert name == "FAILED" and code != "0:0", said
    assert "srun: error: node2: task 3: Killed" in said
    assert "MET 3 2 6" in said and "MET 3 3" not in said, said
    assert all(f"MET {rank} 0 6" in said for rank in range(4)), said
    assert took_s < KILL_WAIT_S + MOST_S, f"{took_s:.1f} s"
