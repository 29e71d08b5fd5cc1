"""Layer-wise inference by trainers of servers: together they make what the model does, and hear of failures."""

import os
import signal
import time

import pytest
import torch
import torch_geometric.nn as pyg
from dist_typed_world import FOLLOWS, RATED, RATES, write_typed_world
from dist_typed_world import NUM_NODES as NUM_TYPED
from dist_world import NUM_NODES
from promptness import eventually
from service import Job, Stage, begin_job, finalize, job_of

import glt
from glt import _deadlines as deadlines
from glt.distributed.context import require_world
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.inference import infer_layerwise
from glt.distributed.graph.loaders import EdgeDataLoader
from glt.distributed.tensors.tensor import DistTensor
from glt.partition import RandomPartitioner, load_id_map


def model(width):
    torch.manual_seed(5)
    return pyg.GCN(width, 8, 3, 5, jk="cat").eval()


def infer(width, spill_dir):
    got = infer_layerwise(model(width), batch_size=90, num_workers=1, spill_dir=spill_dir)
    glt.distributed.barrier(60.0)
    with pytest.raises(LookupError) as raised:
        DistTensor.find("inference.layer0")
    return got[torch.arange(NUM_NODES)], str(raised.value)


def infer_with_an_error(rank):
    def layer(x, edge_index):
        if rank == 1:
            raise RuntimeError("out of memory, say")
        return x

    with pytest.raises(Exception, match="") as raised:
        infer_layerwise([layer, layer])
    if rank == 1:
        finalize(0.0)  # as a script does that ends with the exception
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize("spills", [False, True])
def test_two_trainers_make_what_the_model_does(world, tmp_path, spills):
    made = world(2, "in", "xye")
    expected = model(made.x.size(1))(made.x, made.graph.edge_index)
    with job_of(made.path, 2, 2) as job:
        for got, left in job.run(infer, made.x.size(1), tmp_path if spills else None):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            assert ("'inference'" in left) != spills and ".degrees" not in left, left


def test_a_trainer_that_fails_is_named(world):
    with job_of(world(2, "in", "xye").path, 2, 2) as job:
        other, failed = job.run(infer_with_an_error, ranked=True)
        assert failed == "RuntimeError: out of memory, say"
        assert other.startswith("PeerLost") and "1" in other, other


def infer_two_nodes(spill_dir):
    got = infer_layerwise([double, double], batch_size=1, spill_dir=spill_dir)
    rows = got[torch.arange(2)].tolist()
    glt.distributed.barrier(60.0)
    return rows


def double(x, edge_index):
    return 2 * x


@pytest.mark.parametrize("spills", [False, True])
def test_trainers_without_nodes_return_the_same(tmp_path, spills):
    x, given = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), {"edge_assign_strategy": "by_dst"}
    RandomPartitioner(tmp_path / "parts", 1, 2, torch.tensor([[0], [1]]), node_feat=x, **given).partition()
    with job_of(tmp_path / "parts", 1, 3) as job:
        assert job.run(infer_two_nodes, tmp_path if spills else None) == [(4 * x).tolist()] * 3


PROMPT_S = 100.0  # as opposed to the half hour of a barrier; on a busy machine seconds are many

X = torch.arange(float(NUM_NODES)).view(-1, 1)


class Signals:
    """Words from one trainer to another beside glt, by files."""

    def __init__(self, folder):
        self.folder = folder

    def send(self, word):
        (self.folder / word).touch()

    def wait(self, word):
        assert eventually((self.folder / word).exists)


def attempts(rank, folder, spills):
    """Calls that fail on trainer 1, one after the other, and then one that does not: what each raised, and when."""
    deadlines.BEAT_S = 0.0
    signals, calls = Signals(folder), 0

    def fails(at, error):
        def layer(x, edge_index):
            if rank == at:
                raise error
            return x

        return layer

    def waits(x, edge_index):
        nonlocal calls
        if rank == 1:
            raise RuntimeError("early")
        if rank == 2:  # far from the barrier at the end of the layer
            signals.wait("early")
            calls += 1
        return x

    found = []
    for name, layers, given in (
        ("argument", [double], {"x": X[rank % 2 :]}),
        ("layer", [double, fails(1, RuntimeError("out of memory, say"))], {}),
        ("interrupt", [double, fails(1, KeyboardInterrupt("Ctrl-C"))], {}),
        ("zero", [double, fails(0, OSError("no disk, say"))], {}),
        ("early", [double, waits], {"batch_size": 50}),
        ("other", [double] * (1 + rank // 2), {}),
    ):
        with pytest.raises(BaseException, match="") as raised:
            infer_layerwise(layers, **{"x": X, "spill_dir": folder if spills else None, **given})
        found.append((type(raised.value).__name__, str(raised.value), time.monotonic()))
        if rank == 1:
            signals.send(name)
    assert calls <= 1  # it hears between two batches, or before its first
    got = infer_layerwise([double, double], X, spill_dir=folder if spills else None)
    assert torch.equal(got[torch.arange(NUM_NODES)], 4 * X)
    glt.distributed.barrier(60.0)
    left = require_world().stats()[0]["tensors"].keys() | {each.name for each in folder.glob("*.npy*")}
    assert left == ({"inference.npy"} if spills else {"inference"}), left
    return found


@pytest.mark.parametrize("spills", [False, True])
def test_others_are_told_and_all_go_on(world, tmp_path, spills):
    failures = (
        (1, "ValueError", "x has shape [599, 1]: expected a row for each of 600 nodes"),
        (1, "RuntimeError", "out of memory, say"),
        (1, "KeyboardInterrupt", "Ctrl-C"),
        (0, "OSError", "no disk, say"),
        (1, "RuntimeError", "early"),
    )
    with job_of(world(1, "in", "xye").path, 1, 3) as job:
        found = job.run(attempts, tmp_path, spills, ranked=True)
        for at, (culprit, error, words) in enumerate(failures):
            kind, text, when = found[culprit][at]
            assert kind == error and words in text
            for other in {0, 1, 2} - {culprit}:
                kind, text, then = found[other][at]
                assert kind == "PeerLost" and f"trainer {culprit}, client {culprit} of" in text, text
                assert f"{error}: {words}" in text and "infer_layerwise" in text, text
                assert then - when < PROMPT_S
        for kind, text, _ in (each[-1] for each in found):
            assert kind == "ValueError" and '"layers": 1' in text and '"layers": 2' in text and "trainer 2" in text


def infer_and_die(rank):
    def layer(x, edge_index):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(Exception, match="") as raised:
        infer_layerwise([double, layer], X)
    return type(raised.value).__name__, str(raised.value), time.monotonic()


def test_a_killed_trainer_is_named(world):
    made = world(2, "in", "xye")
    with Stage(5) as stage:
        begin_job(stage, made.path, 2, 3)
        Job(stage, 2, 3).begin(infer_and_die, ranked=True)
        stage.processes[3].join(60.0)
        killed = time.monotonic()
        for trainer in (2, 4):
            kind, text, when = stage.result(trainer)
            assert kind == "PeerLost" and "trainer 1, client 1 of" in text, text
            assert when - killed < PROMPT_S
        for server in (0, 1):
            stage.kill(server)
        for trainer in (2, 4):
            stage.ask(trainer, "run_function", finalize, 0.0)
        stage.end(2, 4)
        stage.expect_nothing_left()


def test_barriers_that_are_called_off():
    from glt.distributed.tensors.barrier import Barriers
    from glt.errors import PeerLost

    class Who:
        def __init__(self, rank):
            self.rank, self.id, self.group = rank, f"session {rank}", "trainers"

        def __str__(self):
            return f"client {self.rank}"

    barriers, (a, b, c) = Barriers(), map(Who, range(3))
    try:
        for who in (a, b, c):
            barriers.add(who)
        arrived = barriers.arrive(a, "t", 0, 3)
        assert barriers.failure(b, "t", 0, 3) is None
        assert barriers.abort(b, "t", 0, "has failed") == 0
        with pytest.raises(PeerLost, match="trainer 1, client 1, has failed"):
            arrived.result(0)
        with pytest.raises(PeerLost, match="barrier 0 of 't' has failed before client 2 arrived: trainer 1"):
            barriers.arrive(c, "t", 0, 3)
        assert barriers.abort(c, "t", 0, "has failed too") == 0, "once"
        assert barriers.failure(a, "t", 0, 3) == "trainer 1, client 1, has failed"
        assert [barriers.arrive(who, "t", 1, 3).done() for who in (c, a, b)] == [False, False, True]
        # One that gave up waiting for meeting 1 does not know that it was held: it calls off the next.
        assert barriers.abort(a, "t", 1, "was interrupted") == 2
        assert "was interrupted" in str(barriers.failure(b, "t", 2, 3))
        barriers.remove(c, "it was killed")
        assert barriers.failure(b, "t", 3, 2) is None
        assert barriers.failure(b, "t", 3, 3) == "trainer 2, client 2, is gone: it was killed"
        with pytest.raises(PeerLost, match="is gone, or never came"):
            barriers.abort(c, "t", 4, "")
    finally:
        barriers.close("the test is over")


Layers = list[pyg.HeteroConv]


def layers():
    torch.manual_seed(8)

    def conv(width):
        follows = pyg.GATv2Conv((-1, -1), width, edge_dim=2, add_self_loops=False)
        convs = {RATES: pyg.GraphConv((-1, -1), width), RATED: pyg.SAGEConv((-1, -1), width), FOLLOWS: follows}
        return pyg.HeteroConv(convs, aggr="sum")

    return [conv(8), conv(8), conv(3)]


def initialized(made, x, edge_index, given):
    """What the layers make of the whole graph, and with that their lazy parameters; the same ones everywhere."""
    torch.manual_seed(9)
    for at, layer in enumerate(made):
        x = layer(x, edge_index, **given)
        x = {t: each.relu() for t, each in x.items()} if at < 2 else x
    return {t: each.detach() for t, each in x.items()}


def original(root, type_):
    """The original ids of a relabelled type, in the order of the new ones."""
    return torch.as_tensor(load_id_map(root, type_).original.copy()).long()


def infer_types(root, whole, spill_dir, original_ids):
    x, edge_index, weight, attr = torch.load(whole)
    given = {"edge_weight_dict": {RATES: weight}, "edge_attr_dict": {FOLLOWS: attr}}
    model = layers()
    initialized(model, x, edge_index, given)
    graph = DistGraph("typed")
    attr_of = DistTensor((400, 2), name="attr", part=FOLLOWS)
    if glt.distributed.get_rank() == 0:
        is_relabelled = graph.world.data.manifest.edge_types[2].offsets is not None
        attr_of[torch.arange(400)] = attr[original(root, FOLLOWS)] if is_relabelled else attr
    glt.distributed.barrier(60.0)
    require_blocks(graph)
    options = {"batch_size": 11, "num_workers": 1, "spill_dir": spill_dir, "original_ids": original_ids}
    got = infer_layerwise(model, edge_weight="w", edge_attr={FOLLOWS: attr_of}, between=torch.relu, **options)
    rows = {t: each[torch.arange(NUM_TYPED[t])].clone() for t, each in got.items()}
    glt.distributed.barrier(60.0)
    return rows


def require_blocks(graph):
    """Blocks that servers sample are the plain batches, taken apart."""
    edges = {RATES: torch.arange(glt.distributed.get_rank(), 700, 11)}
    given = {"with_edge": True, "collect_features": True, "random_seed": 4, "num_workers": 1}
    with (
        EdgeDataLoader(graph, edges, [3, 2], 30, **given) as plain,
        EdgeDataLoader(graph, edges, [3, 2], 30, blocks=True, **given) as layers,
    ):
        for batch, (input_nodes, positive, blocks) in zip(plain, layers, strict=True):
            assert torch.equal(positive[RATES].edge_index, batch[RATES].edge_label_index)
            assert torch.equal(blocks[0].edata["w"][RATES], batch[RATES].w)
            assert torch.equal(blocks[0].edata["w"][RATES], graph.edata[RATES]["w"][blocks[0].e_id[RATES]])
            for t, ids in input_nodes.items():
                assert torch.equal(ids, batch[t].n_id) and torch.equal(blocks[0].srcdata["x"][t], batch[t].x)


@pytest.mark.parametrize(
    ("relabel", "spills", "original_ids"), [(False, False, True), (True, False, True), (True, True, False)]
)
def test_types_of_served_graphs(tmp_path, relabel, spills, original_ids):
    weight, attr = torch.rand(700), torch.randn(400, 2)
    x = {t: torch.randn(count, 5) for t, count in NUM_TYPED.items()}
    made = write_typed_world(tmp_path, 2, edge_attrs={RATES: {"w": weight}}, node_feat=x, relabel=relabel)
    given = {"edge_weight_dict": {RATES: weight}, "edge_attr_dict": {FOLLOWS: attr}}
    expected = initialized(layers(), x, made.edge_index, given)
    torch.save((x, made.edge_index, weight, attr), tmp_path / "whole.pt")
    with job_of(made.path, 2, 2) as job:
        for got in job.run(infer_types, made.path, tmp_path / "whole.pt", tmp_path if spills else None, original_ids):
            assert set(got) == set(expected) == {"user", "item"}
            for t, rows in got.items():
                order = torch.arange(NUM_TYPED[t]) if original_ids else original(made.path, t)
                torch.testing.assert_close(rows, expected[t][order], rtol=1e-4, atol=1e-4)
