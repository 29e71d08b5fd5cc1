"""How hot the nodes of one type are for each partition, wherever the numbers are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt.partition.arguments import CHUNK_IDS

Values = Callable[[np.ndarray], Sequence[np.ndarray]]


class NodeHotness(ABC):
    """Numbers ``[num_parts, num_nodes]`` of at least 0, which need not be in one place.

    All that is asked of them is asked of some nodes for all partitions (:meth:`map`), or of all nodes for one partition
    (:meth:`columns`): so a graph whose nodes are spread over ranks is placed as one that is whole.

    Attributes:
        num_parts: Number of partitions.
    """

    num_parts: int

    @abstractmethod
    def is_read(self) -> np.ndarray:
        """Returns which nodes anybody reads: bool ``[num_nodes]``."""

    @abstractmethod
    def map(self, nodes: np.ndarray, of: Values) -> list[np.ndarray]:
        """Returns what ``of`` says of some nodes.

        Args:
            nodes: Ids ``[n]``, ascending.
            of: Called with the float64 numbers ``[num_parts, m]`` of ``m`` of the nodes, in order, also of none;
                returns arrays ``[m, ...]``.

        Returns:
            The same arrays of all nodes, ``[n, ...]``.
        """

    @abstractmethod
    def columns(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields partitions and the numbers of all nodes for each, ``[num_nodes]``: of those that this process is to
        look at, and which :meth:`of_all_parts` puts together. To be read to the end."""

    @abstractmethod
    def of_all_parts(self, found: Mapping[int, Any]) -> list[Any]:
        """Returns by partition what was found in :meth:`columns`; JSON, numbers kept exactly."""


class WholeHotness(NodeHotness):
    """Hotness in the memory, or in files, of this process.

    Args:
        of_parts: Of each partition ``[num_nodes]`` float32 or float64; the same array where they do not differ.
    """

    def __init__(self, of_parts: Sequence[np.ndarray]) -> None:
        self.arrays = tuple(of_parts)
        self.num_parts = len(self.arrays)

    def is_read(self) -> np.ndarray:
        return any_read(self.arrays)

    def map(self, nodes: np.ndarray, of: Values) -> list[np.ndarray]:
        return map_rows(self.arrays, nodes, of)

    def columns(self) -> Iterator[tuple[int, np.ndarray]]:
        yield from enumerate(self.arrays)

    def of_all_parts(self, found: Mapping[int, Any]) -> list[Any]:
        return [found[idx] for idx in range(self.num_parts)]


@dataclass(frozen=True, eq=False)
class HotnessByType:
    """Hotness that is checked already, where a partitioner takes arrays else.

    Attributes:
        by_type: By position of the node type; None for types without.
    """

    by_type: tuple[NodeHotness | None, ...]


def any_read(of_parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns which nodes are read for any partition, ``[num_nodes]``, given the numbers for each."""
    read = np.zeros(len(of_parts[0]), bool)
    for each in {id(each): each for each in of_parts}.values():
        read |= each > 0
    return read


def map_rows(of_parts: Sequence[np.ndarray], nodes: np.ndarray, of: Values) -> list[np.ndarray]:
    """As :meth:`NodeHotness.map`, given the numbers for each partition; about 8 MiB of them at a time."""
    of_none = of(np.empty((len(of_parts), 0)))
    found = [np.empty((nodes.size, *each.shape[1:]), each.dtype) for each in of_none]
    step = CHUNK_IDS // len(of_parts) + 1
    for begin in range(0, nodes.size, step):
        piece = nodes[begin : begin + step]
        values = np.stack([each[piece] for each in of_parts]).astype(np.float64, copy=False)
        for whole, rows in zip(found, of(values), strict=True):
            whole[begin : begin + step] = rows
    return found
