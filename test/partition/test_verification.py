"""Contents are compared with their checksums before they are used, or behind, once per host; what is found is heard."""

import contextlib
import copy
import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

from glt import _deadlines as deadlines
from glt.errors import PartitionError
from glt.partition import RandomPartitioner, load_id_map, load_partition
from glt.partition.format import verify

FEAT = "part0/node_feat/node.npy"


@pytest.fixture
def root(world, tmp_path, monkeypatch):
    """A partition with a file of 80 kB; nothing is known of it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(verify, "REMEMBERED_BYTES", 50_000)
    arguments = {**world.arguments(), "node_feat": np.arange(10 * 1000.0).reshape(10, 1000)}
    RandomPartitioner(tmp_path / "parts", 1, **arguments, relabel=True).partition()
    return tmp_path / "parts"


@pytest.fixture
def behind(root, monkeypatch):
    """The same: its file is large enough to be compared behind."""
    monkeypatch.setattr(verify, "BEFORE_USE_BYTES", 50_000)
    return root


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Names of the files of this test whose contents are read, in order; threads of others may still be at theirs."""
    names, crcs = [], verify._crcs

    def counted(path, *given):
        if tmp_path in path.parents:
            names.append(path.name)
        return crcs(path, *given)

    monkeypatch.setattr(verify, "_crcs", counted)
    return names


def damage(root, path=FEAT, at=40_000):
    with open(root / path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def num_reads_of_feat(root, read):
    before = read.count("node.npy")
    small = sum(path.name == "node.npy" for path in (root / "part0").rglob("node.npy")) - 1
    load_partition(root, 0)
    return read.count("node.npy") - before - (small + 2)  # and the two maps of ids


def test_a_file_is_compared_once_until_it_is_written_again(root, read):
    assert [num_reads_of_feat(root, read) for _ in range(3)] == [1, 0, 0]
    damage(root)
    for _ in range(2):  # damage is not remembered: the disk may have been at fault
        with pytest.raises(PartitionError, match=r"node\.npy was altered.* \(block 0\)"):
            load_partition(root, 0)
    damage(root)  # as it was
    assert [num_reads_of_feat(root, read) for _ in range(2)] == [1, 0]
    os.utime(root / FEAT)
    assert [num_reads_of_feat(root, read) for _ in range(2)] == [1, 0]
    (root / FEAT).rename(root / "feat")  # another file in its place, of the same bytes
    (root / FEAT).write_bytes((root / "feat").read_bytes())
    assert [num_reads_of_feat(root, read) for _ in range(2)] == [1, 0]
    records = list(verify.records_dir().iterdir())
    assert len(records) == 1, "what is known of earlier states is forgotten"


def test_every_block_of_a_large_file_counts_with_the_defaults(tmp_path):
    """64 zeros anywhere in 80 MB."""
    edges = np.random.default_rng(0).integers(0, 1000, (2, 10_000_000))
    RandomPartitioner(tmp_path / "parts", 1, 1000, edges, edge_weight=np.ones(len(edges[0]))).partition()
    load_partition(tmp_path / "parts", 0)
    path = tmp_path / "parts/part0/graph/node__to__node/weight_sum.npy"
    assert path.stat().st_size > 64 << 20
    with open(path, "r+b") as file:
        file.seek(50_000_000)
        file.write(bytes(64))
    with pytest.raises(PartitionError, match=r"weight_sum\.npy was altered.*bytes 46137344 to 50331647 \(block 11\)"):
        load_partition(tmp_path / "parts", 0)


def test_a_large_file_is_compared_behind_and_its_damage_is_heard_by_all_processes(behind):
    damage(behind)
    part = load_partition(behind, 0)
    with pytest.raises(PartitionError, match=r"node_feat/node\.npy was altered"):
        part.wait_until_verified(20.0)
    with pytest.raises(PartitionError, match=r"node_feat/node\.npy was altered"):
        part.require_sound()
    program = f"""if True:
        import sys, tempfile
        tempfile.tempdir = {tempfile.tempdir!r}
        from glt.partition import load_partition
        from glt.partition.format import verify
        verify.BEFORE_USE_BYTES = 50_000
        load_partition({str(behind)!r}, 0, verify="elsewhere").require_sound()
    """
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "PartitionError" in found.stderr and "node_feat/node.npy was altered" in found.stderr
    assert heard(load_partition(behind, 0, verify="elsewhere"))  # it is known already
    damage(behind)  # as it was
    os.utime(behind / FEAT)
    assert load_partition(behind, 0).wait_until_verified(20.0)


def test_a_process_that_loads_a_partition_twice(behind, monkeypatch):
    """Both compare its file. Who is late writes to no record that is closed, whose descriptor is another file's now."""
    is_told, failed, first, before = threading.Event(), [], [], threading.enumerate()
    wrong = verify.Contents.wrong

    def late_the_first_time(self, advance):
        is_first = not first
        first.append(self)
        return (wrong(self, advance), is_first and is_told.wait(60.0))[0]

    monkeypatch.setattr(verify.Contents, "wrong", late_the_first_time)
    monkeypatch.setattr(threading, "excepthook", failed.append)
    parts = [load_partition(behind, 0)]
    while not first:
        time.sleep(0.01)
    (thread,) = [each for each in threading.enumerate() if each.name == "glt-verify" and each not in before]
    parts.append(load_partition(behind, 0))
    assert all(part.wait_until_verified(20.0) for part in reversed(parts))
    mine = behind.parent / "mine"
    mine.write_text("mine")
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(open(mine, "r+b"))
        is_told.set()
        thread.join(20.0)
    assert not thread.is_alive() and not failed and mine.read_text() == "mine"


def test_copies_of_a_partition_hear_of_damage(behind):
    damage(behind)
    part = load_partition(behind, 0, verify="elsewhere")
    copies = [pickle.loads(pickle.dumps(part)), copy.deepcopy(part)]
    for each in copies:
        each.require_sound()
        np.testing.assert_array_equal(each.nodes[0].feat, part.nodes[0].feat)
    part.watch.compare_behind()
    for each in (*copies, part):
        with pytest.raises(PartitionError, match="was altered"):
            each.wait_until_verified(20.0)
    assert all(heard(pickle.loads(pickle.dumps(each))) for each in copies)
    copied = pickle.dumps(load_partition(behind, 0, verify="elsewhere"))
    (behind / FEAT).unlink()
    pickle.loads(copied)


def heard(part):
    with pytest.raises(PartitionError, match="was altered"):
        part.require_sound()
    return True


def test_damage_that_is_gone_when_it_is_read_again_is_forgotten(behind, monkeypatch):
    """The disk had been at fault: nothing has been written."""
    crcs = verify._crcs
    monkeypatch.setattr(
        verify, "_crcs", lambda path, *given: (crc ^ ("node_feat" in str(path)) for crc in crcs(path, *given))
    )
    with pytest.raises(PartitionError, match="was altered"):
        load_partition(behind, 0).wait_until_verified(20.0)
    monkeypatch.setattr(verify, "_crcs", crcs)
    assert heard(load_partition(behind, 0, verify="elsewhere"))
    assert load_partition(behind, 0).wait_until_verified(20.0)
    load_partition(behind, 0, verify="elsewhere").require_sound()


def test_a_process_may_end_while_it_compares(behind):
    program = f"""if True:
        import sys, tempfile
        tempfile.tempdir = {tempfile.tempdir!r}
        from glt.partition import load_partition
        from glt.partition.format import verify
        verify.BEFORE_USE_BYTES, read = 50_000, verify._crcs
        for_ever = lambda *given: (next(read(*given)) for _ in iter(int, 1) if next(read(*given)) < 0)
        verify._crcs = lambda path, *given: (for_ever if "node_feat" in str(path) else read)(path, *given)
        load_partition({str(behind)!r}, 0)
    """
    for _ in range(5):
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (found.returncode, found.stderr) == (0, ""), found.stderr


def test_what_is_sound_is_known_to_all_processes(behind, read):
    assert load_partition(behind, 0).wait_until_verified(20.0)
    num_read = len(read)
    for verified in (True, "elsewhere"):
        part = load_partition(behind, 0, verify=verified)
        assert part.wait_until_verified(0.0)
        part.require_sound()
    assert len(read) == num_read + num_read - 1  # the small ones, once more
    assert not load_partition(behind, 0, verify=False).watch._unknown


def holder(root, act="pass"):
    """A process that has the lock of what is known of the file, and does nothing else, or this again and again."""
    program = f"""if True:
        import sys, tempfile, time
        tempfile.tempdir = {tempfile.tempdir!r}
        from pathlib import Path
        from glt.partition import Manifest
        from glt.partition.format import verify
        root, manifest = Path({str(root)!r}), Manifest.read({str(root)!r})
        contents = verify.Contents(root / {FEAT!r}, manifest.files[{FEAT!r}], manifest.checksum_block_bytes, "run")
        record = verify.Record.of(contents)
        print(record.lock(), flush=True)
        for _ in range(6000):
            {act}
            time.sleep(0.1)
    """
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    return process


def test_one_process_of_a_host_reads_a_file_and_the_others_wait(root, read, monkeypatch):
    """If it is stopped they do not wait for ever, and if it dies they go on at once."""
    monkeypatch.setattr(deadlines, "STUCK_S", 1.0)
    with holder(root) as process:
        start = time.monotonic()
        assert num_reads_of_feat(root, read) == 1
        assert time.monotonic() - start >= 0.5
        monkeypatch.setattr(deadlines, "STUCK_S", 600.0)
        process.send_signal(signal.SIGKILL)
        start = time.monotonic()
        assert num_reads_of_feat(root, read) == 1
        assert time.monotonic() - start < 60.0


def test_who_waits_for_another_process_goes_on_if_that_dies(behind):
    damage(behind)
    with holder(behind) as process:
        part = load_partition(behind, 0)
        assert not part.wait_until_verified(1.5)
        part.require_sound()
        process.kill()
        with pytest.raises(PartitionError, match="was altered"):
            part.wait_until_verified(20.0)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_process_that_reads_is_waited_for_and_not_one_that_is_stopped(behind, monkeypatch, is_stopped):
    damage(behind)
    with holder(behind, "pass" if is_stopped else "record.advance()") as process:
        monkeypatch.setattr(deadlines, "STUCK_S", 1.0)
        part = load_partition(behind, 0)
        if is_stopped:
            with pytest.raises(PartitionError, match="was altered"):
                part.wait_until_verified(20.0)
        else:
            assert not part.wait_until_verified(3.0)
        process.kill()


def raise_none_usable():
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


@pytest.mark.parametrize("what", ["open to others", "a file", "a link", "nowhere", "read-only"])
def test_where_nothing_can_be_remembered_all_is_compared_before_it_is_used(behind, read, what, monkeypatch):
    folder = verify.records_dir()
    folder.rmdir()
    if what == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    elif what == "a file":
        folder.write_text("")
    elif what == "a link":
        folder.symlink_to(behind)
    elif what == "read-only":
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_get_default_tempdir", raise_none_usable)
    else:
        monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    assert [num_reads_of_feat(behind, read) for _ in range(2)] == [1, 1]
    damage(behind)
    with pytest.raises(PartitionError, match="was altered"):
        load_partition(behind, 0)


def test_a_record_that_says_nothing_is_not_believed(root, read):
    load_partition(root, 0)
    (record,) = verify.records_dir().iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    for said in (b"", b"{", b"[]\n", b'{"file": 3, "wrong": ""}\n', b"\xff\n", b'{"file": [], "wrong": null}\n'):
        record.write_bytes(said)
        assert num_reads_of_feat(root, read) == 1, said
        assert num_reads_of_feat(root, read) == 0


def test_maps_of_ids_are_compared_before_they_are_used(behind):
    damage(behind, "node_map/node.npy", at=130)
    with pytest.raises(PartitionError, match="was altered"):
        load_id_map(behind)


def test_a_file_that_cannot_be_read_to_its_end_is_told_as_such(behind, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    part = load_partition(behind, 0, verify="elsewhere")
    monkeypatch.setattr(os, "preadv", broken)
    part.watch.compare_behind()
    with pytest.raises(PartitionError, match=r"node\.npy cannot be read to its end \(Input/output error\)"):
        part.wait_until_verified(20.0)
    monkeypatch.setattr(verify, "BEFORE_USE_BYTES", 1 << 30)
    with pytest.raises(OSError, match=r"Input/output error: '.*\.npy'"):
        load_partition(behind, 0)


def test_too_few_descriptors_while_it_is_compared_are_no_damage(behind, monkeypatch):
    """It is compared when there are some again."""
    few = [OSError(errno.EMFILE, "Too many open files")]
    preadv = os.preadv

    def sometimes(*given):
        if few:
            raise few.pop()
        return preadv(*given)

    part = load_partition(behind, 0, verify="elsewhere")
    monkeypatch.setattr(os, "preadv", sometimes)
    part.watch.compare_behind()
    assert part.wait_until_verified(20.0) and not few


@pytest.mark.parametrize("how", ["overwrite", "move"])
def test_a_job_goes_on_with_files_that_were_replaced_before_they_were_compared(behind, world, how):
    part = load_partition(behind, 0, verify="elsewhere")
    if how == "move":
        behind.rename(behind.with_name("old"))
    else:
        RandomPartitioner(behind, 2, **world.arguments(), random_seed=7, overwrite=True).partition()
    part.watch.compare_behind()
    assert part.wait_until_verified(20.0)


@pytest.mark.parametrize("verify", [1, np.True_, "yes", None])
def test_what_does_not_say_whether_to_verify_is_refused(root, verify):
    """It is not taken for verify=False."""
    damage(root)
    for load in (lambda: load_partition(root, 0, verify=verify), lambda: load_id_map(root, verify=verify)):
        with pytest.raises(TypeError, match=r"^verify = .*: expected True or False"):
            load()


def test_the_thread_behind_ends(behind):
    part = load_partition(behind, 0)
    assert part.wait_until_verified(20.0)
    deadline = time.monotonic() + 20.0
    while any(thread.name == "glt-verify" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
