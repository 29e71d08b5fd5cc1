"""What short tracebacks keep: errors that may be bugs, signatures, and everything where that is asked for."""

import inspect
import pickle
import sys
import traceback

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt.data import Dataset, Feature
from glt.distributed import DistDataLoader, MpDistSamplingWorkerOptions, init_worker_group
from glt.loader import NeighborLoader

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the old traceback back")

EDGES = torch.stack([torch.arange(10), torch.arange(10) * 3 % 10])
DATA = Data(x=torch.ones(10, 2), edge_index=EDGES)


def functions(call):
    """The names of the calls below ``call`` in the traceback of what it raises."""
    with pytest.raises(Exception) as raised:
        call()
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    return names[names.index("<lambda>") + 1 :], raised.value


def test_a_check_is_shown_alone():
    names, error = functions(lambda: NeighborLoader(DATA, 5))
    assert names == ["_counts"] and "num_neighbors" in str(error)


def test_all_calls_are_shown_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("GLT_TRACEBACK", "full")
    names, _ = functions(lambda: NeighborLoader(DATA, 5))
    assert names[1] == "__init__" and names[-1] == "_counts" and len(names) > 4


def test_errors_of_the_users_functions_are_whole():
    def transform(batch):
        raise ValueError("mine")

    def misuse(batch):
        NeighborLoader(DATA, 5)

    def collate(ids):
        return torch.ones(3)[ids + 5]

    names, _ = functions(lambda: next(iter(NeighborLoader(DATA, [2], transform=transform))))
    assert {"__next__", "filter_fn", "transform"} <= {*names} and names[-1] == "transform"
    names, _ = functions(lambda: next(iter(NeighborLoader(DATA, [2], transform=misuse))))
    assert "filter_fn" in names and names[-2:] == ["misuse", "_counts"]
    names, _ = functions(lambda: list(DistDataLoader(torch.arange(4), collate_fn=collate)))
    assert "_batches" in names and names[-1] == "collate"


def test_what_may_be_a_bug_is_whole(monkeypatch):
    names, error = functions(lambda: NeighborLoader(DATA, [2], num_workers=-1))
    assert names[1] == "__init__" and "num_workers" in str(error), "torch's own"
    monkeypatch.setattr("glt._checks.reprlib.repr", None)
    names, error = functions(lambda: NeighborLoader(DATA, [2], transform="normalize"))
    assert "'NoneType' object is not callable" in str(error), "the interpreter's"
    assert names[1] == "__init__" and names[-1] == "check_function" and len(names) > 3


def test_causes_stay():
    _, error = functions(lambda: MpDistSamplingWorkerOptions(num_workers=0))
    assert error.__cause__ is None
    _, error = functions(lambda: NeighborLoader(DATA, [2], input_nodes=[object()]))
    assert error.__cause__ is not None and "RuntimeError" in repr(error.__cause__)


def test_signatures_and_pickles_are_those_of_the_functions():
    assert list(inspect.signature(init_worker_group).parameters) == ["world_size", "rank", "group_name"]
    assert "num_neighbors" in inspect.signature(NeighborLoader).parameters
    assert next(iter(inspect.signature(Dataset.from_pyg).parameters)) == "data"
    assert pickle.loads(pickle.dumps(init_worker_group)) is init_worker_group
    assert "Raises:" in init_worker_group.__doc__ and Feature.gather.__name__ == "gather"


class Mine(NeighborLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_a_users_subclass_is_shown():
    names, _ = functions(lambda: Mine(DATA, [2], input_nodes=np.array([10])))
    assert names == ["__init__", "require_in_range"]
