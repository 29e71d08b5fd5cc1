"""A partition whose others are asked as if they were elsewhere, in one process: answers are late, or lost."""

import asyncio

import numpy as np
import torch

import glt
from glt.data.arrays import pooled_empty
from glt.distributed.engine.row_lookup import row_caches
from glt.distributed.engine.sampler import DistNeighborSampler
from glt.distributed.engine.seeds import BatchStart
from glt.distributed.wire.threads import ConcurrentEventLoop
from glt.sampler.config import SamplingConfig

FAN_OUT = (4, 3)


class LateRouter:
    """Answers for partitions of this process, after a while each; some never, as if their owner were lost."""

    def __init__(self, parts, rng):
        self.handlers = {index: part.handlers() for index, part in parts.items()}
        self.rng, self.loss = rng, 0.0
        self.asked = []  # rows: kind, type, table and id of each

    def ask(self, part, requests):
        return [self._answer(part, request) for request in requests]

    def _answer(self, part, request):
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if request.method == "gather_rows":
            of = request.kind, request.type
            self.asked += [(*of, table, each) for table in request.tables for each in request.ids.tolist()]
        if request.method == "gather_rows" and self.rng.random() < self.loss:
            loop.call_later(0.001, future.set_exception, glt.errors.PeerLost("lost"))
        else:
            reply = self.handlers[part][request.method](request.encode())
            loop.call_later(self.rng.random() * 0.003, future.set_result, reply)
        return future


class Stage:
    """Partition 0 of a directory, with the others as if elsewhere, and the batches that are right."""

    def __init__(self, path, types=1):
        self.data = glt.distributed.DistDataset().load(str(path), 0)
        self.others = {p: self.data.map_other(str(path), p) for p in range(1, self.data.num_partitions)}
        fan_outs = (FAN_OUT,) * len(self.data.schema.edge_types)
        self.config = SamplingConfig(num_neighbors=fan_outs, with_edge=True)
        self.loop = ConcurrentEventLoop(4)
        self.here = DistNeighborSampler(self.data, self.config, None, self.loop, others=self.others)

    def asking(self, rng, budget):
        router = LateRouter(self.others, rng)
        caches = row_caches(self.data, {0: self.data.own}, budget)
        return router, DistNeighborSampler(self.data, self.config, router, self.loop, caches=caches)

    def start(self, key):
        rng = np.random.default_rng(key)
        nodes = rng.choice(self.data.num_nodes_of[0], 12, replace=False)
        return BatchStart([(0, torch.from_numpy((nodes * rng.random(12) ** 2).astype(np.int64)))])

    async def make(self, sampler, key, window=None):
        sampled = await sampler.sample(self.start(key), key, window)
        out = sampled.layout.tensors(pooled_empty((sampled.layout.nbytes,), torch.uint8))
        await sampler.fill(sampled, out)
        return {name: tensor.clone() for name, tensor in out.items()}

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop._loop).result(60)
