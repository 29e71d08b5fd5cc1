"""Which ids have a row in a small table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt import _core


@settings(max_examples=60, deadline=None)
@given(
    num_ids=st.sampled_from([1, 63, 64, 65, 128, 1000]),
    density=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    num_asked=st.integers(0, 300),
    seed=st.integers(0, 2**32),
)
def test_ids_are_split_by_whether_they_have_a_row(num_ids: int, density: float, num_asked: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = np.flatnonzero(rng.random(num_ids) < density)
    asked = rng.integers(0, num_ids, num_asked)
    positions = rng.permutation(num_asked).astype(np.uint32)
    rows, at, rest, rest_at = _core.RowIndex(ids, num_ids).split(asked, positions)
    inside = np.isin(asked, ids)
    np.testing.assert_array_equal(ids[rows], asked[inside])
    np.testing.assert_array_equal(at, positions[inside])
    np.testing.assert_array_equal(rest, asked[~inside])
    np.testing.assert_array_equal(rest_at, positions[~inside])


@pytest.mark.parametrize("ids", [[3, 3], [4, 1], [-1, 2], [2, 10]])
def test_ids_that_do_not_ascend_in_range_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"ids\[\d\] = -?\d+: expected ids that ascend.*\[0, 10\)"):
        _core.RowIndex(np.array(ids), 10)


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_an_id_outside_is_named(bad: int) -> None:
    index = _core.RowIndex(np.array([1, 5]), 10)
    with pytest.raises(IndexError, match=rf"ids\[1\] = {bad} is outside \[0, 10\)"):
        index.split(np.array([1, bad]), np.zeros(2, np.uint32))
