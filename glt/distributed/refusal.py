"""Arguments that one trainer refuses, while the others wait for it to join their loader."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

from glt.distributed.context import DistRole, get_context
from glt.distributed.options import MpDistSamplingWorkerOptions, TrainerWorkerOptions
from glt.distributed.rendezvous import Rendezvous

JOIN_S = 5.0  # for the store to be there: a mistake is told here at once, or nearly so

P = ParamSpec("P")

logger = logging.getLogger(__name__)


@contextmanager
def telling_the_others(options: Any) -> Iterator[None]:
    """Wraps the checks of a loader's arguments: what they raise is told to the other trainers, and raised.

    Without a word the others would wait for this trainer until their deadline (``rpc_timeout``) and then not know why.
    So it takes its place in the loader, as far as that is possible within a few seconds, and gives up there: they raise
    :class:`glt.errors.PeerLost` with the reason. If the store cannot be reached, as when trainer 0 has not come as far,
    nobody is told.

    Args:
        options: The worker options that the loader was given, perhaps wrong ones; None: its default.
    """
    try:
        yield
    except Exception as error:
        context = get_context()
        options = MpDistSamplingWorkerOptions() if options is None else options
        if context is None or context.role is not DistRole.WORKER:
            raise
        if context.world_size > 1 and isinstance(options, TrainerWorkerOptions):
            try:
                patience_s = min(JOIN_S, options.rpc_timeout)
                Rendezvous(context, options.master_addr, options.master_port, patience_s).give_up(error)
            except RuntimeError as unreachable:
                logger.warning("%s: could not tell the others: %s", context.worker_name, unreachable)
        raise


def telling_of_misspellings(init: Callable[P, None]) -> Callable[P, None]:
    """Decorates the ``__init__`` of a loader: arguments that it does not have, or lacks, are told to the others too.

    Python refuses those before the first line of the function, where :func:`telling_the_others` could be.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def bound(*args: P.args, **kwargs: P.kwargs) -> None:
        with telling_the_others(kwargs.get("worker_options")):
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{type(args[0]).__name__}() {error}") from None
        init(*args, **kwargs)

    return bound
