"""An embedding whose rows servers keep."""

from __future__ import annotations

import pickle
import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from glt.data.schema import EdgeType, NodeType
from glt.distributed.dist_parameter import DistParameter, Lookup
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.world import World

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class DistEmbedding(nn.Module):
    """What :class:`torch.nn.Embedding` is with ``sparse=True``, with its rows on the servers: any number of them.

    ::

        emb = DistEmbedding(g.num_nodes(), 64, "nodes", part="node")
        model = Model(emb)                                  # a module like any other
        sparse_optimizer = SparseAdam(model, lr=0.01)       # finds the embeddings of a model
        optimizer = torch.optim.Adam(model.parameters())    # the rest; leaves them alone

    A call reads rows; a backward pass leaves their gradients here, also those of several calls, and of ids that come
    several times; the sparse optimizer's ``step()`` sends them to the servers that keep the rows. Under ``no_grad``,
    and when frozen by ``requires_grad_(False)``, nothing is recorded. Training and evaluation mode are the same, as in
    torch. Rows come on the device and in the dtype of the module: ``emb.to("cuda")``, ``emb.bfloat16()``; the servers
    keep ``dtype``.

    The parameter that the module shows, ``rows``, is a :class:`~glt.distributed.dist_parameter.DistParameter` of shape
    ``[0, embedding_dim]``: ``DistributedDataParallel`` and dense optimizers work with it, and do nothing to the rows.
    ``clip_grad_norm_`` does not see their gradients either.

    ``state_dict()`` holds what the embedding is, not its rows: the sparse optimizer saves these together with its own
    state, see :meth:`SparseAdagrad.save`, or ``emb.weight.save()`` alone. ``load_state_dict()`` compares, and refuses
    another embedding. It cannot be copied or pickled.

    Args:
        num_embeddings: Rows.
        embedding_dim: Width.
        name: Under which the servers keep them; all trainers give the same, and find each other's. None: they are freed
            with the last trainer's module, and told apart by the order in which trainers make them.
        init_func: First values, as :class:`DistTensor` takes them. Default: normal, of mean 0 and deviation 1, as in
            torch.
        part: The node type whose nodes have these rows, which are then kept with them; None: evenly.
        dtype: In which servers keep them: float32, bfloat16 or float16. In two bytes, small updates of large weights
            are lost to rounding; the optimizer's state is float32 always.
        rng_seed: Of the first values; they do not depend on the number of servers.
        world: Default: that of this process.

    Attributes:
        weight: The rows, as a :class:`DistTensor`: read, write, save.

    Raises:
        ValueError, TypeError: If an argument does not fit, or servers have another tensor of this name.
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
        for what, value in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
                raise ValueError(f"{what} = {value!r}: expected a positive integer, below 2^63")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype = {dtype}: expected one of {', '.join(map(str, _DTYPES))}")
        weight = DistTensor(
            (num_embeddings, embedding_dim), dtype, name, init_func, part, rng_seed=rng_seed, world=world
        )
        self.rows = DistParameter(weight, dtype)

    @property
    def weight(self) -> DistTensor:
        """The rows."""
        return self.rows.tensor

    @property
    def name(self) -> str:
        """Under which servers keep them."""
        return self.weight.name

    @property
    def num_embeddings(self) -> int:
        """Rows."""
        return self.weight.shape[0]

    @property
    def embedding_dim(self) -> int:
        """Width."""
        return self.weight.shape[1]

    def forward(self, ids: Any) -> Tensor:
        """Returns rows.

        Args:
            ids: int64 or int32, of any shape: a tensor on any device, an array, or a list.

        Returns:
            ``[*ids.shape, embedding_dim]``.

        Raises:
            TypeError: If ids are no integers.
            IndexError: If there is no such row.
        """
        if isinstance(ids, np.ndarray | list):  # as DGL's take them
            ids = _converted(ids)
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
            found = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"ids: expected a tensor, an array or a list of int64 or int32, got {found}")
        if torch.is_grad_enabled() and self.rows.requires_grad:
            return Lookup.apply(self.rows, ids)
        return self.rows.read(ids)

    def extra_repr(self) -> str:
        """Part of how it prints."""
        return f"{self.num_embeddings}, {self.embedding_dim}, name={self.name!r}"

    # -- state ---------------------------------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        return {"num_embeddings": self.num_embeddings, "embedding_dim": self.embedding_dim}

    def get_extra_state(self) -> dict[str, Any]:
        """What the embedding is; its rows are saved by the sparse optimizer."""
        return self._about()

    def set_extra_state(self, state: Any) -> None:
        """Refuses the state of another embedding.

        Raises:
            ValueError: If it is one; names both.
        """
        if not isinstance(state, Mapping) or dict(state) != self._about():
            raise ValueError(f"state_dict is of an embedding {state!r}: expected {self._about()}, for {self.name!r}")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "rows"]  # there are none in it

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        state_dict = {**state_dict, prefix + "rows": self.rows}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError(f"{self} cannot be copied: its rows are on servers. Make another one, and write its weight")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise pickle.PicklingError(f"{self} cannot be pickled: its rows are on servers. Save its state_dict(), and its "
                                   "rows by the sparse optimizer's save()")  # fmt: skip


def _converted(ids: Any) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(ids, order="C", dtype=None if len(ids) else np.int64))
    except (TypeError, ValueError) as error:  # text, objects, rows of several lengths
        raise TypeError(f"ids = {reprlib.repr(ids)}: expected ids of rows ({error})") from error
