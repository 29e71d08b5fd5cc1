"""What was partitioned comes back."""

import copy
import mmap
import pickle
import re
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from distributed_run import files_under, slice_of
from local_exchange import in_ranks, use_threads
from partition_world import assert_union_is_the_input, load_all
from torch_geometric import EdgeIndex

from glt.partition import (
    AssignedPartitioner,
    FrequencyPartitioner,
    RandomPartitioner,
    load_partition,
    partition_distributed,
)

NAMES = "float16 bfloat16 float32 float64 int64 uint8 float8_e5m2 float8_e4m3fnuz bool complex32"
DTYPES = [getattr(torch, name) for name in NAMES.split()]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_features_of_every_dtype_and_shape_come_back_bit_for_bit(world, tmp_path, dtype, shape):
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (world.num_nodes, *shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    feat = raw.view(dtype).squeeze(-1)
    raw = torch.randint(0, 256, (world.edge_index.shape[1], *shape, dtype.itemsize), dtype=torch.uint8)
    edge_feat = raw.view(dtype).squeeze(-1)
    tables = {"node_feat": feat, "edge_feat": edge_feat, "node_label": feat}
    edges = torch.from_numpy(world.edge_index)
    made = RandomPartitioner(tmp_path / "parts", 3, world.num_nodes, edges, chunk_size=4, **tables)
    manifest = made.partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, world.num_nodes, world.edge_index, **tables)
    assert all(torch.as_tensor(part.nodes[0].feat).dtype == dtype for part in parts)
    assert manifest.node_types[0].feat.dtype == str(dtype).removeprefix("torch.")
    assert manifest.node_types[0].feat.shape == shape


def test_inputs_may_be_strided_or_mapped_and_are_not_changed(world, tmp_path):
    for name in ("node_feat", "edge_index"):
        np.save(tmp_path / f"{name}.npy", vars(world)[name])
    feat, edges = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("node_feat", "edge_index"))
    strided = torch.from_numpy(np.repeat(world.edge_feat, 2))[::2]
    pairs = torch.from_numpy(world.edge_index).T.contiguous().T
    before = pairs.clone(), strided.clone()
    tables = {"node_feat": world.node_feat, "edge_feat": world.edge_feat}
    for name, edge_index in (("strided", pairs), ("mapped", edges)):
        root = tmp_path / name
        RandomPartitioner(root, 2, world.num_nodes, edge_index, node_feat=feat, edge_feat=strided).partition()
        assert_union_is_the_input(load_all(root), world.num_nodes, world.edge_index, **tables)
    assert torch.equal(pairs, before[0]) and torch.equal(strided, before[1])


def test_loaded_arrays_are_maps_that_torch_takes_without_a_copy_or_a_warning(directory):
    part = load_partition(directory, 0)
    both = {**vars(part.nodes[0]), **{f"edge_{k}": v for k, v in vars(part.edges[0]).items()}}
    arrays = [value for value in both.values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 7
    for array in arrays:
        assert isinstance(array, np.memmap) and array.mode == "c"
        assert torch.from_numpy(array).data_ptr() == array.ctypes.data
        assert array.ctypes.data % 64 == 0
    for book in (part.nodes[0].book, part.edges[0].book):
        for tensor in (book.owner, book.row_of):
            assert tensor.data_ptr() % mmap.PAGESIZE == 128  # mapped, behind the header
    part.nodes[0].feat[:] = -1
    assert (load_partition(directory, 0).nodes[0].feat >= 0).all(), "what is written does not reach the disk"


def test_narrow_dtypes_where_ids_fit(directory):
    part = load_partition(directory, 1)
    nodes, edges = part.nodes[0], part.edges[0]
    for book in (nodes.book, edges.book):
        assert (book.owner.dtype, book.row_of.dtype) == (torch.uint8, torch.uint32)
    dtypes = [array.dtype for array in (edges.indptr, edges.indices, edges.edge_ids, nodes.ids)]
    assert dtypes == [np.int64, np.int32, np.int32, np.int64]


def test_a_graph_without_edges_and_more_partitions_than_nodes(tmp_path):
    root, edge_index = tmp_path / "parts", np.empty((2, 0), np.int64)
    manifest = RandomPartitioner(root, 300, 2, edge_index, node_feat=np.ones((2, 0))).partition()
    assert sorted(manifest.part_num_nodes) == [0] * 298 + [1] * 2
    for idx in {0, *load_partition(root, 0).nodes[0].book.owners().tolist()}:
        part = load_partition(root, idx)
        assert part.nodes[0].book.owner.dtype == torch.uint16
        assert part.edges[0].indices.size == 0 and part.nodes[0].feat.shape == (manifest.part_num_nodes[idx], 0)


N, E = 30, 90


def tables():
    generator = torch.Generator().manual_seed(0)
    return {
        "edge_index": torch.randint(N, (2, E), generator=generator),
        "node_feat": torch.rand(N, 4, generator=generator),
        "edge_feat": torch.rand(E, 2),
        "node_label": torch.arange(N),
        "edge_weight": torch.rand(E),
        "edge_time": torch.arange(E),
    }


@pytest.mark.parametrize("name", tables())
def test_of_the_graph(tmp_path, name):
    given = tables()
    made = RandomPartitioner(tmp_path / "parts", 2, N, **given)
    given[name].share_memory_()
    with pytest.raises(RuntimeError, match=rf"{name} has moved.*share_memory_\(\).*{name}.clone\(\)"):
        made.partition()
    assert not (tmp_path / "parts").exists()
    RandomPartitioner(tmp_path / "parts", 2, N, **given).partition()  # made after that, of memory that stays
    assert len(load_partition(tmp_path / "parts", 0).nodes[0].ids) == N // 2


@pytest.mark.parametrize(
    ("named", "where"),
    [
        ("node_attrs", "mask"),
        ("edge_attrs", "mask"),
        ("probs", 1),
        ("owners", None),
        ("node_time", None),
        ("edge_index", None),
    ],
)
def test_in_dicts_lists_and_what_one_partitioner_alone_has(tmp_path, named, where):
    graph = {key: value for key, value in tables().items() if key == "edge_index"}
    tensor = torch.rand(N if named != "edge_attrs" else E)
    if named == "probs":
        made = FrequencyPartitioner(tmp_path / "parts", 2, N, probs=[torch.rand(N), tensor], **graph)
    elif named == "owners":
        tensor = torch.zeros(N, dtype=torch.uint8)
        made = AssignedPartitioner(tmp_path / "parts", 2, N, owners=tensor, **graph)
    elif named == "node_time":
        tensor = torch.arange(N)
        made = RandomPartitioner(tmp_path / "parts", 2, N, node_time=tensor, **graph)
    elif named == "edge_index":
        tensor = torch.arange(2 * N).view(2, N) % N
        made = RandomPartitioner(tmp_path / "parts", 2, N, EdgeIndex(tensor))  # a class of PyG's
    else:
        made = RandomPartitioner(tmp_path / "parts", 2, N, **graph, **{named: {where: tensor}})
    tensor.share_memory_()
    if named == "owners":
        with pytest.raises(RuntimeError, match="owners has moved"):
            made.books()
    name = f"{named}[{where!r}]" if isinstance(where, str) else named
    with pytest.raises(RuntimeError, match=re.escape(name) + " has moved"):
        made.partition()


def test_what_was_copied_may_move(tmp_path):
    """Nothing of these is read any more when they move, nor is it kept."""
    pairs, owners, weight = torch.arange(2 * N).view(N, 2) % N, torch.zeros(N, dtype=torch.int64), torch.ones(N).half()
    made = AssignedPartitioner(tmp_path / "parts", 1, N, pairs.t(), owners=owners, edge_weight=weight)
    for tensor in (pairs, owners, weight):
        tensor.share_memory_()
    made.partition()


def test_copies_of_a_partitioner_have_memory_of_their_own(tmp_path):
    made = RandomPartitioner(tmp_path / "parts", 2, N, **tables())
    copies = copy.deepcopy(made), pickle.loads(ForkingPickler.dumps(made))
    for at, each in enumerate((made, *copies)):
        each.output_dir = tmp_path / str(at)
        each.partition()


WIDTHS = [np.int8, np.int16, np.int32, np.int64]
NUM_NODES, NUM_EDGES = 20, 150


def graph(level, dtype, relabel):
    generator = np.random.default_rng(0)
    edge_index = generator.integers(0, NUM_NODES, (2, NUM_EDGES))
    time = generator.integers(-100, 28, {"edge_time": NUM_EDGES, "node_time": NUM_NODES}[level])
    return {"num_nodes": NUM_NODES, "edge_index": edge_index, level: time.astype(dtype), "relabel": relabel}


def tables_under(root):
    return {path: data for path, data in files_under(root).items() if path.endswith(".npy")}


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("level", ["edge_time", "node_time"])
def test_the_directory_is_that_of_int64(tmp_path, level, dtype, relabel):
    given, wide = graph(level, dtype, relabel), graph(level, np.int64, relabel)
    RandomPartitioner(tmp_path / "parts", 2, **given).partition()
    RandomPartitioner(tmp_path / "wide", 2, **wide).partition()
    assert tables_under(tmp_path / "parts") == tables_under(tmp_path / "wide")
    if not relabel:
        assert_union_is_the_input(load_all(tmp_path / "parts"), **{k: v for k, v in wide.items() if k != "relabel"})


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_unsigned_times_stay_as_large_as_they_are(tmp_path, dtype):
    given = graph("edge_time", np.int64, False)
    del given["relabel"]
    given["edge_time"] = (given["edge_time"] % 50 + np.iinfo(dtype).max - 49).astype(dtype)
    RandomPartitioner(tmp_path / "parts", 2, **given).partition()
    given["edge_time"] = given["edge_time"].astype(np.int64)
    assert_union_is_the_input(load_all(tmp_path / "parts"), **given)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("level", ["edge_time", "node_time"])
def test_ranks_write_what_one_machine_writes(tmp_path, monkeypatch, level, dtype):
    use_threads(monkeypatch)
    given = graph(level, dtype, False)
    given[level] = torch.from_numpy(given[level])

    def rank_of(exchange):
        mine = slice_of(given, exchange.rank, 2)
        return partition_distributed(
            RandomPartitioner, tmp_path / "ranks", num_parts=2, **mine, group=exchange, num_threads=1
        )

    wanted = RandomPartitioner(tmp_path / "one", 2, **given, num_threads=1).partition()
    assert in_ranks(2, rank_of) == [wanted] * 2
    assert files_under(tmp_path / "ranks") == files_under(tmp_path / "one")
    RandomPartitioner(tmp_path / "wide", 2, **graph(level, np.int64, False)).partition()
    assert tables_under(tmp_path / "ranks") == tables_under(tmp_path / "wide")


def test_writing_to_a_loaded_array_does_not_reach_the_disk(directory):
    part = load_partition(directory, 0)
    part.nodes[0].feat[:] = -1
    assert (load_partition(directory, 0).nodes[0].feat >= 0).all()
