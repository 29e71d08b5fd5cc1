"""A trainer without others reads all partitions itself."""

import shutil

import pytest
from batch_law import CASES, SEED, assert_same, reference
from dist_world import seeds_of, snapshot

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, MpDistSamplingWorkerOptions, context


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(context, "_context", None)
    glt.distributed.init_worker_group(1, 0, "alone")


def loader(data, options):
    case = CASES[0]
    return glt.distributed.DistNeighborLoader(
        data, list(case.num_neighbors), seeds_of(0), 16, random_seed=SEED, worker_options=options, **case.loader
    )


@pytest.mark.parametrize("options", [CollocatedDistSamplingWorkerOptions(), MpDistSamplingWorkerOptions()])
def test_its_batches_are_those_of_the_whole_graph(world, options):
    here = world(2)
    with loader(DistDataset().load(here.path, 1), options) as made:
        got = [snapshot(batch) for _ in range(2) for batch in made]
        assert made.stats()["num_remote_nodes"] == 0
    assert_same(got, reference(here, CASES[0], 0), "alone")


def test_partitions_that_it_cannot_read_are_named(world, tmp_path):
    data = DistDataset().load(world(2).path, 0)
    with pytest.raises(
        ValueError, match=r"no trainer loaded partitions \[1\] of 2 \(loaded are, by rank, {0: 0}\).*read_local=False"
    ):
        loader(data, CollocatedDistSamplingWorkerOptions(read_local=False))
    shutil.copytree(world(2).path, tmp_path / "parts")
    data = DistDataset().load(tmp_path / "parts", 0)
    shutil.rmtree(tmp_path / "parts" / "part1")
    with pytest.raises(
        ValueError, match=r"cannot be read here without one \(partition 1: .*is missing.*in everyone's graph_dir"
    ):
        loader(data, CollocatedDistSamplingWorkerOptions())
