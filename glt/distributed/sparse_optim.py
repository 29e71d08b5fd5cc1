"""Optimizers of distributed embeddings: the servers that keep the rows update them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from glt import _core
from glt.data.schema import EdgeType, NodeType
from glt.distributed.dist_parameter import DistParameter
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.service.client import Reply
from glt.distributed.world import World

_REDUCTIONS = ("mean", "sum")
_num_made: WeakKeyDictionary[World, int] = WeakKeyDictionary()


class SparseOptimizer(torch.optim.Optimizer):
    """What :class:`SparseAdagrad` and :class:`SparseAdam` have in common.

    A ``step()`` is one push to each server, of what this trainer's backward passes left of rows that are kept there,
    equal rows summed. A server waits for the pushes of all trainers, merges them in the order of their ranks, and
    updates each row once. So all trainers take the same number of steps, together, each with the same options; one
    without gradients takes part with none. The result is the same with any number of servers to the bit, and with any
    number of trainers up to the rounding of sums, as long as they have the same seeds in all. Unlike in torch,
    ``step()`` uses gradients up: a second one without a backward pass in between is one without gradients.

    The state of a row is kept with the row. Learning rates may be changed between steps, by schedulers of torch, too;
    a ``state_dict()`` has options and numbers of steps, not the rows of weights and states: see :meth:`save`.
    """

    kind: str
    state_names: tuple[str, ...]

    def __init__(self, params: Any, defaults: dict[str, Any], reduction: str, maximize: bool, timeout_s: float) -> None:
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction = {reduction!r}: expected 'mean' or 'sum'")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s = {timeout_s}: expected more than 0 seconds")
        groups = _groups(params)
        worlds = {id(p.tensor.world): p.tensor.world for group in groups for p in group["params"]}
        if len(worlds) != 1:
            raise ValueError("params: the embeddings are of different worlds: make an optimizer for each")
        (self._world,) = worlds.values()
        self._number = _num_made[self._world] = _num_made.get(self._world, -1) + 1
        self._timeout_s = float(timeout_s)
        self._num_agreed = self._num_meetings = 0
        self._rows: dict[DistParameter, dict[str, DistTensor]] = {}
        super().__init__(groups, {**defaults, "reduction": reduction, "maximize": bool(maximize)})

    def __repr__(self) -> str:
        names = ", ".join(repr(p.tensor.name) for p in self._parameters())
        return f"{type(self).__name__} {self._number} of {names}"

    def _parameters(self) -> Iterator[DistParameter]:
        for group in self.param_groups:
            yield from group["params"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds embeddings, with options of their own; all trainers do."""
        (group,) = _groups([param_group])
        super().add_param_group(group)
        group = self.param_groups[-1]
        try:
            self._agree(group)
        except BaseException:
            self.param_groups.pop()
            raise
        for p in group["params"]:
            self._take_over(p, group)

    def _agree(self, group: dict[str, Any]) -> None:
        """Makes sure that all trainers make the same optimizer, before one waits for the others' steps."""
        told = {
            "optimizer": type(self).__name__,
            "embeddings": [p.tensor.name for p in group["params"]],
            **self._options(group),
        }
        tag, number = f"making sparse optimizer {self._number}", self._num_agreed
        self._num_agreed += 1
        self._ask(0, "glt.rows.agree", tag, number, told).result()

    def _ask(self, server: int, name: str, tag: str, number: int, told: Any) -> Reply:
        """Brings something to a meeting of all trainers."""
        timeout_s, world = self._timeout_s, self._world
        return world.call_within(timeout_s, server, name, tag, number, world.num_trainers, timeout_s, told)

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        values = {name: group[name] for name in self.defaults}
        return {name: float(value) if isinstance(value, Tensor) else value for name, value in values.items()}

    def _take_over(self, p: DistParameter, group: dict[str, Any]) -> None:
        before = p.optimizer
        if before is not None:
            for tensor in before._rows.pop(p).values():
                tensor.delete()
        p.optimizer = self
        p.gradients.clear()
        weights = p.tensor
        self.state[p]["step"] = 0
        self._rows[p] = {
            name: DistTensor(
                weights.shape, torch.float32, f"{weights.name}, {name} of optimizer {self._number}",
                self._first_state(group), _part_of(weights), world=self._world,
            )
            for name in self.state_names
        }  # fmt: skip

    def _first_state(self, group: dict[str, Any]) -> Any:
        """What :class:`DistTensor` takes as ``init_func``."""
        return "zeros"

    # -- steps ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Takes a step, together with all other trainers.

        Args:
            closure: Evaluates the model again and returns the loss.

        Returns:
            The loss, if there is a closure.

        Raises:
            glt.errors.PeerLost: If a trainer does not take this step within ``timeout_s`` seconds, or is gone: names
                it. Servers may then have taken the step or not: go on from what was saved.
            glt.errors.ConnectionLost: If a server is gone.
            ValueError: If trainers have different options, in another order of embeddings, or steps behind them.
            RuntimeError: If an embedding was given to another optimizer since.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = list(self._parameters())
        parts = self._parts(parameters)
        tag, number = f"steps of sparse optimizer {self._number}", self._num_meetings
        self._num_meetings += 1
        replies = [self._ask(server, "glt.rows.step", tag, number, part) for server, part in enumerate(parts)]
        steps = [reply.result() for reply in replies]  # all of them: any may fail
        for p, is_step in zip(parameters, steps[0], strict=True):
            self.state[p]["step"] += is_step
        return loss

    def _parts(self, parameters: list[DistParameter]) -> list[list[dict[str, Any]]]:
        """For each server, what this trainer has of the rows there; see ``glt.distributed.store.row_update``."""
        for p in parameters:
            if p.optimizer is not self:
                raise RuntimeError(f"{p} was given to {p.optimizer} after {self}: use that one")
        parts: list[list[dict[str, Any]]] = [[] for _ in range(self._world.num_servers)]
        for group in self.param_groups:
            for p in group["params"]:
                brought = _by_server(p)
                for server, part in enumerate(parts):
                    rows, grads = brought[server] if brought is not None else (None, None)
                    part.append({"told": self._told(p, group, server), "rows": rows, "grads": grads})
        return parts

    def _told(self, p: DistParameter, group: dict[str, Any], server: int) -> dict[str, Any]:
        return {
            "kind": self.kind, "name": p.tensor.name, "options": self._options(group),
            "weights": p.tensor.generations[server],
            "state": [self._rows[p][name].generations[server] for name in self.state_names],
            "num_steps": self.state[p]["step"],
        }  # fmt: skip

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients that have not been used in a step."""
        super().zero_grad(set_to_none)
        for p in self._parameters():
            p.gradients.clear()

    def row_state(self, embedding: nn.Module) -> dict[str, DistTensor]:
        """The state of an embedding's rows, by torch's names; of the same shape as its weight, float32."""
        (p,) = embedding.parameters()
        return dict(self._rows[p])  # type: ignore[index]


class SparseAdagrad(SparseOptimizer):
    """:class:`torch.optim.Adagrad` for the sparse gradients of distributed embeddings (Duchi et al., JMLR 12, 2011).

    Args:
        params: Embeddings, a module that has some, its ``DistParameter`` s, or groups of these with their options.
        lr: Learning rate; step t of an embedding has ``lr / (1 + (t - 1) lr_decay)``.
        lr_decay: See there.
        initial_accumulator_value: What the sum of squares of each row begins with.
        eps: Added to the root of that sum.
        maximize: Whether to ascend.
        reduction: Of gradients over trainers: ``'mean'``, as DDP has it for dense parameters, or ``'sum'``.
        timeout_s: How many seconds the trainers of a step wait for each other.

    Raises:
        ValueError, TypeError: If an argument does not fit, or trainers give different ones.
        glt.errors.PeerLost: If not all trainers make it.
    """

    kind, state_names = "adagrad", ("sum",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        reduction: str = "mean",
        timeout_s: float = 120.0,
    ) -> None:
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps,
        }  # fmt: skip
        for name, value in defaults.items():
            if not value >= 0:
                raise ValueError(f"{name} = {value}: expected at least 0")
        super().__init__(params, defaults, reduction, maximize, timeout_s)

    def _first_state(self, group: dict[str, Any]) -> Any:
        value = float(group["initial_accumulator_value"])
        return ("normal", value, 0.0) if value else "zeros"  # without deviation: that value everywhere


class SparseAdam(SparseOptimizer):
    """:class:`torch.optim.SparseAdam` for distributed embeddings: the moments of rows without a gradient are left alone
    (Kingma and Ba, ICLR 2015, arXiv 1412.6980).

    Args:
        params: Embeddings, a module that has some, its ``DistParameter`` s, or groups of these with their options.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second.
        maximize, reduction, timeout_s: See :class:`SparseAdagrad`.

    Raises:
        ValueError, TypeError: If an argument does not fit, or trainers give different ones.
        glt.errors.PeerLost: If not all trainers make it.
    """

    kind, state_names = "adam", ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        maximize: bool = False,
        reduction: str = "mean",
        timeout_s: float = 120.0,
    ) -> None:
        if not lr > 0 or not eps > 0:
            raise ValueError(f"lr = {lr}, eps = {eps}: expected more than 0")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas = {betas}: expected two numbers in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps}, reduction, maximize, timeout_s)


def _groups(params: Any) -> list[dict[str, Any]]:
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


def _part_of(tensor: DistTensor) -> NodeType | EdgeType | None:
    """The type whose rows a tensor has, as :class:`DistTensor` takes it."""
    placement, data = tensor.placement, tensor.world.data
    if placement.kind == "even" or data is None:
        return None
    types = data.schema.node_types if placement.kind == "node" else data.schema.edge_types
    return types[placement.type_index]


def _by_server(p: DistParameter) -> list[tuple[Tensor, Tensor]] | None:
    """For each server, rows there and their gradients; None if there was no backward pass."""
    taken = p.take_gradients()
    if taken is None:
        return None
    ids, grads = taken
    tensor = p.tensor
    if tensor.world.num_trainers > 1 or tensor.world.num_servers > 1:  # or else the one server does the same
        ids, grads = _merged(ids, grads, len(tensor))
    empty = torch.empty(0, dtype=torch.int64), torch.empty(0, grads.shape[1])
    found = [empty] * tensor.world.num_servers
    for portion in tensor.placement.portions(ids.numpy()):
        mine = grads if portion.positions is None else grads[torch.from_numpy(portion.positions).long()]
        found[portion.server] = torch.from_numpy(portion.rows), mine
    return found


def _merged(ids: Tensor, grads: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Distinct ids, ascending, with the sum of the gradients of each."""
    merge = _core.RowMerge([(ids.numpy(), grads.numpy())], num_rows, grads.shape[1])
    out_ids, out = torch.empty(len(merge), dtype=torch.int64), torch.empty(len(merge), grads.shape[1])
    merge.sum(out_ids.numpy(), out.numpy(), num_threads=torch.get_num_threads())
    return out_ids, out
