"""The update rules of distributed embeddings that there are: Adagrad and Adam."""

from __future__ import annotations

import reprlib
from typing import Any

from glt._checks import real_number
from glt.distributed.sparse_optimizer import SparseOptimizer


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
        super().__init__(params, defaults, reduction, maximize, timeout_s)

    def _check(self, options: dict[str, Any]) -> None:
        for name in ("lr", "lr_decay", "initial_accumulator_value", "eps"):
            real_number(name, options[name])

    def _first_state(self, group: dict[str, Any]) -> Any:
        value = float(group["initial_accumulator_value"])
        return ("constant", value) if value else "zeros"


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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, reduction, maximize, timeout_s)

    def _check(self, options: dict[str, Any]) -> None:
        for name in ("lr", "eps"):
            real_number(name, options[name], above=True)
        betas = options["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"betas = {reprlib.repr(betas)}: expected two numbers in [0, 1), such as (0.9, 0.999)")
        for at, beta in enumerate(betas):
            real_number(f"betas[{at}]", beta, below=1.0)
