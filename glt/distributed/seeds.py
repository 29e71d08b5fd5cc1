"""The kinds of seeds, as they are told to another process."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glt.distributed.batch_start import Seeds
from glt.distributed.link_seeds import LinkSeeds
from glt.distributed.node_seeds import NodeSeeds


def seeds_from_json(options: dict[str, Any], extras: dict[str, Tensor]) -> Seeds:
    """Rebuilds what :meth:`Seeds.to_json` and :meth:`Seeds.extras` described."""
    options = dict(options)
    kind = options.pop("seeds")
    return LinkSeeds.from_json(extras, **options) if kind == "links" else NodeSeeds(**options)
