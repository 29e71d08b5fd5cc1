"""Where the features of nodes will be read from."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadForecast:
    """Where the features of one node type will be read from, as the hotness that the partitioner was given has it.

    Attributes:
        num_reads: Rows read by each partition, per batch if the hotness was a probability.
        remote_ratio: Share of them that another partition owns.
        hit_ratio: Share of these that are in the partition's cache; 0 without reads.
        num_cached: Nodes in the cache of each partition.
    """

    num_reads: tuple[float, ...]
    remote_ratio: tuple[float, ...]
    hit_ratio: tuple[float, ...]
    num_cached: tuple[int, ...]

    @property
    def num_remote_reads(self) -> float:
        """Rows that another partition owns, read by all partitions."""
        return sum(reads * remote for reads, remote in zip(self.num_reads, self.remote_ratio, strict=True))

    @property
    def num_hits(self) -> float:
        """Of these, rows that are in the cache of the partition that reads them."""
        pairs = zip(self.num_reads, self.remote_ratio, self.hit_ratio, strict=True)
        return sum(reads * remote * hit for reads, remote, hit in pairs)

    @property
    def total_remote_ratio(self) -> float:
        """Share of the reads of all partitions that another one owns and no cache answers."""
        reads = sum(self.num_reads)
        return (self.num_remote_reads - self.num_hits) / reads if reads else 0.0

    @property
    def total_hit_ratio(self) -> float:
        """Share of the reads of all partitions of rows that another one owns that caches answer."""
        return self.num_hits / self.num_remote_reads if self.num_remote_reads else 0.0

    def summary(self) -> str:
        """Returns the forecast in one line."""
        text = f"{self.total_remote_ratio:.1%} of feature reads expected to be remote"
        if any(self.num_cached):
            shown = " ".join(map(str, self.num_cached[:16])) + (" ..." if len(self.num_cached) > 16 else "")
            text += f", caches ({shown} nodes) answering {self.total_hit_ratio:.1%} of those that would be without them"
        return text

    @classmethod
    def of_all(cls, forecasts: Sequence["ReadForecast"]) -> "ReadForecast | None":
        """Returns the forecast of all node types together; None without any."""
        if not forecasts:
            return None
        parts = range(len(forecasts[0].num_reads))
        reads = [sum(each.num_reads[p] for each in forecasts) for p in parts]
        remote = [sum(each.num_reads[p] * each.remote_ratio[p] for each in forecasts) for p in parts]
        hits = [sum(each.num_reads[p] * each.remote_ratio[p] * each.hit_ratio[p] for each in forecasts) for p in parts]
        return cls(
            tuple(reads),
            tuple(remote[p] / reads[p] if reads[p] else 0.0 for p in parts),
            tuple(hits[p] / remote[p] if remote[p] else 0.0 for p in parts),
            tuple(sum(each.num_cached[p] for each in forecasts) for p in parts),
        )
