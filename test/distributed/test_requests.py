"""What is asked arrives as it was asked, and the input of a loader as it was given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from glt.distributed.link_seeds import LinkSeeds, Negatives
from glt.distributed.requests import EarliestRequest, HasEdgesRequest, InducedRequest, OneHopRequest, RowsRequest
from glt.distributed.seed_table import SeedTable
from glt.distributed.seeds import seeds_from_json

IDS = torch.tensor([2**40, 0, 7])
NONE = torch.empty(0, dtype=torch.int64)


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, tuple):
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b and type(a) is type(b)


@pytest.mark.parametrize(
    "request_",
    [
        OneHopRequest(3, IDS, -1, False, 2**64 - 1, 254, True),
        OneHopRequest(0, IDS, 2**31 - 1, True, 0, 0, False, True, False, IDS.to(torch.uint32), None, (IDS, NONE)),
        OneHopRequest(1, NONE, 4, False, 2**63, 1, True, False, True, NONE.to(torch.uint32), NONE - 5, (NONE, NONE)),
        RowsRequest("edge", 11, IDS, ("edge_attr",)),
        RowsRequest("node", 0, NONE, ("x", "größe y", "time")),
        InducedRequest(2, IDS, NONE, True),
        HasEdgesRequest(5, IDS, -IDS),
        EarliestRequest(9),
    ],
    ids=lambda request: type(request).__name__,
)
def test_requests_arrive_as_they_were_asked(request_: Any) -> None:
    arrived = type(request_).decode(request_.encode())
    for field in fields(request_):
        assert_equal(getattr(request_, field.name), getattr(arrived, field.name))


def test_tables_of_seeds_are_read_in_place() -> None:
    table = SeedTable({"row": IDS, "label": torch.rand(3, 2)}, {"src_weight": torch.rand(5)})
    with table.share() as memory:
        read = SeedTable.read(memory)
    assert len(read) == 3
    for name, rows in table.rows(torch.tensor([2, 0])).items():
        assert_equal(read.rows(torch.tensor([2, 0]))[name], rows)
    assert_equal(read.extras["src_weight"], table.extras["src_weight"])


def test_seeds_are_told_to_other_processes() -> None:
    weight = torch.rand(4)
    seeds = LinkSeeds(2, (0, 1), Negatives("triplet", 3, dst_weight=weight))
    told = seeds_from_json(seeds.to_json(), seeds.extras())
    assert isinstance(told, LinkSeeds) and told.negatives is not None
    assert (told.edge_type, told.ends, told.negatives.amount, told.negatives.is_triplet()) == (2, (0, 1), 3, True)
    assert told.negatives.dst_weight is weight and told.negatives.src_weight is None
