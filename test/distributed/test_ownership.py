"""A partition answers for what it owns; asked for anything else, it names the owner and returns nobody's data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dist_world import World

from glt import _core
from glt.data import Feature, Topology
from glt.distributed import DistDataset


@pytest.fixture(params=[0, 1])
def dataset(request: pytest.FixtureRequest, world: Callable[..., World]) -> DistDataset:
    return DistDataset().load(world(2).path, request.param)


def _split(owner: np.ndarray, part: int) -> tuple[torch.Tensor, int]:
    """The ids that ``part`` owns, and one that it does not."""
    return torch.from_numpy(np.flatnonzero(owner == part)), int(np.flatnonzero(owner != part)[0])


@pytest.mark.parametrize("name", ["node_features", "node_labels", "edge_features"])
def test_rows_of_another_partition_are_refused(dataset: DistDataset, name: str) -> None:
    part = dataset.partition_idx
    book = (dataset.edge_books if name == "edge_features" else dataset.node_books)[0]
    assert book is not None
    table = getattr(dataset, name)
    mine, other = _split(book, part)
    assert len(table[mine]) == len(mine)
    with pytest.raises(IndexError, match=rf"ids\[1\] = {other} belongs to partition {1 - part}, not here"):
        table[torch.tensor([int(mine[0]), other])]


def test_rows_of_nodes_of_another_partition_are_refused(dataset: DistDataset) -> None:
    part = dataset.partition_idx
    mine, other = _split(dataset.node_books[0], part)
    csr = dataset.graph.csr
    assert _core.OneHop(csr, mine.numpy(), 3, False, 1, 0, with_edge=False).num_edges > 0
    with pytest.raises(
        IndexError, match=rf"\[1\] = {other} belongs to partition {1 - part}, not here \(partition {part}"
    ):
        _core.OneHop(csr, np.array([int(mine[0]), other]), 3, False, 1, 0, with_edge=False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32])
def test_a_topology_takes_books_of_every_width(dtype: torch.dtype) -> None:
    rows: dict[str, Any] = {
        "num_nodes": 3,
        "row_of": torch.tensor([0, 0, 1], dtype=torch.uint32),
        "owner": torch.tensor([1, 0, 1]).to(dtype),
        "part": 1,
    }
    topology = Topology.from_rows(torch.tensor([0, 1, 2]), torch.tensor([2, 1]), **rows)
    assert _core.OneHop(topology.csr, np.array([0, 2]), -1, False, 1, 0, with_edge=False).num_edges == 2
    with pytest.raises(IndexError, match=r"\[0\] = 1 belongs to partition 0, not here \(partition 1\)"):
        _core.OneHop(topology.csr, np.array([1]), -1, False, 1, 0, with_edge=False)
    with pytest.raises(ValueError, match="book has 2 elements: expected 3"):
        Topology.from_rows(torch.tensor([0, 1]), torch.tensor([2]), **(rows | {"owner": torch.zeros(2, dtype=dtype)}))


def test_a_table_without_owner_is_read_as_before() -> None:
    assert Feature(torch.tensor([7.0, 8.0]))[torch.tensor([1])].tolist() == [8.0]
