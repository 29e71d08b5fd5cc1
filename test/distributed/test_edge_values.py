"""Layer-wise inference with weights and features of edges: what the model makes of the whole graph with them."""

import pytest
import torch
import torch_geometric.nn as pyg
from covering import covering
from dist_typed_world import FOLLOWS, RATES, write_typed_world
from dist_typed_world import NUM_NODES as TYPED
from dist_world import standalone_job
from torch import nn

from glt.distributed.context import require_world
from glt.distributed.graph.inference import infer_layerwise
from glt.distributed.tensors.tensor import DistTensor
from glt.partition import RandomPartitioner

NUM_NODES, NUM_EDGES = 150, 900


class Graph:
    """With loops and edges that come twice, some nodes have one loop, some several; weights of edges are a table."""

    def __init__(self, root, num_parts):
        generator = torch.Generator().manual_seed(11)
        ends = torch.randint(NUM_NODES - 10, (2, NUM_EDGES - 150), generator=generator)
        loops = torch.arange(50).repeat(2, 1)
        self.edge_index = torch.cat([ends, ends[:, :60], loops, loops[:, :40]], 1)
        self.x = torch.randn(NUM_NODES, 6, generator=generator)
        self.weight = torch.rand(NUM_EDGES, generator=generator) + 0.1
        self.attr = torch.randn(NUM_EDGES, 3, generator=generator)
        self.path = root / "parts"
        given = {"node_feat": self.x, "edge_feat": self.attr, "edge_attrs": {"weight": self.weight}}
        given["edge_assign_strategy"] = "by_dst"
        make = RandomPartitioner(self.path, num_parts, NUM_NODES, self.edge_index, relabel=num_parts > 1, **given)
        mapping = make.partition(return_mapping=num_parts > 1)
        self.edges = torch.arange(NUM_EDGES) if num_parts == 1 else torch.as_tensor(mapping[2]).long()

    def of_parts(self, rows):
        """Rows by edge in the order of the partitions' ids."""
        return rows[self.edges]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """By number of partitions; three are relabelled."""
    return {n: Graph(tmp_path_factory.mktemp("edges"), n) for n in (1, 3)}


@pytest.fixture
def here(request, graphs):
    """A job of this process over three partitions, or as many as a test gives as ``here``."""
    made = graphs[getattr(request, "param", 3)]
    with standalone_job(made.path):
        yield made


any_parts = pytest.mark.parametrize("here", [1, 3], indirect=True)


def rows(got, count=NUM_NODES):
    return got[torch.arange(count)]


GCN_OPTIONS = {"plain": {}, "improved": {"improved": True}, "no loops": {"add_self_loops": False}, "jk": {"jk": "cat"}}


@covering(options=GCN_OPTIONS, num_parts=[1, 3], given=["name", "tensor", "stored"])
def test_weights_of_gcn(options, num_parts, given, graphs):
    torch.manual_seed(1)
    here = graphs[num_parts]
    model = pyg.GCN(6, 8, 3, 5, **GCN_OPTIONS[options]).eval()
    expected = model(here.x, here.edge_index, edge_weight=here.weight).detach()
    with standalone_job(here.path) as graph:
        weight = {"name": "weight", "tensor": here.of_parts(here.weight), "stored": graph.edata["weight"]}[given]
        torch.testing.assert_close(
            rows(infer_layerwise(model, edge_weight=weight, batch_size=40)), expected, rtol=1e-4, atol=1e-5
        )
        assert not torch.allclose(rows(infer_layerwise(model)), expected, atol=1e-2), "weights make a difference"


PNA = {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.ones(9)}


@any_parts
@pytest.mark.parametrize(
    "make", [lambda: pyg.GAT(6, 8, 2, 4, heads=2, edge_dim=3), lambda: pyg.PNA(6, 8, 2, 4, edge_dim=3, **PNA)]
)
def test_features_of_edges(make, here):
    torch.manual_seed(2)
    model = make().eval()
    expected = model(here.x, here.edge_index, edge_attr=here.attr).detach()
    got = infer_layerwise(model, edge_attr="edge_attr", batch_size=40)
    torch.testing.assert_close(rows(got), expected, rtol=1e-4, atol=1e-5)


@any_parts
def test_layers_take_what_they_have_parameters_for(here, tmp_path):
    torch.manual_seed(3)
    first, second, plain = pyg.GraphConv(6, 8), pyg.GINEConv(nn.Linear(8, 8), edge_dim=3), pyg.SAGEConv(8, 8)
    gcn, both = pyg.GCNConv(8, 8), pyg.GCNConv(8, 4)
    weight, attr, ends = here.weight, here.attr, here.edge_index

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = both

        def forward(self, x, edge_index, edge_weight, edge_attr):
            assert edge_attr.shape == (len(edge_weight), 3)
            return both(x, edge_index, edge_weight) + both(x, edge_index)

    expected = second(first(here.x, ends, weight), ends, attr)
    expected = Last()(gcn(plain(expected, ends), ends, weight), ends, weight, attr).detach()
    values = {"edge_weight": "weight", "edge_attr": here.of_parts(attr)}
    got = infer_layerwise([first, second, plain, gcn, Last()], spill_dir=tmp_path, batch_size=40, **values)
    torch.testing.assert_close(rows(got), expected, rtol=1e-4, atol=1e-4)
    assert gcn._cached_edge_index is None and not gcn._forward_pre_hooks


@any_parts
def test_degrees_that_are_not_known_are_refused(here):
    conv = pyg.GCNConv(6, 4)

    class Changed(nn.Module):
        def __init__(self, change):
            super().__init__()
            self.conv, self.change = conv, change

        def forward(self, x, edge_index, edge_weight=None):
            return self.conv(x, *self.change(edge_index, edge_weight))

    for change, given in (
        (lambda ends, _: (ends, torch.full((ends.size(1),), 0.5)), None),
        (lambda ends, weight: (ends, 2 * weight), "weight"),
        (lambda ends, weight: (ends[:, 1:], weight[1:]), "weight"),
    ):
        with pytest.raises(ValueError, match="GCNConv was called with other edges or weights"):
            infer_layerwise([Changed(change)], edge_weight=given)
    whole = conv(here.x.double().float(), here.edge_index, here.weight).detach()
    same = Changed(lambda ends, weight: (ends.clone(), weight.float()))
    got = infer_layerwise([same], edge_weight=here.of_parts(here.weight).double())
    torch.testing.assert_close(rows(got), whole, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_named(here):
    weighted = [pyg.GraphConv(6, 4)]
    for model, given, error, words in (
        (weighted, {"edge_weight": torch.ones(3)}, ValueError, r"edge_weight has shape \[3\]: expected a row for each"),
        (weighted, {"edge_weight": torch.tensor(1.0)}, ValueError, r"edge_weight has shape \[\]"),
        (weighted, {"edge_weight": "edge_attr"}, ValueError, r"edge_weight has shape \[900, 3\]: expected a number"),
        (weighted, {"edge_weight": torch.ones(900, device="meta")}, ValueError, r"edge_weight is .* meta device"),
        (weighted, {"edge_weight": [1.0]}, TypeError, "edge_weight is a list: expected a tensor"),
        (weighted, {"edge_weight": "weights"}, KeyError, r"no 'weights': there are .*'edge_attr', 'weight'"),
        (weighted, {"edge_attr": "edge_attr"}, ValueError, "edge_attr is given, and no layer of the model takes it"),
        (pyg.GraphSAGE(6, 4, 1), {"edge_weight": "weight"}, ValueError, "edge_weight is given, and no layer"),
        ([torch.relu], {"edge_weight": "weight"}, ValueError, "edge_weight is given, and no layer"),
    ):
        with pytest.raises(error, match=words):
            infer_layerwise(model, **given)
    assert not [name for name in require_world().stats()[0]["tensors"] if name.startswith("inference")]


class Last(nn.Module):
    """A layer of one's own that takes weights of ratings and features of follows."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GraphConv((-1, -1), 4)

    def forward(self, x, edge_index, edge_weight_dict, edge_attr_dict):
        assert set(edge_attr_dict) == {FOLLOWS}
        return {"item": self.conv((x["user"], x["item"]), edge_index[RATES], edge_weight_dict[RATES])}


def hetero_conv():
    follows = pyg.GATv2Conv((-1, -1), 8, edge_dim=2, add_self_loops=False)
    return pyg.HeteroConv({RATES: pyg.GraphConv((-1, -1), 8), FOLLOWS: follows})


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("num_parts", [1, 3])
def test_types(num_parts, tmp_path):
    torch.manual_seed(6)
    weight, attr = torch.rand(700), torch.randn(400, 2)
    made = write_typed_world(tmp_path, num_parts, edge_attrs={RATES: {"w": weight}}, relabel=num_parts == 3)
    x = {t: torch.randn(count, 5) for t, count in TYPED.items()}
    layers = [hetero_conv(), hetero_conv(), Last()]
    values = {"edge_weight_dict": {RATES: weight}, "edge_attr_dict": {FOLLOWS: attr}}
    expected = x
    for layer in layers:
        expected = {t: each.relu() for t, each in layer(expected, made.edge_index, **values).items()}
    with standalone_job(made.path) as graph:
        data = graph.world.data
        relabelled = num_parts == 3
        mine = {t: each[torch.as_tensor(data.node_map[t]).long()] if relabelled else each for t, each in x.items()}
        weight_of, attr_of = (
            each[torch.as_tensor(data.edge_map[t]).long()] if relabelled else each
            for t, each in ((RATES, weight), (FOLLOWS, attr))
        )
        kept = DistTensor((700,), name="kept", part=RATES)
        kept[torch.arange(700)] = weight_of
        options = {"edge_attr": {FOLLOWS: attr_of}, "between": torch.relu, "batch_size": 25}
        for given in ("w", {RATES: "w"}, {RATES: kept}):
            got = infer_layerwise(layers, mine, edge_weight=given, **options)
            assert set(got) == {"item"}
            torch.testing.assert_close(rows(got["item"], 60).relu(), expected["item"], rtol=1e-4, atol=1e-4)
        for given, error, words in (
            ("weight", KeyError, "edge_weight: no edge type has a stored table of that name; there are .*'w'"),
            (weight, TypeError, "edge_weight is a Tensor: expected a dict by edge type"),
            ({"rates": weight}, KeyError, "edge_weight has 'rates': expected edge types"),
            ({RATES: weight[:5]}, ValueError, r"edge_weight\[\('user', 'rates', 'item'\)\] has shape \[5\]"),
        ):
            with pytest.raises(error, match=words):
                infer_layerwise(layers, mine, edge_weight=given)
