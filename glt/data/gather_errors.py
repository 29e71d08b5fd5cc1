"""Errors of kernels that nobody waits for, told when somebody does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

NUM_WORDS = 8
"""Gathers that may be unchecked; the ids of these are kept, to name the bad one."""


class GatherErrors:
    """One word of device memory per launch: the lowest position of an id out of range, or -1.

    Args:
        device: Where kernels run; the CPU stands for the host executor of the tests.
    """

    def __init__(self, device: torch.device) -> None:
        self._words = torch.full((NUM_WORDS + 1,), -1, dtype=torch.int64, device=device)
        # By stream, the event of the newest launch whose ids are not looked at; they have the last word.
        self._trusted: dict[int, Any] = {}
        self._pending: list[tuple[Callable[[int], None], Any]] = []
        self.lock = threading.RLock()

    def add(self, launch: Callable[[int], Any], explain: Callable[[int], None]) -> None:
        """Launches a kernel; call with ``lock`` held.

        Args:
            launch: Called with the address of the word; returns an event of its end, or None.
            explain: Called by :meth:`check` with the position of a bad id: raises the error that names it.
        """
        if len(self._pending) == NUM_WORDS:
            self.check()
        event = launch(self._words.data_ptr() + 8 * len(self._pending))
        self._pending.append((explain, event))

    def trust(self, launch: Callable[[int], Any]) -> None:
        """Launches a kernel whose ids are in range for certain: nothing waits, and nothing is kept to name a bad one.
        That there was one is still told by :meth:`check`. Call with ``lock`` held."""
        stream = torch.cuda.current_stream(self._words.device).cuda_stream if self._words.is_cuda else 0
        self._trusted[stream] = launch(self._words.data_ptr() + 8 * NUM_WORDS)

    def check(self) -> None:
        """Waits for the launches so far and raises the error of the first that had one."""
        with self.lock:
            pending, self._pending = self._pending, []
            trusted, self._trusted = list(self._trusted.values()), {}
            if not pending and not trusted:
                return
            for event in [event for _, event in pending] + trusted:
                if event is not None:
                    # The current stream of this device waits for those that the kernels ran on.
                    event.wait(torch.cuda.current_stream(self._words.device))
            *positions, broken = self._words.tolist()
            positions = positions[: len(pending)]
            if max([*positions, broken]) < 0:
                return
            self._words.fill_(-1)
            if self._words.is_cuda:
                torch.cuda.synchronize(self._words.device)
            for (explain, _), position in zip(pending, positions, strict=True):
                if position >= 0:
                    explain(position)
                    raise RuntimeError(f"the GPU found ids[{position}] out of range, the host did not")
            if broken >= 0:
                raise IndexError(f"ids[{broken}] of a gather with trusted = True has no row: it was not to be trusted")
