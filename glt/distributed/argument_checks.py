"""Arguments of users, checked where they are given: what is wrong is named, with what was expected in its place."""

from __future__ import annotations

import math
import os
import reprlib
from typing import Any

import numpy as np
from torch import Tensor


def real_number(name: str, value: Any, least: float = 0.0, above: bool = False, below: float = math.inf) -> float:
    """Returns a finite number of a user.

    Args:
        name: Of the argument.
        value: A number, or a tensor of one.
        least: It is not less.
        above: Nor is it that.
        below: It is less than this.

    Raises:
        TypeError, ValueError: If it is none, or another.
    """
    given = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    bounds = f"{'above' if above else 'at least'} {least:g}" + ("" if math.isinf(below) else f" and below {below:g}")
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected a number, {bounds}")
    if not least <= given < below or (above and given == least):
        raise ValueError(f"{name} = {value}: expected a number, {bounds}")
    return float(given)


def check_flag(name: str, value: Any) -> None:
    """Raises TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected True or False")


def check_path(name: str, value: Any, what: str) -> None:
    """Raises TypeError unless it is the path of something."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} = {reprlib.repr(value)}: expected the path of {what}, text or a pathlib.Path")
