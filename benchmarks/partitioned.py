"""A graph in partitions, with features and labels that can be recognised: what the distributed benchmarks sample."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import glt
from benchmarks import graphs

NUM_FEATURES = 128
NUM_PARTS = 2


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


@contextlib.contextmanager
def scratch_dir() -> Iterator[Path]:
    graphs.cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=graphs.cache_dir()) as directory:
        yield Path(directory)
