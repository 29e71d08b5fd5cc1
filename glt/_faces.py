"""The faces of rooms: public names that load when they are first asked for, and modules under their old names."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from sys import modules
from types import ModuleType
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
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        where = "" if name.startswith("_") else _where(package, name, [*home_of, *modules[package].__all__])
        raise AttributeError(f"module {package!r} has no attribute {name!r}{where}")

    def __dir__() -> list[str]:
        return sorted({*home_of, *modules[package].__all__})

    return __getattr__, __dir__


FACES = ["glt", *(f"glt.{room}" for room in "loader data sampler partition distributed channel testing errors".split())]


def _where(package: str, name: str, here: Sequence[str]) -> str:
    """What an error adds of a name that is misspelt, or stands in another face."""
    face_of = {each: face for face in FACES[::-1] for each in import_module(face).__all__} | dict.fromkeys(
        here, package
    )
    if name in face_of:
        return f": it is {face_of[name]}.{name}"
    return "".join(f": did you mean {face_of[near]}.{near}?" for near in get_close_matches(name, face_of, 1, 0.8))


NEW_NAMES = {
    "glt.channel.base": "glt.channel.channel",
    "glt.channel.local": "glt.channel.channel",
    "glt.data.accelerator": "glt.data.device",
    "glt.data.cuda_device": "glt.data.device",
    "glt.data.graph": "glt.data.dataset",
    "glt.data.hetero_readers": "glt.data.tasks",
    "glt.data.partition_book": "glt.data.schema",
    "glt.data.pinned_memory": "glt.data.pinned",
    "glt.data.readers": "glt.data.tasks",
    "glt.data.synthetic_hetero": "glt.data.synthetic",
    "glt.data.task": "glt.data.tasks",
    "glt.data.tiered_rows": "glt.data.feature",
    "glt.partition.distributed": "glt.partition.sharded",
    "glt.distributed.dist_context": "glt.distributed.context",
    "glt.distributed.dist_dataset": "glt.distributed.engine.dataset",
    "glt.distributed.dist_link_neighbor_loader": "glt.distributed.loader.loaders",
    "glt.distributed.dist_neighbor_loader": "glt.distributed.loader.loaders",
    "glt.distributed.dist_subgraph_loader": "glt.distributed.loader.loaders",
    "glt.distributed.dist_tensor": "glt.distributed.tensors.tensor",
    "glt.distributed.engine.event_loop": "glt.distributed.wire.threads",
    "glt.demo.options": "glt.demo",
    "glt.distributed.served_world": "glt.distributed.job.worlds",
    "glt.distributed.server_client": "glt.distributed.server.api",
    "glt.loader.link_neighbor_loader": "glt.loader.loaders",
    "glt.loader.neighbor_loader": "glt.loader.loaders",
    "glt.sampler.device_sampling": "glt.sampler.device",
    "glt.sampler.output": "glt.sampler.graph",
    "glt.testing.hetero": "glt.testing.batches",
    "glt.testing_cluster": "glt.testing.cluster",
    "glt.testing_hetero": "glt.testing.batches",
    "glt.testing_picks": "glt.testing.reference",
    "glt.testing_reference": "glt.testing.reference",
}


class _MovedModules(MetaPathFinder, Loader):
    """Finds a module by its old name, once no file has it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in NEW_NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        new = NEW_NAMES[module.__name__]
        warnings.warn(f"{module.__name__} is {new} now: import that", DeprecationWarning, stacklevel=2)
        vars(module)["__getattr__"] = partial(getattr, import_module(new))


def install() -> None:
    """Lets Python's imports find the modules. May be called again."""
    if not any(isinstance(each, _MovedModules) for each in sys.meta_path):
        sys.meta_path.append(_MovedModules())
