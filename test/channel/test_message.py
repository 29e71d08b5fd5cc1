"""What a message holds: tensors, sizes, errors."""

import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.channel import (
    MessageKind,
    MessageLayout,
    encode_message,
    error_message,
    format_size,
    parse_size,
    read_message,
)
from glt.channel.message import _DTYPES, _TABLE_START
from glt.errors import MessageError, RemoteError

DTYPES = [d for d in _DTYPES if d != torch.complex32]  # torch warns on every use of complex32


def random_tensor(dtype, shape, seed=0):
    numel = int(torch.Size(shape).numel())
    if dtype == torch.bool:
        return torch.arange(numel).remainder(2).bool().view(shape)
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 100, (numel * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def as_bytes(tensor):
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert as_bytes(found[name]) == as_bytes(tensor)


tensors_strategy = st.dictionaries(
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=15),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 7), max_size=4).map(tuple)),
    max_size=10,
)
int64s = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None, max_examples=150)
@given(tensors_strategy, st.sampled_from(list(MessageKind)), int64s, int64s, int64s)
def test_a_message_comes_back_as_it_was(specs, kind, loader, epoch, index):
    tensors = {name: random_tensor(dtype, shape) for name, (dtype, shape) in specs.items()}
    buffer = encode_message(tensors, kind, loader, epoch, index)
    message = read_message(buffer)
    assert (message.kind, message.loader, message.epoch, message.index) == (kind, loader, epoch, index)
    if kind is not MessageKind.ERROR:
        message.raise_if_error()
    assert_same(message.tensors, tensors)
    for tensor in message.tensors.values():
        assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_as_scalar_empty_and_matrix(dtype):
    tensors = {str(shape): random_tensor(dtype, shape) for shape in [(), (0,), (3, 0, 2), (5, 3)]}
    assert_same(read_message(encode_message(tensors, MessageKind.BATCH)).tensors, tensors)


def test_views_and_transposed_tensors_are_written_right():
    base = torch.arange(24).view(4, 6)
    tensors = {"t": base.t(), "strided": base[::2, 1::2], "grad": torch.ones(3, requires_grad=True)}
    assert_same(read_message(encode_message(tensors, MessageKind.BATCH)).tensors, tensors)


def test_reading_copies_nothing_and_keeps_the_buffer_alive():
    layout = MessageLayout({"a": (torch.int64, [5]), "b": (torch.bfloat16, [2, 3])})
    buffer = torch.zeros(layout.nbytes + 100, dtype=torch.uint8)
    layout.write_header(buffer, MessageKind.BATCH)
    message = read_message(buffer)
    layout.tensors(buffer)["a"][:] = torch.arange(5)
    del buffer
    assert message.tensors["a"].tolist() == [0, 1, 2, 3, 4]


def test_damage_gives_an_error_or_the_same_answer():
    tensors = {"n_id": torch.arange(9), "x": torch.randn(4, 3), "flag": torch.tensor(True), "none": torch.empty(0, 5)}
    clean = encode_message(tensors, MessageKind.BATCH, 1, 2, 3)
    front = _TABLE_START + 96 * len(tensors)
    for position in range(clean.numel()):
        for bit in (0, 3, 7):
            buffer = clean.clone()
            buffer[position] ^= 1 << bit
            if position < front:
                with pytest.raises(MessageError):
                    read_message(buffer)
            else:
                read_message(buffer)
    for size in (0, 1, 63, 64, front, clean.numel() - 1):
        with pytest.raises(MessageError):
            read_message(clean[:size].clone())


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400), st.booleans())
def test_foreign_bytes_are_refused(data, with_mark):
    buffer = torch.tensor(list((b"GLTM\1\0" if with_mark else b"") + data), dtype=torch.uint8)
    with pytest.raises(MessageError):
        read_message(buffer)


def test_a_crafted_table_reads_nothing_outside(monkeypatch):
    # The checksum is no protection against malice: the bounds have to hold by themselves.
    clean = encode_message({"x": torch.arange(4, dtype=torch.int64)}, MessageKind.BATCH)
    monkeypatch.setattr("glt.channel.message.zlib.crc32", lambda *args: 0)
    clean[60:64] = 0
    read_message(clean)
    for position in range(8, clean.numel() - 32):
        for value in (0, 1, 0x7F, 0xFF):
            buffer = clean.clone()
            buffer[position] = value
            try:
                message = read_message(buffer)
            except MessageError:
                continue
            for tensor in message.tensors.values():
                start = tensor.data_ptr() - buffer.data_ptr()
                assert tensor.numel() == 0 or 0 <= start <= start + tensor.nbytes <= buffer.numel()


def test_wrong_use_is_named():
    with pytest.raises(ValueError, match="up to 4"):
        MessageLayout({"x": (torch.int64, [1, 1, 1, 1, 1])})
    with pytest.raises(ValueError, match="40 bytes"):
        MessageLayout({"x" * 41: (torch.int64, [1])})
    with pytest.raises(TypeError, match=r"quint8"):
        MessageLayout({"x": (torch.quint8, [1])})
    layout = MessageLayout({"x": (torch.int64, [3])})
    with pytest.raises(ValueError, match="the layout says"):
        layout.write(torch.empty(layout.nbytes, dtype=torch.uint8), {"x": torch.zeros(3)}, MessageKind.BATCH)
    with pytest.raises(ValueError, match="or more"):
        layout.tensors(torch.empty(layout.nbytes - 1, dtype=torch.uint8))
    with pytest.raises(MessageError, match="alignment"):
        read_message(torch.zeros(300, dtype=torch.uint8)[1:])


def failing():
    try:
        raise KeyError("no such feature: 'x'")
    except KeyError as error:
        return error


def test_an_error_arrives_with_its_traceback():
    buffer = error_message(failing(), role="sampling worker", rank=3, loader=7, epoch=1, index=9)
    message = read_message(buffer)
    assert (message.kind, message.loader, message.index) == (MessageKind.ERROR, 7, 9)
    with pytest.raises(RemoteError, match="no such feature") as caught:
        message.raise_if_error()
    assert "in failing" in str(caught.value) and "sampling worker 3 (pid " in str(caught.value)
    assert caught.value.type_name == "builtins.KeyError" and caught.value.rank == 3
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.host == caught.value.host


def test_an_error_passed_on_names_where_it_was_first_raised():
    first = read_message(error_message(failing(), role="server", rank=1))
    with pytest.raises(RemoteError) as caught:
        first.raise_if_error()
    second = read_message(error_message(caught.value, role="worker", rank=2))
    with pytest.raises(RemoteError, match="server 1") as passed_on:
        second.raise_if_error()
    assert str(passed_on.value) == str(caught.value)


def test_a_huge_error_text_is_shortened():
    message = read_message(error_message(ValueError("a" * 10_000_000 + "the end \udc80"), role="worker", rank=0))
    with pytest.raises(RemoteError, match="the end"):
        message.raise_if_error()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GB", 1 << 30), ("64MB", 64 << 20), ("512KB", 512 << 10), ("1.5 GiB", 3 << 29), ("7", 7), ("3k", 3 << 10),
     (" 10 b ", 10), (123, 123)],
)  # fmt: skip
def test_sizes_as_people_write_them(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        (["", "MB", "1XB", "1e3", "-5MB", "1 2MB", "٣MB", "1MBB"], ValueError, "channel_size = .*: expected bytes"),
        ([0, -1, "0MB"], ValueError, "channel_size = .*: expected more than 0"),
        ([1.5, None, True], TypeError, "channel_size = .*: expected an int or a str"),
    ],
)
def test_what_is_no_size_is_named(sizes, error, words):
    for size in sizes:
        with pytest.raises(error, match=words):
            parse_size(size, "channel_size")


def test_sizes_for_people():
    assert [format_size(n) for n in (7, 2048, 64 << 20, 3 << 29)] == ["7 B", "2.0 KB", "64.0 MB", "1.5 GB"]


def test_dtypes_that_others_add_to_numpy_are_not_taken_for_its_own():
    """As ml_dtypes does, which JAX brings: torch cannot read them."""
    code = """
import numpy as np, torch
np.sctypeDict["bfloat16"] = type("bfloat16", (np.uint16,), {"__module__": "ml_dtypes"})
from glt.channel import MessageKind, encode_message, read_message
x = torch.ones(2, dtype=torch.bfloat16)
print(read_message(encode_message({"x": x}, MessageKind.BATCH)).tensors["x"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "tensor([1., 1.], dtype=torch.bfloat16)\n", done.stderr
