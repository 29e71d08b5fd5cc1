"""Examples with several processes and loaders."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import glt
from glt.partition import RandomPartitioner
from glt.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
DATA_ROOT = ROOT.parent / "shared" / "data"
FAST = ["--num_neighbors", "4,4", "--hidden_channels", "16"]
NUM_TRAINERS = 3
REAL = [pytest.mark.shared, pytest.mark.skipif(not DATA_ROOT.is_dir(), reason=f"{DATA_ROOT} is absent")]
SHARED_MEMORY, SERVERS = "examples/multi_process/train.py", "examples/server_client/run_local.py"


def test_three_trainers_share_one_graph(toy_npz, run):
    flags = ["--data", toy_npz, "--num_trainers", NUM_TRAINERS, "--epochs", "4", "--batch_size", "32", *FAST]
    told = run(SHARED_MEMORY, *flags).stdout
    assert re.search(r"Epoch: 03, Loss: \d+\.\d{4}, Val: 0\.\d{4}", told), told
    assert float(re.findall(r"test accuracy (\S+)", told)[0]) > 0.5, "chance is 0.25"
    on_disk, in_memory, as_copies = map(float, re.findall(r"(\S+) MB", told))
    assert in_memory < 1.2 * on_disk, "once; pages are counted whole"
    assert as_copies > 0.9 * NUM_TRAINERS * in_memory, "and seen by all"


@pytest.mark.parametrize(
    ("example", "flags", "said"),
    [
        pytest.param(SHARED_MEMORY, ["--num_workers", "1"], "test accuracy 0.", marks=REAL),
        pytest.param(SERVERS, [], "start clients with --num_classes 7", marks=REAL),
    ],
)
def test_it_trains_on_a_real_graph(example, flags, said, run):
    told = run(example, "--data", DATA_ROOT / "cora.npz", "--epochs", "1", *flags, *FAST).stdout
    assert "Epoch: 00" in told and said in told, told


def own_bytes():
    """Memory that is this process's alone to the extent that nothing else could have it: no file is behind it."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.findall(r"^Anonymous: +(\d+) kB", text, re.M)[0]) << 10


def sample_all(trainer, folder):
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank)
    options = glt.distributed.CollocatedDistSamplingWorkerOptions(master_addr="127.0.0.1", master_port=trainer.port)

    def epoch():
        # A batch's rows are its own; what the loader made ready is gone when it is closed.
        with glt.distributed.DistNeighborLoader(
            dataset, [2], input_nodes=torch.arange(2000), batch_size=20, collect_features=True, random_seed=0,
            worker_options=options,
        ) as loader:  # fmt: skip
            return sum(int(batch.x[0, 0]) == int(batch.n_id[0]) for batch in loader)

    before = own_bytes()
    dataset = glt.distributed.DistDataset().load(folder, 0)
    assert epoch() == 100
    return own_bytes() - before


def test_a_trainer_takes_far_less_memory_than_the_graph(tmp_path):
    num_nodes, width = 20_000, 1024
    x = np.broadcast_to(np.arange(num_nodes, dtype=np.float32)[:, None], (num_nodes, width)).copy()
    edge_index = np.stack([np.arange(num_nodes), (np.arange(num_nodes) + 1) % num_nodes])
    RandomPartitioner(tmp_path / "parts", 1, num_nodes, edge_index, x, edge_assign_strategy="by_dst").partition()
    with Cluster(NUM_TRAINERS, sample_all, str(tmp_path / "parts")) as cluster:
        grown = cluster.results()
    assert all(each < x.nbytes / 2 for each in grown), f"{grown} bytes beside a graph of {x.nbytes}"


def test_two_servers_and_two_clients_train(run):
    done = run(SERVERS, "--epochs", "1", *FAST)
    assert re.search(r"Epoch: 00, Loss: \d+\.\d{4}, Val: 0\.\d{4}", done.stdout), done.stdout
    assert float(re.findall(r"test accuracy (\S+)", done.stdout)[0]) > 0.4, "chance is 0.06"
    assert "server 1 (partition 1" in done.stderr and "has ended" in done.stderr


def test_who_fails_is_named_and_the_others_are_ended(start):
    done = start(SERVERS, "--no_such_flag")
    assert done.returncode != 0, "and within the timeout"
    assert "torchrun ended with exit code" in done.stderr and "--no_such_flag" in done.stderr, done.stderr


HETERO = ["hetero_node_classification", "--num_neighbors", "3,2", "--hidden_channels", "8"]
LINKS = ["link_prediction", "--num_neighbors", "2,2", "--hidden_channels", "8", "--max_links", "200"]
UNSUPERVISED = ["unsupervised_sage", "--num_neighbors", "2,2", "--hidden_channels", "8", "--batch_size", "4096"]
TEMPORAL = ["temporal_recommendation", "--num_neighbors", "2,2", "--hidden_channels", "8", "--max_links", "200"]
PINSAGE = ["pinsage_recommendation", "--num_users", "600", "--num_items", "100", "--hidden_channels", "8"]
SEAL = ["seal_link_prediction", "--num_neighbors", "3,2", "--hidden_channels", "8", "--max_links", "60"]


HOST = ["--device", "host"]  # the path of a GPU, with the host in its place


def real(command, name):
    return pytest.param(command, ["--data", DATA_ROOT / f"{name}.npz"], marks=REAL, id=f"{command[0]}-{name}")


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        *(pytest.param(each, [], id=each[0]) for each in (HETERO, LINKS, UNSUPERVISED, TEMPORAL, PINSAGE, SEAL)),
        *(pytest.param(each, HOST, id=f"{each[0]}-host") for each in (HETERO, UNSUPERVISED)),
        *(real(HETERO, name) for name in ("dblp_hetero", "acm_hetero")),
        *(real(LINKS, name) for name in ("cora", "amazon_computers")),
        *(real(command, "cora") for command in (UNSUPERVISED, SEAL)),
        real(TEMPORAL, "mathoverflow"),
    ],
)
def test_the_first_epoch_of_an_example(command, flags, run):
    example, *more = command
    told = run(f"examples/{example}.py", "--epochs", "1", *more, *flags).stdout
    assert re.search(r"Epoch: 00, Loss: \d+\.\d{4}, .*: [01]\.\d{4}", told), told


def test_items_that_go_with_an_item_are_found(run):
    """Ten of a hundred items, twenty of which are of a taste: 0.1 at random, about half at best."""
    told = run("examples/pinsage_recommendation.py", *PINSAGE[1:], "--epochs", "4").stdout
    assert float(re.findall(r"Hit rate of 10: (\S+)", told)[-1]) > 0.3, told
