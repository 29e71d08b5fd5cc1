"""Servers run functions that were registered with them, by name, and no others."""

import os
from functools import partial

import pytest
import torch

from glt.distributed.wire import calls as functions
from glt.distributed.wire.calls import name_of, register_server_function, registered


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(functions, "_registered", dict(functions._registered))
    yield


def test_found_by_module_and_name():
    @register_server_function
    def mine(x):
        return x + 1

    assert registered(name_of(mine)) is mine and name_of(mine).endswith("mine") and __name__ in name_of(mine)
    assert register_server_function(mine) is mine  # again
    register_server_function(mine, "short")
    assert registered("short") is mine
    assert registered("torch.cuda.device_count")() == torch.cuda.device_count()


def test_names_are_taken_once():
    register_server_function(os.getpid, "pid")
    with pytest.raises(ValueError, match="'pid' is registered already"):
        register_server_function(os.getppid, "pid")


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.load", "", "__import__", "glt"])
def test_others_are_refused(name):
    with pytest.raises(LookupError, match=r"register_server_function") as caught:
        registered(name)
    assert "torch.cuda.device_count" in str(caught.value)


@pytest.mark.parametrize("func", [None, 5, partial(os.getpid), "text"])
def test_what_is_no_function(func):
    with pytest.raises(TypeError, match="func = "):
        register_server_function(func)
