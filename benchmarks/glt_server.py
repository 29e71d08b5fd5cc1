"""GLT's server mode as a contestant of bench_server: its servers and clients, on its own partitions of the same graph.

Its loader takes no tensor of seeds from a client: servers read them from files that the client names. Loaders of a
server must have keys, or they share one stream.

Its published package is built for CUDA and another torch. A build for the CPU of its source (WITH_CUDA=OFF python
setup.py build_ext) can be imported, where torch-sparse can, of which it uses the conversion to CSR.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class PeerJob:
    """What its processes need to know.

    Attributes:
        seeds: Of each client.
        seed_files: The same in files, and the first batch of each.
        ports: Of the job, and of the samplers of the two loaders.
    """

    mode: str
    root: str
    num_servers: int
    seeds: list[torch.Tensor]
    seed_files: list[tuple[str, str]]
    num_neighbors: list[int]
    batch_size: int
    ports: list[int]


def prepare(
    job: Any,
    edge_index: np.ndarray,
    features_of: Callable[[torch.Tensor], torch.Tensor],
    labels_of: Callable[[torch.Tensor], torch.Tensor],
    directory: Path,
    free_port: Callable[[], int],
) -> PeerJob:
    """Partitions the graph with its partitioner, and writes the seeds."""
    import graphlearn_torch

    root, nodes = directory / "peer", torch.arange(int(edge_index.max()) + 1)
    graphlearn_torch.partition.RandomPartitioner(
        str(root), job.num_servers, len(nodes), torch.from_numpy(edge_index), features_of(nodes),
        edge_assign_strategy="by_dst",
    ).partition()  # fmt: skip
    torch.save(labels_of(nodes), root / "label.pt")
    files = []
    for rank, seeds in enumerate(job.seeds):
        whole, first = root / f"seeds{rank}.pt", root / f"first{rank}.pt"
        torch.save(seeds.clone(), whole)
        torch.save(seeds[: job.batch_size].clone(), first)
        files.append((str(whole), str(first)))
    return PeerJob(
        "GLT, server", str(root), job.num_servers, job.seeds, files, job.num_neighbors, job.batch_size,
        [free_port() for _ in range(3)],
    )  # fmt: skip


def server(rank: int, job: PeerJob) -> None:
    import graphlearn_torch

    torch.set_num_threads(1)
    dataset = graphlearn_torch.distributed.DistDataset(edge_dir="in")
    dataset.load(
        job.root, rank, graph_mode="CPU", feature_with_gpu=False, whole_node_label_file=str(Path(job.root, "label.pt"))
    )
    graphlearn_torch.distributed.init_server(
        job.num_servers, rank, dataset, "127.0.0.1", job.ports[0], num_clients=len(job.seeds)
    )
    graphlearn_torch.distributed.wait_and_shutdown_server()


def trainer(rank: int, job: PeerJob, commands: Connection) -> None:
    """As the trainers of bench_server."""
    import graphlearn_torch

    torch.set_num_threads(1)
    graphlearn_torch.distributed.init_client(job.num_servers, len(job.seeds), rank, "127.0.0.1", job.ports[0])
    loader, single = (
        graphlearn_torch.distributed.DistNeighborLoader(
            None, job.num_neighbors, job.seed_files[rank][which], job.batch_size, with_edge=True, edge_dir="in",
            collect_features=True, to_device=torch.device("cpu"), random_seed=0,
            worker_options=graphlearn_torch.distributed.RemoteDistSamplingWorkerOptions(
                rank % job.num_servers, worker_concurrency=8, master_addr="127.0.0.1", master_port=job.ports[1 + which],
                buffer_size="512MB", worker_key=f"{rank} {which}",
            ),
        )
        for which in range(2)
    )  # fmt: skip
    while (command := commands.recv()) != "stop":
        num_batches, start = 0, time.perf_counter()
        if command == "check":
            seen = [check(batch) for batch in loader]
            if not torch.equal(torch.cat(seen).sort().values, job.seeds[rank].sort().values):
                raise ValueError("an epoch of GLT did not bring each seed once; its figures would mean nothing")
            num_batches = len(seen)
        elif command == "epoch":
            num_batches = sum(1 for _ in loader)
        elif rank == 0:
            num_batches = sum(1 for _ in range(20) for _ in single)
        commands.send((num_batches, time.perf_counter() - start, {}))
    graphlearn_torch.distributed.shutdown_client()


def check(batch: Any) -> torch.Tensor:
    """Raises unless features and labels are those of the nodes; returns the seeds."""
    from benchmarks.bench_distributed import features_of, labels_of

    if not (torch.equal(batch.x, features_of(batch.node)) and torch.equal(batch.y, labels_of(batch.node))):
        raise ValueError("a batch of GLT does not agree with the graph; its figures would mean nothing")
    return batch.batch
