"""A distributed tensor of which a server keeps some rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glt.distributed.store.placement import Placement
from glt.distributed.store.shard import Shard
from glt.distributed.store.tensor_spec import TensorSpec
from glt.distributed.store.turn import Turn


@dataclass(eq=False)
class StoredTensor:
    """A tensor of which this server keeps some rows.

    Attributes:
        spec: What it is.
        generation: Its number; no other tensor of this store, or of another that this one follows, has it.
        placement: Who keeps its rows.
        shard: Those of this server.
        created_by: Who made it.
        handles: Who holds it: trainers and the names they gave their handles.
        seen: Ranks of the trainers that have created it, or have left.
        peers: Its numbers on all servers; None until all are known to have it.
        turns: Of handles, the order of their changes.
        num_reads, num_writes, read_bytes, written_bytes: Since it was made; additions are writes.
    """

    spec: TensorSpec
    generation: int
    placement: Placement
    shard: Shard
    created_by: str
    handles: set[tuple[Any, str]] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    turns: dict[tuple[Any, str], Turn] = field(default_factory=dict)
    peers: list[int] | None = None
    num_reads: int = 0
    num_writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def stats(self) -> dict[str, Any]:
        """What the server has of it, and what was done with it."""
        return {
            "shape": list(self.spec.shape), "dtype": self.spec.dtype, "num_rows": len(self.shard),
            "num_bytes": self.shard.tensor.nbytes, "num_holders": len(self.handles), "num_reads": self.num_reads,
            "num_writes": self.num_writes, "read_bytes": self.read_bytes, "written_bytes": self.written_bytes,
        }  # fmt: skip
