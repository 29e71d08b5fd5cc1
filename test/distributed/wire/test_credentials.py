"""The token and the TLS options of a process: files, arguments, environment, and what two processes make of them."""

import os
import re
import subprocess
import sys
from dataclasses import asdict

import pytest
from certificates import Certificates

import glt
from glt.distributed import TlsOptions
from glt.distributed.wire.credentials import (
    Credentials,
    LentToken,
    Token,
    current_credentials,
    lent_token_file,
    set_credentials,
    use_credentials,
)
from glt.testing.cluster import Cluster, free_port


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("GLT_TOKEN", "GLT_TLS", "GLT_REQUIRE")):
            monkeypatch.delenv(name)
    set_credentials(None)
    yield
    set_credentials(None)


@pytest.fixture
def token_file(tmp_path):
    Token.new().write(tmp_path / "token")
    return str(tmp_path / "token")


# -- the token -----------------------------------------------------------------------------------------------------


def test_a_token_is_read_as_it_was_written(tmp_path):
    token = Token.new()
    token.write(tmp_path / "write")
    token.for_reading().write(tmp_path / "read")
    assert Token.read(tmp_path / "write") == token and Token.read(tmp_path / "read") == token.for_reading()
    assert not token.for_reading().may_write and token.for_reading().key != token.key
    assert token.for_reading().for_reading() == token.for_reading()
    assert (tmp_path / "write").stat().st_mode & 0o777 == 0o600
    assert str(token)[10:] not in repr(token) + repr(Credentials(str(tmp_path / "write")))
    with pytest.raises(FileExistsError):
        Token.new().write(tmp_path / "write")


def test_files_that_hold_no_token_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "pem").write_text("-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n")
    (tmp_path / "short").write_text("glt-write-AAAA\n")
    (tmp_path / "long").write_text(f"{Token.new()}AAAA\n")
    (tmp_path / "binary").write_bytes(os.urandom(1 << 20))
    files = dict.fromkeys(
        ("empty", "pem", "short", "long", "binary"), "holds no token: expected a file that `glt token`"
    )
    files |= {"missing": "cannot be read: No such file", "fifo": "is no regular file", ".": "is no regular file"}
    num_open = len(os.listdir("/proc/self/fd"))
    for name, words in files.items():
        with pytest.raises(ValueError, match=words) as refused:
            Token.read(tmp_path / name)
        assert str(tmp_path / name) in str(refused.value)
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_file_that_others_may_read_is_warned_of(token_file, caplog):
    for mode in (0o640, 0o604, 0o620, 0o602):
        caplog.clear()
        os.chmod(token_file, mode)
        Token.read(token_file)
        assert "chmod 600" in caplog.text and token_file in caplog.text
    caplog.clear()
    os.chmod(token_file, 0o400)
    Token.read(token_file)
    assert not caplog.text


def test_the_command_makes_tokens_and_shows_none(tmp_path, command):
    status, out, err = command("token", tmp_path / "w")
    assert status == 0 and command("token", "--read", tmp_path / "w", tmp_path / "r")[0] == 0
    written, read = Token.read(tmp_path / "w"), Token.read(tmp_path / "r")
    assert written.may_write and written.for_reading() == read
    assert str(written)[10:] not in out + err and "write token" in out
    for words, expected in (
        ([tmp_path / "w"], "w exists: name another file"),
        ([tmp_path / "none" / "w"], "cannot be written: No such file"),
        (["--read", tmp_path / "none", tmp_path / "x"], "--read '.*none' cannot be read"),
        (["--read", tmp_path, tmp_path / "x"], "is no regular file"),
        ([], "FILE"),
    ):
        status, _, err = command("token", *words)
        assert status == 2 and re.search(expected, err), err
    assert Token.read(tmp_path / "w") == written and not (tmp_path / "x").exists()


def test_a_token_is_lent_for_as_long_as_its_process_lives():
    code = "from glt.distributed.wire.credentials import LentToken\nprint(LentToken().path, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        path = other.stdout.readline().strip()
        assert Token.read(lent_token_file(path)).may_write
        other.kill()
    with pytest.raises(ValueError, match="cannot be read"):
        lent_token_file(path)
    mine = LentToken()
    assert Token.read(mine.path) == Token.read(mine.path)
    mine.close()
    mine.close()
    with pytest.raises(ValueError, match="does not belong to this user"):
        lent_token_file("/etc/passwd")


# -- what a process uses -------------------------------------------------------------------------------------------


def test_arguments_win_over_the_environment(tmp_path, token_file, certificates, monkeypatch):
    Token.new().write(tmp_path / "other")
    monkeypatch.setenv("GLT_TOKEN_FILE", str(tmp_path / "other"))
    monkeypatch.setenv("GLT_TLS_MUTUAL", "0")
    assert current_credentials().tls is None
    monkeypatch.setenv("GLT_TLS_CA", certificates.ca)
    monkeypatch.setenv("GLT_TLS_MUTUAL", "1")
    monkeypatch.setenv("GLT_REQUIRE_AUTH", "true")
    assert use_credentials() is None  # the environment's, which may still change
    told = current_credentials()
    assert told.token_file == str(tmp_path / "other") and told.require_auth
    assert told.tls == TlsOptions(ca=certificates.ca, mutual=True)
    monkeypatch.chdir(tmp_path)
    use_credentials("token", require_auth=False)
    monkeypatch.chdir("/")
    used = current_credentials()
    assert used == Credentials(token_file, told.tls, False)
    assert Credentials.from_json(used.to_json()) == used
    use_credentials()
    use_credentials(token_file)
    assert current_credentials() == used


def test_a_process_has_one_set(tmp_path, token_file):
    Token.new().write(tmp_path / "other")
    before = use_credentials(token_file)
    for given in ({"token_file": tmp_path / "other"}, {"require_auth": True}):
        with pytest.raises(RuntimeError, match=r"one token and one set of TLS options: \w+ = .*, and it was"):
            use_credentials(**given)
    assert current_credentials().token_file == token_file
    set_credentials(before)  # as it is when what used them has ended
    use_credentials(tmp_path / "other")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"token_file": 3}, TypeError, "token_file = 3: expected text"),
        ({"token_file": ""}, ValueError, "token_file = '': expected the path of a file"),
        ({"token_file": "/nowhere"}, ValueError, "token_file = '/nowhere' cannot be read"),
        ({"tls": "job.pem"}, TypeError, "tls has type str: expected a glt.distributed.TlsOptions"),
        ({"require_auth": "yes"}, TypeError, "require_auth = 'yes': expected True or False"),
        ({"tls": TlsOptions(ca="/nowhere")}, ValueError, "ca = '/nowhere' cannot be used: .*No such file"),
        ({"tls": TlsOptions(ca="/etc/hostname")}, ValueError, "ca = '/etc/hostname' cannot be used"),
        ({"tls": TlsOptions(ca="/tmp")}, ValueError, "ca = '/tmp' is no regular file"),
        ({"tls": TlsOptions(cert="/nowhere", key="/nowhere")}, ValueError, "cert = '/nowhere' cannot be used"),
    ],
)
def test_what_makes_no_sense_is_named_and_not_used(given, error, words):
    with pytest.raises(error, match=words):
        use_credentials(**given)
    assert current_credentials() == Credentials()


def test_tls_options_make_sense(certificates, tmp_path):
    with pytest.raises(ValueError, match="key = None: expected both a certificate and its key"):
        TlsOptions(cert="a.pem")
    with pytest.raises(ValueError, match="cert = None: expected both"):
        TlsOptions(key="a.pem")
    with pytest.raises(TypeError, match="mutual = 1"):
        TlsOptions(mutual=1)
    with pytest.raises(ValueError, match="cert = None: a process that listens needs a certificate"):
        use_credentials(tls=certificates.tls(), listens=True)
    with pytest.raises(ValueError, match="ca = None: mutual needs the authority"):
        use_credentials(tls=certificates.tls("good", ca=None, mutual=True), listens=True)
    mixed = TlsOptions(cert=certificates.folder / "good.pem", key=certificates.folder / "client.key")
    with pytest.raises(ValueError, match=r"cert = .*good.pem' cannot be used: .*MISMATCH"):
        use_credentials(tls=mixed)
    secret = str(tmp_path / "secret.key")
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", certificates.folder / "good.key", "-out", secret],
        check=True,
    )
    with pytest.raises(ValueError, match="the key has a passphrase; glt asks for none"):
        use_credentials(tls=TlsOptions(cert=certificates.folder / "good.pem", key=secret))


def test_a_pair_of_which_one_is_replaced_waits_for_the_other(tmp_path, caplog):
    made = Certificates(tmp_path)
    made.issue("good")
    made.issue("next")
    options = made.tls("good")
    first = options.context(of_server=True)
    os.replace(tmp_path / "next.pem", tmp_path / "good.pem")
    assert options.context(of_server=True) is first and "stay in use" in caplog.text
    os.replace(tmp_path / "next.key", tmp_path / "good.key")
    assert options.context(of_server=True) is not first


# -- where they are given ---------------------------------------------------------------------------------------------


def serve_with(trainer, path, given, environment):
    """A server that is given this; whether its sampling process knows the same."""
    os.environ.update(environment)
    data = glt.distributed.DistDataset().load(path, 0)
    given = {**given, "rpc_timeout": 60.0}
    glt.distributed.init_server(1, None, 0, data, "127.0.0.1", trainer.port, **given)
    used = current_credentials().to_json()
    glt.distributed.wait_and_shutdown_server(0.0)
    return used, current_credentials().to_json()


def test_a_server_takes_arguments_and_forgets_them(world, token_file, certificates):
    options = certificates.tls("good")
    given = {"token_file": token_file, "tls": options, "require_auth": True}
    with Cluster(1, serve_with, world(1).path, given, {}) as cluster:
        ((used, after),) = cluster.results()
    assert used == {"token_file": token_file, "tls": asdict(options), "require_auth": True}
    assert after == Credentials().to_json()


@pytest.mark.parametrize("start", ["server", "client", "loader", "initialize"])
def test_entries_refuse_a_file_without_a_token(world, tmp_path, start):
    (tmp_path / "pem").write_text("-----BEGIN")
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    given, port = {"token_file": tmp_path / "pem"}, free_port()
    with pytest.raises(ValueError, match="pem' holds no token"):
        if start == "server":
            glt.distributed.init_server(1, None, 0, data, "127.0.0.1", port, **given)
        elif start == "client":
            glt.distributed.init_client(1, 1, 0, "127.0.0.1", port, rpc_timeout=1.0, **given)
        elif start == "initialize":
            glt.distributed.initialize(part_config=world(1).path, **given)
        else:
            glt.distributed.init_worker_group(1, 0)
            try:
                glt.distributed.DistNeighborLoader(
                    data, [2], [0], worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions(**given)
                )
            finally:
                glt.distributed.context.resign()
    assert glt.distributed.get_context() is None and current_credentials() == Credentials()
