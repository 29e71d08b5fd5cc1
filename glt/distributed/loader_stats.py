"""Where the time of a loader goes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from glt.distributed.dist_neighbor_sampler import STATS


class LoaderStats:
    """Counters since the start: what the trainer saw, and what the samplers report with each batch."""

    def __init__(self) -> None:
        self.num_batches = 0
        self.num_seeds = 0
        self.wait_s = 0.0
        self.collate_s = 0.0
        self._stages = dict.fromkeys(STATS, 0.0)

    def add(self, reported: Tensor, num_seeds: int) -> None:
        """Adds a batch of so many seeds, and what it reports about its making."""
        self.num_batches += 1
        self.num_seeds += num_seeds
        for name, value in zip(STATS, reported.tolist(), strict=True):
            self._stages[name] += value

    def to_dict(self, channel: Mapping[str, float]) -> dict[str, float]:
        """See :meth:`glt.distributed.DistNeighborLoader.stats`."""
        nodes = self._stages["num_nodes"]
        remote, cached = self._stages["num_remote_nodes"], self._stages["num_cached_nodes"]
        return {
            "num_batches": self.num_batches,
            "num_seeds": self.num_seeds,
            "num_nodes": int(nodes),
            "num_edges": int(self._stages["num_edges"]),
            "wait_s": self.wait_s,
            "collate_s": self.collate_s,
            **{name: self._stages[name] for name in ("sampling_s", "remote_s", "gathering_s", "blocked_s")},
            "remote_bytes": int(self._stages["remote_bytes"]),
            "num_remote_nodes": int(remote),
            "num_cached_nodes": int(cached),
            "remote_node_ratio": remote / nodes if nodes else 0.0,
            "cache_hit_ratio": cached / (cached + remote) if cached else 0.0,
            **{f"channel_{name}": value for name, value in channel.items()},
        }
