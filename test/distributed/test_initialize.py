"""How a process learns its place in a job, and what it says where that makes no sense."""

import os
import shutil
import threading
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from dist_world import NUM_NODES

import glt
from glt.distributed.context import current_world
from glt.distributed.job.hosts import JobEnvironment, JobRole, read_environment
from glt.distributed.job.initialize import on_hosts, publishing_failures, wait_for_port
from glt.distributed.job.worlds import ServedWorld, StandaloneWorld
from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.wire.store import TimedStore
from glt.errors import RendezvousError
from glt.partition.format.part_config import write_part_config

SERVED = {"GLT_NUM_SERVERS": "4", "GLT_NUM_TRAINERS": "8", "GLT_MASTER_ADDR": "10.0.0.1", "GLT_MASTER_PORT": "30050"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
TORCHRUN |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith("GLT_") and name != "GLT_TEST_CLUSTER"]:
        monkeypatch.delenv(name)
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    yield
    glt.distributed.finalize()


SERVER = {**SERVED, "GLT_ROLE": "server", "GLT_SERVER_RANK": "3"}
AT = "10.0.0.1"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, JobEnvironment(JobRole.STANDALONE, 0, 1, 1)),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, JobEnvironment(JobRole.STANDALONE, 0, 1, 1)),
        ({**SERVER, "GLT_PARTITION": "1"}, JobEnvironment(JobRole.SERVER, 3, 8, 4, (AT, 30050), partition=1)),
        (SERVER, JobEnvironment(JobRole.SERVER, 3, 8, 4, (AT, 30050))),
        ({**TORCHRUN, **SERVED, "GLT_ROLE": "trainer"}, JobEnvironment(JobRole.TRAINER, 5, 8, 4, (AT, 30050))),
        (TORCHRUN, JobEnvironment(JobRole.PEER, 5, 8, 2, (AT, None), 1, False)),
    ],
)
def test_environments(env, expected):
    assert read_environment(env) == expected


@pytest.mark.parametrize(
    ("env", "match"),
    [
        ({"GLT_ROLE": "client"}, "GLT_ROLE = 'client': expected 'server', 'trainer'"),
        ({"GLT_ROLE": "server"}, "GLT_NUM_SERVERS is not set, which GLT_ROLE = 'server' calls for; glt launch sets it"),
        ({**SERVED, "GLT_ROLE": "server"}, "GLT_SERVER_RANK is not set"),
        ({**SERVED, "GLT_ROLE": "server", "GLT_SERVER_RANK": "4"}, "GLT_SERVER_RANK = '4': expected .* 0 to 3"),
        ({**SERVED, "GLT_ROLE": "trainer"}, "RANK is not set, .*by way of torchrun"),
        ({**SERVED, "GLT_ROLE": "trainer", "RANK": "1", "WORLD_SIZE": "4"}, "WORLD_SIZE = 4 and GLT_NUM_TRAINERS = 8"),
        ({**SERVED, "GLT_ROLE": "trainer", "RANK": "x"}, "RANK = 'x'"),
        ({**SERVED, "GLT_ROLE": "trainer", "RANK": "1", "GLT_MASTER_PORT": "0"}, "GLT_MASTER_PORT = '0'"),
        ({"WORLD_SIZE": "2"}, "RANK is not set, which WORLD_SIZE calls for; torchrun sets it"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, "the same number of trainers on each host"),
    ],
)
def test_environments_that_make_no_sense(env, match):
    with pytest.raises(ValueError, match=match):
        read_environment(env)


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        (["127.0.0.1 4711", "192.0.2.1"], 0),  # the line that is this host's
        (["192.0.2.1 4711", "127.0.0.1"], 1),
        (["127.0.0.1 4711", "127.0.0.2"], 1),  # two addresses of this host: torchrun says which host it is
        (["192.0.2.1 4711", "192.0.2.2"], 1),  # behind NAT
        (["no-such-host.invalid 4711", "192.0.2.2"], 1),
    ],
)
def test_which_host_of_a_file_this_is(tmp_path, lines, at):
    (tmp_path / "hosts").write_text("\n".join(lines))
    found = on_hosts(read_environment(TORCHRUN), tmp_path / "hosts")
    assert (found.host_index, found.master) == (at, (lines[0].split()[0], 4711))
    for env in (SERVER, {**TORCHRUN, **SERVED, "GLT_ROLE": "trainer"}, {}):  # they have been told already
        assert on_hosts(read_environment(env), tmp_path / "hosts") == read_environment(env)
    (tmp_path / "hosts").write_text("127.0.0.1\n")
    with pytest.raises(ValueError, match="names 1 hosts, and torchrun has started trainers on 2"):
        on_hosts(read_environment(TORCHRUN), tmp_path / "hosts")


def test_where_server_0_is_is_told_or_why_it_is_not():
    store = TimedStore(dist.HashStore())
    store.set("port", "4711")
    assert wait_for_port(store, 1.0) == (4711, "")
    with pytest.raises(PermissionError), publishing_failures(store):
        raise PermissionError("no ports for you")
    with pytest.raises(RendezvousError, match="could not be made: PermissionError: no ports for you"):
        wait_for_port(store, 1.0)
    with pytest.raises(RendezvousError, match=r"has opened no server within 0.1 s"):
        wait_for_port(TimedStore(dist.HashStore()), 0.1)


@pytest.mark.usefixtures("alone")
def test_a_process_alone(world):
    made = world(2)
    with pytest.raises(RuntimeError, match="initialize"):
        glt.distributed.get_rank()
    glt.distributed.initialize()
    glt.distributed.initialize()  # the same: nothing
    with pytest.raises(RuntimeError, match=r"call glt\.distributed\.finalize"):
        glt.distributed.initialize(num_workers=2)
    assert (glt.distributed.get_rank(), glt.distributed.num_trainers()) == (0, 1)
    early = DistTensor((5, 2), torch.float32, "early")
    early[[1]] = torch.ones(1, 2)
    with pytest.raises(ValueError, match="nothing says which partitions"):
        glt.distributed.DistGraph("small")
    graph = glt.distributed.DistGraph("small", made.path)
    assert graph.num_nodes() == NUM_NODES and early[[1]].sum() == 2
    assert torch.equal(glt.distributed.DistGraph("small").ndata["x"][torch.arange(NUM_NODES)], made.x)
    with pytest.raises(ValueError, match="expected the same partitions"):
        glt.distributed.DistGraph("other", world(1).path)
    with pytest.raises(FileNotFoundError, match="part_config = 'nowhere'"):
        glt.distributed.DistGraph("other", "nowhere")
    glt.distributed.barrier()
    glt.distributed.register_server_function(torch.numel, "numel")
    assert glt.distributed.request_server(0, "numel", torch.ones(3)) == 3
    with pytest.raises(LookupError, match="'nothing' is no function"):
        glt.distributed.request_server(0, "nothing")
    glt.distributed.finalize()
    glt.distributed.finalize()
    assert current_world() is None and glt.distributed.get_context() is None
    glt.distributed.initialize(part_config=made.path)
    assert glt.distributed.DistGraph("small").num_nodes() == NUM_NODES


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("told", ["initialize", "the first graph"])
@pytest.mark.parametrize("as_file", [False, True])
def test_the_name_is_that_of_the_part_config(world, tmp_path, told, as_file):
    directory = tmp_path / "parts"
    shutil.copytree(world(1).path, directory)
    file = write_part_config(directory, "papers", "random")
    given = file if as_file else directory
    if told == "initialize":
        glt.distributed.initialize(part_config=given)
    else:
        glt.distributed.initialize()
        glt.distributed.DistGraph("papers", given)
    with pytest.raises(ValueError, match=r"name = 'paper': .* is of the graph 'papers'"):
        glt.distributed.DistGraph("paper")
    assert glt.distributed.DistGraph("papers").num_nodes() == NUM_NODES


@pytest.mark.usefixtures("alone")
def test_wrong_arguments_leave_nothing_behind(monkeypatch, tmp_path):
    for given, kind in (
        ({"num_workers": -1}, ValueError),
        ({"num_workers": "2"}, TypeError),
        ({"rpc_timeout": 0}, ValueError),
        ({"part_config": tmp_path / "none"}, FileNotFoundError),
        ({"ip_config": tmp_path / "none"}, FileNotFoundError),
        ({"part_config": tmp_path}, glt.errors.PartitionError),
    ):
        with pytest.raises(kind):
            glt.distributed.initialize(**given)
        assert current_world() is None
    monkeypatch.setenv("GLT_NUM_WORKERS", "many")
    with pytest.raises(ValueError, match="GLT_NUM_WORKERS = 'many'"):
        glt.distributed.initialize()
    monkeypatch.delenv("GLT_NUM_WORKERS")
    for name, value in {**SERVED, "GLT_ROLE": "server", "GLT_SERVER_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="neither part_config nor GLT_PART_CONFIG says which"):
        glt.distributed.initialize()
    (tmp_path / "hosts").write_text("one two three\n")
    with pytest.raises(ValueError, match="line 1: 'one two three': expected ADDRESS"):
        glt.distributed.initialize(tmp_path / "hosts")


@pytest.mark.usefixtures("alone")
def test_a_process_alone_samples_from_any_number_of_partitions(world):
    found, before = [], set(threading.enumerate())
    for num_parts in (1, 2):
        glt.distributed.initialize(part_config=world(num_parts).path)
        graph = glt.distributed.DistGraph("small")
        nodes, given = torch.arange(0, NUM_NODES, 3), {"with_edge": True, "collect_features": True}
        options = graph.world.worker_options(0)
        with glt.distributed.DistNeighborLoader(
            graph.world.data, [4, 3], nodes, 50, random_seed=3, worker_options=options, **given
        ) as loader:
            found.append([(batch.n_id.clone(), batch.e_id.clone(), batch.x.clone()) for batch in loader])
        glt.distributed.finalize()
        left = {each.name for each in set(threading.enumerate()) - before if each.name.startswith("glt-")}
        assert left <= {"glt-loop"}  # which the process keeps
    assert len(found[0]) == 4
    for one, two in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_barrier_that_is_refused_was_none():
    """Its number is not used up: the next one would wait for a meeting that nobody holds."""
    standalone = StandaloneWorld()
    served = ServedWorld.__new__(ServedWorld)  # refuses before it asks anyone
    served._num_entered = Counter()
    for world in (standalone, served):
        for wrong, error in ((-1, ValueError), (0.0, ValueError), ("soon", TypeError), (True, TypeError)):
            with pytest.raises(error, match="timeout_s = "):
                world.barrier(wrong)
    assert not served._num_entered
    standalone.barrier(1.0)
    standalone.barrier()
    standalone.close()
