import os

import numpy as np
import pytest
import torch

import glt
from glt import _core


def _draws(function, nodes, bounds, draws=5):
    out = np.empty(len(nodes) * draws, np.uint64)
    function(nodes, bounds, 12345, 2, draws, out)
    return out


def test_draws_are_bounded_and_depend_on_the_node_alone():
    nodes = np.array([3, 2**40, 3], np.int64)
    bounds = np.array([10, 10, 10], np.uint64)
    out = _draws(_core.host_draws, nodes, bounds).reshape(3, 5)
    assert (out < 10).all()
    np.testing.assert_array_equal(out[0], out[2])


@pytest.mark.cuda
def test_draws_on_the_device_equal_those_on_the_host():
    if not glt.has_cuda or not (torch.cuda.is_available() or "GLT_COMPILED_CORE" in os.environ):  # test/ptx
        pytest.skip("needs a build with CUDA and a GPU")
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, 2**40, 10_000)
    bounds = rng.integers(1, 2**63, 10_000).astype(np.uint64)
    np.testing.assert_array_equal(_draws(_core.cuda_draws, nodes, bounds), _draws(_core.host_draws, nodes, bounds))
