"""The distributed job that PyG's tests run in: this process is its first trainer."""

import itertools
import shutil
import tempfile
from pathlib import Path

from other_trainer import GROUP, OtherTrainer
from partitioned import Partitions

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, MpDistSamplingWorkerOptions
from glt.testing.cluster import free_port

_RPC_TIMEOUT_S = 100.0


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
