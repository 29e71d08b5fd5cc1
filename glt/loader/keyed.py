"""Loaders whose batches are numbered: their order and keys, and where they stand, on torch's DataLoader."""

from __future__ import annotations

import inspect
import os
import reprlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from glt import _core
from glt._checks import AUTO, check_at_least
from glt._stats import Stats
from glt._trace import Trace, Traced
from glt._tracebacks import short_traceback
from glt.loader.batches import MadeBatches
from glt.loader.counts import Counts, TimedBatches, WorkerSpans
from glt.loader.tuning import MOST_WORKERS, TunedBatches, WorkerTuner
from glt.sampler.order import (
    BatchIndex,
    Iteration,
    OneThread,
    Position,
    Resumable,
    SeedOrder,
    check_random_seed,
    draw_random_seed,
)

OF_TORCH = frozenset(inspect.signature(DataLoader).parameters)  # arguments


class KeyedLoader(Traced, Resumable):
    """The order of the input, and a key for each batch of each epoch.

    Goes before a DataLoader among the bases. A subclass calls :meth:`_choose_seed` before its ``__init__`` and
    :meth:`_complete_order` after it; ``collate_fn`` is then given :class:`~glt.sampler.BatchIndex`. With a ``sampler``,
    ``batch_sampler`` or ``generator`` of the user's, the user has to repeat the order of the seeds: a loader that
    resumes goes through the batches before its first, and checks them.
    """

    # Of torch's DataLoader:
    dataset: Any
    generator: torch.Generator | None
    sampler: Any
    batch_size: int | None
    batch_sampler: Any
    drop_last: bool
    num_workers: int
    prefetch_factor: int | None

    def _choose_seed(self, random_seed: int | None, kwargs: dict[str, Any]) -> None:
        size = kwargs.get("batch_size", 1)
        brought = any(kwargs.get(name) is not None for name in ("sampler", "batch_sampler"))
        if size is None and not brought:
            raise ValueError(
                "batch_size = None: expected an integer of at least 1; None needs a sampler that yields batches"
            )
        if size is not None and "batch_size" in kwargs:
            kwargs["batch_size"] = check_at_least("batch_size", size, 1)  # torch takes no integers of NumPy
        sampler = kwargs.get("sampler")
        can_iterate = hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")  # as torch asks it
        if sampler is not None and (isinstance(sampler, str | bytes) or not can_iterate):
            raise TypeError(
                f"sampler = {reprlib.repr(sampler)}: expected the order of seeds, such as a torch.utils.data.Sampler"
            )
        self.random_seed = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self._position, self._one_thread = Position(), OneThread[Any]()
        self._begun = Iteration(0, 0, 0, None)
        self._counts = Counts()
        # Default orders are ours, so that they depend on random_seed alone; one that the caller brings is kept.
        self._own_order = all(kwargs.get(name) is None for name in ("sampler", "batch_sampler", "generator"))
        self._tuner = self._take_tuner(kwargs)
        # Of the caller's order: checksums of the seeds before each batch so far, in the newest iteration.
        self._order_crcs: dict[int, int] = {0: 0}
        self._seeds_crc32: int | None = None

    def _take_tuner(self, kwargs: dict[str, Any]) -> WorkerTuner | None:
        """Of ``num_workers="auto"``; torch's DataLoader begins with none, and is told of more later."""
        given = kwargs.get("num_workers", 0)
        if not isinstance(given, str):
            return None
        if given != AUTO:
            raise ValueError(f"num_workers = {given!r}: expected a number of processes, or 'auto'")
        for name, default, why in (
            ("persistent_workers", False, "workers are started anew when their number changes"),
            ("prefetch_factor", None, "it is torch's default of 2"),
            ("in_order", True, "batches come in order"),
            ("timeout", 0, "it is of workers, and at first there are none"),
            ("multiprocessing_context", None, "it is of workers, and at first there are none"),
        ):
            if kwargs.get(name, default) not in (default, None):
                raise ValueError(f"{name} = {kwargs[name]!r} and num_workers = 'auto': {why}; leave one of them out")
        if not self._own_order:
            raise ValueError(
                "num_workers = 'auto' and a sampler, batch_sampler or generator: an epoch that goes on with another "
                "number of workers would ask it anew; give a number, or leave the order to glt (shuffle=True)"
            )
        kwargs["num_workers"] = 0
        return WorkerTuner(0, min(MOST_WORKERS, len(os.sched_getaffinity(0))))

    def _complete_order(self) -> None:
        # Set behind DataLoader's back: it refuses a new dataset, and PyG's loaders insist on a range of their own.
        self.__dict__["dataset"] = _Positions(len(self.dataset), self._counts)
        self._shuffles = isinstance(self.sampler, RandomSampler)

    @property
    def _order(self) -> SeedOrder:
        assert self.batch_size is not None, "refused in _choose_seed"
        return SeedOrder(len(self.dataset), self.batch_size, self._shuffles, self.drop_last, self.random_seed)

    @short_traceback
    def __iter__(self) -> Any:
        """Begins the next epoch: two iterators at once are two epochs, whichever is read first."""
        with self._one_thread:
            self._begun = self._position.begin(self._num_batches())
            first = self._begun.first
            self._order_crcs = {first: self._order_crcs.get(first, 0)}
            self._counts.trace = self._open_trace
            num_workers = self.num_workers if self._tuner is None else self._tuner.most
            self._counts.share(num_workers)
            began_s = time.perf_counter()
            timed = self._iterated(), self._counts, began_s
            return _CountedBatches(self._position, self._one_thread, self._begun, *timed)

    def stats(self) -> Stats:
        """Counts and times in seconds since the loader was created; what they print as says what limits the job.

        ``num_batches`` were handed to the trainer. ``epoch_s`` is the time that it iterated; of that it waited
        ``wait_s`` for batches, which it makes itself where there are no workers. Summed over batches: ``num_seeds``,
        ``num_nodes`` and ``num_edges`` were sampled in ``sampling_s``; in ``gathering_s`` rows were looked up and
        ``Data`` made, in ``transform_s`` ``transform`` ran. Workers count these when they make a batch, which is before
        it is handed out. ``num_workers`` there are now; ``is_tuned`` is there once ``"auto"`` has tried
        more in vain. Where batches are made on a GPU, ``is_on_gpu`` is there, and times are those of the host.
        """
        workers = {"num_workers": self.num_workers} if self._tuner is None else self._tuner.told()
        return Stats(self._counts.read() | workers)

    def _require_traceable(self) -> None:
        if getattr(self, "_iterator", None) is not None and self._counts.spans is None:  # torch's, which it keeps
            raise ValueError(
                "persistent_workers = True, and they run already, without room for a trace: call trace() before the "
                "first iteration"
            )

    def _iterated(self) -> Any:
        if self._tuner is None:
            if getattr(self, "_iterator", None) is None:  # else its persistent workers run already
                self._counts.trace_workers(self.num_workers, self.prefetch_factor or 2)
            return super().__iter__()  # type: ignore[misc]
        return TunedBatches(self._tuner, self._counts, partial(self._go_on, self._begun), self._begun.first)

    def _go_on(self, begun: Iteration, num_workers: int, first: int) -> Any:
        """Torch's iterator over the rest of an epoch."""
        before = torch.get_rng_state()
        self.num_workers, self.prefetch_factor = num_workers, 2 if num_workers else None
        self._counts.trace_workers(num_workers, self.prefetch_factor or 2)
        newest, self._begun = self._begun, replace(begun, first=first)
        try:
            return super().__iter__()  # type: ignore[misc]
        finally:
            self._begun = newest
            if first > begun.first:  # an epoch draws once from torch's generator, as with workers of a fixed number
                torch.set_rng_state(before)

    def _order_of_indices(self) -> Any:
        return self.sampler if self.batch_size is not None or self.batch_sampler is None else self.batch_sampler

    @property
    def _index_sampler(self) -> Any:
        """What torch's DataLoader iterates over: batches that know their epoch and index."""
        return _BatchIndices(self, super()._index_sampler)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        if self.num_workers and not getattr(self, "in_order", True):
            raise ValueError("in_order = False: batches come in any order, so that none is the next; leave it out")
        return super().state_dict()

    def _order_options(self) -> dict[str, Any]:
        """What decides on the seeds of batches, for :meth:`_fingerprint`."""
        return {
            "loader": type(self).__name__,
            "num_seeds": len(self.dataset),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "shuffle": self._shuffles,
            "order": None if self._own_order else type(self._order_of_indices()).__name__,
        }

    def _num_batches(self) -> int | None:
        try:
            return len(self)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError, ValueError):  # of a sampler that has no length; ValueError: PyG's
            if self._own_order:
                raise
            return None

    def _order_crc32(self, next_batch: int) -> int | None:
        if self._own_order:
            return None
        return self._order_crcs[next_batch] if next_batch else 0

    def _expect_order(self, next_batch: int, crc32: int | None) -> None:
        self._order_crcs = {next_batch: 0 if crc32 is None else crc32}


class _BatchIndices:
    def __init__(self, loader: KeyedLoader, index_sampler: Any) -> None:
        self.loader = loader
        self.index_sampler = index_sampler

    def __iter__(self) -> Iterator[BatchIndex]:
        """The batches of the epoch that the loader has begun: with workers, DataLoader asks twice and reads one."""
        loader, begun = self.loader, self.loader._begun
        batches = (
            loader._order.batches(begun.epoch, begun.first)
            if loader._own_order
            else self._brought(begun, loader.random_seed, loader._order_crcs)
        )
        return batches if loader._counts.spans is None else _after_others(loader._counts.spans, batches)

    def _brought(self, begun: Iteration, random_seed: int, crcs: dict[int, int]) -> Iterator[BatchIndex]:
        """The batches of the user's order from the first on, which must follow the same seeds as in the run before."""
        crc32, num_batches = 0, 0
        for index, batch in enumerate(self.index_sampler):
            if index == begun.first:
                _require_same_order(begun, crc32, crcs[index])
            input_id = torch.as_tensor(batch, dtype=torch.int64).reshape(-1)
            crc32 = _core.crc32(input_id.contiguous().numpy(), crc32)
            num_batches = index + 1
            if index >= begun.first:
                crcs[num_batches] = crc32
                yield BatchIndex(input_id, begun.epoch, index, random_seed)
        if num_batches <= begun.first:
            _require_same_order(begun, crc32, crcs[begun.first])

    def __len__(self) -> int:
        return len(self.index_sampler)


def _after_others(spans: WorkerSpans, batches: Iterator[BatchIndex]) -> Iterator[BatchIndex]:
    """The same. When DataLoader asks for the first, persistent workers have ended the batches of the epoch before."""
    spans.forget()
    yield from batches


def _require_same_order(begun: Iteration, crc32: int, expected: int) -> None:
    if crc32 != expected:
        raise RuntimeError(
            f"epoch {begun.epoch} was to go on with batch {begun.first}, but the sampler now gives other seeds before "
            "it than in the run before: bring it to the same state first (seed its generator, call its set_epoch), or "
            "let glt shuffle with shuffle=True and no sampler"
        )


class _CountedBatches(TimedBatches):
    """Takes note of the batches handed out: DataLoader workers are ahead of that."""

    def __init__(self, position: Position, one_thread: OneThread[Any], begun: Iteration, *timed: Any) -> None:
        super().__init__(*timed)
        self._position, self._one_thread, self._begun = position, one_thread, begun
        self._index = begun.first
        self._handed: tuple[int, float] | None = None  # the batch before, and when the trainer was handed it

    def __len__(self) -> int:
        if self._begun.num_batches is None:
            raise TypeError("the sampler of this loader has no length")
        return self._begun.num_batches - self._begun.first

    @short_traceback
    def __next__(self) -> Any:
        with self._one_thread:
            return super().__next__()

    def _write(self, trace: Trace, asked_s: float, now_s: float, num_batches: int) -> None:
        if self._handed is not None:
            index, handed_s = self._handed
            trace.span("train", handed_s, asked_s, index)
        self._handed = None
        if num_batches:
            index = self._index - 1
            made = None if self._counts.spans is None else self._counts.spans.take(index)
            trace.batch(index, made, now_s)
            trace.span("wait for batch", asked_s, now_s, index)
            self._handed = index, now_s

    def _next(self) -> Any:
        self._counts.batch = self._index
        try:
            batch = next(self._batches)
        except StopIteration:
            self._position.end(self._begun)
            raise
        except BaseException as error:  # if asked again, the batch after the one that failed comes
            if isinstance(self._batches, MadeBatches):
                self._index = self._begun.first + self._batches.num_taken
            elif isinstance(error, Exception):
                self._index += 1
            raise
        self._position.deliver(self._begun, self._index)
        self._index += 1
        return batch


class _Positions:
    def __init__(self, size: int, counts: Counts) -> None:
        self.size, self._counts = size, counts

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return index

    def __getitems__(self, batch: BatchIndex) -> BatchIndex:
        self._counts.batch = batch.index
        return batch
