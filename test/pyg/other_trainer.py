"""The trainer of the second of two partitions: it makes the loaders that the first one makes, and serves its nodes."""

import traceback
from multiprocessing import get_context

import torch.multiprocessing  # noqa: F401 (tensors pass through connections)

import glt
from glt.distributed import DistDataset

GROUP = "pygs-tests"
_DEADLINE_S = 120.0


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
