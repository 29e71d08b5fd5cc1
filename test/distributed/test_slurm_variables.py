"""Ranks that no argument says: torchrun's variables, and those of a step of SLURM."""

import logging
import os
import shutil
import subprocess
import sys

import pytest

import glt
from glt.distributed.job.hosts import JobEnvironment, JobRole, read_environment
from glt.distributed.slurm import FIRST_PORT, NUM_PORTS, adopt_environment, expand_hosts, port_of, tasks_per_node

# As SLURM 22.05 gives them to task 3 of srun --nodes=2 --ntasks-per-node=2.
TASK = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "node[07,09]",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}
# As a batch script has them.
BATCH = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "text, names",
    [
        ("node7", ["node7"]),
        ("node[01-03,7],gpu5", ["node01", "node02", "node03", "node7", "gpu5"]),
        ("a[8-11]", ["a8", "a9", "a10", "a11"]),
        ("a[098-101]-ib,b", ["a098-ib", "a099-ib", "a100-ib", "a101-ib", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("x.example.org,10.0.0.1", ["x.example.org", "10.0.0.1"]),
    ],
)
def test_host_lists(text, names):
    assert expand_hosts(text) == names
    if shutil.which("scontrol"):
        conf = {**os.environ, "SLURM_CONF": "/dev/null"}
        told = subprocess.run(
            ["scontrol", "show", "hostnames", text], env=conf, capture_output=True, text=True, timeout=30
        )
        assert told.returncode != 0 or told.stdout.split() == names


@pytest.mark.parametrize(
    "text", ["", "a,", ",a", "a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[1-x]", "a[[1]]", "a[0-99999999]"]
)
def test_what_is_no_host_list_is_named(text):
    with pytest.raises(ValueError, match=r"SLURM_STEP_NODELIST = .*expected a list of hosts"):
        expand_hosts(text)


def test_tasks_of_nodes():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE = '2x3'"):
        tasks_per_node("2x3")


def test_ports_of_steps():
    ports = [port_of(job, step) for job in range(1000, 1020) for step in range(8)]
    assert all(FIRST_PORT <= port < FIRST_PORT + NUM_PORTS - 1 and port % 2 == 0 for port in ports)
    assert len(set(ports)) == len(ports)
    assert FIRST_PORT <= port_of(99_999_999, 4_294_967_290) < FIRST_PORT + NUM_PORTS


def test_a_task_of_slurm_is_a_rank(caplog):
    caplog.set_level(logging.INFO, "glt.distributed.slurm")
    env = dict(TASK)
    adopt_environment(env)
    port = port_of(17, 2)
    assert env.items() >= {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": "node07", "MASTER_PORT": str(port), "GLT_MASTER_PORT": str(port + 1),
    }.items()  # fmt: skip
    assert read_environment(env) == JobEnvironment(
        JobRole.PEER, 3, 4, 2, ("node07", None), host_index=1, is_first_on_host=False, peer_port=port + 1
    )
    assert f"rank 3 of 4 from SLURM's step 17.2; the first is at node07 port {port}" in caplog.text


def test_roles_in_slurm():
    job = {"GLT_NUM_SERVERS": "4", "GLT_NUM_TRAINERS": "4", "GLT_MASTER_ADDR": "node07", "GLT_MASTER_PORT": "20001"}
    for role in ("server", "trainer"):
        env = TASK | job | {"GLT_ROLE": role, "SLURM_STEP_TASKS_PER_NODE": "3,1"}
        env |= {"SLURM_LOCALID": "0"}
        adopt_environment(env)
        assert read_environment(env) == JobEnvironment(JobRole(role), 3, 4, 4, ("node07", 20001))
        assert ("RANK" in env) == (role == "trainer")


def test_what_is_given_goes_first(caplog):
    caplog.set_level(logging.INFO, "glt.distributed.slurm")
    env = TASK | TORCHRUN
    adopt_environment(env)
    assert env == TASK | TORCHRUN and "rank 1 of 2, as RANK and WORLD_SIZE say" in caplog.text
    env = TASK | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4000", "GLT_MASTER_PORT": "4001"}
    adopt_environment(env)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["GLT_MASTER_PORT"]) == ("10.0.0.9", "4000", "4001")


def test_a_batch_script_is_no_task():
    for env in ({}, BATCH):
        before = dict(env)
        adopt_environment(env)
        assert env == before


@pytest.mark.parametrize(
    "change, message",
    [
        ({"SLURM_PROCID": None}, "SLURM_PROCID is not set, and SLURM_STEP_ID = '2' is"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID = 'x': expected a number"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID = 2, and SLURM_STEP_TASKS_PER_NODE = '2\\(x2\\)' has 2 nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,1"}, "expected as many tasks on each node; give srun --ntasks-per-node"),
        ({"SLURM_STEP_NODELIST": "node["}, "SLURM_STEP_NODELIST = 'node\\['"),
    ],
)
def test_wrong_variables_are_named(change, message):
    env = {name: value for name, value in (TASK | change).items() if value is not None}
    before = dict(env)
    with pytest.raises(ValueError, match=message):
        adopt_environment(env)
    assert env == before


SAY = """
import logging, os
logging.basicConfig(level=logging.INFO, format="%(message)s")
import glt
print(glt.distributed.init_worker_group(), os.environ["RANK"], os.environ["MASTER_ADDR"])
"""


def test_init_worker_group_without_arguments(monkeypatch):
    for name in (*TASK, *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"world_size and rank were not given, and WORLD_SIZE = ''.*torchrun, or srun"):
        glt.distributed.init_worker_group()
    with pytest.raises(TypeError, match="rank = None: expected an integer"):
        glt.distributed.init_worker_group(2)
    env = {**os.environ, **TASK}
    told = subprocess.run([sys.executable, "-c", SAY], env=env, capture_output=True, text=True, timeout=100, check=True)
    assert "world_size=4, rank=3" in told.stdout and "3 node07" in told.stdout and "SLURM's step 17.2" in told.stderr
