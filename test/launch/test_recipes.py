"""Recipes and documents of launches."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from launch_world import SCRIPT, expect_none_marked, mark_of

from glt.distributed.job.hosts import JobEnvironment, JobRole, read_environment
from glt.launch import command as command_launch
from glt.launch import copy as command_copy
from glt.testing.cluster import free_port


@pytest.fixture
def folder(tmp_path):
    """With ``train.py`` in it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def env():
    """The environment of a test's processes, none of which is left at its end."""
    mark = uuid.uuid4().hex
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**os.environ, **mark_of(mark), "PATH": path, "OMP_NUM_THREADS": "1"}
    expect_none_marked(mark)


def recipe(language, begin):
    (found,) = (block for name, block in BLOCKS if name == language and block.startswith(begin))
    return found


def places(said):
    """What glt takes each process for, from what that says it was given; lines of several may run together."""
    begins = [match.start() for match in re.finditer(r'{"role"', said)]
    told = [json.JSONDecoder().raw_decode(said, at)[0] for at in begins]
    found = [read_environment(each["env"] | ({"RANK": each["rank"]} if each["rank"] else {})) for each in told]
    return sorted(found, key=lambda place: (place.role.value, place.rank))


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
