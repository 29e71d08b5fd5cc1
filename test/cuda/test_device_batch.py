"""Batches from the kernels equal the CPU's, bit for bit: their bodies on the host in any order, and on a GPU."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import torch
from device_world import ORDERS, DeviceWorld, assert_equals, device_world, sampled, sums_of
from gpus import DEVICES, needs_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

import glt
from glt import _core
from glt.sampler.device_batch import DeviceBatch, PlacedRows

CPU = torch.device("cpu")
FAN_OUTS = [1, 2, 3, 5, 0, 16, 17, 40]


def fan_outs(rng, world, hops=None):
    hops = int(rng.integers(0, 4)) if hops is None else hops
    return [rng.choice([*FAN_OUTS, -1], hops).tolist() for _ in world.ends]


def check(world, device, *, seeds, num_neighbors, native=None, **options):
    expected = world.expected(seeds, num_neighbors, **options)
    batch = DeviceBatch(world.num_nodes, world.ends, device, **(native or {}))
    graphs = world.placed(device)
    for _ in range(2):  # the second meets the words of the first
        assert_equals(sampled(batch, graphs, seeds, num_neighbors, **options), expected)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(ORDERS), st.booleans(),
    st.sampled_from([1, 7, 1 << 22]),
)  # fmt: skip
def test_kernel_bodies_give_the_cpus_batches(seed, replace, disjoint, with_edge, order, hashed, room):
    rng, world = np.random.default_rng(seed), device_world(seed)
    check(
        world, CPU, seeds=world.seeds(rng), num_neighbors=fan_outs(rng, world), batch_key=seed, replace=replace,
        disjoint=disjoint, with_edge=with_edge,
        native={"order": order, "shuffle_seed": seed, "dense_limit": 0 if hashed else 1 << 31, "first_room": room},
    )  # fmt: skip


@pytest.mark.parametrize("replace", [False, True])
def test_every_number_of_neighbors_of_which_a_block_takes_another_number_of_rows(replace):
    world, rng = device_world(5), np.random.default_rng(5)
    for k in range(1, 41):
        options = {"replace": replace, "disjoint": False, "with_edge": True}
        check(world, CPU, seeds=world.seeds(rng), num_neighbors=[[k]] * len(world.ends), batch_key=k, **options)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("replace", [False, True])
def test_as_many_neighbors_as_a_block_has_room_for_and_more(replace, order):
    indptr = np.array([0, 3000, 3000, 3007, 5000])
    world = DeviceWorld([4, 700], [(0, 1)], [{"indptr": indptr, "indices": np.resize(np.arange(700), 5000)}])
    for k in (100, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2000):
        options = {"replace": replace, "native": {"order": order, "shuffle_seed": k}}
        check(world, CPU, seeds=[(0, torch.tensor([2, 0, 1, 3]))], num_neighbors=[[k]], batch_key=k, **options)


@pytest.mark.parametrize("k", [2, -1])
def test_more_rows_than_all_threads_of_all_tiles(k):
    n = 300_000
    degree = np.random.default_rng(8).integers(0, 4, n)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    indices = np.random.default_rng(9).integers(0, n, indptr[-1])
    world = DeviceWorld([n], [(0, 0)], [{"indptr": indptr, "indices": indices}])
    check(world, CPU, seeds=[(0, torch.randperm(n))], num_neighbors=[[k]], batch_key=3)


@settings(max_examples=240, deadline=None)
@given(
    st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(ORDERS),
    st.sampled_from(["plain", "weighted", "timed", "last", "window", "age"]),
    st.booleans(),
)  # fmt: skip
def test_weights_times_numbers_and_excluded_edges(seed, replace, disjoint, excluding, order, kind, by_number):
    """Edge types with and without weights and times; hubs with cut points, rows that run out of weight, parallel edges,
    more excluded ones than first have room, rows that lose all; the last ones without seed times too."""
    rng = np.random.default_rng(seed)
    world = device_world(seed, largest=12, weighted=kind == "weighted", timed=kind not in ("plain", "weighted"))
    seeds, options = world.seeds(rng), {"replace": replace, "last": kind == "last", "disjoint": disjoint}
    if by_number and not replace and kind != "last":
        options["shared_key"] = seed
    if kind in ("window", "age"):
        options["time_window"] = [int(rng.choice([-1, 0, 4, 12])) for _ in world.ends]
    if kind == "age":
        options["half_life"] = [int(rng.choice([0, 1, 5])) for _ in world.ends]
    if kind not in ("plain", "weighted") and disjoint:
        options["seed_time"] = torch.from_numpy(rng.integers(-1, 22, sum(len(s) for _, s in seeds)))
    if excluding:
        options["exclusions"] = world.exclusions(rng)
    native = {"order": order, "shuffle_seed": seed, "first_room": 50}
    check(world, CPU, seeds=seeds, num_neighbors=fan_outs(rng, world), batch_key=seed, native=native, **options)


def test_thousands_of_excluded_edges_of_a_hub():
    indices = np.resize(np.arange(700), 5000)
    world = DeviceWorld([1, 700], [(0, 1)], [{"indptr": np.array([0, 5000]), "indices": indices}])
    odd = np.arange(1, 700, 2)
    excluded = [_core.Exclusions(np.zeros(len(odd), np.int64), odd)]
    for k in (-1, 3, 16, 40, 700, 1024, 2500, 3000):
        options = {"exclusions": excluded, "native": {"order": "backward"}}
        check(world, CPU, seeds=[(0, torch.tensor([0]))], num_neighbors=[[k]], batch_key=k + 9, **options)


@pytest.mark.parametrize(
    ("order", "kind", "excluding"),
    [
        ("forward", "even", False), ("backward", "even", True), ("shuffled", "weighted", False),
        ("backward", "weighted", True), ("shuffled", "age", True), ("forward", "window", True),
    ],
)  # fmt: skip
def test_lowest_numbers_of_rows_that_a_block_looks_through(order, kind, excluding):
    """Hubs among short rows of one block, as long as a few rounds and not; numbers that come twice; all sorts of k."""
    rng = np.random.default_rng(7)
    degree = np.array([4096, 4097, 6, 0, 4608, 9000, 40, 4609])
    indptr, n = np.concatenate([[0], np.cumsum(degree)]), int(degree.sum())
    row = np.repeat(np.arange(len(degree)), degree)
    at = {"indptr": indptr, "indices": rng.integers(0, 4000, n).astype(rng.choice([np.int32, np.int64]))}
    seeds = [(0, torch.tensor([5, 2, 0, 7, 1, 3, 4, 6]))]
    options = {"native": {"order": order, "shuffle_seed": 1, "first_room": 50}}
    if kind == "weighted":
        weight = np.where(rng.random(n) < 0.3, 0.0, rng.random(n) ** 8)
        weight[indptr[7] :] = np.where(np.arange(4609) % 1000 == 3, 1.0, 0.0)  # fewer have weight than are taken
        at |= sums_of(indptr, weight)
    if kind in ("age", "window"):
        time = rng.integers(0, 50, n)
        at["time"] = time[np.lexsort((time, row))]
        options |= {"disjoint": True, "seed_time": torch.tensor([49, 20, 50, 33, 48, 1, 49, 60])}
        options |= {"half_life": [7]} if kind == "age" else {"time_window": [40]}
    if excluding:
        some = rng.random(n) < 0.1
        options["exclusions"] = [_core.Exclusions(row[some], at["indices"][some].astype(np.int64))]
    world = DeviceWorld([8, 4000], [(0, 1)], [at])
    for k in (1, 2, 10, 255, 256, 257):
        check(world, CPU, seeds=seeds, num_neighbors=[[k]], batch_key=k, shared_key=k, **options)


@pytest.mark.parametrize("order", ORDERS)
def test_lowest_numbers_where_each_edge_is_before_those_that_came(order):
    """All edges of a step pass the bound of the steps before, and the last edge of a row is among the lowest."""
    degree = np.array([4608, 9000, 4609])
    indptr = np.concatenate([[0], np.cumsum(degree)])
    weight = np.concatenate([((np.arange(d) + 1) / d) ** 40 for d in degree])
    at = {"indptr": indptr, "indices": np.random.default_rng(2).integers(0, 10**6, len(weight))}
    world = DeviceWorld([3, 10**6], [(0, 1)], [at | sums_of(indptr, weight)])
    for k in (10, 255, 256, 257):
        options = {"shared_key": k, "native": {"order": order, "dense_limit": 0}}
        check(world, CPU, seeds=[(0, torch.arange(3))], num_neighbors=[[k]], batch_key=k, **options)


def test_lowest_numbers_of_long_rows_in_blocks_with_more_rows_than_threads():
    n = 300_000
    degree = np.arange(n) % 4
    degree[[5, 100, 270, 280, 290, 700, 800, n - 1]] = 4100
    indptr = np.concatenate([[0], np.cumsum(degree)])
    indices = np.random.default_rng(9).integers(0, n, indptr[-1])
    world = DeviceWorld([n], [(0, 0)], [{"indptr": indptr, "indices": indices}])
    check(world, CPU, seeds=[(0, torch.arange(n))], num_neighbors=[[2]], batch_key=3, shared_key=3)


@pytest.mark.parametrize("replays", [False, True])
def test_batches_of_one_plan_are_captured_once_and_replayed(replays):
    """What differs (seeds, times, keys, excluded edges, words of tables) is in memory that the captured calls read."""
    rng, world = np.random.default_rng(3), device_world(3, timed=True)
    batch = DeviceBatch(world.num_nodes, world.ends, CPU, replays=replays)
    graphs = world.placed(CPU)
    counts = [[3, 2]] * len(world.ends)
    plans = 0
    for number in range(12):
        n = 4 if number == 7 else 6  # as the last batch of an epoch
        seeds = [(t, torch.from_numpy(rng.integers(0, world.num_nodes[t], n))) for t in (0, 1)]
        options = {
            "batch_key": number, "disjoint": True, "seed_time": torch.from_numpy(rng.integers(0, 20, 2 * n)),
            "exclusions": [
                _core.Exclusions(*(rng.integers(0, world.num_nodes[end], 40) for end in ends)) for ends in world.ends
            ],
        }  # fmt: skip
        before = batch.num_replays
        assert_equals(sampled(batch, graphs, seeds, counts, **options), world.expected(seeds, counts, **options))
        plans += batch.num_replays > before
    assert plans == 0 if not replays else 6 <= plans <= 10


@pytest.mark.parametrize("counts", [[[-1, 2]], [[3, -1]], [[40, 3]]])
def test_batches_whose_seeds_come_twice_have_one_plan_too(counts):
    """They have more edges than the bound on their plan, and must not begin with too little room every time."""
    indptr = torch.tensor([0, 50, 60, 70])
    rows = PlacedRows.of(indptr, torch.arange(70) % 3, num_neighbor_nodes=3)
    batch = DeviceBatch([3], [(0, 0)], CPU)
    for number in range(5):
        batch.launch([rows], [(0, torch.zeros(40, dtype=torch.int64))], counts, batch_key=number)
        batch.finish()
    assert batch.num_replays >= 3


@pytest.mark.parametrize("device", DEVICES)
def test_a_change_of_options_is_a_plan_of_its_own(device):
    device = CPU if device == "host" else torch.device("cuda", 0)
    rng, world = np.random.default_rng(6), device_world(6)
    batch, graphs = DeviceBatch(world.num_nodes, world.ends, device), world.placed(device)
    for number in range(40):
        replace, k = bool(number // 4 % 2), 2 + number // 8 % 2
        seeds = [(0, torch.from_numpy(rng.integers(0, world.num_nodes[0], 5)))]
        options = {"batch_key": number, "replace": replace, "with_edge": number % 16 < 12}
        counts = [[k, 2]] * len(world.ends)
        assert_equals(sampled(batch, graphs, seeds, counts, **options), world.expected(seeds, counts, **options))
    assert batch.num_replays >= 10


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ORDERS), st.booleans(), st.booleans())
def test_all_edges_among_the_nodes(seed, order, hashed, with_edge):
    rng, large = np.random.default_rng(seed), seed % 20 == 0
    world = device_world(seed, largest=3000, edges=20_000) if large else device_world(seed)
    options = {"num_neighbors": fan_outs(rng, world), "batch_key": seed, "induced": True, "with_edge": with_edge}
    options |= {"native": {"order": order, "shuffle_seed": seed, "dense_limit": 0 if hashed else 1 << 31}}
    check(world, CPU, seeds=world.seeds(rng, most=400 if large else 12), **options)


def test_a_damaged_column_of_an_induced_subgraph_is_an_exception():
    batch = DeviceBatch([4], [(0, 0)], CPU)
    batch.launch([one_type(neighbor=77)], [(0, torch.tensor([1]))], [[0]], batch_key=0)
    batch.finish()
    with pytest.raises(IndexError, match=r"neighbour id 77 is outside \[0, 4\): the graph's columns are damaged"):
        batch.induce()


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_many_tiles_and_blocks(order, disjoint):
    """More rows and occurrences than a tile, a block or a thread has: frontiers of thousands, hubs taken whole."""
    rng, world = np.random.default_rng(3), device_world(4, largest=6000, edges=30_000)
    seeds = [(t, torch.from_numpy(rng.integers(0, n, 2000))) for t, n in enumerate(world.num_nodes)]
    fan_out = [[3, 2], [20, 1], [-1, 2], [16, 0], [2, 18], [4, 4]]
    options = {"batch_key": 11, "disjoint": disjoint, "native": {"order": order, "first_room": 5000}}
    check(world, CPU, seeds=seeds, num_neighbors=[fan_out[r % 6] for r in range(len(world.ends))], **options)


@pytest.mark.parametrize("hashed", [False, True])
def test_blocks_that_run_at_the_same_time(hashed):
    rng, world = np.random.default_rng(4), device_world(4, largest=300, edges=5000)
    seeds = [(t, torch.from_numpy(rng.integers(0, n, 500))) for t, n in enumerate(world.num_nodes)]
    options = {"disjoint": hashed, "native": {"num_threads": 4, "dense_limit": 0 if hashed else 1 << 31}}
    check(world, CPU, seeds=seeds, num_neighbors=[[10, 20]] * len(world.ends), batch_key=5, **options)


def one_type(num_nodes=4, degree=3, **changes):
    indptr = torch.arange(0, num_nodes * degree + 1, degree)
    indices = torch.arange(num_nodes * degree) % num_nodes
    indices[5] = changes.get("neighbor", 0)
    return PlacedRows.of(indptr, indices, num_neighbor_nodes=num_nodes)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", [2, 30, -1])
def test_bad_ids_are_exceptions_that_name_the_first(order, k):
    batch = DeviceBatch([4], [(0, 0)], CPU, order=order)
    batch.launch([one_type()], [(0, torch.tensor([1, 7, -3, 9]))], [[k, k]], batch_key=0)
    with pytest.raises(IndexError, match=r"seeds\[1\] = 7 is outside \[0, 4\) \(num_nodes = 4\)"):
        batch.finish()
    batch.launch([one_type()], [(0, torch.tensor([1])), (0, torch.tensor([0, 4]))], [[k]], batch_key=0)
    with pytest.raises(IndexError, match=r"seeds\[1\]\[1\] = 4 is outside"):
        batch.finish()
    batch.launch([one_type(neighbor=-2)], [(0, torch.tensor([0, 1]))], [[-1, k]], batch_key=0)
    with pytest.raises(IndexError, match=r"neighbour id -2 is outside .* columns are damaged"):
        batch.finish()
    batch.launch([one_type()], [(0, torch.tensor([1]))], [[k]], batch_key=0)
    batch.finish()  # an error leaves nothing behind
    assert batch.nodes(0, False)[0].tolist()[0] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.integers(0, 7), st.sampled_from(ORDERS))
def test_rows_of_a_later_hop_are_those_that_a_partition_would_answer(seed, replace, disjoint, hop, order):
    rng, world = np.random.default_rng(seed), device_world(seed, timed=bool(seed % 2), weighted=not seed % 2)
    graphs, csrs = world.placed(CPU), world.csrs()
    batch = DeviceBatch(world.num_nodes, world.ends, CPU, order=order, shuffle_seed=seed)
    for r, (expanded, found) in enumerate(world.ends):
        if csrs[r] is None:
            continue
        nodes = rng.permutation(world.num_nodes[expanded])[: rng.integers(1, 12)]
        tree = rng.integers(0, 5, len(nodes)).astype(np.uint32) if disjoint else None
        timed = disjoint and "time" in world.arrays[r]
        times = rng.integers(-1, 22, 5)
        k = int(rng.choice([1, 3, 16, 17] if replace else [1, 3, 16, 17, -1]))
        options = {"seed_time": times[tree] if timed else None}
        expected = _core.OneHop(csrs[r], nodes, k, replace, seed, hop, r, with_edge=True, tree=tree, **options)
        count, neighbor, edge = (
            np.empty(n, t) for n, t in ((len(nodes), np.uint32), *[(expected.num_edges, np.int64)] * 2)
        )
        expected.copy_out(count, neighbor, edge)
        batch.launch(
            graphs, [(expanded, torch.from_numpy(nodes))], [[k if each == r else 0] for each in range(len(graphs))],
            batch_key=seed, replace=replace, disjoint=disjoint, first_hop=hop,
            seed_time=torch.from_numpy(times) if timed else None,
            trees=None if tree is None else torch.from_numpy(tree),
        )  # fmt: skip
        batch.finish()
        row, col, got_edge = batch.edges(r, True)
        assert torch.bincount(col, minlength=len(nodes)).tolist() == count.tolist()
        assert batch.nodes(found, False)[0][row].tolist() == neighbor.tolist() and got_edge.tolist() == edge.tolist()
        batch.end()


def test_a_second_thread_is_told_that_the_batch_is_in_use():
    world = device_world(3)
    batch, graphs, rng = DeviceBatch(world.num_nodes, world.ends, CPU), world.placed(CPU), np.random.default_rng(3)
    given, is_over = {"seeds": world.seeds(rng), "num_neighbors": [[3, 3]] * len(world.ends), "batch_key": 1}, Event()

    def keep_sampling():
        while not is_over.is_set():
            with contextlib.suppress(RuntimeError, ValueError):  # the other thread is in a call, or was between two
                sampled(batch, graphs, **given)

    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(keep_sampling)
        try:
            with pytest.raises(RuntimeError, match="the DeviceBatch is in use by another thread"):
                for _ in range(10**6):
                    with contextlib.suppress(ValueError):
                        batch._native.induced_bytes()
        finally:
            is_over.set()
        sampling.result(timeout=60)
    assert_equals(sampled(batch, graphs, **given), world.expected(**given))


def test_what_means_nothing_is_refused():
    batch = _core.DeviceBatch([4], [(0, 0)], device=-1)
    rows = one_type().rows
    for arguments, options, message in [
        (([], [], [[1]]), {}, "graphs has 0 elements: expected one per edge type, 1"),
        (([rows], [], [[1], [1]]), {}, "num_neighbors has 2 lists"),
        (([rows], [], [[-2]]), {}, r"num_neighbors\[0\] = -2"),
        (([rows], [(1, 0, 0, 0)], [[1]]), {}, r"seeds\[0\] has node type 1"),
        (([rows], [], [[1]]), {"seed_time": 64}, "seed_time needs disjoint = True"),
        (([rows], [(0, 0, 0, 64)], [[1]]), {}, "trees of seeds were given: expected disjoint = True"),
        (([rows], [], [[1]]), {"first_hop": 256}, "over 256 hops"),
    ]:
        with pytest.raises(ValueError, match=message):
            batch.prepare(*arguments, batch_key=0, **options)
    with pytest.raises(ValueError, match="launch: call prepare first"):
        batch.launch(0, [0])
    with pytest.raises(ValueError, match="not finished"):
        batch.num_nodes(0)
    with pytest.raises(ValueError, match="order = 'sideways'"):
        _core.DeviceBatch([4], [(0, 0)], device=-1, order="sideways")
    with pytest.raises(TypeError, match=r"indices is torch.float32 of shape \[2\]"):
        PlacedRows.of(torch.zeros(2, dtype=torch.int64), torch.zeros(2), num_neighbor_nodes=1)


def test_without_cuda_asking_for_it_says_what_is_missing():
    if glt.has_cuda:
        pytest.skip("needs a build without CUDA")
    with pytest.raises(ValueError, match=r"device = 0: glt was built without CUDA.*GLT_CUDA=1"):
        _core.DeviceBatch([4], [(0, 0)], device=0)


@needs_gpu
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("kind", ["plain", "weighted", "timed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_gpu_gives_the_cpus_batches(seed, kind, pinned):
    rng, device = np.random.default_rng(seed), torch.device("cuda", 0)
    world = device_world(seed, largest=9000, edges=60_000, weighted=kind == "weighted", timed=kind == "timed")
    seeds = world.seeds(rng, most=3000)
    time = torch.from_numpy(rng.integers(-1, 22, sum(len(s) for _, s in seeds)))
    graphs = world.placed(device, pinned)
    for replace in (False, True):
        excluded = {"exclusions": world.exclusions(np.random.default_rng(seed), share=0.1)}
        last = {"last": True} if kind == "timed" else {}
        for more in ({}, {"disjoint": True}, {"induced": True}, last, excluded, {"disjoint": True, **excluded}):
            options = {"replace": replace, "batch_key": seed, **more}
            if kind == "timed" and "disjoint" in more:
                options["seed_time"] = time
            counts = fan_outs(rng, world, hops=2)
            expected = world.expected(seeds, counts, **options)
            batch = DeviceBatch(world.num_nodes, world.ends, device, first_room=20_000)
            for _ in range(4):  # the second is captured, the others are replayed
                assert_equals(sampled(batch, graphs, seeds, counts, **options), expected)
            assert batch.num_replays >= 1, "the graph was captured"
