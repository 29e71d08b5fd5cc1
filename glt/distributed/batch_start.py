"""How a batch begins: from rows of the loader's input to the nodes that are sampled around."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from glt.distributed.dist_neighbor_sampler import DistNeighborSampler


@dataclass
class BatchStart:
    """What a batch is sampled around.

    Attributes:
        seeds: Node ids ``[n]`` with the position of their type. Trees, of a disjoint batch, are numbered over all.
        seed_time: Time of each tree ``[number of trees]``, int64; None where edges have no time.
        example: The row of the batch that each tree belongs to ``[number of trees]``, int64; None: the tree's number.
        exclusions: By position of the edge type, pairs ``(expanded [m], neighbour [m])`` whose edges are not sampled.
        known: Tensors that the batch will hold whatever is sampled, by the name in the message.
    """

    seeds: list[tuple[int, Tensor]]
    seed_time: Tensor | None = None
    example: Tensor | None = None
    exclusions: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    known: dict[str, Tensor] = field(default_factory=dict)


class Seeds(ABC):
    """What the rows of a loader's input are.

    Attributes:
        input_id: Name, in a message, of the positions of a batch's rows in the input.
    """

    input_id: str

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that another process needs to know, for :func:`glt.distributed.seeds.seeds_from_json`,
        but for :meth:`extras`."""

    def extras(self) -> dict[str, Tensor]:
        """Tensors that go with it, too large for text: for as long as the loader they are shared, not copied."""
        return {}

    @abstractmethod
    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        """Turns rows of the input into the start of a batch.

        Args:
            sampler: May be asked about edges.
            rows: The rows, by column.
            input_id: Their positions in the input.
            batch_key: Key of the batch's draws.
        """
