"""What link loaders are given as seed edges and labels, checked when it is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from glt.channel.message import MAX_DIMS
from glt.distributed.loader_data import LoaderData
from glt.distributed.seed_checks import as_tensor


class SeedLinks(NamedTuple):
    """Seed edges of one trainer.

    Attributes:
        edge_type: Position of their type.
        ends: Sources and destinations ``[2, B]``, int64.
        ids: Ids of the edges ``[B]``, where they are all those of a partition; None where they were given.
    """

    edge_type: int
    ends: Tensor
    ids: Tensor | None

    def per_edge(self, name: str, given: Any, num_edges: int) -> Any:
        """What was given for each seed edge; of all edges, it is given for each edge of the whole graph, by id.

        Args:
            name: What it is called, in errors.
            given: A tensor, or what becomes one; None: nothing.
            num_edges: Edges of the type in the whole graph.
        """
        if given is None or self.ids is None:
            return given
        tensor = as_tensor(name, given, "a tensor with a row per edge")
        if tensor.dim() == 0 or len(tensor) != num_edges:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}: edge_label_index names no edges, so that they are all of the "
                f"type; expected one row for each edge of the whole graph, {num_edges}, in the order of their ids"
            )
        return tensor[self.ids]


def checked_links(edge_label_index: Any, data: LoaderData) -> SeedLinks:
    """Returns the seed edges of this trainer.

    Args:
        edge_label_index: ``[2, B]``; None: all edges of its partition. Of a heterogeneous graph a pair of an edge type
            and one of these, or an edge type alone.
        data: The graph.
    """
    schema = data.schema
    edge_type, edges = None, edge_label_index
    if schema.is_hetero:
        types = list(schema.edge_types)
        expected = f"an edge type, or a pair of it and [2, B]; the types are {types}"
        if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) not in (2, 3):
            raise ValueError(f"edge_label_index has no edge type: expected {expected}")
        alone = all(isinstance(part, str) for part in edge_label_index)
        if len(edge_label_index) == 3 and not alone:
            raise ValueError(f"edge_label_index has 3 elements that are no edge type: expected {expected}")
        edge_type, edges = (edge_label_index, None) if alone else edge_label_index
        fits = [t for t in types if isinstance(edge_type, tuple | list) and tuple(edge_type) in (t, (t[0], t[2]))]
        if len(fits) != 1:
            raise ValueError(
                f"edge_label_index names edge type {edge_type!r}: expected {expected}. A type to predict that has no "
                "edges in the graph is partitioned with none, edge_index[type] = torch.empty(2, 0, dtype=torch.int64)"
            )
        (edge_type,) = fits
    index = schema.edge_index(edge_type)
    if edges is None:
        ends, ids = data.all_edges(index)
        return SeedLinks(index, ends, ids)
    untyped = "" if schema.is_hetero else " without an edge type, the graph being homogeneous"
    edges = as_tensor("edge_label_index", edges, f"integer ids, [2, B]{untyped}")
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"edge_label_index has shape {list(edges.shape)}: expected [2, B]")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise TypeError(f"edge_label_index has dtype {edges.dtype}: expected integer ids")
    edges = edges.to("cpu", torch.int64).contiguous()
    for row, node_type in enumerate((schema.edge_types[index][0], schema.edge_types[index][2])):
        num_nodes = data.num_nodes_of[schema.node_index(node_type)]
        bad = ((edges[row] < 0) | (edges[row] >= num_nodes)).nonzero()
        if len(bad):
            at = int(bad[0])
            of_type = f" of type {node_type!r}" if schema.is_hetero else ""
            raise IndexError(
                f"edge_label_index[{row}, {at}] = {int(edges[row, at])} is outside [0, {num_nodes}), the nodes{of_type}"
            )
    return SeedLinks(index, edges, None)


def checked_label(given: Any, num_edges: int, drawn: NegativeSampling | None) -> Tensor:
    """Returns the labels of the seed edges ``[num_edges, ...]``."""
    label = as_tensor("edge_label", given, "numbers, one per seed edge")
    if drawn is not None and drawn.is_triplet():
        raise ValueError("edge_label is given and neg_sampling is 'triplet': triplets have no labels; leave one out")
    if not 1 <= label.dim() <= MAX_DIMS or len(label) != num_edges:
        raise ValueError(
            f"edge_label has shape {list(label.shape)}: expected one per seed edge, {num_edges}, and at most "
            f"{MAX_DIMS} dimensions"
        )
    if label.layout != torch.strided or label.is_complex():
        raise TypeError(f"edge_label is {label.layout} of {label.dtype}: expected dense real numbers")
    return label.detach().cpu().contiguous()
