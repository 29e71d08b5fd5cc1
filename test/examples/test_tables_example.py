"""The example that leads from a bank's tables to a score for each account, at toy size."""

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]


def test_each_account_has_a_score(tmp_path, run, command):
    run(ROOT / "examples/tables/make_tables.py", "--out", "bank", "--accounts", "400", folder=tmp_path)
    description = json.loads((ROOT / "examples/tables/mules.json").read_text())
    (tmp_path / "mules.json").write_text(json.dumps(description))
    assert command("build", tmp_path / "mules.json", "--out", tmp_path / "graph", "--memory", "700MB")[0] == 0
    status, _, _ = command("partition", tmp_path / "graph/graph.json", "--out", tmp_path / "parts", "--num-parts", "2")
    assert status == 0
    flags = "--parts", "parts", "--out", "scores", "--epochs", "1"
    done = run(ROOT / "examples/tables/train.py", *flags, folder=tmp_path)
    assert "average precision on" in done.stdout and "trainer 0 of 1: 400 scores" in done.stdout
    scores = pq.read_table(tmp_path / "scores")
    assert scores.column_names == ["iban", "score"]
    accounts = pyarrow.csv.read_csv(tmp_path / "bank/accounts.csv")
    assert sorted(scores["iban"].to_pylist()) == sorted(accounts["iban"].to_pylist())
