"""A store of ``torch.distributed`` whose every call has a deadline."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import Protocol, TypeVar

import torch.distributed as dist

from glt.distributed.native_pool import NativePool

ANSWER_S = 30.0  # a store answers at once, unless its host is overloaded
_POLL_S = 0.05

T = TypeVar("T")


class KeyStore(Protocol):
    """What glt needs of a store."""

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...

    def set(self, key: str, value: str, /) -> None: ...


class TimedStore:
    """Passes calls on to a store, and gives up on it when one is not answered.

    The deadline that torch has is one for values to be set. Where the process that hosts a store is stopped, or its
    host cannot be reached any more, a call such as ``check`` never returns. So calls are made on another thread, which
    is left behind then.

    Args:
        store: What is asked.
        answer_s: How long an answer may take, in seconds; default: half a minute.
    """

    def __init__(self, store: dist.Store, answer_s: float | None = None) -> None:
        self.store, self.answer_s = store, ANSWER_S if answer_s is None else answer_s
        self._silent = False
        # Started now: at exit, when stores are asked too, Python 3.12 starts no threads any more.
        self._pool = NativePool(1, "glt-ask-store")
        weakref.finalize(self, self._pool.end).atexit = False

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these are set; errors as of :meth:`ask`."""
        return self.ask(lambda: self.store.check(list(keys)))

    def get(self, key: str) -> bytes:
        """The value of a key that is set; errors as of :meth:`ask`."""
        return self.ask(lambda: self.store.get(key))

    def set(self, key: str, value: str) -> None:
        """Errors as of :meth:`ask`."""
        self.ask(lambda: self.store.set(key, value))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Errors as of :meth:`ask`."""
        return self.ask(lambda: self.store.compare_set(key, expected, desired))

    def wait_for(self, key: str, timeout_s: float, look: Callable[[], None] = lambda: None) -> bytes | None:
        """Waits for a key to be set; errors as of :meth:`ask`.

        Args:
            key: Which one.
            timeout_s: Deadline in seconds.
            look: Called again and again until then; raises if it never will be.

        Returns:
            Its value; None if it is not set in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() <= deadline:
            try:
                is_set = self.check([key])
            except dist.DistError:
                raise
            except RuntimeError:
                return self._wait_for(key, timeout_s)  # a store of the user's own, which need not be able to check
            if is_set:
                return self.get(key)
            look()
            time.sleep(_POLL_S)
        return None

    def _wait_for(self, key: str, timeout_s: float) -> bytes | None:
        def wait() -> bytes | None:
            try:
                self.store.wait([key], timedelta(seconds=timeout_s))
            except RuntimeError:
                return None
            return self.store.get(key)

        return self.ask(wait, timeout_s + self.answer_s)

    def ask(self, call: Callable[[], T], answer_s: float | None = None) -> T:
        """Makes a call; ``answer_s`` is its own deadline, if it has one.

        Raises:
            torch.distributed.DistError: If the store is lost, or gives no answer in time, now or earlier.
        """
        if self._silent:
            raise self._gives_no_answer()
        try:
            return self._pool.submit(call).result(self.answer_s if answer_s is None else answer_s)
        except FutureTimeout:
            self._silent = True
            raise self._gives_no_answer() from None

    def _gives_no_answer(self) -> Exception:
        return dist.DistError(
            f"it gave no answer within {self.answer_s:g} s: the process that hosts it is stopped, or the network is cut"
        )
