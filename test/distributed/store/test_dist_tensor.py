"""A tensor whose rows servers keep."""

import pytest
import torch

from glt.distributed.dist_tensor import DistTensor
from glt.distributed.world import StandaloneWorld


@pytest.fixture
def world():
    with_tensors = StandaloneWorld()
    yield with_tensors
    with_tensors.close()


def test_what_is_written_is_read(world):
    tensor = DistTensor((10, 3), name="x", world=world)
    tensor[[7, 2]] = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    tensor.add([2], torch.ones(1, 3))
    found = DistTensor.find("x", world=world)
    assert found[[2, 0, 7]].tolist() == [[5, 6, 7], [0, 0, 0], [1, 2, 3]]


def test_a_deleted_tensor_says_who_deleted_it(world):
    tensor = DistTensor((10, 3), name="x", world=world)
    found = DistTensor.find("x", world=world)
    tensor.delete()
    with pytest.raises(LookupError, match="'x' was deleted by trainer 0"):
        found[[0]]
