"""What link seeds find out once for all batches."""

import asyncio
from types import SimpleNamespace

import pytest

from glt.distributed.engine.seeds import LinkSeeds, Negatives
from glt.errors import PeerLost


def test_a_failed_look_up_is_not_kept_for_later_epochs():
    asked = []

    async def earliest_node(node_type):
        asked.append(node_type)
        if len(asked) == 1:
            raise PeerLost("the owner was slow once")
        return 3, 10

    drawn = Negatives("binary", 1.0, None, None)
    seeds = LinkSeeds(0, (0, 0), drawn)
    sampler = SimpleNamespace(
        partitions=SimpleNamespace(earliest_node=earliest_node),
        config=SimpleNamespace(time_level="node"),
        dataset=SimpleNamespace(num_nodes_of=(20,)),
    )

    async def epochs():
        with pytest.raises(PeerLost, match="slow once"):
            await seeds._ends_of(sampler, drawn)
        first = await seeds._ends_of(sampler, drawn)
        assert await seeds._ends_of(sampler, drawn) is first  # found out once

    asyncio.run(epochs())
    assert asked == [0, 0, 0]  # the failure, then source and destination
