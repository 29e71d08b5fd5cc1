"""Anchor batches: from anchors and their labels to the nodes that are sampled around, and where labels are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from glt.sampler.link import LinkBatch, begin_around, exclusions, native_exclusions

if TYPE_CHECKING:
    from glt.data.schema import EdgeType, Schema
    from glt.sampler.graph import Finish
    from glt.sampler.neighbor_sampler import NeighborSampler

KINDS = ("positive", "negative")  # of labels, in the order in which they become seeds


class _Edges(NamedTuple):
    """Ends of edges; what :func:`glt.sampler.link.exclusions` reads of PyG's ``EdgeSamplerInput``."""

    row: Tensor
    col: Tensor


@dataclass(frozen=True, eq=False)
class Supervision:
    """The labels of all anchors of a loader.

    Attributes:
        edge_type: Position of the type of the edges anchor -> label.
        ends: Positions of the node types of anchors and of labels.
        labels: Ids of labels by kind, int64, those of an anchor next to each other. The *bounds* of anchors,
            ``[n, 2]``, tell where the labels of each begin and end.
    """

    edge_type: int
    ends: tuple[int, int]
    labels: dict[str, Tensor]

    def batch(
        self, anchors: Tensor, time: Tensor | None, bounds: dict[str, Tensor], disjoint: bool
    ) -> tuple[LinkBatch, _Edges]:
        """Returns what a batch is sampled around, and its edges anchor -> positive.

        Seeds are the anchors as given, then the labels, positives before negatives: those not among the seeds yet, in
        the order in which they first occur. Disjoint: all labels, each with a tree that belongs to its anchor.
        ``links`` holds ``y_positive`` and ``y_negative``, ``[2, labels of that kind]``: positions of anchors, and of
        labels among the nodes of their type in the batch.

        Args:
            anchors: Node ids ``[b]``, int64.
            time: Their times ``[b]``, int64, at which their labels are looked at too; None without times.
            bounds: By kind, where their labels are ``[b, 2]``.
            disjoint: Whether trees are apart.
        """
        of_anchor, labels = {}, {}
        for kind, known in self.labels.items():
            of_anchor[kind], at = _spread(bounds[kind])
            labels[kind] = known[at]
        one_type = self.ends[0] == self.ends[1]
        begin = len(anchors) if one_type else 0  # of labels, among the nodes of their type
        node = torch.cat([*([anchors] if one_type else []), *labels.values()])
        example = None
        if disjoint:
            local = torch.arange(len(node))
            example = torch.cat([torch.arange(len(anchors)), *of_anchor.values()])
            time = None if time is None else time[example]
        else:
            node, local = _distinct(node, begin)
        links = {}
        for kind, of in of_anchor.items():
            links[f"y_{kind}"] = torch.stack([of, local[begin : begin + len(of)]])
            begin += len(of)
        seeds = [(self.ends[0], node)] if one_type else [(self.ends[0], anchors), (self.ends[1], node)]
        hidden = _Edges(anchors[of_anchor["positive"]], labels["positive"])
        return LinkBatch(seeds, time, example, links), hidden

    def exclusions(
        self, hidden: _Edges, schema: Schema, edge_dir: str, exclude: str | EdgeType | None
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """The edges that a batch must not sample, as of :func:`glt.sampler.link.exclusions`."""
        return exclusions(hidden, self.edge_type, schema, edge_dir, exclude)  # type: ignore[arg-type]

    def begin(
        self,
        sampler: NeighborSampler,
        anchors: Tensor,
        input_id: Tensor | None,
        given_time: Tensor | None,
        bounds: dict[str, Tensor],
        *,
        batch_key: int,
        shared_key: int | None = None,
    ) -> Finish:
        """Begins a batch in this process, as :meth:`NeighborSampler.begin_from_nodes`, which must be ended likewise.
        ``metadata`` of its output is ``(input_id, given_time, y_positive, y_negative)``, the last of those where there
        are negatives."""
        time = given_time
        if sampler.is_temporal and time is None:
            time = sampler.graph.seed_time(self.ends[0], anchors)
        batch, hidden = self.batch(anchors, time, bounds, sampler.disjoint)
        graph, exclude = sampler.graph, sampler.config.exclude_edges
        excluded = self.exclusions(hidden, graph.schema, graph.edge_dir, exclude)
        return begin_around(
            sampler,
            batch,
            lambda: (input_id, given_time, *batch.links.values()),
            batch_key=batch_key,
            shared_key=shared_key,
            exclusions=native_exclusions(excluded, len(graph.schema.edge_types)) if excluded else None,
        )


def labels_of(anchors: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of each of ``anchors [n]``, which are the ends of the edges ``[2, m]`` that begin at it, in their
    order: bounds ``[n, 2]`` and ids, as of :class:`Supervision`. Edges that begin elsewhere are left out."""
    edges = edges[:, torch.isin(edges[0], anchors)]
    source, order = edges[0].sort(stable=True)
    bounds = [torch.searchsorted(source, anchors, right=right) for right in (False, True)]
    return torch.stack(bounds, 1), edges[1][order]


def _spread(bounds: Tensor) -> tuple[Tensor, Tensor]:
    """All positions within bounds ``[b, 2]``, one range after the other: which range each is of, and the position."""
    begin, count = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    of = torch.arange(len(bounds)).repeat_interleave(count)
    before = count.cumsum(0) - count
    return of, torch.arange(len(of)) + (begin - before)[of]


def _distinct(node: Tensor, num_kept: int) -> tuple[Tensor, Tensor]:
    """Each node once, in order of first occurrence, but for the first ``num_kept``, which stay as they are; and where
    each node of the input is in the result."""
    distinct, inverse = node.unique(return_inverse=True)
    position = torch.arange(len(node))
    first = torch.full((len(distinct),), len(node)).scatter_reduce(0, inverse, position, "amin")[inverse]
    stays = (first == position) | (position < num_kept)
    return node[stays], (stays.cumsum(0) - 1)[first]


def label_lists(y: Tensor, num_anchors: int) -> LabelLists:
    """Labels ``[2, n]``, grouped by anchor, as a dict from each anchor's position to the positions of its labels."""
    counts = torch.bincount(y[0], minlength=num_anchors).tolist()
    return LabelLists(enumerate(y[1].split(counts)))


class LabelLists(dict[int, Tensor]):
    """A dict of tensors that goes to another process as one tensor: each by itself would take a file descriptor."""

    def __reduce__(self) -> tuple[object, ...]:
        labels = list(self.values())
        joined = torch.cat(labels) if labels else torch.empty(0, dtype=torch.int64)
        return _lists, (list(self), joined, [len(each) for each in labels])


def _lists(anchors: list[int], joined: Tensor, counts: list[int]) -> LabelLists:
    return LabelLists(zip(anchors, joined.split(counts), strict=True))
