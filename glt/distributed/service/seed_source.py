"""Seeds that a server has and its clients name: splits, files, all edges."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import as_rows, load_npy, load_saved
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.local_partition import LocalPartition

SPLITS = {
    "train": ("train_mask",), "valid": ("valid_mask", "val_mask"), "val": ("val_mask", "valid_mask"),
    "test": ("test_mask",),
}  # fmt: skip


class SeedSource:
    """Looks up seeds in the partitions that this server reads, and in files below one directory.

    Args:
        dataset: The partition.
        seed_dir: Where files with seeds are; None: clients may name none.
    """

    def __init__(self, dataset: DistDataset, seed_dir: str | None) -> None:
        self.dataset = dataset
        self.seed_dir = None if seed_dir is None else Path(seed_dir).resolve()
        self._lock = threading.Lock()
        self._parts: dict[int, LocalPartition] = {dataset.partition_idx: dataset.own}

    def map(self, other_dirs: Mapping[int, str]) -> None:
        """Maps the other partitions that are read here."""
        with self._lock:
            for part, path in other_dirs.items():
                if part not in self._parts:
                    self._parts[part] = self.dataset.map_other(path, part)

    def _part(self, part: int) -> LocalPartition:
        with self._lock:
            if part not in self._parts:
                raise ValueError(f"partition {part} is not read here: these are, {sorted(self._parts)}")
            return self._parts[part]

    def of_split(self, split: str, node_type: int, parts: list[int]) -> Tensor:
        """Ids of the nodes of a split that these partitions own, ascending in each, ``[n]`` int64."""
        found = [self._owned_of_split(split, node_type, self._part(part)) for part in parts]
        return torch.from_numpy(np.concatenate(found))

    def _owned_of_split(self, split: str, node_type: int, part: LocalPartition) -> np.ndarray:
        name = self.dataset.schema.node_types[node_type]
        tables = part.node_tables[node_type]
        masks = [mask for mask in SPLITS[split] if mask in tables]
        if not masks:
            raise ValueError(
                f"input_nodes = {split!r}: the partitions have no {' or '.join(map(repr, SPLITS[split]))} of "
                f"{name!r} nodes; partition with node_attrs={{'{SPLITS[split][0]}': ...}}, or give ids. Named tables "
                f"are {sorted(self.dataset.manifest.node_types[node_type].attrs)}"
            )
        mask = tables[masks[0]].tensor
        if mask.dtype != torch.bool or mask.dim() != 1:
            raise ValueError(f"{masks[0]} is {mask.dtype} {list(mask.shape)}: a split needs one bool per node")
        return np.asarray(part.nodes[node_type].owned, np.int64)[mask.numpy()]

    def of_file(self, path: str) -> Tensor:
        """The tensor in a ``.pt`` or ``.npy`` file below ``seed_dir``; nothing in it is executed."""
        if self.seed_dir is None:
            raise ValueError(
                f"input_nodes = {path!r} names a file, and this server reads none: start it with seed_dir, the "
                "directory that clients may name files in"
            )
        full = (self.seed_dir / path).resolve()
        if not full.is_relative_to(self.seed_dir):
            raise ValueError(f"input_nodes = {path!r} is outside of the server's seed_dir, {self.seed_dir}")
        if not full.is_file():
            raise ValueError(f"input_nodes = {path!r}: there is no such file in the server's seed_dir, {self.seed_dir}")
        if full.suffix != ".npy":
            found: Any = load_saved(full, f"input_nodes = {path!r}", "a tensor")
        else:
            found = as_rows(load_npy(full, f"input_nodes = {path!r}"), f"input_nodes = {path!r}")
        if not isinstance(found, Tensor):
            raise ValueError(f"input_nodes = {path!r} holds a {type(found).__name__}: expected a tensor")
        return found

    def all_edges(self, edge_type: int, part: int) -> tuple[Tensor, Tensor]:
        """All edges of a type that a partition holds: see :meth:`LocalPartition.all_edges`."""
        return self._part(part).all_edges(edge_type)
