"""The loader of anchor-based link prediction: around anchors, their positives, and hard negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from glt._checks import check_flag
from glt._tracebacks import short_traceback
from glt.data.arrays import require_in_range
from glt.data.dataset import Dataset
from glt.data.schema import Schema
from glt.loader.loaders import NeighborLoader
from glt.loader.seeds import checked_edges, is_edge_type, links_of_keys, matching_types
from glt.sampler.anchors import KINDS, Supervision, label_lists, labels_of
from glt.sampler.link import find_reverse, refuse_induced_trees
from glt.sampler.neighbor_sampler import NeighborSampler

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from glt.sampler.graph import Finish, Output
    from glt.sampler.order import BatchIndex


@short_traceback
class ABLPLoader(NeighborLoader):
    """Anchor-based link prediction, as GiGL's ``DistABLPLoader``: batches around anchor nodes, all their positives, and
    hard negatives.

    A batch is that of :class:`NeighborLoader` around more seeds. The first ``batch_size`` nodes are the anchors, as
    they are given. Their positives follow, and then their hard negatives: each node that is not there yet, once.
    ``y_positive`` tells for each anchor's position in the batch where its positives are in ``n_id`` of their type, as a
    dict of int64 tensors; of an anchor without any it is empty. ``y_negative`` tells the same of hard negatives, where
    some were given. Both are attributes of the batch itself, of a heterogeneous one too. The edges from the batch's
    anchors to their positives are not sampled in it, nor are their reverses.

    For a fixed ``random_seed`` the batches of an epoch are always the same, and equal to those of
    :class:`glt.distributed.DistABLPLoader`. Random negatives come from a :class:`NeighborLoader` of their own, which
    shuffles all nodes of the labels' type; see the example.

    Args:
        data, num_neighbors: As of :class:`NeighborLoader`.
        input_nodes: Anchors, as of :class:`NeighborLoader`; of the type at which ``supervision_edge_type`` begins.
            ``positives[0].unique()`` are all that have positives.
        positives: Edges from anchors to their positives ``[2, number of edges]``, ids (or two lists of keys, where
            nodes have some), edges of the graph or not. Those of other nodes are left out. What is there twice is
            there twice in ``y_positive``.
        negatives: The same of hard negatives. Default: none.
        supervision_edge_type: In a heterogeneous graph the type of the edges to predict, from anchors to labels. A type
            that the graph has, if without edges.
        exclude_edges: Which edges are not sampled, others taking their place: ``'self'``: the edges of
            ``supervision_edge_type`` from an anchor of the batch to one of its positives, with all parallel to them;
            ``'reverse'``: and their reverses; an edge type: the same, naming the type that holds the reverses; None:
            all edges may be sampled, as ``subgraph_type='induced'`` needs.
        use_label_edge_index_output: Give ``y_positive`` and ``y_negative`` as tensors ``[2, number of labels]``,
            grouped by anchor: positions of anchors, and of labels. GiGL's trainers take these; its dicts are older.
        **kwargs: All others of :class:`NeighborLoader`. With ``disjoint=True`` or ``time_attr`` each label has a tree
            of its own, once for each of its anchors; ``batch`` then tells the position of the anchor, whose time is
            that of its labels too.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.

    Source: GiGL (Zhao et al., KDD 2025), whose trainers take these batches with ``n_id`` for its ``node``.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> positives = torch.tensor([[0, 0, 1], [5, 7, 0]])
        >>> loader = glt.loader.ABLPLoader(
        ...     data, [2], torch.tensor([0, 1]), positives=positives, batch_size=2, random_seed=7
        ... )
        >>> batch = next(iter(loader))
        >>> batch.n_id[:4], batch.y_positive
        (tensor([0, 1, 5, 7]), {0: tensor([2, 3]), 1: tensor([0])})

        With as many random negatives in each step, from a loader that begins again when all nodes had their turn:

        >>> others = glt.NeighborLoader(data, [2], batch_size=8, shuffle=True, random_seed=8)
        >>> endless = (random for epoch in iter(int, 1) for random in others)
        >>> for batch, random in zip(loader, endless):  # in this order: none is taken and not used
        ...     (len(batch.y_positive), random.batch_size)
        (2, 8)
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        *,
        positives: Any,
        negatives: Any = None,
        supervision_edge_type: Any = None,
        exclude_edges: Any = "reverse",
        use_label_edge_index_output: bool = False,
        **kwargs: Any,
    ) -> None:
        check_flag("use_label_edge_index_output", use_label_edge_index_output)
        self.use_label_edge_index_output: bool = use_label_edge_index_output
        self._exclude_edges = exclude_edges
        super().__init__(data, num_neighbors, input_nodes, **kwargs)
        graph, inputs = self._sampler.graph, self.input_data
        self._supervision, self._bounds = supervision_of(
            {"positive": positives, "negative": negatives},
            inputs.node,
            graph.schema.node_index(inputs.input_type),
            graph.schema,
            graph.num_nodes,
            supervision_edge_type,
            self._sampler.config.exclude_edges,
            data.ids if isinstance(data, Dataset) else {},
        )

    def _choose_sampler(self, given: dict[str, Any]) -> Any:
        sampler = super()._choose_sampler(given | {"exclude_edges": self._exclude_edges})
        if not isinstance(sampler, NeighborSampler):
            raise TypeError(
                f"neighbor_sampler has type {type(sampler).__name__}: expected a glt NeighborSampler, which can leave "
                "edges out; or leave it out"
            )
        refuse_induced_trees(sampler.config.disjoint, sampler.config.subgraph_type)
        return sampler

    def _begin(self, index: BatchIndex) -> Finish:
        finish, transform = self._around(index), self.transform_sampler_output
        return finish if transform is None else lambda: transform(finish())

    def _sample(self, index: BatchIndex) -> Output:
        return self._around(index)()

    def _around(self, index: BatchIndex) -> Finish:
        inputs = self.input_data[index.input_id]
        bounds = {kind: each[index.input_id] for kind, each in self._bounds.items()}
        anchors = inputs.node.long()
        given: dict[str, Any] = self._keys(index)
        return self._supervision.begin(self._sampler, anchors, inputs.input_id, inputs.time, bounds, **given)

    def _with_seeds(self, data: Any, out: Output) -> Data | HeteroData:
        data = super()._with_seeds(data, out)
        num_anchors = len(out.metadata[0])
        for kind, y in zip(self._bounds, out.metadata[2:], strict=True):
            setattr(data, f"y_{kind}", y if self.use_label_edge_index_output else label_lists(y, num_anchors))
        return data

    def _seed_columns(self) -> dict[str, Tensor | None]:
        labels = {f"{kind}_at": each for kind, each in self._bounds.items()}
        return super()._seed_columns() | labels | self._supervision.labels

    def _options(self) -> dict[str, Any]:
        return {"supervision edge type": self._supervision.edge_type, "labels": list(self._bounds)}


def supervision_of(
    given: Mapping[str, Any],
    anchors: Tensor,
    anchor_type: int,
    schema: Schema,
    num_nodes_of: Sequence[int],
    supervision_edge_type: Any,
    exclude: Any,
    ids: Any,
) -> tuple[Supervision, dict[str, Tensor]]:
    """Checks the labels of anchors.

    Args:
        given: Edges anchor -> label by kind; None: none of that kind.
        anchors: All anchors ``[n]``, of the type at position ``anchor_type``.
        schema, num_nodes_of: The types of the graph, and numbers of nodes by type.
        supervision_edge_type, exclude: As of :class:`ABLPLoader`.
        ids: Keys of nodes, by type, where the graph has some.

    Returns:
        The labels of these anchors, and by kind their bounds ``[n, 2]``.

    Raises:
        IndexError, TypeError, ValueError: If something does not fit; names it.
    """
    at = _supervised(supervision_edge_type, schema)
    source, _, target = edge_type = schema.edge_types[at]
    ends = schema.node_index(source), schema.node_index(target)
    if ends[0] != anchor_type:
        raise ValueError(
            f"input_nodes is of type {schema.node_types[anchor_type]!r}: expected {source!r}, where "
            f"supervision_edge_type = {edge_type} begins"
        )
    if exclude not in (None, "self"):
        find_reverse(schema, at, exclude)
    labels, bounds = {}, {}
    for kind in KINDS:
        name, edges = f"{kind}s", given[kind]
        if edges is None and kind != "positive":
            continue
        found = links_of_keys((edge_type, edges), ids)[1] if schema.is_hetero else links_of_keys(edges, ids)
        edges = checked_edges(found, "edges anchor -> label, integer ids, [2, number of edges]", name)
        edges = edges.detach().to("cpu").long()
        for row, end in enumerate(ends):
            of = f", the nodes{f' of type {schema.node_types[end]!r}' if schema.is_hetero else ''}"
            require_in_range(f"{name}[{row}, {{}}]", edges[row], num_nodes_of[end], of)
        bounds[kind], labels[kind] = labels_of(anchors.long(), edges)
    return Supervision(at, ends, labels), bounds


def _supervised(given: Any, schema: Schema) -> int:
    """Position of the edge type to predict."""
    if not schema.is_hetero:
        if given is not None:
            raise ValueError(
                f"supervision_edge_type = {given!r}: the graph is homogeneous and has no types; leave it out"
            )
        return 0
    types = list(schema.edge_types)
    fits = matching_types(given, types) if is_edge_type(given) else []
    if len(fits) != 1:
        raise ValueError(
            f"supervision_edge_type = {given!r}: expected the type of edges from anchors to labels, one of {types}; a "
            "type to predict that has no edges in the graph is added to it with none, "
            "edge_index = torch.empty(2, 0, dtype=torch.int64)"
        )
    return schema.edge_types.index(fits[0])
