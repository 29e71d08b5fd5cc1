"""What differs between the trainers of one loader: refused, or settled the same way on all of them."""

import pytest
import torch
from dist_typed_world import RATES
from dist_world import join, options

import glt
from glt.testing.cluster import Cluster

LABELS = {0: [0, 1, 2], 1: [1, 2, 1], 2: []}


def label_links(trainer, path):
    data = join(trainer, path, trainer.rank % 2)
    label = torch.tensor(LABELS[trainer.rank], dtype=torch.int64)
    edges = torch.zeros(2, len(label), dtype=torch.int64)
    with glt.distributed.DistLinkNeighborLoader(
        data, [2], (RATES, edges), batch_size=3, edge_label=label, neg_sampling="binary",
        worker_options=options(trainer, "collocated"),
    ) as loader:  # fmt: skip
        return [each for batch in loader for each in batch[RATES].edge_label.tolist()]


def test_a_label_means_the_same_on_all_ranks(typed_world):
    with Cluster(3, label_links, typed_world(2).path) as cluster:
        assert cluster.results() == [[1, 2, 3, 0, 0, 0], [2, 3, 2, 0, 0, 0], []]


def differ(trainer, path, label_file, drawn):
    first = trainer.rank == 0
    data = join(trainer, path, whole_node_label_file={"user": label_file} if first and label_file else None)
    edges = torch.zeros(2, 3, dtype=torch.int64)
    glt.distributed.DistLinkNeighborLoader(
        data, [2], (RATES, edges), neg_sampling=drawn if first else "binary",
        worker_options=options(trainer, "collocated"),
    )  # fmt: skip


@pytest.mark.parametrize("option", ["whole_node_label_file", "weights of negatives"])
def test_options_of_one_rank_are_refused(typed_world, tmp_path, option):
    torch.save(torch.arange(90), tmp_path / "y.pt")
    labelled = option == "whole_node_label_file"
    drawn = "binary" if labelled else {"mode": "binary", "src_weight": torch.ones(90)}
    with Cluster(2, differ, typed_world(2).path, str(tmp_path / "y.pt") if labelled else "", drawn) as cluster:
        for outcome in cluster.outcomes():
            assert outcome.error_type == "RendezvousError", outcome
            assert f"{option} differs between trainers" in outcome.error
