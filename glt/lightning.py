"""What PyTorch Lightning does not do by itself for loaders of several trainers."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:
        raise ImportError("glt.lightning needs PyTorch Lightning: pip install lightning") from error

__all__ = ["LoaderCheckpoint"]


class LoaderCheckpoint(Callback):
    """Keeps where each trainer's loader stands in Lightning's checkpoints, which have that of trainer 0 only.

    With it, ``Trainer.fit(..., ckpt_path=...)`` goes on with the batch that comes next, in each trainer. Without it the
    other trainers refuse the checkpoint, since their seeds are not those of trainer 0. One trainer needs no callback.

    Raises:
        RuntimeError: From ``fit``, if the checkpoint was written without it, or by another number of trainers.

    Example:
        >>> lightning.Trainer(devices=2, callbacks=[glt.lightning.LoaderCheckpoint()])  # doctest: +SKIP
    """

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called by Lightning, on all trainers."""
        fit = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        states = [fit.pop("combined_loader", None)] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(states, states[0])
        checkpoint[_KEY] = states

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
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
        if states[trainer.global_rank] is not None:
            checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = states[trainer.global_rank]


_KEY = "glt.loaders"
