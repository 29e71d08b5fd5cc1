"""The dashboard for Grafana is one by its model, and asks for metrics that endpoints export."""

import json
import re
from pathlib import Path

import pytest

from glt.distributed.endpoint.metrics import Metrics
from glt.distributed.server.stats import COUNTERS, GAUGES, RATES

BOARD = json.loads((Path(__file__).parents[3] / "docs" / "_static" / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def exported():
    """Names of the samples of a server with a loader, a worker and a tensor, and of a trainer with a loader."""
    pytest.importorskip("prometheus_client")
    row = dict.fromkeys((*COUNTERS, *GAUGES, *RATES), 1.0)
    tensor = dict.fromkeys("num_rows num_bytes num_reads num_writes read_bytes written_bytes".split(), 1)
    server = dict.fromkeys("uptime_s num_clients num_loaders num_workers num_restarts is_draining".split(), 1)
    server |= {"totals": row, "loaders": {"l": row}, "workers": {"0": row}, "tensors": {"t": tensor}}
    trainer = {"loaders": {"l": dict.fromkeys(("num_batches", "wait_s", "collate_s", "channel_num_queued"), 1)}}
    families = [*Metrics("server", {}, lambda: server).collect(), *Metrics("trainer", {}, lambda: trainer).collect()]
    return {sample.name for family in families for sample in family.samples}


def test_each_expression_names_metrics_that_are_exported():
    known = exported()
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions += [each["definition"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    assert len(expressions) > 20
    for expression in expressions:
        named = set(re.findall(r"glt_\w+", expression))
        assert named and named <= known, (expression, named - known)
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")


def test_it_has_what_the_model_of_dashboards_asks_for():
    assert BOARD["id"] is None and re.fullmatch(r"[\w-]{1,40}", BOARD["uid"]) and BOARD["schemaVersion"] >= 36
    variables = {each["name"] for each in BOARD["templating"]["list"]}
    assert variables == {"datasource", "server"}
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert (
            panel["title"]
            and panel["fieldConfig"]["defaults"]["unit"]
            and panel["datasource"]["uid"] == "${datasource}"
        )
        assert [target["refId"] for target in panel["targets"]] == list("ABC"[: len(panel["targets"])])
        assert all("$server" in target["expr"] for target in panel["targets"])
