"""Acceptance: whatever happens to a file of a partition directory, loading refuses it by name, and so does inspection.

The directories here hold every kind of table, homogeneous and heterogeneous, with times of edges and of nodes.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.errors import PartitionError
from glt.partition import Manifest, RandomPartitioner, inspect_partitions, load_partition

WORLDS = ["homogeneous", "relabelled", "edge times", "node times"]


def arguments(name: str, shift: int) -> dict:
    """A graph of the kind with every table that there is; ``shift`` changes the numbers in them, but no shape."""
    generator = np.random.default_rng(0)
    if name in ("homogeneous", "relabelled"):
        return {
            "num_nodes": 14,
            "edge_index": generator.integers(0, 14, (2, 50)),
            "node_feat": generator.random((14, 3)) + shift,
            "edge_feat": generator.random(50) + shift,
            "node_label": np.arange(14) + shift,
            "edge_weight": generator.random(50) + shift,
            "edge_time": generator.integers(0, 9, 50) + shift,
            "node_attrs": {"train_mask": np.arange(14) % 3 == shift, "split": np.arange(14) + shift},
            "edge_attrs": {"kind": np.arange(50) + shift},
            "relabel": name == "relabelled",
        }
    likes, knows = ("a", "likes", "b"), ("a", "knows", "a")
    world = {
        "num_nodes": {"a": 9, "b": 6},
        "edge_index": {likes: generator.integers(0, 6, (2, 30)), knows: generator.integers(0, 9, (2, 20))},
        "node_feat": {"a": generator.random((9, 2)) + shift},
        "node_label": {"b": np.arange(6) + shift},
        "edge_feat": {knows: np.arange(20) + shift},
        "edge_weight": {likes: generator.random(30) + shift},
        "node_attrs": {"b": {"train_mask": np.arange(6) % 3 == shift}},
        "edge_attrs": {likes: {"kind": np.arange(30) + shift}},
    }
    if name == "edge times":
        return world | {"edge_time": {likes: generator.integers(0, 9, 30) + shift}}
    return world | {"node_time": {"b": np.arange(6) + shift}}


@pytest.fixture(scope="module", params=WORLDS)
def runs(request, tmp_path_factory):
    """A directory, and one of another run of the same shapes."""
    root = tmp_path_factory.mktemp("runs")
    for shift in range(2):
        RandomPartitioner(root / f"run{shift}", 2, **arguments(request.param, shift), random_seed=shift).partition()
    return root


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def parts_that_need(path: str) -> list[int]:
    return [int(path[4])] if path.startswith("part") else [0, 1]


def assert_load_refuses(root: Path, path: str) -> None:
    """A partition that needs the file does not load; the error names the file."""
    with pytest.raises(PartitionError) as refused:
        load_partition(root, parts_that_need(path)[-1])
    assert str(root / path) in str(refused.value)


def assert_refused(root: Path, path: str) -> None:
    """So it is; who does not need the file still loads, and an inspection names it too, and no other."""
    assert_load_refuses(root, path)
    for part in {0, 1}.difference(parts_that_need(path)):
        load_partition(root, part)
    if path == "manifest.json":
        with pytest.raises(PartitionError, match=r"manifest\.json"):
            inspect_partitions(root)
    else:
        assert [each.path for each in inspect_partitions(root, verify=True).bad] == [path]


def test_the_directory_is_sound_before(runs):
    assert not inspect_partitions(runs / "run0", verify=True).bad
    on_disk = set(files(runs / "run0"))
    assert on_disk == {*Manifest.read(runs / "run0").files, "manifest.json"} == set(files(runs / "run1"))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_changed_byte_of_any_file_is_refused(runs, data):
    root = runs / "run0"
    path = data.draw(st.sampled_from(files(root)), "file")
    content = (root / path).read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), "byte")
    changed = bytearray(content)
    changed[at] ^= data.draw(st.integers(1, 255), "bits")
    try:
        (root / path).write_bytes(changed)
        assert_refused(root, path)
    finally:
        (root / path).write_bytes(content)


def test_each_byte_of_the_manifest_counts_blanks_included(runs):
    root = runs / "run0"
    path = root / "manifest.json"
    content = path.read_bytes()
    blanks = [at for at, byte in enumerate(content) if byte in b" \n"]
    try:
        for at in [*blanks[:6], *blanks[-3:]]:
            for blank in b" \n\t\r":
                if content[at] != blank:
                    path.write_bytes(content[:at] + bytes([blank]) + content[at + 1 :])
                    with pytest.raises(PartitionError, match=r"manifest\.json was altered"):
                        load_partition(root, 0)
    finally:
        path.write_bytes(content)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_file_cut_short_or_grown_is_refused(runs, data):
    root = runs / "run0"
    path = data.draw(st.sampled_from(files(root)), "file")
    content = (root / path).read_bytes()
    length = data.draw(st.integers(0, len(content) + 20).filter(lambda n: n != len(content)), "length")
    try:
        os.truncate(root / path, length)
        assert_refused(root, path)
    finally:
        (root / path).write_bytes(content)


def test_every_file_is_missed(runs):
    root = runs / "run0"
    for path in files(root):
        (root / path).rename(runs / "kept")
        assert_load_refuses(root, path)
        (runs / "kept").rename(root / path)


def test_a_directory_in_place_of_a_file_and_a_file_in_place_of_a_directory(runs):
    root = runs / "run0"
    for path in files(root):
        (root / path).rename(runs / "kept")
        (root / path).mkdir()
        assert_load_refuses(root, path)
        (root / path).rmdir()
        (runs / "kept").rename(root / path)
    directory = root / files(root)[0].partition("/")[0]
    directory.rename(runs / "kept")
    directory.write_text("")
    with pytest.raises(PartitionError, match=rf"{directory}/.* is missing"):
        load_partition(root, 0)
    directory.unlink()
    (runs / "kept").rename(directory)


def test_every_file_of_another_run_is_refused_where_it_differs(runs):
    root, other = runs / "run0", runs / "run1"
    num_swapped = 0
    for path in files(root):
        content = (root / path).read_bytes()
        if content == (other / path).read_bytes():
            continue  # nothing is wrong with the same bytes
        num_swapped += 1
        shutil.copy(other / path, root / path)
        if path == "manifest.json":
            with pytest.raises(PartitionError, match="expected the file of run"):
                load_partition(root, 0)
            assert inspect_partitions(root, verify=True).bad
        else:
            assert_load_refuses(root, path)
        (root / path).write_bytes(content)
    assert num_swapped > len(files(root)) // 2


def test_two_files_of_one_run_that_change_places_are_refused(runs):
    root = runs / "run0"
    listed = Manifest.read(root).files
    swaps = 0
    for path in listed:
        twin = path.replace("part0", "part1")
        if path == twin or (root / path).read_bytes() == (root / twin).read_bytes():
            continue
        swaps += 1
        contents = (root / path).read_bytes(), (root / twin).read_bytes()
        (root / path).write_bytes(contents[1])
        (root / twin).write_bytes(contents[0])
        assert_load_refuses(root, path)
        assert_load_refuses(root, twin)
        (root / path).write_bytes(contents[0])
        (root / twin).write_bytes(contents[1])
    assert swaps > 5


def test_another_version_is_refused_by_number_however_well_it_is_signed(runs):
    root = runs / "run0"
    manifest, content = Manifest.read(root), (root / "manifest.json").read_bytes()
    for version in (manifest.version - 1, manifest.version + 1, 0):
        replace(manifest, version=version).signed().write(root)
        for refuse in (lambda: load_partition(root, 0), lambda: inspect_partitions(root)):
            with pytest.raises(PartitionError, match=rf"manifest\.json has version {version}: .* reads version"):
                refuse()
    (root / "manifest.json").write_bytes(content)
    load_partition(root, 0)
