"""Copies of rows of other partitions' nodes, answered here instead of there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glt import _core
from glt.data.feature import Feature


@dataclass(frozen=True, eq=False)
class NodeCache:
    """Rows of the nodes of one type that a partition keeps copies of.

    Attributes:
        index: The row of each node that is here. In memory of this process: a quarter of a byte for each node of the
            type, whoever owns it.
        tables: The rows by name; row numbers take the place of ids.
    """

    index: _core.RowIndex
    tables: Mapping[str, Feature]

    @classmethod
    def of(cls, ids: np.ndarray, num_nodes: int, tables: Mapping[str, Feature]) -> NodeCache:
        """Wraps rows of the nodes ``ids``, which ascend, among ``num_nodes`` of their type."""
        return cls(_core.RowIndex(ids, num_nodes), tables)
