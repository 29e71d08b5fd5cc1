"""The example of temporal link prediction: TGB's measure, its negatives, no look at the future, and that it learns."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = EXAMPLES / "temporal_link_prediction.py"
DATA = EXAMPLES.parents[1] / "shared/data/mathoverflow.npz"
CHANCE = sum(1 / rank for rank in range(1, 22)) / 21  # of the true one among 20 others


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import temporal_link_prediction

    return temporal_link_prediction


def test_ranks_are_those_of_tgb(example):
    """The mean of the optimistic and the pessimistic rank: 1, 3, (1 + 3) / 2, and (2 + 3) / 2."""
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.1, 0.2, 0.3], [0.5, 0.5, 0.5], [0.5, 0.9, 0.5]])
    assert torch.allclose(example.reciprocal_ranks(scores), 1 / torch.tensor([1, 3, 2, 2.5]))


def test_a_batch_holds_nothing_of_a_seeds_moment_or_later(example):
    stream = example.make_stream(3000)
    assert len(np.unique(stream.time)) < 0.7 * len(stream.time), "many moments have several events"
    args = argparse.Namespace(num_neighbors=[10, 5], batch_size=200)
    negatives, events = example.Negatives(stream, 2000, 0), np.arange(1000, 2400)
    pairs = example.pair_loader(stream.graph(), stream, events, negatives.one_of_each(events), 0, args)
    candidates = np.stack([stream.target[events], negatives.one_of_each(events)], axis=1)
    seeds = example.candidate_loader(stream.graph(), stream, events, candidates, args)
    for loader, name in ((pairs, "edge_label_time"), (seeds, "seed_time")):
        num_edges = 0
        for batch in loader:
            moment = batch[name][batch.batch[batch.edge_index[1]]]
            assert (batch.time < moment).all()
            # And what is told of an edge is of that edge.
            event = batch.e_id % len(stream.time)
            assert torch.equal(batch.time, torch.from_numpy(stream.time)[event])
            assert torch.equal(batch.edge_attr[:, :4], torch.from_numpy(stream.message)[event])
            num_edges += batch.num_edges
        assert num_edges > 10 * len(events), "there is a past"


def test_negatives_are_of_the_past_and_did_not_happen(example):
    stream = example.make_stream(3000)
    negatives = example.Negatives(stream, 2000, 0)
    happened = set(zip(stream.source.tolist(), stream.target.tolist(), stream.time.tolist(), strict=True))
    first = {int(target): stream.time[stream.target == target].min() for target in np.unique(stream.target)}
    for event in range(2500, 2600):
        source, time = int(stream.source[event]), int(stream.time[event])
        found = negatives.of(event, 20).tolist()
        assert len(set(found)) == 20 and all(first[each] < time for each in found)
        assert not any((source, each, time) in happened for each in found)
        past = set(stream.target[:2000][stream.source[:2000] == source].tolist())
        assert sum(each in past for each in found) == min(10, len(past - {int(stream.target[event])})), "half, if any"
    events = np.arange(500, 2000)
    found = negatives.one_of_each(events)
    assert (found != stream.target[events]).mean() > 0.98
    assert all(first[int(each)] < time for each, time in zip(found, stream.time[events], strict=True))
    with pytest.raises(ValueError, match="too many for the 100 targets of before event 2500"):
        negatives.of(2500, 100)


def test_the_baseline_is_edge_bank(example):
    """The pair 0 -> 3 was there before its second event, 0 -> 4 only later."""
    ids = np.array([[0, 3], [0, 3], [0, 4]])
    stream = example.Stream(*ids.T, np.array([10, 20, 30]), np.zeros((3, 0), np.float32), 5)
    candidates = np.array([[3, 4], [3, 4], [4, 3]])
    assert example.edge_bank(stream, np.arange(3), candidates) == pytest.approx((1 / 1.5 + 1 + 1 / 2) / 3)


def test_it_reads_the_files_of_tgb(example, tmp_path):
    text = (
        "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,5.0,0,0.1,0.2\n1,1,3.0,1,0.3,0.4\n"
    )
    (tmp_path / "tgbl-toy_edgelist_v2.csv").write_text(text)
    stream = example.read_stream(str(tmp_path / "tgbl-toy_edgelist_v2.csv"))
    assert (stream.source.tolist(), stream.target.tolist(), stream.time.tolist()) == ([1, 0], [3, 2], [3, 5])
    assert np.allclose(stream.message, [[0.3, 0.4], [0.1, 0.2]]) and stream.num_nodes == 4


def test_other_files_of_tgb_are_refused(example, tmp_path):
    (tmp_path / "other.csv").write_text("timestamp,u,v,weight\n3,0,1,0.5\n")
    with pytest.raises(SystemExit, match=r"begins with 'timestamp,u,v,weight.*expected tgbl-wiki's columns"):
        example.read_stream(str(tmp_path / "other.csv"))


def trained(run, *flags):
    told = run(EXAMPLE, "--max_eval", "300", "--lr", "0.02", "--epochs", "3", *flags).stdout
    assert re.search(r"Epoch: 00, Loss: \d\.\d{4}, Val MRR: 0\.\d{4}, Test MRR: 0\.\d{4}, \S+ s", told), told
    return float(re.findall(r"EdgeBank's test MRR: (\S+)", told)[0]), float(re.findall(r"Test MRR: (\S+),", told)[-1])


def test_recent_events_are_as_good_as_all_and_better_than_the_baseline(run):
    bank, recent = trained(run, "--num_neighbors", "8")
    _, full = trained(run, "--num_neighbors=-1")
    assert recent > 1.5 * max(bank, CHANCE) and recent > full - 0.05, (bank, recent, full)


@pytest.mark.shared
@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is absent")
def test_it_learns_from_a_real_stream(run):
    bank, recent = trained(run, "--data", DATA, "--num_neighbors", "8", "--epochs", "1", "--max_events", "5000")
    assert recent > max(bank, CHANCE), (bank, recent)
