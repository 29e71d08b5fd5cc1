"""Tables, results and partitions in the stores of Google and Azure, by servers that run here."""

import shutil
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import glt
from glt._urls import open_file_system
from glt.errors import PartitionError, TableError

pytestmark = pytest.mark.integration

ACCOUNTS = b"id,age\nann,31\nbob,44\ncarl,18\n"
PAYMENTS = [b"from,to\nann,bob\n", b"from,to\nbob,carl\ncarl,ann\n"]
AZURITE_ACCOUNT = "devstoreaccount1"  # it knows this one, with this key
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def google(port):
    pytest.importorskip("gcp_storage_emulator", reason="no server of gs:// here: pip install gcp-storage-emulator")
    start = "from gcp_storage_emulator.__main__ import main; main()"
    words = ["start", "--host", "127.0.0.1", "--port", str(port), "--in-memory", "--default-bucket", "bank"]
    options = f"endpoint_override=127.0.0.1%3A{port}&scheme=http&retry_limit_seconds=5"
    return [sys.executable, "-c", start, *words], lambda path: f"gs://anonymous@bank/{path}?{options}"


def azure(port):
    sas = pytest.importorskip("azure.storage.blob", reason="no client of abfs:// here: pip install azure-storage-blob")
    built = Path(__file__).parents[2] / "build/azurite/node_modules/.bin"
    command = shutil.which("azurite-blob") or shutil.which("azurite-blob", path=str(built))
    if command is None:
        pytest.skip("no server of abfs:// here: npm install --prefix build/azurite azurite")
    words = [
        "--silent",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--blobPort",
        str(port),
    ]
    may = sas.AccountSasPermissions(read=True, write=True, list=True, create=True, delete=True)
    all_types = sas.ResourceTypes(service=True, container=True, object=True)
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    signed = sas.generate_account_sas(AZURITE_ACCOUNT, AZURITE_KEY, all_types, may, until)
    options = f"enable_tls=false&{signed}"
    return [command, *words], lambda path: f"abfs://{AZURITE_ACCOUNT}@127.0.0.1:{port}/bank/{path}?{options}"


@pytest.fixture(scope="module", params=[google, azure])
def store(request):
    """The URL of a path in a bucket of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command, url = request.param(port)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < until, "the server did not start"
                time.sleep(0.2)
        opened, bucket = open_file_system(url(""))
        opened.create_dir(bucket.rstrip("/"))
        yield url
    finally:
        server.kill()
        server.wait()


def put(url, content):
    opened, path = open_file_system(url)
    with opened.open_output_stream(path, compression=None) as file:
        file.write(content)


def test_tables_make_the_graph_that_local_ones_make(store, tmp_path):
    put(store("in/accounts%20of%20all.csv"), ACCOUNTS)
    (tmp_path / "accounts.csv").write_bytes(ACCOUNTS)
    for i, text in enumerate(PAYMENTS):
        put(store(f"in/payments/{i}.csv"), text)
        (tmp_path / f"payments-{i}.csv").write_bytes(text)
    account = {"files": store("in/accounts%20of%20all.csv"), "key": "id", "features": {"age": "standardize"}}
    pays = {"type": ["account", "pays", "account"], "files": store("in/payments/*.csv"), "src": "from", "dst": "to"}
    told = {"node_types": {"account": account}, "edge_types": [pays]}
    glt.tables.build(told, tmp_path / "far")
    account["files"], pays["files"] = str(tmp_path / "accounts.csv"), str(tmp_path / "payments-*.csv")
    glt.tables.build(told, tmp_path / "near")
    for path in sorted((tmp_path / "near").rglob("*")):
        if path.is_file() and path.name not in ("build.json", "report.html"):
            assert path.read_bytes() == (tmp_path / "far" / path.relative_to(tmp_path / "near")).read_bytes()
    pays["files"] = store("nothing")
    with pytest.raises(TableError, match="there are none"):
        glt.tables.build(told, tmp_path / "out")


def test_results(store):
    path = glt.tables.write({"score": torch.tensor([0.5, 0.25])}, store("scores"))
    opened, inside = open_file_system(store(path.split("bank/")[1]))
    assert pq.read_table(inside, filesystem=opened).to_pydict() == {"id": [0, 1], "score": [0.5, 0.25]}


def test_a_partition(store, tmp_path, monkeypatch):
    monkeypatch.setenv("GLT_CACHE", str(tmp_path / "cache"))
    ring = glt.testing.ring_graph(40)
    glt.partition.RandomPartitioner(tmp_path / "parts", 2, 40, ring.edge_index, node_feat=ring.x).partition()
    for each in (tmp_path / "parts").rglob("*"):
        if each.is_file():
            put(store(f"parts/{each.relative_to(tmp_path / 'parts').as_posix()}"), each.read_bytes())
    part = glt.partition.load_partition(store("parts"), 1)
    here = glt.partition.load_partition(tmp_path / "parts", 1)
    assert (part.nodes[0].feat == here.nodes[0].feat).all()
    with pytest.raises(PartitionError, match=r"nothing/manifest.json\?.* is missing"):
        glt.partition.load_partition(store("nothing"), 0)
