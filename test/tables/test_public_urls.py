"""What of a URL is told: nothing that gives access."""

import pytest

from glt._urls import public_url


@pytest.mark.parametrize(
    "given, told",
    [
        ("https://h/a.csv?X-Amz-Signature=1&X-Amz-Date=2&id=3", "https://h/a.csv?id=3"),
        ("https://h/a.csv?st=1&page=2", "https://h/a.csv?st=1&page=2"),
        ("https://h/a.csv?sv=2024&st=1&sig=x%3D&page=2", "https://h/a.csv?page=2"),
        ("s3://key:secret@bucket/a.parquet?region=eu", "s3://bucket/a.parquet?region=eu"),
        ("abfs://box@account.dfs.core.windows.net/a.csv?sv=1&sig=2", "abfs://box@account.dfs.core.windows.net/a.csv"),
        ("gs://bucket/a b.csv", "gs://bucket/a b.csv"),
    ],
)
def test_a_url_is_told_without_its_signature(given, told):
    assert public_url(given) == told
