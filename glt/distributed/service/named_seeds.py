"""Seeds that a client names instead of giving them: a split, or a file on a server."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

from glt.distributed.service.remote_dataset import RemoteDataset
from glt.distributed.service.seed_source import SPLITS

_SUFFIXES = (".pt", ".npy")


def seeds_by_name(given: Any, data: Any, options: Any) -> Any:
    """Returns the seeds that ``given`` names, or ``given`` itself where it names none.

    Args:
        given: ``'train'``, ``'valid'`` or ``'test'``: this client's share of the nodes whose mask is set. A path, or
            text that ends in ``.pt`` or ``.npy``: what that file holds, below the server's ``seed_dir``. Of a
            heterogeneous graph, a pair of a type and one of these.
        data: The graph; names mean something on servers only.
        options: Of the workers: files are on the first server that samples.
    """
    if not isinstance(data, RemoteDataset):
        return given
    server_rank = options.ranks(data.client_rank, data.num_servers)[0]
    if isinstance(given, tuple | list) and len(given) == 2 and data.schema.is_hetero and _is_name(given[1]):
        type_, name = given
        if isinstance(type_, str) and type_ in data.schema.node_types and name in SPLITS:
            return type_, data.seeds_of_split(name, data.schema.node_index(type_))
        return type_, data.seeds_of_file(os.fspath(name), server_rank)
    if not data.schema.is_hetero and _is_name(given):
        if given in SPLITS:
            return data.seeds_of_split(given, 0)
        return data.seeds_of_file(os.fspath(given), server_rank)
    return given


def _is_name(given: Any) -> bool:
    return isinstance(given, PurePath) or (isinstance(given, str) and (given in SPLITS or given.endswith(_SUFFIXES)))
