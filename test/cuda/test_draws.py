"""The draws of nodes are the same on host and device."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import glt

ROOT = Path(__file__).resolve().parents[2]
NVCC = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"


def _draws(function, nodes, bounds, draws=5):
    out = np.empty(len(nodes) * draws, np.uint64)
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (nodes, bounds, out)]
    code = function(
        *arrays[:2], ctypes.c_int64(len(nodes)), ctypes.c_uint64(12345), ctypes.c_uint32(2), draws, arrays[2]
    )
    return out, code


@pytest.fixture
def device_node_draws(tmp_path):
    """The function of draws.cu, compiled for the GPU that is here; in test/ptx it is part of the extension, and glt's
    device is the second."""
    if "GLT_COMPILED_CORE" in os.environ:
        function = ctypes.CDLL(os.environ["GLT_COMPILED_CORE"]).device_node_draws
        return lambda *given: function(*given, 1)
    if not glt.has_cuda or not torch.cuda.is_available():
        pytest.skip("needs a build with CUDA and a GPU")
    if not NVCC.exists():
        pytest.skip(f"needs nvcc: {NVCC} does not exist")
    library = tmp_path / "draws.so"
    options = ["-std=c++20", "-O3", "-arch=native", "-shared", "-Xcompiler=-fPIC", f"-I{ROOT / 'csrc'}"]
    sources = [str(Path(__file__).with_name("draws.cu")), str(ROOT / "csrc/cuda/device.cu")]
    subprocess.run([str(NVCC), *options, *sources, "-o", str(library)], check=True, timeout=300)
    function = ctypes.CDLL(str(library)).device_node_draws
    return lambda *given: function(*given, 0)


def test_draws_are_bounded_and_depend_on_the_node_alone(native_rng):
    nodes = np.array([3, 2**40, 3], np.int64)
    bounds = np.array([10, 10, 10], np.uint64)
    out = _draws(native_rng.node_draws, nodes, bounds)[0].reshape(3, 5)
    assert (out < 10).all()
    np.testing.assert_array_equal(out[0], out[2])


@pytest.mark.cuda
def test_draws_on_the_device_equal_those_on_the_host(device_node_draws, native_rng):
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, 2**40, 10_000)
    bounds = rng.integers(1, 2**63, 10_000).astype(np.uint64)
    on_device, code = _draws(device_node_draws, nodes, bounds)
    assert code == 0, f"CUDA error {code}"
    np.testing.assert_array_equal(on_device, _draws(native_rng.node_draws, nodes, bounds)[0])
