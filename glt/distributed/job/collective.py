"""Work that all trainers do together: where one fails, the others are told at once which one, and why."""

from __future__ import annotations

import logging
import traceback
from time import monotonic
from types import TracebackType

from glt import _deadlines as deadlines
from glt.distributed.context import World
from glt.errors import GltError, PeerLost

logger = logging.getLogger(__name__)

_MAX_REASON = 2000  # characters of what is said of a failure


class CollectiveTask:
    """A task of all trainers with barriers in between, as a context manager.

    A trainer that leaves it by an exception fails the next barrier for all. The others learn of that where they wait
    for it, and in :meth:`check` within a second or so; likewise of one that died. They may then enter the next task of
    the same name together.

    Args:
        world: The trainers.
        name: All tasks of a name are entered in the same order on all trainers.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._is_alone = world.num_trainers == 1
        self._has_failed = False  # for all trainers
        self._checked_at = monotonic()

    def barrier(self, agreed: str = "") -> None:
        """Waits until all trainers have come here.

        Args:
            agreed: What all of them must give alike.

        Raises:
            ValueError: On all of them, if they do not; names two.
            glt.errors.PeerLost: If another has failed, or is gone; names it, and why.
        """
        if self._is_alone:
            return
        try:
            self._world.barrier(tag=self._name, agreed=agreed)
        except Exception:
            self._has_failed = True
            raise
        self._checked_at = monotonic()

    def check(self) -> None:
        """Asks, once a second at most, whether the others still work.

        Raises:
            glt.errors.PeerLost: If one has failed, or is gone; names it, and why.
        """
        if self._is_alone or monotonic() - self._checked_at < deadlines.BEAT_S:
            return
        text = self._world.failure(self._name)
        if text is not None:
            self._has_failed = True
            raise PeerLost(text)
        self._checked_at = monotonic()

    def __enter__(self) -> CollectiveTask:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._is_alone or self._has_failed:
            return
        what = "".join(traceback.format_exception_only(error)).strip()[:_MAX_REASON]
        try:
            text = self._world.failure(self._name)
            if text is None:
                self._world.abort(self._name, f"has failed in {self._name}: {what}. Its own output says more")
        except GltError as lost:  # server 0, which the others then lose as well
            logger.warning("the other trainers are not told of a failure (%s): %s", what, lost)
            return
        # The first to fail deletes what the others read and write: their errors are to say why.
        if text is not None and (type(error) is LookupError or isinstance(error, GltError)):
            raise PeerLost(text) from error
