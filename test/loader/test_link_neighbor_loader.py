"""LinkNeighborLoader: PyG's batches, negatives that are none of the edges, edges to predict kept out."""

import pytest
import torch
from equal_batches import same
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader
from torch_geometric.sampler import NegativeSampling

import glt
from glt.data import Dataset
from glt.loader import LinkNeighborLoader
from glt.sampler import NeighborSampler
from glt.testing import random_graph, reference_batch
from glt.testing.batches import check_typed_batch

GRAPH = random_graph(200, 1500, seed=3)
DATA = GRAPH.to_data()
EDGES = set(map(tuple, GRAPH.edge_index.t().tolist()))
BUYS, REV, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")
NEGATIVES = [
    None,
    "binary",
    NegativeSampling("binary", 0.5),
    NegativeSampling("triplet", 1),
    NegativeSampling("triplet", 3),
]


def hetero_data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["user"].x = torch.arange(60)
    data["item"].x = torch.arange(90)
    data[BUYS].edge_index = torch.stack([torch.randint(0, n, (500,), generator=generator) for n in (60, 90)])
    data[REV].edge_index = data[BUYS].edge_index.flip(0)
    data[KNOWS].edge_index = torch.randint(0, 60, (2, 400), generator=generator)
    for edge_type in data.edge_types:
        data[edge_type].edge_attr = torch.arange(data[edge_type].num_edges)
    return data


HETERO = hetero_data()


def pairs(edges):
    return list(map(tuple, edges.t().tolist()))


def links_of(batch, neg_sampling, input_type=None):
    """Positives and negatives of a batch, as lists of pairs of global ids; checks their shape on the way."""
    links = batch if input_type is None else batch[input_type]
    src, dst = (batch, batch) if input_type is None else (batch[input_type[0]], batch[input_type[2]])
    num = len(links.input_id)
    if neg_sampling is not None and neg_sampling.is_triplet():
        assert "edge_label_index" not in links and "edge_label" not in links
        k = neg_sampling.amount
        assert dst.dst_neg_index.shape == ((num,) if k == 1 else (num, k))
        source, target = src.n_id[src.src_index], dst.n_id[dst.dst_pos_index]
        negative = dst.n_id[dst.dst_neg_index].view(num, k)
        return pairs(torch.stack([source, target])), pairs(
            torch.stack([source.repeat_interleave(k), negative.flatten()])
        )
    ends = torch.stack([src.n_id[links.edge_label_index[0]], dst.n_id[links.edge_label_index[1]]])
    return pairs(ends[:, :num]), pairs(ends[:, num:])


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("input_type", [None, BUYS, KNOWS], ids=str)
@pytest.mark.parametrize("neg_sampling", NEGATIVES, ids=str)
def test_batches_hold_their_links_and_no_false_negatives(neg_sampling, input_type, disjoint):
    config, data = NegativeSampling.cast(neg_sampling), DATA if input_type is None else HETERO
    edges = (data if input_type is None else data[input_type]).edge_index
    loader = LinkNeighborLoader(
        data, [4, 3], input_type, neg_sampling=neg_sampling, batch_size=100, shuffle=True, disjoint=disjoint
    )
    assert len(loader) == edges.shape[1] // 100 and str(loader) == "LinkNeighborLoader()"
    seen = []
    for batch in loader:
        assert type(batch) is type(data) and "batch_size" not in batch
        check_typed_batch(batch, data, 2)
        links = batch if input_type is None else batch[input_type]
        positives, negatives = links_of(batch, config, input_type)
        assert positives == pairs(edges[:, links.input_id])
        assert len(negatives) == (0 if config is None else -(-len(positives) * config.amount // 1))
        assert not set(pairs(edges)) & set(negatives)
        if config is not None and config.is_binary():
            assert links.edge_label.tolist() == [1.0] * len(positives) + [0.0] * len(negatives)
        assert all(("batch" in store) == disjoint for store in batch.node_stores)
        if input_type is None and disjoint:
            assert int(batch.batch.max()) == len(positives) - 1
        elif input_type is None:
            ends = {node for pair in positives + negatives for node in pair}
            assert batch.n_id[: batch.num_sampled_nodes[0]].tolist() == sorted(ends)
        else:
            assert getattr(batch, "input_type", input_type) == input_type  # torch_geometric 2.6 does not say
        seen.append(links.input_id)
    assert torch.equal(torch.cat(seen).sort()[0], torch.arange(edges.shape[1]))


def test_the_neighbourhoods_are_those_of_the_reference():
    loader = LinkNeighborLoader(DATA, [4, 3], batch_size=50, random_seed=17)
    for epoch in range(2):
        for index, batch in enumerate(loader):
            seeds = batch.n_id[: batch.num_sampled_nodes[0]]
            assert torch.equal(seeds, GRAPH.edge_index[:, batch.input_id].unique())
            expected = reference_batch(
                GRAPH.edge_index, 200, seeds.tolist(), [4, 3], random_seed=17, epoch=epoch, index=index
            )
            assert batch.n_id.tolist() == expected.node.tolist() and batch.e_id.tolist() == expected.edge.tolist()


@pytest.mark.parametrize("input_type", [None, BUYS], ids=str)
def test_workers_threads_and_set_epoch_change_nothing(input_type):
    data = DATA if input_type is None else HETERO
    options = {"neg_sampling": "binary", "batch_size": 90, "shuffle": True, "random_seed": 5}
    options["exclude_edges"] = "reverse"
    loader = LinkNeighborLoader(data, [4, 3], input_type, **options)
    next(iter(loader))
    expected = list(loader)
    others = [
        LinkNeighborLoader(data, [4, 3], input_type, num_workers=2, **options),
        LinkNeighborLoader(data, [4, 3], input_type, num_threads=3, filter_per_worker=False, **options),
    ]
    for other in others:
        other.set_epoch(1)
        assert all(same(a, b) for a, b in zip(expected, other, strict=True))


@pytest.mark.parametrize("neg_sampling", NEGATIVES, ids=str)
def test_every_attribute_of_pygs_batches_is_there(neg_sampling):
    label = None if getattr(neg_sampling, "mode", None) == NegativeSampling("triplet").mode else torch.arange(1500) % 3
    options = {"neg_sampling": neg_sampling, "edge_label": label, "batch_size": 50, "input_id": torch.arange(1500) + 7}
    ours = next(iter(LinkNeighborLoader(DATA, [-1], **options)))
    sampler = NeighborSampler(DATA, [-1])
    theirs = next(iter(PygLinkNeighborLoader(DATA, [-1], neighbor_sampler=sampler, **options)))
    assert ours.keys() == theirs.keys()
    for key, value in ours:
        assert type(value) is type(theirs[key])
        assert not isinstance(value, torch.Tensor) or value.dtype == theirs[key].dtype
    assert ours.input_id.tolist() == list(range(7, 57))
    if neg_sampling is not None and label is not None:
        assert torch.equal(ours.edge_label[:50], label[:50] + 1) and not ours.edge_label[50:].any()


@pytest.mark.parametrize("exclude", ["self", "reverse"])
def test_seed_edges_are_kept_out_and_others_take_their_place(exclude):
    both_ways = Data(edge_index=torch.cat([GRAPH.edge_index, GRAPH.edge_index.flip(0)], dim=1), num_nodes=200)
    loader = LinkNeighborLoader(
        both_ways, [3, -1], GRAPH.edge_index, batch_size=30, exclude_edges=exclude, neg_sampling="binary"
    )
    for batch in loader:
        excluded = set(pairs(GRAPH.edge_index[:, batch.input_id]))
        if exclude == "reverse":
            excluded |= {(d, s) for s, d in excluded}
        left = [edge for edge in pairs(both_ways.edge_index) if edge not in excluded]
        found = batch.n_id[batch.edge_index]
        assert not excluded & set(pairs(found))
        degree = torch.bincount(torch.tensor(left).t()[1], minlength=200)
        taken = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        seeds = batch.num_sampled_nodes[0]
        assert torch.equal(taken[:seeds], degree[batch.n_id[:seeds]].clamp(max=3))
        last = slice(seeds, sum(batch.num_sampled_nodes[:2]))
        assert torch.equal(taken[last], degree[batch.n_id[last]])


@pytest.mark.parametrize("exclude", ["self", "reverse", REV], ids=str)
def test_reverse_edge_types_are_kept_out_too(exclude):
    loader = LinkNeighborLoader(HETERO, [-1, -1], BUYS, batch_size=40, exclude_edges=exclude)
    for batch in loader:
        ends = HETERO[BUYS].edge_index[:, batch[BUYS].input_id]
        found = {
            t: set(
                pairs(torch.stack([batch[t[0]].n_id[batch[t].edge_index[0]], batch[t[2]].n_id[batch[t].edge_index[1]]]))
            )
            for t in (BUYS, REV)
        }
        assert not set(pairs(ends)) & found[BUYS]
        if exclude == "self":
            assert set(pairs(ends.flip(0))) <= found[REV]
        else:
            assert not set(pairs(ends.flip(0))) & found[REV]


def test_datasets_give_the_batches_of_their_data():
    options = {"neg_sampling": "binary", "batch_size": 100, "random_seed": 1}
    for data, input_type in ((DATA, None), (HETERO, BUYS)):
        theirs = LinkNeighborLoader(data, [3, 2], input_type, **options)
        ours = LinkNeighborLoader(Dataset.from_pyg(data), [3, 2], input_type, **options)
        for a, b in zip(ours, theirs, strict=True):
            for store, other in zip(a.stores, b.stores, strict=True):
                for key in ("n_id", "e_id", "edge_index", "edge_label_index", "x", "edge_attr"):
                    assert (key in store) == (key in other)
                    assert key not in store or torch.equal(store[key], other[key])
    dataset = Dataset.from_pyg(HETERO)
    assert len(LinkNeighborLoader(dataset, [1], ("user", "item"), batch_size=100)) == 5
    assert len(LinkNeighborLoader(dataset, [1], (KNOWS, torch.zeros(2, 7, dtype=torch.long)), batch_size=5)) == 2
    with pytest.raises(ValueError, match="edge_label_index has no edge type, but is None: expected"):
        LinkNeighborLoader(dataset, [1])
    with pytest.raises(ValueError, match=r"names edge type \('user', 'likes', 'item'\): expected one of"):
        LinkNeighborLoader(dataset, [1], ("user", "likes", "item"))


@pytest.mark.parametrize("neg_sampling", NEGATIVES, ids=str)
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_nothing_in_a_batch_is_later_than_its_link(strategy, neg_sampling):
    time = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    data = Data(edge_index=GRAPH.edge_index, time=time, num_nodes=200)
    # Late enough for some node to be no neighbour, and not before the ends themselves.
    label_time = time[GRAPH.edge_index].max(dim=0).values + 20
    options = {"temporal_strategy": strategy, "batch_size": 75, "neg_sampling": neg_sampling}
    loader = LinkNeighborLoader(data, [5, 5], edge_label_time=label_time, time_attr="time", **options)
    for batch in loader:
        late = label_time[batch.input_id]
        assert (batch.time <= late[batch.batch]).all()
        assert not EDGES & set(links_of(batch, NegativeSampling.cast(neg_sampling))[1])
        times = batch.seed_time if "seed_time" in batch else batch.edge_label_time
        assert torch.equal(times[: len(late)], late)


def test_an_edge_type_without_edges_in_the_graph():
    data = HeteroData(user={"num_nodes": 30}, item={"num_nodes": 40})
    edges = torch.randint(0, 30, (2, 50))
    loader = LinkNeighborLoader(data, [], (BUYS, edges), batch_size=20, neg_sampling="triplet", exclude_edges="reverse")
    for batch in loader:
        assert torch.equal(batch["user"].n_id[batch["user"].src_index], edges[0, batch[BUYS].input_id])
        assert len(batch["item"].dst_neg_index) == len(batch[BUYS].input_id)


def test_a_graph_without_edges_and_a_batch_without_hops():
    ends = torch.randint(0, 9, (2, 20))
    for data, num_neighbors in ((Data(num_nodes=9), [2]), (Data(num_nodes=9), []), (DATA, [])):
        for batch in LinkNeighborLoader(data, num_neighbors, ends, batch_size=8, neg_sampling="binary"):
            assert torch.equal(batch.n_id[batch.edge_label_index[:, : len(batch.input_id)]], ends[:, batch.input_id])
            assert batch.num_nodes == batch.edge_label_index.unique().numel()


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("neg_sampling", NEGATIVES, ids=str)
def test_a_batch_sampler_may_give_an_empty_batch(neg_sampling, disjoint):
    options = {"neg_sampling": neg_sampling, "disjoint": disjoint, "batch_sampler": [[0, 1], [], [3]]}
    loader = LinkNeighborLoader(DATA, [2], **options)
    assert [batch.input_id.tolist() for batch in loader] == [[0, 1], [], [3]]


def test_transforms_and_direct_calls():
    options = {"transform": lambda data: data.update({"seen": True}), "random_seed": 0, "neg_sampling_ratio": 1.0}
    loader = LinkNeighborLoader(DATA, [2], batch_size=10, **options)
    batch = loader([3, 4])
    assert batch.seen and batch.input_id.tolist() == [3, 4] and len(batch.edge_label) == 4
    assert not torch.equal(loader([3, 4]).n_id, batch.n_id), "each call draws anew"
    weight = torch.zeros(200)
    weight[5] = 1
    neg_sampling = {"mode": "triplet", "amount": 2, "dst_weight": weight}
    source = torch.tensor([[n for n in range(200) if (n, 5) not in EDGES][:8]])
    loader = LinkNeighborLoader(DATA, [2], source.expand(2, -1), neg_sampling=neg_sampling, batch_size=8)
    batch = next(iter(loader))
    assert (batch.n_id[batch.dst_neg_index] == 5).all()


LINK = torch.tensor([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"edge_label_index": torch.tensor([[0, 200], [1, 1]])}, IndexError, r"index\[0, 1\] = 200 is outside"),
        ({"edge_label_index": torch.tensor([[0, 1], [-1, 1]])}, IndexError, r"index\[1, 0\] = -1 is outside"),
        ({"edge_label": torch.ones(3)}, ValueError, "edge_label has 3 elements: expected one per seed, 2"),
        ({"input_id": torch.ones(3)}, ValueError, "input_id has 3 elements"),
        ({"edge_label_time": torch.ones(2)}, ValueError, "'edge_label_time' is set and 'time_attr' is not set"),
        ({"time_attr": "y"}, ValueError, "'time_attr' is set and 'edge_label_time' is not set"),
        ({"time_attr": "y", "edge_label_time": torch.ones(2)}, TypeError, "edge_label_time has dtype torch.float32"),
        ({"time_attr": "y", "edge_label_time": torch.ones(3, dtype=int)}, ValueError, r"_time has shape \[3\]"),
        ({"neg_sampling": {"mode": "binary", "src_weight": torch.ones(3)}}, ValueError, "src_weight of neg_sampl"),
        ({"neg_sampling": "triplet", "edge_label": torch.ones(2)}, ValueError, "'edge_label' needs to be undefined"),
        ({"exclude_edges": "all"}, ValueError, "exclude_edges = 'all': expected one of"),
        ({"exclude_edges": "self", "subgraph_type": "induced"}, ValueError, "exclude_edges = 'self' and subgraph_type"),
        ({"num_threads": 0}, ValueError, "num_threads = 0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(DATA, [2], **{"edge_label_index": LINK, **options})


def test_a_sampler_that_is_brought_must_agree():
    sampler = NeighborSampler(DATA, [2], exclude_edges="self", random_seed=3)
    assert LinkNeighborLoader(DATA, [2], LINK, neighbor_sampler=sampler).random_seed == 3
    with pytest.raises(ValueError, match="exclude_edges = 'reverse', but neighbor_sampler was made with 'self'"):
        LinkNeighborLoader(DATA, [2], LINK, neighbor_sampler=sampler, exclude_edges="reverse")


@pytest.mark.parametrize(
    ("edges", "error", "words"),
    [
        (torch.zeros(3, 5, dtype=torch.int64), ValueError, r"shape \[3, 5\]: expected \[2, B\]"),
        (torch.zeros(5, 2, dtype=torch.int64), ValueError, r"shape \[5, 2\]: expected \[2, B\]"),
        (torch.zeros(5, dtype=torch.int64), ValueError, r"shape \[5\]: expected \[2, B\]"),
        (torch.full((2, 5), 1.5), TypeError, "dtype torch.float32: expected integer ids"),
    ],
)
def test_seed_edges_that_are_no_pairs_of_ids(edges, error, words):
    for data, given in ((DATA, edges), (HETERO, (BUYS, edges)), (Dataset.from_pyg(HETERO), (BUYS, edges))):
        with pytest.raises(error, match=f"edge_label_index has {words}"):
            LinkNeighborLoader(data, [2], given)


def test_seed_edges_and_the_types_of_the_graph():
    edges = torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="edge_label_index names an edge type, but the graph has none"):
        LinkNeighborLoader(DATA, [2], (BUYS, edges))
    for data in (HETERO, Dataset.from_pyg(HETERO)):
        for given in (None, edges, ("user", "sells", "item")):
            with pytest.raises(ValueError, match=r"edge_label_index .*expected .*'buys'"):
                LinkNeighborLoader(data, [2], given)


def test_labels_and_times_may_be_lists():
    labels = list(range(1, 1501))
    for given in (labels, torch.tensor(labels).numpy()):
        batch = next(iter(LinkNeighborLoader(DATA, [2], edge_label=given, batch_size=3)))
        assert batch.edge_label.tolist() == [1, 2, 3]


def test_reverses_of_an_edge_type_that_the_graph_lacks_are_not_left_in_silently():
    edges = torch.zeros(2, 5, dtype=torch.int64)
    for exclude in ("reverse", REV):
        with pytest.raises(ValueError, match=r"exclude_edges = .*'sells'.* is no edge type of the graph"):
            LinkNeighborLoader(HETERO, [2], (("user", "sells", "item"), edges), exclude_edges=exclude)
    LinkNeighborLoader(HETERO, [2], (("user", "sells", "item"), edges), exclude_edges="self")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.complex64])
def test_labels_that_cannot_go_up_by_one_are_refused_where_they_may_have_to(dtype):
    given = {"edge_label_index": torch.tensor([[0, 1], [2, 3]]), "edge_label": torch.ones(2).to(dtype)}
    with pytest.raises(TypeError, match=f"edge_label has dtype {dtype}: with neg_sampling expected one of bool, uint8"):
        LinkNeighborLoader(DATA, [2], **given, neg_sampling="binary")
    try:
        _ = given["edge_label"][torch.tensor([0])]  # as torch_geometric does
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")
    (batch,) = LinkNeighborLoader(DATA, [2], **given, batch_size=2)
    assert batch.edge_label.dtype == dtype


def test_ends_may_be_keys(tmp_path):
    raw = [f"user {i}" for i in range(40)]
    keys = glt.data.KeyMap.write(tmp_path / "keys", {"name": "text"}, lambda: iter([[raw]]))
    data = glt.Dataset.from_arrays(glt.testing.ring_graph().edge_index, node_keys=keys)
    given = {"data": data, "num_neighbors": [2], "batch_size": 4, "random_seed": 0}
    one = next(iter(glt.LinkNeighborLoader(edge_label_index=(raw[:4], raw[8:12]), **given)))
    other = next(iter(glt.LinkNeighborLoader(edge_label_index=torch.tensor([range(4), range(8, 12)]), **given)))
    assert torch.equal(one.n_id, other.n_id) and torch.equal(one.edge_label_index, other.edge_label_index)
    with pytest.raises(KeyError, match="'nobody' is no key"):
        glt.LinkNeighborLoader(edge_label_index=(["nobody"], raw[:1]), **given)
