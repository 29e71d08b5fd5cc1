"""The faces of rooms: public names that load when they are first asked for."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from sys import modules
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` and ``__dir__`` of ``package`` (PEP 562). A face imports nothing by itself, so a
    process that needs one module of a room does not pay for the others; modules and rooms below it are attributes, too.

    ``homes`` are the names of each module: {module below ``package``, or its whole name: names}.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name in home_of:
            home = home_of[name]
            value = getattr(import_module(home if home.startswith("glt.") else f"{package}.{home}"), name)
            setattr(modules[package], name, value)
            return value
        if name.isidentifier() and not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        where = "" if name.startswith("_") else _where(package, name, [*home_of, *modules[package].__all__])
        raise AttributeError(f"module {package!r} has no attribute {name!r}{where}")

    def __dir__() -> list[str]:
        return sorted({*home_of, *modules[package].__all__})

    return __getattr__, __dir__


FACES = [
    "glt",
    *(
        f"glt.{room}"
        for room in "loader data sampler partition tables distributed channel testing errors forecast ray".split()
    ),
]


def _where(package: str, name: str, here: Sequence[str]) -> str:
    """What an error adds of a name that is misspelt, or stands in another face."""
    face_of = {each: face for face in FACES[::-1] for each in import_module(face).__all__} | dict.fromkeys(
        here, package
    )
    if name in face_of:
        return f": it is {face_of[name]}.{name}"
    return "".join(f": did you mean {face_of[near]}.{near}?" for near in get_close_matches(name, face_of, 1, 0.8))
