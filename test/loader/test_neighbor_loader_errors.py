"""What NeighborLoader refuses, and the words it does so with."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DynamicBatchSampler
from torch_geometric.sampler import NegativeSampling

from glt import _core
from glt.data import Dataset, Topology
from glt.data.stores import DatasetFeatureStore, DatasetGraphStore
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.sampler import NeighborSampler
from glt.testing import ring_graph

DATA = ring_graph(40, 3).to_data()
TIMED = ring_graph(40, 3).to_data()
TIMED.time, TIMED.edge_time, TIMED.edge_weight = torch.arange(40), torch.arange(120), torch.rand(120)


TIME = torch.arange(40)
EDGES = torch.zeros(2, 9, dtype=torch.int64)


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"subgraph_type": "induced", "time_attr": "time"}, "subgraph_type = 'induced'", "time_attr = 'time'"),
        ({"weight_attr": "edge_weight", "time_attr": "time"}, "weight_attr = 'edge_weight'", "time_attr = 'time'"),
        ({"temporal_strategy": "last"}, "temporal_strategy = 'last'", "'time_attr' is not set"),
        ({"input_time": TIME}, "'input_time' is set", "'time_attr' is not set"),
        ({"time_attr": "edge_time"}, "time_level = 'edge'", "'input_time' is not set"),
        ({"directed": False, "subgraph_type": "bidirectional"}, "directed = False", "subgraph_type = 'bidirectional'"),
    ],
    ids=str,
)
def test_options_that_exclude_each_other_are_both_named(options, first, second):
    with pytest.raises(ValueError, match=f"{first} and {second}: "):
        NeighborLoader(TIMED, [2], **options)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_options_at_their_defaults_are_accepted(is_sorted):
    """Scripts that spell PyG's defaults out must run; is_sorted only ever saved PyG a sort."""
    options = dict.fromkeys(["input_time", "time_attr", "weight_attr"])
    options |= {"disjoint": False, "subgraph_type": "directional", "temporal_strategy": "uniform", "directed": True}
    assert next(iter(NeighborLoader(DATA, [2], **options, is_sorted=is_sorted))).batch_size == 1


HETERO = HeteroData()
HETERO["a"].x = torch.zeros(4, 2)
HETERO["a", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])


def test_seeds_without_times_are_named():
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes, data["b"].time = 4, 3, torch.arange(3)
    data["b", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="input_time is not given and 'a' nodes have no time"):
        NeighborLoader(data, [2], "a", time_attr="time")


def test_bad_arguments_are_named():
    for arguments, options, error, message in [
        ((HETERO, [2]), {}, ValueError, r"input_nodes is None: expected one of the node types \['a'\]"),
        ((HETERO, [2], "b"), {}, ValueError, "input_nodes is of type 'b': expected one of"),
        ((HETERO, {("a", "to", "b"): [2]}, "a"), {}, ValueError, "Not all edge types specified in 'num_neighbors'"),
        ((DATA.edge_index, [2]), {}, TypeError, "data has type Tensor"),
        ((DATA, [2]), {"time_attr": "when"}, ValueError, "time_attr = 'when'"),
        ((DATA, [2]), {"weight_attr": "w"}, KeyError, "weight_attr = 'w'"),
        ((DATA, [2]), {"temporal_strategy": "first"}, ValueError, "temporal_strategy = 'first': expected one of"),
        ((DATA, [2]), {"subgraph_type": "directed"}, ValueError, "subgraph_type = 'directed': expected one of"),
        ((TIMED, [2]), {"time_attr": "time", "input_time": TIME[1:]}, ValueError, r"input_time has shape \[39\]"),
        ((DATA, 2), {}, TypeError, "num_neighbors = 2"),
        ((DATA, [2, -2]), {}, ValueError, r"num_neighbors\[1\] = -2"),
        ((DATA, [2]), {"random_seed": -1}, ValueError, "random_seed = -1"),
        ((DATA, [2]), {"random_seed": 0.5}, TypeError, "random_seed = 0.5"),
        ((ring_graph(40, 3).to_dataset("out"), [5]), {}, ValueError, "edge_dir='in'"),
        ((DATA, [2]), {"no_such_option": 1}, TypeError, "no_such_option"),
        ((DATA, [2]), {"neighbor_sampler": 3}, TypeError, "neighbor_sampler has type int: expected a PyG BaseSampler"),
        ((DATA, [2], torch.tensor([1, -1])), {}, IndexError, r"\[1\] = -1 is outside \[0, 40\)"),
        ((DATA, [2], torch.tensor([1, 40])), {}, IndexError, r"\[1\] = 40 is outside \[0, 40\)"),
        (
            (Data(x=torch.zeros(3, 1), edge_index=EDGES + 3), [2]),
            {},
            IndexError,
            r"index\[1\]\[0\] = 3 is outside \[0, 3\)",
        ),
        (
            (TIMED, [2]),
            {"time_attr": "time", "input_time": TIME.float()},
            TypeError,
            "input_time has dtype torch.float",
        ),
        (
            (TIMED, [2]),
            {"time_attr": "time", "input_time": TIME.to(torch.uint64)},
            TypeError,
            "input_time has dtype torch.uint64: expected integers, such as seconds",
        ),
        (
            (TIMED, [2]),
            {"time_attr": "time", "input_time": [True] * 40},
            TypeError,
            "input_time has dtype torch.bool: expected integers, such as seconds",
        ),
        (
            (TIMED, [2]),
            {"time_attr": "time", "input_time": {0: 1}},
            TypeError,
            "input_time is a dict that is no tensor",
        ),
        ((DATA, [2]), {"sampler": b"labor"}, TypeError, "sampler = b'labor': expected the order of seeds"),
        (
            (DATA, [2], TIME[:3]),
            {"input_id": TIME[:1]},
            ValueError,
            "input_id has 1 elements: expected one per seed, 3",
        ),
    ]:
        with pytest.raises(error, match=message):
            NeighborLoader(*arguments, **options)
    loader = NeighborLoader(DATA, [2])
    for epoch in (-1, 2**32 - 1):
        with pytest.raises(ValueError, match=f"epoch = {epoch}"):
            loader.set_epoch(epoch)


def test_times_of_seeds_are_lists_and_arrays_too():
    (wanted,) = NeighborLoader(TIMED, [2], input_time=TIME, time_attr="time", batch_size=40, random_seed=1)
    for times in (TIME.tolist(), TIME.numpy()):
        (batch,) = NeighborLoader(TIMED, [2], input_time=times, time_attr="time", batch_size=40, random_seed=1)
        assert torch.equal(batch.n_id, wanted.n_id) and torch.equal(batch.seed_time, TIME)


def test_an_order_whose_length_is_not_known():
    """PyG's sampler by size says how many batches there are when they have come."""
    loader = NeighborLoader(DATA, [2], batch_sampler=DynamicBatchSampler([DATA] * 40, 3 * DATA.num_nodes))
    assert repr(loader).startswith("NeighborLoader(in this process, batches, 40 seeds")
    assert sum(batch.batch_size for batch in loader) == 40


def test_a_fan_out_that_the_sampler_does_not_have_is_refused():
    sampler = NeighborSampler(DATA, [3, 2])
    with pytest.raises(ValueError, match=r"num_neighbors = \[3\], but neighbor_sampler was made with \[3, 2\]"):
        NeighborLoader(DATA, [3], neighbor_sampler=sampler)
    for option, value, made_with in [
        ("replace", True, False),
        ("disjoint", True, False),
        ("subgraph_type", "bidirectional", "'directional'"),
        ("time_attr", "time", None),
    ]:
        with pytest.raises(ValueError, match=f"{option} = {value!r}, but neighbor_sampler was made with {made_with}"):
            NeighborLoader(TIMED, [3, 2], neighbor_sampler=sampler, **{option: value})
    assert next(iter(NeighborLoader(DATA, [3, 2], neighbor_sampler=sampler))).batch_size == 1


@pytest.mark.parametrize("num_threads", [0, -1, True, 1.5, "2", None])
def test_num_threads_is_checked_when_given(num_threads):
    with pytest.raises(ValueError, match=f"num_threads = {num_threads!r}: expected an integer of at least 1"):
        NeighborLoader(DATA, [2], num_threads=num_threads)


@pytest.mark.parametrize(
    ("input_nodes", "error", "words"),
    [
        (torch.tensor([1.5]), TypeError, "dtype torch.float32: expected integer ids"),
        ([1.5], TypeError, "dtype torch.float32: expected integer ids"),
        (torch.tensor([[1, 2]]), ValueError, r"shape \[1, 2\]: expected one dimension"),
        (3, ValueError, r"shape \[\]: expected one dimension"),
        ("paper", ValueError, "'paper' names a node type, but the graph has none"),
        (("paper", torch.arange(3)), ValueError, "names a node type, but the graph has none"),
    ],
)
def test_seeds_that_are_no_ids(input_nodes, error, words):
    with pytest.raises(error, match=f"input_nodes.*{words}"):
        NeighborLoader(DATA, [2], input_nodes)


def test_a_mask_that_is_no_tensor_is_a_mask():
    mask = torch.zeros(40, dtype=torch.bool)
    mask[[3, 7]] = True
    for given in (mask.numpy(), mask.tolist()):
        (batch,) = NeighborLoader(DATA, [2], given, batch_size=9)
        assert batch.n_id[:2].tolist() == batch.input_id.tolist() == [3, 7]


def test_a_bare_graph_is_to_be_wrapped():
    graph = Dataset.from_pyg(DATA).graph
    for loader in (NeighborLoader, LinkNeighborLoader):
        with pytest.raises(TypeError, match=r"data is a glt Graph.*Dataset\(graph\)"):
            loader(graph, [2])
        with pytest.raises(TypeError, match=r"data is a dict, .*loaders take a HeteroData, or a glt Dataset"):
            loader({("a", "to", "b"): graph}, [2])
    with pytest.raises(TypeError, match=r"graph is a dict: expected a Graph; .*from_arrays"):
        Dataset({("a", "to", "b"): graph})
    assert len(NeighborLoader(Dataset(graph), [2])) == 40


def test_a_sampler_made_from_another_graph_is_refused():
    other = ring_graph(41, 3).to_data()
    fewer = Data(x=DATA.x, edge_index=DATA.edge_index[:, :100])
    hetero = HeteroData()
    hetero["a"].num_nodes, hetero["b"].num_nodes = 4, 3
    hetero["a", "to", "a"].edge_index = HETERO["a", "a"].edge_index
    for data, made_from, words in [
        (DATA, other, "41 nodes, data has 40"),
        (DATA, fewer, "100 edges, data has 120"),
        (Dataset.from_pyg(DATA), other, "41 nodes, data has 40"),
        (DATA, HETERO, r"nodes of the types \['a'\], data of \['node'\]"),
        (HETERO, hetero, r"nodes of the types \['a', 'b'\], data of \['a'\]"),
        (Dataset.from_pyg(HETERO), hetero, r"nodes of the types \['a', 'b'\], data of \['a'\]"),
    ]:
        sampler = NeighborSampler(made_from, [2])
        with pytest.raises(ValueError, match=f"neighbor_sampler was made from another graph than data: it has {words}"):
            NeighborLoader(data, [2], neighbor_sampler=sampler)
        with pytest.raises(ValueError, match=f"neighbor_sampler was made from another graph than data: it has {words}"):
            LinkNeighborLoader(data, [2], neighbor_sampler=sampler)
    features = Data(x=DATA.x)  # says nothing of edges
    assert next(iter(NeighborLoader(features, [2], neighbor_sampler=NeighborSampler(DATA, [2])))).num_nodes > 1
    stores = Dataset.from_pyg(HETERO)
    pair = (DatasetFeatureStore(stores), DatasetGraphStore(stores))
    sampler = NeighborSampler(HETERO, [2])
    assert len(NeighborLoader(pair, [2], "a", neighbor_sampler=sampler)) == 4
    more = hetero.clone()
    more["a", "at", "b"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="from another graph than data: it has edges of the types"):
        NeighborLoader(pair, [2], "a", neighbor_sampler=NeighborSampler(more, [2]))


def test_nothing_at_all_is_refused_by_name():
    for call, error, words in [
        (lambda: Topology(None), TypeError, r"edge_index is a NoneType: expected .*torch.empty\(2, 0"),
        (lambda: Topology([None, None]), TypeError, "edge_index: the sources are a NoneType, expected ids"),
        (lambda: Dataset.from_arrays(None), TypeError, "edge_index is a NoneType: expected"),
        (lambda: Dataset.from_arrays({("a", "to", "b"): 5}), TypeError, "'b'.: edge_index is a int: expected"),
        (lambda: NeighborLoader(Data(), [2]), ValueError, "data has nothing in it, .* set data.num_nodes"),
        (lambda: NeighborLoader(Data(name="g"), [2]), ValueError, r"data has \['name'\], which does not tell the num"),
        (lambda: LinkNeighborLoader(Data(), [2], EDGES), ValueError, "data has nothing in it"),
        (lambda: NeighborSampler(Data(), [2]), ValueError, "data has nothing in it"),
        (lambda: NeighborLoader(DATA, [2], batch_size=None), ValueError, "batch_size = None: expected an integer"),
        (lambda: LinkNeighborLoader(DATA, [2], batch_size=2.5), ValueError, "batch_size = 2.5: expected an integer"),
        (lambda: links(float("nan")), ValueError, "amount of neg_sampling = nan: expected a number above 0"),
        (lambda: links(float("inf")), ValueError, "amount of neg_sampling = inf: expected a number above 0"),
        (lambda: links(1e9), ValueError, r"amount .* = 1e\+09: .* below 2\^31 negatives in a batch of 8"),
        (
            lambda: LinkNeighborLoader(DATA, [2], EDGES, disjoint=True, subgraph_type="induced"),
            ValueError,
            "subgraph_type = 'induced' and disjoint = True: each end of a link",
        ),
        (lambda: LinkNeighborLoader(DATA, [2], EDGES, neg_sampling="some"), ValueError, "neg_sampling = 'some': exp"),
    ]:
        with pytest.raises(error, match=words):
            call()
    alone = Data(num_nodes=3)
    assert len(list(NeighborLoader(alone, [2]))) == 3


def links(amount):
    return LinkNeighborLoader(DATA, [2], EDGES, neg_sampling=NegativeSampling("binary", amount), batch_size=8)


def test_draws_with_replacement_are_bounded():
    most = 2**20
    for make in (
        lambda count: NeighborLoader(DATA, [2, count], replace=True),
        lambda count: NeighborSampler(DATA, [2, count], replace=True),
        lambda count: setattr(NeighborSampler(DATA, [2, 2], replace=True), "num_neighbors", [2, count]),
    ):
        make(most)
        with pytest.raises(ValueError, match=rf"num_neighbors\[1\] = {most + 1} and replace = True: .* at most {most}"):
            make(most + 1)
    with pytest.raises(ValueError, match=r"num_neighbors\[\('a', 'to', 'a'\)\]\[0\] = 2147483647 and replace = True"):
        NeighborLoader(HETERO, {("a", "to", "a"): [2**31 - 1]}, "a", replace=True)
    with pytest.raises(ValueError, match="= 2147483647 and replace = True"):
        NeighborSampler(DATA, [2], replace=True).sample_one_hop(torch.arange(3), 2**31 - 1)
    assert next(iter(NeighborLoader(DATA, [2**31 - 1]))).num_nodes > 1  # a degree bounds it


def test_memory_that_runs_out_is_said_of_the_batch(monkeypatch):
    def no_room(*args):
        raise MemoryError("std::bad_alloc")

    loader = NeighborLoader(DATA, [2, 3], torch.arange(30), batch_size=20, replace=True)
    monkeypatch.setattr(_core, "Batch", lambda *args: SimpleNamespace(start=no_room))
    with pytest.raises(MemoryError, match=r"batch around 20 seeds with num_neighbors = .*2, 3.* replace = True: use"):
        next(iter(loader))


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
def test_a_second_thread_is_refused_while_a_batch_is_made_for_the_first(kind):
    told = []

    def ask(act):
        with pytest.raises(RuntimeError, match=r"thread 'second' asks .* while thread 'MainThread' .*one for each"):
            act()
        told.append(act)

    def transform(batch):
        for act in (lambda: iter(loader), lambda: next(batches)):
            thread = threading.Thread(target=ask, args=(act,), name="second")
            thread.start()
            thread.join(60)
        assert len(list(NeighborLoader(DATA, [2], batch_size=20))) == 2, "another loader is free"
        return batch

    loader = kind(DATA, [2], batch_size=20, transform=transform)
    batches = iter(loader)
    assert len(list(batches)) == len(loader) and len(told) == 2 * len(loader)
    loader.transform = None
    with ThreadPoolExecutor(1) as pool:  # one after the other they may
        assert len(pool.submit(list, loader).result(60)) == len(list(loader)) == len(loader)
