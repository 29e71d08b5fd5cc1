"""All edges of a type as seeds: of each trainer, those of its partition."""

import pytest
import torch
from dist_typed_world import RATES, snapshot
from dist_world import join, options
from test_one_batch_law import assert_same

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, context
from glt.testing.cluster import Cluster

NUM_RATES = 700


def seeds_of_all(trainer, path):
    """Of each seed edge: its id, ends, label and time. Three trainers load two partitions."""
    data = join(trainer, path, trainer.rank % 2)
    label, time = torch.arange(NUM_RATES) % 5 + 1, 40 + torch.arange(NUM_RATES) % 3
    found = []
    with glt.distributed.DistLinkNeighborLoader(
        data, [2], RATES, batch_size=100, edge_label=label, edge_label_time=time, time_attr="time", shuffle=True,
        worker_options=options(trainer, "collocated"),
    ) as loader:  # fmt: skip
        for batch in loader:
            store = batch[RATES]
            ends = torch.stack([batch[t].n_id[store.edge_label_index[i]] for i, t in ((0, "user"), (1, "item"))])
            found += list(
                zip(
                    store.input_id.tolist(), ends.t().tolist(), store.edge_label.tolist(),
                    store.edge_label_time.tolist(), strict=True,
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_each_edge_is_a_seed_of_one_trainer(typed_world, edge_dir):
    world = typed_world(2, edge_dir)
    with Cluster(3, seeds_of_all, world.path) as cluster:
        by_rank = cluster.results()
    assert abs(len(by_rank[0]) - len(by_rank[2])) <= 1  # they share a partition
    found = sorted(each for found in by_rank for each in found)
    assert [each[0] for each in found] == list(range(NUM_RATES))
    assert torch.equal(torch.tensor([each[1] for each in found]).t(), world.edge_index[RATES])
    assert [each[2:] for each in found] == [(i % 5 + 1, 40 + i % 3) for i in range(NUM_RATES)]


@pytest.fixture
def _alone(monkeypatch):
    monkeypatch.setattr(context, "_context", None)
    glt.distributed.init_worker_group(1, 0, "alone")
    yield


def links(data, edges, **given):
    return glt.distributed.DistLinkNeighborLoader(
        data,
        [2, 1],
        edges,
        batch_size=200,
        random_seed=3,
        worker_options=CollocatedDistSamplingWorkerOptions(),
        **given,
    )


@pytest.mark.usefixtures("_alone")
def test_all_edges_are_those_of_the_local_loader(typed_world, world):
    typed = typed_world(1)
    local = glt.loader.LinkNeighborLoader
    wanted = list(local(typed.to_data(), [2, 1], (RATES, None), batch_size=200, random_seed=3))
    flags = {"collect_features": True, "with_edge": True}
    for edges in ((RATES, None), RATES, (("user", "item"), None)):
        with links(DistDataset().load(typed.path, 0), edges, **flags) as loader:
            for batch, other in zip(loader, wanted, strict=True):
                assert_same([snapshot(batch)], [{name: snapshot(other)[name] for name in snapshot(batch)}], str(edges))
    plain = world(1)
    with links(DistDataset().load(plain.path, 0), None) as loader:
        assert torch.equal(torch.cat([batch.input_id for batch in loader]), torch.arange(6000))


@pytest.mark.usefixtures("_alone")
def test_what_does_not_fit_all_edges(typed_world):
    data = DistDataset().load(typed_world(1).path, 0)
    for edges, given, text in (
        (RATES, {"edge_label": torch.ones(5)}, r"edge_label has shape \[5\].*each edge of the whole graph, 700"),
        (("user", "likes", "item"), {}, "'likes'.*expected one of .*partitioned with none"),
        ((("user", "likes", "item"), None), {}, "'likes'.*expected one of .*partitioned with none"),
        (("user", "rates", 3), {}, "has 3 elements: expected an edge type, or a pair of it"),
        (None, {}, "has no edge type, but is None: expected an edge type, or a pair"),
    ):
        with pytest.raises(ValueError, match=text):
            links(data, edges, **given)
    with links(data, ("item", "in", "tag")) as loader:  # a type without edges
        assert len(loader) == 0 and list(loader) == []
