"""The code of the reference's tutorial, sections 1, 2.1 and 4.1, with ``import glt`` as the import line.

Section 3 has no code; ``test_concurrent_sampler.py`` does what it says.

A synthetic graph stands for ogbn-products, ``torch.device('cpu')`` for the GPUs; the rest is as written there.
"""

import os.path as osp
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import glt
from glt.testing import random_graph
from glt.testing.cluster import Cluster

NUM_FEATS, NUM_CLASSES = 12, 5
FREQUENCY = "frequency-partitions"  # the text has both partitioners write "graph-partitions"


def preprocess(root_dir):
    """Section 1."""
    data = random_graph(2000, 20000).to_data()
    data.x = torch.randn(2000, NUM_FEATS)
    data.y = torch.arange(2000).view(-1, 1) % NUM_CLASSES
    split_idx = {"train": torch.arange(0, 800), "test": torch.arange(800, 1200)}
    node_num = len(data.x)
    label_dir = osp.join(root_dir, "label")
    Path(label_dir).mkdir()
    torch.save(data.y.squeeze(), osp.join(label_dir, "label.pt"))
    num_partitions = 2
    for name in ("train", "test"):
        idx = split_idx[name]
        idx = idx.split(idx.size(0) // num_partitions)
        partitions_dir = osp.join(root_dir, f"{name}-idx-partitions")
        Path(partitions_dir).mkdir()
        for pidx in range(num_partitions):
            torch.save(idx[pidx], osp.join(partitions_dir, f"partition{pidx}.pt"))
    random_partitioner = glt.partition.RandomPartitioner(
        output_dir=osp.join(root_dir, "graph-partitions"),
        num_parts=2,
        num_nodes=node_num,
        edge_index=data.edge_index,
        node_feat=data.x,
        edge_feat=None,
        edge_assign_strategy="by_src",  # assign graph edges by src node.
        chunk_size=10000,  # chunk size for node assignment
        device=torch.device("cpu"),  # device used for partitioning
    )
    random_partitioner.partition()

    # Initialize the graph store for sampling.
    csr_topo = glt.data.Topology(edge_index=data.edge_index, layout="CSR")
    graph = glt.data.Graph(csr_topo, mode="ZERO_COPY")

    # Calculate the sampling probabilities.
    num_partitions = 2
    probs = []
    glt_sampler = glt.sampler.NeighborSampler(graph, num_neighbors=[15, 10, 5])
    train_idx = split_idx["train"].split(400)
    for pidx in range(num_partitions):
        seeds = train_idx[pidx]
        prob = glt_sampler.sample_prob(seeds, node_num)
        probs.append(prob)

    # Partition graph data with the sampling probabilities.
    freq_partitioner = glt.partition.FrequencyPartitioner(
        output_dir=osp.join(root_dir, FREQUENCY),
        num_parts=2,
        num_nodes=node_num,
        edge_index=data.edge_index,
        probs=probs,
        node_feat=data.x,
        edge_feat=None,
        edge_assign_strategy="by_src",  # assign graph edges by src node.
        chunk_size=10000,  # chunk size for node assignment
        cache_ratio=0.2,  # cache 20% hottest graph nodes
        device=torch.device("cpu"),  # device used for partitioning
    )
    freq_partitioner.partition()


def train(trainer, root_dir):
    """Sections 1.3, 2.1 and 4.1, first with workers, then collocated."""
    dist.init_process_group(
        "gloo", init_method=f"file://{root_dir}/group", rank=trainer.rank, world_size=trainer.world_size
    )
    dist_dataset = glt.distributed.DistDataset()
    dist_dataset.load(
        graph_dir=osp.join(root_dir, "graph-partitions"),
        partition_idx=trainer.rank,
        graph_mode="ZERO_COPY",
        whole_node_label_file=osp.join(root_dir, "label", "label.pt"),
    )
    glt.distributed.init_worker_group(world_size=2, rank=trainer.rank, group_name="distributed-trainer")
    dist_ctx = glt.distributed.get_context()
    assert dist_ctx is not None
    place = [dist_ctx.role.name, dist_ctx.world_size, dist_ctx.rank, dist_ctx.group_name, dist_ctx.worker_name]
    train_idx = torch.load(osp.join(root_dir, "train-idx-partitions", f"partition{trainer.rank}.pt"))

    with pytest.warns(UserWarning, match="pin_memory"):
        mp_options = glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=2,
            worker_devices=[torch.device("cpu") for _ in range(2)],
            worker_concurrency=4,
            master_addr="localhost",
            master_port=trainer.port,
            channel_size="1GB",
            pin_memory=True,
        )
    train_loader = glt.distributed.DistNeighborLoader(
        data=dist_dataset,
        num_neighbors=[15, 10, 5],
        input_nodes=train_idx,
        batch_size=1024 // 8,
        collect_features=True,
        to_device=torch.device("cpu"),
        worker_options=mp_options,
    )

    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(in_channels=NUM_FEATS, hidden_channels=16, num_layers=3, out_channels=NUM_CLASSES)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    num_seen = 0
    for _ in range(2):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size].log_softmax(dim=-1)
            loss = F.nll_loss(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            num_seen += batch.batch_size
    train_loader.shutdown()

    frequency = glt.distributed.DistDataset().load(osp.join(root_dir, FREQUENCY), trainer.rank)  # the same, cached
    collocated_options = glt.distributed.CollocatedDistSamplingWorkerOptions(
        master_addr="localhost", master_port=trainer.port
    )
    train_loader = glt.distributed.DistNeighborLoader(
        data=frequency,
        num_neighbors=[15, 10, 5],
        input_nodes=train_idx,
        batch_size=1024 // 8,
        collect_features=True,
        to_device=torch.device("cpu"),
        worker_options=collocated_options,
    )
    for batch in train_loader:
        num_seen += batch.batch_size
    train_loader.shutdown()
    dist.destroy_process_group()
    return [*place, num_seen, bool(torch.isfinite(loss))]


def test_the_tutorial_runs_as_written(tmp_path):
    preprocess(str(tmp_path))
    with Cluster(2, train, str(tmp_path)) as cluster:
        for rank, result in enumerate(cluster.results()):
            name = f"distributed-trainer-{rank}"
            assert result == ["WORKER", 2, rank, "distributed-trainer", name, 3 * 400, True]
        cluster.expect_nothing_left()
