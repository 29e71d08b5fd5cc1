"""What grows with the number of ranks and partitions: the hub on rank 0, manifests, books, and what a host opens.

Claims: none; these are the figures of docs/scale.md.

Method: ``hub``: a process is rank 0 of a Group, another stands in for all other ranks, each with a connection of its
own, over loopback; both share two cores with the rest of the machine. ``meet_s`` is from the first connection until
all know all, ``exchange_s`` one exchange of what a sampling process says of itself (``said_bytes``); times with ``cpu``
are of rank 0 alone, ``done`` is the end, until all know that all are done. A loader makes some five exchanges.
``partitions``: a graph of 40,000 nodes is written into so many; ``manifest_bytes``, seconds to read it, to open a
partition, and files that there are. ``book``: owners and rows of ten million nodes.

    python -m benchmarks.bench_limits [--toy]
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

import glt
from benchmarks._harness import Report, arguments
from benchmarks.partitioned import scratch_dir
from glt.data.synthetic import synthetic_graph
from glt.distributed.wire.group import Group
from glt.distributed.wire.handshake import connect, introduce
from glt.distributed.wire.threads import wait_for
from glt.distributed.wire.transport import Peer
from glt.testing.cluster import free_port

DEADLINE_S = 120.0


def introduction(rank: int) -> dict[str, Any]:
    """What a sampling process says of itself: as `SamplerTransport.introduction`."""
    peer = Peer(f"trainer-{rank}/worker-0", rank, 0, f"node{rank:04}.cluster.local", 100_000 + rank, rank)
    return {
        "peer": peer.to_json(),
        "local": f"glt-{rank:032x}",
        "address": [f"10.0.{rank // 256}.{rank % 256}", 40_000],
    }


def hub(size: int, port: int, pipe: Pipe) -> None:
    context = glt.distributed.init_worker_group(size, 0, "bench")
    began_s, cpu_s = time.perf_counter(), time.process_time()
    group = Group(context, "localhost", port, DEADLINE_S)
    pipe.send("listens")
    group.exchange("met", None)
    met_s, met_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    began_s, cpu_s = time.perf_counter(), time.process_time()
    group.exchange("samplers", introduction(0))
    group.exchange("heard", None)  # after which all have all
    exchange_s, exchange_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    cpu_s = time.process_time()
    group.finish(DEADLINE_S)  # waits until all others are done
    done_cpu_s = time.process_time() - cpu_s
    pipe.send((met_s, met_cpu_s, exchange_s, exchange_cpu_s, done_cpu_s, peak_bytes()))
    pipe.recv()
    os._exit(0)  # the stand-ins are gone: nothing to say goodbye to


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def stand_in(rank: int, size: int, port: int) -> None:
    """One of the other ranks."""
    hello = introduce("trainer", group=0, rank=rank, size=size)
    connection, _ = await connect(("127.0.0.1", port), "the hub", hello, DEADLINE_S)
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    connection.start(lambda frame: said.put_nowait(frame.value), lambda error: None, max_data_bytes=0)
    for topic, value in (("met", None), ("samplers", introduction(rank)), ("heard", None)):
        connection.send({"topic": topic, "value": value})
        while (await asyncio.wait_for(said.get(), DEADLINE_S)).get("topic") != topic:
            pass
    connection.send({"done": True})
    done: set[int] = set()
    while len(done) < size:
        done.update((await asyncio.wait_for(said.get(), DEADLINE_S)).get("done", []))


async def stand_ins(size: int, port: int) -> None:
    gate = asyncio.Semaphore(64)  # connections that are being made

    async def one(rank: int) -> None:
        async with gate:
            await asyncio.sleep(0)
        await stand_in(rank, size, port)

    await asyncio.gather(*(one(rank) for rank in range(1, size)))


def measure_hub(report: Report, size: int) -> None:
    context, port = multiprocessing.get_context("spawn"), free_port()
    mine, theirs = context.Pipe()
    process = context.Process(target=hub, args=(size, port, theirs))
    process.start()
    try:
        if not mine.poll(DEADLINE_S):
            raise TimeoutError("rank 0 does not listen")
        mine.recv()
        wait_for(stand_ins(size, port), DEADLINE_S)
        met_s, met_cpu_s, exchange_s, exchange_cpu_s, done_cpu_s, num_bytes = mine.recv()
        mine.send("end")
    finally:
        process.join(10)
        process.kill()
    said = len(str(introduction(1)))
    report.add(
        what="hub",
        ranks=size,
        meet_s=met_s,
        meet_cpu_s=met_cpu_s,
        exchange_s=exchange_s,
        exchange_cpu_s=exchange_cpu_s,
        done_cpu_s=done_cpu_s,
        said_bytes=said,
        sent_bytes=said * size * size,
        peak_bytes=num_bytes,
    )


def measure_partitions(report: Report, num_parts: int, num_nodes: int) -> None:
    task = synthetic_graph(num_nodes, num_features=8)
    with scratch_dir() as directory:
        began_s = time.perf_counter()
        path = directory / "parts"
        glt.partition.RandomPartitioner(path, num_parts, num_nodes, task.edge_index, node_feat=task.x).partition()
        wrote_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        manifest = glt.partition.Manifest.read(path)
        read_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        glt.partition.load_partition(path, num_parts - 1)
        open_s = time.perf_counter() - began_s
        size = (path / "manifest.json").stat().st_size
    report.add(
        what="partitions", parts=num_parts, wrote_s=wrote_s, manifest_bytes=size, files=len(manifest.files),
        read_manifest_s=read_s, open_s=open_s,
    )  # fmt: skip


def measure_book(report: Report, num_nodes: int, num_parts: int) -> None:
    rng = np.random.default_rng(0)
    owner = rng.integers(0, num_parts, num_nodes).astype(np.min_scalar_type(num_parts - 1))
    book = glt.partition.PartitionBook.of_arrays(owner, np.zeros(num_nodes, np.uint32), num_parts)
    ids = rng.integers(0, num_nodes, 100_000)
    book.group(ids)
    began_s = time.perf_counter()
    for _ in range(20):
        book.group(ids)
    per_node = owner.itemsize + 4
    report.add(
        what="book",
        parts=num_parts,
        bytes_per_node=per_node,
        group_ns_per_id=(time.perf_counter() - began_s) / 2e6 * 1e9,
    )


def main() -> None:
    options = arguments(__doc__, rounds=1)
    report = Report("limits", options.toy)
    print("glt: what grows with ranks and partitions")
    with contextlib.suppress(ValueError):  # as many as the machine lets it open
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for size in (4,) if options.toy else (16, 64, 256, 1000):
        measure_hub(report, size)
    for num_parts in (2,) if options.toy else (2, 64, 256, 1024):
        measure_partitions(report, num_parts, 1000 if options.toy else 40_000)
    for num_parts in (2,) if options.toy else (2, 256, 1024):
        measure_book(report, 1000 if options.toy else 10_000_000, num_parts)
    report.finish()


if __name__ == "__main__":
    main()
