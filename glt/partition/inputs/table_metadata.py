"""What Parquet and CSV files tell of themselves without their values being read."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np

_BLOCK_BYTES: Final = 1 << 20
_LINE_FEED, _CARRIAGE_RETURN = 10, 13


def parquet_rows(path: Path) -> int:
    """Returns the number of rows of a Parquet file, which its footer has."""
    return importlib.import_module("pyarrow.parquet").read_metadata(path).num_rows


def parquet_largest(path: Path, column: str) -> int | None:
    """Returns the largest integer of a column of a Parquet file, -1 where there is none; None if its footer does not
    say."""
    metadata = importlib.import_module("pyarrow.parquet").read_metadata(path)
    largest = -1
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        if group.num_rows == 0:
            continue
        columns = [group.column(i) for i in range(group.num_columns)]
        statistics = next((each.statistics for each in columns if each.path_in_schema == column), None)
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.max, int):
            return None
        largest = max(largest, statistics.max)
    return largest


def count_lines(path: Path) -> int:
    """Counts the lines of a text file, compressed or not, that are not empty: the rows of CSV, unless a value has a
    line break. A block of it is in memory at a time.
    """
    num_lines, in_line = 0, False
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with cast(BinaryIO, opened) as file:
        while block := file.read(_BLOCK_BYTES):
            data = np.frombuffer(block, np.uint8)
            is_text = (data != _LINE_FEED) & (data != _CARRIAGE_RETURN)
            num_lines += int(np.count_nonzero(is_text[1:] & ~is_text[:-1])) + (bool(is_text[0]) and not in_line)
            in_line = bool(is_text[-1])
    return num_lines
