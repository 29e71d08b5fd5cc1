"""Where graphs come from: everything here ends in the keyword arguments that all partitioners take."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.partition.inputs.read import graph_arguments, read_graph

__all__ = ["graph_arguments", "read_graph"]

__getattr__, __dir__ = lazy_names(__name__, {"read": ["graph_arguments", "read_graph"]})
