"""A channel from one process to another through shared memory, and tensors in such memory."""

import fcntl
import os
import threading
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import available_memory, format_size, naming_the_limit, parse_size
from glt._reprs import says
from glt.channel.channel import DEFAULT_TIMEOUT_S, Channel, Slot, named_counts
from glt.channel.message import Message, read_message
from glt.data.arrays import process_pool
from glt.data.pinned import PinnedMemory
from glt.errors import ChannelClosed, ChannelTimeout

# Anonymous memory shared with the processes that this one spawns.
#
# It is a memfd: it has no name, so nothing can be left behind in ``/dev/shm`` (which may be full or tiny, as in most
# containers: it is not used at all), and no other process can open it. The kernel frees it with its last user.


class SharedMemory:
    """``nbytes`` of zeroed shared memory, which can be given to a process only when that is spawned (``args=`` of
    ``multiprocessing.Process``, ``mp.spawn``). Tensors from :meth:`tensor` keep the memory alive, also after
    :meth:`close`. More than is available now is refused with MemoryError, since running out later would kill the
    process. ``name`` is shown in ``/proc/<pid>/maps``.

    Example:
        >>> with glt.channel.SharedMemory(4096) as memory:
        ...     memory.tensor()[:3]
        ...
        tensor([0, 0, 0], dtype=torch.uint8)
    """

    def __init__(self, nbytes: int, name: str = "glt") -> None:
        if nbytes <= 0:
            raise ValueError(f"nbytes = {nbytes}: expected more than 0")
        room, limit = available_memory()
        if nbytes > room:
            raise MemoryError(
                f"shared memory of {format_size(nbytes)} ({nbytes} bytes) wanted, but only "
                f"{format_size(room)} ({room} bytes) is the {limit}: ask for less, "
                "by a smaller channel_size, fewer workers or less feature_memory"
            )
        with naming_the_limit():
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            # A file that another process could shorten would be a SIGBUS in waiting.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._attach(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def from_fd(cls, fd: int, nbytes: int) -> "SharedMemory":
        """Returns the memory behind a descriptor that this process inherited (``pass_fds`` of ``subprocess``) and that
        this object now owns."""
        self = cls.__new__(cls)
        self._attach(fd, nbytes)
        return self

    @property
    def fd(self) -> int:
        """The descriptor, to be inherited by a process that is started."""
        _ = self.mapping  # raises when it was closed
        return self._fd

    def _attach(self, fd: int, nbytes: int) -> None:
        os.set_inheritable(fd, False)
        self._mapping: _core.Mapping | None = _core.Mapping(fd, nbytes)
        self._fd = fd
        self.nbytes = nbytes

    @property
    def mapping(self) -> _core.Mapping:
        """The native mapping; ``ValueError`` after :meth:`close`."""
        if self._mapping is None:
            raise ValueError("shared memory: it was closed; tensors taken before remain valid")
        return self._mapping

    def array(self) -> np.ndarray:
        return self.mapping.array()

    def tensor(self) -> Tensor:
        """All of it as a tensor of uint8, aligned to a page."""
        return torch.from_numpy(self.mapping.array())

    def close(self) -> None:
        """Closes the descriptor. The memory itself goes with the last tensor, in the last process."""
        if self._mapping is not None:
            self._mapping = None
            os.close(self._fd)

    def __enter__(self) -> "SharedMemory":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_mapping", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        context.assert_spawning(self)  # an open file goes to a child only while it is started
        if self._mapping is None:
            raise ValueError("shared memory: it was closed, and cannot be given to a process any more")
        return {"fd": reduction.DupFd(self._fd), "nbytes": self.nbytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._attach(state["fd"].detach(), state["nbytes"])

    @says
    def __repr__(self) -> str:
        return f"{format_size(self.nbytes)}{', closed' if self._mapping is None else ''}"


class SharedTensor:
    """A tensor, copied once into shared memory, for processes that are spawned: they see the same bytes.

    Example:
        >>> shared = glt.channel.SharedTensor(torch.arange(3))
        >>> shared.tensor
        tensor([0, 1, 2])
    """

    def __init__(self, tensor: Tensor) -> None:
        self._dtype = tensor.dtype
        self._shape = tuple(tensor.shape)
        self._memory = SharedMemory(max(tensor.nbytes, 1), "glt-tensor")
        self.tensor.copy_(tensor)

    @property
    def tensor(self) -> Tensor:
        """A view of the shared memory: what one process writes, all see."""
        nbytes = self._dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        return self._memory.tensor()[:nbytes].view(self._dtype).view(self._shape)

    @says
    def __repr__(self) -> str:
        return f"{str(self._dtype).removeprefix('torch.')} {list(self._shape)}"


def share_tensor(tensor: Tensor) -> SharedTensor:
    """Copies a tensor into shared memory, for processes that are spawned; see :class:`SharedTensor`.

    Example:
        >>> glt.channel.share_tensor(torch.arange(3)).tensor
        tensor([0, 1, 2])
    """
    return SharedTensor(tensor)


DEFAULT_CAPACITY = 256  # messages; the size of the channel is usually reached first


class ShmSlot(Slot):
    def __init__(self, reservation: _core.RingReservation) -> None:
        self.buffer = torch.from_numpy(reservation.array)
        self._reservation = reservation

    def commit(self) -> None:
        self._reservation.commit()

    def abandon(self) -> None:
        self._reservation.abandon()


class ShmChannel(Channel):
    """Passes messages from one process to another without copies.

    Made in one process and given to another when that is spawned. The first to reserve is the producer, the first to
    receive the consumer. A killed process leaves nothing behind and nothing locked; waits on the other side end at
    their deadline. Messages of up to half of the channel are written once and read in place; larger ones pass through
    it in pieces. Once the consumer keeps more than half of the channel in messages, it copies further ones, so that a
    batch kept for ever blocks no producer.

    Args:
        channel_bytes: Size of the memory for messages, in bytes or as text (``'64MB'``). A few times the largest
            message is enough.
        capacity: Messages that may be reserved or waiting to be received.

    Example:
        >>> with glt.channel.ShmChannel("1MB") as channel:  # give it to a process as one of its args
        ...     channel.send({"x": torch.ones(2)})
        ...     channel.receive().tensors
        {'x': tensor([1., 1.])}
    """

    channel_bytes: int

    def __init__(self, channel_bytes: int | str, capacity: int = DEFAULT_CAPACITY) -> None:
        arena_bytes = -(-parse_size(channel_bytes, "channel_bytes") // 64) * 64
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: expected at least 1 message")
        memory = SharedMemory(_core.ring_bytes(arena_bytes, capacity), "glt-channel")
        _core.format_ring(memory.mapping, arena_bytes, capacity)
        self._start(memory, arena_bytes)

    def _start(self, memory: SharedMemory, channel_bytes: int) -> None:
        self._memory, self._region, self.channel_bytes = memory, memory.mapping, channel_bytes
        self._pinned: PinnedMemory | None = None
        self._lock = threading.Lock()
        self._producer: _core.RingProducer | None = None
        self._consumer: _core.RingConsumer | None = None
        self._closed = False

    def descriptor(self) -> dict[str, int]:
        """What :meth:`from_descriptor` needs in a process that gets ``fd``, as JSON can carry it."""
        return {"fd": self._memory.fd, "nbytes": self._memory.nbytes, "channel_bytes": self.channel_bytes}

    @classmethod
    def from_descriptor(cls, descriptor: dict[str, int]) -> "ShmChannel":
        self = cls.__new__(cls)
        self._start(SharedMemory.from_fd(descriptor["fd"], descriptor["nbytes"]), descriptor["channel_bytes"])
        return self

    def pin(self, device: torch.device | str | int = "cuda") -> None:
        """Registers the memory with CUDA in this process, until :meth:`close`; errors as of :class:`PinnedMemory`."""
        memory = torch.from_numpy(self._region.array())
        self._pinned = PinnedMemory(memory, device, "channel memory", writable=True)

    def reserve(self, nbytes: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> Slot:
        producer = self._producer or self._begin("_producer", _core.RingProducer)
        status, reservation = producer.reserve(nbytes, timeout_s)
        if reservation is None:
            self._fail(status, f"no room for a message of {format_size(nbytes)} after {timeout_s:g} s")
        return ShmSlot(reservation)

    def receive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Message:
        consumer = self._consumer or self._begin("_consumer", _core.RingConsumer)
        status, array = consumer.receive(timeout_s)
        if array is None:
            self._fail(status, f"no message after {timeout_s:g} s")
        return read_message(torch.from_numpy(array))

    def close(self, timeout_s: float = deadlines.JOIN_S) -> None:
        """Ends the sides that this process uses; in a process that uses none, both. A producer closes after the message
        that it last committed; one that passes in pieces is given ``timeout_s`` seconds. Tensors that were received,
        and slots that are being filled, keep their memory."""
        self._end(unused=True, timeout_s=timeout_s)

    def _end(self, unused: bool, timeout_s: float) -> None:
        with self._lock:
            producer, consumer, was_closed = self._producer, self._consumer, self._closed
            self._producer = self._consumer = None
            self._closed = True
        if was_closed:
            return
        if consumer is not None:
            consumer.close()
        if producer is not None:
            producer.close(timeout_s)
        if unused and producer is None and consumer is None:
            _core.close_ring(self._region)
        if self._pinned is not None:
            pinned, self._pinned = self._pinned, None
            pinned.close()
        self._memory.close()

    def __del__(self) -> None:
        # A process may hand the channel on and drop its own: that closes nothing.
        if hasattr(self, "_lock"):
            self._end(unused=False, timeout_s=deadlines.JOIN_S)

    def _begin(self, side: str, make: Callable[..., Any]) -> Any:
        """Makes this process the producer or the consumer, if no other thread has meanwhile."""
        with self._lock:
            if self._closed:
                raise ChannelClosed("the channel was closed in this process")
            if getattr(self, side) is None:
                setattr(self, side, make(self._region, process_pool()))
            return getattr(self, side)

    def _fail(self, status: _core.RingStatus, timeout_text: str) -> NoReturn:
        ring = _core.ring_stats(self._region)
        if status == _core.RingStatus.CLOSED:
            sides = [side for side in ("producer", "consumer") if ring[f"{side}_closed"]]
            raise ChannelClosed(
                f"the channel was closed by its {' and its '.join(sides)} "
                f"(producer pid {ring['producer_pid']}, consumer pid {ring['consumer_pid']})"
            )
        queued = ring["sent"]["messages"] - ring["received"]["messages"]
        raise ChannelTimeout(
            f"{timeout_text}: {queued} messages are queued in a channel of {format_size(self.channel_bytes)} "
            f"(producer pid {ring['producer_pid']}, consumer pid {ring['consumer_pid']}; 0: not started)"
        )

    def stats(self) -> dict[str, int | float]:
        ring = _core.ring_stats(self._region)
        return named_counts(ring["sent"], ring["received"])

    def __getstate__(self) -> dict[str, Any]:
        return {"memory": self._memory, "channel_bytes": self.channel_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(**state)

    @says
    def __repr__(self) -> str:
        return f"{format_size(self.channel_bytes)} of shared memory{', closed' if self._closed else ''}"
