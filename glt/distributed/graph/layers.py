"""Layers that look further than one hop, by a convolution behind another."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol

import numpy as np
import torch
import torch_geometric.nn as pyg
from numpy.lib.format import open_memmap, write_array_header_2_0
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import add_remaining_self_loops

from glt.data.arrays import require_data
from glt.data.schema import EdgeType, NodeType, Schema
from glt.distributed.tensors.embedding import DistEmbedding
from glt.distributed.tensors.graph_data import GraphData
from glt.distributed.tensors.tensor import DistTensor, Handles
from glt.distributed.world import World

# Weights of ``GCNConv``, which go by the degrees of both ends: those of the whole graph, for the edges of a batch.


def in_degrees(edge_index: Tensor, num_seeds: int, edge_weight: Tensor | None = None) -> Tensor:
    """What weights need to know of the seeds of a batch with all edges into them.

    Args:
        edge_index: ``[2, E]``.
        num_seeds: The first nodes.
        edge_weight: ``[E]``, if layers are given weights.

    Returns:
        ``[num_seeds, 2]`` int32: the edges into each seed that come from elsewhere, and those from itself. With
        ``edge_weight`` ``[num_seeds, 5]`` float64: behind these the sums of their weights, and the weight of the last
        edge from itself, NaN if there is none.
    """
    source, target = edge_index
    loops = source == target
    counts = [torch.bincount(target[which], minlength=num_seeds)[:num_seeds] for which in (~loops, loops)]
    if edge_weight is None:
        return torch.stack(counts, 1).int()
    weight = edge_weight.double().view(-1)
    sums = [
        torch.zeros(num_seeds, dtype=torch.float64).index_add_(0, target[which], weight[which])
        for which in (~loops, loops)
    ]
    loop = torch.full((num_seeds,), torch.nan, dtype=torch.float64)
    loop[target[loops]] = weight[loops]
    return torch.stack([*(each.double() for each in counts), *sums, loop], 1)


@contextmanager
def normalized(
    convs: Iterable[pyg.GCNConv], edge_index: Tensor, degrees: Tensor, edge_weight: Tensor | None
) -> Iterator[None]:
    """Has convolutions weigh the edges of a batch as on the whole graph, where ``GCNConv`` would go by the degrees that
    are in the batch: it takes weights that it finds cached for its own.

    Args:
        convs: Of the layer.
        edge_index: Of the batch ``[2, E]``.
        degrees: Of all nodes of the batch, as :func:`in_degrees` counts them ``[N, 2]`` or ``[N, 5]``.
        edge_weight: What the layer is given of the batch ``[E]``, if it is.

    Raises:
        ValueError: From a convolution that is called with other edges or weights, whose degrees are not known.
    """

    def weigh(conv: pyg.GCNConv, args: Any, kwargs: Any) -> None:
        called = signature(conv.forward).bind(*args, **kwargs).arguments
        weight = called.get("edge_weight")
        if not _is_same(called["edge_index"], edge_index) or (weight is not None and not _is_same(weight, edge_weight)):
            raise ValueError(
                "GCNConv was called with other edges or weights than the layer was given: the degrees that it goes by "
                "are known for the edges of the graph only, without weights or with edge_weight of infer_layerwise"
            )
        dtype = called["x"].dtype if weight is None else weight.dtype
        conv._cached_edge_index = _weighted(edge_index, degrees, conv, dtype, weight)

    before = [(conv, conv._cached_edge_index) for conv in convs]
    try:
        with ExitStack() as hooks:
            for conv, _ in before:
                hooks.callback(conv.register_forward_pre_hook(weigh, with_kwargs=True).remove)
            yield
    finally:
        for conv, cached in before:
            conv._cached_edge_index = cached


def _is_same(called: Any, given: Tensor | None) -> bool:
    if called is given:
        return True
    if not isinstance(called, Tensor) or given is None or called.layout != torch.strided:
        return False
    return called.shape == given.shape and torch.equal(called, given.to(called.dtype))


def _weighted(
    edge_index: Tensor, degrees: Tensor, conv: pyg.GCNConv, dtype: torch.dtype, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    others, loops = degrees[:, :2].unbind(1) if weight is None else degrees[:, 2:4].unbind(1)
    # Without weights an edge of a node to itself weighs 1 even if the convolution is improved.
    loop, fill = torch.ones_like(others), 1.0
    if weight is not None:
        fill = 2.0 if conv.improved else 1.0
        loop = degrees[:, 4].nan_to_num(nan=fill)
    if conv.add_self_loops:  # where there are none
        edge_index, weight = add_remaining_self_loops(edge_index, weight, fill, len(degrees))
    scale = (others + (loop if conv.add_self_loops else loops)).to(dtype).pow(-0.5)
    scale = scale.masked_fill(scale == torch.inf, 0)
    source, target = edge_index
    product = scale[source] * scale[target]
    return edge_index, product if weight is None else scale[source] * weight * scale[target]


# What layer-wise inference is given, checked before anything is computed.


def require_dense(rows: Tensor | DistTensor, name: str) -> None:
    """Raises ValueError or TypeError of a tensor whose rows cannot be read; names it."""
    require_data(rows, name)
    if isinstance(rows, Tensor) and rows.layout != torch.strided:
        raise TypeError(f"{name} is a {rows.layout} tensor: expected a dense one")


def checked_features(given: Any, schema: Schema, num_nodes: dict[NodeType, int]) -> dict[NodeType, Tensor | DistTensor]:
    """Features by node type, of the types that have nodes.

    Args:
        given: A tensor, a :class:`DistTensor` or a :class:`DistEmbedding` with a row for each node; of a heterogeneous
            graph a dict of such by node type.
        schema: Of the graph.
        num_nodes: Of the types that have some.

    Raises:
        TypeError, ValueError: If it is something else; names it.
    """
    if schema.is_hetero and not isinstance(given, dict):
        raise TypeError(f"x is a {type(given).__name__}: expected a dict by node type, the graph being heterogeneous")
    found: dict[NodeType, Tensor | DistTensor] = {}
    for node_type, each in (given if schema.is_hetero else {schema.node_types[0]: given}).items():
        what = f"x[{node_type!r}]" if schema.is_hetero else "x"
        if node_type not in schema.node_types:
            raise ValueError(f"x has {node_type!r}: expected node types, {list(schema.node_types)}")
        rows = each.weight if isinstance(each, DistEmbedding) else each
        if not isinstance(rows, Tensor | DistTensor):
            raise TypeError(f"{what} is a {type(rows).__name__}: expected a tensor, a DistTensor or a DistEmbedding")
        require_dense(rows, what)
        count = num_nodes.get(node_type, 0)
        if rows.ndim == 0 or len(rows) != count:
            raise ValueError(f"{what} has shape {list(rows.shape)}: expected a row for each of {count} nodes")
        if count:
            found[node_type] = rows
    return found


def checked_device(given: Any) -> torch.device:
    """A device that torch has here.

    Raises:
        ValueError: If it has no such device.
    """
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError, TypeError) as error:  # as torch has it
        raise ValueError(f"device = {given!r}: expected a device that torch has, such as 'cpu' ({error})") from error


# Weights and features of edges that layers are given, beside the edges: wherever they are, by edge id.


NAMES = ("edge_weight", "edge_attr")


class EdgeValues:
    """A row for each edge, by the name that convolutions have for it and by edge type.

    Args:
        world: With a graph.
        given: By name, of :data:`NAMES`: the name of a table that is stored with the graph; or a tensor, or a
            :class:`DistTensor`, with a row for each edge by its id; of a heterogeneous graph a dict of such by edge
            type, or the name of a table that some types have. None: nothing.

    Attributes:
        names: Those that there are values for.

    Raises:
        TypeError, ValueError: If values do not fit; names them.
        KeyError: If no such table is stored, or there is no such edge type.
    """

    def __init__(self, world: World, given: dict[str, Any]) -> None:
        assert world.data is not None
        self._schema = world.data.schema
        tables = [GraphData(world, "edge", at) for at in range(len(self._schema.edge_types))]
        self._of = {
            name: self._by_type(name, each, dict(zip(self._schema.edge_types, tables, strict=True)))
            for name, each in given.items()
            if each is not None
        }
        self.names = frozenset(self._of)

    def _by_type(self, name: str, given: Any, tables: dict[EdgeType, GraphData]) -> dict[EdgeType, Tensor | DistTensor]:
        if not self._schema.is_hetero:
            (edge_type,) = tables
            return {edge_type: _checked(name, given, tables[edge_type])}
        if isinstance(given, str):
            given = {edge_type: given for edge_type, table in tables.items() if given in table}
            if not given:
                known = {edge_type: list(table) for edge_type, table in tables.items() if len(table)}
                raise KeyError(f"{name}: no edge type has a stored table of that name; there are {known}")
        if not isinstance(given, dict):
            raise TypeError(
                f"{name} is a {type(given).__name__}: expected a dict by edge type, or the name of a stored table, the "
                "graph being heterogeneous"
            )
        found = {}
        for edge_type, each in given.items():
            if edge_type not in tables:
                raise KeyError(f"{name} has {edge_type!r}: expected edge types, {list(tables)}")
            found[edge_type] = _checked(name, each, tables[edge_type], f"[{edge_type!r}]")
        return found

    def told(self) -> dict[str, list[str]]:
        """What all trainers must have alike."""
        return {name: sorted(map(str, by_type)) for name, by_type in sorted(self._of.items())}

    def of(self, names: Collection[str], e_id: dict[EdgeType, Tensor]) -> dict[str, dict[EdgeType, Tensor]]:
        """The values of edges.

        Args:
            names: Which; those that there are none for are left out.
            e_id: Ids of the edges ``[E]``, by edge type.

        Returns:
            By name and edge type, ``[E, ...]``.
        """
        return {
            name: {t: rows[e_id[t]] for t, rows in self._of[name].items() if t in e_id}
            for name in NAMES
            if name in names and name in self._of
        }


def _checked(name: str, given: Any, table: GraphData, of_type: str = "") -> Tensor | DistTensor:
    what = name + of_type
    if isinstance(given, str):
        given = table[given]
    if not isinstance(given, Tensor | DistTensor):
        raise TypeError(
            f"{what} is a {type(given).__name__}: expected a tensor, a DistTensor, or the name of a stored table"
        )
    require_dense(given, what)
    if name == "edge_weight" and (given.ndim > 2 or (given.ndim == 2 and given.shape[1] != 1)):
        raise ValueError(f"{what} has shape {list(given.shape)}: expected a number for each edge, [{table.num_rows}]")
    if given.ndim == 0 or len(given) != table.num_rows:
        raise ValueError(f"{what} has shape {list(given.shape)}: expected a row for each of {table.num_rows} edges")
    return given


# Where the outputs of a layer are kept until the next one has read them: on the servers, or in a mapped file.


# By world, the tensors that are outputs of layers: those may be replaced.
_made: weakref.WeakKeyDictionary[World, set[tuple[int, ...]]] = weakref.WeakKeyDictionary()


class LayerRows(Protocol):
    """Rows by node, that all trainers write and read."""

    def __getitem__(self, ids: Tensor) -> Tensor: ...

    def __setitem__(self, ids: Tensor, values: Tensor) -> None: ...

    def flush(self) -> None:
        """What was written is seen by all once they have met."""

    def delete(self) -> None:
        """Frees them, for everyone."""

    def result(self) -> DistTensor | Tensor:
        """What a user is given of them."""


class RowKeeper:
    """Makes rows, by name; trainers that say the same get the same.

    Args:
        world: The trainers and servers.
        name: Of the whole; that of each of its parts begins with it.
        spill_dir: A directory that all trainers see, for mapped files; None: the servers keep the rows.

    Raises:
        ValueError: If ``spill_dir`` is no directory.
    """

    def __init__(self, world: World, name: str, spill_dir: str | os.PathLike[str] | None) -> None:
        self.world, self.name = world, name
        if spill_dir is not None and not isinstance(spill_dir, str | os.PathLike):
            raise TypeError(f"spill_dir = {spill_dir!r}: expected the path of a directory that all trainers see")
        self.spill_dir = None if spill_dir is None else Path(spill_dir)
        if self.spill_dir is not None and not self.spill_dir.is_dir():
            raise ValueError(f"spill_dir = {os.fspath(self.spill_dir)!r} is no directory")

    def require_free(self, what: str) -> None:
        """Raises ValueError if a name is that of a tensor that this trainer holds and no keeper has made: rows of that
        name would replace it."""
        made = _made.get(self.world, set())
        for tensor in list(Handles.of(self.world).open) if self.spill_dir is None else ():
            if tensor.name == self.name + what and tensor.generations not in made:
                raise ValueError(
                    f"name = {self.name!r}: this trainer holds {tensor}, which rows of that name would replace: give "
                    "another name, or delete it first"
                )

    def make(self, what: str, shape: tuple[int, ...], dtype: torch.dtype, part: NodeType | None) -> LayerRows:
        """Makes them, or opens what another trainer has made.

        Args:
            what: Their name is that of the whole, and this.
            shape: Rows first.
            dtype: Of their elements.
            part: The node type that they are rows of, by its ids; None: by other ids, kept anywhere.
        """
        if self.spill_dir is not None:
            return MappedRows.make(self._path(what), shape, dtype)
        tensor = DistTensor(shape, dtype, self.name + what, part=part, world=self.world)
        _made.setdefault(self.world, set()).add(tensor.generations)
        return _TensorRows(tensor)

    def find(self, what: str) -> LayerRows:
        """What others have made, and all have met since.

        Raises:
            LookupError: If nobody has.
        """
        if self.spill_dir is not None:
            return MappedRows(self._path(what))
        return _TensorRows(DistTensor.find(self.name + what, world=self.world))

    def begin(self, parts: list[str], meet: Callable[[], None]) -> None:
        """Removes what an earlier run may have left of these, with all trainers.

        Args:
            parts: What they may be.
            meet: Waits for the other trainers.

        Raises:
            ValueError: If ``spill_dir`` is not one directory for all of them.
        """
        mark = None if self.spill_dir is None else self.spill_dir / f"{self.name}.begun"
        if self.world.rank == 0:
            for what in parts:
                self._forget(what)
            if mark is not None:
                mark.write_bytes(b"")
        meet()
        if mark is None:
            return
        if not mark.exists():
            raise ValueError(
                f"spill_dir = {os.fspath(mark.parent)!r}: trainer {self.world.rank} on {socket.gethostname()} does not "
                "see there what trainer 0 has written; expected one directory that all trainers see"
            )
        meet()
        if self.world.rank == 0:
            mark.unlink()

    def _forget(self, what: str) -> None:
        if self.spill_dir is not None:
            self._path(what).unlink(missing_ok=True)
            return
        with contextlib.suppress(LookupError):
            DistTensor.find(self.name + what, world=self.world).delete()

    def _path(self, what: str) -> Path:
        assert self.spill_dir is not None
        return self.spill_dir / f"{self.name}{what}.npy"


class _TensorRows:
    """Rows on the servers; what is written is on its way while the next rows are computed."""

    def __init__(self, tensor: DistTensor) -> None:
        self.tensor = tensor

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.tensor[ids]

    def __setitem__(self, ids: Tensor, values: Tensor) -> None:
        self.tensor.write_async(ids, values)

    def flush(self) -> None:
        self.tensor.flush()

    def delete(self) -> None:
        self.tensor.delete()

    def result(self) -> DistTensor:
        return self.tensor


class MappedRows:
    """Rows in a ``.npy`` file, mapped: they take memory for as long as there is some, and are on disk.

    Args:
        path: The file.

    Raises:
        LookupError: If it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.rows: np.memmap = open_memmap(path, mode="r+")
        except FileNotFoundError as error:
            raise LookupError(
                f"{path} is not there, where another trainer has made it: spill_dir must be one directory that all "
                "trainers see"
            ) from error

    @classmethod
    def make(cls, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> MappedRows:
        """Makes the file with all its space, whole or not at all; several processes may.

        Raises:
            TypeError: If numpy has no such dtype.
            ValueError: If another trainer has made it with other rows.
            OSError: If there is no room for it; says how much it takes.
        """
        try:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError as error:
            raise TypeError(f"outputs are {dtype}, which .npy files do not have: leave spill_dir out") from error
        if not path.exists():
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            try:
                _write_empty(temporary, shape, kind)
                with contextlib.suppress(FileExistsError):  # another was faster
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        made = cls(path)
        if made.rows.shape != shape or made.rows.dtype != kind:
            raise ValueError(
                f"{path} has {made.rows.dtype} {list(made.rows.shape)}, as another trainer has made it, and this one "
                f"{kind} {list(shape)} to write: do all have the same model?"
            )
        return made

    def __getitem__(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.rows[ids.numpy()]))

    def __setitem__(self, ids: Tensor, values: Tensor) -> None:
        self.rows[ids.numpy()] = values.numpy()

    def flush(self) -> None:
        self.rows.flush()

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def result(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.rows))


def _write_empty(path: Path, shape: tuple[int, ...], kind: np.dtype) -> None:
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    with open(path, "xb") as file:
        write_array_header_2_0(file, {"descr": kind.str, "fortran_order": False, "shape": shape})
        begin = file.tell()
        file.flush()
        try:
            # All of it: a mapped file that finds no room later ends the process by a bus error.
            os.posix_fallocate(file.fileno(), 0, begin + size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise OSError(error.errno, f"no room for {size} bytes of layer outputs", os.fspath(path)) from error
            raise


# The layers of a model, one by one: what each makes of the rows of its seeds and of their neighbours.


Layer = Callable[..., Any]

# They look further than one hop, or at how many edges a neighbour has: of one hop around a node they make something
# else than of the whole graph.
_FAR_CONVS = (
    "ChebConv",
    "SGConv",
    "SSGConv",
    "APPNP",
    "ARMAConv",
    "TAGConv",
    "GCN2Conv",
    "LGConv",
    "FAConv",
    "DNAConv",
    "MixHopConv",
    "PANConv",
    "DirGNNConv",
    "PDNConv",
    "EGConv",
    "GPSConv",
    "HypergraphConv",
    "HANConv",
    "DynamicEdgeConv",
    "AntiSymmetricConv",
    "GravNetConv",
    "XConv",
    "LabelPropagation",
    "WLConv",
)
# They make of a row something that depends on the others.
_WHOLE_LAYERS = (
    "GraphNorm",
    "InstanceNorm",
    "PairNorm",
    "GraphSizeNorm",
    "MeanSubtractionNorm",
    "DiffGroupNorm",
    "PerformerAttention",
    "SGFormerAttention",
    "PolynormerAttention",
)


@dataclass(frozen=True)
class LayerStack:
    """A model as layers that can be run one after the other over all nodes.

    Attributes:
        layers: ``layer(x, edge_index)``; of what it returns the first rows, those of the seeds, are its output.
        takes: Of each layer, the values of edges that it is also given, of ``edge_weight`` and ``edge_attr``; and the
            keyword for it where there are types: the same with ``_dict`` behind it, unless the layer says otherwise.
        modules: Those that hold parameters, to be looked through.
        combine: Makes the model's output of the outputs of all layers; None: that of the last one is it.
        is_basic: Whether it is a ``BasicGNN``.
    """

    layers: tuple[Layer, ...]
    takes: tuple[dict[str, str], ...]
    modules: tuple[nn.Module, ...]
    combine: Callable[[list[Tensor]], Tensor] | None = None
    is_basic: bool = False

    @classmethod
    def of(cls, model: Any, between: Callable[[Tensor], Tensor] | None) -> LayerStack:
        """Takes a model apart.

        Args:
            model: One of ``torch_geometric.nn.models`` that is a ``BasicGNN``; a module with ``convs``; or a sequence
                of layers. Or what DistributedDataParallel has made of it.
            between: Applied between two layers of the latter two; not after the last one.

        Raises:
            TypeError: If it is something else.
            ValueError: If it has no layers, or parts that are in none, or a layer whose output depends on more than the
                seeds and their neighbours, so that it would be wrong; names it.
        """
        if isinstance(model, DistributedDataParallel):
            model = model.module
        if between is not None and not callable(between):
            raise TypeError(f"between = {between!r}: expected a function of a tensor")
        if isinstance(model, BasicGNN):
            if between is not None:
                raise ValueError(f"between is given, and {type(model).__name__} has its own activation: leave it out")
            made = _of_basic(model)
        else:
            given = getattr(model, "convs", model)
            _require_no_more(model, given, between)
            if not isinstance(given, Sequence | nn.ModuleList | nn.Sequential) or isinstance(given, str):
                raise TypeError(
                    f"model is a {type(model).__name__}: expected a model of torch_geometric.nn.models, a module with "
                    "convs, or a list of layers, each a function of x and edge_index"
                )
            layers = list(given)
            if given is not model and between is None and len(layers) > 1:
                raise ValueError(
                    f"between is None, and what {type(model).__name__}'s forward does between its convs is not known, "
                    "since it is not called: give between, such as torch.relu; or, if there is nothing between them, "
                    "model.convs in place of the model"
                )
            for at, layer in enumerate(layers):
                if not callable(layer):
                    raise TypeError(f"layer {at} is a {type(layer).__name__}: expected a function of x and edge_index")
            takes = tuple(map(_taken, layers))
            modules = [each for each in (*layers, between) if isinstance(each, nn.Module)]
            last = len(layers) - 1
            if between is not None:
                layers[:last] = [_then(layer, between) for layer in layers[:last]]
            made = cls(tuple(layers), takes, tuple(modules))
        if not made.layers:
            raise ValueError("model has no layers")
        for module in made.modules:
            for each in module.modules():
                _require_near(each)
        return made

    def gcn_convs(self) -> list[pyg.GCNConv]:
        """Convolutions whose weights depend on the degrees of neighbours."""
        found = [each for module in self.modules for each in module.modules() if isinstance(each, pyg.GCNConv)]
        return [each for each in dict.fromkeys(found) if each.normalize]

    def parameters(self) -> Iterator[Tensor]:
        """All of them."""
        for module in self.modules:
            yield from module.parameters()

    @contextmanager
    def not_training(self) -> Iterator[None]:
        """Nothing is dropped meanwhile, and norms use their running statistics: of these modules, and of those that are
        only seen when a layer, which may be any function, calls them on this thread.

        Raises:
            ValueError: From the call of such a module that cannot be computed layer by layer; names it.
        """
        was = {each: each.training for module in self.modules for each in module.modules()}
        caller = get_ident()

        def look(module: nn.Module, args: Any) -> None:
            if module in was or get_ident() != caller:
                return
            if isinstance(module, pyg.GCNConv) and module.normalize:
                raise ValueError(
                    "a layer calls GCNConv, which it does not have as a module: the degrees that it goes by were not "
                    "counted. Give the GCNConv itself as the layer, or a module that has it"
                )
            _require_near(module)
            was[module] = module.training
            module.training = False

        watching = register_module_forward_pre_hook(look)
        try:
            for module in self.modules:
                module.eval()
            yield
        finally:
            watching.remove()
            for each, training in was.items():
                each.training = training

    def lazy(self) -> list[Tensor]:
        """Parameters that have no values yet."""
        return [each for each in self.parameters() if isinstance(each, UninitializedParameter)]


def _taken(layer: Layer) -> dict[str, str]:
    """The values of edges that a layer has parameters for."""
    try:
        parameters = signature(layer.forward if isinstance(layer, nn.Module) else layer).parameters
    except (TypeError, ValueError):  # of a builtin, say
        return {}
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    by_type = {name: f"{name}_dict" for name in NAMES if takes_all or f"{name}_dict" in parameters}
    return {name: name for name in NAMES if name in parameters} | by_type


def _require_no_more(model: Any, convs: Any, between: Any) -> None:
    """What a module does beside its convs is not known, and would be left out."""
    if not isinstance(model, nn.Module) or convs is model:
        return
    known = {id(each) for part in (convs, between) if isinstance(part, nn.Module) for each in part.parameters()}
    if not isinstance(convs, nn.Module):
        known |= {id(p) for each in convs if isinstance(each, nn.Module) for p in each.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known:
            raise ValueError(
                f"model has {name!r}, which is in none of its convs, and would be left out: give a list of layers, "
                "functions of x and edge_index, that together do what the model does"
            )


def _then(layer: Layer, between: Callable[[Tensor], Tensor]) -> Layer:
    def both(x: Any, edge_index: Any, **of_edges: Any) -> Any:
        out = layer(x, edge_index, **of_edges)
        return {t: between(each) for t, each in out.items()} if isinstance(out, dict) else between(out)

    return both


def _of_basic(model: BasicGNN) -> LayerStack:
    """As ``BasicGNN.forward`` does it, of a model that is not trained meanwhile: nothing is dropped."""
    if type(model).forward is not BasicGNN.forward:
        raise ValueError(
            f"{type(model).__name__} has a forward of its own, which is not known layer by layer: give a list of layers"
        )
    last = model.num_layers - 1

    def layer(at: int, x: Tensor, edge_index: Tensor, of_edges: dict[str, Tensor]) -> Tensor:
        x = model.convs[at](x, edge_index, **of_edges)
        if at < last or model.jk_mode is not None:
            if model.act is not None and model.act_first:
                x = model.act(x)
            x = model.norms[at](x)
            if model.act is not None and not model.act_first:
                x = model.act(x)
        return x

    def combine(outputs: list[Tensor]) -> Tensor:
        x = model.jk(outputs) if hasattr(model, "jk") else outputs[-1]
        return model.lin(x) if hasattr(model, "lin") else x

    takes = {name: name for name in NAMES if getattr(model, f"supports_{name}")}
    layers = tuple(
        lambda x, edge_index, at=at, **of_edges: layer(at, x, edge_index, of_edges) for at in range(model.num_layers)
    )
    needs_more = hasattr(model, "jk") or hasattr(model, "lin")
    return LayerStack(layers, (takes,) * len(layers), (model,), combine if needs_more else None, True)


def _require_near(module: nn.Module) -> None:
    name = type(module).__name__
    of_pyg = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch_geometric.")}
    num_hops: Any = module.num_layers if isinstance(module, pyg.GatedGraphConv) else 1
    if of_pyg.intersection(_FAR_CONVS) or num_hops > 1:
        raise ValueError(
            f"{name} looks further than one hop, or at the degrees of neighbours: computed layer by layer around nodes "
            "its output would be another than on the whole graph"
        )
    if isinstance(module, pyg.MessagePassing) and module.flow != "source_to_target":
        raise ValueError(f"{name} has flow = {module.flow!r}: expected 'source_to_target', towards the seeds")
    is_whole = bool(of_pyg.intersection(_WHOLE_LAYERS))
    if isinstance(module, pyg.LayerNorm) and module.mode == "graph":
        is_whole, name = True, "LayerNorm(mode='graph')"
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        is_whole, name = True, f"{name} without running statistics"
    if is_whole:
        raise ValueError(
            f"{name} looks at all rows that it is given: computed batch by batch its output would be another than on "
            "the whole graph. BatchNorm, or LayerNorm with mode='node', look at what they may"
        )


def one_hop_output(
    call: Callable[[], Any], what: str, num_rows: Mapping[NodeType, int], seed_type: NodeType, num_seeds: int
) -> Any:
    """Returns what a layer makes of a batch whose edges all lead to its seeds.

    What convolutions in it make of the other nodes is wrong there, since their edges are missing, and no output of a
    seed may depend on it. Where several are called, that is tried: they are called once more, with NaN in its place.

    Args:
        call: The layer, with its arguments.
        what: Which layer.
        num_rows: Nodes of the batch, by type.
        seed_type: Type of the seeds.
        num_seeds: How many they are; they are the first nodes of their type.

    Raises:
        ValueError: If one of the convolutions reads what another has made of the neighbours.
    """
    num_calls = 0

    def count(made: Any) -> None:
        nonlocal num_calls
        num_calls += 1

    def spoil(made: Any) -> Any:
        if not isinstance(made, Tensor) or not made.is_floating_point() or len(made) not in num_rows.values():
            return None
        spoilt = made.clone()
        spoilt[num_seeds if len(made) == num_rows.get(seed_type) else 0 :] = math.nan
        return spoilt

    out = _watched(call, count)
    right = _of_seeds(out, seed_type, num_seeds)
    if num_calls > 1 and right is not None:
        again = _of_seeds(_watched(call, spoil), seed_type, num_seeds)
        if again is not None and bool((again.isnan() & ~right.isnan()).any()):
            raise ValueError(
                f"{what} has a convolution behind another, so that it looks further than one hop: computed around "
                "nodes its output would be another than on the whole graph. Give each convolution as a layer"
            )
    return out


def _of_seeds(out: Any, seed_type: NodeType, num_seeds: int) -> Tensor | None:
    rows = out.get(seed_type) if isinstance(out, dict) else out
    return rows[:num_seeds] if isinstance(rows, Tensor) else None


def _watched(call: Callable[[], Any], seen: Callable[[Any], Any]) -> Any:
    caller = get_ident()

    def look(module: nn.Module, args: Any, made: Any) -> Any:
        return seen(made) if isinstance(module, MessagePassing) and get_ident() == caller else None

    watching = register_module_forward_hook(look)
    try:
        return call()
    finally:
        watching.remove()
