"""Recipes and documents of launches."""

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from launch_world import SCRIPT, SLEEP, expect_none_marked, mark_of

from glt.distributed.job.hosts import JobEnvironment, JobRole, read_environment
from glt.launch import command as command_launch
from glt.launch import copy as command_copy
from glt.testing.cluster import free_port

# As much of srun as the recipe uses: a task on each node, each with its number before its lines; one that fails ends
# the others.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
num_nodes = os.environ["SLURM_NNODES"]
expected = [f"--ntasks={{num_nodes}}", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=1", "--label"]
assert words[:5] == expected, words
tasks = {{}}
for node in range(int(num_nodes)):
    env = os.environ | {{"SLURM_NODEID": str(node), "SLURM_PROCID": str(node)}}
    task = subprocess.Popen(words[5:], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    subprocess.Popen(["sed", "-u", f"s/^/{{node}}: /"], stdin=task.stdout)
    tasks[task.pid] = task
bad = 0
while tasks:
    pid, status = os.wait()
    if tasks.pop(pid, None) and status and not bad:
        bad = os.waitstatus_to_exitcode(status)
        for task in tasks.values():
            task.terminate()
sys.exit(bad if bad >= 0 else 128 - bad)
"""
SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames nodes[1-2]" ] && printf "127.0.0.1\\n127.0.0.2\\n"\n'


@pytest.fixture
def folder(tmp_path):
    """With ``train.py`` in it, and ``bin``, where programs are looked for first."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def env(folder):
    """The environment of a test's processes, none of which is left at its end."""
    mark = uuid.uuid4().hex
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**os.environ, **mark_of(mark), "PATH": path, "OMP_NUM_THREADS": "1"}
    expect_none_marked(mark)


def recipe(language, begin):
    (found,) = (block for name, block in BLOCKS if name == language and block.startswith(begin))
    return found


def sbatch(folder, env, **more):
    """Runs the batch script as SLURM does on two nodes, ends what it leaves, and returns its exit status and output."""
    first = free_pair()
    env |= {
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "nodes[1-2]",
        "SLURM_SUBMIT_DIR": str(folder),
        **more,
        "SLURM_CPUS_PER_TASK": "16",
        "SLURM_JOB_ID": str(1_000_000 + (first - 20000) // 2),
    }
    (folder / "job.sh").write_text(recipe("sh", "#!/bin/bash").replace("TRAINERS=4", "TRAINERS=2"))
    with (folder / "out").open("w+") as out:
        files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        job = subprocess.Popen(["bash", "job.sh"], cwd=folder, env=env, start_new_session=True, **files)
        try:
            status = job.wait(200)
        finally:
            with suppress(ProcessLookupError):  # nothing was left
                os.killpg(job.pid, signal.SIGTERM)
    return status, (folder / "out").read_text()


def free_pair():
    """The first of two ports that are free, and that the recipe takes for some job."""
    while True:
        first = 20000 + free_port() % 5000 * 2
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("", first))
                other.bind(("", first + 1))
            except OSError:
                continue  # taken
            return first


def places(said):
    """What glt takes each process for, from what that says it was given; lines of several may run together."""
    begins = [match.start() for match in re.finditer(r'{"role"', said)]
    told = [json.JSONDecoder().raw_decode(said, at)[0] for at in begins]
    found = [read_environment(each["env"] | ({"RANK": each["rank"]} if each["rank"] else {})) for each in told]
    return sorted(found, key=lambda place: (place.role.value, place.rank))


def test_slurm(folder, env):
    status, said = sbatch(folder, env)
    assert status == 0, said
    found = places(said)
    master = found[0].master
    assert master[0] == "127.0.0.1" and master[1] is not None and 20000 <= master[1] < 30000
    servers = [JobEnvironment(JobRole.SERVER, rank, 4, 2, master) for rank in range(2)]
    assert found == [*servers, *(JobEnvironment(JobRole.TRAINER, rank, 4, 2, master) for rank in range(4))]
    assert f'"GLT_PART_CONFIG": "{folder}/parts"' in said


def test_a_failure_ends_the_slurm_job(folder, env):
    status, said = sbatch(folder, env, DO_server=SLEEP, DO_trainer=SLEEP, DO_server_1="sys.exit(9)")
    assert status == 9, said


def test_kubernetes(folder, env):
    yaml = pytest.importorskip("yaml", reason="no PyYAML here: pip install pyyaml")
    service, *jobs = yaml.safe_load_all(recipe("yaml", "apiVersion"))
    assert service["kind"] == "Service" and service["spec"]["clusterIP"] == "None"
    assert [job["metadata"]["name"] for job in jobs] == ["glt-server", "glt-trainer"]
    ports = {"30050": str(free_port()), "29500": str(free_port())}
    running, said = [], ""
    for job in jobs:
        expect_found_by_name(service, job)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        for index in range(job["spec"]["completions"]):
            given = {each["name"]: each["value"] for each in container["env"]} | {"JOB_COMPLETION_INDEX": str(index)}
            command, given = here(container["command"], ports), here(given, ports)
            running.append(subprocess.Popen(command, cwd=folder, env=env | given, stdout=subprocess.PIPE, text=True))
    for process in running:
        said += process.communicate(timeout=200)[0]
        assert process.returncode == 0
    master = ("127.0.0.1", int(ports["30050"]))
    servers = [JobEnvironment(JobRole.SERVER, rank, 8, 2, master) for rank in range(2)]
    assert places(said) == [*servers, *(JobEnvironment(JobRole.TRAINER, rank, 8, 2, master) for rank in range(8))]


def expect_found_by_name(service, job):
    """Pods of an indexed job are called job-index.subdomain where the subdomain is a service that selects them."""
    spec, template = job["spec"], job["spec"]["template"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    (container,) = template["spec"]["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in template["spec"]["volumes"]
    }


def here(value, ports):
    """Names of pods become addresses of this host, and ports ones that are free."""
    text = json.dumps(value)
    for name in ("glt-server-0.glt", "glt-trainer-0.glt"):
        text = text.replace(name, "127.0.0.1")
    for port, free in ports.items():
        text = text.replace(port, free)
    return json.loads(text)


TEXT = (Path(__file__).parents[2] / "docs" / "guides" / "launching.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)


def parser_of(command):
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return parser


def test_commands_parse():
    found = []
    for language, block in BLOCKS:
        for line in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith(("glt launch", "glt copy")):
                _, name, *words = shlex.split(line)
                parser_of({"launch": command_launch, "copy": command_copy}[name]).parse_args(words)
                found.append(name)
    assert found.count("launch") >= 2 and "copy" in found


def test_the_commands_of_dgls_documents_parse():
    words = "--workspace ~/graphsage/ --num_clients 2 --part_config data/p.json --ip_config ip_config.txt"
    found = parser_of(command_launch).parse_args(
        [*words.split(), "python3 train_dist.py --graph-name p --num-epochs 30"]
    )
    assert (found.num_trainers, found.num_servers, found.part_config) == (2, 1, "data/p.json")
    words = "--ip_config ip_config.txt --workspace ~/w/ --rel_data_path 4part_data --part_config 4part_data/p.json"
    assert parser_of(command_copy).parse_args(words.split()).part_config == "4part_data/p.json"


def test_flags_exist():
    ours = {flag for each in (command_launch, command_copy) for flag in parser_of(each)._option_string_actions}
    ours |= {"--metrics-port", "--rank", "--help"}
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    assert set(re.findall(r"--[a-z][a-z_-]+", prose)) <= ours


def test_the_table_has_every_variable():
    for text in (TEXT, TEXT.partition("## The environment of a process")[2]):
        of_users = {"GLT_TRANSPORT", "GLT_RPC_IBV"}
        assert set(re.findall(r"GLT_[A-Z_]+", text)) - of_users == command_launch._CONTRACT
