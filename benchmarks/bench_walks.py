"""Random walks of glt, pyg-lib and torch-cluster: nanoseconds of one thread per step.

Claim: at least three times the faster of the two on a graph that is larger than the caches.

Method: 4,096 walks of 20 steps per call, from distinct nodes with edges; contestants take turns. Each step of glt's
walks is checked to go along an edge first, and to be one at all, since all nodes of a symmetric graph have another.
pyg-lib has uniform walks alone; torch-cluster's node2vec does what glt's does. The operators of peers are those that
are imported with them, or of libraries that ``--library`` names, such as one that was compiled of their walks alone.
Walks over four partitions at random, read by one process, are beside them.

    python -m benchmarks.bench_walks [--rounds 9] [--toy] [--library FILE ...]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require
from benchmarks.bench_parts import parts_of
from glt import _core

NUM_WALKS, STEPS, P, Q = 4096, 20, 0.5, 2.0


def peers(indptr: torch.Tensor, indices: torch.Tensor, seeds: torch.Tensor) -> dict[tuple[str, str], Callable[[], int]]:
    """Their operators, by kind of walk and name."""
    found: dict[tuple[str, str], Callable[[], int]] = {}
    for name, space in (("pyg-lib", "pyg"), ("torch-cluster", "torch_cluster")):
        walk = getattr(getattr(torch.ops, space), "random_walk", None)
        if walk is None:
            print(f"{name} has no part in this: it is not installed, and --library names none with its operator")
            continue
        for kind, (p, q) in {"uniform": (1.0, 1.0), "node2vec": (P, Q)}.items():
            if (name, kind) != ("pyg-lib", "node2vec"):
                found[kind, name] = lambda walk=walk, p=p, q=q: len(walk(indptr, indices, seeds, STEPS, p, q))
    return found


def of_glt(csrs: list[_core.Csr], seeds: np.ndarray, out: np.ndarray, **options: float) -> Callable[[], int]:
    key = 0

    def walk() -> int:
        nonlocal key
        key += 1
        spec = _core.WalkSpec(STEPS, path=[0], batch_key=key, **options)
        _core.walk([csrs], seeds, out, spec)
        return len(seeds)

    return walk


def require_walks(indptr: np.ndarray, indices: np.ndarray, out: np.ndarray, name: str) -> None:
    walks = out.reshape(-1, STEPS + 1)
    edges = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)) * len(indptr) + indices
    walked = walks[:, :-1] * len(indptr) + walks[:, 1:]
    require(bool((walks >= 0).all()) and bool(np.isin(walked, edges).all()), f"steps of {name} walks go along edges")


def bench(report: Report, graph: graphs.BenchGraph, rounds: int) -> None:
    indptr, indices = np.array(graph.indptr), np.array(graph.indices)
    (seeds,) = graph.seed_batches(1, NUM_WALKS)
    out = np.empty(len(seeds) * (STEPS + 1), np.int64)
    whole, four = [_core.Csr(indptr, indices)], parts_of(graph, 4)[1]
    contestants = {
        (kind, name): of_glt(csrs, seeds, out, **options)
        for kind, options in (("uniform", {}), ("node2vec", {"back": 1 / P, "far": 1 / Q}))
        for name, csrs in (("glt", whole), ("glt, 4 partitions", four))
    }
    for (kind, _), walk in contestants.items():
        walk()
        require_walks(indptr, indices, out, kind)
    contestants |= peers(torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64)), torch.from_numpy(seeds))
    with pinned():
        timings = interleave({f"{kind}, {name}": walk for (kind, name), walk in contestants.items()}, rounds)
    for kind, name in contestants:
        timing = timings[f"{kind}, {name}"]
        others = [timings[f"{k}, {n}"].median() for k, n in contestants if k == kind and not n.startswith("glt")]
        is_ours = name == "glt" and others
        report.add(
            graph=graph.name,
            walks=kind,
            name=name,
            step_ns=timing.median(1e9 / len(seeds) / STEPS),
            faster_by=min(others) / timing.median() if is_ours else None,
        )


def main() -> None:
    library = {"nargs": "*", "default": [], "metavar": "FILE", "help": "libraries that register operators of peers"}
    options = arguments(__doc__, rounds=9, library=library)
    torch.set_num_threads(1)
    for each in options.library:
        torch.ops.load_library(each)
    find_peers("pyg_lib", "torch_cluster")
    report = Report("walks", options.toy)
    for name in ("toy",) if options.toy else ("S", "M"):
        bench(report, graphs.load(name), options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
