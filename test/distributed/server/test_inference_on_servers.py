"""Layer-wise inference by trainers of servers: together they make what one makes, and what the model does."""

import pytest
import torch
import torch_geometric.nn as pyg
from dist_world import NUM_NODES
from job_stage import finalize, job_of

import glt
from glt.distributed.graph.inference import infer_layerwise
from glt.distributed.tensors.tensor import DistTensor
from glt.partition import RandomPartitioner


def model(width):
    torch.manual_seed(5)
    return pyg.GCN(width, 8, 3, 5, jk="cat").eval()


def infer(width, spill_dir):
    got = infer_layerwise(model(width), batch_size=90, num_workers=1, spill_dir=spill_dir)
    glt.distributed.barrier(60.0)
    with pytest.raises(LookupError) as raised:
        DistTensor.find("inference.layer0")
    return got[torch.arange(NUM_NODES)], str(raised.value)


def infer_with_an_error(rank):
    def layer(x, edge_index):
        if rank == 1:
            raise RuntimeError("out of memory, say")
        return x

    with pytest.raises(Exception, match="") as raised:
        infer_layerwise([layer, layer])
    if rank == 1:
        finalize(0.0)  # as a script does that ends with the exception
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize("spills", [False, True])
def test_two_trainers_make_what_the_model_does(world, tmp_path, spills):
    made = world(2, "in", "xye")
    assert made.x is not None
    expected = model(made.x.size(1))(made.x, made.graph.edge_index)
    with job_of(made.path, 2, 2) as job:
        for got, left in job.run(infer, made.x.size(1), tmp_path if spills else None):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            assert ("'inference'" in left) != spills and ".degrees" not in left, left


def test_a_trainer_that_fails_is_named(world):
    with job_of(world(2, "in", "xye").path, 2, 2) as job:
        other, failed = job.run(infer_with_an_error, ranked=True)
        assert failed == "RuntimeError: out of memory, say"
        assert other.startswith("PeerLost") and "1" in other, other


def infer_two_nodes(spill_dir):
    got = infer_layerwise([double, double], batch_size=1, spill_dir=spill_dir)
    rows = got[torch.arange(2)].tolist()
    glt.distributed.barrier(60.0)
    return rows


def double(x, edge_index):
    return 2 * x


@pytest.mark.parametrize("spills", [False, True])
def test_trainers_without_nodes_return_the_same(tmp_path, spills):
    x, given = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), {"edge_assign_strategy": "by_dst"}
    RandomPartitioner(tmp_path / "parts", 1, 2, torch.tensor([[0], [1]]), node_feat=x, **given).partition()
    with job_of(tmp_path / "parts", 1, 3) as job:
        assert job.run(infer_two_nodes, tmp_path if spills else None) == [(4 * x).tolist()] * 3
