"""A description that is guessed from tables, for the user to edit: keys, ends of edges, times, labels, features.

What names say is believed if the rows that are looked at do not contradict it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from glt._tracebacks import short_traceback
from glt._urls import public_url
from glt.errors import TableError
from glt.tables.columns.values import few
from glt.tables.descriptions.description import Description
from glt.tables.guesses.ends import ends_of, key_of, stem_of
from glt.tables.guesses.features import rest_of
from glt.tables.guesses.graphstorm import is_graphstorm, read_graphstorm
from glt.tables.guesses.looked import Looked, files_of, found_tables


@short_traceback
def describe(*files: str | os.PathLike[str]) -> Description:
    """Guesses a description from tables: keys and ends of edges by names and values, kinds of features by types.

    It is a draft: ``glt describe FILES... --out graph.toml`` writes it with remarks on what is uncertain, to be edited.

    Args:
        files: Files, directories, patterns or URLs of Parquet or CSV. Files of one directory that have the same columns
            and names that differ in numbers only are one table. Or a configuration of GraphStorm's ``gconstruct``
            (JSON): then nothing is guessed. Paths of the description begin at the current directory.

    Raises:
        glt.errors.TableError: If a file cannot be read, or nothing looks like edges; says what was found.
        ImportError: Without pyarrow: ``pip install 'glt-graph[tables]'``.

    Example:
        >>> with open("users.csv", "w") as file:
        ...     _ = file.write("user_id,age\\nann,31\\nbob,44\\n")
        ...
        >>> with open("follows.csv", "w") as file:
        ...     _ = file.write("follower,followee,since\\nann,bob,2024-05-01\\n")
        ...
        >>> described = glt.tables.describe("users.csv", "follows.csv")
        >>> described.edge_types[0].type, described.edge_types[0].src
        (('users', 'follows', 'users'), ('follower',))
    """
    return guess([os.fspath(each) for each in files])[0]


def guess(files: Sequence[str], base: str | os.PathLike[str] = ".") -> tuple[Description, dict[str, list[str]]]:
    """The description, whose paths begin at ``base``, and remarks by the name of a node type or the relation of an edge
    type, or ``""``."""
    if len(files) == 1 and is_graphstorm(files[0]):
        whole, lost = read_graphstorm(files[0])
        return whole.seen_from(base), lost
    tables = found_tables(files)
    for table in tables:
        table.key = key_of(table)
    for table in tables:
        table.ends = ends_of(table, tables)
    named = {end for table in tables for end in table.ends.values()}
    nodes: dict[str, Any] = {}
    edges: list[dict[str, Any]] = []
    remarks: dict[str, list[str]] = {"": []}
    for table in tables:
        if table.key is not None and (table.name in named or len(table.ends) != 2):
            nodes[table.name] = _node_table(table)
            remarks[table.name] = table.remarks
            for column, end in table.ends.items():
                relation = stem_of(column) or column
                if [table.name, relation, end] in [each["type"] for each in edges]:
                    relation = column
                ends = {"src": table.key, "dst": column, "reverse": f"rev_{relation}", "missing": "drop"}
                edges.append({"type": [table.name, relation, end], **files_of(table), **ends})
        elif len(table.ends) >= 2:
            (src, source), (dst, target) = list(table.ends.items())[:2]
            if table.key is not None:
                table.remarks.append(f"{table.key!r} is in no other table: a row is an edge, not a node.")
            for further in list(table.ends)[2:]:
                table.remarks.append(f"{further!r} names {table.ends[further]} too: an edge has two ends.")
            used = (table.key, *table.ends)
            described = {"type": [source, table.name, target], **files_of(table), "src": src, "dst": dst}
            edges.append(described | rest_of(table, used, is_edge=True) | {"reverse": f"rev_{table.name}"})
            remarks[table.name] = table.remarks
        else:
            remarks[""].append(
                f"{table.name}: no key, and not two ends of edges, among {few(table.columns)}: left out."
            )
    for end in [end for each in edges for end in (each["type"][0], each["type"][2])]:
        if end not in nodes:
            nodes[end] = {}
            remarks[end] = ["No table has these nodes: they are those that edges name."]
    if not edges:
        raise TableError(
            f"{', '.join(map(public_url, files))}: no columns look like the ends of edges; found {_shown(tables)}: "
            "expected a table with two columns of keys, or one with the key of another; write the description by hand"
        )
    return Description.of({"node_types": nodes, "edge_types": edges}).seen_from(base), remarks


def _shown(tables: Sequence[Looked]) -> str:
    return "; ".join(f"{each.name} ({few(each.columns)})" for each in tables)


def _node_table(table: Looked) -> dict[str, Any]:
    used = (table.key, *table.ends)
    return {**files_of(table), "key": table.key, **rest_of(table, used, is_edge=False)}
