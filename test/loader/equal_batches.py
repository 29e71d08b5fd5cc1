"""Whether batches of PyG are equal, wherever their tensors are."""

import torch


def same(got, expected):
    """Asserts that two batches are equal, store by store; True."""
    for one, other in zip(got.stores, expected.stores, strict=True):
        assert one._key == other._key and set(one.keys()) == set(other.keys())
        for key, value in other.items():
            if isinstance(value, torch.Tensor):
                assert one[key].dtype == value.dtype and torch.equal(one[key].cpu(), value), (one._key, key)
            else:
                assert one[key] == value, (one._key, key)
    return True


def plain(batch):
    """All of a batch as values that JSON keeps, by store and name."""
    return {
        "/".join([str(store._key), name]): value.tolist() if isinstance(value, torch.Tensor) else value
        for store in batch.stores
        for name, value in store.items()
    }
