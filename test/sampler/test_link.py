"""Seeds that are links."""

import pickle

import pytest
import torch
from covering import covering
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling, SamplerOutput
from torch_geometric.sampler import neighbor_sampler as pyg

from glt.data import Dataset
from glt.data.schema import Schema
from glt.sampler import NeighborSampler
from glt.sampler.link import find_reverse, link_batch
from glt.sampler.negatives import num_negatives
from glt.testing import random_graph

TWO_TYPES = Schema(
    ("user", "item"),
    (("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user"), ("user", "rev_knows", "user"),
     ("user", "likes", "user"), ("item", "near", "item"), ("user", "rates", "item")),
)  # fmt: skip
NUM_NODES = 40


def edges(num, label=None, time=None, input_type=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    row, col = torch.randint(0, NUM_NODES, (2, num), generator=generator)
    input_id = torch.randperm(num, generator=generator)
    return EdgeSamplerInput(input_id, row, col, label, time, input_type)


def pyg_batch(monkeypatch, index, disjoint, neg_sampling, negatives):
    """PyG's seeds, seed times and output for the same negatives; what it samples with finds nothing."""
    asked = {}

    def sample(seed, seed_time):
        asked["seed"], asked["time"] = seed, seed_time
        if not isinstance(seed, dict):
            return SamplerOutput(seed, None, None, None, batch=torch.arange(len(seed)))
        offset, trees = 0, {}
        for key, node in seed.items():
            trees[key] = torch.arange(offset, offset + len(node))
            offset += len(node)
        return HeteroSamplerOutput(seed, {}, {}, {}, batch=trees)

    if negatives is not None:
        values = {"src": negatives[0], "dst": negatives[1]}
        if neg_sampling.is_triplet() and disjoint:  # PyG numbers them the other way round when they are trees
            values["dst"] = values["dst"].view(len(index.row), -1).t().flatten()
        monkeypatch.setattr(pyg, "neg_sample", lambda *args, endpoint: values[endpoint])
    num_nodes = NUM_NODES if index.input_type is None else {"user": NUM_NODES, "item": NUM_NODES}
    out = pyg.edge_sample(index, sample, num_nodes, disjoint, None, neg_sampling)
    return asked["seed"], asked["time"], out


CASES = [None, ("binary", 1), ("binary", 2), ("binary", 0.5), ("binary", 2.3), ("triplet", 1), ("triplet", 3)]


@covering(
    input_type=[None, ("user", "buys", "item"), ("user", "knows", "user")],
    mode=["union", "disjoint", "temporal"],
    case=CASES,
)
def test_seeds_and_metadata_are_pygs(monkeypatch, case, mode, input_type):
    neg_sampling = None if case is None else NegativeSampling(*case)
    for num_pos in (1, 6):
        time = torch.arange(num_pos) * 10 if mode == "temporal" else None
        labels = [None, torch.arange(1, num_pos + 1), torch.rand(num_pos), torch.rand(num_pos, 3)]
        for label in labels[:1] if case and case[0] == "triplet" else labels:
            index = edges(num_pos, label, time, input_type)
            check_against_pyg(monkeypatch, index, neg_sampling, mode != "union")


def check_against_pyg(monkeypatch, index, neg_sampling, disjoint):
    triplet = neg_sampling is not None and neg_sampling.is_triplet()
    negatives = None
    if neg_sampling is not None:
        src, dst = torch.randint(0, NUM_NODES, (2, num_negatives(neg_sampling, len(index.row))))
        negatives = (None if triplet else src, dst)
    seed, seed_time, out = pyg_batch(monkeypatch, index, disjoint, neg_sampling, negatives)

    ends = (0, 0) if index.input_type is None else tuple(TWO_TYPES.node_index(t) for t in index.input_type[::2])
    batch = link_batch(index, ends, disjoint, neg_sampling, negatives)
    expected = list(seed.values()) if isinstance(seed, dict) else [seed]
    assert [t for t, _ in batch.seeds] == list(dict.fromkeys(ends))
    assert all(torch.equal(ours, theirs) for (_, ours), theirs in zip(batch.seeds, expected, strict=True))
    metadata = batch.metadata(index.input_id, neg_sampling)
    assert len(metadata) == len(out.metadata)
    for ours, theirs in zip(metadata, out.metadata, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == theirs.dtype and torch.equal(ours, theirs))
    if not disjoint:
        assert batch.example is None and batch.seed_time is None
    elif neg_sampling is None or float(neg_sampling.amount).is_integer():
        # With other amounts PyG's numbers drift apart: the two ends of one link belong to two examples.
        trees = list(out.batch.values()) if isinstance(out.batch, dict) else [out.batch]
        assert torch.equal(batch.example, torch.cat(trees))
    if index.time is not None:
        times = list(seed_time.values()) if isinstance(seed_time, dict) else [seed_time]
        assert torch.equal(batch.seed_time, torch.cat(times))


@pytest.mark.parametrize("input_type", [None, ("user", "buys", "item")], ids=str)
def test_both_ends_of_a_link_belong_to_the_same_example(input_type):
    ends = (0, 0) if input_type is None else (0, 1)
    negatives = (torch.arange(3), torch.arange(3))
    batch = link_batch(edges(6, input_type=input_type), ends, True, NegativeSampling("binary", 0.5), negatives)
    assert batch.example.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2] * 2


def test_times_need_trees():
    with pytest.raises(ValueError, match="disjoint = False"):
        link_batch(edges(3, time=torch.arange(3)), (0, 0), False)


def test_the_reverse_type_is_found_or_asked_for():
    def reverse(edge_type, *exclude):
        at = find_reverse(TWO_TYPES, TWO_TYPES.edge_index(edge_type), *exclude)
        return TWO_TYPES.edge_types[at][1]

    assert reverse(("user", "buys", "item")) == "rev_buys"
    assert reverse(("user", "rates", "item")) == "rev_buys"  # the only one that runs the other way
    assert reverse(("item", "near", "item")) == "near"
    assert reverse(("user", "likes", "user"), ("user", "knows", "user")) == "knows"
    with pytest.raises(ValueError, match=r"not clear.*'buys'.*'rates'.*name it"):
        find_reverse(
            Schema(TWO_TYPES.node_types, (TWO_TYPES.edge_types[0], TWO_TYPES.edge_types[6], ("item", "back", "user"))),
            2,
        )
    with pytest.raises(ValueError, match=r"expected 'self', 'reverse' or an edge type from 'item' to 'user'"):
        reverse(("user", "buys", "item"), ("user", "knows", "user"))
    with pytest.raises(ValueError, match="those from 'b' to 'a' are"):
        find_reverse(Schema(("a", "b"), (("a", "to", "b"),)), 0)


GRAPH = random_graph(80, 900, seed=4)
EDGES = set(map(tuple, GRAPH.edge_index.t().tolist()))
BINARY = NegativeSampling("binary", 1)


def links(num=30, time=None, input_type=None):
    return EdgeSamplerInput(torch.arange(num), *GRAPH.edge_index[:, :num], time=time, input_type=input_type)


def pairs(first, second):
    return set(zip(first.tolist(), second.tolist(), strict=True))


@pytest.mark.parametrize("exclude", ["self", "reverse"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edges_are_excluded_along_both_directions(edge_dir, exclude):
    dataset = Dataset.from_arrays(GRAPH.edge_index, 80, edge_dir=edge_dir)
    out = NeighborSampler(dataset, [-1, -1], exclude_edges=exclude).sample_from_edges(links(), BINARY, batch_key=1)
    neighbor, expanded = out.node[out.row], out.node[out.col]
    found = pairs(neighbor, expanded) if edge_dir == "in" else pairs(expanded, neighbor)
    seeds = pairs(*GRAPH.edge_index[:, :30])
    gone = seeds | ({(d, s) for s, d in seeds} if exclude == "reverse" else set())
    assert not found & gone
    first = set(out.node[: out.num_sampled_nodes[0]].tolist())
    end = 1 if edge_dir == "in" else 0
    assert {edge for edge in EDGES if edge[end] in first} - gone <= found, "all others are there"
    assert not pairs(*out.node[out.metadata[1][:, 30:]]) & EDGES


def test_bidirectional_batches_do_not_bring_excluded_edges_back():
    sampler = NeighborSampler(GRAPH.to_data(), [5, 5], "bidirectional", exclude_edges="reverse")
    out = sampler.sample_from_edges(links())
    seeds = pairs(*GRAPH.edge_index[:, :30])
    assert not pairs(out.node[out.row], out.node[out.col]) & (seeds | {(d, s) for s, d in seeds})


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_times_of_edges_bind_edges_but_not_negatives(strategy):
    data = Data(edge_index=GRAPH.edge_index, stamp=torch.arange(900), num_nodes=80)
    sampler = NeighborSampler(data, [3, 3], time_attr="stamp", temporal_strategy=strategy)
    late = torch.arange(30) * 20
    out = sampler.sample_from_edges(links(time=late), BINARY)
    assert torch.equal(out.metadata[3], late.repeat(2))
    assert (data.stamp[out.edge] <= late[out.batch[out.col]]).all() and len(out.edge)


def test_weighted_links_and_draws_with_replacement():
    weight = (torch.arange(900) % 3 == 0).float()
    data = Data(edge_index=GRAPH.edge_index, weight=weight, num_nodes=80)
    out = NeighborSampler(data, [2], replace=True, weight_attr="weight").sample_from_edges(links(), BINARY)
    some = torch.bincount(GRAPH.edge_index[1], weight, minlength=80) > 0
    assert weight[out.edge][some[out.node[out.col]]].all()


def test_a_key_gives_one_batch_and_a_copy_of_the_sampler_gives_it_too():
    sampler = NeighborSampler(GRAPH.to_data(), [4, 4], disjoint=True, random_seed=1, exclude_edges="self")
    outs = [
        each.sample_from_edges(links(), NegativeSampling("triplet", 2), batch_key=9)
        for each in (sampler, sampler, pickle.loads(pickle.dumps(sampler)))
    ]
    for out in outs[1:]:
        assert torch.equal(out.node, outs[0].node) and torch.equal(out.edge, outs[0].edge)
        assert torch.equal(out.batch, outs[0].batch) and torch.equal(out.metadata[3], outs[0].metadata[3])
    free = [sampler.sample_from_edges(links(), BINARY).node for _ in range(2)]
    assert not torch.equal(*free), "without a key, each call draws anew"


def test_int32_graphs_have_int32_batches():
    data = Data(edge_index=GRAPH.edge_index.int(), num_nodes=80)
    index = EdgeSamplerInput(None, *data.edge_index[:, :9])
    out = NeighborSampler(data, [4], disjoint=True).sample_from_edges(index, BINARY)
    assert out.node.dtype == out.batch.dtype == torch.int32
    assert torch.equal(out.node[out.metadata[1][:, :9]], data.edge_index[:, :9])


def test_what_does_not_fit_is_named():
    hetero = HeteroData(a={"num_nodes": 80}, b={"num_nodes": 80})
    for edge_type in (("a", "to", "b"), ("a", "or", "b"), ("b", "back", "a"), ("b", "to", "a")):
        hetero[edge_type].edge_index = GRAPH.edge_index
    of_data, of_hetero = NeighborSampler(GRAPH.to_data(), [1]), NeighborSampler(hetero, [1], exclude_edges="reverse")
    timed = NeighborSampler(Data(edge_index=GRAPH.edge_index, t=torch.arange(80), num_nodes=80), [1], time_attr="t")
    far = EdgeSamplerInput(None, torch.tensor([1, 2]), torch.tensor([80, 0]))
    for sampler, index, error, message in [
        (of_data, links(input_type=("a", "to", "b")), ValueError, "expected None, the graph being homogeneous"),
        (of_hetero, links(), ValueError, "input_type = None: expected an edge type"),
        (of_hetero, links(input_type=("a", "to", "c")), KeyError, "'c' is not in the graph"),
        (of_hetero, links(input_type=("a", "to", "b")), ValueError, "not clear.*'back'.*name it"),
        (of_data, links(time=torch.arange(30)), ValueError, "'edge_label_time' is set and 'time_attr' is not set"),
        (timed, links(), ValueError, "'time_attr' is set and 'edge_label_time' is not set"),
        (of_data, far, IndexError, r"edge_label_index\[1, 0\] = 80 is outside \[0, 80\)"),
    ]:
        with pytest.raises(error, match=message):
            sampler.sample_from_edges(index)
