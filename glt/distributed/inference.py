"""Outputs of a model for all nodes, one layer after the other over the whole graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from glt.data.schema import EdgeType, NodeType
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_loader import DistNeighborLoader
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.layer_rows import LayerRows, RowKeeper
from glt.distributed.layer_stack import LayerStack, in_degrees, normalized
from glt.distributed.options import check_count
from glt.distributed.split import node_split
from glt.distributed.world import World, require_world
from glt.partition import load_id_map
from glt.partition.id_map import IdMap


def infer_layerwise(
    model: Any,
    x: Any = None,
    *,
    between: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 4096,
    num_workers: int = 0,
    device: torch.device | str | int | None = None,
    name: str = "inference",
    spill_dir: str | os.PathLike[str] | None = None,
    original_ids: bool = True,
) -> Any:
    """Computes what a model makes of the whole graph, with all neighbours of each node.

    Each layer is computed for all nodes before the next one, so that no node is computed twice, and a trainer holds no
    more than two batches in memory, and those that are sampled ahead. The outputs equal those of the full-batch model
    up to the order of sums, with any number of trainers and partitions. Each trainer computes the nodes near it. All
    trainers of the job call it, with the same arguments; it returns when all are done. The model is not trained
    meanwhile: nothing is dropped, and norms use their running statistics.

    Convolutions are called with features and edges only. Weights of ``GCNConv`` are those of the whole graph. With
    partitions of ``edge_dir='out'`` edges point the other way.

    Args:
        model: A ``BasicGNN`` of ``torch_geometric.nn.models``: ``GraphSAGE, GCN, GAT, GIN, PNA, EdgeCNN``, with jumping
            knowledge too. Or a sequence of layers, each a function of ``x [N, F]`` and ``edge_index [2, E]``, whose
            first rows of output are the seeds'; or a module that has them as ``convs``. Of a heterogeneous graph layers
            are functions of dicts, by node type and by edge type, and return a dict by node type, as ``HeteroConv``
            does; ``GCNConv`` cannot be among them.
        x: Features by node ``[num_nodes, F]``: a :class:`DistTensor`, or a tensor that each trainer has; of a
            heterogeneous graph, a dict of such by node type. Default: those that are stored with the graph.
        between: Applied after all layers but the last, of models other than ``BasicGNN``; for example ``torch.relu``.
            It is given tensors, of a heterogeneous graph one for each node type.
        batch_size: Nodes at a time.
        num_workers: Processes that sample for this trainer; 0: in the trainer, or one of its server.
        device: Where layers are computed. Default: where the parameters are.
        name: Of the result, and what those of parts begin with. What an earlier call of the same name returned is
            replaced.
        spill_dir: A directory that all trainers see: outputs go into mapped ``.npy`` files there, and take no memory
            that is needed otherwise. Default: servers keep them.
        original_ids: Of relabelled partitions, whether row ``i`` of the result is that of the original node ``i``, and
            not of node ``i`` of the partitions. The latter needs no map of ids.

    Returns:
        The outputs ``[num_nodes, ...]``, a :class:`DistTensor` of that name; with ``spill_dir`` a tensor that maps
        ``spill_dir/name.npy``. Of a heterogeneous graph a dict of such, named ``name.type``, for the types that the
        last layer has outputs for.

    Raises:
        RuntimeError: Without :func:`initialize`, or without a graph.
        TypeError, ValueError: If an argument does not fit; if a layer needs more than one hop, or all rows, so that it
            would be wrong; names it.
        NotImplementedError: If the graph is heterogeneous and the model is not.
        glt.errors.PartitionError: If original ids are wanted, and the partitions' map of ids is not on this host.
        glt.errors.PeerLost: If a trainer or a server is lost meanwhile; names it.
        OSError: If there is no room in ``spill_dir``.
    """
    world = require_world()
    run = _Run(world, LayerStack.of(model, between), x, batch_size, num_workers, device, name, spill_dir, original_ids)
    with _not_training(run.stack), torch.no_grad():
        return run.result()


class _Fetched(NamedTuple):
    """A batch with what it needs of all of its nodes; ``seeds`` are the first of those of their type."""

    node_type: NodeType
    seeds: Tensor
    edge_index: dict[EdgeType, Tensor]
    x: dict[NodeType, Tensor]
    degrees: Tensor | None
    earlier: list[Tensor]


Rows = dict[NodeType, Any]  # what has a row for each node, by type: LayerRows, DistTensor or Tensor


class _Run:
    def __init__(
        self, world: World, stack: LayerStack, x: Any, batch_size: int, num_workers: int, device: Any, name: str,
        spill_dir: Any, original_ids: bool,
    ) -> None:  # fmt: skip
        data = world.data
        if data is None:
            raise RuntimeError(f"{world} has no graph: give initialize, or DistGraph, a part_config")
        check_count("batch_size", batch_size, 1, 1 << 40)
        check_count("num_workers", num_workers, 0, 1024)
        if not isinstance(name, str) or not name or os.sep in name:
            raise ValueError(f"name = {name!r}: expected text without {os.sep!r}")
        self.world, self.stack, self.schema = world, stack, data.schema
        self.gcn = stack.gcn_convs()
        if self.schema.is_hetero and (self.gcn or stack.is_basic):
            what = "GCNConv" if self.gcn else "a model of torch_geometric.nn.models"
            raise NotImplementedError(
                f"{what} is for one type of nodes and edges: give layers of dicts, as HeteroConv is"
            )
        self.num_nodes = {t: count for t, count in zip(self.schema.node_types, data.num_nodes_of, strict=True) if count}
        if not self.num_nodes:
            raise ValueError("the graph has no nodes")
        self.x = None if x is None else self._checked(x, name)
        self.batch_size, self.num_workers = batch_size, num_workers
        first = next(stack.parameters(), None)
        self.device = torch.device(device) if device is not None else first.device if first is not None else "cpu"
        self.keeper = RowKeeper(world, name, spill_dir)
        self.ids: dict[NodeType, IdMap] = {}
        for node_type in self.num_nodes if original_ids else ():
            if data.manifest.node_types[self.schema.node_index(node_type)].offsets is not None:
                self.ids[node_type] = load_id_map(data.load_args["graph_dir"], node_type, verify=False)
        self.nodes = {
            t: node_split(torch.ones(count, dtype=torch.bool), ntype=t) for t, count in self.num_nodes.items()
        }

    def _checked(self, given: Any, name: str) -> Rows:
        if self.schema.is_hetero and not isinstance(given, dict):
            raise TypeError(
                f"x is a {type(given).__name__}: expected a dict by node type, the graph being heterogeneous"
            )
        by_type = given if self.schema.is_hetero else {self.schema.node_types[0]: given}
        for node_type, x in by_type.items():
            what = f"x[{node_type!r}]" if self.schema.is_hetero else "x"
            count = self.num_nodes.get(node_type, 0 if node_type in self.schema.node_types else None)
            if count is None:
                raise ValueError(f"x has {node_type!r}: expected node types, {list(self.schema.node_types)}")
            if not isinstance(x, Tensor | DistTensor):
                raise TypeError(f"{what} is a {type(x).__name__}: expected a tensor or a DistTensor")
            if len(x) != count:
                raise ValueError(f"{what} has {len(x)} rows: expected one for each of {count} nodes")
            if isinstance(x, DistTensor) and x.name == name + self._result_of(node_type):
                raise ValueError(
                    f"{what} is named {x.name!r} as the result would be, which replaces it: give another name"
                )
        return {t: x for t, x in by_type.items() if t in self.num_nodes}

    def _result_of(self, node_type: NodeType) -> str:
        return f".{node_type}" if self.schema.is_hetero else ""

    def _part_of(self, what: str, node_type: NodeType) -> str:
        return f".{what}{self._result_of(node_type)}"

    def result(self) -> Any:
        parts = [
            each
            for t in self.num_nodes
            for each in (
                self._result_of(t), self._part_of("degrees", t),
                *(self._part_of(f"layer{at}", t) for at in range(len(self.stack.layers))),
            )
        ]  # fmt: skip
        self.keeper.begin(parts)
        kept: list[LayerRows] = []
        try:
            with ExitStack() as opened:
                made = self._compute(opened, kept)
                kept = [rows for rows in kept if all(rows is not each for each in made.values())]
        finally:  # those who still need them are told who has deleted them
            if self.world.rank == 0:
                for rows in kept:
                    _delete(rows)
        found = {t: rows.result() for t, rows in made.items()}
        return found if self.schema.is_hetero else found[self.schema.node_types[0]]

    def _compute(self, opened: ExitStack, kept: list[LayerRows]) -> dict[NodeType, LayerRows]:
        loaders: dict[tuple[NodeType, bool], DistNeighborLoader] = {}

        def loader(node_type: NodeType, with_x: bool) -> DistNeighborLoader:
            if (node_type, with_x) not in loaders:
                made = self._loader(node_type, with_x)
                opened.enter_context(made)
                loaders[node_type, with_x] = made
            return loaders[node_type, with_x]

        degrees = None
        if self.gcn:
            counted = self._write(kept, "degrees", partial(loader, with_x=False), {}, [], self._degrees_of)
            degrees = counted[self.schema.node_types[0]]
        last = len(self.stack.layers) - 1
        outputs: list[Rows] = [] if self.x is None else [self.x]
        below, made = self.x, {}
        for at, layer in enumerate(self.stack.layers):
            combine = self.stack.combine if at == last else None
            earlier = [] if combine is None else outputs[0 if self.x is None else 1 :]

            def make(batch: _Fetched, layer: Any = layer, combine: Any = combine) -> Tensor | None:
                out = self._outputs_of(layer, batch)
                return out if combine is None else combine([*(each.to(self.device) for each in batch.earlier), out])

            what = "" if at == last else f"layer{at}"
            made = self._write(kept, what, partial(loader, with_x=below is None), below, earlier, make, degrees)
            if at > 0 and self.stack.combine is None and self.world.rank == 0:
                for rows in below.values() if below is not None else ():
                    rows.delete()
                    kept[:] = [each for each in kept if each is not rows]
            outputs.append(made)
            below = made
        return made

    def _loader(self, node_type: NodeType, with_x: bool) -> DistNeighborLoader:
        data = self.world.data if isinstance(self.world.data, DistDataset) else None
        nodes = self.nodes[node_type]
        return DistNeighborLoader(
            data, [-1], (node_type, nodes) if self.schema.is_hetero else nodes, self.batch_size,
            collect_features=with_x, random_seed=0, worker_options=self.world.worker_options(self.num_workers),
        )  # fmt: skip

    def _degrees_of(self, batch: _Fetched) -> Tensor:
        return in_degrees(next(iter(batch.edge_index.values())), len(batch.seeds))

    def _outputs_of(self, layer: Any, batch: _Fetched) -> Tensor | None:
        """Outputs of the seeds; None where the layer has none for their type."""
        x = {t: each.to(self.device) for t, each in batch.x.items()}
        edge_index = {t: each.to(self.device) for t, each in batch.edge_index.items()}
        if self.schema.is_hetero:
            given = layer(x, edge_index)
            if not isinstance(given, dict):
                raise ValueError(f"a layer made a {type(given).__name__}: expected a dict by node type")
            out, count = given.get(batch.node_type), len(x.get(batch.node_type, ()))
            if out is None:
                return None
        else:
            (features,), (ends,) = x.values(), edge_index.values()
            weighing: Any = nullcontext()
            if batch.degrees is not None:
                weighing = normalized(self.gcn, ends, batch.degrees.to(self.device), features.dtype)
            with weighing:
                out, count = layer(features, ends), len(features)
        if not isinstance(out, Tensor) or out.dim() < 2 or len(out) < len(batch.seeds):
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"a layer made {shape} of {count} rows: expected a row for each or the first of them")
        return out[: len(batch.seeds)]

    def _write(
        self, kept: list[LayerRows], what: str, loader_of: Callable[[NodeType], DistNeighborLoader], below: Rows | None,
        earlier: list[Rows], make: Callable[[_Fetched], Tensor | None], degrees: LayerRows | None = None,
    ) -> dict[NodeType, LayerRows]:  # fmt: skip
        """Writes what is made of each batch, by type; returns when all trainers have."""
        made: dict[NodeType, LayerRows] = {}
        names = {t: self._part_of(what, t) if what else self._result_of(t) for t in self.num_nodes}
        for t, count in self.num_nodes.items():
            originals = None if what else self.ids.get(t)
            for batch in self._fetched(t, loader_of(t), below, degrees, [each[t] for each in earlier]):
                values = make(batch)
                if values is None:
                    break  # a layer has outputs for a type or it has none
                if t not in made:
                    shape, part = (count, *values.shape[1:]), None if originals is not None else t
                    made[t] = self.keeper.make(names[t], shape, values.dtype, part)
                    kept.append(made[t])
                made[t][batch.seeds if originals is None else originals.to_original(batch.seeds)] = values.cpu()
        for rows in made.values():
            rows.flush()
        self.world.barrier()
        for t in self.num_nodes:
            if t not in made and not len(self.nodes[t]):  # none of the nodes are this trainer's
                with suppress(LookupError):  # nor has the layer outputs for them
                    made[t] = self.keeper.find(names[t])
                    kept.append(made[t])
        return made

    def _fetched(
        self, node_type: NodeType, loader: DistNeighborLoader, below: Rows | None, degrees: LayerRows | None,
        earlier: list[Any],
    ) -> Iterator[_Fetched]:  # fmt: skip
        """The batches, each fetched while the one before it is computed."""
        batches = iter(loader)

        def fetch() -> _Fetched | None:
            batch = next(batches, None)
            if batch is None:
                return None
            ids, edge_index, stored, seeds = self._opened(batch, node_type)
            x = self._stored_x(stored) if below is None else {t: below[t][n] for t, n in ids.items() if t in below}
            return _Fetched(
                node_type, seeds, edge_index, x, None if degrees is None else degrees[ids[node_type]],
                [each[seeds] for each in earlier],
            )  # fmt: skip

        with ThreadPoolExecutor(1, "glt-inference") as ahead:
            coming = ahead.submit(fetch)
            while (fetched := coming.result()) is not None:
                coming = ahead.submit(fetch)
                yield fetched

    def _opened(self, batch: Any, node_type: NodeType) -> tuple[Any, Any, Any, Tensor]:
        """Ids, edges and stored features of a batch, by type, and its seeds."""
        if isinstance(batch, HeteroData):
            ids = {t: batch[t].n_id for t in batch.node_types}
            stored = {t: batch[t].x for t in batch.node_types if "x" in batch[t]}
            return ids, batch.edge_index_dict, stored, ids[node_type][: batch[node_type].batch_size]
        stored = {} if batch.get("x") is None else {node_type: batch.x}
        edge_index = {self.schema.edge_types[0]: batch.edge_index}
        return {node_type: batch.n_id}, edge_index, stored, batch.n_id[: batch.batch_size]

    def _stored_x(self, stored: dict[NodeType, Tensor]) -> dict[NodeType, Tensor]:
        if not stored:
            raise ValueError("x is None, and no features are stored with the graph: give x")
        return stored


def _delete(rows: LayerRows) -> None:
    with suppress(LookupError):  # another trainer was faster
        rows.delete()


@contextmanager
def _not_training(stack: LayerStack) -> Iterator[None]:
    was = [(each, each.training) for module in stack.modules for each in module.modules()]
    try:
        for module in stack.modules:
            module.eval()
        yield
    finally:
        for each, training in was:
            each.training = training
