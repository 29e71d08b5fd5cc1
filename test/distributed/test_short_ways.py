"""How short the ways of a batch are: what a feature row of another partition passes, and how often threads change."""

import ctypes
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.rpc.internal
from dist_world import hear_all, join, options, say_all
from torch import Tensor

import glt
from glt.channel import Message
from glt.testing.cluster import Cluster

HOME = str(Path(glt.__file__).parent)


class Observer:
    """A profile function that finds out which methods of glt hold some bytes, and where in memory these lie.

    Attributes:
        holders: ``module:class`` of the objects in whose methods arguments or results hold the bytes, by address.
    """

    def __init__(self, searched):
        self.searched, self.holders, self.is_on = searched, {}, False

    def __call__(self, frame, event, result):
        code = frame.f_code
        if not self.is_on or event not in ("call", "return") or not code.co_filename.startswith(HOME):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        owner = given.pop("self", None)
        kind = given.pop("cls", None) if owner is None else type(owner)
        if kind is not None:
            for address in self.found([*given.values(), result if event == "return" else None]):
                module = frame.f_globals["__name__"]
                self.holders.setdefault(address, set()).add(f"{module}:{kind.__name__}")

    def found(self, value):
        """Addresses at which the bytes lie in a value."""
        if isinstance(value, list | tuple):
            for each in value:
                yield from self.found(each)
        elif isinstance(value, Message):
            yield from self.found(value.tensors)
        elif isinstance(value, dict):
            yield from self.found(list(value.values()))
        elif isinstance(value, Tensor) and value.is_contiguous() and value.numel():
            yield from self.at(value.data_ptr(), value.nbytes)
        elif isinstance(value, np.ndarray) and value.flags.c_contiguous and value.size:
            yield from self.at(value.ctypes.data, value.nbytes)

    def at(self, address, nbytes):
        place = ctypes.string_at(address, nbytes).find(self.searched)
        if place >= 0:
            yield address + place

    def watch(self):
        """Watches all threads that start from now on, those of ``torch.distributed.rpc`` too."""
        threading.setprofile(self)
        sys.setprofile(self)
        run, add = torch.distributed.rpc.internal._run_function, torch._C.Future.add_done_callback

        def watched(call, *args):
            sys.setprofile(self)
            return call(*args)

        torch.distributed.rpc.internal._run_function = lambda function: watched(run, function)
        torch._C.Future.add_done_callback = lambda future, call: add(future, lambda done: watched(call, done))


def fetch_a_row(trainer, path, x, node, transport):
    """Trainer 0 makes a batch around a node of the other, whose row comes from there.

    Returns:
        The objects that the row passes on its way into the message, and how often it is copied here.
    """
    observer = Observer(x[node].numpy().tobytes())
    observer.watch()
    data = join(trainer, path)
    seeds = torch.tensor([node] if trainer.rank == 0 else [], dtype=torch.int64)
    given = {"collect_features": True, "worker_options": options(trainer, "collocated", transport=transport)}
    with glt.distributed.DistNeighborLoader(data, [0], seeds, **given) as loader:
        observer.is_on = True
        trainer.say("both watch")
        trainer.hear()
        delivered = -1
        for batch in loader:
            assert torch.equal(batch.x, x[[node]])
            (delivered,) = observer.found(batch.x)
        trainer.say("both may stop")
        trainer.hear()
        observer.is_on = False
    # Objects that hold the row in the finished message alone are on the way of every batch, wherever its rows are from.
    passed = [held for address, held in observer.holders.items() if address != delivered]
    # The owner copies a row of its table to the reply; the asker, who is brought the reply, copies that to the message.
    return set().union(*passed), len(observer.holders) - (trainer.rank == 0)


@pytest.mark.parametrize("transport", ["tcp", "rpc"])
def test_a_feature_row_of_another_partition_passes_few_objects_and_is_copied_twice(world, transport):
    made = world(2)
    owners = glt.distributed.DistDataset().load(made.path, 1).node_books[0].owners()
    with Cluster(2, fetch_a_row, made.path, made.x, int(owners.argmax()), transport) as cluster:
        for _ in range(2):
            hear_all(cluster)
            say_all(cluster)
        (asking, copied_there), (answering, copied_here) = cluster.results()
    assert any(each.endswith(":Partitions") for each in asking)
    assert any(each.endswith(":LocalPartition") for each in answering)
    assert len(asking | answering) <= 6, sorted(asking | answering)
    assert copied_here == copied_there == 1


def count_hand_overs(trainer, path, num_epochs):
    """How many calls were handed to native threads for epochs of one batch, of partitions that are all read here."""
    handed = []

    def profile(frame, event, result):
        if event == "call" and frame.f_code.co_name == "submit":
            handed.append(type(frame.f_locals.get("self")).__name__)

    threading.setprofile(profile)
    given = {"collect_features": True, "worker_options": options(trainer, "collocated", read_local=True)}
    with glt.distributed.DistNeighborLoader(join(trainer, path), [3, 2], torch.arange(50), 50, **given) as loader:
        handed.clear()
        for _ in range(num_epochs):
            assert [batch.batch_size for batch in loader] == [50]
        return handed.count("NativePool")


def test_a_batch_of_partitions_read_here_is_one_trip_to_the_native_threads(world):
    with Cluster(1, count_hand_overs, world(2).path, 5) as cluster:
        assert cluster.results() == [5]
