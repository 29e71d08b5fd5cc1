"""Cluster-GCN's batches: clusters of nodes that have many edges among them, several together."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import index_sort, remove_self_loops, to_undirected

from glt._checks import check_at_least, check_flag, check_one_of, check_path
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, require_in_range
from glt.loader.node_sets import NodeSetLoader, kept_arrays, reordered
from glt.sampler.order import BatchIndex, crc32_of

if TYPE_CHECKING:
    from glt.sampler.graph import Output


@short_traceback
class ClusterData(torch_geometric.loader.ClusterData):
    """A drop-in ``torch_geometric.loader.ClusterData``: a graph whose nodes are divided into clusters.

    METIS divides them, by ``pymetis``, unless ``cluster`` says which cluster each node is in, such as the owner of each
    node in a directory of partitions. Nothing is copied, but for PyG's ``data`` and ``partition``, and for
    ``cluster_data[i]``, the subgraph of one cluster, with ``keep_inter_cluster_edges``: they make the copy of the graph
    in the order of clusters that PyG's class always has.

    Args:
        data: A PyG ``Data``.
        num_parts: How many clusters. Default: as many as ``cluster`` has.
        recursive: Divides into halves, over and over, in place of into all parts at once.
        save_dir, filename: Where the cluster of each node is kept, and read from if it is there:
            ``save_dir/part_<num_parts>/metis.npz``.
        log: Says on stderr when METIS begins and ends.
        keep_inter_cluster_edges, sparse_format: As in PyG. The edges of batches are sorted by source for ``'csr'``, by
            destination for ``'csc'``.
        cluster: The cluster of each node, ``[num_nodes]``, integers from 0.

    Raises:
        ImportError: If METIS is needed and ``pymetis`` is not installed.
        IndexError, TypeError, ValueError: If an argument does not fit; names it.

    Source: Chiang et al., "Cluster-GCN", KDD 2019.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> cluster_data = glt.loader.ClusterData(data, cluster=torch.arange(40) // 10)
        >>> len(cluster_data), cluster_data[3].num_nodes
        (4, 10)
    """

    def __init__(
        self,
        data: Data,
        num_parts: int | None = None,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: str = "csr",
        *,
        cluster: Any = None,
    ) -> None:
        if not isinstance(data, Data) or data.edge_index is None:
            raise TypeError(f"data has type {type(data).__name__}: expected a PyG Data with edge_index")
        check_one_of("sparse_format", sparse_format, ("csr", "csc"))
        for name, flag in (("recursive", recursive), ("keep_inter_cluster_edges", keep_inter_cluster_edges)):
            check_flag(name, flag)
        self.source: Data = data
        self.recursive: bool = recursive
        self.sparse_format: str = sparse_format
        self.keep_inter_cluster_edges: bool = keep_inter_cluster_edges
        check_flag("log", log)
        num_nodes = int(data.num_nodes or 0)
        require_in_range("edge_index", data.edge_index.reshape(-1), num_nodes, f" (num_nodes = {num_nodes})")
        if cluster is None:
            num_parts = check_at_least("num_parts", num_parts, 1)
            if filename is not None and save_dir is None:
                raise ValueError(
                    f"filename = {filename!r} and no save_dir, the folder for it: expected both, or neither"
                )
            self.num_parts: int = int(num_parts or 1)
            self.cluster: Tensor = torch.from_numpy(self._kept(save_dir, filename, log))
            return
        if save_dir is not None or filename is not None:
            raise ValueError("cluster and save_dir are given: the clusters are known; leave save_dir and filename out")
        if recursive:
            raise ValueError("cluster and recursive are given: the clusters are known; leave recursive out")
        if num_parts is not None:
            num_parts = check_at_least("num_parts", num_parts, 1)
        self.cluster = checked_clusters("cluster", cluster, num_nodes, max(num_nodes, 1), num_parts)
        self.num_parts = num_clusters([self.cluster]) if num_parts is None else num_parts

    def _kept(self, save_dir: str | None, filename: str | None, log: bool) -> np.ndarray:
        """The clusters of a run before, or of METIS."""
        num_nodes = int(self.source.num_nodes or 0)

        cluster = np.empty(num_nodes, np.int64)

        def make() -> None:
            if log:
                print("Computing METIS partitioning...", file=sys.stderr)
            cluster[:] = self._metis(self.source.edge_index, num_nodes).numpy()
            if log:
                print("Done!", file=sys.stderr)

        path = None
        if save_dir is not None:
            check_path("save_dir", save_dir, "a folder for the clusters")
            folder = f"part_{self.num_parts}{'_recursive' if self.recursive else ''}"
            path = Path(save_dir) / folder / (filename or "metis.npz")
        kept_arrays(path, {"cluster": cluster}, make, crc32_of({"edge_index": self.source.edge_index}))
        if len(cluster) and not 0 <= cluster.min() <= cluster.max() < self.num_parts:
            raise ValueError(f"{path} has other clusters than 0 to {self.num_parts - 1}: remove it")
        return cluster

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        if num_nodes <= self.num_parts:  # METIS wants a node for each part
            return torch.arange(num_nodes)
        try:
            import pymetis
        except ImportError as error:
            raise ImportError(
                f"ClusterData needs pymetis, which cannot be imported ({error}): install it with `pip install "
                "pymetis`, or give cluster=, the cluster of each node"
            ) from error
        row, col = to_undirected(remove_self_loops(edge_index.cpu().long())[0], num_nodes=num_nodes)
        indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
        indptr[1:] = torch.bincount(row, minlength=num_nodes).cumsum(0)
        adjacency = pymetis.CSRAdjacency(indptr.numpy(), col.numpy())
        _, owner = pymetis.part_graph(self.num_parts, adjacency, recursive=self.recursive)
        return torch.tensor(owner, dtype=torch.int64)

    @cached_property
    def partition(self) -> Any:
        """PyG's ``Partition``: the graph in the order of clusters."""
        return self._partition(self.source.edge_index, self.cluster)

    @cached_property
    def data(self) -> Data:
        """The graph's attributes in the order of clusters, without edges."""
        return self._permute_data(self.source, self.partition)

    def __len__(self) -> int:
        return self.num_parts

    def __getitem__(self, idx: int) -> Data:
        try:
            at = operator.index(idx)
        except TypeError:
            raise TypeError(f"cluster_data[{idx!r}]: expected an integer, 0 to {self.num_parts - 1}") from None
        if not 0 <= at < self.num_parts:
            raise IndexError(f"cluster_data[{at}]: expected 0 to {self.num_parts - 1}")
        if self.keep_inter_cluster_edges:
            return super().__getitem__(at)
        return self._one_by_one.collate_fn(BatchIndex(torch.tensor([at]), 0, 0, 0))  # type: ignore[no-any-return]

    @says
    def __repr__(self) -> str:
        return str(self.num_parts)

    @cached_property
    def _one_by_one(self) -> ClusterLoader:
        return ClusterLoader(self, random_seed=0)


def checked_clusters(name: str, given: Any, num_nodes: int, most: int, num_parts: int | None = None) -> Tensor:
    """The cluster of each node ``[num_nodes]``, int64, below ``num_parts``, or where that is not given below ``most``,
    how many nodes there are; raises IndexError, TypeError or ValueError."""
    dtype = given.dtype if isinstance(given, Tensor) else np.asarray(given).dtype
    if dtype in (torch.bool, np.bool_):
        raise TypeError(f"{name} has dtype bool: expected integers from 0, the cluster of each node")
    ids = as_ids(given, name)
    if len(ids) != num_nodes:
        raise ValueError(f"{name} has {len(ids)} elements: expected one per node, {num_nodes}")
    if num_parts is None:
        require_in_range(name, ids, most, f" (number of nodes = {most}): number clusters from 0, without gaps")
    else:
        require_in_range(name, ids, num_parts, f" (num_parts = {num_parts})")
    return ids


def num_clusters(clusters: Sequence[Tensor]) -> int:
    return max((int(each.max()) + 1 for each in clusters if len(each)), default=0)


@short_traceback
class ClusterLoader(NodeSetLoader):
    """A drop-in ``torch_geometric.loader.ClusterLoader``: yields the subgraphs of ``batch_size`` clusters together,
    with the edges between them.

    Batches are PyG's: nodes cluster after cluster, by id, and edges sorted. For a fixed ``random_seed`` the batches of
    an epoch are always the same.

    Args:
        cluster_data: A :class:`ClusterData`.
        transform, random_seed, num_threads: As of :class:`RandomNodeLoader`.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size`` and ``shuffle``.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> cluster_data = glt.loader.ClusterData(data, cluster=torch.arange(40) // 10)
        >>> loader = glt.loader.ClusterLoader(cluster_data, batch_size=2, shuffle=True, random_seed=7)
        >>> len(loader), next(iter(loader)).num_nodes
        (2, 20)
    """

    def __init__(
        self,
        cluster_data: ClusterData,
        *,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        if not isinstance(cluster_data, ClusterData):
            kind = f"{type(cluster_data).__module__}.{type(cluster_data).__qualname__}"
            raise TypeError(f"cluster_data is a {kind}: expected a glt.loader.ClusterData, which copies no features")
        self._open(cluster_data.source, random_seed, num_threads, transform, kwargs)
        self.cluster_data: ClusterData = cluster_data
        cluster = cluster_data.cluster
        nodes = index_sort(cluster, max_value=cluster_data.num_parts, stable=True)[1]
        self._by_cluster = nodes.split(torch.bincount(cluster, minlength=cluster_data.num_parts).tolist())
        self._clusters_crc32 = crc32_of({"cluster": cluster})
        self._complete(cluster_data.num_parts, kwargs)

    def _nodes(self, index: BatchIndex) -> list[tuple[int, Tensor]]:
        parts = [self._by_cluster[each] for each in index.input_id.tolist()]
        return [(0, torch.cat([index.input_id[:0], *parts]))]  # without clusters, a batch without nodes

    def _sample(self, index: BatchIndex) -> Output:
        out = super()._sample(index)
        by_source = self.cluster_data.sparse_format == "csr"
        ends = (out.row, out.col) if by_source else (out.col, out.row)
        first, second, order = reordered(*ends, torch.arange(len(out.node)))
        out.row, out.col = (first, second) if by_source else (second, first)
        out.edge = None if out.edge is None else out.edge[order]
        return out

    def _told(self) -> dict[str, Any]:
        return {"num_parts": self.cluster_data.num_parts}

    def _fingerprint(self) -> dict[str, Any]:
        own = {"sparse_format": self.cluster_data.sparse_format, "clusters_crc32": self._clusters_crc32}
        return super()._fingerprint() | own
