"""What local node and link loaders share: numbered batches in a DataLoader of PyG's make, and who samples them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler
from torch_geometric.data import Data, GraphStore, HeteroData

from glt import _core
from glt._checks import check_at_least, check_function, refuse_unknown
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.dataset import Dataset
from glt.data.device import accelerator_of
from glt.data.feature import WindowGather
from glt.data.schema import HOMOGENEOUS
from glt.loader.batches import AheadOptions, BatchesAhead, BatchesOnRequest, BatchFeatures, MadeBatches, outcome
from glt.sampler.config import per_edge_type, times_by_edge_type
from glt.sampler.graph import Finish
from glt.sampler.neighbor_sampler import NeighborSampler, is_replaced
from glt.sampler.order import (
    BatchIndex,
    Iteration,
    OneThread,
    Position,
    Resumable,
    SeedOrder,
    as_json,
    check_random_seed,
    crc32_of,
    draw_random_seed,
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
_OF_PYG = {"custom_cls", "input_id", *inspect.signature(torch.utils.data.DataLoader).parameters}


class KeyedBatches(Resumable):
    """What node and link loaders share: the order of the input, and a key for each batch of each epoch.

    Goes before PyG's loader among the bases. A subclass calls :meth:`_choose_sampler` before PyG's ``__init__`` and
    :meth:`_complete_init` after it; ``collate_fn`` is then given :class:`~glt.sampler.BatchIndex`. With a ``sampler``,
    ``batch_sampler`` or ``generator`` of the user's, the user has to repeat the order of the seeds: a loader that
    resumes goes through the batches before its first, and checks them. With a ``neighbor_sampler`` of another make, the
    user has to repeat its draws, too.
    """

    # Of torch's DataLoader:
    dataset: Any
    generator: torch.Generator | None
    sampler: Any
    batch_size: int | None
    batch_sampler: Any
    drop_last: bool
    num_workers: int
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

    def _choose_seed(self, random_seed: int | None, kwargs: dict[str, Any]) -> None:
        size = kwargs.get("batch_size", 1)
        brought = any(kwargs.get(name) is not None for name in ("sampler", "batch_sampler"))
        if not (size is None and brought) and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(
                f"batch_size = {size!r}: expected an integer of at least 1; None needs a sampler that yields batches"
            )
        self.random_seed = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self._position, self._one_thread = Position(), OneThread[Any]()
        self._begun = Iteration(0, 0, 0, None)
        # Default orders are ours, so that they depend on random_seed alone; one that the caller brings is kept.
        self._own_order = all(kwargs.get(name) is None for name in ("sampler", "batch_sampler", "generator"))
        # Of the caller's order: checksums of the seeds before each batch so far, in the newest iteration.
        self._order_crcs: dict[int, int] = {0: 0}
        self._seeds_crc32: int | None = None
        self._ahead: AheadOptions | None = None

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
        check_at_least("num_threads", given["num_threads"], 1)
        self._choose_seed(random_seed, kwargs)
        if sampler is None:
            options |= {name: given[name] for name in ("num_threads", "device")}
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
            check_at_least(name, value, 1)
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
            if kwargs.get(name):
                raise ValueError(
                    f"{name} = {kwargs[name]!r} and a sampler on {place}: {why}; leave it out, a thread samples ahead"
                )
        self._ahead = AheadOptions(place, place.new_stream(), **wanted)

    def _complete_init(self, data: Any, num_threads: int) -> None:
        place = None if self._ahead is None else self._ahead.accelerator
        self._features = BatchFeatures(data, self.custom_cls, num_threads, place)
        # Set behind DataLoader's back: it refuses a new dataset, and PyG's loaders insist on a range of their own.
        self.__dict__["dataset"] = _Positions(len(self.dataset))
        self._shuffles = isinstance(self.sampler, RandomSampler)

    @property
    def _order(self) -> SeedOrder:
        assert self.batch_size is not None, "refused in _choose_seed"
        return SeedOrder(len(self.dataset), self.batch_size, self._shuffles, self.drop_last, self.random_seed)

    @short_traceback
    def __iter__(self) -> Any:
        """Begins the next epoch: two iterators at once are two epochs, whichever is read first."""
        with self._one_thread:
            self._begun = self._position.begin(self._num_batches())
            first = self._begun.first
            self._order_crcs = {first: self._order_crcs.get(first, 0)}
            return _CountedBatches(self._position, self._one_thread, self._begun, self._iterated())

    def _iterated(self) -> Any:
        if self._ahead is None:
            return super().__iter__()  # type: ignore[misc]
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

    def _order_of_indices(self) -> Any:
        return self.sampler if self.batch_size is not None or self.batch_sampler is None else self.batch_sampler

    def _begin(self, index: BatchIndex) -> Finish:
        sampler, transform = self._sampler, self.transform_sampler_output
        if is_replaced(sampler, f"sample_from_{self._seeds}"):
            finish: Finish = partial(self._sample, index)
        else:
            begin, inputs = getattr(sampler, f"begin_from_{self._seeds}"), self.input_data[index.input_id]
            finish = begin(inputs, **self._sample_options(), **self._keys(index))
        return finish if transform is None else lambda: transform(finish())

    def _keys(self, index: BatchIndex) -> dict[str, int]:
        config = self._sampler.config
        keys = {"batch_key": index.key}
        return keys | ({"shared_key": index.shared_key(config.batch_dependency)} if config.sampler == "labor" else {})

    def _make(self, windows: dict[int, WindowGather], outs: Sequence[Any]) -> Iterator[Any]:
        """Batches of samples but for the user's transform; exceptions in the place of those that fail."""
        good = self._featured([out for out in outs if not isinstance(out, BaseException)], windows)
        for out in outs:
            data = out if isinstance(out, BaseException) else next(good)
            yield data if isinstance(data, BaseException) else outcome(partial(self._complete, data, out))

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
        return data if self.transform is None else self.transform(data)

    def collate_fn(self, index: BatchIndex | Tensor | list[int]) -> Any:
        """Samples a batch; in a DataLoader worker also looks up its features, if ``filter_per_worker``."""
        if not isinstance(index, BatchIndex):
            return super().collate_fn(index)  # type: ignore[misc]
        out = self._sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Output) -> Data | HeteroData:
        if not isinstance(self._sampler, NeighborSampler):
            return super().filter_fn(out)  # type: ignore[misc]
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        return self._transformed(self._with_seeds(self._features.batch(out), out))

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

    @property
    def _index_sampler(self) -> Any:
        """What torch's DataLoader iterates over: batches that know their epoch and index."""
        return _BatchIndices(self, super()._index_sampler)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        if self.num_workers and not getattr(self, "in_order", True):
            raise ValueError("in_order = False: batches come in any order, so that none is the next; leave it out")
        return super().state_dict()

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
        own = {
            "loader": type(self).__name__,
            "num_seeds": len(self.dataset),
            "seeds of type": self.input_data.input_type,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "shuffle": self._shuffles,
            "order": None if self._own_order else type(self._order_of_indices()).__name__,
        }
        return as_json(own | self._options() | fields | {"seeds_crc32": self._seeds_crc32})

    def _num_batches(self) -> int | None:
        try:
            return len(self)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # of a sampler that has no length
            if self._own_order:
                raise
            return None

    def _order_crc32(self, next_batch: int) -> int | None:
        if self._own_order:
            return None
        return self._order_crcs[next_batch] if next_batch else 0

    def _expect_order(self, next_batch: int, crc32: int | None) -> None:
        self._order_crcs = {next_batch: 0 if crc32 is None else crc32}

    @says
    def __repr__(self) -> str:
        place = f"on {self._ahead.accelerator}" if self._ahead else "in this process"
        where = f"in {self.num_workers} processes" if self.num_workers else place
        count, size = self._num_batches(), self.batch_size
        batches = f"{'' if count is None else f'{count} '}batches{'' if size is None else f' of {size} {self._seeds}'}"
        sampler = self.node_sampler if self._seeds == "nodes" else self.link_sampler
        how = sampler.config.says() if isinstance(sampler, NeighborSampler) else f"sampler {type(sampler).__name__}"
        negatives = getattr(self, "neg_sampling", None)  # of links
        given = {"neg_sampling": None if negatives is None else negatives.mode.value}
        given |= {"shuffle": self._shuffles, "drop_last": self.drop_last, "random_seed": self.random_seed}
        return f"{where}, {batches}, {len(self.dataset)} seeds, {how}, {options(given)}"

    def __str__(self) -> str:  # PyG's contract, which its own tests hold
        return f"{type(self).__name__}()"


class _BatchIndices:
    def __init__(self, loader: KeyedBatches, index_sampler: Any) -> None:
        self.loader = loader
        self.index_sampler = index_sampler

    def __iter__(self) -> Iterator[BatchIndex]:
        """The batches of the epoch that the loader has begun: with workers, DataLoader asks twice and reads one."""
        loader, begun = self.loader, self.loader._begun
        if loader._own_order:
            return loader._order.batches(begun.epoch, begun.first)
        return self._brought(begun, loader.random_seed, loader._order_crcs)

    def _brought(self, begun: Iteration, random_seed: int, crcs: dict[int, int]) -> Iterator[BatchIndex]:
        """The batches of the user's order from the first on, which must follow the same seeds as in the run before."""
        crc32, num_batches = 0, 0
        for index, batch in enumerate(self.index_sampler):
            if index == begun.first:
                _require_same_order(begun, crc32, crcs[index])
            input_id = torch.as_tensor(batch, dtype=torch.int64).reshape(-1)
            crc32 = _core.crc32(input_id.contiguous().numpy(), crc32)
            num_batches = index + 1
            if index >= begun.first:
                crcs[num_batches] = crc32
                yield BatchIndex(input_id, begun.epoch, index, random_seed)
        if num_batches <= begun.first:
            _require_same_order(begun, crc32, crcs[begun.first])

    def __len__(self) -> int:
        return len(self.index_sampler)


def _require_same_order(begun: Iteration, crc32: int, expected: int) -> None:
    if crc32 != expected:
        raise RuntimeError(
            f"epoch {begun.epoch} was to go on with batch {begun.first}, but the sampler now gives other seeds before "
            "it than in the run before: bring it to the same state first (seed its generator, call its set_epoch), or "
            "let glt shuffle with shuffle=True and no sampler"
        )


class _CountedBatches:
    """Takes note of the batches handed out: DataLoader workers are ahead of that."""

    def __init__(self, position: Position, one_thread: OneThread[Any], begun: Iteration, batches: Any) -> None:
        self._position, self._one_thread, self._begun, self._batches = position, one_thread, begun, batches
        self._index = begun.first

    def __iter__(self) -> _CountedBatches:
        return self

    def __len__(self) -> int:
        if self._begun.num_batches is None:
            raise TypeError("the sampler of this loader has no length")
        return self._begun.num_batches - self._begun.first

    @short_traceback
    def __next__(self) -> Any:
        with self._one_thread:
            return self._next()

    def _next(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._position.end(self._begun)
            raise
        except BaseException as error:  # if asked again, the batch after the one that failed comes
            if isinstance(self._batches, MadeBatches):
                self._index = self._begun.first + self._batches.num_taken
            elif isinstance(error, Exception):
                self._index += 1
            raise
        self._position.deliver(self._begun, self._index)
        self._index += 1
        return batch


def _may_be_asked_ahead(order: Any) -> bool:
    """Whether an order is a list, or of torch's or PyG's make: a user's may depend on what is done with a batch. Nor
    may it draw all along the epoch: asked ahead, it would leave its generator elsewhere."""
    while type(order) is BatchSampler:
        order = order.sampler
    if type(order) is RandomSampler and order.replacement:
        return False
    known = type(order).__module__.startswith(("torch.utils.data.", "torch_geometric."))
    return known or type(order) in (list, tuple, range, Tensor)


class _Positions:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return index

    def __getitems__(self, batch: BatchIndex) -> BatchIndex:
        return batch
