"""What a trainer holds of distributed tensors, so that their owners learn what nobody holds any more."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glt.distributed.dist_tensor import DistTensor
    from glt.distributed.store.exchange import Line
    from glt.distributed.world import World

logger = logging.getLogger(__name__)


class Handles:
    """Those of one world.

    A tensor may be collected anywhere, in the middle of a call to its owner, say: it is then only noted down, and its
    owners are told at the next occasion. That the trainer leaves tells them, too.

    Attributes:
        open: The tensors that are held.
        written: Names of tables of the graph that this trainer has written to.
    """

    def __init__(self) -> None:
        self.open: weakref.WeakSet[DistTensor] = weakref.WeakSet()
        self.written: set[str] = set()
        self._numbers = itertools.count()
        self._dropped: deque[tuple[str, tuple[int, ...], list[Line]]] = deque()

    @classmethod
    def of(cls, world: World) -> Handles:
        """The one of a world."""
        with _lock:
            return _of_world.setdefault(world, cls())

    def next_name(self) -> str:
        """For a tensor without one; the same in all trainers, which create them in the same order."""
        return f"glt/anonymous/{next(self._numbers)}"

    def hold(self, tensor: DistTensor, handle: str, generations: tuple[int, ...], lines: list[Line]) -> None:
        """Notes that a tensor is held, until it is collected; its last changes go before that is told."""
        self.open.add(tensor)
        weakref.finalize(tensor, self._dropped.append, (handle, generations, lines)).atexit = False

    def tell(self, world: World) -> None:
        """Tells the owners what is not held any more; waits for nothing."""
        while self._dropped:
            try:
                handle, generations, lines = self._dropped.popleft()
            except IndexError:  # another thread was faster
                return
            for server, (generation, line) in enumerate(zip(generations, lines, strict=True)):
                try:
                    world.call(server, "glt.tensor.release", generation, handle, line.handle, line.num_changes)
                except RuntimeError as error:  # lost, and its tensors with it
                    logger.info("a tensor was not released: %s", error)


_lock = threading.Lock()
_of_world: weakref.WeakKeyDictionary[Any, Handles] = weakref.WeakKeyDictionary()
