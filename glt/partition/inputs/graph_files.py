"""A graph on disk, of whatever kind, as the arguments of a partitioner."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from glt.data.arrays import damaged, load_saved
from glt.partition.inputs.description import graph_of, read_description
from glt.partition.inputs.npy_directory import is_npy_directory, read_npy_directory
from glt.partition.inputs.ogb_folder import is_ogb_folder, read_ogb_folder
from glt.partition.inputs.pyg import graph_arguments

_DESCRIPTIONS: Final = (".json", ".toml")


def read_graph(
    path: str | os.PathLike[str],
    scratch_dir: str | os.PathLike[str],
    *,
    nodes: Mapping[str, Any] | None = None,
    edges: Mapping[str, Any] | None = None,
    add_inverse_edge: bool | None = None,
    weight_attr: str | None = None,
    time_attr: str | None = None,
    outline: bool = False,
) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner for a graph on disk::

        RandomPartitioner("parts", num_parts=2, **read_graph("dataset/ogbn_products", "/scratch")).partition()

    Args:
        path: A directory of ``.npy`` files (:mod:`glt.partition.inputs.npy_directory`), a folder of OGB
            (:mod:`glt.partition.inputs.ogb_folder`), a description of tables in ``.json`` or ``.toml``
            (:mod:`glt.partition.inputs.description`), a PyG ``Data`` or ``HeteroData`` that ``torch.save`` wrote
            (``.pt``, read without unpickling anything but tensors and PyG's own storages), or a table of edges in
            Parquet or CSV: a file, a directory or a pattern.
        scratch_dir: Directory for tables while they are partitioned: room for their values, on a file system that is
            not memory. Its files have no names: nothing is left there, whatever happens.
        nodes, edges: Of a table of edges: the keys of a description's ``nodes`` and ``edges``; the ``files`` of
            ``edges`` are those of ``path``, and its columns ``src`` and ``dst``, unless said otherwise.
        add_inverse_edge: Of a folder of OGB: see :func:`glt.partition.inputs.ogb_folder.read_ogb_folder`.
        weight_attr, time_attr: Of a PyG graph: see :func:`glt.partition.graph_arguments`.
        outline: Of tables and descriptions of tables, to look at no more than a forecast needs: rows are counted (of
            Parquet, its metadata is read; of CSV, lines are counted), and arrays are zeros of the right shapes and
            dtypes that take no memory. Ids are read only where the number of nodes is neither stated nor in the
            statistics of Parquet. Other inputs are as without it.

    Raises:
        FileNotFoundError: If there is nothing of the kind.
        ImportError: If pyarrow is needed and not there.
        KeyError, TypeError, ValueError: If what is there does not fit; names the file and the place in it.
        OSError: If it cannot be read, or there is no room in ``scratch_dir``.
    """
    if not os.fspath(path):  # which Path takes for the working directory
        raise ValueError("path is empty: expected a directory or a file; '.' is the working directory")
    path, scratch = Path(path), Path(scratch_dir)
    if path.suffix in (*_DESCRIPTIONS, ".pt") and not path.exists():
        kind = "a PyG graph that torch.save wrote" if path.suffix == ".pt" else "a description of tables"
        raise FileNotFoundError(f"{path} does not exist: expected {kind}; is its path right, seen from {Path.cwd()}?")
    is_table = False
    options: dict[str, Any] = {"weight_attr": weight_attr, "time_attr": time_attr}
    if path.is_dir() and is_ogb_folder(path):
        arguments = read_ogb_folder(path, scratch, add_inverse_edge)
        add_inverse_edge = None
    elif path.is_dir() and is_npy_directory(path):
        arguments = read_npy_directory(path)
    elif path.suffix in _DESCRIPTIONS:
        arguments = read_description(path, scratch, outline)
    elif path.suffix == ".pt":
        arguments = graph_arguments(_load_pyg(path), weight_attr=weight_attr, time_attr=time_attr)
        options = {}
    else:
        is_table = True
        table = {"src": "src", "dst": "dst", "files": str(path.absolute()), **(edges or {})}
        arguments = graph_of({"nodes": dict(nodes or {}), "edges": table}, Path.cwd(), scratch, str(path), outline)
    options |= {"add_inverse_edge": add_inverse_edge} | ({} if is_table else {"nodes": nodes, "edges": edges})
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} = {value!r} does not apply to {path}: leave it out")
    if arguments["num_nodes"] == 0:
        files = str(path) if not nodes or "files" not in nodes else f"{path}, or {nodes['files']!r}"
        raise ValueError(
            f"{files} has no rows, so that there are no nodes: expected some, below the names of columns in CSV; state "
            "num_nodes (--num-nodes) if there are nodes without edges alone"
        )
    return arguments


def _load_pyg(path: Path) -> Any:
    import torch
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    # Containers that do nothing when they are made; nothing else in the file is looked up by name, let alone called.
    torch.serialization.add_safe_globals(
        [Data, DataEdgeAttr, DataTensorAttr, HeteroData, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    )
    expected = "a Data or HeteroData of PyG"
    data = load_saved(path, str(path), expected)
    try:
        if isinstance(data, Data | HeteroData):  # all else is refused where it is taken apart
            _ = [(store._parent(), dict(store)) for store in data.stores]
    except Exception as error:  # bytes that named an attribute of it
        raise damaged(str(path), expected, error) from error
    return data
