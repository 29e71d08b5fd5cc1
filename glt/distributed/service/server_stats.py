"""What a server does, in numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from glt.distributed.service.ledger import Numbers, total

if TYPE_CHECKING:
    from glt.distributed.service.server import DistServer


def collect(server: DistServer) -> dict[str, Any]:
    """Returns counters since the start, as plain values.

    ``server`` names it; ``uptime_s``; ``num_clients``, ``num_loaders`` and ``num_workers`` there are now;
    ``num_restarts`` of sampling processes that died; ``is_draining``; ``loaders`` that are open, by id; ``workers`` by
    place, whichever process has it now (``pid``; None: none) or had it before; and ``totals`` of all workers, which
    count loaders that are closed too. ``tensors``, by name, are the distributed tensors that it keeps rows of:
    ``shape`` and ``dtype`` of the whole, ``num_rows`` and ``num_bytes`` here, ``num_holders`` (handles of
    trainers), and counters ``num_reads, num_writes, read_bytes, written_bytes``, of which additions are writes.

    Each of these has, first, counters, which never fall: ``num_batches`` and ``sent_bytes`` handed to connections,
    ``num_errors`` that were sent in place of a batch; ``sampling_s, gathering_s`` of native work, ``remote_s`` waiting
    for other servers, ``blocked_s`` that a batch was there and its client had no room for it; ``num_nodes, num_edges,
    num_remote_nodes, num_cached_nodes, remote_bytes`` as in the loader's own stats. Then what is so now: ``num_queued,
    queued_bytes`` waiting to be sent, ``num_running`` being made, ``num_unread`` sent and not yet taken by the trainer;
    ``batches_per_s, bytes_per_s`` of the last five seconds. And ``remote_node_ratio, cache_hit_ratio`` of all.

    A sampler tells its numbers once a second, and of a stream when it ends; what one did since is lost if it is killed.
    """
    loaders, num_clients = server.loaders.all(), len(server.clients.sessions())
    pids, num_restarts = server.pool.pids(), server.pool.num_restarts()
    by_worker, by_loader = server.pool.ledger.read()
    none = total(())
    return {
        "server": str(server.entry),
        "uptime_s": time.time() - server.began_s,
        "num_clients": num_clients,
        "num_loaders": len(loaders),
        "num_workers": len(pids),
        "num_restarts": sum(num_restarts.values()),
        "is_draining": server.is_draining,
        "tensors": server.tensors.stats(),
        "totals": _with_ratios(total(by_worker.values())),
        "loaders": {
            id_: {
                "client": str(loader.session), "age_s": time.time() - loader.began_s,
                "num_workers": len(loader.workers), **_with_ratios(by_loader.get(id_, none)),
            }
            for id_, loader in loaders.items()
        },
        "workers": {
            str(worker): {
                "pid": pids.get(worker), "num_restarts": num_restarts.get(worker, 0),
                **_with_ratios(by_worker.get(worker, none)),
            }
            for worker in sorted(pids.keys() | by_worker.keys())
        },
    }  # fmt: skip


def _with_ratios(each: Numbers) -> Numbers:
    nodes, remote, cached = (each[name] for name in ("num_nodes", "num_remote_nodes", "num_cached_nodes"))
    return {
        **each,
        "remote_node_ratio": remote / nodes if nodes else 0.0,
        "cache_hit_ratio": cached / (cached + remote) if cached else 0.0,
    }
