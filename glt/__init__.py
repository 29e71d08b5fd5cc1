"""Decoupled graph sampling for PyTorch Geometric.

Importing this starts nothing and needs neither a GPU nor a driver; torch_geometric is imported only by the parts
that hand out its objects, so that sampling processes start without it. ``has_cuda`` tells whether this build has the
CUDA kernels; whether they can be used here, and what is missing, :func:`glt.data.device.missing_for_cuda`.
"""

from typing import TYPE_CHECKING

try:
    import glt_cuda13
except ModuleNotFoundError:
    glt_cuda13 = None

from glt._faces import install, lazy_names

if TYPE_CHECKING:
    from glt._core import has_cuda

__version__ = "0.1.0"

# glt-graph-cuda13 is the native module compiled with the CUDA kernels: where it is installed, it is found first.
if glt_cuda13 is not None:
    if glt_cuda13.__version__ != __version__:
        raise ImportError(
            f"glt-graph {__version__} found glt-graph-cuda13 {glt_cuda13.__version__}: expected the same version; "
            f"pip install glt-graph-cuda13=={__version__}, or pip uninstall glt-graph-cuda13"
        )
    __path__.insert(0, glt_cuda13.__path__[0])

__all__ = [
    "__version__",
    "channel",
    "data",
    "distributed",
    "errors",
    "has_cuda",
    "loader",
    "partition",
    "sampler",
    "testing",
]

__getattr__, __dir__ = lazy_names(__name__, {"glt._core": ["has_cuda"]})

install()
