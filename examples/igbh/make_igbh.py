"""Makes a small graph in IGBH's layout, for machines without the 2.2 TB of the real one.

    python examples/igbh/make_igbh.py --path igbh --size tiny
    python examples/igbh/make_igbh.py --path igbh --size full --papers 20000

A paper's features alone tell half of its class: what it cites, its authors, its topics and their features tell more.
"""

import argparse
from pathlib import Path

import numpy as np
from layout import LABEL_FILES, SIZES, is_bare, relations

NUM_CLASSES = 19  # 2983 = 19 * 157: a class has 157 finer ones
# Nodes of a type to each paper, about as in IGBH; how many a source of this relation leads to, and how many of them
# are of its own class.
PER_PAPER = {"paper": 1.0, "author": 2.0, "institute": 0.05, "fos": 0.1, "journal": 0.02, "conference": 0.02}
DEGREE = {"cites": 8, "written_by": 3, "affiliated_to": 1, "topic": 4, "published": 1, "venue": 1}
SAME_CLASS = 0.5
NOISE = 0.4  # of features, beside 1 between classes


def make(path: Path, size: str, num_papers: int, num_features: int, seed: int) -> None:
    """Writes ``path/size/processed``."""
    draws = np.random.default_rng(seed)
    folder = path / size / "processed"
    centres = draws.normal(size=(NUM_CLASSES, num_features))
    of_class, members = {}, {}
    for node_type in dict.fromkeys(end for each in relations(size) for end in (each[0], each[2])):
        count = max(NUM_CLASSES * 2, int(num_papers * PER_PAPER[node_type]))
        kind = draws.permutation(np.arange(count) % NUM_CLASSES)  # each class has some
        of_class[node_type], members[node_type] = kind, np.argsort(kind, kind="stable")
        rows = centres[kind] + NOISE * np.sqrt(num_features) * draws.normal(size=(count, num_features))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # as embeddings of texts, which IGBH has
        save(folder / node_type / "node_feat.npy", rows.astype(np.float32), size, node_type)
    finer = of_class["paper"] * 157 + draws.integers(0, 157, num_papers)
    for num_classes, labels in ((NUM_CLASSES, of_class["paper"]), (2983, finer)):
        save(folder / "paper" / LABEL_FILES[num_classes], labels.astype(np.float32), size, "paper")
    for source, relation, target in relations(size):
        begin = np.arange(len(of_class[source])).repeat(DEGREE[relation])
        kind = of_class[source][begin]
        stray = draws.random(len(begin)) > SAME_CLASS
        kind[stray] = draws.integers(0, NUM_CLASSES, int(stray.sum()))
        counts = np.bincount(of_class[target], minlength=NUM_CLASSES)
        at = counts.cumsum()[kind] - 1 - (draws.random(len(kind)) * counts[kind]).astype(np.int64)
        edges = np.stack([begin, members[target][at]], axis=1)
        save(folder / f"{source}__{relation}__{target}" / "edge_index.npy", edges, size, relation)


def save(path: Path, array: np.ndarray, size: str, what: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_bare(size) and what in ("paper", "author"):
        array.tofile(path)
    else:
        np.save(path, array)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, default=Path("igbh"))
    parser.add_argument("--size", choices=SIZES, default="tiny", help="whose layout")
    parser.add_argument("--papers", type=int, default=4000)
    parser.add_argument("--features", type=int, default=64, help="numbers of a node; IGBH has 1024")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.papers < 2 * NUM_CLASSES:
        parser.error(f"--papers {args.papers}: expected at least {2 * NUM_CLASSES}, two of each class")
    if args.features < 1:
        parser.error(f"--features {args.features}: expected at least 1")
    make(args.path, args.size, args.papers, args.features, args.seed)
    print(f"{args.path / args.size}: {args.papers:,} papers")


if __name__ == "__main__":
    main()
