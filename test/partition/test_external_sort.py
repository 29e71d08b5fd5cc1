"""Whatever passes through scratch files, and on however many threads: the bytes of an in-memory sort."""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest
from partition_world import assert_union_is_the_input, load_all

from glt import _core
from glt.partition import RandomPartitioner, load_partition
from glt.partition.format.book import Book
from glt.partition.format.files import scratch_file
from glt.partition.methods.writer import PartitionWriter, SortMemory, write_graph

NUM_NODES, NUM_EDGES, HUB_EDGES = 3000, 40_000, 15_000


@pytest.fixture(scope="module")
def graph():
    """A hub with more edges than a bucket of the smallest memory, and nodes without any around it."""
    rng = np.random.default_rng(0)
    edge_index = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    edge_index[0] //= 2
    edge_index[0, rng.permutation(NUM_EDGES)[:HUB_EDGES]] = 2500
    weight = rng.random(NUM_EDGES).astype(np.float32)
    weight[::7] = 0
    return {
        "num_nodes": NUM_NODES,
        "edge_index": edge_index,
        "edge_weight": weight,
        "edge_feat": np.arange(NUM_EDGES, dtype=np.int32),
    }


@pytest.fixture(params=["edge", "node", None])
def timed_graph(graph, request):
    rng = np.random.default_rng(1)
    time = {
        "edge": {"edge_time": rng.integers(-50, 50, NUM_EDGES).astype(np.int16)},  # many are equal
        "node": {"node_time": rng.integers(0, 2**40, NUM_NODES)},
        None: {},
    }
    return graph | time[request.param]


def run(root, graph, sort_memory_bytes, num_threads, num_parts=3, **options):
    partitioner = RandomPartitioner(root, num_parts, **graph, num_threads=num_threads, **options)
    partitioner.sort_memory_bytes = sort_memory_bytes  # below what users may ask for
    plans = [SortMemory.of(edges, NUM_NODES, sort_memory_bytes // num_threads) for edges in partitioner.graph.edges]
    manifest = partitioner.partition()
    return manifest, plans[0]


def test_bytes_depend_neither_on_memory_nor_on_threads(tmp_path, timed_graph):
    whole, plan = run(tmp_path / "whole", timed_graph, 1 << 30, 1)
    assert plan.scratch_bytes == 0
    assert_union_is_the_input(load_all(tmp_path / "whole"), **timed_graph)
    for num_threads in (1, 2, 5):
        manifest, plan = run(tmp_path / f"{num_threads}", timed_graph, 5, num_threads)
        assert plan.bucket_edges < HUB_EDGES < 3 * plan.bucket_edges or plan.bucket_edges * 2 < HUB_EDGES
        assert plan.scratch_bytes > 0 and NUM_EDGES / plan.bucket_edges > 4
        assert manifest == whole  # checksums of all files among it


def columns_of_tables(graph):
    """Weights and times that are columns of wider tables are read where they are; the hub has no weight."""
    table = np.stack([graph["edge_weight"], np.zeros(NUM_EDGES, np.float32)], axis=1)
    times = np.arange(3 * NUM_EDGES, dtype=np.int32).reshape(-1, 3)
    table[graph["edge_index"][0] == 2500, 0] = 0
    packed = graph | {"edge_weight": table[:, 0].copy(), "edge_time": times[:, 1].copy()}
    return graph | {"edge_weight": table[:, 0], "edge_time": times[:, 1]}, packed


def all_edges_in_one_row(_):
    edge_index = np.stack([np.zeros(NUM_EDGES, np.int64), np.arange(NUM_EDGES) % 7])
    given = {"num_nodes": 7, "edge_index": edge_index, "edge_time": np.arange(NUM_EDGES) % 11}
    return [given | {"edge_weight": np.ones(NUM_EDGES)}] * 2


def edges_sorted_by_row(graph):
    edge_index = graph["edge_index"]
    return [graph | {"edge_index": edge_index[:, np.argsort(edge_index[0], kind="stable")].astype(np.int32)}] * 2


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (columns_of_tables, {}),
        (all_edges_in_one_row, {}),
        (edges_sorted_by_row, {"num_parts": 40, "chunk_size": 7}),
        (lambda graph: [graph] * 2, {"chunk_size": 2**63 - 1}),  # larger than any table
    ],
)
def test_little_memory_writes_what_much_does(tmp_path, graph, make, options):
    first, second = make(graph)
    few, plan = run(tmp_path / "a", first, 2, 2, **options)
    assert plan.bucket_edges < NUM_EDGES
    assert few == run(tmp_path / "b", second, 1 << 30, 3, **options | {"chunk_size": 1000})[0]


def test_an_interrupt_ends_the_native_passes(tmp_path, graph):
    partitioner = RandomPartitioner(tmp_path / "parts", 2, **graph)
    writer_calls = []

    def interrupt(num_bytes):
        writer_calls.append(num_bytes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        indptr = np.empty(NUM_NODES + 1, np.int64)
        owner = np.zeros(NUM_NODES, np.uint8)
        position = np.arange(NUM_NODES, dtype=np.uint32)
        edges = partitioner.graph.edges[0]
        _core.count_rows(edges.row_ids, edges.col_ids, position, owner, owner, 1, indptr, progress=interrupt)
    assert len(writer_calls) == 1


def test_no_room_for_a_nameless_file_names_its_directory(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(OSError, match=f"{tmp_path} .a scratch file of 2 GB.") as raised,
        scratch_file(tmp_path, 2 * 10**9),
    ):
        pytest.fail("unreachable")
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("sort_memory_bytes", [1, 1 << 30])
def test_some_edges_of_many_keep_their_ids(tmp_path, graph, sort_memory_bytes):
    """As ranks sort the edges that they own, whose ids are beyond 32 bits in a graph of that size."""
    ids = np.arange(NUM_EDGES) * 2**20 + 7
    (edges,) = RandomPartitioner(tmp_path / "unused", 1, **graph).graph.edges
    some = replace(edges, edge_ids=ids, id_bound=int(ids[-1]) + 1)
    (tmp_path / "parts").mkdir()
    options = {"chunk_size": 1, "num_threads": 2, "thread_bytes": sort_memory_bytes, "relabel": False}
    writer = PartitionWriter(tmp_path / "parts", [1], lambda _: None, **options)
    book = Book.of(np.full(NUM_NODES, 1, np.uint8), 3)
    counts, _ = write_graph(writer, some, [book])
    assert counts == (0, NUM_EDGES, 0)
    order = np.argsort(edges.row_ids, kind="stable")
    directory = tmp_path / "parts" / "part1" / "graph" / "node__to__node"
    np.testing.assert_array_equal(np.load(directory / "edge_ids.npy"), ids[order])
    np.testing.assert_array_equal(np.load(directory / "indices.npy"), edges.col_ids[order])
    assert not (tmp_path / "parts" / "part0").exists()


def test_files_are_those_of_an_in_memory_sort(tmp_path, timed_graph):
    run(tmp_path / "parts", timed_graph, 1, 1)
    row_ids, col_ids = timed_graph["edge_index"]
    weight, edge_time = timed_graph["edge_weight"], timed_graph.get("edge_time")
    if "node_time" in timed_graph:
        edge_time = timed_graph["node_time"][col_ids]
    for idx in range(3):
        part = load_partition(tmp_path / "parts", idx)
        edges, ids = part.edges[0], part.nodes[0].ids
        row_of = np.full(NUM_NODES, -1)
        row_of[ids] = np.arange(ids.size)
        owned = np.flatnonzero(row_of[row_ids] >= 0)
        order = owned[np.argsort(row_of[row_ids[owned]], kind="stable")]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row_of[row_ids[owned]], minlength=ids.size))])
        np.testing.assert_array_equal(edges.indptr, indptr)
        np.testing.assert_array_equal(edges.edge_ids, order)
        np.testing.assert_array_equal(edges.indices, col_ids[order])
        weight_sum = np.empty(order.size, np.uint64)
        guide = np.empty(_core.weight_guide_size(ids.size, order.size), np.uint32)
        _core.build_weights(indptr, weight[order], weight_sum, guide)
        np.testing.assert_array_equal(edges.weight_sum, weight_sum)
        np.testing.assert_array_equal(edges.weight_guide, guide)
        assert (edges.by_time is None) == (edge_time is None)
        if edge_time is not None:
            by_time = np.lexsort([order, edge_time[order], row_of[row_ids[order]]])
            np.testing.assert_array_equal(edges.by_time.edge_ids, order[by_time])
            np.testing.assert_array_equal(edges.by_time.indices, col_ids[order[by_time]])
            np.testing.assert_array_equal(edges.by_time.time, edge_time[order[by_time]])
