"""Distributed tensors: reads and writes of rows beside plain memory, and over a server beside a plain socket.

Claims: what a server does for a read (whole rows though others write, numbers checked) takes no longer than
torch.index_select, which does none of that, and a write no longer than index_copy_; over a server, large reads and
writes move about half as many bytes a second as a plain socket that does nothing else, consecutive rows more.

Method: rows of 512 bytes at random. In memory: one core, 106 thousand rows of 1 GiB, contestants take turns on the same
ids, results compared first; glt's table asks for large pages, torch's does not. "copy" is one memcpy of as many bytes.
Over a server: a trainer and a server on this machine, two processes, one tensor of 256 MiB, 64 MiB of it at a time;
"socket" sends as many bytes over loopback TCP from process to process, into a reused buffer, with one byte back per
round.

    python -m benchmarks.bench_dist_tensor [--rounds 7] [--toy]
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from benchmarks._harness import Report, Timing, arguments, interleave, pinned, require
from benchmarks.bench_distributed import start_method
from benchmarks.partitioned import client_of_one_server
from glt.distributed.job.worlds import ServedWorld
from glt.distributed.server.api import require_client
from glt.distributed.tensors.store import Shard
from glt.distributed.tensors.tensor import DistTensor

WIDTH = 128  # floats: 512 bytes
_CHUNK_BYTES = 1 << 20


def in_memory(report: Report, num_rows: int, num_ids: int, rounds: int) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.empty(num_rows, WIDTH).uniform_(generator=generator)
    kept = Shard(table.clone())
    ids = [torch.randint(num_rows, (num_ids,), generator=generator) for _ in range(4)]
    values, out = torch.rand(num_ids, WIDTH, generator=generator), torch.zeros(num_ids, WIDTH)
    require(torch.equal(kept.read(ids[0]), table[ids[0]]), "the shard reads wrong rows")

    def each(work: Callable[[torch.Tensor], Any]) -> Callable[[], float]:
        def run() -> float:
            for some in ids:
                work(some)
            return float(len(ids) * values.nbytes)

        return run

    reads = {
        "glt Shard.read": each(kept.read),
        "torch.index_select, reused": each(lambda some: torch.index_select(table, 0, some, out=out)),
        "torch.index_select, fresh": each(lambda some: torch.index_select(table, 0, some)),
    }
    writes = {
        "glt Shard.write": each(lambda some: kept.write(some, values)),
        "torch index_copy_": each(lambda some: table.index_copy_(0, some, values)),
    }
    adds = {
        "glt Shard.add": each(lambda some: kept.add(some, values)),
        "torch index_add_": each(lambda some: table.index_add_(0, some, values)),
    }
    copy = {"copy": each(lambda some: out.copy_(values))}
    with pinned():
        for kind, contestants in (("read", reads | copy), ("write", writes | copy), ("add", adds)):
            add_rows(report, f"memory, {kind}", interleave(contestants, rounds), list(contestants)[1])


def add_rows(report: Report, what: str, timings: dict[str, Timing], base: str) -> None:
    for name, timing in timings.items():
        report.add(
            what=what, name=name, gb_per_s=timing.rate() / 1e9, best=timing.best_rate() / 1e9,
            over_base=timing.rate() / timings[base].rate(), base=base,
        )  # fmt: skip


def pump(port: int, sends: bool) -> None:
    """The other end of the plain socket: sends or takes as many bytes as it is told, until it is told 0."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as line:
        while num_bytes := int.from_bytes(_exactly(line, 8), "little"):
            if sends:
                while num_bytes > 0:
                    num_bytes -= line.send(buffer[: min(len(buffer), num_bytes)])
            else:
                while num_bytes > 0:
                    num_bytes -= line.recv_into(buffer[: min(len(buffer), num_bytes)])
                line.sendall(b"x")


def _exactly(line: socket.socket, num_bytes: int) -> bytes:
    found = b""
    while len(found) < num_bytes and (more := line.recv(num_bytes - len(found))):
        found += more
    return found


def over_a_server(report: Report, num_rows: int, num_ids: int, rounds: int) -> None:
    context = start_method()
    with client_of_one_server(), socket.create_server(("127.0.0.1", 0)) as listener:
        pumps, lines = [], []
        for sends in (True, False):
            pumps.append(context.Process(target=pump, args=(listener.getsockname()[1], sends), daemon=True))
            pumps[-1].start()
            lines.append(listener.accept()[0])
        try:
            timings = transfer(lines, num_rows, num_ids, rounds)
        finally:
            for line, process in zip(lines, pumps, strict=True):
                line.sendall((0).to_bytes(8, "little"))
                line.close()
                process.join(30)
    for kind in ("read", "write"):
        some = {name: timing for name, timing in timings.items() if kind in name}
        add_rows(report, f"server, {kind}", some, f"socket, {kind}")


def transfer(lines: list[socket.socket], num_rows: int, num_ids: int, rounds: int) -> dict[str, Timing]:
    world = ServedWorld(require_client())
    tensor = DistTensor((num_rows, WIDTH), init_func=("uniform", 0, 1), world=world)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(num_rows, generator=generator)[:num_ids]
    values = torch.rand(num_ids, WIDTH, generator=generator)
    tensor[ids] = values
    require(torch.equal(tensor[ids], values), "the tensor reads what was not written")
    buffer = memoryview(bytearray(values.nbytes))

    def take() -> float:
        lines[0].sendall(len(buffer).to_bytes(8, "little"))
        got = 0
        while got < len(buffer):
            got += lines[0].recv_into(buffer[got:])
        return float(len(buffer))

    def give() -> float:
        lines[1].sendall(len(buffer).to_bytes(8, "little"))
        lines[1].sendall(buffer)
        _exactly(lines[1], 1)
        return float(len(buffer))

    def done(work: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            work()
            return float(values.nbytes)

        return run

    return interleave({
        "socket, read": take,
        "glt tensor[ids], read": done(lambda: tensor[ids]),
        "glt tensor[a:b], read": done(lambda: tensor[:num_ids]),
        "socket, write": give,
        "glt tensor[ids] = , write": done(lambda: tensor.__setitem__(ids, values)),
        "glt tensor[a:b] = , write": done(lambda: tensor.__setitem__(slice(num_ids), values)),
        "glt add(ids), write": done(lambda: tensor.add(ids, values)),
    }, rounds)  # fmt: skip


def main() -> None:
    options = arguments(__doc__, rounds=7)
    report = Report("dist_tensor", options.toy)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    in_memory(report, *((1 << 12, 1000) if options.toy else (1 << 21, 106_000)), options.rounds)
    over_a_server(report, *((1 << 12, 3000) if options.toy else (1 << 19, 1 << 17)), options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
