"""Where a loader stands: which batch of which epoch its user is handed next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Begun:
    """An iteration of a loader, as it begins.

    Attributes:
        iteration: Counts from 1. It tells two passes through the same epoch apart.
        epoch: Which one.
        first: Index of its first batch: 0, but in an iteration that resumes.
        num_batches: Of the whole epoch; None if nobody knows before its end.
    """

    iteration: int
    epoch: int
    first: int
    num_batches: int | None


class Position:
    """Follows the user through batches and epochs: what they have in hand counts, not what is sampled ahead of them."""

    def __init__(self) -> None:
        self.iteration = 0  # the newest; an older one that still goes on no longer counts
        self._next = (0, 0)  # epoch and first batch of the next iteration
        self._current: tuple[int, int] | None = None  # what comes next in the newest iteration; None: nothing

    @property
    def next_batch(self) -> tuple[int, int]:
        """Epoch and index of the batch that comes next: of an iteration that was left early, the one it was left at."""
        return self._current or self._next

    def set_epoch(self, epoch: int) -> None:
        """Lets the next iteration be that of ``epoch``, whole.

        Raises:
            ValueError: If ``epoch`` is no integer in [0, 2^31).
        """
        check_epoch(epoch)
        self._next, self._current = (epoch, 0), None

    def resume(self, epoch: int, first: int) -> None:
        """Lets the next iteration be ``epoch`` from batch ``first`` on. One that runs ends, or no longer counts."""
        self.iteration += 1
        self._next, self._current = (epoch, first), None

    def begin(self, num_batches: int | None) -> Begun:
        """Begins the next iteration; the one after it will be the next epoch, wherever this one ends."""
        epoch, first = self._next
        self.iteration += 1
        self._next = (epoch + 1, 0)
        begun = Begun(self.iteration, epoch, first, num_batches)
        self._move(begun, first)
        return begun

    def deliver(self, begun: Begun, index: int) -> None:
        """Takes note that the user is handed batch ``index``."""
        if begun.iteration == self.iteration:
            self._move(begun, index + 1)

    def end(self, begun: Begun) -> None:
        """Takes note that there are no more batches."""
        if begun.iteration == self.iteration:
            self._current = None

    def _move(self, begun: Begun, index: int) -> None:
        has_more = begun.num_batches is None or index < begun.num_batches
        self._current = (begun.epoch, index) if has_more else None


def check_epoch(epoch: int) -> None:
    """Raises ValueError if ``epoch`` is no integer in [0, 2^31)."""
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**31:
        raise ValueError(f"epoch = {epoch!r}: expected an integer, 0 to 2^31 - 1")
