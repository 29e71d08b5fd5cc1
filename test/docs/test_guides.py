"""The code and commands of the guides and of the pages for those who come from other libraries."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import glt
from glt.distributed.context import current_world, resign
from glt.distributed.server.api import shutdown_client
from glt.testing.cluster import free_port

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for folder in ("guides", "moving") for path in (DOCS / folder).glob("*.md"))
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.M | re.S)
# Of other libraries, of jobs of several hosts, and (dgl.md) blocks that test_docs.py runs with data of its own.
NOT_RUN = ("# not run: ", "# PyG", "# GLT", "# DGL", "# glt\n")


def run_page(text, command):
    """Runs the blocks one after the other in one namespace; returns it, and the servers that it has started."""
    names, servers = {"__name__": "page"}, []
    text = text.replace("29540", str(free_port())).replace("\\\n", " ")
    try:
        for language, code in BLOCK.findall(text):
            if language == "python" and not code.startswith(NOT_RUN):
                exec(compile(code, "page", "exec"), names)
            for line in code.splitlines() if language == "sh" and not code.startswith(NOT_RUN) else ():
                words = shlex.split(line, comments=True)
                if words[:1] == ["openssl"]:
                    subprocess.run(words, check=True, capture_output=True, timeout=60)
                elif words[:2] == ["glt", "serve"]:
                    servers.append(subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL))
                elif words[:1] == ["glt"] and not {"INPUT", "SRC", "DIR"} & set(words) and words[1] != "launch":
                    assert command(*words[1:])[0] == 0, line
        shutdown_client()
        assert [server.wait(60) for server in servers] == [0] * len(servers)
    finally:
        glt.distributed.finalize()
        shutdown_client()
        resign()
        for server in servers:
            server.kill()
            server.wait()
    return names


@pytest.fixture
def run(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    return lambda page: run_page((DOCS / page).read_text(), command)


# test/launch/test_recipes.py runs those of launching.md; stats.md is run below.
RUN = [str(path.relative_to(DOCS)) for path in PAGES if path.name not in ("launching.md", "stats.md")]


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(run, page):
    run(page)


def names_of_glt(page):
    """Names of glt in the tables of a page, and commands."""
    rows = "\n".join(line for line in (DOCS / "moving" / page).read_text().splitlines() if line.startswith("| "))
    return sorted(set(re.findall(r"`((?:glt|examples)[ ./][^`]*)`", rows)))


MOVING = {page: names_of_glt(page) for page in ("pyg.md", "glt.md", "dgl.md")}


@pytest.mark.parametrize("name", sorted(set().union(*MOVING.values())))
def test_what_a_table_names_exists(name, command):
    if name.startswith("examples/"):
        assert (DOCS.parent / name).exists()
    elif name.startswith("glt "):
        status, told, _ = command(name.split()[1], "--help")
        assert status == 0 and "usage" in told
    else:
        found = import_module("glt")
        for part in name.split(".")[1:]:
            found = getattr(found, part) if hasattr(found, part) else import_module(f"{found.__name__}.{part}")
        assert found.__doc__, "and says what it is"


@pytest.mark.parametrize(
    "page, expected",
    [
        ("pyg.md", ["NeighborLoader", "LinkNeighborLoader", "HGTLoader", "Partitioner", "LocalGraphStore",
                    "LocalFeatureStore", "DistNeighborLoader", "DistLinkNeighborLoader", "DistContext"]),
        ("glt.md", ["Topology", "Graph", "Feature", "Dataset", "NeighborSampler", "SubGraphLoader", "RandomPartitioner",
                    "FrequencyPartitioner", "cat_feature_cache", "init_worker_group", "DistDataset",
                    "CollocatedDistSamplingWorkerOptions", "MpDistSamplingWorkerOptions", "init_client", "init_server",
                    "RemoteDistSamplingWorkerOptions", "DistServer", "ShmChannel", "request_server"]),
    ],
)  # fmt: skip
def test_names_of_others_are_in_the_first_column(page, expected):
    rows = [line.split(" | ") for line in (DOCS / "moving" / page).read_text().splitlines() if line.startswith("| ")]
    assert len(MOVING[page]) > 12
    firsts = " ".join(row[0] for row in rows)
    assert [name for name in expected if not re.search(rf"`[^`]*\b{name}\b", firsts)] == []


def names_of(text, *titles):
    """The names in the first column of tables below each line that begins with one of ``titles``."""
    found = set()
    for part in re.split(r"\n\n(?=\S)", text):
        if found_title := [title for title in titles if part.startswith(title)]:
            after = text.partition(found_title[0])[2].split("\n\n")[1]
            found |= {name for line in after.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    return found


def test_stats_have_the_names_of_their_page(run):
    text = (DOCS / "guides" / "stats.md").read_text()
    names = run("guides/stats.md")
    samplers = names_of(text, "Of the samplers, summed")
    ours = names_of(text, "Of the trainer:", "Of the channel between") | samplers
    assert len(ours) > 25 and set(names["stats"]) == ours
    told = names["told"]
    assert set(told) == names_of(text, "Of the server:")
    each = names_of(text, "Of each loader, each worker") | samplers
    (loader,), (worker,) = told["loaders"].values(), told["workers"].values()
    assert set(told["totals"]) == each
    assert set(loader) == each | names_of(text, "Of a loader also:")
    assert set(worker) == each | names_of(text, "Of a worker also:")


def test_tensors_have_the_names_of_their_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    glt.distributed.initialize()
    try:
        tensor = glt.distributed.DistTensor((4, 2), torch.float32, name="page")
        told = current_world().store.stats()[tensor.name]
    finally:
        glt.distributed.finalize()
    assert set(told) == names_of((DOCS / "guides" / "stats.md").read_text(), "Of a tensor:")
