"""DGL's partition config: the JSON file of a partition directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt.data.schema import HOMOGENEOUS, EdgeType, Schema
from glt.errors import PartitionError
from glt.partition.importers.dgl_ranges import Ranges
from glt.partition.importers.imported import require_directory


@dataclass(frozen=True, eq=False)
class DglConfig:
    """What the file says.

    Attributes:
        path: The file.
        schema: The types, in DGL's order.
        nodes, edges: Their ids.
        node_names, edge_names: What DGL calls the types in keys of tables.
        graph_name: What the graph is called.
        part_method: How nodes were assigned.
        files: Of each partition, its files by kind: ``node_feats``, ``edge_feats``, ``part_graph`` or
            ``part_graph_graphbolt``.
    """

    path: Path
    schema: Schema
    nodes: Ranges
    edges: Ranges
    node_names: list[str]
    edge_names: list[str]
    graph_name: str
    part_method: str
    files: list[dict[str, Path]]

    @classmethod
    def read(cls, path: Path) -> DglConfig:
        """Reads ``path``, which may be a directory with one JSON file.

        Raises:
            PartitionError: If it is missing, or no such file.
        """
        path = _config_path(path)
        document = _document(path)
        try:
            return cls._of(path, document)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise PartitionError(f"{path} is no partition config of DGL ({type(error).__name__}: {error})") from error

    @property
    def num_parts(self) -> int:
        return len(self.files)

    @classmethod
    def _of(cls, path: Path, document: dict[str, Any]) -> DglConfig:
        num_parts = document["num_parts"]
        if type(num_parts) is not int or num_parts < 1:
            raise ValueError(f"num_parts = {num_parts!r}")
        files = [
            {kind: path.parent / name for kind, name in document[f"part-{part}"].items()} for part in range(num_parts)
        ]
        nodes, edges = _names(document, "ntypes"), _names(document, "etypes")
        edge_types = tuple(_edge_type(name) for name in edges)
        return cls(
            path,
            HOMOGENEOUS if (len(nodes), len(edges)) == (1, 1) else Schema(tuple(nodes), edge_types),
            _ranges([document["node_map"][name] for name in nodes], num_parts),
            _ranges([document["edge_map"][name] for name in edges], num_parts),
            nodes,
            edges,
            str(document.get("graph_name", path.stem)),
            str(document.get("part_method")),
            files,
        )


def _names(document: dict[str, Any], kind: str) -> list[str]:
    numbers = document[kind]
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise ValueError(f"{kind} are not numbered from 0")
    return sorted(numbers, key=numbers.get)


def _ranges(by_type: list[list[Any]], num_parts: int) -> Ranges:
    ranges = np.empty((len(by_type), num_parts, 2), np.int64)
    for at, given in enumerate(by_type):
        if given and not isinstance(given[0], list):  # before DGL 0.6: only where each range ends
            given = list(zip([0, *given[:-1]], given, strict=True))
        ranges[at] = np.array(given, np.int64).reshape(num_parts, 2)
    return Ranges.of(ranges)


def _edge_type(name: str) -> EdgeType:
    parts = name.split(":")
    if len(parts) != 3:
        raise ValueError(f"edge type {name!r}: expected source:relation:destination; DGL's change_etype tool adds them")
    source, relation, target = parts
    return source, relation, target


def _config_path(path: Path) -> Path:
    if not path.is_dir():
        require_directory(path.parent, "DGL's partition_graph")
        return path
    found = sorted(path.glob("*.json"))
    if len(found) != 1:
        raise PartitionError(f"{path} holds {len(found)} JSON files: expected one; name DGL's partition config itself")
    return found[0]


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PartitionError(f"{path} is missing: expected DGL's partition config") from error
    except ValueError as error:
        raise PartitionError(f"{path} is truncated or altered ({error}): copy the directory again") from error
    if not isinstance(document, dict):
        raise PartitionError(f"{path} is no partition config of DGL: expected a JSON object")
    return document
