"""IGBH's files (Illinois Graph Benchmark, heterogeneous) as arguments of a partitioner: mapped, never read whole.

A size is a directory::

    <size>/processed/paper/node_feat.npy, node_label_19.npy, node_label_2K.npy
    <size>/processed/<author, institute, fos; of large and full also conference, journal>/node_feat.npy
    <size>/processed/<source>__<relation>__<target>/edge_index.npy         [num_edges, 2]

Of large and full the files of papers and authors are bare float32 numbers without NumPy's header.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Papers and authors of each size, as they are published; a graph that is made has others.
SIZES = {
    "tiny": (100_000, 357_041),
    "small": (1_000_000, 1_926_066),
    "medium": (10_000_000, 15_544_654),
    "large": (100_000_000, 116_959_896),
    "full": (269_346_174, 277_220_883),
}
# Of full, the first papers have labels. Of the other sizes all have.
LABELLED = {("full", 19): 227_130_858, ("full", 2983): 157_675_969}
LABEL_FILES = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}
CITES = ("paper", "cites", "paper")
_RELATIONS = [
    CITES,
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
]
_OF_LARGE = [("paper", "published", "journal"), ("paper", "venue", "conference")]
_CHUNK = 1 << 20  # rows that are in memory at a time, of edges and labels


def is_bare(size: str) -> bool:
    return size in ("large", "full")


def relations(size: str) -> list[tuple[str, str, str]]:
    """The edge types that there are files of."""
    return _RELATIONS + _OF_LARGE if is_bare(size) else _RELATIONS


def split(size: str, num_classes: int, num_papers: int, seed: int = 42, val_share: float = 0.005) -> dict[str, Tensor]:
    """The papers to train and to validate, by the rule of MLPerf's reference: the labelled papers in random order, of
    which the first 60% train and the next 0.5% validate (94.6 million and 788,379 of IGBH-full with 2,983 classes). All
    others are neighbours only.
    """
    num_labelled = min(LABELLED.get((size, num_classes), num_papers), num_papers)
    order = torch.randperm(num_labelled, generator=torch.Generator().manual_seed(seed))
    num_train, num_val = int(0.6 * num_labelled), int(val_share * num_labelled)
    return {"train": order[:num_train], "val": order[num_train : num_train + num_val]}


def map_file(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Maps a ``.npy`` file, or one of bare float32 numbers, whose shape is then ``shape``."""
    with path.open("rb") as file:
        has_header = file.read(6) == b"\x93NUMPY"
    return np.load(path, mmap_mode="r") if has_header else np.memmap(path, np.float32, "r").reshape(shape)


def read_graph(root: str | Path, size: str, num_classes: int, scratch: str | Path) -> dict[str, Any]:
    """What a partitioner takes. ``scratch`` is a directory for what cannot be mapped as it lies: ids of edges, labels.
    It may go when the partitions are there.

    As MLPerf has it, citations go both ways in one type, without loops but one for each paper; of each other relation
    there is the reverse, ``rev_...``.
    """
    folder, scratch = Path(root, size, "processed"), Path(scratch)
    labels = map_file(folder / "paper" / LABEL_FILES[num_classes], (-1,))
    num_papers = len(labels)
    features = {"paper": map_file(folder / "paper" / "node_feat.npy", (num_papers, -1))}
    for node_type in dict.fromkeys(end for each in relations(size) for end in (each[0], each[2])):
        if node_type != "paper":
            features[node_type] = map_file(folder / node_type / "node_feat.npy", (-1, features["paper"].shape[1]))
    for node_type, found, published in zip(("paper", "author"), features.values(), SIZES[size], strict=False):
        if len(found) != published:
            print(f"{len(found):,} nodes of type {node_type}; the published IGBH-{size} has {published:,}")

    edges = {}
    for edge_type in relations(size):
        given = np.load(folder / "__".join(edge_type) / "edge_index.npy", mmap_mode="r")
        if edge_type == CITES:
            edges[edge_type] = _both_ways(given, num_papers, scratch / "cites.npy")
        else:
            edges[edge_type] = _columns(given, scratch / f"{edge_type[1]}.npy")
            reverse = (edge_type[2], f"rev_{edge_type[1]}", edge_type[0])
            edges[reverse] = edges[edge_type][::-1]  # the same bytes
    return {
        "num_nodes": {node_type: len(each) for node_type, each in features.items()},
        "edge_index": edges,
        "node_feat": features,
        "node_label": {"paper": _labels(labels, scratch / "labels.npy")},
    }


def _pieces(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for begin in range(0, len(rows), _CHUNK):
        yield begin, rows[begin : begin + _CHUNK]


def _columns(edges: np.ndarray, path: Path) -> np.ndarray:
    """``[num_edges, 2]`` as ``[2, num_edges]``, in a file: a partitioner would copy ``edges.T`` to memory. All ids of
    IGBH fit into 32 bits."""
    out = np.lib.format.open_memmap(path, "w+", np.int32, (2, len(edges)))
    for begin, piece in _pieces(edges):
        out[:, begin : begin + len(piece)] = piece.T
    return out


def _both_ways(edges: np.ndarray, num_nodes: int, path: Path) -> np.ndarray:
    num_edges = sum(int((piece[:, 0] != piece[:, 1]).sum()) for _, piece in _pieces(edges))
    out = np.lib.format.open_memmap(path, "w+", np.int32, (2, 2 * num_edges + num_nodes))
    at = 0
    for _, piece in _pieces(edges):
        kept = piece[piece[:, 0] != piece[:, 1]].T
        end = at + kept.shape[1]
        out[:, at:end], out[:, num_edges + at : num_edges + end] = kept, kept[::-1]
        at = end
    out[:, 2 * num_edges :] = np.arange(num_nodes)
    return out


def _labels(labels: np.ndarray, path: Path) -> np.ndarray:
    """Classes as int16, -1 where there is none."""
    out = np.lib.format.open_memmap(path, "w+", np.int16, labels.shape)
    for begin, piece in _pieces(labels):
        out[begin : begin + len(piece)] = np.nan_to_num(piece.astype(np.float32), nan=-1)
    return out
