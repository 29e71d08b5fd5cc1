"""Batches that know their epoch and index, in a torch DataLoader of PyG's make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler

from glt.sampler.seed_order import BatchIndex, SeedOrder, check_random_seed, draw_random_seed


class KeyedBatches:
    """What node and link loaders share: the order of the input, and a key for each batch of each epoch.

    Goes before PyG's loader among the bases. A subclass calls :meth:`_choose_seed` before PyG's ``__init__`` and
    :meth:`_number_batches` after it; its ``collate_fn`` is then given :class:`~glt.sampler.BatchIndex`.

    Attributes:
        random_seed: Seed of shuffling and sampling.
    """

    random_seed: int
    # Of torch's DataLoader:
    dataset: Any
    sampler: Any
    batch_size: int | None
    batch_sampler: Any
    drop_last: bool

    def _choose_seed(self, random_seed: int | None, kwargs: dict[str, Any]) -> None:
        """Checks ``random_seed``, or draws one; ``kwargs`` are those of the DataLoader, whose batch size is checked.

        Without a batch size, torch asks a sampler for whole batches: its own knows positions only.
        """
        size = kwargs.get("batch_size", 1)
        brought = any(kwargs.get(name) is not None for name in ("sampler", "batch_sampler"))
        if not (size is None and brought) and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(
                f"batch_size = {size!r}: expected an integer of at least 1; None needs a sampler that yields batches"
            )
        self.random_seed = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self._next_epoch = self._begun_epoch = 0
        # Default orders are ours, so that they depend on random_seed alone; one that the caller brings is kept.
        self._own_order = all(kwargs.get(name) is None for name in ("sampler", "batch_sampler", "generator"))

    def _number_batches(self) -> None:
        size = len(self.dataset)
        # Set behind DataLoader's back: it refuses a new dataset, and PyG's loaders insist on a range of their own.
        self.__dict__["dataset"] = _Positions(size)
        if self._own_order and self.batch_size is not None:
            shuffle = isinstance(self.sampler, RandomSampler)
            self._order = SeedOrder(size, self.batch_size, shuffle, self.drop_last, self.random_seed)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``, in [0, 2^31); later ones count up from there. Without it, from 0.

        Raises:
            ValueError: If ``epoch`` is no such number.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**31:
            raise ValueError(f"epoch = {epoch!r}: expected an integer, 0 to 2^31 - 1")
        self._next_epoch = epoch

    def __iter__(self) -> Any:
        """Begins the next epoch: two iterators at once are two epochs, whichever is read first."""
        self._begun_epoch = self._next_epoch
        self._next_epoch += 1
        return super().__iter__()  # type: ignore[misc]

    @property
    def _index_sampler(self) -> Any:
        """What torch's DataLoader iterates over: batches that know their epoch and index."""
        return _Numbered(self, super()._index_sampler)  # type: ignore[misc]


class _Numbered:
    """The batches of one epoch after the other, numbered."""

    def __init__(self, loader: KeyedBatches, index_sampler: Any) -> None:
        self.loader = loader
        self.index_sampler = index_sampler

    def __iter__(self) -> Iterator[Any]:
        """The batches of the epoch that the loader has begun: with workers, DataLoader asks twice and reads one."""
        return self._batches(self.loader._begun_epoch)

    def _batches(self, epoch: int) -> Iterator[Any]:
        loader = self.loader
        if loader.batch_size is None and loader.batch_sampler is None:
            yield from self.index_sampler  # single samples, which PyG's loader leaves to the caller
        elif loader._own_order:
            yield from loader._order.batches(epoch)
        else:
            for index, batch in enumerate(self.index_sampler):
                yield BatchIndex(torch.as_tensor(batch, dtype=torch.int64), epoch, index)

    def __len__(self) -> int:
        return len(self.index_sampler)


class _Positions:
    """Positions in the loader's input: the dataset of a DataLoader whose batches pass through unchanged."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return index

    def __getitems__(self, batch: BatchIndex) -> BatchIndex:
        return batch
