"""Servers and clients of the tests: the first ranks of a cluster are servers, the others clients."""

import glt
from glt.distributed.server.membership import ServerEntry

ENTRY = ServerEntry(0, "127.0.0.1", 1, "here", 5, "h", 0, "g", "r", 3, None)
ANSWER = {"entry": ENTRY.to_json(), "session": "s", "about": {}}
"""What a server says to a client that it takes in."""


def serve(trainer, path, num_servers, num_clients, **given):
    """Makes this process a server of partition ``rank % num_parts``, loaded as ``load`` says."""
    num_parts = glt.partition.load_partition(path, 0, verify=False).manifest.num_parts
    data = glt.distributed.DistDataset().load(path, trainer.rank % num_parts, **given.pop("load", {}))
    given = {"read_local": False, "rpc_timeout": 120.0, "max_workers": 4, **given}
    glt.distributed.init_server(num_servers, num_clients, trainer.rank, data, "localhost", trainer.port, **given)


def become_client(trainer, num_servers, num_clients, client_rank=None, **given):
    """Makes this process a client."""
    given = {"rpc_timeout": 120.0, **given}
    rank = trainer.rank - num_servers if client_rank is None else client_rank
    return glt.distributed.init_client(num_servers, num_clients, rank, "localhost", trainer.port, **given)


def serve_or(
    trainer, path, num_servers, num_clients, client,
    server_options, *args,
):  # fmt: skip
    """What each process of a cluster does: a server serves until all clients have left, a client calls
    ``client(trainer, rank, *args)``."""
    if trainer.rank < num_servers:
        serve(trainer, path, num_servers, num_clients, **server_options)
        glt.distributed.wait_and_shutdown_server(100.0)
        return None
    context = become_client(trainer, num_servers, num_clients)
    result = client(trainer, context.rank, *args)
    glt.distributed.shutdown_client()
    return result


def options(**given):
    return glt.distributed.RemoteDistSamplingWorkerOptions(**{"buffer_size": "8MB", **given})
