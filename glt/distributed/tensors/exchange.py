"""How the rows of a distributed tensor travel between a trainer and the servers that keep them, their owners."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy, pooled_empty
from glt.distributed.tensors.spec import Placement, Portion, RowIds, TensorSpec
from glt.distributed.tensors.store import Rows
from glt.errors import PeerLost

if TYPE_CHECKING:
    from glt.distributed.context import World

logger = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20  # of rows in one request or answer
_MOST_PIECE_ROWS = 1 << 20  # their numbers take memory, too
_MOST_IN_FLIGHT = 4  # requests to one owner that are not answered


class ChangeSequence:
    """The changes that one handle has sent to one owner, numbered from 1. The owner knows the tensor by ``generation``
    and the sequence by ``id``; ``unanswered`` are replies to the last changes."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.id = secrets.token_hex(8)
        self.num_sent = 0
        self.unanswered: deque[Future[Any]] = deque()


class Exchange:
    """Asks the owners of rows, in pieces, all owners at a time, for one handle of a tensor. Each owner makes the
    handle's changes in the order in which they were asked for, and its reads after them."""

    def __init__(self, world: World, placement: Placement, spec: TensorSpec, generations: Sequence[int]) -> None:
        self._world, self._placement, self._spec = world, placement, spec
        self.sequences = [ChangeSequence(generation) for generation in generations]
        self._piece_rows = min(_MOST_PIECE_ROWS, max(1, PIECE_BYTES // max(spec.row_bytes, 1)))
        self._block_rows = self._piece_rows * len(generations)
        self._sending = threading.Lock()  # changes are sent in the order of their numbers
        self._lock = threading.Lock()  # of what follows; not held while something is sent
        self._pending: dict[Future[None], None] = {}  # changes under way, or failed since the last flush; in order

    def read(self, ids: RowIds) -> Tensor:
        shape = (len(ids), *self._spec.row_shape)
        out: Tensor | None = None
        unfinished: deque[Callable[[], Any]] = deque()
        for at, portion in self._pieces(ids):
            sequence = self.sequences[portion.server]
            rows, done = _sent(portion.rows), (sequence.id, sequence.num_sent)
            request = (portion.server, "glt.tensor.read", sequence.generation, rows, *done)
            if len(portion.rows) == len(ids) and isinstance(portion.positions, range):
                return self._world.call(*request).result()  # all rows, in order
            if out is None:
                out = pooled_empty(shape, self._spec.torch_dtype)
            if len(unfinished) >= _MOST_IN_FLIGHT * len(self.sequences):
                unfinished.popleft()()
            unfinished.append(self._begin_read(request, out[at:], portion.positions))
        for finish in unfinished:
            finish()
        return torch.empty(shape, dtype=self._spec.torch_dtype) if out is None else out

    def _begin_read(self, request: Any, out: Tensor, positions: RowIds) -> Callable[[], Any]:
        """Asks for rows of ``out``; returns what waits for them."""
        if isinstance(positions, range):
            return self._world.call_into(out[positions.start : positions.stop], *request).result
        reply = self._world.call(*request)
        return lambda: _core.gather_rows(
            as_numpy(reply.result()), None, as_numpy(out), None, positions, torch.get_num_threads()
        )

    def change(self, kind: str, ids: RowIds, values: Tensor) -> Future[None]:
        """Writes or adds (``kind``) values ``[n, ...]``, which may be changed when this returns: when all but the last
        few pieces are acknowledged. The future is done when all are, and raises the first error."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        with self._lock:
            self._pending[done] = None
        done.add_done_callback(self._forget_success)
        replies: list[Future[Any]] = []
        error: BaseException | None = None
        try:
            for at, portion in self._pieces(ids):
                replies.append(self._send(kind, portion, _values_of(portion.positions, values[at:])))
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):  # Ctrl-C
                raise
        finally:
            _complete(done, replies, error)
        return done

    def _send(self, kind: str, portion: Portion, values: Tensor) -> Future[Any]:
        server = portion.server
        with self._sending:
            while len((sequence := self.sequences[server]).unanswered) >= _MOST_IN_FLIGHT:
                sequence.unanswered.popleft().exception()  # waits; the future of that change raises it
            number = sequence.num_sent + 1
            reply: Future[Any] = self._world.call(
                server, "glt.tensor.change", sequence.generation, kind, _sent(portion.rows), values, sequence.id, number
            )
            sequence.num_sent = number  # only now: a change that was not sent is not waited for
            sequence.unanswered.append(reply)
        reply.add_done_callback(lambda each: self._renew(server, sequence, each.exception()))
        return reply

    def _renew(self, server: int, sequence: ChangeSequence, error: BaseException | None) -> None:
        """Begins a new sequence after a loss: it is unknown which changes were made, and later ones must not wait."""
        if isinstance(error, PeerLost) and self.sequences[server] is sequence:
            self.sequences[server] = ChangeSequence(sequence.generation)

    def _forget_success(self, done: Future[None]) -> None:
        if done.exception() is None:
            with self._lock:
                self._pending.pop(done, None)

    def wait(self, done: Future[None]) -> None:
        done.exception()
        with self._lock:
            self._pending.pop(done, None)
        done.result()

    def flush(self) -> None:
        """Waits until all changes are acknowledged; raises the error of the first that was not waited for."""
        with self._lock:
            pending = list(self._pending)
        errors = [error for each in pending if (error := each.exception()) is not None]
        with self._lock:
            for each in pending:
                self._pending.pop(each, None)
        if errors:
            raise errors[0]

    def _pieces(self, ids: RowIds) -> Iterator[tuple[int, Portion]]:
        """Cuts rows into requests, the owners taking turns. Yields each with the position that its own count from."""
        is_whole = isinstance(ids, range) and self._placement.book.has_ranges
        step = max(1, len(ids)) if is_whole else self._block_rows
        for at in range(0, len(ids), step):
            by_owner: dict[int, list[Portion]] = {}
            for server, rows, positions in self._placement.portions(ids[at : at + step]):
                by_owner.setdefault(server, []).extend(
                    Portion(server, rows[i : i + self._piece_rows], positions[i : i + self._piece_rows])
                    for i in range(0, len(rows), self._piece_rows)
                )
            for portion in chain.from_iterable(zip_longest(*by_owner.values())):
                if portion is not None:
                    yield at, portion


def _sent(rows: RowIds) -> Rows:
    return (rows.start, len(rows)) if isinstance(rows, range) else torch.from_numpy(rows)


def _values_of(positions: RowIds, values: Tensor) -> Tensor:
    if isinstance(positions, range):
        return values[positions.start : positions.stop]
    out = pooled_empty((len(positions), *values.shape[1:]), values.dtype)
    ids = positions.astype(np.int64)
    _core.gather_rows(as_numpy(values), ids, as_numpy(out), None, None, torch.get_num_threads())
    return out


def _complete(done: Future[None], replies: Sequence[Future[Any]], error: BaseException | None) -> None:
    """Ends ``done`` when all replies are there: with ``error``, else with that of the first reply that has one."""
    lock, num_open = threading.Lock(), len(replies) + 1

    def count(_: Any = None) -> None:
        nonlocal num_open
        with lock:
            num_open -= 1
            if num_open:
                return
        failed = error or next((found for each in replies if (found := each.exception()) is not None), None)
        if failed is None:
            done.set_result(None)
        else:
            done.set_exception(failed)

    for each in replies:
        each.add_done_callback(count)
    count()


# How a tensor is created or found on all servers, or on none.


def open_everywhere(world: World, call: str, *args: Any) -> list[dict[str, Any]]:
    """Calls ``'glt.tensor.create'`` or ``'glt.tensor.open'`` on all servers, and returns their answers. Where one
    fails, raises its error, and the others forget what they made. Raises LookupError if some servers have lost a tensor
    that all had."""
    replies = [world.call(server, call, *args) for server in range(world.num_servers)]
    failed = next((error for reply in replies if (error := reply.exception()) is not None), None)
    answers = {server: reply.result() for server, reply in enumerate(replies) if reply.exception() is None}
    failed = failed or _loss(answers)
    if failed is not None:
        for server, answer in answers.items():
            if answer.get("is_new"):
                undone = world.call(server, "glt.tensor.delete", answer["generation"], str(failed)).exception()
                if undone is not None:  # the server is lost, and what it made with it
                    logger.info("while undoing the creation of a tensor: %s", undone)
        raise failed
    generations = [answer["generation"] for answer in answers.values()]
    if any(answer["peers"] is None for answer in answers.values()):
        replies = [world.call(server, "glt.tensor.confirm", own, generations) for server, own in enumerate(generations)]
        for reply in replies:
            reply.result()
    return list(answers.values())


def _loss(answers: dict[int, Any]) -> LookupError | None:
    """Rows are lost where a server has another tensor than the others' was made with: first values in their place would
    change data silently."""
    for answer in answers.values():
        lost = [server for server, of in enumerate(answer["peers"] or ()) if answers[server]["generation"] != of]
        if lost:
            return LookupError(
                f"servers {lost} have no rows of a tensor that was on all of them: they were restarted since, or "
                "another trainer deletes it this moment. Find out which; delete the tensor, create it again and load "
                "what was saved"
            )
    return None
