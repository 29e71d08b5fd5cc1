"""Modules that documents and examples named and that have other names now: an import of the old name still works."""

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NEW_NAMES = {
    "glt.data.accelerator": "glt.data.device",
    "glt.data.cuda_device": "glt.data.device",
    "glt.data.hetero_readers": "glt.data.readers",
    "glt.data.pinned_memory": "glt.data.pinned",
    "glt.data.synthetic_hetero": "glt.data.synthetic",
    "glt.data.task": "glt.data.tasks",
    "glt.demo.options": "glt.demo.trainer",
    "glt.distributed.dist_context": "glt.distributed.context",
    "glt.distributed.dist_dataset": "glt.distributed.engine.dataset",
    "glt.distributed.dist_link_neighbor_loader": "glt.distributed.loader.loaders",
    "glt.distributed.dist_neighbor_loader": "glt.distributed.loader.loaders",
    "glt.distributed.dist_subgraph_loader": "glt.distributed.loader.loaders",
    "glt.distributed.dist_tensor": "glt.distributed.tensors.tensor",
    "glt.distributed.served_world": "glt.distributed.job.worlds",
    "glt.distributed.server_client": "glt.distributed.server.api",
    "glt.sampler.device_sampling": "glt.sampler.device",
    "glt.testing_cluster": "glt.testing.cluster",
    "glt.testing_hetero": "glt.testing.hetero",
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
