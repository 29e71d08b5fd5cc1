"""What trainers may ask of the meetings that a server holds for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from glt.distributed.store.meeting import Meetings, Participant

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def meeting_calls(meetings: Meetings) -> dict[str, Call]:
    """Calls by name; each takes who asks, its arguments and its keyword arguments."""

    def meet(who: Participant, tag: str, number: int, num: int, timeout_s: float, told: str = "") -> Future[None]:
        same = partial(_require_same, tag)
        return meetings.arrive(tag, number, who, num, str(told), finish=same, timeout_s=timeout_s)

    return {
        "glt.meet": lambda who, args, kwargs: meet(who, *args),
        "glt.call_off": lambda who, args, kwargs: meetings.call_off(args[0], args[1], who, *args[2:]),
        "glt.trouble": lambda who, args, kwargs: meetings.trouble(args[0], args[1], who, *args[2:]),
    }


def _require_same(tag: str, told: list[str]) -> None:
    for rank, each in enumerate(told):
        if each != told[0]:
            raise ValueError(f"{tag}: trainer 0 says {told[0]}, and trainer {rank} says {each}: expected the same")
