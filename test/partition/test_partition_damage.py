"""What is not exactly what the partitioner wrote does not load, and the error names the file."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt.errors import GltError, PartitionError
from glt.partition import RandomPartitioner, load_partition
from glt.partition.format import files as npy_file
from glt.partition.format.manifest import VERSION

FILES = [
    "node_book/node.npy",
    "node_row/node.npy",
    "edge_book/node__to__node.npy",
    "edge_row/node__to__node.npy",
    "part0/graph/node__to__node/indptr.npy",
    "part0/graph/node__to__node/indices.npy",
    "part0/graph/node__to__node/edge_ids.npy",
    "part0/node_ids/node.npy",
    "part0/node_feat/node.npy",
    "part0/node_label/node.npy",
    "part0/edge_feat/node__to__node.npy",
]


def refused(root: Path, *words: str, partition_idx: int = 0, **options: object) -> None:
    with pytest.raises(PartitionError, match=".*".join(map(re.escape, words))):
        load_partition(root, partition_idx, **options)


def test_the_list_of_files_is_whole(directory):
    on_disk = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    mine = {path for path in on_disk if not path.startswith("part1")}
    assert mine == {*FILES, "manifest.json"}
    assert on_disk == {*load_partition(directory, 0).manifest.files, "manifest.json"}


def test_refusals_are_both_service_errors_and_value_errors():
    assert issubclass(PartitionError, GltError) and issubclass(PartitionError, ValueError)


@pytest.mark.parametrize("path", [*FILES, "manifest.json"])
def test_a_deleted_file_is_named(directory, path):
    (directory / path).unlink()
    refused(directory, path, "is missing")
    refused(directory, path, "is missing", verify=False)


@pytest.mark.parametrize("path", [*FILES, "manifest.json"])
@pytest.mark.parametrize("keep", ["nothing", "half", "all but the last byte"])
def test_a_truncated_file_is_named(directory, path, keep):
    size = (directory / path).stat().st_size
    os.truncate(directory / path, {"nothing": 0, "half": size // 2}.get(keep, size - 1))
    refused(directory, path)
    refused(directory, path, verify=False)


@pytest.mark.parametrize("path", FILES)
def test_any_flipped_byte_is_named(directory, path):
    data = (directory / path).read_bytes()
    for at in {*range(0, len(data), 13), len(data) - 1}:
        (directory / path).write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        refused(directory, path, "was altered or comes from another run")
    (directory / path).write_bytes(data)
    load_partition(directory, 0)


def test_any_flipped_byte_of_the_manifest_is_refused(directory):
    path = directory / "manifest.json"
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        if not data[at : at + 1].isspace():
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            refused(directory, str(path))


def test_a_flipped_byte_in_a_sampled_block_of_a_large_file_is_named(world, tmp_path, monkeypatch):
    from glt.partition.methods import partitioner

    monkeypatch.setattr(npy_file, "BLOCK_BYTES", 64)
    monkeypatch.setattr(partitioner, "BLOCK_BYTES", 64)
    arguments = {**world.arguments(), "node_feat": np.arange(10 * 1000.0).reshape(10, 1000)}
    root = tmp_path / "parts"
    RandomPartitioner(root, 1, **arguments).partition()
    load_partition(root, 0, verify_whole_bytes=0)
    path = root / "part0/node_feat/node.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last block is always in the sample
    path.write_bytes(data)
    refused(root, "node_feat/node.npy was altered", verify_whole_bytes=0)
    data[-1] ^= 1
    data[40_000] ^= 1  # no sample looks here, a whole check does
    path.write_bytes(data)
    load_partition(root, 0, verify_whole_bytes=0)
    refused(root, "node_feat/node.npy was altered", verify_whole_bytes=1 << 20)
    load_partition(root, 0, verify=False)  # a process beside it has verified


@pytest.mark.parametrize("path", [*FILES, "manifest.json", "part0"])
def test_files_swapped_between_two_runs_are_named(directory, world, tmp_path, path):
    world.node_feat += 1
    world.node_label += 1
    world.edge_feat += 1
    RandomPartitioner(tmp_path / "other", 2, **world.arguments(), random_seed=1).partition()
    other = tmp_path / "other" / path
    if path == "part0":
        shutil.rmtree(directory / path)
        shutil.copytree(other, directory / path)
        refused(directory, str(directory / path))
        return
    assert other.read_bytes() != (directory / path).read_bytes()
    shutil.copy(other, directory / path)
    refused(directory, str(directory), "expected the file of run" if path == "manifest.json" else path)


def test_ranks_tell_runs_apart_by_run_id(directory, world, tmp_path):
    RandomPartitioner(tmp_path / "other", 2, **world.arguments(), random_seed=1).partition()
    assert load_partition(directory, 0).manifest.run_id == load_partition(directory, 1).manifest.run_id
    assert load_partition(directory, 0).manifest.run_id != load_partition(tmp_path / "other", 1).manifest.run_id


@pytest.mark.parametrize("shape", [(1, 15), (5, 3, 1), (3, 5)])
def test_a_file_whose_header_disagrees_with_the_manifest_is_named_even_unverified(directory, shape):
    path = directory / "part0/node_feat/node.npy"
    array = np.load(path).reshape(shape)
    np.save(path, array)
    refused(directory, "node_feat/node.npy holds <f4", f"{list(shape)}, the manifest says <f4 [5, 3]", verify=False)


def test_pickled_and_damaged_headers_are_refused_unverified(directory):
    path = directory / "part0/node_label/node.npy"
    data = path.read_bytes()
    for header in (data.replace(b"<i8", b"|O8"), data.replace(b"{'descr'", b"{'descr("), b"\0" * len(data)):
        path.write_bytes(header)
        refused(directory, "node_label/node.npy", verify=False)


@pytest.mark.parametrize("partition_idx", [-1, 2, 100])
def test_a_partition_idx_that_does_not_exist_is_refused(directory, partition_idx):
    message = f"partition_idx = {partition_idx}: expected 0 to 1, a partition of {directory}"
    refused(directory, message, partition_idx=partition_idx)


def test_a_partition_idx_that_is_not_an_integer_is_refused(directory):
    with pytest.raises(TypeError, match="partition_idx = '0': expected an integer"):
        load_partition(directory, "0")


def test_a_missing_part_is_named_and_the_other_loads_without_it(directory):
    shutil.rmtree(directory / "part0")
    refused(directory, "part0 is missing", "lists 2 partitions", "copy part0 of run")
    load_partition(directory, 1)


def test_a_missing_directory_and_a_directory_of_something_else_are_refused(tmp_path):
    refused(tmp_path / "nowhere", "nowhere is not a directory")
    refused(tmp_path, "manifest.json is missing", "is not a partition directory")
    (tmp_path / "manifest.json").write_text('{"name": "of an app"}')
    refused(tmp_path, "manifest.json has format None: expected 'glt-partition'")
    (tmp_path / "manifest.json").write_text("[]")
    refused(tmp_path, "manifest.json has format None")


def test_a_later_version_is_refused_by_number(directory):
    path = directory / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": VERSION + 1}))
    refused(directory, f"manifest.json has version {VERSION + 1}: this glt", f"reads version {VERSION}")


def test_a_directory_of_another_kind_of_graph_is_refused(directory):
    manifest = load_partition(directory, 0).manifest
    files = {path: entry for path, entry in manifest.files.items() if "node_ids" not in path}
    replace(manifest, files=files).signed().write(directory)
    refused(directory, "manifest.json lists no part0/node_ids/node.npy, which its types call for")
