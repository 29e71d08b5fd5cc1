"""What objects say of themselves: in one line, whatever state they are in."""

import inspect
from enum import Enum

import pytest
import torch
from test_docstrings import OBJECTS

import glt
from glt.data.synthetic import synthetic_hetero_graph
from glt.distributed.context import resign

RING = glt.testing.ring_graph()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("reprs") / "parts")
    tables = {"node_feat": RING.x, "edge_assign_strategy": "by_dst"}
    glt.partition.RandomPartitioner(folder, 2, 40, RING.edge_index, **tables).partition()
    return folder


@pytest.fixture
def trainer():
    yield glt.distributed.init_worker_group(world_size=1, rank=0)
    resign()


@pytest.fixture
def graph(parts):
    glt.distributed.initialize(part_config=parts)
    yield glt.distributed.DistGraph("ring")
    glt.distributed.finalize()


def typed_dataset():
    return glt.Dataset.from_pyg(synthetic_hetero_graph(200, 100, 8).to_pyg())


def closed(value):
    value.close()
    return value


LOCAL = [
    (lambda: glt.Dataset(), "Dataset(empty)"),
    (
        lambda: glt.partition.graph_input.GraphInput.of(40, RING.edge_index, node_feat=RING.x),
        "GraphInput(40 nodes, 80 edges, edge_dir='out', node_feat)",
    ),
    (
        RING.to_dataset,
        "Dataset(40 nodes, 80 edges, tables: x, y, edge_attr, edge_dir='in', 2.5 KB)",
    ),
    (
        typed_dataset,
        "Dataset(308 nodes of 3 types, 3800 edges of 6 types, tables: x, time, y, train_mask, val_mask, test_mask, "
        "edge_dir='in', 64.4 KB)",
    ),
    (lambda: RING.to_dataset().graph, "Graph(Topology(40 nodes, 80 edges, CSC, 968 B), mode='CPU')"),
    (lambda: closed(RING.to_dataset().graph), "Graph(Topology(40 nodes, 80 edges, CSC, 968 B), mode='CPU')"),
    (lambda: RING.to_dataset().node_features, "Feature(float32 [40, 4], 640 B)"),
    (
        lambda: glt.NeighborLoader(RING.to_data(), [2, 2], batch_size=16, shuffle=True, replace=True, random_seed=7),
        "NeighborLoader(in this process, 3 batches of 16 nodes, 40 seeds, num_neighbors=[2, 2], replace=True, "
        "shuffle=True, random_seed=7)",
    ),
    (
        lambda: glt.NeighborLoader(typed_dataset(), [2], "paper", batch_size=8, num_workers=2, random_seed=7),
        "NeighborLoader(in 2 processes, 25 batches of 8 nodes, 200 seeds, num_neighbors=[2], random_seed=7)",
    ),
    (
        lambda: glt.LinkNeighborLoader(RING.to_data(), [2], batch_size=8, neg_sampling="binary", random_seed=7),
        "LinkNeighborLoader(in this process, 10 batches of 8 edges, 80 seeds, num_neighbors=[2], "
        "neg_sampling='binary', random_seed=7)",
    ),
    (
        lambda: glt.sampler.NeighborSampler(RING.to_dataset(), [2, -1], disjoint=True, random_seed=7),
        "NeighborSampler(on the CPU, 40 nodes, 80 edges, num_neighbors=[2, -1], disjoint=True, random_seed=7)",
    ),
    (lambda: glt.channel.LocalChannel(2), "LocalChannel(0 of 2 messages)"),
    (lambda: closed(glt.channel.LocalChannel(2)), "LocalChannel(0 of 2 messages, closed)"),
    (lambda: glt.channel.ShmChannel("1MB"), "ShmChannel(1.0 MB of shared memory)"),
    (lambda: closed(glt.channel.ShmChannel("1MB")), "ShmChannel(1.0 MB of shared memory, closed)"),
    (lambda: closed(glt.channel.SharedMemory(4096)), "SharedMemory(4.0 KB, closed)"),
    (glt.distributed.DistDataset, "DistDataset(empty)"),
]


@pytest.mark.parametrize("make, said", LOCAL, ids=range(len(LOCAL)))
def test_in_one_process(make, said):
    assert repr(make()) == said


def test_partitions(parts):
    partitioner = glt.partition.RandomPartitioner(parts + "-more", 2, 40, RING.edge_index)
    assert repr(partitioner) == f"RandomPartitioner({parts + '-more'!r}, 2 partitions of 40 nodes, 80 edges, by_src)"
    part = glt.partition.load_partition(parts, 0)
    told = "2 partitions by RandomPartitioner, 40 nodes, 80 edges"
    assert repr(part) == "Partition(0 of 2, 20 nodes, 40 edges, edge_dir='in')"
    assert repr(part.manifest) == f"Manifest({told}, edge_dir='in', 12 files, 3.6 KB)"
    report = glt.partition.inspect_partitions(parts)
    assert repr(report) == f"Inspection({told}, 60.0% of edges cut, 3.6 KB, not verified)"


def test_a_loader_of_a_job(parts, trainer):
    dataset = glt.distributed.DistDataset().load(parts, 0)
    told = "DistDataset(partition 0 of 2, 40 nodes, 80 edges, edge_dir='in', 3.6 KB in all partitions)"
    assert repr(dataset) == told
    options = glt.distributed.CollocatedDistSamplingWorkerOptions()
    with glt.distributed.DistNeighborLoader(
        dataset, [2], torch.arange(40), 8, shuffle=True, random_seed=7, worker_options=options
    ) as loader:
        how = f"{told}, 5 batches of 8 nodes, num_neighbors=[2], shuffle=True, random_seed=7)"
        assert repr(loader) == f"DistNeighborLoader(distributed-worker-0, collocated, {how}"
    assert repr(loader) == f"DistNeighborLoader(distributed-worker-0, shut down, collocated, {how}"


def test_what_servers_keep(graph):
    assert repr(graph) == "DistGraph('ring', 40 nodes, 80 edges, 2 partitions)"
    tensor = glt.distributed.DistTensor([5, 2], name="t")
    assert repr(tensor) == "DistTensor('t', float32 [5, 2], 40 B on 1 servers)"
    tensor.delete()
    assert repr(tensor) == "DistTensor('t', float32 [5, 2], 40 B on 1 servers, deleted)"
    embedding = glt.distributed.DistEmbedding(5, 2, "e")
    assert repr(embedding) == "DistEmbedding(5, 2, name='e')"
    told = "SparseAdam('e', lr=0.1, betas=(0.9, 0.999), eps=1e-08, reduction='mean')"
    assert repr(glt.distributed.SparseAdam([embedding], lr=0.1)) == told


# A dataclass has its fields before anything can fail: the repr that Python makes of them needs no test.
CLASSES = [
    each
    for each in OBJECTS.values()
    if inspect.isclass(each)
    and not inspect.isabstract(each)
    and not issubclass(each, Exception | Enum | tuple)
    and not hasattr(each.__repr__, "__wrapped__")
]


@pytest.mark.parametrize("made", CLASSES, ids=lambda each: each.__name__)
def test_objects_whose_init_failed_have_one_too(made):
    """Debuggers and tracebacks show them."""
    said = repr(made.__new__(made))
    assert made.__name__ in said and "\n" not in said


def test_all_that_holds_something_says_so():
    for each in CLASSES:
        assert each.__repr__ is not object.__repr__ or not vars(each).get("__init__"), each
