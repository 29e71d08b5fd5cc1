"""Whether a GPU can be used here, and what is missing where it cannot."""

from __future__ import annotations

from typing import Any

import torch

from glt import _core


def missing_for_cuda() -> str | None:
    """Returns what is missing to use a GPU, and what to do about it; None where nothing is.

    ``glt.has_cuda`` tells of the build alone: whether it has the kernels.
    """
    if not _core.has_cuda:
        return (
            "this build of glt has no CUDA kernels; build it where a CUDA toolkit is: "
            "GLT_CUDA=1 python setup.py build_ext --inplace"
        )
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build of torch with CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU, or no driver for it; see nvidia-smi"
    return None


def default_device() -> str:
    """Returns ``'cuda'`` where a GPU can be used, else ``'cpu'``: what programs offer as their default."""
    return "cpu" if missing_for_cuda() is not None else "cuda"


def is_cuda(device: Any, name: str) -> bool:
    """Tells whether ``device`` (None, a GPU's number, or what ``torch.device`` takes) is a GPU, here or elsewhere.

    Raises:
        TypeError, ValueError: If it is no device; names the argument.
    """
    return device is not None and _parsed(device, name).type == "cuda"


def cuda_device(device: Any, name: str) -> torch.device:
    """Returns the GPU that is meant, with its number.

    Args:
        device: A number, a ``torch.device`` or the text of one; ``'cuda'`` is torch's current one.
        name: What to call it in errors.

    Raises:
        TypeError: If it is no device.
        ValueError: If it is no GPU, or cannot be used here; says what is missing.
    """
    found = _parsed(device, name)
    if found.type != "cuda":
        raise ValueError(f"{name} = {device!r}: expected a GPU, such as 'cuda:0'")
    missing = missing_for_cuda()
    if missing is not None:
        raise ValueError(f"{name} = {device!r}: {missing}")
    # The current one is the first until somebody uses one: to ask would claim memory of it, in every process that asks.
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    index = current if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"{name} = {device!r}: expected one of the {torch.cuda.device_count()} GPUs here, from 0 on")
    return torch.device("cuda", index)


def _parsed(device: Any, name: str) -> torch.device:
    if isinstance(device, bool):
        raise TypeError(f"{name} = {device!r}: expected a device, such as 'cuda:0' or 0")
    try:
        return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (TypeError, RuntimeError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{name} = {device!r}: expected a device, such as 'cuda:0' or 0 ({error})"
        ) from error
