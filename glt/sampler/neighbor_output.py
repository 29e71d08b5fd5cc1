"""One hop around seeds."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class NeighborOutput:
    """One hop: neighbours of the seeds, seed after seed.

    Attributes:
        nbr: Neighbour ids ``[E]``, int64.
        nbr_num: Sampled edges per seed ``[S]``, int64; sums to E.
        edge: Edge ids ``[E]``, int64, or None.
    """

    nbr: Tensor
    nbr_num: Tensor
    edge: Tensor | None
