"""The programs that users start, at toy size: one as users start it, the others forked, which is faster."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import glt
from glt.data.synthetic import synthetic_graph
from glt.demo import Options, job
from glt.errors import PartitionError
from glt.partition import load_partition

ROOT = Path(__file__).resolve().parents[2]
TOY = ["--epochs", "2", "--batch_size", "64", "--num_neighbors", "5,5", "--hidden_channels", "16"]


def test_the_example_trains_in_worker_mode(toy_npz, run):
    done = run("examples/train_sage_distributed.py", "--dataset", toy_npz, "--num_workers", "2", *TOY)
    for step in (
        "toy: 800 nodes",
        "edge cut",
        "starting 2 trainers, 2 sampling processes each",
        "Epoch: 01, Loss: ",
        "test accuracy 0.",
        "sampled edges/s",
        "waiting for batches",
        "gathering features",
    ):
        assert step in done.stdout, f"{step!r} is not in\n{done.stdout}"


def test_the_demo_trains_in_collocated_mode_from_a_name_in_the_data_root(toy_npz):
    flags = ["--dataset", "toy", "--data_root", str(toy_npz.parent), "--mode", "collocated", *TOY]
    command, env = [sys.executable, "-m", "glt", "demo", *flags], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "sampling in them" in done.stdout and "test accuracy 0." in done.stdout


def test_the_gpu_path_of_the_demo_runs_with_the_host_in_its_place(toy_npz, run):
    """Training samples in workers, evaluation beside the trainer."""
    told = run("examples/train_sage_distributed.py", "--dataset", toy_npz, "--sample_on", "host", *TOY).stdout
    assert "test accuracy 0." in told and "0.0 MB came from other partitions" in told


@pytest.mark.parametrize("mode", ["worker", "collocated"])
def test_trainers_may_have_different_numbers_of_seeds_even_none(tmp_path, capsys, mode):
    sizes = {"epochs": 3, "batch_size": 32, "num_neighbors": (5, 5), "hidden_channels": 16}
    options = Options(partition_dir=str(tmp_path / "partitions"), mode=mode, **sizes)
    task = synthetic_graph(800, num_classes=4)
    job.run(replace(task, train_idx=task.train_idx[:64]), replace(options, epochs=1))
    owner = torch.from_numpy(load_partition(options.partition_dir, 0).nodes[0].book.owners())
    lopsided = replace(task, train_idx=owned_by(0, owner, task.train_idx), test_idx=owned_by(1, owner, task.test_idx))

    result = job.run(lopsided, options)  # in the same partition directory, which is reused

    assert capsys.readouterr().out.count("partitioned in") == 1
    assert result["stats"]["num_seeds"] == 3 * len(lopsided.train_idx), "each seed once per epoch"
    assert result["epochs"][2]["loss"] < result["epochs"][0]["loss"]
    assert result["test_accuracy"] > 0.5, "chance is 0.25"


def owned_by(part, owner, index):
    return index[owner[index] == part]


def test_a_partition_directory_of_another_graph_is_refused(tmp_path):
    options = Options(partition_dir=str(tmp_path), mode="collocated", num_parts=1, epochs=1, num_neighbors=(2,))
    task = synthetic_graph(40, num_classes=2, avg_degree=4)
    job.run(task, options)
    with pytest.raises(PartitionError, match=r"holds another graph: .* = \(1, 40, \d+, 'in'\), expected \(2, 40,"):
        job.run(task, replace(options, num_parts=2))
    with pytest.raises(PartitionError, match=r"was made with {'random_seed': 0}, expected {'random_seed': 1}"):
        job.run(task, replace(options, seed=1))
    for other, message in [
        (replace(task, x=task.x + 1), "features of node 0 differ"),
        (replace(task, x=task.x[:, :3]), r"features of shape \[\d+\] per node, expected \[3\]"),
        (replace(task, y=1 - task.y), "labels of node 0 differ"),
        (replace(task, edge_index=task.edge_index.clone().fill_(1)), "other numbers of in-edges"),
    ]:
        with pytest.raises(PartitionError, match=f"holds another graph: .*{message}"):
            job.run(other, options)
    job.run(task, options)  # and what it does hold is used again


def test_a_partition_directory_that_cannot_be_written_is_an_error_that_names_it(toy_npz, command):
    status, _, err = command("demo", "--dataset", toy_npz, "--partition_dir", toy_npz / "parts", *TOY)
    assert status == 2 and "partition_dir" in err and "cannot be written" in err, err


def test_version(command):
    assert command("--version") == (0, f"glt {glt.__version__}\n", "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_parts", "0"], "num_parts = 0, expected 1 to 65536"),
        (["--num_parts", "70000"], "num_parts = 70000, expected 1 to 65536"),
        (["--seed", "9223372036854775807"], "seed = 9223372036854775807, expected 0 to 9223372036854775805"),
        (["--num_neighbors", "15;10"], "'15;10': expected whole numbers separated by commas"),
        (["--num_neighbors", "-2"], r"num_neighbors = (-2,), expected one number per hop, -1 for all"),
        (["--mode", "server"], "invalid choice: 'server'"),
        (["--dropout", "1"], "dropout = 1.0, expected in [0, 1)"),
        (["--dataset", "nowhere"], "dataset 'nowhere' is neither synthetic nor ogbn-*"),
    ],
)
def test_a_bad_flag_is_an_error_that_names_it(flags, message, command):
    status, _, err = command("demo", *flags)
    assert status == 2 and message in err


@pytest.mark.parametrize(
    ("example", "flags", "message"),
    [
        ("igbh/make_igbh", ["--papers", "37"], "--papers 37: expected at least 38"),
        ("igbh/make_igbh", ["--features", "0"], "--features 0: expected at least 1"),
        ("igbh/train", ["--val_share", "0.5"], "--val_share 0.5: expected above 0 and at most 0.4"),
        ("igbh/train", ["--epochs", "0"], "--epochs 0: expected at least 1"),
        ("igbh/train", ["--hidden_channels", "30"], "--hidden_channels 30: expected a multiple of --heads 4"),
        ("temporal_link_prediction", ["--num_negatives", "0"], "--num_negatives 0: expected at least 1"),
        ("temporal_link_prediction", ["--max_events", "0"], "--max_events 0: expected at least 1"),
        ("temporal_link_prediction", ["--max_eval", "0"], "--max_eval 0: expected at least 1"),
        ("pinsage_recommendation", ["--num_items", "19"], "--num_items 19: expected at least 20"),
    ],
)
def test_a_bad_flag_of_an_example_is_an_error_that_names_it(example, flags, message, start, tmp_path):
    done = start(ROOT / f"examples/{example}.py", *flags, folder=tmp_path)
    assert done.returncode == 2 and message in done.stderr and not any(tmp_path.iterdir()), done.stderr


@pytest.mark.parametrize("field", ["batch_size", "epochs", "hidden_channels", "num_workers", "concurrency"])
def test_counts_are_at_least_one(field):
    with pytest.raises(ValueError, match=rf"{field} = 0, expected at least 1"):
        Options(**{field: 0})


def test_load_task_names_the_files_it_looked_for():
    with pytest.raises(FileNotFoundError, match=r"no file cora or data/cora\.npz"):
        job.load_task(Options(dataset="cora"))


def test_the_ranks_of_torchrun_partition_their_slices_together(tmp_path, run):
    done = run(
        "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "examples/partition_distributed.py",
        "--output_dir", tmp_path / "parts", "--num_parts", "3", "--num_nodes", "101", "--num_edges", "1001",
    )  # fmt: skip
    assert "RandomPartitioner: 101 nodes and 1001 edges in 3 partitions" in done.stderr
    assert sum(load_partition(tmp_path / "parts", idx).nodes[0].ids.size for idx in range(3)) == 101
