"""Steps of distributed embeddings: 500 thousand rows of 64 floats, 20 thousand ids per step.

Claim: standalone, a step (forward, backward, optimizer) takes no longer than that of nn.Embedding(sparse=True) with
torch's Adagrad or SparseAdam.

Method: one core for this process; the same ids and targets for all contestants, four batches per round, contestants
take turns. "skewed" draws ids with probability proportional to 1 / (rank + 100), so that about a third are duplicates,
as in negative sampling; "distinct" ids come once, as the nodes of a sampled batch. "served" keeps the rows in a server
process on this machine, one trainer. Rows are compared with torch's before anything is timed. CPU is of this process
only: for "served" that leaves the owner's work out.

    python -m benchmarks.bench_embedding [--rounds 7] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._harness import Report, arguments, interleave, pinned, require
from benchmarks.partitioned import client_of_one_server
from glt.distributed import DistEmbedding, SparseAdagrad, SparseAdam
from glt.distributed.context import World
from glt.distributed.job.worlds import ServedWorld, StandaloneWorld
from glt.distributed.server.api import require_client

WIDTH, NUM_BATCHES = 64, 4
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "adagrad": (SparseAdagrad, torch.optim.Adagrad),
    "adam": (SparseAdam, torch.optim.SparseAdam),
}


def draws(kind: str, num_rows: int, num_ids: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(1)
    if kind == "distinct":
        return [torch.randperm(num_rows, generator=rng)[:num_ids] for _ in range(NUM_BATCHES)]
    chances, order = 1.0 / (torch.arange(num_rows) + 100.0), torch.randperm(num_rows, generator=rng)
    return [order[torch.multinomial(chances, num_ids, True, generator=rng)] for _ in range(NUM_BATCHES)]


class Contestant:
    """An embedding with its optimizer."""

    def __init__(self, embedding: nn.Module, optimizer: torch.optim.Optimizer, rows: Callable[[], Tensor]) -> None:
        self.embedding, self.optimizer, self.rows = embedding, optimizer, rows

    def learn(self, batches: list[Tensor], target: Tensor) -> float:
        for ids in batches:
            self.optimizer.zero_grad()
            (self.embedding(ids) - target).pow(2).sum().backward()
            self.optimizer.step()
        return float(len(batches))


def of_torch(kind: str, first: Tensor) -> Contestant:
    embedding = nn.Embedding.from_pretrained(first.clone(), freeze=False, sparse=True)
    optimizer = OPTIMIZERS[kind][1](embedding.parameters(), lr=0.01)
    return Contestant(embedding, optimizer, lambda: embedding.weight.detach())


def of_glt(kind: str, first: Tensor, world: World) -> Contestant:
    embedding = DistEmbedding(*first.shape, init_func="zeros", world=world)
    embedding.weight[:] = first
    return Contestant(embedding, OPTIMIZERS[kind][0](embedding, lr=0.01), lambda: embedding.weight[:])


def main() -> None:
    options = arguments(__doc__, rounds=7)
    report = Report("embedding", options.toy)
    num_rows, num_ids = (1 << 10, 200) if options.toy else (500_000, 20_000)
    first, target = torch.randn(num_rows, WIDTH), torch.randn(num_ids, WIDTH)
    with client_of_one_server():
        served, alone = ServedWorld(require_client()), StandaloneWorld()
        for kind in OPTIMIZERS:
            for ids in ("skewed", "distinct"):
                batches = draws(ids, num_rows, num_ids)
                contestants = {
                    "torch": of_torch(kind, first),
                    "glt, standalone": of_glt(kind, first, alone),
                    "glt, served": of_glt(kind, first, served),
                }
                measure(report, options.rounds, f"{kind}, {ids}", contestants, batches, target)
        alone.close()
    report.finish()


def measure(
    report: Report, rounds: int, what: str, contestants: dict[str, Contestant], batches: list[Tensor], target: Tensor
) -> None:
    for each in contestants.values():
        each.learn(batches, target)
    expected = contestants["torch"].rows()
    for name, each in contestants.items():
        require(torch.allclose(each.rows(), expected, rtol=1e-4, atol=1e-5), f"{name} learns something else")
    with pinned():
        learn = {name: partial(each.learn, batches, target) for name, each in contestants.items()}
        timings = interleave(learn, rounds)
    base = timings["torch"]
    for name, timing in timings.items():
        scale = 1e3 / NUM_BATCHES
        report.add(
            optimizer=what, embedding=name, step_ms=timing.median(scale), quartiles=timing.quartiles(scale),
            cpu_ms=timing.cpu(scale), torch_over_it=base.median() / timing.median(),
            by_cpu=base.cpu() / timing.cpu(),
        )  # fmt: skip


if __name__ == "__main__":
    main()
