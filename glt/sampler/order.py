"""Which seeds make up which batch, where a loader stands, and how another goes on from there."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least, integer
from glt._reprs import says
from glt._tracebacks import short_traceback

T = TypeVar("T")


@dataclass(frozen=True)
class Iteration:
    """An iteration of a loader: ``iteration`` counts from 1, ``first`` is the index of its first batch, ``num_batches``
    that of the whole epoch (None: not known before its end)."""

    iteration: int
    epoch: int
    first: int
    num_batches: int | None


class Position:
    """Follows the user through batches and epochs by the batches handed out, not by those sampled ahead."""

    def __init__(self) -> None:
        self.iteration = 0  # the newest; an older one that still goes on no longer counts
        self._next = (0, 0)  # epoch and first batch of the next iteration
        self._current: tuple[int, int] | None = None  # what comes next in the newest iteration; None: nothing

    @property
    def next_batch(self) -> tuple[int, int]:
        """Epoch and index of the next batch: of an iteration that was left early, the one it was left at."""
        return self._current or self._next

    def set_epoch(self, epoch: int) -> None:
        check_epoch(epoch)
        self._next, self._current = (epoch, 0), None

    def resume(self, epoch: int, first: int) -> None:
        """Makes the next iteration begin with batch ``first`` of ``epoch``. One that runs ends, or no longer counts."""
        self.iteration += 1
        self._next, self._current = (epoch, first), None

    def begin(self, num_batches: int | None) -> Iteration:
        """Begins the next iteration; the one after it is the next epoch, wherever this one ends."""
        epoch, first = self._next
        self.iteration += 1
        self._next = (epoch + 1, 0)
        begun = Iteration(self.iteration, epoch, first, num_batches)
        self._move(begun, first)
        return begun

    def begin_again(self, begun: Iteration, first: int) -> Iteration:
        """The same iteration from batch ``first`` on, under a number of its own: what was made for it comes anew."""
        self.iteration += 1
        return replace(begun, iteration=self.iteration, first=first)

    def deliver(self, begun: Iteration, index: int) -> None:
        if begun.iteration == self.iteration:
            self._move(begun, index + 1)

    def end(self, begun: Iteration) -> None:
        if begun.iteration == self.iteration:
            self._current = None

    def _move(self, begun: Iteration, index: int) -> None:
        has_more = begun.num_batches is None or index < begun.num_batches
        self._current = (begun.epoch, index) if has_more else None


class OneThread(Generic[T]):
    """Lets one thread at a time ask a loader for batches, and refuses another in words: batches would go astray between
    them. A thread may be inside more than once, as where a transform iterates over the same loader."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = ""

    def __enter__(self) -> None:
        name = threading.current_thread().name
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"thread {name!r} asks this loader for a batch while thread {self._inside!r} does: a loader serves one "
                "thread at a time; create one for each, or hand the batches of one to the others, by a queue.Queue"
            )
        self._inside = name

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OneThread[T]], tuple[()]]:  # a copy of a loader is another loader
        return OneThread, ()

    def over(self, batches: Generator[T, None, None]) -> Iterator[T]:
        """The same, each of which is asked for by one thread."""
        return _Guarded(self, batches)


class _Guarded(Iterator[T]):
    def __init__(self, one_thread: OneThread[T], batches: Generator[T, None, None]) -> None:
        self._one_thread, self._batches = one_thread, batches
        self.close = batches.close

    @short_traceback
    def __next__(self) -> T:
        with self._one_thread:
            return next(self._batches)


def check_epoch(epoch: int) -> None:
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**31:
        raise ValueError(f"epoch = {epoch!r}: expected an integer, 0 to 2^31 - 1")


class CallKeys:
    """Keys of the draws of calls outside a loader's batches, a new one for each call that brings none. The copies of a
    sampler in DataLoader workers have others."""

    def __init__(self) -> None:
        self._lock, self._num_calls = threading.Lock(), 0

    def of_call(self, random_seed: int, batch_key: int | None) -> int:
        """The key that a call brings, or a new one; raises TypeError or ValueError if it is none."""
        if batch_key is not None:
            return integer("batch_key", batch_key, 0, 2**64 - 1, "a key of draws, in [0, 2^64)")
        with self._lock:
            call = self._num_calls
            self._num_calls += 1
        worker = torch.utils.data.get_worker_info()
        seed = random_seed if worker is None else _core.batch_key(random_seed, 0, worker.seed)
        return _core.batch_key(seed, 2**32 - 1, call)

    def __reduce__(self) -> tuple[type[CallKeys], tuple[()]]:  # a copy counts its own calls
        return CallKeys, ()


@dataclass(frozen=True)
class BatchIndex:
    """One batch of an epoch: ``input_id`` are positions of the seeds in the loader's input, ``[batch size]``, int64.
    ``random_seed`` comes with it since a loader that resumes takes over the seed of the run before.

    Example:
        >>> order = glt.sampler.SeedOrder(num_seeds=5, batch_size=2)
        >>> list(order.batches(epoch=0))[-1]
        BatchIndex(batch 2 of epoch 0, 1 seeds, random_seed=0)
    """

    input_id: Tensor
    epoch: int
    index: int
    random_seed: int

    def __len__(self) -> int:
        return len(self.input_id)

    @property
    def key(self) -> int:
        """Key of the batch's draws, in [0, 2^64)."""
        return _core.batch_key(self.random_seed, self.epoch, self.index)

    def shared_key(self, num_batches: int) -> int:
        """Key of what ``num_batches`` batches in succession draw alike, in [0, 2^64)."""
        if num_batches == 1:
            return _core.shared_key(self.key, 0, 0)
        return _core.shared_key(self.random_seed, self.epoch, self.index // num_batches)

    @says
    def __repr__(self) -> str:
        return f"batch {self.index} of epoch {self.epoch}, {len(self.input_id)} seeds, random_seed={self.random_seed}"


@dataclass(frozen=True)
class SeedOrder:
    """The batches of every epoch as a function of these values alone, in whatever process: ``batch_size`` of
    ``num_seeds`` seeds each, permuted anew in each epoch with ``shuffle``; ``drop_last`` leaves out a last batch that
    is not full. Raises TypeError or ValueError if ``batch_size`` or ``random_seed`` is out of range.

    Example:
        >>> order = glt.sampler.SeedOrder(num_seeds=5, batch_size=2)
        >>> len(order)
        3
        >>> [batch.input_id.tolist() for batch in order.batches(0)]
        [[0, 1], [2, 3], [4]]
    """

    num_seeds: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    random_seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_at_least("batch_size", self.batch_size, 1))
        object.__setattr__(self, "random_seed", check_random_seed(self.random_seed))

    def __len__(self) -> int:
        whole, rest = divmod(self.num_seeds, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int) -> Tensor:
        """The positions of the seeds in the order of this epoch, ``[num_seeds]``, int64."""
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
    """Returns ``random_seed`` in [0, 2^63), or raises TypeError or ValueError."""
    return integer("random_seed", random_seed, 0, 2**63 - 1, "or None to have it drawn")


def draw_random_seed() -> int:
    """Draws a seed from torch's default generator, so that ``torch.manual_seed`` fixes it."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


STATE_VERSION = 1
_FIELDS = ("version", "epoch", "next_batch", "random_seed", "order_crc32", "loader")


class Resumable:
    """What local and distributed loaders share: epochs, and states to resume from.

    A batch is a function of the loader's options, its seeds, ``random_seed``, epoch and index. A state holds the last
    three, and of the others enough to refuse a loader that differs.
    """

    random_seed: int
    _position: Position

    def _fingerprint(self) -> dict[str, Any]:
        """What must agree for batches to be the same, as JSON, by the names that users know."""
        raise NotImplementedError

    def _num_batches(self) -> int | None:
        raise NotImplementedError

    def _take_seed(self, random_seed: int) -> None:
        self.random_seed = random_seed

    def _order_crc32(self, next_batch: int) -> int | None:
        """Checksum of the seeds of the batches before ``next_batch``, where the order is the user's."""
        return None

    def _expect_order(self, next_batch: int, crc32: int | None) -> None:
        """Makes the next iteration check that the batches before its first have that checksum."""

    @short_traceback
    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``, in [0, 2^31), from its first batch on; later ones count up from
        there. Without it, from 0. Raises ValueError if ``epoch`` is no such number."""
        self._position.set_epoch(epoch)

    @short_traceback
    def state_dict(self) -> dict[str, Any]:
        """Returns where this loader stands, for :meth:`load_state_dict` of one with the same options.

        It may be asked for at any time, also inside of a loop over the batches: the one in hand counts as delivered,
        those that are sampled ahead do not. After the last batch of an epoch the next one is due from its start. Of
        several iterators of a local loader, the newest counts. Each trainer saves its own state.

        Returns:
            A dict of values that JSON keeps, as does ``torch.save``: ``version``; ``epoch`` and ``next_batch``;
                ``random_seed``; ``order_crc32``, a checksum of the order so far if it comes from a ``sampler`` of
                yours, else None; ``loader``: what must agree.

        Raises:
            ValueError: If batches come out of order (``in_order=False``): none can be said to be next.
        """
        epoch, next_batch = self._position.next_batch
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "next_batch": next_batch,
            "random_seed": self.random_seed,
            "order_crc32": self._order_crc32(next_batch),
            "loader": self._fingerprint(),
        }

    @short_traceback
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another loader stood: the next iteration yields the batches that it had left.

        They, and the following epochs, are equal to the bit to those it would have made, in any mode, with any number
        of workers. ``random_seed`` becomes that of the state; ``len()`` stays that of a whole epoch. An iteration that
        runs meanwhile ends, or no longer counts.

        Args:
            state: From :meth:`state_dict` of a loader of the same kind, with the same seeds and options.

        Raises:
            TypeError: If it is no dict, or a value in it has another type.
            ValueError: If it lacks a field or has one too many, is of another version, or is that of a loader which
                makes other batches; names the first field that differs and both values.
        """
        _require_fields(state)
        check_epoch(state["epoch"])
        random_seed = check_random_seed(state["random_seed"])
        _require_equal(state, self._fingerprint())
        num_batches = self._num_batches()
        if state["next_batch"] < 0 or (num_batches is not None and state["next_batch"] >= max(1, num_batches)):
            raise ValueError(
                f"state: next_batch = {state['next_batch']}, but an epoch of this loader has {num_batches} batches: "
                "give it the sampler that it had"
            )
        self._take_seed(random_seed)
        self._position.resume(state["epoch"], state["next_batch"])
        self._expect_order(state["next_batch"], state["order_crc32"])


def as_json(fields: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(fields))  # tuples become lists


def crc32_of(tensors: Mapping[str, Tensor | None]) -> int:
    """A checksum of named CPU tensors, their dtypes and shapes; None is as good as absent."""
    crc32 = 0
    for name, tensor in sorted(tensors.items()):
        if tensor is not None:
            head = f"{name} {tensor.dtype} {list(tensor.shape)};"
            crc32 = _core.crc32(np.frombuffer(head.encode(), np.uint8), crc32)
            flat = tensor.detach().contiguous().reshape(-1)
            if flat.numel():  # torch gives what is empty strides that it does not view as bytes
                crc32 = _core.crc32(flat.view(torch.uint8).numpy(), crc32)
    return crc32


def _require_fields(state: Any) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"state has type {type(state).__name__}: expected the dict that state_dict() returned")
    if "version" in state and state["version"] != STATE_VERSION:
        raise ValueError(
            f"state: version = {state['version']!r}, but this glt reads version {STATE_VERSION}: resume with the glt "
            "that wrote it"
        )
    for name in _FIELDS:
        if name not in state:
            raise ValueError(f"state has no {name}: expected what state_dict() of a glt loader returned, whole")
    for name in state:
        if name not in _FIELDS:
            raise ValueError(f"state has a field {name!r} that is not a loader's: expected what state_dict() returned")
    if not isinstance(state["loader"], dict):
        raise TypeError(f"state: loader has type {type(state['loader']).__name__}: expected a dict")
    for name in ("epoch", "next_batch", "order_crc32"):
        if type(state[name]) is not int and (name != "order_crc32" or state[name] is not None):
            raise TypeError(f"state: {name} = {state[name]!r}: expected an integer")


def _require_equal(state: dict[str, Any], mine: dict[str, Any]) -> None:
    theirs = as_json(state["loader"])
    for name in mine | theirs:
        if name not in theirs or name not in mine or theirs[name] != mine[name]:
            there, here = (repr(each[name]) if name in each else "not there" for each in (theirs, mine))
            hint = " (a checksum of the seeds and of what was given with them)" if name == "seeds_crc32" else ""
            raise ValueError(
                f"state: {name}{hint} is {there}, but of this loader {here}: create it as the one whose state this is, "
                f"or begin an epoch anew with set_epoch({state['epoch']})"
            )
