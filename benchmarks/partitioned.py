"""A graph in partitions, with features and labels that can be recognised: what the distributed benchmarks sample."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import glt
from benchmarks import graphs
from glt.testing import ring_graph
from glt.testing.cluster import free_port

NUM_FEATURES = 128
NUM_PARTS = 2
NUM_LATENCIES = 20


def features_of(nodes: torch.Tensor) -> torch.Tensor:
    """Rows that can be recognised: the id of the node, then its multiples."""
    return nodes[:, None].float() * torch.arange(1, NUM_FEATURES + 1)


def labels_of(nodes: torch.Tensor) -> torch.Tensor:
    return nodes % 47


def write_partitions(graph: graphs.BenchGraph, directory: Path, num_parts: int = NUM_PARTS) -> str:
    nodes = torch.arange(graph.num_nodes)
    glt.partition.RandomPartitioner(
        output_dir=str(directory / "partitions"),
        num_parts=num_parts,
        num_nodes=graph.num_nodes,
        edge_index=torch.from_numpy(graph.edge_index()),
        node_feat=features_of(nodes),
        node_label=labels_of(nodes),
        edge_assign_strategy="by_dst",
    ).partition()
    return str(directory / "partitions")


def obey(
    commands: Connection, check: Callable[[], int], loader: Any, single: Any, stats: Callable[[], dict[str, Any]]
) -> None:
    """What a trainer does until it is told to stop; each answer is (number of batches, seconds, ``stats()``).

    Args:
        check: Checks an epoch, and returns its batches.
        loader: What an epoch comes from.
        single: What is asked for one batch, again and again; None: this trainer is idle meanwhile.
    """
    while (command := commands.recv()) != "stop":
        num_batches, start = 0, time.perf_counter()
        if command == "check":
            num_batches = check()
        elif command == "epoch":
            num_batches = sum(1 for _ in loader)
        elif single is not None:
            num_batches = sum(1 for _ in range(NUM_LATENCIES) for _ in single)
        commands.send((num_batches, time.perf_counter() - start, stats()))


@contextlib.contextmanager
def client_of_one_server() -> Iterator[None]:
    """Makes this process the client of a server, of a small ring, in a process of its own."""
    with scratch_dir() as directory:
        path, port = str(directory / "ring"), free_port()
        glt.partition.RandomPartitioner(path, 1, 10, ring_graph(10).edge_index).partition()
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(path, port))
        server.start()
        glt.distributed.init_client(1, 1, 0, "127.0.0.1", port)
        try:
            yield
        finally:
            glt.distributed.shutdown_client()
            server.join(60)


def _serve(path: str, port: int) -> None:
    torch.set_num_threads(1)
    glt.distributed.init_server(1, 1, 0, glt.distributed.DistDataset().load(path, 0), "127.0.0.1", port)
    glt.distributed.wait_and_shutdown_server()


@contextlib.contextmanager
def scratch_dir() -> Iterator[Path]:
    graphs.cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=graphs.cache_dir()) as directory:
        yield Path(directory)
