"""``glt inspect --html``: the numbers of the page are those of the input, damage is said, and nothing is asked for."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from partition_world import needs_metis

from glt._checks import format_size
from glt.cli import main
from glt.partition import (
    AssignedPartitioner,
    FrequencyPartitioner,
    Manifest,
    MetisPartitioner,
    RandomPartitioner,
    inspect_partitions,
    load_partition,
)

NUM_NODES, NUM_PARTS = 600, 3
HOSTILE = "<script>alert(1)</script>\"'&"
VOID = {"meta", "link"}


class Page(HTMLParser):
    """Text of cells by the name of their table; raises where tags do not balance."""

    def __init__(self, path):
        super().__init__()
        self.tables, self.links, self.text, self._open = {}, [], "", []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("href", "src") if name in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows = self.tables.setdefault(attrs["aria-label"], [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self._open and self._open[-1] in ("td", "th"):
            self._rows[-1][-1] += data

    def table(self, begin):
        (found,) = [rows for name, rows in self.tables.items() if name.startswith(begin)]
        return found


def page_of(directory, status=0, *flags):
    path = directory.parent / f"{directory.name}.html"
    assert main(["inspect", str(directory), "--html", str(path), *flags]) == status
    return Page(path)


def edges_at_random(num_src, num_dst, num_edges, seed=0):
    generator = np.random.default_rng(seed)
    return np.stack([generator.integers(0, num_src, num_edges), generator.integers(0, num_dst, num_edges) // 2])


def owners(directory, node_type, num_nodes):
    """Of each node of the input, as the partitions say."""
    owner = np.empty(num_nodes, np.int64)
    for idx in range(NUM_PARTS):
        part = load_partition(directory, idx)
        nodes = part.nodes[part.schema.node_types.index(node_type)]
        of_input = directory / "node_map" / f"{node_type}.npy"  # there if ids were relabelled
        owner[np.load(of_input)[nodes.ids] if of_input.exists() else nodes.ids] = idx
    return owner


def wanted_cut(owner_of_row, owner_of_col):
    cut = np.zeros((NUM_PARTS, NUM_PARTS), np.int64)
    np.add.at(cut, (owner_of_row, owner_of_col), 1)
    return [[str(row), *(f"{each:,}" for each in counts)] for row, counts in enumerate(cut.tolist())]


def assert_degrees(row, nodes, num_nodes):
    degrees = np.sort(np.bincount(nodes, minlength=num_nodes))
    isolated = int((degrees == 0).sum())
    assert row[1:] == [
        f"{num_nodes:,}",
        f"{degrees.mean():.2f}",
        f"{degrees[(num_nodes - 1) // 2]:,}",
        f"{degrees.max():,}",
        f"{isolated:,} ({isolated / num_nodes:.1%})",
    ]


@pytest.fixture
def graph():
    edges = edges_at_random(NUM_NODES, NUM_NODES, 9000)
    hot = np.bincount(edges[1], minlength=NUM_NODES).astype(np.float32)
    feat = np.zeros((NUM_NODES, 4), np.float32)
    return {"num_nodes": NUM_NODES, "edge_index": edges, "node_feat": feat, "hotness": [hot] * NUM_PARTS}


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("strategy", ["by_src", "by_dst"])
def test_cut_degrees_and_bytes_are_those_of_the_input(graph, tmp_path, relabel, strategy):
    root = tmp_path / "parts"
    options = {"relabel": relabel, "edge_assign_strategy": strategy}
    RandomPartitioner(root, NUM_PARTS, **graph, **options).partition()
    page = page_of(root)
    owner = owners(root, "node", NUM_NODES)
    row, col = graph["edge_index"] if strategy == "by_src" else graph["edge_index"][::-1]
    num_cut = int((owner[row] != owner[col]).sum())
    cut = page.table(f"Edges node to node: {num_cut:,} of 9,000 are cut")
    assert cut[1:] == wanted_cut(owner[row], owner[col])
    assert_degrees(page.table("Degrees")[1], row, NUM_NODES)
    histogram = np.bincount([int(each).bit_length() for each in np.bincount(row, minlength=NUM_NODES)])
    for bits, count in enumerate(histogram.tolist()):
        if bits > 1 and count:
            assert f"degrees {2 ** (bits - 1):,} to {2**bits - 1:,}: {count:,} nodes" in page.text
    sizes = page.table("Bytes by partition and kind")
    for at, name in enumerate(["all hosts", "partition 0", "partition 1", "partition 2"]):
        folders = [f"part{at - 1}"] if at else ["node_*", "edge_*"]
        num_bytes = sum(path.stat().st_size for folder in folders for path in root.glob(f"{folder}/**/*.npy"))
        assert (sizes[1 + at][0], sizes[1 + at][-1]) == (name, format_size(num_bytes))


def test_every_edge_type_is_counted_by_itself_and_names_are_only_text(tmp_path):
    counts = {"user": 300, HOSTILE: 90}
    edges = {
        ("user", "buys", HOSTILE): edges_at_random(300, 90, 2000),
        (HOSTILE, "of", "user"): edges_at_random(90, 300, 700, 1),
    }
    root = tmp_path / "parts"
    RandomPartitioner(root, NUM_PARTS, counts, edges).partition()
    page = page_of(root)
    owner = {name: owners(root, name, number) for name, number in counts.items()}
    whole = np.zeros((NUM_PARTS, NUM_PARTS), np.int64)
    for at, ((src, relation, dst), (row, col)) in enumerate(edges.items()):
        cut = page.table(f"Edges {src} {relation} {dst}: ")
        assert cut[1:] == wanted_cut(owner[src][row], owner[dst][col])
        np.add.at(whole, (owner[src][row], owner[dst][col]), 1)
        assert_degrees(page.table("Degrees")[1 + at], row, counts[src])
    shown = [[int(each.replace(",", "")) for each in row[1:]] for row in page.table("Edges of all types")[1:]]
    assert shown == whole.tolist()
    text = (tmp_path / "parts.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text


def test_of_many_partitions_several_share_a_row(tmp_path):
    edges, root = edges_at_random(200, 200, 4000), tmp_path / "parts"
    RandomPartitioner(root, 40, 200, edges).partition()
    cut = page_of(root).table("Edges node to node: ")
    row, col = np.load(root / "node_book" / "node.npy").astype(np.int64)[edges] // 2
    wanted = np.zeros((20, 20), np.int64)
    np.add.at(wanted, (row, col), 1)
    assert [each[0] for each in cut] == ["owner", *(f"{2 * at} to {2 * at + 1}" for at in range(20))]
    assert [[int(each) for each in line[1:]] for line in cut[1:]] == wanted.tolist()
    shutil.rmtree(root / "part0")
    shutil.rmtree(root / "part2")
    shutil.rmtree(root / "part3")
    partial = page_of(root).table("Edges node to node: ")
    assert partial[1][0] == "0 to 1 (1 of 2 read)" and partial[2] == ["2 to 3", *["not here"] * 20]
    assert partial[3:] == cut[3:]


def test_a_copy_without_partitions_still_gives_a_page(graph, tmp_path):
    RandomPartitioner(tmp_path / "parts", NUM_PARTS, **graph).partition()
    for part in range(NUM_PARTS):
        shutil.rmtree(tmp_path / "parts" / f"part{part}")
    page = page_of(tmp_path / "parts")
    assert page.table("Edges node to node: not counted")[1] == ["0", *["not here"] * 3]
    assert page.table("Degrees")[1][1:] == ["not read"] * 5


def test_the_page_refers_to_nothing_outside_itself(graph, tmp_path):
    RandomPartitioner(tmp_path / "parts", NUM_PARTS, **graph).partition()
    assert page_of(tmp_path / "parts").links == ["data:,"]
    text = (tmp_path / "parts.html").read_text()
    assert not re.search(r"https?:|//|url\(|@import|<script", text.replace(str(tmp_path), ""))


def test_hotness_is_that_of_the_input_and_caches_are_those_of_the_manifest(graph, tmp_path):
    root, hot = tmp_path / "parts", graph["hotness"][0]
    RandomPartitioner(root, NUM_PARTS, **graph, cache_ratio=0.1).partition()
    page, forecast = page_of(root), Manifest.read(root).forecast
    row = page.table("All partitions, as the partitioner forecast")[1]
    remote = sum(a * b for a, b in zip(forecast.num_reads, forecast.remote_ratio, strict=True))
    figures = (remote / sum(forecast.num_reads), forecast.total_hit_ratio, forecast.total_remote_ratio)
    assert row == ["nodes node", f"{sum(forecast.num_reads):,.6g}", *(f"{each:.1%}" for each in figures), "180"]
    descending = np.cumsum(np.sort(hot)[::-1]) / hot.sum()
    for share in (0.01, 0.1, 0.5):
        shown = re.search(rf"the hottest {share:.0%} draw (\d+)%", page.text)[1]
        assert abs(int(shown) / 100 - descending[round(share * NUM_NODES) - 1]) <= 0.015


def test_partitions_that_are_not_here_have_no_numbers(graph, tmp_path):
    RandomPartitioner(tmp_path / "whole", NUM_PARTS, **graph).partition()
    shutil.copytree(tmp_path / "whole", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "part1")
    whole, copy = page_of(tmp_path / "whole"), page_of(tmp_path / "copy")
    (cut,) = [rows for name, rows in copy.tables.items() if "of the 2 partitions that were read" in name]
    full = whole.table("Edges node to node")
    assert cut == [*full[:2], ["1", "not here", "not here", "not here"], full[3]]
    assert [row[0] for row in copy.table("Bytes by partition")[1:]] == ["all hosts", "partition 0", "partition 2"]
    assert "1 of 3 partitions are not here" in copy.text and "not here" not in whole.text


@pytest.mark.parametrize("damage", ["gone", "id", "indptr", "book"])
def test_what_a_damaged_file_spoils_is_left_out_whole_and_said(graph, tmp_path, damage, capsys):
    root = tmp_path / "parts"
    RandomPartitioner(root, NUM_PARTS, **graph).partition()
    full = page_of(root).table("Edges node to node")
    name = {"indptr": "part1/graph/node__to__node/indptr.npy", "book": "node_book/node.npy"}.get(
        damage, "part1/graph/node__to__node/indices.npy"
    )
    if damage == "gone":
        (root / name).unlink()
    else:
        array = np.load(root / name, mmap_mode="r+")
        array[array.size // 2] = {"id": NUM_NODES, "indptr": 0, "book": NUM_PARTS}[damage]
        array.flush()
    page = page_of(root, 1)
    assert f"{name} " in page.text and "Not measured (1)" in page.text
    assert "Copy the directory again" in page.text.split("What was looked for")[0]
    assert name in capsys.readouterr().err
    absent = [[str(part), *["not read"] * 3] for part in range(NUM_PARTS)]
    cut = page.table("Edges node to node")
    assert cut == [full[0], *absent] if damage == "book" else [*full[:2], absent[1], full[3]]
    degrees = page.table("Degrees")[1]
    assert degrees[1] == ("not read" if damage == "book" else "400")


def test_there_is_nothing_to_change_where_all_is_well(tmp_path):
    ring = np.stack([np.arange(60), np.roll(np.arange(60), -1)])
    AssignedPartitioner(tmp_path / "parts", NUM_PARTS, 60, ring, owners=np.arange(60) // 20).partition()
    assert "Nothing to change." in page_of(tmp_path / "parts").text


def test_advice_names_the_flag_and_the_argument(graph, tmp_path):
    owner = np.minimum(np.arange(NUM_NODES) % 5, 2)  # the last has three fifths
    feat = np.zeros((NUM_NODES, 28_000), np.float32)
    mask = {"train_mask": owner == 0}
    given = graph | {"node_feat": feat, "node_attrs": mask}
    AssignedPartitioner(tmp_path / "parts", NUM_PARTS, owners=owner, **given).partition()
    text = page_of(tmp_path / "parts").text.split("What was looked for")[0]
    for said in (
        "nodes node has 1.80 times the mean: partition with --method metis or fennel, with a small --imbalance",
        "with train_mask, the largest partition has 3.00 times the mean: partition with --balance train_mask",
        "--balance-edges (in Python balance_edges=True)",
        "try --method metis or --method fennel",
        "--cache-ratio 0.1, say (in Python cache_ratio=0.1)",
        "--store-dtype float16",
    ):
        assert said in text
    hot = graph.pop("hotness")
    FrequencyPartitioner(tmp_path / "cached", NUM_PARTS, probs=hot, cache_ratio=0.1, **graph).partition()
    assert "--cache-ratio" not in page_of(tmp_path / "cached").text.split("What was looked for")[0]


@needs_metis
def test_metis_is_not_told_to_use_metis(graph, tmp_path):
    MetisPartitioner(tmp_path / "parts", NUM_PARTS, **graph).partition()
    assert "--method metis or --method fennel" not in page_of(tmp_path / "parts").text


def test_text_and_json_are_those_without_a_page(graph, tmp_path, capsys):
    RandomPartitioner(tmp_path / "parts", NUM_PARTS, **graph).partition()
    outputs = []
    for flags in ([], ["--html", str(tmp_path / "page.html")]):
        for json_flag in ([], ["--json"]):
            assert main(["inspect", str(tmp_path / "parts"), *flags, *json_flag]) == 0
            outputs.append(capsys.readouterr())
    assert outputs[:2] == outputs[2:] and json.loads(outputs[3].out)["num_parts"] == NUM_PARTS


@pytest.mark.parametrize("target", ["nowhere/page.html", ".", "parts/page.html"])
def test_a_place_that_takes_no_page_is_refused_before_anything_is_read(directory, target, capsys, monkeypatch):
    monkeypatch.setattr("glt.partition.inspect.inspect_partitions", lambda *_, **__: pytest.fail("was read"))
    place = directory / "page.html" if target.startswith("parts") else directory.parent / target
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(directory), "--html", str(place)])
    assert ended.value.code == 2 and f"argument --html: {str(place)!r}" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    edges, values = np.zeros((2, 1), np.int64), np.arange(60)
    tables = {f"{'table' * 20}{at}": values for at in range(40)}  # text of more than a pipe holds
    RandomPartitioner(tmp_path / "parts", 2, 60, edges, node_attrs=tables).partition()
    assert len(json.dumps([str(each) for each in inspect_partitions(tmp_path / "parts").nodes[0].values])) > 1 << 17
    command = f"{sys.executable} -m glt inspect {tmp_path / 'parts'} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(tmp_path / "parts"), "0"] and done.stderr == ""


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")


@pytest.mark.integration
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium-headless-shell)")
def test_a_browser_shows_it_without_complaints(graph, tmp_path):
    RandomPartitioner(tmp_path / "parts", NUM_PARTS, **graph).partition()
    page_of(tmp_path / "parts")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, f"file://{tmp_path / 'parts.html'}"], capture_output=True, text=True, timeout=90)
    assert "Nodes, values of their tables, and edges by partition" in done.stdout and done.stdout.count("<svg") == 2
    assert "CONSOLE" not in done.stderr
