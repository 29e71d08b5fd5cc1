"""What decides on the nodes of HGT sampling, wherever rows are read; sampling processes do without torch_geometric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import require_in_range
from glt.data.schema import Schema
from glt.sampler.config import MAX_HOPS

MOST_NEIGHBORS = 50  # that a node gives to, along each edge type: drawn, of nodes with more, as in PyG


def samples_per_type(num_samples: Any, schema: Schema) -> list[list[int]]:
    """Returns how many nodes of each type each iteration draws, in the schema's order, given a list for all types, or a
    dict by node type. Raises TypeError or ValueError, naming what does not fit."""
    by_type = num_samples if isinstance(num_samples, Mapping) else dict.fromkeys(schema.node_types, num_samples)
    if {*by_type} != {*schema.node_types}:
        raise ValueError(
            f"num_samples names node types {list(by_type)}: expected a list for each of {list(schema.node_types)}"
        )
    for name, counts in by_type.items():
        what = f"num_samples[{name!r}]" if isinstance(num_samples, Mapping) else "num_samples"
        if isinstance(counts, str) or not isinstance(counts, Sequence):
            raise TypeError(f"{what} = {counts!r}: expected a list with one count per iteration, such as [512, 512]")
        if len(counts) > MAX_HOPS:
            raise ValueError(f"{what} has {len(counts)} iterations: expected at most {MAX_HOPS}")
        for iteration, each in enumerate(counts):
            if isinstance(each, bool) or not hasattr(each, "__index__") or not 0 <= each < 2**31:
                raise ValueError(f"{what}[{iteration}] = {each!r}: expected an integer, 0 to 2^31 - 1")
    lengths = {len(counts): name for name, counts in by_type.items()}
    if len(lengths) > 1:
        told = " and ".join(f"{length} of {name!r}" for length, name in lengths.items())
        raise ValueError(f"num_samples: expected as many iterations of each node type, but there are {told}")
    return [[int(each) for each in by_type[name]] for name in schema.node_types]


def hgt_nodes(
    seeds: Sequence[tuple[int, Tensor]],
    num_nodes: Sequence[int],
    ends: Sequence[tuple[int, int]],
    num_samples: Sequence[Sequence[int]],
    batch_key: int,
) -> _core.HgtNodes:
    """The nodes of a batch around seeds, which the caller answers for: see ``csrc/core/hgt.h``."""
    of_type: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in num_nodes]
    for t, ids in seeds:
        require_in_range("seeds", ids, num_nodes[t])
        of_type[t].append(ids.numpy())
    return _core.HgtNodes(num_nodes, ends, [np.concatenate(each) for each in of_type], num_samples, batch_key)


def drawn_nodes(nodes: _core.HgtNodes, num_types: int) -> list[tuple[int, Tensor]]:
    return [(t, torch.from_numpy(nodes.drawn(t))) for t in range(num_types)]
