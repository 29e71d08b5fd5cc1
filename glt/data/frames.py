"""TensorFrames of PyTorch Frame as tables, and back: a column of texts, categories or lists is a tensor like any other.

PyTorch Frame need not be installed where tables are kept: only where frames are taken apart and put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class FramePart:
    """The columns of one semantic type (``stype``): a table ``[rows, columns, ...]``.

    Attributes:
        stype: ``'numerical'``, ``'categorical'`` and so on.
        kind: ``'dense'``; ``'embedding'`` (of ``widths`` numbers by column, side by side); ``'nested'``, lists filled
            up to one length, with a table of their lengths; or ``'tokens'``, several of these by ``keys``.
        columns: Their names.
    """

    stype: str
    kind: str
    columns: tuple[str, ...]
    widths: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("columns", "widths", "keys"):  # lists, of JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def tables(self, name: str) -> list[str]:
        """Names of the tables that the part of the frame ``name`` consists of."""
        whole = f"{name}.{self.stype}"
        if self.kind in ("dense", "embedding"):
            return [whole]
        names = [f"{whole}.{key}" for key in self.keys] if self.kind == "tokens" else [whole]
        return [each for table in names for each in (table, f"{table}.length")]


@dataclass(frozen=True)
class Frame:
    """A TensorFrame of one type of nodes or edges, whose rows are in the tables ``NAME.STYPE``.

    Attributes:
        level: ``'node'`` or ``'edge'``.
        type_index: Position of the type in the schema.
        name: What batches call the frame, such as ``'tf'``.
        has_y: Whether it has targets, in the table ``NAME.y``.
    """

    level: str
    type_index: int
    name: str
    parts: tuple[FramePart, ...]
    has_y: bool = False

    def __post_init__(self) -> None:
        parts = tuple(each if isinstance(each, FramePart) else FramePart(**each) for each in self.parts)
        object.__setattr__(self, "parts", parts)

    def tables(self) -> list[str]:
        """Names of all its tables."""
        return [each for part in self.parts for each in part.tables(self.name)] + [f"{self.name}.y"] * self.has_y

    def lists(self) -> list[str]:
        """Names of the tables whose rows are filled up to one length."""
        nested = [part for part in self.parts if part.kind in ("nested", "tokens")]
        return [table for part in nested for table in part.tables(self.name)[::2]]  # each is before its lengths

    def join(self, rows: Mapping[str, Tensor]) -> Any:
        """The TensorFrame of rows of its tables.

        Raises:
            ImportError: Without PyTorch Frame: ``pip install pytorch-frame``.
        """
        torch_frame = _torch_frame(self.name)
        feats, columns = {}, {}
        for part in self.parts:
            stype = torch_frame.stype(part.stype)
            feats[stype] = _joined(torch_frame, part, self.name, rows)
            columns[stype] = list(part.columns)
        return torch_frame.TensorFrame(feats, columns, rows[f"{self.name}.y"] if self.has_y else None)


def is_frame(value: Any) -> bool:
    """Whether it is a TensorFrame of PyTorch Frame, which need not be there."""
    return hasattr(value, "feat_dict") and hasattr(value, "col_names_dict")


def split_frame(frame: Any, level: str, type_index: int, name: str) -> tuple[Frame, dict[str, Tensor]]:
    """Takes a TensorFrame apart: dense columns are not copied."""
    parts: list[FramePart] = []
    tables: dict[str, Tensor] = {}
    for stype, feat in frame.feat_dict.items():
        columns, whole = tuple(frame.col_names_dict[stype]), f"{name}.{stype.value}"
        if isinstance(feat, Mapping):
            part = FramePart(stype.value, "tokens", columns, keys=tuple(feat))
            for key, each in feat.items():
                tables |= _filled_up(f"{whole}.{key}", each)
        elif isinstance(feat, Tensor):
            part = FramePart(stype.value, "dense", columns)
            tables[whole] = feat
        elif feat.values.ndim == 2:
            part = FramePart(stype.value, "embedding", columns, widths=tuple(feat.offset.diff().tolist()))
            tables[whole] = feat.values
        else:
            part = FramePart(stype.value, "nested", columns)
            tables |= _filled_up(whole, feat)
        parts.append(part)
    if frame.y is not None:
        tables[f"{name}.y"] = frame.y
    return Frame(level, type_index, name, tuple(parts), frame.y is not None), tables


def split_all(tables: Mapping[str, Any], level: str, type_index: int) -> tuple[dict[str, Any], tuple[Frame, ...]]:
    """Takes the TensorFrames among tables apart."""
    found: dict[str, Any] = {}
    frames = []
    for name, table in tables.items():
        if is_frame(table):
            frame, split = split_frame(table, level, type_index, name)
            if taken := sorted(split.keys() & tables.keys()):
                raise ValueError(f"{taken[0]!r} is a name that a table of the TensorFrame {name!r} gets: rename one")
            frames.append(frame)
            found |= split
        else:
            found[name] = table
    return found, tuple(frames)


def join_all(frames: Iterable[Frame], store: MutableMapping[str, Any]) -> None:
    """Puts frames in the place of their tables."""
    for frame in frames:
        store[frame.name] = frame.join({name: store.pop(name) for name in frame.tables()})


def _filled_up(name: str, nested: Any) -> dict[str, Tensor]:
    length = nested.offset.diff().view(nested.num_rows, nested.num_cols)
    width = max(1, int(length.max())) if length.numel() else 1
    filled = nested.values.new_zeros((nested.num_rows, nested.num_cols, width))
    filled[torch.arange(width) < length[..., None]] = nested.values
    return {name: filled, f"{name}.length": length.to(torch.int32)}


def _joined(torch_frame: Any, part: FramePart, name: str, rows: Mapping[str, Tensor]) -> Any:
    whole = f"{name}.{part.stype}"
    if part.kind == "dense":
        return rows[whole]
    data = torch_frame.data
    if part.kind == "embedding":
        values = rows[whole]
        offset = torch.tensor([0, *part.widths], device=values.device).cumsum(0)
        return data.MultiEmbeddingTensor(len(values), len(part.columns), values, offset)

    def nested(table: str) -> Any:
        filled, length = rows[table], rows[f"{table}.length"]
        offset = torch.zeros(length.numel() + 1, dtype=torch.int64, device=length.device)
        torch.cumsum(length.reshape(-1), 0, out=offset[1:])
        values = filled[torch.arange(filled.shape[-1], device=filled.device) < length[..., None]]
        return data.MultiNestedTensor(len(filled), len(part.columns), values, offset)

    return {key: nested(f"{whole}.{key}") for key in part.keys} if part.kind == "tokens" else nested(whole)


def frame_classes() -> list[Any]:
    """What a TensorFrame consists of, for files of ``torch.save``; nothing without PyTorch Frame."""
    if find_spec("torch_frame") is None:
        return []
    torch_frame = _torch_frame("a TensorFrame")
    data = torch_frame.data
    return [torch_frame.TensorFrame, torch_frame.stype, data.MultiNestedTensor, data.MultiEmbeddingTensor]


def _torch_frame(name: str) -> Any:
    try:
        import torch_frame
        import torch_frame.data
    except ImportError as error:
        raise ImportError(f"{name} is a TensorFrame of PyTorch Frame: pip install pytorch-frame") from error
    return torch_frame
