"""Partition directories of other libraries become glt's, with the assignment that they have. Nothing in them runs."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.partition.importers.dgl import import_dgl
    from glt.partition.importers.glt_pyg import import_glt, import_pyg

__all__ = ["import_dgl", "import_glt", "import_pyg"]

__getattr__, __dir__ = lazy_names(__name__, {"dgl": ["import_dgl"], "glt_pyg": ["import_glt", "import_pyg"]})
