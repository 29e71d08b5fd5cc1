"""The tables of a dataset as PyG's ``FeatureStore``."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import FeatureStore, TensorAttr

from glt.data.arrays import as_rows
from glt.data.dataset import Dataset
from glt.data.feature import Feature


class DatasetFeatureStore(FeatureStore):
    """Looks up rows of a :class:`~glt.data.Dataset` for PyG's loaders.

    Groups are node types and edge types; of a homogeneous dataset there is one, None, which holds the tables of nodes
    and of edges, as PyG's ``Data`` does. ``get_all_tensor_attrs`` does not list the tables of edges in the group None,
    since PyG's loaders index every table there by node.

    Tables that are put or removed come and go in this store only, never in the dataset.

    Args:
        dataset: Its tables are shared, not copied.
        num_threads: Threads that copy rows; the result does not depend on it.

    Raises:
        ValueError: If a table of the dataset has no row for some ids, as in a partition.
    """

    def __init__(self, dataset: Dataset, num_threads: int = 1) -> None:
        super().__init__()
        schema = dataset.schema
        self.num_threads = num_threads
        self._node_groups: list[Any] = list(schema.node_types) if schema.is_hetero else [None]
        self._num_rows: dict[Any, int] = dict(zip(self._node_groups, dataset.num_nodes_of, strict=True))
        self._tables: dict[Any, dict[str, Feature]] = {
            group: dict(tables) for group, tables in zip(self._node_groups, dataset.node_tables, strict=True)
        }
        self._edge_names: set[str] = set()
        if schema.is_hetero:
            self._tables |= {t: dict(tables) for t, tables in schema.by_edge_type(dataset.edge_tables).items()}
        elif dataset.edge_tables:
            self._edge_names = set(dataset.edge_tables[0])
            self._tables[None] = {**dataset.edge_tables[0], **self._tables[None]}
        for group, tables in self._tables.items():
            for name, feature in tables.items():
                if not feature.has_row_per_id:
                    raise ValueError(f"table {name!r} of {group!r} has rows for some ids only: expected one per id")

    def _find(self, attr: TensorAttr) -> Feature | None:
        group = tuple(attr.group_name) if isinstance(attr.group_name, list) else attr.group_name
        if group not in self._tables:
            raise KeyError(f"group {group!r} is not in the dataset: expected one of {list(self._tables)}")
        return self._tables[group].get(attr.attr_name)

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        feature = self._find(attr)
        if feature is None:
            names = list(self._tables[attr.group_name])
            raise KeyError(f"{attr.group_name!r} has no table {attr.attr_name!r}: expected one of {names}")
        index = attr.index
        if index is None:
            return feature.tensor
        if isinstance(index, slice | int | np.integer):
            return feature.tensor[index]
        return feature.gather(index, num_threads=self.num_threads)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if self._find(attr) is None:
            return None
        return tuple(self._get_tensor(attr).shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Returns one attribute per table, without index; see the class for which."""
        return [
            self._tensor_attr_cls(group, name)
            for group, tables in self._tables.items()
            for name in tables
            if group is not None or name not in self._edge_names
        ]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        self._find(attr)  # refuses groups that there are not
        if attr.index is not None:
            raise ValueError(
                f"index of {attr.attr_name!r} is given: expected a whole table with index=None, since tables may be "
                "mapped files and memory of the user, which are not written to"
            )
        feature = Feature(as_rows(tensor, attr.attr_name))
        expected = self._num_rows.get(attr.group_name)
        of_nodes = expected is not None and attr.attr_name not in self._edge_names
        if of_nodes and len(feature) != expected:
            raise ValueError(f"{attr.attr_name} has {len(feature)} rows: expected one per node, {expected}")
        self._tables[attr.group_name][attr.attr_name] = feature
        return True

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        found = self._find(attr) is not None
        self._tables[attr.group_name].pop(attr.attr_name, None)
        return found

    def __len__(self) -> int:
        return sum(len(tables) for tables in self._tables.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tables)"
