"""Link batches in this process: negatives checked against the whole graph, then one sample around all ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling, SamplerOutput

from glt import _core
from glt.data import pool
from glt.data.schema import EdgeType
from glt.sampler import conflicts
from glt.sampler.link import exclusions, link_batch, reverse_edge_type
from glt.sampler.linked_to_all import linked_to_all
from glt.sampler.negative_options import require_amount
from glt.sampler.negatives import Endpoint, LocalCheck, earliest_node, finish, negative_rounds
from glt.sampler.output import Finish

if TYPE_CHECKING:
    from glt.sampler.neighbor_sampler import NeighborSampler


class LocalLinks:
    """Turns seed edges into batches. Each method is given the sampler; kept is what negatives are drawn from."""

    def __init__(self) -> None:
        self._endpoints: tuple[NegativeSampling, EdgeType | None, tuple[Endpoint, Endpoint]] | None = None

    def check(
        self, sampler: NeighborSampler, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None
    ) -> tuple[int, int]:
        """Refuses seed edges that do not fit the graph or the sampler.

        Returns:
            Positions of the node types of source and destination.

        Raises:
            IndexError: If an end is outside the graph; names the first.
            KeyError: If there is no such node type.
            ValueError: If the type, the times, the weights of negatives or the edges to exclude do not fit.
        """
        graph = sampler.graph
        if (index.input_type is not None) != graph.schema.is_hetero:
            kind = "an edge type" if graph.schema.is_hetero else "None, the graph being homogeneous"
            raise ValueError(f"input_type = {index.input_type!r}: expected {kind}")
        conflicts.refuse(
            edge_label_time=index.time, time_attr=conflicts.GIVEN if sampler.is_temporal else None
        )  # fmt: skip
        source, _, target = index.input_type or graph.schema.edge_types[0]
        ends = graph.schema.node_index(source), graph.schema.node_index(target)
        for row, node, end in ((0, index.row, ends[0]), (1, index.col, ends[1])):
            size = graph.num_nodes[end]
            bad = ((node < 0) | (node >= size)).nonzero()
            if len(bad):
                at = int(bad[0])
                raise IndexError(f"edge_label_index[{row}, {at}] = {int(node[at])} is outside [0, {size})")
        if neg_sampling is not None:
            require_amount(neg_sampling.amount, 1)
            self._ends_of(sampler, neg_sampling, index.input_type, ends)
        edge_type, exclude = _edge_type(sampler, index), sampler.config.exclude_edges
        if edge_type is not None and exclude not in (None, "self"):
            reverse_edge_type(graph.schema, edge_type, None if exclude == "reverse" else exclude)
        elif exclude not in (None, "self"):
            swapped = [t for t in graph.schema.edge_types if (t[0], t[2]) == (target, source)]
            if swapped:  # which might hold the reverses: they would be left in silently
                raise ValueError(
                    f"exclude_edges = {exclude!r}: {index.input_type} is no edge type of the graph, so that it is not "
                    f"known whether {swapped} hold its reverses; "
                    "add the type, if without edges, or leave exclude_edges out"
                )
        return ends

    def require_negatives(
        self, sampler: NeighborSampler, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None
    ) -> None:
        """Refuses seed edges whose source is linked to every destination: no triplet can be made of them.

        Raises:
            ValueError: If there is one; names the source.
        """
        edge_type = _edge_type(sampler, index)
        if neg_sampling is None or not neg_sampling.is_triplet() or edge_type is None:
            return
        weight, row = neg_sampling.dst_weight, index.row.long().numpy()
        drawable = None if weight is None else weight.detach().cpu().nonzero().view(-1).numpy()
        found = linked_to_all(sampler.graph.topologies[edge_type], row, drawable)
        if len(found):
            raise ValueError(
                f"neg_sampling is 'triplet' and edge_label_index[0] holds {len(found)} source nodes that have an edge "
                f"to every destination, the first of them {found[0]}, of {int((row == found[0]).sum())} seed edges: "
                "there is no negative for them (PyG would train on an edge as a negative). Leave their seed edges out, "
                "or use neg_sampling='binary', which draws sources too"
            )

    def begin(
        self,
        sampler: NeighborSampler,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None,
        batch_key: int,
    ) -> Finish:
        """Begins a link batch, whose negatives are found now; see :meth:`NeighborSampler.begin_from_edges`."""
        ends = self.check(sampler, index, neg_sampling)
        negatives = None if neg_sampling is None else self._negatives(sampler, index, ends, neg_sampling, batch_key)
        batch = link_batch(index, ends, sampler.disjoint, neg_sampling, negatives)
        excluded = _exclusions(sampler, index)
        sampled = sampler.begin_or_sample(batch.seeds, batch.seed_time, batch_key=batch_key, exclusions=excluded)

        def with_links() -> SamplerOutput | HeteroSamplerOutput:
            out = sampled()
            if batch.example is not None and isinstance(out, HeteroSamplerOutput):
                out.batch = {key: _examples(batch.example, tree) for key, tree in out.batch.items()}
            elif batch.example is not None:
                out.batch = _examples(batch.example, out.batch)
            if sampler.accelerator is not None:
                device = sampler.on_device.device
                batch.links = {name: value.to(device, non_blocking=True) for name, value in batch.links.items()}
            out.metadata = batch.metadata(index.input_id, neg_sampling)
            return out

        return with_links

    def _ends_of(
        self,
        sampler: NeighborSampler,
        neg_sampling: NegativeSampling,
        input_type: EdgeType | None,
        ends: tuple[int, int],
    ) -> tuple[Endpoint, Endpoint]:
        """What negatives are drawn from; the sums of weights are kept from batch to batch."""
        known = self._endpoints
        if known is None or known[0] is not neg_sampling or known[1] != input_type:
            src, dst = (
                Endpoint.of(side, sampler.graph.num_nodes[end], neg_sampling, earliest_node(time))
                for side, end, time in zip(("src", "dst"), ends, _times(sampler, ends), strict=True)
            )
            known = self._endpoints = neg_sampling, input_type, (src, dst)
        return known[2]

    def _negatives(
        self,
        sampler: NeighborSampler,
        index: EdgeSamplerInput,
        ends: tuple[int, int],
        neg_sampling: NegativeSampling,
        batch_key: int,
    ) -> tuple[Tensor | None, Tensor]:
        require_amount(neg_sampling.amount, len(index.row))
        graph, edge_type = sampler.graph, _edge_type(sampler, index)
        src, dst = self._ends_of(sampler, neg_sampling, index.input_type, ends)
        late = None if index.time is None else index.time.long().numpy()
        rounds = negative_rounds(batch_key, neg_sampling, src, dst, index.row.long().numpy(), late)
        times = _times(sampler, ends)
        if sampler.accelerator is None:
            csr = None if edge_type is None else graph.topologies[edge_type].csr
            finish(rounds, LocalCheck(csr, graph.edge_dir, *(None if t is None else t.numpy() for t in times)))
        else:
            sampler.on_device.finish_negatives(rounds, edge_type, times)
        return None if neg_sampling.is_triplet() else torch.from_numpy(rounds.src), torch.from_numpy(rounds.dst)


def _examples(example: Tensor, tree: Tensor) -> Tensor:
    """The seed edge that each tree belongs to, in the dtype of ``tree``, where that is."""
    if tree.device.type != "cpu":
        return torch.index_select(example.to(tree.device, tree.dtype, non_blocking=True), 0, tree)
    return torch.index_select(example.to(tree.dtype), 0, tree, out=pool.empty((len(tree),), tree.dtype))


def _edge_type(sampler: NeighborSampler, index: EdgeSamplerInput) -> int | None:
    """Position of the type of the seed edges; None where the graph has no edges of that type."""
    if index.input_type is None:
        return 0
    types = sampler.graph.schema.edge_types
    return types.index(tuple(index.input_type)) if tuple(index.input_type) in types else None


def _times(sampler: NeighborSampler, ends: tuple[int, int]) -> list[Tensor | None]:
    """Times of the nodes at both ends, where there are any to obey."""
    by_node = sampler.is_temporal and sampler.graph.time_level == "node"
    return [sampler.graph.node_time[end] if by_node else None for end in ends]


def _exclusions(sampler: NeighborSampler, index: EdgeSamplerInput) -> list[_core.Exclusions | None] | None:
    graph, edge_type, exclude = sampler.graph, _edge_type(sampler, index), sampler.config.exclude_edges
    if exclude is None or edge_type is None:
        return None
    pairs = exclusions(index, edge_type, graph.schema, graph.edge_dir, exclude)
    return [
        _core.Exclusions(pairs[at][0].numpy(), pairs[at][1].numpy()) if at in pairs else None
        for at in range(len(graph.schema.edge_types))
    ]
