"""Test accuracy after training with LABOR, beside training with drawn neighbours, on real graphs.

Claim: a model learns as much from the fewer nodes of ``sampler="labor"``, also where batches share their choice.

Method: GraphSAGE of two layers (see ``benchmarks.learning``), few neighbours, so that sampling leaves most of them out.
Contestants have the same initial weights and the same seeds in every step, so that the difference to drawing is paired
by initialisation; ``error`` is the standard error of the mean over these, in points as the accuracies are. Windows end
with an epoch. Only training samples: accuracy is over the full neighbourhoods of the test nodes, after the last epoch,
without any choice by validation. ``nodes`` are those of a batch.

    python -m benchmarks.bench_labor_learning [--rounds 30] [--toy]

A round is an initialisation. test/learning asserts the claim for one graph.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks._harness import Report, arguments
from benchmarks.graphs import DATA_ROOT
from benchmarks.learning import COURSES, Course, full_neighbourhood_accuracy, new_model, new_optimizer
from glt.data.synthetic import synthetic_graph
from glt.data.tasks import NodeTask
from glt.loader import NeighborLoader

NUM_NEIGHBORS = [4, 4]
SAMPLERS: dict[str, dict[str, Any]] = {
    "neighbor": {},
    "labor": {"sampler": "labor"},
    "labor, 8 batches": {"sampler": "labor", "batch_dependency": 8},
}
GRAPHS = (*COURSES, Course("coauthor_physics", "split20", num_train=100, batch_size=25, epochs=20))


def learn(task: NodeTask, course: Course, seed: int, **options: Any) -> tuple[float, float]:
    """Test accuracy after training with one sampler, and the mean number of nodes of a batch."""
    model = new_model((task.num_features, task.num_classes), seed)
    optimizer = new_optimizer(model)
    loader = NeighborLoader(
        task.to_pyg(), NUM_NEIGHBORS, task.train_idx, batch_size=course.batch_size, shuffle=True, random_seed=seed,
        **options,
    )  # fmt: skip
    num_nodes = []
    for _ in range(course.epochs):
        for batch in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), batch.y[: batch.batch_size]).backward()
            optimizer.step()
            num_nodes.append(batch.num_nodes)
    return full_neighbourhood_accuracy(model, task), statistics.mean(num_nodes)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """In points."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return 100 * statistics.mean(values), 100 * error


def measure(report: Report, task: NodeTask, course: Course, num_seeds: int) -> None:
    learned = {
        name: [learn(task, course, seed, **options) for seed in range(num_seeds)] for name, options in SAMPLERS.items()
    }
    drawn = [accuracy for accuracy, _ in learned["neighbor"]]
    for name, of_seeds in learned.items():
        found = [accuracy for accuracy, _ in of_seeds]
        accuracy, error = mean_and_error(found)
        difference = mean_and_error([a - b for a, b in zip(found, drawn, strict=True)])
        report.add(
            graph=course.name,
            sampler=name,
            initialisations=num_seeds,
            nodes=statistics.mean(nodes for _, nodes in of_seeds),
            accuracy=accuracy,
            accuracy_error=error,
            difference=None if name == "neighbor" else difference[0],
            difference_error=None if name == "neighbor" else difference[1],
        )
    report.print_rows(report.rows[-len(SAMPLERS) :])


def main() -> None:
    options = arguments(__doc__, rounds=30)
    torch.set_num_threads(1)
    report = Report("labor_learning", options.toy)
    if options.toy:
        task, course = synthetic_graph(800, num_classes=4), replace(GRAPHS[0], name="toy", batch_size=64, epochs=2)
        measure(report, task, course, options.rounds)
    else:
        absent = [course.name for course in GRAPHS if not (DATA_ROOT / f"{course.name}.npz").exists()]
        if absent:
            print(f"absent: {', '.join(absent)} in {DATA_ROOT}")
        for course in GRAPHS:
            if course.name not in absent:
                measure(report, course.read(DATA_ROOT), course, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
