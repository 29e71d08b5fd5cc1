"""Keys of users to ids and back: whatever kind of keys, from whatever they come in, from files of which nothing is
believed."""

import json
import pickle

import numpy as np
import pytest
import torch

from glt.data import KeyMap, KeyMaps
from glt.errors import PartitionError

TEXTS = ["", "a", "ab", "üñí", "x" * 1000, "12345678", "123456789", "a\0b", "ann", "bob"]


def written(folder, columns, *batches):
    return KeyMap.write(folder, columns, lambda: iter(batches))


@pytest.fixture
def texts(tmp_path):
    return written(tmp_path / "texts", {"name": "text"}, [TEXTS[:3]], [[]], [TEXTS[3:]])


def test_texts(texts):
    assert texts.lookup(TEXTS).tolist() == list(range(10)) and texts.raw(torch.arange(10)) == TEXTS
    assert len(texts) == 10 and "10 keys, name: text" in repr(texts)
    again = pickle.loads(pickle.dumps(texts))
    assert again.lookup(np.array(["bob", "a"])).tolist() == [9, 1]
    assert again.lookup(np.array(["bob", "a"], object)).tolist() == [9, 1]
    assert again.lookup([]).tolist() == [] and again.raw([]) == []


def test_what_arrow_has(texts):
    pa = pytest.importorskip("pyarrow")
    array = pa.array(TEXTS)
    for given in (
        array,
        array.cast(pa.large_string()),
        array.dictionary_encode(),
        pa.chunked_array([array[:4], array[4:]]),
    ):
        assert texts.lookup(given).tolist() == list(range(10))
    assert texts.lookup(array[3:7]).tolist() == [3, 4, 5, 6]
    assert texts.lookup(array.slice(0, 0)).tolist() == []
    with pytest.raises(ValueError, match="1 nulls"):
        texts.lookup(pa.array(["a", None]))
    with pytest.raises(TypeError, match="int64"):
        texts.lookup(pa.array([1]))


def test_integers_and_several_columns(tmp_path):
    numbers = np.array([5, -1, 2**62, 0, -(2**63)])
    keys = written(tmp_path / "int", {"id": "int"}, [numbers])
    assert keys.lookup(numbers).tolist() == [0, 1, 2, 3, 4] and keys.raw([2, 1]).tolist() == [2**62, -1]
    assert keys.lookup(torch.tensor([0])).tolist() == [3] and keys.lookup([5]).tolist() == [0]
    assert keys.lookup(np.array([5], np.uint8)).tolist() == [0]
    both = written(tmp_path / "both", {"bank": "text", "number": "int"}, [["x", "x", "y"], [1, 2, 1]])
    assert both.lookup((["y", "x"], [1, 2])).tolist() == [2, 1]
    banks, accounts = both.raw([2, 0])
    assert banks == ["y", "x"] and accounts.tolist() == [1, 1]
    assert both.lookup((["y"], [2]), missing="ignore").tolist() == [-1]
    with pytest.raises(TypeError, match="a tuple of 2 columns"):
        both.lookup(["x"])


def test_a_hundred_thousand(tmp_path):
    random = np.random.default_rng(0)
    raw = [f"{i:x}" for i in random.permutation(100_000)]
    keys = written(tmp_path / "keys", {"id": "text"}, [raw[:60_000]], [raw[60_000:]])
    at = random.integers(0, 100_000, 50_000)
    assert keys.lookup([raw[i] for i in at]).tolist() == at.tolist() and keys.raw(at) == [raw[i] for i in at]
    assert set(keys.lookup([f"{i}g" for i in range(1000)], missing="ignore").tolist()) == {-1}
    again = written(tmp_path / "again", {"id": "text"}, *[[raw[i : i + 1000]] for i in range(0, 100_000, 1000)])
    for name in keys.arrays():
        assert (keys.folder / f"{name}.npy").read_bytes() == (again.folder / f"{name}.npy").read_bytes()


def test_what_is_wrong_is_named(texts, tmp_path):
    with pytest.raises(KeyError, match=r"raw\[1\] = 'carl' is no key of 'texts', as are 2 of 3.*missing='ignore'"):
        texts.lookup(["ann", "carl", "dora"])
    with pytest.raises(TypeError, match="'name' has 7 at 1: expected texts"):
        texts.lookup(["ann", 7])
    with pytest.raises(TypeError, match="the text 'ann': expected a list"):
        texts.lookup("ann")
    with pytest.raises(TypeError, match="expected texts"):
        texts.lookup(["\ud800"])
    with pytest.raises(ValueError, match="missing = 'drop'"):
        texts.lookup(["ann"], missing="drop")
    with pytest.raises(IndexError, match="ids has 10: expected 0 to 9"):
        texts.raw([0, 10])
    with pytest.raises(IndexError, match="ids has -1"):
        texts.raw([-1])
    with pytest.raises(ValueError, match="one dimension"):
        texts.raw([[0]])
    numbers = written(tmp_path / "int", {"id": "int"}, [[1]])
    with pytest.raises(TypeError, match="'id' has '1': expected integers"):
        numbers.lookup(["1"])
    with pytest.raises(TypeError, match="expected integers"):
        numbers.lookup([1.5])
    with pytest.raises(KeyError, match=r"raw\[0\] = 2"):
        numbers.lookup([2])
    with pytest.raises(PartitionError, match="is no map of keys"):
        KeyMap(tmp_path / "nowhere")


def test_no_content_of_the_files_is_believed(texts):
    """Whatever is in them, ids are in range or -1, and nothing is read that is not there."""
    random = np.random.default_rng(1)
    paths = sorted(texts.folder.glob("*.npy"))
    whole = {path: path.read_bytes() for path in paths}
    for _ in range(400):
        path = paths[random.integers(len(paths))]
        spoilt = bytearray(whole[path])
        for _ in range(random.integers(1, 9)):
            spoilt[random.integers(128 if random.random() < 0.9 else 0, len(spoilt))] = random.integers(256)
        path.write_bytes(spoilt if random.random() < 0.9 else spoilt[: random.integers(len(spoilt))])
        try:
            damaged = KeyMap(texts.folder)
        except PartitionError:
            continue
        else:
            found = damaged.lookup([*TEXTS, "none"], missing="ignore")
            assert -1 <= int(found.min()) <= int(found.max()) < len(damaged)
            damaged.raw(np.arange(len(damaged)))
        finally:
            path.write_bytes(whole[path])
    (texts.folder / "keys.json").write_text(json.dumps({"format": 9, "columns": {"a": "int"}}))
    with pytest.raises(PartitionError, match="format 9"):
        KeyMap(texts.folder)


def test_maps_by_type(texts):
    maps = KeyMaps({"user": texts})
    assert list(maps) == ["user"] and maps["user"] is texts
    with pytest.raises(KeyError, match=r"'item' have no keys: expected one of \['user'\]"):
        maps["item"]


def test_one_key_is_no_column_and_keys_are_shown_as_they_are(texts, tmp_path):
    pa = pytest.importorskip("pyarrow")
    numbers = written(tmp_path / "numbers", {"n": "int"}, [[5, 7]])
    for keys, one in ((numbers, 5), (numbers, None), (texts, "ann"), (texts, 5), (numbers, torch.tensor(5))):
        with pytest.raises(TypeError, match=r"column .* is (one value,|the text) .*expected a list or array of keys"):
            keys.lookup(one)
    for given in (pa.array(["nobody"]), np.array(["nobody"]), ["nobody"]):
        with pytest.raises(KeyError, match=r"raw\[0\] = 'nobody' is no key"):
            texts.lookup(given)
    with pytest.raises(KeyError, match=r"raw\[1\] = 6 is no key"):
        numbers.lookup(np.array([5, 6]))
    with pytest.raises(IndexError, match="ids has 18446744073709551615: expected 0 to 1"):
        numbers.raw(np.array([2**64 - 1], np.uint64))
