import numpy as np
import pytest

from glt.data.synthetic import synthetic_graph


@pytest.fixture
def toy_npz(tmp_path):
    """A small task as the arrays that programs take."""
    task = synthetic_graph(800, num_classes=4)
    names = ("edge_index", "x", "y", "train_idx", "val_idx", "test_idx")
    np.savez(tmp_path / "toy.npz", **{name: getattr(task, name).numpy() for name in names})
    return tmp_path / "toy.npz"
