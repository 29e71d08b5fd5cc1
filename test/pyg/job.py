"""The distributed job that PyG's tests run in: partition directories of their data, this process, which is the first
trainer, and another, which has the second of two partitions.
"""

import copy
import itertools
import shutil
import tempfile
import traceback
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.multiprocessing  # tensors pass through connections
from torch_geometric.data import HeteroData

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, MpDistSamplingWorkerOptions
from glt.partition import RandomPartitioner
from glt.partition.inputs.read import graph_arguments
from glt.testing.cluster import free_port

_RPC_TIMEOUT_S = 100.0
GROUP = "pygs-tests"
_DEADLINE_S = 120.0
_NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


class Partitions:
    """Partition directories of data, written when a loader first asks for one."""

    def __init__(self, root, num_parts):
        self.root, self.num_parts = root, num_parts
        self._numbers = itertools.count()
        self._made = {}

    def of(self, data, time_attr, weight_attr, seed_edges=None):
        """Returns the directory of ``data``, the same until a tensor changes; it names ``seed_edges`` too."""
        tensors = [
            (store._key, name, id(value), getattr(value, "_version", None))
            for store in data.stores
            for name, value in store.items()
        ]
        key = (id(data), *tensors, time_attr, weight_attr, seed_edges)
        if key not in self._made:
            path = self.root / str(next(self._numbers))
            arguments = graph_arguments(_with_edges(data, seed_edges), weight_attr=weight_attr, time_attr=time_attr)
            RandomPartitioner(path, self.num_parts, edge_assign_strategy="by_dst", **arguments).partition()
            self._made[key] = data, path  # the data is kept, so that no other gets its id
        return self._made[key][1]

    def forget(self):
        """Lets go of the data."""
        self._made.clear()


def _with_edges(data, seed_edges):
    """The data with a place for edges even if there are none, as a partition has one."""
    data = copy.copy(data)
    if isinstance(data, HeteroData):
        if seed_edges is not None and seed_edges not in data.edge_types:
            data[seed_edges].edge_index = _NO_EDGES
    elif data.edge_index is None:
        data.edge_index = _NO_EDGES
    return data


class OtherTrainer:
    """A process of rank 1 of 2. What it is told to make, it makes while the caller makes its own, as trainers do."""

    def __init__(self):
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_serve, args=(theirs,), daemon=False)
        self._process.start()
        theirs.close()

    def begin(self, number, path, kind, options, arguments):
        """Has it make a loader; :meth:`outcome` waits until it has."""
        self._pipe.send((number, path, kind, options, arguments))

    def outcome(self):
        """Returns the traceback of what it could not make."""
        if not self._pipe.poll(_DEADLINE_S):
            raise TimeoutError(f"the other trainer has not answered within {_DEADLINE_S:g} s")
        return self._pipe.recv()

    def shut_down(self, number):
        """Has it shut a loader down, which goes on while the caller shuts down its own."""
        self._pipe.send((number,))

    def end(self):
        self._pipe.send(None)
        self._process.join(_DEADLINE_S)


def _serve(pipe):
    glt.distributed.init_worker_group(2, 1, GROUP)
    loaders = {}
    while (told := pipe.recv()) is not None:
        number, *making = told
        if not making:
            loaders.pop(number).shutdown()
            continue
        path, kind, options, arguments = making
        try:
            data = DistDataset().load(path, 1)
            loaders[number] = getattr(glt.distributed, kind)(data, worker_options=options, **arguments)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())


class Job:
    """Makes distributed loaders over one partition, or over two, the second of which another process has.

    Args:
        mode: ``'collocated'`` or ``'worker'``.
        num_parts: 1 or 2.
        read_local: Read the second partition's files, else ask its trainer.

    Attributes:
        num_batches: Received so far.
        remote_bytes: Of them, what the other trainer was asked for.
    """

    def __init__(self, mode, num_parts, read_local):
        glt.distributed.init_worker_group(num_parts, 0, GROUP)
        self.mode = mode
        self._directory = Path(tempfile.mkdtemp(prefix="pygs-tests-"))
        self.partitions = Partitions(self._directory, num_parts)
        self._other = OtherTrainer() if num_parts > 1 else None
        self._shared = {"master_addr": "localhost", "master_port": free_port(), "read_local": read_local,
                        "rpc_timeout": _RPC_TIMEOUT_S}  # fmt: skip
        self._numbers = itertools.count()
        self._loaders = {}
        self._asks = num_parts > 1 and not read_local
        self.num_batches = 0
        self.remote_bytes = 0

    def loader(self, graph_dir, kind, num_workers, **arguments):
        """Makes a loader of a class of :mod:`glt.distributed`, which is shut down at the end of the test."""
        options = CollocatedDistSamplingWorkerOptions(**self._shared)
        if self.mode == "worker":
            options = MpDistSamplingWorkerOptions(**self._shared, num_workers=num_workers, channel_size="16MB")
        number = next(self._numbers)
        if self._other is not None:
            self._other.begin(number, graph_dir, kind, options, arguments)
        try:
            data = DistDataset().load(graph_dir, 0)
            made = getattr(glt.distributed, kind)(data, worker_options=options, **arguments)
        except BaseException:
            if self._other is not None and self._other.outcome() is None:
                self._other.shut_down(number)
            raise
        failed = None if self._other is None else self._other.outcome()
        if failed is not None:
            made.shutdown()
            raise RuntimeError(f"the other trainer could not make its loader:\n{failed}")
        self._loaders[number] = made
        return made

    def end_test(self):
        """Shuts down the loaders of a test, in the order in which they were made, and lets go of its data."""
        for number, loader in self._loaders.items():
            if self._other is not None:
                self._other.shut_down(number)
            self.remote_bytes += loader.stats()["remote_bytes"]
            loader.shutdown()
        self._loaders.clear()
        self.partitions.forget()

    def end(self):
        """Ends the job; RuntimeError if the other trainer was asked and should not have been, or the reverse."""
        self.end_test()
        if self._other is not None:
            self._other.end()
        shutil.rmtree(self._directory)
        if self.num_batches and (self.remote_bytes > 0) != self._asks:
            raise RuntimeError(f"{self.remote_bytes} bytes came from the other trainer, read_local = {not self._asks}")
