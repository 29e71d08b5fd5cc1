"""The graph of the distributed tests, what trainers do with it, and the batches that they must get."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glt
from glt.partition import RandomPartitioner
from glt.testing import random_graph, reference_batch
from glt.testing.cluster import Cluster, take_census

NUM_NODES, NUM_EDGES = 600, 6000

FIELDS = ("n_id", "edge_index", "e_id", "input_id", "x", "y", "edge_attr")


@dataclass(frozen=True)
class World:
    """A partition directory and the arrays that it was made of."""

    path: Path
    num_parts: int
    edge_dir: str
    x: Tensor | None
    y: Tensor | None
    edge_attr: Tensor | None

    @property
    def graph(self):
        return random_graph(NUM_NODES, NUM_EDGES, seed=3)


def write_world(root, num_parts, edge_dir="in", tables="xye", partitioner=RandomPartitioner, **options):
    """``tables``: ``x`` float32 features, ``b`` bfloat16 features, ``y`` labels, ``e`` edge features."""
    graph = random_graph(NUM_NODES, NUM_EDGES, seed=3)
    x = graph.x.bfloat16() if "b" in tables else graph.x if "x" in tables else None
    y = graph.y if "y" in tables else None
    edge_attr = graph.edge_attr if "e" in tables else None
    given = {"node_feat": x, "edge_feat": edge_attr, "node_label": y} | options
    strategy = "by_dst" if edge_dir == "in" else "by_src"
    made = root / "parts", num_parts, NUM_NODES, graph.edge_index
    partitioner(*made, edge_assign_strategy=strategy, **given).partition()
    return World(root / "parts", num_parts, edge_dir, x, y, edge_attr)


@contextmanager
def standalone_job(path, name="graph"):
    """Makes this process a job of its own over partitions; gives the graph."""
    glt.distributed.initialize(part_config=path)
    try:
        yield glt.distributed.DistGraph(name)
    finally:
        glt.distributed.finalize()


def seeds_of(rank):
    """Uneven between ranks, with duplicates."""
    ids = torch.arange(rank, NUM_NODES, 4)[: 100 + 17 * rank]
    return torch.cat([ids, ids[:5], ids[2:4]])


def options(trainer, mode, **given):
    """Worker options of a cluster's trainer; ``mode``: ``'mp'`` or ``'collocated'``."""
    # On one host nobody would ask anyone; most tests are about asking.
    place = {"master_addr": "localhost", "master_port": trainer.port}
    given = {**place, "rpc_timeout": 120.0, "read_local": False, **given}
    if mode == "mp":
        return glt.distributed.MpDistSamplingWorkerOptions(channel_size=given.pop("channel_size", "16MB"), **given)
    return glt.distributed.CollocatedDistSamplingWorkerOptions(**given)


def join(trainer, path, partition_idx=None, **load):
    """Makes this process a trainer of the job and loads its partition."""
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "test-trainer")
    index = trainer.rank if partition_idx is None else partition_idx
    return glt.distributed.DistDataset().load(path, index, **load)


def snapshot(batch):
    """All of a batch, in memory of its own."""
    kept = {name: batch[name].clone() for name in FIELDS if name in batch}
    return kept | {
        "batch_size": batch.batch_size,
        "num_sampled_nodes": list(batch.num_sampled_nodes),
        "num_sampled_edges": list(batch.num_sampled_edges),
    }


def told_to_a_second_thread(loader):
    """While a loader makes a batch for this thread, another begins an epoch of it, and asks for the next batch of this
    one. Returns the number of batches that this thread gets, and what the other is told."""
    told = []

    def ask(act):
        try:
            told.append(act())
        except RuntimeError as error:
            told.append(str(error))

    def transform(batch):
        for act in (lambda: iter(loader), lambda: next(batches)):
            thread = threading.Thread(target=ask, args=(act,), name="second")
            thread.start()
            thread.join(60)
        return batch

    loader.transform = transform
    batches = iter(loader)
    return sum(1 for _ in batches), told


SEED = 77


@dataclass(frozen=True)
class Case:
    """Options of a loader, and the batches that they must give wherever they are sampled."""

    name: str
    num_neighbors: tuple[int, ...] = (5, 3, 2)
    loader: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)  # the dataset is loaded anew with these
    kind = "DistNeighborLoader"
    snapshot = staticmethod(snapshot)

    def arguments(self, rank):
        """What the loader is called with, apart from the data and where it samples."""
        given = {"num_neighbors": list(self.num_neighbors), "input_nodes": seeds_of(rank), "batch_size": 16}
        return given | {"random_seed": SEED + rank} | self.loader

    def reference(self, world, rank):
        """Two epochs of batches from the whole graph in this process."""
        seeds, given = seeds_of(rank), self.loader
        collect, with_edge = given.get("collect_features", False), given.get("with_edge", False)
        flags = given.get("shuffle", False), given.get("drop_last", False)
        order = glt.sampler.order.SeedOrder(len(seeds), 16, *flags, SEED + rank)
        batches = []
        for index in [index for epoch in range(2) for index in order.batches(epoch)]:
            chosen, replace = seeds[index.input_id].tolist(), given.get("replace", False)
            key = SEED + rank, index.epoch, index.index, world.edge_dir
            made = reference_batch(world.graph.edge_index, NUM_NODES, chosen, self.num_neighbors, replace, *key)
            node, edge, *ends = map(torch.from_numpy, (made.node, made.edge, made.row, made.col))
            batch = {"n_id": node, "edge_index": torch.stack(ends), "input_id": index.input_id}
            batch |= {name: getattr(made, name) for name in ("num_sampled_nodes", "num_sampled_edges")}
            batch |= {"batch_size": len(chosen)} | ({"e_id": edge} if with_edge else {})
            tables = {"x": (world.x, node), "y": (world.y, node), "edge_attr": (world.edge_attr, edge)}
            kept = tables.items() if collect else ()
            batches.append(batch | {name: table[ids] for name, (table, ids) in kept if table is not None})
        return batches


EVERYTHING = {"shuffle": True, "with_edge": True, "collect_features": True}
CASES = [
    Case("features and edges", loader=EVERYTHING),
    Case("replace", (4, 4), {"replace": True, "with_edge": True, "collect_features": True, "drop_last": True}),
    Case("all neighbours", (-1, 2), EVERYTHING),
    Case("ids only", (3, 2), {}),
    Case("edge features without edge ids", (3, 2), {"collect_features": True, "shuffle": True, "drop_last": True}),
    Case("wide hop, then none", (700, 0), {"with_edge": True, "shuffle": True}),
]


def sample(data, rank, cases, make_options, **more):
    """Two epochs of each case."""
    results = []
    for case in cases:
        make, where = getattr(glt.distributed, case.kind), make_options()
        on_gpu = "cuda" in (more.get("to_device"), str(getattr(where, "device", None)))
        with make(data, worker_options=where, **case.arguments(rank), **more) as loader:
            batches = []
            for batch in (batch for _ in range(2) for batch in loader):
                tensors = [value for store in batch.stores for value in store.values() if isinstance(value, Tensor)]
                assert not on_gpu or all(tensor.is_cuda for tensor in tensors)
                batches.append(case.snapshot(batch.to("cpu")))
            assert len(batches) == 2 * len(loader)
        results.append(batches)
    return results


def sample_for_ever(trainer, data, **given):
    """Says who its workers are once batches flow."""
    make, told = glt.distributed.DistNeighborLoader, False
    with make(data, [4, 3], torch.arange(NUM_NODES), batch_size=8, random_seed=1, **given) as loader:
        while True:
            for _ in loader:
                if not told:
                    told = True
                    trainer.say({pid for pid, line in take_census().children.items() if "glt.distributed" in line})


def sample_as_trainer(trainer, path, mode, given, cases, load, more):
    """What each trainer of a cluster does."""
    data, results = join(trainer, path, **load), []
    for case in cases:
        if case.load:
            data = glt.distributed.DistDataset().load(path, trainer.rank, "ZERO_COPY", **case.load)
        results += sample(data, trainer.rank, [case], lambda: options(trainer, mode, **given), **more)
    return results


def run_cluster(world_size, function, *args, **given):
    """What each process of a cluster returned; nothing may be left of it."""
    with Cluster(world_size, function, *args, **given) as cluster:
        results = cluster.results()
        cluster.expect_nothing_left()
    return results


def expect_law(world, mode, given, cases, trainers=None, load=None, more=None, run=sample_as_trainer):
    """Each trainer of a cluster, as many as partitions if not told, gets the batches of the whole graph."""
    given = {"worker_concurrency": 3} | given
    found = run_cluster(trainers or world.num_parts, run, world.path, mode, given, cases, load or {}, more or {})
    expect_batches(found, world, cases)


def expect_batches(by_rank, world, cases):
    for rank, results in enumerate(by_rank):
        for case, batches in zip(cases, results, strict=True):
            assert_same(batches, case.reference(world, rank), f"{case.name}, rank {rank}")


@contextmanager
def programs(script, *arguments, one_group=False, **given):
    """Runs a script by ``python -c`` for each tuple of arguments, with pipes; ends what is left of them."""
    path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **given}
    running = []
    try:
        for each in arguments:
            group = {"process_group": running[0].pid if running else 0} if one_group else {}
            command = [sys.executable, "-c", script, *map(str, each)]
            running.append(subprocess.Popen(command, env=env | {"PYTHONPATH": path}, **group, **given))
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate(timeout=30)


def expect_error(outcome, error_type, *words):
    """A process has ended with an exception that says what it must."""
    assert outcome.error_type == error_type and all(word in outcome.error for word in words), outcome


def hear_all(cluster):
    """What each process says next."""
    return [cluster.hear(rank) for rank in range(cluster.world_size)]


def say_all(cluster, what=None):
    for rank in range(cluster.world_size):
        cluster.say(rank, what)


def default_of(default, product):
    """Parameters of a test: those of the default run, and all others under the mark ``full``."""
    others = [each for each in product if each not in default]
    return [*default, *(pytest.param(*each, marks=pytest.mark.full) for each in others)]


def assert_same(got, wanted, what):
    """Batches are equal, element for element."""
    assert len(got) == len(wanted), what
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.keys() == b.keys(), f"{what}, batch {i}"
        for name, value in a.items():
            same = value == b[name]
            if isinstance(value, Tensor):
                same = value.dtype == b[name].dtype and torch.equal(value, b[name])
            assert same, f"{what}, batch {i}, {name}"
