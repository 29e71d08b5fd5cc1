"""Negatives that the kernel finds equal those of the rounds on the CPU, whatever is drawn from what."""

import gc
import weakref

import numpy as np
import pytest
import torch
from gpus import needs_gpu
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.sampler import NegativeSampling

from glt.data import Topology
from glt.sampler import negatives
from glt.sampler.device import DeviceNegatives
from glt.sampler.device_batch import PlacedRows
from glt.sampler.negatives import Endpoint, LocalCheck, NegativeRounds, earliest_node, run_rounds

ORDERS = ["forward", "backward", "shuffled"]
CPU = torch.device("cpu")


def case(seed, largest=30):
    """A graph, the ends, and seeds: with and without weights and times, binary and triplets, dense and empty graphs."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, largest, 2)
    # Without edges at the last destination, so that there is a negative for every source.
    edges = np.stack([rng.integers(0, size[0], 0), rng.integers(0, size[1], 0)])
    if size[1] > 1 and rng.random() < 0.9:
        n = int(rng.integers(0, largest**2))
        edges = np.stack([rng.integers(0, size[0], n), rng.integers(0, size[1] - 1, n)])
    layout = rng.choice(["CSC", "CSR"])
    topology = Topology(torch.from_numpy(edges), tuple(size.tolist()), layout=layout)
    weight = [torch.from_numpy(rng.random(n) + 1e-3) if rng.random() < 0.5 else None for n in size]
    config = NegativeSampling("binary", 1, *weight)
    num = int(rng.integers(0, 60))
    timed = rng.random() < 0.5
    time = [torch.from_numpy(rng.integers(0, 20, n)) if timed and rng.random() < 0.8 else None for n in size]
    ends = [
        Endpoint.of(side, int(n), config, earliest_node(t))
        for side, n, t in zip(("src", "dst"), size, time, strict=True)
    ]
    source = rng.integers(0, size[0], num) if rng.random() < 0.5 else None
    late = rng.integers(-2, 22, num) if timed else None
    return topology, ends, num, source, late, [None if t is None else t.numpy() for t in time]


def outcome(rounds, run):
    try:
        run(rounds)
    except ValueError as error:
        return str(error)
    return rounds.src.tolist(), rounds.dst.tolist()


def test_weights_stay_until_the_answer_is_there_whatever_other_threads_look_for():
    """The kernel reads them by their address."""
    topology, *_ = case(3)
    size = topology.num_nodes if isinstance(topology.num_nodes, tuple) else (topology.num_nodes,) * 2
    config = NegativeSampling("binary", 1, torch.rand(size[0]) + 1e-3, torch.rand(size[1]) + 1e-3)
    ends = [Endpoint.of(side, n, config, None) for side, n in zip(("src", "dst"), size, strict=True)]
    kernels = DeviceNegatives(CPU)
    native, checked = kernels._native, []

    class Between:
        def launch(self, *arguments, **options):
            weights = [weakref.ref(kept) for _, kept in kernels._kept.values()]
            assert len(weights) == 2
            kernels._kept.clear()  # as another thread does, whose ends have other weights
            gc.collect()
            checked.extend(each() is not None for each in weights)
            native.launch(*arguments, **options)

    kernels._native = Between()
    kernels.finish(NegativeRounds(1, *ends, 5), None, "out", None, None)
    assert checked == [True, True]


def both(device, seed, **options):
    topology, ends, num, source, late, times = case(seed)
    rows = PlacedRows.of(
        topology.indptr.to(device), topology.indices.to(device), num_neighbor_nodes=topology.num_neighbor_nodes
    )
    kernels = DeviceNegatives(device, **options)
    for key in (seed, seed + 1):
        first, second = (NegativeRounds(key, *ends, num, source, late) for _ in range(2))
        expected = outcome(first, lambda r: run_rounds(r, LocalCheck(topology.csr, topology.edge_dir, *times)))
        assert outcome(second, lambda r: kernels.finish(r, rows, topology.edge_dir, *times)) == expected


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ORDERS), st.sampled_from([1, 4, 5, 32, 300]))
def test_the_kernel_finds_the_negatives_of_the_cpu(seed, order, max_attempts):
    """Few attempts, so that some slots are out of them: they end in the earliest node or in the same error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negatives, "MAX_ATTEMPTS", max_attempts)
        both(CPU, seed, order=order, shuffle_seed=seed)


def test_rows_longer_than_a_block_and_no_edges_at_all():
    indices = torch.arange(5000) % 1999
    rows = PlacedRows.of(torch.tensor([0, 5000]), indices, num_neighbor_nodes=2000)
    rounds = NegativeRounds(5, Endpoint("src", 1), Endpoint("dst", 2000), 20, np.zeros(20, np.int64))
    kernels = DeviceNegatives(CPU)
    kernels.finish(rounds, rows, "out", None, None)
    assert set(rounds.dst.tolist()) == {1999}, "the only one that is no edge"
    free = [NegativeRounds(5, Endpoint("src", 7), Endpoint("dst", 9), 20) for _ in range(2)]
    kernels.finish(free[0], None, "in", None, None)
    run_rounds(free[1], LocalCheck(None, "in"))
    assert free[0].dst.tolist() == free[1].dst.tolist() and free[0].src.tolist() == free[1].src.tolist()


def test_weights_and_times_stay_where_they_are():
    kernels, time = DeviceNegatives(CPU), np.arange(9)
    end = Endpoint.of("dst", 9, NegativeSampling("triplet", 1, None, torch.rand(9)), (0, 0))
    for _ in range(2):
        rounds = NegativeRounds(1, Endpoint("src", 9), end, 4, np.zeros(4, np.int64), np.full(4, 5))
        kernels.finish(rounds, None, "in", None, time)
        kept = {name: tensor.data_ptr() for name, (_, tensor) in kernels._kept.items()}
    assert set(kept) == {"dst weights", "dst times"}
    assert rounds.done and (time[rounds.dst] <= 5).all()


def test_no_copy_of_a_batch_waits_for_the_stream_but_what_other_streams_read(monkeypatch):
    kernels, time, waits = DeviceNegatives(CPU), np.arange(9), []
    to = torch.Tensor.to

    def watched(tensor, *arguments, non_blocking=False, **options):
        waits.append(not non_blocking)
        return to(tensor, *arguments, non_blocking=non_blocking, **options)

    monkeypatch.setattr(torch.Tensor, "to", watched)
    end = Endpoint.of("dst", 9, NegativeSampling("triplet", 1, None, torch.rand(9)), (0, 0))
    for expected in ([False, False, True, True], [False, False]):  # sources, seed times; weights and times of nodes
        waits.clear()
        rounds = NegativeRounds(1, Endpoint("src", 9), end, 4, np.zeros(4, np.int64), np.full(4, 5))
        waits.clear()
        kernels.finish(rounds, None, "in", None, time)
        assert waits == expected


@needs_gpu
@pytest.mark.parametrize("seed", range(30))
def test_a_gpu_finds_the_negatives_of_the_cpu(seed):
    both(torch.device("cuda", 0), seed)
