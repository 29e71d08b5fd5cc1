"""Partitions slices of a graph on the ranks of a cluster."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from glt.partition import AssignedPartitioner, FrequencyPartitioner, RandomPartitioner, partition_distributed
from glt.partition.format.load import load_id_map

PARTITIONERS = {"random": RandomPartitioner, "assigned": AssignedPartitioner, "frequency": FrequencyPartitioner}
PER_NODE = ("node_feat", "node_label", "node_time", "node_attrs", "owners", "balance_ntypes", "hotness", "probs")
PER_EDGE = ("edge_index", "edge_feat", "edge_weight", "edge_time", "edge_attrs")


def join(trainer, timeout_s=60.0):
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(trainer.port)}
    dist.init_process_group(
        "gloo", rank=trainer.rank, world_size=trainer.world_size, timeout=timedelta(seconds=timeout_s)
    )


def slice_of(arguments, rank, world_size):
    """What rank has of the arguments of a partitioner; slices are uneven, and some are empty."""

    def cut(name, value, key=None):
        if isinstance(value, Mapping):
            is_named = name.endswith("attrs") and (key is not None or not isinstance(arguments["num_nodes"], Mapping))
            return {each: cut(name, value[each], key if is_named else each) for each in value}
        if isinstance(value, list):
            return [cut(name, each, key) for each in value]
        if isinstance(value, bool):
            return value
        size = value.shape[1] if name == "edge_index" else len(value)
        # All tables of a type are cut at the same rows; those of some types are rank 0's alone.
        squeeze = 1 if key is None else 1 + len(str(key)) % 3
        bounds = [size * (at * at) // (world_size * world_size) // squeeze for at in range(world_size)] + [size]
        mine = slice(bounds[rank], bounds[rank + 1])
        return value[:, mine] if name == "edge_index" else value[mine]

    return {
        name: cut(name, value) if name in PER_NODE + PER_EDGE and value is not None else value
        for name, value in arguments.items()
    }


Job = tuple[str, str, int, dict[str, Any]]  # partitioner, directory (with {rank} in it), ranks, arguments


def run_jobs(trainer, root, jobs):
    """Runs jobs one after the other; returns the run id of each that this rank took part in."""
    join(trainer)
    groups = {size: dist.new_group(list(range(size))) for size in (1, 2)}
    run_ids = []
    for kind, name, world_size, arguments in jobs:
        run_ids.append(None)
        if trainer.rank < world_size:
            given = slice_of(arguments, trainer.rank, world_size)
            target, group = root / name.format(rank=trainer.rank), groups.get(world_size)
            result = partition_distributed(PARTITIONERS[kind], target, group=group, **given)
            manifest, *maps = result if given.get("return_mapping") else (result,)
            for ids in maps:
                by_type = ids if isinstance(ids, Mapping) else {None: ids}
                for type_, original in by_type.items():
                    if type_ is None:
                        type_ = "node" if ids is maps[0] else ("node", "to", "node")
                    assert original.tolist() == load_id_map(target, type_).original.tolist(), (name, type_)
            run_ids[-1] = manifest.run_id
    dist.destroy_process_group()
    return run_ids


def files_under(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def random_graph(num_nodes, num_edges):
    rng = np.random.default_rng(0)
    return {
        "num_nodes": num_nodes,
        "edge_index": rng.integers(0, num_nodes, (2, num_edges)),
        "node_feat": rng.random((num_nodes, 3)).astype(np.float32),
    }
