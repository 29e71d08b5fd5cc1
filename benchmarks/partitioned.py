"""A graph in partitions, with features and labels that can be recognised: what the distributed benchmarks sample."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import glt
from benchmarks import graphs

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
def scratch_dir() -> Iterator[Path]:
    graphs.cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=graphs.cache_dir()) as directory:
        yield Path(directory)
