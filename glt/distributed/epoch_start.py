"""What a trainer asks its samplers for: the batches of an epoch, or those of it that are still missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class EpochStart:
    """The command that begins an iteration, the same for samplers in every place.

    The random seed travels with it, and not only with the options that a sampler starts with: a loader that resumes
    takes over the seed of the run before when its samplers are already there.

    Attributes:
        iteration: Counts the iterations of the loader from 1; messages carry it. It tells two passes through the same
            epoch apart.
        epoch: In [0, 2^31): with ``random_seed``, decides the order of the seeds and all draws.
        first: Index of the first batch to make; those before it were delivered earlier.
        random_seed: In [0, 2^63).
    """

    iteration: int
    epoch: int
    first: int
    random_seed: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, command: dict[str, Any]) -> EpochStart:
        """Rebuilds what :meth:`to_json` described.

        Raises:
            TypeError: If a field is missing or unknown.
        """
        return cls(**command)
