"""Partition directories that other libraries wrote, and the graphs that they were given.

``peer_directories.tar.xz`` was made once from ``inputs.npz`` in it: ``glt_*`` by the partitioners of graphlearn_torch
0.2.4, ``dgl_*`` by ``dgl.distributed.partition_graph`` of DGL 2.1.0, whose returned mappings are in ``mappings.npz``.
The ``dgl_*_gb`` are those of the same name with the graphs stored as GraphBolt stores them: pickled by torch from a
TorchScript class of the same name and state, GraphBolt's own library asking for an older torch.
"""

import struct
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import torch
from torch_geometric.distributed import Partitioner
from torch_geometric.loader.cluster import ClusterData

NUM_NODES = 20
HETERO_NODES = {"a": 12, "b": 9}
A_X_B, B_Y_A, A_Z_A = ("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")


def unpack(target):
    """Unpacks the directories under ``target``."""
    with tarfile.open(Path(__file__).with_name("peer_directories.tar.xz")) as archive:
        # Python 3.12 warns where there is no filter, 3.11.2 does not know filters.
        archive.extractall(target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return target


def inputs(peers):
    return dict(np.load(peers / "inputs.npz"))


def hetero_edges(given, *edge_types):
    return {edge_type: given[":".join(edge_type)] for edge_type in edge_types}


def mapping(peers, name, kind):
    """What ``partition_graph`` returned: a tensor, or a dict of tensors by type."""
    prefix = f"{name}/{kind}/"
    found = {
        key.removeprefix(prefix): torch.from_numpy(value)
        for key, value in np.load(peers / "mappings.npz").items()
        if key.startswith(prefix)
    }
    return found[""] if "" in found else {tuple(k.split(":")) if ":" in k else k: v for k, v in found.items()}


def foreign_class(monkeypatch, module, name):
    """An empty class that pickles under a name of a library that is not installed, until ``monkeypatch`` undoes it."""
    made = type(name, (), {"__module__": module})
    parents = module.split(".")
    for end in range(1, len(parents) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parents[:end]), types.ModuleType(".".join(parents[:end])))
    monkeypatch.setattr(sys.modules[module], name, made, raising=False)
    return made


def write_pyg(root, data, num_parts, monkeypatch):
    """Has PyG's own partitioner write ``data``; node id modulo ``num_parts`` stands for METIS, which needs pyg-lib."""
    monkeypatch.setattr(
        ClusterData, "_metis", lambda self, edge_index, num_nodes: torch.arange(num_nodes) % self.num_parts
    )
    Partitioner(data, num_parts, str(root)).generate_partition()


_KINDS = {"i": 0, "u": 1, "f": 2}


def write_tensors(path, tensors):
    """Writes DGL's file of tensors, from its format alone."""
    out = struct.pack("<QQQ", 0xDD5A9FBE3FA2443F, len(tensors), len(tensors))
    for name, array in tensors.items():
        out += struct.pack("<Q", len(name.encode())) + name.encode()
        out += struct.pack("<QQiii", 0xDD5E40F096B4A13F, 0, 1, 0, array.ndim)
        out += struct.pack("<BBH", _KINDS[array.dtype.kind], 8 * array.itemsize, 1)
        out += struct.pack(f"<{array.ndim}q", *array.shape) + struct.pack("<q", array.nbytes) + array.tobytes()
    path.write_bytes(out)
