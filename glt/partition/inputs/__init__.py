"""Where graphs come from: everything here ends in the keyword arguments that all partitioners take."""

from glt.partition.inputs.graph_files import read_graph
from glt.partition.inputs.pyg import graph_arguments

__all__ = ["graph_arguments", "read_graph"]
