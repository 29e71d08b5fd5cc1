"""The page of ``glt inspect --html``: one file with its own style and drawings, which needs no network."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from glt._checks import format_size
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest, ReadForecast
from glt.partition.measure import NODE_SHARES, Degrees, HotnessMeasure, Measures, expected_cut

if TYPE_CHECKING:
    from glt.partition.inspect import Inspection

_MAX_OPEN: Final = 16  # rows of a table that is unfolded at first
_MAX_COLUMNS: Final = 16  # partitions beside each other
_EVEN: Final = 0.9  # below, a balance of nodes is worth a word
_EVEN_EDGES: Final = 0.8  # and one of edges
_ENOUGH: Final = 10  # fewer rows per partition than this have no balance that is worth a word
_OF_RANDOM: Final = 0.8  # above this share of what a random assignment cuts, a cut is worth a word
_REMOTE: Final = 0.1  # remote reads above this share of all are worth a cache
_LARGE_BYTES: Final = 64 << 20  # float32 features of this size are worth a word
_LOOKED_FOR: Final = (
    "Looked for: files that are damaged, missing or unknown; partitions of nodes, or of the nodes of a mask, of which "
    f"the largest has over {1 / _EVEN:.2f} times the mean (balance below {_EVEN:g}), and of edges over "
    f"{1 / _EVEN_EDGES:.2f} times (below {_EVEN_EDGES:g}), where there are {_ENOUGH} per partition; a cut of over "
    f"{_OF_RANDOM:g} of a random one; no caches although over {_REMOTE:.0%} of the reads of features are expected to "
    f"be remote; float32 features of {_LARGE_BYTES >> 20} MiB or more."
)
_STYLE: Final = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;--mark:#0b62c4;
--heat:11,98,196;--warn:#9a3b00}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--line:#30363d;--card:#161b22;
--mark:#6cb2ff;--heat:70,140,230;--warn:#ffb077}}
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:70rem;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}h1{font-size:1.5rem;margin:.5rem 0}
h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}h3{font-size:1rem;margin:1.2rem 0 .3rem}
p,ul{margin:.4rem 0}.soft,summary,figcaption{color:var(--soft);font-size:.875rem}.warn{color:var(--warn)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:0}dt{color:var(--soft)}dd{margin:0}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;margin:.5rem 0;overflow-wrap:normal}
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right;
font-variant-numeric:tabular-nums;white-space:nowrap}th{font-weight:600}tbody th,th:first-child{text-align:left}
.do{margin:1rem 0;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.6rem 1rem}
.do h2{margin-top:0}
figure{margin:.5rem 0;max-width:34rem}svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}
.row{display:flex;flex-wrap:wrap;gap:0 2rem}.row figure{flex:1 1 20rem}summary{cursor:pointer;margin:.6rem 0 .2rem}
svg .axis{fill:none;stroke:var(--line)}@media(max-width:600px){svg text{font-size:18px}}
svg .bar{fill:var(--mark)}svg .curve{fill:none;stroke:var(--mark);stroke-width:2}
"""


def html_report(report: Inspection, measures: Measures, manifest: Manifest) -> str:
    """Returns the page: what ``report`` says and what was measured."""
    body = "".join(
        [
            _heading(report),
            _advice(report, measures, manifest),
            _problems(report, measures),
            _sizes(report, measures),
            _balance(report),
            _cut(report, measures, manifest),
            _degrees(report, measures),
            _hotness(measures, manifest),
        ]
    )
    title = escape(Path(report.root).name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{title}: partitions</title><style>{_STYLE}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _heading(report: Inspection) -> str:
    written = datetime.fromtimestamp((Path(report.root) / layout.MANIFEST).stat().st_mtime, timezone.utc)
    arguments = ", ".join(f"{name}={value!r}" for name, value in report.arguments.items())
    kind = "heterogeneous" if report.is_hetero else "homogeneous"
    nodes = f"{report.num_nodes:,} nodes" + (f" of {len(report.nodes)} types" if len(report.nodes) > 1 else "")
    edges = f"{report.num_edges:,} edges" + (f" of {len(report.edges)} types" if len(report.edges) > 1 else "")
    facts = {
        "graph": f"{kind}, {nodes}, {edges}; rows hold {report.edge_dir}-edges"
        + (f"; times of {report.time_level}s" if report.time_level else "")
        + ("; ids relabelled" if report.is_relabelled else ""),
        "partitions": f"{report.num_parts} by {report.strategy}({arguments})",
        "edge cut": f"{report.edge_cut_ratio:.1%}",
        "here": f"{report.num_files:,} files, {format_size(report.num_bytes)}"
        + ("" if report.is_complete else f"; {len(report.parts)} of {report.num_parts} partitions"),
        "written": f"{written:%Y-%m-%d %H:%M} UTC (date of the manifest file) by glt {report.glt_version}",
        "run": f"{report.run_id}, format version {report.version}",
        "checked": "contents compared with checksums" if report.verified else "sizes and headers (--verify: contents)",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<h1>Partitions in {escape(report.root)}</h1><dl>{listed}</dl>"


def advice(report: Inspection, measures: Measures, manifest: Manifest) -> list[str]:
    """Returns what to change, a sentence each; nothing where all is well."""
    found = []
    if report.bad:
        found.append(
            f"Missing or damaged files: {len(report.bad)} of {report.num_files}. Copy the directory again, then run "
            "glt inspect --verify."
        )
    elif measures.unread:
        found.append(
            "Files hold what cannot be, as the problems below say. Copy the directory again, then run "
            "glt inspect --verify."
        )
    if not report.is_complete:
        found.append(
            f"{report.num_parts - len(report.parts)} of {report.num_parts} partitions are not here. That is right for "
            "the copy of one host; if this is none, copy the directory again."
        )
    if report.unlisted:
        found.append(f"Files that are not of this run, and that nothing reads: {len(report.unlisted)}. Remove them.")
    by_edges = re.search("metis|fennel", report.strategy, re.IGNORECASE) is not None
    by_type = "--balance-types (in Python balance_ntypes=True)"
    smaller = "--method metis or fennel, with a small --imbalance (in Python imbalance=)"
    for nodes in report.nodes:
        if nodes.num_nodes >= _ENOUGH * report.num_parts and nodes.balance_ratio < _EVEN:
            found.append(
                f"The largest partition of nodes {nodes.node_type} has {1 / nodes.balance_ratio:.2f} times the mean: "
                f"partition with {by_type if report.is_hetero else smaller}."
            )
        found += [
            f"Of nodes {nodes.node_type} with {each.table}, the largest partition has {1 / each.balance_ratio:.2f} "
            f"times the mean: partition with --balance {each.table} (in Python balance_ntypes=), which the methods "
            "random, metis and fennel heed."
            for each in nodes.values
            if each.value is True and each.balance_ratio < _EVEN
            if sum(each.part_counts) >= _ENOUGH * len(each.part_counts)
        ]
    found += [
        f"The largest partition of edges {' '.join(each.edge_type)} has {1 / each.balance_ratio:.2f} times the mean: "
        f"partition with {'' if by_edges else '--method metis or fennel and '}--balance-edges (in Python "
        "balance_edges=True)."
        for each in report.edges
        if each.num_edges >= _ENOUGH * report.num_parts and each.balance_ratio < _EVEN_EDGES
        if not report.arguments.get("balance_edges")
    ]
    random_cut = expected_cut(manifest)
    if not by_edges and report.edge_cut_ratio > _OF_RANDOM * random_cut:
        found.append(
            f"{report.edge_cut_ratio:.1%} of edges are cut, and a random assignment would cut about {random_cut:.1%}: "
            "try --method metis or --method fennel (in Python MetisPartitioner or FennelPartitioner)."
        )
    reads = manifest.forecast
    if reads is not None and reads.total_remote_ratio > _REMOTE and not any(reads.num_cached):
        found.append(
            f"{reads.total_remote_ratio:.1%} of the reads of features are expected to be remote, and there are no "
            "caches: partition with --cache-ratio 0.1, say (in Python cache_ratio=0.1); glt inspect then says how many "
            "of them caches answer."
        )
    for entry in manifest.node_types:
        if entry.feat is not None and entry.feat.dtype == "float32" and entry.feat.store_dtype is None:
            num_bytes = 4 * entry.num_nodes * math.prod(entry.feat.shape)
            if num_bytes >= _LARGE_BYTES:
                found.append(
                    f"Features of nodes {entry.node_type} are float32, {format_size(num_bytes)}: --store-dtype float16 "
                    "(in Python store_dtype=) halves them; the report of glt partition says how far off they are then."
                )
    return found


def _advice(report: Inspection, measures: Measures, manifest: Manifest) -> str:
    found = advice(report, measures, manifest)
    said = f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in found)}</ul>" if found else "<p>Nothing to change.</p>"
    return (
        f'<section class="do"><h2>What to change</h2>{said}<details><summary>What was looked for</summary>'
        f'<p class="soft">{_LOOKED_FOR}</p></details></section>'
    )


def _problems(report: Inspection, measures: Measures) -> str:
    bad = [f"{each.path}: {each.reason}" for each in report.bad]
    listed = (("Damaged or missing files", bad), ("Not measured", measures.unread), ("Never read", report.unlisted))
    text = "".join(
        f'<h3 class="warn">{name} ({len(items)})</h3><ul>{"".join(f"<li>{escape(each)}</li>" for each in items)}</ul>'
        for name, items in listed
        if items
    )
    return f"<h2>Problems</h2>{text}" if text else ""


def _sizes(report: Inspection, measures: Measures) -> str:
    kinds = sorted({kind for each in measures.part_bytes.values() for kind in each})
    rows = []
    for part, by_kind in measures.part_bytes.items():
        name = "all hosts" if part is None else f"partition {part}"
        sizes = [by_kind.get(kind, 0) for kind in kinds]
        rows.append((name, *map(format_size, [*sizes, sum(sizes)])))
    by_table = [(*name, format_size(size)) for name, size in sorted(measures.table_bytes.items())]
    hosts = [(each.host, ", ".join(map(str, each.parts)), format_size(each.num_bytes)) for each in report.hosts]
    of = "" if report.is_complete else ", of the partitions that are here"
    return "<h2>Sizes</h2>" + "".join(
        [
            _table(f"Bytes by partition and kind{of}, as the manifest says", ("", *kinds, "sum"), rows),
            _table(f"Bytes by table{of}", ("table", "stored as", "bytes"), by_table),
            _table("Bytes that each host needs, books included", ("host", "partitions", "bytes"), hosts),
        ]
    )


def _balance(report: Inspection) -> str:
    every, rows = tuple(range(report.num_parts)), []
    for nodes in report.nodes:
        rows.append((f"nodes {nodes.node_type}", nodes.balance_ratio, nodes.part_num_nodes, every))
        rows += [
            (f"{nodes.node_type}: {each.table} = {each.value}", each.balance_ratio, each.part_counts, report.parts)
            for each in nodes.values
        ]
    rows += [
        (f"edges {' '.join(each.edge_type)}", each.balance_ratio, each.part_num_edges, every) for each in report.edges
    ]
    shown, cells = every[:_MAX_COLUMNS], []
    for name, ratio, counts, parts in rows:
        by_part = {part: f"{count:,}" for part, count in zip(parts, counts, strict=True)}
        spread = (f"{sum(counts):,}", f"{min(counts):,}", f"{max(counts):,}")
        cells.append((name, f"{ratio:.3f}", *spread, *(by_part.get(part, "not here") for part in shown)))
    text = '<h2>Balance</h2><p class="soft">Balance is mean over largest: 1.000 is even.'
    if not report.is_complete:
        text += " Nodes and edges are those of all partitions; values of tables those of the partitions that are here."
    if len(shown) < len(every):
        text += f" Columns are the first {len(shown)} of {len(every)} partitions."
    head = ("", "balance", "sum", "least", "most", *(f"part {part}" for part in shown))
    return text + "</p>" + _table("Nodes, values of their tables, and edges by partition", head, cells)


def _cut(report: Inspection, measures: Measures, manifest: Manifest) -> str:
    text = (
        f"<h2>Edge cut</h2><p>{report.edge_cut_ratio:.1%} of all edges are cut; a random assignment with partitions of "
        f'these sizes would cut about {expected_cut(manifest):.1%}.</p><p class="soft">Edges by the owner of the '
        "node that is expanded (row) and the owner of its neighbour (column). Off the diagonal they are cut"
        + ("." if len(measures.groups) == report.num_parts else "; on it some are, where partitions share a row.")
        + "</p>"
    )
    several = len(measures.edges) > 1
    if several:  # a row needs all types, each of all partitions of the row that are here
        num_here = [sum(part in report.parts for part in range(a, b + 1)) for a, b in measures.groups]
        is_read = np.all([each.num_read == num_here for each in measures.edges], axis=0)
        whole = np.sum([each.cut for each in measures.edges], axis=0) * is_read[:, None]
        text += _heat("Edges of all types", whole, num_here * is_read, report, measures, True)
    matrices = ""
    for each in measures.edges:
        num_edges, num_read = each.degrees.num_edges, int(each.num_read.sum())
        counted = f"{num_edges - each.num_local:,} of {num_edges:,} are cut" if num_read else "not counted"
        if 0 < num_read < report.num_parts:
            counted += f", of the {num_read} partitions that were read"
        matrices += _heat(
            f"Edges {' '.join(each.edge_type)}: {counted}", each.cut, each.num_read, report, measures, not several
        )
    return text + matrices


def _heat(
    caption: str, cut: np.ndarray, num_read: np.ndarray, report: Inspection, measures: Measures, is_open: bool
) -> str:
    most, here, rows = max(int(cut.max(initial=0)), 1), set(report.parts), ""
    names = [str(first) if first == last else f"{first} to {last}" for first, last in measures.groups]
    for name, (first, last), counts, num in zip(names, measures.groups, cut.tolist(), num_read.tolist(), strict=True):
        if num == 0:
            absent = "not here" if here.isdisjoint(range(first, last + 1)) else "not read"
            cells = f'<td class="soft">{absent}</td>' * len(counts)
        else:
            cells = "".join(
                f'<td style="background:rgba(var(--heat),{0.55 * each / most:.2f})">{each:,}</td>' for each in counts
            )
        size = last - first + 1
        of = "" if num in (0, size) else f" ({num} of {size} read)"
        rows += f'<tr><th scope="row">{name}{of}</th>{cells}</tr>'
    head = "".join(f'<th scope="col">{name}</th>' for name in ("owner", *names))
    return _wide(caption, head, rows, is_open)


def _degrees(report: Inspection, measures: Measures) -> str:
    text = (
        f'<h2>Degrees</h2><p class="soft">Stored {report.edge_dir}-edges of a node, as sampling follows them, in the '
        "partitions that were read. Nodes without edges are in the table only.</p>"
    )
    rows, drawn = [], []
    for each in measures.edges:
        of, name = each.degrees, " ".join(each.edge_type)
        if not each.num_read.any():
            rows.append((name, *["not read"] * 5))
            continue
        share = of.num_isolated / max(of.num_nodes, 1)
        isolated = f"{of.num_isolated:,} ({share:.1%})"
        rows.append((name, f"{of.num_nodes:,}", f"{of.mean:.2f}", f"{of.median:,}", f"{of.max_degree:,}", isolated))
        drawn.append(_histogram(f"Number of nodes by degree, edges {name} (both axes logarithmic)", of))
    head = ("edges", "nodes", "mean", "median", "largest", "without edges")
    return text + _table("Degrees by edge type", head, rows) + f'<div class="row">{"".join(drawn)}</div>'


def _histogram(caption: str, degrees: Degrees) -> str:
    counts = degrees.histogram[1:]
    if not any(counts):
        return ""
    top, width, bars = float(np.log10(max(counts)) + 0.3), 460 / len(counts), []
    for at, count in enumerate(counts):
        if count:
            height = 180 * (np.log10(count) + 0.3) / top
            first, last = 1 << at, (2 << at) - 1
            what = f"degree {first:,}" if first == last else f"degrees {first:,} to {last:,}"
            bars.append(
                f'<rect class="bar" x="{60 + at * width + 1:.1f}" y="{200 - height:.1f}" width="{width - 2:.1f}" '
                f'height="{height:.1f}"><title>{what}: {count:,} nodes</title></rect>'
            )
    step = -(-len(counts) // 8)
    labels = "".join(
        f'<text x="{60 + (at + 0.5) * width:.1f}" y="216" text-anchor="middle">{_short(1 << at)}</text>'
        for at in range(0, len(counts), step)
    )
    ticks = "".join(
        f'<text x="54" y="{204 - 180 * (power + 0.3) / top:.1f}" text-anchor="end">{_short(10**power)}</text>'
        for power in range(int(np.log10(max(counts))) + 1)
    )
    axis = '<path class="axis" d="M60 200H520"/><text x="290" y="234" text-anchor="middle">degree</text>'
    return _figure(caption, 240, axis + "".join(bars) + labels + ticks)


def _hotness(measures: Measures, manifest: Manifest) -> str:
    text = "<h2>Hotness and caches</h2>"
    if not any("/node_hotness/" in path for path in manifest.files):
        return text + (
            "<p>The partitions hold no hotness. Partition with --hotness degree, or with --hotness seeds, --seeds and "
            "--num-neighbors (in Python hotness=), to see which nodes are read most, and what caches answer.</p>"
        )
    forecasts = {each.node_type: each.forecast for each in manifest.node_types if each.forecast is not None}
    named = [(f"nodes {name}", each) for name, each in forecasts.items()]
    together = ReadForecast.of_all(list(forecasts.values()))
    rows = []
    for name, each in [*named, ("all types", together)] if len(named) > 1 and together is not None else named:
        other = each.num_remote_reads / sum(each.num_reads) if any(each.num_reads) else 0.0
        rows.append(_reads(name, sum(each.num_reads), other, each.total_hit_ratio, sum(each.num_cached)))
    head = ("reads of features", "number", "of other owners", "of these, in caches", "remote", "cached nodes")
    text += _table("All partitions, as the partitioner forecast by hotness", head, rows)
    for name, each in named:
        by_part = zip(each.num_reads, each.remote_ratio, each.hit_ratio, each.num_cached, strict=True)
        rows = [_reads(f"partition {part}", *figures) for part, figures in enumerate(by_part)]
        text += _table(f"By partition, {name}", head, rows)
    drawn = "".join(_curve(each) for each in measures.hotness)
    return text + f'<div class="row">{drawn}</div>'


def _reads(name: str, number: float, other_ratio: float, hit_ratio: float, num_cached: int) -> tuple[str, ...]:
    remote = other_ratio * (1 - hit_ratio)
    return name, f"{number:,.6g}", f"{other_ratio:.1%}", f"{hit_ratio:.1%}", f"{remote:.1%}", f"{num_cached:,}"


def _curve(hot: HotnessMeasure) -> str:
    points = " ".join(
        f"{60 + 460 * a:.1f},{200 - 180 * b:.1f}" for a, b in zip(NODE_SHARES, hot.read_share, strict=True)
    )
    ticks = "".join(
        f'<text x="54" y="{204 - 180 * at:.0f}" text-anchor="end">{at:.0%}</text>'
        f'<text x="{60 + 460 * at:.0f}" y="216" text-anchor="middle">{at:.0%}</text>'
        for at in (0.0, 0.5, 1.0)
    )
    axis = '<path class="axis" d="M60 20V200H520"/><text x="290" y="234" text-anchor="middle">hottest nodes</text>'
    shares = dict(zip(NODE_SHARES, hot.read_share, strict=True))
    said = ", ".join(f"the hottest {at:.0%} draw {shares[at]:.0%}" for at in (0.01, 0.1, 0.5))
    caption = f"Reads of nodes {hot.node_type} by the partitions that own them, of those that are here: {said}"
    return _figure(caption, 240, f'{axis}<polyline class="curve" points="{points}"/>{ticks}')


def _figure(caption: str, height: int, drawing: str) -> str:
    said = escape(caption)
    return (
        f'<figure><svg viewBox="0 0 540 {height}" role="img" aria-label="{said}"><title>{said}</title>{drawing}</svg>'
        f"<figcaption>{said}</figcaption></figure>"
    )


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(each)}</td>" for each in rest)}</tr>'
        for first, *rest in rows
    )
    return _wide(caption, heads, lines, is_open=len(rows) <= _MAX_OPEN)


def _wide(caption: str, heads: str, lines: str, is_open: bool = True) -> str:
    said = escape(caption)
    return (
        f'<details{" open" if is_open else ""}><summary>{said}</summary><div class="wide" tabindex="0">'
        f'<table aria-label="{said}"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></details>'
    )


def _short(number: int) -> str:
    for power, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")):
        if number >= power:
            return f"{number / power:.3g}{unit}"
    return str(number)
