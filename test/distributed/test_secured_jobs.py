"""Jobs with a token and TLS: the batches are the same, and those without get nothing."""

import json
import os
import socket
import ssl
from pathlib import Path

import pytest
import torch
from certificates import Certificates
from dist_world import CASES, expect_batches, join, options, programs, run_cluster, sample
from service import become_client, serve
from service import options as served_options

import glt
from glt.distributed.server import remote
from glt.distributed.wire import tcp
from glt.distributed.wire.credentials import Token, current_credentials
from glt.errors import RendezvousError
from glt.testing.cluster import Cluster, free_port


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """A folder with the tokens ``write``, ``read`` and ``other``, and certificates."""
    folder = tmp_path_factory.mktemp("secrets")
    token = Token.new()
    token.write(folder / "write")
    token.for_reading().write(folder / "read")
    Token.new().write(folder / "other")
    return folder


@pytest.fixture(scope="module")
def certificates(secrets):
    made = Certificates(secrets)
    made.issue("job")
    return made


def secured(certificates, **more):
    """Arguments of a server or a trainer."""
    return {"token_file": certificates.folder / "write", "tls": certificates.tls("job", **more)}


def serve_or_sample(trainer, path, num_servers, num_clients, of_servers, of_clients):
    if trainer.rank < num_servers:
        serve(trainer, path, num_servers, num_clients, **of_servers)
        glt.distributed.wait_and_shutdown_server(100.0)
        return None
    remote.host_id = lambda: "another host"  # by TCP, and not by shared memory
    rank = become_client(trainer, num_servers, num_clients, **of_clients).rank
    found = sample(None, rank, CASES[:2], lambda: served_options(num_workers=1))
    glt.distributed.shutdown_client()
    return found


@pytest.mark.parametrize("mutual", [False, True])
def test_batches_of_servers_are_the_same(world, certificates, mutual):
    of_servers = secured(certificates, mutual=mutual)
    of_clients = {**of_servers, "tls": certificates.tls("job" if mutual else None)}
    args = world(2).path, 2, 1, of_servers, of_clients
    expect_batches(run_cluster(3, serve_or_sample, *args)[2:], world(2), CASES[:2])


def sample_with(trainer, path, mode, given):
    # By TCP: on one host they would find each other's Unix sockets.
    introduction = tcp.SamplerTransport.introduction
    tcp.SamplerTransport.introduction = lambda self: introduction(self) | {"local": "\0glt-none"}
    data = join(trainer, path)
    return sample(data, trainer.rank, CASES[:2], lambda: options(trainer, mode, **given))


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_batches_of_trainers_are_the_same(world, certificates, mode):
    found = run_cluster(2, sample_with, world(2).path, mode, secured(certificates, mutual=True))
    expect_batches(found, world(2), CASES[:2])


def try_to_meet(trainer, path, given):
    data = join(trainer, path)
    with pytest.raises(RendezvousError) as refused:
        with glt.distributed.DistNeighborLoader(
            data, [2], torch.arange(4), worker_options=options(trainer, "collocated", **given[trainer.rank])
        ):
            pass
    return str(refused.value), current_credentials().token_file


def test_trainers_with_different_tokens_are_told(world, secrets):
    given = [
        {"token_file": secrets / "write", "rpc_timeout": 5.0},
        {"token_file": secrets / "other", "rpc_timeout": 5.0},
    ]
    (first, _), (second, kept) = run_cluster(2, try_to_meet, world(2).path, given)
    assert "trainers of rank [1]" in first and "within 5 s" in first
    assert "the token is another one than here" in second
    assert kept is None  # what did not work is not kept


# -- readers and strangers -----------------------------------------------------------------------------------------


@pytest.fixture
def server(world, certificates):
    """A server of this process; its port."""
    data, port = glt.distributed.DistDataset().load(world(1).path, 0), free_port()
    glt.distributed.init_server(1, None, 0, data, "127.0.0.1", port, rpc_timeout=60.0, **secured(certificates))
    yield port
    glt.distributed.wait_and_shutdown_server(0.0)


def come(trainer, port, given):
    """A client: what it may do, or why it is refused."""
    try:
        glt.distributed.init_client(1, 1, 0, "127.0.0.1", port, rpc_timeout=20.0, **given)
    except glt.errors.GltError as error:
        return str(error)
    try:
        with glt.distributed.DistNeighborLoader(
            None, [2], torch.arange(40), 10, worker_options=served_options()
        ) as loader:
            num_batches = sum(1 for _ in loader)
        try:
            called = glt.distributed.request_server(0, "torch.cuda.is_available")
        except Exception as error:
            called = f"{type(error).__name__}: {error}"
        return num_batches, called
    finally:
        glt.distributed.shutdown_client()


def found_by_client(port, **given):
    with Cluster(1, come, port, given, deadline_s=100.0) as cluster:
        return cluster.results()[0]


def test_who_may_do_what(server, secrets, certificates):
    plain = certificates.tls()
    assert found_by_client(server, token_file=secrets / "write", tls=plain) == (4, False)
    num_batches, called = found_by_client(server, token_file=secrets / "read", tls=plain)
    assert num_batches == 4 and "PermissionError" in called and "read token" in called
    assert "the token is another one than here" in found_by_client(server, token_file=secrets / "other", tls=plain)
    assert "a token is asked for here" in found_by_client(server, tls=plain)
    assert "TLS" in found_by_client(server, token_file=secrets / "write")
    assert len(glt.distributed.get_server().clients.sessions()) == 0


def test_strangers_get_nothing(server, certificates):
    """Neither a word of what is served nor a session, whatever they say first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.ca)
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(1 << 16), b'{"kind": "client", "rank": 0}'):
        with socket.create_connection(("127.0.0.1", server), timeout=30) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as stranger:
                heard = b""
                try:
                    stranger.sendall(said)
                    stranger.settimeout(20.0)
                    while piece := stranger.recv(1 << 16):
                        heard += piece
                except OSError:
                    pass
        assert len(heard) < 1024 and b"glt.stats" not in heard
    assert len(glt.distributed.get_server().clients.sessions()) == 0


# -- a token that initialize makes ---------------------------------------------------------------------------------

PEER = """
import glob, json, os, sys
import torch
import torch.distributed as dist
import glt
from glt.distributed.wire.credentials import Token, current_credentials

rank, port, parts = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
dist.init_process_group("gloo")
glt.distributed.initialize(part_config=parts, rpc_timeout=60.0)
used = current_credentials().token_file
key = str(Token.read(used))
graph = glt.distributed.DistGraph("it")
with glt.distributed.NodeDataLoader(
    graph, torch.arange(40), glt.distributed.MultiLayerNeighborSampler([2]), batch_size=10
) as loader:
    num_batches = len(list(loader))
texts = b""
for path in (*glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ")):
    try:
        texts += open(path, "rb").read()
    except OSError:
        pass
dist.barrier()
glt.distributed.finalize()
print(json.dumps([used, key, num_batches, key.encode() in texts, current_credentials().token_file]))
"""


def test_initialize_makes_a_token_for_the_processes_of_one_host(world):
    port = free_port()
    with programs(PEER, *[(rank, port, world(2).path) for rank in range(2)]) as running:
        said = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert first == second
    path, key, num_batches, is_shown, after = first
    assert path == f"/proc/{running[0].pid}/fd/{Path(path).name}" and not Path(path).exists()
    assert num_batches == 4 and not is_shown and after is None
    assert not any(key[10:] in err for _, err in said)
    assert not any("asks for no token" in err for _, err in said)
