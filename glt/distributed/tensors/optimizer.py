"""Sparse optimizers of distributed embeddings: trainers bring gradients, and servers update the rows they keep."""

from __future__ import annotations

import os
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import check_flag, real_number
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.schema import EdgeType, NodeType
from glt.distributed.context import World
from glt.distributed.tensors.barrier import checked_timeout, require_equal
from glt.distributed.tensors.checkpoint import Checkpoint, load_tensors, save_tensors
from glt.distributed.tensors.embedding import DistParameter
from glt.distributed.tensors.spec import as_array
from glt.distributed.tensors.tensor import DistTensor
from glt.errors import GltError

_REDUCTIONS = ("mean", "sum")
_num_made: WeakKeyDictionary[World, int] = WeakKeyDictionary()


class SparseOptimizer(torch.optim.Optimizer):
    """What :class:`SparseAdagrad` and :class:`SparseAdam` have in common.

    A ``step()`` sends each server the gradients of its rows, equal rows summed; the server waits for all trainers,
    merges what they sent in the order of their ranks, and updates each row once. So all trainers take the same steps,
    with the same options; one without gradients takes part with none. The result is the same with any number of servers
    to the bit, and with any number of trainers up to the rounding of sums, given the same seeds in all. ``step()`` uses
    gradients up, and is a barrier: what is read between two steps is what the first one left, on every trainer.

    The state of a row is kept with the row. Learning rates may be changed between steps, also by torch's schedulers; a
    ``state_dict()`` has options and numbers of steps, not rows: see :meth:`save`.
    """

    kind: str
    state_names: tuple[str, ...]
    _step_supports_amp_scaling = True  # so that a GradScaler calls step(), which refuses it

    def __init__(self, params: Any, defaults: dict[str, Any], reduction: str, maximize: bool, timeout_s: float) -> None:
        self._timeout_s = checked_timeout(timeout_s)
        defaults = {**defaults, "reduction": reduction, "maximize": maximize}
        self._check(defaults)
        groups = _embedding_groups(params)
        worlds = {id(p.tensor.world): p.tensor.world for group in groups for p in group["params"]}
        if len(worlds) != 1:
            raise ValueError("params: the embeddings are of different worlds: make an optimizer for each")
        (self._world,) = worlds.values()
        self._number = _num_made[self._world] = _num_made.get(self._world, -1) + 1
        self._num_calls: Counter[str] = Counter()
        self._rows: dict[DistParameter, dict[str, DistTensor]] = {}
        self._option_names = tuple(defaults)  # torch adds others to ``defaults`` when it loads
        super().__init__(groups, defaults)

    def __str__(self) -> str:
        """What messages call it."""
        names = ", ".join(repr(p.tensor.name) for p in self._parameters())
        return f"{type(self).__name__} {self._number} of {names}"

    @says
    def __repr__(self) -> str:
        names = ", ".join(repr(p.tensor.name) for p in self._parameters())
        return f"{names}, {options({name: self.defaults[name] for name in self._option_names})}"

    def _parameters(self) -> Iterator[DistParameter]:
        for group in self.param_groups:
            yield from group["params"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds embeddings, with options of their own; all trainers do."""
        (group,) = _embedding_groups([param_group])
        self._check({**self.defaults, **group})
        super().add_param_group(group)
        group = self.param_groups[-1]
        try:
            self._agree(group)
        except BaseException:
            self.param_groups.pop()
            raise
        for p in group["params"]:
            self._take_over(p, group)

    def _check(self, options: dict[str, Any]) -> None:
        if not isinstance(options["reduction"], str) or options["reduction"] not in _REDUCTIONS:
            raise ValueError(f"reduction = {options['reduction']!r}: expected 'mean' or 'sum'")
        check_flag("maximize", options["maximize"])

    def _agree(self, group: dict[str, Any]) -> None:
        about = {"optimizer": type(self).__name__, "embeddings": [p.tensor.name for p in group["params"]]}
        require_equal(self._exchange({"sparse optimizer": {**about, **self._options(group)}}, self._timeout_s))

    def _exchange(self, value: Any, timeout_s: float) -> list[Any]:
        return self._at_barrier("exchange", [value], timeout_s)[0]

    def _at_barrier(self, call: str, values: list[Any], timeout_s: float) -> list[Any]:
        number = self._num_calls[call]
        self._num_calls[call] += 1
        world, tag = self._world, f"{call} of sparse optimizer {self._number}"
        replies = [
            world.call_within(timeout_s, server, f"glt.rows.{call}", tag, number, world.num_trainers, timeout_s, value)
            for server, value in enumerate(values)
        ]
        return [reply.result() for reply in replies]

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        values = {name: group[name] for name in self._option_names}
        real_number("lr", values["lr"])  # schedulers change it, also to 0, and so may the user
        return {name: float(value) if isinstance(value, Tensor) else value for name, value in values.items()}

    def _take_over(self, p: DistParameter, group: dict[str, Any]) -> None:
        if p.optimizer is not None:
            del p.optimizer._rows[p]  # its state is freed
        p.optimizer = self
        p.gradients.clear()
        weights = p.tensor
        self.state[p]["step"] = 0
        self._rows[p] = {
            name: DistTensor(
                weights.shape, torch.float32, None, self._first_state(group), _part_of(weights), world=self._world
            )
            for name in self.state_names
        }

    def _first_state(self, group: dict[str, Any]) -> Any:
        return "zeros"

    # -- steps ---------------------------------------------------------------------------------------------------------

    @short_traceback
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Takes a step, together with all other trainers; returns the loss if there is a closure, which evaluates the
        model.

        Raises:
            glt.errors.PeerLost: If a trainer does not take this step within ``timeout_s`` seconds, or is gone:
                names it. Servers may then have taken the step or not: go on from what was saved.
            glt.errors.ConnectionLost: If a server is gone.
            ValueError: If trainers have different options, in another order of embeddings, or steps behind them.
            RuntimeError: If an embedding was given to another optimizer since.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if getattr(self, "grad_scale", None) is not None:
            raise RuntimeError(
                f"{type(self).__name__} is stepped by a GradScaler, which does not see the gradients of rows: use "
                "bfloat16, which needs none, or call step() directly and scale no loss"
            )
        steps = self._at_barrier("step", self._parts(), self._timeout_s)
        for p, is_step in zip(self._parameters(), steps[0], strict=True):
            self.state[p]["step"] += is_step
        return loss

    def _parts(self) -> list[list[dict[str, Any]]]:
        """For each server, what this trainer has of the rows there; see :func:`store.take_step`."""
        for p in self._parameters():
            if p.optimizer is not self:
                raise RuntimeError(f"{p} was given to {p.optimizer} after {self}: use that one")
        parts: list[list[dict[str, Any]]] = [[] for _ in range(self._world.num_servers)]
        for group in self.param_groups:
            for p in group["params"]:
                p.tensor.flush()  # what was written is there before the step
                for server, (rows, grads) in enumerate(_gradients_by_server(p)):
                    about = {
                        "kind": self.kind,
                        "name": p.tensor.name,
                        "options": self._options(group),
                        "weights": p.tensor.generations[server],
                        "state": [self._rows[p][name].generations[server] for name in self.state_names],
                        "num_steps": self.state[p]["step"],
                    }
                    parts[server].append({"about": about, "rows": rows, "grads": grads})
        return parts

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for p in self._parameters():
            p.gradients.clear()

    # -- on disk -------------------------------------------------------------------------------------------------------

    @short_traceback
    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves weights and state of all embeddings together, as open files that are there when they are whole.

        All trainers call it, between steps; trainer 0 writes, to its disk, into ``path``, a new or empty directory.
        ``load_tensors({f"{name}/weight": embedding.weight}, path)`` of ``glt.distributed.tensors.checkpoint`` reads
        the weights alone.

        Raises:
            glt.errors.CheckpointError: If ``path`` is taken, or the disk has no room.
            OSError: If the disk fills up or fails.
            glt.errors.GltError: On the other trainers, if trainer 0 failed: says why.
            glt.errors.PeerLost: If a trainer or server is lost. Whatever failed, nothing that loads is left.
        """
        self._at_first(lambda: save_tensors(self._tensors(), path, self._about()))

    @short_traceback
    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what :meth:`save` wrote, with any number of trainers and servers: weights, state, numbers of
        steps, and options, too, as torch's ``load_state_dict`` does.

        All trainers call it, with the same embeddings in the same groups; trainer 0 reads, from its disk. Embeddings
        without a name are told apart by their place.

        Raises:
            glt.errors.CheckpointError: If a file is missing or damaged; names it.
            ValueError: If other embeddings, or another kind of optimizer, were saved. Nothing has been changed then.
            glt.errors.GltError, glt.errors.PeerLost: As of :meth:`save`.
        """
        about = self._at_first(lambda: self._read(path))
        for group, saved in zip(self.param_groups, about["groups"], strict=True):
            group.update({name: tuple(v) if isinstance(v, list) else v for name, v in saved["options"].items()})
            for p, step in zip(group["params"], saved["steps"], strict=True):
                self.state[p]["step"] = step
                p.gradients.clear()

    def _read(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        about, mine = Checkpoint.open(path).about, self._about()
        if _identity(about) != _identity(mine):
            raise ValueError(f"{path} holds {_identity(about)}: expected {_identity(mine)}, as this optimizer has")
        load_tensors(self._tensors(), path)
        return about

    def _about(self) -> dict[str, Any]:
        groups = [
            {
                "embeddings": [self._key(p) for p in group["params"]],
                "options": self._options(group),
                "steps": [self.state[p]["step"] for p in group["params"]],
            }
            for group in self.param_groups
        ]
        return {"optimizer": type(self).__name__, "groups": groups}

    def _key(self, p: DistParameter) -> str:
        if not p.tensor.spec.is_anonymous:
            return p.tensor.name
        return f"#{next(at for at, each in enumerate(self._parameters()) if each is p)}"

    def _tensors(self) -> dict[str, DistTensor]:
        return {
            f"{self._key(p)}/{name}": tensor
            for p in self._parameters()
            for name, tensor in {"weight": p.tensor, **self._rows[p]}.items()
        }

    def _at_first(self, call: Callable[[], Any]) -> Any:
        """Makes a call on trainer 0 while the others wait; returns its result on all, or raises on all."""
        self._exchange(None, self._timeout_s)  # a barrier: the steps before are over
        error: Exception | None = None
        outcome: dict[str, Any] = {"result": None, "error": None}
        if self._world.rank == 0:
            try:
                outcome["result"] = call()
            except Exception as raised:
                error, outcome["error"] = raised, f"{type(raised).__name__}: {raised}"
        # The loss of trainer 0 ends the wait, so that it needs no shorter deadline.
        first = self._exchange(outcome, deadlines.DAY_S)[0]
        if error is not None:
            raise error
        if first["error"] is not None:
            raise GltError(f"trainer 0 failed, for which the others have waited: {first['error']}")
        return first["result"]

    def row_state(self, embedding: nn.Module) -> dict[str, DistTensor]:
        """The state of an embedding's rows by torch's names; of the shape of its weight, float32."""
        (p,) = embedding.parameters()
        return dict(self._rows[p])  # type: ignore[index]


def _identity(about: Mapping[str, Any]) -> dict[str, Any]:
    embeddings = [group["embeddings"] for group in about.get("groups", ())]
    return {"optimizer": about.get("optimizer"), "embeddings": embeddings}


def _part_of(tensor: DistTensor) -> NodeType | EdgeType | None:
    placement, data = tensor.placement, tensor.world.data
    if placement.kind == "even" or data is None:
        return None
    types = data.schema.node_types if placement.kind == "node" else data.schema.edge_types
    return types[placement.type_index]


def _embedding_groups(params: Any) -> list[dict[str, Any]]:
    if isinstance(params, nn.Module | DistParameter):
        params = [params]
    if isinstance(params, Mapping) or not isinstance(params, Iterable):
        raise TypeError(f"params: expected embeddings, or a module that has some, got {type(params).__name__}")
    items = list(params)
    if items and all(isinstance(item, Mapping) for item in items):
        given = [item.get("params") for item in items]
        listed = [[each] if isinstance(each, nn.Module | Tensor) else list(each or ()) for each in given]
        return [{**item, "params": _embeddings(each)} for item, each in zip(items, listed, strict=True)]
    return [{"params": _embeddings(items)}]


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


def _gradients_by_server(p: DistParameter) -> list[tuple[Tensor | None, Tensor | None]]:
    """Takes the gradients of an embedding: for each server, rows there ``[n]`` and theirs ``[n, dim]``, float32; no
    tensors without a backward pass. Equal rows are summed, unless the only server does the same."""
    world, taken = p.tensor.world, p.take_gradients()
    if taken is None:
        return [(None, None)] * world.num_servers
    ids, grads = taken
    if world.num_trainers > 1 or world.num_servers > 1:
        merge = _core.RowMerge([(ids.numpy(), grads.numpy())], len(p.tensor), grads.shape[1])
        ids, grads = torch.empty(len(merge), dtype=torch.int64), torch.empty(len(merge), grads.shape[1])
        merge.sum(ids.numpy(), grads.numpy(), num_threads=torch.get_num_threads())
    none = torch.empty(0, dtype=torch.int64), torch.empty(0, grads.shape[1])
    found: list[tuple[Tensor | None, Tensor | None]] = [none] * world.num_servers
    for server, rows, positions in p.tensor.placement.portions(ids.numpy()):
        theirs = grads if isinstance(positions, range) else grads[torch.from_numpy(positions).long()]
        found[server] = torch.from_numpy(as_array(rows)), theirs
    return found


@short_traceback
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

    Example:
        >>> glt.distributed.initialize()
        >>> embedding = glt.distributed.DistEmbedding(5, 2, "rows")
        >>> optimizer = glt.distributed.SparseAdagrad([embedding], lr=0.1)
        >>> embedding(torch.tensor([1, 3])).sum().backward()
        >>> optimizer.step()
        >>> optimizer
        SparseAdagrad('rows', lr=0.1, lr_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, reduction='mean')
        >>> glt.distributed.finalize()
    """

    kind: str = "adagrad"
    state_names: tuple[str, ...] = ("sum",)

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
        defaults = {"lr": lr, "lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, defaults, reduction, maximize, timeout_s)

    def _check(self, options: dict[str, Any]) -> None:
        super()._check(options)
        for name in ("lr", "lr_decay", "initial_accumulator_value", "eps"):
            real_number(name, options[name])

    def _first_state(self, group: dict[str, Any]) -> Any:
        value = float(group["initial_accumulator_value"])
        return ("constant", value) if value else "zeros"


@short_traceback
class SparseAdam(SparseOptimizer):
    """:class:`torch.optim.SparseAdam` for distributed embeddings: the moments of rows without a gradient are left alone
    (Kingma and Ba, ICLR 2015, arXiv 1412.6980).

    Args:
        params: As of :class:`SparseAdagrad`.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second.
        maximize, reduction, timeout_s: See :class:`SparseAdagrad`.

    Raises:
        ValueError, TypeError: If an argument does not fit, or trainers give different ones.
        glt.errors.PeerLost: If not all trainers make it.

    Example:
        >>> glt.distributed.initialize()
        >>> embedding = glt.distributed.DistEmbedding(5, 2, "rows")
        >>> optimizer = glt.distributed.SparseAdam([embedding], lr=0.1)
        >>> embedding(torch.tensor([1, 3])).sum().backward()
        >>> optimizer.step()
        >>> optimizer
        SparseAdam('rows', lr=0.1, betas=(0.9, 0.999), eps=1e-08, reduction='mean')
        >>> glt.distributed.finalize()
    """

    kind: str = "adam"
    state_names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, reduction, maximize, timeout_s)

    def _check(self, options: dict[str, Any]) -> None:
        super()._check(options)
        for name in ("lr", "eps"):
            real_number(name, options[name], above=True)
        betas = options["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"betas = {reprlib.repr(betas)}: expected two numbers in [0, 1), such as (0.9, 0.999)")
        for at, beta in enumerate(betas):
            real_number(f"betas[{at}]", beta, below=1.0)
