"""SamplingConfig: PyG's forms of num_neighbors, a JSON round trip, and every refusal in words."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NumNeighbors
from torch_geometric.sampler.base import SubgraphType

from glt.data.schema import HOMOGENEOUS, Schema
from glt.sampler import SamplingConfig
from glt.sampler.config import CONFLICTS, GIVEN, refuse_conflicts

SCHEMA = Schema(("a", "b"), (("a", "to", "a"), ("a", "to", "b"), ("b", "of", "a")))


@pytest.mark.parametrize(
    "form",
    [
        [5, -1],
        (5, -1),
        torch.tensor([5, -1]),
        np.array([5, -1]),
        NumNeighbors([5, -1]),
        {("a", "a"): [5, -1], ("a", "to", "b"): (5, -1), "b__of__a": torch.tensor([5, -1])},
        NumNeighbors({("a", "to", "b"): [5, -1]}, default=[5, -1]),
        NumNeighbors({}, default=[5, -1]),
    ],
    ids=repr,
)
def test_num_neighbors_in_every_form_of_pygs(form):
    assert SamplingConfig.checked(form, SCHEMA).num_neighbors == ((5, -1),) * 3


def test_counts_follow_the_order_of_the_edge_types():
    given = {("b", "of", "a"): [3], ("a", "to", "a"): [1], ("a", "to", "b"): [2]}
    config = SamplingConfig.checked(given, SCHEMA)
    assert config.num_neighbors == ((1,), (2,), (3,)) and config.num_hops == 1
    some = SamplingConfig.checked(NumNeighbors({("a", "to", "b"): [0]}, default=[7]), SCHEMA)
    assert some.num_neighbors == ((7,), (0,), (7,))


def test_a_homogeneous_graph_has_one_list():
    assert SamplingConfig.checked([3, 2]).num_neighbors == ((3, 2),)
    assert SamplingConfig.checked([3, -1], replace=True).replace  # -1 takes every edge once, as in PyG


@pytest.mark.parametrize(
    ("num_neighbors", "schema", "error", "message"),
    [
        (5, HOMOGENEOUS, TypeError, "num_neighbors = 5: expected a list"),
        ("55", HOMOGENEOUS, TypeError, "num_neighbors = '55'"),
        (torch.ones(2, 2), HOMOGENEOUS, TypeError, "num_neighbors = "),
        ({("a", "b", "c"): [1]}, HOMOGENEOUS, ValueError, "num_neighbors names edge type .* no types"),
        ([1] * 256, HOMOGENEOUS, ValueError, "num_neighbors has 256 hops: expected at most 255"),
        ([1, 2.0], HOMOGENEOUS, TypeError, r"num_neighbors\[1\] = 2.0: expected an integer"),
        ([1, True], HOMOGENEOUS, TypeError, r"num_neighbors\[1\] = True"),
        ([-2], HOMOGENEOUS, ValueError, r"num_neighbors\[0\] = -2"),
        ([2**31], HOMOGENEOUS, ValueError, r"num_neighbors\[0\] = 2147483648"),
        ({("a", "to", "c"): [1]}, SCHEMA, ValueError, "'a', 'to', 'c'.*Not all edge types specified"),
        ({("a", "to", "a"): [1]}, SCHEMA, ValueError, "Missing number of neighbors for edge type .*'a', 'to', 'b'"),
        (
            NumNeighbors({("a", "to", "a"): [1]}, default=[1, 2]),
            SCHEMA,
            ValueError,
            "hops must be the same across all edge types, but there are 1 .* and 2",
        ),
        ({("a", "to", "a"): 3}, SCHEMA, TypeError, r"num_neighbors\[\('a', 'to', 'a'\)\] = 3"),
        ({"a": [3]}, SCHEMA, TypeError, "num_neighbors names 'a': expected an edge type"),
        ({3: [3]}, SCHEMA, TypeError, "num_neighbors names 3"),
    ],
    ids=str,
)
def test_bad_counts_are_named(num_neighbors, schema, error, message):
    with pytest.raises(error, match=message):
        SamplingConfig.checked(num_neighbors, schema)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"subgraph_type": "directed"}, ValueError, r"subgraph_type = 'directed': expected one of \['directional'"),
        ({"temporal": "first"}, ValueError, "temporal = 'first': expected one of"),
        ({"time_level": "graph"}, ValueError, "time_level = 'graph'"),
        ({"exclude_edges": "batch"}, ValueError, "exclude_edges = 'batch'"),
        ({"replace": 1}, TypeError, "replace = 1: expected True or False"),
        ({"disjoint": None}, TypeError, "disjoint = None"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
    ids=str,
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        SamplingConfig.checked([1], **options)


@pytest.mark.parametrize("exclude", ["reverse", ("b", "of", "a")], ids=str)
def test_a_config_survives_json(exclude):
    config = SamplingConfig.checked(
        [5, -1], SCHEMA, replace=True, with_edge=False, temporal="last", time_level="edge", exclude_edges=exclude
    )
    assert SamplingConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.last and config.disjoint, "temporal batches are disjoint"


def test_enums_of_pyg_stand_for_their_values():
    assert SamplingConfig.checked([1], subgraph_type=SubgraphType.induced).subgraph_type == "induced"


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda c: " and ".join(c.options))
def test_every_conflict_is_refused_naming_both(conflict):
    values = {name: "given" if value is GIVEN else value for name, value in conflict.options.items()}
    first, second = values
    with pytest.raises(conflict.error, match=f"{first}'? .*and '?{second}'? ") as refused:
        refuse_conflicts(**values)
    assert conflict.why in str(refused.value)
    for name, value in values.items():  # alone, neither is refused
        refuse_conflicts(**{name: value})
