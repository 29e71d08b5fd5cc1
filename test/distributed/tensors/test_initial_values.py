"""The first values of a tensor: the same with any servers, from names or from functions of the servers'."""

import pytest
import torch
from store_world import Servers, graph

from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.wire.calls import register_server_function


@register_server_function
def one_per_server(shape, dtype):
    return torch.full(shape, shape[0], dtype=dtype)


@register_server_function
def by_row(shape, dtype, ids):
    assert shape[0] == len(ids)
    return ids.view(-1, 1).expand(shape).to(dtype)


@register_server_function
def wrong(shape, dtype):
    return torch.zeros(shape[0] + 1, *shape[1:], dtype=dtype)


@register_server_function
def failing(shape, dtype):
    raise ArithmeticError("the initialisation broke")


def made(num_servers, place, init_func, dtype=torch.float32, shape=(97, 3), name="x", **options):
    part = None if place == "even" else "node"
    with Servers(num_servers, graph(shape[0], 5, place == "ranges")) as servers:
        return DistTensor(shape, dtype, name, init_func, part, world=servers.trainer(), **options)[:]


@pytest.mark.parametrize("init_func", ["uniform", ("uniform", -2, 3.5), "normal", ("normal", 1, 0.5), by_row])
def test_values_do_not_depend_on_who_keeps_the_rows(init_func):
    whole = made(1, "even", init_func)
    for num_servers, place in ((3, "even"), (2, "ranges"), (4, "arrays"), (1, "arrays")):
        assert torch.equal(made(num_servers, place, init_func), whole)
    if init_func is not by_row:
        assert not torch.equal(made(1, "even", init_func, name="y"), whole)  # tensors are not alike
        assert not torch.equal(made(1, "even", init_func, rng_seed=1), whole)
        half = made(2, "arrays", init_func, torch.bfloat16)
        assert torch.equal(half, whole.to(torch.bfloat16))
        double = made(2, "even", init_func, torch.float64)
        assert torch.equal(double.float(), whole) and not torch.equal(double, whole.double())


def test_values_do_not_depend_on_the_pieces_they_are_made_in(monkeypatch):
    whole = made(2, "arrays", ("uniform", 0, 1), torch.float16), made(2, "arrays", by_row)
    monkeypatch.setattr("glt.distributed.tensors.spec._PIECE_BYTES", 50)
    assert torch.equal(made(2, "arrays", ("uniform", 0, 1), torch.float16), whole[0])
    assert torch.equal(made(2, "arrays", by_row), whole[1])


def test_uniform_values_stay_below_their_upper_bound():
    values = made(1, "even", ("uniform", 0, 1e-3), torch.float32, (5000, 8))
    assert values.min() >= 0 and values.max() < 1e-3 and values.unique().numel() > 30_000


def test_constants():
    assert made(2, "even", "ones", torch.bool).all()
    assert made(2, "even", ("constant", 7), torch.uint8).eq(7).all()
    assert made(2, "even", ("constant", 0.5), torch.bfloat16).eq(0.5).all()


def test_a_function_of_the_servers_is_given_their_rows():
    assert made(2, "even", one_per_server)[:, 0].tolist() == [48] * 48 + [49] * 49
    assert made(3, "arrays", f"{__name__}.by_row")[:, 2].tolist() == list(range(97))
    with pytest.raises(ValueError, match=r"wrong' returned torch.float32 \[49, 3\]: expected torch.float32 \[48, 3\]"):
        made(2, "even", wrong)
    with pytest.raises(ArithmeticError, match="the initialisation broke"):
        made(2, "even", failing)


def test_memory_for_what_a_function_returns_is_forecast(monkeypatch):
    limit = 97 * 3 * 4 * 3 // 2  # enough for the tensor, not for two of it
    monkeypatch.setattr("glt.distributed.tensors.store.available_memory", lambda: (limit, "a test's limit"))
    made(1, "even", by_row)
    with pytest.raises(MemoryError, match="a test's limit"):
        made(1, "even", one_per_server)
