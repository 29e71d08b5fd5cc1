"""Partition directories of other libraries become glt's, with the assignment that they have. Nothing is unpickled."""

from glt.partition.importers.dgl_directory import import_dgl
from glt.partition.importers.glt_directory import import_glt
from glt.partition.importers.pyg_directory import import_pyg

__all__ = ["import_dgl", "import_glt", "import_pyg"]
