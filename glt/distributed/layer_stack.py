"""The layers of a model, one by one: what each makes of the rows of its seeds and of their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import add_remaining_self_loops

Layer = Callable[..., Any]

# They look further than one hop, or at how many edges a neighbour has: of one hop around a node they make something
# else than of the whole graph.
_FAR_CONVS = (
    "ChebConv", "SGConv", "SSGConv", "APPNP", "ARMAConv", "TAGConv", "GCN2Conv", "LGConv", "FAConv", "DNAConv",
    "MixHopConv", "PANConv", "DirGNNConv", "PDNConv", "EGConv", "GPSConv", "HypergraphConv", "HANConv",
    "DynamicEdgeConv", "AntiSymmetricConv", "GravNetConv", "XConv", "DynamicXConv",
)  # fmt: skip
_WHOLE_NORMS = ("GraphNorm", "InstanceNorm", "PairNorm", "GraphSizeNorm", "MeanSubtractionNorm", "DiffGroupNorm")


@dataclass(frozen=True)
class LayerStack:
    """A model as layers that can be run one after the other over all nodes.

    Attributes:
        layers: ``layer(x, edge_index)``; of what it returns the first rows, those of the seeds, are its output.
        modules: Those that hold parameters, to be looked through.
        combine: Makes the model's output of the outputs of all layers; None: that of the last one is it.
        is_basic: Whether it is a ``BasicGNN``.
    """

    layers: tuple[Layer, ...]
    modules: tuple[nn.Module, ...]
    combine: Callable[[list[Tensor]], Tensor] | None = None
    is_basic: bool = False

    @classmethod
    def of(cls, model: Any, between: Callable[[Tensor], Tensor] | None) -> LayerStack:
        """Takes a model apart.

        Args:
            model: One of ``torch_geometric.nn.models`` that is a ``BasicGNN``; a module with ``convs``; or a sequence
                of layers.
            between: Applied between two layers of the latter two; not after the last one.

        Raises:
            TypeError: If it is something else.
            ValueError: If it has no layers, or one whose output depends on more than the seeds and their neighbours, so
                that it would be wrong; names it.
        """
        if between is not None and not callable(between):
            raise TypeError(f"between = {between!r}: expected a function of a tensor")
        if isinstance(model, BasicGNN):
            if between is not None:
                raise ValueError(f"between is given, and {type(model).__name__} has its own activation: leave it out")
            made = _of_basic(model)
        else:
            given = getattr(model, "convs", model)
            if not isinstance(given, Sequence | nn.ModuleList | nn.Sequential) or isinstance(given, str):
                raise TypeError(
                    f"model is a {type(model).__name__}: expected a model of torch_geometric.nn.models, a module with "
                    "convs, or a list of layers, each a function of x and edge_index"
                )
            layers = list(given)
            for at, layer in enumerate(layers):
                if not callable(layer):
                    raise TypeError(f"layer {at} is a {type(layer).__name__}: expected a function of x and edge_index")
            modules = [each for each in (*layers, between) if isinstance(each, nn.Module)]
            last = len(layers) - 1
            if between is not None:
                layers[:last] = [_then(layer, between) for layer in layers[:last]]
            made = cls(tuple(layers), tuple(modules))
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


def _then(layer: Layer, between: Callable[[Tensor], Tensor]) -> Layer:
    def both(x: Any, edge_index: Any) -> Any:
        out = layer(x, edge_index)
        return {t: between(each) for t, each in out.items()} if isinstance(out, dict) else between(out)

    return both


def _of_basic(model: BasicGNN) -> LayerStack:
    """As ``BasicGNN.forward`` does it, of a model that is not trained meanwhile: nothing is dropped."""
    last = model.num_layers - 1

    def layer(at: int, x: Tensor, edge_index: Tensor) -> Tensor:
        x = model.convs[at](x, edge_index)
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

    layers = tuple(lambda x, edge_index, at=at: layer(at, x, edge_index) for at in range(model.num_layers))
    needs_more = hasattr(model, "jk") or hasattr(model, "lin")
    return LayerStack(layers, (model,), combine if needs_more else None, True)


def _require_near(module: nn.Module) -> None:
    name = type(module).__name__
    if isinstance(module, pyg.MessagePassing):
        if any(kind.__name__ in _FAR_CONVS for kind in type(module).__mro__):
            raise ValueError(
                f"{name} looks further than one hop, or at the degrees of neighbours: computed layer by layer around "
                "nodes its output would be another than on the whole graph"
            )
        if module.flow != "source_to_target":
            raise ValueError(f"{name} has flow = {module.flow!r}: expected 'source_to_target', towards the seeds")
    is_whole = any(kind.__name__ in _WHOLE_NORMS for kind in type(module).__mro__)
    if isinstance(module, pyg.LayerNorm) and module.mode == "graph":
        is_whole, name = True, "LayerNorm(mode='graph')"
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        is_whole, name = True, f"{name} without running statistics"
    if is_whole:
        raise ValueError(
            f"{name} normalizes by all rows that it is given: computed batch by batch its output would be another than "
            "on the whole graph. BatchNorm, or LayerNorm with mode='node', look at what they may"
        )


def in_degrees(edge_index: Tensor, num_seeds: int) -> Tensor:
    """Edges into the seeds that come from elsewhere, and from themselves ``[num_seeds, 2]``, int32."""
    source, target = edge_index
    loops = source == target
    counts = [torch.bincount(target[which], minlength=num_seeds)[:num_seeds] for which in (~loops, loops)]
    return torch.stack(counts, 1).int()


@contextmanager
def normalized(convs: Iterable[pyg.GCNConv], edge_index: Tensor, degrees: Tensor, dtype: torch.dtype) -> Iterator[None]:
    """Has convolutions weigh the edges of a batch as on the whole graph, where ``GCNConv`` would count those that are
    in the batch: it takes weights that it finds cached for its own.

    Args:
        convs: Of the layer.
        edge_index: Of the batch ``[2, E]``.
        degrees: Of all nodes of the batch, as :func:`in_degrees` counts them ``[N, 2]``.
        dtype: Of the weights.
    """
    before = []
    try:
        for conv in convs:
            before.append((conv, conv._cached_edge_index))
            conv._cached_edge_index = _weighted(edge_index, degrees, conv, dtype)
        yield
    finally:
        for conv, cached in before:
            conv._cached_edge_index = cached


def _weighted(edge_index: Tensor, degrees: Tensor, conv: pyg.GCNConv, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    others, loops = degrees.to(dtype).unbind(1)
    if conv.add_self_loops:  # one of each node, of weight 1 even if it is improved: the edges have no weights
        edge_index, _ = add_remaining_self_loops(edge_index, None, None, len(degrees))
        degree = others + 1
    else:
        degree = others + loops
    scale = degree.pow(-0.5)
    scale = scale.masked_fill(torch.isinf(scale), 0)
    source, target = edge_index
    return edge_index, scale[source] * scale[target]
