"""Work that all trainers do together: where one fails, the others are told at once, and by whom."""

from __future__ import annotations

import logging
import traceback
from time import monotonic
from types import TracebackType

from glt import _deadlines as deadlines
from glt.distributed.world import World
from glt.errors import GltError, PeerLost

logger = logging.getLogger(__name__)

_MOST_WHY = 2000  # characters of what a failure is called


class JointWork:
    """A stretch of work of all trainers with barriers in between, as a context manager.

    A trainer that leaves it by an exception, and lives on, aborts the next barrier. The others learn of that where
    they wait for it, and in :meth:`check` within a second or so; likewise of one that died. They may then enter the
    next stretch of the same name together.

    Args:
        world: The trainers.
        name: Of the work; all stretches of a name are entered in the same order on all trainers.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._is_alone = world.num_trainers == 1
        self._has_ended = False  # for all trainers, by a barrier that failed
        self._checked_at = monotonic()

    def barrier(self, value: str = "") -> None:
        """Waits until all trainers have come here.

        Args:
            value: Of all of them the same.

        Raises:
            ValueError: On all of them, if it is not; names two.
            glt.errors.PeerLost: If another has failed, or is gone; names it, and why.
        """
        if self._is_alone:
            return
        try:
            self._world.barrier(tag=self._name, value=value)
        except Exception:
            self._has_ended = True
            raise
        self._checked_at = monotonic()

    def check(self) -> None:
        """Looks, once a second at most, whether the others still work.

        Raises:
            glt.errors.PeerLost: If one has failed, or is gone; names it, and why.
        """
        if self._is_alone or monotonic() - self._checked_at < deadlines.BEAT_S:
            return
        text = self._world.barrier_failure(self._name)
        if text is not None:
            self._has_ended = True
            raise PeerLost(text)
        self._checked_at = monotonic()

    def __enter__(self) -> JointWork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._is_alone or self._has_ended:
            return
        what = "".join(traceback.format_exception_only(error)).strip()[:_MOST_WHY]
        try:
            text = self._world.barrier_failure(self._name)
            if text is None:
                self._world.abort_barrier(self._name, f"has failed in {self._name}: {what}. Its own output says more")
        except GltError as lost:  # server 0, which the others then lose as well
            logger.warning("the other trainers are not told of a failure (%s): %s", what, lost)
            return
        # Who failed first takes away what the others read and write: they are to hear why.
        if text is not None and (type(error) is LookupError or isinstance(error, GltError)):
            raise PeerLost(text) from error
