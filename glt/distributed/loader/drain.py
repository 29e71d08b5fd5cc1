"""How loaders end: samplers go on serving for as long as other trainers need the partition that they serve."""

from __future__ import annotations

import logging
import os
import threading
from multiprocessing import util

from glt import _deadlines as deadlines
from glt.distributed.loader.deployment import Backend
from glt.distributed.wire.group import Group

logger = logging.getLogger(__name__)


_draining: set[threading.Thread] = set()
_waited_for_by = 0  # the process whose end waits for them


def end(backend: Backend, group: Group | None) -> None:
    """Ends the sampling of a loader, and its samplers once no living trainer needs them.

    Returns after a few seconds at most. A trainer that is needed for longer goes on serving in the background, so that
    trainers may end their loaders at different times and in different orders; its process then ends when the others
    have finished or died.

    Args:
        backend: The samplers.
        group: Where the trainers are who may ask them; None if nobody does.
    """
    backend.drain()
    if group is None:
        backend.close()
        return
    thread = _start(backend, group)
    thread.join(deadlines.DRAIN_S)
    if thread.is_alive():
        logger.info("%s goes on serving its partition to trainers that have not finished", group.me)


def abandon(backend: Backend, group: Group | None, pid: int) -> None:
    """What becomes of a loader that was not shut down: it was collected, or the interpreter ends.

    Args:
        backend, group: As for :func:`end`.
        pid: The process that made the loader. A fork of it has nothing to end.
    """
    if os.getpid() != pid:
        return
    backend.drain()
    if threading.main_thread().is_alive():
        # Waits for nothing: a collection may happen anywhere, under any lock, on a thread of the sampler itself.
        _start(backend, group)
    else:
        # The interpreter ends, perhaps because of an exception that others wait to hear of.
        _finish(backend, group, deadlines.DRAIN_S)


def _start(backend: Backend, group: Group | None) -> threading.Thread:
    global _waited_for_by
    if _waited_for_by != os.getpid():
        # Of multiprocessing, not of atexit, which its children never come to unless they are spawned: trainers may be
        # forked. Registered here, since such a child forgets what its parent has registered.
        util.Finalize(None, _wait, exitpriority=1)
        _waited_for_by = os.getpid()
    thread = threading.Thread(target=_finish, args=(backend, group, None), name="glt-drain", daemon=True)
    # Until it is dead, not until it has finished: it may be the last to let go of the samplers, and a daemon that frees
    # a tensor while the interpreter ends takes the process with it ("terminate called without an active exception").
    _draining.difference_update([earlier for earlier in list(_draining) if earlier.ident and not earlier.is_alive()])
    _draining.add(thread)
    thread.start()
    return thread


def _finish(backend: Backend, group: Group | None, timeout_s: float | None) -> None:
    if group is None:
        backend.close()
        return
    missing: list[int] = []
    try:
        missing = group.finish(timeout_s)
        if missing:
            logger.warning("trainers of rank %s were not waited for: they or this one died or gave up", missing)
    finally:
        backend.close(all_finished=not missing)


def _wait() -> None:
    """Bounded by the lives of the trainers that are waited for: each wait ends when they finish or fall silent."""
    for thread in list(_draining):
        thread.join()
