"""Ranks of a partitioning run that are threads of one process: many small runs in little time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from glt.partition.sharded import run
from glt.partition.sharded.exchange import Exchange


class _Board:
    def __init__(self, world_size):
        self.sent = [([], False)] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)


class LocalExchange(Exchange):
    """Everything of an exchange but the wire."""

    def __init__(self, board, rank):
        self.rank, self.world_size, self.round_bytes = rank, board.barrier.parties, 1 << 20
        self.stage, self._role = "the beginning", "partitioning rank"
        self._board = board
        self._is_over = False
        self._peers = []

    def _all_to_all(self, pieces, failed):
        flat = [b"".join(array.reshape(-1).view(np.uint8).tobytes() for array in of_rank) for of_rank in pieces]
        assert len(flat) == self.world_size
        self._board.sent[self.rank] = (flat, failed)
        self._board.barrier.wait()
        received = [np.frombuffer(of_rank[self.rank], np.uint8).copy() for of_rank, _ in self._board.sent]
        fails = [each for _, each in self._board.sent]
        self._board.barrier.wait()
        return received, fails

    def _meet(self):
        pass


def in_ranks(world_size, call):
    """Returns what ``call`` returns, or raises, in each of so many ranks."""
    board = _Board(world_size)

    def caught(rank):
        try:
            return call(LocalExchange(board, rank))
        except Exception as error:
            return error

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(caught, range(world_size)))


def use_threads(monkeypatch):
    """Makes ``partition_distributed(group=exchange)`` use that exchange."""

    def use(exchange, timeout_s, round_bytes):
        exchange.round_bytes = round_bytes
        return exchange

    monkeypatch.setattr(run, "exchange_of", use)
