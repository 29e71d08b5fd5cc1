"""The directory that a partitioner works in until its result is whole, and what becomes of it when it dies."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glt.errors import PartitionError

logger = logging.getLogger(__name__)


def require_free(target: Path, name: str = "output_dir") -> None:
    """Raises PartitionError unless ``target`` does not exist or is an empty directory that a rename can replace."""
    if os.path.ismount(target):
        raise PartitionError(
            f"{name} {target} is a mount point, which cannot be replaced by the finished directory: "
            f"choose one inside it, such as {target / 'new'}"
        )
    if target.is_dir():
        found = next(target.iterdir(), None)
        if found is not None:
            raise PartitionError(
                f"{name} {target} is not empty (it holds {found.name!r}): expected a new or empty directory; "
                "delete it or choose another"
            )
    elif target.exists():
        raise PartitionError(f"{name} {target} is a file: expected a new or empty directory; choose another")


def require_writable(target: Path) -> None:
    """Raises PartitionError unless ``target`` can be created, which creating another directory there finds out."""
    absolute = target.absolute()
    existing = next(path for path in absolute.parents if path.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".glt-", dir=existing))
    except OSError as error:
        raise PartitionError(
            f"output_dir {target} cannot be created: {existing} takes no directories ({error.strerror}); choose a "
            "place that you may write to"
        ) from error


def require_space(target: Path, need_bytes: int, name: str = "output_dir") -> None:
    """Raises PartitionError unless the file system of ``target``, which need not exist, has ``need_bytes`` free."""
    existing = next(path for path in (target, *target.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if need_bytes > free_bytes:
        raise PartitionError(
            f"{name} {target} needs {need_bytes / 1e9:.3g} GB, scratch files included, but its file system has "
            f"{free_bytes / 1e9:.3g} GB free: free some, or choose a directory on another file system"
        )


@contextmanager
def staging(target: Path, name: str = "output_dir", durable: bool = False) -> Iterator[Path]:
    """Yields a temporary directory beside ``target`` that becomes ``target`` in one rename, or vanishes on an error.

    The directory is locked (``flock``) for as long as its process lives, so that the next run can tell what a killed
    one has left, and removes it. Errors call ``target`` by ``name``. With ``durable`` this returns only when the disk
    has all of it, which a host that loses power afterwards still has.
    """
    require_free(target, name)
    existing = next(path for path in target.absolute().parents if path.exists())
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    temporary, lock = locked_directory(target)
    try:
        yield temporary
        if durable:
            sync_tree(temporary)
        require_free(target, name)
        temporary.rename(target)  # atomic; fails if the target was filled since
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # the first error is the one to report
        raise
    finally:
        os.close(lock)
    if durable:
        _sync_names(target.absolute(), existing)


def sync_tree(root: Path) -> None:
    """Waits until the disk has all files and directories below ``root``, and their names."""
    for directory, _, files in os.walk(root):
        for each in (*(os.path.join(directory, file) for file in files), directory):
            sync(each)


def _sync_names(target: Path, existing: Path) -> None:
    """Makes the name of ``target`` last, and those of its parents up to one that was there before."""
    try:
        for parent in target.parents:
            sync(parent)
            if parent == existing:
                return
    except OSError:
        shutil.rmtree(target, ignore_errors=True)  # what is reported as failed is not to be found later
        raise


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until the disk has a file, or the names in a directory; an OSError names the file."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:  # of a descriptor: it does not say which
        if error.errno == errno.EINVAL and os.path.isdir(path):
            return  # a file system that keeps names without being asked, or cannot be asked
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(opened)


@contextmanager
def scratch_directory(target: Path) -> Iterator[Path]:
    """Yields a directory beside ``target`` for files that are no part of it; it vanishes in any case."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = locked_directory(target)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def remove_stale(target: Path) -> None:
    """Removes the staging directories of ``target`` that dead processes of this host have left."""
    ours = re.compile(re.escape(target.name) + rf"\.tmp-{_host()}-\d+-[0-9a-f]{{8}}")
    for path in target.parent.iterdir():
        if not ours.fullmatch(path.name):  # another host's: whether that one lives cannot be told from here
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # became the target, or was removed, this moment
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # alive; or a file system without locks, which cannot tell
            continue
        else:
            logger.warning("removing %s, left by a process that was killed", path)
            shutil.rmtree(path, ignore_errors=True)  # by two at once; what remains is for the next run
        finally:
            os.close(lock)


def locked_directory(target: Path) -> tuple[Path, int]:
    """Creates a staging directory of ``target`` and returns it, and the descriptor whose closing frees it."""
    while True:
        path = target.with_name(f"{target.name}.tmp-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        path.mkdir()
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # taken for stale between the two calls, and about to be removed
            os.close(lock)
            continue
        except OSError:  # a file system without locks: the next run cannot remove it either
            logger.warning("%s cannot be locked: if this run is killed, remove it by hand", path)
        if path.exists():
            return path, lock
        os.close(lock)


def _host() -> str:
    """Tells hosts apart that share a file system."""
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"
