"""The numbers of a process as metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from glt.distributed.endpoint.http import Reply

# Counter or gauge, name in the stats, name of the metric, what it is.
_Table = Sequence[tuple[str, str, str, str]]
_OF_ALL: _Table = (
    ("counter", "num_batches", "batches", "Batches sent"),
    ("counter", "num_errors", "errors", "Errors sent in place of a batch"),
    ("counter", "sent_bytes", "sent_bytes", "Bytes of messages sent"),
    ("counter", "num_nodes", "nodes", "Nodes sampled"),
    ("counter", "num_edges", "edges", "Edges sampled"),
    ("counter", "num_remote_nodes", "remote_nodes", "Nodes whose rows other servers had"),
    ("counter", "num_cached_nodes", "cached_nodes", "Nodes of other servers whose rows the cache had"),
    (
        "counter",
        "num_window_nodes",
        "window_nodes",
        "Nodes of other servers whose rows were asked for in the same window",
    ),
    ("counter", "remote_bytes", "remote_bytes", "Bytes that came from other servers"),
    ("counter", "cached_bytes", "cached_bytes", "Bytes of rows of other servers that the cache had"),
    ("counter", "window_bytes", "window_bytes", "Bytes of rows of other servers that came in the same window"),
    ("counter", "num_disk_rows", "disk_rows", "Rows read from disk"),
    ("counter", "num_hot_rows", "hot_rows", "Rows of tables that stay on disk which were in memory"),
    ("counter", "disk_bytes", "disk_bytes", "Bytes read from disk"),
    ("counter", "disk_s", "disk_seconds", "Seconds that batches waited for the disk"),
    ("gauge", "num_queued", "queued_batches", "Batches that wait to be sent"),
    ("gauge", "queued_bytes", "queued_bytes", "Bytes of batches that wait to be sent"),
    ("gauge", "num_running", "running_batches", "Batches being made"),
    ("gauge", "num_unread", "unread_batches", "Batches sent and not yet taken by the trainer"),
    ("gauge", "batches_per_s", "batches_per_second", "Batches sent per second, over the last five"),
    ("gauge", "bytes_per_s", "bytes_per_second", "Bytes sent per second, over the last five"),
    ("gauge", "remote_node_ratio", "remote_node_ratio", "Share of nodes whose rows other servers had"),
    ("gauge", "cache_hit_ratio", "cache_hit_ratio", "Share of nodes of other servers whose rows the cache had"),
    ("gauge", "hot_row_ratio", "hot_row_ratio", "Share of rows of tables that stay on disk which were in memory"),
    # Of loaders of a trainer alone:
    ("counter", "num_seeds", "seeds", "Seeds of batches received"),
    ("counter", "wait_s", "wait_seconds", "Seconds that the trainer waited for batches"),
    ("counter", "collate_s", "collate_seconds", "Seconds in which the trainer made data of messages"),
    ("gauge", "channel_num_queued", "channel_queued_batches", "Batches that wait for the trainer"),
)
_OF_PROCESS: _Table = (
    ("gauge", "uptime_s", "uptime_seconds", "Seconds since it started"),
    ("gauge", "num_clients", "clients", "Clients that are there"),
    ("gauge", "num_loaders", "loaders", "Loaders that are open"),
    ("gauge", "num_workers", "workers", "Sampling processes that are ready"),
    ("gauge", "is_draining", "draining", "1 if the server takes no more clients and loaders"),
    ("counter", "num_restarts", "worker_restarts", "Sampling processes started in place of one that died"),
)
_OF_TENSOR: _Table = (
    ("gauge", "num_rows", "rows", "Rows kept here"),
    ("gauge", "num_bytes", "bytes", "Bytes of the rows kept here"),
    ("counter", "num_reads", "reads", "Requests to read rows"),
    ("counter", "num_writes", "writes", "Requests to write or add to rows"),
    ("counter", "read_bytes", "read_bytes", "Bytes of rows read"),
    ("counter", "written_bytes", "written_bytes", "Bytes of rows written or added"),
)
_STAGES = ("sampling", "gathering", "remote", "blocked")


def missing_prometheus() -> str:
    """What ``/metrics`` lacks, and the remedy; empty if it lacks nothing."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        return f"/metrics needs the package prometheus_client ({error}): pip install prometheus_client"
    return ""


class Metrics:
    """Answers with what ``stats`` returns then. ``kind`` is ``"server"`` or ``"trainer"``, ``about`` what its info
    says."""

    def __init__(self, kind: str, about: Mapping[str, str], stats: Callable[[], Mapping[str, Any]]) -> None:
        from prometheus_client import CollectorRegistry

        self._kind, self._about, self._stats = kind, about, stats
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # type: ignore[arg-type]

    def answer(self, accept: str) -> Reply:
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        return Reply(200, encode(self._registry), kind)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        stats = self._stats()
        yield InfoMetricFamily(f"glt_{self._kind}", f"What this {self._kind} is", value=dict(self._about))
        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for scope, table, rows in (
            (self._kind, (*_OF_PROCESS, *_OF_ALL), {"": {**stats, **stats.get("totals", {})}}),
            ("tensor", _OF_TENSOR, stats.get("tensors", {})),
            ("loader", _OF_ALL, stats["loaders"]),
            ("worker", _OF_ALL, stats.get("workers", {})),
        ):
            labels = [] if scope == self._kind else [scope]
            values = {of: [of] if labels else [] for of in rows}
            for kind, name, metric, text in table:
                family = families[kind](f"glt_{scope}_{metric}", text, labels=labels)
                for of, row in rows.items():
                    if name in row:
                        family.add_metric(values[of], float(row[name]))
                if family.samples:
                    yield family
            text = "Seconds of batches in each stage, summed over batches"
            stages = CounterMetricFamily(f"glt_{scope}_stage_seconds", text, labels=[*labels, "stage"])
            for of, row in rows.items():
                for stage in _STAGES:
                    if f"{stage}_s" in row:
                        stages.add_metric([*values[of], stage], row[f"{stage}_s"])
            if stages.samples:
                yield stages
