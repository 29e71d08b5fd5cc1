"""Memory that moves under a reader is noticed."""

import mmap
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing
from fake_cuda import PAGE, FakeCuda
from gpus import DEVICES, GPU, needs_gpu

import glt
from glt.data import Dataset, Feature, Graph, Topology
from glt.data.device import Accelerator
from glt.data.device_topology import DeviceTopology
from glt.data.feature import TieredRows
from glt.data.pinned import SMALL_BYTES, PinnedMemory, PinnedPages, process_pages
from glt.data.schema import PartitionBook
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling
from glt.testing import random_graph

IDS = torch.arange(40)
CPU = torch.device("cpu")


def as_words(tensor):
    """The same memory in a dtype that torch sends and computes with."""
    return tensor.view(torch.int64 if tensor.element_size() == 8 else torch.int32)


def sent(tensor):
    """As ``mp.spawn`` and ``mp.Queue`` do with what they are given."""
    ForkingPickler.dumps(tensor)


def shared(tensor):
    tensor.share_memory_()


def moved(tensors, move=sent):
    for tensor in tensors:
        if tensor is not None:
            before = tensor.data_ptr()
            move(tensor)
            assert tensor.data_ptr() != before, "torch has not moved it: this tests nothing"


@pytest.mark.parametrize("move", [sent, shared])
def test_rows_of_a_feature(move):
    x, row_of = torch.rand(40, 5), torch.arange(40).flip(0).to(torch.uint32)
    feature, indexed = Feature(x), Feature(x, row_of)
    assert torch.equal(feature[IDS], x) and torch.equal(indexed[IDS], x.flip(0))
    moved([x], move)
    moved([row_of.view(torch.int32)], move)
    x += 1  # where it was, nobody writes any more
    row_of.view(torch.int32).copy_(IDS)
    assert torch.equal(feature[IDS], x) and torch.equal(indexed[IDS], x)


@pytest.mark.parametrize("at", range(9))
def test_each_column_of_a_topology_is_looked_after(at):
    """The views that read a column are made anew when it alone has moved; those that do not, are not."""
    ends = random_graph(50, 400).edge_index
    book = PartitionBook.of_arrays(torch.zeros(50, dtype=torch.uint8), torch.arange(50).to(torch.uint32), 1)
    whole = Topology(ends, 50, edge_weight=torch.rand(400), edge_time=torch.arange(400).flip(0))
    topology = Topology.from_rows(
        whole.indptr, whole.indices, whole.edge_ids, weights=whole.weights, by_time=whole.by_time, book=book
    )
    of_all, of_plain = [whole.indptr, book.owner, as_words(book.row_of)], [whole.indices, whole.edge_ids]
    of_weighted, of_timed = map(as_words, whole.weights), [whole.by_time.indices, whole.by_time.time]
    column = [*of_all, *of_plain, *of_weighted, *of_timed][at]

    def views():
        return topology.csr_unweighted, topology.csr, topology.csr_by_time

    before = views()
    assert views() == before
    moved([column])
    expected = {3: (True, True, True), 5: (True, True, False), 7: (False, True, False), 9: (False, False, True)}
    reads = next(reads for end, reads in expected.items() if at < end)
    assert tuple(new is not old for new, old in zip(views(), before, strict=True)) == reads


@pytest.mark.parametrize("has_ranges", [False, True])
def test_owners_of_a_book(has_ranges):
    owner = torch.arange(6, dtype=torch.uint8) // 3
    book = PartitionBook.of_ranges(torch.tensor([0, 3, 6])) if has_ranges else (
        PartitionBook.of_arrays(owner, torch.zeros(6, dtype=torch.uint32), 2)
    )  # fmt: skip
    ids = np.arange(6)
    assert book.owners(ids).tolist() == [0, 0, 0, 1, 1, 1]
    ForkingPickler.dumps(book)
    if book.offset is not None:
        book.offset[1] = 2
    else:
        owner[2] = 1
    assert book.owners(ids).tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("split_ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("hotness", [None, torch.arange(40.0)])
@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_pinned_feature(device, hotness, split_ratio):
    """A table that GPUs pin where it is: those below SMALL_BYTES they copy."""
    num_words = 3 if device == "host" else SMALL_BYTES // 32  # half of it is still to be pinned in place
    x = torch.randn(40, num_words).to(torch.bfloat16)
    feature = Feature(x, device=device, split_ratio=split_ratio, hotness=hotness)
    kept = x.clone()  # of hot rows there is a copy
    is_hot = torch.zeros(40, dtype=torch.bool)
    by_hotness = IDS if hotness is None else hotness.argsort(descending=True)
    is_hot[by_hotness[: round(40 * split_ratio)]] = True
    where = IDS.to("cpu" if device == "host" else device)
    for step in range(3):
        expected = torch.where(is_hot[:, None], kept, x)
        found = feature.gather_on(device, where).cpu()
        assert torch.equal(found, expected)
        if step == 0:
            moved([x])
        x += 1  # where it was, nobody writes any more
    feature.close()
    assert torch.equal(feature.gather_on(device, where).cpu()[~is_hot], x[~is_hot])  # placed again
    feature.close()


def test_rows_of_one_column_whose_strides_are_any():
    x = torch.rand(1, 5).t()
    assert x.is_contiguous() and x.stride(1) != 1
    assert torch.equal(Feature(x, device="host").gather_on("host", torch.arange(5)), x)


def test_rows_of_one_of_several_tables():
    tables = [torch.rand(n, 2) for n in (3, 4)]
    rows = TieredRows(tables, CPU, num_hot=[1, 0])
    moved([tables[1]])
    tables[1] += 1
    found = rows.gather(torch.arange(7), explain=lambda *_: None)
    assert torch.equal(found, torch.cat(tables))


def test_rows_are_pinned_again_after_a_failure(monkeypatch):
    x = torch.rand(40, 2)
    feature = Feature(x, device="host")
    feature.gather_on("host", IDS)
    moved([x])
    x += 1
    rows = feature.placed("host")

    def refused(rows, first_cold):
        raise RuntimeError("cudaErrorMemoryAllocation")

    with monkeypatch.context() as patched:
        patched.setattr(rows, "_pinned", refused)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
                feature.gather_on("host", IDS)
    assert torch.equal(feature.gather_on("host", IDS), x)


def test_a_table_is_pinned_as_a_whole_where_some_rows_are_cold(monkeypatch):
    """CUDA, which a list plays, would refuse ``x.cuda()`` of one that is pinned in part."""
    driver = FakeCuda()

    def pinned(part, device, name, **more):
        return PinnedMemory(part, CPU, name, driver.pages, **more)

    monkeypatch.setattr("glt.data.feature.PinnedMemory", pinned)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    x = torch.rand(4 * PAGE, 2)
    rows = TieredRows(x, CPU, num_hot=3 * PAGE)
    for step in range(2):
        rows.device = torch.device("cuda", 0)
        rows._bind()
        assert driver.covers(x) and len(driver.registered) == 1
        rows.device = CPU
        assert torch.equal(rows.gather(torch.arange(len(x)), explain=lambda *_: None), x)
        if step == 0:
            moved([x])
    rows.device = torch.device("cuda", 0)
    rows.close()
    assert not driver.registered
    all_hot = TieredRows(x, CPU, num_hot=len(x))
    all_hot.device = torch.device("cuda", 0)
    all_hot._bind()
    assert not driver.registered


COLUMNS = ["indices", "edge_ids", "weight_sum", "weight_guide", "timed indices", "timed edge_ids", "time"]


def columns_of(topology):
    columns = [topology.indices, topology.edge_ids, *topology.weights, *topology.by_time]
    return dict(zip(COLUMNS, map(as_words, columns), strict=True))


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_of_a_topology(name):
    """The graph is placed again when it alone has moved; not in device memory, where nothing moves."""
    ends = random_graph(50, 400).edge_index
    graph = Graph(Topology(ends, 50, edge_weight=torch.rand(400), edge_time=torch.arange(400).flip(0)), "ZERO_COPY")
    in_memory = Graph(graph.topology, "CUDA", "host")
    placed, kept = graph.placed("host"), in_memory.placed()
    assert graph.placed("host") is placed
    moved([graph.topology.indptr, columns_of(graph.topology)[name]])
    again = graph.placed("host")
    assert again is not placed and graph.placed("host") is again and in_memory.placed() is kept
    indices = kept.indices.clone()
    graph.topology.indices.zero_()
    assert torch.equal(kept.indices, indices) and not again.indices.any()


OPTIONS = [
    {},
    {"subgraph_type": "induced"},
    {"weight_attr": "edge_weight"},
    {"time_attr": "edge_time", "input_time": torch.full((500,), 2500)},
]


PLACES = [("CPU", None)] + [(mode, "host") for mode in ("ZERO_COPY", "CUDA")]
PLACES += [pytest.param(mode, "cuda", marks=GPU.marks) for mode in ("ZERO_COPY", "CUDA")]


@pytest.mark.parametrize(("mode", "device"), PLACES)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda given: "-".join(given))
def test_a_loader_goes_on_after_its_graph_was_sent_to_another_process(options, mode, device):
    data = random_graph(500, 5000).to_data()
    data.edge_time, data.edge_weight = torch.arange(5000), torch.rand(5000)
    attrs = {name: options.get(name) for name in ("time_attr", "weight_attr")}
    datasets = [Dataset.from_pyg(data.clone(), **attrs).with_mode(mode, device) for _ in range(2)]
    loader, unmoved = (
        glt.loader.NeighborLoader(dataset, [4, 3], batch_size=50, random_seed=1, device=device, **options)
        for dataset in datasets
    )
    graph, topology = datasets[0].graphs[0], datasets[0].graphs[0].topology
    before = topology.indices.data_ptr()
    for each in (loader, unmoved):
        assert len(list(each)) == 10  # so that batches are captured and repeated
    ForkingPickler.dumps(datasets[0])
    assert topology.indices.data_ptr() != before
    trash = [torch.full((5000,), 7) for _ in range(50)]  # takes the memory that is free now
    for batch, expected in zip(loader, unmoved, strict=True):
        assert torch.equal(batch.n_id, expected.n_id) and torch.equal(batch.edge_index, expected.edge_index)
        assert torch.equal(batch.x, expected.x) and torch.equal(batch.e_id, expected.e_id)
    del trash
    if (mode, device) in [("CPU", None), ("ZERO_COPY", "host")] and not options:
        topology.indices.zero_()  # where it was, nobody writes any more
        for batch in loader:
            assert batch.num_edges and not batch.n_id[batch.edge_index[0]].any()
    graph.close()
    assert len(list(loader)) == 10  # placed again


def test_hotness_of_a_sampler_that_goes_on():
    data = Dataset.from_pyg(random_graph(500, 5000).to_data()).with_mode("ZERO_COPY", "host")
    sampler = NeighborSampler(data, [4, 3], random_seed=1, device="host")
    before = sampler.sample_prob(torch.arange(100), num_batches=0)
    assert (before[100:] > 0).sum() > 1
    topology = data.graphs[0].topology
    moved([topology.indices])
    topology.indices.zero_()
    after = sampler.sample_prob(torch.arange(100), num_batches=0)
    assert (after[100:] > 0).sum() == 0


def test_memory_that_comes_to_be_where_moved_memory_was_is_pinned_itself():
    """CUDA knows it as the old, whose pages it has."""
    driver = FakeCuda()
    memory = mmap.mmap(-1, 4 * PAGE)  # who holds it stands for whoever is given the address next
    first = torch.frombuffer(memory, dtype=torch.uint8)
    address = first.data_ptr()
    pinned = PinnedMemory(first, CPU, pages=driver.pages)
    assert not pinned.has_moved and driver.registered == {address: 4 * PAGE}
    chunks = list(driver.pages._chunks)
    moved([first])
    assert pinned.has_moved
    second = torch.frombuffer(memory, dtype=torch.uint8)
    assert second.data_ptr() == address
    with PinnedMemory(second, CPU, pages=driver.pages):
        assert driver.registered == {address: 4 * PAGE} and driver.pages._chunks[0] is not chunks[0]
    assert not driver.registered
    pinned.close()  # twice is once


def test_what_cuda_does_not_let_go_of_where_memory_was_is_told_once_and_forgotten(caplog):
    """Whoever had it pinned, or comes next, need not fail for it."""
    driver = FakeCuda()

    def refused(address, device):
        raise RuntimeError("cudaErrorHostMemoryNotRegistered")

    pages = PinnedPages(driver.register, refused, lambda device: None)
    # Of maps, as small tensors of the heap may share a page, and then a chunk.
    first, second, third = (torch.frombuffer(mmap.mmap(-1, 4 * PAGE), dtype=torch.uint8) for _ in range(3))
    by_itself, by_the_next = PinnedMemory(first, CPU, pages=pages), PinnedMemory(second, CPU, pages=pages)
    moved([first, second])
    by_itself.close()
    assert caplog.text.count("cudaErrorHostMemoryNotRegistered") == 1
    kept = PinnedMemory(third, CPU, pages=pages)  # gives back what moved before
    assert caplog.text.count("cudaErrorHostMemoryNotRegistered") == 2
    by_itself.close()
    by_the_next.close()
    with pytest.raises(RuntimeError, match="cudaErrorHostMemoryNotRegistered"):
        kept.close()  # it is where it was: that is an error
    assert pages.num_bytes == 0 and caplog.text.count("cudaErrorHostMemoryNotRegistered") == 2


def test_a_topology_that_moved_gives_its_pages_back():
    driver = FakeCuda()
    topology = Topology(random_graph(50, 400).edge_index, 50)
    placed = DeviceTopology(topology, CPU, "ZERO_COPY", driver.pages)
    assert driver.registered and not placed.has_moved
    moved([topology.indices])
    assert placed.has_moved
    placed.close()
    assert not driver.registered


@needs_gpu
def test_nothing_stays_registered_where_memory_was():
    x = torch.rand(SMALL_BYTES // 4, 2)
    feature = Feature(x, device=0)
    feature.gather_on(0, torch.arange(10, device="cuda"))
    address = x.data_ptr()
    moved([x])
    feature.gather_on(0, torch.arange(10, device="cuda"))
    assert not process_pages().has_any(address, x.nbytes) and process_pages().has_any(x.data_ptr(), x.nbytes)
    feature.close()
    assert not process_pages().has_any(x.data_ptr(), x.nbytes)


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
@pytest.mark.parametrize("first_room", [1, 1 << 22])
def test_a_batch_that_was_begun_before_its_graph_moved(first_room, subgraph_type):
    data = random_graph(500, 5000).to_data()
    expected = NeighborSampler(data, [4, 3], subgraph_type=subgraph_type, random_seed=1)
    seeds = [(0, torch.arange(0, 500, 7))]
    known = expected.sample(seeds, batch_key=3)

    graph = Graph(Topology(data.edge_index.clone(), 500, layout="CSC"), "ZERO_COPY")
    sampler = NeighborSampler(graph, [4, 3], subgraph_type=subgraph_type, random_seed=1, device="host")
    place = Accelerator(CPU)
    kernels = DeviceSampling(
        sampler.graph, sampler.config, place.device, lambda _: graph.placed(place), first_room=first_room
    )
    finish = kernels.launch(sampler.config, seeds, None, 3)
    moved([graph.topology.indptr, graph.topology.indices, graph.topology.edge_ids])
    trash = [torch.full((5000,), 7) for _ in range(50)]  # takes the memory that is free now
    out = finish()
    del trash
    for name in ("node", "row", "col", "edge"):
        assert torch.equal(getattr(out, name), getattr(known, name)), name
    graph.close()
