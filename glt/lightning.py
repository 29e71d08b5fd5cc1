"""Callbacks for PyTorch Lightning: what it does not do by itself for loaders of glt."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch.distributed as dist

from glt._checks import check_at_least
from glt._reprs import says
from glt._stats import Stats
from glt._tracebacks import short_traceback
from glt.sampler.order import Resumable

__all__ = ["LoaderCheckpoint", "StatsCallback"]

_KEY = "glt.loaders"  # of checkpoints


def _callback() -> type:
    """What Lightning's callbacks derive from; ``object`` where there is no Lightning."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(package).Callback
        except ModuleNotFoundError as error:
            if error.name != package.partition(".")[0]:
                raise
    return object


_Callback: Any = _callback()


def _require_lightning(callback: Any) -> None:
    if _Callback is object:
        raise ModuleNotFoundError(f"{type(callback).__name__} needs PyTorch Lightning: pip install lightning")


@short_traceback
class LoaderCheckpoint(_Callback):
    """Keeps where each trainer's loader stands in Lightning's checkpoints, which have that of trainer 0 only.

    With it, ``Trainer.fit(..., ckpt_path=...)`` goes on with the batch that comes next, in each trainer, also from a
    checkpoint at the end of an epoch, from which Lightning itself begins with the loader's first epoch. Without it the
    other trainers refuse a checkpoint within an epoch, since their seeds are not those of trainer 0.

    Raises:
        ModuleNotFoundError: If neither ``lightning`` nor ``pytorch_lightning`` is installed.
        RuntimeError: From ``fit``, if the checkpoint was written without it, or by another number of trainers.

    Example:
        >>> lightning.Trainer(devices=2, callbacks=[glt.lightning.LoaderCheckpoint()])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        _require_lightning(self)
        self._states: list[dict[str, Any]] | None = None  # of a checkpoint that is being restored

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Called by Lightning, on all trainers."""
        fit = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        states = [fit.get("combined_loader")] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(states, states[0])
        checkpoint[_KEY] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Called by Lightning, on all trainers, before loops are restored."""
        states = checkpoint.get(_KEY)
        if states is None and trainer.world_size == 1:
            return
        if states is None or len(states) != trainer.world_size:
            found = "without LoaderCheckpoint" if states is None else f"by {len(states)} trainers"
            raise RuntimeError(
                f"the checkpoint was written {found}, and there are {trainer.world_size} trainers: start as many as "
                "before with this callback, or load only its weights with Model.load_from_checkpoint()"
            )
        self._states = states[trainer.global_rank]
        if self._states is not None:
            checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = self._states

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning, which has begun to iterate, and leaves out the states of an epoch's end."""
        loop, states, self._states = trainer.fit_loop, self._states, None
        if states is None or loop.restarting:
            return
        loop._combined_loader._load_state_dicts(states)
        for loader in loop._combined_loader.flattened:
            if isinstance(loader, Resumable) and (state := loader.state_dict())["next_batch"]:
                loader.set_epoch(state["epoch"] + 1)  # Lightning ended the epoch before the loader did
        iter(loop._data_fetcher)

    @says
    def __repr__(self) -> str:
        return "of each trainer"


@short_traceback
class StatsCallback(_Callback):
    """Gives what the loaders of training count to the loggers of a ``Trainer`` of PyTorch Lightning.

    It logs :meth:`glt.loader.Stats.scalars` of the time since it logged last, as ``glt/wait_s`` and so on. The loaders
    may be of any mode. If there is a list or a dict of them, their places or names are part of that:
    ``glt/users/wait_s``. In a job of several trainers rank 0 logs, as it does in Lightning, and only its own numbers.

    Training begins with a TypeError if none of its loaders is glt's, and with a ValueError if the ``Trainer`` has no
    logger.

    Args:
        every_n_batches: Log after so many batches of an epoch, and after those that are left at its end. Default: at
            the end of each epoch.

    Raises:
        ValueError: If ``every_n_batches`` is less than 1.
        ModuleNotFoundError: If neither ``lightning`` nor ``pytorch_lightning`` is installed.

    Example:
        >>> trainer = lightning.Trainer(callbacks=[glt.lightning.StatsCallback()])  # doctest: +SKIP
        >>> trainer.fit(model, loader)  # doctest: +SKIP
    """

    def __init__(self, every_n_batches: int | None = None) -> None:
        _require_lightning(self)
        self._every = None if every_n_batches is None else check_at_least("every_n_batches", every_n_batches, 1)
        self._before: dict[str, Stats] = {}
        self._has_more = False  # than was logged

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.loggers:
            raise ValueError("logger = False of the Trainer, and callbacks has StatsCallback: leave one of them out")
        self._before = _stats_of(trainer.train_dataloader)  # an epoch that is gone on with does not start

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._has_more = False
        self._before = _stats_of(trainer.train_dataloader)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._has_more = self._every is None or (batch_idx + 1) % self._every != 0
        if not self._has_more:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._has_more:
            self._log(trainer)

    def _log(self, trainer: Any) -> None:
        now = _stats_of(trainer.train_dataloader)
        scalars: dict[str, float] = {}
        for prefix, stats in now.items():
            scalars |= (stats - self._before[prefix]).scalars(prefix)
        self._before = now
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=trainer.global_step)

    @says
    def __repr__(self) -> str:
        return "each epoch" if self._every is None else f"every {self._every} batches"


def _stats_of(loaders: Any) -> dict[str, Stats]:
    """By the prefix of their scalars."""
    named = {"glt/": loaders}
    if isinstance(loaders, Mapping):
        named = {f"glt/{name}/": loader for name, loader in loaders.items()}
    elif isinstance(loaders, list | tuple):
        named = {f"glt/{place}/": loader for place, loader in enumerate(loaders)}
    found = {prefix: loader.stats() for prefix, loader in named.items() if hasattr(loader, "stats")}
    if not found:
        raise TypeError(
            f"train_dataloaders has type {type(loaders).__name__}, without stats() for StatsCallback: expected a "
            "loader of glt, or a list or a dict of loaders"
        )
    return found
