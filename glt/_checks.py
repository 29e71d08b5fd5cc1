"""Arguments of users, checked where they are given: what is wrong is named, with what was expected in its place."""

from __future__ import annotations

import difflib
import errno
import math
import operator
import os
import re
import reprlib
import resource
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

AUTO: Final = "auto"  # of options that are chosen by measuring


def available_memory(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> tuple[int, str]:
    """Returns the available bytes and what limits them: the host's memory or the limit of a cgroup (a container).
    ``proc`` and ``cgroup_root`` say where the file systems are mounted."""
    least = _host_memory(proc / "meminfo"), "memory available on this host"
    for folder, names in _cgroups(proc / "self/cgroup", cgroup_root):
        room = _cgroup_room(folder, *names)
        if room is not None and room < least[0]:
            least = room, f"memory left under the limit of cgroup {folder}"
    return least


def _host_memory(meminfo: Path) -> int:
    with naming_the_limit():
        lines = meminfo.read_text().splitlines()
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo}: no MemAvailable; this needs Linux 3.14 or later")


def _cgroups(listing: Path, root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """The memory cgroups of this process, innermost first, with the names of their limit, usage and cache."""
    found: list[tuple[Path, tuple[str, str, str]]] = []
    for line in listing.read_text().splitlines() if listing.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's: then only the mounted top exists, and it is the container's own.
        folder = top / path.lstrip("/")
        found += [(f, names) for f in (folder, *folder.parents) if f.is_relative_to(top) and f.is_dir()]
    return found


def _cgroup_room(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit_file, usage_file, stat_file = folder / limit_name, folder / usage_name, folder / "memory.stat"
    if not (limit_file.exists() and usage_file.exists()):
        return None
    limit = limit_file.read_text().strip()
    if limit == "max":
        return None
    stat = dict(line.split() for line in stat_file.read_text().splitlines()) if stat_file.exists() else {}
    return max(0, int(limit) - int(usage_file.read_text()) + int(stat.get(cache_name, 0)))


_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?\s*", re.ASCII)


# What this process or its host has no more of, and what else is the fault of the machine or of rights: neither says
# anything of what is in a file, or of who is at the other end.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_OF_MACHINE = (*_EXHAUSTED, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that this process, or its host, has no more descriptors or memory."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def is_of_machine(error: BaseException) -> bool:
    """Whether an error is of the machine, its disk or its rights, and not of what a file holds."""
    return isinstance(error, OSError) and error.errno in _OF_MACHINE


@contextmanager
def naming_the_limit(path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Says of an OSError that is the machine's what to do about it: with the limit that was met, and how to raise it.
    ``path`` is what was opened, where the error itself does not say so."""
    try:
        yield
    except OSError as error:
        if not is_of_machine(error) or isinstance(error.__cause__, OSError):  # or it is said already
            raise
        of = error.filename if error.filename is not None or path is None else os.fspath(path)
        raise OSError(error.errno, f"{error.strerror}: {_remedy(error.errno)}", of) from error


def _remedy(number: int | None) -> str:
    if number == errno.EMFILE:
        most, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
        hard = "" if highest == resource.RLIM_INFINITY else f", up to {highest}"
        return f"this process may have {most}; raise the limit before it starts, with ulimit -n{hard}"
    if number == errno.ENFILE:
        return "all processes of this host together may have no more; raise that limit, with sysctl fs.file-max"
    if number in (errno.ENOMEM, errno.ENOBUFS):
        room, limit = available_memory()
        mappings = Path("/proc/sys/vm/max_map_count").read_text().strip()
        return (
            f"{format_size(room)} is the {limit}; free some. If that is enough, this process has as much as ulimit -v "
            f"lets it, or {mappings} mappings, as many as it may: raise sysctl vm.max_map_count"
        )
    if number in (errno.EIO, errno.ESTALE):
        return "the disk failed, or the network that it is reached by; see dmesg on this host"
    if number in (errno.EACCES, errno.EPERM):
        return f"the user of this process, {os.geteuid()}, may not open it; let it, or run as another user"
    return "free some room on its file system, or choose another"


def parse_size(size: int | str, name: str = "size", least: Literal[0, 1] = 1) -> int:
    """Returns ``size`` in bytes: an int, or a text such as ``'512KB'``, ``'64MB'``, ``'1.5 GiB'``, with units that are
    powers of 1024. ``name`` is what a TypeError or ValueError calls it; fewer than ``least`` are one.

    Example:
        >>> glt.channel.parse_size("64MB")
        67108864
    """
    if isinstance(size, int) and not isinstance(size, bool):
        num_bytes = size
    elif isinstance(size, str):
        match = _PATTERN.fullmatch(size.upper())
        if match is None:
            raise ValueError(f"{name} = {size!r}: expected bytes as an int, or a text such as '512KB', '64MB', '1GB'")
        num_bytes = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    else:
        raise TypeError(f"{name} = {size!r}: expected an int or a str, got {type(size).__name__}")
    if num_bytes < least:
        raise ValueError(f"{name} = {size!r}: expected {'more than 0' if least else '0 or more'} bytes")
    return num_bytes


def format_size(num_bytes: int) -> str:
    """Returns a size for people to read, for example ``'64.0 MB'``.

    Example:
        >>> glt.channel.format_size(64 * 1024**2)
        '64.0 MB'
    """
    amount = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(amount) < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def real_number(name: str, value: Any, least: float = 0.0, above: bool = False, below: float = math.inf) -> float:
    """Returns a finite number, at least ``least`` (``above``: more than that) and less than ``below``, given as a
    number or a tensor of one; raises TypeError or ValueError naming the argument."""
    is_array = getattr(value, "ndim", None) is not None and callable(getattr(value, "item", None))
    given = value.item() if is_array and math.prod(value.shape) == 1 else value  # torch is not loaded for this
    bounds = f"{'above' if above else 'at least'} {least:g}" + ("" if math.isinf(below) else f" and below {below:g}")
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected a number, {bounds}")
    if not least <= given < below or (above and given == least):
        raise ValueError(f"{name} = {value}: expected a number, {bounds}")
    return float(given)


def check_count(name: str, value: Any, least: int, most: int) -> int:
    """Returns an integer, NumPy's too, as an int; raises TypeError or ValueError unless it is in ``[least, most]``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected an integer")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} = {number}: expected {least} to {most}")
    return number


def integer(name: str, value: object, low: int, high: int, meaning: str) -> int:
    """Returns ``value``, of any integer type, as an int in ``[low, high]``; ``meaning`` says what it counts. Raises
    TypeError or ValueError."""
    if isinstance(value, bool):
        raise TypeError(f"{name} = {value!r}: expected an integer, {meaning}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{name} = {value!r}: expected an integer, {meaning}") from error
    if not low <= number <= high:
        raise ValueError(f"{name} = {number}: expected {low} to {high}, {meaning}")
    return number


def check_text(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected text, such as '10.0.0.1'")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected True or False")


def check_path(name: str, value: Any, what: str) -> None:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected the path of {what}, text or a pathlib.Path")


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError, suggesting what may be meant, unless the names of arguments ``given`` are all ``known``."""
    known = sorted(set(known) - {"self", "args", "kwargs"})
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            close = close or [each for each in known if len(name) > 3 and name in each]
            hint = f"did you mean {close[0]}?" if close else f"expected those of help({what})"
            raise TypeError(f"{what} has no argument {name}: {hint}")


def check_function(name: str, value: Any, what: str) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected a function of {what}")


def check_at_least(name: str, value: Any, least: int) -> int:
    """Returns an integer, NumPy's too, as an int; raises ValueError unless it is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{name} = {value!r}: expected an integer of at least {least}")
    return int(value)


def check_one_of(name: str, value: Any, known: Iterable[Any]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r}: expected one of {list(known)}")


def warn_user(text: str) -> None:
    """Warns of the user's line that called glt; Python says the same of a line once."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "glt":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def warn_no_effect(name: str, value: Any, instead: str) -> None:
    """Says of an argument that was given (is not None) that it does nothing, and what does."""
    if value is not None:
        warn_user(f"{name} = {value!r} has no effect: {instead}")
