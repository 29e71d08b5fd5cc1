"""Which clients are there, which were lost, and which are done."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from glt.distributed.service.session import Session
from glt.errors import RendezvousError

_GRACE_S = 60.0  # a client that was lost may come back within it
_FOLLOWED_S = 3.0  # a client that gives no sign of life for so long while another asks for its place loses it


class Attendance:
    """The clients of a server.

    Args:
        num_clients: How many there will be, of each group that comes; None: any number.
    """

    def __init__(self, num_clients: int | None) -> None:
        self.num_clients = num_clients
        self._changed = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._left: dict[tuple[str, int], float | None] = {}  # clients that are done, or when they were lost
        self._is_ending = False

    def sessions(self) -> list[Session]:
        with self._changed:
            return list(self._sessions.values())

    def __contains__(self, session: Session) -> bool:
        with self._changed:
            return session.id in self._sessions

    def admit(self, session: Session) -> bool:
        """Takes a client in; false once the server is ending.

        Raises:
            glt.errors.RendezvousError: If a living client has its place.
        """
        with self._changed:
            self._end_predecessors(session)
            if self._is_ending:
                return False
            self._sessions[session.id] = session
            self._left.pop((session.group, session.rank), None)
            self._changed.notify_all()
            return True

    def _end_predecessors(self, session: Session) -> None:
        """Makes sure that no living client has the place of this one.

        One that was killed may have been followed at once, while the kernel still took its memory from it: a client is
        taken for living when it gave a sign of life after its follower had come.
        """
        came = time.monotonic()
        while not self._is_ending:
            same = [
                each for each in self._sessions.values() if (each.group, each.rank) == (session.group, session.rank)
            ]
            for other in same:
                if other.connection.heard_s > came:
                    raise RendezvousError(f"client_rank = {session.rank} of {session.group!r} is taken by {other}")
            if not same:
                return
            if time.monotonic() - came > _FOLLOWED_S:
                for other in same:
                    other.connection.close()
                return
            self._changed.wait(0.1)

    def dismiss(self, session: Session) -> None:
        """Takes note that a client is gone."""
        with self._changed:
            self._sessions.pop(session.id, None)
            place = session.group, session.rank
            if self.num_clients is None:
                return  # what nobody asks is not kept
            # Its successor may have come and left before this one was missed.
            if session.has_left or self._left.get(place, 0.0) is not None:
                self._left[place] = None if session.has_left else time.monotonic()
            self._changed.notify_all()

    def done(self) -> list[tuple[str, int]]:
        """Clients that have said that they are done, by group and rank; none, without a number of clients."""
        with self._changed:
            return [place for place, lost_s in self._left.items() if lost_s is None]

    def learn(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Takes note of clients that told other servers that they are done; returns those not known of. Without that a
        server that was restarted, or lost its connection to a client, would wait for clients that do not come."""
        with self._changed:
            here = {(each.group, each.rank) for each in self._sessions.values()}
            new = [
                place for place in places
                if self.num_clients is not None and place not in here and self._left.get(place, 0.0) is not None
            ]  # fmt: skip
            self._left |= dict.fromkeys(new)
            self._changed.notify_all()
            return new

    def turn_away(self, hello: Mapping[str, Any]) -> None:
        """Takes note of a client that came too late, and was told so."""
        with self._changed:
            self._left[hello["group"], hello["rank"]] = None
            self._changed.notify_all()

    def wait_for_latecomers(self, timeout_s: float) -> None:
        """Waits until every client has come once, or been turned away, but no longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(self._have_all_come, timeout_s)

    def _have_all_come(self) -> bool:
        if self.num_clients is None:
            return True
        places = {(each.group, each.rank) for each in self._sessions.values()} | self._left.keys()
        return min(Counter(group for group, _ in places).values(), default=0) >= self.num_clients

    def admit_no_more(self) -> None:
        """From now on nobody is taken in, and waits end."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def wait_until_done(self, timeout_s: float | None) -> bool:
        """Waits until all clients have left, or were lost and did not come back within a minute; never, without a
        number of clients. Nobody is admitted any more then.

        Returns:
            False if ``timeout_s`` seconds were not enough.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._is_done():
                if deadline is not None and time.monotonic() > deadline:
                    return False
                self._changed.wait(0.5)
            self._is_ending = True  # whoever comes now finds the server's successor, if there is one
        return True

    def _is_done(self) -> bool:
        if self._is_ending:
            return True
        if self.num_clients is None or self._sessions or not self._left:
            return False
        by_group = Counter(group for group, _ in self._left)  # each job that came must have come and gone whole
        if min(by_group.values()) < self.num_clients:
            return False
        now = time.monotonic()
        return all(lost_s is None or now - lost_s > _GRACE_S for lost_s in self._left.values())
