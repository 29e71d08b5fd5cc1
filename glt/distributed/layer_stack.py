"""The layers of a model, one by one: what each makes of the rows of its seeds and of their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from threading import get_ident
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt.distributed.edge_values import NAMES

Layer = Callable[..., Any]

# They look further than one hop, or at how many edges a neighbour has: of one hop around a node they make something
# else than of the whole graph.
_FAR_CONVS = (
    "ChebConv", "SGConv", "SSGConv", "APPNP", "ARMAConv", "TAGConv", "GCN2Conv", "LGConv", "FAConv", "DNAConv",
    "MixHopConv", "PANConv", "DirGNNConv", "PDNConv", "EGConv", "GPSConv", "HypergraphConv", "HANConv",
    "DynamicEdgeConv", "AntiSymmetricConv", "GravNetConv", "XConv", "LabelPropagation", "WLConv",
)  # fmt: skip
# They make of a row something that depends on the others.
_WHOLE_LAYERS = (
    "GraphNorm", "InstanceNorm", "PairNorm", "GraphSizeNorm", "MeanSubtractionNorm", "DiffGroupNorm",
    "PerformerAttention", "SGFormerAttention", "PolynormerAttention",
)  # fmt: skip


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
