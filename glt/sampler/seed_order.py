"""Which seeds make up which batch of which epoch."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glt import _core


@dataclass(frozen=True)
class BatchIndex:
    """One batch of an epoch.

    Attributes:
        input_id: Positions of the seeds in the loader's input, ``[batch size]``, int64.
        epoch, index: Which batch of which epoch.
        random_seed: Of the loader that the batch is for. It comes with the batch, and not only with the process that
            makes it, since a loader that resumes takes over the seed of the run before.
    """

    input_id: Tensor
    epoch: int
    index: int
    random_seed: int

    def __len__(self) -> int:
        return len(self.input_id)

    @property
    def key(self) -> int:
        """The key of the batch's draws, in [0, 2^64)."""
        return _core.batch_key(self.random_seed, self.epoch, self.index)


@dataclass(frozen=True)
class SeedOrder:
    """The batches of every epoch as a function of these values alone, in whatever process they are asked for.

    Args:
        num_seeds: Length of the loader's input.
        batch_size: Seeds per batch; the last batch may be smaller.
        shuffle: Permute the seeds anew in each epoch.
        drop_last: Leave out a last batch that is not full.
        random_seed: Seed of the permutations, in [0, 2^63).

    Raises:
        TypeError, ValueError: If ``batch_size`` or ``random_seed`` is out of range.
    """

    num_seeds: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    random_seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size = {self.batch_size!r}: expected an integer of at least 1")
        check_random_seed(self.random_seed)

    def __len__(self) -> int:
        whole, rest = divmod(self.num_seeds, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int) -> Tensor:
        """Returns the positions of the seeds in the order of this epoch, ``[num_seeds]``, int64."""
        order = torch.arange(self.num_seeds)
        if self.shuffle:
            _core.shuffle(order.numpy(), self.random_seed, epoch)
        return order

    def batches(self, epoch: int, first: int = 0, step: int = 1) -> Iterator[BatchIndex]:
        """Yields every ``step``-th batch of the epoch, from batch ``first`` on, in index order."""
        order = self.epoch(epoch)
        for index in range(first, len(self), step):
            input_id = order[index * self.batch_size : (index + 1) * self.batch_size]
            yield BatchIndex(input_id, epoch, index, self.random_seed)


def check_random_seed(random_seed: int) -> int:
    """Returns ``random_seed``, or raises naming it and what was expected."""
    try:
        seed = operator.index(random_seed)
    except TypeError:  # arrays and tensors of something else than one integer, too
        seed = None
    if seed is None or isinstance(random_seed, bool):
        raise TypeError(f"random_seed = {random_seed!r}: expected an integer or None")
    if not 0 <= seed < 2**63:
        raise ValueError(f"random_seed = {random_seed}: expected 0 to 2^63 - 1")
    return seed


def draw_random_seed() -> int:
    """Draws a seed from torch's default generator, so that ``torch.manual_seed`` fixes it."""
    return int(torch.empty((), dtype=torch.int64).random_().item())
