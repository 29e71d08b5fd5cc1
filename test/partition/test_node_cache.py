"""What caches hold on disk, and what they are expected to save."""

import numpy as np
import pytest
import torch
from partition_world import assert_damage_is_named, assert_union_is_the_input, bits, by_error, hetero_world, load_all

from glt.partition import FrequencyPartitioner, RandomPartitioner, inspect_partitions, load_partition

HOTNESS = [np.array([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0]), np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 5.0])]


def cached(root):
    found = [part.nodes[0].cache for part in load_all(root)]
    return [[] if cache is None else cache.ids.tolist() for cache in found]


def expected(owner, most):
    """The hottest nodes that others own, of equally hot ones the first."""
    found = []
    for idx, hotness in enumerate(HOTNESS):
        order = sorted(
            (node for node in range(10) if owner[node] != idx and hotness[node] > 0), key=lambda v: -hotness[v]
        )
        found.append(sorted(order[:most]))
    return found


@pytest.mark.parametrize(
    ("room", "most"),
    [
        ({}, 0),
        ({"cache_ratio": 0.2}, 2),
        ({"cache_ratio": 0.39}, 3),
        ({"cache_ratio": 1}, 10),
        # 3 float32 features, an int64 label and the id: 28 bytes.
        ({"cache_memory_budget": 57}, 2),
        ({"cache_memory_budget": 280, "cache_ratio": 0.1}, 1),
        ({"cache_memory_budget": 28, "cache_ratio": 0.5}, 1),
    ],
)
def test_a_cache_holds_the_hottest_nodes_of_others(tmp_path, world, room, most):
    root = tmp_path / "parts"
    manifest = RandomPartitioner(root, 2, hotness=HOTNESS, **room, **world.arguments()).partition()
    parts = load_all(root)
    owner = parts[0].nodes[0].book.owners()
    assert cached(root) == expected(owner, most)
    forecast = manifest.node_types[0].forecast
    assert forecast is not None and forecast.num_cached == tuple(map(len, cached(root)))
    for idx, (part, ids) in enumerate(zip(parts, cached(root), strict=True)):
        remote = HOTNESS[idx][owner != idx].sum()
        assert forecast.num_reads[idx] == HOTNESS[idx].sum()
        assert forecast.remote_ratio[idx] == pytest.approx(remote / HOTNESS[idx].sum())
        assert forecast.hit_ratio[idx] == pytest.approx(HOTNESS[idx][ids].sum() / remote if remote else 0)
        cache = part.nodes[0].cache
        if cache is not None:
            np.testing.assert_array_equal(cache.feat, world.node_feat[ids])
            np.testing.assert_array_equal(cache.label, world.node_label[ids])
            assert cache.time is None and cache.ids.dtype == np.int64
    assert_union_is_the_input(parts, **world.arguments())
    assert manifest.forecast == forecast  # of the only type
    assert f"{forecast.total_remote_ratio:.1%} of feature reads expected to be remote" in manifest.summary()
    assert ("nodes) answering" in manifest.summary()) == (most > 0)
    assert inspect_partitions(root).nodes[0].forecast == forecast


@pytest.mark.parametrize("partitioner", [RandomPartitioner, FrequencyPartitioner])
def test_types(tmp_path, partitioner):
    given = hetero_world("node")
    rng = np.random.default_rng(0)
    hotness = {t: [rng.random(n) for _ in range(3)] for t, n in given["num_nodes"].items()}
    name = "probs" if partitioner is FrequencyPartitioner else "hotness"
    ratio = {"paper": 0.3, "größe__x": 0.2}
    partitioner(tmp_path / "parts", 3, cache_ratio=ratio, **{name: hotness}, **given).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **given)
    for part in parts:
        for node_type, node in zip(part.schema.node_types, part.nodes, strict=True):
            if node_type not in ratio:
                assert node.cache is None  # no room, or no features
                continue
            cache = node.cache
            assert cache is not None and cache.ids.size == int(ratio[node_type] * given["num_nodes"][node_type])
            assert (node.book.owners(cache.ids) != part.index).all() and (np.diff(cache.ids) > 0).all()
            np.testing.assert_array_equal(bits(cache.feat), bits(given["node_feat"][node_type])[cache.ids])
            np.testing.assert_array_equal(cache.time, given["node_time"][node_type][cache.ids])
            assert (cache.label is None) == (node_type != "paper")
            if node_type == "paper":
                assert cache.feat.dtype == torch.bfloat16


def test_named_tables_are_cached_too(tmp_path, world):
    attrs = {"train_mask": np.arange(10) % 3 == 0, "z": np.arange(20.0).reshape(10, 2)}
    # 28 bytes as above, a bool and two doubles: 45.
    options = {"hotness": np.ones(10), "cache_memory_budget": 95, "node_attrs": attrs}
    RandomPartitioner(tmp_path / "parts", 2, **options, **world.arguments()).partition()
    for part in load_all(tmp_path / "parts"):
        cache = part.nodes[0].cache
        assert cache is not None and cache.ids.size == 2 and cache.attrs.keys() == attrs.keys()
        for name, table in attrs.items():
            np.testing.assert_array_equal(cache.attrs[name], table[cache.ids])


def test_several_types_are_forecast_together(tmp_path):
    given = hetero_world()
    hotness = {"paper": np.ones(23), "größe__x": np.full(5, 10.0)}
    manifest = RandomPartitioner(
        tmp_path / "parts", 2, hotness=hotness, cache_ratio={"paper": 1.0, "größe__x": 0}, **given
    ).partition()
    forecast = manifest.forecast
    assert forecast is not None and forecast.num_reads == (73, 73)
    assert sum(forecast.num_cached) == 23 and forecast.num_remote_reads == pytest.approx(23 + 50)
    assert forecast.total_remote_ratio == pytest.approx(50 / 146)
    assert forecast.total_hit_ratio == pytest.approx(23 / 73)


def test_one_partition_has_nothing_to_cache(tmp_path, world):
    hotness = np.arange(10)
    manifest = RandomPartitioner(
        tmp_path / "parts", 1, hotness=hotness, cache_ratio=0.5, **world.arguments()
    ).partition()
    assert cached(tmp_path / "parts") == [[]]
    assert manifest.forecast is not None
    assert manifest.forecast.total_remote_ratio == manifest.forecast.total_hit_ratio == 0


@pytest.mark.parametrize("name", ["ids", "feat", "label"])
def test_a_damaged_cache_is_named(tmp_path, world, name):
    root = tmp_path / "parts"
    RandomPartitioner(root, 2, hotness=HOTNESS, cache_ratio=0.2, **world.arguments()).partition()
    load_partition(root, 1)
    path = root / f"part0/cache/node/{name}.npy"
    assert_damage_is_named(path, f"part0/cache/node/{name}.npy", lambda: load_partition(root, 0))
    load_partition(root, 1)


@by_error(
    ("given", "words"),
    {
        ValueError: [
            ({"cache_ratio": 0.1}, r"cache_ratio = 0.1 without hotness: .*sample_prob"),
            ({"cache_memory_budget": 10}, r"cache_memory_budget = 10 without hotness"),
            ({"hotness": HOTNESS, "cache_memory_budget": 27}, "cache_memory_budget = 27: no row .* least 28 bytes"),
            (
                {"hotness": HOTNESS, "cache_ratio": 0.5, "node_feat": None},
                "cache_ratio = 0.5: there is nothing to cache.*pass node_feat",
            ),
            ({"hotness": HOTNESS, "cache_ratio": 1.5}, r"cache_ratio = 1.5: expected a number in \[0, 1\]"),
            ({"hotness": HOTNESS, "cache_memory_budget": -1}, "cache_memory_budget = -1: expected 0 to"),
            ({"hotness": HOTNESS[:1]}, "hotness has 1 elements"),
        ],
        TypeError: [
            ({"hotness": HOTNESS, "cache_ratio": "2%"}, r"cache_ratio = '2%': expected a number in \[0, 1\]"),
            ({"hotness": HOTNESS, "cache_memory_budget": 1.5}, "cache_memory_budget = 1.5: expected an integer"),
            ({"hotness": HOTNESS, "cache_ratio": {"node": 1}}, "cache_ratio is a dict by type"),
        ],
    },
)
def test_refusals(tmp_path, world, given, error, words):
    with pytest.raises(error, match=words):
        RandomPartitioner(tmp_path / "parts", 2, **(world.arguments() | given))


def test_the_forecast_is_that_of_numbers_not_of_how_they_lie_in_memory(tmp_path):
    num_nodes = 100_003
    rng = np.random.default_rng(2)  # of six seeds, two show it
    hot = rng.random(num_nodes) * 10.0 ** rng.integers(-9, 9, num_nodes)
    room = np.empty(8 * num_nodes + 3, np.uint8)
    odd = room[3:].view(np.float64)
    odd[:] = hot
    wide = np.stack([hot] * 3, axis=1)
    found = []
    for at, each in enumerate((hot, odd, wide[:, 1], hot[::-1].copy()[::-1])):
        given = {"hotness": each, "node_feat": np.zeros((num_nodes, 1), np.int8)}
        made = RandomPartitioner(tmp_path / str(at), 2, num_nodes, np.zeros((2, 0), np.int64), **given)
        manifest = made.partition()
        found.append(manifest.run_id)
    assert found[1:] == found[:1] * 3
