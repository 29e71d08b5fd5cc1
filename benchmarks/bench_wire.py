"""Calls between two processes over loopback, on connections of glt and on others, plain and with TLS.

Claims: connections of glt cost no more CPU per byte than a blocking socket, and less than asyncio's own transports,
which copy what the kernel has no room for (before Python 3.12, and with TLS always) and take a change of threads for a
call from a thread; so glt's read and write by themselves on the loop's selectors.

Method: a server process answers, this one calls, one call after the other. Contestants take turns round by round. Empty
calls: round trips, and CPU of both processes per call. Replies and requests of 22 MB, a batch of the graph S: GB/s, and
CPU seconds of each process per GB, the truer measure on a busy machine. "in a task": the caller is a task on the loop
that reads, as samplers are; else a thread that waits. All but gRPC and ZeroMQ, which have their own memory, receive
into the same pool of buffers. Nobody looks at what came. `over glt`: median, over the rounds, of the CPU of both
processes per GB over glt's in the same round. An echo is compared before anything is timed.

    python -m benchmarks.bench_wire [--rounds 7] [--toy]
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import resource
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
import torch

from benchmarks._harness import Report, arguments, collection_off, require
from benchmarks.wire_peers import CLIENTS, ECHO, EMPTY, HOST, REPLY, REQUEST, SERVERS, contestants, payload

BATCH_BYTES = 22_000_000
_END_S = 10


@dataclass
class Sizes:
    num_bytes: int
    num_calls: int  # empty ones per round
    num_batches: int  # each way, per round


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(commands: Pipe, num_bytes: int) -> None:
    """Starts the servers that it is told to, and says how much CPU time it has used."""
    torch.set_num_threads(1)
    data = payload(num_bytes)
    with contextlib.suppress(EOFError):
        while True:
            asked = commands.recv()
            commands.send(cpu_seconds() if asked is None else SERVERS[asked[0]](data, asked[1]))


class Server:
    """The other process."""

    def __init__(self, num_bytes: int) -> None:
        context = mp.get_context("spawn")
        self._commands, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, num_bytes), name="server", daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, what: tuple[str, str | None] | None) -> Any:
        self._commands.send(what)
        return self._commands.recv()

    def end(self) -> None:
        self._process.kill()  # threads of peers wait in it for ever
        self._process.join(_END_S)


def measure(report: Report, sizes: Sizes, rounds: int, folder: str | None) -> None:
    names, data, server = contestants(folder is not None), payload(sizes.num_bytes), Server(sizes.num_bytes)
    clients: dict[str, Any] = {}
    try:
        for name in names:
            port = server.ask((name.split(",")[0], folder))
            clients[name] = CLIENTS[name](port, data, folder)
            require(torch.equal(clients[name].call(ECHO), data), f"{name}: a call arrived changed")
        found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
        with collection_off():
            for number in range(rounds + 1):
                for name, client in clients.items():
                    one_round(client, server, sizes, found[name] if number else defaultdict(list))
        for name in names:
            report.add(**row_of(name, folder is not None, found[name], found["glt"]))
    finally:
        for client in clients.values():
            client.close()
        server.end()


def one_round(client: Any, server: Server, sizes: Sizes, found: dict[str, list[float]]) -> None:
    for what, kind, count in (
        ("empty", EMPTY, sizes.num_calls),
        ("reply", REPLY, sizes.num_batches),
        ("request", REQUEST, sizes.num_batches),
    ):
        client.run(kind, 1)  # awake
        before, theirs, start = cpu_seconds(), server.ask(None), time.perf_counter()
        seconds = client.run(kind, count)
        took, mine, others = time.perf_counter() - start, cpu_seconds() - before, server.ask(None) - theirs
        if kind == EMPTY:
            found["trips"] += seconds
            found["empty"].append((mine + others) / count)
        else:
            num_gb = count * sizes.num_bytes / 1e9
            found[what].append(num_gb / took)
            found[f"{what}, client"].append(mine / num_gb)
            found[f"{what}, server"].append(others / num_gb)


def row_of(name: str, is_tls: bool, found: dict[str, list[float]], glt: dict[str, list[float]]) -> dict[str, Any]:
    middle, late = np.percentile(found["trips"], [50, 99]) * 1e6
    row: dict[str, Any] = {
        "wire": name, "tls": "yes" if is_tls else "no", "p50_us": float(middle), "p99_us": float(late),
        "cpu_us": float(np.median(found["empty"]) * 1e6),
    }  # fmt: skip
    for what in ("reply", "request"):
        row[f"{what}_gb_per_s"] = float(np.median(found[what]))
        row |= {f"{what}_cpu_{end}": float(np.median(found[f"{what}, {end}"])) for end in ("client", "server")}
        both, base = (np.add(each[f"{what}, client"], each[f"{what}, server"]) for each in (found, glt))
        row[f"{what}_over_glt"] = float(np.median(both / base))
    return row


@contextlib.contextmanager
def certificate() -> Iterator[str | None]:
    """The folder of a new certificate of this host; None, in words, where openssl is not."""
    if shutil.which("openssl") is None:
        print("absent: TLS (no openssl, which makes certificates)")
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        words = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={HOST}".split()
        named = ["-addext", f"subjectAltName=DNS:{HOST}", "-keyout", "key.pem", "-out", "cert.pem"]
        subprocess.run(["openssl", *words, *named], cwd=folder, check=True, capture_output=True, timeout=60)
        yield folder


def main() -> None:
    options = arguments(__doc__, rounds=7)
    sizes = Sizes(BATCH_BYTES, 1000, 20)
    if options.toy:
        sizes = Sizes(300_000, 20, 2)
    report = Report("wire", options.toy)
    torch.set_num_threads(1)
    measure(report, sizes, options.rounds, None)
    with certificate() as folder:
        if folder is not None:
            measure(report, sizes, options.rounds, folder)
    report.finish()


if __name__ == "__main__":
    main()
