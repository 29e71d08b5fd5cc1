"""Claim: sampled, distributed training loses at most one point of test accuracy against full neighbourhoods.

Method: GraphSAGE with the same initial weights and the same seeds in every step, twice: (a) with two DDP trainers on
two random partitions, whose worker processes sample 15 and 10 neighbours, also at test time; (b) in one process with
PyG alone, over the full neighbourhoods of the whole graph. No early stopping, no dropout, nothing else that could hide
a difference; three initialisations.

    python -m benchmarks.learning [--data_root ../shared/data] [--num_seeds 3]

test/learning asserts the claim with the same code at the same size.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import glt.distributed
from benchmarks.graphs import DATA_ROOT
from glt.data.tasks import NodeTask, read_npz
from glt.demo import Options
from glt.demo.job import scaled
from glt.demo.trainer import Model, evaluate, train_epoch
from glt.partition import RandomPartitioner

NUM_TRAINERS = 2
NUM_NEIGHBORS = (15, 10)
HIDDEN_CHANNELS = 32
LEARNING_RATE = 0.01
WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class Course:
    """What is learned from a graph, and for how long.

    Attributes:
        name: File name in the data root, without ``.npz``.
        split: As in :func:`glt.data.tasks.read_npz`.
        num_train: Training nodes to keep.
        batch_size: Seeds per step and trainer.
        epochs: Passes over the training nodes.
        max_features: The most frequent columns to keep: wide bags of words cost time on both sides and decide nothing.
        max_test: Test nodes to keep, at random.
    """

    name: str
    split: Literal["default", "split20"]
    num_train: int
    batch_size: int
    epochs: int
    max_features: int = 512
    max_test: int = 3000

    def read(self, data_root: Path) -> NodeTask:
        """The task at the size of this course, features centred, scaled and as wide as allowed."""
        task = read_npz(data_root / f"{self.name}.npz", self.split)
        x = task.x
        if x.size(1) > self.max_features:
            x = x[:, (x != 0).sum(dim=0).topk(self.max_features).indices.sort().values]
        generator = torch.Generator().manual_seed(0)
        shuffled_test = task.test_idx[torch.randperm(len(task.test_idx), generator=generator)]
        shuffled_train = task.train_idx[torch.randperm(len(task.train_idx), generator=generator)]
        return scaled(
            replace(task, x=x, train_idx=shuffled_train[: self.num_train], test_idx=shuffled_test[: self.max_test])
        )


COURSES = (
    Course("cora", "default", num_train=140, batch_size=35, epochs=30),
    Course("coauthor_cs", "split20", num_train=300, batch_size=75, epochs=20),
    Course("amazon_computers", "default", num_train=2048, batch_size=256, epochs=10),
)


def of_rank(index: torch.Tensor, rank: int) -> torch.Tensor:
    """An equal share of the nodes for each trainer, the same on both sides of the comparison."""
    return index.tensor_split(NUM_TRAINERS)[rank]


def new_model(task_size: tuple[int, int], seed: int) -> Model:
    torch.manual_seed(seed)
    options = Options(num_neighbors=NUM_NEIGHBORS, hidden_channels=HIDDEN_CHANNELS, dropout=0.0)
    return Model(*task_size, options)


def new_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def full_accuracy(task: NodeTask, course: Course, seed: int) -> float:
    """Test accuracy after training on full neighbourhoods with PyG alone, in this process."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with two, beside other work on two cores, torch's threads wait for each other: 5x slower
    try:
        return _full_accuracy(task, course, new_model((task.num_features, task.num_classes), seed))
    finally:
        torch.set_num_threads(num_threads)


def _full_accuracy(task: NodeTask, course: Course, model: Model) -> float:
    optimizer = new_optimizer(model)
    shares = [of_rank(task.train_idx, rank).split(course.batch_size) for rank in range(NUM_TRAINERS)]
    for _ in range(course.epochs):
        for batches in zip(*shares, strict=True):
            optimizer.zero_grad()
            logits = model.sage(model.encoder(task.x), task.edge_index)
            # DDP averages the trainers' mean losses.
            loss = sum(F.cross_entropy(logits[seeds], task.y[seeds]) for seeds in batches) / NUM_TRAINERS
            loss.backward()
            optimizer.step()
    return full_neighbourhood_accuracy(model, task)


@torch.no_grad()
def full_neighbourhood_accuracy(model: Model, task: NodeTask) -> float:
    """Over the full neighbourhoods of the test nodes."""
    model.eval()
    predicted = model.sage(model.encoder(task.x), task.edge_index)[task.test_idx].argmax(dim=-1)
    return (predicted == task.y[task.test_idx]).float().mean().item()


def distributed_accuracies(tasks: dict[Course, NodeTask], num_seeds: int) -> dict[str, list[float]]:
    """Test accuracies, one per initialisation, after training with one trainer per partition, by course name."""
    with tempfile.TemporaryDirectory(prefix="glt-learning-") as work_dir:
        lessons = []
        for course, task in tasks.items():
            RandomPartitioner(
                output_dir=f"{work_dir}/{course.name}",
                num_parts=NUM_TRAINERS,
                num_nodes=task.num_nodes,
                edge_index=task.edge_index,
                node_feat=task.x,
                node_label=task.y,
                edge_assign_strategy="by_dst",
            ).partition()
            lessons.append((course, (task.num_features, task.num_classes), task.train_idx, task.test_idx))
        mp.spawn(_trainer, args=(work_dir, lessons, num_seeds), nprocs=NUM_TRAINERS)
        return json.loads(Path(work_dir, "accuracies.json").read_text())


def _trainer(rank: int, work_dir: str, lessons: list[tuple[Any, ...]], num_seeds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work_dir}/rendezvous", rank=rank, world_size=NUM_TRAINERS)
    glt.distributed.init_worker_group(NUM_TRAINERS, rank, "learning")
    accuracies: dict[str, list[float]] = {}
    for course, task_size, train_idx, test_idx in lessons:
        dataset = glt.distributed.DistDataset().load(f"{work_dir}/{course.name}", rank)
        accuracies[course.name] = _lesson(rank, dataset, course, task_size, train_idx, test_idx, num_seeds)
    if rank == 0:
        Path(work_dir, "accuracies.json").write_text(json.dumps(accuracies))
    dist.destroy_process_group()


def _lesson(
    rank: int,
    dataset: glt.distributed.DistDataset,
    course: Course,
    task_size: tuple[int, int],
    train_idx: torch.Tensor,
    test_idx: torch.Tensor,
    num_seeds: int,
) -> list[float]:
    device = torch.device("cpu")

    def loader(nodes: torch.Tensor, batch_size: int, options: Any) -> glt.distributed.DistNeighborLoader:
        return glt.distributed.DistNeighborLoader(
            dataset, NUM_NEIGHBORS, of_rank(nodes, rank), batch_size, collect_features=True, random_seed=rank,
            worker_options=options,
        )  # fmt: skip

    in_worker = glt.distributed.MpDistSamplingWorkerOptions(num_workers=1)
    beside = glt.distributed.CollocatedDistSamplingWorkerOptions()
    accuracies = []
    with loader(train_idx, course.batch_size, in_worker) as train_loader, loader(test_idx, 512, beside) as test_loader:
        for seed in range(num_seeds):
            model = DistributedDataParallel(new_model(task_size, seed))
            optimizer = new_optimizer(model)
            for _ in range(course.epochs):
                train_epoch(model, optimizer, train_loader, device)
            accuracies.append(evaluate(model, test_loader, device))
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data_root", type=Path, default=DATA_ROOT, help="folder of the .npz files")
    parser.add_argument("--num_seeds", type=int, default=3, help="initialisations")
    arguments = parser.parse_args()
    tasks = {course: course.read(arguments.data_root) for course in COURSES}
    start = time.perf_counter()
    distributed = distributed_accuracies(tasks, arguments.num_seeds)
    print(f"distributed: {time.perf_counter() - start:.0f}s")
    for course, task in tasks.items():
        full = [full_accuracy(task, course, seed) for seed in range(arguments.num_seeds)]
        sampled = distributed[course.name]
        print(
            f"{course.name:<20} full {100 * statistics.mean(full):.2f}  "
            f"distributed {100 * statistics.mean(sampled):.2f}  "
            f"difference {100 * (statistics.mean(sampled) - statistics.mean(full)):+.2f} points  "
            f"(by seed: {[round(100 * (s - f), 2) for s, f in zip(sampled, full, strict=True)]})"
        )
    print(f"all: {time.perf_counter() - start:.0f}s")


if __name__ == "__main__":
    main()
