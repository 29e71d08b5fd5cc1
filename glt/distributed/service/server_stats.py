"""What a server does, in numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from glt.distributed.dist_neighbor_sampler import STATS

if TYPE_CHECKING:
    from glt.distributed.service.server import DistServer

_SUMMED = (*STATS, "num_batches", "sent_bytes", "num_queued", "queued_bytes", "num_running", "num_unread")


def collect(server: DistServer) -> dict[str, Any]:
    """Returns counters since the start, as plain values.

    ``server`` names it; ``uptime_s``; ``num_clients``, ``num_loaders`` and ``num_workers`` there are now;
    ``is_draining``; ``loaders`` by id, ``workers`` by place, and ``totals``, which count loaders that are closed too.
    Each of these has: ``num_batches`` and ``sent_bytes`` sent; ``num_queued, queued_bytes`` waiting to be sent;
    ``num_running`` being made; ``num_unread`` sent and not yet taken by the trainer; ``sampling_s, gathering_s`` of
    native work, ``remote_s`` waiting for other servers, ``blocked_s`` waiting in line to be sent; ``num_nodes,
    num_edges, num_remote_nodes, num_cached_nodes, remote_bytes, remote_node_ratio, cache_hit_ratio`` as in the loader's
    own stats. A sampler tells its numbers once a second.
    """
    with server._lock:
        loaders = dict(server._loaders)
        num_clients = len(server._sessions)
    workers = server.pool.stats()
    by_loader: dict[str, dict[str, Any]] = {
        id_: {
            "client": str(loader.session), "age_s": time.time() - loader.began_s, "num_workers": len(loader.workers),
            **dict.fromkeys(_SUMMED, 0.0),
        }
        for id_, loader in loaders.items()
    }  # fmt: skip
    totals = dict.fromkeys(_SUMMED, 0.0)
    by_worker: dict[str, dict[str, Any]] = {}
    for worker, told in workers.items():
        mine = by_worker[str(worker)] = {"pid": told["pid"], **dict.fromkeys(_SUMMED, 0.0)}
        _add(mine, told.get("closed", {}))
        for key, stream in told.get("streams", {}).items():
            _add(mine, stream)
            loader = by_loader.get(key.rpartition("/")[0])
            if loader is not None:
                _add(loader, stream)
        _add(totals, mine)
    for each in (*by_loader.values(), *by_worker.values(), totals):
        _add_ratios(each)
    return {
        "server": str(server.entry),
        "uptime_s": time.time() - server.began_s,
        "num_clients": num_clients,
        "num_loaders": len(loaders),
        "num_workers": len(workers),
        "is_draining": server.is_draining,
        "totals": totals,
        "loaders": by_loader,
        "workers": by_worker,
    }


def _add(to: dict[str, Any], more: dict[str, Any]) -> None:
    for name in _SUMMED:
        to[name] += more.get(name, 0.0)


def _add_ratios(each: dict[str, Any]) -> None:
    nodes, remote, cached = (each[name] for name in ("num_nodes", "num_remote_nodes", "num_cached_nodes"))
    each["remote_node_ratio"] = remote / nodes if nodes else 0.0
    each["cache_hit_ratio"] = cached / (cached + remote) if cached else 0.0
