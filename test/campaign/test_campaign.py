"""The campaign in small: it runs, and what it tries holds."""

import shutil

import pytest


def test_a_toy_of_it(run):
    table = run("test/campaign/__main__.py", "wire", "services", "kills", "--toy", "--seconds", 60).stdout
    print(table)
    for part in (
        "wire, token and mutual TLS, port",
        "servers, token and mutual TLS, port of the metrics",
        "server mode",
    ):
        assert f"\n{part}" in table, table
    assert ", 0 failed" in table, table


@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizers are those of g++")
@pytest.mark.timeout(900)
def test_the_core_under_sanitizers(run):
    """Builds it with them, runs some of its tests, and reads some damaged files."""
    table = run("test/campaign/__main__.py", "sanitizers", "damage", "--toy", "--seconds", 120, timeout_s=880).stdout
    print(table)
    for line in ("tests of the core under sanitizers: address,undefined", "damaged files, read under address"):
        assert f"\n{line}" in table, table
    assert ", 0 failed" in table, table
