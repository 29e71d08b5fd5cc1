"""Work under way on a GPU that reads memory which torch takes for free."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

logger = logging.getLogger(__name__)


def waited_for(owner: object, device: torch.device) -> weakref.finalize[..., Any] | None:
    """Has the work under way on a GPU waited for when ``owner`` is dropped, before its tensors are.

    Kernels of ours read the tensors by their addresses, on any stream. torch knows nothing of that: it would give the
    memory, on the GPU or pinned, to whoever asks next. Python calls finalizers before it clears what an object holds,
    also where the collector drops it.

    Returns:
        What :meth:`detach` undoes, of owners that were closed; None on the host, which has nothing under way.
    """
    if device.type != "cuda":
        return None
    finalizer = weakref.finalize(owner, _wait_for, device)
    finalizer.atexit = False  # nobody gets the memory any more, and CUDA may be gone
    return finalizer


def _wait_for(device: torch.device) -> None:
    if not torch.cuda.is_initialized():  # nothing can be under way; or a fork, which has no CUDA and only copies
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:  # of a kernel, at some time: whoever waits for its results is told, too
        logger.warning("memory is given back on %s, which reports: %s", device, error)
