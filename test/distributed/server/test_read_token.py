"""Who has the read token samples and reads; only who has the write token writes, runs functions and serves."""

import pytest
import torch
from dist_world import NUM_NODES
from service import Stage

import glt
from glt.distributed.job.worlds import ServedWorld
from glt.distributed.server import server, sessions
from glt.distributed.server.api import require_client
from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.wire.credentials import Token
from glt.distributed.wire.handshake import dial, introduce
from glt.errors import RendezvousError

WRITER, SERVER, READER, STRANGER = 1, 0, 2, 3


def set_most(num_bytes):
    sessions._MOST_READ_BYTES = num_bytes


def registered_calls():
    return sorted(glt.distributed.get_server()._calls)


def make(value):
    tensor = DistTensor((NUM_NODES, 2), torch.int64, "shared", part="node", world=ServedWorld(require_client()))
    tensor[:] = value
    kept.append(tensor)


kept = []


def is_done():
    return glt.distributed.get_server().wait_until_done(0.0)


def read_and_try_to_write():
    world = ServedWorld(require_client())
    found = DistTensor.find("shared", world=world)
    rows = found[torch.arange(NUM_NODES)]
    with pytest.raises(PermissionError, match=r"glt\.tensor\.change is not for clients that have the read token"):
        found[torch.arange(3)] = 5
    assert torch.equal(found[torch.arange(NUM_NODES)], rows), "what was refused is not waited for"
    with pytest.raises(PermissionError, match=r"glt\.tensor\.delete .* give this client the write token"):
        found.delete()
    with pytest.raises(PermissionError, match=r"glt\.tensor\.create"):
        DistTensor((5,), torch.int64, "mine", world=world)
    return rows


def is_refused(name):
    """Whether this client may not ask for something, whatever the arguments."""
    try:
        glt.distributed.request_server(0, name)
    except PermissionError:
        return True
    except Exception:
        return False
    return False


def ask_for(names):
    return [name for name in names if not is_refused(name)]


def join_as_server(port):
    entry = require_client().session(0).entry.to_json()
    with pytest.raises(RendezvousError, match="read token only: servers join with the write token"):
        dial(("localhost", port), "server 0", introduce("server", entry={**entry, "rank": 1}), 10.0)


def test_readers_read_and_writers_write(world, tmp_path):
    here = world(1)
    token, paths = Token.new(), {"write": tmp_path / "write", "read": tmp_path / "read", "other": tmp_path / "other"}
    for name, made in (("write", token), ("read", token.for_reading()), ("other", Token.new())):
        made.write(paths[name])
    with Stage(4) as stage:
        stage.ask(SERVER, "run_function", set_most, 100_000)
        stage.ask(SERVER, "serve", here.path, 1, 1, 0, token_file=str(paths["write"]))
        stage.ask(WRITER, "join", 1, 1, 0, token_file=str(paths["write"]))
        for given in ({}, {"token_file": str(paths["other"])}):
            stage.fails(STRANGER, "join", 1, 1, 0, **given).expect("RendezvousError", "server 0", "token")

        # The same place as the writer's, but among readers.
        stage.ask(READER, "join", 1, 1, 0, token_file=str(paths["read"]))
        names = stage.ask(SERVER, "run_function", registered_calls)
        assert set(names) > server.FOR_READERS, "a table of what there is"
        asked = [*(name for name in names if name != "glt.leave"), "torch.cuda.is_available", "os.system"]
        assert set(stage.ask(READER, "run_function", ask_for, asked)) == server.FOR_READERS - {"glt.leave"}

        stage.ask(WRITER, "run_function", make, 3)
        assert (stage.ask(READER, "run_function", read_and_try_to_write) == 3).all()
        stage.ask(READER, "law", "law", 0)
        stage.expect_law(READER, "law", here, 0)
        long = torch.zeros(20_000, dtype=torch.int64)
        stage.fails(READER, "request", 0, "glt.graph.degrees", 0, 0, long).expect("ValueError", "takes at most")
        assert stage.ask(WRITER, "request", 0, "torch.cuda.is_available") in (True, False)
        stage.ask(READER, "run_function", join_as_server, stage.port)

        # It ends nothing in a writer's name, and keeps nothing going.
        stage.ask(READER, "leave")
        stage.ask(READER, "join", 1, 1, 0, token_file=str(paths["read"]))
        assert stage.ask(WRITER, "request", 0, glt.distributed.server_stats)["num_clients"] == 2
        stage.fails(STRANGER, "join", 1, 1, 0, token_file=str(paths["write"])).expect("RendezvousError", "is taken by")
        assert not stage.ask(SERVER, "run_function", is_done)
        stage.ask(WRITER, "leave")
        assert stage.ask(SERVER, "wait_and_shutdown", 60.0), "a client was awaited, and has left"
        stage.end(0, 1, 2, 3)
        stage.results()
        stage.expect_nothing_left()
        log = stage.output(SERVER)
        assert "Traceback" not in log, log
        for each in (token, token.for_reading()):
            assert str(each) not in log


def test_a_server_that_lacks_the_token_is_not_spoken_to(world, tmp_path):
    Token.new().write(tmp_path / "token")
    with Stage(2) as stage:
        stage.ask(0, "serve", world(1).path, 1, None, 0)
        failed = stage.fails(1, "join", 1, 1, 0, token_file=str(tmp_path / "token"))
        failed.expect("RendezvousError", "it asks for no token", "token")
        stage.ask(0, "wait_and_shutdown", 0.0)
        stage.end(0, 1)
        stage.expect_nothing_left()
