"""Keys of users, such as account numbers, and the ids that nodes have in a graph: one to the other, from mapped
files."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from glt import _core
from glt._reprs import says
from glt.errors import PartitionError

if TYPE_CHECKING:  # torch is imported when a tensor is asked for: a build of tables needs none
    from torch import Tensor

    from glt.data.schema import NodeType

_FORMAT: Final = 1
_DESCRIPTION, _INDEX = "keys.json", "index.npy"
_KINDS: Final = ("int", "text")

Column = Any  # int64 [n], or (offsets int64 [n + 1], UTF-8 bytes uint8) of texts


class Keys(ABC):
    """The keys of the nodes of one type, wherever they are: ``columns`` are the kinds of what a key consists of,
    ``"int"`` or ``"text"``, by name; ``name`` is what errors call them."""

    name: str
    columns: dict[str, str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def find(self, columns: tuple[Any, ...]) -> np.ndarray:
        """The ids of keys in columns, int64, -1 of those that are not there."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> tuple[Any, ...]:
        """The columns of the keys of ids that there are."""

    def lookup(self, raw: Any, missing: Literal["error", "ignore"] = "error") -> Tensor:
        """The ids of keys ``[n]``, int64.

        Args:
            raw: A list, NumPy array, tensor or pyarrow array of keys; if keys have several columns, a tuple of such,
                one for each.
            missing: ``'error'``, or ``'ignore'``: the id of what is not there is -1.

        Raises:
            KeyError: If a key is not there; names the first, and how many there are.
            TypeError, ValueError: If keys are of another kind, or columns do not fit.
        """
        import torch

        if missing not in ("error", "ignore"):
            raise ValueError(f"missing = {missing!r}: expected 'error' or 'ignore'")
        given = raw if len(self.columns) > 1 else (raw,)
        if not isinstance(given, tuple) or len(given) != len(self.columns):
            raise TypeError(
                f"raw is a {type(raw).__name__}: expected a tuple of {len(self.columns)} columns, {list(self.columns)}"
            )
        ids = self.find(given)
        if missing == "error" and len(unknown := np.flatnonzero(ids < 0)):
            at = int(unknown[0])
            key = tuple(_plain(np.asarray(each)[at] if hasattr(each, "dtype") else each[at]) for each in given)
            raise KeyError(
                f"raw[{at}] = {(key[0] if len(key) == 1 else key)!r} is no key of {self.name!r}, as are "
                f"{len(unknown)} of {len(ids)}: expected keys of {list(self.columns)}; missing='ignore' gives them -1"
            )
        return torch.from_numpy(ids)

    def raw(self, ids: Any) -> Any:
        """The keys of ids ``[n]``: a NumPy array of integers, or a list of texts; if keys have several columns, a
        tuple of such. Raises TypeError if ids are no integers, IndexError if there is no such id."""
        given = np.atleast_1d(_on_host(ids))
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"ids has dtype {given.dtype}: expected integers")
        if given.ndim != 1:
            raise ValueError(f"ids has shape {list(given.shape)}: expected one dimension")
        is_wrong = (given < 0) | (given >= len(self))
        if is_wrong.any():
            wrong = given[is_wrong][0]
            raise IndexError(f"ids has {wrong}: expected 0 to {len(self) - 1}")
        found = self.take(np.ascontiguousarray(given, np.int64))
        return found if len(found) > 1 else found[0]


class KeyMap(Keys):
    """The keys of the nodes of one type, with their ids: ``ids = keys.lookup(raw)`` and ``raw = keys.raw(ids)``.

    Keys are integers or texts, or tuples of these. A map is a folder of ``.npy`` files, which are mapped, so that many
    processes share them and opening takes no time. It pickles as its path. ``len(keys)`` is how many there are.

    Args:
        folder: What :meth:`write` wrote, such as ``ids/TYPE`` of a graph that ``glt build`` makes.
        columns: The names and kinds of what a key consists of; default: as the folder says.

    Raises:
        glt.errors.PartitionError: If the folder is no such map.

    Example:
        >>> def batches():
        ...     yield [["carl", "ann", "bob"]]
        ...
        >>> keys = glt.data.KeyMap.write("accounts", {"account": "text"}, batches)
        >>> keys.lookup(["ann", "bob"])
        tensor([1, 2])
        >>> keys.raw([0])
        ['carl']
    """

    def __init__(self, folder: str | os.PathLike[str], columns: dict[str, str] | None = None) -> None:
        self.folder: Path = Path(folder)
        self.name = self.folder.name
        try:
            if columns is None:
                told = json.loads((self.folder / _DESCRIPTION).read_text())
                if told["format"] != _FORMAT:
                    raise PartitionError(
                        f"{self.folder} has format {told['format']}, this glt reads {_FORMAT}: build again"
                    )
                columns = dict(told["columns"])
            self.columns: dict[str, str] = columns
            self._arrays = [self._open(i, kind) for i, kind in enumerate(columns.values())]
            self._num_keys = _length(self._arrays[0])
            self._slots = _mapped(self.folder / _INDEX, np.uint64)
            if any(_length(each) != self._num_keys for each in self._arrays):
                raise ValueError(
                    f"columns have {[_length(each) for each in self._arrays]} keys: expected as many in each"
                )
        except FileNotFoundError as error:
            raise PartitionError(f"{self.folder} is no map of keys: {error.filename} is missing") from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PartitionError(f"{self.folder} is no map of keys, or a damaged one: {error}") from error
        if self._slots.size < 1 or self._slots.size & (self._slots.size - 1):
            raise PartitionError(f"{self.folder / _INDEX} has {self._slots.size} slots: expected a power of two")

    @classmethod
    def write(
        cls,
        folder: str | os.PathLike[str],
        columns: Mapping[str, str],
        batches: Callable[[], Iterable[Sequence[Any]]],
    ) -> KeyMap:
        """Writes a map: ``columns`` are the names and kinds of the columns that a key has, ``batches`` yields the keys
        in the order of ids, a list or array for each column, and is called twice. It holds one batch in memory."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        num_keys, sizes = 0, [0] * len(columns)
        for batch in batches():
            encoded = [as_column(each, kind, name) for each, (name, kind) in zip(batch, columns.items(), strict=True)]
            num_keys += _length(encoded[0])
            sizes = [
                size + (column[1].size if isinstance(column, tuple) else 0)
                for size, column in zip(sizes, encoded, strict=True)
            ]
        outputs: list[Any] = []
        for i, (kind, size) in enumerate(zip(columns.values(), sizes, strict=True)):
            shapes: list[Any] = [(np.int64, num_keys + (kind == "text")), (np.uint8, size)]
            names = [folder / f"{name}.npy" for name in _names(i, kind)]
            outputs.append([_created(path, *shape) for path, shape in zip(names, shapes, strict=False)])
        slots = _created(folder / _INDEX, np.uint64, _core.num_key_slots(num_keys))
        first, at = 0, [0] * len(columns)
        for batch in batches():
            encoded = [as_column(each, kind, name) for each, (name, kind) in zip(batch, columns.items(), strict=True)]
            last = first + _length(encoded[0])
            for i, column in enumerate(encoded):
                if isinstance(column, tuple):
                    offsets, data = column
                    outputs[i][0][first : last + 1] = offsets + at[i]
                    outputs[i][1][at[i] : at[i] + data.size] = data
                    at[i] += data.size
                else:
                    outputs[i][0][first:last] = column
            _core.add_keys(slots, encoded, first)
            first = last
        told = {"format": _FORMAT, "columns": dict(columns)}
        (folder / _DESCRIPTION).write_text(json.dumps(told) + "\n")
        for array in [slots, *(each for output in outputs for each in output)]:
            if isinstance(array, np.memmap):
                array.flush()
        return cls(folder)

    def find(self, columns: tuple[Any, ...]) -> np.ndarray:
        wanted = [as_column(each, kind, name) for each, (name, kind) in zip(columns, self.columns.items(), strict=True)]
        return _core.find_keys(self._slots, self._arrays, wanted)

    def take(self, rows: np.ndarray) -> tuple[Any, ...]:
        return tuple(
            _core.decode_texts(column[0], column[1], rows) if isinstance(column, tuple) else np.asarray(column[rows])
            for column in self._arrays
        )

    def __len__(self) -> int:
        return self._num_keys

    @says
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {kind}" for name, kind in self.columns.items())
        return f"{str(self.folder)!r}, {len(self):,} keys, {shown}"

    def __reduce__(self) -> Any:
        return KeyMap, (self.folder, self.columns)

    def arrays(self) -> dict[str, np.ndarray]:
        """What the map consists of, by the name of the file."""
        found = {"index": self._slots}
        for i, column in enumerate(self._arrays):
            found |= dict(
                zip(
                    _names(i, "text" if isinstance(column, tuple) else "int"),
                    column if isinstance(column, tuple) else [column],
                    strict=True,
                )
            )
        return found

    def _open(self, number: int, kind: str) -> Column:
        if kind not in _KINDS:
            raise ValueError(f"kind {kind!r} of a column: expected one of {', '.join(map(repr, _KINDS))}")
        types: list[Any] = [np.int64, np.uint8]  # only texts have bytes
        names = _names(number, kind)
        arrays = tuple(_mapped(self.folder / f"{name}.npy", type_) for name, type_ in zip(names, types, strict=False))
        if kind == "text" and not arrays[0].size:
            raise ValueError(f"{names[0]}.npy is empty: expected one element more than there are keys")
        return arrays if kind == "text" else arrays[0]


def _names(number: int, kind: str) -> list[str]:
    """The files of a column."""
    return [f"column{number}_offsets", f"column{number}_bytes"] if kind == "text" else [f"column{number}"]


class KeyMaps(Mapping[str, Keys]):
    """The keys of the nodes of a graph, by node type; ``"node"``, where the graph has no types. Given to a loader as
    ``transform``, it puts ``raw_id`` into batches: the keys of ``n_id``.

    Example:
        >>> keys = glt.data.KeyMap.write("accounts", {"account": "text"}, lambda: iter([[["carl", "ann", "bob"]]]))
        >>> ids = glt.data.KeyMaps({"account": keys})
        >>> ids["account"].lookup(["bob"])
        tensor([2])
    """

    def __init__(self, maps: Mapping[NodeType, Keys]) -> None:
        self._maps = dict(maps)

    def __getitem__(self, node_type: NodeType) -> Keys:
        if node_type not in self._maps:
            raise KeyError(
                f"nodes of type {node_type!r} have no keys: expected one of {list(self._maps)}; graphs of 'glt build' "
                "have keys"
            )
        return self._maps[node_type]

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    def __call__(self, batch: Any) -> Any:
        for node_type, keys in self._maps.items():
            is_typed = node_type in getattr(batch, "node_types", ())
            store = batch[node_type] if is_typed else batch
            if "n_id" in store:
                store["raw_id"] = keys.raw(store["n_id"])
        return batch

    @says
    def __repr__(self) -> str:
        return repr(self._maps)


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy reads a header as Python does, which raises all kinds of things
        raise ValueError(f"{path} is damaged: {error}") from error
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(
            f"{path} has {array.dtype} of shape {list(array.shape)}: expected {np.dtype(dtype)} of one dimension"
        )
    return array.view(np.ndarray)


def _created(path: Path, dtype: Any, count: int) -> np.ndarray:
    if count:
        return np.lib.format.open_memmap(path, "w+", dtype, (count,))
    np.save(path, np.empty(0, dtype))  # of which there is nothing to map
    return np.empty(0, dtype)


def _length(column: Column) -> int:
    return len(column[0]) - 1 if isinstance(column, tuple) else len(column)


def _on_host(given: Any) -> np.ndarray:
    return np.asarray(given.cpu() if hasattr(given, "cpu") else given)  # of a tensor, wherever it is


def as_column(given: Any, kind: str, name: str) -> Column:
    """A column of keys as the native core takes it, which it may be already; raises TypeError or ValueError if it is of
    another kind."""
    if (
        isinstance(given, tuple)
        and kind == "text"
        and len(given) == 2
        and all(isinstance(a, np.ndarray) for a in given)
    ):
        return given
    if hasattr(given, "__arrow_array__") or type(given).__module__.startswith("pyarrow"):
        given = _of_arrow(given, kind, name)
        if isinstance(given, tuple):
            return given
    given = _on_host(given) if hasattr(given, "cpu") else given
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        one = "the text" if isinstance(given, str) else "one value,"
        raise TypeError(f"column {name!r} is {one} {given!r}: expected a list or array of keys")
    if kind == "int":
        numbers = np.asarray(given)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise TypeError(f"column {name!r} has {_first_odd(given, int)!r}: expected integers")
        if numbers.dtype == np.uint64 and numbers.size and numbers.max() > 2**63 - 1:
            raise ValueError(f"column {name!r} has {numbers.max()}: expected integers below 2**63")
        if numbers.ndim != 1:
            raise ValueError(f"column {name!r} has shape {list(numbers.shape)}: expected one dimension")
        return np.ascontiguousarray(numbers, np.int64)
    texts = given.tolist() if isinstance(given, np.ndarray) else given if isinstance(given, list) else list(given)
    offsets, data = _core.encode_texts(texts)
    if offsets is None:
        at = int(data)
        raise TypeError(f"column {name!r} has {texts[at]!r} at {at}: expected texts")
    return offsets, data


def _plain(value: Any) -> Any:
    """A scalar of NumPy or pyarrow as Python has it."""
    return value.item() if hasattr(value, "item") else value.as_py() if hasattr(value, "as_py") else value


def _first_odd(given: Any, kind: type) -> Any:
    return next((each for each in given if not isinstance(each, kind)), given)


def _of_arrow(given: Any, kind: str, name: str) -> Any:
    import pyarrow as pa

    array = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else pa.array(given)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise ValueError(f"column {name!r} has {array.null_count} nulls: expected a key in every row")
    if kind == "int":
        return np.asarray(array)
    if not (
        pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type)
    ):
        raise TypeError(f"column {name!r} has type {array.type}: expected texts")
    texts = array.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    if not len(texts) or offsets is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    positions = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(positions[0]), int(positions[-1])
    held = np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
    return (positions - first if first else positions), held
