"""What stands in a module for rows on servers: a parameter without rows, and the gradients of theirs."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from glt.distributed.dist_tensor import DistTensor

_GRAD: Any = Tensor.grad  # the property of tensors, which autograd sets without asking a class


class DistParameter(nn.Parameter):
    """A parameter of shape ``[0, embedding_dim]`` whose rows, and their gradients, are elsewhere.

    It is enumerated, moved, cast and frozen with its module, and says by that where rows go, in which dtype, and
    whether they learn. :class:`~torch.nn.parallel.DistributedDataParallel` reduces, and dense optimizers update, its
    nothing. Setting its ``grad`` to None, as ``zero_grad()`` does, forgets the gradients of its rows.

    Args:
        tensor: The rows ``[num_embeddings, embedding_dim]``.
        dtype: In which they come.

    Attributes:
        tensor: The rows.
        gradients: Ids and gradients since the last step, in the order in which backward passes brought them.
        optimizer: The sparse optimizer that it was given to, if any.
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
        """Of its nothing: there, but empty, after a backward pass."""
        return _GRAD.__get__(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        _GRAD.__set__(self, value)
        if value is None:
            self.gradients.clear()

    def read(self, ids: Tensor) -> Tensor:
        """Returns rows ``[*ids.shape, embedding_dim]`` on the parameter's device, in its dtype."""
        rows = self.tensor[ids.detach().reshape(-1).cpu()]
        return rows.to(device=self.device, dtype=self.dtype).view(*ids.shape, self.shape[1])

    def record(self, ids: Tensor, grads: Tensor) -> None:
        """Keeps the gradients of rows until the next step."""
        if self.optimizer is None:
            raise RuntimeError(
                f"{self.tensor.name!r} has a gradient, and no optimizer: give its module to SparseAdagrad or "
                "SparseAdam before the first backward pass, or freeze it by requires_grad_(False)"
            )
        self.gradients.append((ids.detach().reshape(-1), grads.detach().reshape(-1, self.shape[1])))

    def take_gradients(self) -> tuple[Tensor, Tensor] | None:
        """Returns ids ``[n]`` (int64) and gradients ``[n, embedding_dim]`` (float32) on the CPU, and forgets them;
        None: there was no backward pass."""
        taken, self.gradients = self.gradients, []
        if not taken:
            return None
        ids = [each.to("cpu", torch.int64) for each, _ in taken]
        grads = [each.to("cpu", torch.float32) for _, each in taken]
        if len(taken) == 1:
            return ids[0].contiguous(), grads[0].contiguous()
        return torch.cat(ids), torch.cat(grads)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DistParameter of {self.tensor.name!r}, {list(self.tensor.shape)}"

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError(f"{self!r} cannot be copied: its rows are on servers. Make another DistEmbedding, and write "
                        "its weight")  # fmt: skip

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise pickle.PicklingError(f"{self!r} cannot be pickled: its rows are on servers. Save its state_dict(), and "
                                   "its rows by the sparse optimizer's save()")  # fmt: skip


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
