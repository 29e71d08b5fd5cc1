"""What a connection makes of the ends of calls."""

import pytest
import torch

from glt.channel.message import MessageKind, encode_message
from glt.distributed.wire.rpc_transport import _Call, _Line
from glt.distributed.wire.transport import Peer
from glt.errors import PeerLost


def test_an_answer_that_is_no_message_is_that_of_a_peer_that_has_ended():
    """A peer that shuts down frees the memory that its answer is read from: seen once in some twenty runs."""
    line = _Line(Peer("sampler-1", 1, None, "there", 77, 1), 5.0)
    whole = encode_message({"found": torch.arange(3)}, MessageKind.REPLY)
    freed = whole.clone()
    freed[:16] = torch.arange(16, dtype=torch.uint8)
    calls = [_Call("has_edges", torch.empty(0)) for _ in range(3)]
    line._num_in_flight = 1
    line._finish(calls, [whole, freed, torch.empty(0, dtype=torch.uint8)], None)
    answer = calls[0].result.result(0)
    assert torch.equal(answer, whole)
    for call in calls[1:]:
        with pytest.raises(PeerLost, match=r"lost .*there.*pid 77.* during has_edges: it ended while its answer"):
            call.result.result(0)
