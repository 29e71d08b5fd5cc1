"""Tests that need a GPU: skipped, by name, where there is none; with ``DEVICES`` the host also plays the GPU."""

import pytest

from glt.data.device import missing_for_cuda

NO_GPU = missing_for_cuda()


def needs_gpu(test):
    """Marks a test that runs on a GPU alone."""
    return pytest.mark.cuda(pytest.mark.skipif(NO_GPU is not None, reason=f"needs a GPU: {NO_GPU}")(test))


GPU = pytest.param(
    "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(NO_GPU is not None, reason=f"needs a GPU: {NO_GPU}")]
)
DEVICES = ["host", GPU]
