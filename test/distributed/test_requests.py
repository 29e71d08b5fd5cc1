"""What is asked arrives as it was asked, and the input of a loader as it was given."""

import random
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from glt.channel.message import MessageKind, encode_message, read_message
from glt.distributed.engine.requests import EarliestRequest, HasEdgesRequest, InducedRequest, OneHopRequest, RowsRequest
from glt.distributed.engine.seeds import LinkSeeds, Negatives, SeedTable, seeds_from_json
from glt.errors import MessageError

IDS = torch.tensor([2**40, 0, 7])
NONE = torch.empty(0, dtype=torch.int64)


def assert_equal(a, b):
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, tuple):
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b and type(a) is type(b)


REQUESTS = [
    OneHopRequest(3, IDS, -1, False, 2**64 - 1, 254, True),
    OneHopRequest(0, IDS, 2**31 - 1, True, 0, 0, False, True, False, IDS.to(torch.uint32), None, (IDS, -IDS)),
    OneHopRequest(1, NONE, 4, False, 2**63, 1, True, False, True, NONE.to(torch.uint32), NONE - 5, (NONE, NONE)),
    RowsRequest("edge", 11, IDS, ("edge_attr",)),
    RowsRequest("node", 0, NONE, ("x", "größe y", "time")),
    InducedRequest(2, IDS, NONE, True),
    HasEdgesRequest(5, IDS, -IDS),
    EarliestRequest(9),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_arrive_as_they_were_asked(request_):
    arrived = type(request_).decode(request_.encode())
    for field in fields(request_):
        assert_equal(getattr(request_, field.name), getattr(arrived, field.name))


def damaged(request, rng):
    """The request as a peer with an error in it, or of other intentions, might send it."""
    tensors = dict(read_message(request.encode()).tensors)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    kind = rng.choice(["missing", "dtype", "scalar", "matrix", "longer", "shorter", "kind", "cut", "bytes", "text"])
    if kind == "missing":
        del tensors[name]
    elif kind == "dtype":
        tensors[name] = tensor.to(rng.choice([torch.float32, torch.int32, torch.int64, torch.uint8, torch.bool]))
    elif kind == "scalar":
        tensors[name] = torch.tensor(rng.randrange(-5, 5))
    elif kind == "matrix":
        tensors[name] = tensor.view(1, -1)
    elif kind in ("longer", "shorter"):
        tensors[name] = torch.cat([tensor, tensor, tensor[:0]]) if kind == "longer" else tensor[: len(tensor) // 2]
    elif kind == "text" and "names" in tensors:
        tensors["names"] = torch.tensor([0xFF, 0xFE, 10], dtype=torch.uint8)
    elif kind == "text":
        tensors[name] = torch.full_like(tensor, 2**63 - 1 if tensor.dtype == torch.int64 else 1)
    message = encode_message(tensors, MessageKind.REPLY if kind == "kind" else MessageKind.REQUEST)
    if kind == "cut":
        return message[: rng.randrange(len(message))].clone()
    for _ in range(3 if kind == "bytes" else 0):
        message[rng.randrange(len(message))] = rng.randrange(256)
    return message


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_what_is_no_request_is_a_message_error(request_):
    rng = random.Random(5)
    num_refused = 0
    for _ in range(400):
        bytes_ = damaged(request_, rng)
        try:
            arrived = type(request_).decode(bytes_)
        except MessageError as error:
            num_refused += 1
            assert len(str(error)) > 20
            continue
        # What passes is a request, if another one.
        assert type(request_).decode(arrived.encode()) is not None
    assert num_refused > 100


def test_errors_of_requests_say_what_is_wrong():
    hop = OneHopRequest(3, IDS, -1, False, 1, 0, True, excluded=(IDS, NONE[:0]))
    rows = RowsRequest("node", 0, IDS, ("x",))
    without = {"spec": torch.tensor([0])}
    for bytes_, kind, text in (
        (encode_message({}, MessageKind.REQUEST), OneHopRequest, "hop: tensor 'nodes' is missing"),
        (rows.encode(), OneHopRequest, "'nodes' is missing; there are .'ids', 'names', 'spec'"),
        (hop.encode(), OneHopRequest, r"'neighbor' is torch.int64 \[0\], expected torch.int64 \[3\]"),
        (OneHopRequest(3, IDS, -2, False, 1, 0, True).encode(), OneHopRequest, "num_neighbors = -2, expected -1 to"),
        (OneHopRequest(3, IDS, 2, False, 1, 300, True).encode(), OneHopRequest, "hop = 300, expected 0 to 254"),
        (encode_message(without, MessageKind.REPLY), EarliestRequest, "of kind REPLY, expected REQUEST"),
        (encode_message({"spec": torch.zeros(2)}, MessageKind.REQUEST), EarliestRequest, r"float32 \[2\], .*\[1\]"),
    ):
        with pytest.raises(MessageError, match=text):
            kind.decode(bytes_)


def test_tables_of_seeds_are_read_in_place():
    table = SeedTable({"row": IDS, "label": torch.rand(3, 2)}, {"src_weight": torch.rand(5)})
    with table.share() as memory:
        read = SeedTable.read(memory)
    assert len(read) == 3
    for name, rows in table.rows(torch.tensor([2, 0])).items():
        assert_equal(read.rows(torch.tensor([2, 0]))[name], rows)
    assert_equal(read.extras["src_weight"], table.extras["src_weight"])


def test_seeds_are_told_to_other_processes():
    weight = torch.rand(4)
    seeds = LinkSeeds(2, (0, 1), Negatives("triplet", 3, dst_weight=weight))
    told = seeds_from_json(seeds.to_json(), seeds.extras())
    assert isinstance(told, LinkSeeds) and told.negatives is not None
    assert (told.edge_type, told.ends, told.negatives.amount, told.negatives.is_triplet()) == (2, (0, 1), 3, True)
    assert told.negatives.dst_weight is weight and told.negatives.src_weight is None
