"""Tensors that move between a partitioner's constructor and its work are refused: their old memory is gone."""

import copy
import pickle
import re
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric import EdgeIndex

from glt.partition import AssignedPartitioner, FrequencyPartitioner, RandomPartitioner, load_partition

N, E = 30, 90


def tables() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "edge_index": torch.randint(N, (2, E), generator=generator),
        "node_feat": torch.rand(N, 4, generator=generator),
        "edge_feat": torch.rand(E, 2),
        "node_label": torch.arange(N),
        "edge_weight": torch.rand(E),
        "edge_time": torch.arange(E),
    }


@pytest.mark.parametrize("name", tables())
def test_of_the_graph(tmp_path: Path, name: str) -> None:
    given = tables()
    made = RandomPartitioner(tmp_path / "parts", 2, N, **given)
    given[name].share_memory_()
    with pytest.raises(RuntimeError, match=rf"{name} has moved.*share_memory_\(\).*{name}.clone\(\)"):
        made.partition()
    assert not (tmp_path / "parts").exists()
    RandomPartitioner(tmp_path / "parts", 2, N, **given).partition()  # made after that, of memory that stays
    assert len(load_partition(tmp_path / "parts", 0).nodes[0].ids) == N // 2


@pytest.mark.parametrize(
    ("named", "where"),
    [("node_attrs", "mask"), ("edge_attrs", "mask"), ("probs", 1), ("owners", None), ("node_time", None)],
)
def test_in_dicts_lists_and_what_one_partitioner_alone_has(tmp_path: Path, named: str, where: Any) -> None:
    graph = {key: value for key, value in tables().items() if key == "edge_index"}
    tensor = torch.rand(N if named != "edge_attrs" else E)
    if named == "probs":
        made: Any = FrequencyPartitioner(tmp_path / "parts", 2, N, probs=[torch.rand(N), tensor], **graph)
    elif named == "owners":
        tensor = torch.zeros(N, dtype=torch.uint8)
        made = AssignedPartitioner(tmp_path / "parts", 2, N, owners=tensor, **graph)
    elif named == "node_time":
        tensor = torch.arange(N)
        made = RandomPartitioner(tmp_path / "parts", 2, N, node_time=tensor, **graph)
    else:
        made = RandomPartitioner(tmp_path / "parts", 2, N, **graph, **{named: {where: tensor}})
    tensor.share_memory_()
    if named == "owners":
        with pytest.raises(RuntimeError, match="owners has moved"):
            made.books()
    name = f"{named}[{where!r}]" if isinstance(where, str) else named
    with pytest.raises(RuntimeError, match=re.escape(name) + " has moved"):
        made.partition()


def test_what_was_copied_may_move(tmp_path: Path) -> None:
    """Nothing of these is read any more when they move, nor is it kept."""
    pairs, owners, weight = torch.arange(2 * N).view(N, 2) % N, torch.zeros(N, dtype=torch.int64), torch.ones(N).half()
    made = AssignedPartitioner(tmp_path / "parts", 1, N, pairs.t(), owners=owners, edge_weight=weight)
    for tensor in (pairs, owners, weight):
        tensor.share_memory_()
    made.partition()


def test_copies_of_a_partitioner_have_memory_of_their_own(tmp_path: Path) -> None:
    made = RandomPartitioner(tmp_path / "parts", 2, N, **tables())
    copies = copy.deepcopy(made), pickle.loads(ForkingPickler.dumps(made))
    for at, each in enumerate((made, *copies)):
        each.output_dir = tmp_path / str(at)
        each.partition()


def test_edges_of_a_class_of_pygs(tmp_path: Path) -> None:
    ends = torch.arange(2 * N).view(2, N) % N
    made = RandomPartitioner(tmp_path / "parts", 2, N, EdgeIndex(ends))
    ends.share_memory_()
    with pytest.raises(RuntimeError, match="edge_index has moved"):
        made.partition()
