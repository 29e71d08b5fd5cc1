import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_world import PARTITIONERS, assert_union_is_the_input, load_all

from glt.partition import RandomPartitioner, load_partition

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.bool,
]


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    return num_nodes, np.array(edges, draw(st.sampled_from([np.int32, np.int64]))).reshape(-1, 2).T


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@settings(max_examples=25, deadline=None)
@given(
    graph=graphs(),
    num_parts=st.integers(1, 4),
    strategy=st.sampled_from(["by_src", "by_dst"]),
    chunk_size=st.sampled_from([1, 3, 100]),
    random_seed=st.integers(0, 2**31 - 1),
)
def test_union_of_partitions_is_the_input(
    tmp_path_factory, partitioner, graph, num_parts, strategy, chunk_size, random_seed
):
    num_nodes, edge_index = graph
    tables = {
        "node_feat": np.random.default_rng(1).random((num_nodes, 2)),
        "edge_feat": np.arange(edge_index.shape[1] * 3).reshape(-1, 3),
        "node_label": np.arange(num_nodes),
    }
    parent = tmp_path_factory.mktemp("example")  # left to pytest: removing directories is slow
    root = parent / "parts"
    manifest = partitioner(
        root,
        num_parts,
        num_nodes,
        edge_index,
        edge_assign_strategy=strategy,
        chunk_size=chunk_size,
        random_seed=random_seed,
        **tables,
    ).partition()
    parts = load_all(root)
    assert_union_is_the_input(parts, num_nodes, edge_index, **tables)
    assert [path.name for path in parent.iterdir()] == ["parts"]
    assert max(manifest.part_num_nodes) <= -(-num_nodes // num_parts)  # 5% of the mean are less than a node here
    if partitioner is RandomPartitioner:
        assert max(manifest.part_num_nodes) - min(manifest.part_num_nodes) <= 1
    assert manifest.part_num_nodes == tuple(part.nodes[0].ids.size for part in parts)
    assert manifest.part_num_edges == tuple(part.edges[0].indices.size for part in parts)
    owner = parts[0].nodes[0].book.owners()
    cut = np.count_nonzero(owner[edge_index[0]] != owner[edge_index[1]])
    assert manifest.edge_cut_ratio == cut / max(edge_index.shape[1], 1)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_features_of_every_dtype_and_shape_come_back_bit_for_bit(world, tmp_path, dtype, shape):
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (world.num_nodes, *shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    feat = raw.view(dtype).squeeze(-1)
    raw = torch.randint(0, 256, (world.edge_index.shape[1], *shape, dtype.itemsize), dtype=torch.uint8)
    edge_feat = raw.view(dtype).squeeze(-1)
    manifest = RandomPartitioner(
        tmp_path / "parts",
        3,
        world.num_nodes,
        torch.from_numpy(world.edge_index),
        node_feat=feat,
        edge_feat=edge_feat,
        node_label=feat,
        chunk_size=4,
    ).partition()
    parts = load_all(tmp_path / "parts")
    tables = {"node_feat": feat, "edge_feat": edge_feat, "node_label": feat}
    assert_union_is_the_input(parts, world.num_nodes, world.edge_index, **tables)
    assert all(torch.as_tensor(part.nodes[0].feat).dtype == dtype for part in parts)
    assert manifest.node_types[0].feat.dtype == str(dtype).removeprefix("torch.")
    assert manifest.node_types[0].feat.shape == shape


def test_inputs_may_be_strided_or_mapped_and_are_not_changed(world, tmp_path):
    np.save(tmp_path / "feat.npy", world.node_feat)
    mapped = np.load(tmp_path / "feat.npy", mmap_mode="r")
    strided = torch.from_numpy(np.repeat(world.edge_feat, 2))[::2]
    pairs = torch.from_numpy(world.edge_index).T.contiguous().T
    before = pairs.clone(), strided.clone()
    RandomPartitioner(tmp_path / "parts", 2, world.num_nodes, pairs, node_feat=mapped, edge_feat=strided).partition()
    assert_union_is_the_input(
        load_all(tmp_path / "parts"),
        world.num_nodes,
        world.edge_index,
        node_feat=world.node_feat,
        edge_feat=world.edge_feat,
    )
    assert torch.equal(pairs, before[0]) and torch.equal(strided, before[1])


def test_a_read_only_map_of_edges_is_enough(world, tmp_path):
    np.save(tmp_path / "edges.npy", world.edge_index)
    edge_index = np.load(tmp_path / "edges.npy", mmap_mode="r")
    RandomPartitioner(tmp_path / "parts", 2, world.num_nodes, edge_index).partition()
    assert_union_is_the_input(load_all(tmp_path / "parts"), world.num_nodes, world.edge_index)


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


def test_writing_to_a_loaded_array_does_not_reach_the_disk(directory):
    part = load_partition(directory, 0)
    part.nodes[0].feat[:] = -1
    assert (load_partition(directory, 0).nodes[0].feat >= 0).all()


def test_narrow_dtypes_where_ids_fit(directory):
    part = load_partition(directory, 1)
    assert (part.nodes[0].book.owner.dtype, part.nodes[0].book.row_of.dtype) == (torch.uint8, torch.uint32)
    assert (part.edges[0].book.owner.dtype, part.edges[0].book.row_of.dtype) == (torch.uint8, torch.uint32)
    assert (part.edges[0].indptr.dtype, part.edges[0].indices.dtype, part.edges[0].edge_ids.dtype) == (
        np.int64,
        np.int32,
        np.int32,
    )
    assert part.nodes[0].ids.dtype == np.int64


def test_a_graph_without_edges_and_more_partitions_than_nodes(tmp_path):
    root, edge_index = tmp_path / "parts", np.empty((2, 0), np.int64)
    manifest = RandomPartitioner(root, 300, 2, edge_index, node_feat=np.ones((2, 0))).partition()
    assert sorted(manifest.part_num_nodes) == [0] * 298 + [1] * 2
    for idx in {0, *load_partition(root, 0).nodes[0].book.owners().tolist()}:
        part = load_partition(root, idx)
        assert part.nodes[0].book.owner.dtype == torch.uint16
        assert part.edges[0].indices.size == 0 and part.nodes[0].feat.shape == (manifest.part_num_nodes[idx], 0)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_complex32_features_come_back(tmp_path):
    feat = torch.arange(12, dtype=torch.float16).view(torch.complex32).reshape(3, 2)
    RandomPartitioner(tmp_path / "parts", 1, 3, np.array([[0, 1], [1, 2]]), node_feat=feat).partition()
    back = load_partition(tmp_path / "parts", 0).nodes[0].feat
    assert back.dtype == torch.complex32
    assert torch.equal(back.view(torch.float16), feat.view(torch.float16))
