"""Link batches: from seed edges and negatives to the nodes that are sampled around, and what the batch says of them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import pooled_empty, require_in_range
from glt.data.schema import EdgeType, Schema, reverse_relation
from glt.sampler.config import GIVEN, refuse_conflicts
from glt.sampler.negatives import Endpoint, LocalCheck, earliest_node, linked_to_all, negative_rounds, run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

    from glt.sampler.graph import Finish, Output
    from glt.sampler.neighbor_sampler import NeighborSampler


@dataclass
class LinkBatch:
    """What a link batch is sampled around, and where its links are, known before any hop.

    Attributes:
        seeds: Node ids by position of their type: ``(node type, [n] int64)``. Not disjoint: each node once, ascending.
            Disjoint: sources, destinations, negatives, as they come; trees are numbered over the whole list.
        seed_time: Time of each tree ``[number of trees]``, int64; None without times.
        example: Disjoint: the seed link (or triplet) of each tree ``[number of trees]``, int64; a negative pair j
            belongs to link ``j % B``. None otherwise.
        links: By PyG's names for the batch's fields, in local ids: ``edge_label_index [2, B + negatives]``,
            ``edge_label`` and ``edge_label_time``; or of triplets ``src_index [B]``, ``dst_pos_index [B]``,
            ``dst_neg_index`` ``[B]`` or ``[B, k]``, ``seed_time``. Absent where PyG has None.
    """

    seeds: list[tuple[int, Tensor]]
    seed_time: Tensor | None = None
    example: Tensor | None = None
    links: dict[str, Tensor] = field(default_factory=dict)

    def metadata(self, input_id: Tensor | None, neg_sampling: NegativeSampling | None) -> tuple[Tensor | None, ...]:
        """The links as PyG's samplers put them into ``SamplerOutput.metadata``."""
        names = TRIPLET if neg_sampling is not None and neg_sampling.is_triplet() else BINARY
        return (input_id, *(self.links.get(name) for name in names))


# fields of a batch of links, in the order of PyG's metadata
BINARY = ("edge_label_index", "edge_label", "edge_label_time")

TRIPLET = ("src_index", "dst_pos_index", "dst_neg_index", "seed_time")  # the same of triplets


def link_batch(
    index: EdgeSamplerInput,
    ends: tuple[int, int],
    disjoint: bool,
    neg_sampling: NegativeSampling | None = None,
    negatives: tuple[Tensor | None, Tensor] | None = None,
) -> LinkBatch:
    """Turns seed edges and negatives, as of :func:`glt.sampler.negatives.negative_rounds` (sources None for triplets),
    into the start of a batch; ``ends`` are the positions of both node types. Raises ValueError if there are times but
    the batch is not disjoint."""
    time = index.time
    if time is not None and not disjoint:
        raise ValueError("the seed edges have times but disjoint = False: only trees can each have a time")
    src, dst = index.row.long(), index.col.long()
    num_pos = len(src)
    src_order = dst_order = torch.arange(num_pos)  # the seed edge that each source and destination belongs to
    triplet = neg_sampling is not None and neg_sampling.is_triplet()
    each = int(neg_sampling.amount) if neg_sampling is not None else 0
    if negatives is not None and triplet:
        rest = negatives[1].view(num_pos, each)
        # Trees number the negatives so that number % B is the triplet, as PyG does.
        dst = torch.cat([dst, (rest.t() if disjoint else rest).flatten()])
        dst_order = dst_order.repeat(1 + each)
    elif negatives is not None:
        assert negatives[0] is not None
        src, dst = torch.cat([src, negatives[0]]), torch.cat([dst, negatives[1]])
        src_order = dst_order = torch.arange(len(src)) % num_pos
    if disjoint:
        batch, src_at, dst_at = _trees(src, dst, ends, src_order, dst_order, time)
    else:
        batch, src_at, dst_at = _union(src, dst, ends)
    if triplet:
        negative = dst_at[num_pos:]
        negative = negative.view(each, num_pos).t() if disjoint else negative.view(num_pos, each)
        links = [src_at, dst_at[:num_pos], negative.squeeze(-1), time]
    else:
        late = time if time is None or negatives is None else time[src_order]
        links = [torch.stack([src_at, dst_at]), _labels(index.label, num_pos, len(src)), late]
    names = TRIPLET if triplet else BINARY
    batch.links = {name: value for name, value in zip(names, links, strict=True) if value is not None}
    return batch


def _union(src: Tensor, dst: Tensor, ends: tuple[int, int]) -> tuple[LinkBatch, Tensor, Tensor]:
    """Each node once, ascending within its type; and where sources and destinations then are."""
    if ends[0] == ends[1]:
        node, at = torch.cat([src, dst]).unique(return_inverse=True)
        return LinkBatch([(ends[0], node)]), at[: len(src)], at[len(src) :]
    src, src_at = src.unique(return_inverse=True)
    dst, dst_at = dst.unique(return_inverse=True)
    return LinkBatch([(ends[0], src), (ends[1], dst)]), src_at, dst_at


def _trees(
    src: Tensor, dst: Tensor, ends: tuple[int, int], src_order: Tensor, dst_order: Tensor, time: Tensor | None
) -> tuple[LinkBatch, Tensor, Tensor]:
    """A tree per end, in the order given; and where they stand among the nodes of their type."""
    seeds = [(ends[0], torch.cat([src, dst]))] if ends[0] == ends[1] else [(ends[0], src), (ends[1], dst)]
    dst_from = len(src) if ends[0] == ends[1] else 0
    example = torch.cat([src_order, dst_order])
    batch = LinkBatch(seeds, None if time is None else time[example].long(), example)
    return batch, torch.arange(len(src)), torch.arange(dst_from, dst_from + len(dst))


def _labels(label: Tensor | None, num_pos: int, num_links: int) -> Tensor | None:
    """Labels of links, 0 for negatives. Without negatives there are labels only if some were given."""
    if num_links == num_pos:
        return label
    if label is None:
        label = torch.ones(num_pos)
    return torch.cat([label, label.new_zeros((num_links - num_pos, *label.shape[1:]))])


def exclusions(
    index: EdgeSamplerInput, edge_type: int, schema: Schema, edge_dir: str, exclude: str | EdgeType | None
) -> dict[int, tuple[Tensor, Tensor]]:
    """The edges that a link batch must not sample: the seed edges as given and, unless ``exclude`` is ``'self'``, their
    reverses. By position of the edge type, pairs ``(expanded nodes, neighbours)``, int64."""
    if exclude is None:
        return {}
    src, dst = index.row.long(), index.col.long()
    pairs = {edge_type: [(src, dst)]}
    if exclude != "self":
        reverse = find_reverse(schema, edge_type, exclude)
        pairs.setdefault(reverse, []).append((dst, src))
    found = {}
    for each, edges in pairs.items():
        source, target = (torch.cat(side) for side in zip(*edges, strict=True))
        found[each] = (target, source) if edge_dir == "in" else (source, target)
    return found


def native_exclusions(pairs: dict[int, tuple[Tensor, Tensor]], num_edge_types: int) -> list[_core.Exclusions | None]:
    """Pairs of :func:`exclusions`, by edge type, as native samplers take them."""
    found: list[_core.Exclusions | None] = [None] * num_edge_types
    for at, (center, neighbor) in pairs.items():
        found[at] = _core.Exclusions(center.numpy(), neighbor.numpy())
    return found


def find_reverse(schema: Schema, edge_type: int, exclude: str | EdgeType = "reverse") -> int:
    """Position of the type that holds the reverses of an edge type: the one named; with ``'reverse'``, of the types
    that run the other way, the one called ``rev_`` more or less, or the only one. An edge type between equal node types
    without such a partner is its own reverse. Raises ValueError if there is none or a choice, or the named one does not
    run the other way."""
    source, relation, target = schema.edge_types[edge_type]
    swapped = [at for at, (s, _, t) in enumerate(schema.edge_types) if (s, t) == (target, source)]
    if exclude != "reverse":
        at = schema.edge_types.index(exclude) if exclude in schema.edge_types else -1  # type: ignore[arg-type]
        if at not in swapped:
            raise ValueError(
                f"exclude_edges = {exclude!r}: expected 'self', 'reverse' or an edge type from {target!r} to "
                f"{source!r}, one of {[schema.edge_types[at] for at in swapped]}"
            )
        return at
    others = [at for at in swapped if at != edge_type]
    for at in others:
        if schema.edge_types[at][1] == reverse_relation(relation):
            return at
    if len(others) == 1 and source != target:
        return others[0]
    if source == target:
        return edge_type
    raise ValueError(
        f"exclude_edges = 'reverse': which edge type holds the reverses of {(source, relation, target)} is not clear; "
        f"those from {target!r} to {source!r} are {[schema.edge_types[at] for at in others]}: name it, "
        f"exclude_edges=(source, relation, target), or say 'self'"
    )


# Dtypes that torch adds and finds the least of.
_SUMMABLE: Final = tuple(
    getattr(torch, name) for name in "bool uint8 int8 int16 int32 int64 bfloat16 float16 float32 float64".split()
)


def checked_negatives(given: Any, ratio: Any = None, batch_size: int = 1) -> NegativeSampling | None:
    """Returns what to draw, or None for nothing; ``ratio`` is PyG's old name for an amount of binary negatives. Raises
    TypeError or ValueError, saying what was expected."""
    from torch_geometric.sampler import NegativeSampling  # sampling processes do without torch_geometric

    if ratio is not None:
        refuse_conflicts(neg_sampling=given, neg_sampling_ratio=ratio)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio >= 0:
            raise ValueError(f"neg_sampling_ratio = {ratio!r}: expected a number of negatives per seed edge, 0 or more")
        given = {"mode": "binary", "amount": ratio} if ratio else None
    try:
        drawn = NegativeSampling.cast(given)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"neg_sampling = {given!r}: expected 'binary', 'triplet', a dict with mode, amount, src_weight and "
            f"dst_weight, or PyG's NegativeSampling ({error})"
        ) from error
    if drawn is None:
        return None
    require_amount(drawn.amount, batch_size)
    drawn = copy.copy(drawn)
    drawn.amount = float(drawn.amount)
    return drawn


def require_summable(label: Tensor, *also: torch.dtype) -> None:
    """Raises TypeError unless labels can go up by one, as they may have to where 0 is the label of negatives. The
    caller itself adds one to the dtypes in ``also``."""
    known = (*_SUMMABLE, *also)
    if label.dtype not in known:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in known)
        raise TypeError(
            f"edge_label has dtype {label.dtype}: with neg_sampling expected one of {names}, since 0 is the label of "
            "negatives and labels that start at 0 go up by one; convert it, for example with .float()"
        )


def require_amount(amount: Any, batch_size: int) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"amount of neg_sampling = {amount!r}: expected a number of negatives per seed edge")
    if math.isnan(amount) or not 0 < amount * batch_size < 2**31:
        raise ValueError(
            f"amount of neg_sampling = {amount:g}: expected a number above 0, and below 2^31 negatives in a batch of "
            f"{batch_size}"
        )


# Link batches in this process: negatives checked against the whole graph, then one sample around all ends.


def refuse_induced_trees(disjoint: bool, subgraph_type: Any) -> None:
    """Raises ValueError of options that give each end of a link a subgraph of its own, under the number of the link."""
    if disjoint and getattr(subgraph_type, "value", subgraph_type) == "induced":
        raise ValueError(
            "subgraph_type = 'induced' and disjoint = True: each end of a link would have a subgraph of its own, and "
            "no edges between both; leave one out, or use SubGraphLoader around the ends"
        )


class LocalLinks:
    """Seed edges of a sampler that has the whole graph. Raises IndexError, KeyError or ValueError if they do not fit
    the graph or the sampler."""

    def __init__(
        self, sampler: NeighborSampler, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None
    ) -> None:
        self.sampler, self.index, self.neg_sampling = sampler, index, neg_sampling
        graph, schema, exclude = sampler.graph, sampler.graph.schema, sampler.config.exclude_edges
        refuse_induced_trees(sampler.config.disjoint, sampler.config.subgraph_type)
        if (index.input_type is not None) != schema.is_hetero:
            kind = "an edge type" if schema.is_hetero else "None, the graph being homogeneous"
            raise ValueError(f"input_type = {index.input_type!r}: expected {kind}")
        refuse_conflicts(edge_label_time=index.time, time_attr=GIVEN if sampler.is_temporal else None)
        input_type = schema.edge_types[0] if index.input_type is None else tuple(index.input_type)
        source, _, target = input_type
        self.ends = schema.node_index(source), schema.node_index(target)
        # None where the graph has no edges of that type.
        self.edge_type = schema.edge_types.index(input_type) if input_type in schema.edge_types else None
        by_node = sampler.is_temporal and graph.time_level == "node"
        self.times = [graph.node_time[end] if by_node else None for end in self.ends]
        for side, (ids, end) in enumerate(zip((index.row, index.col), self.ends, strict=True)):
            require_in_range(f"edge_label_index[{side}, {{}}]", ids, graph.num_nodes[end])
        if neg_sampling is not None:
            require_amount(neg_sampling.amount, 1)
            self.endpoints = self._endpoints(neg_sampling)
        if self.edge_type is not None and exclude not in (None, "self"):
            find_reverse(schema, self.edge_type, exclude)
        elif exclude not in (None, "self"):
            swapped = [t for t in schema.edge_types if (t[0], t[2]) == (target, source)]
            if swapped:  # which might hold the reverses: they would be left in silently
                raise ValueError(
                    f"exclude_edges = {exclude!r}: {index.input_type} is no edge type of the graph, so that it is not "
                    f"known whether {swapped} hold its reverses; "
                    "add the type, if without edges, or leave exclude_edges out"
                )

    def _endpoints(self, neg_sampling: NegativeSampling) -> tuple[Endpoint, Endpoint]:
        """What negatives are drawn from; the sampler keeps that of the last ones."""
        key, known = (neg_sampling, self.index.input_type), self.sampler.endpoints
        if known is None or known[0][0] is not neg_sampling or known[0][1] != key[1]:
            src, dst = (
                Endpoint.of(side, self.sampler.graph.num_nodes[end], neg_sampling, earliest_node(time))
                for side, end, time in zip(("src", "dst"), self.ends, self.times, strict=True)
            )
            known = self.sampler.endpoints = key, (src, dst)
        return known[1]

    def require_negatives(self) -> None:
        """Raises ValueError, naming the source, if one is linked to every destination: no triplet can be made of it."""
        if self.neg_sampling is None or not self.neg_sampling.is_triplet() or self.edge_type is None:
            return
        weight, row = self.neg_sampling.dst_weight, self.index.row.long().numpy()
        drawable = None if weight is None else weight.detach().cpu().nonzero().view(-1).numpy()
        found = linked_to_all(self.sampler.graph.topologies[self.edge_type], row, drawable)
        if len(found):
            raise ValueError(
                f"neg_sampling is 'triplet' and edge_label_index[0] holds {len(found)} source nodes that have an edge "
                f"to every destination, the first of them {found[0]}, of {int((row == found[0]).sum())} seed edges: "
                "there is no negative for them (PyG would train on an edge as a negative). Leave their seed edges out, "
                "or use neg_sampling='binary', which draws sources too"
            )

    def begin(self, batch_key: int, shared_key: int | None = None) -> Finish:
        sampler, index, neg_sampling = self.sampler, self.index, self.neg_sampling
        negatives = None if neg_sampling is None else self._negatives(neg_sampling, batch_key)
        batch = link_batch(index, self.ends, sampler.disjoint, neg_sampling, negatives)
        return begin_around(
            sampler,
            batch,
            lambda: batch.metadata(index.input_id, neg_sampling),
            batch_key=batch_key,
            shared_key=shared_key,
            exclusions=self._exclusions(),
        )

    def _negatives(self, neg_sampling: NegativeSampling, batch_key: int) -> tuple[Tensor | None, Tensor]:
        index, graph = self.index, self.sampler.graph
        require_amount(neg_sampling.amount, max(1, len(index.row)))
        late = None if index.time is None else self.sampler.config.latest(index.time.long().numpy())
        rounds = negative_rounds(batch_key, neg_sampling, *self.endpoints, index.row.long().numpy(), late)
        if self.sampler.accelerator is None:
            csr = None if self.edge_type is None else graph.topologies[self.edge_type].csr
            times = (None if time is None else time.numpy() for time in self.times)
            run_rounds(rounds, LocalCheck(csr, graph.edge_dir, *times))
        else:
            self.sampler.on_device.finish_negatives(rounds, self.edge_type, self.times)
        return None if neg_sampling.is_triplet() else torch.from_numpy(rounds.src), torch.from_numpy(rounds.dst)

    def _exclusions(self) -> list[_core.Exclusions | None] | None:
        graph, exclude = self.sampler.graph, self.sampler.config.exclude_edges
        if exclude is None or self.edge_type is None:
            return None
        pairs = exclusions(self.index, self.edge_type, graph.schema, graph.edge_dir, exclude)
        return native_exclusions(pairs, len(graph.schema.edge_types))


def begin_around(
    sampler: NeighborSampler, batch: LinkBatch, metadata: Callable[[], tuple[Tensor | None, ...]], **options: Any
) -> Finish:
    """Begins a sample around seeds, with the options of :meth:`NeighborSampler.sample`; its output has the examples of
    trees, and the metadata as they are once links are where the sample is."""
    sampled = sampler.begin_or_sample(batch.seeds, batch.seed_time, **options)

    def finish() -> Output:
        out = sampled()
        if batch.example is not None and isinstance(out.batch, dict):
            out.batch = {key: _examples(batch.example, tree) for key, tree in out.batch.items()}
        elif batch.example is not None:
            out.batch = _examples(batch.example, out.batch)
        if sampler.accelerator is not None:
            device = sampler.on_device.device
            batch.links = {name: value.to(device, non_blocking=True) for name, value in batch.links.items()}
        out.metadata = metadata()
        return out

    return finish


def _examples(example: Tensor, tree: Tensor) -> Tensor:
    if tree.device.type != "cpu":
        return torch.index_select(example.to(tree.device, tree.dtype, non_blocking=True), 0, tree)
    return torch.index_select(example.to(tree.dtype), 0, tree, out=pooled_empty((len(tree),), tree.dtype))
