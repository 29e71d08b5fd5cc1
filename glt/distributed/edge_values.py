"""Weights and features of edges that layers are given, beside the edges: wherever they are, by edge id."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from glt.data.schema import EdgeType
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.graph_data import GraphData
from glt.distributed.inference_inputs import require_dense
from glt.distributed.world import World

NAMES = ("edge_weight", "edge_attr")


class EdgeValues:
    """A row for each edge, by the name that convolutions have for it and by edge type.

    Args:
        world: With a graph.
        given: By name, of :data:`NAMES`: the name of a table that is stored with the graph; or a tensor, or a
            :class:`DistTensor`, with a row for each edge by its id; of a heterogeneous graph a dict of such by edge
            type, or the name of a table that some types have. None: nothing.

    Attributes:
        names: Those that there are values for.

    Raises:
        TypeError, ValueError: If values do not fit; names them.
        KeyError: If no such table is stored, or there is no such edge type.
    """

    def __init__(self, world: World, given: dict[str, Any]) -> None:
        assert world.data is not None
        self._schema = world.data.schema
        tables = [GraphData(world, "edge", at) for at in range(len(self._schema.edge_types))]
        self._of = {
            name: self._by_type(name, each, dict(zip(self._schema.edge_types, tables, strict=True)))
            for name, each in given.items()
            if each is not None
        }
        self.names = frozenset(self._of)

    def _by_type(self, name: str, given: Any, tables: dict[EdgeType, GraphData]) -> dict[EdgeType, Tensor | DistTensor]:
        if not self._schema.is_hetero:
            (edge_type,) = tables
            return {edge_type: _checked(name, given, tables[edge_type])}
        if isinstance(given, str):
            given = {edge_type: given for edge_type, table in tables.items() if given in table}
            if not given:
                known = {edge_type: list(table) for edge_type, table in tables.items() if len(table)}
                raise KeyError(f"{name}: no edge type has a stored table of that name; there are {known}")
        if not isinstance(given, dict):
            raise TypeError(
                f"{name} is a {type(given).__name__}: expected a dict by edge type, or the name of a stored table, the "
                "graph being heterogeneous"
            )
        found = {}
        for edge_type, each in given.items():
            if edge_type not in tables:
                raise KeyError(f"{name} has {edge_type!r}: expected edge types, {list(tables)}")
            found[edge_type] = _checked(name, each, tables[edge_type], f"[{edge_type!r}]")
        return found

    def told(self) -> dict[str, list[str]]:
        """What all trainers must have alike."""
        return {name: sorted(map(str, by_type)) for name, by_type in sorted(self._of.items())}

    def of(self, names: Collection[str], e_id: dict[EdgeType, Tensor]) -> dict[str, dict[EdgeType, Tensor]]:
        """The values of edges.

        Args:
            names: Which; those that there are none for are left out.
            e_id: Ids of the edges ``[E]``, by edge type.

        Returns:
            By name and edge type, ``[E, ...]``.
        """
        return {
            name: {t: rows[e_id[t]] for t, rows in self._of[name].items() if t in e_id}
            for name in NAMES
            if name in names and name in self._of
        }


def _checked(name: str, given: Any, table: GraphData, of_type: str = "") -> Tensor | DistTensor:
    what = name + of_type
    if isinstance(given, str):
        given = table[given]
    if not isinstance(given, Tensor | DistTensor):
        raise TypeError(
            f"{what} is a {type(given).__name__}: expected a tensor, a DistTensor, or the name of a stored table"
        )
    require_dense(given, what)
    if name == "edge_weight" and (given.ndim > 2 or (given.ndim == 2 and given.shape[1] != 1)):
        raise ValueError(f"{what} has shape {list(given.shape)}: expected a number for each edge, [{table.num_rows}]")
    if given.ndim == 0 or len(given) != table.num_rows:
        raise ValueError(f"{what} has shape {list(given.shape)}: expected a row for each of {table.num_rows} edges")
    return given
