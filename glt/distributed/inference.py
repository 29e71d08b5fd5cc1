"""Outputs of a model for all nodes, one layer after the other over the whole graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_loader import DistNeighborLoader
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.layer_rows import LayerRows, MappedRows, RowKeeper
from glt.distributed.layer_stack import LayerStack, in_degrees, normalized
from glt.distributed.options import check_count
from glt.distributed.split import node_split
from glt.distributed.world import World, require_world
from glt.partition import load_id_map


def infer_layerwise(
    model: Any,
    x: DistTensor | Tensor | None = None,
    *,
    between: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 4096,
    num_workers: int = 0,
    device: torch.device | str | int | None = None,
    name: str = "inference",
    spill_dir: str | os.PathLike[str] | None = None,
    original_ids: bool = True,
) -> DistTensor | Tensor:
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
            first rows of output are the seeds'; or a module that has them as ``convs``.
        x: Features by node ``[num_nodes, F]``: a :class:`DistTensor`, or a tensor that each trainer has. Default: those
            that are stored with the graph.
        between: Applied after all layers but the last, of models other than ``BasicGNN``; for example ``torch.relu``.
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
        The outputs ``[num_nodes, ...]``; with ``spill_dir`` a tensor that maps ``spill_dir/name.npy``.

    Raises:
        RuntimeError: Without :func:`initialize`, or without a graph.
        TypeError, ValueError: If an argument does not fit; if a layer needs more than one hop, or all rows, so that it
            would be wrong; names it.
        NotImplementedError: If the graph is heterogeneous.
        glt.errors.PartitionError: If original ids are wanted, and the partitions' map of ids is not on this host.
        glt.errors.PeerLost: If a trainer or a server is lost meanwhile; names it.
        OSError: If there is no room in ``spill_dir``.
    """
    world = require_world()
    run = _Run(world, LayerStack.of(model, between), x, batch_size, num_workers, device, name, spill_dir, original_ids)
    with _not_training(run.stack), torch.no_grad():
        return run.result()


class _Fetched(NamedTuple):
    """A batch with what it needs of all of its nodes; ``seeds`` are the first of them."""

    seeds: Tensor
    edge_index: Tensor
    x: Tensor | None
    degrees: Tensor | None
    earlier: list[Tensor]


class _Run:
    def __init__(
        self, world: World, stack: LayerStack, x: Any, batch_size: int, num_workers: int, device: Any, name: str,
        spill_dir: Any, original_ids: bool,
    ) -> None:  # fmt: skip
        data = world.data
        if data is None:
            raise RuntimeError(f"{world} has no graph: give initialize, or DistGraph, a part_config")
        if data.schema.is_hetero:
            raise NotImplementedError("layer-wise inference is for graphs with one type of nodes and one of edges")
        check_count("batch_size", batch_size, 1, 1 << 40)
        check_count("num_workers", num_workers, 0, 1024)
        if not isinstance(name, str) or not name or os.sep in name:
            raise ValueError(f"name = {name!r}: expected text without {os.sep!r}")
        self.world, self.stack, self.x = world, stack, x
        self.num_nodes = data.num_nodes_of[0]
        if self.num_nodes == 0:
            raise ValueError("the graph has no nodes")
        if x is not None:
            if not isinstance(x, Tensor | DistTensor):
                raise TypeError(f"x is a {type(x).__name__}: expected a tensor or a DistTensor")
            if len(x) != self.num_nodes:
                raise ValueError(f"x has {len(x)} rows: expected one for each of {self.num_nodes} nodes")
            if isinstance(x, DistTensor) and x.name == name:
                raise ValueError(f"x is named {name!r} as the result would be, which replaces it: give another name")
        self.batch_size, self.num_workers = batch_size, num_workers
        first = next(stack.parameters(), None)
        self.device = torch.device(device) if device is not None else first.device if first is not None else "cpu"
        self.keeper = RowKeeper(world, name, spill_dir)
        self.node_type = data.schema.node_types[0]
        self.ids = None
        if original_ids and data.manifest.node_types[0].offsets is not None:
            self.ids = load_id_map(data.load_args["graph_dir"], self.node_type, verify=False)
        self.nodes = node_split(torch.ones(self.num_nodes, dtype=torch.bool))

    def result(self) -> DistTensor | Tensor:
        parts = [".degrees", *(f".layer{at}" for at in range(len(self.stack.layers)))]
        if self.world.rank == 0:
            for what in ("", *parts):
                self.keeper.forget(what)
        self.world.barrier()
        kept: dict[str, LayerRows] = {}
        try:
            with ExitStack() as opened:
                self._compute(opened, kept)
            result = kept.pop("")
        finally:  # those who still need them are told who has deleted them
            if self.world.rank == 0:
                for rows in kept.values():
                    _delete(rows)
        if isinstance(result, MappedRows):
            return torch.from_numpy(np.asarray(result.rows))
        return result.tensor  # type: ignore[attr-defined,no-any-return]

    def _compute(self, opened: ExitStack, kept: dict[str, LayerRows]) -> None:
        loaders: dict[bool, DistNeighborLoader] = {}

        def loader(with_x: bool) -> DistNeighborLoader:
            if with_x not in loaders:
                loaders[with_x] = self._loader(with_x)
                opened.enter_context(loaders[with_x])
            return loaders[with_x]

        gcn = self.stack.gcn_convs()
        if gcn:
            self._write(kept, ".degrees", loader(False), [], None, self._degrees_of)
        last = len(self.stack.layers) - 1
        for at, layer in enumerate(self.stack.layers):
            combine = self.stack.combine if at == last else None
            earlier = [kept[f".layer{below}"] for below in range(at)] if combine is not None else []

            def outputs(batch: _Fetched, layer: Any = layer, combine: Any = combine) -> Tensor:
                out = self._outputs_of(layer, batch)
                return out if combine is None else combine([*(each.to(self.device) for each in batch.earlier), out])

            below = self.x if at == 0 else kept[f".layer{at - 1}"]
            what = "" if at == last else f".layer{at}"
            self._write(kept, what, loader(below is None), earlier, below, outputs, kept.get(".degrees"))
            if at > 0 and self.stack.combine is None and self.world.rank == 0:
                kept.pop(f".layer{at - 1}").delete()

    def _loader(self, with_x: bool) -> DistNeighborLoader:
        data = self.world.data if isinstance(self.world.data, DistDataset) else None
        return DistNeighborLoader(
            data, [-1], self.nodes, self.batch_size, collect_features=with_x, random_seed=0,
            worker_options=self.world.worker_options(self.num_workers),
        )  # fmt: skip

    def _degrees_of(self, batch: _Fetched) -> Tensor:
        return in_degrees(batch.edge_index, len(batch.seeds))

    def _outputs_of(self, layer: Any, batch: _Fetched) -> Tensor:
        assert batch.x is not None
        x, edge_index = batch.x.to(self.device), batch.edge_index.to(self.device)
        weighing: Any = nullcontext()
        if batch.degrees is not None:
            weighing = normalized(self.stack.gcn_convs(), edge_index, batch.degrees.to(self.device), x.dtype)
        with weighing:
            out = layer(x, edge_index)
        if not isinstance(out, Tensor) or out.dim() < 2 or len(out) < len(batch.seeds):
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"a layer made {shape} of {len(x)} rows: expected a row for each, or for the first of them"
            )
        return out[: len(batch.seeds)]

    def _write(
        self, kept: dict[str, LayerRows], what: str, loader: DistNeighborLoader, earlier: list[LayerRows],
        below: Any, make: Callable[[_Fetched], Tensor], degrees: LayerRows | None = None,
    ) -> None:  # fmt: skip
        """Writes what is made of each batch; returns when all trainers have."""
        in_original_order = what == "" and self.ids is not None
        part = None if in_original_order else self.node_type
        rows: LayerRows | None = None
        for batch in self._fetched(loader, below, degrees, earlier):
            values = make(batch).cpu()
            if rows is None:
                rows = kept[what] = self.keeper.make(what, (self.num_nodes, *values.shape[1:]), values.dtype, part)
            seeds = self.ids.to_original(batch.seeds) if in_original_order and self.ids is not None else batch.seeds
            rows[seeds] = values
        if rows is not None:
            rows.flush()
        self.world.barrier()
        if rows is None:  # none of the nodes are this trainer's
            kept[what] = self.keeper.find(what)

    def _fetched(
        self, loader: DistNeighborLoader, below: Any, degrees: LayerRows | None, earlier: list[LayerRows]
    ) -> Iterator[_Fetched]:
        """The batches, each fetched while the one before it is computed."""
        batches = iter(loader)

        def fetch() -> _Fetched | None:
            batch = next(batches, None)
            if batch is None:
                return None
            seeds = batch.n_id[: batch.batch_size]
            return _Fetched(
                seeds, batch.edge_index, _stored_x(batch, loader) if below is None else below[batch.n_id],
                None if degrees is None else degrees[batch.n_id], [each[seeds] for each in earlier],
            )  # fmt: skip

        with ThreadPoolExecutor(1, "glt-inference") as ahead:
            coming = ahead.submit(fetch)
            while (fetched := coming.result()) is not None:
                coming = ahead.submit(fetch)
                yield fetched


def _stored_x(batch: Data, loader: DistNeighborLoader) -> Tensor | None:
    if not loader.collect_features:
        return None  # nobody asks
    if batch.get("x") is None:
        raise ValueError("x is None, and no features are stored with the graph: give x")
    return batch.x


def _delete(rows: LayerRows) -> None:
    try:
        rows.delete()
    except LookupError:
        return  # another trainer was faster


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
