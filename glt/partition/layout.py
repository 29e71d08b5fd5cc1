"""Where things are inside a partition directory. Paths are relative to its root, with ``/`` between names."""

from typing import Final

NodeType = str
EdgeType = tuple[str, str, str]

# A homogeneous graph is a typed one with one type of each (law 2).
NODE: Final[NodeType] = "node"
EDGE: Final[EdgeType] = ("node", "to", "node")

MANIFEST: Final = "manifest.json"


def edge_type_name(edge_type: EdgeType) -> str:
    """Returns the name that stands for ``edge_type`` in paths and in the manifest."""
    return "__".join(edge_type)


def node_book(node_type: NodeType) -> str:
    """Owner of each node, smallest unsigned dtype, ``[num_nodes]``."""
    return f"node_book/{node_type}.npy"


def node_row(node_type: NodeType) -> str:
    """Row of each node inside the arrays of its owner, uint32, ``[num_nodes]``."""
    return f"node_row/{node_type}.npy"


def edge_book(edge_type: EdgeType) -> str:
    """Owner of each edge, smallest unsigned dtype, ``[num_edges]``; only with edge features."""
    return f"edge_book/{edge_type_name(edge_type)}.npy"


def edge_row(edge_type: EdgeType) -> str:
    """Row of each edge inside the edge features of its owner, uint32, ``[num_edges]``; only with edge features."""
    return f"edge_row/{edge_type_name(edge_type)}.npy"


def part(partition_idx: int) -> str:
    """The directory that holds what partition ``partition_idx`` owns."""
    return f"part{partition_idx}"


def graph(partition_idx: int, edge_type: EdgeType, array: str) -> str:
    """One of ``indptr``, ``indices`` and ``edge_ids`` of a partition's CSR (or CSC)."""
    return f"{part(partition_idx)}/graph/{edge_type_name(edge_type)}/{array}.npy"


def node_ids(partition_idx: int, node_type: NodeType) -> str:
    """Ids of the owned nodes, ascending, int64: the row numbers of every per-node array of the partition."""
    return f"{part(partition_idx)}/node_ids/{node_type}.npy"


def node_feat(partition_idx: int, node_type: NodeType) -> str:
    """Features of the owned nodes."""
    return f"{part(partition_idx)}/node_feat/{node_type}.npy"


def node_label(partition_idx: int, node_type: NodeType) -> str:
    """Labels of the owned nodes."""
    return f"{part(partition_idx)}/node_label/{node_type}.npy"


def edge_feat(partition_idx: int, edge_type: EdgeType) -> str:
    """Features of the owned edges, by ascending edge id."""
    return f"{part(partition_idx)}/edge_feat/{edge_type_name(edge_type)}.npy"
