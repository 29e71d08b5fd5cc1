"""A RelBench database as tables with a description: the graph that its own ``make_pkey_fkey_graph`` makes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from glt._tracebacks import short_traceback
from glt.tables.columns.sources import Source
from glt.tables.descriptions.description import Description, Files
from glt.tables.guesses.features import rest_of
from glt.tables.guesses.looked import Looked, plain_columns


@short_traceback
def describe_relbench(database: Any, folder: str | os.PathLike[str]) -> Description:
    """Writes the tables of a RelBench database as Parquet, and describes them: each is a node type, each foreign key an
    edge type ``f2p_COLUMN`` with its reverse ``rev_f2p_COLUMN``.

    Keys, foreign keys and times are those of the database, features are guessed as by :func:`describe`. Primary keys of
    RelBench are positions of rows, so ids of nodes are those that its task tables speak of. A table without a primary
    key gets one, ``row`` (or ``row_``, if there is such a column).

    Args:
        database: A ``relbench.base.Database``.
        folder: Where to write ``TABLE.parquet``; files that are there are replaced.

    Example:
        >>> from pandas import DataFrame
        >>> from types import SimpleNamespace as Table  # as relbench.base.Table
        >>> users = Table(df=DataFrame({"id": [0, 1]}), pkey_col="id", fkey_col_to_pkey_table={}, time_col=None)
        >>> posts = Table(df=DataFrame({"by": [1, 0, 1], "score": [3.0, 4.0, 9.0]}), pkey_col=None, time_col=None)
        >>> posts.fkey_col_to_pkey_table = {"by": "users"}
        >>> database = Table(table_dict={"users": users, "posts": posts})
        >>> described = glt.tables.describe_relbench(database, "tables")
        >>> glt.tables.build(described, "graph")["edge_types"]["posts__f2p_by__users"]["num_kept"]
        3
    """
    base = Path(folder)
    base.mkdir(parents=True, exist_ok=True)
    nodes, edges = {}, []
    for name, table in database.table_dict.items():
        path, key, frame = base / f"{name}.parquet", table.pkey_col, table.df
        if key is None:
            key = "row"
            while key in frame.columns:
                key += "_"
            frame = frame.assign(**{key: np.arange(len(frame))})
        pa.parquet.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
        source = Source.of(f"table {name!r}", Files((path.name,)), str(base))
        rows = pa.Table.from_batches(list(source.sample(source.files[0])), source.columns_of(source.files[0]))
        looked = Looked(name, source, plain_columns(rows), True, key, dict(table.fkey_col_to_pkey_table))
        ends = (key, *looked.ends, *([table.time_col] if table.time_col else []))
        time = {"time": table.time_col} if table.time_col else {}
        nodes[name] = {"files": path.name, "key": key, **time, **rest_of(looked, ends, is_edge=False, with_time=False)}
        for column, end in looked.ends.items():
            type_ = {"type": [name, f"f2p_{column}", end], "reverse": f"rev_f2p_{column}"}
            edges.append({"files": path.name, "src": key, "dst": column, "missing": "drop", **type_})
    return Description.of({"node_types": nodes, "edge_types": edges}, base)
