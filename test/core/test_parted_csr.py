"""A graph in partitions that are all here gives the batches of the whole, bit for bit."""

import numpy as np
import pytest
from typed_world import DENSE, HASHED, assert_same, csr_of, native_exclusions, random_world, result

from glt import _core


def parts_of(edges, num_centers, num_neighbors, num_parts, rng, ranges):
    """The partitions of one edge type, each with the rows of the nodes that it owns; some own nothing."""
    if ranges:
        offset = np.concatenate([[0], np.sort(rng.integers(0, num_centers + 1, num_parts - 1)), [num_centers]])
        owner, book = np.repeat(np.arange(num_parts), np.diff(offset)), _core.Book.of_ranges(offset)
        row_of = np.arange(num_centers) - offset[owner]
    else:
        owner = rng.integers(0, num_parts, num_centers)
        book, row_of = _core.Book(owner.astype(np.uint8), num_parts), np.zeros(num_centers, np.int64)
        for p in range(num_parts):
            row_of[owner == p] = np.arange((owner == p).sum())
    parts = []
    for p in range(num_parts):
        mine, num_rows = np.flatnonzero(owner[edges.center] == p), int((owner == p).sum())
        maps = {} if ranges else {"row_of": row_of.astype(np.uint32)}
        rows = row_of[edges.center[mine]]
        parts.append(
            csr_of(edges, num_rows, num_neighbors, mine, rows, num_nodes=num_centers, book=book, part=p, **maps)
        )
    return parts


def parted(world, num_parts, rng, ranges):
    return [
        csr and parts_of(e, world.num_nodes[e.expanded], world.num_nodes[e.found], num_parts, rng, ranges)
        for e, csr in zip(world.edges, world.csrs, strict=True)
    ]


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("kind", ["plain", "timed", "weighted"])
@pytest.mark.parametrize("large", [False, True])
def test_batches_are_those_of_the_whole_graph(kind, ranges, large):
    size = {"largest": 400, "edges": 4000} if large else {}
    for seed in range(12 if large else 60):
        rng = np.random.default_rng(seed)
        timed, weighted = kind == "timed", kind == "weighted"
        world = random_world(seed, timed=timed, weighted=weighted, **size)
        graphs = parted(world, int(rng.choice([1, 2, 3, 5, 40])), rng, ranges)
        seeds = world.seeds(rng, most=120 if large else 8)
        with_edge, disjoint = bool(rng.integers(2)), timed or bool(rng.integers(2))
        num_trees = sum(len(nodes) for _, nodes in seeds)
        time = rng.integers(0, 20, num_trees) if timed else None
        replace = bool(rng.integers(2))
        hops = [[int(k) for k in rng.choice([0, 1, 2, 5, *([] if replace else [-1])], 2)] for _ in world.edges]
        options = {
            "replace": replace, "batch_key": seed, "last": timed and bool(rng.integers(2)),
            "exclusions": native_exclusions(world.exclusions(rng)) if rng.integers(2) else None,
        }  # fmt: skip
        for limit in (DENSE, HASHED):
            batch, got = world.batch(limit), []
            for csrs, num_threads in ((world.csrs, 1), (graphs, 1), (graphs, 3)):
                batch.start(seeds, with_edge, disjoint, time)
                batch.sample(csrs, hops, num_threads=num_threads, **options)
                got.append(result(batch, world, with_edge, disjoint))
            assert_same(got[1], got[0])
            assert_same(got[2], got[0])


@pytest.mark.parametrize("ranges", [False, True])
def test_induced_edges_are_those_of_the_whole_graph(ranges):
    for seed in range(40):
        rng, world = np.random.default_rng(seed), random_world(seed)
        graphs, seeds = parted(world, 3, rng, ranges), world.seeds(rng)
        batch, got = world.batch(), []
        for csrs, num_threads in ((world.csrs, 1), (graphs, 1), (graphs, 2)):
            batch.start(seeds)
            batch.sample(csrs, [[2, 1]] * len(world.edges), replace=False, batch_key=seed)
            batch.induce(csrs, num_threads)
            got.append(result(batch, world)[2:5])
        assert_same(got[1], got[0])
        assert_same(got[2], got[0])


def two_parts(num_neighbors=4):
    book = _core.Book(np.array([0, 1, 0, 1], np.uint8), 2)
    row_of = np.array([0, 0, 1, 1], np.uint32)
    indptr, indices, edge_ids = np.array([0, 1, 2]), np.array([0, 1]), np.array([0, 1])
    return [
        _core.Csr(
            indptr, indices, edge_ids, row_of, 4, num_neighbors, book=book, part=part
        )
        for part in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("csrs", "error"),
    [
        (two_parts()[::-1], r"csr 0 of 2 of a graph is that of partition 1 of 2"),
        (two_parts() + two_parts()[:1], r"csr 0 of 3 of a graph is that of partition 0 of 2"),
        ([two_parts()[0], None], r"None is no partition of a graph"),
        ([two_parts()[0], two_parts(5)[1]], r"csr 1 of a graph has 4 nodes with 5 possible neighbours"),
        ([], r"a graph of no partitions"),
        ([_core.Csr(np.array([0, 0]), np.zeros(0, np.int64))] * 2, r"csr 0 of 2 .* partition 0 of 1: expected all"),
    ],
    ids=["order", "too many", "none", "sizes", "empty", "whole"],
)
def test_what_are_not_the_partitions_of_a_graph_is_refused(csrs, error):
    batch = _core.Batch([4], [(0, 0)])
    batch.start([(0, np.array([1, 2]))])
    with pytest.raises(ValueError, match=error):
        batch.sample([csrs], [[2]], replace=False, batch_key=0)


def test_rows_of_one_partition_alone_refuse_the_others_nodes():
    batch = _core.Batch([4], [(0, 0)])
    batch.start([(0, np.array([1]))])
    with pytest.raises(IndexError, match=r"frontier\[0\] = 1 belongs to partition 1"):
        batch.sample([two_parts()[:1]], [[2]], replace=False, batch_key=0)


def test_copies_of_a_book_that_differ_are_noticed():
    """Node 2 is the first partition's by its copy, and the second's by the other."""
    csrs = []
    for part, owners in enumerate(([0, 1, 0, 1], [0, 1, 1, 0])):
        rows = {"row_of": np.array([0, 0, 1, 1], np.uint32), "num_nodes": 4, "num_neighbor_nodes": 4, "part": part}
        book = _core.Book(np.array(owners, np.uint8), 2)
        csrs.append(_core.Csr(np.array([0, 1, 2]), np.array([0, 1]), np.array([0, 1]), book=book, **rows))
    batch = _core.Batch([4], [(0, 0)])
    batch.start([(0, np.array([2, 3]))])
    with pytest.raises(IndexError, match=r"= 3 belongs to partition 0, not here \(partition 1\)"):
        batch.sample([csrs], [[2]], replace=False, batch_key=0)


def test_columns_that_differ_between_partitions_are_refused():
    whole = two_parts()
    rows = {"row_of": np.array([0, 0, 1, 1], np.uint32), "num_nodes": 4, "num_neighbor_nodes": 4, "part": 1}
    book = _core.Book(np.array([0, 1, 0, 1], np.uint8), 2)
    plain = (np.array([0, 1, 2]), np.array([0, 1]))
    timed = (*plain, np.array([0, 1]))
    batch = _core.Batch([4], [(0, 0)])
    for other in (_core.Csr(*plain, book=book, **rows), _core.Csr(*timed, book=book, time=np.array([0, 1]), **rows)):
        batch.start([(0, np.array([2, 3]))])
        with pytest.raises(ValueError, match="csr 1 of a graph lacks edge ids, or has weights or times otherwise"):
            batch.sample([[whole[0], other]], [[2]], replace=False, batch_key=0)


def test_damaged_owners_are_named():
    book = _core.Book(np.array([0, 7, 0, 1], np.uint8), 2)
    rows = {"row_of": np.array([0, 0, 1, 1], np.uint32), "num_nodes": 4, "num_neighbor_nodes": 4, "book": book}
    edges = np.array([0, 1, 2]), np.array([0, 1]), np.array([0, 1])
    csrs = [_core.Csr(*edges, part=part, **rows) for part in (0, 1)]
    batch = _core.Batch([4], [(0, 0)])
    batch.start([(0, np.array([2, 1]))])
    with pytest.raises(IndexError, match="node 1 is owned by partition 7 of 2: the partition book is damaged"):
        batch.sample([csrs], [[2]], replace=False, batch_key=0)
