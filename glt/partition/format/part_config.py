"""The part_config ``<graph_name>.json`` of a partition directory, which names the graph, with the keys of DGL's; the
manifest is beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from glt._checks import is_of_machine
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest, read_regular

_SUFFIX: Final = ".json"
_MOST_BYTES: Final = 64 << 20
_OURS: Final = "glt"  # the key that DGL's own files lack


class PartConfig(NamedTuple):
    """The directory of a partitioned graph, and its name: the directory's where :func:`partition_graph` was told
    none.

    Example:
        >>> glt.partition.read_part_config("parts").graph_name
        'parts'
    """

    directory: Path
    graph_name: str


def require_graph_name(name: object) -> str:
    """Returns ``name``; raises TypeError or ValueError if it is no text, or cannot be a file's name."""
    if not isinstance(name, str):
        raise TypeError(f"graph_name = {name!r}: expected text")
    num_bytes = len((name + _SUFFIX).encode("utf-8", "surrogatepass"))
    if not name or name.startswith(".") or "/" in name or "\0" in name or num_bytes > 255:
        raise ValueError(
            f"graph_name = {name!r}: expected a name for the file <graph_name>.json: some characters, no '/', no '.' "
            "in front, 250 bytes at most"
        )
    if name + _SUFFIX == layout.MANIFEST:
        raise ValueError(f"graph_name = {name!r}: {layout.MANIFEST} is the manifest's file; choose another name")
    return name


def write_part_config(directory: str | os.PathLike[str], graph_name: str, part_method: str, **more: Any) -> Path:
    """Writes the part_config of a whole partition directory, with the keys ``more`` too, and returns its path.

    Its keys are DGL's: ``graph_name, part_method, num_parts, halo_hops, num_nodes, num_edges, ntypes, etypes``; of a
    relabelled directory ``node_map`` and ``edge_map``, by type a ``[first id, end]`` for each partition, which count
    nodes of all types together as DGL does; of others the paths of the books; ``part-<i>``, the folders of a partition.
    ``halo_hops`` is 1: of the nodes around a partition it has the ids. ``glt`` names the manifest and the run.

    Raises:
        PartitionError: If there is no whole partition directory.
        TypeError, ValueError: If the name is unusable.
    """
    root = Path(directory)
    manifest = Manifest.read(root)
    nodes, edges = manifest.node_types, manifest.edge_types
    node_names, edge_names = dgl_names(manifest)
    if manifest.is_relabelled:
        node_map: list[Any] = _ranges([entry.part_num_nodes for entry in nodes])
        edge_map: list[Any] = _ranges([entry.part_num_edges for entry in edges])
    else:
        node_map = [layout.shared("node_book", each.node_type) for each in nodes]
        edge_map = [layout.shared("edge_book", each.edge_type) if each.has_rows else None for each in edges]
    document: dict[str, Any] = {
        "graph_name": require_graph_name(graph_name),
        "part_method": part_method,
        "num_parts": manifest.num_parts,
        "halo_hops": 1,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "ntypes": {name: at for at, name in enumerate(node_names)},
        "etypes": {name: at for at, name in enumerate(edge_names)},
        "node_map": dict(zip(node_names, node_map, strict=True)),
        "edge_map": dict(zip(edge_names, edge_map, strict=True)),
    }
    folders = {"node_feats": "node_feat", "edge_feats": "edge_feat", "part_graph": "graph"}
    for part in range(manifest.num_parts):
        document[f"part-{part}"] = {key: f"{layout.part(part)}/{folder}" for key, folder in folders.items()}
    document |= more
    document[_OURS] = {"manifest": layout.MANIFEST, "run_id": manifest.run_id}
    path = root / (graph_name + _SUFFIX)
    partial = root / f".{layout.MANIFEST}-{os.getpid()}"  # a name that fits, however long the graph's is
    try:
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_part_config(path: str | os.PathLike[str]) -> PartConfig:
    """Returns the partition directory and the name of the graph that a part_config speaks of.

    Args:
        path: The JSON file that :func:`partition_graph` or ``glt import dgl`` wrote; a partition directory; or DGL's
            own file, where it lies beside the manifest of the directory that was imported from it.

    Raises:
        PartitionError: If there is no such directory, or the file is of another one; says what to do.

    Example:
        >>> glt.partition.partition_graph(glt.testing.ring_graph().to_data(), "ring", 2, "ring", part_method="random")
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='in', 16 files, 5.5 KB)
        >>> glt.partition.read_part_config("ring/ring.json").graph_name
        'ring'
    """
    given = Path(os.path.abspath(path))
    if given.is_dir():
        names = graph_names(given, Manifest.read(given))
        if len(names) > 1:
            raise PartitionError(f"{given} has the part_configs of {names}: name one of them, such as {names[0]}.json")
        return PartConfig(given, names[0] if names else given.name)
    document = _document(given)
    if document is None:
        raise PartitionError(
            f"{given} is no part_config: expected the JSON file that glt.partition.partition_graph wrote, or a "
            "partition directory"
        )
    ours = document.get(_OURS)
    if ours is None and not (given.parent / layout.MANIFEST).exists():
        raise PartitionError(
            f"{given} is DGL's own, and its partitions were not imported: run 'glt import dgl {given} --out DIR', "
            "and give DIR"
        )
    manifest = Manifest.read(given.parent)
    if ours is None:
        found = tuple(document.get(key) for key in ("num_parts", "num_nodes", "num_edges"))
        expected = (manifest.num_parts, manifest.num_nodes, manifest.num_edges)
        if found != expected:
            raise PartitionError(
                f"{given} is of another graph than the {layout.MANIFEST} beside it: (num_parts, num_nodes, num_edges) "
                f"= {found}, but {expected} there"
            )
    elif ours.get("run_id") != manifest.run_id:
        raise PartitionError(
            f"{given} is of run {ours.get('run_id')}, but the partitions beside it are of run {manifest.run_id}: copy "
            f"the file that belongs to them, or give the directory {given.parent} itself"
        )
    return PartConfig(given.parent, str(document["graph_name"]))


def graph_names(root: Path, manifest: Manifest) -> list[str]:
    """The names that part_configs in a partition directory give to its graph, ascending."""
    names = []
    for path in sorted(root.glob(f"*{_SUFFIX}")):
        document = _document(path) if path.name != layout.MANIFEST else None
        if document is not None and document.get(_OURS, {}).get("run_id") == manifest.run_id:
            names.append(path.name.removesuffix(_SUFFIX))
    return names


def dgl_names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """What DGL calls the node types and the edge types: ``_N`` and ``_N:_E:_N`` where there are none."""
    if not manifest.is_hetero:
        return ["_N"], ["_N:_E:_N"]
    # A colon inside a name would make two types of one.
    edges = [[part.replace("%", "%25").replace(":", "%3A") for part in each.edge_type] for each in manifest.edge_types]
    return [entry.node_type for entry in manifest.node_types], [":".join(parts) for parts in edges]


def _ranges(counts: Sequence[tuple[int, ...]]) -> list[list[list[int]]]:
    """Ids of all types together: partition after partition, in each type after type."""
    ranges: list[list[list[int]]] = [[] for _ in counts]
    at = 0
    for of_partition in zip(*counts, strict=True):
        for of_type, count in zip(ranges, of_partition, strict=True):
            of_type.append([at, at + count])
            at += count
    return ranges


def _document(path: Path) -> dict[str, Any] | None:
    """The contents of a part_config, DGL's or glt's; None if it is none."""
    try:
        document = json.loads(read_regular(path, _MOST_BYTES))
    except FileNotFoundError as error:
        raise PartitionError(
            f"{path} is missing: expected the part_config that glt.partition.partition_graph wrote, or a partition "
            "directory"
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        if is_of_machine(error):
            raise
        return None
    keys = ("graph_name", "num_parts", "node_map", "edge_map")
    if not isinstance(document, dict) or not all(key in document for key in keys):
        return None
    return document if isinstance(document.get(_OURS, {}), dict) else None
