"""Partitions a graph that no machine holds: every rank makes, or reads, a slice of it and writes its partitions.

On one machine, and on two (on each of them, with ``--node_rank 0`` and ``1``)::

    torchrun --nproc_per_node 2 examples/partition_distributed.py --output_dir parts
    torchrun --nnodes 2 --node_rank 0 --nproc_per_node 1 --master_addr first-host --master_port 29500 \\
        examples/partition_distributed.py --output_dir parts

The graph is synthetic: each rank draws its own edges and features. With data of your own, map the slice of this rank,
for example ``numpy.load("edge_index.npy", mmap_mode="r")[:, begin:end]``: nothing of it is copied whole.
"""

import argparse
import logging

import numpy as np
import torch.distributed as dist

from glt.partition import RandomPartitioner, partition_distributed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="directory to create, on each host or shared by all")
    parser.add_argument("--num_parts", type=int, default=4)
    parser.add_argument("--num_nodes", type=int, default=100_000)
    parser.add_argument("--num_edges", type=int, default=1_000_000)
    parser.add_argument("--num_features", type=int, default=32)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    dist.init_process_group("gloo")  # torchrun has told who is where
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def share(total: int) -> int:
        return (rank + 1) * total // world_size - rank * total // world_size

    draw = np.random.default_rng(rank)
    partition_distributed(
        RandomPartitioner,
        options.output_dir,
        options.num_parts,
        options.num_nodes,
        draw.integers(0, options.num_nodes, (2, share(options.num_edges))),
        draw.random((share(options.num_nodes), options.num_features), np.float32),
        node_label=draw.integers(0, 10, share(options.num_nodes)),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
