"""One script, any job: servers and trainers, trainers that also serve, a process alone; and what if one dies."""

import functools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from dist_world import NUM_NODES
from service import Stage, begin_job, finalize, take_part

import glt
from glt.distributed.tensors.tensor import DistTensor
from glt.errors import RendezvousError
from glt.testing.cluster import free_port


def look(part_config):
    """What a trainer sees and does; all do it."""
    graph = glt.distributed.DistGraph("small", part_config)
    rank, count = glt.distributed.get_rank(), glt.distributed.num_trainers()
    made = DistTensor((NUM_NODES, 2), torch.int64, "seen", part="node")
    graph.ndata["seen"] = made
    glt.distributed.barrier(60.0)
    mine = torch.arange(rank, NUM_NODES, count)
    made[mine] = torch.stack([mine, torch.full_like(mine, rank)], 1)
    graph.barrier(60.0)
    every = torch.arange(NUM_NODES)
    servers = range(graph.world.num_servers)
    return {
        "x": graph.ndata["x"][every],
        "in": graph.in_degrees(),
        "out": graph.out_degrees(),
        "ends": graph.find_edges(torch.arange(0, 6000, 7)),
        "seen": made[every],
        "hop": graph.sample_neighbors(every, 3, random_seed=9).e_id,
        "far": graph.sample_neighbors(every, 3, "out", random_seed=9).e_id,
        "udf": [glt.distributed.request_server(server, "scale", 3, torch.arange(4)) for server in servers],
        "book": graph.get_partition_book().node_owners(every),
        "servers": len(servers),
    }


def barrier(timeout_s):
    glt.distributed.barrier(timeout_s)


def leftover():
    """Threads of glt that are still there, but the one that every process has that ever had a connection."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("glt-") and name != "glt-loop"]


def require_right(found, world, num_trainers):
    ends = world.graph.edge_index
    every = torch.arange(NUM_NODES)
    for each in found:
        assert torch.equal(each["x"], world.x)
        for side, name in ((1, "in"), (0, "out")):
            assert torch.equal(each[name], torch.bincount(ends[side], minlength=NUM_NODES))
        assert torch.equal(each["ends"], ends[:, torch.arange(0, 6000, 7)])
        assert torch.equal(each["seen"], torch.stack([every, every % num_trainers], 1))
        for values in each["udf"]:
            assert torch.equal(values, 3 * torch.arange(4))
        for name in ("hop", "far", "book"):
            assert torch.equal(each[name], found[0][name])


def alone(path):
    """What a standalone process sees."""
    take_part({})
    try:
        return look(path)
    finally:
        glt.distributed.finalize()


def test_servers_and_trainers(world):
    made = world(2, "in", "xye")
    with Stage(5) as stage:
        begin_job(stage, made.path, 2, 2)
        for trainer in (2, 3):
            stage.begin(trainer, "run_function", look, None)
        found = [stage.result(trainer) for trainer in (2, 3)]
        for trainer in (2, 3):
            stage.ask(trainer, "run_function", finalize)
            assert stage.ask(trainer, "run_function", leftover) == []
        assert [stage.result(server) for server in (0, 1)] == [(-1, 0), (-1, 0)], "they exit with status 0"
        found.append(stage.ask(4, "run_function", alone, made.path))
        require_right(found[:2], made, 2)
        require_right(found[2:], made, 1)
        for name in ("hop", "far", "book"):
            assert torch.equal(found[2][name], found[0][name]), "the same with servers and without"
        assert (found[0]["servers"], found[2]["servers"]) == (2, 1)
        stage.end(0, 1, 2, 3, 4)
        stage.expect_nothing_left()


def unreachable(port):
    """What a trainer says whose servers are not there; it may then try something else."""
    env = {"GLT_ROLE": "trainer", "GLT_NUM_SERVERS": "1", "GLT_NUM_TRAINERS": "1", "RANK": "0", "WORLD_SIZE": "1"}
    env |= {"GLT_MASTER_ADDR": "127.0.0.1", "GLT_MASTER_PORT": str(port)}
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(RendezvousError) as raised:
            take_part(env, rpc_timeout=1.0)
    assert glt.distributed.get_context() is None and threading.active_count() <= before + 1
    return str(raised.value)


@functools.cache
def opened():
    """To open a tensor all servers are needed, to read rows only their owners."""
    return glt.distributed.DistGraph("small").ndata["x"]


def read(ids):
    return opened()[ids]


def test_a_server_that_is_killed_or_never_there_is_named(world):
    made = world(2, "in", "xye")
    book = glt.distributed.DistDataset().load(made.path, 0).node_books[0]
    with Stage(5) as stage:
        stage.begin(4, "run_function", unreachable, free_port())
        begin_job(stage, made.path, 2, 2)
        mine = [torch.from_numpy((book.owners() == part).nonzero()[0]) for part in range(2)]
        assert torch.equal(stage.ask(2, "run_function", read, mine[1]), made.x[mine[1]])
        stage.kill(1)
        stage.fails(2, "run_function", read, mine[1]).expect("PeerLost", "server 1 (partition 1")
        assert torch.equal(stage.ask(2, "run_function", read, mine[0]), made.x[mine[0]]), "the other one serves on"
        stage.begin(2, "run_function", barrier, 100.0)
        stage.ask(3, "run_function", barrier, 100.0)
        stage.result(2)
        stage.begin(2, "run_function", barrier, 100.0)  # the other never comes
        stage.kill(0)
        stage.failure(2).expect("PeerLost", "server 0 (partition 0")
        for trainer in (2, 3):
            stage.ask(trainer, "run_function", finalize)
        assert "server 0 was not reached at 127.0.0.1" in stage.result(4)
        stage.end(2, 3, 4)


def test_trainers_that_also_serve(world, tmp_path):
    made = world(2, "out", "xye")
    hosts = tmp_path / "ip_config.txt"
    with Stage(2) as stage:
        hosts.write_text(f"# one host\n127.0.0.1 {stage.port}  # here\n")
        for rank in (0, 1):
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            env["MASTER_ADDR"] = "localhost"
            stage.begin(rank, "run_function", take_part, env, ip_config=hosts)
        for rank in (0, 1):
            assert stage.result(rank) == (rank, 2)
        for rank in (0, 1):
            stage.begin(rank, "run_function", look, made.path)
        require_right([stage.result(rank) for rank in (0, 1)], made, 2)
        stage.begin(0, "run_function", barrier, 100.0)
        stage.kill(1)
        stage.failure(0).expect("PeerLost", "trainer 1, client 1 of")
        began = time.monotonic()
        assert stage.ask(0, "run_function", finalize, 1.0) - began < 55, (
            "as long as it was told, not until a lost trainer counts as gone"
        )
        assert stage.ask(0, "census")[2] == 0, "its sampling process is gone, too"
        assert stage.ask(0, "run_function", leftover) == []
        stage.end(0)


def test_a_file_of_two_addresses_of_one_host_leaves_it_to_the_environment_who_is_who(world, tmp_path):
    made = world(2, "out", "xye")
    hosts = tmp_path / "ip_config.txt"
    with Stage(2) as stage:
        hosts.write_text(f"127.0.0.1 {stage.port}\n127.0.0.2\n")
        for rank in (0, 1):
            env = {"RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "WORLD_SIZE": "2"}
            env |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
            stage.begin(rank, "run_function", take_part, env, ip_config=hosts, part_config=made.path)
        for rank in (0, 1):
            assert stage.result(rank) == (rank, 2)
        for rank in (0, 1):
            stage.begin(rank, "run_function", look, made.path)
        require_right([stage.result(rank) for rank in (0, 1)], made, 2)
        for rank in (0, 1):
            stage.begin(rank, "run_function", finalize)
        for rank in (0, 1):
            stage.result(rank)
        stage.end(0, 1)


def begin_script(folder, text, *args):
    """Writes a script; what it returns starts it as the trainer of a rank of two on this host."""
    (folder / "script.py").write_text(text)
    (folder / "hosts").write_text(f"127.0.0.1 {free_port()}\n")
    command = [sys.executable, "script.py", "hosts", *args]
    env = os.environ | {"PYTHONPATH": str(Path(glt.__file__).parents[1]), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)

    def start(rank):
        ranked = env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return subprocess.Popen(command, cwd=folder, env=ranked, text=True, **pipes)

    return start


BUG = """
import os
import sys
import time
import glt
from glt.distributed.server.sessions import ClientSession

said = ClientSession.send

def say(self, value, *args, **options):
    said(self, value, *args, **options)
    if "was shut down" in value.get("closing", ""):
        time.sleep(1.0)

if __name__ == "__main__":
    if sys.argv[3] == "slowly":  # and rank 0 is the first to come, and to be told
        ClientSession.send = say
        time.sleep(2.0 * int(os.environ["RANK"]))
    glt.distributed.initialize(sys.argv[1], part_config=sys.argv[2])
    if sys.argv[3] != "late":
        glt.distributed.barrier(200.0)
    if glt.distributed.get_rank() == 0:
        raise ValueError("a bug")
    glt.distributed.barrier(200.0)
"""


@pytest.mark.parametrize("other", ["together", "slowly", "late"])
def test_an_exception_ends_a_job_at_once(world, tmp_path, other):
    """Also for a trainer that comes when the one whose host serves has failed.

    And for one that is told after another has hung up: what it hears is why, not that the other is gone.
    """
    start, started = begin_script(tmp_path, BUG, str(world(1).path), other), []
    try:
        for rank in (0, 1):
            started.append(start(rank))
            if other == "late" and rank == 0:
                assert started[0].stderr is not None
                assert any("ValueError: a bug" in line for line in started[0].stderr)
        told = [process.communicate(timeout=150)[1] for process in started]
        assert [process.returncode for process in started] == [1, 1]
        lost = told[1].splitlines()[-1]
        if other == "late":
            assert "RendezvousError: server 0 at 127.0.0.1" in lost and "refused: server 0 (partition 0" in lost, told
        else:
            assert "PeerLost: server 0 (partition 0" in lost and "ValueError: a bug" in told[0], told
        assert "trainer 0, which runs it, has failed: ValueError: a bug" in lost, told
        assert "died with exit code" not in told[0], "its samplers end when the clients know why, and not before"
    finally:
        for process in started:
            process.kill()


ENDED = """
import sys
import threading
import torch
import glt

start = threading.Thread.start

def start_or_raise(thread):
    if not threading.main_thread().is_alive():
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)

if __name__ == "__main__":
    threading.Thread.start = start_or_raise  # as Python 3.12 has it
    glt.distributed.initialize(sys.argv[1], part_config=sys.argv[2])
    glt.distributed.barrier(200.0)
    if glt.distributed.get_rank() == 1:
        sys.stdin.readline()
        options = glt.distributed.RemoteDistSamplingWorkerOptions()
        with glt.distributed.DistNeighborLoader(
            None, [2], torch.arange(60), batch_size=5, worker_options=options
        ) as loader:
            print(len(list(loader)))
        glt.distributed.finalize()
    print("the end", flush=True)
"""


def test_a_trainer_whose_script_has_ended_serves_on_without_new_threads(world, tmp_path):
    start = begin_script(tmp_path, ENDED, str(world(1).path))
    started = [start(rank) for rank in (0, 1)]
    try:
        assert started[0].stdout is not None and started[0].stdout.readline() == "the end\n"
        said, told = started[1].communicate("go on\n", timeout=100)
        assert said == "12\nthe end\n", told
        _, told = started[0].communicate(timeout=100)
        assert [process.returncode for process in started] == [0, 0], told
    finally:
        for process in started:
            process.kill()
            process.communicate()


CHILDREN = """
import multiprocessing, os, sys
import glt

def train(rank, fails, returned):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    glt.distributed.initialize(sys.argv[1], part_config=sys.argv[2])
    if rank == 0:
        if fails:
            raise ValueError("a bug")
        returned.set()
        return
    if fails:
        glt.distributed.barrier(200.0)
    assert returned.wait(100)
    rows = glt.distributed.DistGraph("small").ndata["x"]
    print(f"rows: {len(rows[range(len(rows))])}")

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[3])
    returned = context.Event()
    trainers = [context.Process(target=train, args=(rank, sys.argv[4:] == ["fails"], returned)) for rank in (0, 1)]
    sys.last_value = KeyError("of a cell before")
    try:
        raise ValueError("handled")
    except ValueError:
        for trainer in trainers:
            trainer.start()
    for trainer in trainers:
        trainer.join()
    sys.exit(max(trainer.exitcode for trainer in trainers))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("fails", [True, False])
def test_children_of_multiprocessing_end_like_programs(world, tmp_path, method, fails):
    """What has returned serves the other until that is done; what has failed tells the other why."""
    start = begin_script(tmp_path, CHILDREN, str(world(2, "out", "xye").path), method, *["fails"][: int(fails)])
    parent = start(0)
    try:
        out, err = parent.communicate(timeout=200)
    finally:
        parent.kill()
    if fails:
        assert parent.returncode == 1 and "which runs it, has failed: ValueError: a bug" in err, err
    else:
        assert (parent.returncode, out) == (0, f"rows: {NUM_NODES}\n"), err
