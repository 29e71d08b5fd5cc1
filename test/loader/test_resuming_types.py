"""States of loaders of heterogeneous and temporal graphs, of stores and datasets, and with samplers of another make."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
import torch_geometric.sampler
from equal_batches import plain

import glt
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph

DATA = random_hetero_graph(seed=2)
HOMO = random_graph(120, 900, seed=5).to_data()
USERS = ("user", torch.arange(30))
EDGE_TYPE = DATA.edge_types[0]
LINKS = (EDGE_TYPE, DATA[EDGE_TYPE].edge_index[:, :40])


def of_nodes(data=DATA, seeds=USERS, **given):
    return NeighborLoader(data, [3, 2], seeds, batch_size=8, shuffle=True, **given)


def of_links(**given):
    return LinkNeighborLoader(DATA, [3, 2], LINKS, neg_sampling="triplet", batch_size=8, shuffle=True, **given)


CASES = {
    "types": (of_nodes, {}),
    "counts by type": (
        lambda **given: NeighborLoader(DATA, {t: [2, 1] for t in DATA.edge_types}, USERS, batch_size=8, **given), {},
    ),
    "times": (of_nodes, {"time_attr": "time", "temporal_strategy": "last"}),
    "times of seeds": (of_nodes, {"time_attr": "time", "input_time": torch.arange(30) * 30}),
    "links": (of_links, {}),
    "links kept out": (of_links, {"exclude_edges": "self"}),
    "stores": (lambda **given: of_nodes((DATA, DATA), **given), {}),
    "dataset": (lambda **given: of_nodes(glt.data.Dataset.from_pyg(DATA), **given), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_what_is_left_is_what_was_missing(name):
    make, given = CASES[name]
    loader = make(random_seed=1, **given)
    whole = [plain(batch) for batch in loader]
    following = plain(next(iter(loader)))
    loader.set_epoch(0)
    list(islice(loader, 2))
    state = loader.state_dict()
    other = make(random_seed=2, **given)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.state_dict() == state
    assert [plain(batch) for batch in other] == whole[2:] and len(whole) > 3
    assert plain(next(iter(other))) == following


def test_types_times_and_exclusions_must_agree():
    state = of_nodes().state_dict()
    for other, text in (
        (of_nodes(seeds=("item", torch.arange(30))), "seeds of type is 'user', but of this loader 'item'"),
        (of_nodes(time_attr="time"), "disjoint is False, but of this loader True"),
    ):
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="exclude_edges is None, but of this loader 'self'"):
        of_links(exclude_edges="self").load_state_dict(of_links().state_dict())
    late = of_nodes(time_attr="time", input_time=torch.full((30,), 99))
    with pytest.raises(ValueError, match="seeds_crc32"):
        late.load_state_dict(of_nodes(time_attr="time").state_dict())


class Seeds(torch_geometric.sampler.BaseSampler):
    """A sampler of another make, which returns the seeds alone."""

    def sample_from_nodes(self, index):
        none = torch.empty(0, dtype=torch.int64)
        return torch_geometric.sampler.SamplerOutput(
            index.node, none, none, none, metadata=(index.input_id, index.time)
        )  # fmt: skip

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError("of nodes only")


def test_with_a_sampler_of_another_make_the_seeds_are_those_missing():
    def make(sampler, random_seed):
        return NeighborLoader(
            HOMO, [3], torch.arange(40), neighbor_sampler=sampler, batch_size=8, shuffle=True, random_seed=random_seed
        )

    whole = [batch.n_id.tolist() for batch in make(Seeds(), 1)]
    loader = make(Seeds(), 1)
    list(islice(loader, 3))
    other = make(Seeds(), 2)
    other.load_state_dict(loader.state_dict())
    assert [batch.n_id.tolist() for batch in other] == whole[3:]
    with pytest.raises(ValueError, match="neighbor_sampler is 'Seeds', but of this loader 'NeighborSampler'"):
        make(None, 1).load_state_dict(loader.state_dict())
