"""Partitions a graph, but stops for ever at the step named in the arguments; the test kills it there."""

import signal
import sys
from pathlib import Path

import numpy as np

from glt import _core
from glt.partition import Manifest, RandomPartitioner

target, stage = sys.argv[1:]


def stop(*_, **__):
    print("stopped", flush=True)
    signal.pause()


def stop_within(*args, progress=None, **options):
    sort_edges(*args, progress=stop, **options)


sort_edges, write_manifest = _core.sort_edges, Manifest.write
if stage == "within sort_edges":
    _core.sort_edges = stop_within
elif stage == "before the manifest":
    Manifest.write = stop
elif stage == "before the rename":
    Path.rename = stop
else:
    setattr(_core, stage.removeprefix("before "), stop)

edge_index = np.arange(60_000).reshape(2, -1) % 1000
partitioner = RandomPartitioner(Path(target), 2, 1000, edge_index, node_feat=np.ones((1000, 2)), num_threads=2)
partitioner.sort_memory_bytes = 2  # far below what users may ask for: the graph passes through a scratch file
partitioner.partition()
