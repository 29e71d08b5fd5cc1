"""What a trainer holds of distributed tensors, so that their owners learn what nobody holds any more."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glt.distributed.dist_tensor import DistTensor
    from glt.distributed.store.exchange import Line
    from glt.distributed.world import World

logger = logging.getLogger(__name__)


class Handles:
    """Those of one world.

    A tensor may be collected anywhere, in the middle of a call to its owner, say, or under a lock of that: it is then
    only noted down, and a thread tells its owners. That the trainer leaves tells them, too.

    Attributes:
        open: The tensors that are held.
        written: Names of tables of the graph that this trainer has written to.
    """

    def __init__(self, world: World) -> None:
        self.open: weakref.WeakSet[DistTensor] = weakref.WeakSet()
        self.written: set[str] = set()
        self._numbers = itertools.count()
        self._dropped: deque[_Dropped] = deque()
        self._news: SimpleQueue[bool] = SimpleQueue()  # whether it goes on; may be put to within a put
        self._telling = threading.Lock()
        self._world = weakref.ref(world)
        self._thread: threading.Thread | None = None
        weakref.finalize(world, self._news.put, False).atexit = False

    @classmethod
    def of(cls, world: World) -> Handles:
        """The one of a world."""
        with _lock:
            if world not in _of_world:
                _of_world[world] = cls(world)
            return _of_world[world]

    def next_name(self) -> str:
        """For a tensor without one; the same in all trainers, which create them in the same order."""
        return f"glt/anonymous/{next(self._numbers)}"

    def hold(self, tensor: DistTensor, handle: str, generations: tuple[int, ...], lines: list[Line]) -> None:
        """Notes that a tensor is held, until it is collected; its last changes go before that is told."""
        self.open.add(tensor)
        weakref.finalize(tensor, _drop, self._dropped, self._news, (handle, generations, lines)).atexit = False
        with self._telling:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_tell_all, args=(self._news, weakref.ref(self)), name="glt-release", daemon=True
                )
                self._thread.start()

    def tell(self) -> None:
        """Tells the owners what is not held any more, before anything that they are asked later; waits for nothing."""
        with self._telling:
            while self._dropped:
                handle, generations, lines = self._dropped.popleft()
                world = self._world()
                if world is None:
                    return  # and all that it held with it
                for server, (generation, line) in enumerate(zip(generations, lines, strict=True)):
                    try:
                        world.call(server, "glt.tensor.release", generation, handle, line.handle, line.num_changes)
                    except RuntimeError as error:  # lost, and its tensors with it
                        logger.info("a tensor was not released: %s", error)

    def end(self) -> None:
        """Ends the thread, since the world ends."""
        with self._telling:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._news.put(False)
            thread.join(_END_S)


_END_S = 5.0
_Dropped = tuple[str, tuple[int, ...], "list[Line]"]


def _drop(dropped: deque[_Dropped], news: SimpleQueue[bool], what: _Dropped) -> None:
    dropped.append(what)
    news.put(True)


def _tell_all(news: SimpleQueue[bool], handles: weakref.ref[Handles]) -> None:
    """Runs until the world ends, or is there no more."""
    while news.get() and (known := handles()) is not None:
        known.tell()
        del known


_lock = threading.Lock()
_of_world: weakref.WeakKeyDictionary[Any, Handles] = weakref.WeakKeyDictionary()
