"""How much memory this process can still use, before it finds out by being killed."""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def available_memory(proc: Path = Path("/proc"), cgroup_root: Path = _ROOT) -> tuple[int, str]:
    """Returns the available bytes and what limits them: the host's memory or the limit of a cgroup (a container).

    Args:
        proc: Where procfs is mounted.
        cgroup_root: Where the cgroup file systems are mounted.
    """
    least = _host_memory(proc / "meminfo"), "memory available on this host"
    for folder, names in _cgroups(proc / "self/cgroup", cgroup_root):
        room = _cgroup_room(folder, *names)
        if room is not None and room < least[0]:
            least = room, f"memory left under the limit of cgroup {folder}"
    return least


def _host_memory(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo}: no MemAvailable; this needs Linux 3.14 or later")


def _cgroups(listing: Path, root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """Lists the memory cgroups of this process, innermost first, with the names of their limit, usage and cache."""
    found: list[tuple[Path, tuple[str, str, str]]] = []
    for line in listing.read_text().splitlines() if listing.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's: then only the mounted top exists, and it is the container's own.
        folder = top / path.lstrip("/")
        found += [(f, names) for f in (folder, *folder.parents) if f.is_relative_to(top) and f.is_dir()]
    return found


def _cgroup_room(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    """Returns limit - usage + page cache that can be dropped; None where there is no limit."""
    limit_file, usage_file, stat_file = folder / limit_name, folder / usage_name, folder / "memory.stat"
    if not (limit_file.exists() and usage_file.exists()):
        return None
    limit = limit_file.read_text().strip()
    if limit == "max":
        return None
    stat = dict(line.split() for line in stat_file.read_text().splitlines()) if stat_file.exists() else {}
    return max(0, int(limit) - int(usage_file.read_text()) + int(stat.get(cache_name, 0)))
