"""Cases of the one-batch law, and the batches that they must give wherever they are sampled."""

from dataclasses import dataclass, field
from typing import Any

import torch
from dist_world import NUM_NODES, seeds_of

import glt
from glt.testing import reference_batch

SEED = 77


@dataclass(frozen=True)
class Case:
    """Options of a loader, and how its batches are sampled."""

    name: str
    num_neighbors: tuple[int, ...] = (5, 3, 2)
    loader: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("features and edges", loader={"shuffle": True, "with_edge": True, "collect_features": True}),
    Case("replace", (4, 4), {"replace": True, "with_edge": True, "collect_features": True, "drop_last": True}),
    Case("all neighbours", (-1, 2), {"shuffle": True, "with_edge": True, "collect_features": True}),
    Case("ids only", (3, 2), {}),
    Case("edge features without edge ids", (3, 2), {"collect_features": True, "shuffle": True, "drop_last": True}),
    Case("wide hop, then none", (700, 0), {"with_edge": True, "shuffle": True}),
]


def reference(world, case, rank):
    """The same batches from the whole graph in this process."""
    graph = world.graph
    seeds, given = seeds_of(rank), case.loader
    collect, with_edge = given.get("collect_features", False), given.get("with_edge", False)
    tables = {"x": world.x, "y": world.y, "edge_attr": world.edge_attr}
    order = glt.sampler.order.SeedOrder(
        len(seeds), 16, given.get("shuffle", False), given.get("drop_last", False), SEED + rank
    )
    batches = []
    for epoch in range(2):
        for index in order.batches(epoch):
            made = reference_batch(
                graph.edge_index, NUM_NODES, seeds[index.input_id].tolist(), case.num_neighbors,
                given.get("replace", False), SEED + rank, epoch, index.index, world.edge_dir,
            )  # fmt: skip
            node, edge = torch.from_numpy(made.node), torch.from_numpy(made.edge)
            batch = {
                "n_id": node,
                "edge_index": torch.stack([torch.from_numpy(made.row), torch.from_numpy(made.col)]),
                "input_id": index.input_id,
                "batch_size": len(index.input_id),
                "num_sampled_nodes": made.num_sampled_nodes,
                "num_sampled_edges": made.num_sampled_edges,
            }
            if with_edge:
                batch["e_id"] = edge
            if collect:
                batch |= {
                    name: table[edge if name == "edge_attr" else node]
                    for name, table in tables.items()
                    if table is not None
                }
            batches.append(batch)
    return batches


def assert_same(got, wanted, what):
    assert len(got) == len(wanted), what
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.keys() == b.keys(), f"{what}, batch {i}"
        for name in a:
            if isinstance(a[name], torch.Tensor):
                assert a[name].dtype == b[name].dtype, f"{what}, batch {i}, {name}"
                assert torch.equal(a[name], b[name]), f"{what}, batch {i}, {name}"
            else:
                assert a[name] == b[name], f"{what}, batch {i}, {name}"
