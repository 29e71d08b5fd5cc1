"""The kinds of seeds, as they are told to another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glt.distributed.batch_start import Seeds
from glt.distributed.node_seeds import NodeSeeds

_KINDS: dict[str, Callable[..., Seeds]] = {"nodes": NodeSeeds}


def seeds_from_json(options: dict[str, Any]) -> Seeds:
    """Rebuilds what :meth:`Seeds.to_json` described."""
    options = dict(options)
    return _KINDS[options.pop("seeds")](**options)
