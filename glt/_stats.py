"""Numbers of loaders and servers that say what limits a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIN_BATCHES = 10
_WAITS = 0.1  # share of the time from which on waiting is worth a knob
_FEW_BYTES = 256 << 10  # per batch, from other partitions: the network's latency counts then
_LOW_HITS = 0.5

# What is so now, or never changes: a difference keeps the later of the two.
_NOW = {
    *("num_queued", "queued_bytes", "num_running", "num_unread", "batches_per_s", "bytes_per_s", "channel_num_queued"),
    *("channel_num_streams", "num_clients", "num_loaders", "num_workers", "pid", "num_rows", "num_bytes"),
    "num_holders",
}


class Stats(dict[str, Any]):
    """What a loader or a server has counted, by name; what it prints says what limits the job, and what to change.

    Loaders and :func:`glt.distributed.server_stats` return it. Later numbers minus earlier ones are those of the time
    between: counters are subtracted, ratios are of the differences, and what is so now stays.

    Example:
        >>> loader = glt.loader.NeighborLoader(glt.testing.ring_graph().to_dataset(), [2], batch_size=20)
        >>> for batch in loader:
        ...     pass
        >>> before = loader.stats()
        >>> for batch in loader:
        ...     pass
        >>> loader.stats() - before
        Stats(too few batches to tell: 2, at least 10 are needed)
    """

    def __sub__(self, before: Mapping[str, Any]) -> Stats:
        if not isinstance(before, Mapping):
            return NotImplemented
        return Stats(_ratios(_difference(self, before)))

    def scalars(self, prefix: str = "glt/") -> dict[str, float]:
        """The numbers alone, by names that TensorBoard, Weights & Biases and Lightning's loggers group.

        Dicts within are flattened (``glt/totals/num_batches``); texts are left out. Of a loader that was timed there
        are ``batches_per_s`` and ``wait_ratio``, the share of ``epoch_s`` that the trainer waited, too.

        Args:
            prefix: Begins each name.

        Example:
            >>> loader = glt.loader.NeighborLoader(glt.testing.ring_graph().to_dataset(), [2], batch_size=20)
            >>> before = loader.stats()
            >>> for batch in loader:
            ...     pass
            >>> (loader.stats() - before).scalars("train/")["train/num_batches"]
            2.0
        """
        if not isinstance(prefix, str):
            raise TypeError(f"prefix = {prefix!r}: expected text, such as 'train/'")
        rates: dict[str, float] = {}
        if (epoch_s := self.get("epoch_s", 0.0)) > 0:
            rates = {"batches_per_s": self["num_batches"] / epoch_s, "wait_ratio": self["wait_s"] / epoch_s}
        return _flat(self | rates, prefix)

    def __repr__(self) -> str:
        return f"Stats({_of_server(self) if 'totals' in self else _of_loader(self)})"


def with_ratios(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with the shares of nodes that were remote and that were cached, and of rows that were hot."""
    return _ratios({**numbers, "remote_node_ratio": 0.0, "cache_hit_ratio": 0.0, "hot_row_ratio": 0.0})


def _flat(numbers: Mapping[str, Any], prefix: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found[prefix + name] = float(value)
    return found


def _difference(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in after.items():
        earlier = before.get(name)
        if isinstance(value, Mapping):
            found[name] = _ratios(_difference(value, earlier if isinstance(earlier, Mapping) else {}))
        elif name in _NOW or isinstance(value, bool) or not isinstance(value, int | float):
            found[name] = value
        else:
            found[name] = value - (earlier or 0)
    return found


def _ratios(numbers: dict[str, Any]) -> dict[str, Any]:
    if "remote_node_ratio" in numbers:
        nodes, remote, cached, shared = (
            numbers.get(f"num_{name}nodes", 0) for name in ("", "remote_", "cached_", "window_")
        )
        numbers["remote_node_ratio"] = remote / nodes if nodes else 0.0
        numbers["cache_hit_ratio"] = cached / (cached + shared + remote) if cached else 0.0
        hot = numbers.get("num_hot_rows", 0)
        numbers["hot_row_ratio"] = hot / (hot + numbers["num_disk_rows"]) if hot else 0.0
    return numbers


def _too_few(num_batches: float) -> str | None:
    few = num_batches < MIN_BATCHES
    return f"too few batches to tell: {num_batches:.0f}, at least {MIN_BATCHES} are needed" if few else None


def _of_loader(stats: Mapping[str, Any]) -> str:
    too_few = _too_few(stats.get("num_batches", 0))
    if too_few is not None:
        return too_few
    if stats.get("is_on_gpu"):
        return "a GPU makes the batches, and the host does not see its time: torch.profiler tells what limits"
    epoch_s = stats.get("epoch_s", 0.0)
    if epoch_s <= 0:
        return "no iteration was timed, so that nothing can be told"
    waited, collated = (stats.get(name, 0.0) / epoch_s for name in ("wait_s", "collate_s"))
    if waited < _WAITS and collated < _WAITS:
        spare = "; fewer num_workers give cores back to it" if stats.get("blocked_s", 0.0) > 0 else ""
        return f"nothing limits: the trainer is the slow one, it waited {waited:.0%} of the time{spare}"
    if collated > waited:
        return f"making Data limits this job: {collated:.0%} of the time; collect fewer tables and types"
    time = f"it waited {waited:.0%} of the time"
    if oversize := stats.get("channel_num_oversize"):
        return f"the channel limits this job: {time}, {oversize} batches passed in pieces; raise channel_size"
    if copied := stats.get("channel_num_copied"):
        kept = f"{copied} batches were copied since the trainer kept them"
        return f"the channel limits this job: {time}, {kept}; clone what you keep, or raise channel_size"
    more = "raise num_workers, up to the free cores"
    if "remote_s" in stats and not stats.get("num_workers", 1):
        more = "sample in processes of their own, with MpDistSamplingWorkerOptions"
    if stats.get("is_tuned"):
        more = "num_workers='auto' found that more workers gain nothing; take fewer neighbours, or more cores"
    return _of_samplers(stats, time, more)


def _of_samplers(numbers: Mapping[str, Any], time: str, more: str) -> str:
    work = {name: numbers.get(name, 0.0) for name in ("sampling_s", "gathering_s", "transform_s", "remote_s")}
    total = sum(work.values())
    if total <= 0:
        return f"making batches limits this job: {time}; {more}"
    most = max(work, key=work.__getitem__)
    share = f"{time}, {most} is {work[most] / total:.0%} of a batch's time"
    if most == "sampling_s":
        return f"sampling limits this job: {share}; {more}"
    if most == "transform_s":
        return f"transform limits this job: {share}; {more}"
    if most == "gathering_s" and numbers.get("disk_s", 0.0) > work[most] / 2:
        hot = f"{numbers.get('hot_row_ratio', 0.0):.0%} of these rows were in memory"
        return f"the disk limits this job: {share}, most of it waiting for rows, {hot}; raise feature_memory"
    if most == "gathering_s":
        return f"looking up features limits this job: {share}; {more}"
    if numbers.get("remote_bytes", 0) / numbers["num_batches"] < _FEW_BYTES:
        return f"waiting for other hosts limits this job: {share}, but few bytes came; raise worker_concurrency"
    if numbers.get("cache_hit_ratio", 0.0) < _LOW_HITS:
        return f"rows of other hosts limit this job: {share}; raise gather_window or cache_memory_budget"
    return f"rows of other hosts limit this job: {share}; partition with FrequencyPartitioner or a larger cache_ratio"


def _of_server(stats: Mapping[str, Any]) -> str:
    totals = stats["totals"]
    if stats.get("num_restarts"):
        return f"sampling processes died {stats['num_restarts']} times: read the server's log, often memory is short"
    too_few = _too_few(totals["num_batches"])
    if too_few is not None:
        return too_few
    work_s = sum(totals[name] for name in ("sampling_s", "gathering_s", "remote_s"))
    if totals["blocked_s"] > work_s:
        blocked = f"batches waited {totals['blocked_s']:.1f} s for room there"
        return f"nothing limits here: clients are the slow ones, {blocked}"
    if totals["num_unread"] and not totals["num_running"]:
        return f"nothing limits here: clients are the slow ones, {totals['num_unread']:.0f} batches wait there"
    busy = work_s / max(1e-9, stats["uptime_s"] * max(1, stats["num_workers"]))  # Little's law
    time = f"a sampling process made {busy:.2g} batches at a time"
    if busy < _WAITS:
        return f"nothing limits here: the server is mostly idle, {time}; if clients wait, raise their prefetch_size"
    return _of_samplers(totals, time, "raise --workers, and num_workers of the loader")
