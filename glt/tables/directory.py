"""The directory of a built graph: how it comes to be whole, and what is in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import glt
from glt._checks import available_memory, check_at_least, format_size, naming_the_limit, parse_size
from glt._tracebacks import short_traceback
from glt._urls import is_url, public_url
from glt.errors import TableError
from glt.tables.descriptions.description import Description, EdgeTable, Files, NodeTable, reversed_type

if _missing := [name for name in ("duckdb", "pyarrow") if find_spec(name) is None]:
    raise ImportError(f"tables need {' and '.join(_missing)}: pip install 'glt-graph[tables]'")

from glt.tables.building import Build, Journal, Old, Tables
from glt.tables.columns.rows import Fitted, where_of
from glt.tables.columns.sources import forget_looks
from glt.tables.engines.duck import DuckDB
from glt.tables.engines.plan import Engine, Plan
from glt.tables.guesses.graphstorm import is_graphstorm, read_graphstorm
from glt.tables.reports.checks import Checks, check
from glt.tables.reports.estimate import estimate
from glt.tables.reports.report import render

_GRAPH, _BUILD, _TRANSFORMS, _REPORT = "graph.json", "build.json", "transforms.json", "report.html"
_REPLACED: Final = "replaced"  # the graph that was there, for the moment in which another takes its place
_FORMAT: Final = 1
_KEPT: Final = ("description", "files", "key_types", "times", "node_types", "edge_types", "profiles", "fitted")
_OWN_BYTES: Final = 400 << 20  # of this process beside the engine: batches, rows of Parquet that are being written
_UNCOUNTED: Final = 0.125  # of its memory, DuckDB takes more than it counts
_LEAST_BYTES: Final = 600_000_000


@short_traceback
def build(
    description: Description | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    engine: Any = "duckdb",
    update: str | os.PathLike[str] | None = None,
    memory: int | str | None = None,
    num_threads: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Builds a graph with dense ids from tables: numbers keys, fits features on training rows and applies them, joins
    edges, and writes a directory that ``glt partition`` reads.

    The same tables give the same bytes, whatever the order of their rows and files, and whichever the engine.

    Args:
        description: A :class:`Description`, a dict of one, or the path of one in ``.toml`` or ``.json``; or that of a
            configuration of GraphStorm's ``gconstruct``.
        out: The directory to make: ``graph.json`` (what ``glt partition`` and
            :func:`glt.partition.read_graph` read), ``nodes/TYPE`` and ``edges/SRC__REL__DST`` (Parquet in the order of
            ids), ``keys/TYPE`` (raw keys with their ids), ``ids/TYPE`` (the same as a :class:`glt.data.KeyMap`),
            ``transforms.json`` (what was fitted), ``build.json``
            (what was read and counted) and ``report.html`` (the same to look at, with warnings). It is written as
            ``OUT.partial`` and renamed when it is whole.
        engine: What joins and sorts: ``'duckdb'``, in this process; ``'spark'``, the active Spark session or a new one
            of the default settings; or a ``pyspark.sql.SparkSession``. Spark's workers need glt, duckdb and pyarrow
            installed, and ``out`` under the same path.
        update: A graph that was built with the same description: the rows of files that it has not read are added to
            it. Old ids stay, features and classes are as they were fitted, a row of a key that is there replaces it.
        memory: Bytes that DuckDB and this process may use, or a text such as ``'4GB'``; default: half of what is
            available. What does not fit goes to files in ``OUT.partial``.
        num_threads: Of DuckDB; default: the cores of this process.
        overwrite: Whether a graph that is already there is replaced, when the new one is whole.
        resume: Whether the steps are kept that an ended build of the same tables has done, in ``OUT.partial``.
        dry_run: Whether to write nothing, and return what is to be expected: ``num_rows`` of each table (``_is_exact``
            unless it is CSV), how many of the ``num_sampled`` edges have an end that is missing, ``memory_bytes`` (at
            most), ``disk_bytes``, ``scratch_bytes`` for a while, ``free_bytes`` and about how many ``seconds``.
        progress: Whether to draw a bar on stderr of each step that takes two seconds. Default: if that is a terminal.

    Returns:
        What ``build.json`` holds: what was read, kept, dropped, merged, added and replaced, by node type and edge type;
        and ``warnings``.

    Raises:
        glt.errors.TableError: If the description or a table does not fit; names table, file, column, row and value.
        FileExistsError: If there is something at ``out`` already.
        ImportError: Without duckdb and pyarrow: ``pip install 'glt-graph[tables]'``.
        OSError, MemoryError: If there is no room, or too little memory; ``resume`` goes on when there is more.

    Example:
        >>> with open("payments.csv", "w") as file:
        ...     _ = file.write("from,to\\nann,bob\\nbob,carl\\nann,carl\\n")
        ...
        >>> edges = {"type": ["account", "pays", "account"], "files": "payments.csv", "src": "from", "dst": "to"}
        >>> counts = glt.tables.build({"node_types": {"account": {}}, "edge_types": [edges]}, "payments")
        >>> counts["node_types"]["account"]["num_kept"]
        3
        >>> glt.partition.read_graph("payments/graph.json", ".").num_edges
        3
    """
    described = _described(description)
    if is_url(out):
        raise ValueError(
            f"out = {public_url(os.fspath(out))!r}: expected a directory of this machine; copy it when it is whole"
        )
    forget_looks()
    with suppress(ImportError):  # pyarrow imports it with its first array of numpy, and loses a Ctrl-C that comes then
        import pandas  # noqa: F401
    target = Path(os.path.realpath(out))
    partial = Path(f"{target}.partial")
    budget = _budget(engine, memory, num_threads)
    if not dry_run:
        _undo_replacement(target, partial)
        _require_place(target, overwrite)
    old = None if update is None else _old(Path(update), described)
    before = _read_built(target, "out") if old is None and (target / _BUILD).is_file() else None
    tables = Tables.of(described, old)
    if dry_run:
        return estimate(tables, target, budget, old)
    of = {"description": _told(described), "files": tables.files, "update": None if old is None else old.built}
    journal = Journal(partial, of, resume)
    with naming_the_limit(partial), closing(journal):
        running = _engine(engine, partial / "scratch", budget, num_threads, progress)
        try:
            run = Build(tables, Plan(running, [len(types) for types in tables.key_types]), partial, journal, old)
            run.run()
            checks = check(run, before if old is None else old.built)
            running.close()
        except BaseException as error:
            running.close()
            if isinstance(error, ValueError | TypeError):
                shutil.rmtree(partial)  # the same would come of it again
            raise
        counted = _write_descriptions(run, checks, partial)
        if target.exists():
            target.rename(partial / _REPLACED)
        journal.remove()
        partial.rename(target)
        shutil.rmtree(target / _REPLACED, ignore_errors=True)
    return counted


def _undo_replacement(target: Path, partial: Path) -> None:
    """Where a build was killed while its graph took the place of another: the one that is whole is at ``target``."""
    if (partial / _REPLACED).exists() and not target.exists():
        (partial / _REPLACED).rename(target)
    if (target / _REPLACED).exists():
        shutil.rmtree(target / _REPLACED)


def _engine(engine: Any, scratch: Path, budget: int | None, num_threads: int | None, progress: bool | None) -> Engine:
    shutil.rmtree(scratch, ignore_errors=True)  # of a build that was killed
    if budget is not None:
        own = int(budget * (1 - _UNCOUNTED)) - _OWN_BYTES
        return DuckDB(scratch, own, num_threads or len(os.sched_getaffinity(0)), progress)
    from glt.tables.engines.spark import Spark

    return Spark.of(engine, scratch)


def _budget(engine: Any, memory: int | str | None, num_threads: int | None) -> int | None:
    """What DuckDB and this process may use; None of Spark."""
    if engine != "duckdb":
        for name, given in (("memory", memory), ("num_threads", num_threads)):
            if given is not None:
                raise ValueError(
                    f"{name} = {given!r} is of engine 'duckdb': expected none; Spark's are those of its session"
                )
        return None
    if num_threads is not None:
        check_at_least("num_threads", num_threads, 1)
    budget = parse_size(memory, "memory") if memory is not None else available_memory()[0] // 2
    if budget < _LEAST_BYTES:
        raise ValueError(f"memory = {memory!r}: expected at least {format_size(_LEAST_BYTES)}")
    return budget


def _old(folder: Path, description: Description) -> Old:
    """The graph that is updated; raises TableError if it was built of another description."""
    if not (folder / _BUILD).is_file():
        raise FileNotFoundError(f"update = {str(folder)!r}: expected a graph that glt built, with {_BUILD}")
    built = _read_built(folder, "update")
    if built is None:
        raise TableError(f"update = {str(folder)!r} is of another version of glt: build it again, without --update")
    before = Description.of(built["description"])
    ours, theirs = (dict(_tables_of(each)) for each in (description, before))
    for where in [*ours, *(each for each in theirs if each not in ours)]:
        if ours.get(where) != theirs.get(where):
            raise TableError(
                f"{where} is not described as {folder} was built: expected all but files to be the same; build without "
                "--update to change it"
            )
    for table in description.edge_types:
        if table.duplicates == "sum" and table.features:
            raise TableError(
                f"{where_of(table)} has duplicates = 'sum' and features: those of {folder} are scaled and cannot be "
                "added up; build without --update"
            )
    return Old(folder, built)


def _read_built(folder: Path, given: str) -> dict[str, Any] | None:
    """``build.json`` of a graph, with the tables of ``transforms.json`` as ``fitted``; None if of another version.
    Raises TableError if they are damaged."""
    try:
        built, transforms = (json.loads((folder / name).read_text()) for name in (_BUILD, _TRANSFORMS))
        if built["format"] != _FORMAT:
            return None
        built["fitted"] = transforms["tables"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
    else:
        if all(isinstance(built.get(each), dict) for each in _KEPT):
            return built  # type: ignore[no-any-return]
        why = f"expected objects {', '.join(_KEPT)} in {_BUILD}"
    advice = "remove it to build anew" if given == "out" else "build it again, without --update"
    raise TableError(f"{given} = {str(folder)!r}: its {_BUILD} or {_TRANSFORMS} is damaged ({why}): {advice}")


def _tables_of(description: Description) -> Iterator[tuple[str, NodeTable | EdgeTable]]:
    nothing = Files(())
    for node in description.node_types:
        yield where_of(node), replace(node, files=None if node.files is None else nothing)
    for edge in description.edge_types:
        yield where_of(edge), replace(edge, files=nothing)


def _described(given: Description | Mapping[str, Any] | str | os.PathLike[str]) -> Description:
    if isinstance(given, Description):
        return given
    if isinstance(given, Mapping):
        return Description.of(given)
    if not is_graphstorm(given):
        return Description.read(given)
    described, lost = read_graphstorm(given)
    if lost:
        raise TableError(
            f"{os.fspath(given)} is a configuration of GraphStorm, and has what is not taken over: "
            f"{' '.join(f'{name}: {each}' for name, texts in lost.items() for each in texts)} glt describe "
            f"{os.fspath(given)} --out graph.toml writes the rest as a description, to be edited and built"
        )
    return described


def _require_place(target: Path, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / _BUILD).is_file():
        raise FileExistsError(
            f"out = {str(target)!r} is there already, and is no graph that glt built: choose another directory"
        )
    if not overwrite:
        raise FileExistsError(f"out = {str(target)!r} has a graph already: overwrite=True (--overwrite) replaces it")


def _write_descriptions(run: Build, checks: Checks, folder: Path) -> dict[str, Any]:
    description = run.tables.description
    nodes = {table.name: _node_entry(run, at, table) for at, table in enumerate(description.node_types)}
    edges = []
    has_time = any(each.time is not None for each in description.edge_types)
    for each in nodes.values():
        if has_time and "time" in each:  # a graph has times of edges or of nodes
            each.setdefault("attrs", []).append(each.pop("time"))
    for table in description.edge_types:
        edges.append(_edge_entry(run, table.type, table))
        if table.reverse is not None:
            edges.append(_edge_entry(run, reversed_type(table), table))
    _write(folder / _GRAPH, {"node_types": nodes, "edge_types": edges})
    _write(folder / _TRANSFORMS, {"format": _FORMAT, "tables": {t: each.to_dict() for t, each in run.fitted.items()}})
    classes = {where: list(each.label.classes) for where, each in run.fitted.items() if each.label is not None}
    counted = {
        "format": _FORMAT,
        "glt": glt.__version__,
        "description": _told(description),
        "files": run.files,
        "key_types": {
            t.name: list(types) for t, types in zip(description.node_types, run.tables.key_types, strict=True)
        },
        "times": run.tables.times,
        "node_types": {t.name: asdict(run.counts[where_of(t)]) for t in description.node_types},
        "edge_types": {"__".join(t.type): asdict(run.counts[where_of(t)]) for t in description.edge_types},
        "profiles": run.profiles,
        "feature_names": {where: each.feature_names for where, each in run.fitted.items()},
        "classes": classes,
        **asdict(checks),
    }
    _write(folder / _BUILD, counted)
    (folder / _REPORT).write_text(render(counted))
    return counted


def _node_entry(run: Build, at: int, table: NodeTable) -> dict[str, Any]:
    fitted = run.fitted.get(where_of(table))
    found = {"num_nodes": run.num_nodes[at], "keys": f"ids/{table.name}"}
    return found if fitted is None else found | {"files": f"nodes/{table.name}"} | _kept(fitted)


def _edge_entry(run: Build, type_: tuple[str, str, str], table: EdgeTable) -> dict[str, Any]:
    found = {"type": list(type_), "files": f"edges/{'__'.join(type_)}", "src": "src", "dst": "dst"}
    kept = _kept(run.fitted[where_of(table)])
    if "label" in kept:  # of edges, a named table
        kept.setdefault("attrs", []).append(kept.pop("label"))
    return found | kept


def _kept(fitted: Fitted) -> dict[str, Any]:
    """The columns of a table, as a description of dense ids names them."""
    names = [each.name for each in fitted.schema]
    found: dict[str, Any] = {"feat": {"column": "x", "dtype": "float32"}} if "x" in names else {}
    found |= {name: name for name in ("label", "time", "weight") if name in names}
    masks = [name for name in names if name.endswith("_mask")]
    return found | ({"attrs": masks} if masks else {})


def _told(description: Description) -> dict[str, Any]:
    """As JSON has it, and without what gives access to files."""
    found = description.to_dict()
    for table in (*found["node_types"].values(), *found["edge_types"]):
        if "files" in table:
            given = table["files"]
            told = [public_url(each) for each in ([given] if isinstance(given, str) else given)]
            table["files"] = told[0] if isinstance(given, str) else told
    return found


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")
