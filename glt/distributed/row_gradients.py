"""Gradients of the rows of an embedding, as they are sent to the servers that keep these."""

from __future__ import annotations

import torch
from torch import Tensor

from glt import _core
from glt.distributed.dist_parameter import DistParameter


def gradients_by_server(p: DistParameter) -> list[tuple[Tensor, Tensor]] | None:
    """Takes the gradients of an embedding: for each server, rows there ``[n]``, int64, with theirs ``[n, dim]``, float.

    Equal rows are summed, unless the only server gets it all from the only trainer and does the same. None if there was
    no backward pass.
    """
    taken = p.take_gradients()
    if taken is None:
        return None
    ids, grads = taken
    tensor = p.tensor
    if tensor.world.num_trainers > 1 or tensor.world.num_servers > 1:
        ids, grads = _merged(ids, grads, len(tensor))
    empty = torch.empty(0, dtype=torch.int64), torch.empty(0, grads.shape[1])
    found = [empty] * tensor.world.num_servers
    for portion in tensor.placement.portions(ids.numpy()):
        mine = grads if portion.positions is None else grads[torch.from_numpy(portion.positions).long()]
        found[portion.server] = torch.from_numpy(portion.rows), mine
    return found


def _merged(ids: Tensor, grads: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Distinct ids, ascending, with the sum of the gradients of each."""
    merge = _core.RowMerge([(ids.numpy(), grads.numpy())], num_rows, grads.shape[1])
    out_ids, out = torch.empty(len(merge), dtype=torch.int64), torch.empty(len(merge), grads.shape[1])
    merge.sum(out_ids.numpy(), out.numpy(), num_threads=torch.get_num_threads())
    return out_ids, out
