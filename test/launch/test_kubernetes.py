"""The files of examples/kubernetes: what they say fits glt, and their commands run as processes of this host."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
import torch
from launch_world import SCRIPT, expect_none_marked, mark_of, wait_until

import glt
from glt.cli import make_parser
from glt.distributed.job.hosts import JobEnvironment, JobRole, read_environment
from glt.partition import RandomPartitioner
from glt.testing.cluster import free_port

yaml = pytest.importorskip("yaml", reason="no PyYAML here: pip install pyyaml")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
GUIDE = (ROOT / "docs" / "guides" / "launching.md").read_text()


def documents(name):
    return list(yaml.safe_load_all((FOLDER / "base" / name).read_text()))


def literals(folder):
    (made,) = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())["configMapGenerator"]
    return dict(each.split("=", 1) for each in made["literals"])


SERVICE, SERVERS = documents("servers.yaml")
(TRAINERS,) = documents("trainers.yaml")
SHARED = literals("base")


def container(workload):
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return found


def places(said):
    """What glt takes each process for, from what that says it was given; lines of several may run together."""
    begins = [match.start() for match in re.finditer(r'{"role"', said)]
    told = [json.JSONDecoder().raw_decode(said, at)[0] for at in begins]
    found = [read_environment(each["env"] | ({"RANK": each["rank"]} if each["rank"] else {})) for each in told]
    return sorted(found, key=lambda place: (place.role.value, place.rank))


def command_of(workload, index, **other):
    """Command and environment of a pod's container, as the kubelet makes them; ``other`` are values of this host."""
    fields = {"pod-index']": str(index), "job-completion-index']": str(index), "status.podIP": "127.0.0.1"}
    env = dict(SHARED)
    for each in container(workload)["env"]:
        path = each["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in each else ""
        env[each["name"]] = next((value for end, value in fields.items() if path.endswith(end)), each.get("value"))
    env |= {name: str(value) for name, value in other.items()}
    words = [*container(workload)["command"], *container(workload)["args"]]
    return [re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], word) for word in words], env


def served(words):
    """What glt makes of the command of a server."""
    assert words[:2] == ["glt", "serve"]
    return make_parser().parse_args(words[1:])


def test_servers_are_told_what_they_are(tmp_path):
    found = [served(command_of(SERVERS, rank, GLT_PART_CONFIG=tmp_path)[0]) for rank in range(2)]
    assert [each.rank for each in found] == [0, 1] and SERVERS["spec"]["replicas"] == 2
    for each in found:
        assert (each.servers, each.clients) == (2, None)
        assert (each.master_addr, each.master_port) == ("glt-server-0.glt", 30050) and each.port == 30050
        assert each.sampler_port > each.port and each.metrics_host == "0.0.0.0"
        # What comes after the drain takes at most as long as these.
        spare_s = SERVERS["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] - each.drain_timeout
        assert spare_s >= 2 * (glt._deadlines.JOIN_S + glt._deadlines.GOODBYE_S)
        (port,) = [port["containerPort"] for port in container(SERVERS)["ports"] if port["name"] == "metrics"]
        assert port == each.metrics_port
    probes = {kind: container(SERVERS)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/readyz",
        "readiness": "/readyz",
        "liveness": "/healthz",
    }


@pytest.mark.parametrize("folder", ["base", "large"])
def test_numbers_agree(folder):
    shared = SHARED | literals(folder)
    kustomization = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())
    num_servers = next((each["count"] for each in kustomization.get("replicas", ())), SERVERS["spec"]["replicas"])
    job = {"args": list(container(TRAINERS)["args"]), **TRAINERS["spec"]}
    for each in [step for patch in kustomization.get("patches", ()) for step in yaml.safe_load(patch["patch"])]:
        *_, place, last = each["path"].split("/")
        if place == "args":
            assert each["value"].split("=")[0] == job["args"][int(last)].split("=")[0], "it replaces the same flag"
            job["args"][int(last)] = each["value"]
        elif place == "spec":
            job[last] = each["value"]
    given = dict(word.split("=", 1) for word in job["args"] if "=" in word)
    assert int(shared["GLT_NUM_SERVERS"]) == num_servers
    assert job["completions"] == job["parallelism"] == int(given["--nnodes"])
    assert int(shared["GLT_NUM_TRAINERS"]) == job["completions"] * int(given["--nproc-per-node"])


def test_pods_have_the_names_that_others_are_told():
    service = SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["clusterIP"] == "None" and SERVICE["spec"]["publishNotReadyAddresses"]
    assert SERVERS["spec"]["serviceName"] == service and TRAINERS["spec"]["template"]["spec"]["subdomain"] == service
    assert SHARED["GLT_MASTER_ADDR"] == f"{SERVERS['metadata']['name']}-0.{service}"
    assert f"--master-addr={TRAINERS['metadata']['name']}-0.{service}" in container(TRAINERS)["args"]
    assert TRAINERS["spec"]["completionMode"] == "Indexed"
    for workload in (SERVERS, TRAINERS):
        pod = workload["spec"]["template"]["spec"]
        mounted = {each["name"] for each in container(workload)["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["volumes"]}


def test_the_environment_is_that_of_the_guide():
    table = GUIDE.partition("## The environment of a process")[2] + (ROOT / "docs/guides/security.md").read_text()
    named = set(SHARED) | {each["name"] for each in container(SERVERS)["env"] + container(TRAINERS)["env"]}
    assert {name for name in named if name.startswith("GLT_")} <= set(re.findall(r"GLT_[A-Z_]+", table))


def test_the_guide_shows_the_files():
    section = GUIDE.partition("## Kubernetes")[2].partition("\n## ")[0]
    files = "".join((FOLDER / "base" / name).read_text() for name in ("servers.yaml", "trainers.yaml"))
    shown = [line.strip() for block in re.findall(r"```yaml\n(.*?)```", section, re.S) for line in block.splitlines()]
    lines = {line.strip() for line in files.splitlines()}
    assert len(shown) > 10 and [line for line in shown if line not in lines] == []


@pytest.fixture
def env():
    """The environment of a test's processes, none of which is left at its end."""
    mark = uuid.uuid4().hex
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**os.environ, **mark_of(mark), "PATH": path, "OMP_NUM_THREADS": "1"}
    expect_none_marked(mark)


def test_trainers_know_their_place(tmp_path, env):
    (tmp_path / "train.py").write_text(SCRIPT)
    running, said, port = [], "", str(free_port())
    for index in range(TRAINERS["spec"]["completions"]):
        words, given = command_of(TRAINERS, index)
        words = [word.replace("glt-trainer-0.glt", "127.0.0.1").replace("29500", port) for word in words]
        running.append(subprocess.Popen(words, cwd=tmp_path, env=env | given, stdout=subprocess.PIPE, text=True))
    for process in running:
        said += process.communicate(timeout=200)[0]
        assert process.returncode == 0
    master = ("glt-server-0.glt", 30050)
    assert places(said) == [JobEnvironment(JobRole.TRAINER, rank, 8, 2, master) for rank in range(8)]


def test_a_server_answers_probes_and_ends_within_its_grace_period(tmp_path, env, command):
    """A client is there, whose batches are taken: nothing is cancelled."""
    graph = glt.testing.ring_graph()
    RandomPartitioner(
        tmp_path / "parts", 2, 40, graph.edge_index, node_feat=graph.x, edge_assign_strategy="by_dst"
    ).partition()
    assert command("token", str(tmp_path / "token"))[0] == 0
    master_port, metrics_port = free_port(), free_port()
    words, given = command_of(
        SERVERS,
        0,
        GLT_NUM_SERVERS=1,
        GLT_MASTER_ADDR="127.0.0.1",
        GLT_MASTER_PORT=master_port,
        GLT_PART_CONFIG=tmp_path / "parts",
        GLT_TOKEN_FILE=tmp_path / "token",
    )
    replaced = {"--workers=4": "--workers=1", "--metrics-port=9100": f"--metrics-port={metrics_port}"}
    words = [replaced.get(word, word) for word in words[1:] if not word.startswith("--sampler-port")]
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "glt", *words], env=env | given, stdout=out, stderr=out)
    try:
        for probe in ("startup", "readiness", "liveness"):
            path = container(SERVERS)[f"{probe}Probe"]["httpGet"]["path"]
            wait_until(lambda path=path: answers(f"http://127.0.0.1:{metrics_port}{path}"), 120.0, log.read_text)
        (waiting,) = TRAINERS["spec"]["template"]["spec"]["initContainers"]
        script = waiting["command"][-1].replace("$(GLT_MASTER_ADDR):9100", f"127.0.0.1:{metrics_port}")
        subprocess.run([*waiting["command"][:-1], script], env=env, check=True, timeout=60)
        place = {"master_addr": "127.0.0.1", "master_port": master_port}
        glt.distributed.init_client(1, 1, 0, **place, token_file=tmp_path / "token", rpc_timeout=60.0)
        options = glt.distributed.RemoteDistSamplingWorkerOptions(buffer_size="16MB")
        with glt.distributed.DistNeighborLoader(None, [2], torch.arange(40), 4, worker_options=options) as loader:
            batches = iter(loader)
            next(batches)
            process.send_signal(signal.SIGTERM)
            began_s = time.monotonic()
            assert sum(1 for _ in batches) == 9
        assert process.wait(SERVERS["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]) == 0
        assert time.monotonic() - began_s < 30.0, "it does not wait for the client itself"
    finally:
        glt.distributed.shutdown_client()
        process.kill()
        process.wait()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except OSError:  # a refused connection, or a status of another hundred
        return False


@pytest.mark.integration
@pytest.mark.parametrize("folder", ["base", "large"])
def test_kubernetes_takes_them(folder):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here: https://kubernetes.io/docs/tasks/tools")
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("no schemas of Kubernetes here: pip install kubernetes-validate")
    built = subprocess.run(
        ["kubectl", "kustomize", FOLDER / folder], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    code = """if True:
        import sys, yaml, kubernetes_validate
        for each in yaml.safe_load_all(sys.stdin):
            for minor in range(32, 38):
                kubernetes_validate.validate(each, f"1.{minor}", strict=True)
            print(each["kind"])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], input=built, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ConfigMap", "Service", "StatefulSet", "Job", "NetworkPolicy", "NetworkPolicy"]
