"""Which sampling processes have malloc keep what was freed: none that may register memory with CUDA.

Those need large tensors to have their pages for themselves.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict, fields
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch

from glt.distributed.engine import worker
from glt.distributed.engine.worker import WorkerSpec
from glt.distributed.server import pool_worker
from glt.distributed.server.pool import PoolWorkerSpec


class Left(Exception):
    """In the place of the end of the process."""


@pytest.fixture
def keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, str, int], bool]:
    """Runs the program of a sampling process, whose spec is in the socket, to where it would make its sampler."""

    def run(program: ModuleType, sampler: str, fd: int) -> bool:
        kept: list[bool] = []

        def leave(code: int) -> NoReturn:
            raise Left

        def no_further(its_end: socket.socket | Connection, _: Any) -> NoReturn:
            its_end.close()
            raise ValueError("no further")

        for name, instead in (
            ("keep_freed_memory", lambda: kept.append(True)),
            ("leave", leave),
            (sampler, no_further),
        ):
            monkeypatch.setattr(program, name, instead)
        with pytest.raises(Left):
            program.main(fd)
        return bool(kept)

    # What these programs ask of their process is not to be asked of that of the tests.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    for name in ("allow_descriptors", "write_logs"):
        monkeypatch.setattr(pool_worker, name, lambda *_: None)
    return run


@pytest.mark.parametrize(("device", "keeps"), [("cpu", True), ("host", True), ("cuda:0", False), ("cuda:1", False)])
def test_workers_of_a_trainer(keeps_freed_memory: Callable[..., bool], device: str, keeps: bool) -> None:
    spec = {**dict.fromkeys(each.name for each in fields(WorkerSpec)), "device": device}
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as connection:
        connection.send_bytes(json.dumps({"spec": spec}).encode())
        assert keeps_freed_memory(worker, "Worker", theirs.detach()) == keeps


@pytest.mark.parametrize(
    ("graph_mode", "missing", "keeps"),
    [("CPU", None, True), ("ZERO_COPY", None, False), ("CUDA", None, False), ("ZERO_COPY", "there is no GPU", True)],
)
def test_samplers_of_a_server(
    keeps_freed_memory: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, graph_mode: str, missing: str | None,
    keeps: bool,
) -> None:  # fmt: skip
    """Whatever GPU a loader will ask for."""
    monkeypatch.setattr(pool_worker, "missing_for_cuda", lambda: missing)
    spec = PoolWorkerSpec(0, 0, {"graph_mode": graph_mode, "device": "host"}, 1, 1, 1.0, 20, "text")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(json.dumps({"spec": asdict(spec)}).encode())
        assert keeps_freed_memory(pool_worker, "PoolWorker", theirs.detach()) == keeps
