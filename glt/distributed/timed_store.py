"""A store of ``torch.distributed`` whose every call has a deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

ANSWER_S = 30.0  # a store answers at once, unless its host is overloaded

T = TypeVar("T")


class KeyStore(Protocol):
    """What glt needs of a store."""

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...

    def set(self, key: str, value: str, /) -> None: ...


class TimedStore:
    """Passes calls on to a store, and gives up on it when one is not answered.

    The deadline that torch has is one for values to be set. Where the process that hosts a store is stopped, or its
    host cannot be reached any more, a call such as ``check`` never returns. So each is made on a thread of its own,
    which is left behind then.

    Args:
        store: What is asked.
        answer_s: How long an answer may take, in seconds; default: half a minute.
    """

    def __init__(self, store: dist.Store, answer_s: float | None = None) -> None:
        self.store, self.answer_s = store, ANSWER_S if answer_s is None else answer_s
        self._silent = False

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

    def ask(self, call: Callable[[], T]) -> T:
        """Makes a call.

        Raises:
            torch.distributed.DistError: If the store is lost, or gives no answer in time, now or earlier.
        """
        if self._silent:
            raise self._gives_no_answer()
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answer.put((True, call()))
            except BaseException as error:
                answer.put((False, error))

        threading.Thread(target=run, name="glt-ask-store", daemon=True).start()
        try:
            is_answered, value = answer.get(timeout=self.answer_s)
        except queue.Empty:
            self._silent = True
            raise self._gives_no_answer() from None
        if is_answered:
            return value  # type: ignore[no-any-return]
        raise value

    def _gives_no_answer(self) -> Exception:
        return dist.DistError(
            f"it gave no answer within {self.answer_s:g} s: the process that hosts it is stopped, or the network is cut"
        )
