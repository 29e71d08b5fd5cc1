"""Partitioners that look at the edges: few of them are cut, within the balance asked for."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_world import BY_ADJACENCY, needs_metis

from glt.data.tasks import read_hetero_npz
from glt.partition import FennelPartitioner, Manifest, MetisPartitioner, RandomPartitioner
from glt.partition.format.files import remove_stale, scratch_directory
from glt.partition.methods.balance import label_caps
from glt.partition.methods.edge_cut import MAX_KINDS

DBLP = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dblp_hetero.npz"

both = pytest.mark.parametrize("partitioner", BY_ADJACENCY)


def communities(num_communities=4, size=150, degree=12, share_outside=0.1, seed=0):
    """Edges mostly inside communities; node ``v`` belongs to community ``v % num_communities``, so ids tell nothing."""
    generator = np.random.default_rng(seed)
    num_nodes, num_edges = num_communities * size, num_communities * size * degree
    src = generator.integers(0, num_nodes, num_edges)
    inside = generator.integers(0, size, num_edges) * num_communities + src % num_communities
    dst = np.where(generator.random(num_edges) < share_outside, generator.integers(0, num_nodes, num_edges), inside)
    return num_nodes, np.stack([src, dst])


def cut_ratio(owner, edge_index):
    return np.mean(owner[edge_index[0]] != owner[edge_index[1]])


def all_owners(partitioner):
    nodes = partitioner.graph.nodes
    return [np.asarray(partitioner.assign_nodes(at, each.num_nodes), np.int64) for at, each in enumerate(nodes)]


@both
@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_communities_are_kept_together(tmp_path, partitioner, num_parts):
    num_nodes, edge_index = communities()
    (owner,) = all_owners(partitioner(tmp_path / "parts", num_parts, num_nodes, edge_index))
    # Random assignment cuts 1 - 1 / num_parts. Communities leave 3/4 of a tenth, 7.5%, where parts do not split them;
    # where they do, half of what is inside may be cut too.
    assert cut_ratio(owner, edge_index) < (0.12 if num_parts <= 4 else 0.5)
    assert np.bincount(owner, minlength=num_parts).max() <= 1.05 * num_nodes / num_parts + 1


@both
def test_communities_across_types_are_kept_together(tmp_path, partitioner):
    num_nodes, edge_index = communities(size=200)
    # Even nodes are papers and odd ones authors, by halves of their id: communities have nodes of one type each ...
    kinds = {0: "paper", 1: "author"}
    edges = {}
    for src_kind, src_type in kinds.items():
        for dst_kind, dst_type in kinds.items():
            of_kind = (edge_index[0] // 4 % 2 == src_kind) & (edge_index[1] // 4 % 2 == dst_kind)
            # ... unless blocks of four, which hold a node of each community, alternate between types.
            edges[src_type, "to", dst_type] = edge_index[:, of_kind] // 8 * 4 + edge_index[:, of_kind] % 4
    counts = {"paper": num_nodes // 2, "author": num_nodes // 2}
    run = partitioner(tmp_path / "parts", 4, counts, edges, balance_ntypes=True).partition()
    assert run.edge_cut_ratio < 0.12
    for entry in run.node_types:
        assert max(entry.part_num_nodes) <= 1.05 * entry.num_nodes / 4 + 1
        assert [label.part_num_nodes for label in entry.balanced_labels] == [entry.part_num_nodes]


@st.composite
def labelled_graphs(draw):
    """Hubs, loops, parallel edges, isolated nodes, types without nodes; labels of some types, rare and frequent."""
    num_nodes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = {f"type{at}": count for at, count in enumerate(num_nodes)}
    edge_index = {}
    for src in counts:
        for dst in counts:
            num_edges = draw(st.integers(0, 60)) if counts[src] and counts[dst] else 0
            ends = [(generator.random(num_edges) ** 3 * counts[end]).astype(np.int64) for end in (src, dst)]
            edge_index[src, "to", dst] = np.stack(ends)
    labels = {}
    for node_type, count in counts.items():
        if draw(st.booleans()):
            labels[node_type] = [generator.integers(-1, 3, count), generator.random(count) < 0.2][
                : draw(st.integers(1, 2))
            ]
    return counts, edge_index, draw(st.sampled_from([None, True, labels]))


@both
@settings(max_examples=40, deadline=None)
@given(
    graph=labelled_graphs(),
    num_parts=st.integers(1, 40),
    imbalance=st.sampled_from([0, 0.05, 0.5]),
    balance_edges=st.booleans(),
    strategy=st.sampled_from(["by_src", "by_dst"]),
)
def test_every_node_has_one_owner_within_the_bound_and_always_the_same(
    tmp_path_factory, partitioner, graph, num_parts, imbalance, balance_edges, strategy
):
    counts, edge_index, labels = graph
    root = tmp_path_factory.getbasetemp() / "never written"

    def make():
        balance = {"imbalance": imbalance, "balance_ntypes": labels, "balance_edges": balance_edges}
        return partitioner(root, num_parts, counts, edge_index, edge_assign_strategy=strategy, **balance)

    first, again = make(), make()
    owners = all_owners(first)
    for owner, same in zip(owners, all_owners(again), strict=True):
        np.testing.assert_array_equal(owner, same)
    assert [owner.size for owner in owners] == list(counts.values())
    owner = np.concatenate(owners)
    assert ((owner >= 0) & (owner < num_parts)).all()
    label, count = first.balance.of_all_nodes(first.graph)
    of_part = np.zeros((num_parts, count.size), np.int64)
    np.add.at(of_part, (owner, 0 if label is None else label), 1)
    assert (of_part <= label_caps(count, num_parts, imbalance)).all()
    assert of_part.sum(1).max() <= label_caps(np.array([owner.size]), num_parts, imbalance)[0]


@both
@pytest.mark.parametrize("num_labels", [600, 300])
def test_labels_of_few_nodes_do_not_bring_all_nodes_together(tmp_path, partitioner, num_labels):
    num_nodes, edge_index = communities()
    label = np.arange(num_nodes) % num_labels
    (owner,) = all_owners(partitioner(tmp_path / "parts", 4, num_nodes, edge_index, balance_ntypes=label))
    assert np.bincount(owner, minlength=4).max() <= 1.05 * num_nodes / 4 + 1
    assert len(np.unique(label * 4 + owner)) == num_nodes  # of one or two nodes, no two share a partition


@both
@pytest.mark.parametrize(
    "edge_index", [np.zeros((2, 0), np.int64), np.tile(np.arange(10), (2, 1))], ids=["none", "loops"]
)
def test_without_edges_only_balance_counts(tmp_path, partitioner, edge_index):
    (owner,) = all_owners(partitioner(tmp_path / "parts", 3, 10, edge_index, imbalance=0))
    assert sorted(np.bincount(owner)) in ([3, 3, 4], [2, 4, 4])


def test_a_node_of_large_degree_counts_once_for_nodes_and_often_for_edges(tmp_path):
    # A star: its centre owns all edges by source, and as many as all others together by neither.
    num_nodes = 101
    star = np.stack([np.zeros(100, np.int64), np.arange(1, 101)])
    manifest = FennelPartitioner(tmp_path / "parts", 2, num_nodes, star, balance_edges=True).partition()
    assert sorted(manifest.part_num_edges) == [0, 100] and max(manifest.part_num_nodes) <= 53


@both
def test_edges_are_balanced_where_asked_for(tmp_path, partitioner):
    generator = np.random.default_rng(0)
    num_nodes, num_edges = 2000, 20_000
    edge_index = (generator.random((2, num_edges)) ** 2 * num_nodes).astype(np.int64)
    runs = [
        partitioner(tmp_path / f"parts{asked}", 4, num_nodes, edge_index, balance_edges=asked).partition()
        for asked in (False, True)
    ]
    assert runs[0].edge_types[0].balance_ratio < 0.8 < 0.9 < runs[1].edge_types[0].balance_ratio
    assert runs[1].node_types[0].balance_ratio > 0.95
    assert runs[1].edge_cut_ratio < 0.75


@both
def test_edges_are_balanced_of_each_type_and_of_masked_nodes(tmp_path, partitioner):
    """All edges together may be even where those of a type are not: here those to a dozen venues."""
    generator = np.random.default_rng(0)
    num_nodes = {"paper": 3000, "venue": 12}
    cites = (generator.random((2, 30_000)) ** 2 * 3000).astype(np.int64)
    appears = np.stack([np.arange(3000), np.arange(3000) * 12 // 3000])
    mask = np.arange(3000) < 600
    runs = [
        partitioner(
            tmp_path / f"parts{asked}",
            3,
            num_nodes,
            {("paper", "cites", "paper"): cites, ("paper", "in", "venue"): appears},
            edge_assign_strategy="by_dst",
            balance_ntypes={"paper": mask},
            balance_edges=asked,
        ).partition()
        for asked in (False, True)
    ]
    for entry in runs[0].edge_types:
        assert entry.balanced_labels == ()
    of_cites, of_appears = runs[1].edge_types
    assert of_cites.balance_ratio > 0.92 and of_appears.balance_ratio > 0.92
    assert [each.label for each in of_cites.balanced_labels] == [(0,), (1,)]
    assert sum(each.num_edges for each in of_cites.balanced_labels) == 30_000
    assert of_cites.balanced_labels[1].num_edges == np.count_nonzero(mask[cites[1]])
    assert all(each.balance_ratio > 0.92 for each in of_cites.balanced_labels)
    assert of_appears.balanced_labels == (), "venues have one label: the counts of partitions say the same"
    assert Manifest.read(tmp_path / "partsTrue") == runs[1]


@both
def test_of_very_many_edge_types_small_ones_are_balanced_together(tmp_path, partitioner):
    generator = np.random.default_rng(0)
    edges = {("node", f"r{at}", "node"): generator.integers(0, 2000, (2, 40 * (at + 1))) for at in range(3 * MAX_KINDS)}
    made = partitioner(tmp_path / "parts", 4, {"node": 2000}, edges, edge_assign_strategy="by_dst", balance_edges=True)
    (kinds,) = made.edge_kinds
    assert list(map(len, kinds)) == [1] * (MAX_KINDS - 1) + [2 * MAX_KINDS + 1]
    (counts,) = made.owned_edges()
    assert counts.sum(0).tolist() == [sum(edges.num_edges for edges in kind) for kind in kinds]
    run = made.partition()
    large = sorted(run.edge_types, key=lambda entry: entry.num_edges)[-MAX_KINDS + 1 :]
    assert min(entry.balance_ratio for entry in large) > 0.9


@pytest.mark.shared
@pytest.mark.skipif(not DBLP.is_file(), reason=f"{DBLP} is absent")
@needs_metis
@pytest.mark.parametrize(("labels", "least"), [(None, 0.95), (True, 0.9)])
def test_each_edge_type_of_a_real_graph_is_balanced(tmp_path, labels, least):
    """Papers to their 20 conferences were at 1.61 of the mean, with ``balance_ntypes`` at 1.40, when all edges had one
    bound."""
    task = read_hetero_npz(DBLP)
    edges = {edge_type: ends.numpy() for edge_type, ends in task.edge_index.items()}
    given = {"edge_assign_strategy": "by_dst", "balance_edges": True, "balance_ntypes": labels}
    run = MetisPartitioner(tmp_path / "parts", 4, task.num_nodes, edges, **given).partition()
    assert min(entry.balance_ratio for entry in run.edge_types) > least
    assert run.edge_cut_ratio < 0.55


@both
def test_seed_and_arguments_are_in_the_manifest(tmp_path, partitioner):
    num_nodes, edge_index = communities(size=40)
    run = partitioner(tmp_path / "parts", 2, num_nodes, edge_index, random_seed=7, imbalance=0.1).partition()
    assert run == Manifest.read(tmp_path / "parts") and run.strategy == partitioner.__name__
    assert run.arguments.items() >= {"random_seed": 7, "imbalance": 0.1, "balance_edges": False}.items()


def test_more_passes_cut_fewer_edges(tmp_path):
    num_nodes, edge_index = communities(num_communities=8, size=300, share_outside=0.3)

    def cut(num_passes):
        (owner,) = all_owners(FennelPartitioner(tmp_path / "parts", 8, num_nodes, edge_index, num_passes=num_passes))
        return cut_ratio(owner, edge_index)

    cuts = [cut(num_passes) for num_passes in (1, 3, 12)]
    assert cuts == sorted(cuts, reverse=True) and cuts[2] < 0.8 * cuts[0]


OF_FENNEL = [
    ({"imbalance": -0.1}, r"imbalance = -0.1: expected a number from 0 to 1"),
    ({"imbalance": "5%"}, r"imbalance = '5%'"),
    ({"num_passes": 0}, r"num_passes = 0: expected 1 to 1000"),
    ({"random_seed": -1}, r"random_seed = -1"),
]
OF_METIS = [
    ({"objtype": "volume"}, r"objtype = 'volume': expected 'cut' .* or 'vol'"),
    ({"random_seed": 2**31}, r"random_seed = 2147483648: expected 0 to 2147483647, METIS's seed"),
    ({"memory_budget_bytes": -1}, r"memory_budget_bytes = -1"),
]


@pytest.mark.parametrize(
    ("partitioner", "options", "message"),
    [*((FennelPartitioner, *case) for case in OF_FENNEL), *((MetisPartitioner, *case) for case in OF_METIS)],
)
def test_bad_arguments_are_refused(tmp_path, partitioner, options, message):
    with pytest.raises(ValueError, match=message):
        partitioner(tmp_path / "parts", 2, 3, np.zeros((2, 1), np.int64), **options)


@both
def test_an_error_while_assigning_leaves_nothing(tmp_path, partitioner, monkeypatch):
    num_nodes, edge_index = communities(size=20)
    made = partitioner(tmp_path / "parts", 2, num_nodes, edge_index)
    monkeypatch.setattr(made, "assign_all", lambda *_: np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="expected one owner per node"):
        made.partition()
    assert list(tmp_path.iterdir()) == []


@both
def test_the_forecast_covers_the_assignment(tmp_path, partitioner):
    num_nodes, edge_index = communities(size=2000)
    options = {"sort_memory_bytes": 1 << 20, "num_threads": 1}
    plain = RandomPartitioner(tmp_path / "parts", 4, num_nodes, edge_index, **options).forecast()
    made = partitioner(tmp_path / "parts", 4, num_nodes, edge_index, **options)
    expected = made.forecast()
    num_edges = edge_index.shape[1]
    assert expected.disk_bytes >= 56 * num_edges and expected.seconds > plain.seconds
    assert expected.peak_memory_bytes >= plain.peak_memory_bytes
    assert expected.peak_memory_bytes >= made.assign_bytes(num_nodes, 2 * num_edges)


def test_scratch_files_vanish_with_their_run_or_in_the_next_one(tmp_path):
    target = tmp_path / "parts"
    with pytest.raises(RuntimeError), scratch_directory(target) as directory:
        (directory / "adjacency").touch()
        remove_stale(target)
        assert (directory / "adjacency").exists()  # its run is alive
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    directory.mkdir()  # as a killed run leaves it: nobody holds its lock
    remove_stale(target)
    assert list(tmp_path.iterdir()) == []
