"""The code of DGL's documents, in glt's names: alone, and with two trainers under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import glt

NUM_CLASSES = 4

# What the document "Distributed Node Classification" has its trainers run; what differs from it is marked.
TRAIN = """
import os
import sys

import torch as th
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

import glt

ip_config, part_config = sys.argv[1:]


class SAGE(th.nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, n_layers):
        super().__init__()
        sizes = [in_feats, *[n_hidden] * (n_layers - 1), n_classes]
        self.layers = th.nn.ModuleList(SAGEConv(a, b, "mean") for a, b in zip(sizes, sizes[1:]))

    def forward(self, blocks, x):
        for l, (layer, block) in enumerate(zip(self.layers, blocks)):
            x = layer((x, x[: block.num_dst]), block.edge_index)
            if l != len(self.layers) - 1:
                x = F.relu(x)
        return x


if __name__ == "__main__":
    glt.distributed.initialize(ip_config)
    if glt.distributed.num_trainers() > 1:
        th.distributed.init_process_group(backend="gloo")
    g = glt.distributed.DistGraph("communities", part_config=part_config)
    train_nid = glt.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), remainder="pad")
    valid_nid = glt.distributed.node_split(g.ndata["val_mask"], g.get_partition_book())

    num_labels = len(th.unique(g.ndata["labels"][0 : g.num_nodes()]))
    th.manual_seed(0)
    model = SAGE(g.ndata["feat"].shape[1], 32, num_labels, 2)
    if glt.distributed.num_trainers() > 1:
        model = th.nn.parallel.DistributedDataParallel(model)
    optimizer = th.optim.Adam(model.parameters(), lr=0.01)

    sampler = glt.distributed.MultiLayerNeighborSampler([10, 10])
    train_dataloader = glt.distributed.NodeDataLoader(
        g, train_nid, sampler, batch_size=32, shuffle=True, drop_last=False, blocks=True, random_seed=1
    )
    valid_dataloader = glt.distributed.NodeDataLoader(
        g, valid_nid, sampler, batch_size=32, shuffle=False, drop_last=False, blocks=True, random_seed=2
    )

    for epoch in range(6):
        for input_nodes, seeds, blocks in train_dataloader:
            batch_inputs = g.ndata["feat"][input_nodes]
            batch_labels = g.ndata["labels"][seeds]
            batch_pred = model(blocks, batch_inputs)
            loss = F.cross_entropy(batch_pred, batch_labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    counts = th.zeros(2)
    with th.no_grad():
        inference = model.module if glt.distributed.num_trainers() > 1 else model
        for input_nodes, seeds, blocks in valid_dataloader:
            pred = inference(blocks, g.ndata["feat"][input_nodes]).argmax(1)
            counts += th.tensor([(pred == g.ndata["labels"][seeds]).sum(), len(seeds)])
    if glt.distributed.num_trainers() > 1:
        th.distributed.all_reduce(counts)
    g.barrier()
    weights = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
    accuracy = counts[0] / counts[1]
    line = f"RESULT {g.rank()} {len(train_nid)} {int(counts[1])} {accuracy:.3f} {weights:.9f}\\n"
    os.write(1, line.encode())  # at once: trainers share the pipe, and torchrun's do not buffer
    if glt.distributed.num_trainers() > 1:
        th.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Four communities, whose nodes have noisy features and mostly neighbours of their own kind."""
    rng = torch.Generator().manual_seed(0)
    label = torch.arange(800) % NUM_CLASSES
    source = torch.randint(800, (8000,), generator=rng)
    target = (source + NUM_CLASSES * torch.randint(200, (8000,), generator=rng)) % 800  # of the same community
    target[::8] = torch.randint(800, (1000,), generator=rng)
    x = torch.nn.functional.one_hot(label).float() + torch.randn(800, NUM_CLASSES, generator=rng)
    data = Data(x=x, y=label, edge_index=torch.stack([source, target]))
    drawn = torch.rand(800, generator=rng)
    data.train_mask, data.val_mask = drawn < 0.3, (drawn >= 0.3) & (drawn < 0.6)
    out = tmp_path_factory.mktemp("documents") / "4part_data"
    glt.distributed.partition_graph(
        data, "communities", 2, out, part_method="random", balance_ntypes=data.train_mask, balance_edges=False
    )
    (out.parent / "train_dist.py").write_text(TRAIN)
    (out.parent / "ip_config.txt").write_text("127.0.0.1\n")
    return out


def run(parts, *launch):
    """Runs the script; returns what each trainer printed, by rank."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GLT_ROLE", "GLT_MASTER"))}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, [Path(glt.__file__).parents[1]]))}
    command = [sys.executable, *launch, "train_dist.py", "ip_config.txt", str(parts / "communities.json")]
    done = subprocess.run(command, cwd=parts.parent, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    return sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT"))


def test_node_classification(parts):
    ((_, num_train, num_valid, accuracy, _),) = run(parts)
    assert float(accuracy) > 0.85
    found = run(parts, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    assert [each[0] for each in found] == ["0", "1"]
    assert found[0][1] == found[1][1] and abs(2 * int(found[0][1]) - int(num_train)) <= 1
    assert found[0][2:] == found[1][2:], "both have all counts and the same weights"
    assert found[0][2] == num_valid and float(found[0][3]) > 0.85


def initializer(shape, dtype):
    return torch.zeros(shape, dtype=dtype).uniform_(-1, 1)


def test_the_distributed_apis(parts, monkeypatch):
    for name in ("GLT_ROLE", "WORLD_SIZE", "GLT_PART_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    glt.distributed.register_server_function(initializer)  # runs in the servers, so above initialize
    glt.distributed.initialize(parts.parent / "ip_config.txt", num_workers=0)
    try:
        g = glt.distributed.DistGraph("communities", part_config=parts / "communities.json")
        assert (g.num_nodes(), g.ndata["train_mask"].dtype) == (800, torch.bool)
        assert (g.number_of_nodes(), g.number_of_edges()) == (g.num_nodes("node"), g.num_edges()) == (800, 8000)
        assert glt.distributed.get_num_clients() == glt.distributed.num_trainers() == 1
        assert g.ndata["train_mask"][[0]].shape == (1,)

        tensor = glt.distributed.DistTensor((g.num_nodes(), 10), torch.float32, name="test")
        g.ndata["h"] = tensor
        g.ndata["h"][[3, 4, 5]] = torch.ones(3, 10)
        data = g.ndata["h"][[1, 2, 3]]
        assert data.sum(1).tolist() == [0, 0, 10]
        tensor[0:100] = torch.full((100, 10), 2.0)
        assert float(tensor[0:100].sum()) == 2000

        emb = glt.distributed.DistEmbedding(g.num_nodes(), 10, init_func=initializer)
        optimizer = glt.distributed.SparseAdagrad([emb], lr=0.001)
        before = emb(np.arange(5)).detach().clone()
        assert before.abs().max() <= 1 and len(before.unique()) > 40
        loss = torch.sum(emb([0, 1, 2, 3]) + 1)
        loss.backward()
        optimizer.step()
        after = emb(torch.tensor([0, 1, 2, 3, 4])).detach()
        assert (after[:4] < before[:4]).all() and torch.equal(after[4], before[4])

        train_nids = glt.distributed.node_split(g.ndata["train_mask"])
        assert g.ndata["train_mask"][train_nids].all()

        def sample_blocks(seeds):
            seeds = torch.as_tensor(seeds)
            blocks = []
            for fanout in (10, 25):
                frontier = glt.distributed.sample_neighbors(g, seeds, fanout, replace=True)
                block = glt.distributed.to_block(frontier, seeds)
                seeds = block.srcdata[glt.distributed.NID]
                blocks.insert(0, block)
            return blocks

        dataloader = glt.distributed.DistDataLoader(train_nids, batch_size=64, collate_fn=sample_blocks, shuffle=True)
        found = list(dataloader)
        assert sum(blocks[-1].num_dst for blocks in found) == len(train_nids)
        assert all(torch.equal(blocks[0].dst_id, blocks[1].src_id) for blocks in found)
    finally:
        glt.distributed.finalize()
