"""Batches made of samples: joined with the features of their nodes and edges, and on a GPU ahead of the trainer."""

from __future__ import annotations

import copy
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import HeteroSamplerOutput

from glt import _deadlines as deadlines
from glt.data.arrays import from_array, move_to_huge_pages, require_data
from glt.data.dataset import Dataset, Graph
from glt.data.device import Accelerator, Event
from glt.data.feature import Feature
from glt.data.frames import join_all
from glt.data.pyg import require_num_nodes, require_rows
from glt.loader.window_gather import WindowGather

if TYPE_CHECKING:
    from glt.sampler.graph import Output


class BatchFeatures:
    """Makes batches out of samples.

    Args:
        source: Where attributes come from. ``Data`` and ``HeteroData`` keep all: rows of node- and edge-level ones, the
            others as they are. Of a dataset all tables. Of stores, the tensors whose group is a node or edge type.
        custom_cls: Class of the batches of stores and datasets. Default: ``Data`` or ``HeteroData``.
        num_threads: Threads to copy rows with.
        accelerator: The GPU that samples are on and rows go to; needs a dataset. Default: all is on the CPU.
        with_sample: Add what tells of the sample: ``n_id``, ``e_id``, ``batch``, and the counts of hops.
        with_edge: Of this, whether to add ``e_id``.
    """

    def __init__(
        self,
        source: Data | HeteroData | Dataset | tuple[FeatureStore, GraphStore],
        custom_cls: Any = None,
        num_threads: int = 1,
        accelerator: Accelerator | None = None,
        with_sample: bool = True,
        with_edge: bool = True,
    ) -> None:
        self.source: Any = source
        self.with_sample, self.with_edge = with_sample, with_edge
        self.accelerator = accelerator
        self._whole: dict[int, bool] = {}
        self.custom_cls = custom_cls
        self.num_threads = num_threads
        self._features: dict[Any, Feature] = {}
        for store in source.stores if isinstance(source, Data | HeteroData) else ():
            of_type = "" if store._key is None else f"[{store._key!r}]"
            for name, value in store.items():
                require_data(value, f"{name}{of_type} of data")
        if accelerator is None:
            move_to_huge_pages(self._host_tables())  # before workers are forked, which then share them

    def _host_tables(self) -> Iterator[Tensor]:
        """The tables of the source whose rows batches get from host memory, where they are tensors there."""
        if isinstance(self.source, Dataset):
            for tables in (*self.source.node_tables, *self.source.edge_tables):
                yield from (feature.tensor for feature in tables.values())
        for store in self.source.stores if isinstance(self.source, Data | HeteroData) else ():
            for key, value in store.items():
                if _is_table(value, store._parent().__cat_dim__(key, value, store)):
                    yield value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_features": {}}

    def batches(self, outs: Sequence[Output], windows: dict[int, WindowGather]) -> Iterator[Data | HeteroData]:
        """The batches of several samples of a dataset on its GPU, whose distinct rows are fetched once, now.
        ``windows`` is kept from call to call by a caller on one thread."""
        fetched = {
            id(feature): self._window(feature, windows).gather(ids)
            for feature, ids in _wanted(self.source, outs)
            if feature.split_ratio < 1  # rows in device memory gain nothing
        }

        def rows(feature: Feature, ids: Tensor) -> Tensor:
            return next(fetched[id(feature)]) if id(feature) in fetched else self._gather(feature, ids)

        return (self.batch(out, rows) for out in outs)

    def _window(self, feature: Feature, windows: dict[int, WindowGather]) -> WindowGather:
        if id(feature) not in windows:
            assert self.accelerator is not None
            windows[id(feature)] = WindowGather(feature, self.accelerator)
        return windows[id(feature)]

    def batch(self, out: Output, rows: Callable[[Feature, Tensor], Tensor] | None = None) -> Data | HeteroData:
        """The batch of a sample, complete but for what belongs to its seeds. ``rows`` looks up rows of a dataset's
        tables."""
        rows = rows or self._gather
        hetero = isinstance(out, HeteroSamplerOutput)
        if isinstance(self.source, Data | HeteroData):
            data = self._of_data(out)
        else:
            data = self.custom_cls() if self.custom_cls is not None else HeteroData() if hetero else Data()
            for node_type, node in _items(out.node):
                _store(data, node_type).num_nodes = len(node)
            for edge_type, row in _items(out.row):
                _store(data, edge_type).edge_index = stacked(row, _of(out.col, edge_type))
            if isinstance(self.source, Dataset):
                self._add_tables(data, out, rows)
            else:
                self._add_tensors(data, out)
        if self.with_sample:
            self._tell_of_sample(data, out)
        for edge_type, row in _items(out.orig_row):
            _store(data, edge_type)._orig_edge_index = torch.stack([row, _of(out.orig_col, edge_type)])
        return data

    def _tell_of_sample(self, data: Any, out: Output) -> None:
        for node_type, node in _items(out.node):
            store = _store(data, node_type)
            if "n_id" not in store:
                store.n_id = node
        for edge_type, edge in _items(out.edge) if self.with_edge else ():
            store = _store(data, edge_type)
            if edge is not None and "e_id" not in store:
                store.e_id = edge.to(torch.int64)
        for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
            if isinstance(out, HeteroSamplerOutput):
                data.set_value_dict(name, getattr(out, name))
            else:
                data[name] = getattr(out, name)

    def _of_data(self, out: Output) -> Data | HeteroData:
        data = copy.copy(self.source)
        for node_type, node in _items(out.node):
            store, result = _store(self.source, node_type), _store(data, node_type)
            for key, value in list(store.items()):
                if key == "num_nodes":
                    result.num_nodes = len(node)
                elif store.is_node_attr(key):
                    result[key] = self._rows(store, key, value, node)
        for edge_type, row in _items(out.row):
            store, result, edge = _store(self.source, edge_type), _store(data, edge_type), _of(out.edge, edge_type)
            for key, value in list(store.items()):
                if key == "edge_index":
                    result.edge_index = stacked(row, _of(out.col, edge_type)).to(value.device)
                elif store.is_edge_attr(key):
                    result[key] = None if edge is None else self._rows(store, key, value, edge)
        return data

    def _add_tables(self, data: Any, out: Output, rows: Callable[[Feature, Tensor], Tensor]) -> None:
        for (node_type, node), tables in zip(_items(out.node), self.source.node_tables, strict=True):
            for name, feature in tables.items():
                _store(data, node_type)[name] = rows(feature, node)
        has_edges = []
        for (edge_type, _), tables in zip(_items(out.row), self.source.edge_tables, strict=True):
            edge = _of(out.edge, edge_type)
            has_edges.append(edge is not None)
            for name, feature in tables.items() if edge is not None else ():
                _store(data, edge_type)[name] = rows(feature, edge)
        for level, types in (("node", out.node), ("edge", out.row)) if self.source.schema.frames else ():
            for at, (type_, _) in enumerate(_items(types)):
                if level == "node" or has_edges[at]:
                    join_all(self.source.schema.frames_of(level, at), _store(data, type_))

    def _rows(self, store: Any, key: str, value: Any, ids: Tensor) -> Any:
        """Rows ``ids`` of an attribute: our gather where rows are contiguous, PyG's indexing for the rest. Of a
        list, its elements."""
        if isinstance(value, list | tuple):
            return [value[i] for i in ids.tolist()]
        dim = store._parent().__cat_dim__(key, value, store)
        if isinstance(value, np.ndarray) and dim == 0 and value.flags.c_contiguous and _is_plain(value.dtype):
            value = from_array(value)  # memory-mapped files too: only the rows of the batch are read
        if not _is_table(value, dim):
            return index_select(value, ids.to(value.device) if hasattr(value, "device") else ids, dim=dim)
        feature = self._features.get((store._key, key))
        if feature is None or feature.tensor.data_ptr() != value.data_ptr() or feature.shape != value.shape:
            feature = self._features[store._key, key] = Feature(value)
        return self._gather(feature, ids)

    def _gather(self, feature: Feature, ids: Tensor) -> Tensor:
        if self.accelerator is not None:
            return feature.gather_on(self.accelerator, ids, trusted=self._has_all(feature))
        out = None
        if torch.utils.data.get_worker_info() is not None:
            # Bound for the main process: written to shared memory at once instead of copied there later.
            row = torch.empty((1, *feature.row_shape), dtype=feature.dtype)
            storage = torch.UntypedStorage._new_shared(len(ids) * max(1, row.numel()) * row.element_size())
            out = torch.empty(0, dtype=row.dtype).set_(storage, 0, (len(ids), *row.shape[1:]), row.stride())
        return feature.gather(ids, out, num_threads=self.num_threads)

    def _has_all(self, feature: Feature) -> bool:
        """Whether each node or edge has its row: then no id can be wrong."""
        if id(feature) not in self._whole:
            source = self.source
            enough = [
                num_nodes
                for tables, num_nodes in zip(source.node_tables, source.num_nodes_of, strict=True)
                if any(each is feature for each in tables.values())
            ] + [
                graph.topology.num_edge_ids
                for tables, graph in zip(source.edge_tables, source.graphs, strict=True)
                if any(each is feature for each in tables.values()) and graph.num_edges
            ]
            self._whole[id(feature)] = feature.has_row_per_id and len(feature) >= max(enough, default=0)
        return self._whole[id(feature)]

    def _add_tensors(self, data: Any, out: Output) -> None:
        wanted = []
        for attr in self.source[0].get_all_tensor_attrs():
            target = attr.group_name
            if isinstance(out.node, dict):
                index = out.node.get(target, (out.edge or {}).get(target))
            else:
                # Without types to tell them apart, names do, as in PyG's Data with as many nodes as edges.
                index, target = (out.edge if "edge" in attr.attr_name else out.node), None
            if index is not None:
                attr = copy.copy(attr)
                attr.index = index.to(torch.int64)
                wanted.append((target, attr))
        values = self.source[0].multi_get_tensor([attr for _, attr in wanted])
        for (target, attr), value in zip(wanted, values, strict=True):
            _store(data, target)[attr.attr_name] = value


def _wanted(source: Dataset, outs: Sequence[Output]) -> Iterator[tuple[Feature, list[Tensor]]]:
    """Every table of a dataset, with the ids that each of at least one sample wants of it."""
    for keys, name, tables_of in (
        (outs[0].node, "node", source.node_tables),
        (outs[0].row, "edge", source.edge_tables),
    ):
        for (each, _), tables in zip(_items(keys), tables_of, strict=True):
            ids = [_of(getattr(out, name), each) for out in outs]
            for feature in tables.values() if ids[0] is not None else ():
                yield feature, ids


def has_edge_attributes(source: Data | HeteroData | Dataset | tuple[FeatureStore, GraphStore]) -> bool:
    """Whether batches say more of an edge than its ends and its id: then they need the ids, whose reading costs a load
    from memory each."""
    if isinstance(source, Data | HeteroData):
        stores = source.edge_stores
        return any(key != "edge_index" and store.is_edge_attr(key) for store in stores for key in store.keys())
    if isinstance(source, Dataset):
        return any(source.edge_tables)
    attrs = source[0].get_all_tensor_attrs()  # as BatchFeatures takes them
    return any(isinstance(attr.group_name, tuple) or "edge" in attr.attr_name for attr in attrs)


def stacked(row: Tensor, col: Tensor) -> Tensor:
    """``torch.stack([row, col])``, without copying where they are the two rows of one tensor already."""
    adjacent = (
        row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + len(row)
        and row.is_contiguous()
        and col.is_contiguous()
    )
    return row.as_strided((2, len(row)), (len(row), 1)) if adjacent and len(row) else torch.stack([row, col])


def _items(values: Any) -> Iterable[tuple[Any, Any]]:
    """``(type, value)`` pairs; the type is None in a homogeneous sample; none of what is absent."""
    if values is None:
        return ()
    return values.items() if isinstance(values, dict) else ((None, values),)


def _of(values: Any, each: Any) -> Any:
    return values.get(each) if isinstance(values, dict) else values


def _store(data: Any, each: Any) -> Any:
    return data[each] if isinstance(data, HeteroData) else data._store


def _is_table(value: Any, dim: Any) -> bool:
    """Whether an attribute, of whose dimension ``dim`` there is an element per node or edge, is one whose rows we
    gather: plain, contiguous, on the CPU."""
    if type(value) is not Tensor or value.layout != torch.strided or value.requires_grad or value.device.type != "cpu":
        return False
    return dim == 0 and value.is_contiguous()


def _is_plain(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" and dtype.isnative


def as_pyg(data: Any) -> Any:
    """Returns ``data`` as PyG's loaders take it: a dataset becomes a ``Data`` or ``HeteroData`` that shares its tables.
    Raises TypeError or ValueError of a bare graph, a dataset along out-edges or with ``row_of``, and a ``Data`` that
    does not tell how many nodes it has."""
    if isinstance(data, Graph):
        raise TypeError("data is a glt Graph: loaders take a Dataset, wrap it: glt.data.Dataset(graph)")
    if isinstance(data, Mapping):
        raise TypeError(
            "data is a dict, of graphs by edge type perhaps, which samplers take: loaders take a HeteroData, or a glt "
            "Dataset, whose init_graph takes dicts of edges"
        )
    if isinstance(data, Data):
        require_num_nodes(data)
    if isinstance(data, Data | HeteroData):
        require_rows(data)
    if not isinstance(data, Dataset):
        return data
    if data.edge_dir != "in":
        raise ValueError("data samples along out-edges: this loader is PyG's, build the dataset with edge_dir='in'")
    schema = data.schema
    out = HeteroData() if schema.is_hetero else Data()
    stores = [_store(out, each) for each in (*schema.node_types, *schema.edge_types)]
    for store, num_nodes in zip(stores, data.num_nodes_of, strict=False):
        store.num_nodes = num_nodes
    for store, tables in zip(stores, (*data.node_tables, *data.edge_tables), strict=True):
        for name, feature in tables.items():
            if not feature.has_row_per_id:
                raise ValueError(
                    f"{name} is a Feature with row_of, as partitions have: this loader needs one row per id"
                )
            store[name] = feature.dense()
    return out


Item = tuple[Any, Event] | BaseException
Begin = Callable[[Any], Callable[[], Any]]
Make = Callable[[Sequence[Any]], Iterable[Any]]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the exception that it raises, in the place of a batch."""
    try:
        return call()
    except StopIteration as error:  # of the user's code; iterators that raise it have ended
        wrong = _ended_early()
        wrong.__cause__ = error
        return wrong
    except BaseException as error:
        return error


def _ended_early() -> RuntimeError:
    return RuntimeError("making a batch raised StopIteration, which would end the epoch as if it had no more batches")


@dataclass(frozen=True)
class AheadOptions:
    """How far ahead batches are made: ``batches_ahead`` wait for the trainer, the rows of ``gather_window`` are fetched
    together. The sampler's memory goes from batch to batch in the order of ``stream``, also of different epochs."""

    accelerator: Accelerator
    stream: torch.cuda.Stream | None
    batches_ahead: int = 2
    gather_window: int = 1


class MadeBatches:
    """Iterates over batches. The trainer waits for nothing: its stream is told to wait for the event after a batch.

    ``begin`` begins the sample of an index, and returns what ends it; ``make`` makes the batches of samples, an
    exception in the place of one that fails; ``finish`` is called with a batch when it is handed out, on the trainer's
    stream. ``num_taken`` counts batches, and exceptions in their place; what a signal raises meanwhile is not one.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        begin: Begin,
        make: Make,
        finish: Callable[[Any], Any],
        options: AheadOptions,
    ) -> None:
        self._indices, self._begin, self._make, self._finish = indices, begin, make, finish
        self._options, self._accelerator = options, options.accelerator
        self.num_taken = 0

    def __iter__(self) -> MadeBatches:
        return self

    def __next__(self) -> Any:
        item = self._take()
        if item is None:
            self.close()
            raise StopIteration
        if isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item  # its traceback holds this frame, and what it holds would wait for the cyclic collector
        batch, ready = item
        self._accelerator.wait_for(ready)
        if not self._accelerator.is_host:
            batch.record_stream(torch.cuda.current_stream(self._accelerator.device))
        try:
            return self._finish(batch)
        except StopIteration as error:
            raise _ended_early() from error

    def _take(self) -> Item | None:
        """The next batch and the event after it, or the exception in its place, counted; None after the last."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what makes the batches. May be called again."""


class BatchesOnRequest(MadeBatches):
    """Makes each batch when the trainer asks for it: its index may depend on what the trainer did with the one
    before."""

    def _take(self) -> Item | None:
        for index in self._indices:
            self.num_taken += 1
            with self._accelerator.on(self._options.stream):
                [batch] = self._make([outcome(partial(self._sample, index))])
                try:
                    return batch if isinstance(batch, BaseException) else (batch, self._accelerator.record())
                finally:
                    del batch  # as in __next__: the traceback's frames lead back to this one
        return None

    def _sample(self, index: Any) -> Any:
        return self._begin(index)()

    def close(self) -> None:
        self._indices = iter(())


class BatchesAhead(MadeBatches):
    """Iterates over batches that a thread makes ahead; the thread also asks for the indices, and must not have to wait
    there for the trainer. It asks for the kernels of a batch on a stream of its own, and for those of the next before
    it waits for the counts of the first, so that the GPU is not idle while the host sees to a batch."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._made: queue.Queue[Item | None] = queue.Queue(self._options.batches_ahead)
        self._stop = threading.Event()
        # The thread knows nothing of this object, which ends it when it is dropped half-way.
        work = _samples(self._indices, self._begin), self._make, self._options, self._made, self._stop
        del self._indices, self._begin, self._make  # memory of a GPU, which the thread gives back when it is done
        self._thread = threading.Thread(target=_work, args=work, name="glt-ahead", daemon=True)
        self._finalizer = weakref.finalize(self, _end, self._stop, self._thread)
        self._thread.start()

    def _take(self) -> Item | None:
        while not self._stop.is_set():
            try:
                item = self._made.get(timeout=deadlines.FAST_POLL_S)
                self.num_taken += item is not None
                return item
            except queue.Empty:
                gone = not self._thread.is_alive() and self._made.empty()
                if gone and not self._stop.is_set():  # set meanwhile: closed, by another thread
                    raise RuntimeError(
                        f"this process (pid {os.getpid()}) is a fork, and the thread that makes batches stayed behind: "
                        "iterate where this iteration began, or begin another here"
                    ) from None
        return None

    def close(self) -> None:
        self._finalizer()


def _samples(indices: Iterator[Any], begin: Begin) -> Iterator[Any]:
    """The sample of each index, or the exception in its place; the next is begun before one is ended."""
    for begun, _ in pairwise(chain(_begun(indices, begin), (None,))):
        yield begun if isinstance(begun, BaseException) else outcome(begun)


def _begun(indices: Iterator[Any], begin: Begin) -> Iterator[Any]:
    while True:
        try:
            index = next(indices)
        except StopIteration:
            return
        except BaseException as error:  # of the indices: nothing can follow
            yield error
            return
        yield outcome(partial(begin, index))


def _work(
    samples: Iterator[Any], make: Make, options: AheadOptions, made: queue.Queue[Item | None], stop: threading.Event
) -> None:
    accelerator = options.accelerator

    def put(item: Item | None) -> bool:
        while not stop.is_set():
            try:
                made.put(item, timeout=deadlines.FAST_POLL_S)
                return True
            except queue.Full:
                continue
        return False

    with accelerator.on(options.stream):
        try:
            while not stop.is_set():
                window = list(islice(samples, options.gather_window))
                if not window:
                    break
                for batch in make(window):
                    if not put(batch if isinstance(batch, BaseException) else (batch, accelerator.record())):
                        return
                del window, batch  # not to be in memory while the next are sampled
        except BaseException as error:  # of all batches of a window
            put(error)
        put(None)


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(deadlines.JOIN_S)
