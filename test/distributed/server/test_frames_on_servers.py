"""TensorFrames of PyTorch Frame come to trainers and clients as they were given to the partitioner."""

import pytest
import torch
from dist_world import NUM_EDGES, NUM_NODES, join, run_cluster, write_world
from dist_world import options as train_options
from service import options, serve_or

import glt

torch_frame = pytest.importorskip("torch_frame", reason="no PyTorch Frame here: pip install pytorch-frame")


def frame(num_rows):
    lists = [[torch.arange(i % 3), torch.arange(i % 4) + i] for i in range(num_rows)]
    feats = {
        torch_frame.numerical: torch.arange(2.0 * num_rows).view(num_rows, 2),
        torch_frame.multicategorical: torch_frame.data.MultiNestedTensor.from_tensor_mat(lists),
    }
    return torch_frame.TensorFrame(
        feats, {torch_frame.numerical: ["a", "b"], torch_frame.multicategorical: ["c", "d"]}, torch.arange(num_rows)
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    return write_world(root, 2, node_attrs={"tf": frame(NUM_NODES)}, edge_attrs={"etf": frame(NUM_EDGES)}).path


def num_checked(data, rank, **given):
    nodes, edges = frame(NUM_NODES), frame(NUM_EDGES)
    seeds = torch.arange(rank * 40, rank * 40 + 40)
    given |= {"batch_size": 8, "collect_features": True}
    checked = 0
    with glt.distributed.DistNeighborLoader(data, [3, 3], seeds, with_edge=True, **given) as loader:
        for batch in loader:
            assert batch.tf == nodes[batch.n_id] and torch.equal(batch.tf.y, batch.n_id)
            assert batch.tf.col_names_dict == nodes.col_names_dict and batch.etf == edges[batch.e_id]
            assert not any("." in name for name in batch.keys())
            checked += 1
    return checked


def ask(trainer, rank):
    client = glt.distributed.SamplingClient([3], collect_features=True)
    batch = client.sample([1, 2])
    assert batch.tf == frame(NUM_NODES)[batch.n_id]
    client.close()
    return num_checked(None, rank, worker_options=options())


def train(trainer, path, mode):
    return num_checked(join(trainer, path), trainer.rank, worker_options=train_options(trainer, mode))


def test_clients(parts):
    assert run_cluster(4, serve_or, parts, 2, 2, ask, {})[2:] == [5, 5]


@pytest.mark.parametrize("mode", ["worker", "collocated"])
def test_trainers(parts, mode):
    assert run_cluster(2, train, parts, mode) == [5, 5]
