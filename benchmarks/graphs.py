"""The graphs that every benchmark runs on: R-MAT, the same three parameters and two sizes as the field's figures.

R-MAT (Chakrabarti, Zhan and Faloutsos, SDM 2004) with (.57 .19 .19 .05), ids permuted, symmetrised, deduplicated:

====  =======  ==============  =================  ==========
name  nodes    directed edges  nodes with edges   max degree
====  =======  ==============  =================  ==========
toy   2^12     ~52 thousand    ~3 thousand        ~900
S     2^18     ~3.9 million    ~149 thousand      ~16 thousand
M     2^21     ~58.9 million   ~1.22 million      ~97 thousand
====  =======  ==============  =================  ==========

Graphs are made once and kept as ``.npy`` under ``$GLT_BENCH_CACHE`` (default ``~/.cache/glt-bench``). Making M takes
about half a minute and 1.1 GB.

    python -m benchmarks.graphs S M        # make them now and print what they are
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

QUADRANTS = (0.57, 0.19, 0.19, 0.05)
SIZES = {"toy": (12, 32_000), "S": (18, 2_100_000), "M": (21, 31_000_000)}  # name: (log2 of the nodes, edges drawn)
DATA_ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"  # of real graphs
CHUNK = 1 << 21  # edges drawn at a time: bounds the scratch memory


@dataclass(frozen=True)
class BenchGraph:
    """A symmetric graph, so that its CSR is also its CSC; the id of an edge is its position.

    indptr: int64 [num_nodes + 1]; indices: int32 [num_edges], ascending within a row. Both mapped from the cache.
    """

    name: str
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    def connected_nodes(self) -> np.ndarray:
        """Ids of the nodes that have an edge, ascending: R-MAT leaves about 42% without one."""
        return np.flatnonzero(np.diff(self.indptr))

    def seed_batches(self, num_batches: int, batch_size: int = 1024, rng_seed: int = 0) -> list[np.ndarray]:
        """Batches of distinct seeds that have edges (int64); those of a toy graph are smaller."""
        nodes = self.connected_nodes()
        rng = np.random.default_rng(rng_seed)
        return [rng.choice(nodes, min(batch_size, len(nodes) // 4), replace=False) for _ in range(num_batches)]

    def edge_index(self) -> np.ndarray:
        """int64 [2, num_edges]: source and destination, sorted by destination."""
        destinations = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
        return np.stack([self.indices.astype(np.int64), destinations])


def cache_dir() -> Path:
    return Path(os.environ.get("GLT_BENCH_CACHE", "~/.cache/glt-bench")).expanduser()


def load(name: str) -> BenchGraph:
    """The graph called ``toy``, ``S`` or ``M``, made on first use."""
    if name not in SIZES:
        raise ValueError(f"graphs.load: no graph is called {name!r}; there are {', '.join(SIZES)}")
    paths = [cache_dir() / f"{name}.{part}.npy" for part in ("indptr", "indices")]
    if not all(path.exists() for path in paths):
        cache_dir().mkdir(parents=True, exist_ok=True)
        for path, array in zip(paths, make(*SIZES[name]), strict=True):
            unfinished = path.with_suffix(f".{os.getpid()}.npy")
            np.save(unfinished, array)
            unfinished.rename(path)
    return BenchGraph(name, *(np.load(path, mmap_mode="r") for path in paths))


def make(scale: int, num_draws: int, rng_seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """CSR (indptr int64, indices int32) of an R-MAT graph of 2**scale nodes."""
    rng = np.random.default_rng(rng_seed)
    num_nodes = 1 << scale
    permutation = rng.permutation(num_nodes)
    keys = np.empty(
        2 * num_draws, np.int64
    )  # an edge u -> v as u * num_nodes + v: sorting it sorts by row, then column
    for start in range(0, num_draws, CHUNK):
        size = min(CHUNK, num_draws - start)
        u, v = (permutation[ends] for ends in draw_edges(rng, scale, size))
        keys[2 * start : 2 * start + size] = u << scale | v
        keys[2 * start + size : 2 * (start + size)] = v << scale | u
    keys.sort()
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    indptr = np.zeros(num_nodes + 1, np.int64)
    for start in range(0, len(keys), CHUNK):
        rows = keys[start : start + CHUNK] >> scale
        indptr[1:] += np.bincount(rows, minlength=num_nodes)
    np.cumsum(indptr, out=indptr)
    keys &= num_nodes - 1
    return indptr, keys.astype(np.int32)


def draw_edges(rng: np.random.Generator, scale: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of ``size`` edges: each level of the recursion picks a quadrant, which is one bit of either end."""
    a, b, c, _ = QUADRANTS
    u, v = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for _ in range(scale):
        draw = rng.random(size, np.float32)
        lower = draw >= a + b
        right = (draw >= a) & ~lower | (draw >= a + b + c)
        u += u + lower
        v += v + right
    return u, v


def main() -> None:
    for name in sys.argv[1:] or list(SIZES):
        graph = load(name)
        degrees = np.diff(graph.indptr)
        print(f"{name}: {graph.num_nodes} nodes, {np.count_nonzero(degrees)} of them with edges, ", end="")
        print(f"{graph.num_edges} directed edges, max degree {degrees.max()}; in {cache_dir()}")


if __name__ == "__main__":
    main()
