"""Layer-wise inference: what it returns is what the model makes of the whole graph."""

import errno
import os

import pytest
import torch
import torch_geometric.nn as pyg
from covering import covering
from dist_typed_world import FOLLOWS, RATES
from dist_typed_world import NUM_NODES as TYPED
from dist_world import NUM_NODES, standalone_job, write_world
from torch import Tensor, nn

from glt.distributed.context import require_world
from glt.distributed.graph.inference import infer_layerwise
from glt.distributed.graph.layer_rows import MappedRows
from glt.distributed.tensors.embedding import DistEmbedding
from glt.distributed.tensors.tensor import DistTensor
from glt.partition import RandomPartitioner


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """By number of partitions; three are relabelled."""
    root = tmp_path_factory.mktemp("infer")
    return {n: write_world(root / str(n), n, tables="x", relabel=n == 3) for n in (1, 3)}


@pytest.fixture
def here(request, worlds):
    """A job of this process; a test gives other numbers of partitions than three as ``here``."""
    made = worlds[getattr(request, "param", 3)]
    with standalone_job(made.path):
        yield made


any_parts = pytest.mark.parametrize("here", [1, 3], indirect=True)


def whole(got):
    """All rows of a result."""
    return got[torch.arange(NUM_NODES)]


def expect_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def inputs(here):
    return here.x, here.graph.edge_index


def warmed(model, x, edge_index):
    """With statistics of its norms that are not those that it begins with."""
    model.train()
    with torch.no_grad():
        model(x, edge_index)
    return model


BASIC = {
    "sage": lambda width: pyg.GraphSAGE(width, 8, 3, 5, dropout=0.5, norm="batch_norm"),
    "sage, jk": lambda width: pyg.GraphSAGE(width, 8, 2, 5, jk="cat", act_first=True, norm="batch_norm"),
    "sage, last": lambda width: pyg.GraphSAGE(width, 8, 2, 5, jk="last"),
    "gat": lambda width: pyg.GAT(width, 8, 2, 4, heads=2, dropout=0.5),
    "gcn": lambda width: pyg.GCN(width, 8, 2, 5, norm="batch_norm"),
    "gcn, jk": lambda width: pyg.GCN(width, 8, 3, 5, jk="lstm", improved=True),
    "gcn, no loops": lambda width: pyg.GCN(width, 8, 2, add_self_loops=False),
    "gin": lambda width: pyg.GIN(width, 8, 2, 5, train_eps=True),
    "edge": lambda width: pyg.EdgeCNN(width, 8, 2, 5),
}


@covering(kind=BASIC, num_parts=[1, 3], batch_size=[170, 4096], spills=[False, True])
def test_models_of_pyg(kind, num_parts, batch_size, spills, worlds, tmp_path):
    torch.manual_seed(1)
    with standalone_job(worlds[num_parts].path):
        x, edge_index = inputs(worlds[num_parts])
        model = warmed(BASIC[kind](x.size(1)), x, edge_index)
        got = infer_layerwise(model, batch_size=batch_size, spill_dir=tmp_path if spills else None)
        assert isinstance(got, Tensor if spills else DistTensor) and all(each.training for each in model.modules())
        expect_close(whole(got), model.eval()(x, edge_index))
        kept = list(require_world().stats()[0]["tensors"]) + [each.name for each in tmp_path.iterdir()]
        assert kept == ["inference.npy" if spills else "inference"], "intermediate outputs are gone"


@any_parts
def test_a_list_of_layers_with_a_given_x(here):
    """A function, a convolution that counts degrees, and a module that has one."""
    torch.manual_seed(2)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GCNConv(8, 3, cached=True)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index).sigmoid()

    _, edge_index = inputs(here)
    x, first, second, last = torch.randn(NUM_NODES, 6), pyg.SAGEConv(6, 8), pyg.GCNConv(8, 8), Last()
    expected = last(second(first(x, edge_index).relu(), edge_index).relu(), edge_index)  # and has cached its weights
    cached = last.conv._cached_edge_index
    kept = DistTensor(x.shape, name="in", part="node", world=require_world())
    original = original_of(here)
    kept[torch.arange(NUM_NODES)] = x[original]
    layers = [lambda x, edge_index: first(x, edge_index), second, last]
    for given in (kept, x[original]):
        got = infer_layerwise(layers, given, between=torch.relu, batch_size=100, name="out")
        expect_close(whole(got), expected)
    assert last.conv._cached_edge_index is cached and second._cached_edge_index is None
    by_part = infer_layerwise(layers, kept, between=torch.relu, original_ids=False, name="out")
    expect_close(whole(by_part), expected[original])


def original_of(here):
    """The original id of each node of the partitions."""
    data = require_world().data
    ids = torch.arange(NUM_NODES)
    return ids if data.node_map is None else data.map_to_original(ids)


def test_files_of_a_run_that_was_killed_are_replaced(here, tmp_path):
    x, edge_index = inputs(here)
    model = pyg.GCN(x.size(1), 8, 3, 5, jk="max").eval()
    (tmp_path / "inference.layer0.npy").write_bytes(b"left by a run that was killed")
    for _ in range(2):
        expect_close(infer_layerwise(model, batch_size=128, spill_dir=tmp_path), model(x, edge_index))
    assert [each.name for each in tmp_path.iterdir()] == ["inference.npy"]


def test_a_disk_that_is_full_is_named(here, tmp_path, monkeypatch):
    def full(fd, begin, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"no room for 19200 bytes of layer outputs.*inference\.layer0\.npy"):
        infer_layerwise(pyg.GraphSAGE(4, 8, 2, 5), spill_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_loops_and_edges_that_come_twice(tmp_path):
    torch.manual_seed(4)
    num_nodes = 30
    ends = torch.randint(num_nodes, (2, 120))
    ends = torch.cat([ends, ends[:, :20], torch.arange(5).repeat(2, 2)], 1)
    x = torch.randn(num_nodes, 4)
    given = {"node_feat": x, "edge_assign_strategy": "by_dst"}
    RandomPartitioner(tmp_path / "parts", 2, num_nodes, ends, **given).partition()
    with standalone_job(tmp_path / "parts"):
        for options in ({}, {"improved": True}, {"add_self_loops": False}):
            model = pyg.GCN(4, 8, 2, 3, **options).eval()
            got = infer_layerwise(model, batch_size=7)
            expect_close(got[torch.arange(num_nodes)], model(x, ends))


def hetero_layer(out, with_tags=False):
    """Items that are rated, and users that follow; tags feed items once, and are not made anything of."""
    convs = {RATES: pyg.SAGEConv((-1, -1), out)}
    convs[FOLLOWS] = pyg.GATv2Conv((-1, -1), out, add_self_loops=False)
    return pyg.HeteroConv(convs | ({("tag", "on", "item"): pyg.GraphConv((-1, -1), out)} if with_tags else {}))


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("num_parts", [1, 3])
def test_types(num_parts, typed_world, tmp_path):
    torch.manual_seed(6)
    made = typed_world(num_parts, "in")
    x = {t: torch.randn(count, 5) for t, count in TYPED.items()}
    layers = [hetero_layer(8, with_tags=True), hetero_layer(8), hetero_layer(3)]
    expected = x
    for at, layer in enumerate(layers):
        expected = layer(expected, made.edge_index)
        expected = expected if at == 2 else {t: each.relu() for t, each in expected.items()}
    with standalone_job(made.path):
        for spill_dir in (None, tmp_path):
            got = infer_layerwise(layers, x, between=torch.relu, batch_size=25, spill_dir=spill_dir)
            assert set(got) == {"item", "user"}
            for node_type, each in got.items():
                expect_close(each[torch.arange(TYPED[node_type])], expected[node_type].detach())
        assert sorted(require_world().stats()[0]["tensors"]) == ["inference.item", "inference.user"]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["inference.item.npy", "inference.user.npy"]
        stored = infer_layerwise([StoredOnly()], batch_size=40)
        assert set(stored) == {t for t in made.node_feat if TYPED[t]}
        for node_type, each in stored.items():
            assert torch.equal(each[torch.arange(TYPED[node_type])], 2 * made.node_feat[node_type])
        behind = [lambda x, ends: layers[1](layers[0](x, ends), ends)]
        for given, error, words in (
            ({"model": [pyg.GCNConv(3, 3)]}, NotImplementedError, "GCNConv is for one type"),
            ({"model": pyg.GAT(3, 3, 1)}, NotImplementedError, "a model of torch_geometric.nn.models is for one type"),
            ({"x": x["user"]}, TypeError, "expected a dict by node type"),
            ({"x": {"user": x["item"]}}, ValueError, r"x\['user'\] has shape \[60, 5\]: expected a row for each of 90"),
            ({"x": {"users": x["user"]}}, ValueError, "x has 'users': expected node types"),
            ({"model": [lambda x, _: {"other": x["user"]}]}, ValueError, r"made rows of \['other'\]"),
            ({"x": {}, "model": [lambda x, _: x]}, ValueError, "the last layer has outputs for no node type"),
            ({"model": [lambda x, _: 3]}, ValueError, "a layer made a int: expected a dict"),
            ({"model": behind}, ValueError, "layer 0 has a convolution behind another"),
        ):
            with pytest.raises(error, match=words):
                infer_layerwise(**{"model": layers, "x": x, "batch_size": 9, **given})


class StoredOnly(nn.Module):
    def forward(self, x, edge_index):
        return {t: 2 * each for t, each in x.items()}


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(4, 4), pyg.SAGEConv(4, 4)])


class WithMore(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs, self.lin = nn.ModuleList([pyg.SAGEConv(4, 4)]), nn.Linear(4, 2)


class OwnForward(pyg.GraphSAGE):
    def forward(self, x, edge_index):
        return -super().forward(x, edge_index)


@any_parts
def test_convolutions_beside_each_other_are_one_layer(here):
    _, edge_index = inputs(here)
    x, first, second = torch.randn(NUM_NODES, 4), pyg.SAGEConv(4, 4), pyg.SAGEConv(4, 4)

    def layer(x, edge_index):
        return first(x, edge_index).sigmoid() * second(x, edge_index)

    got = infer_layerwise([layer], x[original_of(here)], batch_size=9)
    expect_close(whole(got), layer(x, edge_index))
    with pytest.raises(ValueError, match="layer 0 has a convolution behind another"):
        infer_layerwise([lambda x, ends: second(first(x, ends).sigmoid(), ends)], x, batch_size=9)
    assert infer_layerwise(Several(), x, between=torch.relu, batch_size=9).shape == (NUM_NODES, 4)


def test_a_model_of_ddp(here):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        x, edge_index = inputs(here)
        model = pyg.GraphSAGE(x.size(1), 8, 2, 3).eval()
        expect_close(whole(infer_layerwise(nn.parallel.DistributedDataParallel(model))), model(x, edge_index))
        assert infer_layerwise([pyg.GatedGraphConv(x.size(1), 1)]).shape == (NUM_NODES, x.size(1))
    finally:
        torch.distributed.destroy_process_group()


SAGE = [pyg.SAGEConv(4, 4)]
FAR = "looks further than one hop"


@pytest.mark.parametrize(
    ("model", "given", "error", "words"),
    [
        (pyg.Linear(3, 3), {}, TypeError, "model is a Linear: expected a model of torch_geometric"),
        ([], {}, ValueError, "model has no layers"),
        ([3], {}, TypeError, "layer 0 is a int"),
        ([pyg.ChebConv(4, 4, 2)], {}, ValueError, f"ChebConv {FAR}"),
        ([pyg.GatedGraphConv(4, 2)], {}, ValueError, f"GatedGraphConv {FAR}"),
        ([pyg.GPSConv(4, pyg.SAGEConv(4, 4))], {}, ValueError, f"GPSConv {FAR}"),
        ([pyg.DirGNNConv(pyg.SAGEConv(4, 4))], {}, ValueError, f"DirGNNConv {FAR}"),
        ([pyg.WLConv()], {}, ValueError, f"WLConv {FAR}"),
        ([pyg.SGFormerAttention(4)], {}, ValueError, "SGFormerAttention looks at all rows"),
        (Several(), {}, ValueError, "between is None, and what Several's forward does between its convs is not known"),
        (WithMore(), {}, ValueError, r"model has 'lin\.weight', which is in none of its convs"),
        (OwnForward(4, 4, 2), {}, ValueError, "OwnForward has a forward of its own"),
        ([pyg.SAGEConv(4, 4, flow="target_to_source")], {}, ValueError, "SAGEConv has flow"),
        (pyg.GraphSAGE(4, 4, 2, norm="layer_norm"), {}, ValueError, r"LayerNorm\(mode='graph'\) looks at all rows"),
        (pyg.GCN(4, 4, 2, norm="pair_norm"), {}, ValueError, "PairNorm looks at all rows"),
        (pyg.GCN(4, 4, 2), {"between": torch.relu}, ValueError, "GCN has its own activation"),
        (SAGE, {"between": 3}, TypeError, "between = 3"),
        (SAGE, {"x": torch.zeros(3, 4)}, ValueError, r"x has shape \[3, 4\]: expected a row for each"),
        (SAGE, {"x": torch.tensor(1.0)}, ValueError, r"x has shape \[\]"),
        (SAGE, {"x": [1]}, TypeError, "x is a list"),
        (SAGE, {"x": torch.zeros(NUM_NODES, 4, device="meta")}, ValueError, "on the meta device"),
        (SAGE, {"x": torch.zeros(NUM_NODES, 4).to_sparse()}, TypeError, "x is a torch.sparse_coo"),
        (SAGE, {"device": "nowhere"}, ValueError, "device = 'nowhere': expected a device"),
        (SAGE, {"spill_dir": 3}, TypeError, "spill_dir = 3: expected the path"),
        (SAGE, {"spill_dir": "/nowhere"}, ValueError, "spill_dir = '/nowhere' is no directory"),
        (SAGE, {"batch_size": 0}, ValueError, "batch_size = 0"),
        (SAGE, {"num_workers": -1}, ValueError, "num_workers = -1"),
        (SAGE, {"name": "a/b"}, ValueError, "name = 'a/b'"),
        ([lambda x, edge_index: x[:1]], {}, ValueError, r"a layer made \[1, 4\] of"),
    ],
)
def test_what_cannot_be_right_is_refused(model, given, error, words, here):
    with pytest.raises(error, match=words):
        infer_layerwise(model, **{"x": torch.zeros(NUM_NODES, 4), **given})
    assert not require_world().stats()[0]["tensors"]


@any_parts
def test_tensors_that_others_have_made_are_not_replaced(here):
    embedding = DistEmbedding(NUM_NODES, 4, name="mine")
    before = embedding.weight[:]
    layer = pyg.SAGEConv(4, 4)
    for given in (embedding, embedding.weight, torch.zeros(NUM_NODES, 4)):
        with pytest.raises(ValueError, match=r"'mine'.*give another name"):
            infer_layerwise([layer], given, name="mine")
    assert torch.equal(embedding.weight[:], before)
    _, edge_index = inputs(here)
    expected = layer(before[original_of(here).argsort()], edge_index)
    for _ in range(2):
        got = infer_layerwise([layer], embedding)
        found = DistTensor.find("inference")  # which may be held: it is an earlier result
        expect_close(found[:], expected)
    del got, found


def test_modules_that_are_hidden_in_functions(here):
    """They do not train meanwhile, and those that would be wrong are refused when they are called."""
    torch.manual_seed(7)
    x, edge_index = inputs(here)
    conv, norm, drop = pyg.SAGEConv(x.size(1), 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
    norm(conv(x, edge_index))
    got = infer_layerwise([lambda x, ends: drop(norm(conv(x, ends)))], batch_size=90)
    assert norm.training and drop.training
    norm.eval()
    expect_close(whole(got), norm(conv(x, edge_index)))
    for hidden, words in (
        (pyg.GCNConv(x.size(1), 4), "a layer calls GCNConv, which it does not have as a module"),
        (pyg.ChebConv(x.size(1), 4, 2), "ChebConv looks further than one hop"),
    ):
        with pytest.raises(ValueError, match=words):
            infer_layerwise([lambda x, ends, hidden=hidden: hidden(x, ends)])
    with pytest.raises(ValueError, match="layer 1 had parameters without values"):
        infer_layerwise([conv, pyg.SAGEConv(-1, 4)])


def test_rows_that_are_not_alike_are_refused(here, tmp_path):
    for spill_dir in (None, tmp_path):
        widths = iter([3, 1])
        with pytest.raises(ValueError, match=r"a layer made .*1.* of a batch, and .*3.* before: expected the same"):
            infer_layerwise([lambda x, _, w=widths: x[:, : next(w)]], batch_size=400, spill_dir=spill_dir)
    MappedRows.create(tmp_path / "rows.npy", (5, 2), torch.float32)
    with pytest.raises(ValueError, match=r"rows\.npy has float32 \[5, 2\], as another trainer has made it"):
        MappedRows.create(tmp_path / "rows.npy", (5, 3), torch.float32)
    with pytest.raises(TypeError, match=r"outputs are torch\.bfloat16, which \.npy files do not have"):
        infer_layerwise([lambda x, ends: x.bfloat16()], spill_dir=tmp_path)


def test_without_features(tmp_path):
    with (
        standalone_job(write_world(tmp_path, 1, tables="").path),
        pytest.raises(ValueError, match="x is None, and no features are stored"),
    ):
        infer_layerwise(SAGE)
    with pytest.raises(RuntimeError, match="in no world yet"):
        infer_layerwise(SAGE)
