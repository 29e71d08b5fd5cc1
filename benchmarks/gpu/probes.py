"""Kernels that only measure (probes.cu), compiled when first asked for, for the GPU that is there."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("probes.cu")
BUILD = Path(__file__).parents[2] / "build" / "probes"


def compiled(*archs: str) -> Path:
    """Compiles the probes, unless they are, for architectures such as ``sm_90``; returns the library."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    command = [
        str(home / "bin" / "nvcc"), "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC",
        *(f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}" for arch in archs), str(SOURCE),
    ]  # fmt: skip
    key = hashlib.md5((" ".join(command) + SOURCE.read_text()).encode()).hexdigest()[:12]
    library = BUILD / f"probes-{key}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(part)], check=True)
        part.rename(library)
    return library


@functools.cache
def _library(device: torch.device) -> ctypes.CDLL:
    major, minor = torch.cuda.get_device_capability(device)
    return ctypes.CDLL(str(compiled(f"sm_{major}{minor}")))


def launch(name: str, device: torch.device, *arguments: Tensor | int | ctypes._SimpleCData) -> None:
    """Launches a probe on the current stream; a tensor stands for its address.

    Raises:
        RuntimeError: If CUDA refuses it.
    """
    plain = [
        ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int64(a) if isinstance(a, int) else a
        for a in arguments
    ]
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    code = getattr(_library(device), name)(*plain, stream)
    if code != 0:
        raise RuntimeError(f"{name}: CUDA error {code}")
