"""The loader of RelBench's recommendation models: a source, a destination that it takes and one drawn from all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NodeSamplerInput

from glt._checks import check_at_least, check_function
from glt._reprs import says
from glt._stats import Stats
from glt._tracebacks import short_traceback
from glt.data.arrays import as_tensor, checked_times
from glt.data.dataset import Dataset
from glt.data.pyg import counted
from glt.data.schema import EdgeType
from glt.loader.batches import BatchFeatures
from glt.loader.counts import Counts, TimedBatches
from glt.loader.seeds import require_nodes
from glt.sampler.neighbor_sampler import NeighborSampler
from glt.sampler.order import BatchIndex, check_random_seed, draw_random_seed


@dataclass(frozen=True)
class Links:
    """An epoch's links: sources, a destination of each and one drawn from all, and their times ``[n]``, in order."""

    src: Tensor
    dst: Tensor
    negative: Tensor
    time: Tensor | None

    def __getitem__(self, rows: Any) -> Links:
        return Links(*(None if each is None else each[rows] for each in (self.src, self.dst, self.negative, self.time)))  # type: ignore[arg-type]


class LinkTable:
    """Which destinations each source takes at which time, as ``get_link_train_table_input`` of RelBench returns it.

    Args:
        src: Sources ``[n]``.
        dst: Their destinations, at least one of each: a sparse CSR tensor ``[n, num_dst_nodes]``, or ``n`` lists.
        num_dst_nodes: Nodes that negatives are drawn from.
        time: Time of each source ``[n]``, or None.

    Raises:
        TypeError, ValueError, IndexError: If they do not fit together, or a source has no destination.

    Example:
        >>> table = glt.loader.LinkTable(torch.tensor([7, 8]), [[0, 2], [1]], num_dst_nodes=3)
        >>> table.draw(random_seed=0, epoch=0, batch_size=2, shuffle=False, same_time=False).dst
        tensor([2, 1])
    """

    def __init__(self, src: Tensor, dst: Any, num_dst_nodes: int, time: Tensor | None = None) -> None:
        self.src: Tensor = src
        self.num_dst_nodes: int = check_at_least("num_dst_nodes", num_dst_nodes, 1)
        self.time: Tensor | None = time
        if isinstance(dst, Tensor):
            if dst.layout != torch.sparse_csr:
                raise TypeError(f"dst_nodes has layout {dst.layout}: expected a tensor in torch.sparse_csr, or lists")
            self._begin, self._dst = dst.crow_indices().numpy(), dst.col_indices()
        else:
            self._begin = np.cumsum([0, *map(len, dst)])
            self._dst = torch.tensor([each for row in dst for each in row], dtype=torch.int64)
        counts = np.diff(self._begin)
        if len(counts) != len(src):
            raise ValueError(f"dst_nodes has {len(counts)} rows: expected one per source, {len(src)}")
        if len(without := np.flatnonzero(counts == 0)):
            raise ValueError(f"dst_nodes has no destination in row {without[0]}: drop the row")
        require_nodes(self._dst, num_dst_nodes, name="dst_nodes")

    def draw(self, random_seed: int, epoch: int, batch_size: int, shuffle: bool, same_time: bool) -> Links:
        """The links of an epoch, batch after batch of ``batch_size``. With ``same_time`` the links of a batch have the
        same time, and those that do not fill one are left out. The same arguments give the same links."""
        random = np.random.default_rng([random_seed, epoch])
        rows = random.permutation(len(self.src)) if shuffle or same_time else np.arange(len(self.src))
        if same_time:
            rows = self._by_time(rows, batch_size, random)
        begin, counts = self._begin[rows], self._begin[rows + 1] - self._begin[rows]
        chosen, at = begin + (random.random(len(rows)) * counts).astype(np.int64), torch.from_numpy(rows)
        return Links(
            self.src[at],
            self._dst[torch.from_numpy(chosen)],
            torch.from_numpy(random.integers(0, self.num_dst_nodes, len(rows))),
            None if self.time is None else self.time[at],
        )

    def _by_time(self, rows: np.ndarray, batch_size: int, random: np.random.Generator) -> np.ndarray:
        if self.time is None:
            raise ValueError("same_time = True and a table without times: expected the time of each source")
        _, of_row = np.unique(self.time.numpy()[rows], return_inverse=True)
        groups = np.split(rows[np.argsort(of_row, kind="stable")], np.cumsum(np.bincount(of_row))[:-1])
        whole = [g[: len(g) // batch_size * batch_size].reshape(-1, batch_size) for g in groups]
        batches = np.concatenate(whole) if whole else np.empty((0, batch_size), np.int64)
        return random.permutation(batches).reshape(-1)

    def __len__(self) -> int:
        return len(self.src)

    @says
    def __repr__(self) -> str:
        return f"{len(self)} sources with {len(self._dst)} of {self.num_dst_nodes} destinations"

    def num_links(self, batch_size: int, same_time: bool) -> int:
        if not same_time or self.time is None:
            return len(self.src)
        return int((np.unique(self.time.numpy(), return_counts=True)[1] // batch_size * batch_size).sum())


@short_traceback
class RelBenchLinkNeighborLoader(DataLoader):
    """A drop-in ``relbench.modeling.loader.LinkNeighborLoader``, which needs neither pyg-lib nor torch-sparse.

    Batches are triples ``(source, destination, negative)``, each a ``HeteroData`` around ``batch_size`` seeds, sampled
    by itself up to the time of its source, as disjoint trees where there are times. For a fixed ``random_seed`` epochs
    repeat, whatever ``num_workers``.

    Args:
        data: A ``HeteroData``, or a :class:`glt.data.Dataset`.
        num_neighbors, subgraph_type, temporal_strategy, time_attr: As in :class:`glt.loader.NeighborLoader`, and so are
            sampler, time_bound, time_window and half_life.
        src_nodes: Node type, and the sources ``[n]``.
        dst_nodes: Node type, and the destinations of each source: a sparse CSR tensor ``[n, num_dst_nodes]``, or lists.
        num_dst_nodes: Nodes that negatives are drawn from, uniformly; they may be destinations, as in RelBench.
        src_time: Time of each source ``[n]``.
        share_same_time: Whether all links of a batch have the same time; links that do not fill a batch are left out.
        batch_dependency: As there. The three of a triple count singly, in this order: 3 lets each triple share numbers.
        random_seed: Of order, links and sampling, in [0, 2^63). Default: drawn from torch's generator.
        transform: Applied to each of the three.
        **kwargs: ``batch_size``, ``shuffle``, ``drop_last`` and what else ``torch.utils.data.DataLoader`` has.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.

    Example:
        >>> buys = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 2]])
        >>> edges = {("user", "buys", "item"): buys, ("item", "rev_buys", "user"): buys.flip(0)}
        >>> data = glt.Dataset.from_arrays(edges, {"user": 3, "item": 3})
        >>> taken = [[0], [0, 1], [2]]  # items of each user
        >>> loader = glt.loader.RelBenchLinkNeighborLoader(
        ...     data, [2], ("user", torch.arange(3)), ("item", taken), 3, batch_size=3, random_seed=1
        ... )
        >>> source, destination, negative = next(iter(loader))
        >>> source["user"].n_id[:3], destination["item"].n_id[:3], negative["item"].batch_size
        (tensor([0, 1, 2]), tensor([0, 1, 2]), 3)
    """

    def __init__(
        self,
        data: HeteroData | Dataset,
        num_neighbors: Any,
        src_nodes: tuple[str, Tensor],
        dst_nodes: tuple[str, Tensor],
        num_dst_nodes: int,
        src_time: Tensor | None = None,
        share_same_time: bool = False,
        subgraph_type: Any = "directional",
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        *,
        sampler: str = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        random_seed: int | None = None,
        transform: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        **kwargs: Any,
    ) -> None:
        batch_size = check_at_least("batch_size", batch_size, 1)
        check_function("transform", transform, "a batch")
        if not isinstance(sampler, str):  # the order of seeds, as torch's DataLoader has it
            kwargs["sampler"], sampler = sampler, "neighbor"
        for name in ("dataset", "collate_fn", "sampler", "batch_sampler", "persistent_workers"):
            if value := kwargs.pop(name, None):
                raise ValueError(f"{name} = {value!r}: links are drawn anew in each epoch; leave it out")
        data = counted(data)
        self.random_seed: int = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self._types = src_nodes[0], dst_nodes[0]
        neighbor_sampler = NeighborSampler(
            data,
            num_neighbors,
            subgraph_type=subgraph_type,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            sampler=sampler,
            batch_dependency=batch_dependency,
            time_bound=time_bound,
            time_window=time_window,
            half_life=half_life,
            random_seed=self.random_seed,
        )
        src = as_tensor("src_nodes", src_nodes[1], "a node type and its nodes")
        graph = neighbor_sampler.graph
        num_src, num_dst = (graph.num_nodes[graph.schema.node_index(each)] for each in self._types)
        require_nodes(src, num_src, name="src_nodes")
        if num_dst_nodes > num_dst:
            raise ValueError(
                f"num_dst_nodes = {num_dst_nodes}: expected at most {num_dst}, the nodes of {dst_nodes[0]!r}"
            )
        if src_time is not None:
            src_time = checked_times("src_time", src_time, len(src))
            if time_attr is None:
                raise ValueError("src_time is given and no time_attr: say which attribute the times of nodes are")
        elif share_same_time:
            raise ValueError("share_same_time = True and no src_time: give it the time of each source")
        table = LinkTable(src, dst_nodes[1], num_dst_nodes, src_time)
        draw = partial(table.draw, batch_size=batch_size, shuffle=shuffle, same_time=share_same_time)
        num_links = table.num_links(batch_size, share_same_time)
        self._batches = _LinkBatches(draw, num_links, batch_size, drop_last or share_same_time, self.random_seed)
        types = src_nodes[0], dst_nodes[0], dst_nodes[0]
        self._counts = Counts()
        sampled: Any = _Sampled(neighbor_sampler, BatchFeatures(data), types, transform, self._counts)
        super().__init__(self._batches, batch_size=None, collate_fn=sampled, **kwargs)

    def __iter__(self) -> Any:
        self._counts.share(self.num_workers)
        began_s = time.perf_counter()
        iterator = TimedBatches(super().__iter__(), self._counts, began_s)
        self._batches.epoch += 1
        return iterator

    def stats(self) -> Stats:
        """As of :class:`glt.loader.NeighborLoader`; seeds are sources, destinations and negatives."""
        return Stats(self._counts.read() | {"num_workers": self.num_workers})

    @says
    def __repr__(self) -> str:
        links = f"{self._batches.num_links} links, {self._types[0]} to {self._types[1]}"
        return f"{len(self._batches)} batches of {self._batches.batch_size}, {links}, random_seed={self.random_seed}"


class _LinkBatches(IterableDataset):
    """The links of each batch of the next epoch; in a worker, those that are its own."""

    def __init__(self, draw: Any, num_links: int, batch_size: int, drop_last: bool, random_seed: int) -> None:
        self.draw, self.num_links, self.batch_size = draw, num_links, batch_size
        self.drop_last, self.random_seed, self.epoch = drop_last, random_seed, 0

    def __len__(self) -> int:
        return self.num_links // self.batch_size if self.drop_last else -(-self.num_links // self.batch_size)

    def __iter__(self) -> Iterator[tuple[int, int, Links]]:
        return self._of(self.epoch)  # of now: the loader counts on before the first batch is asked for

    def _of(self, epoch: int) -> Iterator[tuple[int, int, Links]]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        links = self.draw(self.random_seed, epoch)
        for index in range(first, len(self), step):
            yield epoch, index, links[index * self.batch_size : (index + 1) * self.batch_size]


@dataclass
class _Sampled:
    """Samples around the three kinds of seeds of a batch."""

    sampler: NeighborSampler
    features: BatchFeatures
    types: tuple[str, ...]
    transform: Any
    counts: Counts

    def __call__(self, batch: tuple[int, int, Links]) -> tuple[Any, ...]:
        epoch, index, links = batch
        whole = BatchIndex(links.src, epoch, 3 * index, self.sampler.random_seed)
        found = []
        for at, (node_type, seeds) in enumerate(zip(self.types, (links.src, links.dst, links.negative), strict=True)):
            given = NodeSamplerInput(input_id=seeds, node=seeds, time=links.time, input_type=node_type)
            one = replace(whole, index=3 * index + at)
            shared_key = one.shared_key(self.sampler.config.batch_dependency)
            began_s = time.perf_counter()
            out = self.sampler.sample_from_nodes(given, batch_key=one.key, shared_key=shared_key)
            self.counts.take_sample(len(seeds), began_s, out)
            sampled_s = time.perf_counter()
            data = self.features.batch(out)
            self.counts.take_gathering(sampled_s)
            store = data[node_type]
            store.input_id, store.seed_time, store.batch_size = seeds, links.time, len(seeds)
            found.append(self.counts.transformed(self.transform, data))
        return tuple(found)
