"""What is of a wrong type is named, with its value and what was expected, by everything that DGL's users call."""

import re

import numpy as np
import pytest
import torch

import glt
from glt.distributed import (
    DistDataLoader,
    DistEmbedding,
    DistGraph,
    DistTensor,
    EdgeDataLoader,
    GlobalUniform,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NodeDataLoader,
    PerSourceUniform,
    SparseAdagrad,
    SparseAdam,
)


@pytest.fixture
def graph(world):
    glt.distributed.initialize(part_config=world(2, "in", "xye").path)
    yield DistGraph("small")
    glt.distributed.finalize()


# What stands for many others: text, nothing, an object, lists, several numbers, a number that is none.
WRONG = ["a", None, object(), [], {}, torch.ones(2, 2), np.array(["a"]), b"x", float("nan"), lambda: 0]
NUMBERS = ("lr", "eps", "lr_decay", "initial_accumulator_value", "timeout_s")


def refused(name, call, wrong):
    with pytest.raises((TypeError, ValueError)) as raised:
        call(**{name: wrong})
    text = str(raised.value)
    assert re.search(rf"\b{name}\b.*(=|has|is).*expected", text, re.DOTALL), text


@pytest.mark.parametrize("kind", [SparseAdam, SparseAdagrad])
def test_options_of_optimizers(kind, graph):
    embedding = DistEmbedding(10, 4)
    names = [name for name in NUMBERS if name in kind.__init__.__annotations__]
    assert len(names) >= 3
    for wrong in WRONG:
        for name in names:
            refused(name, lambda **given: kind([embedding], **given), wrong)
        for name in ("betas",) if kind is SparseAdam else ():
            refused(name, lambda **given: kind([embedding], **given), wrong)
        for name in ("reduction", "maximize"):
            refused(name, lambda **given: kind([embedding], **given), wrong)
        for name in {*names, "reduction", "maximize"} - {"timeout_s"}:  # those of a group
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
            given = {"shape": (10, 2), "name": "t"}
            if wrong is None or (name == "name" and wrong == "a") or (name == "part" and isinstance(wrong, list)):
                continue
            if name == "part" and isinstance(wrong, str):
                continue  # a type that there is not, which is a KeyError
            refused(name, lambda **more: DistTensor(**{**given, **more}), wrong)  # noqa: B023
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
        with pytest.raises(ValueError, match=r"shape\[1\] = \d+: expected 0 or more, and below 2\^63"):
            DistTensor((2, huge))
    with pytest.raises(ValueError, match=r"values = 1000000+: expected what torch.int64 holds"):
        DistTensor((2,), torch.int64)[:] = 10**30
    with pytest.raises(TypeError, match=r"ids = \[\[1\], \[2, 3\]\]: expected integer ids"):
        graph.ndata["x"][[[1], [2, 3]]]


def test_questions_to_a_graph(graph):
    asked = [
        ("edge_ids", graph.find_edges), ("edges", graph.edge_subgraph),
        ("seeds", lambda **k: graph.sample_neighbors(fanout=2, **k)),
        ("sources", lambda **k: graph.has_edges_between(targets=[1], **k)),
        ("ids", lambda **k: graph.get_partition_book().node_owners(**k)),
    ]  # fmt: skip
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
        refused("replace", lambda **more: MultiLayerNeighborSampler([2], **more), wrong)
        if wrong is not None and not isinstance(wrong, str):
            refused("prob", lambda **more: MultiLayerNeighborSampler([2], **more), wrong)
            refused("random_seed", lambda **more: DistDataLoader([1, 2], collate_fn=list, **more), wrong)
    with pytest.raises(TypeError, match=r"fanouts\[1\] = 1.5: expected an integer"):
        MultiLayerNeighborSampler([2, 1.5])
