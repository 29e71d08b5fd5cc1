"""The code of the reference's tutorial, sections 2.2 and 4.2, with ``import glt`` as the import line.

The other sections are in ``test_tutorial.py``, whose partitions serve here. ``torch.device('cpu')`` stands for the
GPUs, where ``torch.cuda.device_count`` finds none, and another port for 11111; the rest is as written there.
"""

import os.path as osp

import torch
import torch.distributed as dist
import torch.nn.functional as F
from test_tutorial import NUM_CLASSES, NUM_FEATS, preprocess
from torch.nn.parallel import DistributedDataParallel

import glt
from glt.testing.cluster import Cluster


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


def train(trainer, root_dir, client_rank):
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
    dist.destroy_process_group()
    # Shutdown the current process before exiting.
    glt.distributed.shutdown_client()
    return [*place, target_server_device_count, num_seen, bool(torch.isfinite(loss))]


def play(trainer, root_dir):
    return serve(trainer, root_dir) if trainer.rank < 2 else train(trainer, root_dir, trainer.rank - 2)


def test_the_tutorial_of_servers_and_clients_runs_as_written(tmp_path):
    preprocess(str(tmp_path))
    with Cluster(6, play, str(tmp_path)) as cluster:
        results = cluster.results()
        cluster.expect_nothing_left()
    for rank, place in enumerate(results[:2]):
        assert place == ["SERVER", 2, rank, "distributed-server", f"distributed-server-{rank}", 6, rank]
    for rank, found in enumerate(results[2:]):
        group = "distributed-trainer-client"
        assert found[:7] == ["CLIENT", 4, rank, group, f"{group}-{rank}", 6, 2 + rank]
        assert found[7:] == [torch.cuda.device_count(), 2 * 400, True]
