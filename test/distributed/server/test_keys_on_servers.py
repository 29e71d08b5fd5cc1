"""Clients, which have no partition, and trainers give users' keys as seeds and get them in batches."""

import numpy as np
import pytest
import torch
from dist_world import NUM_NODES, join, run_cluster, write_world
from dist_world import options as train_options
from service import options, serve_or

import glt
from glt.data import KeyMap

RAW = [f"key-{i * 7919 % NUM_NODES:03d}" for i in range(NUM_NODES)]


@pytest.fixture(scope="module", params=[False, True], ids=["", "relabelled"])
def parts(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    keys = KeyMap.write(root / "keys", {"name": "text"}, lambda: iter([[RAW]]))
    return write_world(root, 2, node_keys=keys, relabel=request.param).path


def batches_of(data, seeds, **given):
    ids = glt.distributed.node_keys() if data is None else data.ids
    given |= {"batch_size": 4, "transform": ids, "random_seed": 1, "collect_features": True}
    loader = glt.distributed.DistNeighborLoader(data, [3], seeds, **given)
    found = [(batch.raw_id, batch.x[:, 0].tolist(), len(batch.input_id)) for batch in loader]
    loader.shutdown()
    return found


def ask(trainer, rank):
    ids = glt.distributed.node_keys()
    with pytest.raises(KeyError, match=r"raw\[1\] = 'nobody' is no key of 'node'"):
        ids["node"].lookup([RAW[0], "nobody"])
    with pytest.raises(IndexError, match="ids has 600"):
        ids["node"].raw([600])
    everything = ids["node"].lookup(np.array(RAW))
    assert ids["node"].raw(everything) == RAW and len(ids["node"]) == NUM_NODES
    with glt.distributed.SamplingClient([3], random_seed=1) as client:
        one, other = client.sample(RAW[:3]), client.sample(everything[:3])
        assert one.n_id[:3].tolist() == everything[:3].tolist() and torch.equal(one.n_id, other.n_id)
    links = {"num_neighbors": [2], "batch_size": 2, "random_seed": 1, "worker_options": options()}
    for ends in ((RAW[:4], RAW[4:8]), torch.stack([everything[:4], everything[4:8]]), (RAW[:4], everything[4:8])):
        with glt.distributed.DistLinkNeighborLoader(None, edge_label_index=ends, **links) as loader:
            seeds = torch.cat([batch.n_id[batch.edge_label_index] for batch in loader], 1)
            assert seeds.tolist() == [everything[:4].tolist(), everything[4:8].tolist()]
    return batches_of(None, RAW[rank * 8 : rank * 8 + 8], worker_options=options())


def train(trainer, path):
    given = {"worker_options": train_options(trainer, "collocated")}
    return batches_of(join(trainer, path), RAW[trainer.rank * 8 : trainer.rank * 8 + 8], **given)


def test_on_servers_and_in_trainers(parts):
    served = run_cluster(4, serve_or, parts, 2, 2, ask, {})[2:]
    trained = run_cluster(2, train, parts)
    for rank, batches in enumerate(served):
        assert batches == trained[rank]
        assert [raw for raws, _, size in batches for raw in raws[:size]] == RAW[rank * 8 : rank * 8 + 8]
