"""Batches from one process to another through shared memory.

Claim: 10.8 MB messages, with a consumer that reads them, at least at the rate of GraphLearn-for-PyTorch's ring
(recorded of it: 10.9 GB/s read, 17.3 unread, from a warm source); 54 KB messages in under 40 us.

Method: a producer process sends a batch's tensors (128 floats per node, edges) that it holds in memory; this process
receives them and drops each message before the next. "read" sums every byte; "unread" does not look. "stream" is the
time per message when they come as fast as they can. Latency is from the call of send to the return of receive, one
message at a time with both sides asleep before it, on the clock that both processes share; "over_pipe" is how much
longer that takes than a byte through a pipe: the wake-up is the machine's, and no channel that sleeps can beat it; the
rest is code and data that half a millisecond of sleep left cold. The producer and the consumer may use any core.
torch.multiprocessing's queue is measured beside it; it has to make shared memory for each message. So is GLT's ring,
of the same size, where graphlearn_torch can be imported. Contents are compared before anything is timed.

    python -m benchmarks.bench_channel [--rounds 5] [--toy]
"""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp

from benchmarks._harness import Report, Timing, arguments, find_peers, require
from glt.channel import ShmChannel

DEADLINE_S = 60
RING_SIZE = "256MB"
SIZES = {"10.8 MB": 20_000, "54 KB": 100}  # nodes of a message


def batch_of(num_nodes: int) -> dict[str, torch.Tensor]:
    """About 540 bytes per node."""
    generator = torch.Generator().manual_seed(num_nodes)
    x = torch.empty(num_nodes, 128).uniform_(generator=generator)
    return {"x": x, "edge_index": torch.randint(num_nodes, (2, 7 * num_nodes // 4), generator=generator)}


class Queue:
    """torch.multiprocessing.Queue with the interface of a channel."""

    def __init__(self) -> None:
        self.queue = mp.get_context("spawn").Queue(4)

    def send(self, tensors: dict[str, torch.Tensor]) -> None:
        self.queue.put({name: tensor.clone() for name, tensor in tensors.items()}, timeout=DEADLINE_S)

    def receive(self) -> dict[str, torch.Tensor]:
        return self.queue.get(timeout=DEADLINE_S)


class Ring:
    """glt's channel with the same interface."""

    def __init__(self) -> None:
        self.channel = ShmChannel(RING_SIZE)

    def send(self, tensors: dict[str, torch.Tensor]) -> None:
        self.channel.send(tensors, timeout_s=DEADLINE_S)

    def receive(self) -> dict[str, torch.Tensor]:
        return self.channel.receive(DEADLINE_S).tensors


class PeerRing:
    """GLT's channel with the same interface."""

    def __init__(self) -> None:
        import graphlearn_torch

        self.channel = graphlearn_torch.channel.ShmChannel(capacity=128, shm_size=RING_SIZE)

    def send(self, tensors: dict[str, torch.Tensor]) -> None:
        self.channel.send(tensors)

    def receive(self) -> dict[str, torch.Tensor]:
        return self.channel.recv(timeout_ms=1000 * DEADLINE_S)


class Pipe:
    """One byte per message, whatever is sent: the least that a consumer can be woken with."""

    def __init__(self) -> None:
        self.reader, self.writer = mp.get_context("spawn").Pipe(duplex=False)

    def send(self, tensors: dict[str, torch.Tensor]) -> None:
        os.write(self.writer.fileno(), b"x")

    def receive(self) -> dict[str, torch.Tensor]:
        os.read(self.reader.fileno(), 1)
        return {}


def produce(channels: dict[str, Any], commands: Connection) -> None:
    """Sends as many messages as it is told to; before each, if told so, it waits until the consumer asks for it."""
    torch.set_num_threads(1)
    batches = {size: batch_of(num_nodes) for size, num_nodes in SIZES.items()}
    while (command := commands.recv()) is not None:
        name, size, num_messages, one_by_one = command
        for _ in range(num_messages):
            if one_by_one:
                commands.recv()
                time.sleep(0.0005)  # not synchronisation: long enough for the consumer to fall asleep in receive()
            start = time.perf_counter()
            channels[name].send(batches[size])
            if one_by_one:
                commands.send(start)


def throughput(channel: Any, commands: Connection, name: str, size: str, num_messages: int, read: bool) -> Timing:
    """One round: ``num_messages`` messages, as fast as they come. Work is in bytes."""
    commands.send((name, size, num_messages + 1, False))
    channel.receive()  # under way from here
    timing, num_bytes, start = Timing(), 0, time.perf_counter()
    for _ in range(num_messages):
        message = channel.receive()
        num_bytes += sum(tensor.nbytes for tensor in message.values())
        if read:
            for tensor in message.values():
                tensor.view(torch.int64).sum()
        del message
    timing.seconds.append(time.perf_counter() - start)
    timing.work.append(num_bytes)
    return timing


def latencies(channel: Any, commands: Connection, name: str, size: str, num_messages: int) -> list[float]:
    """Seconds from send to receive, of each message."""
    seconds = []
    commands.send((name, size, num_messages, True))
    for _ in range(num_messages):
        commands.send("next")
        message = channel.receive()
        end = time.perf_counter()
        del message
        seconds.append(end - commands.recv())
    return seconds


def check(channel: Any, commands: Connection, name: str) -> None:
    for size, num_nodes in SIZES.items():
        commands.send((name, size, 1, False))
        message, sent = channel.receive(), batch_of(num_nodes)
        same = message.keys() == sent.keys() and all(torch.equal(message[key], sent[key]) for key in sent)
        require(same, f"{name}: a message of {size} arrived changed")


def measure(report: Report, rounds: int, num_messages: int) -> None:
    context = mp.get_context("spawn")
    channels: dict[str, Any] = {"glt": Ring(), "torch.multiprocessing": Queue()}
    if find_peers("graphlearn_torch"):
        channels["graphlearn_torch"] = PeerRing()
    commands, theirs = context.Pipe()
    pipe = Pipe()
    producer = context.Process(target=produce, args=({**channels, "pipe": pipe}, theirs), name="producer")
    producer.start()
    theirs.close()  # so that the producer's death ends the pipe
    try:
        rates: dict[tuple[str, bool], list[float]] = {}
        streams: dict[str, list[float]] = {}
        waits: dict[str, list[float]] = {}
        for name, channel in channels.items():
            check(channel, commands, name)
            throughput(channel, commands, name, "10.8 MB", num_messages, True)
        for _ in range(rounds):
            for name, channel in channels.items():
                few = max(1, num_messages // 8) if name == "torch.multiprocessing" else num_messages  # much slower
                for read in (True, False):
                    rate = throughput(channel, commands, name, "10.8 MB", few, read).rate()
                    rates.setdefault((name, read), []).append(rate)
                stream = throughput(channel, commands, name, "54 KB", 10 * few, True)
                streams.setdefault(name, []).append(stream.seconds[0] / (10 * few))
                waits.setdefault(name, []).extend(latencies(channel, commands, name, "54 KB", num_messages))
            waits.setdefault("pipe", []).extend(latencies(pipe, commands, "pipe", "54 KB", num_messages))
    finally:
        with contextlib.suppress(BrokenPipeError):
            commands.send(None)
        producer.join(DEADLINE_S)
        if producer.exitcode is None:
            producer.kill()
            producer.join()
    for name in channels:
        low, mid, high = np.percentile(waits[name], [25, 50, 75]) * 1e6
        row: dict[str, Any] = {"channel": name, "read_gb_per_s": float(np.median(rates[name, True])) / 1e9}
        row |= {"unread_gb_per_s": float(np.median(rates[name, False])) / 1e9, "latency_54kb_us": float(mid)}
        row["over_pipe_us"] = float(mid - np.median(waits["pipe"]) * 1e6)
        row |= {"quartiles": f"{low:.3g}-{high:.3g}", "stream_54kb_us": float(np.median(streams[name])) * 1e6}
        report.add(**row)


def main() -> None:
    options = arguments(__doc__, rounds=5)
    report = Report("channel", options.toy)
    torch.set_num_threads(1)
    measure(report, options.rounds, 4 if options.toy else 200)
    report.finish()


if __name__ == "__main__":
    main()
