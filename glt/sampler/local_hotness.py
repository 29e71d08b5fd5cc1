"""How likely nodes are to be in a batch of a sampler of this process; see :mod:`glt.sampler.sample_prob`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt import _core
from glt.data.schema import NodeType
from glt.sampler import sample_prob

if TYPE_CHECKING:
    from glt.sampler.neighbor_sampler import NeighborSampler


class LocalHotness:
    """Answers :meth:`NeighborSampler.sample_prob`. Each call is given the sampler; kept is which edges turn back."""

    def __init__(self) -> None:
        self._facts: list[sample_prob.EdgeFacts] | None = None

    def probabilities(
        self, sampler: NeighborSampler, seeds: Any, num_nodes: Any, batch_size: int, num_batches: int | None
    ) -> Tensor | dict[NodeType, Tensor]:
        """See :meth:`NeighborSampler.sample_prob`."""
        if sampler.is_temporal:
            raise ValueError(
                f"sample_prob with time_attr = {sampler.time_attr!r}: which edges are early enough depends on the "
                "seed; use glt.sampler.hotness_from_counts(loader, num_nodes)"
            )
        if any(topology.book is not None for topology in sampler.graph.topologies):
            raise ValueError("sample_prob of a partition's graph: expected the whole graph, whose nodes all have rows")
        for name, value, low in (("batch_size", batch_size, 1), ("num_batches", num_batches, 0)):
            if value is None and low == 0:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} = {value!r}: expected an integer of at least {low}")
        if num_batches == 1:
            raise ValueError("num_batches = 1: expected 0 (no correction) or at least 2, to tell error from chance")
        schema = sampler.graph.schema
        counts = sample_prob.counts_of_nodes(num_nodes, sampler.graph)
        given = sample_prob.seeds_by_type(seeds, schema, counts)
        doubts, sampled = self._steps(sampler)
        probs = sample_prob.computed(sampler.graph, sampler.config, given, counts, batch_size, doubts)
        if num_batches is None:
            num_batches = sample_prob.enough_batches(probs)
        if num_batches > 0:
            probs = sample_prob.corrected(probs, sampler.graph, given, batch_size, num_batches, sampled)
        tensors = [torch.from_numpy(prob) for prob in probs]
        return schema.by_node_type(tensors) if schema.is_hetero else tensors[0]

    def _steps(self, sampler: NeighborSampler) -> tuple[Any, Any]:
        """Who passes on probabilities and who samples batches: a GPU, where the sampler has one."""
        graph, config, num_threads = sampler.graph, sampler.config, sampler.num_threads
        if self._facts is None:
            self._facts = sample_prob.find_facts(graph, sampler.csrs, num_threads)
        if sampler.accelerator is not None and config.num_hops <= _core.most_hotness_hops:
            return sampler.on_device.hotness(config, self._facts)
        doubts = partial(sample_prob.doubts_on_host, graph, sampler.csrs, config, self._facts, num_threads)
        return doubts, sample_prob.sampled_on_host(graph, sampler.csrs, config, num_threads)
