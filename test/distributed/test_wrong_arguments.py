"""Wrong options and types are refused at once, by name, with what was expected."""

import re

import numpy as np
import pytest
import torch
from dist_typed_world import RATES
from torch_geometric.data import Data, HeteroData

import glt
from glt.distributed import (
    DistDataLoader,
    DistDataset,
    DistEmbedding,
    DistGraph,
    DistTensor,
    EdgeDataLoader,
    GlobalUniform,
    LaborSampler,
    MpDistSamplingWorkerOptions,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NodeDataLoader,
    PerSourceUniform,
    RemoteDistSamplingWorkerOptions,
    SparseAdagrad,
    SparseAdam,
)
from glt.distributed.engine.requests import DegreesRequest, HasEdgesRequest, InducedRequest, OneHopRequest, RowsRequest
from glt.errors import MessageError
from glt.partition import RandomPartitioner

IDS = torch.arange(5)

EDGES = torch.stack([IDS, IDS])
HERE = {"worker_options": glt.distributed.CollocatedDistSamplingWorkerOptions()}


@pytest.fixture
def plain(world, alone):
    return DistDataset().load(world(1, "in", "xy").path, 0)


@pytest.fixture
def typed(typed_world, alone):
    return DistDataset().load(typed_world(1, "out").path, 0)


def nodes(data, seeds=("item", IDS), **given):
    return glt.distributed.DistNeighborLoader(data, [2], seeds, **given)


def links(data, edges=(RATES, EDGES), **given):
    return glt.distributed.DistLinkNeighborLoader(data, [2], edges, **given)


def test_options_that_the_directory_cannot_serve(plain):
    for option, remedy in (("weight_attr", "edge_weight"), ("time_attr", "edge_time=... or node_time")):
        with pytest.raises(ValueError, match=rf"{option} = 'a'.*partition with {remedy}"):
            nodes(plain, IDS, **{option: "a"})


def test_values_that_are_no_such_thing_are_named(plain):
    for given, kind in (
        ({"num_neighbors": {}}, ValueError),
        ({"input_id": "ids"}, TypeError),
        ({"to_device": 3.5}, TypeError),
        ({"filter_per_worker": 0}, TypeError),
        ({"to_device": "meta"}, ValueError),
        ({"input_nodes": IDS.to_sparse()}, TypeError),
    ):
        with pytest.raises(kind, match=rf"^{next(iter(given))} .*expected"):
            glt.distributed.DistNeighborLoader(plain, **{"num_neighbors": [2], "input_nodes": IDS, **given})


def test_worker_options_that_mean_nothing_are_named():
    """Text is true, "no" as well; and who has two workers needs room for both."""
    for given, kind in (
        ({"read_local": "no"}, TypeError),
        ({"pin_memory": "no"}, TypeError),
        ({"channel_size": 1, "num_workers": 2}, ValueError),
        ({"num_workers": 0}, ValueError),
        ({"num_rpc_threads": 0}, ValueError),
        ({"num_rpc_threads": 1.5}, TypeError),
        ({"worker_concurrency": 0}, ValueError),
        ({"rpc_timeout": 0}, ValueError),
        ({"rpc_timeout": "1"}, TypeError),
        ({"master_port": 65536}, ValueError),
        ({"master_addr": 1}, TypeError),
        ({"transport": "udp"}, ValueError),
        ({"transport": 1}, TypeError),
    ):
        with pytest.raises(kind, match=rf"^{next(iter(given))} = .*expected"):
            glt.distributed.MpDistSamplingWorkerOptions(**given)


def test_integers_of_numpy_are_taken():
    options = MpDistSamplingWorkerOptions(
        num_workers=np.int64(2), num_rpc_threads=np.int32(3), gather_window=np.int8(4)
    )
    kept = options.num_workers, options.gather_window, options.rpc_threads(2), options.channel_bytes(2)
    assert kept == (2, 4, 3, 2 * 256 << 20) and {*map(type, kept)} == {int}
    assert RemoteDistSamplingWorkerOptions(server_rank=[np.int64(1), 0]).server_rank == [1, 0]


def test_what_does_nothing_is_told_by_name_with_what_does():
    with pytest.warns(UserWarning) as warned:
        glt.distributed.RemoteDistSamplingWorkerOptions(
            master_addr="localhost", master_port=11112, num_rpc_threads=4, prefetch_size=2
        )
    assert [str(each.message).partition(" has no effect: ")[::2] for each in warned] == [
        ("master_addr = 'localhost'", "samplers of servers find each other; init_client names server 0"),
        ("master_port = 11112", "samplers of servers find each other; init_client names server 0"),
        ("num_rpc_threads = 4", "servers are told theirs in init_server"),
    ]
    assert {each.filename for each in warned} == {__file__}
    with (
        pytest.warns(UserWarning, match="^num_rpc_threads = 4 has no effect: a client answers no requests"),
        pytest.raises(TypeError, match="master_addr"),
    ):
        glt.distributed.init_client(1, 1, 0, 5, 11111, num_rpc_threads=4)


def test_options_that_exclude_each_other(typed):
    for given, both in (
        ({"weight_attr": "w", "time_attr": "t", "input_time": IDS}, "weight_attr.*time_attr"),
        ({"subgraph_type": "induced", "time_attr": "t", "input_time": IDS}, "subgraph_type.*time_attr"),
        ({"temporal_strategy": "last"}, "temporal_strategy.*time_attr"),
        ({"input_time": IDS}, "input_time.*time_attr"),
        ({"time_attr": "t"}, "time_level.*input_time"),
    ):
        with pytest.raises(ValueError, match=both):
            nodes(typed, **given)
    for given, both in (
        ({"edge_label_time": IDS}, "edge_label_time.*time_attr"),
        ({"time_attr": "t"}, "time_attr.*edge_label_time"),
        ({"neg_sampling": "triplet", "edge_label": IDS}, "edge_label.*triplet"),
        ({"exclude_edges": "self", "subgraph_type": "induced"}, "exclude_edges.*subgraph_type"),
    ):
        with pytest.raises(ValueError, match=both):
            links(typed, **given)


def test_seeds_that_do_not_fit(typed, plain):
    for seeds, error, text in (
        (IDS, ValueError, "no type.*'user', 'item'"),
        (("shop", IDS), ValueError, "'shop': expected one of"),
        (("item", torch.tensor([3, 60])), IndexError, r"input_nodes\[1\] = 60 .* of type 'item' = 60"),
        (("tag", torch.ones(8, dtype=torch.bool)), ValueError, "mask of 8 elements: expected 7"),
    ):
        with pytest.raises(error, match=text):
            nodes(typed, seeds)
    with pytest.raises(ValueError, match="has type 'item': ids without a type"):
        nodes(plain, ("item", IDS))
    with pytest.raises(ValueError, match=r"input_time has shape \[4\]: expected one time per seed, \[5\]"):
        nodes(typed, time_attr="t", input_time=IDS[:4])
    for edges, error, text in (
        (EDGES, ValueError, "no edge type"),
        ((("user", "likes", "item"), EDGES), ValueError, "'likes'.*expected"),
        ((RATES, torch.tensor([[0], [60]])), IndexError, r"\[1, 0\] = 60 is outside .* of type 'item'"),
        ((RATES, EDGES.float()), TypeError, "float32: expected integer"),
    ):
        with pytest.raises(error, match=text):
            links(typed, edges)


def test_links_that_do_not_fit_say_which_argument(typed, plain):
    nan = float("nan")
    for edges, error, text in (
        (5, ValueError, "edge_label_index has no edge type"),
        ((3, EDGES), ValueError, "edge_label_index names edge type 3"),
        ((RATES, [[1, 2], [3]]), TypeError, "edge_label_index is a list that is no tensor"),
    ):
        with pytest.raises(error, match=text):
            links(typed, edges)
    with pytest.raises(TypeError, match=r"edge_label_index is a tuple.*without an edge type"):
        links(plain, (RATES, EDGES))
    for given, error, text in (
        ({"neg_sampling": "some"}, ValueError, "neg_sampling = 'some': expected 'binary'"),
        ({"neg_sampling": {"mod": "binary"}}, TypeError, "neg_sampling = .*'mod'.*expected 'binary'"),
        ({"neg_sampling": {"mode": "binary", "amount": float("inf")}}, ValueError, "amount of neg_sampling = inf"),
        ({"neg_sampling": {"mode": "binary", "amount": nan}}, ValueError, "amount of neg_sampling = nan"),
        ({"neg_sampling": {"mode": "binary", "amount": 1e13}}, ValueError, "amount of neg_sampling = 1e"),
        ({"neg_sampling": {"mode": "binary", "dst_weight": [1.0] * 60}}, TypeError, "dst_weight of neg_.* is a list"),
        ({"edge_label": ["a"] * 5}, TypeError, "edge_label is a list that is no tensor"),
        ({"edge_label": torch.ones(5, 1, 1, 1, 1)}, ValueError, "edge_label has shape .*at most 4 dim"),
        ({"edge_label": torch.ones(5, dtype=torch.complex64)}, TypeError, "edge_label is .*complex64"),
        ({"edge_label": torch.ones(5, device="meta")}, ValueError, r"edge_label is a tensor \[5\] on the meta device"),
        (
            {"edge_label": torch.ones(5).to(torch.float8_e5m2), "neg_sampling": "binary"},
            TypeError,
            "edge_label has dtype .*e5m2: with neg_.* expected one of bool, .*, since 0 is",
        ),
        (
            {"edge_label": torch.tensor([0, 1, 2, 3, 255], dtype=torch.uint8), "neg_sampling": "binary"},
            ValueError,
            "edge_label holds 255.*convert it to int64",
        ),
        ({"batch_size": IDS}, ValueError, "batch_size = tensor.*expected an integer"),
        ({"to_device": "gpu"}, ValueError, "to_device = 'gpu'"),
    ):
        with pytest.raises(error, match=text):
            links(typed, **given)


class Basket(HeteroData):
    """A class of the user's own."""


def test_pygs_other_arguments_keep_their_meaning(typed, plain):
    given = {"batch_size": 5, "random_seed": 3, **HERE}

    def first(make, *args, **flags):
        with make(*args, **given, **flags) as loader:
            return next(iter(loader))

    one = first(links, typed, neg_sampling_ratio=2.0, is_sorted=True, filter_per_worker=True, directed=False)
    other = first(links, typed, neg_sampling={"mode": "binary", "amount": 2}, subgraph_type="induced")
    assert torch.equal(one[RATES].edge_label_index, other[RATES].edge_label_index)
    assert torch.equal(one["user"].n_id, other["user"].n_id) and one[RATES].edge_label.tolist() == [1] * 5 + [0] * 10
    assert "edge_label" not in first(links, typed, neg_sampling_ratio=0.0)[RATES]
    assert isinstance(first(nodes, typed, custom_cls=Basket), Basket)
    for flags, error, text in (
        ({"filter_per_worker": False}, ValueError, "filter_per_worker.*DistDataset.*collect_features=False"),
        ({"custom_cls": Data}, TypeError, "custom_cls = .*Data.*derived from HeteroData"),
        ({"directed": False, "subgraph_type": "bidirectional"}, ValueError, "directed.*subgraph_type"),
        ({"directed": 0}, TypeError, "directed = 0"),
    ):
        with pytest.raises(error, match=text):
            nodes(typed, **flags)
    for flags, text in (
        ({"neg_sampling_ratio": -1.0}, "neg_sampling_ratio = -1.0: expected a number"),
        ({"neg_sampling_ratio": float("nan")}, "neg_sampling_ratio = nan"),
        ({"neg_sampling_ratio": 1.0, "neg_sampling": "triplet"}, "neg_sampling = 'triplet' and .?neg_sampling_ratio"),
    ):
        with pytest.raises(ValueError, match=text):
            links(typed, **flags)


def test_seeds_are_masks_of_any_kind_or_none(plain):
    for given in ([], (), range(0), torch.arange(0)):  # where a partition has none of the training nodes
        with nodes(plain, given, shuffle=True, **HERE) as loader:
            assert len(loader) == 0 and list(loader) == []
    mask = torch.zeros(plain.num_nodes, dtype=torch.bool)
    mask[[7, 9]] = True
    for given in (mask, mask.numpy(), mask.tolist()):
        with nodes(plain, given, batch_size=2, **HERE) as loader:
            assert next(iter(loader)).input_id.tolist() == [7, 9]
        with pytest.raises(ValueError, match="mask of 5 elements: expected"):
            nodes(plain, given[:5])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.tensor([0.5, 2.0]), [0.5, 2.0]),  # 0 is not among them
        (torch.tensor([-0.5, 2.0]), [-0.5, 2.0]),
        (torch.tensor([0.0, 2.0]), [1.0, 3.0]),
        (torch.tensor([0, 2], dtype=torch.uint16), [1, 3]),
        (torch.tensor([False, True]), [1, 2]),
    ],
)
def test_only_labels_that_start_at_0_go_up(typed, given, expected):
    with links(typed, (RATES, EDGES[:, :2]), edge_label=given, neg_sampling="binary", batch_size=2, **HERE) as loader:
        assert next(iter(loader))[RATES].edge_label.tolist() == [*expected, 0, 0]


def test_a_type_alone_stands_for_all_its_nodes(typed):
    with nodes(typed, "tag", batch_size=3, **HERE) as loader:
        assert torch.cat([batch["tag"].n_id[: batch["tag"].batch_size] for batch in loader]).tolist() == list(range(7))


def test_label_files_by_type(typed_world, tmp_path):
    path = typed_world(1, "out").path
    torch.save(torch.arange(90), tmp_path / "user.pt")
    data = DistDataset().load(path, 0, whole_node_label_file={"user": tmp_path / "user.pt"})
    assert data.node_labels["user"][IDS].tolist() == IDS.tolist() and len(data.node_labels["item"]) == 60
    for files, error, text in (
        (tmp_path / "user.pt", TypeError, "dict by node type"),
        ({"shop": tmp_path / "user.pt"}, KeyError, "shop"),
        ({"item": tmp_path / "user.pt"}, ValueError, r"\[90\]: expected one label per node of type 'item', 60"),
    ):
        with pytest.raises(error, match=text):
            DistDataset().load(path, 0, whole_node_label_file=files)


def test_requests_name_the_types_that_they_lack(typed):
    service = typed.own.handlers()
    hop = {"num_neighbors": 2, "replace": False, "batch_key": 1, "hop": 0, "with_edge": False}
    for request, error, text in (
        (OneHopRequest(9, IDS, **hop), ValueError, "edge type 9 is asked for: there are 6"),
        (OneHopRequest(1, IDS, weighted=True, **hop), ValueError, "no weights of .*rev_rates"),
        (OneHopRequest(1, IDS + 57, **hop), IndexError, r"along .*rev_rates.*\[3\] = 60"),
        (OneHopRequest(3, IDS, seed_time=IDS, **hop), ValueError, "times"),
        (OneHopRequest(0, IDS, tree=torch.zeros(2, dtype=torch.uint32), **hop), MessageError, r"'tree' is .*\[2\]"),
        (InducedRequest(-1, IDS, IDS, False), ValueError, "edge type -1"),
        (DegreesRequest(7, IDS), ValueError, "edge type 7"),
        (DegreesRequest(1, IDS + 57), IndexError, "60"),
        (InducedRequest(0, IDS, IDS + 59, False), IndexError, r"members\[1\] = 60"),
        (HasEdgesRequest(0, IDS, IDS[:2]), MessageError, r"'neighbors' is .*\[2\], expected .*\[5\]"),
        (RowsRequest("node", 2, IDS, ("x",)), ValueError, r"no node tables \['x'\] of tag"),
        (RowsRequest("face", 2, IDS, ("x",)), ValueError, "'face': expected 'node' or 'edge'"),
    ):
        with pytest.raises(error, match=text):
            service[request.method](request.encode())


def test_a_knowledge_graph_of_thousands_of_relations(tmp_path, alone):
    num_types = 2700  # FB15k and the reverses
    edge_index = {("entity", f"r{r}", "entity"): torch.tensor([[r % 50], [(r + 1) % 50]]) for r in range(num_types)}
    RandomPartitioner(tmp_path / "parts", 1, {"entity": 50}, edge_index, edge_assign_strategy="by_dst").partition()
    data = DistDataset().load(tmp_path / "parts", 0)
    with nodes(data, ("entity", IDS), batch_size=5, with_edge=True, **HERE) as loader:
        batch = next(iter(loader))
    assert len(batch.edge_types) == num_types
    assert sum(store.e_id.numel() for store in batch.edge_stores) > 0


def test_reverse_types_of_one_name_are_refused(tmp_path, alone):
    to, back, twice = ("a", "to", "b"), ("b", "rev_to", "a"), ("a", "rev_rev_to", "b")
    for strategy in ("by_src", "by_dst"):
        edges = dict.fromkeys((to, back, twice), EDGES)
        sizes = {"a": 5, "b": 5}
        RandomPartitioner(tmp_path / strategy, 1, sizes, edges, edge_assign_strategy=strategy).partition()
    with pytest.raises(ValueError, match=r"edge_dir = 'out'.*'to'.*'rev_rev_to'.*rename one"):
        nodes(DistDataset().load(tmp_path / "by_src", 0), ("a", IDS))
    with nodes(DistDataset().load(tmp_path / "by_dst", 0), ("b", IDS), **HERE) as loader:
        assert len(next(iter(loader)).edge_types) == 3


@pytest.fixture
def graph(world):
    glt.distributed.initialize(part_config=world(2, "in", "xye").path)
    yield DistGraph("small")
    glt.distributed.finalize()


# What stands for many others: text, nothing, an object, lists, several numbers, a number that is none.
WRONG = ["a", None, object(), [], {}, torch.ones(2, 2), np.array(["a"]), b"x", float("nan"), lambda: 0]

OPTIONS = ("lr", "eps", "lr_decay", "initial_accumulator_value", "betas", "reduction", "maximize", "timeout_s")


def refused(name, call, wrong):
    with pytest.raises((TypeError, ValueError)) as raised:
        call(**{name: wrong})
    text = str(raised.value)
    assert re.search(rf"\b{name}\b.*(=|has|is).*expected", text, re.DOTALL), text


@pytest.mark.parametrize("kind", [SparseAdam, SparseAdagrad])
def test_options_of_optimizers(kind, graph):
    embedding = DistEmbedding(10, 4)
    names = [name for name in OPTIONS if name in kind.__init__.__annotations__]
    assert len(names) >= 6
    for wrong in WRONG:
        for name in names:
            refused(name, lambda **given: kind([embedding], **given), wrong)
            if name != "timeout_s":  # which is of no group
                refused(name, lambda **given: kind([{"params": [embedding], **given}]), wrong)
        optimizer = kind([embedding])
        optimizer.param_groups[0]["lr"] = wrong
        refused("lr", lambda lr: optimizer.step(), wrong)  # noqa: B023  it is called here
    assert embedding.rows.optimizer is not None
    for fine in (1, 0.1, np.float32(0.1), torch.tensor(0.1), torch.tensor([0.1])):
        kind([embedding], lr=fine).step()
    with pytest.raises(ValueError, match=r"betas\[1\] = 1.0: expected a number, at least 0 and below 1"):
        SparseAdam([embedding], betas=(0.9, 1.0))


def test_tensors_and_embeddings(graph):
    for wrong in WRONG:
        for name in ("shape", "dtype", "part", "rng_seed", "name"):
            # Text is a name, and as a type that there is not a KeyError, as a list is.
            if wrong is not None and not (name in ("name", "part") and isinstance(wrong, str | list)):
                refused(name, lambda **more: DistTensor(**{"shape": (10, 2), "name": "t", **more}), wrong)
        for name in ("num_embeddings", "embedding_dim"):
            refused(name, lambda **more: DistEmbedding(**{"num_embeddings": 3, "embedding_dim": 2, **more}), wrong)
        if not isinstance(wrong, float | torch.Tensor | list):
            refused("values", lambda values: graph.ndata["x"].__setitem__([1, 2], values), wrong)
        if wrong is not None and not isinstance(wrong, list | torch.Tensor):
            with pytest.raises(TypeError, match=r"ids\b.*expected"):
                graph.ndata["x"][wrong]
        if not isinstance(wrong, str):
            refused("path", lambda path: graph.ndata["x"].save(path), wrong)
            refused("path", lambda path: graph.ndata["x"].load(path), wrong)
    for huge in (10**30, 1 << 63):
        with pytest.raises(ValueError, match="below 2\\^63"):
            DistEmbedding(huge, 2)
        with pytest.raises(ValueError, match=r"shape\[1\] = \d+: expected 0 to \d+, below 2\^63"):
            DistTensor((2, huge))


def test_questions_to_a_graph(graph):
    asked = [
        ("edge_ids", graph.find_edges),
        ("edges", graph.edge_subgraph),
        ("seeds", lambda **k: graph.sample_neighbors(fanout=2, **k)),
        ("sources", lambda **k: graph.has_edges_between(targets=[1], **k)),
        ("ids", lambda **k: graph.get_partition_book().node_owners(**k)),
    ]
    for wrong in ("a", object(), np.array(["a"]), b"x", [object()], [[1], [1, 2]], 10**30):
        for name, ask in asked:
            refused(name, ask, wrong)
    for wrong in WRONG:
        if wrong is not None:
            for ask in (graph.in_degrees, graph.out_degrees):
                with pytest.raises(KeyError, match=r"edge type .* is not in the graph: expected one of"):
                    ask([1], wrong)
            with pytest.raises(KeyError, match=r"node type .* is not in the graph: expected one of"):
                graph.num_nodes(wrong)
            if not isinstance(wrong, str):
                refused("part_config", lambda part_config: DistGraph("small", part_config), wrong)
        for name in ("edge_dir", "replace"):
            refused(name, lambda **k: graph.sample_neighbors([1], 2, **k), wrong)
        refused("relabel_nodes", lambda **k: graph.edge_subgraph([1], **k), wrong)


def test_loaders_and_samplers(graph):
    for wrong in WRONG:
        for kind, seeds in ((NodeDataLoader, "nodes"), (EdgeDataLoader, "edges")):
            given = {"graph": graph, seeds: [1, 2], "sampler": [2]}
            for name in ("graph", "blocks", "num_workers", "batch_size", "shuffle", "drop_last"):
                refused(name, lambda **more: kind(**{**given, **more}), wrong)  # noqa: B023
            if not isinstance(wrong, list | dict):
                refused("sampler", lambda **more: kind(**{**given, **more}), wrong)  # noqa: B023
        if wrong is not None and not isinstance(wrong, list | str | dict):
            for name in ("exclude", "negative_sampler"):
                refused(name, lambda **more: EdgeDataLoader(graph, [1, 2], [2], **more), wrong)
        refused("num_layers", MultiLayerFullNeighborSampler, wrong)
        refused("k", PerSourceUniform, wrong)
        refused("k", GlobalUniform, wrong)
        refused("fanouts", lambda **more: MultiLayerNeighborSampler(**more), wrong)
        refused("fanouts", lambda **more: LaborSampler(**more), wrong)
        refused("batch_dependency", lambda **more: LaborSampler([2], **more), wrong)
        refused("replace", lambda **more: MultiLayerNeighborSampler([2], **more), wrong)
        if wrong is not None and not isinstance(wrong, str):
            refused("prob", lambda **more: MultiLayerNeighborSampler([2], **more), wrong)
            refused("random_seed", lambda **more: DistDataLoader([1, 2], collate_fn=list, **more), wrong)
    with pytest.raises(TypeError, match=r"fanouts\[1\] = 1.5: expected an integer"):
        MultiLayerNeighborSampler([2, 1.5])
