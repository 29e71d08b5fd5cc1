"""The sampler of this checkout against that of another one, such as an earlier commit, built beside it.

Claim: against a53a8f1, one thread: uniform draws of graph M at least 1.4x where a53a8f1 reads the ids of edges that its
loaders kept, by weight at least 1.5x, three node types at least 1.4x. Without ``--checkout`` the other one is this one
again, which shows how noisy the machine is and leaves no figures.

Method: as in ``bench_options``, whose samplers these are, but each checkout has a process of its own: both on one core,
in turn, the other asleep. A ratio is the median of those of each round. ``same_batches`` says whether the first batch
is the same, bit for bit: an earlier law of draws may give others, of as many edges.

    git worktree add ../earlier a53a8f1 && (cd ../earlier && python setup.py -q build_ext --inplace)
    python -m benchmarks.bench_earlier [--checkout ../earlier] [--rounds 9] [--toy]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import graphs  # nothing of glt: the processes below choose which one they import
from benchmarks._harness import Report, arguments, glt_commit, interleave, pinned

if TYPE_CHECKING:
    from benchmarks.bench_options import GltSampler

HERE = Path(__file__).resolve().parents[1]
PATIENCE = 300  # seconds
# Each with the graph that it is of.
CASES = {"uniform": "M", "uniform, ids of edges": "M", "by weight": "M", "by time": "M", "heterogeneous": "S"}


def sampler_of(case: str, graph: graphs.BenchGraph, is_earlier: bool) -> GltSampler:
    """The sampler of the glt that this process has."""
    from benchmarks import bench_options
    from glt import _core

    one_type = [(0, 0)], [15, 10, 5]
    if case == "by weight":
        return bench_options.GltSampler([bench_options.weighted_csr(graph)[0]], *one_type, None)
    if case == "by time":
        csr, _, seed_time = bench_options.timed_csr(graph)
        return bench_options.GltSampler([csr], *one_type, seed_time)
    if case == "heterogeneous":
        rows, ends = bench_options.typed_rows(graph)
        return bench_options.GltSampler([_core.Csr(*row) for row in rows], ends, [10, 10, 5], None)
    # Loaders kept the ids of sorted edges, which are their positions, in a column; now they compute them.
    is_kept = case == "uniform, ids of edges" and is_earlier
    ids = {"edge_ids": np.arange(graph.num_edges, dtype=np.int32)} if is_kept else {}
    csr = _core.Csr(np.array(graph.indptr), np.array(graph.indices), **ids)
    return bench_options.GltSampler([csr], *one_type, None)


def serve(asked: Connection, checkout: Path, case: str, graph_name: str, is_earlier: bool) -> None:
    """Says what the first batch is, then samples a round for every message and answers how many edges it had."""
    sys.path.insert(0, str(checkout))
    try:
        from glt import _core

        if not Path(_core.__file__).resolve().is_relative_to(checkout):
            raise ImportError(f"--checkout {checkout}: glt comes from {_core.__file__}; build the checkout in place")
        graph = graphs.load(graph_name)
        sampler, batches = sampler_of(case, graph, is_earlier), graph.seed_batches(8)
        asked.send(digest(sampler, batches[0]))
        with pinned():
            while asked.recv():
                asked.send(float(sum(map(sampler, batches))))
    except (EOFError, ConnectionError):  # the benchmark has ended
        return
    except Exception as error:
        asked.send(error)


def digest(sampler: GltSampler, seeds: np.ndarray) -> int:
    """Of all nodes and edges of a batch."""
    sampler(seeds)
    nodes, trees, edges = sampler.last
    arrays = [*nodes, *trees, *(array for edge_type in edges for array in edge_type)]
    found = 0
    for array in arrays:
        found = zlib.crc32(b"" if array is None else np.ascontiguousarray(array, np.int64), found)
    return found


@contextlib.contextmanager
def served(checkout: Path, case: str, graph_name: str, is_earlier: bool) -> Iterator[tuple[int, Callable[[], float]]]:
    """The digest of the first batch, and what runs a round, in a process that ends with this."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    given = (theirs, checkout, case, graph_name, is_earlier)
    process = context.Process(target=serve, args=given, daemon=True)
    process.start()
    theirs.close()
    name = f"{case}, the process of {checkout}"

    def answer() -> float:
        if not mine.poll(PATIENCE):
            raise TimeoutError(f"{name} has not answered for {PATIENCE} s")
        try:
            said = mine.recv()
        except EOFError as error:
            process.join(PATIENCE)
            raise RuntimeError(f"{name} died with exit code {process.exitcode}") from error
        if isinstance(said, Exception):
            raise RuntimeError(f"{name} failed") from said
        return said

    def run() -> float:
        mine.send("round")
        return answer()

    try:
        yield int(answer()), run
    finally:
        mine.close()  # it ends by that, unless it hangs
        process.join(10)
        process.kill()


def bench(report: Report, case: str, graph_name: str, checkout: Path, rounds: int) -> None:
    commit = glt_commit(checkout)
    with (
        served(HERE, case, graph_name, False) as (ours, run_ours),
        served(checkout, case, graph_name, True) as (theirs, run_theirs),
    ):
        timings = interleave({"glt": run_ours, "earlier": run_theirs}, rounds)
    glt, earlier = timings.values()
    low, high = np.percentile(np.divide(earlier.seconds, glt.seconds), [25, 75])
    report.add(
        case=case,
        graph=graph_name,
        glt_million_edges_per_s=glt.rate() / 1e6,
        earlier_million_edges_per_s=earlier.rate() / 1e6,
        earlier=commit,
        glt_over_earlier=glt.over(earlier),
        quartiles=f"{low:.3g}-{high:.3g}",
        same_batches=str(ours == theirs),
    )


def main() -> None:
    options = arguments(__doc__, rounds=9, checkout={"type": Path, "default": HERE, "help": "of the earlier glt"})
    checkout = options.checkout.resolve()
    report = Report("earlier", options.toy or checkout == HERE)
    for case, graph_name in CASES.items():
        bench(report, case, "toy" if options.toy else graph_name, checkout, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
