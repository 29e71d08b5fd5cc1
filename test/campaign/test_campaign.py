"""The campaign in small: it runs, and what it tries holds."""


def test_a_toy_of_it(run):
    table = run("test/campaign/__main__.py", "--toy", "--seconds", 60).stdout
    print(table)
    for part in (
        "wire, token and mutual TLS, port",
        "servers, token and mutual TLS, port of the metrics",
        "server mode",
    ):
        assert f"\n{part}" in table, table
    assert ", 0 failed" in table, table
