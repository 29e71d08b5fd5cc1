"""Divides a graph in IGBH's layout.

    python examples/igbh/partition.py --path igbh --size tiny --num_parts 2 --out igbh-parts

Nothing is read whole. Beside ``--out`` it needs, while it runs, disk for 8 bytes an edge.
"""

import argparse
import tempfile
from pathlib import Path

from layout import LABEL_FILES, SIZES, read_graph

from glt.partition import RandomPartitioner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, default=Path("igbh"), help="the directory that tiny, small, ... lie in")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--num_classes", type=int, choices=LABEL_FILES, default=19)
    parser.add_argument("--num_parts", type=int, default=2)
    parser.add_argument("--store_dtype", help="of features: float16, as MLPerf allows, bfloat16, int8 or int4")
    parser.add_argument("--out", type=Path, default=Path("igbh-parts"), help="directory to create")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.parent, prefix="igbh-scratch-") as scratch:
        graph = read_graph(args.path, args.size, args.num_classes, scratch)
        options = {"edge_assign_strategy": "by_dst", "store_dtype": args.store_dtype}
        partitioner = RandomPartitioner(args.out, args.num_parts, **graph, **options)
        del graph  # the partitioner has it
        print(partitioner.partition())


if __name__ == "__main__":
    main()
