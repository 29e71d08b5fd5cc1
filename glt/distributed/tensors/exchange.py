"""How the rows of a distributed tensor travel between a trainer and their owners."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy, pooled_empty
from glt.distributed.tensors.spec import Placement, Selection, TensorSpec
from glt.distributed.tensors.store import Rows
from glt.errors import GltError, PeerLost

if TYPE_CHECKING:
    from glt.distributed.world import World


PIECE_BYTES = 8 << 20  # of rows in one request or answer
_MOST_PIECE_ROWS = 1 << 20  # their numbers take memory, too
_MOST_IN_FLIGHT = 4  # requests to one owner that are not answered


class Piece(NamedTuple):
    """Rows that one request is about.

    Attributes:
        server: Whom to ask.
        rows: Their numbers there, or the first and how many.
        at: Where the first stands among all rows of the selection, if they are consecutive there.
        positions: Where each stands, if not, ``[n]``, uint32, counted from ``at``.
        span: Rows of the selection, from ``at`` on, that ``positions`` are among.
    """

    server: int
    rows: Rows
    at: int
    positions: np.ndarray | None
    span: int


class Exchange:
    """Asks the owners of rows, in pieces, all owners at a time; keeps a trainer's writes in order.

    Each owner makes the changes of one exchange in the order in which they were asked for, and its reads after them.

    Args:
        world: The owners.
        placement: Who has which row.
        spec: The tensor.
        generations: Its number, by server.
        handle: What the owners know this exchange by.

    Attributes:
        lines: By owner, what it was sent.
    """

    def __init__(
        self, world: World, placement: Placement, spec: TensorSpec, generations: tuple[int, ...], handle: str
    ) -> None:
        self._world, self._placement, self._spec = world, placement, spec
        self._generations = generations
        self._piece_rows = min(_MOST_PIECE_ROWS, max(1, PIECE_BYTES // max(spec.row_bytes, 1)))
        self._sending = threading.Lock()  # changes are sent in the order of their numbers
        self._lock = threading.Lock()  # never held while something is sent: answers are taken note of under it
        self.lines = [Line(handle) for _ in generations]  # by owner
        self._pending: set[Future[None]] = set()
        self._failed: BaseException | None = None  # the first since the last flush

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, selection: Selection) -> Tensor:
        """Returns the rows ``[n, ...]``; they are what this exchange has written, or what others did later."""
        out: Tensor | None = None
        waiting: deque[tuple[Piece, Any]] = deque()
        most = _MOST_IN_FLIGHT * len(self._generations)
        for piece in self._pieces(selection):
            if _count(piece.rows) == selection.n and piece.positions is None:
                return self._ask(piece, None).result()  # all in one, as it comes
            if out is None:
                out = pooled_empty((selection.n, *self._spec.row_shape), self._spec.torch_dtype)
            if len(waiting) >= most:
                _place(out, *waiting.popleft())
            waiting.append((piece, self._ask(piece, out)))
        if out is None:
            return torch.empty((0, *self._spec.row_shape), dtype=self._spec.torch_dtype)
        for piece, reply in waiting:
            _place(out, piece, reply)
        return out

    def _ask(self, piece: Piece, out: Tensor | None) -> Any:
        generation, line = self._generations[piece.server], self.lines[piece.server]
        asked = piece.server, "glt.tensor.read", generation, piece.rows, line.handle, line.num_changes
        if out is None or piece.positions is not None:
            return self._world.call(*asked)
        return self._world.call_into(out[piece.at : piece.at + _count(piece.rows)], *asked)

    # -- writing -----------------------------------------------------------------------------------------------------

    def change(self, kind: str, selection: Selection, values: Tensor) -> Future[None]:
        """Sends values ``[n, ...]`` to the owners of rows.

        Returns when all is sent, which is when all but the last few pieces are acknowledged; the future is done when
        all are, and raises what the first one raised that went wrong.

        Args:
            kind: ``'write'`` or ``'add'``.
            selection: Which rows.
            values: Theirs; may be changed once this has returned.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        with self._lock:
            self._pending.add(done)
        parts = _Parts(done, self._finished)
        try:
            for piece in self._pieces(selection):
                self._send(kind, piece, _values_of(piece, values), parts)
        except Exception as error:
            parts.fail(error)
        except BaseException as error:  # Ctrl-C is nobody's to keep
            parts.fail(error)
            parts.close()
            raise
        parts.close()
        return done

    def _send(self, kind: str, piece: Piece, values: Tensor, parts: _Parts) -> None:
        server = piece.server
        with self._sending:
            line = self.lines[server]
            while len(line.unanswered) >= _MOST_IN_FLIGHT:
                line.unanswered.popleft().exception()  # waits; who wrote that is told
            line = self.lines[server]
            number = line.num_changes + 1
            reply = self._world.call(
                server, f"glt.tensor.{kind}", self._generations[server], piece.rows, values, line.handle, number
            )
            line.num_changes = number  # only now: what was not sent is not waited for
            line.unanswered.append(reply)
        reply.add_done_callback(lambda each: self._renew(server, line, each.exception()))
        parts.add(reply)

    def _renew(self, server: int, line: Line, error: BaseException | None) -> None:
        """After a loss nobody knows which changes were made: those that come later are not to wait for them."""
        if isinstance(error, PeerLost) and self.lines[server] is line:
            self.lines[server] = Line(secrets.token_hex(8))

    def _finished(self, done: Future[None], error: BaseException | None) -> None:
        with self._lock:
            self._pending.discard(done)
            if error is not None and self._failed is None:
                self._failed = error

    def flush(self) -> None:
        """Waits until all changes are acknowledged; raises what went wrong with the first that was not waited for."""
        with self._lock:
            pending = list(self._pending)
        for each in pending:
            each.exception()
        with self._lock:
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def forgive(self, error: BaseException) -> None:
        """Takes note that an error was raised already."""
        with self._lock:
            if self._failed is error:
                self._failed = None

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _pieces(self, selection: Selection) -> Iterator[Piece]:
        """Cuts a selection, the owners in turn, so that all of them are busy."""
        if selection.ids is None and self._placement.has_spans:
            yield from _in_turn(self._span_pieces(selection.first, selection.first + selection.n))
            return
        for at, block in selection.blocks(self._piece_rows * len(self._generations)):
            ids = block.ids if block.ids is not None else np.arange(block.first, block.first + block.n)
            yield from _in_turn(
                [
                    [
                        Piece(
                            portion.server,
                            torch.from_numpy(portion.rows[i : i + self._piece_rows]),
                            at + i if portion.positions is None else at,
                            None if portion.positions is None else portion.positions[i : i + self._piece_rows],
                            block.n,
                        )
                        for i in range(0, len(portion.rows), self._piece_rows)
                    ]
                    for portion in self._placement.portions(ids)
                ]
            )

    def _span_pieces(self, first: int, last: int) -> list[list[Piece]]:
        found: dict[int, list[Piece]] = {}
        for span in self._placement.spans(first, last):
            found.setdefault(span.server, []).extend(
                Piece(
                    span.server,
                    (span.row + i, min(self._piece_rows, span.num_rows - i)),
                    span.first + i - first,
                    None,
                    0,
                )
                for i in range(0, span.num_rows, self._piece_rows)
            )
        return list(found.values())


class Line:
    """What an owner knows an exchange by, and the changes that it was sent.

    Attributes:
        handle: The first part of that.
        num_changes: That were sent so far, which are numbered from 1.
        unanswered: Replies to the last ones.
    """

    def __init__(self, handle: str) -> None:
        self.handle = handle
        self.num_changes = 0
        self.unanswered: deque[Future[Any]] = deque()


class _Parts:
    """Makes one future of several: done when all are, with the first error."""

    def __init__(self, whole: Future[None], finished: Any) -> None:
        self._whole, self._finished = whole, finished
        self._lock = threading.Lock()
        self._num_open = 1  # until it is closed
        self._error: BaseException | None = None

    def add(self, part: Future[Any]) -> None:
        with self._lock:
            self._num_open += 1
        part.add_done_callback(lambda each: self._count(each.exception()))

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error

    def close(self) -> None:
        self._count(None)

    def _count(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = self._error or error
            self._num_open -= 1
            if self._num_open:
                return
        self._finished(self._whole, self._error)
        if self._error is None:
            self._whole.set_result(None)
        else:
            self._whole.set_exception(self._error)


def _in_turn(by_owner: list[list[Piece]]) -> Iterator[Piece]:
    return (piece for piece in chain.from_iterable(zip_longest(*by_owner)) if piece is not None)


def _count(rows: Rows) -> int:
    return rows[1] if isinstance(rows, tuple) else len(rows)


def _place(out: Tensor, piece: Piece, reply: Any) -> None:
    found = reply.result()
    if piece.positions is None:
        return  # it is there
    here = as_numpy(out[piece.at : piece.at + piece.span])
    _core.gather_rows(as_numpy(found), None, here, None, piece.positions, torch.get_num_threads())


def _values_of(piece: Piece, values: Tensor) -> Tensor:
    if piece.positions is None:
        return values[piece.at : piece.at + _count(piece.rows)]
    out = pooled_empty((len(piece.positions), *values.shape[1:]), values.dtype)
    here = as_numpy(values[piece.at : piece.at + piece.span])
    _core.gather_rows(here, piece.positions.astype(np.int64), as_numpy(out), None, None, torch.get_num_threads())
    return out


# How a tensor is created or found on all servers, or on none.


logger = logging.getLogger(__name__)


def open_everywhere(world: World, call: str, args: tuple[Any, ...], handle: str) -> list[dict[str, Any]]:
    """Returns what each server answered.

    Args:
        world: The servers.
        call: ``'glt.tensor.create'`` or ``'glt.tensor.open'``.
        args, handle: Of that.

    Raises:
        LookupError: If some servers have lost a tensor that all had, or it is deleted this moment.
        Exception: What the first server raised that could not do it; the others then forget what they made for it.
    """
    replies = [world.call(server, call, *args, handle) for server in range(world.num_servers)]
    failed: BaseException | None = next(
        (error for error in (reply.exception() for reply in replies) if error is not None), None
    )
    answers = {server: reply.result() for server, reply in enumerate(replies) if reply.exception() is None}
    failed = _loss(answers) if failed is None else failed
    if failed is not None:
        for server, answer in answers.items():
            if answer.get("is_new"):
                _undo(world, server, answer["generation"], str(failed))
        raise failed
    generations = [answer["generation"] for answer in answers.values()]
    if any(answer["peers"] is None for answer in answers.values()):
        for reply in [
            world.call(server, "glt.tensor.made", mine, generations) for server, mine in enumerate(generations)
        ]:
            reply.result()
    return list(answers.values())


def _loss(answers: dict[int, Any]) -> LookupError | None:
    """Where a server has another tensor than those that the other servers' was made with, rows are gone: first values
    in their place would be a silent change."""
    for answer in answers.values():
        lost = [server for server, of in enumerate(answer["peers"] or ()) if answers[server]["generation"] != of]
        if lost:
            return LookupError(
                f"servers {lost} have no rows of a tensor that was on all of them: they were restarted since, or "
                "another trainer deletes it this moment. Find out which; delete the tensor, create it again and load "
                "what was saved"
            )
    return None


def _undo(world: World, server: int, generation: int, why: str) -> None:
    try:
        world.call(server, "glt.tensor.undo", generation, why).result()
    except GltError as error:  # the server is lost, and what it made with it
        logger.info("while undoing the creation of a tensor: %s", error)
