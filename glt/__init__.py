"""Decoupled graph sampling for PyTorch Geometric.

Importing this starts nothing and needs neither a GPU nor a driver; torch_geometric is imported only by the parts
that hand out its objects, so that sampling processes start without it. The names of PyG's loaders, and ``Dataset``,
stand here as well; all others in their rooms: ``glt.distributed.DistNeighborLoader``. ``has_cuda`` tells whether this
build has the CUDA kernels; :func:`glt.data.device.missing_for_cuda` what is missing to use them here.
"""

from typing import TYPE_CHECKING

try:
    import glt_cuda13
except ModuleNotFoundError:
    glt_cuda13 = None
else:
    if glt_cuda13.__file__ is None:  # a folder without modules, which an uninstall may leave
        glt_cuda13 = None

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt import channel, data, distributed, errors, forecast, loader, partition, sampler, tables, testing
    from glt._core import has_cuda
    from glt.data.dataset import Dataset
    from glt.loader.loaders import LinkNeighborLoader, NeighborLoader, SubGraphLoader

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
    "Dataset",
    "LinkNeighborLoader",
    "NeighborLoader",
    "SubGraphLoader",
    "__version__",
    "channel",
    "data",
    "distributed",
    "errors",
    "forecast",
    "has_cuda",
    "loader",
    "partition",
    "sampler",
    "tables",
    "testing",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "glt._core": ["has_cuda"],
        "data": ["Dataset"],
        "loader": ["LinkNeighborLoader", "NeighborLoader", "SubGraphLoader"],
    },
)
