"""What samplers ask of partitions, and the bytes that it travels as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageKind, MessageLayout, encode_message, read_message
from glt.data.arrays import pooled_empty
from glt.errors import MessageError
from glt.sampler.config import MAX_HOPS

# The tensors of a request that a peer has sent, checked before anything is made of them.


class RequestFields:
    """The tensors of a request that a peer has sent, checked; what does not fit is a MessageError that names it."""

    def __init__(self, kind: str, request: Tensor) -> None:
        message = read_message(request)
        if message.kind is not MessageKind.REQUEST:
            raise MessageError(f"{kind}: the message is of kind {message.kind.name}, expected REQUEST")
        self.kind, self.tensors = kind, message.tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def vector(self, name: str, dtype: torch.dtype = torch.int64, length: int | None = None) -> Tensor:
        """Returns a tensor of one dimension, of ``length`` if that is given."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise MessageError(f"{self.kind}: tensor {name!r} is missing; there are {sorted(self.tensors)}")
        if tensor.dtype != dtype or tensor.dim() != 1 or length not in (None, len(tensor)):
            expected = "n" if length is None else length
            raise MessageError(
                f"{self.kind}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, expected {dtype} [{expected}]"
            )
        return tensor

    def numbers(self, name: str, count: int) -> list[int]:
        """Returns a vector of so many int64 as integers."""
        numbers: list[int] = self.vector(name, length=count).tolist()
        return numbers

    def words(self, name: str) -> list[str]:
        """Returns lines of text, at least one."""
        try:
            return bytes(self.vector(name, torch.uint8).numpy()).decode().split("\n")
        except UnicodeDecodeError as error:
            raise MessageError(f"{self.kind}: tensor {name!r} is no text: {error}") from error

    def require(self, name: str, value: int, least: int, most: int) -> int:
        """Returns a number, or raises MessageError if it is out of range."""
        if not least <= value <= most:
            raise MessageError(f"{self.kind}: {name} = {value}, expected {least} to {most}")
        return value


_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class Request(Protocol):
    """Asks a partition something. Types of nodes and edges are positions in the schema."""

    method: ClassVar[str]

    def encode(self) -> Tensor: ...

    @classmethod
    def decode(cls, request: Tensor) -> Request:
        """Reads the request that a peer has sent; the tensors alias its bytes."""
        ...


@dataclass(frozen=True)
class OneHopRequest:
    """Sample one hop of these nodes, all owned by the partition that is asked; numbers are as in the native sampler.

    Attributes:
        nodes: Ids ``[n]`` of the nodes to expand, int64.
        tree: The tree of each node in a disjoint batch ``[n]``, uint32; else None.
        seed_time: Latest time of each node's edges ``[n]``, int64; None: any.
        excluded: Pairs ``(expanded [m], neighbour [m])``, int64, whose edges must not be taken; None: none.
        time_window, half_life: As of :attr:`glt.sampler.SamplingConfig.native_times`; -1 and 0: none.
        shared_key: Key of the numbers of nodes, of which each node takes the lowest; None: it draws.
        with_time: Send the times of edges, int64, in the place of their ids.
    """

    method: ClassVar[str] = "sample_one_hop"

    edge_type: int
    nodes: Tensor
    num_neighbors: int
    replace: bool
    batch_key: int
    hop: int
    with_edge: bool
    weighted: bool = False
    last: bool = False
    tree: Tensor | None = None
    seed_time: Tensor | None = None
    excluded: tuple[Tensor, Tensor] | None = None
    time_window: int = -1
    half_life: int = 0
    shared_key: int | None = None
    with_time: bool = False

    def encode(self) -> Tensor:
        key, shared_key = (int(np.uint64(each or 0).astype(np.int64)) for each in (self.batch_key, self.shared_key))
        times, numbers = (self.time_window, self.half_life), (self.shared_key is not None, shared_key)
        spec = [self.edge_type, self.num_neighbors, self.replace, key, self.hop, self.with_edge, self.weighted]
        spec += [self.last, *times, *numbers, self.with_time]
        tensors = {"nodes": self.nodes, "spec": torch.tensor(spec)}
        if self.tree is not None:
            tensors["tree"] = self.tree
        if self.seed_time is not None:
            tensors["seed_time"] = self.seed_time
        if self.excluded is not None:
            tensors["center"], tensors["neighbor"] = self.excluded
        return encode_message(tensors, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> OneHopRequest:
        read = RequestFields("request for a hop", request)
        nodes = read.vector("nodes")
        edge_type, num_neighbors, replace, key, hop, *more = read.numbers("spec", 13)
        *flags, time_window, half_life, by_number, shared_key, with_time = more
        read.require("num_neighbors", num_neighbors, -1, _INT32_MAX)
        read.require("hop", hop, 0, MAX_HOPS - 1)
        read.require("time_window", time_window, -1, _INT64_MAX)
        read.require("half_life", half_life, 0, _INT64_MAX)
        tree = read.vector("tree", torch.uint32, len(nodes)) if "tree" in read else None
        seed_time = read.vector("seed_time", length=len(nodes)) if "seed_time" in read else None
        excluded = None
        if "center" in read or "neighbor" in read:
            center = read.vector("center")
            excluded = center, read.vector("neighbor", length=len(center))
        with_edge, weighted, last = map(bool, flags)
        drawn = edge_type, nodes, num_neighbors, bool(replace), key % 2**64, hop, with_edge, weighted, last
        number_key = shared_key % 2**64 if by_number else None
        return cls(*drawn, tree, seed_time, excluded, time_window, half_life, number_key, bool(with_time))

    @property
    def native_excluded(self) -> _core.Exclusions | None:
        return self.excluded and _core.Exclusions(*(side.numpy() for side in self.excluded))


@dataclass(frozen=True)
class InducedRequest:
    """Send the edges between nodes ``[n]`` that the partition owns and ``members [m]`` of a batch; ids are int64. In a
    disjoint batch, between those of one tree each: ``tree [n]`` and ``member_tree [m]``, uint32."""

    method: ClassVar[str] = "induced_rows"
    with_time: ClassVar[bool] = False

    edge_type: int
    nodes: Tensor
    members: Tensor
    with_edge: bool
    tree: Tensor | None = None
    member_tree: Tensor | None = None

    def encode(self) -> Tensor:
        tensors = {"nodes": self.nodes, "members": self.members}
        tensors["spec"] = torch.tensor([self.edge_type, self.with_edge])
        trees = {"tree": self.tree, "member_tree": self.member_tree}
        tensors |= {name: each for name, each in trees.items() if each is not None}
        return encode_message(tensors, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> InducedRequest:
        read = RequestFields("request for induced edges", request)
        edge_type, with_edge = read.numbers("spec", 2)
        nodes, members = read.vector("nodes"), read.vector("members")
        trees: list[Tensor] = []
        if "tree" in read or "member_tree" in read:
            trees = [
                read.vector("tree", torch.uint32, len(nodes)),
                read.vector("member_tree", torch.uint32, len(members)),
            ]
        return cls(edge_type, nodes, members, bool(with_edge), *trees)


@dataclass(frozen=True)
class DegreesRequest:
    """Say how many edges of a type nodes ``[n]``, int64, have, 2^32 - 1 at most; all owned by the partition that is
    asked."""

    method: ClassVar[str] = "degrees"
    with_edge: ClassVar[bool] = False
    with_time: ClassVar[bool] = False

    edge_type: int
    nodes: Tensor

    def encode(self) -> Tensor:
        return encode_message({"nodes": self.nodes, "spec": torch.tensor([self.edge_type])}, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> DegreesRequest:
        read = RequestFields("request for degrees", request)
        (edge_type,) = read.numbers("spec", 1)
        return cls(edge_type, read.vector("nodes"))


@dataclass(frozen=True)
class RowsRequest:
    """Look up rows of the named tables for ``ids [n]``, int64, of nodes or edges that the partition owns."""

    method: ClassVar[str] = "gather_rows"

    kind: str
    type: int
    ids: Tensor
    tables: tuple[str, ...]

    def encode(self) -> Tensor:
        names = torch.frombuffer(bytearray("\n".join((self.kind, *self.tables)).encode()), dtype=torch.uint8)
        tensors = {"ids": self.ids, "names": names, "spec": torch.tensor([self.type])}
        return encode_message(tensors, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> RowsRequest:
        read = RequestFields("request for rows", request)
        kind, *tables = read.words("names")
        (type_,) = read.numbers("spec", 1)
        return cls(kind, type_, read.vector("ids"), tuple(tables))


@dataclass(frozen=True)
class HasEdgesRequest:
    """Say which pairs ``[n]`` are edges; the partition owns the ``centers``, which would be expanded. Ids are int64."""

    method: ClassVar[str] = "has_edges"

    edge_type: int
    centers: Tensor
    neighbors: Tensor

    def encode(self) -> Tensor:
        tensors = {"spec": torch.tensor([self.edge_type]), "centers": self.centers, "neighbors": self.neighbors}
        return encode_message(tensors, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> HasEdgesRequest:
        read = RequestFields("request for edges between pairs", request)
        (edge_type,) = read.numbers("spec", 1)
        centers = read.vector("centers")
        return cls(edge_type, centers, read.vector("neighbors", length=len(centers)))


@dataclass(frozen=True)
class EarliestRequest:
    """Say which of the owned nodes of a type has the smallest time, and that time."""

    method: ClassVar[str] = "earliest_node"

    node_type: int

    def encode(self) -> Tensor:
        return encode_message({"spec": torch.tensor([self.node_type])}, MessageKind.REQUEST)

    @classmethod
    def decode(cls, request: Tensor) -> EarliestRequest:
        return cls(*RequestFields("request for the earliest node", request).numbers("spec", 1))


def reply_buffer(specs: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the buffer of a reply in recycled memory, and its tensors, to be filled in place."""
    layout = MessageLayout(specs)
    buffer = pooled_empty((layout.nbytes,), torch.uint8)
    layout.write_header(buffer, MessageKind.REPLY)
    return buffer, layout.tensors(buffer)


def id_dtype(num_ids: int) -> torch.dtype:
    """The dtype in which ids below ``num_ids`` travel."""
    return torch.int32 if num_ids <= _INT32_MAX else torch.int64
