"""An embedding whose rows servers keep, and the parameter that stands for these in a module."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from glt._checks import check_at_least
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.schema import EdgeType, NodeType
from glt.distributed.context import World
from glt.distributed.tensors.tensor import DistTensor, as_tensor

_GRAD: Any = Tensor.grad  # the property of tensors, which autograd sets without asking a class
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _RowsOnServers:
    """What can be neither copied nor pickled, since its rows are on servers."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied: its rows are on servers. Make another DistEmbedding, and write its weight"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise pickle.PicklingError(
            f"{self!r} cannot be pickled: its rows are on servers. Save its state_dict(), and "
            "its rows by the sparse optimizer's save()"
        )


class DistParameter(_RowsOnServers, nn.Parameter):
    """A parameter of shape ``[0, embedding_dim]`` whose rows, and their gradients, are on servers.

    It is moved, cast and frozen with its module, and says by that where rows go, in which dtype, and whether they
    learn. Setting its ``grad`` to None, as ``zero_grad()`` does, forgets ``gradients``, the ids and gradients of the
    backward passes since the last step. ``optimizer`` is the sparse optimizer that it was given to.
    """

    tensor: DistTensor
    gradients: list[tuple[Tensor, Tensor]]
    optimizer: Any

    def __new__(cls, tensor: DistTensor, dtype: torch.dtype) -> DistParameter:
        self = super().__new__(cls, torch.empty(0, tensor.shape[1], dtype=dtype))
        self.tensor, self.gradients, self.optimizer = tensor, [], None
        return self

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        return _GRAD.__get__(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        _GRAD.__set__(self, value)
        if value is None:
            self.gradients.clear()

    def read(self, ids: Tensor) -> Tensor:
        rows = self.tensor[ids.detach().reshape(-1).cpu()]
        return rows.to(device=self.device, dtype=self.dtype).view(*ids.shape, self.shape[1])

    def record(self, ids: Tensor, grads: Tensor) -> None:
        if self.optimizer is None:
            raise RuntimeError(
                f"{self.tensor.name!r} has a gradient, and no optimizer: give its module to SparseAdagrad or "
                "SparseAdam before the first backward pass, or freeze it by requires_grad_(False)"
            )
        self.gradients.append((ids.detach().reshape(-1), grads.detach().reshape(-1, self.shape[1])))

    def take_gradients(self) -> tuple[Tensor, Tensor] | None:
        """Takes ids ``[n]`` (int64) and gradients ``[n, embedding_dim]`` (float32) on the CPU; None if there was no
        backward pass."""
        taken, self.gradients = self.gradients, []
        if not taken:
            return None
        ids = [each.to("cpu", torch.int64) for each, _ in taken]
        grads = [each.to("cpu", torch.float32) for _, each in taken]
        if len(taken) == 1:
            return ids[0].contiguous(), grads[0].contiguous()
        return torch.cat(ids), torch.cat(grads)

    @says
    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.tensor.name!r}, {list(self.tensor.shape)}"


class Lookup(torch.autograd.Function):
    """Rows of a :class:`DistParameter`; the backward pass leaves their gradients with it."""

    @staticmethod
    def forward(ctx: Any, parameter: DistParameter, ids: Tensor) -> Tensor:  # type: ignore[override]
        ctx.parameter, ctx.ids = parameter, ids
        return parameter.read(ids)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.parameter.record(ctx.ids, grads)
        return torch.zeros_like(ctx.parameter, requires_grad=False), None


@short_traceback
class DistEmbedding(_RowsOnServers, nn.Module):
    """:class:`torch.nn.Embedding` with ``sparse=True``, and with its rows on any number of servers.

    ::

        emb = DistEmbedding(g.num_nodes(), 64, "nodes", part="node")
        model = Model(emb)                                  # a module like any other
        sparse_optimizer = SparseAdam(model, lr=0.01)       # finds the embeddings of a model
        optimizer = torch.optim.Adam(model.parameters())    # the rest; leaves them alone

    A call reads rows; backward passes leave their gradients here; the sparse optimizer's ``step()`` sends them to the
    servers. Under ``no_grad``, and when frozen by ``requires_grad_(False)``, nothing is recorded. Rows come on the
    device and in the dtype of the module: ``emb.to("cuda")``, ``emb.bfloat16()``; the servers keep ``dtype``.

    The module's parameter ``rows`` is a :class:`DistParameter` of shape ``[0, embedding_dim]``:
    ``DistributedDataParallel``, dense optimizers and ``clip_grad_norm_`` do nothing to the rows.

    ``state_dict()`` holds what the embedding is, not its rows: the sparse optimizer saves these together with its own
    state, see :meth:`SparseAdagrad.save`, or ``emb.weight.save()`` alone. ``load_state_dict()`` refuses another
    embedding. It cannot be copied or pickled.

    Args:
        num_embeddings: Rows.
        embedding_dim: Width.
        name, init_func, rng_seed, world: As of :class:`DistTensor`. First values are by default normal, of mean 0 and
            deviation 1, as in torch.
        part: The node type whose nodes have these rows, which are then kept with them; None: evenly.
        dtype: In which servers keep them: float32, bfloat16 or float16. In two bytes, small updates of large weights
            are lost to rounding; the optimizer's state is float32 always.

    Raises:
        ValueError, TypeError: If an argument does not fit, or servers have another tensor of this name.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> embedding = glt.distributed.DistEmbedding(graph.num_nodes(), 8, "embedding", part="node")
        >>> embedding(torch.tensor([3, 7])).shape
        torch.Size([2, 8])
        >>> glt.distributed.finalize()
    """

    rows: DistParameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: Any = "normal",
        part: NodeType | EdgeType | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        rng_seed: int = 0,
        world: World | None = None,
    ) -> None:
        super().__init__()
        num_embeddings = check_at_least("num_embeddings", num_embeddings, 1)
        embedding_dim = check_at_least("embedding_dim", embedding_dim, 1)
        if dtype not in _DTYPES:
            raise ValueError(f"dtype = {dtype}: expected one of {', '.join(map(str, _DTYPES))}")
        weight = DistTensor(
            (num_embeddings, embedding_dim), dtype, name, init_func, part, rng_seed=rng_seed, world=world
        )
        self.rows = DistParameter(weight, dtype)

    @property
    def weight(self) -> DistTensor:
        """The rows, as a :class:`DistTensor`: read, write, save."""
        return self.rows.tensor

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def num_embeddings(self) -> int:
        return self.weight.shape[0]

    @property
    def embedding_dim(self) -> int:
        return self.weight.shape[1]

    @short_traceback
    def forward(self, ids: Any) -> Tensor:
        """Returns rows ``[*ids.shape, embedding_dim]`` for int64 or int32 ids: a tensor on any device, an array, or a
        list. Raises TypeError if ids are no integers, IndexError if there is no such row."""
        if isinstance(ids, np.ndarray | list):  # as DGL's take them
            ids = as_tensor("ids", ids, "ids of rows")
            ids = ids if ids.numel() else ids.long()
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
            found = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"ids: expected a tensor, an array or a list of int64 or int32, got {found}")
        if torch.is_grad_enabled() and self.rows.requires_grad:
            return Lookup.apply(self.rows, ids)
        return self.rows.read(ids)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, name={self.name!r}"

    @says
    def __repr__(self) -> str:
        return self.extra_repr()

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"num_embeddings": self.num_embeddings, "embedding_dim": self.embedding_dim}

    def set_extra_state(self, state: Any) -> None:
        mine = self.get_extra_state()
        if not isinstance(state, Mapping) or dict(state) != mine:
            raise ValueError(f"state_dict is of an embedding {state!r}: expected {mine}, for {self.name!r}")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "rows"]  # there are none in it

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        state_dict = {**state_dict, prefix + "rows": self.rows}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
