"""What a server and its sampling processes agree on before they talk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PACKET_BYTES = 160 << 10  # what Linux lets through by default


@dataclass
class PoolWorkerSpec:
    """What a sampling process of a server is told when it starts, as JSON.

    Attributes:
        server_rank, worker: Whose it is, and which one.
        dataset: How to map the partition: :meth:`DistDataset.to_json`.
        num_places: Batches in flight at most, over all loaders.
        num_rpc_threads, timeout_s: For requests of other servers, and to them.
        log_level, log_format: Of Python's logging, and ``'text'`` or ``'json'``.
    """

    server_rank: int
    worker: int
    dataset: dict[str, Any]
    num_places: int
    num_rpc_threads: int
    timeout_s: float
    log_level: int
    log_format: str
