"""The code of the reference's tutorial, sections 1, 2 and 4, with ``import glt`` as the import line.

Section 3 has no code; ``test_engine.py`` does what it says. A synthetic graph stands for ogbn-products,
``torch.device('cpu')`` for the GPUs where there are none, and another port for 11111; the rest is as written there.
"""

import os.path as osp
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dist_world import run_cluster
from torch.nn.parallel import DistributedDataParallel

import glt
from glt.testing import random_graph

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
    with pytest.warns(UserWarning, match="^device = .* has no effect"):
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
    with pytest.warns(UserWarning, match="^device = .* has no effect"):
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


def train_model(train_loader):
    """Two epochs; how many seeds they had, and whether the loss is finite."""
    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(in_channels=NUM_FEATS, hidden_channels=16, num_layers=3, out_channels=NUM_CLASSES)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    num_seen = 0
    for _ in range(2):
        model.train()
        # load sampled subgraphs from `train_loader`.
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size].log_softmax(dim=-1)
            loss = F.nll_loss(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            num_seen += batch.batch_size
    return num_seen, bool(torch.isfinite(loss))


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

    num_seen, is_finite = train_model(train_loader)
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
    return [*place, num_seen, is_finite]


def test_the_tutorial_runs_as_written(tmp_path):
    preprocess(str(tmp_path))
    for rank, result in enumerate(run_cluster(2, train, str(tmp_path))):
        name = f"distributed-trainer-{rank}"
        assert result == ["WORKER", 2, rank, "distributed-trainer", name, 3 * 400, True]


def serve(trainer, root_dir):
    dist_dataset = glt.distributed.DistDataset()
    dist_dataset.load(
        graph_dir=osp.join(root_dir, "graph-partitions"),
        partition_idx=trainer.rank,
        graph_mode="ZERO_COPY",
        whole_node_label_file=osp.join(root_dir, "label", "label.pt"),
    )

    # Initialize server-0
    glt.distributed.init_server(
        num_servers=2,
        num_clients=4,
        server_rank=trainer.rank,
        # The distributed dataset managed by the current server node.
        dataset=dist_dataset,
        # The master address and port used for build connection across all server
        # and trainer client processes, which should be same at all server and client
        # processes.
        master_addr="localhost",
        master_port=trainer.port,
        # The number of RPC worker threads for requests.
        num_rpc_threads=16,
        # The group name of all server processes.
        server_group_name="distributed-server",
    )
    place = where_am_i()
    # Run server and wait for exit.
    glt.distributed.wait_and_shutdown_server()
    return place


def where_am_i():
    dist_ctx = glt.distributed.get_context()
    return [
        # The role type of the current worker group: SERVER or CLIENT.
        dist_ctx.role.name,
        # The number of all processes of the current role group.
        dist_ctx.world_size,
        # The rank of the current process within the current role group.
        dist_ctx.rank,
        # The name of the current role group.
        dist_ctx.group_name,
        # The name of the current process.
        dist_ctx.worker_name,
        # The number of all distributed server and client processes.
        dist_ctx.global_world_size,
        # The rank of the current process within all server and client processes.
        dist_ctx.global_rank,
    ]


def train_as_client(trainer, root_dir, client_rank):
    # Initialize client-1
    glt.distributed.init_client(
        num_servers=2,
        num_clients=4,
        client_rank=client_rank,
        master_addr="localhost",
        master_port=trainer.port,
        num_rpc_threads=4,
        # The group name of all client processes.
        client_group_name="distributed-trainer-client",
    )
    place = where_am_i()
    dist.init_process_group("gloo", init_method=f"file://{root_dir}/group", rank=client_rank, world_size=4)
    train_idx = torch.load(osp.join(root_dir, "train-idx-partitions", f"partition{client_rank % 2}.pt"))

    # The `DistNeighborLoader` should be created on the trainer client process.
    # Before get the distributed context of the current client process, you must
    # initialize the client first.
    dist_ctx = glt.distributed.get_context()

    # Select a target server process on remote.
    target_server_rank = dist_ctx.rank % dist_ctx.num_servers()

    # Fetch availble device count on the target server.
    target_server_device_count = glt.distributed.request_server(target_server_rank, func=torch.cuda.device_count)
    remote_options = glt.distributed.RemoteDistSamplingWorkerOptions(
        # The target server rank to launch sampler processes.
        server_rank=target_server_rank,
        # The number of sampler processes to launch on the target server.
        num_workers=2,
        # Devices on the target server assigned to the sampler processes.
        worker_devices=[
            torch.device("cuda", i % target_server_device_count) if target_server_device_count else torch.device("cpu")
            for i in range(2)
        ],
        # Max concurrency for async sampling of each distributed sampler.
        worker_concurrency=4,
        # The master address and port used for build connection across all sampler
        # processes, which should be same for each loader.
        master_addr="localhost",
        master_port=11112,
        # The memory size allocated to the server-side buffer.
        buffer_size="1GB",
        # The number of sampled messages to prefetch from the remote message channel.
        prefetch_size=4,
    )
    train_loader = glt.distributed.DistNeighborLoader(
        # No need to provide a distributed dataset.
        data=None,
        num_neighbors=[15, 10, 5],
        input_nodes=train_idx,
        batch_size=1024 // 8,
        collect_features=True,
        to_device=torch.device("cpu"),
        worker_options=remote_options,
    )

    learnt = train_model(train_loader)
    dist.destroy_process_group()
    # Shutdown the current process before exiting.
    glt.distributed.shutdown_client()
    return [*place, target_server_device_count, *learnt]


def play(trainer, root_dir):
    return serve(trainer, root_dir) if trainer.rank < 2 else train_as_client(trainer, root_dir, trainer.rank - 2)


def test_the_tutorial_of_servers_and_clients_runs_as_written(tmp_path):
    preprocess(str(tmp_path))
    results = run_cluster(6, play, str(tmp_path))
    for rank, place in enumerate(results[:2]):
        assert place == ["SERVER", 2, rank, "distributed-server", f"distributed-server-{rank}", 6, rank]
    for rank, found in enumerate(results[2:]):
        group = "distributed-trainer-client"
        assert found[:7] == ["CLIENT", 4, rank, group, f"{group}-{rank}", 6, 2 + rank]
        assert found[7:] == [torch.cuda.device_count(), 2 * 400, True]
