"""The one message of glt: flat named tensors, the same bytes in shared memory and on the wire.

::

    offset  0   magic "GLTM" · version u16 · kind u16 · number of tensors u32 · 4 bytes unused
           16   total bytes u64 · loader i64 · epoch i64 · index i64
           48   12 bytes unused · checksum u32 of bytes 0..60 and the table (CRC-32)
           64   table, 96 bytes per tensor:
                name (40 bytes UTF-8, zero padded) · dtype u8 · dimensions u8 · 6 bytes unused
                shape 4 x u64 · offset of the data u64 · bytes of the data u64
            …   data, each tensor aligned to 64 bytes

All numbers are little-endian. Reading copies nothing: tensors alias the buffer and keep it alive. The checksum covers
what reading relies on; the data carry none, as neither shared memory nor TCP flips bits.
"""

import os
import socket
import struct
import traceback
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from glt._checks import format_size
from glt._reprs import brief, says
from glt.data.arrays import pooled_empty
from glt.data.device import Event
from glt.errors import GltError, MessageError, PartitionError, PeerLost, RemoteError

ALIGNMENT = 64
MAX_DIMS = 4
MAX_NAME_BYTES = 40
MAX_TENSORS = 1 << 16

_MAGIC = b"GLTM"
_VERSION = 1
_HEADER = struct.Struct("<4sHHI4xQqqq12x")  # 60 bytes; the checksum follows
_CHECKSUM = struct.Struct("<I")
_ENTRY = struct.Struct("<40sBB6x4QQQ")
_TABLE_START = _HEADER.size + _CHECKSUM.size

# Code in the message -> dtype. Append only: the codes are the format.
_DTYPES: tuple[torch.dtype, ...] = tuple(
    getattr(torch, name)
    for name in (
        "uint8 int8 int16 int32 int64 bool float16 bfloat16 float32 float64 complex32 complex64 complex128 "
        "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    ).split()
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


def _numpy_twin(dtype: torch.dtype) -> tuple[np.dtype, torch.dtype | None]:
    """A NumPy dtype of the same size, and ``dtype`` itself where it then has to be viewed as that."""
    name = str(dtype).removeprefix("torch.")
    if (
        getattr(np.sctypeDict.get(name), "__module__", None) == "numpy"
    ):  # ml_dtypes adds its own, which torch cannot read
        return np.dtype(name), None
    return np.dtype(f"u{dtype.itemsize}"), dtype


_TWINS = tuple(_numpy_twin(dtype) for dtype in _DTYPES)
_PADDING = tuple((0,) * (MAX_DIMS - num_dims) for num_dims in range(MAX_DIMS + 1))
_ITEM_BYTES = tuple(dtype.itemsize for dtype in _DTYPES)


class MessageKind(IntEnum):
    """What a message is: a batch, an error in place of one, the end, a request or a reply.

    Example:
        >>> [kind.name for kind in glt.channel.MessageKind]
        ['BATCH', 'ERROR', 'END', 'REQUEST', 'REPLY']
    """

    BATCH = 1
    ERROR = 2
    END = 3
    REQUEST = 4
    REPLY = 5


_KINDS = {int(kind): kind for kind in MessageKind}


@dataclass(slots=True)
class Message:
    """A message that was read. ``tensors`` alias its buffer.

    Example:
        >>> glt.channel.read_message(glt.channel.encode_message({"x": torch.ones(2)}, glt.channel.MessageKind.BATCH))
        Message(BATCH, loader 0, epoch 0, index 0, x: float32 [2])
    """

    kind: MessageKind
    loader: int
    """Which iteration of its loader it is of: iterations count from 1, and several may be of the same epoch."""
    epoch: int
    index: int
    tensors: dict[str, Tensor]
    buffer: Tensor | None = None
    """The bytes that the tensors alias; None where they have none in common."""
    ready: Event | None = None
    """Of tensors on a device: what the stream that uses them waits for first."""

    def raise_if_error(self) -> None:
        """Raises the exception that the message carries, if any, as :class:`glt.errors.RemoteError`."""
        if self.kind is MessageKind.ERROR:
            raise remote_error(self)

    @says
    def __repr__(self) -> str:
        tensors = ", ".join(f"{name}: {brief(tensor)}" for name, tensor in self.tensors.items())
        return f"{self.kind.name}, loader {self.loader}, epoch {self.epoch}, index {self.index}, {tensors}"


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@lru_cache(maxsize=MAX_TENSORS)
def _encode_name(name: str) -> bytes:
    encoded = name.encode()
    if not 1 <= len(encoded) <= MAX_NAME_BYTES or b"\0" in encoded:
        raise ValueError(f"tensor name {name!r}: expected 1 to {MAX_NAME_BYTES} bytes of text, got {len(encoded)}")
    return encoded


@lru_cache(maxsize=MAX_TENSORS)
def _decode_name(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()


def _view(array: np.ndarray, code: int, shape: Sequence[int], offset: int) -> Tensor:
    # The cheapest way from bytes to a tensor that there is; NumPy checks the bounds once more.
    twin, dtype = _TWINS[code]
    tensor = torch.from_numpy(np.ndarray(shape, twin, array, offset))
    return tensor if dtype is None else tensor.view(dtype)


def device_view(buffer: Tensor, start: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A tensor that lies in bytes on any device, uint8, from ``start`` on."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes == 0:  # it may lie behind the end
        return torch.empty(tuple(shape), dtype=dtype, device=buffer.device)
    return buffer[start : start + nbytes].view(dtype).view(tuple(shape))


class MessageLayout:
    """Where each tensor of a message lies. It depends on names, dtypes and shapes alone and can be reused.

    Args:
        specs: By name (at most 40 bytes of UTF-8), the dtype and the shape (at most 4 dimensions).

    Example:
        >>> layout = glt.channel.MessageLayout({"x": (torch.float32, [2, 4]), "n_id": (torch.int64, [2])})
        >>> layout
        MessageLayout(2 tensors, 336 B)
    """

    __slots__ = ("_places", "_table", "nbytes")

    def __init__(self, specs: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> None:
        if len(specs) > MAX_TENSORS:
            raise ValueError(f"message of {len(specs)} tensors: expected at most {MAX_TENSORS}")
        end = _TABLE_START + len(specs) * _ENTRY.size
        entries: list[bytes] = []
        self._places: list[tuple[str, int, tuple[int, ...], int]] = []
        for name, (dtype, sizes) in specs.items():
            shape = tuple(sizes)
            code = _CODES.get(dtype)
            num_dims = len(shape)
            if code is None:
                raise TypeError(f"tensor {name!r} has dtype {dtype}: a message cannot carry it")
            if num_dims > MAX_DIMS or (shape and min(shape) < 0):
                raise ValueError(f"tensor {name!r} has shape {shape}: expected up to {MAX_DIMS} sizes >= 0")
            start = _aligned(end)
            nbytes = prod(shape) * _ITEM_BYTES[code]
            end = start + nbytes
            entries.append(_ENTRY.pack(_encode_name(name), code, num_dims, *shape, *_PADDING[num_dims], start, nbytes))
            self._places.append((name, code, shape, start))
        self._table = b"".join(entries)
        self.nbytes: int = end
        """Size of the whole message in bytes."""

    @classmethod
    def like(cls, tensors: Mapping[str, Tensor]) -> "MessageLayout":
        return cls({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})

    def write_header(self, buffer: Tensor, kind: MessageKind, loader: int = 0, epoch: int = 0, index: int = 0) -> None:
        """Writes everything but the data into ``buffer``, uint8 [nbytes or more]."""
        front = self._front(kind, loader, epoch, index)
        self._array(buffer).data[: len(front)] = front

    def _front(self, kind: MessageKind, loader: int = 0, epoch: int = 0, index: int = 0) -> bytes:
        head = _HEADER.pack(_MAGIC, _VERSION, kind, len(self._places), self.nbytes, loader, epoch, index)
        checksum = _CHECKSUM.pack(zlib.crc32(self._table, zlib.crc32(head)))
        return b"".join((head, checksum, self._table))

    def parts(self, tensors: Mapping[str, Tensor], kind: MessageKind) -> list[Tensor]:
        """The whole message in parts, uint8, one behind the other, without copies; tensors are contiguous and on the
        CPU."""
        front = torch.frombuffer(bytearray(self._front(kind)), dtype=torch.uint8)
        parts, end = [front], len(front)
        for name, _, _, start in self._places:
            if start > end:
                parts.append(torch.zeros(start - end, dtype=torch.uint8))
            parts.append(bytes_of(tensors[name]))
            end = start + parts[-1].numel()
        return parts

    def preamble(self, kind: MessageKind) -> bytes:
        """What comes before the data of a message of one tensor."""
        (place,) = self._places
        return self._front(kind).ljust(place[-1], b"\0")

    def tensors(self, buffer: Tensor) -> dict[str, Tensor]:
        """Returns the tensors as views of ``buffer``, which may be on a device, to be filled in place."""
        if buffer.device.type != "cpu":
            return {name: device_view(buffer, start, _DTYPES[code], shape) for name, code, shape, start in self._places}
        array = self._array(buffer)
        return {name: _view(array, code, shape, offset) for name, code, shape, offset in self._places}

    def write(
        self,
        buffer: Tensor,
        tensors: Mapping[str, Tensor],
        kind: MessageKind,
        loader: int = 0,
        epoch: int = 0,
        index: int = 0,
    ) -> None:
        """Writes the whole message; ``tensors`` have the dtypes and shapes of the layout."""
        self.write_header(buffer, kind, loader, epoch, index)
        array = buffer.numpy()
        for name, code, shape, offset in self._places:
            tensor = tensors[name]
            if tensor.dtype is not _DTYPES[code] or tensor.shape != shape:
                raise ValueError(
                    f"tensor {name!r} is {tensor.dtype} {list(tensor.shape)}: the layout says {_DTYPES[code]} "
                    f"{list(shape)}"
                )
            if tensor.requires_grad:
                tensor = tensor.detach()
            _view(array, code, shape, offset).copy_(tensor)

    def _array(self, buffer: Tensor) -> np.ndarray:
        if buffer.dtype != torch.uint8 or buffer.dim() != 1 or buffer.numel() < self.nbytes:
            raise ValueError(
                f"message buffer is {buffer.dtype} {list(buffer.shape)}: expected uint8 [{self.nbytes}] or more"
            )
        return buffer.numpy()

    @says
    def __repr__(self) -> str:
        return f"{len(self._places)} tensors, {format_size(self.nbytes)}"


def bytes_of(tensor: Tensor) -> Tensor:
    # Not by its own strides: of one element, they may be anything.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def encode_message(
    tensors: Mapping[str, Tensor], kind: MessageKind, loader: int = 0, epoch: int = 0, index: int = 0
) -> Tensor:
    """Returns a message in recycled memory, uint8 [total bytes]; what :func:`read_message` reads.

    Example:
        >>> data = glt.channel.encode_message({"x": torch.ones(2)}, glt.channel.MessageKind.BATCH, epoch=3)
        >>> data.dtype, glt.channel.read_message(data).epoch
        (torch.uint8, 3)
    """
    layout = MessageLayout.like(tensors)
    buffer = pooled_empty((layout.nbytes,), torch.uint8)
    layout.write(buffer, tensors, kind, loader, epoch, index)
    return buffer


def starts_like_message(buffer: Tensor) -> bool:
    return buffer[: len(_MAGIC)].numpy().tobytes() == _MAGIC


def read_message(buffer: Tensor) -> Message:
    """Reads a message without copying: its tensors alias ``buffer`` and keep it alive.

    Args:
        buffer: uint8 [total bytes or more], contiguous, aligned to 64 bytes, on the CPU.

    Raises:
        MessageError: The bytes are no message, one of another version, or damaged. Nothing outside the buffer is read.

    Example:
        >>> data = glt.channel.encode_message({"x": torch.ones(2)}, glt.channel.MessageKind.BATCH)
        >>> glt.channel.read_message(data).tensors
        {'x': tensor([1., 1.])}
    """
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise MessageError(f"message: expected contiguous bytes, got {buffer.dtype} {list(buffer.shape)}")
    array = buffer.numpy()
    if array.size < _TABLE_START:
        raise MessageError(f"message of {array.size} bytes: a header alone has {_TABLE_START}")
    if buffer.data_ptr() % ALIGNMENT:
        raise MessageError(f"message at address {buffer.data_ptr():#x}: expected {ALIGNMENT}-byte alignment; clone it")
    data = array.data
    magic, version, kind, num_tensors, total, loader, epoch, index = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise MessageError(f"these {array.size} bytes are no message: they start with {magic!r}, expected {_MAGIC!r}")
    if version != _VERSION:
        raise MessageError(f"message of version {version}, expected {_VERSION}: both sides must run the same glt")
    table_end = _TABLE_START + num_tensors * _ENTRY.size
    if not table_end <= total <= array.size or num_tensors > MAX_TENSORS:
        raise MessageError(f"damaged message: {num_tensors} tensors in {total} bytes, in a buffer of {array.size}")
    table = data[_TABLE_START:table_end]
    if _CHECKSUM.unpack_from(data, _HEADER.size)[0] != zlib.crc32(table, zlib.crc32(data[: _HEADER.size])):
        raise MessageError(f"damaged message: the checksum of its header and table of {num_tensors} tensors is wrong")
    if kind not in _KINDS:
        raise MessageError(f"message of unknown kind {kind}")
    tensors: dict[str, Tensor] = {}
    for padded, code, num_dims, d0, d1, d2, d3, offset, nbytes in _ENTRY.iter_unpack(table):
        shape = (d0, d1, d2, d3)[:num_dims]
        if (
            code >= len(_DTYPES)
            or num_dims > MAX_DIMS
            or prod(shape) * _ITEM_BYTES[code] != nbytes
            or offset % ALIGNMENT
            or not table_end <= offset <= offset + nbytes <= total
        ):
            raise MessageError(
                f"damaged message: tensor {len(tensors)} claims {nbytes} bytes at {offset} of {total} for shape "
                f"{list(shape)} of {num_dims} dimensions and dtype code {code}"
            )
        try:
            tensors[_decode_name(padded)] = _view(array, code, shape, offset)
        except (ValueError, OverflowError) as error:  # a name that is no text, an empty shape with absurd sizes
            raise MessageError(f"damaged message: tensor {len(tensors)}, shape {list(shape)}: {error}") from error
    if len(tensors) != num_tensors:
        raise MessageError(f"damaged message: {num_tensors} tensors, but only {len(tensors)} names")
    return Message(_KINDS[kind], loader, epoch, index, tensors, buffer)


# An exception on its way to another process: as text, so that nothing is unpickled and nothing is lost.


_MAX_TEXT_BYTES = 64 << 10
_TEXTS = ("type", "message", "traceback", "role", "host")
_NUMBERS = ("rank", "pid")


def error_message(
    error: BaseException, *, role: str, rank: int, loader: int = 0, epoch: int = 0, index: int = 0
) -> Tensor:
    """Returns the message that carries ``error``, with its traceback, to the process that waits for a batch or a reply.

    A :class:`glt.errors.RemoteError` is passed on as what it was and where it was first raised. ``role``, such as
    ``"sampling worker"``, and ``rank`` say what this process is; ``loader``, ``epoch`` and ``index`` what was being
    made.

    Example:
        >>> data = glt.channel.error_message(ValueError("no such node"), role="sampler", rank=0)
        >>> try:
        ...     glt.channel.read_message(data).raise_if_error()
        ... except glt.errors.RemoteError as error:
        ...     print(error.type_name, error.remote_message)
        ...
        builtins.ValueError no such node
    """
    if isinstance(error, RemoteError):
        texts = (error.type_name, error.remote_message, error.remote_traceback, error.role, error.host)
        numbers = (error.rank, error.pid)
    else:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        trace = "".join(traceback.format_exception(error))
        texts = (kind, str(error), trace, role, socket.gethostname())
        numbers = (rank, os.getpid())
    tensors = {f"error.{name}": _to_bytes(text) for name, text in zip(_TEXTS, texts, strict=True)}
    tensors |= {f"error.{name}": torch.tensor(n) for name, n in zip(_NUMBERS, numbers, strict=True)}
    return encode_message(tensors, MessageKind.ERROR, loader, epoch, index)


def remote_error(message: Message) -> GltError:
    try:
        texts = [bytes(message.tensors[f"error.{name}"].numpy()).decode(errors="replace") for name in _TEXTS]
        rank, pid = (int(message.tensors[f"error.{name}"]) for name in _NUMBERS)
    except KeyError as missing:
        raise MessageError(f"damaged error message: {missing} is missing") from None
    kind, text, trace, role, host = texts
    return rebuild_error(kind, text, trace, role=role, rank=rank, pid=pid, host=host)


def rebuild_error(
    type_name: str, message: str, traceback: str, *, role: str, rank: int, pid: int, host: str
) -> GltError:
    """Returns the exception to raise for one of another process: a :class:`glt.errors.PeerLost` or
    :class:`glt.errors.PartitionError` as that, everything else as :class:`glt.errors.RemoteError`."""
    error = RemoteError(type_name, message, traceback, role=role, rank=rank, pid=pid, host=host)
    texts = {PeerLost: message, PartitionError: f"{message}\n  in {role} {rank} (pid {pid} on {host})"}
    for kind, text in texts.items():
        if type_name == f"{kind.__module__}.{kind.__qualname__}":
            told = kind(text)
            told.__cause__ = error
            return told
    return error


def _to_bytes(text: str) -> Tensor:
    data = text.encode(errors="backslashreplace")
    if len(data) > _MAX_TEXT_BYTES:  # the ends say most: what was called, and what went wrong
        half = _MAX_TEXT_BYTES // 2
        data = data[:half] + b"\n... (shortened) ...\n" + data[-half:]
    return torch.tensor(list(data), dtype=torch.uint8)
