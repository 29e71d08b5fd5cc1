"""What of a URL is told: nothing that gives access."""

import pytest

from glt._urls import public_url
from glt.tables import Description, directory


@pytest.mark.parametrize(
    "given, told",
    [
        ("https://h/a.csv?X-Amz-Signature=1&X-Amz-Date=2&id=3", "https://h/a.csv?id=3"),
        ("https://h/a.csv?st=1&page=2", "https://h/a.csv?st=1&page=2"),
        ("https://h/a.csv?sv=2024&st=1&sig=x%3D&page=2", "https://h/a.csv?page=2"),
        ("s3://key:secret@bucket/a.parquet?region=eu", "s3://bucket/a.parquet?region=eu"),
        ("abfs://box@account.dfs.core.windows.net/a.csv?sv=1&sig=2", "abfs://box@account.dfs.core.windows.net/a.csv"),
        ("gs://bucket/a b.csv", "gs://bucket/a b.csv"),
        ("https://h/download?token=one", "https://h/download?token=7692c3ad3540"),  # it may be what names the file
        ("https://h/a?api_key=&rlkey=two", "https://h/a?api_key=&rlkey=3fc4ccfe7458"),
        ("a?token=one.csv", "a?token=one.csv"),
    ],
)
def test_a_url_is_told_without_its_signature(given, told):
    assert public_url(given) == told


def test_a_description_is_kept_without_signatures():
    files = ["https://h/a.csv?X-Amz-Signature=1", "b.csv"]
    edge = {"type": ["n", "to", "n"], "files": "s3://key:secret@bucket/e.csv", "src": "s", "dst": "d"}
    description = Description.of({"node_types": {"n": {"files": files, "key": "id"}}, "edge_types": [edge]})
    told = directory._told(description)
    assert told["node_types"]["n"]["files"] == ["https://h/a.csv", "b.csv"]
    assert told["edge_types"][0]["files"] == "s3://bucket/e.csv"
    assert description.to_dict()["edge_types"][0]["files"] == edge["files"]  # which is read by it
