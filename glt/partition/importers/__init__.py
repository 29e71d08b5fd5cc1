"""Partition directories of other libraries become glt's, with the assignment that they have. Nothing is unpickled."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.partition.importers.dgl import import_dgl
    from glt.partition.importers.glt import import_glt
    from glt.partition.importers.pyg import import_pyg

__all__ = ["import_dgl", "import_glt", "import_pyg"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dgl": ["import_dgl"],
        "glt": ["import_glt"],
        "pyg": ["import_pyg"],
    },
)
