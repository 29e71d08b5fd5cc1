"""Acceptance: whatever happens to a file of a partition directory, loading refuses it by name, and so does inspection.

The directories here hold every kind of table, homogeneous and heterogeneous, with times of edges and of nodes.
"""

import errno
import json
import os
import re
import resource
import shutil
import socket
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.errors import GltError, PartitionError
from glt.partition import FennelPartitioner, Manifest, RandomPartitioner, inspect_partitions, load_partition
from glt.partition.format import files as npy_file
from glt.partition.format import verify as contents
from glt.partition.format.manifest import digest_of, text_of
from glt.partition.methods import partitioner

WORLDS = ["homogeneous", "relabelled", "edge times", "node times"]


def arguments(name, shift):
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


def files(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def refused(root, *words, partition_idx=0, **options):
    with pytest.raises(PartitionError, match=".*".join(map(re.escape, words))):
        load_partition(root, partition_idx, **options)


@contextmanager
def kept(*paths):
    """Files, or one in whose place there may be a directory, are as before in the end."""
    contents = [path.read_bytes() for path in paths]
    try:
        yield contents
    finally:
        for path, content in zip(paths, contents, strict=True):
            if path.is_dir():
                path.rmdir()
            path.write_bytes(content)


def parts_that_need(path):
    return [int(path[4])] if path.startswith("part") else [0, 1]


def assert_load_refuses(root, path, words="", **options):
    """A partition that needs the file does not load; the error names the file."""
    refused(root, str(root / path) + words, partition_idx=parts_that_need(path)[-1], **options)


def assert_refused(root, path):
    """So it is; who does not need the file still loads, and an inspection names it too, and no other."""
    assert_load_refuses(root, path)
    for part in {0, 1}.difference(parts_that_need(path)):
        load_partition(root, part)
    if path == "manifest.json":
        with pytest.raises(PartitionError, match=r"manifest\.json") as caught:
            inspect_partitions(root)
        assert isinstance(caught.value, GltError) and isinstance(caught.value, ValueError)
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
    with kept(root / path) as (content,):
        changed = bytearray(content)
        changed[data.draw(st.integers(0, len(content) - 1), "byte")] ^= data.draw(st.integers(1, 255), "bits")
        (root / path).write_bytes(changed)
        assert_refused(root, path)


def test_each_byte_of_the_manifest_counts_blanks_included(runs):
    root = runs / "run0"
    path = root / "manifest.json"
    with kept(path) as (content,):
        blanks = [at for at, byte in enumerate(content) if byte in b" \n"]
        for at in [*blanks[:6], *blanks[-3:]]:
            for blank in b" \n\t\r":
                if content[at] != blank:
                    path.write_bytes(content[:at] + bytes([blank]) + content[at + 1 :])
                    refused(root, "manifest.json was altered")


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_file_cut_short_or_grown_is_refused(runs, data):
    root = runs / "run0"
    path = data.draw(st.sampled_from(files(root)), "file")
    with kept(root / path) as (content,):
        length = data.draw(st.integers(0, len(content) + 20).filter(lambda n: n != len(content)), "length")
        os.truncate(root / path, length)
        assert_refused(root, path)
        assert_load_refuses(root, path, verify=False)


def test_every_file_is_missed_also_where_a_directory_is_in_its_place(runs):
    root = runs / "run0"
    for path in files(root):
        with kept(root / path):
            (root / path).unlink()
            for verify in (True, False):
                assert_load_refuses(root, path, " is missing", verify=verify)
            (root / path).mkdir()
            assert_load_refuses(root, path)


def test_a_file_in_place_of_a_directory_is_refused(runs):
    root = runs / "run0"
    directory = root / files(root)[0].partition("/")[0]
    directory.rename(runs / "kept")
    directory.write_text("")
    refused(root, f"{directory}/", " is missing")
    directory.unlink()
    (runs / "kept").rename(directory)


def test_every_file_of_another_run_is_refused_where_it_differs(runs):
    root, other = runs / "run0", runs / "run1"
    num_swapped = 0
    for path in files(root):
        if (root / path).read_bytes() == (other / path).read_bytes():
            continue  # nothing is wrong with the same bytes
        num_swapped += 1
        with kept(root / path):
            shutil.copy(other / path, root / path)
            if path == "manifest.json":
                refused(root, "expected the file of run")
                assert inspect_partitions(root, verify=True).bad
            else:
                assert_load_refuses(root, path)
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
        with kept(root / path, root / twin) as (content, of_twin):
            (root / path).write_bytes(of_twin)
            (root / twin).write_bytes(content)
            assert_load_refuses(root, path)
            assert_load_refuses(root, twin)
    assert swaps > 5


def test_another_version_is_refused_by_number_however_well_it_is_signed(runs):
    root = runs / "run0"
    manifest = Manifest.read(root)
    with kept(root / "manifest.json"):
        for version in (manifest.version - 1, manifest.version + 1, 0):
            replace(manifest, version=version).signed().write(root)
            for refuse in (lambda: load_partition(root, 0), lambda: inspect_partitions(root)):
                with pytest.raises(PartitionError, match=rf"manifest\.json has version {version}: .* reads version"):
                    refuse()
    load_partition(root, 0)


def test_names_of_the_files_of_a_graph_without_types(directory):
    shared = [f"{kind}_{table}" for kind in ("node", "edge") for table in ("book", "row")]
    of_part = ["node_ids", "node_feat", "node_label", "edge_feat"]
    expected = {f"{each}/{'node__to__node' if each.startswith('edge') else 'node'}.npy" for each in shared}
    for part in ("part0", "part1"):
        expected |= {f"{part}/{each}/{'node__to__node' if 'edge' in each else 'node'}.npy" for each in of_part}
        expected |= {f"{part}/graph/node__to__node/{each}.npy" for each in ("indptr", "indices", "edge_ids")}
    assert {*files(directory)} == expected | {"manifest.json"}


def test_the_block_of_a_flipped_byte_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setattr(npy_file, "BLOCK_BYTES", 64)
    monkeypatch.setattr(partitioner, "BLOCK_BYTES", 64)
    arguments = {**world.arguments(), "node_feat": np.arange(10 * 1000.0).reshape(10, 1000)}
    root = tmp_path / "parts"
    RandomPartitioner(root, 1, **arguments).partition()
    load_partition(root, 0)
    path = root / "part0/node_feat/node.npy"
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    refused(root, "node_feat/node.npy was altered", "bytes 40000 to 40063 (block 625)")
    (bad,) = inspect_partitions(root, verify=True).bad
    assert bad.path == "part0/node_feat/node.npy" and "bytes 40000 to 40063" in bad.reason
    load_partition(root, 0, verify=False)


STRANGE = [
    None,
    True,
    -1,
    0,
    1,
    63,
    1 << 63,
    10**400,
    1.5,
    float("nan"),
    "",
    "x",
    "../x",
    "\ud800",
    [],
    [[]],
    {},
    {"x": 1},
]


def places(value, path=()):
    """All places in a JSON document, by the keys on the way."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_manifest_of_anything_is_refused_or_means_the_same(runs, data):
    """However well it is signed: what does not follow the format, or does not fit together, is refused at once."""
    root = runs / "run0"
    with kept(root / "manifest.json") as (content,):
        document = json.loads(content)
        *way, key = data.draw(st.sampled_from([path for path in places(document) if path]), "place")
        inner = document
        for each in way:
            inner = inner[each]
        change = data.draw(st.sampled_from(["value", "gone", "twice"]), "change")
        if change == "value":
            inner[key] = data.draw(st.sampled_from(STRANGE), "value")
        elif change == "gone":
            del inner[key]
        elif isinstance(inner, list):
            inner.insert(key, inner[key])
        else:
            inner[f"{key}2"] = inner[key]
        document["run_id"] = digest_of(document)
        (root / "manifest.json").write_bytes(text_of(document))
        for read in (lambda: load_partition(root, 0), lambda: load_partition(root, 1, verify=False)):
            try:
                part = read()
            except PartitionError as error:
                assert str(root) in str(error)
            else:
                assert len(part.nodes) == len(document["node_types"])
        try:
            inspect_partitions(root)
        except PartitionError as error:
            assert str(root) in str(error)


@pytest.mark.parametrize("make", ["fifo", "socket", "device", "loop", "long", "deep"])
def test_what_is_no_file_in_place_of_the_manifest_is_refused_at_once(directory, make):
    path = directory / "manifest.json"
    content = path.read_bytes()
    path.unlink()
    if make == "fifo":
        os.mkfifo(path)
    elif make == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif make == "device":
        path.symlink_to("/dev/zero")
    elif make == "loop":
        path.symlink_to(path)
    elif make == "long":
        with open(path, "wb") as file:
            file.truncate(2 << 30)
    else:
        path.write_bytes(b"[" * 200_000)
    for read in (lambda: load_partition(directory, 0), lambda: inspect_partitions(directory)):
        with pytest.raises(PartitionError, match=r"manifest\.json (is|has|was) "):
            read()
    path.unlink()
    path.write_bytes(content)
    (directory / "part0/node_feat/node.npy").unlink()
    (directory / "part0/node_feat/node.npy").symlink_to("node.npy")
    refused(directory, "node_feat/node.npy is a loop of symbolic links")
    (directory / "part0/node_feat/node.npy").unlink()
    os.mkfifo(directory / "part0/node_feat/node.npy")
    refused(directory, "node_feat/node.npy is not a file")


def test_a_manifest_that_the_disk_does_not_give_is_named(directory):
    (directory / "manifest.json").unlink()
    (directory / "manifest.json").symlink_to("/proc/self/mem")  # address 0, which cannot be read
    with pytest.raises(OSError, match=r"the disk failed.*manifest\.json"):
        load_partition(directory, 0)


def test_what_is_said_of_each_partition_is_said_of_all(tmp_path):
    graph = arguments("homogeneous", 0)
    more = {"hotness": np.arange(14.0), "cache_ratio": 0.2, "balance_ntypes": np.arange(14) % 2, "balance_edges": True}
    manifest = FennelPartitioner(tmp_path / "parts", 2, **graph, **more).partition()
    (node,), (edge,) = manifest.node_types, manifest.edge_types
    for change in (
        {"node_types": (replace(node, forecast=replace(node.forecast, num_reads=(1.0,))),)},
        {"node_types": (replace(node, forecast=replace(node.forecast, num_cached=(1, 1, 1))),)},
        {"node_types": (replace(node, balanced_labels=(replace(node.balanced_labels[0], part_num_nodes=(7,)),)),)},
        {"edge_types": (replace(edge, balanced_labels=(replace(edge.balanced_labels[0], part_num_edges=(7,)),)),)},
    ):
        replace(manifest, **change).signed().write(tmp_path / "parts")
        refused(tmp_path / "parts", "partitions: expected 2")


@pytest.mark.parametrize("verify", [True, False])
def test_a_process_that_may_open_no_more_files_is_told_so(directory, verify):
    """Whichever file is the first too many: the directory is not damaged, and to partition again would not help."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    said = []
    for more in range(soft - lowest_free):  # numbers above may be in use: as many steps as it takes
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + more, hard))
            load_partition(directory, 0, verify=verify)
            break
        except OSError as error:
            said.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert any("manifest.json" in each for each in said) and any("indptr.npy" in each for each in said)
    for more, each in enumerate(said):
        assert f"Too many open files: this process may have {lowest_free + more}; raise the limit" in each
        assert "ulimit -n" in each and str(directory) in each


@pytest.mark.parametrize("verify", [True, False])
def test_a_disk_that_fails_or_a_file_that_may_not_be_read_is_not_a_damaged_file(directory, monkeypatch, verify):
    for number, words in ((errno.EIO, "see dmesg"), (errno.EACCES, "may not open it"), (errno.ENOMEM, "ulimit -v")):

        def fail(*args, number=number, **options):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(contents if verify else np, "open" if verify else "load", fail, raising=not verify)
        with pytest.raises(OSError, match=rf"(?s){os.strerror(number)}.*{words}.*\.npy") as caught:
            load_partition(directory, 0, verify=verify)
        assert caught.value.errno == number


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


def test_a_partition_idx_that_does_not_exist_is_refused(directory):
    for index in (-1, 2):
        refused(directory, f"partition_idx = {index}: expected 0 to 1, a partition of {directory}", partition_idx=index)
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


def test_a_directory_of_another_kind_of_graph_is_refused(directory):
    manifest = load_partition(directory, 0).manifest
    files = {path: entry for path, entry in manifest.files.items() if "node_ids" not in path}
    replace(manifest, files=files).signed().write(directory)
    refused(directory, "manifest.json lists no part0/node_ids/node.npy, which its types call for")
