"""What runs the kernels: a GPU, or in its place the host; in what order, and what is waited for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from glt.data.cuda_device import cuda_device, is_cuda

HOST = "host"
"""Names the host where a GPU is expected: it runs the bodies of the kernels itself. Slow; for tests."""


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = ...) -> None: ...


class _Done:
    """The host's event: what it was asked for is done when the call returns."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass


@dataclass(frozen=True)
class Accelerator:
    """Where kernels run, and their results are: a GPU of this process, or for tests the host (:data:`HOST`).

    All that samples, gathers or copies for a GPU asks this one for streams and events, so that the same lines run, and
    are tested, where there is none.

    Attributes:
        device: Of its tensors; ``cpu`` for the host.
    """

    device: torch.device

    @property
    def is_host(self) -> bool:
        return self.device.type == "cpu"

    def new_stream(self) -> torch.cuda.Stream | None:
        """A stream beside those of the trainer, of the lowest priority there is."""
        return None if self.is_host else torch.cuda.Stream(self.device, priority=0)

    def on(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
        """Work asked for inside is done in the order of the stream."""
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def record(self) -> Event:
        """An event after all that the current stream was asked for."""
        if self.is_host:
            return _Done()
        event = torch.cuda.Event(blocking=True)  # who waits for it sleeps: samplers have few cores to spin on
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, event: Event) -> None:
        """Makes this device's current stream wait for an event. By itself an event would have that of whichever device
        is current for the caller wait."""
        event.wait(*(() if self.is_host else (torch.cuda.current_stream(self.device),)))

    def keep_for_current(self, *tensors: Tensor) -> None:
        """Says that the current stream uses tensors that were made on another: their memory is reused only after."""
        if not self.is_host:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self.device))

    def __str__(self) -> str:
        return HOST if self.is_host else str(self.device)


def accelerator_of(device: Any, name: str) -> Accelerator | None:
    """Returns what runs the kernels that ``device`` asks for; None for ``None`` and ``'cpu'``, which ask for none.

    Args:
        device: ``'cuda'``, ``'cuda:0'``, a number, a ``torch.device``, an accelerator, :data:`HOST`, ``'cpu'`` or None.
        name: What to call it in errors.

    Raises:
        TypeError, ValueError: If it is none of these, or a GPU that cannot be used here; says what is missing.
    """
    if isinstance(device, Accelerator):
        return device
    if device is None:
        return None
    if isinstance(device, str) and device == HOST:
        return Accelerator(torch.device("cpu"))
    if is_cuda(device, name):
        return Accelerator(cuda_device(device, name))
    if torch.device(device).type != "cpu":
        raise ValueError(f"{name} = {device!r}: expected a GPU, such as 'cuda:0', or 'cpu'")
    return None


def is_accelerator(device: Any, name: str) -> bool:
    """Tells whether ``device`` names a GPU, here or elsewhere, or the host in the place of one.

    Raises:
        TypeError, ValueError: If it is no device; names the argument.
    """
    return isinstance(device, Accelerator) or (isinstance(device, str) and device == HOST) or is_cuda(device, name)


def require_accelerator(device: Any, name: str) -> Accelerator:
    """As :func:`accelerator_of`, of a device that must be one.

    Raises:
        TypeError, ValueError: Also if it is None or the CPU.
    """
    found = None if device is None else accelerator_of(device, name)
    return Accelerator(cuda_device(device, name)) if found is None else found  # which refuses what is no GPU
