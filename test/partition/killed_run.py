"""Partitions a graph, but stops for ever before it writes the file named in the arguments; the test kills it there."""

import signal
import sys
from pathlib import Path

import numpy as np

from glt.partition import Manifest, RandomPartitioner
from glt.partition.npy_file import NpyWriter

target, stage = sys.argv[1:]


def stop_at(path: str) -> None:
    if stage in path:
        print("about to write", flush=True)
        signal.pause()


append, write_manifest = NpyWriter.write, Manifest.write
NpyWriter.write = lambda self, piece: (stop_at(str(self.path)), append(self, piece))[1]  # type: ignore[method-assign]
Manifest.write = lambda self, root: (stop_at("manifest.json"), write_manifest(self, root))[1]  # type: ignore[method-assign]
edge_index = np.array([[0, 1, 2, 2], [1, 2, 0, 1]])
RandomPartitioner(Path(target), 2, 3, edge_index, node_feat=np.ones((3, 2)), edge_feat=np.ones(4)).partition()
