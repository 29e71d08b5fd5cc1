"""What states are made of: JSON, and checksums of named tensors."""

import json

import pytest
import torch

from glt.sampler.order import as_json, crc32_of


def test_json_twice_is_json_once():
    fields = as_json({"num_neighbors": ((3, 2), (1, 0)), "exclude_edges": ("a", "to", "b"), "replace": None})
    assert fields == {"num_neighbors": [[3, 2], [1, 0]], "exclude_edges": ["a", "to", "b"], "replace": None}
    assert as_json(fields) == fields == json.loads(json.dumps(fields))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool, torch.uint16])
def test_equal_tensors_have_equal_checksums(dtype):
    tensor = torch.tensor([[1, 0], [3, 1], [5, 0]]).to(dtype)
    twin = torch.tensor([[1, 3, 5], [0, 1, 0]]).to(dtype).t()  # the same elements, not contiguous
    assert crc32_of({"b": tensor, "a": tensor[0]}) == crc32_of({"a": tensor[0].clone(), "b": twin, "absent": None})


def test_names_types_shapes_and_elements_count():
    tensor = torch.arange(6)
    given = [
        {"a": tensor}, {"b": tensor}, {"a": tensor.int()}, {"a": tensor.view(2, 3)}, {"a": tensor[:-1]},
        {"a": tensor.flip(0)}, {"a": tensor, "b": tensor[:0]}, {"a": tensor[:0], "b": tensor}, {},
    ]  # fmt: skip
    assert len({crc32_of(each) for each in given}) == len(given)
