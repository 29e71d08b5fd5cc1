"""Directories of GLT, PyG and DGL become glt's: same nodes, edges and tables, same owners."""

import json
import shutil

import numpy as np
import pytest
import torch
from partition_world import assert_union_is_the_input, load_all
from peer_world import (
    A_X_B,
    A_Z_A,
    B_Y_A,
    HETERO_NODES,
    NUM_NODES,
    foreign_class,
    hetero_edges,
    inputs,
    mapping,
    write_pyg,
    write_tensors,
)
from torch_geometric.data import Data, HeteroData

from glt.partition import Manifest, import_dgl, import_glt, import_pyg, read_part_config


@pytest.fixture(scope="module")
def given(peers):
    return inputs(peers)


@pytest.fixture
def hetero_maps(peers):
    """What DGL returned of ``dgl_hetero``."""
    return {kind: mapping(peers, "dgl_hetero", kind.removeprefix("orig_")) for kind in ("orig_nids", "orig_eids")}


def assert_is_dgl_hetero(root, given):
    edges = hetero_edges(given, A_X_B, A_Z_A, B_Y_A)  # DGL sorts relations by name
    tables = {"node_feat": {"a": given["a_feat"]}, "node_label": {"b": np.arange(9)}}
    tables["edge_weight"] = {A_X_B: np.arange(40.0)}
    assert_union_is_the_input(load_all(root), HETERO_NODES, edges, **tables)


def owners(root, node_type=0):
    return load_all(root)[0].nodes[node_type].book.owners()


@pytest.mark.parametrize(
    ("name", "edge_dir", "stored", "added"),
    [
        ("glt_homo", "out", ["node_feat", "edge_feat"], []),
        ("glt_frequency", "in", ["node_feat", "edge_weight"], ["node_label"]),
    ],
)
def test_a_directory_of_glt_keeps_ids_tables_and_owners(peers, given, tmp_path, name, edge_dir, stored, added):
    manifest = import_glt(peers / name, tmp_path / "out", **{each: given[each] for each in added})
    tables = {each: given[each] for each in (*stored, *added)}
    assert_union_is_the_input(load_all(tmp_path / "out"), NUM_NODES, given["edge_index"], **tables)
    np.testing.assert_array_equal(owners(tmp_path / "out"), torch.load(peers / name / "node_pb.pt").numpy())
    assert manifest.edge_dir == edge_dir  # found from the edges: META does not say it
    assert manifest.strategy == "AssignedPartitioner"
    assert manifest.arguments["imported_from"] == "graphlearn_torch"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # no scratch is left


def test_a_heterogeneous_directory_of_glt(peers, given, tmp_path):
    import_glt(peers / "glt_hetero", tmp_path / "out")
    tables = {"node_feat": {"a": given["a_feat"]}, "edge_feat": {A_X_B: given["x_feat"]}}
    assert_union_is_the_input(load_all(tmp_path / "out"), HETERO_NODES, hetero_edges(given, A_X_B, B_Y_A), **tables)
    for at, node_type in enumerate(HETERO_NODES):
        stored = torch.load(peers / f"glt_hetero/node_pb/{node_type}.pt").numpy()
        np.testing.assert_array_equal(owners(tmp_path / "out", at), stored)


def test_a_topology_that_glt_cached_whole_has_ids_for_some_types_and_gets_them_for_others_if_asked(
    peers, given, tmp_path
):
    with pytest.raises(ValueError, match=r"b__y__a has no eids\.pt: .* renumber_edges=True"):
        import_glt(peers / "glt_hetero_cached", tmp_path / "out")
    assert not list(tmp_path.iterdir())
    import_glt(peers / "glt_hetero_cached", tmp_path / "out", renumber_edges=True, edge_assign_strategy="by_dst")
    edges = hetero_edges(given, A_X_B, B_Y_A)
    rows, cols = (torch.load(peers / f"glt_hetero_cached/graph/b__y__a/{name}.pt") for name in ("rows", "cols"))
    assert sorted(zip(rows.tolist(), cols.tolist(), strict=True)) == sorted(map(tuple, edges[B_Y_A].T.tolist()))
    edges[B_Y_A] = torch.stack([rows, cols]).numpy()
    tables = {"node_feat": {"a": given["a_feat"]}, "edge_feat": {A_X_B: given["x_feat"]}}
    assert_union_is_the_input(load_all(tmp_path / "out"), HETERO_NODES, edges, **tables)


def test_a_range_book_of_glt_is_read_without_its_class(peers, given, tmp_path, monkeypatch):
    source = shutil.copytree(peers / "glt_homo", tmp_path / "glt")
    book = foreign_class(monkeypatch, "graphlearn_torch.partition.partition_book", "RangePartitionBook")()
    book.partition_bounds = torch.tensor([12, 20])
    torch.save(book, source / "node_pb.pt")
    monkeypatch.undo()  # the class is gone
    edges = torch.from_numpy(given["edge_index"])
    for part in range(2):
        mine = torch.nonzero((edges[0] >= 12) == bool(part)).reshape(-1)
        for name, value in (("rows", edges[0][mine]), ("cols", edges[1][mine]), ("eids", mine)):
            torch.save(value, source / f"part{part}/graph/{name}.pt")
    import_glt(source, tmp_path / "out")
    np.testing.assert_array_equal(owners(tmp_path / "out"), np.arange(20) >= 12)


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"x": torch.arange(40.0).view(20, 2), "edge_attr": torch.arange(60.0).view(60, 1)},
        {"x": torch.arange(20.0).bfloat16(), "time": torch.arange(20)},
    ],
    ids=["plain", "features", "times"],
)
def test_a_directory_of_pyg(given, tmp_path, monkeypatch, tables):
    data = Data(edge_index=torch.from_numpy(given["edge_index"]), num_nodes=NUM_NODES, **{"x": None, **tables})
    write_pyg(tmp_path / "pyg", data, 3, monkeypatch)
    manifest = import_pyg(tmp_path / "pyg", tmp_path / "out", node_label=given["node_label"])
    expected = {"node_feat": tables.get("x"), "edge_feat": tables.get("edge_attr"), "node_label": given["node_label"]}
    if "time" in tables:
        expected["node_time"] = tables["time"].numpy()
    assert_union_is_the_input(load_all(tmp_path / "out"), NUM_NODES, given["edge_index"], **expected)
    np.testing.assert_array_equal(owners(tmp_path / "out"), np.arange(NUM_NODES) % 3)
    assert manifest.edge_dir == "in"


def test_a_heterogeneous_directory_of_pyg(given, tmp_path, monkeypatch):
    data, edges = HeteroData(), hetero_edges(given, A_X_B, B_Y_A, A_Z_A)
    for node_type, num_nodes in HETERO_NODES.items():
        data[node_type].x = torch.arange(2.0 * num_nodes).view(num_nodes, 2)
    for edge_type, edge_index in edges.items():
        data[edge_type].edge_index = torch.from_numpy(edge_index)
        data[edge_type].edge_attr = torch.arange(edge_index.shape[1]).view(-1, 1)
        data[edge_type].edge_time = torch.arange(edge_index.shape[1]) % 7
    write_pyg(tmp_path / "pyg", data, 2, monkeypatch)
    import_pyg(tmp_path / "pyg", tmp_path / "out")
    assert_union_is_the_input(
        load_all(tmp_path / "out"),
        HETERO_NODES,
        edges,
        node_feat={node_type: data[node_type].x for node_type in HETERO_NODES},
        edge_feat={edge_type: data[edge_type].edge_attr for edge_type in edges},
        edge_time={edge_type: data[edge_type].edge_time.numpy() for edge_type in edges},
    )
    np.testing.assert_array_equal(owners(tmp_path / "out", 1), (12 + np.arange(9)) % 2)


@pytest.mark.parametrize("name", ["dgl_homo", "dgl_csc"])
def test_a_directory_of_dgl_with_its_mappings_has_the_original_ids(peers, given, tmp_path, name):
    maps = {kind: mapping(peers, name, kind.removeprefix("orig_")) for kind in ("orig_nids", "orig_eids")}
    manifest = import_dgl(peers / name, tmp_path / "out", **maps)
    tables = {key: given[key] for key in ("node_feat", "node_label", "edge_feat")}
    tables["node_attrs"] = {"train_mask": np.uint8(given["node_label"] % 3 == 0)}  # DGL stores no bool
    assert_union_is_the_input(load_all(tmp_path / "out"), NUM_NODES, given["edge_index"], **tables)
    assert manifest.edge_dir == "in"
    assert manifest.arguments["part_method"] in ("metis", "random")


def test_a_directory_of_dgl_without_mappings_keeps_the_ids_that_dgl_gave(peers, given, tmp_path):
    import_dgl(peers / "dgl_homo/homo.json", tmp_path / "out")
    nids, eids = (mapping(peers, "dgl_homo", kind).numpy() for kind in ("nids", "eids"))
    edges = np.argsort(nids)[given["edge_index"][:, eids]]
    tables = {"node_feat": given["node_feat"][nids], "node_label": nids, "edge_feat": given["edge_feat"][eids]}
    tables["node_attrs"] = {"train_mask": np.uint8(nids % 3 == 0)}
    assert_union_is_the_input(load_all(tmp_path / "out"), NUM_NODES, edges, **tables)
    assert (np.diff(owners(tmp_path / "out").astype(int)) >= 0).all()  # DGL's ids are contiguous by partition


@pytest.mark.parametrize(("name", "graph"), [("dgl_homo", "homo"), ("dgl_hetero", "hetero")])
def test_a_directory_of_dgl_keeps_its_name_and_with_relabel_its_part_config(peers, tmp_path, name, graph):
    out = tmp_path / "out"
    import_dgl(peers / name, out, relabel=True)
    assert read_part_config(out) == read_part_config(out / f"{graph}.json") == (out, graph)
    ours, dgls = (json.loads((root / f"{graph}.json").read_text()) for root in (out, peers / name))
    for key in ("graph_name", "part_method", "num_parts", "halo_hops", "num_nodes", "num_edges", "ntypes", "etypes"):
        assert ours[key] == dgls[key], key
    assert ours["node_map"] == dgls["node_map"] and ours["edge_map"] == dgls["edge_map"]
    (out / f"{graph}.json").write_text(json.dumps(dgls))
    assert read_part_config(out / f"{graph}.json") == (out, graph), "DGL's own, beside what was imported"


@pytest.mark.parametrize("name", ["dgl_hetero", "dgl_hetero_gb"])
def test_a_heterogeneous_directory_of_dgl(peers, given, tmp_path, name, hetero_maps):
    import_dgl(peers / name, tmp_path / "out", tables={"edge_weight": "w"}, **hetero_maps)
    assert_is_dgl_hetero(tmp_path / "out", given)


def test_tables_of_dgl_keep_their_names_or_are_left_out(peers, given, tmp_path, hetero_maps):
    edges = hetero_edges(given, A_X_B, A_Z_A, B_Y_A)
    import_dgl(
        peers / "dgl_hetero", tmp_path / "named", tables={"node_label": "feat", "node_feat": "label"}, **hetero_maps
    )
    tables = {"node_label": {"a": given["a_feat"]}, "node_feat": {"b": np.arange(9)}}
    tables["edge_attrs"] = {A_X_B: {"w": np.arange(40.0, dtype=np.float32)}}
    assert_union_is_the_input(load_all(tmp_path / "named"), HETERO_NODES, edges, **tables)
    import_dgl(peers / "dgl_hetero", tmp_path / "bare", leave_out=["w", "feat", "label"], **hetero_maps)
    assert_union_is_the_input(load_all(tmp_path / "bare"), HETERO_NODES, edges)


def test_tables_of_dgl_may_have_any_name(peers, tmp_path):
    source = shutil.copytree(peers / "dgl_homo", tmp_path / "dgl")
    names = ("self", "ids", "origin", "row", "col", "first")
    for part in range(2):
        write_tensors(source / f"part{part}/node_feat.dgl", {f"_N/{name}": np.arange(10) for name in names})
        (source / f"part{part}/edge_feat.dgl").unlink()
    config = json.loads((source / "homo.json").read_text())
    for part in range(2):
        del config[f"part-{part}"]["edge_feats"]
    (source / "homo.json").write_text(json.dumps(config))
    import_dgl(source, tmp_path / "out")
    assert sorted(load_all(tmp_path / "out")[0].nodes[0].attrs) == sorted(names)


def test_a_graphbolt_directory_gives_the_same_run_as_the_plain_one(peers, tmp_path):
    runs = [import_dgl(peers / name, tmp_path / name).run_id for name in ("dgl_homo", "dgl_homo_gb")]
    assert runs[0] == runs[1] == Manifest.read(tmp_path / "dgl_homo").run_id


def test_a_graphbolt_directory_without_edge_ids_is_refused_or_renumbered(peers, given, tmp_path):
    source = peers / "dgl_hetero_gb_without_eids"
    with pytest.raises(ValueError, match=r"stored without edge ids: .*store_eids=True.*renumber_edges=True"):
        import_dgl(source, tmp_path / "out")
    nids = mapping(peers, "dgl_hetero", "nids")
    import_dgl(source, tmp_path / "out", renumber_edges=True, orig_nids=nids)
    parts, expected = load_all(tmp_path / "out"), hetero_edges(given, A_X_B, A_Z_A, B_Y_A)
    for at, (src, _, dst) in enumerate(expected):
        pairs = []
        for part in parts:
            nodes = part.nodes[part.schema.node_index(dst)].ids
            targets = np.repeat(nodes, np.diff(part.edges[at].indptr))
            pairs += zip(part.edges[at].indices.tolist(), targets.tolist(), strict=True)
        assert sorted(pairs) == sorted(map(tuple, list(expected.values())[at].T.tolist())), (src, dst)


def test_mappings_that_the_pipeline_stored_are_used(peers, given, tmp_path):
    source = shutil.copytree(peers / "dgl_hetero", tmp_path / "dgl")
    config = json.loads((source / "hetero.json").read_text())
    for kind, ranges in (("nids", config["node_map"]), ("eids", config["edge_map"])):
        whole = mapping(peers, "dgl_hetero", kind)
        whole = {":".join(key) if isinstance(key, tuple) else key: value.numpy() for key, value in whole.items()}
        for part in range(3):
            pieces = {}
            for name, of_parts in ranges.items():
                first = sum(end - begin for begin, end in of_parts[:part])
                begin, end = of_parts[part]
                pieces[name] = whole[name][first : first + end - begin]
            write_tensors(source / f"part{part}/orig_{kind}.dgl", pieces)
    import_dgl(source, tmp_path / "out", tables={"edge_weight": "w"})
    assert_is_dgl_hetero(tmp_path / "out", given)
