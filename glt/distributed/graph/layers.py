"""A model as layers that are computed one by one, around seeds and their neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from threading import get_ident
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import add_remaining_self_loops

from glt.data.schema import NodeType

Layer = Callable[..., Any]

EDGE_VALUES = ("edge_weight", "edge_attr")  # what layers may be given beside the edges

# They look further than one hop, or at the degrees of neighbours: from one hop around a node they compute another
# output than from the whole graph.
_FAR_CONVS = frozenset(
    "ChebConv SGConv SSGConv APPNP ARMAConv TAGConv GCN2Conv LGConv FAConv DNAConv MixHopConv PANConv DirGNNConv "
    "PDNConv EGConv GPSConv HypergraphConv HANConv DynamicEdgeConv AntiSymmetricConv GravNetConv XConv "
    "LabelPropagation WLConv".split()
)
# What they compute of a row depends on the other rows.
_WHOLE_LAYERS = frozenset(
    "GraphNorm InstanceNorm PairNorm GraphSizeNorm MeanSubtractionNorm DiffGroupNorm PerformerAttention "
    "SGFormerAttention PolynormerAttention".split()
)


@dataclass(frozen=True)
class LayerStack:
    """A model as layers that can be run one after the other over all nodes.

    Attributes:
        layers: ``layer(x, edge_index)``; the first rows of what it returns, those of the seeds, are its output.
        takes: Of each layer, which of :data:`EDGE_VALUES` it is also given, and by which keyword.
        modules: Those that hold parameters.
        combine: Makes the model's output of the outputs of all layers; None: the last layer's output is it.
    """

    layers: tuple[Layer, ...]
    takes: tuple[dict[str, str], ...]
    modules: tuple[nn.Module, ...]
    combine: Callable[[list[Tensor]], Tensor] | None = None
    is_basic: bool = False

    @classmethod
    def of(cls, model: Any, between: Callable[[Tensor], Tensor] | None) -> LayerStack:
        """Takes a model apart; arguments as of :func:`infer_layerwise`. Raises TypeError if it is no model or layers,
        ValueError, which names it, if a part is in no layer or a layer's output depends on more than the seeds and
        their neighbours."""
        if isinstance(model, DistributedDataParallel):
            model = model.module
        if between is not None and not callable(between):
            raise TypeError(f"between = {between!r}: expected a function of a tensor")
        if isinstance(model, BasicGNN):
            if between is not None:
                raise ValueError(f"between is given, and {type(model).__name__} has its own activation: leave it out")
            stack = _of_basic(model)
        else:
            stack = _of_layers(model, between)
        if not stack.layers:
            raise ValueError("model has no layers")
        for module in stack.modules:
            for each in module.modules():
                _require_near(each)
        return stack

    def gcn_convs(self) -> list[pyg.GCNConv]:
        found = [each for module in self.modules for each in module.modules() if isinstance(each, pyg.GCNConv)]
        return [each for each in dict.fromkeys(found) if each.normalize]

    def parameters(self) -> Iterator[Tensor]:
        for module in self.modules:
            yield from module.parameters()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Sets modules to evaluation mode, also those that only a layer's call on this thread shows; ValueError from
        the call of one that cannot be computed layer by layer."""
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


def _of_layers(model: Any, between: Callable[[Tensor], Tensor] | None) -> LayerStack:
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
    takes = tuple(map(_edge_keywords, layers))
    modules = [each for each in (*layers, between) if isinstance(each, nn.Module)]
    if between is not None:
        layers[:-1] = [_then(layer, between) for layer in layers[:-1]]
    return LayerStack(tuple(layers), takes, tuple(modules))


def _edge_keywords(layer: Layer) -> dict[str, str]:
    """The keywords by which a layer takes values of edges, with ``_dict`` behind them where there are types."""
    try:
        parameters = signature(layer.forward if isinstance(layer, nn.Module) else layer).parameters
    except (TypeError, ValueError):  # of a builtin, say
        return {}
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    by_type = {name: f"{name}_dict" for name in EDGE_VALUES if takes_all or f"{name}_dict" in parameters}
    return {name: name for name in EDGE_VALUES if name in parameters} | by_type


def _require_no_more(model: Any, convs: Any, between: Any) -> None:
    if not isinstance(model, nn.Module) or convs is model:
        return
    parts = [between, *([convs] if isinstance(convs, nn.Module) else convs)]
    known = {id(each) for part in parts if isinstance(part, nn.Module) for each in part.parameters()}
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

    takes = {name: name for name in EDGE_VALUES if getattr(model, f"supports_{name}")}
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


def in_degrees(edge_index: Tensor, num_seeds: int, edge_weight: Tensor | None = None) -> Tensor:
    """Counts the edges ``edge_index [2, E]`` into the seeds, the first nodes of a batch, for :func:`normalized`.

    Returns ``[num_seeds, 2]`` int32: the edges into each seed from other nodes, and its loops. With ``edge_weight [E]``
    ``[num_seeds, 5]`` float64: after these the sums of their weights, and the weight of the last loop, NaN if there is
    none.
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
    """Makes ``GCNConv`` weigh the edges of a batch by the ``degrees`` of all its nodes in the whole graph, see
    :func:`in_degrees`: it uses weights that it finds cached. ``edge_weight`` is what the layer is given. ValueError
    from a convolution that is called with other edges or weights."""

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


def one_hop_output(
    call: Callable[[], Any], what: str, num_rows: Mapping[NodeType, int], seed_type: NodeType, num_seeds: int
) -> Any:
    """Returns the output of a layer (``call``) for a batch whose edges all lead to its seeds, the first of their type.

    What convolutions make of the other nodes is wrong, since edges into those are missing. If the layer calls several
    convolutions, it is called once more with NaN in place of those rows: ValueError if an output of a seed depends on
    them. ``what`` names the layer; ``num_rows`` are the nodes of the batch by type.
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
        return seen(made) if isinstance(module, pyg.MessagePassing) and get_ident() == caller else None

    watching = register_module_forward_hook(look)
    try:
        return call()
    finally:
        watching.remove()
