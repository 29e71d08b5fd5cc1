"""Other values for constants of the service in sampling processes: the interpreter reads this when it starts."""

from __future__ import annotations

import importlib


def set_constants(constants: dict[str, float]) -> None:
    """Sets constants of the service, in whatever module they are imported into."""
    for each in (
        "wire.connection",
        "wire.listener",
        "wire.transport",
        "server.membership",
        "server.client",
        "server.remote",
        "server.clients",
        "server.stream",
        "server.pool",
    ):
        module = importlib.import_module(f"glt.distributed.{each}")
        for name, value in constants.items():
            if hasattr(module, name):
                setattr(module, name, value)
