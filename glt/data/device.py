"""GPUs: whether there is one, what runs kernels in its place, and how work under way and its errors are waited for."""

from __future__ import annotations

import ctypes
import logging
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from glt import _core
from glt._reprs import says

# Whether a GPU can be used here, and what is missing where it cannot.


def missing_for_cuda() -> str | None:
    """Returns what is missing to use a GPU, and what to do about it; None where nothing is. A GPU of an architecture
    that the build has no kernels for is refused by the first sampler or table on it, in words."""
    if not _core.has_cuda:
        return (
            "this build of glt has no CUDA kernels: install glt-graph-cuda13, or build with GLT_CUDA=1 where a CUDA "
            "toolkit is"
        )
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build of torch with CUDA"
    driver = _cuda_of_driver()
    if driver is None:
        return (
            f"there is no NVIDIA driver (libcuda.so.1); glt's kernels need {_driver_needed()}: "
            "install or update the driver"
        )
    if driver // 1000 < _core.cuda_version // 1000:
        return (
            f"found NVIDIA's driver{_release_of_driver()}, which runs CUDA {_dotted(driver)}; glt's kernels need "
            f"{_driver_needed()}: update the driver, or sample on the CPU"
        )
    if not torch.cuda.is_available():
        return "torch finds no GPU that it can use; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    return None


FIRST_DRIVERS = {12: 525, 13: 580}  # by CUDA's major version: NVIDIA's first driver on which all its minor ones run


def _driver_needed() -> str:
    first = FIRST_DRIVERS.get(_core.cuda_version // 1000)
    compiled = f"compiled with CUDA {_dotted(_core.cuda_version)}"
    return f"one for CUDA {_dotted(_core.cuda_version)}" if first is None else f"{first} or newer ({compiled})"


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _cuda_of_driver() -> int | None:
    """Returns the version of CUDA that the driver runs, 13000 for 13.0; None where there is no driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def _release_of_driver() -> str:
    """Returns a space and NVIDIA's number of the driver, such as 550.54.14; nothing where the kernel does not tell."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return f" {found[0]}" if found else ""


def default_device() -> str:
    """Returns ``'cuda'`` where a GPU can be used, else ``'cpu'``: what programs offer as their default."""
    return "cpu" if missing_for_cuda() is not None else "cuda"


def is_cuda(device: Any, name: str) -> bool:
    """Whether ``device`` (None, a number, or what ``torch.device`` takes) is a GPU, here or elsewhere. Raises TypeError
    or ValueError, naming the argument, if it is no device."""
    return device is not None and _parsed(device, name).type == "cuda"


def cuda_device(device: Any, name: str) -> torch.device:
    """Returns a GPU with its number; ``'cuda'`` is torch's current one. Raises TypeError if it is no device, ValueError
    if it is no GPU or cannot be used here."""
    found = _parsed(device, name)
    if found.type != "cuda":
        raise ValueError(f"{name} = {device!r}: expected a GPU, such as 'cuda:0'")
    missing = missing_for_cuda()
    if missing is not None:
        raise ValueError(f"{name} = {device!r}: {missing}")
    # The current one is the first until one is used: asking CUDA would claim memory of it in every process that asks.
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


# What runs the kernels: a GPU, or in its place the host; in what order, and what is waited for.


HOST = "host"  # names the host where a GPU is expected: it runs the kernels' bodies; slow, for tests


class _Done:
    """The event of what the host did: it is over."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass


Event: TypeAlias = torch.cuda.Event | _Done


@dataclass(frozen=True)
class Accelerator:
    """Where kernels run and their results are: a GPU of this process, or in tests the host (:data:`HOST`, then
    ``device`` is the CPU). Streams and events come from here, so that the same lines run without a GPU."""

    device: torch.device

    @property
    def is_host(self) -> bool:
        return self.device.type == "cpu"

    def new_stream(self) -> torch.cuda.Stream | None:
        """A stream beside those of the trainer, of the lowest priority there is."""
        return None if self.is_host else torch.cuda.Stream(self.device, priority=0)

    def on(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def record(self) -> Event:
        if self.is_host:
            return _Done()
        event = torch.cuda.Event(blocking=True)  # who waits for it sleeps: samplers have few cores to spin on
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, event: Event) -> None:
        event.wait(None if self.is_host else torch.cuda.current_stream(self.device))

    def keep_for_current(self, *tensors: Tensor) -> None:
        """The memory of these tensors of another stream is reused only after the current stream's work."""
        if not self.is_host:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self.device))

    def __str__(self) -> str:
        return HOST if self.is_host else str(self.device)


def accelerator_of(device: Any, name: str) -> Accelerator | None:
    """Returns what runs the kernels that ``device`` asks for: a GPU in any form, an accelerator or :data:`HOST`; None
    for ``None`` and ``'cpu'``. Raises TypeError or ValueError for anything else, or a GPU that cannot be used here."""
    if device is None or isinstance(device, Accelerator):
        return device
    if isinstance(device, str) and device == HOST:
        return Accelerator(torch.device("cpu"))
    if is_cuda(device, name):
        return Accelerator(cuda_device(device, name))
    if torch.device(device).type != "cpu":
        raise ValueError(f"{name} = {device!r}: expected a GPU, such as 'cuda:0', or 'cpu'")
    return None


def is_accelerator(device: Any, name: str) -> bool:
    """Whether ``device`` names a GPU, here or elsewhere, or :data:`HOST`; errors as of :func:`is_cuda`."""
    return isinstance(device, Accelerator) or (isinstance(device, str) and device == HOST) or is_cuda(device, name)


def require_accelerator(device: Any, name: str) -> Accelerator:
    """As :func:`accelerator_of`; raises ValueError also of None and the CPU."""
    return accelerator_of(device, name) or Accelerator(cuda_device(device, name))  # which refuses what is no GPU


def free_memory(device: torch.device) -> int | None:
    """Bytes of memory that are free on a GPU; None on the host."""
    return None if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]


# GPUs that read each other's memory.


class DeviceGroup:
    """GPUs of this machine that read each other's memory (NVLink, or PCIe peer access) and keep one replica of hot rows
    together: each holds an equal part. Of several groups each keeps all hot rows. ``group_id`` names the group in
    errors; ``device_list`` are numbers or devices. Raises TypeError or ValueError if there are none, one is no GPU, or
    one is there twice.

    Example:
        >>> glt.data.DeviceGroup(0, ["cuda:0", "cuda:1"])
        DeviceGroup(0, ['cuda:0', 'cuda:1'])
    """

    def __init__(self, group_id: int, device_list: Sequence[Any]) -> None:
        self.group_id = group_id
        name = f"device_list of group {group_id}"
        for device in device_list:
            if not is_cuda(device, name):
                raise ValueError(f"{name} has {device!r}: expected GPUs, such as 0 or 'cuda:0'")
        indices = [device if isinstance(device, int) else torch.device(device).index for device in device_list]
        if not indices or None in indices or len(set(indices)) != len(indices):
            raise ValueError(f"{name} = {list(device_list)}: expected at least one GPU, by number, each once")
        self.device_list: tuple[torch.device, ...] = tuple(torch.device("cuda", index) for index in indices)

    @property
    def size(self) -> int:
        return len(self.device_list)

    @says
    def __repr__(self) -> str:
        return f"{self.group_id}, {[str(device) for device in self.device_list]}"


def group_of(device: torch.device, groups: Sequence[DeviceGroup]) -> tuple[torch.device, ...]:
    """Returns the GPUs that keep hot rows together with ``device``; raises ValueError if no group has it."""
    if not groups:
        return (device,)
    for group in groups:
        if device in group.device_list:
            return group.device_list
    raise ValueError(f"{device} is in none of device_group_list = {list(groups)}")


def let_read(device: torch.device, peer: torch.device) -> None:
    """Lets kernels on a GPU read what torch has, and will have, in memory of another one. A copy between the two makes
    torch do that, however its allocator maps memory (``expandable_segments``, too). Raises ValueError if they cannot.
    """
    if device == peer:
        return
    if not torch.cuda.can_device_access_peer(device, peer):
        raise ValueError(f"{device} cannot read memory of {peer}: put them in different device groups")
    torch.zeros(1, device=peer).to(device)


# Errors of kernels, raised at the next wait for one.


NUM_WORDS = 8  # gathers that may be unchecked; their ids are kept, to name the bad one


class GatherErrors:
    """One word of device memory per launch: the lowest position of an id out of range, or -1."""

    def __init__(self, device: torch.device) -> None:
        self._words = torch.full((NUM_WORDS + 1,), -1, dtype=torch.int64, device=device)
        # By stream, the event of the newest launch whose ids are not looked at; they have the last word.
        self._trusted: dict[int, Any] = {}
        self._pending: list[tuple[Callable[[], None], Any]] = []
        self.lock = threading.RLock()

    def add(self, launch: Callable[[int], Any], explain: Callable[[], None]) -> None:
        """Launches a kernel; call with ``lock`` held. ``launch(address of the word)`` returns an event of its end, or
        None; of a bad id :meth:`check` calls ``explain``, which raises the error."""
        if len(self._pending) == NUM_WORDS:
            self.check()
        self._pending.append((explain, launch(self._words.data_ptr() + 8 * len(self._pending))))

    def trust(self, launch: Callable[[int], Any]) -> None:
        """Launches a kernel whose ids are known to be in range: nothing waits, or is kept to name a bad one, but
        :meth:`check` still tells that there was one. Call with ``lock`` held."""
        stream = torch.cuda.current_stream(self._words.device).cuda_stream if self._words.is_cuda else 0
        self._trusted[stream] = launch(self._words.data_ptr() + 8 * NUM_WORDS)

    def check(self) -> None:
        """Waits for the launches so far and raises the error of the first that had one."""
        with self.lock:
            pending, self._pending = self._pending, []
            trusted, self._trusted = self._trusted.values(), {}
            if not pending and not trusted:
                return
            for event in [*(event for _, event in pending), *trusted]:
                if event is not None:
                    # The current stream of this device waits for those that the kernels ran on.
                    event.wait(torch.cuda.current_stream(self._words.device))
            *positions, broken = self._words.tolist()
            if max(*positions, broken) < 0:
                return
            self._words.fill_(-1)
            if self._words.is_cuda:
                torch.cuda.synchronize(self._words.device)
            for (explain, _), position in zip(pending, positions, strict=False):
                if position >= 0:
                    explain()
                    raise RuntimeError(f"the GPU found ids[{position}] out of range, the host did not")
            if broken >= 0:
                raise IndexError(f"ids[{broken}] of a gather with trusted = True has no row: it was not to be trusted")


logger = logging.getLogger(__name__)


def wait_when_dropped(owner: object, device: torch.device) -> weakref.finalize[..., Any] | None:
    """Has the work under way on a GPU waited for when ``owner`` is dropped, before its tensors are: kernels read them
    by address. Returns the finalizer, which an owner that is closed detaches; None on the host."""
    if device.type != "cuda":
        return None
    finalizer = weakref.finalize(owner, _wait_for, device)
    finalizer.atexit = False  # the memory is not used again, and CUDA may be gone
    return finalizer


def _wait_for(device: torch.device) -> None:
    if not torch.cuda.is_initialized():  # nothing can be under way; or a fork, which has no CUDA and only copies
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:  # of some kernel: waiting for its results raises it, too
        logger.warning("memory is given back on %s, which reports: %s", device, error)
