"""``glt forecast``: what it prints, and what it refuses."""

import json

import numpy as np
import pytest
import torch

import glt
from glt.forecast import Costs, grid
from glt.partition import FrequencyPartitioner, RandomPartitioner


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("forecast")
    task = glt.data.synthetic.synthetic_graph(2000, num_features=8)
    made = 4, task.num_nodes, task.edge_index
    RandomPartitioner(root / "random", *made, node_feat=task.x, edge_assign_strategy="by_dst").partition()
    hotness = [torch.rand(2000) for _ in range(4)]
    FrequencyPartitioner(
        root / "cached", *made, hotness, node_feat=task.x, cache_ratio=0.1, edge_assign_strategy="by_dst"
    ).partition()
    return root


@pytest.fixture(autouse=True)
def no_costs_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("GLT_CACHE", str(tmp_path / "cache"))


def of(command, *words):
    status, out, err = command("forecast", *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


FAST = "--batches", "8", "--batch", "50", "--fanout", "5,3"


def test_a_directory_is_forecast_as_it_is_placed(command, parts):
    report = of(command, parts / "random", "--hosts", "1,2,4,8", *FAST)
    one, two, four, eight = report["hosts"]
    assert one["num_messages"] == one["sent_bytes"] == 0
    assert two["counts"]["remote_rows"] < four["counts"]["remote_rows"] < eight["counts"]["remote_rows"]
    assert two["num_peers"] == 1 and four["num_peers"] == 3
    assert four["num_messages"] == pytest.approx(9, abs=0.5)
    for row in report["hosts"]:
        assert row["batches_per_s"] <= min(row["limits"].values()) == row["limits"][row["bottleneck"]]
    assert report["recommendation"].startswith("Take ")


def test_the_caches_of_a_directory_are_used(command, parts):
    (row,) = of(command, parts / "cached", "--hosts", "4", "--windows", "1", *FAST)["hosts"]
    assert row["cache_ratio"] == 0.1 and row["counts"]["cached_rows"] > 0
    (bare,) = of(command, parts / "cached", "--hosts", "4", "--windows", "1", "--cache-ratios", "0", *FAST)["hosts"]
    assert bare["counts"]["cached_rows"] == 0
    assert bare["counts"]["remote_rows"] == pytest.approx(row["counts"]["remote_rows"] + row["counts"]["cached_rows"])


def test_features_of_a_directory_may_stay_on_disk(command, parts):
    words = parts / "random", "--hosts", "4", "--cache-ratios", "0", "--windows", "1", "--disk-reads", "100", *FAST
    none, half, fits = (of(command, *words, "--feature-memory", gb)["hosts"][0] for gb in ("0", "0.00001", "0.000016"))
    assert none["counts"]["disk_rows"] == pytest.approx(none["counts"]["num_nodes"])
    assert 0 < half["counts"]["disk_rows"] < 0.6 * none["counts"]["disk_rows"], "hot rows are in memory"
    assert none["bottleneck"] == half["bottleneck"] == "disks" and half["batches_per_s"] > none["batches_per_s"]
    assert fits["counts"]["disk_rows"] == fits["disk_s"] == 0


def test_seeds_may_be_those_that_a_host_owns(command, parts, tmp_path):
    report = of(command, parts / "random", "--hosts", "4", "--local-seeds", "--cache-ratios", "0", *FAST)
    assert report["hosts"][0]["counts"]["remote_frontier"][0] == 0
    np.save(tmp_path / "seeds.npy", np.arange(100))
    few = command(
        "forecast", parts / "random", "--hosts", "4", "--local-seeds", "--seeds", tmp_path / "seeds.npy", *FAST
    )
    assert few[0] == 2 and "no host owns a whole batch of seeds" in few[2]


def test_a_graph_may_only_be_described(command, monkeypatch):
    monkeypatch.setattr(grid, "MOST_EDGES", 100_000)
    words = "--nodes", "3000", "--edges", "40000", "--feature-bytes", "100", "--hosts", "2,16", *FAST
    status, out, err = command("forecast", *words)
    assert (status, err) == (0, "")
    assert "hosts  batches/s  limited by" in out and "Take " in out and "owners are random" in out
    large = of(command, "--nodes", "100000000", "--edges", "1600000000", "--hosts", "8", *FAST)
    assert any("whose batches overlap more" in note for note in large["notes"])


def test_a_job_that_fits_nowhere_is_said(command):
    words = "--nodes", "3000", "--edges", "40000", "--hosts", "2", "--memory", "0.1", *FAST
    status, out, _ = command("forecast", *words)
    assert status == 0 and "No number of hosts fits into 0.1 GB each" in out


def test_costs_are_read(command, parts, tmp_path):
    Costs(edge_s=1.0).write(tmp_path / "costs.json")
    report = of(command, parts / "random", "--hosts", "2", "--costs", tmp_path / "costs.json", *FAST)
    assert report["costs"]["edge_s"] == 1.0 and report["hosts"][0]["cpu_s"]["sampling"] > 100
    (tmp_path / "cache").mkdir()
    Costs(edge_s=2.0).write(tmp_path / "cache" / "costs.json")
    assert of(command, parts / "random", "--hosts", "2", *FAST)["costs"]["edge_s"] == 2.0


@pytest.mark.parametrize(
    "status, words, flags",
    [
        (2, "neither a directory nor --nodes", ()),
        (2, "neither a directory nor --nodes", ("--nodes", "10")),
        (2, "--fanout = '5,x'", ("PARTS", "--fanout", "5,x")),
        (2, "--fanout = '5,0'", ("PARTS", "--fanout", "5,0")),
        (2, "--windows = '9'", ("PARTS", "--windows", "9")),
        (2, "--hosts = '0'", ("PARTS", "--hosts", "0")),
        (2, "--cache-ratios = '2'", ("PARTS", "--cache-ratios", "2")),
        (2, "--batch = 0", ("PARTS", "--batch", "0")),
        (2, "nic_gbit = 0", ("PARTS", "--nic", "0")),
        (2, "--nodes and a directory", ("PARTS", "--nodes", "5")),
        (2, "--degree-law = 2", ("--nodes", "100", "--edges", "500", "--degree-law", "2")),
        (2, "num_nodes = -1", ("--nodes", "-1", "--edges", "500")),
        (2, "--seeds = s.npy", ("--nodes", "100", "--edges", "500", "--seeds", "s.npy")),
        (2, "--calibrate and --costs", ("PARTS", "--calibrate", "--costs", "c.json")),
        (1, "absent", ("absent",)),
        (1, "absent.json", ("PARTS", "--costs", "absent.json")),
    ],
)
def test_wrong_usage_is_one_line_that_names_it(command, parts, status, words, flags):
    ended, out, err = command("forecast", *(parts / "random" if each == "PARTS" else each for each in flags))
    assert (ended, out) == (status, "") and words in err
    assert err.startswith("glt forecast: ") and err.count("\n") == 1


def test_seeds_outside_the_graph_are_refused(command, parts, tmp_path):
    for seeds, words in (
        (np.array([1.5]), "it holds float64 [1]"),
        (np.array([5, 2000]), "it has node 2000, expected ids in [0, 2000)"),
    ):
        np.save(tmp_path / "seeds.npy", seeds)
        status, _, err = command("forecast", parts / "random", "--seeds", tmp_path / "seeds.npy")
        assert status == 2 and words in err
