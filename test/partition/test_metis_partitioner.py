"""METIS through pymetis: what it is given, what it answers, and what is refused beforehand."""

import ctypes
import sys

import numpy as np
import pytest
from test_adjacency_partitioners import communities, cut_ratio

from glt.partition import MetisPartitioner
from glt.partition.methods.metis import Metis

pymetis = pytest.importorskip("pymetis")


def pymetis_owner(num_nodes, edge_index, num_parts, recursive, **options):
    """pymetis's own call on the merged graph, which shows that ours is the same call."""
    weight = np.zeros((num_nodes, num_nodes), np.int64)
    np.add.at(weight, tuple(edge_index), 1)
    weight += weight.T
    np.fill_diagonal(weight, 0)
    rows, cols = np.nonzero(weight)
    indptr = np.searchsorted(rows, np.arange(num_nodes + 1))
    graph = {"adjacency": pymetis.CSRAdjacency(indptr, cols), "eweights": weight[rows, cols]}
    found = pymetis.part_graph(num_parts, **graph, recursive=recursive, options=pymetis.Options(**options))
    return np.array(found.vertex_part), found.edge_cuts


@pytest.mark.parametrize("num_parts", [2, 3, 8])
def test_the_answer_is_that_of_pymetis_and_its_cut_is_ours(tmp_path, num_parts):
    num_nodes, edge_index = communities(size=100)  # with loops and parallel edges
    manifest_of = MetisPartitioner(tmp_path / "parts", num_parts, num_nodes, edge_index, random_seed=5)
    owner = manifest_of.assign_nodes(0, num_nodes)
    wanted, num_cut = pymetis_owner(num_nodes, edge_index, num_parts, True, seed=5, ufactor=50)
    np.testing.assert_array_equal(owner, wanted)
    assert num_cut == round(cut_ratio(owner, edge_index) * edge_index.shape[1])


def test_the_communication_volume_may_be_the_objective(tmp_path):
    num_nodes, edge_index = communities(size=100)
    partitioner = MetisPartitioner(tmp_path / "parts", 4, num_nodes, edge_index, objtype="vol")
    wanted, _ = pymetis_owner(num_nodes, edge_index, 4, False, seed=0, ufactor=50, objtype=pymetis.ObjType.VOL)
    np.testing.assert_array_equal(partitioner.assign_nodes(0, num_nodes), wanted)
    assert partitioner.strategy_arguments()["objtype"] == "vol"


def test_labels_are_constraints(tmp_path):
    num_nodes, edge_index = communities(num_communities=2, size=400)
    label = np.arange(num_nodes) % 2  # the communities themselves: keeping them together and apart at the same time
    partitioner = MetisPartitioner(tmp_path / "parts", 2, num_nodes, edge_index, balance_ntypes=label, imbalance=0.02)
    owner = partitioner.assign_nodes(0, num_nodes)
    for value in (0, 1):
        assert np.bincount(owner[label == value]).max() <= 204
    assert cut_ratio(owner, edge_index) < 0.5


def hubs(num_nodes, num_edges, exponent):
    generator = np.random.default_rng(0)
    share = (np.arange(num_nodes) + 1.0) ** -exponent
    return np.stack(
        [generator.integers(0, num_nodes, num_edges), generator.choice(num_nodes, num_edges, p=share / share.sum())]
    )


def test_keeping_the_bound_of_nodes_does_not_uneven_the_edges_of_hubs(tmp_path):
    num_nodes, num_parts, edge_index = 2000, 4, hubs(2000, 20_000, 1.0)
    partitioner = MetisPartitioner(
        tmp_path / "parts", num_parts, num_nodes, edge_index, balance_edges=True, edge_assign_strategy="by_dst"
    )
    owner = partitioner.assign_nodes(0, num_nodes)
    assert np.bincount(owner).max() <= 1.05 * num_nodes / num_parts
    assert np.bincount(owner[edge_index[1]]).max() < 1.15 * edge_index.shape[1] / num_parts


def test_what_metis_prints_goes_to_the_log(tmp_path, capfd, caplog):
    edge_index = hubs(12, 100, 4.0)
    partitioner = MetisPartitioner(
        tmp_path / "parts", 10, 12, edge_index, balance_edges=True, edge_assign_strategy="by_dst"
    )
    with caplog.at_level("DEBUG", "glt.partition"):
        partitioner.assign_nodes(0, 12)
    ctypes.CDLL(None).fflush(None)  # so that what C code still holds is written
    assert capfd.readouterr().out == ""
    assert "METIS says: Cannot bisect a graph with 0 vertices!" in caplog.text


def test_too_little_memory_is_refused_with_both_numbers(tmp_path):
    num_nodes, edge_index = communities(size=100)
    partitioner = MetisPartitioner(tmp_path / "parts", 2, num_nodes, edge_index, memory_budget_bytes=1000)
    with pytest.raises(MemoryError, match=r"expected to take \d+ bytes for 400 nodes .* 1000 \(memory_budget_bytes\)"):
        partitioner.partition()
    assert list(tmp_path.iterdir()) == []
    balanced = MetisPartitioner(tmp_path / "parts", 2, num_nodes, edge_index, balance_edges=True)
    volume = MetisPartitioner(tmp_path / "parts", 2, num_nodes, edge_index, objtype="vol")
    least = partitioner.assign_bytes(9, 20)
    assert all(least < more for more in (partitioner.assign_bytes(10, 20), partitioner.assign_bytes(9, 21)))
    assert least < min(balanced.assign_bytes(9, 20), volume.assign_bytes(9, 20))


def test_what_the_integers_of_metis_cannot_hold_is_refused(tmp_path, monkeypatch):
    num_nodes, edge_index = communities(size=100)
    partitioner = MetisPartitioner(tmp_path / "parts", 2, num_nodes, edge_index)
    loaded = Metis.load()
    narrow = Metis(loaded.library, loaded.pymetis, np.dtype(np.int8))
    monkeypatch.setattr(partitioner, "_metis", narrow)
    with pytest.raises(
        ValueError, match=r"400 nodes and \d+ neighbours.*counts to 127: install one built with 64 bits"
    ):
        partitioner.partition()


def test_a_failure_of_metis_is_an_error(tmp_path):
    partitioner = MetisPartitioner(tmp_path / "parts", 2, 2, np.zeros((2, 1), np.int64))
    partitioner.num_parts = 0
    one = np.zeros(1, Metis.load().id_dtype)
    with pytest.raises(RuntimeError, match="METIS could not partition 2 nodes with 1 neighbours into 0"):
        partitioner.part_graph([np.array([0, 0, 1], one.dtype), one, one + 1], None)


def test_without_pymetis_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"needs pymetis.*pip install pymetis.*or use FennelPartitioner"):
        MetisPartitioner(tmp_path / "parts", 2, 3, np.zeros((2, 1), np.int64))
