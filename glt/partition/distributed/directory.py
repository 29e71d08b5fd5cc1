"""The directory that ranks write together where they share a file system, and apart where they do not."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from glt.partition.distributed.exchange import Exchange
from glt.partition.staging import locked_directory, remove_stale, require_free


@dataclass(frozen=True)
class SharedDirectory:
    """Where a rank writes.

    Attributes:
        root: The staging directory.
        leaders: By rank, who writes what all partitions of its directory share, books and manifest.
    """

    root: Path
    leaders: tuple[int, ...]


@contextmanager
def shared_staging(target: Path, exchange: Exchange) -> Iterator[SharedDirectory]:
    """Yields a staging directory that becomes ``target`` in one rename when all ranks are done, or vanishes.

    The leader of a rank is the lowest one whose staging directory lies beside the target of both: no need to know which
    file systems are shared.
    """
    require_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    exchange.gather(None)  # so nobody takes for stale what another rank is about to lock
    own, lock = locked_directory(target)
    try:
        names = exchange.gather([target.name, own.name])
        leader = next(
            rank
            for rank, (name, staging) in enumerate(names)
            if rank == exchange.rank or (name == target.name and (target.parent / staging).is_dir())
        )
        leaders = exchange.gather(leader)  # so nobody removes a directory before all have looked
        root = target.parent / names[leader][1]
        if leader != exchange.rank:
            own.rmdir()
            joined = _join(root)
            os.close(lock)
            lock = joined
        yield SharedDirectory(root, tuple(leaders))
        exchange.gather(None)
        if leader == exchange.rank:
            require_free(target)
            root.rename(target)
        exchange.gather(None)
    except BaseException as error:
        exchange.fail(error)  # first: the others shall raise this, not that their directory is gone
        shutil.rmtree(own, ignore_errors=True)  # the first error is the one to report
        raise
    finally:
        os.close(lock)


def _join(root: Path) -> int:
    """Keeps the leader's directory from being taken for that of a dead run as long as this rank writes to it."""
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return lock
