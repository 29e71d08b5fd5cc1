"""Partitions a graph for servers: features, labels, and the splits as masks, which clients name 'train' and so on.

    python examples/server_client/partition.py --output_dir parts
    python examples/server_client/partition.py --output_dir parts --data ../shared/data/cora.npz

See README.md beside this file.
"""

import argparse

import torch

from glt.data.synthetic import synthetic_graph
from glt.data.tasks import NodeTask, read_npz
from glt.demo.job import scaled
from glt.partition import RandomPartitioner


def masks_of(task: NodeTask) -> dict[str, torch.Tensor]:
    """One bool per node and split; servers know the splits by these names."""
    masks = {}
    for name, index in (("train", task.train_idx), ("valid", task.val_idx), ("test", task.test_idx)):
        masks[f"{name}_mask"] = torch.zeros(task.num_nodes, dtype=torch.bool).index_fill_(0, index, True)
    return masks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="folder to create: a subfolder per partition")
    parser.add_argument("--data", help="an .npz file as in ../shared/data; without it, a synthetic graph")
    parser.add_argument("--num_parts", type=int, default=2)
    options = parser.parse_args()

    task = scaled(read_npz(options.data)) if options.data else synthetic_graph()
    RandomPartitioner(
        options.output_dir,
        options.num_parts,
        task.num_nodes,
        task.edge_index,
        node_feat=task.x,
        node_label=task.y,
        node_attrs=masks_of(task),
        edge_assign_strategy="by_dst",  # in-edges, the direction in which PyG samples
    ).partition()
    print(f"{task.name}: {options.num_parts} partitions at {options.output_dir}")
    print(f"start clients with --num_classes {task.num_classes}", flush=True)


if __name__ == "__main__":
    main()
