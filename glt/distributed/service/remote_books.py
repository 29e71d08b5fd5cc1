"""The partition books of a client: from the manifest where they are ranges, else from a server, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from glt.data.partition_book import PartitionBook
from glt.partition.format.manifest import EdgeTypeEntry, NodeTypeEntry

if TYPE_CHECKING:
    from glt.distributed.service.client import DistClient


class RemoteBooks(Sequence[PartitionBook | None]):
    """Books of all types of nodes or edges, each fetched when it is first looked at: 5 to 8 bytes per id.

    Args:
        client: Asks a server.
        kind: ``'node'`` or ``'edge'``.
        entries: Of the manifest, by type.
        num_parts: Number of partitions.
    """

    def __init__(
        self, client: DistClient, kind: str, entries: Sequence[NodeTypeEntry | EdgeTypeEntry], num_parts: int
    ) -> None:
        self._client, self._kind, self._entries, self._num_parts = client, kind, entries, num_parts
        self._lock = threading.Lock()
        self._books: dict[int, PartitionBook | None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: int) -> PartitionBook | None:  # type: ignore[override]
        if not 0 <= at < len(self._entries):
            raise IndexError(f"{self._kind} type {at}: there are {len(self._entries)}")
        with self._lock:
            if at not in self._books:
                self._books[at] = self._fetch(at)
            return self._books[at]

    def __iter__(self) -> Iterator[PartitionBook | None]:
        return (self[at] for at in range(len(self)))

    def _fetch(self, at: int) -> PartitionBook | None:
        entry = self._entries[at]
        if entry.offsets is not None:
            return PartitionBook.of_ranges(entry.offsets)
        if isinstance(entry, EdgeTypeEntry) and not entry.has_rows:
            return None
        told = self._client.request(self._client.any_rank(), "glt.graph.book", self._kind, at)
        return PartitionBook.of_arrays(told["owner"].clone(), told["row_of"].clone(), self._num_parts)
