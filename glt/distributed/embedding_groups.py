"""The embeddings in what a user gives to a sparse optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from glt.distributed.dist_parameter import DistParameter


def embedding_groups(params: Any) -> list[dict[str, Any]]:
    """Groups as torch.optim has them, of the embeddings in what a user gave."""
    if isinstance(params, nn.Module | DistParameter):
        params = [params]
    if isinstance(params, Mapping) or not isinstance(params, Iterable):
        raise TypeError(f"params: expected embeddings, or a module that has some, got {type(params).__name__}")
    items = list(params)
    if items and all(isinstance(item, Mapping) for item in items):
        return [{**item, "params": _embeddings(_items(item.get("params")))} for item in items]
    return [{"params": _embeddings(items)}]


def _items(params: Any) -> list[Any]:
    return [params] if isinstance(params, nn.Module | Tensor) else list(params or ())


def _embeddings(items: list[Any]) -> list[DistParameter]:
    found: dict[DistParameter, None] = {}  # each once: modules may share them
    for item in items:
        if isinstance(item, nn.Module):
            found.update((p, None) for p in item.parameters() if isinstance(p, DistParameter))
        elif isinstance(item, DistParameter):
            found[item] = None
        else:
            raise TypeError(
                f"params: expected embeddings, got {type(item).__name__}; give dense parameters to an optimizer of "
                "torch.optim, or the whole module here, which finds its embeddings"
            )
    if not found:
        raise ValueError("params: there is no DistEmbedding in it")
    return list(found)
