"""Tables, results and partitions in buckets of an S3 server that runs here (moto), and tables on a web server."""

import errno
import functools
import http.server
import json
import os
import threading
import time

import pyarrow.parquet as pq
import pytest
import torch

import glt
from glt.errors import PartitionError, TableError
from glt.partition.format import remote

moto = pytest.importorskip("moto.server", reason="no S3 server here: pip install 'moto[server]' boto3")
boto3 = pytest.importorskip("boto3", reason="no S3 server here: pip install 'moto[server]' boto3")
pytestmark = pytest.mark.integration

ACCOUNTS = "id,age\nann,31\nbob,44\ncarl,18\n"
PAYMENTS = ["from,to\nann,bob\n", "from,to\nbob,carl\ncarl,ann\n"]


@pytest.fixture(scope="module")
def s3():
    """A server; gives a client of it and the options that URLs need."""
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    yield client, f"endpoint_override={host}%3A{port}&scheme=http&region=us-east-1&allow_bucket_creation=false"
    server.stop()


@pytest.fixture
def bucket(s3, request, tmp_path, monkeypatch):
    """The URL of a path in a new bucket, and its client."""
    client, options = s3
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("GLT_CACHE", str(tmp_path / "cache"))
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]").lower()[:60]
    client.create_bucket(Bucket=name)
    return client, name, lambda path: f"s3://{name}/{path}?{options}"


def upload(client, bucket, root, under=""):
    for path in root.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket, f"{under}{path.relative_to(root).as_posix()}")


@pytest.fixture
def tables(bucket):
    client, name, url = bucket
    client.put_object(Bucket=name, Key="in/accounts.csv", Body=ACCOUNTS)
    for i, text in enumerate(PAYMENTS):
        client.put_object(Bucket=name, Key=f"in/payments/{i}.csv", Body=text)
    account = {"files": url("in/accounts.csv"), "key": "id", "features": {"age": "standardize"}}
    pays = {"type": ["account", "pays", "account"], "files": url("in/payments"), "src": "from", "dst": "to"}
    return {"node_types": {"account": account}, "edge_types": [pays]}


@pytest.mark.parametrize("files", ["in/payments", "in/payments/*.csv"])
def test_tables_in_a_bucket_make_the_graph_that_local_ones_make(bucket, tables, files, tmp_path):
    tables["edge_types"][0]["files"] = bucket[2](files)
    glt.tables.build(tables, tmp_path / "far")
    (tmp_path / "accounts.csv").write_text(ACCOUNTS)
    for i, text in enumerate(PAYMENTS):
        (tmp_path / f"payments-{i}.csv").write_text(text)
    tables["node_types"]["account"]["files"] = str(tmp_path / "accounts.csv")
    tables["edge_types"][0]["files"] = str(tmp_path / "payments-*.csv")
    glt.tables.build(tables, tmp_path / "near")
    for path in sorted((tmp_path / "near").rglob("*")):
        if path.is_file() and path.name not in ("build.json", "report.html"):
            assert path.read_bytes() == (tmp_path / "far" / path.relative_to(tmp_path / "near")).read_bytes()


@pytest.mark.parametrize(("pattern", "count"), [("in/*.csv", 5), ("in/**/*.csv", 6), ("in", 6)])
def test_names_of_any_letters_and_patterns_within_a_directory(bucket, tmp_path, pattern, count):
    client, name, url = bucket
    for key in ("e 1.csv", "e#2.csv", "e%203.csv", "é[4]+.csv", "e?5.csv", "sub/e6.csv"):
        client.put_object(Bucket=name, Key=f"in/{key}", Body=PAYMENTS[0])
    pays = {"type": ["account", "pays", "account"], "files": url(pattern), "src": "from", "dst": "to"}
    counts = glt.tables.build({"node_types": {"account": {}}, "edge_types": [pays]}, tmp_path / "out")
    assert counts["edge_types"]["account__pays__account"]["num_read"] == count


def test_updates_know_what_was_read_from_a_bucket(bucket, tables, tmp_path):
    client, name, _ = bucket
    glt.tables.build(tables, tmp_path / "old")
    client.put_object(Bucket=name, Key="in/payments/9.csv", Body="from,to\nann,carl\n")
    counts = glt.tables.build(tables, tmp_path / "new", update=tmp_path / "old")
    assert counts["edge_types"]["account__pays__account"]["num_read"] == 1
    assert glt.partition.read_graph(tmp_path / "new/graph.json", tmp_path).num_edges == 4


def test_what_cannot_be_read_is_named(bucket, tables, tmp_path):
    lost = bucket[2]("x.csv").replace(bucket[1], "no-such-bucket", 1)
    for files, error in ((bucket[2]("nothing"), "there are none"), (lost, "no-such-bucket/x.csv")):
        tables["edge_types"][0]["files"] = files
        with pytest.raises(TableError, match=rf"edge type \['account', 'pays', 'account'\].*{error}"):
            glt.tables.build(tables, tmp_path / "out")


def test_a_description_is_guessed_from_a_bucket(bucket, tables):
    described = glt.tables.describe(bucket[2]("in/accounts.csv"), bucket[2]("in/payments"))
    assert described.edge_types[0].type == ("accounts", "payments", "accounts")
    assert described.edge_types[0].files.paths == tuple(bucket[2](f"in/payments/{i}.csv") for i in range(2))


def test_results_go_to_a_bucket(bucket, tmp_path):
    client, name, url = bucket
    path = glt.tables.write({"score": torch.tensor([0.5, 0.25])}, url("scores"), rank=1, num_ranks=2)
    assert path == f"s3://{name}/scores/part-00001-of-00002.parquet"
    client.download_file(name, "scores/part-00001-of-00002.parquet", str(tmp_path / "scores.parquet"))
    assert pq.read_table(tmp_path / "scores.parquet").to_pydict() == {"id": [0, 1], "score": [0.5, 0.25]}
    with pytest.raises(FileExistsError, match="part-00001-of-00002"):
        glt.tables.write(torch.zeros(1), url("scores"), rank=1, num_ranks=2)


@pytest.fixture
def parts(bucket, tmp_path):
    graph = glt.testing.ring_graph(40)
    glt.partition.RandomPartitioner(
        tmp_path / "parts", 2, 40, graph.edge_index, node_feat=graph.x, edge_assign_strategy="by_dst"
    ).partition()
    upload(*bucket[:2], tmp_path / "parts", "graphs/ring/")
    return bucket[2]("graphs/ring")


def test_a_partition_is_opened_through_a_cache(bucket, parts, tmp_path):
    part = glt.partition.load_partition(parts, 1)
    here = glt.partition.load_partition(tmp_path / "parts", 1)
    assert (part.nodes[0].feat == here.nodes[0].feat).all() and part.manifest.run_id == here.manifest.run_id
    (run,) = (tmp_path / "cache/partitions").iterdir()
    assert run.name == part.manifest.run_id and (run / "part1").is_dir() and not (run / "part0").exists()
    for each in bucket[0].list_objects(Bucket=bucket[1])["Contents"]:
        if not each["Key"].endswith("manifest.json"):
            bucket[0].delete_object(Bucket=bucket[1], Key=each["Key"])
    assert glt.partition.load_partition(parts, 1).nodes[0].feat.shape == part.nodes[0].feat.shape
    with pytest.raises(PartitionError, match=r"s3://.*/part0/.* is missing"):
        glt.partition.load_partition(parts, 0)


def test_types_of_any_letters_in_a_bucket(bucket, tmp_path):
    edges = {("a b", "to#%20", "ü"): torch.tensor([[0, 1], [1, 0]])}
    given = {"num_nodes": {"a b": 2, "ü": 2}, "edge_index": edges, "node_feat": {"a b": torch.eye(2)}}
    glt.partition.RandomPartitioner(tmp_path / "parts", 1, **given).partition()
    upload(*bucket[:2], tmp_path / "parts", "typed/")
    part = glt.partition.load_partition(bucket[2]("typed"), 0)
    assert list(part.manifest.schema.node_types) == ["a b", "ü"]


def test_a_loader_over_a_partition_in_a_bucket(parts, tmp_path):
    glt.distributed.initialize(part_config=parts)
    try:
        data = glt.distributed.DistDataset().load(parts, 0)
        assert data.num_partitions == 2 and str(tmp_path / "cache") in data.load_args["graph_dir"]
    finally:
        glt.distributed.finalize()


@pytest.mark.parametrize("how", ["altered", "cut"])
def test_a_damaged_file_is_named_and_not_kept(bucket, parts, how):
    client, name, _ = bucket
    (key,) = [e["Key"] for e in client.list_objects(Bucket=name)["Contents"] if "/part0/node_feat/" in e["Key"]]
    sound = client.get_object(Bucket=name, Key=key)["Body"].read()
    wrong = sound[:-1] + bytes([sound[-1] ^ 1]) if how == "altered" else sound[:-5]
    client.put_object(Bucket=name, Key=key, Body=wrong)
    with pytest.raises(PartitionError, match=r"s3://.*/part0/node_feat/.*upload part0/node_feat/.* again"):
        glt.partition.load_partition(parts, 0)
    client.put_object(Bucket=name, Key=key, Body=sound)
    assert len(glt.partition.load_partition(parts, 0).nodes[0].feat) == 20


def test_a_manifest_that_is_not_there(bucket):
    with pytest.raises(PartitionError, match=r"s3://.*/nothing/manifest.json\?.* is missing"):
        glt.partition.load_partition(bucket[2]("nothing"), 0)


@pytest.fixture
def fetched(monkeypatch):
    """The files that are fetched, but manifests, each as often as it is."""
    paths, fetch = [], remote._fetch

    def counted(url, path, *given):
        if not path.endswith("manifest.json"):
            paths.append(path)
        fetch(url, path, *given)

    monkeypatch.setattr(remote, "_fetch", counted)
    return paths


def test_processes_of_a_host_copy_once(parts, tmp_path, fetched):
    """Each of eight threads, as processes do, finds all that it needs."""
    found, threads = [], []
    for i in range(8):
        threads.append(threading.Thread(target=lambda i=i: found.append(glt.partition.load_partition(parts, i % 2))))
        threads[-1].start()
    for each in threads:
        each.join()
    assert sorted(part.index for part in found) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(fetched) == len(set(fetched)) > 5
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.endswith(".new") or ".new-" in path.name]


def test_one_that_is_stuck_is_not_waited_for(parts, tmp_path, fetched, monkeypatch):
    """While something comes, another waits for it, however long; then it copies itself."""
    run = remote.local_directory(parts, None)
    os.utime(run, (0, 0))  # of long ago
    monkeypatch.setattr(remote.deadlines, "STUCK_S", 1.0)
    with remote._alone(run):
        waits = threading.Thread(target=remote.local_directory, args=(parts, 0))
        waits.start()
        for _ in range(8):
            time.sleep(0.3)
            os.utime(run)  # as when a large file comes
        assert waits.is_alive() and not fetched
        waits.join(20)
    assert fetched and not waits.is_alive()


def test_a_failure_ends_the_copy_and_lack_of_room_is_said_as_such(parts, monkeypatch):
    sound, tried = remote._copy, []

    def full(url, local, path, manifest):
        tried.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote, "_NUM_FILES", 1)
    monkeypatch.setattr(remote, "_copy", full)
    with pytest.raises(OSError, match=r"No space left on device: free some room .*cache/partitions"):
        glt.partition.load_partition(parts, 0)
    assert len(tried) <= 2, "of nine"
    monkeypatch.setattr(remote, "_copy", sound)
    assert glt.partition.load_partition(parts, 0).index == 0
    with pytest.raises(PartitionError, match="partition_idx = 7"):
        glt.partition.load_partition(parts, 7)


def test_tables_and_partitions_on_a_web_server(tmp_path, monkeypatch):
    pytest.importorskip("fsspec", reason="no fsspec here: pip install fsspec aiohttp")
    pytest.importorskip("aiohttp", reason="no aiohttp here: pip install fsspec aiohttp")
    ring = glt.testing.ring_graph(20)
    (tmp_path / "site").mkdir()
    glt.partition.RandomPartitioner(tmp_path / "site/parts", 1, 20, ring.edge_index).partition()
    (tmp_path / "site/payments.csv").write_text("".join([PAYMENTS[0], *PAYMENTS[1].splitlines(True)[1:]]))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/payments.csv?signed=1"
        pays = {"type": ["account", "pays", "account"], "files": url, "src": "from", "dst": "to"}
        counts = glt.tables.build({"node_types": {"account": {}}, "edge_types": [pays]}, tmp_path / "out")
        monkeypatch.setenv("GLT_CACHE", str(tmp_path / "cache"))
        part = glt.partition.load_partition(url.partition("/payments")[0] + "/parts", 0)
        server.shutdown()
    assert len(part.nodes[0].owned) == 20
    assert counts["edge_types"]["account__pays__account"]["num_kept"] == 3
    assert json.loads((tmp_path / "out/build.json").read_text())["files"]
