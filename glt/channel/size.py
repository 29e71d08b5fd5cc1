"""Sizes as people write them: ``'64MB'``."""

import re

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?\s*", re.ASCII)


def parse_size(size: int | str, name: str = "size") -> int:
    """Returns ``size`` in bytes.

    Args:
        size: Bytes as an int, or a text such as ``'512KB'``, ``'64MB'``, ``'1.5 GiB'``. Units are powers of 1024.
        name: What an error calls it.
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
    if num_bytes <= 0:
        raise ValueError(f"{name} = {size!r}: expected more than 0 bytes")
    return num_bytes


def format_size(num_bytes: int) -> str:
    """Returns a size for people to read, for example ``'64.0 MB'``."""
    amount = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(amount) < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"
