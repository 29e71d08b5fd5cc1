"""Reads the graphs that DGL's GraphBolt saves with ``torch.save``, without GraphBolt and without unpickling."""

from pathlib import Path

from glt.errors import PartitionError
from glt.partition.importers.assembly import integers
from glt.partition.importers.dgl_file import DglGraph, of_csr
from glt.partition.importers.torch_file import Record, read_torch


def read_graphbolt(path: Path) -> DglGraph:
    """Returns the graph of a ``fused_csc_sampling_graph.pt``; its types of edges are the table ``_TYPE`` of edata.

    Raises:
        PartitionError: If the file is missing or no such file, or damaged.
    """
    graph = read_torch(path)
    try:
        if not isinstance(graph, Record):
            raise TypeError(f"it holds a {type(graph).__name__}")
        state, _ = graph.state["_c_csc_graph"].state
        tensors = state["independent_tensors"]
        indptr, indices = (integers(path, name, tensors[name]) for name in ("indptr", "indices"))
        edata = dict(state.get("edge_attributes", {}))
        if "type_per_edge" in tensors:
            edata["_TYPE"] = tensors["type_per_edge"]
        ndata = dict(state.get("node_attributes", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, PartitionError):
            raise
        raise PartitionError(f"{path} is no FusedCSCSamplingGraph ({type(error).__name__}: {error})") from error
    # Edges have no local ids but their places, by which edge_attributes are stored.
    return DglGraph(indptr.size - 1, indices.size, of_csr(indptr, indices, None, csc=True), ndata, edata)
