"""A tensor whose rows servers keep: named, read and written from any trainer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glt.data.arrays import as_ids
from glt.data.schema import EdgeType, NodeType
from glt.distributed.store.initial_values import encode_init
from glt.distributed.store.placement import Placement
from glt.distributed.store.tensor_spec import TensorSpec
from glt.distributed.world import World, require_world


class DistTensor:
    """Rows of one dtype and shape, on the servers.

    Args:
        shape: Of the whole tensor, rows first.
        dtype: Any that glt stores, bfloat16 too.
        name: What it is found by; None: it is freed when no trainer holds it any more.
        init_func: First values: None or ``'zeros'``.
        part: The node type or edge type that its rows are of, which are then kept where those are; None: evenly.
        rng_seed: Of random first values.
        world: Default: that of this process.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        name: str | None = None,
        init_func: Any = None,
        part: NodeType | EdgeType | None = None,
        *,
        rng_seed: int = 0,
        world: World | None = None,
    ) -> None:
        world = require_world() if world is None else world
        shape = tuple(shape)
        placement = Placement.of(part, shape[0], world)
        spec = TensorSpec(
            name or f"anonymous {secrets.token_hex(8)}", shape, str(dtype).removeprefix("torch."), placement.spec(),
            encode_init(init_func, rng_seed), name is None, world.num_trainers,
        )  # fmt: skip
        handle = secrets.token_hex(8)
        replies = [world.call(s, "glt.tensor.create", spec.to_json(), handle) for s in range(world.num_servers)]
        self._open(world, placement, spec, handle, [reply.result()["generation"] for reply in replies])

    @classmethod
    def find(cls, name: str, *, world: World | None = None) -> DistTensor:
        """Finds a tensor that some trainer has created.

        Raises:
            LookupError: If there is none of this name; names those there are.
        """
        world = require_world() if world is None else world
        handle = secrets.token_hex(8)
        found = [reply.result() for reply in [
            world.call(server, "glt.tensor.open", name, handle) for server in range(world.num_servers)
        ]]  # fmt: skip
        spec = TensorSpec.from_json(found[0]["spec"])
        self = cls.__new__(cls)
        placement = Placement.from_spec(spec.placement, world.data)
        self._open(world, placement, spec, handle, [each["generation"] for each in found])
        return self

    def _open(
        self, world: World, placement: Placement, spec: TensorSpec, handle: str, generations: list[int]
    ) -> None:  # fmt: skip
        self.world, self.placement, self.spec = world, placement, spec
        self._handle, self.generations = handle, tuple(generations)
        self.name, self.shape, self.dtype = spec.name, torch.Size(spec.shape), spec.torch_dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: Any) -> Tensor:
        at = as_ids(ids, "ids")
        out = torch.empty((len(at), *self.shape[1:]), dtype=self.dtype)
        portions = self.placement.portions(at.numpy())
        replies = [
            self.world.call(each.server, "glt.tensor.read", self.generations[each.server], torch.from_numpy(each.rows))
            for each in portions
        ]
        for portion, reply in zip(portions, replies, strict=True):
            where = slice(None) if portion.positions is None else torch.from_numpy(portion.positions).long()
            out[where] = reply.result()
        return out

    def __setitem__(self, ids: Any, values: Tensor) -> None:
        self._change("glt.tensor.write", ids, values)

    def add(self, ids: Any, values: Tensor) -> None:
        """Adds to rows; duplicates add up."""
        self._change("glt.tensor.add", ids, values)

    def _change(self, name: str, ids: Any, values: Tensor) -> None:
        replies = []
        for portion in self.placement.portions(as_ids(ids, "ids").numpy()):
            mine = values if portion.positions is None else values[torch.from_numpy(portion.positions).long()]
            generation = self.generations[portion.server]
            replies.append(self.world.call(portion.server, name, generation, torch.from_numpy(portion.rows), mine))
        for reply in replies:
            reply.result()

    def delete(self) -> None:
        """Deletes it, for everyone."""
        for reply in [
            self.world.call(server, "glt.tensor.delete", generation)
            for server, generation in enumerate(self.generations)
        ]:
            reply.result()
