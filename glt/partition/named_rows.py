"""Tables of nodes and edges beyond features, labels and times: masks, splits, and whatever else has a name."""

from collections.abc import Mapping
from typing import Any, Final

from glt.data.schema import Schema
from glt.partition import layout
from glt.partition.rows import Rows

# What features and labels are called in a batch, and what a loader puts there itself.
RESERVED: Final = frozenset(
    {
        "x", "y", "edge_attr", "edge_index", "n_id", "e_id", "batch", "batch_size", "input_id", "mapping", "num_nodes",
        "num_edges", "num_sampled_nodes", "num_sampled_edges", "seed_time", "edge_label", "edge_label_index",
        "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index", "stats",
    }
)  # fmt: skip
_ARGUMENTS: Final = {"x": "node_feat", "y": "node_label", "edge_attr": "edge_feat"}


def named_rows(argument: str, value: Any, schema: Schema, counts: list[int], kind: str) -> list[dict[str, Rows]]:
    """Returns the named tables of each type, in the order of their names.

    Args:
        argument: ``"node_attrs"`` or ``"edge_attrs"``, for messages.
        value: A dict from names to tensors or arrays; of a heterogeneous graph a dict by type of such dicts; or None.
        schema: The types.
        counts: Rows expected, by type.
        kind: ``"node"`` or ``"edge"``.

    Raises:
        TypeError: If it is no such dict, or a table no tensor or array.
        KeyError: If it names a type that there is not.
        ValueError: If a name cannot be one, or a table has not one row per node or edge.
    """
    types: tuple[Any, ...] = schema.node_types if kind == "node" else schema.edge_types
    if schema.is_hetero:
        per_type = schema.per_node_type if kind == "node" else schema.per_edge_type
        given = per_type(argument, value)
    else:
        given = [value]
    tables = []
    for type_, count, named in zip(types, counts, given, strict=True):
        of_type = f"{argument}[{type_!r}]" if schema.is_hetero else argument
        if named is not None and not isinstance(named, Mapping):
            raise TypeError(f"{of_type} is a {type(named).__name__}: expected a dict from names to arrays")
        named = dict(named or {})
        for name in named:
            _require_name(of_type, name)
        tables.append({name: Rows.of(f"{of_type}[{name!r}]", named[name], count, kind) for name in sorted(named)})
    return tables


def require_distinct(node_tables: list[dict[str, Rows]], edge_tables: list[dict[str, Rows]], schema: Schema) -> None:
    """Raises ValueError if nodes and edges of a homogeneous graph, which share a store in a batch, share a name."""
    both = [] if schema.is_hetero else sorted(node_tables[0].keys() & edge_tables[0].keys())
    if both:
        raise ValueError(
            f"node_attrs and edge_attrs both name {both[0]!r}, but a batch of a homogeneous graph has one attribute "
            "of a name: rename one of them"
        )


def _require_name(of_type: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{of_type} has the key {name!r}: expected the name of an attribute")
    if name in RESERVED:
        hint = f"pass it as {_ARGUMENTS[name]}" if name in _ARGUMENTS else "rename it; a loader gives that name itself"
        raise ValueError(f"{of_type} names {name!r}: {hint}")
    if "\n" in name:
        raise ValueError(f"{of_type} names {name!r}: expected a name without line breaks; rename it")
    layout.require_name_fits(f"{of_type} key", name)
