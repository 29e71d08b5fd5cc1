"""Servers as actors of Ray, trainers of Ray Train and Ray Data, on a cluster of two nodes of this machine."""

import json
import os
import re
import subprocess
import sys
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from launch_world import expect_none_marked, mark_of, wait_until

import glt
from glt.testing import random_graph, reference_batch

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
NUM_NODES, BATCH_SIZE, NUM_TRAINERS = 400, 8, 2
HEAD, NODE = "127.0.0.2", "127.0.0.3"  # not 127.0.0.1, for which Ray takes the host's address in its network
DEADLINE_S = 280.0

CLUSTER = f"""\
import sys
from ray.cluster_utils import Cluster

small = {{"num_cpus": 3, "object_store_memory": 80 << 20, "include_dashboard": False}}
cluster = Cluster(initialize_head=True, head_node_args=small | {{"node_ip_address": "{HEAD}"}})
try:
    cluster.add_node(**small, node_ip_address="{NODE}")
    print(cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
"""

# What the page's program does with each batch. Trainer 0 kills server 1, waits until Ray has started it again, and
# kills server 0.
HOOK = """\
import os, signal, time
from contextlib import suppress
from pathlib import Path
import torch
import glt
from ray.train import get_context

NAMES = ("n_id", "edge_index", "input_id", "x", "batch_size", "num_sampled_nodes", "num_sampled_edges")
taken, killed = [], {}


def take(loader, batch):
    rank = get_context().get_world_rank()
    taken.append({name: batch[name] for name in NAMES})
    if rank == 0 and len(taken) == 4:
        while not Path(__file__).with_name("1.pt").exists():  # a loader is not created while a server is down
            time.sleep(0.1)
        kill(1)
        wait_for_another(1, time.monotonic())
    if rank == 0 and len(taken) == 8:
        kill(0)
    moved = loader.stats()["channel_num_moved"]
    said = {"batches": taken, "seed": loader.random_seed, "moved": moved, "killed": killed}
    torch.save(said, Path(__file__).with_name(f"{rank}.pt"))


def pid_of(server):
    return int(glt.distributed.server_stats(server)["server"].split("pid ")[1].rstrip(")"))


def kill(server):
    pid = pid_of(server)
    (parent,) = (line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("PPid"))
    killed[server] = pid, int(parent)
    os.kill(pid, signal.SIGKILL)


def wait_for_another(server, began_s):
    while True:
        with suppress(glt.errors.PeerLost):
            if pid_of(server) != killed[server][0]:
                print(f"server {server} was back after {time.monotonic() - began_s:.1f} s")
                return
        time.sleep(0.1)
"""

# What the page's program does after that.
MORE = """
for text, given in (("room", {"resources_per_server": {"CPU": 64}}), ("nowhere", {})):
    try:
        with glt.ray.serve("/nowhere", 1, **given, options=glt.distributed.ServerOptions(rpc_timeout=WAITS[text])):
            raise AssertionError("it serves")
    except (glt.errors.RendezvousError, ray.exceptions.RayActorError) as error:
        print("REFUSED", text, type(error).__name__, str(error).replace("\\n", " "))
"""


# What follows the programs of the page of Ray Data. Trainers have half a CPU, so that Ray Data finds some.
DATA = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = GraphSAGE(1, 8, 2, 4)

    def forward(self, x_dict, edge_index_dict):
        return {"account": self.net(x_dict["account"], edge_index_dict["account", "pays", "account"])}


options = glt.distributed.ServerOptions(rpc_timeout=280)
with glt.ray.serve(f"{DATA}/parts", num_servers=2, options=options) as servers:

    def train(config):
        config["servers"].init_client()
        with make_loader(worker_options=glt.distributed.RemoteDistSamplingWorkerOptions()) as loader:
            seeds = torch.cat([batch["account"].n_id[: batch["account"].batch_size] for batch in loader])
        torch.save(seeds, f"{DATA}/seeds.{ray.train.get_context().get_world_rank()}.pt")
        glt.distributed.shutdown_client()

    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})
    ids = ray.data.range(300)
    TorchTrainer(
        train, train_loop_config={"servers": servers}, scaling_config=scaling, datasets={"seeds": ids}
    ).fit()
    torch.manual_seed(0)
    model = Model()
    predict(ids, servers, model, f"{DATA}/predictions")
graph = glt.partition.read_graph(f"{DATA}/graph/graph.json", DATA)
with torch.inference_mode():
    x, edge_index = ({t: torch.tensor(each) for t, each in graph[name].items()} for name in ("node_feat", "edge_index"))
    torch.save(model(x, edge_index)["account"].argmax(dim=1), f"{DATA}/expected.pt")
"""


def data_program(address, data):
    """The programs and commands of the page of Ray Data, one after the other."""
    page = (GUIDES / "ray_data.md").read_text().replace("/data/", f"{data}/")
    tables, seeds, predictions = (block.split("\n```")[0] for block in page.split("```python\n")[1:])
    (commands,) = re.findall(r"```text\n(glt .*?)```", page, re.S)
    assert tables.count("import ray\n") == predictions.count("[10, 5]") == 1
    tables = tables.replace("import ray\n", f"import ray\nray.init(address={address!r}, _node_ip_address={HEAD!r})\n")
    imports = f"DATA = {str(data)!r}\nimport glt.ray, os, subprocess, sys\nfrom ray.train import ScalingConfig\n"
    imports += "from ray.train.torch import TorchTrainer\nfrom torch_geometric.nn import GraphSAGE\n"
    runs = [f"subprocess.run([sys.executable, '-m', *{line.split()}], check=True)" for line in commands.splitlines()]
    return "\n".join([imports, tables, *runs, seeds, predictions.replace("[10, 5]", "[-1, -1]"), DATA])


def program(parts, address):
    """That of the page, on the cluster of the tests."""
    (text,) = (block.split("\n```")[0] for block in (GUIDES / "ray.md").read_text().split("```python\n")[1:])
    cluster = f"address={address!r}, _node_ip_address={HEAD!r}"
    for before, after in {
        "import ray\n": "import ray\nimport hook\n",
        "ray.init()": f"ray.init({cluster}, log_to_driver=True)",
        '"/data/parts", num_servers=2': f"{str(parts)!r}, 2, options=glt.distributed.ServerOptions(read_local=False)",
        "128,": f"{BATCH_SIZE},",
        "pass  # your model here": "hook.take(loader, batch)",
    }.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text + MORE.replace("WAITS", repr({"room": 2.0, "nowhere": DEADLINE_S}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of two nodes. Gives its address, the environment of programs, and the folder of modules that they and
    Ray's workers import."""
    if not all(map(find_spec, ("ray", "pandas", "pyarrow"))):
        pytest.skip("no Ray here: pip install 'glt-graph[ray]'")
    folder, mark = tmp_path_factory.mktemp("cluster"), uuid.uuid4().hex
    # Servers wait for one that is started again as long as this machine needs for it.
    (folder / "sitecustomize.py").write_text(f"from glt import _deadlines\n_deadlines.RECONNECT_S = {DEADLINE_S}\n")
    paths = map(str, (folder, ROOT, os.environ.get("PYTHONPATH", "")))
    env = os.environ | mark_of(mark) | {"PYTHONPATH": os.pathsep.join(paths), "HOME": str(folder)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}
    env["RAY_prestart_worker_first_driver"] = "0"  # processes that nothing would use
    log = folder / "cluster.log"
    # Short, since paths of Unix sockets have 107 bytes at most.
    with log.open("w") as out, TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as files:
        env = env | {"RAY_TMPDIR": files}
        command = [sys.executable, "-c", CLUSTER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": out, "text": True}
        process = subprocess.Popen(command, env=env, cwd=folder, **pipes)
        try:
            address = process.stdout.readline().strip()
            assert address, log.read_text()
            yield address, env, folder
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=60)
            process.kill()
            process.wait()
    expect_none_marked(mark)


def run(text, folder, env):
    """Runs a program; gives what it wrote."""
    (folder / "job.py").write_text(text)
    given = {"capture_output": True, "text": True, "timeout": DEADLINE_S, "check": False}
    done = subprocess.run([sys.executable, "job.py"], cwd=folder, env=env, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: not actors(), why=actors)
    return done


def expected(graph, rank, seed):
    """The batches of a trainer, from the whole graph in this process."""
    seeds = torch.arange(NUM_NODES * rank // NUM_TRAINERS, NUM_NODES * (rank + 1) // NUM_TRAINERS)
    for index in glt.sampler.order.SeedOrder(len(seeds), BATCH_SIZE, True, False, seed).batches(0):
        chosen = seeds[index.input_id].tolist()
        made = reference_batch(graph.edge_index, NUM_NODES, chosen, [10, 5], False, seed, 0, index.index, "in")
        node, *ends = map(torch.from_numpy, (made.node, made.row, made.col))
        yield {
            "n_id": node,
            "edge_index": torch.stack(ends),
            "input_id": index.input_id,
            "x": graph.x[node],
            "batch_size": len(chosen),
            "num_sampled_nodes": made.num_sampled_nodes,
            "num_sampled_edges": made.num_sampled_edges,
        }


def actors():
    """Processes of this host that are servers of Ray."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += [path.parent.name] if path.read_bytes().startswith(b"ray::_Server") else []
    return found


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_killed_servers_are_started_again_and_batches_stay_the_same(cluster, tmp_path):
    address, env, folder = cluster
    graph = random_graph(NUM_NODES, 4000, seed=3)
    tables = {"node_feat": graph.x, "node_attrs": {"train_mask": torch.ones(NUM_NODES, dtype=torch.bool)}}
    parts = tmp_path / "parts"
    glt.partition.RandomPartitioner(
        parts, 2, NUM_NODES, graph.edge_index, edge_assign_strategy="by_dst", **tables
    ).partition()
    (folder / "hook.py").write_text(HOOK)
    done = run(program(parts, address), folder, env)
    said = [torch.load(folder / f"{rank}.pt") for rank in range(NUM_TRAINERS)]
    for rank, each in enumerate(said):
        batches = list(expected(graph, rank, each["seed"]))
        assert len(each["batches"]) == len(batches) == 25
        for found, wanted in zip(each["batches"], batches, strict=True):
            for name, value in wanted.items():
                same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
                assert same, f"{name} of trainer {rank}"
    assert said[0]["moved"] > 0
    assert set(said[0]["killed"]) == {0, 1}
    assert len({node for _, node in said[0]["killed"].values()}) == 2, "a server on each node"
    print(*[line for line in (done.stdout + done.stderr).splitlines() if "was back after" in line])
    room, nowhere = (line for line in done.stdout.splitlines() if line.startswith("REFUSED"))
    assert "room RendezvousError Ray found no room for num_servers = 1 with resources_per_server = {'CPU': 64}" in room
    assert "PartitionError: /nowhere is not a directory" in nowhere


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_tables_seeds_and_predictions_of_ray_data(cluster, tmp_path):
    address, env, _ = cluster
    random = np.random.default_rng(0)
    accounts = {"account": [f"a{i}" for i in range(300)], "balance": random.normal(size=300), "fraud": [0, 1] * 150}
    ends = random.integers(0, 300, (2, 2000))
    payments = {"from": [f"a{i}" for i in ends[0]], "to": [f"a{i}" for i in ends[1]], "amount": ends[0] - 30}
    for name, columns in {"accounts": accounts, "payments": payments}.items():
        (tmp_path / "raw" / name).mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / "raw" / name / "0.parquet")
    node = {"files": "accounts", "key": "account", "label": "fraud", "features": {"balance": "number"}}
    edge = {"type": ["account", "pays", "account"], "files": "payments", "src": "from", "dst": "to"}
    said = {"node_types": {"account": node}, "edge_types": [edge]}
    (tmp_path / "fraud.json").write_text(json.dumps(said))
    run(data_program(address, tmp_path), tmp_path, env)
    seeds = [torch.load(tmp_path / f"seeds.{rank}.pt") for rank in range(NUM_TRAINERS)]
    assert {len(each) for each in seeds} == {150} and sorted(torch.cat(seeds).tolist()) == list(range(300))
    found = pq.read_table(tmp_path / "predictions")
    predicted = dict(zip(found["id"].to_pylist(), found["class"].to_pylist(), strict=True))
    classes = torch.load(tmp_path / "expected.pt").tolist()
    assert len(set(classes)) > 1 and predicted == dict(enumerate(classes))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"num_servers": 0}, "num_servers = 0: expected"),
        ({"max_restarts": -2}, "max_restarts = -2: expected"),
        ({"placement_strategy": "SPREAD_OUT"}, "placement_strategy = 'SPREAD_OUT': expected"),
        ({"master_port": 70000}, "master_port = 70000: expected"),
        ({"resources_per_server": {"CPU": -1}}, r"resources_per_server\['CPU'\] = -1"),
        ({"resources_per_server": {"CPU": "4"}}, r"resources_per_server\['CPU'\] = '4'"),
        ({"resources_per_server": {}}, r"resources_per_server = {}: expected some"),
        ({"resources_per_server": 4}, "resources_per_server has type int"),
        ({"options": 2}, "options has type int: expected a ServerOptions"),
        ({}, r"glt.ray needs Ray: pip install 'glt-graph\[ray\]'"),
    ],
)
def test_a_mistake_is_named(monkeypatch, given, message):
    monkeypatch.setitem(sys.modules, "ray", None)  # where it is not installed
    with (
        pytest.raises((ValueError, TypeError, ImportError), match=message),
        glt.ray.serve("parts", **{"num_servers": 1} | given),
    ):
        raise AssertionError("it serves")
