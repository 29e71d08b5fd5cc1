"""Link batches: from seed edges and negatives to the nodes that are sampled around, and what the batch says of them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from glt.data.schema import EdgeType, Schema
from glt.sampler import config as conflicts

if TYPE_CHECKING:
    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling


@dataclass
class LinkBatch:
    """What a link batch is sampled around, and its answer to "where are my links?": known before any hop.

    Attributes:
        seeds: Node ids by position of their type: ``(node type, [n] int64)``. Not disjoint: each node once, ascending.
            Disjoint: sources, destinations, negatives, as they come; trees are numbered over the whole list.
        seed_time: Time of each tree ``[number of trees]``, int64; None without times.
        example: Disjoint: the seed link (or triplet) that each tree belongs to ``[number of trees]``, int64; a negative
            pair j belongs to link ``j % B``. None otherwise.
        links: By PyG's names for the batch's fields: ``edge_label_index [2, B + negatives]``, ``edge_label`` and
            ``edge_label_time``; or of triplets ``src_index [B]``, ``dst_pos_index [B]``, ``dst_neg_index`` ``[B]`` or
            ``[B, k]``, ``seed_time``. Local ids; absent where PyG has None.
    """

    seeds: list[tuple[int, Tensor]]
    seed_time: Tensor | None = None
    example: Tensor | None = None
    links: dict[str, Tensor] = field(default_factory=dict)

    def metadata(self, input_id: Tensor | None, neg_sampling: NegativeSampling | None) -> tuple[Tensor | None, ...]:
        """The same as PyG's samplers put it into ``SamplerOutput.metadata``."""
        triplet = neg_sampling is not None and neg_sampling.is_triplet()
        names = TRIPLET if triplet else BINARY
        return (input_id, *(self.links.get(name) for name in names))


BINARY = ("edge_label_index", "edge_label", "edge_label_time")
"""Fields of a batch of links, in the order of PyG's metadata."""

TRIPLET = ("src_index", "dst_pos_index", "dst_neg_index", "seed_time")
"""Fields of a batch of triplets, in the order of PyG's metadata."""


def link_batch(
    index: EdgeSamplerInput,
    ends: tuple[int, int],
    disjoint: bool,
    neg_sampling: NegativeSampling | None = None,
    negatives: tuple[Tensor | None, Tensor] | None = None,
) -> LinkBatch:
    """Turns seed edges and negatives into the start of a batch.

    Args:
        index: The seed edges.
        ends: Positions of the node types of source and destination.
        disjoint: A tree per end of each seed edge.
        neg_sampling: What ``negatives`` are.
        negatives: Sources (None for triplets) and destinations, slot by slot; see
            :func:`glt.sampler.negatives.negative_rounds`.

    Raises:
        ValueError: If there are times but the batch is not disjoint.
    """
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
    """Labels of links, those of negatives being zero. Without negatives there are labels only where some were given."""
    if num_links == num_pos:
        return label
    if label is None:
        label = torch.ones(num_pos)
    return torch.cat([label, label.new_zeros((num_links - num_pos, *label.shape[1:]))])


def exclusions(
    index: EdgeSamplerInput, edge_type: int, schema: Schema, edge_dir: str, exclude: str | EdgeType | None
) -> dict[int, tuple[Tensor, Tensor]]:
    """The edges that a link batch must not sample: the seed edges as given (negatives are no edges anyway).

    Args:
        index: The seed edges.
        edge_type: Position of their type.
        edge_dir: ``'in'`` or ``'out'``.
        exclude: ``'self'``; ``'reverse'``: and their reverses, of the type that :func:`reverse_edge_type` finds; an
            edge type: the same, naming it; None.

    Returns:
        By position of the edge type, pairs ``(expanded nodes, neighbours)``, int64.
    """
    if exclude is None:
        return {}
    src, dst = index.row.long(), index.col.long()
    pairs = {edge_type: [(src, dst)]}
    if exclude != "self":
        reverse = reverse_edge_type(schema, edge_type, None if exclude == "reverse" else exclude)
        pairs.setdefault(reverse, []).append((dst, src))
    found = {}
    for each, edges in pairs.items():
        source, target = (torch.cat(side) for side in zip(*edges, strict=True))
        found[each] = (target, source) if edge_dir == "in" else (source, target)
    return found


def reverse_edge_type(schema: Schema, edge_type: int, named: str | EdgeType | None = None) -> int:
    """Position of the type that holds the reverses of an edge type.

    That is the one named; else, of the types that run the other way, the one called ``rev_`` more or less, or the only
    one. An edge type between equal node types that has no such partner is its own reverse (as is the type of a
    homogeneous graph).

    Raises:
        ValueError: If there is none or a choice, or the named one does not run the other way; says what there is.
    """
    source, relation, target = schema.edge_types[edge_type]
    swapped = [at for at, (s, _, t) in enumerate(schema.edge_types) if (s, t) == (target, source)]
    if named is not None:
        at = schema.edge_types.index(tuple(named)) if tuple(named) in schema.edge_types else -1  # type: ignore[arg-type]
        if at not in swapped:
            raise ValueError(
                f"exclude_edges = {named!r}: expected 'self', 'reverse' or an edge type from {target!r} to {source!r}, "
                f"one of {[schema.edge_types[at] for at in swapped]}"
            )
        return at
    others = [at for at in swapped if at != edge_type]
    partner = relation.removeprefix("rev_") if relation.startswith("rev_") else f"rev_{relation}"
    for at in others:
        if schema.edge_types[at][1] == partner:
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


# What users say of negatives, in PyG's words.


# What torch adds numbers of, and finds the least of.
_SUMMABLE: Final = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
)


def checked_negatives(given: Any, ratio: Any = None, batch_size: int = 1) -> NegativeSampling | None:
    """Returns what to draw, or None.

    Args:
        given: ``'binary'``, ``'triplet'``, a dict or PyG's ``NegativeSampling``; None: nothing.
        ratio: PyG's old name for an amount of binary negatives; 0: nothing.
        batch_size: Seed edges per batch.

    Raises:
        TypeError, ValueError: If that is something else; says what was expected.
    """
    from torch_geometric.sampler import NegativeSampling  # sampling processes do without torch_geometric

    if ratio is not None:
        conflicts.refuse(neg_sampling=given, neg_sampling_ratio=ratio)
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
    """Refuses labels of seed edges that cannot go up by one, as they may have to where 0 is the label of negatives.

    Args:
        label: ``edge_label``.
        also: Dtypes that the caller adds one to by itself, beside those that torch does.

    Raises:
        TypeError: If they are of another dtype.
    """
    known = (*_SUMMABLE, *also)
    if label.dtype not in known:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in known)
        raise TypeError(
            f"edge_label has dtype {label.dtype}: with neg_sampling expected one of {names}, since 0 is the label of "
            "negatives and labels that start at 0 go up by one; convert it, for example with .float()"
        )


def require_amount(amount: Any, batch_size: int) -> None:
    """Refuses an amount of negatives per positive that is no number above 0, or makes too many in a batch.

    Raises:
        TypeError, ValueError: Then.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"amount of neg_sampling = {amount!r}: expected a number of negatives per seed edge")
    if math.isnan(amount) or not 0 < amount * batch_size < 2**31:
        raise ValueError(
            f"amount of neg_sampling = {amount:g}: expected a number above 0, and below 2^31 negatives in a batch of "
            f"{batch_size}"
        )
