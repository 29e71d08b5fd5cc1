"""Decoupled graph sampling for PyTorch Geometric.

Importing this has no side effects and needs neither a GPU nor a driver; torch_geometric is imported only by the parts
that hand out its objects, so that sampling processes start without it. ``has_cuda`` tells whether this build has the
CUDA kernels; whether they can be used here, and what is missing, :func:`glt.data.device.missing_for_cuda`.
"""

import importlib
from types import ModuleType

from glt._core import has_cuda

__version__ = "0.1.0"

_SUBMODULES = ("channel", "data", "distributed", "errors", "loader", "partition", "sampler", "testing")

__all__ = ["__version__", "channel", "data", "distributed", "errors", "has_cuda", "loader", "partition",
           "sampler", "testing"]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"glt.{name}")
    raise AttributeError(f"module 'glt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
