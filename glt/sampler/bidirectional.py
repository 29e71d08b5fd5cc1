"""Samples with the reverses of their edges."""

from __future__ import annotations

import copy

from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput


def bidirectional(
    out: SamplerOutput | HeteroSamplerOutput, keep_orig_edges: bool = False
) -> SamplerOutput | HeteroSamplerOutput:
    """As PyG's ``out.to_bidirectional``, with the CPU's result on every device.

    Of edges that become one, PyG keeps the id that is written last. On a GPU that is any of them, so that the edges of
    a homogeneous sample with ids take the way over the CPU; those of several types keep no ids.
    """
    if isinstance(out, HeteroSamplerOutput) or out.edge is None or not out.row.is_cuda:
        return out.to_bidirectional(keep_orig_edges=keep_orig_edges)
    here = copy.copy(out)
    here.row, here.col, here.edge = out.row.cpu(), out.col.cpu(), out.edge.cpu()
    made = here.to_bidirectional(keep_orig_edges=keep_orig_edges)
    made.row, made.col, made.edge = (each.to(out.row.device) for each in (made.row, made.col, made.edge))
    if keep_orig_edges:
        made.orig_row, made.orig_col = out.row, out.col
    return made
