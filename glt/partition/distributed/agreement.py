"""What all ranks must have been given alike."""

from __future__ import annotations

from typing import Any

from glt.partition.distributed.exchange import Exchange


def agree(exchange: Exchange, given: dict[str, object]) -> None:
    """Raises ValueError, on all ranks, if the values of an argument differ between ranks; names them and the ranks."""
    shown = {name: repr(value) for name, value in given.items()}
    everyone: list[dict[str, Any]] = exchange.gather(shown)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        for name in (*first, *(name for name in other if name not in first)):
            if first.get(name) != other.get(name):
                raise ValueError(
                    f"{name} differs between ranks: rank 0 has {first.get(name, 'none')}, rank {rank} has "
                    f"{other.get(name, 'none')}; expected the same on all of them"
                )
