"""Loads a task, partitions it, spawns the trainers and says what they did."""

import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from glt.data.synthetic import synthetic_graph
from glt.data.tasks import NodeTask, read_npz, read_ogb
from glt.demo import Options
from glt.demo.trainer import Job, train
from glt.errors import PartitionError
from glt.partition import Partition, RandomPartitioner, load_partition


def load_task(options: Options) -> NodeTask:
    """Reads or draws the task that ``--dataset`` names.

    Raises:
        OSError: If a file is missing or a data set cannot be downloaded.
        ImportError: If reading it needs a package that is not installed.
        ValueError: If it is not a node classification task; names what is wrong with it.
    """
    name = options.dataset
    if name == "synthetic":
        return synthetic_graph(random_seed=options.seed)
    if name.startswith("ogbn-"):
        return read_ogb(name, options.data_root, undirected=name == "ogbn-arxiv")
    candidates = [Path(name), Path(options.data_root, f"{name}.npz")]
    for path in candidates:
        if path.is_file():
            print(f"reading {path}; features are centred and scaled")
            return scaled(read_npz(path))
    raise FileNotFoundError(
        f"dataset {name!r} is neither synthetic nor ogbn-*, and there is no file {' or '.join(map(str, candidates))}"
    )


def scaled(task: NodeTask) -> NodeTask:
    """The task with columns of the features centred and rows scaled to length 8, that of 64 features of variance 1. Raw
    bags of words train slowly: amazon_computers is at 45% after five epochs, and with this at 90%."""
    return replace(task, x=8 * F.normalize(task.x - task.x.mean(dim=0)))


def run(task: NodeTask, options: Options) -> dict[str, Any]:
    """Partitions ``task``, trains with one process per partition, and prints each step.

    Returns:
        ``test_accuracy``, ``epochs`` (one dict each: ``loss, val_accuracy, epoch_s, edges_per_s, num_edges``) and
        ``stats`` (of the training loaders of all ranks, added up).

    Raises:
        glt.errors.PartitionError: If ``options.partition_dir`` holds something else, or cannot be written.
        torch.multiprocessing.ProcessRaisedException: If a trainer fails; carries its traceback.
    """
    print(
        f"{task.name}: {task.num_nodes:,} nodes, {task.num_edges:,} edges, {task.num_features} features, "
        f"{task.num_classes} classes; {len(task.train_idx):,} / {len(task.val_idx):,} / {len(task.test_idx):,} nodes "
        f"to train / validate / test",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="glt-demo-") as work_dir:
        partition_dir = options.partition_dir or str(Path(work_dir, "partitions"))
        owner = torch.from_numpy(_partition(task, partition_dir, options).nodes[0].book.owners())
        seeds = {}
        for split in ("train", "val", "test"):
            index = getattr(task, f"{split}_idx")
            # The nodes that each partition owns: a trainer's own seeds need the least from its peers.
            seeds[split] = [index[owner[index] == part] for part in range(options.num_parts)]
        job = Job(options, partition_dir, work_dir, seeds, task.num_features, task.num_classes)
        samplers = f"{options.num_workers} sampling processes each" if options.mode == "worker" else "sampling in them"
        print(f"starting {options.num_parts} trainers, {samplers}", flush=True)
        mp.spawn(train, args=(job,), nprocs=options.num_parts)
        result: dict[str, Any] = json.loads(Path(work_dir, "result.json").read_text())
    print(summary(result, options.num_parts))
    return result


def _partition(task: NodeTask, partition_dir: str, options: Options) -> Partition:
    """Partitions in-edges, the direction in which PyG samples, or finds that it was done before; loads partition 0."""
    try:
        if not Path(partition_dir, "manifest.json").exists():
            _write_partitions(task, partition_dir, options)
    except (OSError, ValueError) as error:
        raise PartitionError(f"partition_dir {partition_dir} cannot be written: {error}") from error
    part = load_partition(partition_dir, 0)
    manifest = part.manifest
    found = (manifest.num_parts, manifest.num_nodes, manifest.num_edges, manifest.edge_dir)
    wanted = (options.num_parts, task.num_nodes, task.num_edges, "in")
    if found != wanted:
        text = f"(num_parts, num_nodes, num_edges, edge_dir) = {found}, expected {wanted}"
        raise _another_graph(partition_dir, text, "the options it was made with")
    if manifest.arguments != {"random_seed": options.seed}:
        raise PartitionError(
            f"partition_dir {partition_dir} was made with {manifest.arguments}, expected "
            f"{{'random_seed': {options.seed}}}; name an empty folder, or the seed it was made with"
        )
    _require_same_rows(task, partition_dir, part)
    print(manifest.summary(), flush=True)
    return part


def _write_partitions(task: NodeTask, partition_dir: str, options: Options) -> None:
    print(f"partitioning into {options.num_parts} at {partition_dir}", flush=True)
    start = time.perf_counter()
    RandomPartitioner(
        output_dir=partition_dir,
        num_parts=options.num_parts,
        num_nodes=task.num_nodes,
        edge_index=task.edge_index,
        node_feat=task.x,
        node_label=task.y,
        edge_assign_strategy="by_dst",
        random_seed=options.seed,
    ).partition()
    print(f"partitioned in {time.perf_counter() - start:.1f}s", flush=True)


def _require_same_rows(task: NodeTask, partition_dir: str, part: Partition) -> None:
    owned = part.nodes[0]
    rows = torch.linspace(0, max(len(owned.ids) - 1, 0), min(len(owned.ids), 1000)).long()
    nodes = torch.from_numpy(owned.ids)[rows]
    entry = part.manifest.node_types[0].feat
    if entry is not None and entry.packing is not None:
        raise _another_graph(partition_dir, f"features are stored as {entry.store_dtype}, the demo's as they are")
    for name, stored, given in (("features", owned.feat, task.x), ("labels", owned.label, task.y)):
        if stored is None or stored.shape[1:] != given.shape[1:]:
            shape = None if stored is None else list(stored.shape[1:])
            text = f"{name} of shape {shape} per node, expected {list(given.shape[1:])}"
            raise _another_graph(partition_dir, text)
        wanted = given[nodes]
        same = (torch.as_tensor(stored)[rows] == wanted) | (wanted != wanted)  # NaN is never equal
        if not same.all():
            node = int(nodes[(~same).reshape(len(nodes), -1).any(1).nonzero()[0, 0]])
            raise _another_graph(partition_dir, f"{name} of node {node} differ from those of {task.name}")
    counts = torch.bincount(task.edge_index[1], minlength=task.num_nodes)[nodes]
    if not torch.equal(torch.from_numpy(np.diff(part.edges[0].indptr))[rows], counts):
        raise _another_graph(partition_dir, f"nodes have other numbers of in-edges than in {task.name}")


def _another_graph(partition_dir: str, what: str, remedy: str = "the dataset it was made of") -> PartitionError:
    return PartitionError(
        f"partition_dir {partition_dir} holds another graph: {what}; name an empty folder, or {remedy}"
    )


def summary(result: dict[str, Any], num_trainers: int) -> str:
    """Returns the last lines of a run: accuracy, speed, and where the time of trainers and samplers went."""
    epochs, stats = result["epochs"], result["stats"]
    trainers_s = num_trainers * sum(epoch["epoch_s"] for epoch in epochs)
    compute_s = trainers_s - stats["wait_s"] - stats["collate_s"]
    trainer_rows = [
        ("waiting for batches", stats["wait_s"]),
        ("making Data of them", stats["collate_s"]),
        ("computing, meeting the others", compute_s),
    ]
    sampler_rows = [
        ("sampling", stats["sampling_s"]),
        ("waiting for other partitions", stats["remote_s"]),
        ("gathering features", stats["gathering_s"]),
        ("waiting for the trainer", stats["blocked_s"]),
    ]
    return "\n".join(
        [
            f"test accuracy {result['test_accuracy']:.4f}",
            f"median epoch {statistics.median(epoch['epoch_s'] for epoch in epochs):.2f}s, "
            f"{statistics.median(epoch['edges_per_s'] for epoch in epochs) / 1e6:.2f} M sampled edges/s",
            f"time of {num_trainers} trainers in training epochs:",
            *(f"  {name:<30}{seconds:8.2f}s {seconds / trainers_s:6.1%}" for name, seconds in trainer_rows),
            f"time of their samplers, summed over {stats['num_batches']:.0f} batches, several of which run at once:",
            *(f"  {name:<30}{seconds:8.2f}s" for name, seconds in sampler_rows),
            f"  {stats['remote_bytes'] / 1e6:.1f} MB came from other partitions",
        ]
    )
