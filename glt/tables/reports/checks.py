"""What is worth a warning in a graph that was built, and what else its report counts: degrees, edges later than labels,
splits that share edges, features of one value, drift since the graph before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from glt.tables.building import Build, shown_key
from glt.tables.columns.rows import where_of
from glt.tables.descriptions.description import EdgeTable, NodeTable
from glt.tables.engines.plan import DST, SRC

_DRIFTED: Final = 0.2  # of the population stability index: a usual border of "has changed much"
_MOST: Final = 100.0  # of an index
_NEVER: Final = 1e-4  # a share that stands for none, in the index


@dataclass
class Checks:
    """What was found; ``degrees`` are, by edge type and end, how many nodes have a degree of so many bits."""

    warnings: list[str] = field(default_factory=list)
    degrees: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    drift: dict[str, dict[str, float]] = field(default_factory=dict)  # by table and feature or "label"


def check(run: Build, before: Mapping[str, Any] | None) -> Checks:
    """Looks at what a build wrote; ``before`` is ``build.json`` of the graph that it replaces or updates, with what was
    fitted then."""
    found = Checks()
    description = run.tables.description
    for node in description.node_types:
        profile = run.profiles.get(where_of(node), {})
        found.warnings += _of_table(run, node, profile)
        if before is not None:
            found.drift |= _drift(where_of(node), run, profile, before)
    for edge in description.edge_types:
        folder = run.out / "edges" / "__".join(edge.type)
        run.plan.engine.view("checked", folder)
        name = "__".join(edge.type)
        found.degrees[name] = {end: _degrees(run, end) for end in ("src", "dst")}
        found.warnings += _of_table(run, edge, run.profiles[where_of(edge)])
        found.warnings += [*_unmatched(run, edge), *_later(run, edge), *_shared(run, edge)]
        if before is not None:
            found.drift |= _drift(where_of(edge), run, run.profiles[where_of(edge)], before)
    for where, by_feature in found.drift.items():
        for name, index in by_feature.items():
            if index > _DRIFTED:
                found.warnings.append(
                    f"{where}: {name!r} is not distributed as in the graph before (population stability index "
                    f"{index:.2f}): a model of that graph may be wrong on this one"
                )
    return found


def _of_table(run: Build, table: NodeTable | EdgeTable, profile: Mapping[str, Any]) -> Iterator[str]:
    fitted = run.fitted.get(where_of(table))
    if fitted is None or not profile.get("num_rows"):
        return
    for name, column in zip(fitted.feature_names, profile.get("x", ()), strict=False):
        if column["least"] == column["largest"] and not name.endswith((" is other", " is missing")):
            yield f"{where_of(table)}: {name!r} is {column['least']:g} in all rows: it tells a model nothing"
    first, last = profile.get("times", (0, 0))
    if first >= 19_000_101 and last <= 21_001_231:
        yield (
            f"{where_of(table)}: times are the numbers {first} to {last}, which are seconds of 1970: if they are dates "
            "such as 20240531, write 2024-05-31"
        )
    labels = profile.get("labels", {})
    classes = {name: counts for name, counts in labels.items() if name not in ("", "value")}
    if table.label is not None and not sum(sum(counts.values()) for name, counts in labels.items() if name):
        yield f"{where_of(table)}: no row has a label"
    if table.split is not None:
        for split in ("train", "val", "test"):
            if not sum(counts[split] for counts in labels.values()) and labels:
                yield f"{where_of(table)}: split {split!r} has no rows"
        for name, counts in classes.items():
            if not counts["train"]:
                label = fitted.label
                value = label.classes[int(name)] if label is not None else name
                elsewhere = sum(counts.values())
                yield f"{where_of(table)}: class {value!r} has no rows in training, and {elsewhere} elsewhere"


def _degrees(run: Build, end: str) -> dict[str, int]:
    rows = run.plan.engine.rows(
        f"SELECT length(bin(number)) AS bits, count(*) AS nodes FROM (SELECT count(*) AS number FROM checked GROUP "
        f"BY {end}) "
        "AS d GROUP BY length(bin(number)) ORDER BY bits"
    )
    return {str(bits): int(nodes) for bits, nodes in rows}


def _unmatched(run: Build, edge: EdgeTable) -> Iterator[str]:
    counts = run.counts[where_of(edge)]
    if run.old is not None and (before := run.old.built["edge_types"]["__".join(edge.type)]["num_dropped"]):
        yield (
            f"{where_of(edge)}: {before} edges that the graph before dropped for want of a node are not looked "
            "at again, though their nodes may have come: build without --update to take them in"
        )
    if not counts.num_dropped:
        return
    source = run.tables.edges[run.tables.description.edge_types.index(edge)]
    for end, prefix, columns in zip(run.tables.ends(edge), (SRC, DST), (edge.src, edge.dst), strict=True):
        if found := run.plan.unknown(source, prefix, end):
            shown = ", ".join(f"{shown_key(row[:-1])} ({row[-1]} edges)" for row in found)
            yield (
                f"{where_of(edge)}: {counts.num_dropped} of {counts.num_read} edges were dropped: keys in "
                f"{list(columns)} "
                f"that match nothing begin with {shown}"
            )


def _later(run: Build, edge: EdgeTable) -> Iterator[str]:
    """Edges that came after a node's label was known may tell what it is."""
    if edge.time is None:
        return
    for end, name in (("src", edge.type[0]), ("dst", edge.type[2])):
        node = run.tables.description.node_type(name)
        if node.label is None or node.time is None:
            continue
        run.plan.engine.view("labelled", run.out / "nodes" / name)
        has_label = "label >= 0" if node.label.kind == "class" else "label = label"
        ((number,),) = run.plan.engine.rows(
            f"SELECT count(*) AS number FROM checked AS e JOIN labelled AS n ON e.{end} = n.id "
            f"WHERE e.time > n.time AND n.{has_label}"
        )
        if number:
            yield (
                f"{where_of(edge)}: {number} edges are later than the label of the node of type {name!r} they end "
                f"in: a "
                "loader without time_attr shows them to a model that is to predict it"
            )


def _shared(run: Build, edge: EdgeTable) -> Iterator[str]:
    if edge.split is None:
        return
    for split in ("val", "test"):
        ((number,),) = run.plan.engine.rows(
            "SELECT count(*) AS number FROM (SELECT src, dst FROM checked GROUP BY src, dst "
            f"HAVING max(CAST(train_mask AS INT)) = 1 AND max(CAST({split}_mask AS INT)) = 1) AS s"
        )
        if number:
            yield (
                f"{where_of(edge)}: {number} pairs of nodes have edges in training and in {split!r}: a model has "
                f"seen what "
                "it is asked"
            )


def _drift(
    where: str, run: Build, profile: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """The population stability index of each feature, and of the label: sum of (p - q) log(p / q) over what it is. Of a
    number whose scale was fitted anew it is at least that of two normal distributions with the means and deviations of
    both: the model sees what is scaled, in which a shift does not show."""
    old, fitted = before.get("profiles", {}).get(where), run.fitted.get(where)
    if old is None or fitted is None:
        return {}
    # A table without rows has no "x".
    theirs = dict(zip(before.get("feature_names", {}).get(where, ()), old.get("x", ()), strict=False))
    found = {
        name: _stability(ours["bins"], theirs[name]["bins"])
        for name, ours in zip(fitted.feature_names, profile.get("x", ()), strict=False)
        if name in theirs
    }
    kept = {each["name"]: each["fitted"] for each in before["fitted"].get(where, {"features": ()})["features"]}
    for each in fitted.transforms:
        name = each.feature.name
        if each.feature.kind == "number" and each.feature.scale != "none" and name in found and each.num_rows:
            found[name] = max(found[name], _moved(each.fitted, kept.get(name, {})))
    classes, old_classes = fitted.label.classes if fitted.label else (), before.get("classes", {}).get(where, ())
    if classes and old_classes:  # their numbers are those of one build
        found["label"] = _stability(_by_class(profile, classes), _by_class(old, old_classes))
    return {where: found}


def _moved(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    if not {"mean", "deviation"} <= theirs.keys():  # of another kind then
        return 0.0
    largest = max(abs(each[name]) for each in (ours, theirs) for name in ("mean", "deviation"))
    if largest == 0:
        return 0.0
    p, q = (max(each["deviation"], 1e-6 * largest) ** 2 for each in (ours, theirs))  # that of one value is 0
    shift = (ours["mean"] - theirs["mean"]) ** 2
    return min(_MOST, (p + shift) / (2 * q) + (q + shift) / (2 * p) - 1)


def _by_class(profile: Mapping[str, Any], classes: Sequence[str]) -> dict[str, int]:
    counted = profile.get("labels", {})
    return {value: sum(counted.get(str(number), {}).values()) for number, value in enumerate(classes)}


def _stability(ours: Mapping[str, int], theirs: Mapping[str, int]) -> float:
    every = sorted({*ours, *theirs})
    shares = [np.array([each.get(name, 0) for name in every], float) for each in (ours, theirs)]
    p, q = (np.maximum(each / max(each.sum(), 1.0), _NEVER) for each in shares)
    return float(math.fsum((p - q) * np.log(p / q)))
