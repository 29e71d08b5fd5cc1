"""The edges of a dataset as PyG's ``GraphStore``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, GraphStore
from torch_geometric.data.graph_store import EdgeLayout

from glt.data.dataset import Dataset
from glt.data.topology import Topology


class DatasetGraphStore(GraphStore):
    """Serves the edges of a :class:`~glt.data.Dataset` in every layout of PyG: ``'coo'``, ``'csc'`` and ``'csr'``.

    Sources and destinations come in the order of their edge ids, so that positions are edge ids, which index edge
    features. Where the edges came sorted, the compressed layout has that order too; only then is it announced by
    ``get_all_edge_attrs``, so that PyG's sampler names the same ids whichever it reads. It is served on request always.

    Args:
        dataset: Its edges are shared where the layout is its own and ids are int64; other layouts are made on request.

    Raises:
        ValueError: If edge ids are not the numbers from 0 on, or the dataset is of a partition.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        for edge_type, graph in zip(dataset.schema.edge_types, dataset.graphs, strict=True):
            ids = graph.topology.edge_ids
            if ids is not None and not _is_permutation(ids):
                raise ValueError(
                    f"edge ids of {edge_type} are not 0 to {len(ids) - 1}, each once: PyG's stores know no others"
                )
        self.dataset = dataset

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Returns the layouts of every edge type in which positions are edge ids."""
        attrs = []
        for edge_type, graph in zip(self._edge_types(), self.dataset.graphs, strict=True):
            topology = graph.topology
            layouts = [EdgeLayout.COO]
            if _ids_are_positions(topology):
                layouts.insert(0, EdgeLayout(topology.layout.lower()))
            attrs += [EdgeAttr(edge_type, layout, size=topology.size) for layout in layouts]
        return attrs

    def _edge_types(self) -> list[Any]:
        return list(self.dataset.schema.edge_types) if self.dataset.schema.is_hetero else [None]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        edge_type = tuple(edge_attr.edge_type) if isinstance(edge_attr.edge_type, list) else edge_attr.edge_type
        if edge_type not in self._edge_types():
            return None
        topology = self.dataset.graphs[self._edge_types().index(edge_type)].topology
        if edge_attr.layout == EdgeLayout.COO and not edge_attr.is_sorted:
            source, target = _by_edge_id(topology)
            return source, target
        layout = "CSR" if edge_attr.layout == EdgeLayout.CSR else "CSC"
        if topology.layout != layout:
            topology = Topology(_by_edge_id(topology), topology.size, layout=layout)
        if edge_attr.layout == EdgeLayout.COO:
            source, target = topology.coo()
            return source, target
        indices = topology.indices.to(torch.int64)
        return (topology.indptr, indices) if layout == "CSR" else (indices, topology.indptr)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise _fixed(edge_attr, "put")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise _fixed(edge_attr, "removed")


def _fixed(edge_attr: EdgeAttr, verb: str) -> ValueError:
    return ValueError(
        f"edges of type {edge_attr.edge_type} cannot be {verb}: the graph of a glt Dataset is fixed; build another one "
        "with Dataset.from_arrays"
    )


def _ids_are_positions(topology: Topology) -> bool:
    ids = topology.edge_ids
    return ids is None or bool((ids == torch.arange(len(ids))).all())


def _is_permutation(ids: Tensor) -> bool:
    return len(ids) == 0 or (int(ids.max()) == len(ids) - 1 and bool((torch.bincount(ids) == 1).all()))


def _by_edge_id(topology: Topology) -> Tensor:
    ends = topology.coo()
    if topology.edge_ids is None:
        return ends
    by_id = torch.empty_like(ends)
    by_id[:, topology.edge_ids.to(torch.int64)] = ends
    return by_id
