"""The graph of the distributed tests, and what trainers do with it."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import glt
from glt.partition import RandomPartitioner
from glt.testing import random_graph

NUM_NODES, NUM_EDGES = 600, 6000
FIELDS = ("n_id", "edge_index", "e_id", "input_id", "x", "y", "edge_attr")


@dataclass(frozen=True)
class World:
    """A partition directory and the arrays that it was made of."""

    path: Path
    num_parts: int
    edge_dir: str
    x: Tensor | None
    y: Tensor | None
    edge_attr: Tensor | None

    @property
    def graph(self):
        return random_graph(NUM_NODES, NUM_EDGES, seed=3)


def write_world(
    root, num_parts, edge_dir = "in", tables = "xye",
    partitioner = RandomPartitioner, **options,
):  # fmt: skip
    """``tables``: ``x`` float32 features, ``b`` bfloat16 features, ``y`` labels, ``e`` edge features."""
    graph = random_graph(NUM_NODES, NUM_EDGES, seed=3)
    x = graph.x.bfloat16() if "b" in tables else graph.x if "x" in tables else None
    y = graph.y if "y" in tables else None
    edge_attr = graph.edge_attr if "e" in tables else None
    partitioner(
        root / "parts", num_parts, NUM_NODES, graph.edge_index, node_feat=x, edge_feat=edge_attr, node_label=y,
        edge_assign_strategy="by_dst" if edge_dir == "in" else "by_src", **options,
    ).partition()  # fmt: skip
    return World(root / "parts", num_parts, edge_dir, x, y, edge_attr)


@contextmanager
def standalone_job(path, name="graph"):
    """Makes this process a job of its own over partitions; gives the graph."""
    glt.distributed.initialize(part_config=path)
    try:
        yield glt.distributed.DistGraph(name)
    finally:
        glt.distributed.finalize()


def seeds_of(rank):
    """Uneven between ranks, with duplicates."""
    ids = torch.arange(rank, NUM_NODES, 4)[: 100 + 17 * rank]
    return torch.cat([ids, ids[:5], ids[2:4]])


def options(trainer, mode, **given):
    """Worker options of a cluster's trainer; ``mode``: ``'mp'`` or ``'collocated'``."""
    # On one host nobody would ask anyone; most tests are about asking.
    given = {
        "master_addr": "localhost",
        "master_port": trainer.port,
        "rpc_timeout": 120.0,
        "read_local": False,
        **given,
    }
    if mode == "mp":
        return glt.distributed.MpDistSamplingWorkerOptions(channel_size=given.pop("channel_size", "16MB"), **given)
    return glt.distributed.CollocatedDistSamplingWorkerOptions(**given)


def join(trainer, path, partition_idx=None, **load):
    """Makes this process a trainer of the job and loads its partition."""
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "test-trainer")
    index = trainer.rank if partition_idx is None else partition_idx
    return glt.distributed.DistDataset().load(path, index, "CPU", **load)


def snapshot(batch):
    """All of a batch, in memory of its own."""
    kept = {name: batch[name].clone() for name in FIELDS if name in batch}
    return kept | {
        "batch_size": batch.batch_size,
        "num_sampled_nodes": list(batch.num_sampled_nodes),
        "num_sampled_edges": list(batch.num_sampled_edges),
    }
