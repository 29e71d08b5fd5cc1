"""``glt launch`` starts a real job: two servers with a partition each, two trainers that learn from both with DDP."""

import pytest
import torch
from torch_geometric.data import Data

import glt

NUM_NODES = 200

TRAIN = """
import torch as th
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

import glt

if __name__ == "__main__":
    glt.distributed.initialize()  # a server goes no further
    th.distributed.init_process_group(backend="gloo")
    g = glt.distributed.DistGraph("ring")
    rank, size = g.rank(), glt.distributed.num_trainers()
    train_nid = glt.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), remainder="pad")
    th.manual_seed(0)
    model = th.nn.parallel.DistributedDataParallel(SAGEConv(g.ndata["feat"].shape[1], 2))
    optimizer = th.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for epoch in range(20):
        block = glt.distributed.to_block(g.sample_neighbors(train_nid, -1), train_nid)
        x, y = g.ndata["feat"][block.src_id], g.ndata["labels"][train_nid]
        loss = F.cross_entropy(model((x, x[: block.num_dst]), block.edge_index), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    table = glt.distributed.DistTensor((g.num_nodes(), 1), th.float32, name="seen")
    table[train_nid] = th.full((len(train_nid), 1), 1.0 + rank)
    g.barrier()
    seen = table[0 : g.num_nodes()].squeeze(1)
    print("RESULT", rank, size, len(train_nid), int((seen == 1).sum()), int((seen == 2).sum()), losses[-1] < losses[0])
    th.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A workspace: ``train.py`` and ``parts``, a ring whose nodes know their side, 100 of them to learn from."""
    folder = tmp_path_factory.mktemp("job")
    here = torch.arange(NUM_NODES)
    label = (here >= NUM_NODES // 2).long()
    data = Data(
        x=torch.nn.functional.one_hot(label).float(),
        y=label,
        edge_index=torch.stack([here, (here + 1) % NUM_NODES]),
        train_mask=here % 2 == 0,
    )
    glt.distributed.partition_graph(data, "ring", 2, folder / "parts", part_method="random")
    (folder / "train.py").write_text(TRAIN)
    return folder


def test_a_training_job(launch, job):
    flags = [*"--num-servers 2 --num-trainers 2 --workspace".split(), job, "--part-config", "parts/ring.json"]
    launched = launch(*flags, "python3 train.py")
    assert launched.ended() == 0, launched.out + launched.err
    results = sorted(line.partition("RESULT ")[2] for line in launched.out.splitlines() if "RESULT" in line)
    assert results == ["0 2 50 50 50 True", "1 2 50 50 50 True"]
