"""Contents of files, compared with their checksums: before they are used, or behind, by one process of a host.

What was compared is remembered, so that it is read once, however many processes load it and however often. A record is
a file in a directory of this user in ``$TMPDIR`` (``/tmp``), named after the compared file's path, inode, size and
times of change, and after its checksums: a file that was written since has no record. It is empty, and locked, while
its file is read, and then says what was found. Where there can be no such directory, nothing is remembered, and all is
compared before it is used.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import is_exhausted, naming_the_limit
from glt.errors import PartitionError
from glt.partition.format.files import FileEntry, require_file

logger = logging.getLogger(__name__)

BEFORE_USE_BYTES: Final = 1 << 30  # files up to this size are compared before they are used
REMEMBERED_BYTES: Final = 64 << 20  # smaller ones are read faster than it would take to remember them safely
_BLOCKS_AT_ONCE: Final = 16
_READ_BYTES: Final = 1 << 20  # at a time: they stay in the CPU's cache until their checksum is made
_NUM_THREADS: Final = min(4, os.cpu_count() or 1)  # four take as much as most disks give
_NICE: Final = 10  # of the thread that reads behind
_MOST_SAID: Final = 64 << 10  # bytes of a record


@dataclass(frozen=True)
class Contents:
    """What a file is to hold. ``origin`` (the run that the manifest describes) and ``remedy`` are for messages. With
    ``in_huge_pages`` it is read from its disk, into pages of 2 MiB, where the kernel can do that."""

    path: Path
    entry: FileEntry
    block_bytes: int
    origin: str
    remedy: str = "copy the directory again, or partition again"
    in_huge_pages: bool = False

    @property
    def is_large(self) -> bool:
        """Whether it would take long to compare it before it is used."""
        return self.entry.num_bytes > BEFORE_USE_BYTES

    def compare(self, advance: Callable[[int], object] = lambda _: None, num_threads: int = _NUM_THREADS) -> None:
        """Reads all of the file; raises PartitionError, which names the file and the first block that is not what was
        written. ``advance`` is called with the bytes of each block."""
        require_file(self.path, self.entry, f"expected the file of {self.origin}; {self.remedy}")
        num_bytes, block_bytes = self.entry.num_bytes, self.block_bytes
        blocks = range(0, num_bytes, block_bytes)
        with (
            naming_the_limit(self.path),
            closing(_crcs(self.path, blocks, block_bytes, num_threads, self.in_huge_pages)) as found,
        ):
            for block, crc in enumerate(found):
                wanted, first = self.entry.checksum[8 * block : 8 * block + 8], block * block_bytes
                if f"{crc:08x}" != wanted:
                    raise PartitionError(
                        f"{self.path} was altered or comes from another run: bytes {first} to "
                        f"{min(first + block_bytes, num_bytes) - 1} (block {block}) have checksum {crc:08x}, the "
                        f"manifest says {wanted}: expected the file of {self.origin}; {self.remedy}"
                    )
                advance(min(block_bytes, num_bytes - first))

    def compare_once(self) -> None:
        """As :meth:`compare`, unless a process of this host has done it since the file was last written."""
        record = Record.of(self) if self.entry.num_bytes > REMEMBERED_BYTES else None
        if record is None:
            self.compare()
            return
        with closing(record):
            while not (is_mine := record.lock()) and record.found() is None and not record.is_still():
                time.sleep(deadlines.FAST_POLL_S)  # another process reads it
            if record.found() == "":
                return
            try:
                self.compare(record.advance)
            except BaseException:
                record.path.unlink(missing_ok=True)
                raise
            if is_mine:
                record.write("")

    def drop_small_pages(self) -> None:
        """Has the kernel forget what it holds of the file in small pages, and what the disk has: it comes again in
        pages of 2 MiB, which it does not as long as a process uses the others."""
        with naming_the_limit(self.path), open(self.path, "rb", buffering=0) as file:
            if _core.read_into_huge_pages(file.fileno(), 0, self.block_bytes):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def wrong(self, advance: Callable[[int], object]) -> str | None:
        """What :meth:`compare` raises, on one thread, in words; ``""`` if all is well. None: this process has no
        descriptors or memory left to find out, which says nothing of the file."""
        try:
            self.compare(advance, num_threads=1)
        except PartitionError as error:
            return str(error)
        except OSError as error:
            if is_exhausted(error):
                return None
            return f"{self.path} cannot be read to its end ({error.strerror}): look after the disk"
        except MemoryError:
            return None
        return ""


def _crcs(path: Path, blocks: range, block_bytes: int, num_threads: int, in_huge_pages: bool) -> Generator[int]:
    """Checksums of the blocks that begin there, in order; several are made at a time."""
    buffers = threading.local()
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(num_threads, "glt-verify") as pool:
        size = os.fstat(file.fileno()).st_size
        read = partial(_core.read_into_huge_pages, file.fileno(), num_bytes=block_bytes)

        def crc_of(begin: int) -> int:
            if not hasattr(buffers, "bytes"):
                buffers.bytes = np.empty(min(block_bytes, _READ_BYTES), np.uint8)
            crc, at, end = 0, begin, begin + block_bytes
            while at < end:
                try:
                    got = os.preadv(file.fileno(), [memoryview(buffers.bytes)[: end - at]], at)
                except OSError as error:  # of a descriptor: it does not say which file
                    raise OSError(error.errno, error.strerror, os.fspath(path)) from error
                if got == 0:
                    break
                crc = _core.crc32(buffers.bytes[:got], crc)
                at += got
            return crc

        can_read = in_huge_pages and read(0)  # on this file system, with this kernel
        num_huge = 0
        at_once: Any = map if num_threads == 1 or size <= block_bytes else pool.map
        try:
            for some in (blocks[at : at + _BLOCKS_AT_ONCE] for at in range(0, len(blocks), _BLOCKS_AT_ONCE)):
                # All of them before any is read: the kernel reads ahead of a reader, into small pages.
                if can_read:
                    num_huge += sum(at_once(read, some))
                yield from at_once(crc_of, some)
            if in_huge_pages:
                logger.info("%s: %d of %d blocks are in pages of 2 MiB", path, num_huge, len(blocks))
        finally:
            pool.shutdown(cancel_futures=True)


# -- reading behind ------------------------------------------------------------------------------------------------


class Watch:
    """Files that are used and not compared yet, and what was found of them. Any thread may use it."""

    def __init__(self, files: Iterable[tuple[Contents, Record]] = ()) -> None:
        self._lock = threading.Lock()
        self._unknown = list(files)
        self._wrong = ""
        self._look_at_s = 0.0

    def __reduce__(self) -> tuple[Callable[..., Watch], tuple[Any, ...]]:
        """Copies of a partition, also in other processes of the host, hear of the same."""
        return _watch_again, (self._wrong, [contents for contents, _ in self._unknown])

    def require_sound(self) -> None:
        """Raises PartitionError if a process of this host has found one of them damaged. Looks twice a second, and
        costs next to nothing in between."""
        if self._unknown and time.monotonic() >= self._look_at_s:
            self._look()
        if self._wrong:
            raise PartitionError(self._wrong)

    def wait(self, timeout_s: float) -> bool:
        """Whether all of them have been compared, within ``timeout_s`` seconds; raises as :meth:`require_sound`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._look()
            self.require_sound()
            if not self._unknown or time.monotonic() > deadline:
                return not self._unknown
            time.sleep(deadlines.FAST_POLL_S)

    def _look(self) -> None:
        if not self._lock.acquire(blocking=False):  # another thread is at it; in a fork, one that is not there
            return
        try:
            for each in list(self._unknown):
                if (found := each[1].found()) is not None:
                    self._settle(each, found)
            self._look_at_s = time.monotonic() + deadlines.POLL_S
        finally:
            self._lock.release()

    def _settle(self, each: tuple[Contents, Record], found: str) -> None:
        self._wrong = self._wrong or found
        self._unknown.remove(each)
        each[1].close()

    def compare_behind(self) -> None:
        """Has a thread of this process compare them, but for those that another process of this host is at. What was
        found to be damaged before is read again: the disk may have been at fault."""
        with self._lock:
            for _, record in self._unknown:
                if record.found() and record.lock():
                    record.write(None)
        self._look()
        if self._unknown:
            threading.Thread(target=self._compare_all, name="glt-verify", daemon=True).start()

    def _compare_all(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread: trainers go first
        while files := list(self._unknown):
            for each in files:
                contents, record = each
                with self._lock:
                    is_unknown = each in self._unknown and record.found() is None
                    is_mine = is_unknown and (record.lock() or record.is_still())
                if is_mine:
                    start, found = time.monotonic(), contents.wrong(record.advance)
                    if found is None:
                        logger.warning(
                            "this process has no descriptors or memory left to compare %s with its checksums: it will "
                            "try again in %g s",
                            contents.path,
                            deadlines.HINT_S,
                        )
                        time.sleep(deadlines.HINT_S)
                        continue
                    logger.info("%s was compared with its checksums in %.1f s", contents.path, time.monotonic() - start)
                    is_other = bool(found) and record.is_of_another_file()  # overwrite=True, for example
                    if is_other:
                        logger.warning("%s was replaced before it was compared: the old stays in use", contents.path)
                    with self._lock:
                        if each not in self._unknown:
                            continue  # another watch of this process was faster: the record is closed
                        if not is_other:
                            record.write(found)
                        self._settle(each, "" if is_other else found)
            time.sleep(deadlines.POLL_S)  # others are at the rest; should they end or stop before, this one does it
            self._look()


def _watch_again(wrong: str, files: list[Contents]) -> Watch:
    records = [(each, Record.of(each)) for each in files if each.path.exists()]  # on another host it may not
    watch = Watch((each, record) for each, record in records if record is not None)
    watch._wrong = wrong
    return watch


# -- what is remembered --------------------------------------------------------------------------------------------


class Record:
    """What is known of a file on this host, and who finds it out: the process that holds the lock."""

    @classmethod
    def of(cls, contents: Contents) -> Record | None:
        """The record of a file that is there; None where there can be none."""
        folder = records_dir()
        if folder is None:
            return None
        state = _state_of(contents.path)
        told = [*state, contents.block_bytes, hashlib.blake2b(contents.entry.checksum.encode()).hexdigest()]
        name = hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()
        try:
            if not (folder / name).exists():
                _prune(folder)
            return cls(folder / name, state)
        except OSError as error:
            logger.info("%s: what is found of %s is not remembered", error, contents.path)
            return None

    def __init__(self, path: Path, state: list[str | int]) -> None:
        self.path, self._state = path, state
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.close = weakref.finalize(self, os.close, self._fd)
        self.close.atexit = False  # the thread behind still uses it

    def found(self) -> str | None:
        """What is wrong with the file, ``""`` if nothing is; None: that is not known yet."""
        said = _said(os.pread(self._fd, _MOST_SAID, 0))
        return None if said is None else str(said["wrong"])

    def lock(self) -> bool:
        """Whether this process has the lock now. The kernel gives it back when the process ends, or forks."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)  # a file system without locks: all do the work
        return True

    def advance(self, _: int = 0) -> None:
        """Another block has been read."""
        with suppress(OSError):  # then others read the file too
            os.utime(self.path, follow_symlinks=False)  # its descriptor may be closed by now, and be another file's

    def is_still(self) -> bool:
        """Whether the process that has the lock has read nothing for so long that it must be stopped."""
        return time.time() - os.fstat(self._fd).st_mtime > deadlines.STUCK_S

    def is_of_another_file(self) -> bool:
        """Whether its path leads to another file now, or to none: the one that it is of cannot be read any more."""
        try:
            return _state_of(Path(str(self._state[0])))[:3] != self._state[:3]
        except OSError:
            return True

    def write(self, wrong: str | None) -> None:
        said = "" if wrong is None else json.dumps({"file": self._state, "wrong": wrong[: _MOST_SAID // 8]}) + "\n"
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, said.encode(), 0)
        except OSError as error:  # a full disk: others read the file themselves
            logger.warning("what was found of %s cannot be told to other processes: %s", self._state[0], error)


def records_dir() -> Path | None:
    """The directory of this user on this host; None if there is none that others cannot write to."""
    try:
        folder = Path(tempfile.gettempdir(), f"glt-verified-{os.getuid()}")  # FileNotFoundError: all are read-only
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError as error:
        logger.info("what is compared is not remembered: %s", error)
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        logger.warning("%s is not a directory of this user alone: what is compared is not remembered", folder)
        return None
    return folder


def _state_of(path: Path) -> list[str | int]:
    """What changes when a file is written."""
    found = path.stat()
    return [str(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _said(text: bytes) -> dict[str, Any] | None:
    if not text.endswith(b"\n"):  # it is yet to come, or on its way
        return None
    try:
        said = json.loads(text)
        return said if isinstance(said["file"], list) and isinstance(said["wrong"], str) else None
    except (ValueError, LookupError, TypeError):
        return None


def _prune(folder: Path) -> None:
    """Removes what is remembered of files that are gone, or were written since."""
    for path in folder.iterdir():
        try:
            said = _said(path.read_bytes())
            is_old = time.time() - path.stat().st_mtime > deadlines.DAY_S
            if is_old if said is None else _state_of(Path(said["file"][0])) != said["file"]:
                path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            path.unlink(missing_ok=True)
