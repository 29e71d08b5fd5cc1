import numpy as np
import pytest

from glt import _core


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    def negative_draws(key, side, slots, attempt, num_nodes, weight_sum, out):
        bound = np.full(len(slots), num_nodes if weight_sum is None else weight_sum[-1], np.uint64)
        bits = np.empty(len(slots), np.uint64)
        _core.host_draws(slots, bound, _core.batch_key(key >> 1, attempt, side), 0, 1, bits)
        out[:] = bits if weight_sum is None else np.searchsorted(weight_sum, bits, side="right")

    def build_weights(indptr, weight, sums, guide):
        sums[:] = np.cumsum(np.floor(weight * 2**40).astype(np.uint64))

    if not hasattr(_core, "negative_draws"):
        monkeypatch.setattr(_core, "negative_draws", negative_draws, raising=False)
        monkeypatch.setattr(_core, "build_weights", build_weights, raising=False)
        monkeypatch.setattr(_core, "weight_guide_size", lambda rows, edges: edges, raising=False)
