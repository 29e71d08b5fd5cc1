"""Outputs of a model for all nodes, one layer after the other over the whole graph."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch_geometric.data import HeteroData

from glt import _deadlines as deadlines
from glt._checks import check_count
from glt.data.schema import EdgeType, NodeType, Schema
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.graph.layers import (
    EdgeValues,
    LayerRows,
    LayerStack,
    RowKeeper,
    checked_device,
    checked_features,
    in_degrees,
    normalized,
    one_hop_output,
)
from glt.distributed.graph.split import node_split
from glt.distributed.job.joint_work import JointWork
from glt.distributed.loader.loaders import DistNeighborLoader
from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.world import World, require_world
from glt.errors import GltError
from glt.partition import load_id_map
from glt.partition.format.id_map import IdMap

# Batches of layer-wise inference: the edges into some nodes, and what a layer reads of both.


Rows = dict[NodeType, Any]  # what has a row for each node, by type: LayerRows, DistTensor or Tensor


class InferenceBatch(NamedTuple):
    """A batch with what it needs of all of its nodes and edges.

    Attributes:
        node_type: Of the seeds.
        seeds: Their ids; they are the first nodes of their type.
        edge_index: All edges into them, by the edge type that layers know them by.
        x: Rows of the nodes, by type.
        of_edges: Values of the edges by name and, again, by edge type.
        degrees: Rows of the nodes in the table of degrees, if there is one.
        earlier: Rows of the seeds in outputs of earlier layers.
    """

    node_type: NodeType
    seeds: Tensor
    edge_index: dict[EdgeType, Tensor]
    x: dict[NodeType, Tensor]
    of_edges: dict[str, dict[EdgeType, Tensor]]
    degrees: Tensor | None
    earlier: list[Tensor]


@dataclass(frozen=True)
class Wanted:
    """What a layer reads.

    Attributes:
        below: What the layer below has made; None: the features in the batches.
        names: Which values of edges.
        degrees: The table of degrees.
        earlier: Outputs of earlier layers, for the model's last step.
    """

    below: Rows | None = None
    names: Collection[str] = ()
    degrees: Any = None
    earlier: list[Rows] = field(default_factory=list)


class BatchesAhead:
    """The batches of an epoch, each fetched while the one before it is computed.

    Args:
        loader: Of full neighbourhoods of one hop.
        node_type: Of its seeds.
        schema: Of the graph.
        values: Of edges.
        wanted: What is fetched beside the batches.
        thread: Where that is done.
    """

    def __init__(
        self, loader: Any, node_type: NodeType, schema: Schema, values: EdgeValues, wanted: Wanted, thread: Executor
    ) -> None:
        self._batches, self._node_type, self._schema = iter(loader), node_type, schema
        self._values, self._wanted, self._thread = values, wanted, thread
        self._coming: Future[InferenceBatch | None] = thread.submit(self._fetch)

    def next(self, check: Callable[[], None]) -> InferenceBatch | None:
        """The next batch, None after the last one.

        Args:
            check: Called now and then while it is waited for; what it raises ends that.
        """
        while not wait([self._coming], deadlines.POLL_S).done:
            check()
        fetched = self._coming.result()
        if fetched is not None:
            self._coming = self._thread.submit(self._fetch)
        return fetched

    def settle(self) -> None:
        """Waits until nothing is being fetched; to be called before the loader is used for anything else."""
        wait([self._coming])

    def _fetch(self) -> InferenceBatch | None:
        batch = next(self._batches, None)
        if batch is None:
            return None
        wanted, node_type = self._wanted, self._node_type
        if isinstance(batch, HeteroData):
            ids = {t: batch[t].n_id for t in batch.node_types}
            stored = {t: batch[t].x for t in batch.node_types if "x" in batch[t]}
            names = [t for t in batch.edge_types if "edge_index" in batch[t]]  # as many as the schema has, in its order
            edges, num_seeds = {t: batch[t] for t in names}, batch[node_type].batch_size
        else:
            ids, stored = {node_type: batch.n_id}, {} if batch.get("x") is None else {node_type: batch.x}
            edges, num_seeds = {self._schema.edge_types[0]: batch}, batch.batch_size
        if wanted.below is None:
            x = _stored_x(stored)
        else:
            x = {t: wanted.below[t][nodes] for t, nodes in ids.items() if t in wanted.below}
        seeds = ids[node_type][:num_seeds]
        return InferenceBatch(
            node_type,
            seeds,
            {t: store.edge_index for t, store in edges.items()},
            x,
            self._of_edges(edges),
            None if wanted.degrees is None else wanted.degrees[ids[node_type]],
            [each[node_type][seeds] for each in wanted.earlier],
        )

    def _of_edges(self, edges: dict[EdgeType, Any]) -> dict[str, dict[EdgeType, Tensor]]:
        if not self._wanted.names:
            return {}
        known = dict(zip(self._schema.edge_types, edges, strict=True))  # which are the reverse types of out-edges
        found = self._values.of(self._wanted.names, {t: edges[name].e_id for t, name in known.items()})
        return {name: {known[t]: rows for t, rows in by_type.items()} for name, by_type in found.items()}


def _stored_x(stored: dict[NodeType, Tensor]) -> dict[NodeType, Tensor]:
    if not stored:
        raise ValueError("x is None, and no features are stored with the graph: give x")
    return stored


logger = logging.getLogger(__name__)


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
) -> Any:
    """Computes what a model makes of the whole graph, with all neighbours of each node.

    Each layer is computed for all nodes before the next one, so that no node is computed twice, and a trainer holds no
    more than two batches in memory, and those that are sampled ahead. The outputs equal those of the full-batch model
    up to the order of sums, with any number of trainers and partitions. Each trainer computes the nodes near it. All
    trainers of the job call it, with the same arguments; it returns when all are done. The model is not trained
    meanwhile: nothing is dropped, and norms use their running statistics.

    What ``GCNConv`` makes of the degrees of nodes is that of the whole graph. With partitions of ``edge_dir='out'``
    edges point the other way.

    A trainer that fails calls off the work of all: within seconds the others raise too, and what was computed is
    deleted. They may then go on, and call it again.

    Args:
        model: A ``BasicGNN`` of ``torch_geometric.nn.models``: ``GraphSAGE, GCN, GAT, GIN, PNA, EdgeCNN``, with jumping
            knowledge too. Or a sequence of layers, each a function of ``x [N, F]`` and ``edge_index [2, E]``, whose
            first rows of output are the seeds'; or a module that has them as ``convs``, and nothing beside: its own
            ``forward`` is not called, so that ``between`` must be given if there are several. Of a
            heterogeneous graph layers are functions of dicts, by node type and by edge type, and return a dict by node
            type, as ``HeteroConv`` does; ``GCNConv`` cannot be among them. Or any of these in
            ``DistributedDataParallel``.
        x: Features by node ``[num_nodes, F]``: a :class:`DistTensor`, a :class:`DistEmbedding`, or a tensor that each
            trainer has; of a heterogeneous graph, a dict of such by node type. Default: those that are stored with the
            graph.
        edge_weight: Weights of the edges ``[num_edges]``, which layers are given as ``edge_weight``, those that have
            such a parameter: a tensor or a :class:`DistTensor`, by edge id; or the name of a table that is stored with
            the graph. Of a heterogeneous graph, a dict of such by edge type, or a name, for all types that have such a
            table; layers are given ``edge_weight_dict``. Weights that a graph was partitioned with for sampling are no
            table: partition it with them as one of ``edge_attrs``, too.
        edge_attr: Features of the edges ``[num_edges, ...]``, likewise, as ``edge_attr`` or ``edge_attr_dict``. Those
            that the graph was partitioned with are named ``"edge_attr"``.
        between: Applied after all layers but the last, of models other than ``BasicGNN``; for example ``torch.relu``.
            It is given tensors, of a heterogeneous graph one for each node type.
        batch_size: Nodes at a time.
        num_workers: Processes that sample for this trainer; 0: in the trainer, or one of its server.
        device: Where layers are computed. Default: where the parameters are.
        name: Of the result, and what those of parts begin with. What an earlier call of the same name returned is
            replaced; another tensor that this trainer holds is not, which is an error.
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
        TypeError, ValueError, KeyError: If an argument does not fit, or no layer takes it, or trainers have given
            others; if a layer needs more than one hop, or all rows, so that it would be wrong; names it.
        NotImplementedError: If the graph is heterogeneous and the model is not.
        glt.errors.PartitionError: If original ids are wanted, and the partitions' map of ids is not on this host.
        glt.errors.PeerLost: If a trainer has failed, or a trainer or a server is lost meanwhile; names it, and why.
        OSError: If there is no room in ``spill_dir``.
    """
    world = require_world()
    with ExitStack() as opened, JointWork(world, "infer_layerwise") as joint:
        stack = LayerStack.of(model, between)
        of_edges = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        run = _Run(world, stack, x, of_edges, batch_size, num_workers, device, name, spill_dir, original_ids)
        opened.push(run.leave)
        with stack.not_training(), torch.no_grad():
            return run.result(opened, joint)


class _Run:
    def __init__(
        self,
        world: World,
        stack: LayerStack,
        x: Any,
        of_edges: dict[str, Any],
        batch_size: int,
        num_workers: int,
        device: Any,
        name: str,
        spill_dir: Any,
        original_ids: bool,
    ) -> None:
        data = world.data
        if data is None:
            raise RuntimeError(f"{world} has no graph: give initialize, or DistGraph, a part_config")
        check_count("batch_size", batch_size, 1, 1 << 40)
        check_count("num_workers", num_workers, 0, 1024)
        if not isinstance(name, str) or not name or os.sep in name:
            raise ValueError(f"name = {name!r}: expected text without {os.sep!r}")
        self.world, self.stack, self.schema = world, stack, data.schema
        self.gcn, self.lazy = stack.gcn_convs(), stack.lazy()
        if self.schema.is_hetero and (self.gcn or stack.is_basic):
            what = "GCNConv" if self.gcn else "a model of torch_geometric.nn.models"
            raise NotImplementedError(
                f"{what} is for one type of nodes and edges: give layers of dicts, as HeteroConv is"
            )
        self.num_nodes = {t: count for t, count in zip(self.schema.node_types, data.num_nodes_of, strict=True) if count}
        if not self.num_nodes:
            raise ValueError("the graph has no nodes")
        self.name, self.original_ids = name, original_ids
        self.x: Rows | None = None if x is None else checked_features(x, self.schema, self.num_nodes)
        self._require_other_names()
        self.values = EdgeValues(world, of_edges)
        for given in sorted(self.values.names):
            if not any(given in takes for takes in stack.takes):
                raise ValueError(f"{given} is given, and no layer of the model takes it: leave it out")
        self.batch_size, self.num_workers = batch_size, num_workers
        first = next(stack.parameters(), None)
        self.device = checked_device(device) if device is not None else first.device if first is not None else "cpu"
        self.keeper = RowKeeper(world, name, spill_dir)
        for node_type in self.num_nodes:
            self.keeper.require_free(self._result_of(node_type))
        self.ids: dict[NodeType, IdMap] = {}
        for node_type in self.num_nodes if original_ids else ():
            if data.manifest.node_types[self.schema.node_index(node_type)].offsets is not None:
                self.ids[node_type] = load_id_map(data.load_args["graph_dir"], node_type, verify=False)
        self.nodes = {
            t: node_split(torch.ones(count, dtype=torch.bool), ntype=t) for t, count in self.num_nodes.items()
        }
        self.kept: list[LayerRows] = []  # which are deleted in the end
        self._loaders: dict[tuple[NodeType, bool], DistNeighborLoader] = {}
        self._ahead: BatchesAhead | None = None
        self._looked_at: set[tuple[int, NodeType]] = set()  # layers that were seen to look no further than one hop

    def _result_of(self, node_type: NodeType) -> str:
        return f".{node_type}" if self.schema.is_hetero else ""

    def _require_other_names(self) -> None:
        for node_type, x in (self.x or {}).items():
            if isinstance(x, DistTensor) and x.name == self.name + self._result_of(node_type):
                raise ValueError(f"x is named {x.name!r} as the result would be, which replaces it: give another name")

    def _part_of(self, what: str, node_type: NodeType) -> str:
        return f".{what}{self._result_of(node_type)}"

    def _told(self) -> str:
        """What all trainers must have alike."""
        return json.dumps(
            {
                "name": self.name,
                "layers": len(self.stack.layers),
                "original_ids": bool(self.original_ids),
                "x": None if self.x is None else sorted(self.x),
                "edges": self.values.told(),
                "spill_dir": self.keeper.spill_dir is not None,
            }
        )

    def result(self, opened: ExitStack, joint: JointWork) -> Any:
        """Computes all layers, with the other trainers.

        Args:
            opened: Closes what is opened here, once the others know how it went.
            joint: Where they meet.
        """
        joint.barrier(self._told())
        parts = [
            each
            for t in self.num_nodes
            for each in (
                self._result_of(t),
                self._part_of("degrees", t),
                *(self._part_of(f"layer{at}", t) for at in range(len(self.stack.layers))),
            )
        ]
        self.keeper.begin(parts, joint.barrier)
        made = self._compute(opened, joint)
        if not made:
            raise ValueError("the last layer has outputs for no node type: does x have the types that layers read?")
        self._forget(made.values())
        found = {t: rows.result() for t, rows in made.items()}
        return found if self.schema.is_hetero else found[self.schema.node_types[0]]

    def _forget(self, rows: Iterable[LayerRows]) -> None:
        self.kept = [each for each in self.kept if all(each is not other for other in rows)]

    def leave(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Deletes what is not needed any more; after an error every trainer what it knows of."""
        if error is None and self.world.rank != 0:
            return  # all are done, and trainer 0 knows of all there is
        for rows in self.kept:
            try:
                rows.delete()
            except (LookupError, GltError) as other:  # another was faster, or it is lost with its server
                logger.info("outputs of a layer were not deleted: %s", other)

    def _compute(self, opened: ExitStack, joint: JointWork) -> dict[NodeType, LayerRows]:
        thread = opened.enter_context(ThreadPoolExecutor(1, "glt-inference"))
        write = partial(self._write, opened, joint, thread)
        degrees = None
        if self.gcn:
            counted = write("degrees", Wanted({}, {"edge_weight"} & self.values.names), self._degrees_of)
            degrees = counted[self.schema.node_types[0]]
        last = len(self.stack.layers) - 1
        outputs: list[Rows] = []
        below, made = self.x, dict[NodeType, LayerRows]()
        for at in range(len(self.stack.layers)):
            combine = self.stack.combine if at == last else None
            wanted = Wanted(
                below, self.stack.takes[at].keys() & self.values.names, degrees, [] if combine is None else outputs
            )

            def make(batch: InferenceBatch, at: int = at, combine: Any = combine) -> Tensor | None:
                out = self._outputs_of(at, batch)
                return out if combine is None else combine([*(each.to(self.device) for each in batch.earlier), out])

            made = write("" if at == last else f"layer{at}", wanted, make)
            if at > 0 and self.stack.combine is None and below is not None:
                self._forget(below.values())
                if self.world.rank == 0:
                    for rows in below.values():
                        rows.delete()
            outputs.append(made)
            below = made
        return made

    def _loader(self, opened: ExitStack, node_type: NodeType, with_x: bool) -> DistNeighborLoader:
        if (node_type, with_x) not in self._loaders:
            data = self.world.data if isinstance(self.world.data, DistDataset) else None
            nodes = self.nodes[node_type]
            made = DistNeighborLoader(
                data,
                [-1],
                (node_type, nodes) if self.schema.is_hetero else nodes,
                self.batch_size,
                collect_features=with_x,
                random_seed=0,
                with_edge=bool(self.values.names),
                worker_options=self.world.worker_options(self.num_workers),
            )
            opened.enter_context(made)
            opened.callback(self._settle)
            self._loaders[node_type, with_x] = made
        return self._loaders[node_type, with_x]

    def _settle(self) -> None:
        if self._ahead is not None:
            self._ahead.settle()

    def _degrees_of(self, batch: InferenceBatch) -> Tensor:
        (edge_index,) = batch.edge_index.values()
        weight = batch.of_edges.get("edge_weight", {}).get(self.schema.edge_types[0])
        return in_degrees(edge_index, len(batch.seeds), weight)

    def _outputs_of(self, at: int, batch: InferenceBatch) -> Tensor | None:
        """Outputs of the seeds; None where the layer has none for their type."""
        layer, keywords = self.stack.layers[at], self.stack.takes[at]
        x = {t: each.to(self.device) for t, each in batch.x.items()}
        edge_index = {t: each.to(self.device) for t, each in batch.edge_index.items()}
        of_edges = {
            name: {t: each.to(self.device) for t, each in by_type.items()} for name, by_type in batch.of_edges.items()
        }
        if self.schema.is_hetero:
            by_name = {keywords[name]: by_type for name, by_type in of_edges.items()}
            given = self._made(at, batch, partial(layer, x, edge_index, **by_name))
            if not isinstance(given, dict):
                raise ValueError(f"a layer made a {type(given).__name__}: expected a dict by node type")
            if unknown := given.keys() - set(self.schema.node_types):
                raise ValueError(f"a layer made rows of {sorted(map(str, unknown))}: expected node types of the graph")
            out, count = given.get(batch.node_type), len(x.get(batch.node_type, ()))
            if out is None:
                return None
        else:
            (features,), (ends,) = x.values(), edge_index.values()
            values = {name: next(iter(by_type.values())) for name, by_type in of_edges.items()}
            weighing: Any = nullcontext()
            if batch.degrees is not None:
                weighing = normalized(self.gcn, ends, batch.degrees.to(self.device), values.get("edge_weight"))
            with weighing:
                out, count = self._made(at, batch, partial(layer, features, ends, **values)), len(features)
        if any(not isinstance(each, UninitializedParameter) for each in self.lazy):
            raise ValueError(
                f"layer {at} had parameters without values, which are random now: call the model once where it is "
                "made, and train it or load its state, before it infers"
            )
        if not isinstance(out, Tensor) or out.dim() < 2 or len(out) < len(batch.seeds):
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"a layer made {shape} of {count} rows: expected a row for each or the first of them")
        return out[: len(batch.seeds)]

    def _made(self, at: int, batch: InferenceBatch, call: Callable[[], Any]) -> Any:
        num_rows = {t: len(each) for t, each in batch.x.items()}
        if (at, batch.node_type) in self._looked_at or sum(num_rows.values()) <= len(batch.seeds):
            return call()
        self._looked_at.add((at, batch.node_type))
        return one_hop_output(call, f"layer {at}", num_rows, batch.node_type, len(batch.seeds))

    def _write(
        self,
        opened: ExitStack,
        joint: JointWork,
        thread: ThreadPoolExecutor,
        what: str,
        wanted: Wanted,
        make: Callable[[InferenceBatch], Tensor | None],
    ) -> dict[NodeType, LayerRows]:
        """Writes what is made of each batch, by type; returns when all trainers have."""
        made: dict[NodeType, LayerRows] = {}
        layouts: dict[NodeType, tuple[torch.dtype, torch.Size]] = {}
        names = {t: self._part_of(what, t) if what else self._result_of(t) for t in self.num_nodes}
        for t, count in self.num_nodes.items():
            originals = None if what else self.ids.get(t)
            loader = self._loader(opened, t, wanted.below is None)
            self._ahead = BatchesAhead(loader, t, self.schema, self.values, wanted, thread)
            while (batch := self._ahead.next(joint.check)) is not None:
                joint.check()
                values = make(batch)
                if values is None:
                    break  # a layer has outputs for a type or it has none
                if t not in made:
                    shape, part = (count, *values.shape[1:]), None if originals is not None else t
                    made[t] = self.keeper.make(names[t], shape, values.dtype, part)
                    self.kept.append(made[t])
                layout = values.dtype, values.shape[1:]
                if layouts.setdefault(t, layout) != layout:
                    raise ValueError(f"a layer made {layout} of a batch, and {layouts[t]} before: expected the same")
                made[t][batch.seeds if originals is None else originals.to_original(batch.seeds)] = values.cpu()
            self._ahead.settle()
        for rows in made.values():
            rows.flush()
        joint.barrier()
        for t in self.num_nodes:
            if t not in made and not len(self.nodes[t]):  # none of the nodes are this trainer's
                with suppress(LookupError):  # nor has the layer outputs for them
                    made[t] = self.keeper.find(names[t])
                    self.kept.append(made[t])
        return made
