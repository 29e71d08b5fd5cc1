"""The pictures of docs/scale.md, from benchmarks/results/scale.json: lines and text that read on white and on black.

python -m benchmarks.plot_scale [DIRECTORY]  # default docs/_static; needs matplotlib (pip install 'glt-graph[docs]')
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks._harness import RESULTS

STATIC = RESULTS.parents[1] / "docs" / "_static"
GREY = "#7d8590"
COLORS = {"random": "#8957e5", "fennel": "#1f8fd6", "metis": "#c9850b", "frequency": "#2da05a"}
GRAPHS = {"slashdot": "slashdot (real)", "S": "S (R-MAT)", "M": "M (R-MAT)", "papers": "papers (drawn)"}
Row = dict[str, Any]
Value = Callable[[Row], float]


def line(axes: Axes, rows: list[Row], value: Value, label: str, color: str, style: str = "-") -> None:
    points = sorted((row["hosts"], value(row)) for row in rows)
    if points:
        axes.plot(
            *zip(*points, strict=True), style, color=color, label=label, marker="o", markersize=3.5, linewidth=1.7
        )


def figure(titles: list[str], ylabel: str) -> tuple[Figure, list[Axes]]:
    drawn = Figure(figsize=(9.6, 3.4), layout="constrained")
    found: list[Axes] = list(drawn.subplots(1, len(titles), sharex=True, sharey=bool(ylabel), squeeze=False)[0])
    for axes, title in zip(found, titles, strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
        axes.set_xlabel("hosts")
        axes.grid(True, linewidth=0.4, alpha=0.5)
    found[0].set_ylabel(ylabel)
    return drawn, found


def placements(rows: list[Row], graphs: list[str], value: Value, ylabel: str) -> Figure:
    """Solid: seeds of anywhere; dashed: local ones."""
    drawn, found = figure([GRAPHS[name] for name in graphs], ylabel)
    for axes, name in zip(found, graphs, strict=True):
        for placement, color in COLORS.items():
            for seeds, style in (("any", "-"), ("local", "--")):
                mine = [
                    row for row in rows if (row["graph"], row["placement"], row["seeds"]) == (name, placement, seeds)
                ]
                if seeds == "local" or placement in ("random", "frequency"):
                    line(axes, mine, value, f"{placement}, {seeds} seeds", color, style)
        axes.set_ylim(bottom=0)
    found[0].legend(fontsize=7, loc="lower right", handlelength=3)
    return drawn


def caches(rows: list[Row], graphs: list[str]) -> Figure:
    drawn, found = figure([GRAPHS[name] for name in graphs], "rows asked for, share of the batch")
    shades = {0: GREY, 1: "#8957e5", 5: "#1f8fd6", 10: "#c9850b", 20: "#2da05a"}
    for axes, name in zip(found, graphs, strict=True):
        mine = [row for row in rows if (row["graph"], row["placement"], row["seeds"]) == (name, "random", "any")]
        for percent, color in shades.items():
            line(axes, mine, lambda row, key=f"rows_{percent}": row[key] / row["nodes"], f"cache {percent}%", color)
        axes.set_ylim(0, 1)
    found[-1].legend(fontsize=7)
    return drawn


def messages(rows: list[Row], graphs: list[str]) -> Figure:
    drawn, found = figure(["requests per batch", "MB that a host sends per batch"], "")
    for name, color in zip(graphs, COLORS.values(), strict=False):
        mine = [row for row in rows if (row["graph"], row["placement"], row["seeds"]) == (name, "random", "any")]
        line(found[0], mine, lambda row: row["messages_0"], GRAPHS[name], color)
        line(found[1], mine, lambda row: row["mb_0"], GRAPHS[name], color)
    for axes in found:
        axes.set_yscale("log")
    found[0].legend(fontsize=8)
    return drawn


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else STATIC
    mpl.rcParams |= {"svg.hashsalt": "glt", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    mpl.rcParams |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), GREY)
    mpl.rcParams |= dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), GREY)
    mpl.rcParams |= {"legend.framealpha": 0.0, "legend.facecolor": "none"}
    rows = json.loads((RESULTS / "scale.json").read_text())["rows"]
    graphs = [name for name in GRAPHS if any(row["graph"] == name for row in rows)]
    pictures = {
        "scale-placements": placements(rows, graphs, lambda row: row["rows_0"] / row["nodes"], "rows of others, share"),
        "scale-caches": caches(rows, graphs),
        "scale-messages": messages(rows, graphs),
    }
    for name, drawn in pictures.items():
        drawn.savefig(directory / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": "plot_scale"})
        print(directory / f"{name}.svg")


if __name__ == "__main__":
    main()
