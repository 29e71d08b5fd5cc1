"""What objects say of themselves: one line, of what they know already; nothing is read, asked or computed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from glt._checks import format_size


def says(tell: Callable[[Any], str]) -> Callable[[Any], str]:
    """Makes a ``__repr__`` of what an object tells: ``Name(told)``."""

    def __repr__(self: Any) -> str:
        try:
            return f"{type(self).__name__}({tell(self)})"
        except AttributeError:  # debuggers and tracebacks show objects whose __init__ has not come to its end
            return f"{type(self).__name__}(not whole)"

    return __repr__


def _is_array(value: Any) -> bool:
    """A tensor too, for which torch is not imported here."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def brief(value: Any) -> str:
    """Type and shape of an array, names of a dict of them, else what the value says."""
    if _is_array(value):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {brief(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list) and any(_is_array(each) for each in value):
        return "[" + ", ".join(map(brief, value)) + "]"
    return repr(value)


def options(given: Mapping[str, Any]) -> str:
    """Options, as they are written in a call; those that are None or False are left out."""
    told = {name: value for name, value in given.items() if value is not None and value is not False}
    return ", ".join(f"{name}={brief(value)}" for name, value in told.items())


@says
def repr_of_fields(self: Any) -> str:
    """The ``__repr__`` of a dataclass of arrays: shapes in place of numbers; what is None or empty is left out."""
    given = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
    return options({name: value for name, value in given.items() if not (isinstance(value, Mapping) and not value)})


def size_of(arrays: Iterable[Any]) -> str:
    """Bytes of arrays and tensors, for people; None counts nothing."""
    return format_size(sum(int(each.nbytes) for each in arrays if each is not None))


def typed(count: int, what: str, types: int) -> str:
    """A number of nodes or edges, and of how many types, where there are several."""
    return f"{count} {what}" + (f" of {types} types" if types > 1 else "")
