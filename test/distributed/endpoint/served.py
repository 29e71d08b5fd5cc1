"""A server with a client that goes through a loader, and the address of its endpoint."""

from contextlib import contextmanager

from service import Stage

import glt


def metrics_at():
    return list(glt.distributed.get_server().metrics.address)


@contextmanager
def working_server(path):
    """Stage and ``HOST:PORT``; what follows the ``with`` block finds nothing left."""
    with Stage(2) as stage:
        stage.start_servers(path, 1, 1, metrics_port=0)
        stage.start_clients(1, 1)
        stage.set_going(1, "train")
        yield stage, "{}:{}".format(*stage.ask(0, "run_function", metrics_at))


def finish(stage):
    stage.ask(1, "stop", "train")
    stage.ask(1, "close", "train")
    stage.finish((1,), (0,))
