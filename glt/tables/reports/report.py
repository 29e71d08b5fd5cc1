"""The report of a build, as one file of HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any, Final

import numpy as np

from glt.tables.descriptions.description import SPLITS

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } td, th { padding: .2rem .8rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr:nth-child(even) { background: #f4f4f4 }
th { border-bottom: 1px solid #999; font-weight: 600 } h2 { margin-top: 2rem } .bar { background: #4a7dbd; height:
.7rem }
.warning { background: #fff3cd; border-left: 4px solid #e0a800; padding: .4rem .8rem; margin: .4rem 0 }
"""
_COUNTS: Final = ("read", "kept", "dropped", "merged", "added", "replaced")


def render(counted: Mapping[str, Any]) -> str:
    """``counted`` is what ``build.json`` holds."""
    warnings = counted["warnings"]
    body = ["<h1>Graph report</h1>"]
    body += [f'<p class="warning">{escape(each)}</p>' for each in warnings] or ["<p>No warnings.</p>"]
    for title, kind in (("Node types", "node_types"), ("Edge types", "edge_types")):
        rows = [[name, *(f"{counts[f'num_{each}']:,}" for each in _COUNTS)] for name, counts in counted[kind].items()]
        body += [f"<h2>{title}</h2>", _table(["", *_COUNTS], rows)]
    for name, ends in counted["degrees"].items():
        body.append(f"<h2>Degrees of {escape(name)}</h2>")
        for end, what in (("src", "outgoing edges of a source"), ("dst", "incoming edges of a destination")):
            body.append(_degrees(what, ends[end]))
    for where, profile in counted["profiles"].items():
        body.append(f"<h2>{escape(where)}</h2>")
        names = counted["feature_names"].get(where, [])
        if profile.get("x"):
            body.append(_features(names, profile["x"], counted["drift"].get(where, {})))
        if profile.get("labels"):
            body.append(_labels(profile["labels"], counted["classes"].get(where, ())))
        if "times" in profile:
            first, last = (datetime.fromtimestamp(t, timezone.utc).isoformat(" ") for t in profile["times"])
            body.append(f"<p>Times from {first} to {last}; {profile['num_without_time']:,} rows have none.</p>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Graph report</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _features(names: Sequence[str], profile: Sequence[Mapping[str, Any]], drift: Mapping[str, float]) -> str:
    rows = []
    for name, column in zip(names, profile, strict=True):
        shown = f"{drift[name]:.3f}" if name in drift else ""
        values = (column["least"], _median(column["bins"]), column["largest"])
        rows.append([name, *(f"{value:.4g}" for value in values), shown])
    return _table(["number of x", "least", "median, about", "largest", "drift"], rows)


def _labels(labels: Mapping[str, Mapping[str, int]], classes: Sequence[str]) -> str:
    rows = []
    for name, counts in labels.items():
        shown = "without a label" if not name else classes[int(name)] if name.isdigit() and classes else name
        rows.append([shown, *(f"{counts[split]:,}" for split in (*SPLITS, "none"))])
    return _table(["label", *SPLITS, "in no split"], rows)


def _degrees(what: str, by_bits: Mapping[str, int]) -> str:
    total = max([*by_bits.values(), 1])
    rows = []
    for bits, nodes in by_bits.items():
        low, high = 1 << (int(bits) - 1), (1 << int(bits)) - 1
        width = max(1, round(200 * nodes / total))
        bar = f'<div class="bar" style="width:{width}px"></div>'
        rows.append([f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{nodes:,}", _Markup(bar)])
    return _table([what, "nodes", ""], rows)


class _Markup(str):
    """Is HTML already."""


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>"]
    for row in rows:
        cells = (each if isinstance(each, _Markup) else escape(each) for each in row)
        lines.append("<tr>" + "".join(f"<td>{each}</td>" for each in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _median(bins: Mapping[str, int]) -> float:
    """The lower border of the bin that the median falls into; bins are the first ten bits of float32."""
    numbers = np.array([int(each) for each in bins], np.uint32)
    values = (numbers << np.uint32(22)).view(np.float32)
    order = np.argsort(values)
    cumulative = np.cumsum(np.array(list(bins.values()))[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])
