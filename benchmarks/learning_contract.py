"""Claim: a model learns from glt's loaders what it learns from PyG's, on real graphs and the same splits.

Method: the models of examples/ with the same initial weights, splits, fan-outs, batch sizes and epochs, twice: with
glt.loader, and with PyG's own loaders (pyg-lib samples). Draws and the order of seeds differ, so that figures agree up
to noise: three seeds, each with its own weights and link split; the difference is paired by seed.
(a) Heterogeneous classification: test accuracy of the last epoch, no choice by validation.
(b) Link prediction, one negative per link: AUC over held-out links and as many pairs without a link. PyG's loader
leaves the links to predict in the neighbourhoods, as glt's does with ``exclude_edges=None``; ``'reverse'`` takes them
out.

    python -m benchmarks.learning_contract [--data_root ../shared/data] [--num_seeds 3]

test/learning asserts the claim at a smaller size.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch_geometric import seed_everything
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit

import glt.loader
from benchmarks.graphs import DATA_ROOT
from glt.data.tasks import read_hetero_npz, read_npz

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import hetero_node_classification as classification  # noqa: E402
import link_prediction as prediction  # noqa: E402


@dataclass(frozen=True)
class Lesson:
    """What is learned, and for how long.

    Attributes:
        name: File name in the data root, without ``.npz``.
        epochs: Passes over the training seeds.
        num_neighbors: Fan-out per hop; PyG's ``-1`` for all neighbours.
        batch_size: Training nodes or links per step.
        lr: Adam's rate.
        max_links: Training links to use; half as many pairs to test with.
    """

    name: str
    epochs: int
    num_neighbors: tuple[int, int]
    batch_size: int
    lr: float
    max_links: int = 0


CLASSIFICATION = (Lesson("dblp_hetero", 10, (15, 10), 64, 0.005), Lesson("acm_hetero", 10, (15, 10), 64, 0.005))
PREDICTION = (
    Lesson("cora", 8, (10, 10), 256, 0.01, 5000),
    Lesson("amazon_computers", 4, (10, 5), 256, 0.01, 3000),
)


def read_classification(data_root: Path, name: str) -> tuple[HeteroData, str, int]:
    """The graph with features of length 1, the node type to classify, its number of classes."""
    task = read_hetero_npz(data_root / f"{name}.npz")
    data = task.to_pyg()
    for node_type in task.x:
        data[node_type].x = F.normalize(data[node_type].x)
    return data, task.target, task.num_classes


def classify(package: object, data: HeteroData, target: str, num_classes: int, lesson: Lesson, seed: int) -> float:
    """Test accuracy after training with the ``NeighborLoader`` of a package."""
    common = {"num_neighbors": list(lesson.num_neighbors)} | _seeded(package, seed)

    def loader(split: str, batch_size: int, shuffle: bool) -> object:
        nodes = (target, data[target][f"{split}_mask"])
        return package.NeighborLoader(data, input_nodes=nodes, batch_size=batch_size, shuffle=shuffle, **common)

    torch.manual_seed(seed)
    model = classification.Model(data, 64, num_classes)
    train, test = loader("train", lesson.batch_size, True), loader("test", 500, False)
    with torch.no_grad():  # on a batch that is the same for all: lazy layers draw their weights here
        model(next(iter(glt.loader.NeighborLoader(data, [1, 1], (target, torch.arange(1)), batch_size=1))))
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lesson.lr, weight_decay=5e-4)
    for _ in range(lesson.epochs):
        classification.train_epoch(model, train, target, optimizer)
    return classification.accuracy(model, test, target)


def read_prediction(data_root: Path, name: str) -> Data:
    """The graph with features centred and of length 1."""
    data = read_npz(data_root / f"{name}.npz").to_pyg()
    data.x = F.normalize(data.x - data.x.mean(dim=0))
    return data


def predict(package: object, data: Data, lesson: Lesson, seed: int, **options: object) -> float:
    """Test AUC after training with the ``LinkNeighborLoader`` of a package."""
    seed_everything(seed)  # RandomLinkSplit draws its negatives from numpy and random
    split = RandomLinkSplit(0.0, 0.1, is_undirected=True, add_negative_train_samples=False, split_labels=False)
    train_data, _, test_data = split(data)
    links = train_data.edge_label_index
    links = links[:, torch.randperm(links.size(1))[: lesson.max_links]]
    held = torch.randperm(test_data.edge_label.numel())[: lesson.max_links // 2]
    model = prediction.LinkPredictor(data.num_features, 64)
    common = {"num_neighbors": list(lesson.num_neighbors)} | _seeded(package, seed)
    train = package.LinkNeighborLoader(
        train_data, edge_label_index=links, neg_sampling="binary", batch_size=lesson.batch_size, shuffle=True,
        **common, **options,
    )  # fmt: skip
    test = package.LinkNeighborLoader(
        test_data, edge_label_index=test_data.edge_label_index[:, held], edge_label=test_data.edge_label[held],
        batch_size=500, **common,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=lesson.lr)
    for _ in range(lesson.epochs):
        prediction.train_epoch(model, train, optimizer)
    return prediction.evaluate(model, test)


def _seeded(package: object, seed: int) -> dict[str, int]:
    """PyG's loaders take their seed from torch."""
    return {"random_seed": seed} if package is glt.loader else {}


def _points(values: list[float]) -> str:
    """Mean and its standard error, in points."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):6.2f} ± {100 * error:.2f}"


def _row(name: str, columns: dict[str, Callable[[int], float]], num_seeds: int) -> None:
    """Prints each column, and its difference to the last, PyG's."""
    start = time.perf_counter()
    by_seed = {title: [learn(seed) for seed in range(num_seeds)] for title, learn in columns.items()}
    pyg = by_seed["PyG"]
    for title, values in by_seed.items():
        difference = _points([a - b for a, b in zip(values, pyg, strict=True)]) if values is not pyg else ""
        print(f"{name:<18} {title:<30} {_points(values)}   {difference}", flush=True)
    print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data_root", type=Path, default=DATA_ROOT, help="folder of the .npz files")
    parser.add_argument("--num_seeds", type=int, default=3, help="initial weights and link splits")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("test accuracy or AUC, points, mean ± standard error; difference to PyG, paired by seed")
    for lesson in CLASSIFICATION:
        graph = read_classification(args.data_root, lesson.name)
        columns = {
            "glt": lambda seed, graph=graph, lesson=lesson: classify(glt.loader, *graph, lesson, seed),
            "PyG": lambda seed, graph=graph, lesson=lesson: classify(torch_geometric.loader, *graph, lesson, seed),
        }
        _row(lesson.name, columns, args.num_seeds)
    for lesson in PREDICTION:
        data = read_prediction(args.data_root, lesson.name)

        def learn(package: object, data: Data = data, lesson: Lesson = lesson, **options: object):
            return lambda seed: predict(package, data, lesson, seed, **options)

        columns = {
            "glt, exclude_edges=None": learn(glt.loader),
            "glt, exclude_edges='reverse'": learn(glt.loader, exclude_edges="reverse"),
            "PyG": learn(torch_geometric.loader),
        }
        _row(lesson.name, columns, args.num_seeds)


if __name__ == "__main__":
    main()
