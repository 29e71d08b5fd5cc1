"""Plain values on their way between processes come out as they went in; everything else is refused by name."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glt.distributed.wire.calls import decode_value, encode_value
from glt.errors import MessageError

_dtypes = st.sampled_from([torch.int64, torch.float32, torch.uint8, torch.bool, torch.float64, torch.int32])

_tensors = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    _dtypes,
)

_keys = st.one_of(st.text(max_size=5), st.integers(-5, 5), st.tuples(st.integers(0, 3), st.text(max_size=2)))

_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    _tensors,
    _dtypes,
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 1)]),
)

_values = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(_keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def arrives(value):
    """The value as another process gets it."""
    tree, parts = encode_value(value, "it")
    return decode_value(json.loads(json.dumps(tree)), None if parts is None else torch.cat(parts))


@settings(max_examples=150, deadline=None)
@given(_values)
def test_values_arrive_as_they_were(value):
    assert same(arrives(value), value)


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.just("__glt__"), st.just("tensor")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["__glt__", "name", "items", "x"]), inner, max_size=3),
        st.fixed_dictionaries(
            {"__glt__": st.sampled_from(["tensor", "dtype", "device", "tuple", "dict", "class"])},
            optional={"name": inner, "items": inner},
        ),
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(_json)
def test_nonsense_is_refused_or_harmless(tree):
    try:
        decode_value(tree, None)
    except MessageError as error:
        assert "damaged value" in str(error)


def test_arrays_and_their_numbers_become_tensors_and_numbers():
    value = arrives({"a": np.arange(6).reshape(2, 3)[:, ::2], "n": np.float32(1.5)})
    assert value["a"].tolist() == [[0, 2], [3, 5]] and value["n"] == 1.5


def test_views_that_are_not_what_their_memory_holds_arrive_as_they_were():
    z = torch.tensor([1 + 2j, 3 - 4j])
    for value in (
        z.conj(),
        z.conj().imag,
        torch.arange(6).view(2, 3).T,
        torch.ones((), dtype=torch.bool),
        torch.ones(1).expand(1, 3)[:, :1],
        torch.arange(3)[2:],
        torch.tensor([5]).expand(1),
    ):
        assert same(arrives(value), value)


def test_what_is_sent_is_not_copied():
    rows = torch.rand(1000, 3)
    _, parts = encode_value({"rows": rows, "n": 3}, "it")
    assert parts is not None and rows.data_ptr() in [part.data_ptr() for part in parts]


DEEP = None
for _ in range(50):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        (lambda: 0, "builtins.function"),
        (b"bytes", "builtins.bytes"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1), "dense"),
        (DEEP, "levels deep"),
    ],
    ids=["object", "set", "function", "bytes", "sparse", "dimensions", "depth"],
)
def test_what_cannot_be_sent_is_named(value, words):
    with pytest.raises(TypeError, match=f"the arguments of f.*{words}"):
        encode_value([value], "the arguments of f")


@pytest.mark.parametrize(
    "tree",
    [
        {"__glt__": "dtype", "name": "onnx"},
        {"__glt__": "dtype", "name": "__glt__"},
        {"__glt__": "dtype", "name": []},
        {"__glt__": "tensor", "name": "t0"},
        {"__glt__": "device", "name": "nowhere"},
        {"__glt__": "device"},
        {"a": 1},
        {"__glt__": "tuple", "items": 5},
        {"__glt__": "dict", "items": [[1]]},
        {"__glt__": "dict", "items": [[[], 1]]},
    ],
)
def test_damaged_values_are_refused(tree):
    with pytest.raises(MessageError, match="damaged value"):
        decode_value(tree, None)
