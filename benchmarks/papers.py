"""A graph shaped like ogbn-papers100M, drawn in little memory: what jobs larger than memory are measured on.

111,059,956 nodes with 128 bfloat16 features, 28.4 GB. Edges are drawn in pairs, there and back, by Chung-Lu weights of
exponent 2.5, and six of ten stay in a community of 10,000 nodes. The largest expected degree is that of the original,
26,000, as so many edges are of its 3.2 billion. Ids are dealt anew, so that nothing in a file is near its neighbours.

Features are 2^20 drawn rows that come again and again: one file of 256 MiB, mapped behind itself. What a partitioner
writes is the whole.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from pathlib import Path

import numpy as np
import torch

NUM_NODES, NUM_EDGES = 111_059_956, 400_000_000
NUM_SEEDS, NUM_CLASSES, NUM_FEATURES = 1_207_179, 172, 128
_ALL_EDGES, _MOST_DEGREE, _COMMUNITY = 3_231_371_744, 26_000, 10_000
_DRAWN_ROWS, _CHUNK = 1 << 20, 1 << 22
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000


def draw_edges(path: Path, num_nodes: int, num_edges: int) -> None:
    """Writes ``[2, num_edges]`` int32, an even number of edges."""
    rng = np.random.default_rng(0)
    num_draws = num_edges // 2
    edges = np.lib.format.open_memmap(path, "w+", np.int32, (2, 2 * num_draws))
    # Rank r has the weight (r + cut)^(-2/3), whose sum is a cube root.
    most = max(8, _MOST_DEGREE * num_edges // _ALL_EDGES)
    cut = (num_edges / 3 / num_nodes ** (1 / 3) / most) ** 1.5
    low, high = cut ** (1 / 3), (num_nodes + cut) ** (1 / 3)
    num_communities = max(1, num_nodes // _COMMUNITY)
    step = next(each for each in range(2_654_435_761 % num_nodes, num_nodes) if math.gcd(each, num_nodes) == 1)
    for begin in range(0, num_draws, _CHUNK):
        size = min(_CHUNK, num_draws - begin)
        ranks = ((low + rng.random((2, size)) * (high - low)) ** 3 - cut).astype(np.int64).clip(0, num_nodes - 1)
        source, target = ranks
        near = target // num_communities * num_communities + source % num_communities
        target = np.where(rng.random(size) < 0.6, np.minimum(near, num_nodes - 1), target)
        ends = source * step % num_nodes, target * step % num_nodes
        for at, pair in ((begin, ends), (num_draws + begin, ends[::-1])):
            edges[:, at : at + size] = pair
    edges.flush()


def features(path: Path, num_nodes: int) -> torch.Tensor:
    """``[num_nodes, 128]``, bfloat16, mapped; ``path`` is a file that is made."""
    num_rows = min(num_nodes, _DRAWN_ROWS)
    drawn = torch.randn(num_rows, NUM_FEATURES, generator=torch.Generator().manual_seed(0)).bfloat16()
    drawn.view(torch.int16).numpy().tofile(path)
    num_bytes, num_times = path.stat().st_size, -(-num_nodes // num_rows)
    room = mmap.mmap(-1, num_times * num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(room))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with open(path, "rb") as file:
        for at in range(first, first + num_times * num_bytes, num_bytes):
            if libc.mmap(at, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, file.fileno(), 0) != at:
                raise OSError(ctypes.get_errno(), f"{path} cannot be mapped {num_times} times")
    return torch.frombuffer(room, dtype=torch.bfloat16).view(-1, NUM_FEATURES)[:num_nodes]


def labels(num_nodes: int) -> np.ndarray:
    """``[num_nodes]``, uint8."""
    return (np.arange(num_nodes, dtype=np.uint32) % NUM_CLASSES).astype(np.uint8)


def seeds(num_nodes: int) -> torch.Tensor:
    """1.2 million of the 111 million, as many as the original trains on."""
    num_seeds = max(1, NUM_SEEDS * num_nodes // NUM_NODES)
    return torch.from_numpy(np.random.default_rng(1).choice(num_nodes, num_seeds, replace=False))
