"""NeighborSampler: PyG's sampler interface over the native core."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NodeSamplerInput

from glt import _core
from glt.data import Dataset, Graph, Topology
from glt.sampler import NeighborSampler, RandomWalkSampler
from glt.testing import check_batch, random_graph, ring_graph

GRAPH = random_graph(200, 2000, seed=8)


def sample(sampler, seeds, input_type=None, **options):
    seeds = torch.as_tensor(seeds)
    index = NodeSamplerInput(torch.arange(len(seeds)), seeds, input_type=input_type)
    return sampler.sample_from_nodes(index, **options)


def test_graphs_from_whatever_holds_them():
    sources = [GRAPH.to_data(), GRAPH.to_dataset("in"), Graph(Topology(GRAPH.edge_index, 200, layout="CSC"))]
    outs = [sample(NeighborSampler(s, [3, 3], random_seed=1), [1, 2, 3], batch_key=4) for s in sources]
    for out in outs[1:]:
        assert torch.equal(out.node, outs[0].node) and torch.equal(out.edge, outs[0].edge)


def test_a_graph_of_several_types_from_a_graph_for_each():
    """Each graph knows only of the nodes that its own edges name: 4 users and 6 items in the one, 9 items in the
    other."""
    buys = torch.tensor([[0, 1, 2, 3, 3], [5, 4, 3, 2, 1]])
    like = torch.tensor([[0, 1, 8, 5], [1, 8, 0, 4]])
    edges = {("user", "buys", "item"): buys, ("item", "like", "item"): like}
    graphs = {t: Graph(Topology(ends, None if ends is like else (4, 6), layout="CSC")) for t, ends in edges.items()}
    whole = Dataset.from_arrays(edges, {"user": 4, "item": 9})
    hops = {edge_type: [2, 2] for edge_type in edges}
    found, wanted = (
        sample(NeighborSampler(data, hops, random_seed=3), torch.arange(9), input_type="item")
        for data in (graphs, whole)
    )
    assert found.node.keys() == {"user", "item"}
    for name in ("node", "row", "col", "edge"):
        for type_, ids in getattr(wanted, name).items():
            assert torch.equal(getattr(found, name)[type_], ids), (name, type_)
    prob = NeighborSampler(graphs, hops).sample_prob(("item", torch.tensor([5])), {"user": 4, "item": 9})
    assert prob["item"][5] == 1 and prob["user"].tolist()[0] == 1, "item 5 has one edge, from user 0"

    with pytest.raises(ValueError, match="data is an empty dict: expected a glt Graph for each edge type"):
        NeighborSampler({}, [2])
    with pytest.raises(TypeError, match=r"data\[\('item', 'like', 'item'\)\] is a Tensor: expected a glt Graph"):
        NeighborSampler({("item", "like", "item"): like}, [2])
    with pytest.raises(ValueError, match="edge_dir = 'out'"):
        NeighborSampler({**graphs, ("item", "like", "item"): Graph(Topology(like, 9, layout="CSR"))}, hops)


def test_one_hop_follows_the_seeds():
    sampler = NeighborSampler(ring_graph(10, 3).to_dataset("out"), [1], random_seed=0)
    out = sampler.sample_one_hop(torch.tensor([9, 0, 9]), -1)
    assert out.nbr.tolist() == [0, 1, 2, 1, 2, 3, 0, 1, 2]
    assert out.nbr_num.tolist() == [3, 3, 3]
    assert out.edge.tolist() == [27, 28, 29, 0, 1, 2, 27, 28, 29]
    two = sampler.sample_one_hop(torch.tensor([4, 4]), 2, batch_key=8)
    assert two.nbr[:2].tolist() == two.nbr[2:].tolist()


def test_excluded_edges_are_not_sampled():
    sampler = NeighborSampler(ring_graph(10, 3).to_dataset("out"), [-1], random_seed=0)
    excluded = _core.Exclusions(np.array([4, 4]), np.array([5, 7]))
    assert sampler.sample([(0, torch.tensor([4]))], exclusions=[excluded]).node.tolist() == [4, 6]


def test_without_edge_ids_there_are_none():
    sampler = NeighborSampler(GRAPH.to_dataset(), [3], with_edge=False, random_seed=0)
    assert sample(sampler, [1, 2]).edge is None
    assert sampler.sample_one_hop(torch.tensor([1]), 2).edge is None


def test_calls_without_a_key_differ_and_repeat_with_the_seed():
    def three():
        sampler = NeighborSampler(GRAPH.to_dataset(), [2, 2], random_seed=3)
        return [sample(sampler, range(50)).edge.tolist() for _ in range(3)]

    calls = three()
    assert len({tuple(c) for c in calls}) == 3
    assert three() == calls


def test_torch_manual_seed_fixes_the_default_seed():
    def seed():
        torch.manual_seed(12)
        return NeighborSampler(GRAPH.to_dataset(), [2]).random_seed

    assert seed() == seed() and 0 <= seed() < 2**63
    assert NeighborSampler(GRAPH.to_dataset(), [2]).random_seed != seed()


def test_one_sampler_serves_many_python_threads():
    sampler = NeighborSampler(GRAPH.to_dataset(), [5, 5], random_seed=0, num_threads=2)
    expected = [sample(sampler, range(i, 200, 3), batch_key=i).edge for i in range(40)]
    with ThreadPoolExecutor(4) as threads:
        got = threads.map(lambda i: sample(sampler, range(i, 200, 3), batch_key=i).edge, range(40))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_sampler_survives_pickling():
    sampler = NeighborSampler(GRAPH.to_dataset(), [5, 5], random_seed=7)
    copy = pickle.loads(pickle.dumps(sampler))
    assert torch.equal(sample(copy, [1, 2], batch_key=1).edge, sample(sampler, [1, 2], batch_key=1).edge)


def test_an_output_belongs_to_the_caller():
    """Kept batches stay what they were, however many follow."""
    sampler = NeighborSampler(GRAPH.to_dataset(), [5, 5], random_seed=7)
    kept = [(o := sample(sampler, range(20), batch_key=i), [t.clone() for t in (o.node, o.row, o.col, o.edge)])
            for i in range(50)]  # fmt: skip
    for out, copies in kept:
        assert all(torch.equal(a, b) for a, b in zip((out.node, out.row, out.col, out.edge), copies, strict=True))


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_inside_pygs_own_loader(num_workers, filter_per_worker):
    data = GRAPH.to_data()
    options = {"neighbor_sampler": NeighborSampler(data, [4, 3], random_seed=1)}
    options |= {"filter_per_worker": filter_per_worker}
    loader = NeighborLoader(data, [4, 3], torch.arange(0, 200, 7), batch_size=10, num_workers=num_workers, **options)
    batches = list(loader)
    assert len(batches) == 3
    for i, batch in enumerate(batches):
        given = {"num_nodes": 200, "x": data.x, "y": data.y, "edge_attr": data.edge_attr}
        check_batch(batch, GRAPH.edge_index, [4, 3], seeds=torch.arange(0, 200, 7)[i * 10 : i * 10 + 10], **given)


def test_workers_of_pygs_loader_draw_differently():
    """Each worker has a copy of the sampler; the same seeds in two workers must not mean the same picks."""
    data = GRAPH.to_data()
    sampler = NeighborSampler(data, [3], random_seed=1)
    seeds = torch.arange(100).repeat(2)
    first, second = NeighborLoader(data, [3], seeds, batch_size=100, num_workers=2, neighbor_sampler=sampler)
    assert torch.equal(first.n_id[:100], second.n_id[:100])
    assert not torch.equal(first.e_id, second.e_id)


def test_bad_arguments_are_named():
    dataset = GRAPH.to_dataset()
    sampler = NeighborSampler(dataset, [2], random_seed=0)
    for call, error, message in [
        (lambda: NeighborSampler(GRAPH.edge_index, [2]), TypeError, "data has type Tensor"),
        (lambda: NeighborSampler(dataset, [2], time_attr="t"), ValueError, "time_attr = 't': the dataset has no times"),
        (lambda: NeighborSampler(dataset, [2], weight_attr="w"), ValueError, "weight_attr = 'w': the dataset has no"),
        (lambda: NeighborSampler(dataset, [2], sample_direction="up"), ValueError, "sample_direction = 'up'"),
        (lambda: NeighborSampler(dataset, [2], sample_direction="backward"), ValueError, "its own direction"),
        (lambda: NeighborSampler(dataset, [2], num_threads=0), ValueError, "num_threads = 0"),
        (lambda: sample(sampler, [200]), IndexError, r"seeds\[0\] = 200 is outside \[0, 200\)"),
        (lambda: sample(sampler, [3, -1]), IndexError, r"seeds\[1\] = -1"),
        (lambda: sample(sampler, [1.0]), TypeError, "seeds has dtype torch.float32"),
        (lambda: sampler.sample_one_hop(torch.tensor([200]), 1), IndexError, r"seeds\[0\] = 200"),
        (lambda: sampler.sample_one_hop(torch.tensor([1]), -2), ValueError, r"num_neighbors\[0\] = -2"),
        (
            lambda: sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1]), torch.tensor([1]))),
            ValueError,
            "seed times",
        ),
        (lambda: sample(sampler, [1], batch_key=1.5), TypeError, "batch_key = 1.5: expected an integer"),
        (lambda: sampler.sample_one_hop(torch.tensor([1]), 1, batch_key=-1), ValueError, "batch_key = -1: expected"),
    ]:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("batch_key", [-1, 2**64, 1.5, "a", True])
def test_keys_of_draws_are_of_64_bits(batch_key):
    nodes, walks = NeighborSampler(GRAPH.to_data(), [2]), RandomWalkSampler(GRAPH.to_data(), 2)
    for call in (lambda: sample(nodes, [1], batch_key=batch_key), lambda: walks.walk([1], batch_key=batch_key)):
        with pytest.raises((TypeError, ValueError), match=rf"batch_key = {batch_key!r}: expected .* in \[0, 2\^64\)"):
            call()
    assert walks.walk([1], batch_key=np.uint64(2**64 - 1)).shape == (1, 3)


def test_times_of_seeds_are_integers():
    data = GRAPH.to_data()
    data.time = torch.arange(200)
    sampler = NeighborSampler(data, [2], time_attr="time")
    for time in (torch.ones(1, dtype=torch.bool), torch.ones(1), torch.tensor([2**63 + 5], dtype=torch.uint64)):
        with pytest.raises(TypeError, match=f"seed times has dtype {time.dtype}: expected integers, such as seconds"):
            sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1]), time))
