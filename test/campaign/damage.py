"""Damages files of partitions, one at a time, and reads and samples what is left, unverified; a program, for the part
``damage`` of the campaign, which runs it with sanitizers.

Each try damages the contents of one file, which is mended afterwards. What is read may be wrong, and may raise an
exception; this process must not crash, and a try must not take longer than ``HANG_S``. Prints the number of each try
before it, so that a crash tells which it was: ``--first N --most 1`` repeats try N of a seed.
"""

import argparse
import asyncio
import faulthandler
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import glt
from glt.data.arrays import map_npy
from glt.data.device import HOST, accelerator_of
from glt.distributed.engine.partitions import EdgeDirectory
from glt.distributed.engine.requests import (
    DegreesRequest,
    EarliestRequest,
    HasEdgesRequest,
    InducedRequest,
    OneHopRequest,
    RowsRequest,
)
from glt.distributed.engine.seeds import BatchStart
from glt.partition import RandomPartitioner
from glt.partition.format import files
from glt.sampler.config import SamplingConfig

HANG_S = 60
NUM_NODES, NUM_EDGES, HUB_EDGES = 150, 900, 600
REFUSALS = (ValueError, IndexError, RuntimeError, MemoryError, OverflowError, glt.errors.GltError)


def write_worlds(folder: Path) -> dict[str, Path]:
    """One directory for each set of columns: a hub in each, whose row is long enough for every way to draw from it."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    ends[1, :HUB_EDGES] = 0
    edges, weight = torch.from_numpy(ends), rng.random(NUM_EDGES) * (rng.random(NUM_EDGES) < 0.7)
    tables = {"node_feat": torch.randn(NUM_NODES, 3), "node_label": torch.arange(NUM_NODES)}
    per_edge = {"edge_feat": torch.randn(NUM_EDGES, 2)}
    weighted = {"edge_weight": torch.from_numpy(weight)}
    cached = {"hotness": torch.arange(float(NUM_NODES)), "cache_ratio": 0.2}
    kinds = {
        "weighted": (2, {**tables, **per_edge, **weighted, **cached}),
        "timed": (2, {**tables, "edge_time": torch.from_numpy(rng.integers(0, 50, NUM_EDGES)), "relabel": True}),
        "timed nodes": (2, {**tables, **per_edge, "node_time": torch.from_numpy(rng.integers(0, 50, NUM_NODES))}),
        "whole": (1, {**tables, **weighted}),  # which kernels read in place
    }
    found = {}
    for name, (num_parts, options) in kinds.items():
        found[name] = folder / name
        RandomPartitioner(
            found[name], num_parts, NUM_NODES, edges, edge_assign_strategy="by_dst", **options
        ).partition()
    return found


@contextmanager
def damaged(path: Path, rng: random.Random):
    """Changes some elements of a ``.npy`` file, most often to what points far away; its header stays as a rule."""
    before = path.read_bytes()
    array = np.load(path)
    begin, width, kind = len(before) - array.nbytes, array.dtype.itemsize, rng.randrange(8)
    after = bytearray(before)
    num = array.nbytes // width
    if kind == 0:  # anywhere, the header too
        for _ in range(rng.choice([1, 8, 64])):
            after[rng.randrange(len(after))] = rng.randrange(256)
    elif num:
        first = rng.randrange(num)
        last = min(num, first + rng.choice([1, 1, 2, 16, num]))
        for at in range(begin + first * width, begin + last * width, width):
            same = kind < 3  # one value for all of them
            if at == begin + first * width or not same:
                value = value_of(rng, width, len(array))
            after[at : at + width] = value
    try:
        path.write_bytes(after)
        yield
    finally:
        path.write_bytes(before)


def value_of(rng: random.Random, width: int, num: int) -> bytes:
    bits = 8 * width
    value = rng.choice(
        [
            0, 1, num, num - 1, num + 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 1 << (bits // 2),
            rng.getrandbits(bits), rng.getrandbits(bits) >> rng.randrange(bits), rng.randrange(2 * NUM_EDGES),
        ]
    )  # fmt: skip
    return (value & ((1 << bits) - 1)).to_bytes(width, "little")


class Reader:
    """Loads directories and asks them for all that there is to ask."""

    def __init__(self) -> None:
        self.loop = glt.distributed.ConcurrentEventLoop(1)
        self.refused: Counter[str] = Counter()

    def ask(self, call, *given) -> None:
        try:
            result = call(*given)
            if asyncio.iscoroutine(result):
                self.loop.submit(lambda: result).result()
        except REFUSALS as error:
            self.refused[type(error).__name__] += 1

    def read(self, name: str, path: Path, rng: random.Random) -> None:
        placing = {"graph_mode": "ZERO_COPY", "device": HOST} if name == "whole" else {"graph_mode": "CPU"}
        data = glt.distributed.DistDataset().load(path, 0, verify=False, **placing)
        others = {p: data.map_other(path, p) for p in range(1, data.num_partitions)}
        seeds = torch.tensor([0, *(rng.randrange(NUM_NODES) for _ in range(rng.choice([1, 20])))])
        is_timed = name.startswith("timed")
        counts = rng.choice([(5, 3), (-1, 2), (40, 2), (400,), (0, 5), (16, 16)])
        replace_ = rng.random() < 0.5 and -1 not in counts
        config = SamplingConfig(num_neighbors=(counts,), replace=replace_, with_edge=True)
        if is_timed and rng.random() < 0.8:
            level = "edge" if name == "timed" else "node"
            kind = rng.choice(["uniform", "last"])
            config = replace(config, temporal=kind, time_level=level, disjoint=True)
        elif rng.random() < 0.8:
            config = replace(config, weighted=not is_timed, disjoint=rng.random() < 0.3)
        else:
            config = replace(config, subgraph_type="induced")
        start = BatchStart([(0, seeds)])
        if config.temporal is not None:
            start.seed_time = torch.full((len(seeds),), rng.choice([0, 25, 50]))
        if rng.random() < 0.3 and config.subgraph_type != "induced":
            start.exclusions[0] = torch.zeros(9, dtype=torch.int64), torch.arange(9)
        self.ask(self.batch, data, others, config, start)
        if name == "whole":
            self.ask(self.by_kernels, data, config, start)
        self.ask_partition(data.own, seeds, counts[0], replace_, config)

    def batch(self, data, others, config, start) -> None:
        sampler = glt.distributed.DistNeighborSampler(data, config, None, self.loop, others=others)
        sampled = sampler.sample_here(start, 7)
        sampler.fill_here(sampled, sampled.layout.tensors(torch.empty(sampled.layout.nbytes, dtype=torch.uint8)))

    def by_kernels(self, data, config, start) -> None:
        place = accelerator_of(HOST, "device")
        local = data.local_graph({0: data.own})
        kernels = local.kernels(config, place)
        batch = kernels.begin(config, start.seeds, start.seed_time, 7, start.native_exclusions(1))
        nodes, _ = batch.results(config.disjoint, True)
        kernels.end(batch)
        ids = nodes[0][0]
        local.tables.gather(place, ("node", 0, "x"), ids, torch.empty(len(ids), 3))

    def ask_partition(self, own, seeds, num_neighbors, replace_, config) -> None:
        handlers, directory = own.handlers(), EdgeDirectory(own, 0)
        mine = torch.from_numpy(np.array(own.nodes[0].ids[:30], np.int64))
        hop = OneHopRequest(0, mine, num_neighbors, replace_, 7, 0, True, weighted=config.weighted)
        requests = [
            hop,
            InducedRequest(0, mine, seeds, True),
            DegreesRequest(0, mine),
            HasEdgesRequest(0, mine[:9], seeds.new_zeros(len(mine[:9]))),
        ]
        requests += [RowsRequest("node", 0, mine, tuple(own.node_tables[0])), EarliestRequest(0)]
        requests += [RowsRequest("edge", 0, own.graphs[0].topology.edge_ids[::50].long(), tuple(own.edge_tables[0]))]
        for request in requests:
            self.ask(handlers[request.method], request.encode())
        self.ask(directory.find, torch.arange(20))
        self.ask(directory.ids)
        self.ask(directory.far_edges, seeds)
        self.ask(directory.degrees, seeds, True)
        self.ask(directory.degrees, mine, False)


def copied(path: Path) -> np.ndarray:
    return np.array(map_npy(path))


def main() -> None:
    parser = argparse.ArgumentParser(description="Damages files of partitions and reads them.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first try")
    parser.add_argument("--most", type=int, default=20_000, metavar="N", help="number of tries")
    parser.add_argument("--step", type=int, default=1, metavar="N", help="from one try to the next")
    parser.add_argument("--seconds", type=float, default=1e9, help="about how long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ends_s, reader = time.monotonic() + options.seconds, Reader()
    with tempfile.TemporaryDirectory() as folder:
        worlds = write_worlds(Path(folder))
        targets = [(name, path) for name, root in worlds.items() for path in sorted(root.rglob("*.npy"))]
        for number in range(options.first, options.first + options.most * options.step, options.step):
            if time.monotonic() > ends_s:
                break
            rng = random.Random(f"{options.seed}:{number}")
            name, path = targets[number % len(targets)]
            os.write(1, f"try {number} {name}/{path.relative_to(worlds[name])}\n".encode())
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            # On the heap, where sanitizers see an element too far; or mapped, as users have them.
            is_copied = rng.random() < 0.7
            with damaged(path, rng), mock.patch.object(files, "map_npy", copied if is_copied else map_npy):
                reader.ask(reader.read, name, worlds[name], rng)
            faulthandler.cancel_dump_traceback_later()
    print(f"refused: {dict(reader.refused)}")
    reader.loop.shutdown()


if __name__ == "__main__":
    sys.exit(main())
