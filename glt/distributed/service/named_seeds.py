"""Seeds that a client names instead of giving them: a split, or a file on a server."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

from glt.distributed.service.remote_dataset import RemoteDataset
from glt.distributed.service.seed_source import SPLITS

_SUFFIXES = (".pt", ".npy")


def seeds_by_name(name: str, given: Any, data: Any, options: Any) -> Any:
    """Returns the seeds that ``given`` names, or ``given`` itself where it names none.

    Args:
        name: What an error calls them.
        given: ``'train'``, ``'valid'`` or ``'test'``: this client's share of the nodes whose mask is set. A path, or
            text that ends in ``.pt`` or ``.npy``: what that file holds, below the server's ``seed_dir``. Of a
            heterogeneous graph, a pair of a type and one of these.
        data: The graph; names mean something on servers only.
        options: Of the workers: files are on the first server that samples.

    Raises:
        ValueError: If it is text that names nothing; says what may be named.
    """
    if not isinstance(data, RemoteDataset):
        return given
    server_rank = options.ranks(data.client_rank, data.num_servers)[0]
    if isinstance(given, tuple | list) and len(given) == 2 and data.schema.is_hetero and _is_name(given[1]):
        type_, named = given
        if isinstance(type_, str) and type_ in data.schema.node_types and named in SPLITS:
            return type_, data.seeds_of_split(named, data.schema.node_index(type_))
        return type_, data.seeds_of_file(os.fspath(named), server_rank)
    if not data.schema.is_hetero and _is_name(given):
        if given in SPLITS:
            return data.seeds_of_split(given, 0)
        return data.seeds_of_file(os.fspath(given), server_rank)
    _refuse_unknown(name, given, data)
    return given


def _refuse_unknown(name: str, given: Any, data: RemoteDataset) -> None:
    may_be = f"one of {', '.join(map(repr, SPLITS))}, or a file on the server that ends in {' or '.join(_SUFFIXES)}"
    if not data.schema.is_hetero:
        if isinstance(given, str):
            raise ValueError(f"{name} = {given!r}: expected ids, or a name: {may_be}")
        return
    types = list(data.schema.node_types)
    if isinstance(given, str) and given not in types:
        raise ValueError(f"{name} = {given!r}: expected one of the types {types}, or a type and a name: {may_be}")
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if is_pair and isinstance(given[1], str) and (given[0] in types or isinstance(given[0], tuple)):
        raise ValueError(f"{name} = {given!r}: expected with a type its ids, or a name: {may_be}")


def _is_name(given: Any) -> bool:
    return isinstance(given, PurePath) or (isinstance(given, str) and (given in SPLITS or given.endswith(_SUFFIXES)))
