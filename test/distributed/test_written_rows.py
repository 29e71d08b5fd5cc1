"""What is written to ndata and edata is what loaders put into batches, wherever they sample."""

import pytest
import torch
from dist_typed_world import RATES
from dist_world import NUM_NODES

from glt.distributed.context import get_context
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.loaders import EdgeDataLoader, NodeDataLoader
from glt.distributed.job.initialize import finalize, initialize
from glt.distributed.loader.loaders import DistNeighborLoader
from glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt.distributed.tensors.tensor import DistTensor

SEEDS = torch.arange(5, 300, 4)


def opened(path):
    initialize(part_config=path)
    return DistGraph("small")


@pytest.fixture(params=[1, 3])
def small(request, world):
    made = world(request.param, "in", "xye")
    yield opened(made.path), made
    finalize()


def rewrite(table, ids):
    """Writes rows, and returns all there are now."""
    rows = torch.arange(len(ids) * table.shape[1:].numel()).view(len(ids), *table.shape[1:]).to(table.dtype)
    table[ids] = rows
    return table[:]


@pytest.mark.parametrize("small, num_workers", [(1, 0), (3, 0), (3, 1)], indirect=["small"])
def test_batches_have_what_was_written(small, num_workers):
    graph, made = small
    assert made.x is not None and made.edge_attr is not None

    def epoch(with_edge):
        options = {"random_seed": 3, "num_workers": num_workers, "with_edge": with_edge}
        with NodeDataLoader(graph, SEEDS, [4, 3], 16, **options) as loader:
            return list(loader)

    before = epoch(True)
    x, y = rewrite(graph.ndata["feat"], torch.arange(0, NUM_NODES, 2)), rewrite(graph.ndata["y"], SEEDS)
    edge_attr = rewrite(graph.edata["feat"], torch.arange(0, 1000, 3))
    after, without_ids = epoch(True), epoch(False)
    assert len(before) == len(after) == len(without_ids) > 0
    for old, new, plain in zip(before, after, without_ids, strict=True):
        assert torch.equal(old.edge_index, new.edge_index) and torch.equal(old.n_id, new.n_id)
        assert torch.equal(old.x, made.x[old.n_id]) and torch.equal(old.edge_attr, made.edge_attr[old.e_id])
        assert torch.equal(new.x, x[new.n_id]) and torch.equal(new.y, y[new.n_id])
        assert torch.equal(new.edge_attr, edge_attr[new.e_id])
        assert "e_id" not in plain
        assert all(torch.equal(plain[name], new[name]) for name in plain.keys() if torch.is_tensor(plain[name]))


def test_what_this_trainer_writes_is_in_the_batches_that_it_takes_next(small):
    graph, _ = small
    with NodeDataLoader(graph, SEEDS, [4, 3], 16) as loader:
        for at, batch in enumerate(loader):
            assert (batch.x[:, 0] == at).all() or at == 0
            graph.ndata["x"][:] = float(at + 1)


def test_what_is_assigned_to_the_name_of_a_table_is_in_batches(small):
    graph, made = small
    wide = DistTensor((NUM_NODES, 9), torch.float64, "wide", part="node", init_func="ones")
    with (
        NodeDataLoader(graph, SEEDS, [4, 3], 16) as loader,
        DistNeighborLoader(
            graph.world.data,
            [4],
            SEEDS,
            16,
            collect_features=True,
            worker_options=CollocatedDistSamplingWorkerOptions(),
        ) as plain,
    ):
        graph.ndata["x"] = wide
        for batch in loader:
            assert torch.equal(batch.x, torch.ones(len(batch.n_id), 9, dtype=torch.float64))
        for batch in plain:  # the name is that graph's
            assert torch.equal(batch.x, made.x[batch.n_id])
        assert get_context() is not None


def test_loaders_that_know_no_graph_object_see_what_was_written(small):
    graph, _ = small
    x = rewrite(graph.ndata["x"], torch.arange(0, NUM_NODES, 2))
    options = {"collect_features": True, "worker_options": CollocatedDistSamplingWorkerOptions()}
    with DistNeighborLoader(graph.world.data, [4, 3], SEEDS, 16, **options) as loader:
        assert all(torch.equal(batch.x, x[batch.n_id]) for batch in loader)


def test_deleting_a_table_undoes_what_was_written(small):
    graph, made = small
    assert made.x is not None
    graph.ndata["x"][:] = 7.0
    with NodeDataLoader(graph, SEEDS, [4, 3], 16) as loader:
        assert all((batch.x == 7).all() for batch in loader)
        graph.ndata["x"].delete()
        assert all(torch.equal(batch.x, made.x[batch.n_id]) for batch in loader)
        assert torch.equal(graph.ndata["x"][:], made.x)


def test_without_features_nothing_is_read(small):
    graph, _ = small
    graph.ndata["x"][:] = 7.0
    with NodeDataLoader(graph, SEEDS, [4, 3], 16, collect_features=False) as loader:
        assert all("x" not in batch for batch in loader)


def test_edges_and_masks_that_servers_keep(small):
    graph, _ = small
    x = rewrite(graph.ndata["x"], torch.arange(0, NUM_NODES, 2))
    edges = DistTensor((graph.num_edges(),), torch.uint8, "edges", init_func=("constant", 0))
    edges[torch.arange(0, 100, 9)] = 1
    with EdgeDataLoader(graph, edges, [4, 3], 16) as loader:
        found = list(loader)
    assert torch.cat([batch.input_id for batch in found]).tolist() == list(range(0, 100, 9))
    assert all(torch.equal(batch.x, x[batch.n_id]) for batch in found)
    nodes = DistTensor((NUM_NODES,), torch.uint8, "nodes")
    nodes[SEEDS] = 1
    for mask in (nodes, nodes[:], nodes[:].numpy(), nodes[:].bool()):
        with NodeDataLoader(graph, mask, [4], 16) as loader:
            assert torch.equal(torch.cat([batch.input_id for batch in loader]), SEEDS)
    with pytest.raises(ValueError, match=r"input_nodes\[2\] = 2: expected 0 or 1; uint8 is a mask"):
        NodeDataLoader(graph, (torch.arange(NUM_NODES) % 5).to(torch.uint8), [4], 16)
    with pytest.raises(ValueError, match=r"input_nodes is a mask of 2 elements: expected \d+.*convert ids to int64"):
        NodeDataLoader(graph, torch.tensor([1, 0], dtype=torch.uint8), [4], 16)


@pytest.fixture
def typed(typed_world):
    made = typed_world(2, "in", "node")
    yield opened(made.path), made
    finalize()


def test_rows_of_types(typed):
    graph, _ = typed
    written = {t: rewrite(graph.ndata[t]["x"], torch.arange(0, graph.num_nodes(t), 3))
               for t in graph.ntypes if "x" in graph.ndata[t]}  # fmt: skip
    assert written
    with NodeDataLoader(graph, {RATES[0]: torch.arange(20)}, [4, 3], 8) as loader:
        for batch in loader:
            for t, rows in written.items():
                assert torch.equal(batch[t].x, rows[batch[t].n_id])


def test_times_that_sampling_goes_by_are_not_written(typed):
    graph, _ = typed
    timed = [t for t in graph.ntypes if "time" in graph.ndata[t]]
    assert timed
    for t in timed:
        before = graph.ndata[t]["time"][:]
        for write in (
            lambda t=t: graph.ndata[t]["time"].__setitem__(0, 1),
            lambda t=t: graph.ndata[t]["time"].add(0, 1),
            lambda t=t: graph.ndata[t].__setitem__("time", DistTensor((graph.num_nodes(t),), torch.int64, part=t)),
        ):
            with pytest.raises(
                ValueError, match=r"time.* has the times that edges were sorted by .*partition it again"
            ):
                write()
        assert torch.equal(graph.ndata[t]["time"][:], before)


def test_blocks_have_what_was_written(small):
    graph, _ = small
    x = rewrite(graph.ndata["x"], torch.arange(0, NUM_NODES, 2))
    with NodeDataLoader(graph, SEEDS, [4, 3], 16, blocks=True, collect_features=True) as loader:
        for nodes, _, blocks in loader:
            assert torch.equal(blocks[0].srcdata["x"], x[nodes])
