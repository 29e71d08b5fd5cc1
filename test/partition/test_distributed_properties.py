"""Any partitioner, any hotness, any caches, any ranks with any slices: what one machine writes."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from distributed_run import PARTITIONERS, files_under
from hypothesis import given, settings
from hypothesis import strategies as st
from local_exchange import LocalExchange, in_ranks, use_threads

from glt.errors import PartitionError, RemoteError
from glt.partition import (
    AssignedPartitioner,
    FennelPartitioner,
    FrequencyPartitioner,
    Manifest,
    RandomPartitioner,
    partition_distributed,
)
from glt.partition.methods.hotness import NodeHotness
from glt.partition.methods.partitioners import assign_by_hotness
from glt.partition.sharded.exchange import SlicedHotness


def cut(value, bounds, rank):
    """The slice of a rank; of ``edge_index``, int64 of two dimensions, columns."""
    if isinstance(value, list):
        return [cut(each, bounds, rank) for each in value]
    mine = slice(bounds[rank], bounds[rank + 1])
    return value[:, mine] if value.ndim == 2 and value.dtype == np.int64 else value[mine]


@st.composite
def runs(draw):
    kind = draw(st.sampled_from(sorted(PARTITIONERS)))
    num_nodes, num_parts = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    world_size, num_edges = draw(st.integers(1, 4)), draw(st.integers(0, 120))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    hot = [np.round(rng.random(num_nodes) ** 4, 2).astype(dtype) for _ in range(num_parts)]
    per_node = {"node_feat": rng.random((2, num_nodes)).T} if draw(st.booleans()) else {}
    per_node |= {"node_label": np.arange(num_nodes)} if draw(st.booleans()) else {}
    per_node |= {"node_time": rng.integers(0, 9, num_nodes)} if draw(st.booleans()) else {}
    per_edge = {"edge_index": rng.integers(0, num_nodes, (2, num_edges))}
    per_edge |= {"edge_feat": np.arange(num_edges, dtype=np.int16)} if draw(st.booleans()) else {}
    per_edge |= {"edge_weight": rng.random(num_edges)} if draw(st.booleans()) else {}
    owners = {"owners": rng.integers(0, num_parts, num_nodes)} if kind == "assigned" else {}
    name = "probs" if kind == "frequency" else "hotness"
    hotness = {name: draw(st.sampled_from([hot, hot[0]]))}
    if kind != "frequency" and draw(st.booleans()):
        hotness = {}
    plain = {
        "num_nodes": num_nodes,
        "num_parts": num_parts,
        "relabel": draw(st.booleans()),
        "edge_assign_strategy": draw(st.sampled_from(["by_src", "by_dst"])),
    }
    if hotness and "node_feat" in per_node:  # a row has 24 to 40 bytes
        plain["cache_ratio"] = draw(st.sampled_from([0, 0.1, 1]))
        plain["cache_memory_budget"] = draw(st.just(0) | st.integers(40, 300))

    def bounds(size):
        inner = sorted(draw(st.lists(st.integers(0, size), min_size=world_size - 1, max_size=world_size - 1)))
        return np.array([0, *inner, size])

    return {
        "kind": kind,
        "world_size": world_size,
        "round_bytes": draw(st.sampled_from([1, 100, 1 << 20])),
        "plain": plain,
        "sliced": [
            (per_node, bounds(num_nodes)),
            (per_edge, bounds(num_edges)),
            (owners, bounds(num_nodes)),
            (hotness, bounds(num_nodes)),
        ],
    }


@settings(max_examples=20, deadline=None, derandomize=True)
@given(runs())
def test_the_bytes_of_one_machine(drawn):
    partitioner, plain = PARTITIONERS[drawn["kind"]], drawn["plain"]
    whole = {name: value for tables, _ in drawn["sliced"] for name, value in tables.items()}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        use_threads(patch)
        root = Path(directory)

        def rank_of(exchange):
            mine = {
                name: cut(value, bounds, exchange.rank)
                for tables, bounds in drawn["sliced"]
                for name, value in tables.items()
            }
            options = {"round_bytes": drawn["round_bytes"], "num_threads": 1, "group": exchange}
            return partition_distributed(partitioner, root / "ranks", **plain, **mine, **options)

        wanted = partitioner(root / "one", **plain, **whole, num_threads=1).partition()
        assert in_ranks(drawn["world_size"], rank_of) == [wanted] * drawn["world_size"]
        found, expected = files_under(root / "ranks"), files_under(root / "one")
        assert found.keys() == expected.keys()
        assert [path for path in expected if found[path] != expected[path]] == []


def test_many_nodes_are_placed_by_the_same_sample():
    rng = np.random.default_rng(1)
    hot = [rng.random(200_000).astype(np.float32) ** 5 for _ in range(4)]
    bounds, nodes = np.array([0, 0, 150_000, 200_000]), np.arange(0, 200_000, 1)

    def rank_of(exchange):
        mine = tuple(cut(hot, bounds, exchange.rank))
        return assign_by_hotness(SlicedHotness(exchange, mine, False, np.diff(bounds)), nodes, 4, 3, 0)

    wanted = assign_by_hotness(NodeHotness(hot), nodes, 4, 3, 0)
    for found in in_ranks(3, rank_of):
        np.testing.assert_array_equal(found, wanted)


SLICE = {"num_parts": 2, "num_nodes": 10, "edge_index": np.zeros((2, 3), np.int64), "node_feat": np.ones((5, 1))}
FREQUENCY = {"partitioner": FrequencyPartitioner, "probs": [np.ones(5)] * 2}


def refused_by_two_ranks(tmp_path, monkeypatch, words, *slices):
    use_threads(monkeypatch)

    def rank_of(exchange):
        given = {"partitioner": RandomPartitioner} | SLICE | slices[exchange.rank]
        return partition_distributed(output_dir=tmp_path / "parts", **given, group=exchange)

    for error in in_ranks(2, rank_of):
        with pytest.raises(Exception, match=words):
            raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"partitioner": FrequencyPartitioner, "probs": None}, "probs is None: expected a list of one array"),
        (
            {"partitioner": FrequencyPartitioner},
            "probs is missing: FrequencyPartitioner needs it, a slice of it on each",
        ),
        (
            {"partitioner": AssignedPartitioner},
            "owners is missing: AssignedPartitioner needs it, a slice of it on each",
        ),
        ({"cache_memory_budget": 15, "hotness": np.ones(5)}, "no row fits .* at least 16 bytes"),
        ({"cache_ratio": 0.5, "hotness": np.ones(5), "node_feat": None}, "cache_ratio = 0.5: there is nothing to"),
        (
            {"balance_ntypes": np.zeros(4, int)},
            r"balance_ntypes has \[4, 4\] elements on .* num_nodes = 10, each",
        ),
        ({"edge_index": np.full((2, 3), 58)}, r"in the slice of rank [01]: edge_index\[0\]\[0\] = 58"),
        ({"halo": 2}, "RandomPartitioner has no argument halo"),
        (
            {"partitioner": FennelPartitioner},
            r"needs the whole graph, .* owners = FennelPartitioner\(...\).books\(\)\[0\].owner, and pass Assigned",
        ),
        ({"return_mapping": True}, "return_mapping = True: expected relabel=True too"),
    ],
)
def test_slices_that_do_not_fit_on_all_ranks(tmp_path, monkeypatch, changed, words):
    refused_by_two_ranks(tmp_path, monkeypatch, words, changed, changed)


FLOATS = r"node_feat differs between ranks: rank 0 has \"float64 \['\*', 1\]\", rank 1 has "


@pytest.mark.parametrize(
    ("common", "changed", "words"),
    [
        (FREQUENCY, {"probs": [np.ones(5), np.ones(4)]}, r"probs\[1\] has shape \[4\]: expected one number per node"),
        (FREQUENCY, {"probs": [np.ones(4)] * 2}, r"probs has \[5, 4\] numbers on .*: expected num_nodes = 10"),
        (FREQUENCY, {"probs": [np.ones(5)] * 3}, "probs differs between ranks: rank 0 has"),
        (FREQUENCY, {"probs": [np.ones(5), np.ones(5, np.float32)]}, "probs differs between ranks: rank 0 has"),
        (FREQUENCY, {"probs": [np.ones(5), -np.ones(5)]}, r"probs\[1\]\[0\] = -1.0: expected finite numbers of at"),
        (
            FREQUENCY,
            {"cache_ratio": 0.5},
            r"cache_ratio differs .*: rank 0 has \(0.0,\), rank 1 has \(0.5,\)",
        ),
        (FREQUENCY, {"cache_memory_budget": 20}, r"cache_memory_budget differs between ranks"),
        (FREQUENCY, {"num_parts": 3}, "num_parts differs between ranks: rank 0 has 2, rank 1 has 3"),
        (FREQUENCY, {"hotness": np.ones(5)}, "hotness and probs are both given"),
        ({}, {"node_feat": np.ones((5, 1), int)}, FLOATS + '"int64'),
        ({}, {"node_feat": None}, FLOATS + "None"),
        ({}, {"node_feat": np.ones((2, 1))}, r"tables of nodes have \[5, 2\] rows on the ranks, 7 together: expected"),
        ({}, {"node_time": np.ones(5, int)}, "node_time differs between ranks: rank 0 has None, rank 1 has True"),
        ({}, {"partitioner": FennelPartitioner}, "partitioner differs .* rank 0 has 'RandomPartitioner', rank 1 has"),
        ({}, {"hotness": [np.ones(5)] * 2}, r"hotness differs .*: rank 0 has None, rank 1 has \['float64 \[\*\]'"),
        ({}, {"relabel": True}, "relabel differs between ranks: rank 0 has False, rank 1 has True; expected the same"),
    ],
)
def test_slices_that_differ(tmp_path, monkeypatch, common, changed, words):
    refused_by_two_ranks(tmp_path, monkeypatch, words, common, common | changed)


@pytest.mark.parametrize("relabel", [False, True])
def test_a_disk_without_room_is_refused_before_any_work(tmp_path, monkeypatch, relabel):
    """A leader needs what all partitions of its directory take."""
    use_threads(monkeypatch)
    forecast = RandomPartitioner(
        tmp_path / "parts", **SLICE | {"node_feat": np.ones((10, 1))}, relabel=relabel
    ).forecast()
    for free, is_refused in ((forecast.disk_bytes // 2, True), (2 * forecast.disk_bytes, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        options = {"output_dir": tmp_path / "parts", "relabel": relabel}
        found = in_ranks(2, lambda e: partition_distributed(RandomPartitioner, **SLICE, **options, group=e))  # noqa: B023
        kinds = [type(each) for each in found]
        assert kinds == ([PartitionError, RemoteError] if is_refused else [Manifest, Manifest]), found
        assert (tmp_path / "parts").exists() != is_refused


def test_no_rank_has_the_hotness_of_all_nodes_for_all_partitions(tmp_path, monkeypatch):
    use_threads(monkeypatch)
    num_nodes, received = 4000, [0, 0]
    original = LocalExchange._all_to_all

    def counting(self, *given):
        found = original(self, *given)
        received[self.rank] += sum(data.size for data in found[0])
        return found

    monkeypatch.setattr(LocalExchange, "_all_to_all", counting)
    hot = np.random.default_rng(0).random((2, num_nodes // 2))

    def rank_of(exchange):
        tables = {"node_feat": np.ones((num_nodes // 2, 1)), "hotness": [hot[exchange.rank]] * 8}
        graph = 8, num_nodes, np.zeros((2, 0), np.int64)
        return partition_distributed(RandomPartitioner, tmp_path / "parts", *graph, **tables, group=exchange)

    in_ranks(2, rank_of)
    # Of 8 partitions a rank hears of 4, 8 bytes for each node; and rows of features.
    assert max(received) < 1.3 * (4 * 8 * num_nodes + 8 * num_nodes // 2 + num_nodes)
