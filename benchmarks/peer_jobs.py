"""GLT's distributed modes as contestants of bench_distributed and bench_server, on its partitions of the same graph.

Its published package is built for CUDA and another torch. A build for the CPU of its source (WITH_CUDA=OFF python
setup.py build_ext) can be imported, where torch-sparse can, of which it uses the conversion to CSR.

With a seed everywhere: without one it makes a new generator for every node, and is slower by a factor of ten to twenty.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import graphs
from benchmarks._harness import require
from benchmarks.partitioned import features_of, labels_of, obey
from glt.testing.cluster import free_port


@dataclass(frozen=True)
class PeerJob:
    """What its processes need to know.

    Attributes:
        mode: ``GLT, server``, ``GLT, worker`` or ``GLT, collocated``.
        root: Directory of the partitions.
        seeds: Of each trainer.
        seed_files: The same in files, and the first batch of each: servers read seeds from files that a client names.
        ports: Of the job, and of the samplers of the loaders.
    """

    mode: str
    graph_name: str
    root: str
    num_parts: int
    seeds: list[torch.Tensor]
    seed_files: list[tuple[str, str]]
    num_neighbors: list[int]
    batch_size: int
    ports: list[int]

    @property
    def num_servers(self) -> int:
        return self.num_parts


def prepare(
    modes: list[str],
    graph: graphs.BenchGraph,
    num_parts: int,
    seeds: list[torch.Tensor],
    num_neighbors: list[int],
    batch_size: int,
    directory: Path,
) -> list[PeerJob]:
    """Partitions the graph with its partitioner, and writes the seeds; returns a job for each mode."""
    import graphlearn_torch

    root, nodes = directory / "peer", torch.arange(graph.num_nodes)
    graphlearn_torch.partition.RandomPartitioner(
        str(root), num_parts, len(nodes), torch.from_numpy(graph.edge_index()), features_of(nodes),
        edge_assign_strategy="by_dst",
    ).partition()  # fmt: skip
    torch.save(labels_of(nodes), root / "label.pt")
    files = []
    for rank, share in enumerate(seeds):
        whole, first = root / f"seeds{rank}.pt", root / f"first{rank}.pt"
        torch.save(share.clone(), whole)
        torch.save(share[:batch_size].clone(), first)
        files.append((str(whole), str(first)))
    return [
        PeerJob(mode, graph.name, str(root), num_parts, seeds, files, num_neighbors, batch_size,
                [free_port() for _ in range(3)])
        for mode in modes
    ]  # fmt: skip


def _dataset(rank: int, job: PeerJob) -> Any:
    import graphlearn_torch

    dataset = graphlearn_torch.distributed.DistDataset(edge_dir="in")
    dataset.load(
        job.root, rank, graph_mode="CPU", feature_with_gpu=False, whole_node_label_file=str(Path(job.root, "label.pt"))
    )
    return dataset


def server(rank: int, job: PeerJob) -> None:
    import graphlearn_torch

    torch.set_num_threads(1)
    graphlearn_torch.distributed.init_server(
        job.num_parts, rank, _dataset(rank, job), "127.0.0.1", job.ports[0], num_clients=len(job.seeds)
    )
    graphlearn_torch.distributed.wait_and_shutdown_server()


def _loader(rank: int, job: PeerJob, dataset: Any, seeds: Any, which: int) -> Any:
    """A loader of a trainer; ``which``: its number, from 0. Loaders of a server must have keys, or share one stream."""
    from graphlearn_torch import distributed

    options: dict[str, Any] = {"master_addr": "127.0.0.1", "master_port": job.ports[1 + which]}
    if job.mode == "GLT, server":
        worker_options = distributed.RemoteDistSamplingWorkerOptions(
            rank % job.num_parts, worker_concurrency=8, buffer_size="512MB", worker_key=f"{rank} {which}", **options
        )
    elif job.mode == "GLT, worker":
        worker_options = distributed.MpDistSamplingWorkerOptions(
            num_workers=1, worker_concurrency=8, channel_size="512MB", **options
        )
    else:
        worker_options = distributed.CollocatedDistSamplingWorkerOptions(**options)
    return distributed.DistNeighborLoader(
        dataset, job.num_neighbors, seeds, job.batch_size, with_edge=True, edge_dir="in", collect_features=True,
        to_device=torch.device("cpu"), random_seed=0, worker_options=worker_options,
    )  # fmt: skip


def trainer(rank: int, job: PeerJob, commands: Connection) -> None:
    """As the trainers of bench_distributed, and in server mode those of bench_server."""
    from graphlearn_torch import distributed

    torch.set_num_threads(1)
    if job.mode == "GLT, server":
        distributed.init_client(job.num_parts, len(job.seeds), rank, "127.0.0.1", job.ports[0])
        loader, single = (_loader(rank, job, None, job.seed_files[rank][which], which) for which in range(2))
    else:
        distributed.init_worker_group(len(job.seeds), rank, "peer")
        loader, single = _loader(rank, job, _dataset(rank, job), job.seeds[rank], 0), None
    graph = graphs.load(job.graph_name)

    def check_epoch() -> int:
        seen = [check(graph, batch) for batch in loader]
        all_once = torch.equal(torch.cat(seen).sort().values, job.seeds[rank].sort().values)
        require(all_once, "an epoch of GLT did not bring each seed once")
        return len(seen)

    obey(commands, check_epoch, loader, single if rank == 0 else None, dict)
    if job.mode == "GLT, server":
        distributed.shutdown_client()
    else:
        loader.shutdown()


def check(graph: graphs.BenchGraph, batch: Any) -> torch.Tensor:
    """Raises unless edges exist, and features and labels are those of the nodes; returns the seeds."""
    neighbor, edge = batch.node[batch.edge_index[0]].numpy(), batch.edge.numpy()
    right = np.array_equal(graph.indices[edge], neighbor)
    right &= torch.equal(batch.x, features_of(batch.node)) and torch.equal(batch.y, labels_of(batch.node))
    require(right, "a batch of GLT does not agree with the graph")
    return batch.batch.clone()  # one tensor that is kept blocks its ring, and with it both trainers for ever
