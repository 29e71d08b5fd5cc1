"""Partitions in a bucket: the files that a process needs, copied once to its host and compared with checksums."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

from glt import _deadlines as deadlines
from glt._checks import format_size, is_of_machine, naming_the_limit
from glt._progress import progress_bar
from glt._urls import is_url, open_file_system, without_query
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest
from glt.partition.format.verify import Contents

_NUM_FILES: Final = 8  # copied at a time
_READ_BYTES: Final = 8 << 20


def local_directory(root: str | os.PathLike[str], partition_idx: int | None) -> Path:
    """The directory of partitions on this host. Of a URL (``s3://``, ``gs://``, ``abfs://``, ``https://``) it is a copy
    in ``$GLT_CACHE`` (default ``~/.cache/glt``), by run: of the manifest, and, unless ``partition_idx`` is None, of the
    files of that partition and those that all need.

    Raises:
        PartitionError: If a file cannot be read, or is not what the manifest says; names it.
        OSError: If there is no room.
        ImportError: Without pyarrow: ``pip install 'glt-graph[tables]'``.
    """
    if not is_url(root):
        return Path(os.path.abspath(root))
    url = os.fspath(root)
    cache = Path(os.environ.get("GLT_CACHE") or Path.home() / ".cache/glt") / "partitions"
    with naming_the_limit(cache):
        cache.mkdir(parents=True, exist_ok=True)
        manifest, local = _manifest(url, cache)
        if partition_idx is None:
            return local
        needed = [path for path in manifest.files if layout.part_of(path) in (None, partition_idx)]
        if outside := [path for path in needed if not Path(os.path.normpath(local / path)).is_relative_to(local)]:
            raise PartitionError(f"{_under(url, layout.MANIFEST)} lists {outside[0]}: expected files of the directory")
        with _alone(local):  # threads of this process too
            missing = [path for path in needed if not (local / path).is_file()]
            num_bytes = sum(manifest.files[path].num_bytes for path in missing)
            _require_room(local, num_bytes)
            pool = ThreadPoolExecutor(_NUM_FILES, "glt-copy")
            with progress_bar(f"copy of {url}", num_bytes) as advance:
                try:
                    copied = pool.map(lambda path: _copy(url, local, path, manifest), missing)
                    for path, _ in zip(missing, copied, strict=True):
                        advance(manifest.files[path].num_bytes)
                finally:
                    pool.shutdown(cancel_futures=True)
    return local


def _manifest(url: str, cache: Path) -> tuple[Manifest, Path]:
    """That at the URL, and the directory of its run."""
    with TemporaryDirectory(dir=cache, prefix=".new-") as folder:
        new = Path(folder, "run")
        new.mkdir()
        _fetch(url, layout.MANIFEST, new / layout.MANIFEST, lambda _: None)
        manifest = Manifest.read(new)
        local = cache / manifest.run_id
        if not local.exists():
            try:
                new.rename(local)
            except OSError:
                if not local.exists():  # another process was not faster
                    raise
    return manifest, local


def _copy(url: str, local: Path, path: str, manifest: Manifest) -> None:
    def advance(_: int) -> None:
        os.utime(local)  # others wait as long as something comes

    target = local / path
    new = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.new")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(url, path, new, advance)
        origin, remedy = f"run {manifest.run_id}", f"upload {path} again"
        contents = Contents(new, manifest.file(local, path), manifest.checksum_block_bytes, origin, remedy)
        contents.compare(advance)
        new.rename(target)
    except PartitionError as error:
        raise PartitionError(f"{_under(url, path)}: {error}") from error
    finally:
        new.unlink(missing_ok=True)


def _fetch(url: str, path: str, target: Path, advance: Callable[[int], object]) -> None:
    whole = _under(url, path)
    opened, inside = open_file_system(whole)
    try:
        with opened.open_input_stream(inside, compression=None) as source, open(target, "wb") as file:
            while block := source.read(_READ_BYTES):
                advance(file.write(block))
    except FileNotFoundError as error:
        raise PartitionError(f"{whole} is missing: expected the files of a partition directory at {url}") from error
    except OSError as error:
        if is_of_machine(error):
            raise
        raise PartitionError(f"{whole} cannot be read: {' '.join(str(error).split())}") from error


def _under(url: str, path: str) -> str:
    plain, query = without_query(url)
    return f"{plain.rstrip('/')}/{quote(path)}{query}"


def _require_room(local: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(local).free
    if num_bytes > free:
        raise OSError(
            errno.ENOSPC,
            f"{format_size(num_bytes)} are to be copied, {format_size(free)} are free: set GLT_CACHE to a directory "
            "with more room",
            str(local),
        )


@contextmanager
def _alone(local: Path) -> Iterator[None]:
    """One process of the host copies. Another waits for it, until nothing has come for long: then it copies itself."""
    began = time.time()
    with open(local / ".lock", "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.time() - max(began, local.stat().st_mtime) > deadlines.STUCK_S:
                    break
                time.sleep(deadlines.FAST_POLL_S)
        yield
