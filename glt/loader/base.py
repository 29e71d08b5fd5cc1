"""What local node and link loaders share: numbered batches in a DataLoader of PyG's make, and who samples them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler
from torch_geometric.data import Data, GraphStore, HeteroData

from glt._checks import check_at_least, check_flag, check_function, refuse_unknown
from glt._reprs import options, says
from glt._stats import Stats
from glt.data.dataset import Dataset
from glt.data.device import accelerator_of
from glt.data.schema import HOMOGENEOUS
from glt.loader.batches import (
    AheadOptions,
    BatchesAhead,
    BatchesOnRequest,
    BatchFeatures,
    has_edge_attributes,
    outcome,
)
from glt.loader.keyed import OF_TORCH, KeyedLoader
from glt.loader.window_gather import WindowGather
from glt.sampler.config import per_edge_type, times_by_edge_type
from glt.sampler.graph import Finish
from glt.sampler.neighbor_sampler import NeighborSampler, is_replaced
from glt.sampler.order import (
    BatchIndex,
    as_json,
    crc32_of,
)

if TYPE_CHECKING:
    from glt.sampler.graph import Output


def require_agreement(
    sampler: NeighborSampler, data: Any, num_neighbors: Any, random_seed: int | None, options: dict[str, Any]
) -> None:
    """Raises ValueError, naming both values, if a user's sampler was made with another size of graph or other options
    than the loader is given: they would silently lose. PyG's defaults stand for "not given"."""
    _require_same_size(sampler, data)
    if per_edge_type(num_neighbors, sampler.graph.schema) != sampler.config.num_neighbors:
        raise ValueError(
            f"num_neighbors = {num_neighbors}, but neighbor_sampler was made with "
            f"{sampler.num_neighbors.values}: pass the same"
        )
    if random_seed not in (None, sampler.random_seed):
        raise ValueError(
            f"random_seed = {random_seed}, but neighbor_sampler was given {sampler.random_seed}: give it to one of them"
        )
    config = sampler.config
    made_with_and_default = {
        "sampler": (config.sampler, "neighbor"),
        "batch_dependency": (config.batch_dependency, 1),
        "replace": (config.replace, False),
        "subgraph_type": (config.subgraph_type, "directional"),
        "disjoint": (config.disjoint, False),
        "temporal_strategy": (config.temporal or "uniform", "uniform"),
        "time_attr": (sampler.time_attr, None),
        "time_bound": (config.time_bound, "<="),
        "time_window": (config.time_window, None),
        "half_life": (config.half_life, None),
        "weight_attr": (sampler.weight_attr, None),
        "directed": (config.subgraph_type != "induced", True),
        "exclude_edges": (config.exclude_edges, None),
    }
    for name, value in options.items():
        made_with, default = made_with_and_default[name]
        if name in ("time_window", "half_life"):
            value = times_by_edge_type(name, value, 0, sampler.graph.schema)
        if value not in (default, made_with):
            raise ValueError(f"{name} = {value!r}, but neighbor_sampler was made with {made_with!r}: pass the same")


def _require_edges(sampler: NeighborSampler, data: Any, with_edge: Any) -> None:
    if sampler.config.with_edge:
        return
    if with_edge is True:
        raise ValueError(
            "with_edge = True (the default), but neighbor_sampler was made with with_edge = False: pass "
            "with_edge=False here, or make the sampler with with_edge=True"
        )
    if has_edge_attributes(data):
        raise ValueError(
            "neighbor_sampler was made with with_edge = False, but the data has attributes of edges, which batches "
            "get by the ids of edges: make the sampler with with_edge=True"
        )


def _require_same_size(sampler: NeighborSampler, data: Any) -> None:
    graph = sampler.graph
    has: dict[str, dict[Any, int]] = {
        "nodes": graph.schema.by_node_type(graph.num_nodes),
        "edges": graph.schema.by_edge_type(topology.num_edges for topology in graph.topologies),
    }
    for what, counts in _sizes(data).items():
        if counts.keys() != has[what].keys():
            raise ValueError(
                f"neighbor_sampler was made from another graph than data: it has {what} of the types "
                f"{list(has[what])}, data of {list(counts)}; make it from the same"
            )
        for each, count in counts.items():
            if count not in (None, has[what][each]):
                of_type = f" of type {each!r}" if graph.schema.is_hetero else ""
                raise ValueError(
                    f"neighbor_sampler was made from another graph than data: it has {has[what][each]} "
                    f"{what}{of_type}, data has {count}; make it from the same"
                )


def _sizes(data: Any) -> dict[str, dict[Any, int | None]]:
    """Numbers of nodes and edges by type; None: not known without reading all edges."""
    if isinstance(data, Dataset):
        return {
            "nodes": data.schema.by_node_type(data.num_nodes_of),
            "edges": data.schema.by_edge_type(graph.num_edges for graph in data.graphs),
        }
    if isinstance(data, Data | HeteroData):
        (node_type,), (edge_type,) = HOMOGENEOUS.node_types, HOMOGENEOUS.edge_types
        edges = {store._key or edge_type: store.get("edge_index") for store in data.edge_stores}
        return {
            "nodes": {
                store._key or node_type: store.num_nodes if store.can_infer_num_nodes else None
                for store in data.node_stores
            },
            "edges": {each: None if index is None else int(index.size(1)) for each, index in edges.items()},
        }
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], GraphStore):
        types = {attr.edge_type for attr in data[1].get_all_edge_attrs()}
        return {"edges": dict.fromkeys(HOMOGENEOUS.edge_types if types == {None} else types)}
    return {}  # something else is refused where it is read


logger = logging.getLogger(__name__)

# Arguments that a loader hands to its sampler.
SAMPLING = (
    "sampler",
    "batch_dependency",
    "replace",
    "subgraph_type",
    "disjoint",
    "temporal_strategy",
    "time_attr",
    "time_bound",
    "time_window",
    "half_life",
    "weight_attr",
    "directed",
    "exclude_edges",
)


# Arguments that loaders hand on; PyG drops dataset and collate_fn, which PyTorch Lightning gives.
_OF_PYG = {"custom_cls", "input_id", *OF_TORCH}


class KeyedBatches(KeyedLoader):
    """What node and link loaders share: who samples batches, here or ahead on a GPU.

    Goes before PyG's loader among the bases. A subclass calls :meth:`_choose_sampler` before PyG's ``__init__`` and
    :meth:`_complete_init` after it. With a ``neighbor_sampler`` of another make, the user has to repeat its draws.
    """

    # Of PyG's loaders:
    input_data: Any
    transform: Any
    transform_sampler_output: Any
    custom_cls: Any
    filter_per_worker: bool
    node_sampler: Any
    link_sampler: Any
    # Of the loader:
    _features: BatchFeatures
    _seeds: str  # "nodes" or "edges"

    def _choose_sampler(self, given: dict[str, Any]) -> Any:
        """Returns the sampler that the user brought, or a new one; chooses the seed, too. ``given`` are the arguments
        of the loader by name; what PyG's loader takes of them is added to its ``kwargs``."""
        data, num_neighbors, kwargs = given["data"], given["num_neighbors"], given["kwargs"]
        if not isinstance(given["sampler"], str):  # the order of seeds, as torch's DataLoader has it
            kwargs["sampler"], given["sampler"] = given["sampler"], "neighbor"
        refuse_unknown(type(self).__name__, kwargs, {*given, *_OF_PYG})
        for name in ("transform", "transform_sampler_output"):
            check_function(name, given[name], "a batch" if name == "transform" else "a sampler's output")
        sampler, random_seed = given["neighbor_sampler"], given["random_seed"]
        options = {name: given[name] for name in SAMPLING if name in given}
        options["subgraph_type"] = getattr(options["subgraph_type"], "value", options["subgraph_type"])
        if isinstance(sampler, NeighborSampler):
            require_agreement(sampler, data, num_neighbors, random_seed, options)
            random_seed = sampler.random_seed
            _require_edges(sampler, data, given["with_edge"])
        given["num_threads"] = check_at_least("num_threads", given["num_threads"], 1)
        check_flag("with_edge", given["with_edge"])
        self._tells_edges: bool = given["with_edge"]
        if not (self._tells_edges or sampler is None or isinstance(sampler, NeighborSampler)):
            raise ValueError(
                "with_edge = False: the neighbor_sampler given does not know that option; leave it out, or give a "
                "glt.sampler.NeighborSampler"
            )
        self._choose_seed(random_seed, kwargs)
        self._ahead: AheadOptions | None = None
        if sampler is None:
            options |= {name: given[name] for name in ("num_threads", "device")}
            options["with_edge"] = self._tells_edges or has_edge_attributes(data)
            sampler = NeighborSampler(data, num_neighbors, **options, random_seed=self.random_seed)
        self._choose_ahead(sampler, given)
        kwargs |= {name: given[name] for name in ("transform", "transform_sampler_output", "filter_per_worker")}
        kwargs["neighbor_sampler"] = sampler
        return sampler

    def _choose_ahead(self, sampler: Any, given: dict[str, Any]) -> None:
        device, place = given["device"], sampler.accelerator if isinstance(sampler, NeighborSampler) else None
        if device is not None and accelerator_of(device, "device") != place:
            raise ValueError(f"device = {device!r}, but neighbor_sampler samples on {place or 'the CPU'}: leave it out")
        wanted = {name: given[name] for name in ("batches_ahead", "gather_window") if given[name] is not None}
        for name, value in wanted.items():
            wanted[name] = check_at_least(name, value, 1)
            if place is None:
                raise ValueError(f"{name} = {value}: it is for samplers on a GPU; give device='cuda', or leave it out")
        if place is None:
            return
        data, kwargs = given["data"], given["kwargs"]
        if not isinstance(data, Dataset):
            raise TypeError(
                f"data has type {type(data).__name__}: a sampler on a GPU needs a glt Dataset, which keeps rows where "
                "it reads them: Dataset.from_pyg(data).with_mode('CUDA')"
            )
        for name, why in (
            ("num_workers", "a GPU cannot be used in workers that are forked"),
            ("pin_memory", "batches are on the GPU already"),
            ("worker_init_fn", "there are no workers"),
            ("persistent_workers", "there are no workers"),
        ):
            value = "auto" if name == "num_workers" and self._tuner is not None else kwargs.get(name)
            if value:
                raise ValueError(
                    f"{name} = {value!r} and a sampler on {place}: {why}; leave it out, a thread samples ahead"
                )
        self._ahead = AheadOptions(place, place.new_stream(), **wanted)

    def _complete_init(self, data: Any, num_threads: int) -> None:
        place = None if self._ahead is None else self._ahead.accelerator
        self._features = BatchFeatures(data, self.custom_cls, num_threads, place, with_edge=self._tells_edges)
        self._complete_order()

    def _iterated(self) -> Any:
        if self._ahead is None:
            return super()._iterated()
        make = partial(self._make, {})  # iterators that run at the same time share no windows
        indices = iter(self._index_sampler)
        # As torch's iterators do, so that an order that draws from the same generator is the CPU's.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        made = self._begin, make, self._transformed
        if not self._own_order:
            if not _may_be_asked_ahead(self._order_of_indices()):
                return BatchesOnRequest(indices, *made, self._ahead)
            # Here, not in the thread: orders draw when they are first asked, from torch's generator perhaps.
            indices = chain(list(islice(indices, 1)), indices)
        return BatchesAhead(indices, *made, self._ahead)

    def stats(self) -> Stats:
        stats = super().stats()
        return stats if self._ahead is None else Stats(stats | {"is_on_gpu": True})

    def _begin(self, index: BatchIndex) -> Finish:
        sampler, transform, began_s = self._sampler, self.transform_sampler_output, time.perf_counter()
        if is_replaced(sampler, f"sample_from_{self._seeds}"):
            finish: Finish = partial(self._sample, index)
        else:
            begin, inputs = getattr(sampler, f"begin_from_{self._seeds}"), self.input_data[index.input_id]
            finish = begin(inputs, **self._sample_options(), **self._keys(index))
        begun_s = time.perf_counter() - began_s

        def finished() -> Any:
            began_s = time.perf_counter()
            out = finish()
            self._counts.take_sample(len(index), began_s - begun_s, out)
            return out if transform is None else transform(out)

        return finished

    def _keys(self, index: BatchIndex) -> dict[str, int]:
        config = self._sampler.config
        keys = {"batch_key": index.key}
        return keys | ({"shared_key": index.shared_key(config.batch_dependency)} if config.sampler == "labor" else {})

    def _make(self, windows: dict[int, WindowGather], outs: Sequence[Any]) -> Iterator[Any]:
        """Batches of samples but for the user's transform; exceptions in the place of those that fail."""
        good = self._featured([out for out in outs if not isinstance(out, BaseException)], windows)
        for out in outs:
            began_s = time.perf_counter()
            data = out if isinstance(out, BaseException) else next(good)
            data = data if isinstance(data, BaseException) else outcome(partial(self._complete, data, out))
            self._counts.take_gathering(began_s)
            yield data

    def _featured(self, outs: Sequence[Any], windows: dict[int, WindowGather]) -> Iterator[Any]:
        num_made = 0
        if len(outs) > 1:
            try:
                for data in self._features.batches(outs, windows):
                    num_made += 1
                    yield data
            except GeneratorExit:
                raise
            except BaseException as error:  # of one of them: the others are not to suffer
                logger.warning("rows of %d batches cannot be fetched together, each is by itself: %r", len(outs), error)
        for out in outs[num_made:]:
            yield outcome(partial(self._features.batch, out))

    def _complete(self, data: Any, out: Any) -> Any:
        assert self._ahead is not None
        return self._with_seeds(data, out).to(self._ahead.accelerator.device, non_blocking=True)

    def _transformed(self, data: Any) -> Any:
        return self._counts.transformed(self.transform, data)

    def collate_fn(self, index: BatchIndex | Tensor | list[int]) -> Any:
        """Samples a batch; in a DataLoader worker also looks up its features, if ``filter_per_worker``."""
        if not isinstance(index, BatchIndex):
            return super().collate_fn(index)  # type: ignore[misc]
        began_s = time.perf_counter()
        out = self._sample(index)
        self._counts.take_sample(len(index), began_s, out)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Output) -> Data | HeteroData:
        if not isinstance(self._sampler, NeighborSampler):
            return super().filter_fn(out)  # type: ignore[misc]
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        began_s = time.perf_counter()
        data = self._with_seeds(self._features.batch(out), out)
        self._counts.take_gathering(began_s)
        return self._transformed(data)

    def _sample(self, index: BatchIndex) -> Output:
        sampler, inputs, options = self._sampler, self.input_data[index.input_id], self._sample_options()
        if isinstance(sampler, NeighborSampler):
            options |= self._keys(index)
        return getattr(sampler, f"sample_from_{self._seeds}")(inputs, **options)

    @property
    def _sampler(self) -> Any:
        return self.node_sampler if self._seeds == "nodes" else self.link_sampler

    def _sample_options(self) -> dict[str, Any]:
        """Arguments of the sampler beside the seeds and the key."""
        return {}

    def _with_seeds(self, data: Any, out: Any) -> Any:
        raise NotImplementedError

    def _seed_columns(self) -> dict[str, Tensor | None]:
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        return {}

    def _fingerprint(self) -> dict[str, Any]:
        if self._seeds_crc32 is None:
            self._seeds_crc32 = crc32_of(self._seed_columns())
        sampler = self._sampler
        fields: dict[str, Any] = {"neighbor_sampler": type(sampler).__name__}
        if isinstance(sampler, NeighborSampler):
            fields |= sampler.config.to_json()
            fields["num_nodes"] = [int(n) for n in sampler.graph.num_nodes]
            fields["num_edges"] = [int(topology.num_edges) for topology in sampler.graph.topologies]
        own = self._order_options() | {"seeds of type": self.input_data.input_type}
        return as_json(own | self._options() | fields | {"seeds_crc32": self._seeds_crc32})

    @says
    def __repr__(self) -> str:
        place = f"on {self._ahead.accelerator}" if self._ahead else "in this process"
        where = f"in {self.num_workers} processes" if self.num_workers else place
        count, size = self._num_batches(), self.batch_size
        batches = f"{'' if count is None else f'{count} '}batches{'' if size is None else f' of {size} {self._seeds}'}"
        negatives = getattr(self, "neg_sampling", None)  # of links
        given = {"neg_sampling": None if negatives is None else negatives.mode.value}
        given |= {"shuffle": self._shuffles, "drop_last": self.drop_last, "random_seed": self.random_seed}
        return f"{where}, {batches}, {len(self.dataset)} seeds, {self._says()}, {options(given)}"

    def _says(self) -> str:
        sampler = self._sampler
        return sampler.config.says() if isinstance(sampler, NeighborSampler) else f"sampler {type(sampler).__name__}"

    def __str__(self) -> str:  # PyG's contract, which its own tests hold
        return f"{type(self).__name__}()"


def _may_be_asked_ahead(order: Any) -> bool:
    """Whether an order is a list, or of torch's or PyG's make: a user's may depend on what is done with a batch. Nor
    may it draw all along the epoch: asked ahead, it would leave its generator elsewhere."""
    while type(order) is BatchSampler:
        order = order.sampler
    if type(order) is RandomSampler and order.replacement:
        return False
    known = type(order).__module__.startswith(("torch.utils.data.", "torch_geometric."))
    return known or type(order) in (list, tuple, range, Tensor)
