"""Trains GraphSAGE on a partitioned graph: one DDP trainer per partition, each with its own sampling processes.

    python examples/train_sage_distributed.py
    python examples/train_sage_distributed.py --dataset ../shared/data/amazon_computers.npz --mode collocated
    python examples/train_sage_distributed.py --dataset ogbn-products --num_neighbors 15,10,5 --hidden_channels 256

The program is the package's own `glt demo`, so that it also runs where there is only an installed wheel. To write your
own, copy glt/demo/trainer.py (the trainer: loaders, DDP, evaluation; public API only) and the thirty lines of `run` in
glt/demo/job.py (partition, spawn).
"""

import argparse

from glt.cli import run_demo
from glt.demo import add_arguments

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    run_demo(parser, parser.parse_args())
