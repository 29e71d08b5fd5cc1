"""Rows that partitions store smaller: the same batches in every mode, of what the rows have become."""

from dataclasses import replace

import pytest
import torch
from dist_world import CASES, NUM_EDGES, NUM_NODES, expect_law, standalone_job, write_world

from glt.data import Feature
from glt.partition import FrequencyPartitioner

STORED = {"x": "int8", "edge_attr": "float16"}


@pytest.fixture(scope="module", params=["int4", "by table"])
def packed(request, tmp_path_factory):
    """A directory, as it should be: with the rows that were stored, and with caches."""
    store_dtype = STORED if request.param == "by table" else "int4"
    probs = [torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(p)) for p in range(2)]
    given = {"partitioner": FrequencyPartitioner, "probs": probs, "cache_ratio": 0.2, "store_dtype": store_dtype}
    random = torch.Generator().manual_seed(7)
    tables = {"node_feat": torch.randn(NUM_NODES, 5, generator=random)}
    tables |= {"edge_feat": torch.randn(NUM_EDGES, 3, generator=random)}
    made = write_world(tmp_path_factory.mktemp("packed"), 2, **given, **tables)
    made = replace(made, x=tables["node_feat"], edge_attr=tables["edge_feat"])
    kinds = STORED if request.param == "by table" else dict.fromkeys(STORED, "int4")
    x, edge_attr = (Feature(getattr(made, name), store_dtype=kind).dense() for name, kind in kinds.items())
    assert not torch.equal(x, made.x)
    return replace(made, x=x, edge_attr=edge_attr)


@pytest.mark.parametrize(("mode", "read_local"), [("collocated", True), ("collocated", False), ("mp", False)])
def test_batches_are_those_of_the_rows_that_are_stored(packed, mode, read_local):
    expect_law(packed, mode, {"read_local": read_local}, CASES[:2])


def test_tables_of_a_graph_are_read_and_written(packed):
    with standalone_job(packed.path) as graph:
        ids = torch.tensor([5, 599, 5])
        assert torch.equal(graph.ndata["x"][ids], packed.x[ids])
        assert torch.equal(graph.edata["edge_attr"][3:90], packed.edge_attr[3:90])
        graph.ndata["x"][ids[:1]] = torch.full((1, packed.x.shape[1]), 0.123)
        assert torch.equal(graph.ndata["x"][ids[:2]], torch.stack([torch.full_like(packed.x[0], 0.123), packed.x[599]]))
        graph.ndata["x"].delete()
        assert torch.equal(graph.ndata["x"][ids], packed.x[ids])
