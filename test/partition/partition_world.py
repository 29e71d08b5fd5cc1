"""Small graphs with everything awkward in them, and what a partition directory of them says."""

import importlib.util
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from glt.data.schema import HOMOGENEOUS
from glt.errors import PartitionError
from glt.partition import FennelPartitioner, Manifest, MetisPartitioner, RandomPartitioner, load_partition

needs_metis = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="needs pymetis")
BY_ADJACENCY = [FennelPartitioner, pytest.param(MetisPartitioner, marks=needs_metis)]
PARTITIONERS = [RandomPartitioner, *BY_ADJACENCY]


def by_error(names, cases):
    """Parametrizes a test by ``names`` and ``error``; cases are listed by the error that they raise."""
    rows = [(*case, error) for error, several in cases.items() for case in several]
    return pytest.mark.parametrize((*names, "error"), rows)


def assert_damage_is_named(path, name, load):
    """A file whose last byte differs, and one that is not there, are refused by name; the file is gone then."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(PartitionError, match=f"{re.escape(name)} was altered or comes from another run"):
        load()
    path.unlink()
    with pytest.raises(PartitionError, match=f"{re.escape(name)} is missing"):
        load()


@dataclass
class World:
    """Node 5 is isolated, node 0 is a hub, there are self-loops and duplicate edges; features are ids."""

    num_nodes: int
    edge_index: np.ndarray
    node_feat: np.ndarray
    edge_feat: np.ndarray
    node_label: np.ndarray

    def arguments(self):
        return vars(self).copy()


def hetero_world(time_level="edge"):
    """Arguments of a partitioner. Authors have no features; venues no edges; nobody is a ghost; several relations join
    the same two types, one type cites itself, one relation has no edges; names are no file names."""
    generator = np.random.default_rng(0)
    num_nodes = {"paper": 23, "author": 11, "ven/ue": 3, "ghost": 0, "größe__x": 5}

    def edges(src, dst, num_edges):
        return generator.integers(0, [[num_nodes[src]], [num_nodes[dst]]], (2, num_edges))

    edge_index = {
        ("paper", "cites", "paper"): edges("paper", "paper", 120),
        ("author", "writes", "paper"): edges("author", "paper", 60),
        ("author", "reads", "paper"): edges("author", "paper", 31).astype(np.int32),
        ("paper", "in", "größe__x"): edges("paper", "größe__x", 40),
        ("paper", "to", "ven/ue"): np.zeros((2, 0), np.int64),
        ("ghost", "haunts", "author"): np.zeros((2, 0), np.int64),
    }
    cites, writes, _, within, _, haunts = edge_index
    weight = generator.random(120)
    weight[::5] = 0
    times = {
        None: {},
        "edge": {"edge_time": {writes: generator.integers(-3, 4, 60), haunts: np.zeros(0, np.int64)}},
        "node": {"node_time": {"paper": generator.integers(-9, 9, 23), "größe__x": np.array([2, 1, 2, 0, 1], np.int8)}},
    }
    return times[time_level] | {
        "num_nodes": num_nodes,
        "edge_index": edge_index,
        "node_feat": {"größe__x": np.arange(5.0), "paper": torch.arange(46).view(23, 2).bfloat16()},
        "node_label": {"paper": np.arange(23), "ghost": np.zeros((0, 2), np.int8)},
        "edge_feat": {writes: np.arange(60.0), within: np.arange(80).reshape(40, 2)},
        "edge_weight": {cites: weight, within: generator.random(40).astype(np.float32)},
        "node_attrs": {
            "paper": {"train_mask": np.arange(23) % 3 == 0, "größe/x": torch.arange(46).view(23, 1, 2).bfloat16()},
            "ghost": {"train_mask": np.zeros(0, bool)},
        },
        "edge_attrs": {
            writes: {"position": np.arange(60, dtype=np.uint8)},
            cites: {"x_": np.arange(240, dtype=np.float16).reshape(120, 2), "kind": np.arange(120) % 2 == 0},
            haunts: {"kind": np.zeros((0, 2))},
        },
    }


def load_all(root):
    return [load_partition(root, idx) for idx in range(Manifest.read(root).num_parts)]


def bits(value):
    """The exact contents of a table, comparable also where NaN or bfloat16 are not; shape ``[rows, bytes]``."""
    tensor = torch.as_tensor(value)
    row_bytes = tensor.itemsize * math.prod(tensor.shape[1:])
    if len(tensor) == 0:
        return np.empty((0, row_bytes), np.uint8)
    return tensor.contiguous().view(torch.uint8).reshape(len(tensor), row_bytes).numpy()


def assert_union_is_the_input(parts, num_nodes, edge_index, **given):
    """Puts the partitions together again, type by type, and compares with what the partitioner was given."""
    schema, edge_dir = parts[0].schema, parts[0].manifest.edge_dir
    if isinstance(num_nodes, Mapping):
        assert (schema.node_types, schema.edge_types) == (tuple(num_nodes), tuple(edge_index)) and schema.is_hetero
        counts, edges_of = list(num_nodes.values()), list(edge_index.values())
    else:
        assert schema == HOMOGENEOUS
        counts, edges_of = [num_nodes], [edge_index]

    def of_nodes(name):
        return schema.per_node_type(name, given.get(name))

    def of_edges(name):
        return schema.per_edge_type(name, given.get(name))

    def named(value, types):
        return [(value or {}).get(each) or {} for each in types] if schema.is_hetero else [value or {}]

    node_times = of_nodes("node_time")
    attrs = named(given.get("node_attrs"), schema.node_types)
    given_nodes = zip(counts, of_nodes("node_feat"), of_nodes("node_label"), node_times, attrs, strict=True)
    for at, tables in enumerate(given_nodes):
        _assert_nodes([part.nodes[at] for part in parts], *tables)
    attrs = named(given.get("edge_attrs"), schema.edge_types)
    tables = zip(of_edges("edge_feat"), of_edges("edge_weight"), of_edges("edge_time"), attrs, strict=True)
    for at, (feat, weight, time, named_tables) in enumerate(tables):
        expanded, neighbor = schema.ends(edge_dir)[at]
        row_ids, col_ids = edges_of[at] if edge_dir == "out" else edges_of[at][::-1]
        if node_times[neighbor] is not None:
            time = node_times[neighbor][col_ids]
        owned = [part.nodes[expanded].ids for part in parts]
        _assert_edges([part.edges[at] for part in parts], owned, row_ids, col_ids, feat, weight, time, named_tables)


def _assert_nodes(parts, num_nodes, feat, label, time, attrs):
    seen = np.zeros(num_nodes, np.int64)
    for idx, part in enumerate(parts):
        seen[part.ids] += 1
        np.testing.assert_array_equal(part.ids, np.flatnonzero(part.book.owners() == idx))
        np.testing.assert_array_equal(part.book.rows(part.ids), np.arange(part.ids.size))
        assert part.attrs.keys() == attrs.keys()
        named = [(part.attrs[name], attrs[name]) for name in attrs]
        for got, wanted in ((part.feat, feat), (part.label, label), *named):
            assert (got is None) == (wanted is None)
            if got is not None:
                assert torch.as_tensor(got).dtype == torch.as_tensor(wanted).dtype
                np.testing.assert_array_equal(bits(got), bits(wanted)[part.ids])
        assert (part.time is None) == (time is None)
        if part.time is not None:
            assert part.time.dtype == np.int64
            np.testing.assert_array_equal(part.time, time[part.ids])
    assert (seen == 1).all()


def _assert_edges(parts, owned_nodes, row_ids, col_ids, feat, weight, time, attrs):
    seen = np.zeros(row_ids.size, np.int64)
    for idx, (part, nodes) in enumerate(zip(parts, owned_nodes, strict=True)):
        seen[part.edge_ids] += 1
        assert part.indptr[0] == 0 and part.indptr[-1] == part.indices.size == part.edge_ids.size
        assert part.indptr.size == nodes.size + 1
        assert (part.by_time is None) == (time is None)
        assert (part.weight_sum is None) == (part.weight_guide is None) == (weight is None)
        for row, node in enumerate(nodes):
            at = slice(part.indptr[row], part.indptr[row + 1])
            # In the order of the input: neighbours of a node are the same list in every partition (law 4).
            wanted = np.flatnonzero(row_ids == node)
            np.testing.assert_array_equal(part.edge_ids[at], wanted)
            np.testing.assert_array_equal(part.indices[at], col_ids[wanted])
            if part.by_time is not None:
                later = wanted[np.argsort(time[wanted], kind="stable")]
                np.testing.assert_array_equal(part.by_time.edge_ids[at], later)
                np.testing.assert_array_equal(part.by_time.indices[at], col_ids[later])
                np.testing.assert_array_equal(part.by_time.time[at], time[later])
        assert (part.feat is None) == (feat is None) and part.attrs.keys() == attrs.keys()
        assert (part.book is None) == (feat is None and not attrs and part.id_map is None)
        if part.feat is not None or part.attrs:
            owned = np.flatnonzero(part.book.owners() == idx)
            np.testing.assert_array_equal(owned, np.sort(part.edge_ids))
            np.testing.assert_array_equal(part.book.rows(owned), np.arange(owned.size))
            named = [(part.attrs[name], attrs[name]) for name in attrs]
            for got, wanted in [*([] if feat is None else [(part.feat, feat)]), *named]:
                assert torch.as_tensor(got).dtype == torch.as_tensor(wanted).dtype
                np.testing.assert_array_equal(bits(got), bits(wanted)[owned])
    assert (seen == 1).all()
