import json
import pickle
from dataclasses import asdict

import pytest

from glt.data.schema import HOMOGENEOUS, Schema

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
SCHEMA = Schema(("paper", "author"), (WRITES, CITES))


def test_ends_name_the_expanded_type_first():
    assert SCHEMA.ends("in") == ((0, 1), (0, 0))
    assert SCHEMA.ends("out") == ((1, 0), (0, 0))
    assert HOMOGENEOUS.ends("in") == HOMOGENEOUS.ends("out") == ((0, 0),)
    with pytest.raises(ValueError, match="edge_dir = 'both'"):
        SCHEMA.ends("both")


def test_types_are_positions_in_the_users_order():
    assert [SCHEMA.node_index(t) for t in ("paper", "author")] == [0, 1]
    assert SCHEMA.edge_index(CITES) == 1
    assert SCHEMA.edge_index(list(CITES)) == 1
    assert HOMOGENEOUS.node_index(None) == HOMOGENEOUS.edge_index(None) == 0


def test_values_by_type():
    assert SCHEMA.by_node_type([1, 2]) == {"paper": 1, "author": 2}
    assert SCHEMA.by_edge_type([1, 2]) == {WRITES: 1, CITES: 2}
    assert SCHEMA.per_node_type("x", {"author": 5}) == [None, 5]
    assert SCHEMA.per_edge_type("edge_attr", None) == [None, None]
    assert HOMOGENEOUS.per_node_type("x", 7) == [7]
    with pytest.raises(TypeError, match="x has type int: expected a dict by node type"):
        SCHEMA.per_node_type("x", 7)
    with pytest.raises(TypeError, match="x is a dict"):
        HOMOGENEOUS.per_node_type("x", {"node": 7})
    with pytest.raises(KeyError, match="x names node type 'venue'"):
        SCHEMA.per_node_type("x", {"venue": 7})


def test_is_a_value_that_survives_json_and_pickle():
    assert Schema(**json.loads(json.dumps(asdict(SCHEMA)))) == SCHEMA
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA
    assert hash(SCHEMA) == hash(Schema(["paper", "author"], [list(WRITES), CITES]))


@pytest.mark.parametrize(
    ("node_types", "edge_types", "is_hetero", "error", "message"),
    [
        (("a", "a"), (), True, ValueError, "'a' twice"),
        (("a",), (("a", "r", "a"),) * 2, True, ValueError, "twice"),
        (("a",), (("a", "r", "b"),), True, ValueError, "node type 'b'"),
        (("a",), (("a", "b"),), True, TypeError, "expected \\(source type"),
        ((1,), (), True, TypeError, "node_types holds 1"),
        (("a", "b"), (("a", "r", "b"),), False, ValueError, "2 node types"),
    ],
)
def test_what_is_no_schema_is_refused(node_types, edge_types, is_hetero, error, message):
    with pytest.raises(error, match=message):
        Schema(node_types, edge_types, is_hetero)
