"""The main job, end to end: partition a graph, start samplers, train GraphSAGE with one DDP trainer per partition.

``glt demo`` and ``examples/train_sage_distributed.py`` are two doors to it. Its options and flags are here, where
they cost no import of torch. ``job.py`` runs it; ``trainer.py`` is the part to copy.
"""

import argparse
from dataclasses import dataclass

PLACES = ("auto", "cpu", "gpu", "host")


@dataclass(frozen=True)
class Options:
    """What to train on what, and how; the flags of the same names say more.

    Raises:
        ValueError: If a value is out of its range; names it.
    """

    dataset: str = "synthetic"
    data_root: str = "data"
    partition_dir: str | None = None
    num_parts: int = 2
    mode: str = "worker"
    sample_on: str = "auto"
    num_workers: int = 1
    concurrency: int = 4
    num_neighbors: tuple[int, ...] = (15, 10)
    batch_size: int = 512
    epochs: int = 5
    hidden_channels: int = 64
    lr: float = 0.01
    dropout: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("num_parts", 1 <= self.num_parts <= 2**16, "1 to 65536")
        for name in ("num_workers", "concurrency", "batch_size", "epochs", "hidden_channels"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        self._check("mode", self.mode in ("worker", "collocated"), "'worker' or 'collocated'")
        self._check("sample_on", self.sample_on in PLACES, f"one of {', '.join(PLACES)}")
        self._check("lr", self.lr > 0, "above 0")
        self._check("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        # Each trainer adds its rank; its samplers take seeds below 2^63.
        self._check("seed", 0 <= self.seed < 2**63 - self.num_parts, f"0 to {2**63 - self.num_parts - 1}")
        hops = self.num_neighbors
        self._check("num_neighbors", len(hops) > 0 and all(k >= -1 for k in hops), "one number per hop, -1 for all")

    def _check(self, name: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise ValueError(f"{name} = {getattr(self, name)!r}, expected {expected}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per option; ``Options(**vars(parsed))`` checks their values."""
    parser.description = "Partitions a graph, starts samplers and trains GraphSAGE with one DDP trainer per partition."
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add, default = parser.add_argument, Options()
    text = "synthetic, ogbn-products, ogbn-arxiv, an .npz file, or its name in --data_root"
    add("--dataset", default=default.dataset, help=text)
    add("--data_root", default=default.data_root, help="folder of OGB's data sets and of .npz files")
    text = "where to write the partitions, or to reuse those of an earlier run; a temporary folder if not given"
    add("--partition_dir", help=text)
    add("--num_parts", type=int, default=default.num_parts, help="partitions, and trainers: one each")
    text = "sample in own processes, or in the trainer's"
    add("--mode", default=default.mode, choices=("worker", "collocated"), help=text)
    text = (
        "auto: the GPU that trains, if there is one, with the whole graph in its memory; host: a GPU's kernels, "
        "run by the CPU, for tests"
    )
    add("--sample_on", default=default.sample_on, choices=PLACES, help=text)
    add("--num_workers", type=int, default=default.num_workers, help="sampling processes per trainer (worker mode)")
    add("--concurrency", type=int, default=default.concurrency, help="batches in flight per sampler")
    text = "neighbours per hop, -1 for all; as many layers"
    add("--num_neighbors", type=_hops, default=default.num_neighbors, metavar="K,K,...", help=text)
    add("--batch_size", type=int, default=default.batch_size, help="seeds per batch and trainer")
    add("--epochs", type=int, default=default.epochs, help="passes over the training nodes")
    add("--hidden_channels", type=int, default=default.hidden_channels, help="width of GraphSAGE")
    add("--lr", type=float, default=default.lr, help="learning rate of Adam")
    add("--dropout", type=float, default=default.dropout, help="probability")
    add("--seed", type=int, default=default.seed, help="of the graph, its partitions, the samples and the model")


def _hops(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected whole numbers separated by commas, such as 15,10"
        ) from None
