"""What samplers ask of partitions, and the bytes that it travels as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt.channel.message import MessageKind, MessageLayout, encode_message, read_message
from glt.data import pool

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class OneHopRequest:
    """Sample one hop of these nodes, all owned by the partition that is asked.

    Attributes:
        nodes: Global ids ``[n]``, int64.
        num_neighbors, replace, batch_key, hop, with_edge: As in the native sampler.
    """

    nodes: Tensor
    num_neighbors: int
    replace: bool
    batch_key: int
    hop: int
    with_edge: bool

    def encode(self) -> Tensor:
        key = np.uint64(self.batch_key).astype(np.int64)
        spec = torch.tensor([self.num_neighbors, self.replace, int(key), self.hop, self.with_edge])
        return encode_message({"nodes": self.nodes, "spec": spec}, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> OneHopRequest:
        tensors = read_message(request).tensors
        num_neighbors, replace, key, hop, with_edge = tensors["spec"].tolist()
        return cls(tensors["nodes"], num_neighbors, bool(replace), key % 2**64, hop, bool(with_edge))


@dataclass(frozen=True)
class RowsRequest:
    """Look up rows of tables for these ids, all owned by the partition that is asked.

    Attributes:
        kind: ``'node'`` or ``'edge'``.
        ids: Global ids ``[n]``, int64.
        tables: Names of the tables.
    """

    kind: str
    ids: Tensor
    tables: tuple[str, ...]

    def encode(self) -> Tensor:
        names = torch.frombuffer(bytearray("\n".join((self.kind, *self.tables)).encode()), dtype=torch.uint8)
        return encode_message({"ids": self.ids, "names": names}, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> RowsRequest:
        tensors = read_message(request).tensors
        kind, *tables = bytes(tensors["names"].numpy()).decode().split("\n")
        return cls(kind, tensors["ids"], tuple(tables))


def reply_buffer(specs: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the buffer of a reply in recycled memory, and its tensors, to be filled in place."""
    layout = MessageLayout(specs)
    buffer = pool.empty((layout.nbytes,), torch.uint8)
    layout.write_header(buffer, MessageKind.REPLY)
    return buffer, layout.tensors(buffer)


def id_dtype(largest: int) -> torch.dtype:
    """The dtype in which ids up to ``largest`` travel."""
    return torch.int32 if largest <= _INT32_MAX else torch.int64
