"""Outputs of a model for all nodes, one layer after the other over the whole graph."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch_geometric.data import HeteroData

from glt import _deadlines as deadlines
from glt._checks import check_count
from glt._progress import progress_bar
from glt._tracebacks import short_traceback
from glt.data.schema import EdgeType, NodeType
from glt.distributed.context import World, require_world
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.graph.layer_rows import EdgeValues, LayerRows, MappedRows, OutputStore, checked_features
from glt.distributed.graph.layers import LayerStack, in_degrees, normalized, one_hop_output
from glt.distributed.graph.split import node_split
from glt.distributed.job.worlds import CollectiveTask
from glt.distributed.loader.loaders import DistNeighborLoader
from glt.distributed.tensors.tensor import DistTensor
from glt.errors import GltError
from glt.partition import load_id_map
from glt.partition.format.book import IdMap

logger = logging.getLogger(__name__)

_OUT_ROWS: Final = 1 << 16  # written to Parquet at a time

Rows = dict[NodeType, Any]  # what has a row for each node, by type: LayerRows, DistTensor or Tensor


@short_traceback
def infer_layerwise(
    model: Any,
    x: Any = None,
    *,
    edge_weight: Any = None,
    edge_attr: Any = None,
    between: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 4096,
    num_workers: int = 0,
    device: torch.device | str | int | None = None,
    name: str = "inference",
    spill_dir: str | os.PathLike[str] | None = None,
    original_ids: bool = True,
    out: str | os.PathLike[str] | None = None,
) -> Any:
    """Computes the outputs of a model for all nodes, with all neighbours of each node.

    Each layer is computed for all nodes before the next one: no node is computed twice, and a trainer holds two batches
    in memory, and those sampled ahead. Outputs equal those of the full-batch model in evaluation mode up to the order
    of sums. All trainers of the job call it, with the same arguments; it returns when all are done.

    ``GCNConv`` weighs edges by the degrees of the whole graph. With partitions of ``edge_dir='out'`` edges point the
    other way.

    If a trainer fails, the others raise within seconds, and what was computed is deleted. They may then go on, and call
    it again.

    Args:
        model: A ``BasicGNN`` of ``torch_geometric.nn.models``: ``GraphSAGE, GCN, GAT, GIN, PNA, EdgeCNN``, with
            jumping knowledge too. Or a sequence of layers, each a function of ``x [N, F]`` and ``edge_index [2, E]``,
            whose first rows of output are the seeds'; or a module that has them as ``convs``, and no other parameters:
            its own ``forward`` is not called, so that ``between`` must be given if there are several. Of a
            heterogeneous graph layers are functions of dicts, by node type and by edge type, and return a dict by node
            type, as ``HeteroConv`` does; ``GCNConv`` cannot be among them. Or any of these in
            ``DistributedDataParallel``.
        x: Features by node ``[num_nodes, F]``: a :class:`DistTensor`, a :class:`DistEmbedding`, or a tensor that
            each trainer has; of a heterogeneous graph, a dict of such by node type. Default: those stored with the
            graph.
        edge_weight: Weights of the edges ``[num_edges]``, for the layers that have a parameter ``edge_weight``: a
            tensor or a :class:`DistTensor`, by edge id; or the name of a table that is stored with the graph. Of a
            heterogeneous graph, a dict of such by edge type, or a name, for all types that have such a table; layers
            are given ``edge_weight_dict``. Weights that a graph was partitioned with for sampling are no table:
            partition it with them as one of ``edge_attrs``, too.
        edge_attr: Features of the edges ``[num_edges, ...]``, likewise, as ``edge_attr`` or ``edge_attr_dict``.
            Those that the graph was partitioned with are named ``"edge_attr"``.
        between: Applied after all layers but the last, of models other than ``BasicGNN``; for example
            ``torch.relu``. It is given tensors, of a heterogeneous graph one for each node type.
        batch_size: Nodes at a time.
        num_workers: Processes that sample for this trainer; 0: in the trainer, or one of its server.
        device: Where layers are computed. Default: where the parameters are.
        name: Of the result, and the beginning of the names of layers' outputs. The result of an earlier call of the
            same name is replaced; another tensor of that name that this trainer holds is an error.
        spill_dir: A directory that all trainers see: outputs go into mapped ``.npy`` files there instead of the
            servers' memory.
        original_ids: Of relabelled partitions: True: row ``i`` of the result is that of the original node ``i``.
            False: that of node ``i`` of the partitions, which needs no map of ids.
        out: A directory, or a URL of one, for Parquet under the users' own keys, where the graph has some: each trainer
            writes its part of the rows, as :func:`glt.tables.write`, replacing what is there; of a heterogeneous graph
            in a directory for each type. Needs ``pip install 'glt-graph[tables]'``.

    Returns:
        The outputs ``[num_nodes, ...]``, a :class:`DistTensor` of that name; with ``spill_dir`` a tensor that maps
        ``spill_dir/name.npy``. Of a heterogeneous graph a dict of such, named ``name.type``, for the types that the
        last layer has outputs for.

    Raises:
        RuntimeError: Without :func:`initialize`, or without a graph.
        TypeError, ValueError, KeyError: If an argument does not fit, no layer takes it, or trainers have given
            others; if a layer needs more than one hop, or all rows; names it.
        NotImplementedError: If the graph is heterogeneous and the model is not.
        glt.errors.PartitionError: If original ids are wanted, and the partitions' map of ids is not on this host.
        glt.errors.PeerLost: If a trainer has failed, or a trainer or a server is lost meanwhile; names it, and why.
        OSError: If there is no room in ``spill_dir``.

    Example:
        >>> from torch_geometric.nn import GraphSAGE
        >>> glt.distributed.initialize(part_config="parts")
        >>> model = GraphSAGE(in_channels=4, hidden_channels=8, num_layers=2)
        >>> rows = glt.distributed.infer_layerwise(model)
        >>> rows.shape
        torch.Size([40, 8])
        >>> glt.distributed.finalize()
    """
    world = require_world()
    with ExitStack() as resources, CollectiveTask(world, "infer_layerwise") as task:
        if world.data is None:
            raise RuntimeError(f"{world} has no graph: give initialize, or DistGraph, a part_config")
        batch_size = check_count("batch_size", batch_size, 1, 1 << 40)
        num_workers = check_count("num_workers", num_workers, 0, 1024)
        if not isinstance(name, str) or not name or os.sep in name:
            raise ValueError(f"name = {name!r}: expected text without {os.sep!r}")
        stack = LayerStack.of(model, between)
        values = EdgeValues(world, {"edge_weight": edge_weight, "edge_attr": edge_attr})
        run = _Run(world, stack, x, values, OutputStore(world, name, spill_dir), device, original_ids)
        resources.push(run.clean_up)
        batches = _Batches(world, run.num_nodes, values, batch_size, num_workers)
        resources.callback(batches.close)
        with stack.evaluating(), torch.no_grad():
            found = run.result(batches, task)
        if out is not None:
            run.write(found if isinstance(found, dict) else {run.schema.node_types[0]: found}, os.fspath(out))
            task.barrier()
        return found


class _Batch(NamedTuple):
    """All edges into some seeds, which are the first nodes of their type, and rows of its nodes and edges: ``x`` by
    node type, ``edge_values`` by name and edge type, ``degrees`` of the nodes, and rows of the seeds in outputs of
    earlier layers."""

    node_type: NodeType
    seeds: Tensor
    edge_index: dict[EdgeType, Tensor]
    x: dict[NodeType, Tensor]
    edge_values: dict[str, dict[EdgeType, Tensor]]
    degrees: Tensor | None
    earlier: list[Tensor]


@dataclass(frozen=True)
class _Reads:
    """What a layer reads: outputs of the layer below (None: the features in the batches), values of edges, the table of
    degrees, and for the model's last step outputs of earlier layers."""

    below: Rows | None = None
    edge_values: Collection[str] = ()
    degrees: Any = None
    earlier: list[Rows] = field(default_factory=list)


class _Batches:
    """Batches of this trainer's nodes with all their neighbours, each fetched while the one before it is computed."""

    def __init__(
        self, world: World, num_nodes: dict[NodeType, int], values: EdgeValues, batch_size: int, num_workers: int
    ) -> None:
        assert world.data is not None
        self._world, self._schema, self._values = world, world.data.schema, values
        self._batch_size, self._num_workers = batch_size, num_workers
        self.nodes = {t: node_split(torch.ones(count, dtype=torch.bool), ntype=t) for t, count in num_nodes.items()}
        self._loaders: dict[tuple[NodeType, bool], DistNeighborLoader] = {}
        self._thread = ThreadPoolExecutor(1, "glt-inference")
        self._next: Future[_Batch | None] = Future()
        self._next.set_result(None)

    def of(self, node_type: NodeType, reads: _Reads, check: Callable[[], None]) -> Iterator[_Batch]:
        """The batches of an epoch around nodes of a type; ``check`` is called again and again, and may end it."""
        batches = iter(self._loader(node_type, reads.below is None))
        fetch = partial(self._fetch, batches, node_type, reads)
        self._next = self._thread.submit(fetch)
        while True:
            while not wait([self._next], deadlines.POLL_S).done:
                check()
            batch = self._next.result()
            if batch is None:
                return
            self._next = self._thread.submit(fetch)
            check()
            yield batch

    def settle(self) -> None:
        """Waits until no batch is being fetched: before a loader is used again."""
        wait([self._next])

    def close(self) -> None:
        self._thread.shutdown()
        for loader in self._loaders.values():
            loader.shutdown()

    def _loader(self, node_type: NodeType, with_x: bool) -> DistNeighborLoader:
        if (node_type, with_x) not in self._loaders:
            nodes = self.nodes[node_type]
            self._loaders[node_type, with_x] = DistNeighborLoader(
                self._world.data if isinstance(self._world.data, DistDataset) else None,
                [-1],
                (node_type, nodes) if self._schema.is_hetero else nodes,
                self._batch_size,
                collect_features=with_x,
                random_seed=0,
                with_edge=bool(self._values.names),
                worker_options=self._world.worker_options(self._num_workers),
            )
        return self._loaders[node_type, with_x]

    def _fetch(self, batches: Iterator[Any], node_type: NodeType, reads: _Reads) -> _Batch | None:
        batch = next(batches, None)
        if batch is None:
            return None
        if isinstance(batch, HeteroData):
            ids = {t: batch[t].n_id for t in batch.node_types}
            stored = {t: batch[t].x for t in batch.node_types if "x" in batch[t]}
            names = [t for t in batch.edge_types if "edge_index" in batch[t]]  # as many as the schema has, in its order
            edges, num_seeds = {t: batch[t] for t in names}, batch[node_type].batch_size
        else:
            ids, stored = {node_type: batch.n_id}, {} if batch.get("x") is None else {node_type: batch.x}
            edges, num_seeds = {self._schema.edge_types[0]: batch}, batch.batch_size
        if reads.below is not None:
            stored = {t: reads.below[t][nodes] for t, nodes in ids.items() if t in reads.below}
        elif not stored:
            raise ValueError("x is None, and no features are stored with the graph: give x")
        seeds = ids[node_type][:num_seeds]
        return _Batch(
            node_type,
            seeds,
            {t: store.edge_index for t, store in edges.items()},
            stored,
            self._values.of(reads.edge_values, edges),
            None if reads.degrees is None else reads.degrees[ids[node_type]],
            [each[node_type][seeds] for each in reads.earlier],
        )


class _Run:
    """The layers of one call of :func:`infer_layerwise`, with arguments of that."""

    def __init__(
        self,
        world: World,
        stack: LayerStack,
        x: Any,
        values: EdgeValues,
        store: OutputStore,
        device: Any,
        original_ids: bool,
    ) -> None:
        data = world.data
        assert data is not None
        self.world, self.stack, self.schema = world, stack, data.schema
        self.values, self.store, self.original_ids = values, store, original_ids
        self.gcn = stack.gcn_convs()
        self.lazy = [each for each in stack.parameters() if isinstance(each, UninitializedParameter)]
        if self.schema.is_hetero and (self.gcn or stack.is_basic):
            what = "GCNConv" if self.gcn else "a model of torch_geometric.nn.models"
            raise NotImplementedError(
                f"{what} is for one type of nodes and edges: give layers of dicts, as HeteroConv is"
            )
        self.num_nodes = {t: count for t, count in zip(self.schema.node_types, data.num_nodes_of, strict=True) if count}
        if not self.num_nodes:
            raise ValueError("the graph has no nodes")
        self.x: Rows | None = None if x is None else checked_features(x, self.schema, self.num_nodes)
        for node_type, rows in (self.x or {}).items():
            if isinstance(rows, DistTensor) and rows.name == store.name + self._suffix("", node_type):
                raise ValueError(
                    f"x is named {rows.name!r} as the result would be, which replaces it: give another name"
                )
        for name in sorted(values.names):
            if not any(name in takes for takes in stack.takes):
                raise ValueError(f"{name} is given, and no layer of the model takes it: leave it out")
        first = next(stack.parameters(), None)
        self.device = _checked_device(device) if device is not None else first.device if first is not None else "cpu"
        for node_type in self.num_nodes:
            store.require_free(self._suffix("", node_type))
        self.ids: dict[NodeType, IdMap] = {}
        for node_type in self.num_nodes if original_ids else ():
            if data.manifest.node_types[self.schema.node_index(node_type)].offsets is not None:
                self.ids[node_type] = load_id_map(data.load_args["graph_dir"], node_type)
        self.kept: list[LayerRows] = []  # deleted in the end
        self.checked: set[tuple[int, NodeType]] = set()  # layers and types that were found to read one hop only

    def _suffix(self, what: str, node_type: NodeType) -> str:
        return (f".{what}" if what else "") + (f".{node_type}" if self.schema.is_hetero else "")

    def _summary(self) -> str:
        same: dict[str, Any] = {"name": self.store.name, "layers": len(self.stack.layers)}
        same |= {"original_ids": bool(self.original_ids), "x": None if self.x is None else sorted(self.x)}
        same |= {"edges": self.values.summary(), "spill_dir": self.store.spill_dir is not None}
        return json.dumps(same)

    def result(self, batches: _Batches, task: CollectiveTask) -> Any:
        task.barrier(self._summary())
        names = ["", "degrees", *(f"layer{at}" for at in range(len(self.stack.layers)))]
        self.store.clear([self._suffix(what, t) for t in self.num_nodes for what in names], task.barrier)
        outputs = self._compute(batches, task)
        if not outputs:
            raise ValueError("the last layer has outputs for no node type: does x have the types that layers read?")
        self._release(outputs.values())
        found = {t: rows.tensor() if isinstance(rows, MappedRows) else rows for t, rows in outputs.items()}
        return found if self.schema.is_hetero else found[self.schema.node_types[0]]

    def write(self, outputs: Rows, out: str) -> None:
        """Writes this trainer's part of the rows under the users' keys, in the order of the ids of partitions."""
        from glt.tables.results import ResultFile, as_numbers  # pyarrow is imported for those who ask for it

        data, world = self.world.data, self.world
        assert data is not None
        for node_type, rows in outputs.items():
            first, last = (
                self.num_nodes[node_type] * each // world.num_trainers for each in (world.rank, world.rank + 1)
            )
            folder = f"{out.rstrip('/')}/{node_type}" if self.schema.is_hetero else out
            with ResultFile(folder, data.ids.get(node_type), world.rank, world.num_trainers, overwrite=True) as file:
                for begin in range(first, max(last, first + 1), _OUT_ROWS):
                    ids = torch.arange(begin, min(begin + _OUT_ROWS, last))
                    at = self.ids[node_type].to_original(ids) if node_type in self.ids else ids
                    file.add(ids.numpy(), {"value": as_numbers(rows[at], "value")})

    def _release(self, rows: Iterable[LayerRows]) -> None:
        self.kept = [each for each in self.kept if all(each is not other for other in rows)]

    def clean_up(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Deletes intermediate outputs; after an error each trainer all that it knows of."""
        if error is None and self.world.rank != 0:
            return  # all are done, and trainer 0 knows of all there is
        for rows in self.kept:
            try:
                rows.delete()
            except (LookupError, GltError) as other:  # another was faster, or it is lost with its server
                logger.info("outputs of a layer were not deleted: %s", other)

    def _compute(self, batches: _Batches, task: CollectiveTask) -> dict[NodeType, LayerRows]:
        degrees = None
        if self.gcn:  # of one type
            reads = _Reads({}, {"edge_weight"} & self.values.names)
            (degrees,) = self._write("degrees", reads, self._degrees_of, batches, task).values()
        last = len(self.stack.layers) - 1
        earlier: list[Rows] = []
        below, outputs = self.x, dict[NodeType, LayerRows]()
        for at, takes in enumerate(self.stack.takes):
            combines = at == last and self.stack.combine is not None
            reads = _Reads(below, takes.keys() & self.values.names, degrees, earlier if combines else [])
            make = partial(self._combined if combines else self._outputs_of, at)
            outputs = self._write("" if at == last else f"layer{at}", reads, make, batches, task)
            if at > 0 and self.stack.combine is None and below is not None:
                self._release(below.values())
                if self.world.rank == 0:
                    for rows in below.values():
                        rows.delete()
            earlier.append(outputs)
            below = outputs
        return outputs

    def _write(
        self, what: str, reads: _Reads, make: Callable[[_Batch], Tensor | None], batches: _Batches, task: CollectiveTask
    ) -> dict[NodeType, LayerRows]:
        """Writes what ``make`` returns for each batch, by type; returns when all trainers have."""
        outputs: dict[NodeType, LayerRows] = {}
        for t, count in self.num_nodes.items():
            originals = None if what else self.ids.get(t)
            layout: tuple[torch.dtype, torch.Size] | None = None
            for batch in self._shown(what, t, batches, batches.of(t, reads, task.check)):
                values = make(batch)
                if values is None:
                    break  # a layer has outputs for all nodes of a type or for none
                if layout is None:
                    layout = values.dtype, values.shape[1:]
                    part = None if originals is not None else t
                    outputs[t] = self.store.create(self._suffix(what, t), (count, *layout[1]), layout[0], part)
                    self.kept.append(outputs[t])
                elif layout != (values.dtype, values.shape[1:]):
                    raise ValueError(
                        f"a layer made {(values.dtype, values.shape[1:])} of a batch, and {layout} before: expected "
                        "the same"
                    )
                ids = batch.seeds if originals is None else originals.to_original(batch.seeds)
                outputs[t].write_async(ids, values.cpu())
            batches.settle()
        for rows in outputs.values():
            rows.flush()
        task.barrier()
        for t in self.num_nodes:
            if t not in outputs and not len(batches.nodes[t]):  # none of the nodes are this trainer's
                with suppress(LookupError):  # nor has the layer outputs for them
                    outputs[t] = self.store.find(self._suffix(what, t))
                    self.kept.append(outputs[t])
        return outputs

    def _shown(self, what: str, node_type: NodeType, batches: _Batches, made: Iterator[_Batch]) -> Iterator[_Batch]:
        name = f"{what or 'last layer'}{f' of {node_type}' if self.schema.is_hetero else ''}"
        is_shown = None if self.world.rank == 0 else False
        with progress_bar(name, len(batches.nodes[node_type]), is_shown, " nodes") as advance:
            for batch in made:
                yield batch
                advance(len(batch.seeds))

    def _degrees_of(self, batch: _Batch) -> Tensor:
        (edge_index,) = batch.edge_index.values()
        (weight,) = batch.edge_values.get("edge_weight", {"": None}).values()
        return in_degrees(edge_index, len(batch.seeds), weight)

    def _combined(self, at: int, batch: _Batch) -> Tensor | None:
        assert self.stack.combine is not None
        out = self._outputs_of(at, batch)
        assert out is not None, "of one type, the layer has outputs for it"
        return self.stack.combine([*(each.to(self.device) for each in batch.earlier), out])

    def _outputs_of(self, at: int, batch: _Batch) -> Tensor | None:
        """Outputs of the seeds; None where the layer has none for their type."""
        layer, keywords = self.stack.layers[at], self.stack.takes[at]
        x, edge_index = self._moved(batch.x), self._moved(batch.edge_index)
        values = {name: self._moved(by_type) for name, by_type in batch.edge_values.items()}
        if self.schema.is_hetero:
            named = {keywords[name]: by_type for name, by_type in values.items()}
            made = self._one_hop(at, batch, partial(layer, x, edge_index, **named))
            if not isinstance(made, dict):
                raise ValueError(f"a layer made a {type(made).__name__}: expected a dict by node type")
            if unknown := made.keys() - set(self.schema.node_types):
                raise ValueError(f"a layer made rows of {sorted(map(str, unknown))}: expected node types of the graph")
            out = made.get(batch.node_type)
            if out is None:
                return None
        else:
            (features,), (ends,) = x.values(), edge_index.values()
            of_edges = {name: next(iter(by_type.values())) for name, by_type in values.items()}
            weighing: Any = nullcontext()
            if batch.degrees is not None:
                weighing = normalized(self.gcn, ends, batch.degrees.to(self.device), of_edges.get("edge_weight"))
            with weighing:
                out = self._one_hop(at, batch, partial(layer, features, ends, **of_edges))
        if any(not isinstance(each, UninitializedParameter) for each in self.lazy):
            raise ValueError(
                f"layer {at} had parameters without values, which are random now: call the model once where it is "
                "made, and train it or load its state, before it infers"
            )
        if not isinstance(out, Tensor) or out.dim() < 2 or len(out) < len(batch.seeds):
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            count = len(x.get(batch.node_type, ()))
            raise ValueError(f"a layer made {shape} of {count} rows: expected a row for each or the first of them")
        return out[: len(batch.seeds)]

    def _moved(self, by_type: dict[Any, Tensor]) -> dict[Any, Tensor]:
        return {t: each.to(self.device) for t, each in by_type.items()}

    def _one_hop(self, at: int, batch: _Batch, call: Callable[[], Any]) -> Any:
        num_rows = {t: len(each) for t, each in batch.x.items()}
        if (at, batch.node_type) in self.checked or sum(num_rows.values()) <= len(batch.seeds):
            return call()
        self.checked.add((at, batch.node_type))
        return one_hop_output(call, f"layer {at}", num_rows, batch.node_type, len(batch.seeds))


def _checked_device(given: Any) -> torch.device:
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError, TypeError) as error:  # as torch has it
        raise ValueError(f"device = {given!r}: expected a device that torch has, such as 'cpu' ({error})") from error
