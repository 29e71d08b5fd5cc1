"""Where things are inside a partition directory. Paths are relative to its root, with ``/`` between names.

::

    manifest.json                                     types in order, counts, attributes, checksums of all files
    node_book/<type>.npy, node_row/<type>.npy         owner of each node (smallest unsigned dtype), and its row in the
                                                      arrays of its owner (uint32)
    edge_book/<type>.npy, edge_row/<type>.npy         the same of edges; only of types with edge features or attributes
    {node,edge}_map/<type>.npy, {node,edge}_map_inverse/<type>.npy     with relabel, in place of the books: the original
                                                      id of each new one (int32 or int64), and the reverse
    keys/<type>/{index,column0,...}.npy               the keys of users, where the graph has some: see glt.data.KeyMap
    part<i>/node_ids/<type>.npy                       the nodes that partition i owns, ascending, int64: one row each in
    part<i>/{node_feat,node_label,node_time}/<type>.npy        times are int64
    part<i>/graph/<type>/{indptr,indices,edge_ids}.npy         rows of those nodes, edges in the order of the input
    part<i>/graph/<type>/{weight_sum,weight_guide}.npy         only with edge weights
    part<i>/graph/<type>/by_time/{indices,edge_ids,time}.npy   only with times: the edges of each row sorted by time
    part<i>/node_hotness/<type>.npy                   only with hotness: how often partition i reads these nodes
    part<i>/edge_feat/<type>.npy                      by ascending edge id
    part<i>/node_attr/<type>/<name>.npy               named tables of the owned nodes, such as train_mask
    part<i>/edge_attr/<type>/<name>.npy               named tables of the owned edges, by ascending edge id
    part<i>/cache/<type>/{ids,feat,label,time}.npy    copies of rows of others, by ascending id; only with a cache
    part<i>/cache/<type>/attr/<name>.npy              the same of named tables

With ``relabel`` partition ``i`` owns the nodes ``offsets[i]`` to ``offsets[i + 1] - 1`` of a type, and edges likewise,
``offsets`` being those of the manifest's entry of the type. Rows count from there, so there are no books and no
``node_ids``; the maps tell which nodes and edges of the input these are.

A homogeneous graph is a typed one whose types are called ``node`` and ``node__to__node`` (law 2). Books and
``part<i>`` are all that a host with partition ``i`` needs.
"""

import re
from typing import Final
from urllib.parse import quote

from glt.data.schema import EdgeType, NodeType

MANIFEST: Final = "manifest.json"
_MAX_NAME_BYTES: Final = 255  # of one file or directory, on all file systems that Linux is used with
_SUFFIX: Final = ".npy"


def node_type_name(node_type: NodeType) -> str:
    """Returns the name that stands for ``node_type`` in paths.

    Letters, digits, ``-``, ``.``, ``~`` and single inner ``_`` stand for themselves; everything else (``/``, spaces,
    letters beyond ASCII, ``__``) is percent-encoded, so that different types never share a file. So are the names
    ``.`` and ``..``, which file systems give a meaning of their own.
    """
    if node_type in (".", ".."):
        return node_type.replace(".", "%2E")
    return re.sub("^_|_$|_(?=_)|(?<=_)_", "%5F", quote(node_type, safe="", errors="surrogatepass"))


def edge_type_name(edge_type: EdgeType) -> str:
    """Returns the name that stands for ``edge_type`` in paths: those of its three parts, joined by ``__``."""
    return "__".join(node_type_name(part) for part in edge_type)


def require_name_fits(what: str, type_: NodeType | EdgeType) -> None:
    """Raises ValueError if a part of the type (``what``) is empty or no text, or its name too long for a file."""
    parts, name = ((type_,), node_type_name(type_)) if isinstance(type_, str) else (type_, edge_type_name(type_))
    if not all(parts):
        raise ValueError(f"{what} {type_!r} has an empty name: expected at least one character; rename it")
    for part_ in parts:
        lone = next((c for c in part_ if "\ud800" <= c <= "\udfff"), None)
        if lone is not None:
            raise ValueError(
                f"{what} {type_!r} has {lone!r}, half of a character, which UTF-8 cannot hold: expected a name that "
                "can be written and sent; rename it"
            )
    num_bytes = len(name + _SUFFIX)
    if num_bytes > _MAX_NAME_BYTES:
        raise ValueError(
            f"{what} {type_!r} needs a file name of {num_bytes} bytes ({name}{_SUFFIX}): expected at most "
            f"{_MAX_NAME_BYTES}; characters other than ASCII letters and digits take three bytes for each of theirs; "
            "use a shorter name"
        )


def part(partition_idx: int) -> str:
    return f"part{partition_idx}"


def part_of(path: str) -> int | None:
    """The partition that owns a file; None: all hosts need it."""
    found = re.match(r"part(\d+)/", path)
    return int(found[1]) if found else None


def shared(kind: str, type_: NodeType | EdgeType) -> str:
    """A file that all hosts need: ``kind`` is ``node_book``, ``edge_map`` and the like."""
    return f"{kind}/{_type_name(type_)}.npy"


def keys(node_type: NodeType) -> str:
    """The folder of the keys of a node type, which all hosts need."""
    return f"keys/{node_type_name(node_type)}"


def in_part(partition_idx: int, kind: str, type_: NodeType | EdgeType, array: str = "") -> str:
    """A file of one partition: ``kind`` is ``node_feat``, ``graph`` and the like; ``array``, where a type has several,
    ``indptr``, ``by_time/time`` and the like."""
    return f"{part(partition_idx)}/{kind}/{_type_name(type_)}{'/' if array else ''}{array}.npy"


def attr(partition_idx: int, kind: str, type_: NodeType | EdgeType, name: str) -> str:
    """A named table of one partition: ``kind`` is ``node_attr``, ``edge_attr`` or ``cache``."""
    return in_part(partition_idx, kind, type_, f"{'attr/' if kind == 'cache' else ''}{node_type_name(name)}")


def _type_name(type_: NodeType | EdgeType) -> str:
    return node_type_name(type_) if isinstance(type_, str) else edge_type_name(type_)
