"""What distributed loaders count, by epoch, and what it says as it prints."""

import pytest
from dist_world import join, options, run_cluster, seeds_of

import glt
from glt.loader import Stats


def two_epochs(trainer, path, mode):
    """Of each epoch: what was counted, what was seen of the batches, and what the counts say."""
    data, found = join(trainer, path), []
    flags = {"batch_size": 8, "collect_features": True, "random_seed": 1}
    make, seeds, where = glt.distributed.DistNeighborLoader, seeds_of(trainer.rank), options(trainer, mode)
    with make(data, [4, 3], seeds, worker_options=where, **flags) as loader:
        for _ in range(2):
            before, num_nodes, num_batches = loader.stats(), 0, 0
            assert isinstance(before, Stats)
            for batch in loader:
                num_nodes, num_batches = num_nodes + batch.num_nodes, num_batches + 1
            epoch = loader.stats() - before
            found.append((dict(epoch), num_nodes, num_batches, len(seeds), repr(epoch)))
    return found


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_an_epoch_is_the_difference_of_two_calls(world, mode):
    for epochs in run_cluster(2, two_epochs, world(2).path, mode):
        for stats, num_nodes, num_batches, num_seeds, told in epochs:
            assert (stats["num_nodes"], stats["num_batches"], stats["num_seeds"]) == (num_nodes, num_batches, num_seeds)
            assert stats["num_workers"] == (1 if mode == "mp" else 0)
            assert 0 < stats["wait_s"] + stats["collate_s"] <= stats["epoch_s"]
            assert stats["remote_node_ratio"] == stats["num_remote_nodes"] / num_nodes
            asked = stats["num_remote_nodes"] + stats["num_window_nodes"] + stats["num_cached_nodes"]
            assert stats["cache_hit_ratio"] == stats["num_cached_nodes"] / asked
            assert told.startswith("Stats(") and "limit" in told and "too few" not in told
        (first, *_), (second, *_) = epochs
        # Rows that came in the first epoch are kept in the second.
        assert first["num_remote_nodes"] > second["num_remote_nodes"]
        assert second["cache_hit_ratio"] > first["cache_hit_ratio"] > 0
