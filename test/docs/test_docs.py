"""The documents name what is there."""

import re
from pathlib import Path

import pytest
import torch

import glt
from glt import _deadlines, errors
from glt.data.synthetic import synthetic_graph
from glt.errors import GltError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "::" in line]


def test_seconds_are_those_of_the_table():
    named = re.findall(r"(?<!\+ )`([A-Z_]+_S)` \(([\d.]+) s\)", PAGE) + [
        ("DEFAULT_RPC_S", seconds) for seconds in re.findall(r"`rpc_timeout` \(([\d.]+) s\)", PAGE)
    ]
    assert len(named) > 15
    assert {name: float(seconds) for name, seconds in named} == {name: getattr(_deadlines, name) for name, _ in named}
    sums = re.findall(r"((?:`[A-Z_]+_S` \+ )+`[A-Z_]+_S`): ([\d.]+) s", PAGE)
    assert sums
    for terms, seconds in sums:
        assert sum(getattr(_deadlines, name) for name in re.findall(r"[A-Z_]+_S", terms)) == float(seconds)


def test_every_exception_has_a_row():
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|")))
    ours = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, GltError)}
    assert len(ours) > 8 and ours - {"GltError"} <= set(named)


@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_tested(row):
    file, name = re.findall(r"`([\w/]+\.py)::(\w+)`", row)[0]
    assert f"def {name}(" in (ROOT / "test" / "distributed" / file).read_text(), row


def test_no_module_has_time_constants_of_its_own():
    """But those that are sent to other hosts and import no glt."""
    apart = {"_deadlines.py", "launch/keeper.py", "launch/check.py", "launch/agent.py"}
    found = []
    for path in (ROOT / "glt").rglob("*.py"):
        name = str(path.relative_to(ROOT / "glt"))
        for line in path.read_text().splitlines():
            if name not in apart and re.match(r"_?[A-Z][A-Z_]*_S\b(?<!BYTES_PER_S).*= *[\d.]+", line):
                found.append(f"{name}: {line}")
    assert not found


def test_each_deadline_is_used():
    used = "".join(path.read_text() for path in (ROOT / "glt").rglob("*.py"))
    names = [name for name in vars(_deadlines) if name.endswith("_S")]
    assert len(names) > 30 and [name for name in names if f"deadlines.{name}" not in used] == []


def test_files_of_the_design_page_exist():
    text = (ROOT / "docs/design.md").read_text()
    named = {f"glt/{name}" for name in re.findall(r"`([a-z_/]+\.py)`", text)}
    named |= set(re.findall(r"`(csrc/[a-z_/]+\.[a-z]+)`", text))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


TEXT = (ROOT / "docs" / "moving" / "dgl.md").read_text()
NAMES = [
    [cell.strip() for cell in line.strip("| ").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")
]
CODE = re.findall(r"^```python\n# glt\n(.*?)^```", TEXT, re.M | re.S)


def test_every_name_of_dgl_has_one_of_glt():
    assert NAMES[0][:2] == ["in DGL", "in glt"] and len(NAMES) > 20
    for dgls, ours, *_ in NAMES[1:]:
        assert dgls and re.search(r"`(glt|examples)[ ./]", ours), f"{dgls}: {ours}"
    for name in (
        "partition_graph", "initialize", "DistGraph", "ndata", "edata", "find_edges", "in_degrees", "out_degrees",
        "sample_neighbors", "edge_subgraph", "load_partition_book", "DistTensor", "DistEmbedding", "SparseAdagrad",
        "SparseAdam", "node_split", "edge_split", "NodeDataLoader", "EdgeDataLoader", "DistDataLoader", "UDF", "launch",
        "mp.spawn", "number_of_nodes", "part_config", "get_num_clients", "to_block", "MultiLayerNeighborSampler",
        "copy_files", "NID", "EID", "dgl.contrib.sampling.NeighborSampler", "NodeFlow",
    ):  # fmt: skip
        assert any(name in row[0] for row in NAMES), f"DGL's {name} is not in the table"


def test_the_code_runs_one_block_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(CODE) >= 5 and "partition_graph" in CODE[0]
    task = synthetic_graph(400, num_classes=4)
    data = task.to_pyg()
    data.w = torch.rand(task.edge_index.size(1))
    names = {"data": data, "glt": glt, "torch": torch}
    try:
        for block in CODE:
            exec(block, names)
    finally:
        glt.distributed.finalize()
    assert sorted(names["nmap"][names["train_nid"]].tolist()) == task.train_idx.sort().values.tolist()
    assert names["num_labels"] == 4 and 0 <= names["accuracy"] <= 1
    assert (names["inputs"].shape[1], names["frontier"].edge_index.shape) == (64, (2, 80))
